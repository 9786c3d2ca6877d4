"""What a forked child makes anew."""

from __future__ import annotations

import socket
import weakref

import pytest
from support.programs import in_child

from tracing_2pc.core.forks import after_fork
from tracing_2pc.http import time_limits
from tracing_2pc.participant import TaggedRows
from tracing_2pc.tracing.counted import Counted

pytestmark = pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")


class Counter:
    def __init__(self) -> None:
        self.resets = 0
        after_fork(self.reset)

    def reset(self) -> None:
        self.resets += 1


def test_a_child_resets_once_and_its_parent_never():
    """And a child of the child once more."""
    counter = Counter()
    assert in_child(lambda: counter.resets) == 1
    assert in_child(lambda: in_child(lambda: counter.resets)) == 2
    assert counter.resets == 0


def test_an_object_does_not_live_on_for_its_reset():
    """It is collected; later forks work without it."""
    counter = Counter()
    gone = weakref.ref(counter)
    del counter
    assert gone() is None
    assert in_child(lambda: 0) == 0


def test_a_function_is_called_too():
    """It stays for as long as the process."""
    calls = []
    after_fork(lambda: calls.append(1))
    assert in_child(lambda: len(calls)) == 1


def test_a_count_begins_at_nothing():
    """Also where another thread counted at the fork: its lock stayed in the parent."""
    counted = Counted()
    counted.add("known", 2)

    def count() -> int:
        counted.add("known")
        return counted.read()["known"]

    with counted._lock:
        assert in_child(count) == 1
    assert counted.read() == {"known": 2}


def test_a_body_has_a_time_limit():
    """Also where the parent's limits were looked at, and strangers were read from."""
    watch = time_limits.reading_ends_at.__self__

    def read() -> int:
        one, other = socket.socketpair()
        with one, other, time_limits.reading_ends_at(one, 0.0) as late:
            assert one.recv(1) == b""
            return late.is_set() and watch.lingering.acquire(blocking=False)

    with watch._lock, watch.lingering, watch.lingering:
        assert in_child(read) == 1


def test_a_participant_is_opened(tmp_path):
    """Also where another thread was opening it at the fork."""
    rows = TaggedRows(f"sqlite:///{tmp_path}/rows.db", table="orders")

    def open_it() -> int:
        rows.open()
        return 1

    with rows._opening:
        assert in_child(open_it) == 1


def test_a_reset_that_raises_hides_no_other():
    """Python prints it, and goes on."""
    broken = [True]

    def fail() -> None:
        if broken[0]:
            raise OSError("broken")

    after_fork(fail)
    counter = Counter()
    assert in_child(lambda: counter.resets) == 1
    broken[0] = False
