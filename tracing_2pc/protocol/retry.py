"""When to try again, and when to stop trying."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator
from typing import Final

from tracing_2pc.core.ports import Clock

_CHECK_EVERY = 0.2  # seconds between two checks of `stopping` while waiting

PREPARE_SECONDS: Final = 60.0
"""Seconds for which a prepare is sent again: a service that is restarted, or its
database, is back by then. After that the task fails, and with it the attempt."""


@dataclasses.dataclass(frozen=True)
class RetryPolicy:
    """Exponential waits with full jitter, ended when `stopping` returns True.

    Full jitter, because many drivers that lost the same participant must not all come
    back at once. `stopping` is asked several times a second.
    """

    clock: Clock
    base: float = 1.0  # seconds; the n-th wait is uniform from 0 to `base * 2**n`
    cap: float = 60.0  # seconds; no wait is longer
    inline_tries: int = 10  # after so many the caller reports it, or gives up
    stopping: Callable[[], bool] = lambda: False
    uniform: Callable[[float, float], float] = random.uniform

    def tries(self) -> Iterator[int]:
        """Yield 1, 2, 3 … with a wait before each but the first, until stopped."""
        yield 1
        for n in itertools.count(2):
            self._wait(self.pause_before(n))
            if self.stopping():
                return
            yield n

    def pause_before(self, n: int) -> float:
        """Return how long to wait before the n-th try, from the second on; seconds."""
        return self.uniform(0.0, self._longest_before(n))

    def due_after(self, tries: int) -> float:
        """Return when the next try is due, at the latest; Unix seconds."""
        return self.clock.now() + self._longest_before(tries + 1)

    def _longest_before(self, n: int) -> float:
        return min(self.cap, self.base * 2.0 ** min(n - 2, 30))

    def _wait(self, seconds: float) -> None:
        # Counted down, not compared: a clock that is set back must not stop us.
        while seconds > 0 and not self.stopping():
            self.clock.sleep(min(seconds, _CHECK_EVERY))
            seconds -= _CHECK_EVERY
