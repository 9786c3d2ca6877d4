"""`@traced_sink` above PySpark's own `DataSourceStreamWriter`.

Its phases run in processes that share nothing but the commit messages, and Spark calls
nothing of ours when a batch begins. So the ids of a batch's root follow from the run of
the query and the number of the batch, which each task knows. The message takes the root
to the process that commits or aborts, and that process exports it. Where no process may
do so (the task failed, or its message can't carry anything), the task exports the root
itself: it may appear twice, never zero times.

These processes end without notice, so each call flushes at its end, in bounded time.
Nothing of PySpark is imported here: where it runs, it is there.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, NamedTuple

from opentelemetry import trace

from tracing_2pc.core.errors import ContractError
from tracing_2pc.core.model import Carrier
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.decorator import handles, phases
from tracing_2pc.tracing.decorator.phases import Method, Phase, arrow_rows
from tracing_2pc.tracing.propagation import storable_context
from tracing_2pc.tracing.sdk import lifecycle, roots

FLUSH_SECONDS: Final = 0.5
STARTED: Final = "tpc-started"
"""Key in a message's carrier: when its task began, in Unix nanoseconds. Only a root
that has to be exported has it."""
RUN: Final = "tpc-run"
"""Key in a message's carrier: the run of the query."""

_PICKLING: Final = ("__getstate__", "__reduce__", "__reduce_ex__")
_WRITE: Final = Phase("write")
logger = logging.getLogger(__name__)


def is_writer(kind: type) -> bool:
    """Whether a class has the three methods of PySpark's writers, and no sink's."""
    has = [hasattr(kind, name) for name in WRAPPERS]
    sinks = (
        "begin",
        "begin_transaction",
        "beginTransaction",
        "pre_commit",
        "preCommit",
    )
    return all(has) and not any(hasattr(kind, name) for name in sinks)


def _write(method: Method) -> Method:
    parameters = [*inspect.signature(method).parameters, "", ""]

    @functools.wraps(method)
    def write(*args: Any, **kwargs: Any) -> Any:
        writer, started = args[0], time.time_ns()
        if (tracer := phases.entered(_WRITE, writer)) is None:
            return method(*args, **kwargs)
        task = _task_ids()
        about = _batch_attributes(task.batch, task.run)
        attributes = {**_WRITE.attributes, **about}
        if task.branch is not None:
            attributes["tpc.branch"] = task.branch
        carrier = _task_carrier(writer, task, started)
        counted = functools.partial(_counted, method, parameters[1])
        is_passed_on = False
        try:
            message = phases.call(
                counted, _WRITE, tracer, carrier, attributes, args, kwargs
            )
            is_passed_on = _pass_on(message, carrier)
        finally:
            if not is_passed_on:  # no other process may export it
                about["tpc.root.reconstructed"] = True
                _export_root(writer, carrier, about)
            lifecycle.flush(FLUSH_SECONDS)
        return message

    return write


def _end(phase: Phase, method: Method) -> Method:
    names = tuple(inspect.signature(method).parameters)
    if len(names) < 3:
        raise ContractError(
            f"{method.__qualname__} takes no batch id. Of PySpark's writers those of "
            f"streams are traced, which have {phase.name}(messages, batchId); if this "
            'is a sink, name its phases, as in @traced_sink(begin="open")'
        )

    @functools.wraps(method)
    def end(*args: Any, **kwargs: Any) -> Any:
        given = {**kwargs, **dict(zip(names, args, strict=False))}
        messages, batch = given.get(names[1]), given.get(names[2])
        writer = args[0]
        if (tracer := phases.entered(phase, writer)) is None:
            return method(*args, **kwargs)
        listed = messages if isinstance(messages, list | tuple) else ()
        carriers = [*filter(None, map(handles.kept, listed))]
        carrier = carriers[0] if carriers else Carrier()
        about = _batch_attributes(batch, carrier.get(RUN))
        attributes = {**phase.attributes, **about}
        try:
            return phases.call(method, phase, tracer, carrier, attributes, args, kwargs)
        finally:
            # One root, unless Spark did not tell the tasks which run and batch it is.
            for root in _distinct_roots(carriers):
                _export_root(writer, root, about)
            lifecycle.flush(FLUSH_SECONDS)

    return end


WRAPPERS: Final[dict[str, Callable[[Method], Method]]] = {
    "write": _write,
    "commit": functools.partial(_end, Phase("commit")),
    "abort": functools.partial(_end, Phase("abort")),
}


def _pass_on(message: object, carrier: Carrier) -> bool:
    """Let a message carry the trace; True if the process that commits will know it.

    It does where its class leaves pickling to Python. No method of the message is
    called: one that pickles itself may hand its rows on, once.
    """
    if not carrier or not handles.keep_beside(message, carrier):
        return False
    kind = type(message)
    plain = all(getattr(kind, n, None) is getattr(object, n, None) for n in _PICKLING)
    return plain and kind not in copyreg.dispatch_table


def _counted(method: Method, iterator: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call write, and put into its span how many rows it has taken."""
    rows = [0]
    if len(args) > 1:
        writer, items, *rest = args
        args = (writer, _counting(items, rows), *rest)
    elif iterator in kwargs:
        kwargs[iterator] = _counting(kwargs[iterator], rows)
    try:
        return method(*args, **kwargs)
    finally:
        spans.set_attributes(trace.get_current_span(), {"tpc.rows": rows[0]})


def _counting(items: Any, rows: list[int]) -> Iterator[Any]:
    """Hand on rows, or batches of them, one by one as they are asked for."""
    for item in items:
        # A Row is a tuple, and may well have a column with this name.
        known = None if isinstance(item, tuple) else arrow_rows(item)
        rows[0] += 1 if known is None else known
        yield item


class TaskIds(NamedTuple):
    """What Spark tells of the task that runs here; None where it tells nothing."""

    branch: str | None = None
    batch: str | None = None
    run: str | None = None


def _task_ids() -> TaskIds:
    """Return branch, batch and run of the Spark task that runs here, where known."""
    try:
        kind = getattr(sys.modules.get("pyspark"), "TaskContext", None)
        if kind is None or (task := kind.get()) is None:
            return TaskIds()
        branch = f"{task.partitionId()}.{task.taskAttemptId()}"
        batch = task.getLocalProperty("streaming.sql.batchId")
        # Spark gives the jobs of a streaming query its run id as their group.
        run = None if batch is None else task.getLocalProperty("spark.jobGroup.id")
    except Exception:  # another Spark than those we know
        logger.debug("Spark does not tell which task this is", exc_info=True)
        return TaskIds()
    return TaskIds(branch, batch, run)


def _batch_attributes(batch: object, run: str | None) -> dict[str, spans.Value]:
    """Return the attributes that name a batch, as far as it is known."""
    attributes: dict[str, spans.Value] = {}
    if str(batch).removeprefix("-").isdecimal():
        attributes["tpc.batch"] = int(str(batch))
    if run is not None:
        attributes["tpc.run"] = run
    return attributes


def _task_carrier(writer: object, task: TaskIds, started: int) -> Carrier:
    """Return where the spans of a task belong; with `STARTED`, below a new root."""
    if not task.run and "traceparent" in (current := storable_context()):
        return current
    try:
        name = _root_name(writer)
        carrier = roots.reserve(name, _root_ids(name, task) if task.run else None)
    except Exception:  # a foreign sampler or id generator raised
        logger.debug("no root could be reserved", exc_info=True)
        return Carrier()
    run = {RUN: task.run} if task.run else {}
    return Carrier({**carrier, **run, STARTED: str(started)} if carrier else {})


def _export_root(
    writer: object, carrier: Carrier, attributes: dict[str, spans.Value]
) -> None:
    """Export the root that a task's carrier is below, if it is one of ours."""
    try:
        if STARTED in carrier:
            times = int(carrier[STARTED]), time.time_ns()
            roots.export(_root_name(writer), carrier, attributes, (), times)
    except Exception:  # a foreign processor raised
        logger.debug("a root could not be exported", exc_info=True)


def _distinct_roots(carriers: Iterable[Carrier]) -> Iterable[Carrier]:
    """Return the roots of some tasks, each as the first of its tasks has it."""
    last_first = sorted(carriers, key=lambda c: str(c.get(STARTED)), reverse=True)
    return {str(carrier.get("traceparent")): carrier for carrier in last_first}.values()


def _root_name(writer: object) -> str:
    return f"{type(writer).__name__}.batch"


def _root_ids(name: str, task: TaskIds) -> tuple[int, int]:
    return roots.derive_ids(f"{name}\n{task.run}\n{task.batch}")
