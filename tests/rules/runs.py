"""Every mutant tried, several at a time, each on a copy of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from support.waiting import RED_AT_LAST

from rules import trial
from rules.copies import ROOT, copy
from rules.edits import DoesNotApplyError, apply
from rules.mutants import Mutant
from rules.trial import Verdict


@dataclasses.dataclass(frozen=True, slots=True)
class Tried:
    """A mutant, and how its test ended: on the copy as it is, and with the rule out."""

    mutant: Mutant
    before: Verdict
    after: Verdict

    @property
    def red(self) -> bool:
        """Green before, red after: the test guards the rule."""
        return (self.before.outcome, self.after.outcome) == ("passed", "failed")

    @property
    def word(self) -> str:
        """What to print."""
        if self.red:
            return "red"
        if self.before.outcome != "passed":
            return f"NOT GREEN WITHOUT IT: {self.before.outcome}"
        return "SURVIVED" if self.after.outcome == "passed" else self.after.outcome

    @property
    def why(self) -> str:
        """What the test said."""
        return self.after.why if self.before.outcome == "passed" else self.before.why


@contextlib.contextmanager
def pristine() -> Iterator[Path]:
    """Copy the project once, so that later changes of it are in nobody's way."""
    with tempfile.TemporaryDirectory(prefix="tpc-rules-") as folder:
        yield copy(ROOT, Path(folder) / "pristine")


def greens(
    source: Path, mutants: Sequence[Mutant], at_once: int = 1
) -> dict[str, Verdict]:
    """Run the tests of all mutants on the copy as it is, which compiles it."""
    tests = sorted({mutant.node for mutant in mutants})
    shares = [tests[n::at_once] for n in range(at_once) if tests[n::at_once]]
    with ThreadPoolExecutor(at_once) as threads:
        ended = list(threads.map(lambda share: trial.run(source, share), shares))
    return {
        test: verdict
        for share, verdicts in zip(shares, ended, strict=True)
        for test, verdict in zip(share, verdicts, strict=True)
    }


def one(source: Path, mutant: Mutant, before: Verdict) -> Tried:
    """Take one rule out of a new copy, and run its test if it was green before."""
    if before.outcome != "passed":
        return Tried(mutant, before, before)
    with tempfile.TemporaryDirectory(prefix="tpc-rule-") as folder:
        mutated = copy(source, Path(folder))
        try:
            apply(mutant.edits, mutated)
        except DoesNotApplyError as error:
            return Tried(mutant, before, Verdict("does not apply", str(error)))
        return Tried(mutant, before, trial.run(mutated, [mutant.node], RED_AT_LAST)[0])


def every(source: Path, mutants: Sequence[Mutant], at_once: int) -> Iterator[Tried]:
    """Try mutants; yield them in the order of the table."""
    before = greens(source, mutants, at_once)
    with ThreadPoolExecutor(at_once) as threads:
        yield from threads.map(lambda m: one(source, m, before[m.node]), mutants)
