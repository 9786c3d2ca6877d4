"""What every decision log promises: SQLite and PostgreSQL."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
from support.log_tables import decide
from support.texts import texts
from support.waiting import AT_ONCE, PATIENT, until

from tracing_2pc.core.errors import (
    AbortedError,
    ConfigurationError,
    ContractError,
    HeuristicError,
    IllegalTransitionError,
)
from tracing_2pc.core.model import (
    MAX_BRANCHES,
    BeginResult,
    BranchId,
    Facts,
    Receipt,
    TransactionId,
    TransactionRecord,
    branch_receipts,
    writes_of,
)
from tracing_2pc.core.ports import DecisionLog, Opening
from tracing_2pc.core.states import Decision, TransactionState, Vote
from tracing_2pc.store import open_log

TEXTS = texts("log")
ONE_STORE = pytest.mark.parametrize("log", ["sqlite"], indirect=True)
"""For what a function says that all stores ask, before they look at anything."""

PARTICIPANTS = ("ledger", "notifier")
ABORT, COMMIT = Decision.ABORT, Decision.COMMIT
NOW = 1_700_000_000.0
LATER = NOW + 1
REASON = "ledger lost it"
OVER = 1e-9
"""A timeout that has passed as soon as it is given."""


class Clock:
    """Time that only a test moves; PostgreSQL goes by its own."""

    time = NOW

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.ci)])
def log(request, tmp_path, clock) -> Iterator[DecisionLog]:
    """An empty log whose clock stands still."""
    url = f"sqlite:///{tmp_path}/log/decisions.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_database")
    opened = open_log(url, now=clock)
    yield opened
    opened.close()


def raises(
    error: type[Exception], says: str, /, **values: object
) -> contextlib.AbstractContextManager[pytest.ExceptionInfo[Any]]:
    """Expect an error, by its class and by the sentence of that name."""
    return pytest.raises(error, match=TEXTS[says].format(**values))


def begin(log: DecisionLog, batch: int = 0, **other: Any) -> BeginResult:
    application = other.pop("application", "orders")
    arguments = {
        "run": "run-1",
        "query": "query-1" if application == "orders" else None,
        "participants": PARTICIPANTS,
        "carrier": {"traceparent": "00-aa-bb-01"},
        **other,
    }
    return log.begin(application, batch, Opening(**arguments))


def receipts_of(partition: int = 0, task: int = 7, **other: Any) -> tuple[Receipt, ...]:
    votes = {"ledger": Vote.COMMIT, "notifier": Vote.READ_ONLY}
    arguments = {"rows": 3, "digest": "sha-256=:x:", "votes": votes, **other}
    return branch_receipts(BranchId(partition, task), **arguments)


def commit(log: DecisionLog, batch: int = 0, **other: Any) -> TransactionRecord:
    decided = decide(log, begin(log, batch, **other).record, COMMIT, receipts_of())
    assert decided.decision is COMMIT
    return decided


def finish(log: DecisionLog, record: TransactionRecord) -> TransactionRecord:
    for participant in record.participants:
        log.acknowledge(record.id, participant)
    log.finish(record.id)
    return read(log, record)


def read(log: DecisionLog, record: TransactionRecord) -> TransactionRecord:
    found = log.read(record.id)
    assert found is not None
    return found


def forget(log: DecisionLog, application: str = "orders", **other: Any) -> int:
    arguments = {"finished_before": LATER, "limit": 100, **other}
    return log.forget(application, **arguments)


def quarantined(log: DecisionLog, batch: int = 0) -> TransactionRecord:
    record = commit(log, batch)
    log.quarantine(record.id, REASON)
    return record


def states(log: DecisionLog) -> dict[str, str]:
    return {str(r.id): str(r.state) for r in log.unfinished()}


# --- begin ---------------------------------------------------------------------------


def test_participants_are_on_record_first(log):
    """What `begin` returns can be read at once, participants in the given order."""
    names = ("z", "a", "m")
    begun = begin(log, participants=names)
    record = begun.record
    assert log.read(record.id) == record
    assert (str(record.id), record.run) == ("orders.0.1", "run-1")
    assert record.state is TransactionState.ACTIVE
    assert record.pending == record.participants == names
    assert (record.carrier, record.started) == ({"traceparent": "00-aa-bb-01"}, NOW)
    assert begun == BeginResult(record, replay=False)
    assert record.forgotten_through is None


def test_an_unknown_application_starts_at_batch_0(log):
    """Anything else is refused, with the four things that one may do about it."""
    with pytest.raises(ConfigurationError) as refused:
        begin(log, 5, stream=True)
    text = str(refused.value)
    for said in ("unknown", "the log is lost", "the wrong log", "no log", "reprocess"):
        assert TEXTS[said].format(name="orders", batch=5) in text
    for of in ({"query": None}, {"query": writes_of("orders")}):
        with raises(ConfigurationError, "no log", name="orders", batch=5) as refused:
            begin(log, 5, **of)
        assert "adopt" not in str(refused.value), "there is no checkpoint to adopt by"
    assert log.unfinished() == []
    begin(log, 0)  # the refusal left nothing behind


@ONE_STORE
def test_names_are_looked_at_first(log):
    """One that cannot stand in an id is refused, and a participant's that is twice."""
    with raises(ConfigurationError, "named twice"):
        begin(log, participants=("ledger", "ledger"))
    with raises(ConfigurationError, "a name in an id"):
        begin(log, application="Orders!")
    with raises(ConfigurationError, "a name in an id"):
        log.initialise("Orders!", 1)


def test_init_says_where_an_application_starts(log):
    """A query that ran before without us begins at its batch; nothing is below 0."""
    log.initialise("orders", 5)
    with raises(ConfigurationError, "finished", batch=4):
        begin(log, 4)
    record = begin(log, 5).record
    assert (str(record.id), record.forgotten_through) == ("orders.5.1", 4)
    log.initialise("other", 0)
    assert begin(log, 0, application="other").record.forgotten_through is None


def test_init_is_for_unknown_applications(log):
    """It never moves an application that the log knows; nor to a negative batch."""
    begin(log, 0)
    with raises(ConfigurationError, "known", name="orders"):
        log.initialise("orders", 5)
    with raises(ConfigurationError, "below batch 0"):
        log.initialise("other", -1)


def adopt(
    log: DecisionLog,
    transaction: str = "orders.5.2",
    participants: tuple[str, ...] = (),
    receipts: tuple[Receipt, ...] = (),
    query: str = "query-1",
    **more: str,
) -> None:
    application, batch, attempt = transaction.split(".")
    id_ = TransactionId(application, int(batch), int(attempt))
    why = "the disk is gone"
    about = {"who": "ada", "why": why, **more}
    log.adopt(id_, query, participants, receipts, journals={}, **about)


def test_an_adopted_commit_is_a_replay(log):
    """Finished, with what the participants have of it; then the next batch begins."""
    adopt(log, participants=PARTICIPANTS, receipts=receipts_of())
    begun = begin(log, 5)
    record = begun.record
    assert (str(record.id), begun.replay) == ("orders.5.2", True)
    assert (record.state, record.decision) == (TransactionState.COMMITTED, COMMIT)
    assert (record.pending, record.finished) == ((), NOW)
    assert (record.receipts, record.rows) == (receipts_of(), 3)
    assert log.unfinished() == []
    log.finish(record.id)  # as whoever delivers it again does
    with raises(ConfigurationError, "finished", batch=4):
        begin(log, 4)
    with raises(ConfigurationError, "participants changed", after="orders.5.2"):
        begin(log, 6, participants=("ledger",))
    record = begin(log, 6).record
    assert (str(record.id), record.forgotten_through) == ("orders.6.1", 4)
    forget(log)
    assert log.read(TransactionId("orders", 5, 2)) is None


def test_an_adopted_commit_counts_rejected_rows_apart(log):
    """By the setting of who keeps them, where it has committed the transaction."""
    branch = BranchId(0, 1)
    rows = {"ledger": 3, "rejected": 1}
    receipts = tuple(Receipt(branch, n, r, "d", Vote.COMMIT) for n, r in rows.items())
    names = tuple(rows)
    adopt(log, participants=names, receipts=receipts, rejects="rejected")
    adopt(log, "other.5.2", names, receipts, "query-2", rejects="nobody")
    seen = log.read(TransactionId("orders", 5, 2))
    assert (seen.rejects, seen.rejected, seen.rows) == ("rejected", 1, 3)
    other = log.read(TransactionId("other", 5, 2))
    assert (other.rejects, other.rejected) == (None, 0)


def test_what_was_committed_nowhere_takes_the_next_attempt(log):
    """No number is given twice: participants may know those of the lost log."""
    adopt(log)
    late = log.decide(TransactionId("orders", 5, 2), COMMIT, receipts_of())
    assert late is not None
    assert late.decision is ABORT
    begun = begin(log, 5, participants=("any",))
    assert (str(begun.record.id), begun.replay) == ("orders.5.3", False)
    assert begun.superseded == ()


def test_nothing_in_flight_leaves_no_record(log):
    """The application begins at its batch, as its query and as no other."""
    adopt(log, "orders.5.0")
    with raises(ConfigurationError, "its query", query="query-1"):
        begin(log, 5, query="query-2")
    assert str(begin(log, 5).record.id) == "orders.5.1"


def test_adopt_is_for_what_is_unknown(log):
    """Neither an application nor a query that the log knows: nothing is changed."""
    begin(log, 0)
    for transaction, query in (("orders.5.2", "query-2"), ("other.5.2", "query-1")):
        with raises(ConfigurationError, "nothing written"):
            adopt(log, transaction, PARTICIPANTS, query=query)
    with raises(ConfigurationError, "unknown", name="other", batch=5):
        begin(log, 5, application="other")
    assert log.read(TransactionId("orders", 5, 2)) is None
    assert begin(log, 0).record.id.attempt == 1


def test_another_query_is_another_checkpoint(log):
    """The checkpoint was lost or swapped: refused, and the first query still may."""
    commit(log, 0)
    with raises(ConfigurationError, "another query", query="query-2"):
        begin(log, 1, run="run-2", query="query-2")
    assert begin(log, 1).record.id.batch == 1


def test_an_application_is_not_renamed(log):
    """The checkpoint would go on under another name, and write its batch twice.

    Whatever its batch is, and also after `init`: refused with the name that it has.
    """
    commit(log, 0)
    begin(log, 1)
    log.initialise("started", 1)
    begin(log, 1, application="started")
    for name, batch in (("new", 0), ("new", 1), ("started", 1)):
        with pytest.raises(ConfigurationError) as refused:
            begin(log, batch, application=name, query="query-1")
        text = str(refused.value)
        renamed = TEXTS["renamed"].format(name=name, query="query-1")
        assert renamed in text
        assert "application='orders'" in text
        assert "init" not in text
    assert states(log) == {
        "orders.0.1": "committing",
        "orders.1.1": "active",
        "started.1.1": "active",
    }
    begin(log, 2)


def test_a_query_is_bound_when_it_is_first_told(log):
    """A log that was never told a query accepts one, and from then on only that."""
    begin(log, 0, query=None)
    begin(log, 0)
    begin(log, 0, query=None)
    with raises(ConfigurationError, "another query", query="query-2"):
        begin(log, 0, query="query-2")


def test_a_quarantined_transaction_stops_its_application(log):
    """Only its own: the error names it, the first reason, and the command."""
    record = quarantined(log)
    log.quarantine(record.id, "another reason")
    begin(log, 0, application="other")
    with pytest.raises(HeuristicError, match=REASON) as refused:
        begin(log, 1)
    assert refused.value.transaction_id == str(record.id)
    assert "`tracing-2pc resolve orders.0.1`" in str(refused.value)


def test_the_newest_run_wins_for_ever(log):
    """A superseded run is refused, changes nothing, and never comes back."""
    begin(log, 0, run="old")
    begin(log, 0, run="new")
    before = log.unfinished()
    for _ in range(2):
        with raises(AbortedError, "superseded", run="new"):
            begin(log, 0, run="old")
    assert log.unfinished() == before
    begin(log, 0, run="new")


def test_an_attempt_that_is_not_the_expected_one_is_not_begun(log):
    """Another has begun since the log was read: it is not superseded by that."""
    other = begin(log, 0, run="other", attempt=1).record
    with raises(AbortedError, "overtaken"):
        begin(log, 0, run="late", attempt=1)
    assert begin(log, 0, run="other", attempt=1).record == other  # asked again
    assert begin(log, 0, run="late", attempt=2).record.id.attempt == 2


def test_a_batch_below_a_committed_one_is_refused(log):
    """The checkpoint is older than the log; the refused run is not registered.

    A run that lost a race is told of the other: to restore it would mend nothing.
    """
    commit(log, 0)
    commit(log, 1)
    for run, has_lost in (("run-2", True), ("run-1", False)):
        with raises(ConfigurationError, "committed", batch=1) as refused:
            begin(log, 0, run=run, stream=True)
        two_drivers = TEXTS["two drivers"].format(run="run-1")
        assert (two_drivers in str(refused.value)) is has_lost
    assert begin(log, 2, run="run-1").record.run == "run-1"
    counted = {"application": "counted", "query": writes_of("counted")}
    commit(log, 0, **counted)
    commit(log, 1, **counted)
    with raises(ConfigurationError, "a higher number", passed="batch 1"):
        begin(log, 0, run="run-2", **counted)


def test_a_batch_at_forgotten_through_is_refused(log):
    """What was forgotten must not be written again (the guard behind rule 17)."""
    finish(log, commit(log, 0))
    begin(log, 1)
    assert forget(log) == 1
    with raises(ConfigurationError, "finished", batch=0):
        begin(log, 0)


def test_a_committed_batch_is_a_replay(log):
    """Its record comes back, whoever asks, with the participants on record.

    Nothing is opened or written anew, so it does not matter which come after it.
    """
    record = commit(log, 0)
    for names in (PARTICIPANTS, ("ledger",)):
        begun = begin(log, 0, run="run-2", participants=names)
        assert begun == BeginResult(record, replay=True)
    finish(log, record)
    assert begin(log, 0, run="run-3").replay
    assert log.unfinished() == []


def test_a_run_joins_its_own_attempt(log):
    """Without a decision it is the same attempt, for the same run and batch only."""
    first = begin(log, 0).record
    assert begin(log, 0) == BeginResult(first, replay=False)
    left = begin(log, 0, run="run-2").record
    assert left.id.attempt == 2
    begun = begin(log, 1, run="run-2")
    assert str(begun.record.id) == "orders.1.1"
    assert [r.id for r in begun.superseded] == [left.id]


def test_begin_aborts_every_undecided_attempt(log):
    """Of this application, whatever their batch; other applications keep theirs."""
    commit(log, 0)
    old = begin(log, 1).record
    other = begin(log, 0, application="other").record
    (superseded,) = begin(log, 2, run="run-2").superseded
    told = (superseded.id, superseded.decision, superseded.decided)
    assert told == (old.id, ABORT, NOW)
    assert [log.read(r.id) for r in (old, other)] == [superseded, other]


def aborted(log: DecisionLog, batch: int, **other: Any) -> TransactionRecord:
    return decide(log, begin(log, batch, **other).record, ABORT)


@pytest.mark.parametrize("end", ["active", "aborting", "aborted"])
def test_a_stream_does_not_pass_a_batch_that_is_not_committed(log, end):
    """Spark has counted it as done: nobody else would write its rows any more.

    Only that is noted by the refusal, and the line says how to go back. Spark may have
    passed batches in between without a call, in this run or a later one.
    """
    commit(log, 0)
    before = begin(log, 1).record
    if end != "active":
        before = decide(log, before, ABORT)
    if end == "aborted":
        before = finish(log, before)
    for batch, run in ((2, "run-1"), (4, "run-2")):
        known = {"before": before.id, "batch": batch}
        with raises(ConfigurationError, "not committed before", **known) as refused:
            begin(log, batch, run=run, stream=True)
        assert TEXTS["the way back"].format(batch=1) in str(refused.value)
        assert refused.value.transaction_id == str(before.id)
    assert read(log, before) == dataclasses.replace(before, passed_by=2)
    again = begin(log, 1, run="run-2", stream=True).record
    assert (again.passed_by, read(log, before).passed_by) == (None, 2)
    assert again.id.attempt == 2
    decide(log, again, COMMIT, receipts_of())
    assert begin(log, 2, run="run-2", stream=True).record.id.batch == 2


def test_a_person_says_that_a_passed_batch_stays_aborted(log):
    """The note is taken back, once; what nobody has passed has none."""
    record = finish(log, aborted(log, 0, stream=True))
    with raises(ContractError, "not passed", id=record.id):
        log.leave(record.id, who="ada", why="begun anew")
    for _ in range(2):  # a stream that is not gone passes it again
        with raises(
            ConfigurationError, "not committed before", before=record.id, batch=1
        ):
            begin(log, 1, stream=True)
        log.leave(record.id, who="ada", why="begun anew")
        assert read(log, record) == record


def test_a_batch_without_rows_lets_a_stream_pass(log):
    """Whoever gives up a batch commits nothing under its number."""
    aborted(log, 0, stream=True)
    again = begin(log, 0, stream=True).record
    votes = dict.fromkeys(PARTICIPANTS, Vote.READ_ONLY)
    decide(log, again, COMMIT, branch_receipts(BranchId(0, 0), 0, "", votes))
    begin(log, 1, stream=True)


def test_batches_without_an_attempt_are_passed(log):
    """A callback that finds nothing to write may return."""
    commit(log, 0, stream=True)
    commit(log, 3, stream=True)
    begin(log, 7, stream=True, run="run-2")


def test_numbers_of_a_caller_go_on_behind_an_abort(log):
    """Of `df.write` and of a call by hand: who counts the batches may leave one out.

    So does a stream where no query was known before: its numbers were a caller's.
    """
    aborted(log, 0)
    aborted(log, 1)
    aborted(log, 0, application="by-hand")
    begin(log, 1, application="by-hand", query="query-2", stream=True)


def test_what_a_person_has_closed_lets_a_stream_pass(log):
    """It was looked at, and signed for. A batch that is aborted by a person was not."""
    record = aborted(log, 0, stream=True)
    log.quarantine(record.id, REASON)
    log.conclude(record.id, "mixed", who="sue", why="looked")
    record = begin(log, 1, stream=True).record
    log.abort(record.id, who="sue", why="it hangs")
    with raises(ConfigurationError, "not committed before", before=record.id, batch=2):
        begin(log, 2, stream=True)


def test_what_was_adopted_as_aborted_lets_a_stream_pass(log):
    """It uses up attempts of another log, and says nothing of what Spark has run."""
    adopt(log)
    begin(log, 6, stream=True)


@pytest.mark.parametrize(
    ("names", "change"),
    [
        (("notifier",), "one left out"),
        (("ledger", "notifier", "audit"), "one new"),
        (("Notifier", "ledger"), "one renamed"),
    ],
)
def test_changed_participants_are_refused(log, names, change):
    """Left out, new or renamed: one line says who, since when, and what to write."""
    commit(log, 0)
    left = begin(log, 1).record
    with pytest.raises(ConfigurationError) as refused:
        begin(log, 2, run="run-2", participants=names)
    text = str(refused.value)
    changed = TEXTS["participants changed"].format(after=left.id)
    assert f"{changed}: {TEXTS[change]}" in text
    assert "replaces=('ledger', 'notifier')" in text
    assert "\n" not in text
    # The refusal left nothing behind: the earlier run may go on, with its attempt.
    assert states(log) == {"orders.0.1": "committing", "orders.1.1": "active"}
    assert begin(log, 1) == BeginResult(left, replay=False)


def test_participants_change_where_the_earlier_ones_are_named(log):
    """All of them, in any order; it can stay, as it allows no other change."""
    commit(log, 0)
    new = {"run": "run-2", "participants": ("ledger", "audit"), "own_sinks": ("audit",)}
    for wrong in (("ledger",), "ledger", ("ledger", "audit"), ("ledger", "x", "y")):
        with pytest.raises(ConfigurationError, match="replaces="):
            begin(log, 1, replaces=wrong, **new)
    replaces = ["notifier", "ledger"]
    changed = begin(log, 1, replaces=replaces, **new).record
    assert changed.participants == new["participants"]
    assert begin(log, 2, **new | {"participants": ("audit", "ledger")}).record
    assert begin(log, 3, replaces=replaces, **new).record
    for names in (("audit",), PARTICIPANTS):
        with raises(ConfigurationError, "participants changed", after="orders.3.1"):
            begin(log, 4, **new | {"participants": names, "own_sinks": ()})


def test_an_attempt_knows_the_trace_of_the_one_before(log):
    """Kept beside its own context; an attempt that was not traced links to nothing."""
    for own, before in (("a", None), ("b", "a"), (None, None), ("d", None)):
        carrier = {} if own is None else {"traceparent": own}
        begun = begin(log, 0, run=f"run {own}", carrier=carrier).record
        for record in (begun, read(log, begun)):
            assert (record.carrier, record.previous) == (carrier, before)


def test_facts_of_its_begin_stay_on_record(log):
    """Whoever joins the attempt, decides it or reads it later, finds the first ones."""
    facts: Facts = {"root_link": "00-aa-bb-00", "root_start": 7, "root_resource": "{}"}
    begin(log, facts=facts)
    begin(log, facts={"root_start": 8})
    decided = commit(log)
    for record in (decided, read(log, decided)):
        assert {name: getattr(record, name) for name in facts} == facts
    assert begin(log, 1).record.root_start is None


def test_an_attempt_is_never_numbered_twice(log):
    """Each try has its own id, also after aborts that are finished (rule 3)."""
    ids = []
    for run in ("a", "b", "c"):
        record = begin(log, 0, run=run).record
        ids.append(str(record.id))
        log.decide(record.id, ABORT)
        finish(log, record)
    assert ids == ["orders.0.1", "orders.0.2", "orders.0.3"]


# --- expire --------------------------------------------------------------------------


def test_only_what_is_overdue_expires(log, clock):
    """Abort by the timeout that its begin was given, and never before it has passed."""
    slow = begin(log, application="slow", timeout=PATIENT).record
    quick = begin(log, application="quick", timeout=AT_ONCE).record
    never = begin(log, application="never").record
    assert (slow.timeout, slow.deadline is None, never.deadline) == (
        PATIENT,
        False,
        None,
    )
    clock.time += 2 * AT_ONCE
    decided = until(lambda: log.expire(quick.id), lambda found: found.decision)
    assert (decided.decision, decided.newly_decided) == (ABORT, True)
    assert log.expire(quick.id) == log.read(quick.id) == decided
    assert [log.expire(r.id) for r in (slow, never)] == [slow, never]
    clock.time += 10.0**9
    assert log.expire(never.id) == never


def test_what_is_decided_or_unknown_does_not_expire(log):
    """A commit stands, however late it is; None where there is no record."""
    record = begin(log, timeout=OVER).record
    decided = log.decide(record.id, COMMIT, receipts_of())
    assert log.expire(record.id) == decided
    assert log.expire(TransactionId("orders", 0, 2)) is None


# --- decide --------------------------------------------------------------------------


def test_a_decision_is_read_back_whole(log):
    """State, time, receipts, votes and handles are what was decided."""
    wanted = [
        *receipts_of(0, handle={"path": "a/b", "parts": [1, 2.5, None]}),
        *receipts_of(1, votes={"notifier": Vote.COMMIT}, rows=9),
        *receipts_of(1, votes={"ledger": Vote.COMMIT}, rows=9),
    ]
    decided = decide(log, begin(log).record, COMMIT, wanted)
    assert (decided.state, decided.decided) == (TransactionState.COMMITTING, NOW)
    assert decided.receipts == tuple(wanted)
    assert [r.rows for r in decided.chosen("ledger")] == [3, 9]
    assert log.read(decided.id) == decided


def test_rows_are_counted_once_whoever_receives_them(log):
    """Two participants of one branch hold the same rows; routes have branches apart."""
    wanted = [
        *receipts_of(0),
        *receipts_of(1, task=8, votes={"ledger": Vote.COMMIT}),
        *receipts_of(1, task=9, votes={"notifier": Vote.COMMIT}),
    ]
    with raises(ContractError, "no vote about", name="notifier", branch="1.8"):
        log.decide(begin(log).record.id, COMMIT, wanted)
    decided = decide(log, begin(log).record, COMMIT, wanted[2:])
    assert decided.rows == 6
    whole = decide(log, begin(log, 1).record, COMMIT, receipts_of())
    assert whole.rows == 3


@pytest.mark.parametrize(("first", "second"), [(COMMIT, ABORT), (ABORT, COMMIT)])
def test_a_decision_is_written_once(log, first, second):
    """Whoever asks later is told what stands, in whatever state, and must obey."""
    record = begin(log).record
    stands = log.decide(record.id, first, receipts_of())
    assert log.decide(record.id, second, receipts_of(5)) == stands
    assert log.decide(record.id, first, receipts_of()) == stands
    done = finish(log, record)
    assert log.decide(record.id, second) == done
    assert done.decision is first


def test_without_a_record_nothing_is_decided(log):
    """An attempt, batch or application that never began: None, which means abort."""
    record = begin(log).record
    for other in ("orders.0.2", "orders.1.1", "other.0.1"):
        assert log.decide(TransactionId.parse(other), COMMIT) is None
    assert states(log) == {str(record.id): "active"}


def test_a_superseded_driver_is_told_abort(log):
    """It wants to commit, another began in the meantime: abort stands (rule 14)."""
    old = begin(log, 0, run="old").record
    new = begin(log, 0, run="new").record
    told = decide(log, old, COMMIT, receipts_of())
    assert told.decision is ABORT
    taken = decide(log, new, COMMIT, receipts_of())
    assert taken.decision is COMMIT


@pytest.mark.parametrize(
    ("receipts", "why"),
    [
        (receipts_of(votes={"ledger": Vote.ABORT}), "voted abort"),
        (receipts_of(votes={"stranger": Vote.COMMIT}), "stranger"),
        (receipts_of()[:1], "no vote"),
        ((*receipts_of(0), *receipts_of(1)[:1]), "no vote"),
        (receipts_of(0, 7) * 2, "two receipts"),
        ((*receipts_of(0, 7), *receipts_of(0, 8)), "two receipts"),
        (receipts_of(handle="x" * 65_535), "too large"),
        (receipts_of(handle=object()), "no JSON"),
        (receipts_of(handle=float("nan")), "no JSON"),
    ],
    ids=[
        *("abort", "stranger", "silence", "one branch", "again", "twin"),
        *("large", "object", "nan"),
    ],
)
@ONE_STORE
def test_a_commit_needs_every_vote(log, receipts, why):
    """A commit that its receipts do not carry is a fault of the code (rule 1)."""
    record = begin(log).record
    with raises(ContractError, why) as refused:
        log.decide(record.id, COMMIT, receipts)
    assert refused.value.transaction_id == str(record.id)
    assert log.read(record.id) == record
    aborted = decide(log, record, ABORT, receipts)
    assert (aborted.decision, aborted.receipts) == (ABORT, ())


@ONE_STORE
def test_a_batch_of_too_many_branches_is_not_committed(log):
    """More than a participant can be told at once: nothing is decided."""
    record = begin(log).record
    many = [r for n in range(MAX_BRANCHES + 1) for r in receipts_of(n)]
    with pytest.raises(ContractError, match="coalesce") as refused:
        log.decide(record.id, COMMIT, many)
    assert refused.value.participant == "ledger"
    assert log.read(record.id) == record


def test_a_handle_of_64_kib_is_kept(log):
    """The limit itself is allowed, and comes back as JSON would have it."""
    large = receipts_of(0, handle="x" * 65_534)
    odd = receipts_of(1, handle={1: (2, 3)})
    decided = decide(log, begin(log).record, COMMIT, [*large, *odd])
    assert [r.handle for r in decided.chosen("ledger")] == ["x" * 65_534, {"1": [2, 3]}]
    assert log.read(decided.id) == decided


# --- delivery and finish -------------------------------------------------------------


@pytest.mark.parametrize(
    ("decision", "last"),
    [(COMMIT, TransactionState.COMMITTED), (ABORT, TransactionState.ABORTED)],
)
def test_finished_only_after_every_acknowledgement(log, decision, last):
    """One missing participant keeps it open (rule 11), of an abort as of a commit."""
    record = begin(log).record
    log.decide(record.id, decision, receipts_of())
    log.acknowledge(record.id, "ledger")
    with raises(ContractError, "not acknowledged", name="notifier"):
        log.finish(record.id)
    (found,) = log.unfinished()
    assert found.pending == ("notifier",)
    assert (finish(log, record).state, log.unfinished()) == (last, [])


def test_sinks_of_the_jobs_own_are_on_record(log):
    """From begin on, whatever becomes of it: nobody else can reach them."""
    begun = log.begin(
        "orders",
        0,
        Opening(
            run="run-1",
            query="q",
            participants=["ledger", "Archive"],
            carrier={},
            own_sinks=["Archive"],
        ),
    ).record
    log.decide(begun.id, ABORT)
    log.acknowledge(begun.id, "Archive", "it cannot find its branches")
    current = read(log, begun)
    assert (begun.own_sinks, current.own_sinks) == ({"Archive"}, {"Archive"})
    assert current.pending == ("ledger",)


def test_acknowledge_and_finish_may_be_repeated(log):
    """A repeat changes nothing, not even the times; so does one for the forgotten."""
    done = finish(log, commit(log, 0))
    assert finish(log, done) == done
    begin(log, 1)
    assert forget(log) == 1
    log.acknowledge(done.id, "ledger")
    log.finish(done.id)
    assert log.read(done.id) is None


def test_only_decisions_are_acknowledged(log):
    """What nobody was told, or somebody not on record, is a fault of the code."""
    record = begin(log).record
    with raises(ContractError, "no decision"):
        log.acknowledge(record.id, "ledger")
    log.decide(record.id, ABORT)
    with raises(ContractError, "stranger") as refused:
        log.acknowledge(record.id, "stranger")
    assert refused.value.participant == "stranger"
    assert log.read(record.id) == log.unfinished()[0]


def test_unfinished_is_oldest_first(log):
    """By application, batch, attempt: commits reach a participant in batch order."""
    for application in ("b", "a"):
        for run in ("1", "2"):
            begin(log, 0, application=application, run=run)
        commit(log, 0, application=application, run="2")
        for batch in (1, 2, 10):
            commit(log, batch, application=application, run="2")
    found = [str(r.id) for r in log.unfinished()]
    one = ["0.1", "0.2", "1.1", "2.1", "10.1"]
    assert found == [f"{a}.{rest}" for a in "ab" for rest in one]
    assert [str(r.id) for r in log.unfinished("b")] == [f"b.{rest}" for rest in one]
    assert log.unfinished("c") == []


def test_applications_with_something_unfinished(log):
    """Each of them once, sorted; those that are done are not among them."""
    assert log.unfinished_applications() == []
    for application in ("z", "b", "done"):
        begun = begin(log, application=application)
    log.decide(begun.record.id, ABORT)
    finish(log, begun.record)
    commit(log, application="z")
    begin(log, 1, application="z", run="run-2")
    assert log.unfinished_applications() == ["b", "z"]


def test_unfinished_lists_what_is_open(log):
    """Active, committing, aborting, quarantined; nothing that is closed.

    A failed try changes nothing of it; neither does one for nobody.
    """
    finish(log, commit(log, 0))
    record = commit(log, 1)
    begin(log, 2)
    begin(log, 2, run="run-2")
    before = log.unfinished()
    for id_ in (record.id, TransactionId("orders", 9, 1)):
        log.postpone(id_, "ledger", "timeout", NOW + 5)
    assert log.unfinished() == before
    found = {"orders.1.1": "committing", "orders.2.1": "aborting"}
    assert states(log) == found | {"orders.2.2": "active"}
    log.quarantine(record.id, "why")
    assert states(log)["orders.1.1"] == "quarantined"


# --- a person ------------------------------------------------------------------------


def test_a_person_aborts_what_is_undecided(log):
    """As any other abort: its driver, which may only be slow, is told so."""
    record = begin(log).record
    log.abort(record.id, who="ada", why="its driver is gone")
    assert states(log) == {str(record.id): "aborting"}
    told = decide(log, record, COMMIT, receipts_of())
    assert told.decision is ABORT


@pytest.mark.parametrize("decision", list(Decision))
def test_resume_repeats_the_decision(log, decision):
    """A person may only deliver again what stands; then everything goes on.

    Why it was quarantined stays on record, beside why it was aborted.
    """
    record = begin(log).record
    decided = log.decide(record.id, decision, receipts_of(), "error", "a task")
    log.quarantine(record.id, "why")
    other = COMMIT if decision is ABORT else ABORT
    with raises(ContractError, "no other way", decision=decision, other=other):
        log.resume(record.id, other, who="ada", why="looked")
    log.resume(record.id, decision, who="ada", why="looked")
    assert decided.cause == ("error" if decision is ABORT else None)
    assert log.read(record.id) == dataclasses.replace(decided, reason="why")
    finish(log, record)
    begin(log, 1)


BY_ADA = {"who": "ada", "why": "looked"}
CHANGES: dict[str, tuple[Callable[[DecisionLog, TransactionId], Any], set[str]]] = {
    "finish": (lambda log, id_: log.finish(id_), {"active", "quarantined"}),
    "quarantine": (
        lambda log, id_: log.quarantine(id_, "why"),
        {"active", "committed", "unknown"},
    ),
    "abort": (
        lambda log, id_: log.abort(id_, **BY_ADA),
        {"committing", "quarantined", "committed", "unknown"},
    ),
    "resume": (
        lambda log, id_: log.resume(id_, COMMIT, **BY_ADA),
        {"active", "committing", "committed", "unknown"},
    ),
    "conclude": (
        lambda log, id_: log.conclude(id_, "mixed", **BY_ADA),
        {"active", "committing", "committed", "unknown"},
    ),
    "give_up": (
        lambda log, id_: log.give_up(id_, "notifier", **BY_ADA),
        {"active", "quarantined", "committed", "unknown"},
    ),
}
"""What is done to a transaction, and where it is not to be done."""


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_in_another_state_is_refused(log, change):
    """By a transaction's state, or as there is none; nothing is changed by it."""
    unknown = TransactionId("orders", 9, 1)
    done = finish(log, commit(log, 0)).id
    found = {"unknown": unknown, "committed": done, "committing": commit(log, 1).id}
    found["active"] = begin(log, 2).record.id
    found["quarantined"] = commit(log, 0, application="other").id
    log.quarantine(found["quarantined"], REASON)
    do, where = CHANGES[change]
    before = {state: log.read(id_) for state, id_ in found.items()}
    for state in where:
        says = "no record" if state == "unknown" else "its state"
        illegal = state != "unknown" and change != "give_up"
        error = IllegalTransitionError if illegal else ContractError
        with raises(error, says, state=state):
            do(log, found[state])
    assert {state: log.read(id_) for state, id_ in found.items()} == before


@pytest.mark.parametrize("outcome", ["mixed", "hazard"])
def test_conclude_lets_the_application_begin_again(log, outcome):
    """What cannot be made whole is closed by a person; nobody acknowledges it.

    Its receipts say who was to hold what, until it is forgotten like any other.
    """
    record = quarantined(log)
    log.conclude(record.id, outcome, who="ada", why="notifier never had it")
    found = read(log, record)
    assert (found.state, found.finished) == (TransactionState.CONCLUDED, NOW)
    finish(log, commit(log, 1))
    assert read(log, record).receipts == receipts_of()
    assert forget(log) == 1


@ONE_STORE
def test_conclude_knows_two_outcomes(log):
    """Committed and aborted are not conclusions: they are delivered."""
    record = quarantined(log)
    with raises(ContractError, "an outcome"):
        log.conclude(record.id, "committed", who="ada", why="looked")


# --- give up -------------------------------------------------------------------------


@pytest.mark.parametrize("decision", list(Decision))
def test_whoever_is_given_up_is_not_waited_for(log, decision):
    """The others go on being asked; then it is concluded, and never called whole."""
    record = begin(log).record
    log.decide(record.id, decision, receipts_of())
    log.give_up(record.id, "notifier", who="ada", why="its disk is gone")
    found = read(log, record)
    assert (found.pending, found.abandoned) == (("ledger",), ("notifier",))
    assert found.state is not TransactionState.CONCLUDED
    assert [r.id for r in log.unfinished()] == [record.id]
    with raises(ContractError, "not acknowledged", name="ledger"):
        log.finish(record.id)
    log.acknowledge(record.id, "ledger")
    log.finish(record.id)
    found = read(log, record)
    assert (found.state, found.finished) == (TransactionState.CONCLUDED, NOW)
    assert found.decision is decision
    assert log.unfinished() == []
    begin(log, 1)
    assert forget(log) == 1


@pytest.mark.parametrize("before", [("ledger",), ()], ids=["the last", "all"])
@pytest.mark.parametrize("untold", [None, "a part of it"])
@pytest.mark.parametrize(
    ("decision", "closed"),
    [(COMMIT, TransactionState.COMMITTED), (ABORT, TransactionState.ABORTED)],
)
def test_the_last_acknowledgement_closes(log, decision, closed, untold, before):
    """It goes on record with the end, alone or with all others, also once more."""
    earlier = finish(log, commit(log))
    record = decide(log, begin(log, 1).record, decision, receipts_of())
    for name in before:
        log.acknowledge(record.id, name)
    last = {name: None for name in PARTICIPANTS if name not in before}
    for _ in range(2):
        log.acknowledge_last(record, last | {"notifier": untold})
        ended = read(log, record)
        assert (ended.state, ended.finished) == (closed, NOW)
        assert (ended.pending, log.unfinished()) == ((), [])
        assert ended.acknowledged == set(PARTICIPANTS)
    assert bool(read(log, earlier).receipts) is (decision is ABORT)


def test_an_acknowledgement_that_is_not_the_last_closes_nothing(log):
    """It is on record, and who is missing is named."""
    record = commit(log)
    with raises(ContractError, "not acknowledged", name="ledger"):
        log.acknowledge_last(record, {"notifier": None})
    current = read(log, record)
    assert (current.state, current.pending) == (
        TransactionState.COMMITTING,
        ("ledger",),
    )


def test_the_last_acknowledgement_of_a_record_that_has_changed(log):
    """What the log has counts, not what was read of it before."""
    record = commit(log)
    log.give_up(record.id, "ledger", who="ada", why="gone")
    log.acknowledge_last(record, {"notifier": None})
    current = read(log, record)
    assert current.state is TransactionState.CONCLUDED
    record = commit(log, 1)
    log.acknowledge(record.id, "ledger")
    log.quarantine(record.id, "it lost what it had")
    with raises(ContractError, "its state", state="quarantined"):
        log.acknowledge_last(record, {"notifier": None})
    current = read(log, record)
    assert current.state is TransactionState.QUARANTINED


@pytest.mark.parametrize(
    ("given_up", "answer", "state"),
    [
        (PARTICIPANTS, (), TransactionState.CONCLUDED),
        (("notifier",), PARTICIPANTS, TransactionState.COMMITTED),
    ],
    ids=["everybody", "who answers after all"],
)
def test_who_was_given_up_counts_at_the_end(log, given_up, answer, state):
    """One by one, until nobody is left; an answer that was under way makes it whole."""
    record = commit(log)
    for name in given_up:
        log.give_up(record.id, name, **BY_ADA)
    for name in answer:
        log.acknowledge(record.id, name)
    log.finish(record.id)
    assert read(log, record).state is state


def test_only_who_is_waited_for_is_given_up(log):
    """Not a stranger, nor who has acknowledged or was given up before."""
    record = commit(log)
    log.acknowledge(record.id, "ledger")
    log.give_up(record.id, "notifier", **BY_ADA)
    for name in ("booking", "ledger", "notifier"):
        with raises(ContractError, "not waited for", name=name):
            log.give_up(record.id, name, **BY_ADA)


def test_who_was_given_up_outlives_a_quarantine(log):
    """Somebody else's contradiction does not bring it back."""
    record = commit(log)
    log.give_up(record.id, "notifier", who="ada", why="gone")
    log.quarantine(record.id, "ledger answered 409 aborted")
    log.resume(record.id, COMMIT, who="ada", why="mended")
    found = read(log, record)
    assert (found.state, found.pending) == (TransactionState.COMMITTING, ("ledger",))


# --- forget --------------------------------------------------------------------------


def run_batches(log: DecisionLog, count: int) -> list[TransactionRecord]:
    return [finish(log, commit(log, batch)) for batch in range(count)]


def test_the_newest_batch_is_never_forgotten(log):
    """Spark may still replay it, until it has begun the next one (rule 17)."""
    first, second = run_batches(log, 2)
    assert forget(log) == 1
    assert (log.read(first.id), forget(log)) == (None, 0)
    assert begin(log, 1).record.forgotten_through == 0
    begin(log, 2)
    assert forget(log) == 1
    assert log.read(second.id) is None


def test_all_attempts_of_a_batch_go_together(log):
    """One unfinished attempt, an aborted one too, keeps the whole batch."""
    old = begin(log, 0, run="old").record
    new = finish(log, commit(log, 0, run="new"))
    begin(log, 1, run="new")
    assert forget(log) == 0
    finish(log, old)
    assert forget(log) == 2
    assert (log.read(old.id), log.read(new.id)) == (None, None)


def test_a_finished_attempt_waits_for_the_later_one(log):
    """An abort that is closed is not forgotten before the commit that followed it."""
    old = begin(log, 0, run="old").record
    log.decide(old.id, ABORT)
    finish(log, old)
    commit(log, 0, run="new")
    begin(log, 1, run="new")
    assert forget(log) == 0
    assert log.read(old.id) is not None


@pytest.mark.parametrize("stuck", ["committing", "quarantined"])
def test_what_is_unfinished_blocks_what_comes_after(log, stuck):
    """forgotten_through passes nothing that is open; below it, it may rise."""
    run_batches(log, 1)
    record = commit(log, 1)
    finish(log, commit(log, 2))
    begin(log, 3)
    if stuck == "quarantined":
        log.quarantine(record.id, "why")
    assert forget(log) == 1
    assert log.read(record.id) is not None
    if stuck == "committing":
        assert begin(log, 3).record.forgotten_through == 0


def test_young_records_stay(log):
    """Finished before the given time, not at it."""
    run_batches(log, 2)
    assert forget(log, finished_before=NOW) == 0
    assert forget(log, finished_before=LATER) == 1


def test_forget_works_in_slices(log):
    """At most so many batches at once, oldest first; other applications stay."""
    run_batches(log, 5)
    other = finish(log, commit(log, 0, application="other"))
    begin(log, 1, application="other")
    assert [forget(log, limit=3) for _ in range(3)] == [3, 1, 0]
    assert forget(log, "unknown") == 0
    assert begin(log, 4).record.forgotten_through == 3
    assert log.read(other.id) == other


def test_participants_are_told_what_the_next_begin_made_durable(log):
    """A crash may lose what was forgotten, never what a participant was told of it."""
    run_batches(log, 2)
    unfinished = begin(log, 2).record
    assert forget(log) == 2
    for record in (log.read(unfinished.id), *log.unfinished()):
        assert record is not None
        assert record.forgotten_through is None
    decided = decide(log, unfinished, COMMIT, receipts_of())
    assert decided.forgotten_through is None
    finish(log, unfinished)
    assert begin(log, 2).record.forgotten_through == 1
    record = begin(log, 3).record
    assert record.forgotten_through == 1
    assert log.read(record.id) == record


def test_receipts_are_kept_while_their_batch_may_be_replayed(log):
    """Until a later one is committed; then the record stays, with its rows.

    A batch below a commit is never begun again, and 200 partitions are 200 receipts.
    """
    (first,) = run_batches(log, 1)
    assert begin(log, 0, run="again").record.receipts == receipts_of()
    aborted = begin(log, 1, run="again").record
    log.decide(aborted.id, ABORT)
    finish(log, aborted)
    second = commit(log, 1, run="again")
    kept = read(log, first)
    assert (kept.receipts, kept.rows) == (receipts_of(), 3)
    second = finish(log, second)
    left = read(log, first)
    assert (left.receipts, left.rows, left.state) == ((), 3, first.state)
    assert second.receipts == receipts_of()
    with raises(ConfigurationError, "committed", batch=1):
        begin(log, 0, run="again")


def test_a_superseded_run_stays_so_when_it_is_forgotten(log):
    """Also when nothing is on record any more of what it began."""
    for batch, run in enumerate(("first", "second", "third", "fourth")):
        finish(log, commit(log, batch, run=run))
    assert forget(log) == 3
    for run in ("first", "second", "third"):
        with raises(AbortedError, "superseded", run="fourth"):
            begin(log, 4, run=run)
    assert begin(log, 4, run="fourth").record.run == "fourth"


# --- several at once -----------------------------------------------------------------


def together(*calls: Callable[[], Any]) -> list[Any]:
    """Run the calls at the same moment; return results, errors among them."""
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Any]) -> Any:
        start.wait()
        try:
            return call()
        except (AbortedError, ConfigurationError) as error:
            return error

    with ThreadPoolExecutor(len(calls)) as pool:
        return [f.result() for f in [pool.submit(run, call) for call in calls]]


def test_racing_decisions_leave_one(log):
    """Commit and abort at once, from many threads: all are told the same."""
    for batch in range(5):
        record = begin(log, batch).record
        wanted = [COMMIT, ABORT] * 4
        told = together(
            *(partial(log.decide, record.id, w, receipts_of()) for w in wanted)
        )
        assert all(t == told[0] for t in told)
        assert log.read(record.id) == told[0]


def test_racing_begins_leave_one_live_attempt(log):
    """Many first drivers at once: each attempt its own id, all but one aborted."""
    begins = (partial(begin, log, 0, run=f"run-{n}", query=None) for n in range(8))
    told = together(*begins)
    ids = sorted(str(t.record.id) for t in told)
    assert ids == [f"orders.0.{n}" for n in range(1, 9)]
    assert sorted(states(log).values()) == ["aborting"] * 7 + ["active"]


def test_racing_inits_leave_one(log):
    """Two persons say where an application starts: the second is refused."""
    told = together(*(partial(log.initialise, "orders", n) for n in range(1, 5)))
    assert sum(t is None for t in told) == 1
