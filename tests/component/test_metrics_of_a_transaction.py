"""What transactions are counted as: by whoever made the decision, once.

Driver, recovery and services run in this process: one `measured` sees all of them.
"""

from __future__ import annotations

import re

import pytest
from opentelemetry import metrics
from opentelemetry.sdk.metrics import MeterProvider
from opentelemetry.sdk.metrics.export import InMemoryMetricReader
from support.deadline import by_hand
from support.protocol import World
from support.waiting import until

from bench.driver import apply, coordinator, tasks
from bench.records import numbers
from tracing_2pc.core import names
from tracing_2pc.core.errors import (
    AbortedError,
    HeuristicError,
    ParticipantRefusedError,
)
from tracing_2pc.core.model import BranchId, Receipt, TransactionRecord
from tracing_2pc.core.states import Refusal, Vote
from tracing_2pc.protocol.recovery import Recovery
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

COMMITS = 'tpc_transactions_total{outcome="commit"}'
ABORTS = 'tpc_transactions_total{outcome="abort"}'


def recover(world: World) -> None:
    list(Recovery(world.log, world.delivery(), OpenTelemetryTracing()).sweep())


def decisions(found: dict[str, float]) -> dict[str, float]:
    """Return the counts of decisions, by what stands between the quotes."""
    names = ("tpc_transactions_total{", "tpc_aborts_total{")
    return {k.split('"')[1]: v for k, v in found.items() if k.startswith(names)}


def counts(found: dict[str, float]) -> dict[str, float]:
    """Return what does not depend on the clock; gauges are a matter of resources."""
    timeless = {k: v for k, v in found.items() if "_sum" not in k}
    fed = (
        "tpc_in_doubt_b",
        "tpc_uploads",
        "tpc_oldest",
        "tpc_propagation",
        "tpc_telemetry",
    )
    return {k: v for k, v in timeless.items() if not k.startswith(fed)}


def phase(name: str, participant: str, result: str = "ok") -> str:
    labels = f'phase="{name}",participant="{participant}",result="{result}"'
    return f"tpc_phase_duration_seconds_count{{{labels}}}"


def attempts(participant: str, result: str) -> str:
    labels = f'participant="{participant}",result="{result}"'
    return f"tpc_commit_attempts_total{{{labels}}}"


def test_a_committed_transaction(measured, log, sink):
    """Two partitions, two services: each request once on each side."""
    driver = coordinator(log, sink.participants)
    apply(driver, 0, tasks(sink, [numbers(3), numbers(2)]))
    assert counts(measured()) == {
        COMMITS: 1,
        attempts("ledger", "ok"): 1,
        attempts("notifier", "ok"): 1,
        phase("commit", "ledger"): 1,
        phase("commit", "notifier"): 1,
        phase("prepare", "participant"): 4,
        phase("commit", "participant"): 2,
        "tpc_decision_log_write_seconds_count": 1,
        "tpc_in_doubt_duration_seconds_count": 2,
    }


def test_a_measured_time_leads_to_its_trace(measured, exported, log, sink, monkeypatch):
    """Each histogram has exemplars of the transaction's trace, on both sides."""
    reader = InMemoryMetricReader()
    mine = MeterProvider([reader], shutdown_on_exit=False)
    monkeypatch.setattr(metrics, "get_meter_provider", lambda: mine)
    apply(coordinator(log, sink.participants), 0, tasks(sink, [numbers(3)]))
    found = {
        (metric.name, *dict(point.attributes or {}).values()): {
            exemplar.trace_id for exemplar in point.exemplars
        }
        for of_resource in reader.get_metrics_data().resource_metrics
        for of_scope in of_resource.scope_metrics
        for metric in of_scope.metrics
        if names.METRICS[metric.name].kind == "histogram"
        for point in metric.data.data_points
    }
    (root,) = [s for s in exported() if s.name == names.TRANSACTION]
    assert {name for name, *_ in found} == {
        name for name, metric in names.METRICS.items() if metric.kind == "histogram"
    }
    assert found == {key: {root.context.trace_id} for key in found}


def test_an_aborted_transaction(measured, log, sink):
    """A task fails after both have voted: no attempt to commit."""

    def fails(record: TransactionRecord) -> list[Receipt]:
        tasks(sink, [numbers(1)])(record)
        raise RuntimeError("a task failed")

    with pytest.raises(RuntimeError):
        apply(coordinator(log, sink.participants), 0, fails)
    assert counts(measured()) == {
        ABORTS: 1,
        'tpc_aborts_total{cause="error"}': 1,
        phase("abort", "ledger"): 1,
        phase("abort", "notifier"): 1,
        phase("prepare", "participant"): 2,
        phase("abort", "participant"): 2,
        "tpc_decision_log_write_seconds_count": 1,
        "tpc_in_doubt_duration_seconds_count": 2,
    }


def test_a_replay_is_not_counted_again(measured, world):
    """Nor is a delivery by whoever goes on with a decision."""
    world.leave_committing()
    asked = len(world.b.heard)
    recover(world)
    world.run_batch(0)
    found = measured()
    assert decisions(found) == {"commit": 1}
    assert found[attempts("a", "ok")] == 1
    assert found[attempts("b", "unavailable")] == asked
    assert found[attempts("b", "ok")] == 1


def test_who_votes_abort_is_the_cause(measured, world):
    """Raised as it is, or handed on by a task."""
    no = ParticipantRefusedError("a votes abort (409)")
    vote = Receipt(BranchId(0, 1), "a", 0, "", Vote.ABORT, reason=str(no))

    def refused(record: TransactionRecord) -> list[Receipt]:
        raise no

    for batch, write in enumerate((refused, lambda record: [vote])):
        with pytest.raises(ParticipantRefusedError, match=re.escape(str(no))):
            world.run_batch(batch, write=write)
    assert decisions(measured()) == {"abort": 2, "vote": 2}


def test_out_of_time_is_counted_by_its_driver_once(measured, world, monkeypatch):
    """By the clock that runs out, and not again when the driver hears of it."""
    over = by_hand(monkeypatch)

    def slow(record: TransactionRecord) -> list[Receipt]:
        over.set()
        until(lambda: world.cancelled)
        return list(world.write(record))

    with pytest.raises(AbortedError):
        world.run_batch(0, write=slow)
    assert decisions(measured()) == {"abort": 1, "timeout": 1}


def test_a_tasks_own_timeout_is_an_error(measured, world):
    def late(record: TransactionRecord) -> list[Receipt]:
        raise TimeoutError

    with pytest.raises(TimeoutError):
        world.run_batch(0, write=late)
    assert decisions(measured()) == {"abort": 1, "error": 1}


def test_who_takes_over_counts_the_attempt_before(measured, world):
    """The driver that was replaced finds it aborted, and does not count it."""

    def replaced(record: TransactionRecord) -> list[Receipt]:
        receipts = list(world.write(record))
        world.run_batch(0, run="run-2")
        return receipts

    with pytest.raises(AbortedError):
        world.run_batch(0, write=replaced)
    assert decisions(measured()) == {"commit": 1, "abort": 1, "superseded": 1}


def test_recovery_counts_what_it_expires(measured, world):
    """Once, however often it has to be delivered."""
    world.leave_active()
    world.clock.time += 901
    world.a.silent = 1
    recover(world)
    recover(world)
    found = measured()
    assert decisions(found) == {"abort": 1, "recovery": 1}
    assert found[phase("abort", "a", "unavailable")] == 1
    assert found[phase("abort", "a")] == 1


def test_of_two_sweeps_one_counts(measured, world, monkeypatch):
    """Both have seen it undecided; the log makes the first one's decision stand."""
    world.leave_active()
    world.clock.time += 901
    seen = world.log.unfinished("orders")
    recover(world)
    monkeypatch.setattr(world.log, "unfinished", lambda _: seen)
    monkeypatch.setattr(world.log, "unfinished_applications", lambda: ["orders"])
    recover(world)
    assert decisions(measured()) == {"abort": 1, "recovery": 1}


def test_a_refusal_is_an_answer(measured, world):
    """Which contradicts the decision; it is not counted as silence."""
    world.b.refusal = (Refusal.CONFLICT, "aborted")
    with pytest.raises(HeuristicError):
        world.run_batch(0)
    found = measured()
    assert found[attempts("b", "refused")] == 1
    assert found[phase("commit", "b", "refused")] == 1
    assert decisions(found) == {"commit": 1}
