"""`@traced_sink` above PySpark's own `DataSourceStreamWriter`.

Its phases run in processes that share nothing but the commit messages, and Spark calls
nobody when a batch begins. So the ids of a batch's root follow from its run and number,
which each task knows: all its tasks find the same trace without being told. The message
takes them to the process that commits or aborts, and that one exports the root. Where
nobody may come to do so (the task failed, or its message can't carry anything), the
task exports the root itself: it may appear twice, never zero times.

These processes leave without a word, so each call flushes at its end, in bounded time.
Nothing of PySpark is imported here: where it runs, it is there.
"""

from __future__ import annotations

import copyreg
import functools
import hashlib
import inspect
import logging
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final

from opentelemetry import trace

from tracing_2pc.errors import ContractError
from tracing_2pc.model import Carrier
from tracing_2pc.telemetry import handles, lifecycle, phases, roots, spans
from tracing_2pc.telemetry.phases import Method, Phase

FLUSH_SECONDS: Final = 0.5
STARTED: Final = "tpc-started"
"""Key in a message's carrier: when its task began, in Unix nanoseconds. Only a root
that somebody must export has it."""
RUN: Final = "tpc-run"
"""Key in a message's carrier: the run of the query."""

_PICKLING: Final = ("__getstate__", "__reduce__", "__reduce_ex__")
_WRITE: Final = phases.phase("write")
_log: Final = logging.getLogger(__name__)


def is_writer(kind: type) -> bool:
    """Whether a class has the three methods of PySpark's writers, and no sink's."""
    has = [hasattr(kind, name) for name in ("write", "commit", "abort")]
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
    def write(*arguments: Any, **named: Any) -> Any:
        return traced_write(method, parameters[1], arguments, named)

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
    def end(*arguments: Any, **named: Any) -> Any:
        given = {**named, **dict(zip(names, arguments, strict=False))}
        told = given.get(names[1]), given.get(names[2])
        return traced_end(method, phase, told, arguments, named)

    return end


WRAPPERS: Final[dict[str, Callable[[Method], Method]]] = {
    "write": _write,
    "commit": functools.partial(_end, phases.phase("commit")),
    "abort": functools.partial(_end, phases.phase("abort")),
}


def traced_write(
    method: Method,
    iterator: str,
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    """Write one partition in a span with its rows; the message takes its trace on."""
    writer = arguments[0]
    if not phases.is_on(writer) or phases.is_inside(_WRITE, writer):
        return method(*arguments, **named)
    task = _Task(writer)
    counted = functools.partial(_counted, method, iterator)
    try:
        message = phases.call(
            counted, _WRITE, task.carrier, task.attributes, arguments, named
        )
        if not task.put_into(message):
            task.export_root()
    except BaseException:
        task.export_root()
        raise
    finally:
        lifecycle.flush(FLUSH_SECONDS)
    return message


def traced_end(
    method: Method,
    phase: Phase,
    told: tuple[Any, Any],
    arguments: tuple[Any, ...],
    named: Mapping[str, Any],
) -> Any:
    """Commit or abort in a span of the batch's trace, and export its root."""
    writer, (messages, batch) = arguments[0], told
    if not phases.is_on(writer) or phases.is_inside(phase, writer):
        return method(*arguments, **named)
    carriers = [c for c in map(handles.kept, messages or ()) if c]
    carrier: Carrier = carriers[0] if carriers else {}
    known = _known(batch, carrier.get(RUN))
    try:
        attributes = {**phase.attributes, **known}
        return phases.call(method, phase, carrier, attributes, arguments, named)
    finally:
        # One, unless Spark did not tell the tasks which run and batch they are of.
        for root in _roots(carriers):
            _export_root(writer, root, known, int(root[STARTED]))
        lifecycle.flush(FLUSH_SECONDS)


def _roots(carriers: Iterable[Carrier]) -> Iterable[Carrier]:
    """Return the roots that somebody must export, each as the first task has it."""
    found: dict[str, Carrier] = {}
    for carrier in sorted(
        (c for c in carriers if STARTED in c), key=lambda c: int(c[STARTED])
    ):
        found.setdefault(carrier["traceparent"], carrier)
    return found.values()


class _Task:
    """What a task knows of its batch. The root's ids follow from run and batch."""

    def __init__(self, writer: object) -> None:
        self.writer = writer
        self.started = time.time_ns()
        branch, batch, run = _where()
        self.known = _known(batch, run)
        self.attributes = {**_WRITE.attributes, **self.known}
        if branch is not None:
            self.attributes["tpc.branch"] = branch
        self.carrier = {} if run else spans.current_carrier()
        if not self.carrier:
            self.carrier = self._root(batch, run)

    def _root(self, batch: str | None, run: str | None) -> Carrier:
        carrier = _reserve(_root_name(self.writer), batch, run)
        if carrier and run:
            carrier[RUN] = run
        return {**carrier, STARTED: str(self.started)} if carrier else {}

    def put_into(self, message: object) -> bool:
        """Let the message carry the trace; False if that leaves the root to us."""
        if self.carrier:
            handles.keep_beside(message, self.carrier)
        return STARTED not in self.carrier or _survives(message)

    def export_root(self) -> None:
        """Export the root from here: it may be that nobody else will."""
        if STARTED in self.carrier:
            known = {**self.known, "tpc.root.reconstructed": True}
            _export_root(self.writer, self.carrier, known, self.started)


def _where() -> tuple[str | None, str | None, str | None]:
    """Return branch, batch and run of the Spark task that this is, where known."""
    kind = getattr(sys.modules.get("pyspark"), "TaskContext", None)
    task = None if kind is None else kind.get()
    if task is None:
        return None, None, None
    branch = f"{task.partitionId()}.{task.taskAttemptId()}"
    batch = task.getLocalProperty("streaming.sql.batchId")
    # Spark gives the jobs of a streaming query its run id as their group.
    run = None if batch is None else task.getLocalProperty("spark.jobGroup.id")
    return branch, batch, run


def _known(batch: object, run: str | None) -> dict[str, spans.Value]:
    known: dict[str, spans.Value] = {}
    if batch is not None:
        known["tpc.batch"] = int(str(batch))
    if run is not None:
        known["tpc.run"] = run
    return known


def _reserve(name: str, batch: str | None, run: str | None) -> Carrier:
    try:
        return roots.reserve(name, _ids(name, batch, run) if run else None)
    except Exception:  # noqa: BLE001 - a foreign sampler or id generator raised
        _log.debug("no root could be reserved", exc_info=True)
        return {}


def _ids(name: str, batch: str | None, run: str) -> tuple[int, int]:
    digest = hashlib.sha256(f"{name}\n{run}\n{batch}".encode()).digest()
    return int.from_bytes(digest[:16], "big"), int.from_bytes(digest[16:24], "big")


def _root_name(writer: object) -> str:
    return f"{type(writer).__name__}.batch"


def _export_root(
    writer: object, carrier: Carrier, known: dict[str, spans.Value], started: int
) -> None:
    try:
        times = started, time.time_ns()
        roots.export(_root_name(writer), carrier, known, (), times)
    except Exception:  # noqa: BLE001 - a foreign processor raised
        _log.debug("a root could not be exported", exc_info=True)


def _survives(message: object) -> bool:
    """Whether a pickled message takes the trace along: its class leaves that to Python.

    Nothing of the message is called: it may hand its rows on once.
    """
    kind = type(message)
    plain = all(getattr(kind, n, None) is getattr(object, n, None) for n in _PICKLING)
    return plain and kind not in copyreg.dispatch_table and bool(handles.kept(message))


def _counted(method: Method, iterator: str, /, *arguments: Any, **named: Any) -> Any:
    """Call write, and put into its span how many rows it has taken."""
    rows = [0]
    if len(arguments) > 1:
        writer, items, *rest = arguments
        arguments = (writer, _counting(items, rows), *rest)
    elif iterator in named:
        named[iterator] = _counting(named[iterator], rows)
    try:
        return method(*arguments, **named)
    finally:
        trace.get_current_span().set_attribute("tpc.rows", rows[0])


def _counting(items: Any, rows: list[int]) -> Iterator[Any]:
    """Hand on rows, or batches of them, one by one as they are asked for."""
    for item in items:
        # A Row is a tuple, and may well have a column with this name.
        rows[0] += 1 if isinstance(item, tuple) else getattr(item, "num_rows", 1)
        yield item
