"""How long a database may say nothing to whoever asks."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

_limit: Final[ContextVar[float | None]] = ContextVar("silence", default=None)


@contextlib.contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """End a session of PostgreSQL that hears nothing for so long of a silent server.

    In this thread. A server is silent if a second session gets no answer in that time
    either, or finds that it waits for the first one's client: what was sent, or its
    answer, is lost. Whether the statement was executed is not known then. A statement
    that is at work is waited for. To connect may take whole seconds, at least two.
    """
    before = _limit.set(seconds)
    try:
        yield
    finally:
        _limit.reset(before)


def longest_silence() -> float | None:
    """Return the limit of this thread, in seconds; None is none."""
    return _limit.get()
