"""Requests drawn from `openapi.yaml`: what they are answered is what it says.

The pattern of a field cannot say that forgotten_through is below the batch, that 1.0
is no whole number, that a digest is the body's, or that bytes are an Arrow stream: what
breaks these alone may be refused; the answer's form is as documented all the same.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from schemathesis.checks import CHECKS
from support.participant import sqlite_url
from test_openapi import SPEC

from participants import processes
from tracing_2pc.core import content

EXAMPLES = int(os.environ.get("DRAWN_EXAMPLES", "12"))
"""Of each operation at most; with those at the edges of what it allows, a thousand."""

TOKENS = {"job": "j" * 16, "operator": "o" * 16}
APP = """
from flask import Flask
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows
app = Flask("ledger")
app.register_blueprint(participant_blueprint(
    TaggedRows("env:DATABASE", "orders"), tokens="tokens"
))
"""

schema = schemathesis.openapi.from_dict(SPEC)


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A participant behind a real server, whose own answers count too."""
    folder = tmp_path_factory.mktemp("drawn")
    tokens = "".join(f"{role} {token}\n" for role, token in TOKENS.items())
    (folder / "tokens").write_text(tokens)
    (folder / "drawn.py").write_text(APP)
    (port,) = processes.free_ports(1)
    where = f"http://127.0.0.1:{port}"
    command = [sys.executable, "-m", "gunicorn", "--threads", "2", "drawn:app"]
    server = subprocess.Popen(
        [*command, "-b", f"127.0.0.1:{port}", "--log-level", "critical"],
        cwd=folder,
        env={**os.environ, "DATABASE": sqlite_url(folder)},
    )
    try:
        _wait_for(f"{where}/health/ready")
        yield where
    finally:
        server.terminate()
        server.wait(60)


def _wait_for(address: str) -> None:
    deadline = time.monotonic() + 60
    while True:
        try:
            urllib.request.urlopen(address, timeout=120).close()
        except OSError:
            assert time.monotonic() < deadline
            time.sleep(0.1)
        else:
            return


@schema.auth()
class Auth:
    """A token of a role that may."""

    def get(self, case: Any, _: Any) -> str:
        return TOKENS["job" if case.operation.path == "/prepare" else "operator"]

    def set(self, case: Any, token: str, _: Any) -> None:
        case.headers = {**(case.headers or {}), "Authorization": f"Bearer {token}"}


@schemathesis.serializer(content.ARROW, content.NDJSON)
def _as_it_is(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()


@schema.parametrize()
@settings(
    max_examples=EXAMPLES,
    deadline=None,
    derandomize=True,
    database=None,
    suppress_health_check=list(HealthCheck),
)
def test_requests_are_answered_as_documented(case: Any, url: str) -> None:
    """What the document allows is taken, what it does not is refused, in its words."""
    if str(case.headers.get("Content-Length", "")).isdecimal():
        del case.headers["Content-Length"]  # the server would wait for what is not sent
    answer = case.call(base_url=url)
    unsaid = _is_unsaid(case) or answer.status_code in OF_THE_STATE
    case.validate_response(answer, excluded_checks=UNSAID if unsaid else ())


OF_THE_STATE = {410, 421, 425}
"""Forgotten, meant for another participant, too early: by what came before."""

UNSAID = CHECKS.get_by_names(["positive_data_acceptance"])


def _is_unsaid(case: Any) -> bool:
    """Say whether what a request may break is nothing that a schema can say."""
    if case.operation.path == "/prepare":
        return True
    body = case.body if isinstance(case.body, dict) else {}
    batch = re.fullmatch(r"[^.]*\.(\d+)\.\d+", str(body.get("transaction_id")))
    forgotten_through = body.get("forgotten_through")
    if (
        batch
        and isinstance(forgotten_through, int)
        and forgotten_through >= int(batch[1])
    ):
        return True
    branches = body.get("branches")
    listed = branches if isinstance(branches, list) else ()
    rows = [b.get("rows") for b in listed if isinstance(b, dict)]
    return any(isinstance(number, float) for number in (forgotten_through, *rows))
