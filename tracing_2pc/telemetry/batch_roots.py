"""The root of a batch of one of PySpark's writers, which several processes share.

Its ids follow from the run of the query and the number of the batch, which each task
knows: all of them find the same trace without being told. Whoever exports it has the
carrier of a task. Nothing here raises.
"""

from __future__ import annotations

import hashlib
import logging
import sys
import time
from collections.abc import Iterable
from typing import Final, NamedTuple

from tracing_2pc.model import Carrier
from tracing_2pc.telemetry import roots, spans
from tracing_2pc.telemetry.propagation import at_rest

STARTED: Final = "tpc-started"
"""Key in a message's carrier: when its task began, in Unix nanoseconds. Only a root
that somebody must export has it."""
RUN: Final = "tpc-run"
"""Key in a message's carrier: the run of the query."""

_log: Final = logging.getLogger(__name__)


class Task(NamedTuple):
    """What Spark says of the task that this is; None where it says nothing."""

    branch: str | None = None
    batch: str | None = None
    run: str | None = None


def this_task() -> Task:
    """Return branch, batch and run of the Spark task that this is, where known."""
    try:
        kind = getattr(sys.modules.get("pyspark"), "TaskContext", None)
        if kind is None or (task := kind.get()) is None:
            return Task()
        branch = f"{task.partitionId()}.{task.taskAttemptId()}"
        batch = task.getLocalProperty("streaming.sql.batchId")
        # Spark gives the jobs of a streaming query its run id as their group.
        run = None if batch is None else task.getLocalProperty("spark.jobGroup.id")
    except Exception:  # noqa: BLE001 - another Spark than those we know
        _log.debug("the task does not say what it is", exc_info=True)
        return Task()
    return Task(branch, batch, run)


def known(batch: object, run: str | None) -> dict[str, spans.Value]:
    """Return the attributes that name a batch, as far as it is known."""
    attributes: dict[str, spans.Value] = {}
    if str(batch).removeprefix("-").isdecimal():
        attributes["tpc.batch"] = int(str(batch))
    if run is not None:
        attributes["tpc.run"] = run
    return attributes


def carrier_of(writer: object, task: Task, started: int) -> Carrier:
    """Return where the spans of a task belong; with `STARTED`, below a new root."""
    if not task.run and "traceparent" in (current := at_rest()):
        return current
    try:
        name = _name(writer)
        carrier = roots.reserve(name, _ids(name, task) if task.run else None)
    except Exception:  # noqa: BLE001 - a foreign sampler or id generator raised
        _log.debug("no root could be reserved", exc_info=True)
        return {}
    if carrier and task.run:
        carrier[RUN] = task.run
    return {**carrier, STARTED: str(started)} if carrier else {}


def export(
    writer: object, carrier: Carrier, attributes: dict[str, spans.Value]
) -> None:
    """Export the root that a task's carrier is below, if it is one of ours."""
    try:
        if STARTED in carrier:
            times = int(carrier[STARTED]), time.time_ns()
            roots.export(_name(writer), carrier, attributes, (), times)
    except Exception:  # noqa: BLE001 - a foreign processor raised
        _log.debug("a root could not be exported", exc_info=True)


def each_once(carriers: Iterable[Carrier]) -> list[Carrier]:
    """Return the roots of some tasks, each as the first of its tasks has it."""
    found: dict[str, Carrier] = {}
    for carrier in sorted(carriers, key=lambda c: str(c.get(STARTED))):
        found.setdefault(str(carrier.get("traceparent")), carrier)
    return list(found.values())


def _name(writer: object) -> str:
    return f"{type(writer).__name__}.batch"


def _ids(name: str, task: Task) -> tuple[int, int]:
    about = f"{name}\n{task.run}\n{task.batch}"
    digest = hashlib.sha256(about.encode()).digest()
    return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")
