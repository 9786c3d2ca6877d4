# make demo: watch it work on real data, through crashes. make test: the tests.
# Both set everything up first, in .venv; nothing outside this folder but Java.
SHELL := /bin/bash
PYTHON ?= python3
BIN := .venv/bin
JAVA = JAVA_HOME="$$(tools/java-home)"
PYTEST = $(BIN)/pytest -n 3
JAEGER := .cache/jaeger
OAP := .cache/oap
KAFKA := .cache/kafka
ACTIVEMQ := .cache/activemq
KUBERNETES := .cache/kubernetes/kube-apiserver
AGENT := .cache/stock-agent
AUTO := .cache/auto-instrumented
OLDEST := .cache/pyspark-3.5
COMPOSE := .cache/engine/docker-compose
# Tests start thousands of processes: what one has compiled, the others read.
unexport PYTHONDONTWRITEBYTECODE
# Where tools/strace unpacks it for whoever is not root.
export PATH := $(PATH):$(CURDIR)/.cache/strace
N ?= 1
MINUTES ?= 10
SEED := $(or $(SEED),$(shell date +%s))
NIGHTLY := nightly-tests crash chaos-hours chaos-events fuzz power load stateful rules model counts test-oldest-spark test-cluster test-k8s \
	test-jaeger test-skywalking test-dashboards test-brokers browser test-compose

# Makes one target after another and says how long each took. $(2): -k goes on after a failure.
define timed
failed=; for part in $(1); do began=$$SECONDS; $(MAKE) --no-print-directory SEED=$(SEED) $$part \
	|| { failed="$$failed $$part"; [ "$(2)" = -k ] || exit 1; }; \
	echo "== $$part: $$((SECONDS - began)) s"; done; \
	[ -z "$$failed" ] || { echo "failed:$$failed"; exit 1; }
endef

.PHONY: setup java tools demo test test-fast ci test-ci nightly nightly-tests test-oldest-spark stateful fuzz power load crash chaos chaos-hours chaos-events rules model counts bench jaeger \
	test-jaeger console-pictures pictures oap kafka activemq test-brokers kubernetes test-k8s stock-agent auto-instrumented test-skywalking test-dashboards test-cluster browser \
	compose-plugin engine test-compose docs docs-serve release lint audit lock clean

setup: | java .venv/ready
	@echo "ready: .venv, and Java at $$(tools/java-home)" >&2

java:  # first, and at once: without it nothing else is of use
	@tools/java-home >/dev/null

# What the demo needs is half of what developing does: where .venv/ready is, it is there, too.
.venv/demo-ready: requirements.txt pyproject.toml
	@if [ .venv/ready -nt requirements.txt ] && [ .venv/ready -nt pyproject.toml ]; then touch $@; else \
		echo "loading what the demo needs into .venv: 900 MB there, most of it Spark" >&2 \
		&& $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10) and "Python 3.10 or newer is needed: make PYTHON=python3.11 demo")' \
		&& $(PYTHON) -m venv .venv && $(BIN)/pip install --quiet --disable-pip-version-check uv \
		&& VIRTUAL_ENV=.venv $(BIN)/uv pip install -c requirements.txt -e ".[demo]" && touch $@; fi

.venv/ready: requirements.txt pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 10))' \
		|| { echo "Python 3.10 or newer is needed: make PYTHON=python3.11 ..."; exit 1; }
	$(PYTHON) -m venv .venv
	$(BIN)/pip install --quiet --disable-pip-version-check uv
	VIRTUAL_ENV=.venv $(BIN)/uv pip install --quiet -r requirements.txt -e .
	@rm -f .venv/lib/python3*/site-packages/pyspark/python/lib/pyspark.zip  # workers then import what is compiled
	@touch $@

tools: setup auto-instrumented  ## programs that tests run: strace, Prometheus, PgBouncer, a registry, Redis
	@tools/strace >/dev/null
	@tools/prometheus >/dev/null
	@tools/pgbouncer >/dev/null
	@tools/registry
	@tools/redis
	@$(JAVA) PYTHONPATH=tests:. $(BIN)/python -W ignore -m support.spark_defaults

demo: | java .venv/demo-ready  ## stream a month of flights into a table and a service, with kills, and judge it
	@$(JAVA) $(BIN)/tracing-2pc demo $(ARGS)

test: lint tools  ## each real thing at least once: some minutes
	$(JAVA) $(PYTEST) -m "not ci and not nightly" $(ARGS)

test-fast: tools  ## without Spark
	$(PYTEST) -m "not spark and not ci and not nightly" $(ARGS)

ci:  ## what each change must pass: all of `make test`, and each thing that can break
	@$(call timed,setup tools kafka activemq lint test-ci)

test-ci: tools kafka activemq
	-@tools/chromium
	$(JAVA) TPC_KAFKA="$(CURDIR)/$(KAFKA)" TPC_ACTIVEMQ="$(CURDIR)/$(ACTIVEMQ)" \
		$(PYTEST) -m "not nightly" --durations=40 --junitxml=build/ci.xml $(ARGS)

nightly:  ## everything else, drawn anew by SEED, part by part: hours
	@echo "SEED=$(SEED)"
	@$(call timed,$(NIGHTLY),-k)

nightly-tests: tools compose-plugin
	$(JAVA) $(PYTEST) -m "nightly and not cluster and not broker" --ignore=tests/load \
		--durations=40 --junitxml=build/nightly.xml $(ARGS)

# Its own sockets are left to the garbage collector there, and it uses what Python deprecates: warnings.
test-oldest-spark: $(OLDEST)/ready  ## tests/spark on the oldest PySpark that is supported
	$(JAVA) $(OLDEST)/bin/pytest -W ignore::ResourceWarning \
		-W ignore::pytest.PytestUnraisableExceptionWarning -W ignore::DeprecationWarning tests/spark $(ARGS)

$(OLDEST)/ready: requirements.txt pyproject.toml | setup
	$(PYTHON) -m venv $(OLDEST)
	grep -vE '^pyspark==' requirements.txt > $(OLDEST)/requirements.txt
	VIRTUAL_ENV=$(OLDEST) $(BIN)/uv pip install --quiet -r $(OLDEST)/requirements.txt "pyspark==3.5.*"
	VIRTUAL_ENV=$(OLDEST) $(BIN)/uv pip install --quiet --no-deps -e .
	@touch $@

stateful: setup  ## thousands of random histories, others each time: about ten minutes
	HYPOTHESIS_PROFILE=thorough $(BIN)/pytest --hypothesis-seed=$(SEED) $(ARGS) \
		tests/component/test_stateful_protocol.py tests/contract/test_stateful_participant.py

fuzz: setup  ## bodies that nobody meant, N thousand to each kind of participant; requests
	PYTHONPATH=tests:. $(BIN)/python -m fuzz --cases $(N)000 --seed $(SEED) $(ARGS)
	PYTHONPATH=tests:. $(BIN)/python -m fuzz --cases $(N)000 --seed $(SEED) --postgresql $(ARGS)
	HYPOTHESIS_PROFILE=thorough DRAWN_EXAMPLES=$(N)00 \
		$(BIN)/pytest --hypothesis-seed=$(SEED) tests/contract/test_openapi_drawn.py

power: setup  ## lose power at each moment of what is written, for five minutes; open what is left
	@tools/strace >/dev/null
	@PYTHONPATH=tests:. $(BIN)/python -W ignore -m power --seed $(SEED) $(ARGS)

load: tools  ## a thousand half-open connections, a day of batches, 64 applications, 200 participants
	$(PYTEST) -m nightly tests/load $(ARGS)

crash: setup  ## kill at every failpoint, N times each, and once with branches of 5 MB; judge
	@tools/strace >/dev/null
	@echo "SEED=$(SEED)"
	@PYTHONPATH=tests:. $(BIN)/python -m crash --runs $(N) --seed $(SEED) --json build/crash.json $(ARGS)
	@PYTHONPATH=tests:. $(BIN)/python -m crash --seed $(SEED) --body 5000000 $(ARGS)

chaos: setup kafka  ## kill and pause at random moments, on real Spark, for MINUTES; judge
	@$(JAVA) TPC_KAFKA="$(CURDIR)/$(KAFKA)" PYTHONPATH=tests:. $(BIN)/python -W ignore -m chaos --minutes $(MINUTES) --seed $(SEED) $(ARGS)

chaos-hours:  ## two hours of it
	@$(MAKE) --no-print-directory chaos MINUTES=120

chaos-events: setup activemq  ## the same of the pipeline from HTTP and a queue to a ledger and a queue
	@$(JAVA) TPC_ACTIVEMQ="$(CURDIR)/$(ACTIVEMQ)" PYTHONPATH=tests:. $(BIN)/python -W ignore -m chaos --events --minutes $(MINUTES) --seed $(SEED) $(ARGS)

rules: tools  ## take each rule out of a copy, and see its test turn red
	@PYTHONPATH=tests:. $(BIN)/python -m rules $(ARGS)

model: setup  ## explore the protocol as a program: a million worlds, and each rule taken out
	@$(BIN)/python -m spec $(ARGS)

counts: setup  ## exact counts: flushes, requests, connections, Spark jobs
	@tools/strace >/dev/null
	@$(JAVA) $(BIN)/python -m bench counts $(ARGS)

bench: setup auto-instrumented kafka  ## ratios of what the library costs; writes docs/performance.md: hours, on a quiet machine
	@$(JAVA) $(BIN)/python -m bench all $(ARGS)

jaeger: $(JAEGER)  ## a Jaeger of our own, built once: nine minutes of CPU time
	@echo "ready: $(JAEGER)"

$(JAEGER): tools/jaeger/go.mod tools/jaeger/go.sum
	@go="$$(PYTHON=$(PYTHON) tools/go)" && echo "building Jaeger with $$go" && mkdir -p $(@D) \
		&& CGO_ENABLED=0 "$$go" -C tools/jaeger build -trimpath -ldflags "-s -w" \
			-o "$(CURDIR)/$@" github.com/jaegertracing/jaeger/cmd/jaeger \
		&& touch $@ && echo "built $@ in $$SECONDS s"

test-jaeger: setup jaeger activemq  ## what a real Jaeger is told, through its own API
	$(JAVA) TPC_JAEGER="$(CURDIR)/$(JAEGER)" TPC_ACTIVEMQ="$(CURDIR)/$(ACTIVEMQ)" \
		$(BIN)/pytest tests/backends tests/brokers/test_pipeline.py $(ARGS)

console-pictures: setup  ## docs/pictures/console-*.png, anew
	TPC_PICTURES=docs/pictures $(BIN)/pytest tests/console/test_pictures.py $(ARGS)

kubernetes: $(KUBERNETES) .cache/etcd/etcd  ## an API server and kubectl of our own, built once: eight minutes of CPU time
	@echo "ready: $(KUBERNETES)"

.cache/etcd/etcd:
	@tools/unpack etcd etcd-server && touch $@

$(KUBERNETES): tools/kubernetes/go.mod tools/kubernetes/go.sum
	@go="$$(PYTHON=$(PYTHON) tools/go)" && echo "building kube-apiserver and kubectl with $$go" && mkdir -p $(@D) \
		&& version=$$("$$go" -C tools/kubernetes list -m -f '{{.Version}}' k8s.io/kubernetes) && CGO_ENABLED=0 \
			"$$go" -C tools/kubernetes build -trimpath -ldflags "-s -w -X k8s.io/component-base/version.gitVersion=$$version" \
			-o "$(CURDIR)/$(@D)/" k8s.io/kubernetes/cmd/kube-apiserver k8s.io/kubernetes/cmd/kubectl \
		&& touch $@ && echo "built $@ in $$SECONDS s"

test-k8s: tools kubernetes jaeger  ## launches and their operator at a real API server, with roles
	TPC_KUBERNETES="$(CURDIR)/$(KUBERNETES)" TPC_JAEGER="$(CURDIR)/$(JAEGER)" $(PYTEST) tests/launch $(ARGS)

pictures: console-pictures jaeger  ## and those of traces: tools/jaeger/README.md says where JAEGER_PAGE is from
	TPC_JAEGER="$(CURDIR)/$(JAEGER)" PYTHONPATH=tests:. $(BIN)/python -m backends.pictures

oap: $(OAP)/ready  ## a SkyWalking collector: its jars, loaded once

$(OAP)/ready: tools/oap/pom.xml
	@echo "loading $(OAP): jars, a minute or more"
	@mvn="$$(tools/maven)" && mkdir -p $(OAP) && $(JAVA) "$$mvn" -B -q -f tools/oap/pom.xml \
		dependency:copy-dependencies -DincludeScope=runtime \
		-DoutputDirectory="$(CURDIR)/$(OAP)" && touch $@ && echo "loaded $(OAP) in $$SECONDS s"

kafka: $(KAFKA)/ready  ## a Kafka broker, and Spark's source of Kafka: their jars, loaded once

$(KAFKA)/ready: tools/kafka/pom.xml tools/kafka/spark.xml
	@echo "loading $(KAFKA): jars, a minute or more"
	@mvn="$$(tools/maven)" && mkdir -p $(KAFKA) && load() { $(JAVA) "$$mvn" -B -q -f "$$1" \
		dependency:copy-dependencies -DincludeScope=runtime -DoutputDirectory="$$2"; } \
		&& load tools/kafka/pom.xml "$(CURDIR)/$(KAFKA)" \
		&& load tools/kafka/spark.xml "$(CURDIR)/$(KAFKA)/spark" \
		&& touch $@ && echo "loaded $(KAFKA) in $$SECONDS s"

activemq: $(ACTIVEMQ)/ready  ## an ActiveMQ broker: its jars, loaded once

$(ACTIVEMQ)/ready: tools/activemq/pom.xml
	@echo "loading $(ACTIVEMQ): jars, a minute or more"
	@mvn="$$(tools/maven)" && mkdir -p $(ACTIVEMQ) && $(JAVA) "$$mvn" -B -q \
		-f tools/activemq/pom.xml dependency:copy-dependencies -DincludeScope=runtime \
		-DoutputDirectory="$(CURDIR)/$(ACTIVEMQ)" \
		&& touch $@ && echo "loaded $(ACTIVEMQ) in $$SECONDS s"

test-brokers: tools kafka activemq  ## relays at a real Kafka, ActiveMQ and Redis, which are killed too
	$(JAVA) TPC_KAFKA="$(CURDIR)/$(KAFKA)" TPC_ACTIVEMQ="$(CURDIR)/$(ACTIVEMQ)" \
		$(BIN)/pytest -m broker $(ARGS)

stock-agent: $(AGENT)/ready  ## SkyWalking's own agent, in an environment of its own

# The last version whose wheel can be imported; it forces other versions than ours.
$(AGENT)/ready: Makefile
	@$(PYTHON) -m venv $(AGENT) && $(AGENT)/bin/pip install --quiet \
		--disable-pip-version-check apache-skywalking==1.2.0 "flask>=3,<4" "requests>=2.31,<3" \
		setuptools && touch $@

auto-instrumented: $(AUTO)/ready  ## OpenTelemetry's own instrumentation, in an environment of its own

# It would instrument ours, too: what it finds installed, it changes.
$(AUTO)/ready: requirements.txt pyproject.toml Makefile | setup
	@$(PYTHON) -m venv $(AUTO) && VIRTUAL_ENV=$(AUTO) $(BIN)/uv pip install --quiet \
		-c requirements.txt -e ".[participant,postgres,otlp]" opentelemetry-distro \
		opentelemetry-instrumentation-flask opentelemetry-instrumentation-urllib3 && touch $@

test-skywalking: setup oap stock-agent  ## what a real SkyWalking is told, beside its agents
	$(JAVA) TPC_OAP="$(CURDIR)/$(OAP)" TPC_STOCK_AGENT="$(CURDIR)/$(AGENT)/bin" \
		$(BIN)/pytest tests/backends/test_skywalking.py \
		tests/backends/test_skywalking_metrics.py $(ARGS)

test-cluster: setup  ## Spark's own cluster, which loses executors, a worker and drivers
	$(JAVA) $(BIN)/pytest -m cluster tests/cluster $(ARGS)

browser: setup  ## a browser for tests/console, from Debian, and its tests
	@tools/chromium
	$(BIN)/pytest -m browser $(ARGS)

test-dashboards: setup jaeger oap  ## the bundled alerts, at real backends, of one stuck transaction
	@tools/prometheus >/dev/null
	$(JAVA) TPC_JAEGER="$(CURDIR)/$(JAEGER)" TPC_OAP="$(CURDIR)/$(OAP)" \
		$(BIN)/pytest -s -m dashboards tests/bundled $(ARGS)

compose-plugin: $(COMPOSE)  ## docker compose, built once: it reads the file in `make test` too
	@echo "ready: $(COMPOSE)"

$(COMPOSE): tools/engine/go.mod tools/engine/go.sum
	@go="$$(PYTHON=$(PYTHON) tools/go)" && echo "building docker compose with $$go" \
		&& CGO_ENABLED=0 "$$go" -C tools/engine build -trimpath -o "$(CURDIR)/$@" -ldflags \
			"-s -w -X github.com/docker/compose/v2/internal.Version=2.29.7" \
			github.com/docker/compose/v2/cmd \
		&& touch $@ && echo "built $@ in $$SECONDS s"

engine: compose-plugin  ## a container engine of our own, nothing installed
	@tools/engine/fetch >/dev/null

test-compose: setup engine jaeger oap kafka activemq  ## the unchanged compose file, in containers; as root
	@tools/prometheus >/dev/null
	TPC_COMPOSE=1 $(BIN)/pytest -s -m compose tests/containers $(ARGS)

docs: setup  ## the documentation as a site, in site/; a dead link or name is an error
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict --quiet

docs-serve: setup  ## the same at http://127.0.0.1:8000/, built anew at each change
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

release: setup  ## what the workflow publishes of TAG: wheel, source, and the list of what is in the wheel's environment
	$(BIN)/python tools/release_check.py "$(TAG)"
	rm -rf dist build/release && mkdir -p build/release && git archive HEAD | tar -xC build/release
	$(BIN)/python tools/release_tree.py build/release "$(TAG)" "$(REPOSITORY)"
	cd build/release && $(abspath $(BIN))/python -m hatchling build -d $(CURDIR)/dist
	$(BIN)/uv tool run twine check --strict dist/*
	$(PYTHON) -m venv .cache/released && VIRTUAL_ENV=.cache/released $(BIN)/uv pip install \
		--quiet -c requirements.txt "$$(ls dist/*.whl)[all]" && .cache/released/bin/tracing-2pc --version
	$(BIN)/uv tool run --from cyclonedx-bom cyclonedx-py environment .cache/released --output-file build/sbom.json

lint: setup
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/bandit -q -c pyproject.toml -r -ll -ii tracing_2pc participants dashboards spec tools
	PYTHONPATH=tests $(BIN)/python -m support.seconds

audit: setup  ## dependencies against known vulnerabilities; where no advisories can be had, it says so
	$(BIN)/uv tool run pip-audit -r requirements.txt --no-deps --disable-pip --progress-spinner off \
		--format json | $(BIN)/python tools/audit.py

lock: .venv/ready  ## after a change of the dependencies in pyproject.toml
	VIRTUAL_ENV=.venv $(BIN)/uv pip compile --quiet --universal --all-extras --group dev \
		--python-version 3.10 --no-header --no-emit-index-url --upgrade \
		pyproject.toml -o requirements.txt

clean:
	rm -rf .venv site .pytest_cache .mypy_cache .ruff_cache .hypothesis .import_linter_cache
