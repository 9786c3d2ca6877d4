"""One flush for all who wait at one moment: a group commit.

A flush costs the same for one event as for a thousand, so who comes while one is under
way is stored by the next.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from typing import Final, Generic, TypeVar

from tracing_2pc.core.forks import after_fork

_MOST_TOGETHER: Final = 5_000
"""Events that one flush stores, if more than one request brings them."""

_PAUSE: Final = 0.001
_MOST_PAUSES: Final = 10
"""Of a leader, in seconds, and how often: as long as more requests come."""

Item = TypeVar("Item")
Result = TypeVar("Result")


class FullError(Exception):
    """As many wait as may."""


class _Waiting(Generic[Item, Result]):
    def __init__(self, items: Sequence[Item]) -> None:
        self.items = items
        self.woken = threading.Event()
        self.leads = False
        self.result: Result | None = None
        self.error: Exception | None = None


class SharedFlush(Generic[Item, Result]):
    """Stores the items of threads, `most` at a time; the first waiter does it for all.

    `store` stores several requests in one transaction, and returns an answer for each.
    Its exception is raised to each.
    """

    def __init__(
        self, store: Callable[[list[Sequence[Item]]], list[Result]], most: int
    ) -> None:
        self._store = store
        self._most = most
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._waiting: list[_Waiting[Item, Result]] = []
        self._has_leader = False
        self._was_shared = False

    def add(self, items: Sequence[Item]) -> Result:
        """Store a request's items, and return when they are.

        Raises:
            FullError: too many wait; nothing was done.
        """
        mine: _Waiting[Item, Result] = _Waiting(items)
        with self._lock:
            if len(self._waiting) >= self._most:
                raise FullError
            self._waiting.append(mine)
            mine.leads = not self._has_leader
            self._has_leader = True
        try:
            if not mine.leads:
                mine.woken.wait()
            if mine.leads:
                self._lead()
        except BaseException:  # this thread is ended: another one must lead
            self._leave(mine)
            raise
        if mine.error is not None:
            raise mine.error
        assert mine.result is not None  # noqa: S101 - for the type checker
        return mine.result

    def _lead(self) -> None:
        """Store those who wait now, the leader's own request among them."""
        together: list[_Waiting[Item, Result]] = []
        error: Exception | None = RuntimeError("the thread that stores was ended")
        try:
            self._await_others()
            together = self._take()
            results = self._store([waiter.items for waiter in together])
            for waiter, result in zip(together, results, strict=True):
                waiter.result = result
            error = None
        except Exception as raised:  # noqa: BLE001 - raised to each that waits
            error = raised
        finally:
            for waiter in together:
                waiter.error = error
            self._hand_on()
            for waiter in together:
                waiter.woken.set()

    def _await_others(self) -> None:
        """Let those come who are on their way, where the last flush was shared.

        As long as more come: a flush for each of a few takes more of this process's
        time than all of their requests.
        """
        if not self._was_shared:
            return
        for _ in range(_MOST_PAUSES):
            before = len(self._waiting)
            time.sleep(_PAUSE)
            if len(self._waiting) == before:
                return

    def _leave(self, mine: _Waiting[Item, Result]) -> None:
        with self._lock:
            if mine not in self._waiting:
                return
            self._waiting.remove(mine)
        if mine.leads:
            self._hand_on()

    def _take(self) -> list[_Waiting[Item, Result]]:
        with self._lock:
            count, events = 0, 0
            for waiter in self._waiting:
                events += len(waiter.items)
                if count and events > _MOST_TOGETHER:
                    break
                count += 1
            together, self._waiting = self._waiting[:count], self._waiting[count:]
            self._was_shared = count > 1
        return together

    def _hand_on(self) -> None:
        with self._lock:
            if not self._waiting:
                self._has_leader = False
                return
            next_one = self._waiting[0]
            next_one.leads = True
        next_one.woken.set()
