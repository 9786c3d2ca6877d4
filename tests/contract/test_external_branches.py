"""Branches that are ended outside of the journal's database, on a folder of files."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.branches import ONE, OTHER, Branch, orders
from support.elsewhere import elsewhere
from support.files import FilePlace
from support.kinds import files, sqlite_url
from support.participant import World

T = "orders.7.1"
NEIGHBOUR = Branch(orders(7, 8), 2, "1.1")
BETWEEN = "participant.between_branches"


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    made = files(sqlite_url(tmp_path))
    assert made.prepare(T).status_code == 200
    assert made.prepare(T, NEIGHBOUR).status_code == 200
    yield made
    made.resource.close()


@pytest.fixture
def place(world, tmp_path) -> FilePlace:
    return FilePlace(tmp_path / "participant.db.files")


def killed_between_branches(tmp_path: Path, verb: str) -> None:
    """Ask another process, which is killed after it has ended the first branch."""
    about = (end, sqlite_url(tmp_path), verb)
    assert elsewhere(tmp_path, *about, killed_at=BETWEEN) == "killed"


def end(url: str, verb: str) -> None:
    """Ask for the end of both branches; the main program of a process."""
    world = files(url)
    if verb == "commit":
        world.commit(T, ONE, NEIGHBOUR)
    else:
        world.abort(T)


def test_what_is_left_half_done_is_ended_by_the_next_decision(world, place, tmp_path):
    """Of any transaction of the application, and as it was decided."""
    killed_between_branches(tmp_path, "abort")
    assert len(os.listdir(place.waiting)) == 1
    assert world.prepare("orders.8.1", OTHER).status_code == 200
    assert world.commit("orders.8.1", OTHER).status_code == 200
    assert (os.listdir(place.waiting), world.visible()) == ([], OTHER.rows)


def test_a_branch_that_is_removed_by_hand_is_unknown(world, place):
    """Nothing of its transaction is acknowledged as committed."""
    path = min(place.waiting.iterdir())
    path.unlink()
    assert world.commit(T, ONE, NEIGHBOUR).status_code == 404


def test_the_rest_of_a_half_done_commit_that_is_removed_by_hand(world, place, tmp_path):
    """It was decided commit, and is not there: unknown, never success."""
    killed_between_branches(tmp_path, "commit")
    (path,) = place.waiting.iterdir()
    path.unlink()
    answer = world.commit(T, ONE, NEIGHBOUR)
    assert (answer.status_code, answer.get_json()["state"]) == (404, "unknown")


def test_a_branch_that_is_committed_by_hand_is_no_abort(world, place):
    """An abort of it is a conflict, and a commit of it is done already."""
    path = min(place.waiting.iterdir())
    path.rename(place.folder / path.name)
    assert world.abort(T).status_code == 409
    assert world.commit(T, ONE, NEIGHBOUR).status_code == 200
    assert world.visible() == 5
