"""One read serves all browsers: made by one thread, kept for some seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tracing_2pc.core.errors import TwoPhaseError

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

logger = logging.getLogger(__name__)


class _Entry(Generic[Value]):
    """A value, or the error that making it has raised, and when it was made."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.result: tuple[float, Value | TwoPhaseError] | None = None


class CachedByKey(Generic[Key, Value]):
    """Values that are made again when they are asked for and too old.

    A thread that asks while a value is made waits for that one. A `TwoPhaseError` is
    kept like a value: a source that does not answer is not asked more often because
    many browsers look. `most` values are kept, of the keys that were asked for last.
    """

    def __init__(
        self,
        make: Callable[[Key], Value],
        seconds: float,
        most: int = 100,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._seconds = seconds
        self._most = most
        self._clock = clock
        self._lock = threading.Lock()
        self._entries: OrderedDict[Key, _Entry[Value]] = OrderedDict()

    def get(self, key: Key) -> Value:
        """Return the value of a key, or raise what making it has raised."""
        with self._lock:
            entry = self._entries.setdefault(key, _Entry())
            self._entries.move_to_end(key)
            if len(self._entries) > self._most:
                self._entries.popitem(last=False)
        with entry.lock:
            if entry.result is None or self._clock() - entry.result[0] >= self._seconds:
                result = self._try(key)
                entry.result = self._clock(), result
            value = entry.result[1]
        if isinstance(value, TwoPhaseError):
            raise value.with_traceback(None)
        return value

    def _try(self, key: Key) -> Value | TwoPhaseError:
        try:
            return self._make(key)
        except TwoPhaseError as error:
            return error

    def drop(self, key: Key) -> None:
        """Have it made again when it is asked for: it was just changed."""
        with self._lock:
            self._entries.pop(key, None)

    def drop_all(self) -> None:
        """Have all made again."""
        with self._lock:
            self._entries.clear()


class MadeInBackground(Generic[Value]):
    """A value that takes long: made by a thread of its own, while browsers ask.

    No request waits for it. One thread at most makes it, and none without requests. A
    `TwoPhaseError` is logged, and the last value stays. `seconds` pass at least from
    the end of one to the beginning of the next.
    """

    def __init__(self, make: Callable[[], Value], seconds: float) -> None:
        self._make = make
        self._seconds = seconds
        self._lock = threading.Lock()
        self._busy = False
        self._ended = float("-inf")
        self._value: Value | None = None

    def latest(self) -> Value | None:
        """Return the last one, None before the first; have a newer one made."""
        with self._lock:
            due = time.monotonic() - self._ended >= self._seconds
            if due and not self._busy:
                self._busy = True
                threading.Thread(target=self._work, daemon=True).start()
            return self._value

    def _work(self) -> None:
        try:
            self._value = self._make()
        except TwoPhaseError as error:
            logger.warning("not made again: %s", error)
        finally:
            with self._lock:
                self._busy, self._ended = False, time.monotonic()
