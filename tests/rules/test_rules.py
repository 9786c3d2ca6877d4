"""The table of mutants has not rotted. `make rules` tries all of them; here a few."""

from __future__ import annotations

import dataclasses
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rules import report, runs
from rules.copies import ROOT, DoesNotApplyError, Edit, edited
from rules.mutants import MUTANTS, RULES, Mutant
from rules.runs import Tried
from rules.trial import Verdict

QUICK = [next(m for m in MUTANTS if m.rule == rule) for rule in (8, 10, 15)]
GREEN = Verdict("passed")


def test_every_rule_can_be_taken_out() -> None:
    """A rule of ARCHITECTURE.md that no mutant breaks has no test behind it."""
    assert {mutant.rule for mutant in MUTANTS} >= set(RULES)
    numbers = [
        int(line.split("|")[1])
        for line in (ROOT / "ARCHITECTURE.md").read_text().splitlines()
        if line.startswith("| ") and line.split("|")[1].strip().isdigit()
    ]
    assert numbers == list(RULES)


@pytest.mark.parametrize(
    "mutant", MUTANTS, ids=lambda m: f"{m.rule}-{m.words}".replace(" ", "_")
)
def test_every_mutation_still_applies(mutant: Mutant) -> None:
    """Each edit finds its place exactly once, and what it makes is a program."""
    for file, text in edited(mutant.edits, ROOT).items():
        compile(text, file, "exec")


def test_every_named_test_exists() -> None:
    """And is one test: none of them is a whole file or function of many cases."""
    nodes = sorted({mutant.node for mutant in MUTANTS})
    command = [sys.executable, "-m", "pytest", "--collect-only", "-q"]
    found = subprocess.run(
        [*command, "-p", "no:cacheprovider", *nodes],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=170,
    )
    assert found.returncode == 0, found.stdout + found.stderr
    collected = [line for line in found.stdout.splitlines() if "::" in line]
    assert sorted(collected) == nodes


def test_the_table_is_in_the_readme() -> None:
    """What it says is tried: `python -m rules --table` prints it."""
    text = (ROOT / "tests" / "README.md").read_text()
    assert report.table(MUTANTS) in text


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    with runs.pristine() as copied:
        yield copied


@pytest.mark.parametrize("mutant", QUICK, ids=lambda m: str(m.rule))
def test_a_rule_taken_out_turns_its_test_red(source: Path, mutant: Mutant) -> None:
    """The copy is what is tested: the package beside it is whole."""
    before = runs.greens(source, [mutant])[mutant.node]
    tried = runs.one(source, mutant, before)
    assert tried.red, (tried.word, tried.why)


@pytest.mark.parametrize(
    ("new", "word"),
    [
        ("set()\n", "red"),
        ("self.recover()  # as it was\n", "SURVIVED"),
        ("self.no_such_method()\n", "broken"),
    ],
)
def test_a_mutation_is_judged(source: Path, new: str, word: str) -> None:
    """One that nobody notices is said so, and an error of ours is no red."""
    (old,) = QUICK[1].edits
    mutant = dataclasses.replace(
        QUICK[1], edits=(Edit(old.file, "self.recover()\n", new),)
    )
    assert runs.one(source, mutant, GREEN).word == word


def test_a_test_that_was_not_green_proves_nothing(source: Path) -> None:
    """Red before and red after is not counted."""
    red = Verdict("failed", "AssertionError")
    assert not runs.one(source, QUICK[0], red).red
    assert Tried(QUICK[0], red, red).word == "NOT GREEN WITHOUT IT: failed"


def test_an_edit_that_does_not_apply_is_said_so(source: Path) -> None:
    """Nowhere, or in two places: the mutation must be written anew."""
    for old in ("no such text", "import"):
        edits = (Edit("tracing_2pc/states.py", old, ""),)
        with pytest.raises(DoesNotApplyError, match="not once"):
            edited(edits, source)
        mutant = dataclasses.replace(QUICK[0], edits=edits)
        assert runs.one(source, mutant, GREEN).word == "does not apply"
