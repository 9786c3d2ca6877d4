"""The processor that headers refer to, and its interface for the propagator.

Nothing here imports the SDK.
"""

from __future__ import annotations

from typing import Final, Protocol

from opentelemetry import context as contexts
from opentelemetry.trace import SpanContext

from .headers import Sw8

endpoints: Final[set[str]] = set()
"""Attributes of local spans that have latency and rate, as endpoints do."""

CALLER: Final = contexts.create_key("tpc-sw8")
"""Key in a context: the `Sw8` that it was read from, or None."""


class Processor(Protocol):
    """The interface of `SkyWalkingProcessor`, which needs the SDK."""

    @property
    def dropped(self) -> int:
        """Segments that were lost."""

    def reserve(self, root: SpanContext, name: str, *, shared: bool) -> None:
        """Fix the place of a root that is exported later."""

    def header(self, context: SpanContext) -> Sw8 | None:
        """Return the header of a request made in this span; None if it is not ours."""


_processor: Processor | None = None


def use(processor: Processor | None) -> None:
    """Let headers name this processor's segments from now on, or none."""
    global _processor
    _processor = processor


def processor() -> Processor | None:
    """Return the processor in use, if there is one."""
    return _processor


def reserve(root: SpanContext, name: str, *, shared: bool) -> None:
    """Fix the place of a root that is exported later; see `SkyWalkingProcessor`."""
    if _processor is not None:
        _processor.reserve(root, name, shared=shared)


def dropped() -> int:
    """Return how many segments this process has lost."""
    return 0 if _processor is None else _processor.dropped
