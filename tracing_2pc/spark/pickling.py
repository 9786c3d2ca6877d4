"""The sink for executors, pickled as Spark pickles it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from tracing_2pc.core.errors import ContractError
from tracing_2pc.sinks.base import Sink, participants_of
from tracing_2pc.sinks.composite import CompositeSink


def check_pickles(sink: Sink) -> None:
    """Check that a sink can be sent to executors; `ContractError`: why it cannot."""
    if isinstance(sink, CompositeSink):
        for member in sink.members:
            check_pickles(member)
    elif (error := _error_of(sink)) is not None:
        name = type(sink).__name__
        path, error = _find(sink, name, set()) or (name, error)
        reason = f"{type(error).__name__}: {error}".splitlines()[0]
        raise ContractError(
            f"{path} does not pickle ({reason}), and executors get the sink of "
            f"{', '.join(participants_of(sink))} pickled: keep plain values in it, and "
            "open what else it needs in the phase that uses it"
        )


def _error_of(value: Any) -> Exception | None:
    from pyspark import cloudpickle

    try:
        cloudpickle.dumps(value)
    except Exception as error:  # noqa: BLE001 - whatever a class raises
        return error
    return None


def _find(value: Any, path: str, seen: set[int]) -> tuple[str, Exception] | None:
    """Return the object that does not pickle itself, though all of its parts do."""
    error = None if id(value) in seen else _error_of(value)
    if error is None:
        return None
    seen.add(id(value))
    broken = [(p, part) for p, part in _parts_of(value) if _error_of(part)]
    inner = (_find(part, path + step, seen) for step, part in broken)
    return next(filter(None, inner), None if broken else (path, error))


def _parts_of(value: Any) -> Iterator[tuple[str, Any]]:
    """Yield the objects pickled with a value, each with the step that leads there."""
    if isinstance(value, Mapping):
        yield from ((f"[{key!r}]", part) for key, part in value.items())
    elif isinstance(value, list | tuple):
        yield from ((f"[{number}]", part) for number, part in enumerate(value))
    else:
        try:
            state = value.__reduce_ex__(4)[2]
        except Exception:  # noqa: BLE001 - whatever a class raises; or it has no state
            return
        for part in state if isinstance(state, tuple) else (state,):  # with slots two
            if isinstance(part, dict):
                yield from ((f".{name}", kept) for name, kept in part.items())
