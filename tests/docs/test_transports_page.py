"""The transport that the manual writes carries a transaction."""

from __future__ import annotations

import sys
import types
from collections.abc import Iterator

import pytest
from flask import Flask
from manual import block, page, rows, words

from tracing_2pc.core import remote_participant
from tracing_2pc.core.errors import (
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.remote_participant import open_participant
from tracing_2pc.core.states import ParticipantState, Refusal
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows
from tracing_2pc.sinks.participant_sink import ParticipantSink
from tracing_2pc.testing import run_one_batch

ROWS = [{"id": 1, "city": "Zürich"}, {"id": 2, "city": "Bern"}]


@pytest.fixture
def road(monkeypatch, tmp_path) -> Iterator[types.ModuleType]:
    """The page's module, with a ledger behind it."""
    monkeypatch.setattr(remote_participant, "_registered", {})
    module = types.ModuleType("inproc_road")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(block(page("transports"), "python", "class InProcess"), module.__dict__)
    rows = TaggedRows(f"sqlite:///{tmp_path}/ledger.db", table="cities")
    app = Flask("ledger")
    app.register_blueprint(participant_blueprint(rows, insecure=True, name="ledger"))
    module.SERVED["ledger"] = app
    yield module
    rows.close()


def test_every_scheme_that_is_built_in_is_listed():
    """In the table at the top of the page, and no other."""
    listed = rows(page("transports"), "| scheme | what it needs | page |")
    schemes = [scheme for row in listed for scheme in words(row[0])]
    assert schemes == list(remote_participant._BUILT_IN)


def test_a_batch_goes_over_it(road):
    """Prepared and committed; the records are what was sent."""
    sink = ParticipantSink({"ledger": "inproc://ledger"}, token=None)
    assert run_one_batch(sink, ROWS)
    ledger = open_participant("ledger", "inproc://ledger", None, 5.0)
    shown = ledger.show(TransactionId("test", 0, 1))
    assert shown.state is ParticipantState.COMMITTED
    assert sum(branch.rows for branch in shown.branches) == len(ROWS)


def test_what_is_refused_is_told_as_over_http(road):
    """A definite no is one; where nobody is, nothing was sent."""
    ledger = open_participant("ledger", "inproc://ledger", None, 5.0)
    with pytest.raises(ParticipantRefusedError) as refused:
        ledger.resolve(TransactionId("test", 7, 1), "commit", "a try")
    assert refused.value.refusal is Refusal.UNKNOWN
    nobody = open_participant("nobody", "inproc://nobody", None, 5.0)
    with pytest.raises(ParticipantUnavailableError, match="nothing listens at inproc"):
        nobody.prepared()


def test_without_a_peers_address_insecure_answers_nobody(road, monkeypatch):
    """A road that does not know who asks needs tokens."""
    asked = road.ask_application
    monkeypatch.setattr(road, "ask_application", lambda *a, peer, **k: asked(*a, **k))
    ledger = open_participant("ledger", "inproc://ledger", None, 5.0)
    with pytest.raises(ParticipantUnavailableError, match="only loopback peers") as no:
        ledger.prepared()
    assert no.value.refusal is Refusal.NOT_ALLOWED
