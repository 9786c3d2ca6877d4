# One image for all that is ours: services, job (Spark brings its own jars; Java 17),
# watcher, console. docker-compose.yml says what each container runs.
ARG PYTHON_IMAGE=python:3.11.13-slim-bookworm

FROM ${PYTHON_IMAGE} AS build
ENV PIP_NO_CACHE_DIR=1 PIP_DISABLE_PIP_VERSION_CHECK=1
RUN python3 -m venv /opt/tracing-2pc
WORKDIR /build
# First what changes rarely: the versions that are tested, without the package.
COPY requirements.txt pyproject.toml ./
ARG EXTRAS=spark,participant,console,postgres,requests,otlp,skywalking,kafka,activemq,grpc,nats,launch
RUN mkdir -p tracing_2pc participants && touch tracing_2pc/__init__.py README.md LICENSE \
    && /opt/tracing-2pc/bin/pip install --quiet -c requirements.txt ".[${EXTRAS}]" \
    && /opt/tracing-2pc/bin/pip uninstall --quiet --yes tracing-2pc
COPY README.md LICENSE ./
COPY participants participants
COPY tracing_2pc tracing_2pc
RUN /opt/tracing-2pc/bin/pip install --quiet --no-deps . \
    && /opt/tracing-2pc/bin/pip uninstall --quiet --yes pip setuptools \
    && cd /opt/tracing-2pc/lib/python3*/site-packages \
    && rm -rf pyspark/examples pyspark/data pyspark/licenses pyarrow/include pandas/tests

FROM ${PYTHON_IMAGE}
# procps: Spark's scripts ask for ps.
RUN apt-get update -qq \
    && apt-get install -y -qq --no-install-recommends openjdk-17-jre-headless procps \
    && rm -rf /var/lib/apt/lists/*
# A fresh volume takes its owner from here. 10001 is nobody on the host.
RUN useradd --uid 10001 --create-home --shell /usr/sbin/nologin tpc \
    && for name in ours postgres monitoring skywalking grafana state partner; do \
        install -d -o tpc -g tpc -m 0755 "/srv/$name"; done
COPY --from=build /opt/tracing-2pc /opt/tracing-2pc
ENV PATH=/opt/tracing-2pc/bin:$PATH \
    PYTHONUNBUFFERED=1 \
    PYSPARK_PYTHON=/opt/tracing-2pc/bin/python \
    HEALTH_URL=
USER 10001:10001
WORKDIR /srv/state
# Each service names its own address; one that names none is as healthy as its process.
HEALTHCHECK --interval=10s --timeout=5s --start-period=60s --retries=3 \
    CMD ["python", "-c", "import os, urllib.request as r; u = os.environ['HEALTH_URL']; u and r.urlopen(u, timeout=4)"]
STOPSIGNAL SIGTERM
ENTRYPOINT ["python", "-m"]
CMD ["tracing_2pc", "--help"]
