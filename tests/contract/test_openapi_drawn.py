"""Requests drawn from `openapi.yaml`: what they are answered is what it says.

The pattern of a field cannot say that forgotten_through is below the batch, that 1.0
is no whole number, that a digest is the body's, or that bytes are an Arrow stream: what
breaks these alone may be refused; the answer's form is as documented all the same.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from typing import Any

import pytest
import schemathesis
from hypothesis import settings
from schemathesis.checks import CHECKS
from support.kinds import sqlite_url
from support.served import by_gunicorn
from test_openapi import SPEC

from tracing_2pc.core import content

EXAMPLES = int(os.environ.get("DRAWN_EXAMPLES", "12"))
"""Of each operation at most; with those at the edges of what it allows, a thousand."""

TOKENS = {"job": "j" * 16, "operator": "o" * 16}
APP = """
from flask import Flask
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.outbox import Outbox
app = Flask("notifier")
app.register_blueprint(participant_blueprint(
    Outbox("env:DATABASE", HttpPartner("http://127.0.0.1:9/orders"))
))
"""

"""An outbox answers every operation, of its quarantine too."""

schema = schemathesis.openapi.from_dict(SPEC)


@pytest.fixture(scope="module")
def url(tmp_path_factory) -> Iterator[str]:
    """A participant behind a real server, whose own answers count too."""
    folder = tmp_path_factory.mktemp("drawn")
    tokens = "".join(f"{role} {token}\n" for role, token in TOKENS.items())
    (folder / "tokens").write_text(tokens)
    (folder / "drawn.py").write_text(APP)
    settings = {"TPC_TOKENS_FILE": f"{folder}/tokens", "DATABASE": sqlite_url(folder)}
    about = ("drawn:app", folder, "--threads", "2", "--log-level", "critical")
    with by_gunicorn(*about, **settings) as where:
        yield where


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


def of(path: str, method: str) -> Any:
    """Return the test of an operation; pytest would give that of each the same id."""

    @schema.include(path=path, method=method).parametrize()
    @settings(max_examples=EXAMPLES)
    def is_answered_as_documented(case: Any, url: str) -> None:
        """What is allowed is taken, what is not is refused, in the document's words."""
        if str(case.headers.get("Content-Length", "")).isdecimal():
            del case.headers["Content-Length"]  # the server would wait for more
        answer = case.call(base_url=url)
        unsaid = is_unsaid(path, case.body) or answer.status_code in OF_THE_STATE
        excluded = [*(UNSAID if unsaid else ())]
        if answer.status_code in {414, 421}:
            excluded += REFUSED  # it is a refusal, which the judge does not know
        case.validate_response(answer, excluded_checks=excluded)

    return is_answered_as_documented


for result in schema.get_all_operations():
    label = re.sub(r"\W+", "_", result.ok().label).strip("_")
    name = f"test_{label}_is_answered_as_documented"
    globals()[name] = of(result.ok().path, result.ok().method)


OF_THE_STATE = {410, 421, 425}
"""Forgotten, meant for another participant, too early: by what came before."""

UNSAID = CHECKS.get_by_names(["positive_data_acceptance"])
REFUSED = CHECKS.get_by_names(["negative_data_rejection"])


def is_unsaid(path: str, body: Any) -> bool:
    """Say whether what a request may break is nothing that a schema can say."""
    if path == "/prepare":
        return True
    if not isinstance(body, dict):
        return False
    forgotten_through = body.get("forgotten_through")
    lines = [body.get(name) for name in ("reason", "who")]
    listed = body.get("branches")
    branches = listed if isinstance(listed, list) else []
    branches = [branch for branch in branches if isinstance(branch, dict)]
    names = [b["branch"] for b in branches if isinstance(b.get("branch"), str)]
    numbers = [forgotten_through, *(branch.get("rows") for branch in branches)]
    return (
        _reaches_batch(forgotten_through, body.get("transaction_id"))
        or any(isinstance(number, float) for number in numbers)
        or len(set(names)) < len(names)
        or any(isinstance(t, str) and not t.strip().isprintable() for t in lines)
    )


def _reaches_batch(forgotten_through: Any, transaction: Any) -> bool:
    if type(forgotten_through) is not int or not isinstance(transaction, str):
        return False
    batch = re.fullmatch(r"[^.]*\.([0-9]{1,18})\.[0-9]+", transaction)
    return batch is not None and forgotten_through >= int(batch[1])
