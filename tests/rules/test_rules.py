"""The table of mutants has not rotted. `make rules` tries all of them; here a few."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.selection import everything

from rules import runs
from rules.copies import ROOT
from rules.edits import DoesNotApplyError, Edit, edited
from rules.mutants import MUTANTS, RULES, table
from rules.runs import Tried
from rules.trial import Verdict

QUICK = [next(m for m in MUTANTS if m.rule == rule) for rule in (8, 10, 15)]
GREEN = Verdict("passed")


def test_every_rule_can_be_taken_out():
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
def test_every_mutation_still_applies(mutant):
    """Each edit finds its place exactly once, and what it makes is a program."""
    try:
        texts = edited(mutant.edits, ROOT)
    except DoesNotApplyError as error:
        entry = f"{mutant.rule}, {mutant.words!r} of tests/rules/mutants.py"
        pytest.fail(f"{entry}: {error}")
    for file, text in texts.items():
        compile(text, file, "exec")


def test_every_named_test_exists(request):
    """And is one test: none of them is a whole file or function of many cases."""
    collected = {item.nodeid for item in everything(request.config)}
    assert {mutant.node for mutant in MUTANTS} - collected == set()


def test_the_table_is_in_the_readme():
    """What it says is tried: `python -m rules --table` prints it."""
    text = (ROOT / "tests" / "README.md").read_text()
    assert table(MUTANTS) in text


@pytest.fixture(scope="module")
def source() -> Iterator[Path]:
    with runs.pristine() as copied:
        yield copied


@pytest.mark.ci
@pytest.mark.parametrize("mutant", QUICK, ids=lambda m: str(m.rule))
def test_a_rule_taken_out_turns_its_test_red(source, mutant):
    """The copy is what is tested: the package beside it is whole."""
    before = runs.greens(source, [mutant])[mutant.node]
    tried = runs.one(source, mutant, before)
    assert tried.red, (tried.word, tried.why)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("new", "word"),
    [
        ("set()", "red"),
        ("self.recover()", "SURVIVED"),
        ("self.no_such_method()", "broken"),
    ],
)
def test_a_mutation_is_judged(source, new, word):
    """One that nobody notices is said so, and an error of ours is no red."""
    (old,) = QUICK[1].edits
    mutant = dataclasses.replace(QUICK[1], edits=(dataclasses.replace(old, new=new),))
    assert runs.one(source, mutant, GREEN).word == word


def test_a_test_that_was_not_green_proves_nothing(source):
    """Red before and red after is not counted."""
    red = Verdict("failed", "AssertionError")
    assert not runs.one(source, QUICK[0], red).red
    assert Tried(QUICK[0], red, red).word == "NOT GREEN WITHOUT IT: failed"


STATES = "tracing_2pc/core/states.py"


@pytest.mark.parametrize(
    ("where", "old", "new", "why"),
    [
        ("no_such", "x", "", r"no such class.*Near it"),
        ("advance", "TABLE[event]", "1", r"0 times, not once.*Lines like it.*TABLE\["),
        (
            "TransactionState",
            "__any[state, event]",
            "1",
            "0 times, not once. It stands in",
        ),
        ("TransactionState", "__x = __y", "", r"\d times, not once"),
        ("advance", "table[__key]", "gone[__key]", "`gone`, which the file does not"),
        ("advance", "table[__key]", "__other", "__other is not in what is replaced"),
    ],
)
def test_an_edit_that_does_not_apply_is_said_so(source, where, old, new, why):
    """Nowhere, or in two places, or with names that are gone: what to mend is said."""
    edits = (Edit(STATES, where, old, new),)
    with pytest.raises(DoesNotApplyError, match=f"(?s){STATES}.*{why}"):
        edited(edits, source)
    mutant = dataclasses.replace(QUICK[0], edits=edits)
    assert runs.one(source, mutant, GREEN).word == "does not apply"


BEFORE = '''
class Sender:
    """Words."""

    def send(self, rows, *, to="you"):
        """More words."""
        # a comment
        if rows:
            first = pick(
                rows, key="a",
                low=1,
            )
            sql = ("SELECT 1 "
                   "WHERE FALSE")
            return first
        return None
'''


@pytest.mark.parametrize(
    ("old", "new", "line"),
    [
        (
            "pick(__rows, ..., low=__low)",
            "pick(..., low=__low + 1)",
            "pick(low=1 + 1, key='a')",
        ),
        ("__x = pick(...)", "__x = 0", "first = 0"),
        ("__x = pick(...)", "", "pass"),
        ("if __rows: ...", "if not __rows: ...", "if not rows:"),
        ("return None", "raise", "raise"),
        ("return __x", "", "2 times"),
        ("WHERE FALSE", "", "sql = 'SELECT 1 '"),
    ],
)
def test_edits(tmp_path, old, new, line):
    """The language of `edits`: line breaks, comments and docstrings don't count."""
    (tmp_path / "sender.py").write_text(BEFORE)
    edit = Edit("sender.py", "send", old, new, in_text=old == "WHERE FALSE")
    if line.endswith("times"):
        with pytest.raises(DoesNotApplyError, match=line):
            edited([edit], tmp_path)
        return
    lines = edited([edit], tmp_path)["sender.py"].splitlines()
    assert line in " ".join(text.strip() for text in lines)
