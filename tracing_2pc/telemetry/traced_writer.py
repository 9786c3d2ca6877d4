"""`@traced_sink` above PySpark's own `DataSourceStreamWriter`.

Its phases run in processes that share nothing but the commit messages, and Spark calls
nobody when a batch begins: tasks find their root by themselves (`batch_roots`). The
message takes it to the process that commits or aborts, and that one exports the root.
Where nobody may come to do so (the task failed, or its message can't carry anything),
the task exports the root itself: it may appear twice, never zero times.

These processes leave without a word, so each call flushes at its end, in bounded time.
Nothing of PySpark is imported here: where it runs, it is there.
"""

from __future__ import annotations

import copyreg
import functools
import inspect
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from opentelemetry import trace

from tracing_2pc.errors import ContractError
from tracing_2pc.model import Carrier
from tracing_2pc.telemetry import batch_roots, handles, lifecycle, phases, spans
from tracing_2pc.telemetry.phases import Method, Phase
from tracing_2pc.telemetry.rows import known_rows

FLUSH_SECONDS: Final = 0.5
_PICKLING: Final = ("__getstate__", "__reduce__", "__reduce_ex__")
_WRITE: Final = phases.phase("write")


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
    writer, started = arguments[0], time.time_ns()
    if (tracer := phases.entered(_WRITE, writer)) is None:
        return method(*arguments, **named)
    task = batch_roots.this_task()
    known = batch_roots.known(task.batch, task.run)
    attributes = {**_WRITE.attributes, **known}
    if task.branch is not None:
        attributes["tpc.branch"] = task.branch
    carrier = batch_roots.carrier_of(writer, task, started)
    counted = functools.partial(_counted, method, iterator)
    passed_on = False
    try:
        message = phases.call(
            counted, _WRITE, tracer, carrier, attributes, arguments, named
        )
        passed_on = _pass_on(message, carrier)
    finally:
        if not passed_on:  # it may be that nobody else will
            known = {**known, "tpc.root.reconstructed": True}
            batch_roots.export(writer, carrier, known)
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
    if (tracer := phases.entered(phase, writer)) is None:
        return method(*arguments, **named)
    told_by = messages if isinstance(messages, list | tuple) else ()
    carriers = [c for c in map(handles.kept, told_by) if c]
    carrier: Carrier = carriers[0] if carriers else {}
    known = batch_roots.known(batch, carrier.get(batch_roots.RUN))
    attributes = {**phase.attributes, **known}
    try:
        return phases.call(method, phase, tracer, carrier, attributes, arguments, named)
    finally:
        # One, unless Spark did not tell the tasks which run and batch they are of.
        for root in batch_roots.each_once(carriers):
            batch_roots.export(writer, root, known)
        lifecycle.flush(FLUSH_SECONDS)


def _pass_on(message: object, carrier: Carrier) -> bool:
    """Let a message carry the trace; True if whoever commits will know the root.

    It does where its class leaves pickling to Python. No method of the message is
    called: one that pickles itself may hand its rows on, once.
    """
    if not carrier or not handles.keep_beside(message, carrier):
        return False
    kind = type(message)
    plain = all(getattr(kind, n, None) is getattr(object, n, None) for n in _PICKLING)
    return plain and kind not in copyreg.dispatch_table


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
        spans.set_attributes(trace.get_current_span(), {"tpc.rows": rows[0]})


def _counting(items: Any, rows: list[int]) -> Iterator[Any]:
    """Hand on rows, or batches of them, one by one as they are asked for."""
    for item in items:
        # A Row is a tuple, and may well have a column with this name.
        found = None if isinstance(item, tuple) else known_rows(item)
        rows[0] += 1 if found is None else found
        yield item
