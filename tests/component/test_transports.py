"""What a job relies on is the same over each transport."""

from __future__ import annotations

import functools
import pickle
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any
from urllib.parse import urlsplit

import pytest
from flask import Flask, request
from support import nats
from support.branches import commit_of, prepare_at, records
from support.cable import Cable, Link
from support.participant import count
from support.served import unserved
from support.transports import OPERATOR, OTHERS, TRANSPORTS, Served, through
from support.waiting import AT_LAST, AT_ONCE, PATIENT, PAUSE, until

from participants.processes import stopping
from tracing_2pc.core.errors import (
    ParticipantRefusedError,
    ParticipantUnavailableError,
    RejectedRowsError,
)
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.remote_participant import RemoteParticipant, open_participant
from tracing_2pc.core.states import ParticipantState, Refusal, Vote
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows
from tracing_2pc.sinks.participant_sink import ParticipantSink
from tracing_2pc.testing import run_one_batch

ID = TransactionId("test", 0, 1)
prepare = functools.partial(prepare_at, transaction=ID)
ROWS = [{"id": 1, "city": "Zürich"}, {"id": 2, "city": "Bern"}]

TOKEN = "env:TPC_TOKEN"
"""NATS needs one; this machine's processes are admitted with any."""

served = pytest.mark.parametrize("transport", TRANSPORTS)
_SERVES = [
    pytest.param(f"serve {name}", marks=pytest.mark.ci if name in OTHERS else ())
    for name in TRANSPORTS
]
"""A process of its own: what `tracing-2pc serve` has made of an address."""

services = pytest.mark.parametrize("transport", [*TRANSPORTS, *_SERVES])
each = pytest.mark.parametrize("transport", [*TRANSPORTS, "embedded", *_SERVES])
"""Of each kind of participant, without a service too."""


@pytest.fixture(autouse=True)
def _token(monkeypatch) -> None:
    monkeypatch.setenv("TPC_TOKEN", "anything")


@pytest.fixture
def rows(tmp_path) -> Iterator[TaggedRows]:
    made = TaggedRows(f"sqlite:///{tmp_path}/ledger.db", table="cities")
    yield made
    made.close()


@pytest.fixture
def app(rows) -> Flask:
    app = Flask("ledger")
    app.register_blueprint(participant_blueprint(rows, insecure=True, name="ledger"))
    return app


@pytest.fixture
def url(transport, request, tmp_path, monkeypatch) -> Iterator[str]:
    address = f"sqlite:///{tmp_path}/ledger.db?table=cities"
    serve, _, name = transport.partition(" ")
    if name:
        monkeypatch.setenv("TPC_TOKEN", nats.TOKEN)
        service = Served(name, address, tmp_path)
        with stopping(service):
            service.start()
            yield service.url
        return
    app = request.getfixturevalue("app")  # its tables are made
    if serve == "embedded":
        yield address
        return
    with TRANSPORTS[transport].serve(app) as served:
        yield served


def ledger(url: str) -> RemoteParticipant:
    """It, as it comes out of a closure that Spark has pickled."""
    opened = open_participant("ledger", url, TOKEN, PATIENT)
    copy: RemoteParticipant = pickle.loads(pickle.dumps(opened))
    assert copy == opened
    return copy


@each
def test_a_batch_goes_over_it(rows, url):
    """Prepared, committed, and to be looked up; the records are what was sent."""
    sink = ParticipantSink({"ledger": url})
    assert run_one_batch(sink, ROWS, ROWS)
    assert count(rows, "cities") == 4
    shown = ledger(url).show(ID)
    assert shown.state is ParticipantState.COMMITTED
    assert [branch.rows for branch in shown.branches] == [2, 2]
    assert ledger(url).prepared().branches == ()


@each
def test_it_describes_itself(transport, url):
    """Health, role, clock and journal come over it; its address is told."""
    described = ledger(url).describe()
    assert (described.unreachable, described.unready, described.refused) == (None,) * 3
    role = "job" if transport.startswith("serve") else "anybody"
    assert (described.url, described.role, described.in_doubt) == (url, role, 0)
    assert described.identity == ledger(url).identity()


@each
def test_a_definite_no_is_one(transport, url, monkeypatch):
    """Unknown, misdirected and contradicted are told apart, each with the address."""
    run_one_batch(ParticipantSink({"ledger": url}), ROWS)
    if transport.startswith("serve"):
        monkeypatch.setenv("TPC_TOKEN", OPERATOR)
    with pytest.raises(ParticipantRefusedError) as refused:
        ledger(url).resolve(TransactionId("test", 7, 1), "commit", "a try")
    assert refused.value.refusal is Refusal.UNKNOWN
    with pytest.raises(ParticipantRefusedError) as refused:
        ledger(url).resolve(ID, "abort", "a try")
    assert (refused.value.refusal, refused.value.state) == ("conflict", "committed")
    assert url in str(refused.value)
    other = open_participant("search", url, TOKEN, PATIENT)
    with pytest.raises(ParticipantUnavailableError, match="not 'search'") as elsewhere:
        other.resolve(ID, "commit", "a try")
    assert elsewhere.value.refusal is Refusal.MISDIRECTED


@each
def test_a_refusal_names_the_rows_that_it_is_about(rows, url):
    """If it is asked to: their numbers, columns and reasons come over it."""
    run_one_batch(ParticipantSink({"ledger": url}), ROWS)
    with rows._database.setup() as connection:
        add = "CREATE UNIQUE INDEX one_city ON cities_tpc (city)"
        connection.exec_driver_sql(add)
    cities = [row["city"] for row in ROWS]
    branch = records(id=[7, 8, 9], city=["Basel", cities[0], "Basel"])
    other = TransactionId("test", 8, 1)
    with pytest.raises(ParticipantRefusedError) as refused:
        prepare_at(ledger(url), other, branch)
    assert not isinstance(refused.value, RejectedRowsError)
    with pytest.raises(RejectedRowsError) as refused:
        prepare_at(ledger(url), other, branch, name_rows=5)
    assert [(r.row, r.column, r.reason) for r in refused.value.rows] == [
        (1, "city", "UNIQUE"),
        (2, "city", "UNIQUE"),
    ]
    assert refused.value.refusal is Refusal.CONFLICT


@served
def test_where_nobody_listens_nothing_was_sent(transport):
    """It says so at once, by the address, and what to do."""
    with unserved() as held:
        url = TRANSPORTS[transport].url(int(held.rpartition(":")[2]))
        with pytest.raises(ParticipantUnavailableError) as nobody:
            prepare(ledger(url))
        assert str(nobody.value) == (
            f"participant 'ledger': nothing listens at {url}, so POST /prepare of {ID} "
            "was not sent: start participant 'ledger' there, or mend its address in "
            "`participants`"
        )


@served
@pytest.mark.parametrize(
    "odd", ["\u043e\u0440", "\ud800", "%D0%BE", "\u00fc"], ids=ascii
)
@pytest.mark.parametrize("path", ["/transactions/{}", "/transactions?after={}"])
def test_a_path_that_no_route_has_is_refused(url, caplog, path, odd):
    """Whatever its characters are: it is the caller's fault, and no traceback."""
    asked: Any = ledger(url)
    headers = asked._standing_headers()
    try:
        sent = asked.exchange("GET", path.format(odd), None, headers, PATIENT, 1 << 20)
    except UnicodeError:  # it cannot be sent by this transport
        return
    assert sent[0] == 400
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


@served
def test_nothing_is_left_of_a_server(transport, app):
    """No thread of it, whatever was asked, and nobody at its address."""
    before = set(threading.enumerate())
    with TRANSPORTS[transport].serve(app) as url:
        run_one_batch(ParticipantSink({"ledger": url}), ROWS)
    ours = {"tpc-flush", "tpc-time-limits", "OtelBatchSpanRecordProcessor"}
    # gRPC's own last thread ends when it has seen that all calls have.
    until(
        lambda: {t.name for t in set(threading.enumerate()) - before} - ours,
        lambda left: not left,
    )
    with pytest.raises(ParticipantUnavailableError):
        ledger(url).prepared()


@pytest.fixture
def cable(url) -> Iterator[Cable]:
    with Cable(urlsplit(url).netloc).laid() as laid:
        yield laid


@services
@pytest.mark.parametrize("arrives", [True, False], ids=["answer lost", "request lost"])
@pytest.mark.parametrize("what", ["prepare", "commit"])
def test_what_is_lost_on_the_way_is_not_known_and_asked_again(
    url, cable, what, arrives
):
    """Whether it was done or not, it is done once, by asking once more."""
    near, far = ledger(url), ledger(through(url, cable.place))

    def commit(participant: RemoteParticipant) -> None:
        participant.commit(commit_of(ID, "ledger"))

    ask: Callable[[RemoteParticipant], Any] = prepare
    if what == "commit":
        prepare(near)
        ask = commit
    before = near.show(ID).state
    lose = functools.partial(Link.lose_answer, answer=str(ID).encode())
    cable.fail(str(ID).encode(), lose if arrives else Link.cut)
    with pytest.raises(ParticipantUnavailableError, match="may or may not"):
        ask(far)
    done = {"prepare": "prepared", "commit": "committed"}[what]
    assert near.show(ID).state == (done if arrives else before)
    ask(far)
    assert near.show(ID).state == done


@services
def test_who_takes_nothing_is_late(url, cable):
    """Neither an answer nor a cut connection: the time runs out, nothing is known."""
    cable.fail(str(ID).encode(), Link.be_silent)
    hasty = open_participant("ledger", through(url, cable.place), TOKEN, AT_ONCE)

    def is_late() -> bool:
        with pytest.raises(ParticipantUnavailableError, match="may or may not"):
            prepare(hasty)
        return cable.failed.is_set()

    until(is_late)  # its time may be over before it has sent the sign
    assert prepare(ledger(through(url, cable.place))) is Vote.COMMIT


@served
def test_a_trace_goes_on_over_it(transport, app):
    """A participant gets the caller's context, in W3C's headers and SkyWalking's."""
    context = {
        "traceparent": f"00-{'a' * 32}-{'b' * 16}-01",
        "tracestate": "vendor=x",
        "baggage": "tenant=7",
        "sw8": "1-YQ==-Yg==-0-Yw==-ZA==-ZQ==-Zg==",
        "sw8-correlation": "",
    }
    got: list[dict[str, str]] = []
    app.before_request(lambda: got.append({k.lower(): v for k, v in request.headers}))
    with TRANSPORTS[transport].serve(app) as url:
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr("tracing_2pc.wire.client.current_carrier", lambda: context)
            prepare(ledger(url))
        ledger(url).commit(commit_of(ID, "ledger"))
    assert context.items() <= got[0].items()
    assert context.keys().isdisjoint(got[1])


@served
def test_what_has_begun_is_answered_at_the_end(transport, app, monkeypatch):
    """A server that is told to end takes no more, and answers what it has."""
    monkeypatch.setattr("tracing_2pc.grpc.server.GRACE", PATIENT)
    begun, go_on = threading.Event(), threading.Event()

    def wait() -> None:
        if request.path == "/prepare":
            begun.set()
            assert go_on.wait(AT_LAST)

    app.before_request(wait)
    with futures.ThreadPoolExecutor() as pool:
        with TRANSPORTS[transport].serve(app) as url:
            vote = pool.submit(prepare, ledger(url))
            assert begun.wait(AT_LAST)
            threading.Timer(PAUSE, go_on.set).start()
        assert vote.result() is Vote.COMMIT
