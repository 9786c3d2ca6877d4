"""`python -m bench counts`: exact counts, and a command that fails where one is off."""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs import assert_counts_hold

from bench import flushes
from bench.__main__ import main
from bench.counts import FAMILIES
from bench.counts.count import Count, Expected

MARKS = {
    "coordinator-flushes": (),
    "branches": pytest.mark.nightly,
    "spark-jobs": (pytest.mark.spark, pytest.mark.ci),
}
"""Of a family that is counted at each edit, one that takes minutes, and Spark's."""


@pytest.mark.parametrize(
    "family",
    [
        pytest.param(family, marks=MARKS.get(family, pytest.mark.ci))
        for family in FAMILIES
    ],
)
def test_the_counts_hold(family, tmp_path):
    """What a transaction costs is what the README of `bench` says it costs."""
    assert_counts_hold(family, tmp_path)


@pytest.fixture
def one_too_many(monkeypatch) -> None:
    def counts(folder: Path) -> Iterator[Count]:
        promise = Expected(2, "because two are enough")
        yield promise.count("held", 4, times=2)
        yield promise.count("broken", 3)

    monkeypatch.setitem(FAMILIES, "requests", counts)  # type: ignore[arg-type]


@pytest.mark.usefixtures("one_too_many")
def test_a_count_that_does_not_hold_is_an_error(capsys):
    """Exit code 1, every row all the same, and why the number should be another."""
    assert main(["counts", "requests"]) == 1
    head, held, broken = capsys.readouterr().out.splitlines()
    assert head.split() == ["count", "expected", "actual", "ok"]
    assert held.split() == ["held", "4", "4", "yes"]
    assert " ".join(broken.split()) == "broken 2 3 NO: because two are enough"


@pytest.mark.usefixtures("one_too_many")
def test_json_is_one_object(capsys, tmp_path):
    """Instead of the table, or beside it in a file; the exit code is the same."""
    assert main(["counts", "requests", "--json"]) == 1
    printed = json.loads(capsys.readouterr().out)
    assert not printed["ok"]
    row = {"count": "broken", "expected": 2, "actual": 3, "ok": False}
    assert printed["counts"][1] == {**row, "why": "because two are enough"}
    assert main(["counts", "requests", "--json", str(tmp_path / "counts")]) == 1
    assert json.loads((tmp_path / "counts").read_text()) == printed
    assert "broken" in capsys.readouterr().out


def test_a_family_that_is_not_there_is_refused():
    """A typing error counts nothing, and must not look as if all held."""
    with pytest.raises(SystemExit) as refused:
        main(["counts", "request"])
    assert refused.value.code == 2


def test_without_strace_nothing_is_skipped(monkeypatch, tmp_path):
    """Where SQLite's flushes cannot be counted the command says so, and fails."""
    monkeypatch.setattr(shutil, "which", lambda _: None)
    with pytest.raises(RuntimeError, match="strace"):
        flushes.on_sqlite(lambda url, measured: None, tmp_path)


def test_a_flush_counts_between_its_marks():
    """Once, though its call was interrupted; a checkpoint's is counted apart."""
    trace = """\
7 fdatasync(5</f/x.db-wal>) = 0
7 fsync(6</f/one.mark>) = 0
8 fdatasync(5</f/x.db-wal> <unfinished ...>
7 fsync(9</f/other>) = 0
8 <... fdatasync resumed>) = 0
7 fdatasync(5</f/x.db>) = 0
7 fsync(6</f/one.mark>) = 0
7 fsync(9</f/other>) = 0
7 fsync(6</f/none.mark>) = 0
7 fsync(6</f/none.mark>) = 0
"""
    found = flushes.read_trace(trace, Path("/f/x.db"))
    assert found == {"one": 2, "none": 0, flushes.CHECKPOINTS: 1}
