"""The site of the manual: built strictly, without a network; what its search says."""

from __future__ import annotations

import functools
import http.server
import json
import os
import re
import shutil
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest
from manual import ROOT
from support.programs import ran
from support.waiting import AT_LAST

BUILD = """
import socket
def refuse(*_):
    raise OSError("the site must be built without a network")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""
FIRST: Final = ".md-search-result__item:first-child > a"
CHROMIUM: Final = shutil.which("chromium")
ASKED: Final = {
    "service is down when a batch comes": "faq#what-happens-when-a-service job",
    "where do I put the token": "faq#where-do-i-put-the-token security",
    "which Spark versions are supported": "faq#which-versions",
    "can I use MySQL": "faq#can-i-use-mysql",
    "run on databricks": "platforms",
    "transaction is quarantined": "faq#a-transaction-is-quarantined runbook",
    "back up the decision log": "faq#how-do-i-back-up operating",
    "write parquet to s3": "sink",
    "why is my batch slow": "faq#why-is-my-batch-slow tracing",
    "rotate a token": "security",
    "does it work with Delta Lake": "sink faq#is-one-delta",
    "PgBouncer": "service operating",
    "what metrics should I watch": "metrics faq#which-alerts",
    "upgrade without downtime": "faq#how-do-i-change-the-version upgrading",
    "too many partitions": "job faq#how-large",
    "write to two Kafka topics": "kafka faq#can-i-write-to-postg",
    "disk full": "faq#what-happens-when-a-disk operating",
    "how large can a batch be": "faq#how-large job",
    "add a third service to a running job": "faq#may-i-change-the-participants job",
    "a service is gone for good": "faq#can-i-skip operating",
    "who decided a transaction by hand": "faq#who-decided operating",
    "which database permissions are needed": "faq#which-database grants",
    "start with an existing table that has data": "faq#may-the-table-exist service",
    "migrate from Flink": "faq#how-do-i-migrate flink",
    "what if Spark runs a task twice": "faq#what-if-spark-runs job",
    "the job hangs": "faq#the-job-the-stream operating",
    "what happens when the decision log is lost": "faq#what-if-the operating",
    "partner rate limit 429": "faq#does-it-respect service",
    "overhead latency compared to plain foreachBatch": "faq#how-much-slower",
    "password token TLS configuration": "faq#where-do-i-put-the-token",
    "kafka duplicates exactly once consumer": "faq#is-it-exactly-once-with",
    "send traces to jaeger skywalking": "faq#how-do-i-send-traces skywalking",
    "write custom participant rest api": "faq#how-do-i-write-a-custom faq#my-service",
    "purge old records retention": "faq#how-much-disk operating#forget",
    "schema change new column": "faq#how-do-i-change-the-schema adding-a-column",
    "availableNow trigger once batch": "faq#can-airflow job#",
    "network partition after vote": "faq#what-happens-when-a-service",
    "trace sampling rate high volume": "tracing#sampling",
    "high availability standby coordinator failover": "faq#is-the-decision-log",
    "stateful aggregation watermark support": "job#queries-that-keep",
    "postgres max_prepared_transactions setting": "service faq#must-max",
    "nats or grpc participant transport": "transports",
    "memory requirement participant service": "faq#how-much-memory",
    "replay dead letter messages": "faq#what-happens-to-messages",
    "tune timeout and retries": "faq#how-do-i-change-the-timeout",
    "create tables in database first setup": "faq#which-tables",
    "prepared transaction stuck holding locks": "faq#why-is-a-transaction-stuck",
    "micro-batch slow tune performance": "faq#why-is-my-batch-slow",
    "no traces showing in jaeger": "faq#there-are-no-traces",
    "in-doubt transaction resolve manually": "faq#why-is-a-transaction operating#re",
    "overhead latency per batch": "faq#how-much-slower",
    "unit test pipeline with pytest": "faq#how-do-i-write-a-unit testing",
    "gateway idempotency key retry": "ingest",
    "manually resolve in-doubt transaction": "faq#why-is-a-transaction",
    "compared with delta lake foreachBatch": "faq#is-one comparison",
    "run driver on kubernetes restart": "platforms#kubernetes",
    "remove application drop tables": "faq#how-do-i-remove retiring",
    "my stream hangs because one target is down": "faq#the-job-the-stream job",
    "roll back a batch by hand": "faq#how-do-i-force operating#re",
    "write into an iceberg or hudi table": "faq#can-i-write-to-iceberg",
    "why do rows appear later in one service than in the other": "faq#do-readers",
    "how much slower is this than a plain foreachBatch": "faq#how-much-slower",
    "if the driver crashes in the middle of a commit": "concepts#what-may faq",
    "send spans to jaeger or grafana tempo": "faq#how-do-i-send-traces tracing",
    "delete old journal entries disk full": "faq#how-much-disk",
    "can two jobs write to the same table": "faq#can-two-streams",
    "upgrade to a new version without losing data": "faq#how-do-i-change-the-v",
    "unit test my pipeline without a cluster": "faq#how-do-i-write-a-unit testing",
    "kafka consumers see uncommitted messages": "faq#is-it-exactly-once-with",
    "does it run on java 21 and python 3.13": "faq#which-versions platforms",
    "pass username and password to the service safely": "faq#where-do-i-put",
    "one bad row makes the whole batch fail again and again": "faq#what-if-one-bad",
    "write my own destination connector": "faq#how-do-i-write-a-custom",
    "alert me when a transaction is stuck": "alerts faq#which-alerts",
    "move the checkpoint to another directory": "faq#may-i-move",
    "can I scale a service to several replicas": "faq#can-a-service-run",
    "rest api of a partner that has no rollback": "faq#my-service-has-no",
    "how do I see why batch 42 was aborted": "faq#why-was-my-batch",
    "https certificates between spark and the service": "faq#how-do-i-encrypt",
    "submit to yarn or emr": "platforms#yarn",
    "do I need a coordinator server": "faq#does-it-need",
    "write to postgres and kafka atomically from spark": "faq#can-i-write-to-postg",
    "is this different from spark exactly-once checkpoint": "faq#is-it-exactly-once",
    "which spark and python versions are supported": "faq#which-versions",
    "my service has no prepare step can it participate": "faq#my-service-has-no",
    "how to unit test my streaming job without kafka": "faq#how-do-i-write-a-unit",
    "deploy on kubernetes with spark operator": "platforms#kubernetes",
    "alert on transactions stuck in doubt": "alerts faq#which-alerts",
    "one target is down, job keeps failing, skip it": "faq#can-i-skip",
    "passwords and TLS for database connection": "security#passwords",
    "max_prepared_transactions postgres setting required": "faq#must-max service",
    "checkpoint location required for streaming query": "faq#is-a-checkpoint",
    "checkpoint deleted lost restart without duplicates": "faq#i-lost",
    "one service down batch keeps failing what happens": "faq#the-job faq#what-hap job",
    "simulate crash between prepare and commit in test": "faq#how-do-i-test-that",
    "stream is stuck, batch keeps failing and retrying": "faq#the-job-the-stream",
    "prepared transactions left open blocking vacuum": "faq#a-prepared",
    "alert when a transaction is in doubt": "alerts faq#which-alerts",
    "what if the driver dies during commit": "faq#what-happens-when-the-dr concepts",
    "where to put database passwords and secrets": "faq#where-do security",
    "how much latency overhead per micro-batch": "faq#how-much-slower",
    "upgrade to new version without losing the checkpoint": "faq#how-do-i-change-the",
    "postgres": "postgresql-and service two-postgresql quick-start",
    "postgres and kafka together": "postgresql-and-kafka faq#can-i-write-to-postg",
    "two postgres databases": "two-postgresql",
    "job is dead": "operating#whether-a-job faq#the-job-the",
    "stream stopped": "operating#whether-a-job faq#the-job-the",
    "do I need a service for postgres": "embedded faq",
    "is my job running": "operating#whether-a-job",
}
"""What a user types, and which pages, or sections by how their anchors begin, answer
it: one of them is the first hit."""

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(
        sys.version_info < (3, 11),
        reason="the last mkdocstrings for Python 3.10 does not fit the last pymdown",
    ),
]


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    """Build it, strictly."""
    target = tmp_path_factory.mktemp("manual") / "site"
    command = [sys.executable, "-c", BUILD, "build", "--strict", "--site-dir", target]
    told = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = ran(command, cwd=ROOT, env=told, timeout=AT_LAST)
    assert done.returncode == 0, done.stderr
    return Path(target)


def test_the_site_is_built(site):
    """No dead link or anchor, no name without a docstring; no page loads a stranger."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert [*site.rglob("__pycache__")] == []
    for page in pages:
        loaded = re.findall(
            r'<(?:script|img|link|iframe)[^>]+(?:src|href)="(https?:[^"]+)',
            page.read_text(),
        )
        assert loaded == [], page
    reference = (site / "api.html").read_text(encoding="utf-8")
    for name in ("two_phase_commit", "TaggedRows", "FaultProxy", "AbortedError"):
        assert f"{name}</" in reference, name


@pytest.mark.parametrize("name", ["api.html", "faq.html"])
def test_a_long_page_begins_with_what_is_on_it(site: Path, name: str) -> None:
    """Each heading of its text is a link there; the search finds no heading twice."""
    html = (site / name).read_text(encoding="utf-8")
    (listed,) = re.findall(r"<div class='on-this-page'.*?</div>", html, re.DOTALL)
    headings = re.findall(r'<h2 id="([^"]+)"', html)
    assert len(headings) > 5
    assert [h for h in headings if f"href='#{h}'" not in listed] == []
    index = json.loads((site / "search/search_index.json").read_text("utf-8"))
    (first,) = [doc["text"] for doc in index["docs"] if doc["location"] == name]
    assert "href" not in first


class Quiet(http.server.SimpleHTTPRequestHandler):
    """Files, without a line for each."""

    def log_message(self, *_: object) -> None:
        """Say nothing."""


@pytest.fixture
def address(site) -> Iterator[str]:
    """Serve it on this machine."""
    handler = functools.partial(Quiet, directory=site)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.browser
@pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: make browser")
def test_the_search_answers(address):
    """The first hit of a question, in a real browser, is a page that answers it."""
    sync_api = pytest.importorskip("playwright.sync_api")
    wrong = {}
    with sync_api.sync_playwright() as playwright:
        arguments = {"executable_path": CHROMIUM, "args": ["--no-sandbox"]}
        browser = playwright.chromium.launch(**arguments)
        page = browser.new_page()
        page.set_default_timeout(AT_LAST * 1_000)
        for question, answers in ASKED.items():
            page.goto(f"{address}/index.html?q={question.replace(' ', '+')}")
            page.wait_for_selector(FIRST, state="attached")
            links = page.eval_on_selector_all(FIRST, "all => all.map(a => a.href)")
            first = [re.sub(r".*/|\.html[^#]*", "", link) for link in links]
            if not any(hit.startswith(tuple(answers.split())) for hit in first):
                wrong[question] = first
        browser.close()
    assert wrong == {}
