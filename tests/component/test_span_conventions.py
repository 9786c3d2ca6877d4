"""Requests and answers by OpenTelemetry's semantic conventions, version 1.41."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import sqlalchemy as sa
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode
from support.branches import commit_of
from support.kinds import sqlite_url, tagged_rows
from support.participant import World
from support.spark import serving
from support.texts import texts
from support.waiting import PATIENT

from tracing_2pc.core.errors import ParticipantRefusedError, ParticipantUnavailableError
from tracing_2pc.core.model import BranchId, TransactionId
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.inspection.trace import TraceSpan, find_gaps, trace_tree
from tracing_2pc.outbox.requests import Request
from tracing_2pc.participant import TaggedRows

TEXTS = texts("component")
T = TransactionId("orders", 7, 1)
COMMITTING = commit_of(T, "participant")


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    made = tagged_rows(sqlite_url(tmp_path))
    with contextlib.closing(made.resource):
        yield made


@pytest.fixture
def asked(world) -> Iterator[HttpParticipant]:
    """A participant below a path, as its clients see it."""
    with serving(world.app) as url:
        yield HttpParticipant("participant", url, None, PATIENT)


def only(found: list[ReadableSpan], kind: SpanKind) -> ReadableSpan:
    of_http = [s for s in found if "http.request.method" in s.attributes]
    (span,) = [s for s in of_http if s.kind is kind]
    return span


def test_a_refused_request_is_an_error_of_its_client(asked, exported):
    """Of the client alone: a server that says no has done its work."""
    with pytest.raises(ParticipantRefusedError):
        asked.commit(COMMITTING)
    client, server = (only(exported(), k) for k in (SpanKind.CLIENT, SpanKind.SERVER))
    for span, status in ((client, StatusCode.ERROR), (server, StatusCode.UNSET)):
        assert (span.name, span.status.status_code) == ("POST /commit", status)
        assert span.attributes["http.response.status_code"] == 404
    assert client.attributes["error.type"] == "404"
    assert client.attributes["url.full"] == f"{asked.url}/commit"
    assert "error.type" not in server.attributes


def test_a_server_span_is_named_as_an_instrumentation_would(world, exported):
    """Method and route, which hold no ids; what we call it is an attribute."""
    world.show(str(T))
    world.listed("?application=orders")
    world.prepare(str(T))
    servers = [s for s in exported() if s.kind is SpanKind.SERVER]
    assert [(s.name, s.attributes["tpc.request"]) for s in servers] == [
        ("GET /transactions/<transaction_id>", "show"),
        ("GET /transactions", "list"),
        ("POST /prepare", "prepare"),
    ]
    assert [f"GET {s.attributes['http.route']}" for s in servers[:2]] == [
        s.name for s in servers[:2]
    ]
    shown, listed, _ = servers
    assert shown.attributes["url.path"] == f"/transactions/{T}"
    about = {"url.path": "/transactions", "url.scheme": "http"}
    assert about.items() <= listed.attributes.items()
    assert "application=" not in listed.to_json()


@pytest.mark.parametrize(
    ("raised", "status", "error"),
    [
        (sa.exc.OperationalError("SELECT", {}, Exception()), 503, "OperationalError"),
        (ZeroDivisionError(), 500, "ZeroDivisionError"),
    ],
)
def test_a_server_that_fails_says_so(
    asked, world, exported, monkeypatch, raised, status, error
):
    """With the status that it answers, and the class of what went wrong."""

    def fail(*_: object) -> None:
        raise raised

    monkeypatch.setattr(world.resource, "commit", fail)
    with pytest.raises(ParticipantUnavailableError):
        asked.commit(COMMITTING)
    client, server = (only(exported(), k) for k in (SpanKind.CLIENT, SpanKind.SERVER))
    for span, kind in ((client, str(status)), (server, error)):
        assert span.attributes["http.response.status_code"] == status
        assert span.attributes["error.type"] == kind
        assert span.status.status_code is StatusCode.ERROR
        assert not span.events


def test_a_request_without_an_answer_lacks_no_span(exported):
    """Nothing listens there: `trace` names no participant that has kept nothing."""
    nowhere = "http://127.0.0.1:9"
    with pytest.raises(ParticipantUnavailableError):
        HttpParticipant("participant", nowhere, None, PATIENT).commit(COMMITTING)
    about = dict(only(exported(), SpanKind.CLIENT).attributes)
    assert about["error.type"] == "ParticipantUnavailableError"
    span = TraceSpan(
        "t", "1", None, "POST /commit", "client", 0, 1, "", "", about, True
    )
    _root, gap = find_gaps(trace_tree([span], "t"), ["participant"])
    assert gap == TEXTS["a request without an answer"]


def test_who_is_not_admitted_is_no_error_of_the_server(tmp_path, exported):
    """The span has the status 401, and nothing of what was sent."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"viewer {'v' * 32}\n")
    tokens.chmod(0o600)
    resource = TaggedRows(sqlite_url(tmp_path), "orders")
    world = World(resource, lambda: 0, tokens=tokens)
    assert world.client.get("/transactions?secret=hunter2").status_code == 401
    resource.close()
    server = only(exported(), SpanKind.SERVER)
    assert server.attributes["http.response.status_code"] == 401
    assert server.status.status_code is StatusCode.UNSET
    assert "hunter2" not in server.to_json()


def test_a_partner_gets_its_message_and_no_span_its_path(partner, exported):
    """Its path may be all the secret that it has: webhooks are made so."""
    partner.answers = [503]
    request = Request(1, 2, "{}", T, BranchId(0, 1), {}, "notices")
    hook = f"{partner.url}/services/T000/s3cret"
    (answer,) = HttpPartner(hook, timeout=PATIENT).send([request])
    assert (answer.code, partner.got[0][0]) == (503, "/services/T000/s3cret")
    post, send = exported()
    assert {
        "messaging.system": "tracing_2pc",
        "messaging.operation.name": "send",
        "messaging.operation.type": "send",
        "messaging.destination.name": "notices",
        "messaging.message.id": request.key,
    }.items() <= send.attributes.items()
    for span in (send, post):
        assert span.status.status_code is StatusCode.ERROR
        assert span.attributes["error.type"] == "503"
    assert post.attributes["url.full"] == f"{partner.url}/REDACTED"
    assert post.attributes["tpc.transaction.id"] == str(T)
    assert "s3cret" not in post.to_json() + send.to_json()
