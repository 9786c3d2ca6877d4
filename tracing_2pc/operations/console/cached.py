"""One look serves all who ask: made by one thread, kept for some seconds."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

from tracing_2pc.errors import TwoPhaseError

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")

_log = logging.getLogger(__name__)


class Cached(Generic[Value]):
    """A value that is made again when somebody asks and it is too old.

    Whoever asks while it is made waits for that one. An error of ours is kept like a
    value: what does not answer is not asked more often because many look.

    Args:
        make: makes it; raises `TwoPhaseError` or returns.
        seconds: how long it is good.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        make: Callable[[], Value],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._made: tuple[float, Value | TwoPhaseError] | None = None

    def get(self) -> Value:
        """Return it, or raise what making it has raised."""
        with self._lock:
            if self._made is None or self._clock() - self._made[0] >= self._seconds:
                found = self._try()
                self._made = (self._clock(), found)
            found = self._made[1]
        if isinstance(found, TwoPhaseError):
            raise found.with_traceback(None)
        return found

    def _try(self) -> Value | TwoPhaseError:
        try:
            return self._make()
        except TwoPhaseError as error:
            return error


class CachedByKey(Generic[Key, Value]):
    """The same by key, for the `most` keys that were asked for last."""

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
        self._by_key: OrderedDict[Key, Cached[Value]] = OrderedDict()

    def get(self, key: Key) -> Value:
        """Return the value of a key, or raise what making it has raised."""
        return self._of(key).get()

    def drop(self, key: Key) -> None:
        """Make it anew when it is asked for: it was just changed."""
        with self._lock:
            self._by_key.pop(key, None)

    def drop_all(self) -> None:
        """Make all anew."""
        with self._lock:
            self._by_key.clear()

    def _of(self, key: Key) -> Cached[Value]:
        with self._lock:
            found = self._by_key.get(key)
            if found is None:
                found = Cached(lambda: self._make(key), self._seconds, self._clock)
                self._by_key[key] = found
                if len(self._by_key) > self._most:
                    self._by_key.popitem(last=False)
            self._by_key.move_to_end(key)
        return found


class Behind(Generic[Value]):
    """A value that takes long: made by a thread of its own, while somebody asks.

    Nobody waits for it. One thread at most is at it, and none when nobody asks.

    Args:
        make: makes it; if it raises `TwoPhaseError`, that is logged and the last
            value stays.
        seconds: from the end of one to the beginning of the next, at least.
        clock: seconds that only grow.
    """

    def __init__(
        self,
        make: Callable[[], Value],
        seconds: float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._make = make
        self._seconds = seconds
        self._clock = clock
        self._lock = threading.Lock()
        self._busy = False
        self._ended = float("-inf")
        self._value: Value | None = None

    def latest(self) -> Value | None:
        """Return the last one, None before the first; have a newer one made."""
        with self._lock:
            due = self._clock() - self._ended >= self._seconds
            if due and not self._busy:
                self._busy = True
                threading.Thread(target=self._work, daemon=True).start()
            return self._value

    def _work(self) -> None:
        made: Value | None = None
        try:
            made = self._make()
        except TwoPhaseError as error:
            _log.warning("not made again: %s", error)
        finally:
            with self._lock:
                self._value = made if made is not None else self._value
                self._busy, self._ended = False, self._clock()
