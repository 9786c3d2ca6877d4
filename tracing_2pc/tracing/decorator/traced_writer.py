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
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from opentelemetry import trace

from tracing_2pc.core.errors import ContractError
from tracing_2pc.core.model import Carrier, Root
from tracing_2pc.core.names import SINK_METHODS
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.decorator import handles, phases
from tracing_2pc.tracing.decorator.phases import Method, Phase, arrow_rows
from tracing_2pc.tracing.propagation import storable_context
from tracing_2pc.tracing.sdk import lifecycle, roots

FLUSH_SECONDS: Final = 0.5
ROOT: Final = "tpc_root"
"""Attribute of a message: the facts of a root, and `run`, that of the query."""

_PICKLING: Final = ("__getstate__", "__reduce__", "__reduce_ex__")
_WRITE: Final = Phase("write")
logger = logging.getLogger(__name__)


def is_writer(kind: type) -> bool:
    """Whether a class has the three methods of PySpark's writers, and no sink's."""
    sinks = (*SINK_METHODS["begin"], *SINK_METHODS["pre_commit"])
    has_all = all(hasattr(kind, name) for name in WRAPPERS)
    return has_all and not any(hasattr(kind, name) for name in sinks)


def _write(method: Method) -> Method:
    rows_name = [*inspect.signature(method).parameters, "", ""][1]

    @functools.wraps(method)
    def write(*args: Any, **kwargs: Any) -> Any:
        if (tracer := phases.tracer_for(_WRITE, args[0])) is None:
            return method(*args, **kwargs)
        task, about = _task_ids()
        root_name = _root_name(args[0])
        root = _task_root(root_name, about)
        attributes = {**_WRITE.attributes, **task, **about}
        counted = functools.partial(_counted, method, rows_name)
        given = (counted, _WRITE, tracer, root.carrier, attributes, args, kwargs)
        is_passed_on = False
        try:
            message = phases.call(*given)
            is_passed_on = _pass_on(message, root, about)
        finally:
            if not is_passed_on:  # no other process may export it
                alone = {**about, "tpc.root.reconstructed": True}
                _export_root(root_name, *root, alone)
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
        if (tracer := phases.tracer_for(phase, args[0])) is None:
            return method(*args, **kwargs)
        given = {**kwargs, **dict(zip(names, args, strict=False))}
        messages, batch = given.get(names[1]), given.get(names[2])
        listed = messages if isinstance(messages, list | tuple) else ()
        # The earliest task's last: it says when the root began.
        roots = [(handles.carrier_in(m), handles.mapping_in(m, ROOT)) for m in listed]
        roots = [(carrier, facts) for carrier, facts in roots if carrier]
        roots.sort(key=lambda root: str(root[1].get("root_start")), reverse=True)
        first, facts = roots[-1] if roots else (Carrier(), {})
        about = _batch_attributes(batch, facts.get("run"))
        attributes = {**phase.attributes, **about}
        try:
            return phases.call(method, phase, tracer, first, attributes, args, kwargs)
        finally:
            # One root, unless Spark did not tell the tasks which run and batch it is.
            for root in {str(r[0].get("traceparent")): r for r in roots}.values():
                _export_root(_root_name(args[0]), *root, about)
            lifecycle.flush(FLUSH_SECONDS)

    return end


WRAPPERS: Final[dict[str, Callable[[Method], Method]]] = {
    "write": _write,
    "commit": functools.partial(_end, Phase("commit")),
    "abort": functools.partial(_end, Phase("abort")),
}


def _pass_on(message: object, root: Root, about: Attributes) -> bool:
    """Let a message carry the trace; True if the process that commits will know it.

    It does where its class leaves pickling to Python. No method of the message is
    called: one that pickles itself may hand its rows on, once.
    """
    if not root.carrier or not handles.put_attribute(message, dict(root.carrier)):
        return False
    if root.facts:
        handles.put_attribute(
            message, {**root.facts, "run": about.get("tpc.run")}, ROOT
        )
    kind = type(message)
    plain = all(getattr(kind, n, None) is getattr(object, n, None) for n in _PICKLING)
    return plain and kind not in copyreg.dispatch_table


def _counted(method: Method, name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call write, and put into its span how many rows it has taken."""
    rows = [0]
    if len(args) > 1:
        args = (args[0], _counting(args[1], rows), *args[2:])
    elif name in kwargs:
        kwargs[name] = _counting(kwargs[name], rows)
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


Attributes = dict[str, spans.Value]


def _task_ids() -> tuple[Attributes, Attributes]:
    """Return which task runs here, and of which batch, as far as Spark tells it."""
    try:
        kind = getattr(sys.modules.get("pyspark"), "TaskContext", None)
        if kind is None or (task := kind.get()) is None:
            return {}, {}
        branch = f"{task.partitionId()}.{task.taskAttemptId()}"
        batch = task.getLocalProperty("streaming.sql.batchId")
        # Spark gives the jobs of a streaming query its run id as their group.
        run = None if batch is None else task.getLocalProperty("spark.jobGroup.id")
    except Exception:  # another Spark than those we know
        logger.debug("Spark does not tell which task this is", exc_info=True)
        return {}, {}
    return {"tpc.branch": branch}, _batch_attributes(batch, run)


def _batch_attributes(batch: object, run: str | None) -> Attributes:
    attributes: Attributes = {} if run is None else {"tpc.run": run}
    if str(batch).removeprefix("-").isdecimal():
        attributes["tpc.batch"] = int(str(batch))
    return attributes


def _task_root(name: str, about: Attributes) -> Root:
    """Return where the spans of a task belong: below a new root, with its facts."""
    run = about.get("tpc.run")
    if not run and (current := storable_context()):
        return Root(current, {})
    try:
        ids = roots.derive_ids(f"{name}\n{run}\n{about.get('tpc.batch')}")
        return roots.reserve(name, ids if run else None)
    except Exception:  # a foreign sampler or id generator raised
        logger.debug("no root could be reserved", exc_info=True)
        return Root(Carrier(), {})


def _export_root(
    name: str,
    carrier: Mapping[str, str],
    facts: Mapping[str, Any],
    attributes: Attributes,
) -> None:
    """Export the root that a task's carrier is below, if it is one of ours."""
    try:
        if facts:
            now = time.time_ns()
            times = min(int(facts["root_start"]), now), now
            resource = facts["root_resource"]
            roots.export(name, carrier, attributes, (), times, resource=resource)
    except Exception:  # a foreign processor raised
        logger.debug("a root could not be exported", exc_info=True)


def _root_name(writer: object) -> str:
    return f"{type(writer).__name__}.batch"
