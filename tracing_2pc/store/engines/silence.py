"""How long a database may leave a caller without a sign of life."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Final

_limit: Final[ContextVar[float | None]] = ContextVar("silence", default=None)


@contextlib.contextmanager
def answering_within(seconds: float) -> Iterator[None]:
    """End a session of PostgreSQL whose server is silent for so many seconds.

    In this thread. A server is silent if a second session gets no answer in that time
    either, or finds that the server waits for the first one's client: the request, or
    its answer, is lost. It is then unknown whether the statement was executed. A
    running statement is waited for. To connect may take whole seconds, at least two.
    """
    before = _limit.set(seconds)
    try:
        yield
    finally:
        _limit.reset(before)


def longest_silence() -> float | None:
    """Return the limit of this thread, in seconds; None is none."""
    return _limit.get()
