"""A rule is taken out of the code, a run is cut short, and what it left tells.

No oracle looks at rows: the checker is told, by log and journals alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from rules import runs
from rules.mutants import MUTANTS, Mutant
from rules.runs import Tried

STORY = "fencing/test_explained.py::test_it_is_explained[{}]"

TOLD = (
    ("1: decide takes a participant that has not voted"
     "+1: the coordinator asks for a commit that lacks a vote",
     "with_a_vote_that_is_missing"),
    ("2: a commit leaves before it is decided", "after_the_votes"),
    ("4: a participant commits all that is prepared", "with_twins"),
    ("begin first: tasks run before their attempt is on record", "after_the_votes"),
    ("seal: a commit does not seal", "between_two_commits"),
    ("7: begin leaves earlier undecided attempts active",
     "after_the_votes_and_once_more"),
    ("8: recovery aborts without asking the log", "with_recovery_beside"),
    ("8: the driver aborts without asking the log", "with_a_task_that_fails"),
    ("11: and the driver asks for it", "of_a_participant_before_it_commits"),
    ("11: no answer counts as an acknowledgement",
     "of_a_participant_before_it_commits"),
    ("14: and a decision may turn", "woken_after_another_began"),
    ("15: the driver does as it wanted, not as the log says",
     "woken_after_another_began"),
    ("16: seals above forgotten_through are dropped", "forgotten"),
    ("16: tombstones are dropped whatever forgotten_through",
     "forgotten_with_a_tombstone"),
    ("17: all three", "replayed_and_forgotten"),
    ("18: all of them", "replayed"),
    ("19: participants are told forgotten_through that is not durable",
     "forgotten_before_recovery"),
    ("20: a prepare does not look at seal and forgotten_through again",
     "with_an_upload_that_ends_late"),
)  # fmt: skip
"""Mutants of the table, joined by a plus, and the story that shows it."""

QUICK = 3


def _mutant(names: str, story: str) -> Mutant:
    known = {f"{mutant.rule}: {mutant.words}": mutant for mutant in MUTANTS}
    chosen = [known[name] for name in names.split("+")]
    edits = dict.fromkeys(edit for mutant in chosen for edit in mutant.edits)
    return Mutant(chosen[0].rule, names, STORY.format(story), tuple(edits))


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    with runs.pristine() as copied:
        yield copied


@pytest.mark.parametrize(
    ("names", "story"),
    [
        pytest.param(*told, marks=pytest.mark.ci if n < QUICK else pytest.mark.nightly)
        for n, told in enumerate(TOLD)
    ],
    ids=[names.replace(" ", "_") for names, _ in TOLD],
)
def test_the_checker_tells_without_an_oracle(source, names, story):
    """What fails is that a run is explained, and nothing before it."""
    mutant = _mutant(names, story)
    before = runs.greens(source, [mutant])[mutant.node]
    tried: Tried = runs.one(source, mutant, before)
    assert tried.red, (tried.word, tried.why)
    assert "(rule " in tried.why, tried.why
