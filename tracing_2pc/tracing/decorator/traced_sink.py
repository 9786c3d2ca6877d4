"""`@traced_sink`: a span per phase of a sink, and its context in the calls it makes.

The class is changed in place, so its name, its pickling and `super()` stay as they
are. The wrappers reach everything through importable modules: a class of the main
program is pickled by value, and a copied global would be a second, empty memory.
Tracing is on in a process that has a tracer provider; a phase starts ours if the
environment asks for one.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Container, Iterable, Mapping
from typing import Any, Final, TypeVar, overload

from tracing_2pc.core.errors import ContractError
from tracing_2pc.core.names import SINK_METHODS
from tracing_2pc.tracing import spans
from tracing_2pc.tracing.decorator import traced_writer
from tracing_2pc.tracing.decorator.handles import CARRIER
from tracing_2pc.tracing.decorator.phases import Method, raise_if_deferred
from tracing_2pc.tracing.decorator.traced_phases import PER_RECORD, WRAPPERS

__all__ = ["CARRIER", "trace_headers", "traced_sink"]

_Class = TypeVar("_Class", bound=type)

_SPELLINGS: Final = {phase: SINK_METHODS[phase] for phase in WRAPPERS}


@overload
def traced_sink(sink: _Class, /) -> _Class: ...


@overload
def traced_sink(
    *,
    begin: str | None = None,
    invoke: str | None = None,
    pre_commit: str | None = None,
    commit: str | None = None,
    abort: str | None = None,
    per_record: bool = False,
    requests: bool = False,
) -> Callable[[_Class], _Class]: ...


def traced_sink(
    sink: type | None = None,
    /,
    *,
    per_record: bool = False,
    requests: bool = False,
    **methods: str | None,
) -> Any:
    """Trace a sink: any class with begin, invoke, pre_commit, commit and abort.

    Every phase becomes a span `<Sink>.<phase>`, a child of the branch's span. `invoke`
    and `invoke_batch` become one span per branch, with a count, from the first record
    to the last; with `per_record=True` each call is a span. Arguments, results and
    errors pass unchanged.

    A phase's requests carry the trace if it sends `trace_headers()`. With
    `requests=True` calls made with `requests` do by themselves: the first phase in a
    process switches on OpenTelemetry's instrumentation, from the `requests` extra, for
    all calls of that process.

    **Names.** Flink's spelling is known: `begin_transaction`, `pre_commit`,
    `recover_and_commit` and `recover_and_abort`, and the same as `beginTransaction` and
    so on. A recovery is a span `<Sink>.commit` or `<Sink>.abort`; where it calls
    `commit` or `abort` itself, that is the same span. Other names are given:
    `@traced_sink(begin="open")`. A class with `__tpc_traced__ = True` traces its own
    methods and is left alone.

    **The handle carries the context on.** While tracing is on, a plain dict gets a key
    `tpc_carrier` once its `pre_commit` has returned, and a dataclass, frozen or not,
    an attribute of that name that is no field: `==`, `repr` and `asdict` don't show it.
    Pickled, or kept in the decision log, the handle takes it along: a commit after a
    crash, in any process, is in the trace of its branch. The log keeps it beside any
    mapping and any dataclass. Of other handles this process knows the trace; where it
    can't refer to them weakly (a text, a tuple, slots), the current span comes first,
    and the last 64 are held. Without a span around it, `begin` is the root and the
    branch's other phases are its children.

    A record whose `invoke` raised makes that span an error if `abort` comes next. A
    caller that went on has left the record out on purpose.

    **PySpark's own writers.** Above a `DataSourceStreamWriter`, or its Arrow form, the
    spans are `<Writer>.write` for each task, with its rows, and `<Writer>.commit` or
    `<Writer>.abort`, below `<Writer>.batch`: one trace for each batch and run. A commit
    message gets attributes `tpc_carrier` and `tpc_root`. One that takes none (slots,
    pickling of its own), and an abort without any message, leave that call in a trace
    of its own. Each call flushes, in half a second at most. A task that fails exports
    the root of the batch, because no other process may be left to do so: it may be
    there twice.

    Raises:
        ContractError: it stands above no class; a method that was named is not there,
            or is of a class that is traced already, without it; a phase is no plain
            method, for instance `async`, which a coordinator could not call; or the
            class has no phase at all.
    """
    if unknown := methods.keys() - {"begin", "invoke", "pre_commit", "commit", "abort"}:
        raise ContractError(
            f"traced_sink knows no phase {', '.join(sorted(unknown))}, only "
            "begin, invoke, pre_commit, commit and abort"
        )
    if not isinstance(sink, type | None):
        raise ContractError(
            "traced_sink stands above a class: @traced_sink, or with names "
            '@traced_sink(begin="open")'
        )
    names = {phase: name for phase, name in methods.items() if name is not None}
    trace = functools.partial(
        _trace, names=names, per_record=per_record, requests=requests
    )
    return trace if sink is None else trace(sink)


def trace_headers() -> dict[str, str]:
    """Return the current trace context as headers, for clients other than requests."""
    return spans.current_carrier()


def _trace(
    sink: _Class, names: dict[str, str], *, per_record: bool, requests: bool
) -> _Class:
    if not names and traced_writer.is_writer(sink):
        if per_record:
            raise ContractError("per_record is for a sink's invoke: write has none")
        wrappers = traced_writer.WRAPPERS
        spellings: dict[str, tuple[str, ...]] = {name: (name,) for name in wrappers}
    else:
        spellings = {**_SPELLINGS, **{phase: (n,) for phase, n in names.items()}}
        wrappers = {**WRAPPERS, **PER_RECORD} if per_record else WRAPPERS
    if not _wrap(sink, spellings, wrappers, names):
        raise ContractError(
            f"{sink.__name__} has no phase of a sink: name its methods, as in "
            '@traced_sink(begin="open", commit="publish")'
        )
    traced: Any = sink
    traced.__tpc_traced__ = True
    traced.__tpc_requests__ = requests or getattr(sink, "__tpc_requests__", False)
    return sink


def _wrap(
    sink: type,
    spellings: Mapping[str, tuple[str, ...]],
    wrappers: Mapping[str, Callable[[Method], Method]],
    required: Container[str],
) -> int:
    """Wrap the methods that are there and not traced yet; return how many there are."""
    count = 0
    for phase, names in spellings.items():
        name, method, owner = _find(sink, names)
        is_required = phase in required
        if method is None:
            if is_required:
                raise ContractError(f"{sink.__name__} has no method {name!r} ({phase})")
            continue
        count += 1
        if "__tpc_traced__" not in vars(owner):
            plain = _plain(sink, name, method)
            own = plain if owner is sink else _inherited(sink, name, plain)
            setattr(sink, name, wrappers[phase](own))
        elif is_required and not hasattr(method, "__wrapped__"):
            raise ContractError(
                f"{owner.__name__} is traced already, without {name!r} ({phase}): "
                "name it there"
            )
    return count


def _inherited(sink: type, name: str, method: Method) -> Method:
    """Return a method of this class that calls the next one in the order of resolution.

    A copy would hide what a mixin or a patch of the base puts in its place.
    """

    @functools.wraps(method)
    def inherited(self: Any, *args: Any, **kwargs: Any) -> Any:
        kinds = type(self).__mro__
        kind = sink if sink in kinds else _class_after_slots(kinds, name, inherited)
        return getattr(super(kind, self), name)(*args, **kwargs)

    return inherited


def _class_after_slots(kinds: Iterable[type], name: str, inherited: Method) -> type:
    """Return the class that a method is in now: `slots=True` has made another one."""
    methods = ((kind, vars(kind).get(name)) for kind in kinds)
    return next(k for k, m in methods if getattr(m, "__wrapped__", None) is inherited)


def _find(sink: type, names: tuple[str, ...]) -> tuple[str, object, type]:
    for name in names:
        for owner in sink.__mro__:
            if (method := vars(owner).get(name)) is not None:
                return name, method, owner
    return names[0], None, sink


def _plain(sink: type, name: str, method: object) -> Method:
    """Return the method, or raise `ContractError` saying what to make of it."""
    where = f"{sink.__name__}.{name}"
    if not inspect.isfunction(method):
        raise ContractError(f"{where} is no plain method: define it with `def`")
    raise_if_deferred(where, method)
    return method
