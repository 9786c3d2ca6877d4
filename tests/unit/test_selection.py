"""What `make test` leaves out: its list names tests that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from support.selection import A_KILL, CLUSTER_SMOKES, MORE, SPARK_SMOKES

TESTS = Path(__file__).parents[1]
WRITTEN = {
    path.relative_to(TESTS).as_posix(): path.read_text(encoding="utf-8")
    for path in TESTS.rglob("test_*.py")
}


def functions(place: str) -> set[str]:
    texts = [text for path, text in WRITTEN.items() if place in path]
    return {name for text in texts for name in re.findall(r"def (test_\w+)\(", text)}


@pytest.mark.parametrize("node", [*SPARK_SMOKES, *CLUSTER_SMOKES, A_KILL])
def test_what_is_kept_is_there(node: str) -> None:
    """A renamed test would be left out, or all of its variants kept."""
    place, _, name = node.partition("::")
    assert name.partition("[")[0] in functions(place)


@pytest.mark.parametrize(("place", "word"), MORE)
def test_what_is_left_out_is_there(place: str, word: str) -> None:
    """A file, and a part of a test's name; without _ it is the name of a variant."""
    names = functions(place)
    part = word.partition("[")[0]
    assert names
    assert "_" not in part or [name for name in names if part in name]
