"""One flush for those who wait, and for those who are on their way."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from types import SimpleNamespace

import pytest
from support.waiting import AT_LAST, until

from tracing_2pc.inbox import shared_flush
from tracing_2pc.inbox.shared_flush import SharedFlush


class Flushes:
    """What was stored together, flush by flush; the first waits until it may go on."""

    def __init__(self) -> None:
        self.done: list[list[str]] = []
        self.begun, self.may_end = threading.Event(), threading.Event()
        self.flush: SharedFlush[str, str] = SharedFlush(self._store, 9)
        self._threads: list[threading.Thread] = []

    def _store(self, requests: list[Sequence[str]]) -> list[str]:
        self.begun.set()
        assert self.may_end.wait(AT_LAST)
        self.done.append([item for request in requests for item in request])
        return self.done[-1]

    def add(self, *names: str) -> None:
        """Have each stored by a thread of its own, and return when all wait."""
        waiting = len(self.flush._waiting)
        for name in names:
            adding = threading.Thread(target=self.flush.add, args=([name],))
            adding.start()
            self._threads.append(adding)
            waiting += 1
            until(lambda least=waiting: len(self.flush._waiting) >= least)

    def end(self) -> None:
        """Let all of it be stored."""
        self.may_end.set()
        for thread in self._threads:
            thread.join(AT_LAST)


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[Callable[[], None]]:
    """What happens while a leader pauses, one after the other; then nothing."""
    happens: list[Callable[[], None]] = []

    def pause(_: float) -> None:
        if happens:
            happens.pop(0)()

    monkeypatch.setattr(shared_flush, "time", SimpleNamespace(sleep=pause))
    return happens


@pytest.mark.ci
def test_who_comes_while_a_leader_pauses_is_stored_with_it(pauses):
    """After a flush that was shared; who is alone is never paused for."""
    flushes = Flushes()
    pauses.append(lambda: flushes.add("c"))
    first = threading.Thread(target=flushes.flush.add, args=(["alone"],))
    first.start()
    assert flushes.begun.wait(AT_LAST)
    flushes.add("a", "b")
    flushes.may_end.set()
    first.join(AT_LAST)
    until(lambda: len(flushes.done) == 2)
    flushes.flush.add(["leads"])
    flushes.end()
    assert flushes.done == [["alone"], ["a", "b"], ["leads", "c"]]
    flushes.flush.add(["after one that was shared"])
    pauses.append(lambda: pytest.fail("it paused"))
    flushes.flush.add(["after one that was not"])
