"""What an operator reads of the log: lists, deliveries, the audit, leases."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from support.log_tables import explain, fill

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.log_reader import TransactionFilter, TransactionSummary
from tracing_2pc.core.model import BranchId, TransactionId, branch_receipts
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, TransactionState, Vote
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.store.engines.database import Database
from tracing_2pc.store.log import database as databases
from tracing_2pc.store.log import listing, reader, schema, statements

START = 1_700_000_000.0


class Time:
    def __init__(self) -> None:
        self.time = START

    def __call__(self) -> float:
        return self.time


@pytest.fixture
def base(url) -> Iterator[Database]:
    opened = databases.connect(url)
    SqlDecisionLog(opened).create()
    yield opened
    opened.close()


@pytest.fixture
def time() -> Time:
    return Time()


@pytest.fixture
def log(base, time) -> SqlDecisionLog:
    return SqlDecisionLog(base, now=time)


def begin(
    log: SqlDecisionLog, batch: int, application: str = "orders"
) -> TransactionId:
    carrier = {"traceparent": "00-aa-bb-01"}
    opening = Opening(run="r", query=None, participants=["a", "b"], carrier=carrier)
    return log.begin(application, batch, opening).record.id


def decide(log: SqlDecisionLog, id_: TransactionId, wanted: Decision) -> None:
    votes = dict.fromkeys("ab", Vote.COMMIT)
    receipts = branch_receipts(BranchId(0, 1), 5, "d", votes)
    log.decide(id_, wanted, receipts if wanted is Decision.COMMIT else ())


def finish(log: SqlDecisionLog, id_: TransactionId) -> None:
    for name in "ab":
        log.acknowledge(id_, name)
    log.finish(id_)


@pytest.fixture
def history(log, time) -> SqlDecisionLog:
    """Two finished batches, one committing, one active; and another application's."""
    for batch in range(2):
        id_ = begin(log, batch)
        time.time += 10
        decide(log, id_, Decision.COMMIT)
        finish(log, id_)
        time.time += 10
    committing = begin(log, 2)
    decide(log, committing, Decision.COMMIT)
    log.acknowledge(committing, "a")
    log.postpone(committing, "b", "503 try later", time.time + 7)
    time.time += 10
    begin(log, 0, "bookings")
    return log


def ids(found: list[TransactionSummary]) -> list[str]:
    return [str(one.transaction) for one in found]


def test_transactions_are_listed_newest_first(history):
    """Finished ones too; with who has not acknowledged, and the trace."""
    found = history.transactions(TransactionFilter())
    assert ids(found) == ["bookings.0.1", "orders.2.1", "orders.1.1", "orders.0.1"]
    assert [one.pending for one in found] == [("a", "b"), ("b",), (), ()]
    assert found[1].state is TransactionState.COMMITTING
    assert found[1].decision is Decision.COMMIT
    assert found[1].rows == 5
    assert found[1].carrier == {"traceparent": "00-aa-bb-01"}
    assert found[0].rows is None


def test_the_newest_commits_are_listed(log, time):
    """Three of each application that are finished, and were begun since."""
    started = time.time
    for batch in range(5):
        for application in ("orders", "bookings") if batch < 2 else ("orders",):
            id_ = begin(log, batch, application)
            time.time += 1
            decide(log, id_, Decision.ABORT if batch == 3 else Decision.COMMIT)
            finish(log, id_)
    unfinished = begin(log, 5)
    decide(log, unfinished, Decision.COMMIT)
    found = [str(record.id) for record in log.newest_commits(started)]
    assert found == ["bookings.0.1", "bookings.1.1", "orders.2.1", "orders.4.1"]
    found = [str(record.id) for record in log.newest_commits(time.time - 1)]
    assert found == ["orders.4.1"]
    time.time += 1
    assert log.newest_commits(time.time) == []


def test_what_a_stream_has_passed_is_listed(log):
    """While it is the newest; its cause stays on record, and is no quarantine's."""

    def stream(batch: int) -> TransactionId:
        of = {"run": "r", "query": "q", "participants": ["a", "b"], "carrier": {}}
        return log.begin("orders", batch, Opening(stream=True, **of)).record.id

    begin(log, 0, "bookings")
    lost = stream(0)
    log.decide(lost, Decision.ABORT, cause="OSError")
    assert log.passed() == []
    for batch in (1, 2):
        with pytest.raises(ConfigurationError):
            stream(batch)
    finish(log, lost)
    (record,) = log.passed()
    noted = (record.id, record.passed_by, record.cause, record.state)
    assert noted == (lost, 1, "OSError", TransactionState.ABORTED)
    (summary,) = log.transactions(TransactionFilter("orders"))
    assert (summary.passed_by, summary.reason, record.reason) == (1, None, None)
    stream(0)
    assert log.passed() == []


def test_filters(history):
    """By application, by state, by age, and so many."""
    orders = TransactionFilter(application="orders")
    assert ids(history.transactions(orders)) == [
        "orders.2.1",
        "orders.1.1",
        "orders.0.1",
    ]
    committed = TransactionFilter(state=TransactionState.COMMITTED)
    assert ids(history.transactions(committed)) == ["orders.1.1", "orders.0.1"]
    active = TransactionFilter(state=TransactionState.ACTIVE)
    assert ids(history.transactions(active)) == ["bookings.0.1"]
    unfinished = TransactionFilter(unfinished=True)
    assert ids(history.transactions(unfinished)) == ["orders.2.1", "bookings.0.1"]
    oldest = dataclasses.replace(unfinished, limit=1)
    assert ids(history.transactions(oldest)) == ["orders.2.1"]
    assert ids(history.transactions(TransactionFilter(batch=0))) == [
        "bookings.0.1",
        "orders.0.1",
    ]
    assert ids(history.transactions(TransactionFilter(participant="c"))) == []
    bounds = TransactionFilter(since=START + 20, until=START + 40)
    assert ids(history.transactions(bounds)) == ["orders.2.1", "orders.1.1"]
    for at in ({"since": START + 51}, {"until": START - 1}, {"since": START + 60}):
        assert history.transactions(TransactionFilter(**at)) == []
    assert ids(history.transactions(TransactionFilter(limit=1))) == ["bookings.0.1"]
    assert history.transactions(TransactionFilter(application="nobody")) == []


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"participant": "a"},
        {"unfinished": True},
        {"state": TransactionState.ABORTED},
        {"since": START + 5, "until": START + 35},
    ],
    ids=str,
)
def test_pages_have_each_transaction_once(log, time, monkeypatch, chosen):
    """Of several applications, with later attempts, however short the pages are.

    Also where a page looks at less than it may show, and while others are begun.
    """
    for batch in range(4):
        for application in ("orders", "bookings"):
            aborted = begin(log, batch, application)
            decide(log, aborted, Decision.ABORT)
            finish(log, aborted)
            time.time += 5
            again = begin(log, batch, application)
            if batch < 3:
                decide(log, again, Decision.COMMIT)
                finish(log, again)
    filters = TransactionFilter(**chosen)
    whole = ids(log.transactions(filters))
    assert len(whole) > 1
    begin(log, 0, "between")
    monkeypatch.setattr(reader, "_LOOKED_AT", 2)
    for limit in (1, 3):
        found, page = [], log.search(dataclasses.replace(filters, limit=limit))
        found += ids(page.rows)
        while page.beyond:
            more = dataclasses.replace(filters, limit=limit, beyond=page.beyond)
            page = log.search(more)
            assert len(page.rows) <= limit
            found += ids(page.rows)
        of_these = [id_ for id_ in found if not id_.startswith("between")]
        assert sorted(of_these) == sorted(whole)
        assert limit == 3 or of_these == whole or "participant" in chosen


def test_deliveries_say_when_and_why(history):
    """Of one transaction, and of all that is unfinished."""
    found = history.deliveries(TransactionId("orders", 2, 1))
    assert list(found) == ["a", "b"]
    named = [TransactionId("orders", batch, 1) for batch in (0, 2, 9)]
    at_a = history.deliveries_at("a", named)
    assert (list(at_a), at_a[named[1]]) == (named[:2], found["a"])
    assert history.deliveries_at("c", named) == {}
    assert found["a"].acknowledged == START + 40
    assert found["b"].acknowledged is None
    told = (found["b"].retries, found["b"].retry_at, found["b"].error)
    assert told == (1, START + 47, "503 try later")
    unfinished = history.deliveries_of_unfinished()
    assert set(unfinished) == {"orders.2.1", "bookings.0.1"}
    assert unfinished["orders.2.1"] == found


def test_an_acknowledged_delivery_is_due_no_more(history):
    """What came last of it stays, for who looks."""
    id_ = TransactionId("orders", 2, 1)
    history.postpone(id_, "b", "refused", START + 50)
    for _ in range(2):
        history.acknowledge(id_, "b")
        history.postpone(id_, "b", "late", START + 99)
        told = history.deliveries(id_)["b"]
        assert (told.retries, told.retry_at, told.error) == (2, None, "refused")


def test_standing_says_what_is_on_record(history):
    """Of those that were asked about; of a thousand too."""
    known, unknown = TransactionId("orders", 0, 1), TransactionId("orders", 9, 1)
    many = [TransactionId("orders", batch, 7) for batch in range(1000)]
    found = history.states_of([known, unknown, *many])
    assert found == {known: TransactionState.COMMITTED}


def test_reason_and_audit(history, time):
    """Why it was quarantined, and what a person did, in their words."""
    id_ = TransactionId("orders", 2, 1)
    assert history.read(id_).reason is None
    history.quarantine(id_, "b answered 404 unknown")
    history.resume(id_, Decision.COMMIT, who="ada", why="restored b")
    assert history.read(id_).reason == "b answered 404 unknown"
    (entry,) = history.audit(id_)
    assert entry == (
        time.time,
        "ada",
        "resume",
        str(id_),
        "restored b",
        "quarantined",
        "committing",
    )
    assert history.audit(TransactionId("orders", 2, 11)) == []


def test_a_lease_has_one_holder_and_ends_by_itself(history, time):
    """Whoever holds it may renew it; another gets it when it is over or given back."""
    assert history.take_lease("orders", "one", 30)
    assert not history.take_lease("orders", "two", 30)
    assert history.take_lease("bookings", "two", 30), "each application has its own"
    time.time += 20
    assert history.take_lease("orders", "one", 30)
    time.time += 20
    assert not history.take_lease("orders", "two", 30)
    time.time += 11
    assert history.take_lease("orders", "two", 30)
    history.give_leases_back("two")
    assert history.take_lease("orders", "one", 30)
    assert not history.take_lease("nobody", "one", 30)


def test_a_clock_that_is_set_back_does_not_make_a_lease_longer(history, time):
    """Whoever died before that is replaced as soon as ever."""
    assert history.take_lease("orders", "dead", 130)
    time.time -= 3600
    assert history.take_lease("orders", "two", 130)
    assert not history.take_lease("orders", "three", 130)


OF_EACH = (
    "INSERT INTO tpc_delivery (transaction_id, participant, position, retries)"
    " SELECT id, 'a', 0, 0 FROM tpc_transaction WHERE batch >= 10"
)


def test_the_cost_does_not_grow_with_what_is_finished(history, base):
    """Open records by the partial index; newest ones and named ones by theirs."""
    fill(base, 5_000, "committed", first=10)
    with base.write() as connection:
        for text in (OF_EACH, "ANALYZE"):
            connection.exec_driver_sql(text)

    def key(name: str) -> str:
        return "autoindex" if base.url.drivername.startswith("sqlite") else name

    one = {"ids": ["orders.0.1"]}
    asked = {"of": "orders", "at": 3}
    place = {**asked, "low": 0, "high": 9_000, "from_batch": 4_000, "from_attempt": 1}
    place |= {"most": 10, "looked_at": 1_000, "state": "aborted", "participant": "a"}
    place |= {"since": 1.0, "until": 2.0}
    wanted = ("since", "until")
    newest = key("tpc_transaction_application_batch_attempt_key")
    for statement, values, index in (
        (statements.load_transactions(statements.UNFINISHED), asked, "tpc_unfinished"),
        (
            statements.load_transactions(statements.UNFINISHED_OF),
            asked,
            "tpc_unfinished",
        ),
        (statements.UNFINISHED_APPLICATIONS, asked, "tpc_unfinished"),
        (statements.SOME_UNFINISHED, asked, "tpc_unfinished"),
        (statements.SOME_UNFINISHED_OF, asked, "tpc_unfinished"),
        (listing.summaries("ASC", "unfinished"), place, "tpc_unfinished"),
        (listing.summaries("DESC", *wanted), place, newest),
        (listing.summaries("DESC", "participant"), place, newest),
        (listing.summaries("DESC", "others", "state"), place, "tpc_not_committed"),
        (listing.last_looked_at("DESC"), place, newest),
        (listing.BEGUN_FROM, asked, newest),
        (listing.BEGUN_THROUGH, asked, newest),
        (listing.OLDEST_AND_NEWEST, asked, newest),
        (listing.OUTSTANDING_OF, one, key("tpc_delivery_pkey")),
        (listing.STATES_OF, one, key("tpc_transaction_pkey")),
    ):
        text = explain(base, statement, values)
        assert index in text, text
        assert "Seq Scan on tpc_transaction" not in text, text
        assert "SCAN tpc_transaction'" not in text, text


def test_many_finished_ones_of_an_application_are_not_read(log, base):
    """However many unfinished ones of others make a database expect some of it."""
    fill(base, 5_000, "committing", first=10)
    fill(base, 500, "committing", of="others", first=10, finished="NULL")
    receipts = (
        "INSERT INTO tpc_receipt SELECT id, 'a', '0.0', 0, 'commit', 1, '', 'null'"
        " FROM tpc_transaction WHERE finished IS NULL"
    )
    with base.write() as connection:
        for text in (OF_EACH, receipts, "ANALYZE"):
            connection.exec_driver_sql(text)
    dialect = base.look_engine.dialect.name
    of_one, in_state, of_all = (
        statements.as_array_condition(condition, dialect)
        for condition in (
            statements.UNFINISHED_OF,
            statements.UNFINISHED_IN_STATE,
            statements.UNFINISHED,
        )
    )
    for statement in (
        statements.load_transactions(of_one),
        statements.load_parts(schema.receipt, of_one),
        statements.load_transactions(in_state),
        statements.load_parts(schema.delivery, of_all),
    ):
        plan = explain(base, statement, {"of": "orders", "state": "committing"})
        assert "tpc_unfinished" in plan, plan
        for table in ("tpc_transaction", "tpc_delivery"):
            assert f"Seq Scan on {table}" not in plan, plan
            assert f"SCAN {table}'" not in plan, plan
        assert "Filter: ((finished IS NULL)" not in plan, plan


def test_what_is_unfinished_is_read_once(history, base):
    """A look whether there is something comes first, and reads no participants."""
    texts: list[str] = []

    def note(_: object, __: object, text: str, *___: object) -> None:
        texts.append(text)

    engines = (base.look_engine, base.read_engine)
    for engine in engines:
        sa.event.listen(engine, "before_cursor_execute", note)
    try:
        records = history.unfinished("orders")
        of_deliveries = [text for text in texts if "tpc_delivery" in text]
        texts.clear()
        assert history.unfinished("nobody") == []
    finally:
        for engine in engines:
            sa.event.remove(engine, "before_cursor_execute", note)
    assert [str(record.id) for record in records] == ["orders.2.1"]
    assert len(of_deliveries) == 1
    assert len([text for text in texts if "tpc_transaction" in text]) == 1


def test_only_what_is_listed_is_read_in_full(history, monkeypatch):
    """Of each application as many rows come as fit; most of them are not shown."""
    full: list[str] = []
    summary = reader._summary

    def note(facts: Any, row: Any) -> TransactionSummary:
        full.append(row.id)
        return summary(facts, row)

    monkeypatch.setattr(reader, "_summary", note)
    listed = history.transactions(TransactionFilter(limit=1))
    assert ids(listed) == full
    assert len(full) == 1


def test_what_is_signed_is_in_the_audit(log, time):
    """Each deed about one transaction, oldest first, and none about another."""
    id_ = begin(log, 0)
    log.sign("deliver", id_, who="ada", why="again", before="x", after="x")
    time.time += 1
    log.sign("resolve", id_, who="bob", why="by hand", before=None, after="aborted")
    other = TransactionId("orders", 0, 2)
    log.sign("resolve", other, who="eve", why="other", before=None, after="y")
    found = log.audit(id_)
    assert [(one.who, one.what, one.after) for one in found] == [
        ("ada", f"deliver {id_}", "x"),
        ("bob", f"resolve {id_}", "aborted"),
    ]
    assert found[1].at == START + 1
    log.initialise("bookings", 3)
    newest = log.audits(None, math.inf, 2)
    assert {one.who for one in newest} == {"bob", "eve"}
    assert log.audits("orders", START + 1, 9) == found[:1]
    assert log.audits("order", math.inf, 9) == []


def test_what_forget_would_drop_is_counted(log):
    """As `forget` then does it: nothing that is unfinished, not the newest batch."""
    for batch in range(4):
        id_ = begin(log, batch)
        decide(log, id_, Decision.ABORT)
        for name in "ab":
            log.acknowledge(id_, name)
        log.finish(id_)
    begin(log, 4)
    later = START + 10
    assert log.forgettable("orders", START) == (0, None)
    assert log.forgettable("orders", later) == (4, 3)
    assert log.forget("orders", finished_before=later, limit=100) == 4
    assert log.forgotten_by_application() == {"orders": 3}
    assert log.forgettable("orders", later) == (0, None)


def test_the_condition_of_a_log(log):
    """Where it is, its schema, and what keeps a commit through a crash."""
    found = log.condition()
    assert found.version == 1
    durable = {
        "sqlite": {"journal_mode": "wal", "synchronous": "full"},
        "postgresql": {
            "fsync": "on",
            "full_page_writes": "on",
            "synchronous_commit": "on",
        },
    }
    kind = found.shown.partition(":")[0].partition("+")[0]
    assert found.durability == durable[kind]


def test_a_driver_is_there_until_it_says_how_it_ended(log, time):
    """By the log's clock; the error is that of the run which failed."""
    begun = log.clock()
    log.report_presence("orders", "r1", host="host-3", process=7)
    time.time += 10
    log.report_presence("orders", "r1", host="host-3", process=7)
    log.report_presence("totals", "t1", host="host-4", process=8)
    log.report_end("totals", "t1", "a column is missing")
    runs, failed = log.presences()
    assert (runs.application, runs.run, runs.host, runs.process) == (
        *("orders", "r1"),
        *("host-3", 7),
    )
    assert begun <= runs.since <= runs.seen <= log.clock()
    assert (runs.ended, runs.failed) == (None, False)
    assert (failed.failed, failed.error) == (True, "a column is missing")
    log.report_end("orders", "r1")
    stopped = log.presences()[0]
    assert stopped.ended is not None
    assert not stopped.failed


def test_a_run_that_is_seen_again_has_not_ended(log):
    """An error of one batch may have been caught."""
    log.report_presence("orders", "r1", host="h", process=7)
    log.report_end("orders", "r1", "the disk is full")
    log.report_presence("orders", "r1", host="h", process=7)
    (presence,) = log.presences()
    assert (presence.ended, presence.error) == (None, None)


def test_the_last_runs_of_each_application_are_kept(log, time):
    """The newest is the last one; those of others stay."""
    log.report_presence("totals", "t", host="h", process=7)
    for number in range(8):
        time.time += 1
        log.report_presence("orders", f"r{number}", host="h", process=7)
    runs = [presence.run for presence in log.presences()]
    assert runs == ["r3", "r4", "r5", "r6", "r7", "t"]


def test_an_application_that_is_retired_has_ended_well(log):
    """Who did it, and why, is on record; a run of it that comes later is seen."""
    log.report_presence("orders", "r1", host="h", process=7)
    log.report_end("orders", "r1", "the disk is full")
    log.report_presence("totals", "t1", host="h", process=8)
    log.report_presence("totals", "t2", host="h", process=9)
    for name in ("orders", "totals"):
        log.retire(name, who="ada", why="moved")
    presences = log.presences()
    assert [(p.failed, p.ended is None) for p in presences] == [(False, False)] * 3
    signed = log.audits("orders", log.clock() + 1, 10)
    assert [(entry.what, entry.who) for entry in signed] == [("retire orders", "ada")]
    log.report_presence("orders", "r2", host="h", process=7)
    assert [p.ended is None for p in log.presences()] == [False, True, False, False]
