"""A sink's options and methods, by the names of `ports.SinkOptions`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tracing_2pc.core import ports
from tracing_2pc.core.errors import ContractError
from tracing_2pc.core.names import SINK_METHODS


def option(sink: Any, name: str) -> Any:
    """Return an attribute of a sink, or its default."""
    return getattr(sink, name, getattr(ports.SinkOptions, name))


def find_method(sink: Any, phase: str) -> Callable[..., Any] | None:
    """Return a sink's own method by one of its names, ours or Flink's, if it has it."""
    methods = (getattr(sink, name, None) for name in SINK_METHODS[phase])
    return next((m for m in methods if callable(m) and _is_own(m)), None)


def call(sink: Any, phase: str) -> Callable[..., Any]:
    """Return a method that must be there; else raise `ContractError`."""
    if (method := find_method(sink, phase)) is None:
        raise ContractError(f"{type(sink).__name__} has no {phase}")
    return method


def _is_own(method: Callable[..., Any]) -> bool:
    """Whether it is the sink's own: a method inherited from a protocol does nothing."""
    return getattr(method, "__module__", None) != ports.__name__
