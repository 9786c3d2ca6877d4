"""The processor of this process, for those who must not import the SDK to ask it."""

from __future__ import annotations

import threading
from typing import Final, Protocol

from opentelemetry import context as contexts
from opentelemetry.context import Context
from opentelemetry.trace import SpanContext

from tracing_2pc.skywalking.headers import Sw8

CALLER: Final = contexts.create_key("tpc-sw8")
"""Key in a context: the `Sw8` that it was read from, or None."""


class Processor(Protocol):
    """What others ask of a `SkyWalkingProcessor`."""

    @property
    def dropped(self) -> int:
        """Segments that found no room, or that the collector refused."""

    def header(self, context: SpanContext) -> Sw8 | None:
        """Return what a request says that this span makes; None if it is not ours."""

    def reserve(self, root: SpanContext, name: str, *, shared: bool) -> None:
        """Fix the place of a root that is exported later, by its ids."""


_processors: Final[list[Processor]] = []
_counting: Final = threading.Lock()
_malformed = 0


def use(processor: Processor) -> None:
    """Let headers speak of this processor's segments from now on."""
    _processors[:] = [processor]


def stop() -> None:
    """Let headers speak of no processor's segments any more."""
    _processors.clear()


def processor() -> Processor | None:
    """Return the processor in use, if there is one."""
    return _processors[0] if _processors else None


def header(current: SpanContext, context: Context | None) -> Sw8 | None:
    """Return what a request says: the current span's place, or what came from afar."""
    if not (current.is_valid and current.trace_flags.sampled):
        return None
    if _processors and (own := _processors[0].header(current)) is not None:
        return own
    caller = contexts.get_value(CALLER, context)
    return caller if current.is_remote and isinstance(caller, Sw8) else None


def reserve(root: SpanContext, name: str, *, shared: bool) -> None:
    """Fix the place of a root that is exported later.

    Args:
        root: its ids.
        name: of the root.
        shared: other processes reserve it too, and only one of them exports it: then
            what is below it here stands in segments of its own.
    """
    if _processors:
        _processors[0].reserve(root, name, shared=shared)


def count_malformed() -> None:
    """Count an `sw8` header that could not be read."""
    global _malformed
    with _counting:
        _malformed += 1


def malformed() -> int:
    """Return how many `sw8` headers could not be read since this process began."""
    return _malformed
