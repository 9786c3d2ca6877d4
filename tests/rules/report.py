"""The table: as it is printed, and as it stands in `tests/README.md`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from rules.mutants import Mutant
from rules.runs import Tried

HEAD: Final = ("rule", "red?", "mutation", "test")
_WIDTHS: Final = (17, 4, 72)


def cells(tried: Tried) -> tuple[str, ...]:
    """Return a row's cells."""
    mutant = tried.mutant
    return (str(mutant.rule), tried.word, mutant.words, mutant.test)


def line(row: Sequence[str]) -> str:
    """Return a line of the table; the last cell is as long as it is."""
    fixed = zip(row, _WIDTHS, strict=False)
    return "  ".join([*(cell.ljust(width) for cell, width in fixed), row[-1]])


def table(mutants: Sequence[Mutant]) -> str:
    """Return the table of all mutants in Markdown."""
    rows = [
        "| rule | taken out | the test that turns red |",
        "|---|---|---|",
        *(f"| {m.rule} | {m.words} | `{m.test}` |" for m in mutants),
    ]
    return "\n".join(rows)
