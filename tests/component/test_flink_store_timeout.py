"""A sink whose store drops what was prepared for too long. Real coordinator and log."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import pytest
from support.own_sink import Sink, World
from support.texts import texts

from tracing_2pc.core.errors import (
    CommitPendingError,
    ContractError,
    HeuristicError,
    ParticipantRefusedError,
)
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.core.states import TransactionState
from tracing_2pc.protocol.recovery import Recovery
from tracing_2pc.sinks.base import participants_of
from tracing_2pc.store import open_log

TEXTS = texts("sinks")

FIRST = TransactionId("orders", 0, 1)
DAY = 86_400.0


class Limited(Sink):
    """Its store keeps what is prepared for a day."""

    store_timeout = DAY
    store_timeout_warning = 0.5


class GivingUp(Limited):
    """And its author has decided what happens then."""

    give_up_after_store_timeout = True


class Aged(World):
    """What begins has begun so many seconds ago. Time stands still."""

    time = 1_000_000_000.0
    age = 0.0


@pytest.fixture
def world(tmp_path, monkeypatch) -> Iterator[Aged]:
    def now() -> float:
        return made.time - made.age

    monkeypatch.setattr(SystemClock, "now", lambda _: made.time)
    log = open_log(f"sqlite:///{tmp_path}/log.db", now=now)
    with contextlib.closing(log):
        made = Aged(log)
        made.kind = Limited
        yield made


def warnings(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [text for text in caplog.messages if text.startswith("prepared for long")]


LATE = (
    "prepared for long: transaction=orders.0.1 participant=partner elapsed=50000s "
    "store_timeout=86400s"
)


def test_a_late_commit_is_warned_of(world, caplog):
    """One line with transaction, elapsed time and limit; a commit in time is silent."""
    run = world.start()
    run.batch(0, [1])
    assert warnings(caplog) == []
    world.age = 50_000
    run.batch(1, [2])
    assert warnings(caplog) == [LATE.replace("orders.0", "orders.1")]
    assert world.partner.rows == [1, 2]


def test_a_late_recovery_is_warned_of(world, caplog):
    """By the start that comes too late for comfort."""
    world.age = 50_000
    world.start().killed_after_decision(0, [1])
    world.age = 0
    world.start().batch(0)
    assert warnings(caplog) == [LATE]
    assert world.partner.rows == [1]


def test_without_attributes_nothing_is_warned_of(world, caplog):
    """The limit alone changes nothing, and neither does its absence."""

    class Quiet(Sink):
        store_timeout = DAY

    world.age = 2 * DAY
    for batch, kind in enumerate((Sink, Quiet)):
        world.kind = kind
        world.start().batch(batch, [1])
    assert warnings(caplog) == []


def test_what_failed_after_the_limit_is_given_up_on_record(world, caplog):
    """The query goes on; log, audit and an error line say what may be lost, and why."""
    lost(world)
    run = world.start()
    assert run.batch(0) is False
    assert world.state("orders.0.1") is TransactionState.CONCLUDED
    record = world.log.read(FIRST)
    assert record is not None
    assert record.abandoned == ("partner",)
    (entry,) = world.log.audit(FIRST)
    assert (entry.who, entry.what) == ("sink partner", "give up orders.0.1")
    assert "KeyError: 'orders.0.1.0.0'" in entry.why
    assert TEXTS["age at the end"].format(age=86460) in entry.why
    errors = [r.getMessage() for r in caplog.records if r.levelname == "ERROR"]
    line = "given up, data may be lost: transaction=orders.0.1 participant=partner: "
    assert any(text.startswith(line) for text in errors)
    world.partner.raises.clear()
    run.batch(1, [2])
    assert world.partner.rows == [2]
    assert world.log.unfinished("orders") == []


def lost(world: Aged) -> None:
    """Leave a decided commit that the store has dropped."""
    world.kind = GivingUp
    world.age = DAY + 60
    world.start().killed_after_decision(0, [1])
    world.age = 0
    world.partner.raises["recover_and_commit"] = KeyError("orders.0.1.0.0")


def test_its_trace_ends_as_concluded(world, exported):
    """Whoever searches for outcomes that are neither finds it."""
    lost(world)
    world.start().batch(0)
    (finish,) = [span for span in exported() if span.name == "tpc.finish"]
    assert finish.attributes["tpc.outcome"] == "concluded"


def test_a_sweep_says_what_was_concluded(world):
    """And not that it is committed."""
    lost(world)
    coordinator = world.start().coordinator
    recovery = Recovery(world.log, coordinator.delivery, coordinator.tracing)
    (result,) = recovery.sweep("orders")
    assert (result.done, result.remark) == (True, "concluded without partner")


@pytest.mark.parametrize(
    ("kind", "age"), [(GivingUp, 0), (GivingUp, DAY - 60), (Limited, 30 * DAY)]
)
def test_what_the_sink_does_not_give_up_is_tried_again(world, kind, age):
    """What the store still has; or however old, if its author has not said so."""
    world.kind, world.age = kind, age
    world.start().killed_after_decision(0, [1])
    world.age = 0
    world.partner.raises["recover_and_commit"] = TimeoutError("away")
    with pytest.raises(CommitPendingError, match="away"):
        world.start().batch(0)
    assert world.state("orders.0.1") is TransactionState.COMMITTING
    world.partner.raises.clear()
    world.start().batch(0)
    assert world.partner.rows == [1]
    assert world.state("orders.0.1") is TransactionState.COMMITTED


def test_who_decides_gives_nothing_up(world):
    """A batch that took long is tried again by the next start, once at least."""
    world.kind = GivingUp
    world.age = 30 * DAY
    world.partner.raises["commit"] = TimeoutError("away")
    with pytest.raises(CommitPendingError, match="away"):
        world.start().batch(0, [1])
    assert world.state("orders.0.1") is TransactionState.COMMITTING
    world.start().batch(0)
    assert world.partner.rows == [1]


def test_a_replay_of_what_the_store_has_forgotten_is_skipped(world):
    """It was acknowledged once: a store that forgets does not stop the query."""
    world.kind = GivingUp
    world.age = DAY + 60
    world.start().batch(0, [1])
    world.partner.raises["recover_and_commit"] = KeyError("forgotten")
    assert world.start().batch(0) is False
    assert world.state("orders.0.1") is TransactionState.COMMITTED


def test_what_another_process_has_committed_meanwhile_is_not_given_up(world, caplog):
    """No line says that data may be lost, and the record says committed."""

    class Overtaken(GivingUp):
        def recover_and_commit(self, handle: Any) -> None:
            world.log.acknowledge(FIRST, "partner")
            world.log.finish(FIRST)
            raise OSError("gone")

    world.kind, world.age = GivingUp, 2 * DAY
    world.start().killed_after_decision(0, [1])
    world.kind, world.age = Overtaken, 0
    world.start().batch(1, [2])
    assert world.state("orders.0.1") is TransactionState.COMMITTED
    assert TEXTS["data may be lost"] not in caplog.text


def test_a_refusal_is_a_contradiction_after_the_limit_too(world):
    """What the sink says for good waits for a person, and is not given up."""
    world.kind, world.age = GivingUp, 2 * DAY
    world.start().killed_after_decision(0, [1])
    refusal = ParticipantRefusedError("it was never here")
    world.partner.raises["recover_and_commit"] = refusal
    with pytest.raises(HeuristicError):
        world.start().batch(1, [2])
    assert world.state("orders.0.1") is TransactionState.QUARANTINED


@pytest.mark.parametrize(
    ("attributes", "why"),
    [
        ({"store_timeout": "1 day"}, "store_timeout is no number"),
        ({"store_timeout": 0}, "store_timeout is no number"),
        ({"store_timeout_warning": 0.5}, "has no store_timeout"),
        ({"give_up_after_store_timeout": True}, "has no store_timeout"),
        ({"store_timeout": 1, "store_timeout_warning": 80}, "not from 0 to 1"),
        ({"store_timeout": 1, "give_up_after_store_timeout": 1}, "neither True nor"),
    ],
    ids=str,
)
def test_a_wrong_limit_is_refused_at_the_start(world, attributes, why):
    """In one line with the name of the sink; before anything is written."""
    kind = type("Wrong", (Sink,), attributes)
    with pytest.raises(ContractError, match=f"^Wrong.*{why}"):
        participants_of(kind(world.partner))
