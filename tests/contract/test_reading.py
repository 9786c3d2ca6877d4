"""A participant's list and what it holds of one transaction, read over HTTP."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Response
from support.branches import ONE, OTHER, TRACE, Branch, orders
from support.kinds import KINDS, sqlite_url, tagged_rows, variant
from support.participant import World, database_of, journal_of
from support.spark import serving
from support.texts import texts
from support.waiting import PATIENT

from tracing_2pc.core.errors import ParticipantUnavailableError
from tracing_2pc.core.model import BranchId, Holds, Shown, TransactionId
from tracing_2pc.core.states import BranchState, ParticipantState
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.participant.answers import BranchRef
from tracing_2pc.participant.engine import Query
from tracing_2pc.participant.journal.journal import checksum_of
from tracing_2pc.wire import contract, reading

TEXTS = texts("contract")
T = TransactionId("orders", 7, 1)
on_each_database = pytest.mark.parametrize(
    "made", [variant("TaggedRows", d) for d in ("sqlite", "postgresql")], indirect=True
)
SECOND = Branch(orders(5, 6), 2, "1.2")


class Clock:
    """The participant's; it stands still unless a test moves it."""

    time = 1_700_000_000.0

    def __call__(self) -> float:
        return self.time


@contextlib.contextmanager
def reachable(world: World) -> Iterator[HttpParticipant]:
    """Serve a participant, and yield what reads it."""
    world.name = "ledger"
    with contextlib.closing(world.resource), serving(world.app) as url:
        yield HttpParticipant("ledger", url, None, PATIENT)


def test_what_is_in_doubt_is_listed_and_shown(world):
    """Ids, rows, age, carrier; on request what it keeps busy till the decision."""
    with reachable(world) as participant:
        empty = participant.prepared()
        assert (empty.branches, empty.complete) == ((), True)
        assert participant.show(T) == Shown(ParticipantState.UNKNOWN)
        world.prepare(str(T), ONE)
        world.prepare(str(T), SECOND)
        world.prepare("other.1.1", OTHER)
        listed = participant.prepared("orders")
        assert listed.complete
        assert [
            (str(b.transaction), str(b.branch), b.rows) for b in listed.branches
        ] == [(str(T), "0.1", 3), (str(T), "1.2", 2)]
        assert all(branch.age >= 0 for branch in listed.branches)
        assert listed.branches[0].carrier == TRACE
        assert len(participant.prepared().branches) == 3
        shown = participant.show(T)
        assert shown.state is ParticipantState.PREPARED
        assert shown.holds.rows == 5
        assert shown.now is not None
        for branch in shown.branches:
            assert branch.state is BranchState.PREPARED
            assert branch.sealed_at is None
            assert branch.prepared_at is not None
            assert branch.prepared_at <= shown.now


def test_prepared_transactions_say_what_the_server_holds_back(new_database):
    """Slots, locks and how far VACUUM is held back; nothing once it is decided."""
    world = KINDS["PreparedTransactions"](new_database())
    with reachable(world) as participant:
        world.prepare(str(T), ONE)
        world.prepare(str(T), SECOND)
        world.prepare("other.1.1", OTHER)
        holds = participant.show(T).holds
        assert (holds.rows, holds.slots) == (5, 2)
        assert holds.locks is not None
        assert holds.horizon is not None
        assert holds.locks >= 2
        assert holds.horizon >= 1
        world.commit(str(T), ONE, SECOND)
        assert participant.show(T).holds == Holds(0, 0, 0, 0)


def test_times_are_by_the_participants_clock(tmp_path):
    """Prepared, sealed, now: a reader can correct them by its own clock."""
    clock = Clock()
    world = tagged_rows(sqlite_url(tmp_path), clock=clock)
    with reachable(world) as participant:
        world.prepare(str(T), ONE)
        world.prepare(str(T), SECOND)
        clock.time += 10
        world.commit(str(T), ONE)
        clock.time += 10
        shown = participant.show(T)
        start = 1_700_000_000.0
        assert shown.now == start + 20
        assert participant.prepared().now == start + 20
        times = [(b.state, b.prepared_at, b.sealed_at) for b in shown.branches]
        assert times == [
            (BranchState.COMMITTED, start, start + 10),
            (BranchState.ABORTED, start, start + 10),
        ]
        assert shown.holds == Holds(rows=0)


def test_what_was_never_prepared_has_no_such_time(tmp_path):
    """A tombstone: also of a branch that was aborted while it was written."""
    clock = Clock()
    world = tagged_rows(sqlite_url(tmp_path), clock=clock)
    with reachable(world) as participant:
        with world.writing(str(T), ONE):
            clock.time += 5
            world.abort(str(T), branch=ONE.branch)
            world.abort("orders.8.1", branch="4.4")
            clock.time += 5
        (dropped,) = participant.show(T).branches
        (tombstone,) = participant.show(TransactionId("orders", 8, 1)).branches
    for branch in (dropped, tombstone):
        assert branch.state is BranchState.ABORTED
        assert branch.prepared_at is None
        assert branch.sealed_at == 1_700_000_005.0


def test_forgotten_is_an_answer(tmp_path):
    """410 is no outcome, and no error."""
    world = tagged_rows(sqlite_url(tmp_path))
    with reachable(world) as participant:
        world.commit("orders.9.1", forgotten_through=8)
        assert participant.show(T) == Shown(ParticipantState.FORGOTTEN)


@pytest.fixture
def paged(tmp_path, monkeypatch) -> World:
    """Five branches in doubt, two on a page."""
    monkeypatch.setattr(reading, "PAGE", 2)
    world = tagged_rows(sqlite_url(tmp_path))
    for task in range(5):
        world.prepare(str(T), Branch(ONE.body, 3, f"{task}.1"))
    return world


@pytest.mark.parametrize(("pages", "found"), [(None, 5), (2, 4)])
def test_all_pages_are_followed(paged, monkeypatch, pages, found):
    """In order, none twice; what was not read of them is not taken for absent."""
    if pages:
        monkeypatch.setattr(reading, "PAGES", pages)
    with reachable(paged) as participant:
        listing = participant.prepared()
    branches = [branch.branch for branch in listing.branches]
    assert branches == [BranchId(task, 1) for task in range(found)]
    more = TEXTS["a list of more than these"].format(count=found)
    assert listing.missing == (more if pages else None)


def test_a_list_that_fails_on_page_2_says_so(paged, monkeypatch):
    """The first page is kept, and is not taken for all."""

    real = paged.resource.list_open

    def fails_later(query: Query) -> Any:
        if query.after:
            raise RuntimeError("a bug")
        return real(query)

    monkeypatch.setattr(paged.resource, "list_open", fails_later)
    with reachable(paged) as participant:
        listing = participant.prepared()
    assert len(listing.branches) == 2
    assert listing.missing is not None
    assert "500" in listing.missing


GOOD = {
    "transaction_id": "orders.7.1",
    "branch": "0.1",
    "state": "prepared",
    "age": 1.5,
    "rows": 3,
    "carrier": {},
}
MANY = {str(n): "" for n in range(99)}
NO_LISTS = {
    "no object": [],
    "no list": {"transactions": {}, "next": None},
    "a cursor of another kind": {"transactions": [], "next": 7},
    "an empty cursor": {"transactions": [], "next": ""},
    "no id": {"transactions": [GOOD | {"transaction_id": "orders.07.1"}], "next": None},
    "no branch": {"transactions": [GOOD | {"branch": None}], "next": None},
    "another state": {"transactions": [GOOD | {"state": "writing"}], "next": None},
    "no age": {"transactions": [GOOD | {"age": True}], "next": None},
    "an age before its time": {"transactions": [GOOD | {"age": -1}], "next": None},
    "an endless age": {"transactions": [GOOD | {"age": float("inf")}], "next": None},
    "half a row": {"transactions": [GOOD | {"rows": 1.5}], "next": None},
    "too many": {"transactions": [GOOD] * 501, "next": None},
}


@contextlib.contextmanager
def saying(folder: Path, said: object) -> Iterator[HttpParticipant]:
    """Reach a participant that says this, whatever it is asked."""
    world = tagged_rows(sqlite_url(folder))

    @world.app.after_request
    def spoil(_: Response) -> Response:
        return Response(json.dumps(said), 200, mimetype="application/json")

    with reachable(world) as participant:
        yield participant


@pytest.mark.parametrize("said", NO_LISTS.values(), ids=NO_LISTS.keys())
def test_what_is_not_exactly_a_list_is_no_answer(tmp_path, said):
    """One item that cannot be read spoils the list: nothing of it is guessed."""
    no_list = TEXTS["an answer is no list"]
    unavailable = pytest.raises(ParticipantUnavailableError, match=no_list)
    with saying(tmp_path, said) as participant, unavailable:
        participant.prepared()


@pytest.mark.parametrize(
    "carrier",
    [{"a": 1}, {"a": "\n"}, {"a": "x" * 3000}, MANY, [], None],
    ids=["numbers", "a line break", "too long", "too many", "a list", "none"],
)
def test_a_carrier_that_cannot_be_read_is_an_empty_one(tmp_path, carrier):
    """A trace context is no evidence: without it the list says all that counts."""
    listed = {"transactions": [GOOD, GOOD | {"carrier": carrier}], "next": None}
    with saying(tmp_path, listed) as participant:
        listing = participant.prepared()
    assert listing.complete
    assert [branch.carrier for branch in listing.branches] == [{}, {}]


@on_each_database
def test_a_carrier_that_was_spoilt_at_rest_is_an_empty_one(world):
    """What is stored and cannot be read keeps nobody from listing or committing."""
    with reachable(world) as participant:
        world.prepare(str(T), ONE)
        journal = journal_of(world).tables.transaction
        with database_of(world).engine.begin() as connection:
            connection.execute(journal.update().values(carrier='["nothing'))
        (branch,) = participant.prepared().branches
        assert branch.carrier == {}
        assert participant.show(T).state is ParticipantState.PREPARED
        assert world.commit(str(T), ONE).status_code == 200


LONG_STATE = ",".join(f"vendor{n}={'x' * 100}" for n in range(28))
"""3,000 characters, which are allowed."""


@on_each_database
def test_a_long_trace_context_makes_no_list_unreadable(world):
    """Of `tracestate` 512 characters of whole members are kept."""
    assert len(LONG_STATE) > 3000
    with reachable(world) as participant:
        world.prepare(str(T), ONE, headers={"tracestate": LONG_STATE})
        world.prepare("other.1.1", OTHER)
        listing = participant.prepared()
    assert listing.complete
    long, short = [branch.carrier for branch in listing.branches]
    assert long["traceparent"].split("-")[1] == TRACE["traceparent"].split("-")[1]
    assert len(long["tracestate"]) <= 512
    assert LONG_STATE.startswith(long["tracestate"] + ",")
    assert short == TRACE


def in_doubt(world: World, branches: int, carrier: dict[str, str]) -> None:
    """Put a transaction with so many prepared branches into the journal."""
    tables = journal_of(world).tables
    transaction = TransactionId("orders", 7, 1)
    id_ = dataclasses.asdict(transaction)
    branch = {**id_, "task_attempt": 1, "state": "prepared", "rows": 1}
    branch |= {"digest": ONE.digest, "since": 1.0}

    def row(number: int) -> dict[str, Any]:
        ref = BranchRef(BranchId(number, 1), 1, ONE.digest)
        checksum = checksum_of(transaction, ref, number + 1)
        own = {"partition": number, "tag": number + 1, "checksum": checksum}
        return {**branch, **own}

    with database_of(world).engine.begin() as connection:
        text = json.dumps(carrier)
        connection.execute(tables.transaction.insert().values(**id_, carrier=text))
        connection.execute(tables.branch.insert(), [*map(row, range(branches))])


LONG = {"ASCII": "x" * 2000, "other": "\u00e4" * 2000}


@pytest.mark.parametrize(
    ("branches", "other"),
    [(700, LONG["ASCII"]), (700, LONG["other"]), (20_500, "")],
    ids=[*LONG, "more than a commit can name"],
)
def test_a_page_is_bounded_in_bytes(tmp_path, branches, other):
    """However many, however long the carriers are: every page can be read."""
    world = tagged_rows(sqlite_url(tmp_path))
    in_doubt(world, branches, {**TRACE, "other": other})
    page = world.client.get("/transactions?limit=700")
    assert len(page.data) < contract.MAX_ANSWER_BYTES
    with reachable(world) as participant:
        listing = participant.prepared()
    assert listing.complete
    assert [b.branch.partition for b in listing.branches] == list(range(branches))


@pytest.mark.parametrize(
    "change",
    [
        {"state": "writing"},
        {"branches": None},
        {"branches": [{}]},
        {"now": "noon"},
        {"holds": {"rows": -1}},
        {"transaction_id": "orders.8.1"},
    ],
)
def test_what_is_not_exactly_a_transaction_is_no_answer(tmp_path, change):
    """Another id, a word of another kind: ask again, guess nothing."""
    shown = {"transaction_id": str(T), "state": "prepared", "branches": []}
    unavailable = pytest.raises(ParticipantUnavailableError)
    with saying(tmp_path, {**shown, **change}) as participant, unavailable:
        participant.show(T)


@pytest.mark.parametrize("ask", [HttpParticipant.prepared, lambda one: one.show(T)])
def test_nobody_there(ask):
    """No list and no answer about a transaction; not an empty one."""
    participant = HttpParticipant("p", "http://127.0.0.1:9", None, PATIENT)
    with pytest.raises(ParticipantUnavailableError, match=TEXTS["nobody listens"]):
        ask(participant)
