"""What a forked child makes anew."""

from __future__ import annotations

import dataclasses
import multiprocessing
import socket
import weakref
from typing import Any

import pytest
from support.branches import ONE, Branch, committing, prepare_at
from support.participant import count
from support.programs import in_child
from support.waiting import AT_LAST, PATIENT

from tracing_2pc.core.forks import after_fork
from tracing_2pc.core.model import BranchId, Receipt, TransactionId
from tracing_2pc.core.remote_participant import open_participant
from tracing_2pc.core.states import Vote
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


@pytest.mark.parametrize("option", ["sqlite", "table", "into"])
def test_a_participant_without_a_service_is_asked(request, tmp_path, option):
    """Where its parent has asked, and by two at once: each has sessions of its own."""
    url = f"sqlite:///{tmp_path}/rows.db?table=orders"
    if option != "sqlite":
        url = f"{request.getfixturevalue('postgres_database')}&{option}=orders"
    participant: Any = open_participant("orders", url, None, PATIENT)
    participant.set_up()
    transaction = TransactionId("test", 0, 1)

    def prepare(partition: int) -> list[Branch]:
        branches = [Branch(ONE.body, ONE.rows, f"{partition}.{n}") for n in range(5)]
        for branch in branches:
            vote = prepare_at(participant, transaction, branch)
            assert vote is Vote.COMMIT
        return branches

    branches = prepare(0)
    fork = multiprocessing.get_context("fork")
    children = [fork.Process(target=prepare, args=[n]) for n in (1, 2)]
    for child in children:
        child.start()
    branches += prepare(3)
    for child in children:
        child.join(AT_LAST)
        assert child.exitcode == 0
    branches += [
        dataclasses.replace(b, branch=f"{n}.{b.branch[2:]}")
        for n in (1, 2)
        for b in branches[:5]
    ]
    receipts = [
        Receipt(BranchId.parse(b.branch), "orders", b.rows, b.digest, Vote.COMMIT)
        for b in branches
    ]
    participant.commit(committing(transaction, *receipts))
    assert count(participant._resource(), "orders") == 20 * ONE.rows
    participant._resource().close()


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
