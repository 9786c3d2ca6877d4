"""When to try again, and when to stop trying."""

from __future__ import annotations

import dataclasses
import itertools
import random
from collections.abc import Callable, Iterator

from tracing_2pc.interfaces import Clock

_LOOK_EVERY = 0.2
"""Seconds between two looks whether the query is being stopped, while waiting."""


@dataclasses.dataclass(frozen=True)
class Patience:
    """Exponential waits with full jitter, ended by the query being stopped.

    Full jitter, because many drivers that lost the same participant must not all
    come back at once.

    Args:
        clock: time and waiting.
        base: seconds; the n-th wait is uniform between 0 and `base * 2**n`.
        cap: seconds; no wait is longer.
        inline_tries: after so many it is reported, or given up, as the caller likes.
        stopping: whether the query is being stopped.
        uniform: the source of jitter.
    """

    clock: Clock
    base: float = 1.0
    cap: float = 60.0
    inline_tries: int = 10
    stopping: Callable[[], bool] = lambda: False
    uniform: Callable[[float, float], float] = random.uniform

    def tries(self) -> Iterator[int]:
        """Yield 1, 2, 3 … with a wait before each but the first, until stopped."""
        yield 1
        for n in itertools.count(2):
            self._wait(self.uniform(0.0, self._longest_before(n)))
            if self.stopping():
                return
            yield n

    def due_after(self, tries: int) -> float:
        """Say when the next try comes at the latest, after so many; Unix seconds."""
        return self.clock.now() + self._longest_before(tries + 1)

    def _longest_before(self, n: int) -> float:
        return min(self.cap, self.base * 2.0 ** min(n - 2, 30))

    def _wait(self, seconds: float) -> None:
        # Counted down, not compared: a clock that is set back must not stop us.
        while seconds > 0 and not self.stopping():
            self.clock.sleep(min(seconds, _LOOK_EVERY))
            seconds -= _LOOK_EVERY
