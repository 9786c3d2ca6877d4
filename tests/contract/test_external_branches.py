"""Branches that are ended outside of the journal's database, on a folder of files."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.files import FilePlace
from support.participant import ONE, OTHER, Branch, World, files, orders, sqlite_url

T = "orders.7.1"
NEIGHBOUR = Branch(orders(7, 8), 2, "1.1")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = files(sqlite_url(tmp_path))
    assert made.prepare(T).status_code == 200
    assert made.prepare(T, NEIGHBOUR).status_code == 200
    yield made
    made.resource.close()


@pytest.fixture
def place(world: World, tmp_path: Path) -> FilePlace:
    return FilePlace(tmp_path / "participant.db.files")


def killed_between_branches(tmp_path: Path, verb: str) -> None:
    """Ask another process, which is killed after it has ended the first branch."""
    script = f"""
        import sys
        sys.path.insert(0, {str(Path(__file__).parent.parent)!r})
        from support.participant import Branch, ONE, files, orders
        world = files({sqlite_url(tmp_path)!r})
        neighbour = Branch(orders(7, 8), 2, "1.1")
        {verb}
    """
    fired = {"TPC_FAILPOINT_FILE": str(tmp_path / "fired")}
    ended = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)],
        env={**os.environ, "TPC_FAILPOINT": "participant.between_branches", **fired},
        start_new_session=True,
        capture_output=True,
        timeout=120,
    )
    assert ended.returncode == -signal.SIGKILL, ended.stderr


COMMIT = "world.commit('orders.7.1', ONE, neighbour)"
ABORT = "world.abort('orders.7.1')"


def test_a_commit_that_is_cut_short_is_gone_on_with(
    world: World, tmp_path: Path
) -> None:
    """Half of it is visible after the kill; the repeated request does the rest."""
    killed_between_branches(tmp_path, COMMIT)
    assert world.in_doubt() == 1 or world.visible() in (2, 3)
    assert world.commit(T, ONE, NEIGHBOUR).status_code == 200
    assert (world.in_doubt(), world.visible()) == (0, 5)


def test_what_is_left_half_done_is_ended_by_the_next_decision(
    world: World, place: FilePlace, tmp_path: Path
) -> None:
    """Of any transaction of the application, and as it was decided."""
    killed_between_branches(tmp_path, ABORT)
    assert len(os.listdir(place.waiting)) == 1
    assert world.prepare("orders.8.1", OTHER).status_code == 200
    assert world.commit("orders.8.1", OTHER).status_code == 200
    assert (os.listdir(place.waiting), world.visible()) == ([], OTHER.rows)


def test_a_branch_that_is_removed_by_hand_is_unknown(
    world: World, place: FilePlace
) -> None:
    """Nothing of its transaction is acknowledged as committed."""
    path = min(place.waiting.iterdir())
    path.unlink()
    assert world.commit(T, ONE, NEIGHBOUR).status_code == 404


def test_the_rest_of_a_half_done_commit_that_is_removed_by_hand(
    world: World, place: FilePlace, tmp_path: Path
) -> None:
    """It was decided commit, and is not there: unknown, never success."""
    killed_between_branches(tmp_path, COMMIT)
    (path,) = place.waiting.iterdir()
    path.unlink()
    answer = world.commit(T, ONE, NEIGHBOUR)
    assert (answer.status_code, answer.get_json()["state"]) == (404, "unknown")


def test_a_branch_that_is_committed_by_hand_is_no_abort(
    world: World, place: FilePlace
) -> None:
    """An abort of it is a conflict, and a commit of it is done already."""
    path = min(place.waiting.iterdir())
    path.rename(place.folder / path.name)
    assert world.abort(T).status_code == 409
    assert world.commit(T, ONE, NEIGHBOUR).status_code == 200
    assert world.visible() == 5
