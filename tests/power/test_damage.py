"""A disk lies: a bit is flipped, or pages are gone. Nothing is acknowledged wrongly."""

from __future__ import annotations

import contextlib
import random
import re
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from power.damage import PAGE, STORES, Answers, Damage, answers, judge

SAMPLE = 24
SHARDS = 8

pytestmark = pytest.mark.ci


class Victim:
    """A small file, and copies of it that are damaged."""

    def __init__(self, store: Any, folder: Path) -> None:
        self._store, self._folder, self._copies = store, folder, 0
        store.make(folder)
        self.file = folder / store.name
        self.data = self.file.read_bytes()
        self._truth: Answers = answers(store, self._copy(self.data))

    def _copy(self, data: bytes) -> Path:
        self._copies += 1
        folder = self._folder / str(self._copies)
        folder.mkdir()
        (folder / self._store.name).write_bytes(data)
        return folder

    def judge(self, data: bytes) -> Damage:
        """Ask of a copy with this in it, after the storage check of another."""
        return judge(self._store, self._copy(data), self._truth)

    def flipped(self, at: int, bit: int) -> bytes:
        data = bytearray(self.data)
        data[at] ^= 1 << bit
        return bytes(data)


@pytest.fixture(params=STORES)
def victim(request, tmp_path) -> Victim:
    return Victim(STORES[request.param], tmp_path)


def assert_honest(damage: Damage, where: object) -> None:
    """No decision is another, each error is a line, other answers are reported."""
    assert not damage.decided, (where, damage)
    assert not damage.unclear, (where, damage)
    assert damage.reported or not damage.wrong, (where, damage)


def flips(victim: Victim, seed: str) -> Iterator[tuple[int, int]]:
    drawn = random.Random(seed)
    return ((at, drawn.randrange(8)) for at in range(len(victim.data)))


def test_a_flipped_bit_is_no_other_decision(victim):
    """Read again it is as it was, or refused; or the storage check names the damage."""
    for at, bit in random.Random(7).sample([*flips(victim, "ci")], SAMPLE):
        assert_honest(victim.judge(victim.flipped(at, bit)), (at, bit))


HIGHEST = 7
"""The bit that makes a letter a part of no text."""


def test_who_is_refused_gives_the_lock_back(victim):
    """A column cannot be read as text: who writes next does not wait for nobody."""
    texts = re.compile(rb"[0-9a-f]{64}|traceparent")
    starts = [found.start() for found in texts.finditer(victim.data)]
    assert starts
    for at in starts:
        assert_honest(victim.judge(victim.flipped(at, HIGHEST)), at)


LETTER = 5
"""The bit that makes a small letter a large one, of the same name to SQLite."""


def columns(victim: Victim) -> list[tuple[str, int]]:
    """Return each column's name wherever SQLite's own record of the tables has it."""
    of = {"of": "sqlite_schema"}
    with contextlib.closing(sqlite3.connect(victim.file)) as database:
        ask = database.execute
        pages = {p for (p,) in ask("SELECT pageno FROM dbstat WHERE name = :of", of)}
        tables = ask("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        named = "SELECT name FROM pragma_table_info(?)"
        names = {column for table in tables for (column,) in ask(named, table)}
    return [
        (name, found.start())
        for name in sorted(names)
        for found in re.finditer(rf"\b{name}\b".encode(), victim.data)
        if found.start() // PAGE + 1 in pages
    ]


def test_a_column_in_other_letters_is_the_same(victim):
    """SQLite's own record of a table's columns is damaged by one bit: all is read."""
    found = columns(victim)
    assert {"state", "participant"} <= {name for name, _ in found}
    for name, at in found:
        assert_honest(victim.judge(victim.flipped(at, LETTER)), (name, at))


@pytest.mark.parametrize("word", [rb"orders\.0\.2", rb"committedcommit"])
def test_a_row_that_is_no_row_any_more_is_refused_in_a_line(victim, word):
    """Wherever an id, a state or a decision stands, lists included."""
    for found in re.finditer(word, victim.data):
        for at in (found.start() + 6, found.end() - 1):
            assert_honest(victim.judge(victim.flipped(at, 2)), (word, at))


VERSION = rb"\x04(\t)M#[0-9a-f]{32}tagged_rows"
"""The row that says whose tables they are, and the kind of the version in it: 1."""


@pytest.mark.parametrize("victim", ["journal"], indirect=True)
@pytest.mark.parametrize("bit", range(8))
def test_a_version_that_is_no_number_is_named(victim, bit):
    """Where the tables are opened, in one line."""
    (found,) = re.finditer(VERSION, victim.data)
    assert_honest(victim.judge(victim.flipped(found.start(1), bit)), bit)


ZERO = 3
"""The bit that makes a NULL the number zero, which SQLite's own check cannot see."""


@pytest.mark.parametrize("victim", ["log"], indirect=True)
def test_what_was_not_there_is_not_read_as_zero(victim):
    """No one is left out of who is waited for, and no one was told a part only."""
    nulls = [
        found.start() - before
        for found in re.finditer(
            rb"(?:orders\.2|other\.1)\.2(?:ledger|notifier)", victim.data
        )
        for before in range(1, 12)
        if victim.data[found.start() - before] == 0
    ]
    assert nulls
    for at in nulls:
        assert_honest(victim.judge(victim.flipped(at, ZERO)), at)


@pytest.mark.nightly
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_column_of_another_name_is_not_read_as_a_text(victim, shard):
    """SQLite takes a quoted name for a text where there is no such column: any bit."""
    letters = [(at, n) for name, at in columns(victim) for n in range(len(name))]
    flips = [(at + n, bit) for at, n in letters for bit in range(8)]
    for at, bit in flips[shard::SHARDS]:
        assert_honest(victim.judge(victim.flipped(at, bit)), (at, bit))


@pytest.mark.nightly
@pytest.mark.parametrize("shard", range(SHARDS))
def test_a_bit_of_each_byte(victim, shard):
    """The same at every byte of the file."""
    for at, bit in [*flips(victim, f"{shard}")][shard::SHARDS]:
        assert_honest(victim.judge(victim.flipped(at, bit)), (at, bit))


def test_a_file_that_was_cut_is_refused(victim):
    """At every third page, so that no table of it is whole: nothing is made anew."""
    for pages in range(1, len(victim.data) // PAGE, 3):
        damage = victim.judge(victim.data[: pages * PAGE])
        assert_honest(damage, pages)
        assert damage.reported
