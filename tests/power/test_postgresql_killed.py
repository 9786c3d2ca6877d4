"""PostgreSQL is killed while it commits: what was answered is there, and no more.

Each commit waits before its flush (`commit_delay`): nearly any moment is in one. All of
the server is killed at once, by SIGKILL; what is in its memory is gone.
"""

from __future__ import annotations

import contextlib
import random
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
import sqlalchemy as sa
from support.kinds import KINDS
from support.participant import World as Participant
from support.postgres import named, running
from support.waiting import AT_LAST, PAUSE, until

from power.recording import Promise
from power.worlds import Events, Journal, Promises, _apply, of_kind
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.inbox import Inbox
from tracing_2pc.store import open_log

SLOW_COMMITS = """commit_delay = 100000
commit_siblings = 0
wal_writer_delay = 10s
"""
"""The last: what is not flushed by its own commit is not flushed by another."""


class Decisions:
    """A driver's calls of its log; judged by SQL."""

    def __init__(self, url: str) -> None:
        self._url = url

    def write(self, _: Path, mark: Callable[..., None]) -> None:
        with contextlib.closing(open_log(self._url)) as log:
            log.create()
            for batch in range(7):
                _apply(log, batch, mark)

    def judge(self, _: Path, promises: Promises) -> Iterator[str]:
        text = "SELECT id, decision FROM tpc_transaction"
        with psycopg.connect(self._url) as connection:
            there = dict(connection.execute(text).fetchall())
        for about in of_kind(promises, "begun", "decided"):
            if about["id"] not in there:
                yield f"{about} is not on record"
        for about in of_kind(promises, "decided"):
            if there.get(about["id"]) != about["decision"]:
                yield f"{about}, and it is {there.get(about['id'])}"
        with contextlib.closing(open_log(self._url)) as log:
            _apply(log, len(there), lambda kind, **about: None)


class Kept(Journal):
    """A participant there."""

    def __init__(self, kind: str, url: str) -> None:
        super().__init__(kind)
        self._url = url

    def _open(self, _: Path) -> Participant:
        participant = KINDS[self._kind](self._url)
        participant.resource.start = lambda: None
        participant.app.logger.disabled = True
        return participant


class Stored(Events):
    """An inbox there."""

    def __init__(self, url: str) -> None:
        self._url = url

    def _open(self, _: Path) -> Inbox:
        return Inbox(self._url)


WORLDS: dict[str, Callable[[str], Any]] = {
    "decision log": Decisions,
    "TaggedRows": lambda url: Kept("TaggedRows", url),
    "Outbox": lambda url: Kept("Outbox", url),
    "PreparedTransactions": lambda url: Kept("PreparedTransactions", url),
    "inbox": Stored,
}
MOMENTS = (1, 3, 6, 9)
"""How many answers have left when it is killed."""


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with running(settings=SLOW_COMMITS) as made:
        yield made


def kill(server: Any) -> None:
    """Kill the postmaster and whatever it has started, by their ids."""
    postmaster = server.get_postmaster_info().process
    processes = [postmaster, *postmaster.children(recursive=True)]
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    psutil.wait_procs(processes, timeout=AT_LAST)


def start(server: Any) -> None:
    def started() -> bool:
        with contextlib.suppress(subprocess.SubprocessError):  # not within 10 s
            server.start()
        return bool(server.get_postmaster_info().is_running())

    until(started)


@pytest.mark.parametrize("answers", MOMENTS)
@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(k, marks=pytest.mark.ci if k == "inbox" else pytest.mark.nightly)
        for k in WORLDS
    ],
)
def test_what_was_answered_is_there(kind, answers, server, tmp_path):
    """It is killed in the commit after so many answers, and started again.

    A participant is asked on until it answers; a driver or a producer begins anew.
    """
    database = f"killed_{kind.replace(' ', '_').lower()}_{answers}"
    admin = named(server.get_uri(), "postgres")
    with psycopg.connect(admin, autocommit=True) as connection:
        connection.execute(f'CREATE DATABASE "{database}"')
    world = WORLDS[kind](named(server.get_uri(), database))
    promises: list[Promise] = []
    reached = threading.Event()

    def mark(what: str, **about: Any) -> None:
        promises.append(Promise(what, about))
        if len(promises) == answers:
            reached.set()

    def strike() -> None:
        reached.wait(AT_LAST)
        time.sleep(random.Random(f"{kind}{answers}").random() * 2 * PAUSE)
        kill(server)
        start(server)

    striker = threading.Thread(target=strike)
    striker.start()
    with contextlib.suppress(TwoPhaseError, sa.exc.SQLAlchemyError):
        world.write(tmp_path, mark)
    striker.join()
    assert [*world.judge(tmp_path, promises)] == []
