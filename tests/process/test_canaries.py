"""Records, tokens and passwords of a whole run are found in nothing that it shows.

Services, a job, a watcher and a console, each a process of its own; what goes well and
what fails. Every value that is a secret is a word that occurs nowhere else.
"""

from __future__ import annotations

import http.cookiejar
import json
import os
import subprocess
import sys
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Mapping
from pathlib import Path

import pytest
import sqlalchemy as sa
from backends.demo_path import DemoPath, armed, run
from backends.job import HELD, decisions
from support.branches import Branch, records
from support.console import OURS, csrf_in
from support.waiting import AT_LAST, until

from participants.processes import stopping
from participants.watching import Operator
from tracing_2pc.core import content
from tracing_2pc.testing.collector import Collector

RECORD, PASSWORD = "canary-in-a-record", "canary-as-a-password"
WEBHOOK, WRONG = "canary-of-a-webhook", "canary-as-a-wrong-token"
STORED = ("*.db", "*.db-wal", "*.db-shm", "tokens")
"""Where secrets belong."""


class Shown:
    """What the run shows, by where it was shown."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def ask(
        self, name: str, url: str, token: str, data: bytes | None = None, **about: str
    ) -> int:
        headers = {"Authorization": f"Bearer {token}", **about}
        request = urllib.request.Request(url, data, headers)
        try:
            with urllib.request.urlopen(request, timeout=AT_LAST) as answer:
                status, text = answer.status, answer.read().decode()
        except urllib.error.HTTPError as error:
            with error:
                status, text = error.code, f"{error.headers} {error.read().decode()}"
        self.texts[f"{name}: {url} {token[:4]}"] = text
        return status

    def files(self, folder: Path) -> None:
        for file in folder.rglob("*"):
            if file.is_file() and not any(map(file.match, STORED)):
                self.texts[str(file)] = file.read_bytes().decode(errors="replace")

    def command(self, environment: Mapping[str, str], *words: str) -> None:
        command = [sys.executable, "-m", "tracing_2pc", *words]
        done = subprocess.run(
            command, env=dict(environment), capture_output=True, timeout=AT_LAST
        )
        self.texts[" ".join(words)] = f"{done.stdout!r} {done.stderr!r}"

    def pages(self, at: str, token: str, *paths: str) -> None:
        jar = urllib.request.HTTPCookieProcessor(http.cookiejar.CookieJar())
        person = urllib.request.build_opener(jar)
        person.addheaders = list(OURS.items())

        def read(path: str, data: bytes | None = None) -> str:
            with person.open(at + path, data, AT_LAST) as answer:
                text: str = answer.read().decode()
            self.texts[f"page {path} {token[:4]}"] = text
            return text

        fields = {"csrf": csrf_in(read("/login")), "token": token, "name": "Ada"}
        read("/login", urllib.parse.urlencode(fields).encode())
        for path in paths:
            read(f"/{path}")


def wrong(path: DemoPath, shown: Shown, token: str) -> None:
    """Send to each participant what it refuses, with a record in it."""
    bodies = [
        records(value=[RECORD], text=[RECORD]),
        records(value=[1], another=[RECORD]),
        Branch(RECORD.encode(), 1),
        Branch(b'{"value": "%s' % RECORD.encode(), 1, content_type=content.NDJSON),
    ]
    for service in (path.ledger, path.notifier):
        for number, body in enumerate(bodies):
            about = {
                "Tpc-Version": "1",
                "Tpc-Participant": service.name,
                "Tpc-Transaction-Id": f"wrong.{number}.1",
                "Tpc-Branch": "0.1",
                "Tpc-Rows": str(body.rows),
                "Content-Digest": body.digest,
                "Content-Type": body.content_type,
            }
            url = f"{service.url}/prepare"
            shown.ask(f"wrong {number}", url, token, body.body, **about)


@pytest.mark.ci
def test_no_secret_is_found_in_what_a_run_shows(
    tmp_path, tmp_path_factory, postgres_database
):
    """Spans, logs, metrics, pages, errors and commands; where all goes well or not."""
    with_password = sa.make_url(postgres_database).set(password=PASSWORD)
    database = with_password.render_as_string(hide_password=False)
    shown = Shown()
    with Collector() as collector:
        path = DemoPath(tmp_path, collector.endpoint)
        lines = (tmp_path / "tokens").read_text().splitlines()
        tokens = dict(line.split()[:2] for line in lines if line[0] != "#")
        urls = f"ledger={path.ledger.url},notifier={path.notifier.url}"
        settings = {
            "TPC_LOG": decisions(tmp_path),
            "TPC_TOKENS_FILE": str(tmp_path / "tokens"),
            "TPC_PARTICIPANTS": urls,
            "TPC_SPANS": str(path.spans),
        }
        person = Operator(tmp_path, tokens["operator"], settings)
        with stopping(*path.services, *person.processes):
            path.partner.start()
            url = tmp_path_factory.mktemp("secrets") / "url"
            url.write_text(database)
            address = f"postgresql:///?url_file={url}&table=flights_daily"
            path.ledger.start(TPC_PARTICIPANTS=f"ledger={address}")
            path.notifier.start(PARTNER_URL=f"{path.partner.url}/{WEBHOOK}")
            job = path.job(tmp_path, "orders", 3)
            killed = armed("driver.after_decide", tmp_path)
            assert run(job, **{HELD: RECORD}, **killed) < 0
            wrong(path, shown, tokens["job"])
            wrong(path, shown, WRONG)
            person.start()
            pages = ("", "applications/orders", "incidents", "search", "refused")
            pages += ("participants/ledger", "transactions/orders.0.1")
            shown.pages(person.url, tokens["operator"], *pages)
            until(lambda: "orders.0.1" in person.watcher.log.read_text())
            environment = {**os.environ, **settings, "TPC_TOKEN": tokens["operator"]}
            for words in ("ls", "show orders.0.1", "explain orders.0.1", "check"):
                shown.command(environment, *words.split())
            assert run(job, **{HELD: RECORD}) == 0
            shown.command(environment, "trace", "orders.1.1")
            shown.command({**environment, "TPC_TOKEN": WRONG}, "check")
            shown.pages(person.url, tokens["viewer"], *pages, "transactions/orders.1.1")
            for service in (path.ledger, path.notifier):
                url = f"{service.url}/metrics"
                assert shown.ask("metrics", url, tokens["viewer"]) == 200
                assert shown.ask("metrics", url, WRONG) == 401
        spans = collector.spans()
    shown.texts["spans"] = json.dumps(spans, default=str)
    shown.files(tmp_path)
    stored = b"".join(file.read_bytes() for file in tmp_path.glob("notifier.db*"))
    assert RECORD.encode() in stored
    assert any(span["name"] == "tpc.branch" for span in spans)
    assert len(shown.texts) > 40
    secrets = {RECORD, PASSWORD, WEBHOOK, WRONG, *tokens.values()}
    assert [
        (where, secret)
        for where, text in shown.texts.items()
        for secret in sorted(secrets)
        if secret in text
    ] == []
