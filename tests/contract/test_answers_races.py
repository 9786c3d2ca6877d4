"""What holds when requests come at once, and when a participant is killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from participant_support import KINDS, ONE, OTHER, TWIN, Branch, World, sqlite_url

from tracing_2pc.participant import TaggedRows

T = "orders.7.1"
KIND_AND_DATABASE = [
    pytest.param((kind, database), id=f"{kind}-{database}")
    for kind in KINDS
    for database in ("sqlite", "postgresql")
]


@pytest.fixture(params=KIND_AND_DATABASE)
def made(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[World, str, str]]:
    kind, database = request.param
    if database == "postgresql":
        url = request.getfixturevalue("postgres_database")
    else:
        url = sqlite_url(tmp_path)
    world = KINDS[kind](url)
    yield world, kind, url
    world.resource.close()


@pytest.fixture
def world(made: tuple[World, str, str]) -> World:
    return made[0]


def at_once(*requests: Callable[[], Any]) -> list[int]:
    """Send requests at the same moment; returns their statuses, in order."""
    gate = threading.Barrier(len(requests))
    found = [0] * len(requests)

    def send(place: int) -> None:
        gate.wait(10)
        found[place] = requests[place]().status_code

    threads = [threading.Thread(target=send, args=(n,)) for n in range(len(requests))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return found


def test_commit_and_abort_at_once(world: World) -> None:
    """Exactly one wins, every loser is told, and the outcome never flips."""
    committed = 0
    for batch in range(12):
        transaction = f"orders.{batch}.1"
        assert world.prepare(transaction).status_code == 200
        commit = [lambda t=transaction: world.commit(t, ONE)] * 3
        abort = [lambda t=transaction: world.abort(t)] * 3
        statuses = at_once(*commit, *abort)
        assert statuses in ([200] * 3 + [409] * 3, [409] * 3 + [200] * 3)
        state = "committed" if statuses[0] == 200 else "aborted"
        assert world.show(transaction).get_json()["state"] == state
        committed += statuses[0] == 200
    assert (world.in_doubt(), world.visible()) == (0, 3 * committed)


def test_the_same_prepare_at_once(world: World) -> None:
    """Of many equal prepares one writes; the others are told so, or to ask again."""
    statuses = at_once(*[lambda: world.prepare(T)] * 6)
    assert set(statuses) <= {200, 425}
    assert 200 in statuses
    assert world.listed() == [(T, ONE.branch, "prepared")]
    assert world.commit(T, ONE).status_code == 200
    assert world.visible() == 3


def test_many_branches_at_once(world: World) -> None:
    """Branches of a transaction are prepared side by side, into a new table too."""
    branches = [Branch(ONE.body, ONE.rows, f"{n}.{n}") for n in range(6)]
    prepares = [lambda b=branch: world.prepare(T, b) for branch in branches]
    assert at_once(*prepares) == [200] * 6
    assert world.commit(T, *branches).status_code == 200
    assert world.visible() == 18


def test_two_attempts_of_a_batch_commit_at_once(world: World) -> None:
    """At most one attempt of a batch is committed, whatever the coordinator does."""
    for batch in range(6):
        attempts = [f"orders.{batch}.1", f"orders.{batch}.2"]
        for attempt in attempts:
            assert world.prepare(attempt).status_code == 200
        statuses = at_once(*[lambda a=a: world.commit(a, ONE) for a in attempts])
        assert sorted(statuses) == [200, 404]
    assert world.visible() == 18


def test_nobody_waits_for_a_slow_upload(world: World) -> None:
    """While a body trickles in, everything else is answered at once."""
    assert world.prepare("orders.6.1", OTHER).status_code == 200
    with world.writing(T) as upload:
        started = time.monotonic()
        assert world.prepare(T, TWIN).status_code == 200
        assert world.commit("orders.6.1", OTHER).status_code == 200
        assert world.client.get("/metrics").status_code == 200
        assert len(world.listed()) == 2
        assert world.abort(T).status_code == 200
        assert time.monotonic() - started < 5
        assert upload.finish().status_code == 409
    assert (world.in_doubt(), world.visible()) == (0, 1)


DYING = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from participant_support import KINDS, ONE, TWIN
world = KINDS[{kind!r}]({url!r})
world.prepare("orders.7.1", TWIN)
with world.writing("orders.7.1") as upload:
    print(world.show("orders.7.1").get_json()["branches"][0]["state"], flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_writer_that_is_killed_leaves_nothing(
    made: tuple[World, str, str], tmp_path: Path
) -> None:
    """Its branch is as if it had never been, at once; the same branch can be sent."""
    world, kind, url = made
    script = DYING.format(tests=str(Path(__file__).parent.parent), kind=kind, url=url)
    died = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=60
    )
    assert (died.returncode, died.stdout) == (-signal.SIGKILL, "writing\n")
    until = time.monotonic() + 10  # PostgreSQL notices the lost connection
    while len(world.listed()) > 1 and time.monotonic() < until:
        time.sleep(0.05)
    assert world.listed() == [(T, TWIN.branch, "prepared")]
    assert len(world.show(T).get_json()["branches"]) == 1
    assert world.commit(T, ONE).status_code == 404
    assert (
        world.prepare(T, Branch(OTHER.body, OTHER.rows, ONE.branch)).status_code == 200
    )
    assert world.commit(T, TWIN).status_code == 200
    assert world.visible() == 3
    assert not list(tmp_path.glob("*.spool"))


@pytest.mark.parametrize(
    ("point", "prepared", "visible"),
    [
        ("participant.after_prepare", 1, 0),
        ("participant.before_commit", 1, 0),
        ("participant.after_commit", 0, 3),
    ],
)
def test_a_participant_that_is_killed(
    made: tuple[World, str, str],
    tmp_path: Path,
    point: str,
    prepared: int,
    visible: int,
) -> None:
    """What was durable stands after the kill, and the lost answer can be asked for."""
    world, kind, url = made
    script = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
        from participant_support import KINDS, ONE
        world = KINDS[{kind!r}]({url!r})
        world.prepare("orders.7.1")
        world.commit("orders.7.1", ONE)
    """
    died = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={
            **os.environ,
            "TPC_FAILPOINT": point,
            "TPC_FAILPOINT_FILE": str(tmp_path / "fired"),
        },
        start_new_session=True,
        capture_output=True,
        timeout=60,
    )
    assert died.returncode == -signal.SIGKILL
    assert (world.in_doubt(), world.visible()) == (prepared, visible)
    assert world.prepare(T).status_code == (200 if prepared else 409)
    assert world.commit(T, ONE).status_code == 200
    assert (world.in_doubt(), world.visible()) == (0, 3)


@pytest.mark.parametrize("branches", [1, 3])
def test_flushes_of_a_transaction(postgres_database: str, branches: int) -> None:
    """PostgreSQL flushes once per prepare and once per commit, and not once more."""
    resource = TaggedRows(postgres_database, "orders")
    world = World(resource, lambda: 0)
    assert world.prepare("orders.0.1").status_code == 200
    before = flushes(postgres_database, resource)
    for n in range(branches):
        assert world.prepare(T, Branch(ONE.body, 3, f"{n}.0")).status_code == 200
    names = [Branch(ONE.body, 3, f"{n}.0") for n in range(branches)]
    assert world.commit(T, *names).status_code == 200
    world.show(T)
    world.listed()
    assert flushes(postgres_database, resource) - before == branches + 1


def flushes(url: str, resource: TaggedRows) -> int:
    """Count what the service's own sessions have flushed: they report at their end."""
    resource.close()
    time.sleep(0.3)
    with psycopg.connect(url) as connection:
        found = connection.execute(
            "SELECT sum(fsyncs) FROM pg_stat_io "
            "WHERE object = 'wal' AND backend_type = 'client backend'"
        ).fetchone()
    assert found is not None
    return int(found[0])
