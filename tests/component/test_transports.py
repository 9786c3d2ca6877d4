"""What a job relies on is the same over each transport."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Iterator

import pytest
from flask import Flask
from support.participant import count
from support.served import unserved
from support.transports import TRANSPORTS
from support.waiting import PATIENT

from tracing_2pc.core.errors import (
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.remote_participant import RemoteParticipant, open_participant
from tracing_2pc.core.states import ParticipantState, Refusal
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows
from tracing_2pc.sinks.participant_sink import ParticipantSink
from tracing_2pc.testing import run_one_batch

ID = TransactionId("test", 0, 1)
ROWS = [{"id": 1, "city": "Zürich"}, {"id": 2, "city": "Bern"}]

pytestmark = pytest.mark.parametrize("transport", TRANSPORTS)


@pytest.fixture
def rows(tmp_path) -> Iterator[TaggedRows]:
    made = TaggedRows(f"sqlite:///{tmp_path}/ledger.db", table="cities")
    yield made
    made.close()


@pytest.fixture
def url(transport, rows) -> Iterator[str]:
    app = Flask("ledger")
    app.register_blueprint(participant_blueprint(rows, insecure=True, name="ledger"))
    with TRANSPORTS[transport].serve(app) as served:
        yield served


def ledger(url: str) -> RemoteParticipant:
    """It, as it comes out of a closure that Spark has pickled."""
    opened = open_participant("ledger", url, None, PATIENT)
    copy: RemoteParticipant = pickle.loads(pickle.dumps(opened))
    assert copy == opened
    return copy


def test_a_batch_goes_over_it(rows, url):
    """Prepared, committed, and to be looked up; the records are what was sent."""
    sink = ParticipantSink({"ledger": url}, token=None)
    assert run_one_batch(sink, ROWS, ROWS)
    assert count(rows, "cities") == 4
    shown = ledger(url).show(ID)
    assert shown.state is ParticipantState.COMMITTED
    assert [branch.rows for branch in shown.branches] == [2, 2]
    assert ledger(url).prepared().branches == ()


def test_it_describes_itself(url):
    """Health, role, clock and journal come over it; its address is told."""
    described = ledger(url).describe()
    assert (described.unreachable, described.unready, described.refused) == (None,) * 3
    assert (described.url, described.role, described.in_doubt) == (url, "anybody", 0)
    assert described.identity == ledger(url).identity()


def test_a_definite_no_is_one(rows, url):
    """Unknown, misdirected and contradicted are told apart, each with the address."""
    with pytest.raises(ParticipantRefusedError) as refused:
        ledger(url).resolve(TransactionId("test", 7, 1), "commit", "a try")
    assert refused.value.refusal is Refusal.UNKNOWN
    run_one_batch(ParticipantSink({"ledger": url}, token=None), ROWS)
    with pytest.raises(ParticipantRefusedError) as refused:
        ledger(url).resolve(ID, "abort", "a try")
    assert (refused.value.refusal, refused.value.state) == ("conflict", "committed")
    assert url in str(refused.value)
    other = open_participant("search", url, None, PATIENT)
    with pytest.raises(ParticipantUnavailableError, match="not 'search'") as elsewhere:
        other.resolve(ID, "commit", "a try")
    assert elsewhere.value.refusal is Refusal.MISDIRECTED


def test_where_nobody_listens_nothing_was_sent(transport):
    """It says so at once, by the address, and what to do."""
    with unserved() as held:
        url = TRANSPORTS[transport].url(int(held.rpartition(":")[2]))
        with pytest.raises(ParticipantUnavailableError) as nobody:
            ledger(url).resolve(ID, "commit", "a try")
        assert f"nothing listens at {url}, so POST /resolve" in str(nobody.value)
        assert "was not sent: start participant 'ledger' there" in str(nobody.value)


def test_nothing_is_left_of_a_server(transport, rows):
    """No thread of it, whatever was asked, and nobody at its address."""
    before = set(threading.enumerate())
    app = Flask("ledger")
    app.register_blueprint(participant_blueprint(rows, insecure=True, name="ledger"))
    with TRANSPORTS[transport].serve(app) as url:
        run_one_batch(ParticipantSink({"ledger": url}, token=None), ROWS)
    left = {thread.name for thread in set(threading.enumerate()) - before}
    assert left <= {"tpc-flush", "tpc-time-limits", "OtelBatchSpanRecordProcessor"}
    with pytest.raises(ParticipantUnavailableError):
        ledger(url).prepared()
