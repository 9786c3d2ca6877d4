"""A sweep by somebody who is not the driver, and when it is left alone."""

from __future__ import annotations

import contextlib
import dataclasses
import sqlite3
import time
from typing import Any

import pytest
from support.protocol import FakeClock, World
from support.texts import texts
from support.tracing import span_tree
from support.waiting import AT_LAST, AT_ONCE

from tracing_2pc.core.errors import DecisionLogError, DecisionUnknownError
from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.ports import DecisionLog, Opening
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.inspection.view import view_transaction
from tracing_2pc.operations.recover import recover
from tracing_2pc.protocol.recovery import Recovery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.store import open_log
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

TEXTS = texts("component")

T = TransactionId("orders", 0, 1)
LIMIT = Settings().transaction_timeout
AGES = 10.0**9


def recovery(world: World, *names: str) -> Recovery:
    return Recovery(world.log, world.delivery(*names), OpenTelemetryTracing())


def begin(log: DecisionLog, application: str) -> TransactionId:
    about = {"run": "r", "query": None, "participants": ["a"], "carrier": {}}
    return log.begin(application, 0, Opening(**about, timeout=LIMIT)).record.id


def decide_abort(log: DecisionLog, application: str) -> None:
    log.decide(begin(log, application), Decision.ABORT)


def test_what_is_decided_is_delivered(world):
    """Without any driver: the missing commit goes out, and the transaction ends."""
    world.leave_committing()
    (item,) = recovery(world).sweep()
    assert (item.done, item.remark) == (True, "committed")
    assert (world.in_doubt(), world.visible()) == (0, 4)
    assert list(recovery(world).sweep()) == []


def test_a_current_attempt_is_left_to_its_driver(world):
    """Undecided and in time: nobody but its driver may want an abort (rule 8)."""
    world.leave_active()
    world.clock.time += 899
    (item,) = recovery(world).sweep()
    assert (item.done, item.remark) == (False, TEXTS["left to its driver"])
    assert world.in_doubt() == 4


def test_an_attempt_out_of_time_is_aborted_through_the_log(world):
    """Past the transaction timeout abort is decided, written, and sent."""
    world.leave_active()
    world.clock.time += 901
    (item,) = recovery(world).sweep()
    assert (item.done, item.remark) == (True, "aborted")
    assert world.in_doubt() == 0
    assert str(world.log.read(T).state) == "aborted"


def test_without_a_timeout_nothing_is_aborted(world):
    """A timeout of 0 means none: an active attempt waits for its driver for ever."""
    world.settings = dataclasses.replace(world.settings, transaction_timeout=0)
    world.leave_active()
    world.clock.time += 10**9
    assert [i.done for i in recovery(world).sweep()] == [False]
    assert world.in_doubt() == 4


def test_the_timeout_on_record_counts_and_not_the_readers(tmp_path):
    """Who recovers with a shorter timeout aborts no attempt of a job with a longer one.

    What the job was given goes on record when it begins.
    """
    clock = FakeClock()
    with contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db")) as log:
        world = World(log, clock, transaction_timeout=AGES)
        world.leave_active()
        own = Settings(request_timeout=AT_ONCE, transaction_timeout=AT_ONCE + AT_ONCE)
        time.sleep(own.transaction_timeout)
        assert [item.done for item in recover(log, own, None)] == [False]
        assert log.unfinished()[0].state is TransactionState.ACTIVE
        steps = view_transaction(log, {}, T, own).next
        assert [step.at for step in steps if step.at is not None] == [
            pytest.approx(time.time() + AGES, abs=AT_LAST)
        ]


def test_who_does_not_answer_is_named_and_asked_the_next_time(world):
    """One try per sweep; the transaction stays."""
    world.leave_committing()
    world.b.silent = 1
    assert [i.remark for i in recovery(world).sweep()] == ["not acknowledged: b (lost)"]
    assert [i.remark for i in recovery(world).sweep()] == ["committed"]


def test_one_that_cannot_be_finished_does_not_stop_the_others(world):
    """A participant without an address: said, and the sweep goes on."""
    world.leave_committing()
    begin(world.log, "other")
    world.clock.time += 901
    swept = {i.record.id.application: i for i in recovery(world, "a").sweep()}
    assert TEXTS["no address"] in swept["orders"].remark
    assert swept["other"].done


def test_quarantined_is_left_to_a_person(world):
    """Nothing automatic touches it again."""
    world.leave_committing()
    world.log.quarantine(T, "for a test")
    heard = list(world.b.heard)
    (item,) = recovery(world).sweep()
    assert (item.done, item.remark) == (False, "quarantined: resolve it")
    assert world.b.heard == heard


def test_a_log_that_fails_half_way_means_leave_alone(world):
    """One application could be read, the other could not: nothing is sent (rule 9)."""
    for application in ("apart", "orders"):
        decide_abort(world.log, application)
    real = world.log.unfinished

    def fails(application: str | None = None) -> list[TransactionRecord]:
        if application == "orders":
            raise DecisionLogError("down")
        return real(application)

    world.log.unfinished = fails  # type: ignore[method-assign]
    with pytest.raises(DecisionLogError):
        list(recovery(world).sweep())
    assert world.a.heard == []


def test_a_record_that_is_refused_stops_only_its_application(world, tmp_path):
    """The others are finished; then the refused ones are named, for a person."""
    path = tmp_path / "decisions.db"
    with contextlib.closing(open_log(f"sqlite:///{path}")) as log:
        world.log = log
        world.leave_committing()
        for application in ("apart", "zebra"):
            decide_abort(log, application)
        edit = "UPDATE tpc_transaction SET run = 'x' WHERE application <> 'orders'"
        with contextlib.closing(sqlite3.connect(path)) as database:
            database.execute(edit)
            database.commit()
        sweep = recovery(world).sweep()
        assert [next(sweep).remark] == ["committed"]
        with pytest.raises(DecisionLogError, match=r"apart\.0\.1.*zebra\.0\.1") as left:
            next(sweep)
        assert left.value.transaction_id == "apart.0.1"
        assert (world.in_doubt(), world.visible()) == (0, 4)
        with pytest.raises(DecisionLogError, match=r"zebra\.0\.1"):
            list(recovery(world).sweep("zebra"))


@pytest.mark.parametrize("error", [DecisionLogError, DecisionUnknownError])
def test_an_abort_that_the_log_did_not_take_is_left_for_the_next_sweep(world, error):
    """Nothing is sent without the decision, and the others are not held up."""
    world.leave_active()
    begin(world.log, "other")
    world.clock.time += 901
    heard, real = list(world.a.heard), world.log.expire

    def refuse(transaction: TransactionId) -> Any:
        if transaction.application == "orders":
            raise error("no answer of the log")
        return real(transaction)

    world.log.expire = refuse  # type: ignore[method-assign]
    swept = {i.record.id.application: i for i in recovery(world).sweep()}
    assert (swept["orders"].done, swept["other"].done) == (False, True)
    assert swept["orders"].remark == "no answer of the log"
    assert world.a.heard == [*heard, "abort other.0.1"]


def test_what_a_sweep_delivers_is_in_the_transactions_trace(world, exported):
    """The sweep is a trace of its own; the delivery belongs to the transaction's."""
    world.leave_committing()
    list(recovery(world).sweep())
    spans = exported()
    root = next(s for s in spans if s.name == "tpc.transaction")
    mine = [s for s in spans if s.context.trace_id == root.context.trace_id]
    assert span_tree({s.context.span_id: s for s in mine}.values()) == [
        "tpc.transaction",
        "  tpc.begin",
        "  tpc.finish",
        "  tpc.decide",
        *["  tpc.deliver"] * 4,
    ]
    (sweep,) = [s for s in spans if s.name == "tpc.recovery"]
    assert [link.context.trace_id for link in sweep.links] == [root.context.trace_id]


def test_waits_double_up_to_the_cap_with_full_jitter():
    """Seconds: each wait is drawn from 0 to a limit that doubles, and is capped."""
    clock = FakeClock()
    limits: list[float] = []

    def draw(low: float, high: float) -> float:
        assert low == 0.0
        limits.append(high)
        return 0.0

    tries = RetryPolicy(clock, base=1.0, cap=60.0, uniform=draw).tries()
    assert [next(tries) for _ in range(9)] == list(range(1, 10))
    assert limits == [1, 2, 4, 8, 16, 32, 60, 60]


def test_the_log_says_when_the_next_try_is_due(world, monkeypatch):
    """At the latest, while somebody tries again; of the last try nothing is said."""
    waits: list[float | None] = []

    def postpone(_id: object, _by: str, _why: str, retry_at: float | None) -> None:
        waits.append(None if retry_at is None else retry_at - world.clock.now())

    monkeypatch.setattr(world.log, "postpone", postpone)
    world.leave_committing()
    assert waits == [1.0, 2.0, None]
    world.b.silent = 1
    assert [item.done for item in recovery(world).sweep()] == [False]
    assert waits[3:] == [None]
