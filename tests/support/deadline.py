"""The transaction timeout in tests: it is over when a test says so, not before."""

from __future__ import annotations

import threading
import types

import pytest

from support.waiting import AT_LAST, until
from tracing_2pc.protocol import deadline


def by_hand(monkeypatch: pytest.MonkeyPatch) -> threading.Event:
    """Let the time of a transaction be over when the event is set."""
    over = threading.Event()

    class Timer(threading.Event):
        def wait(self, timeout: float | None = None) -> bool:
            until(lambda: self.is_set() or over.is_set())
            return self.is_set()

    by_test = types.SimpleNamespace(Event=Timer, Thread=threading.Thread)
    monkeypatch.setattr(deadline, "threading", by_test)
    return over


def wait_for_watchers() -> None:
    """Wait until nobody watches the time of a transaction any more."""
    for thread in threading.enumerate():
        if thread.name == deadline.THREAD:
            thread.join(AT_LAST)
