"""The pages that the tests of this folder hold against the code."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from support.following import block, blocks, without_blocks

from tracing_2pc.cli.arguments import parser

__all__ = ["block", "blocks"]

ROOT: Final = Path(__file__).parents[2]
README: Final = ROOT / "README.md"

PAGES: Final = [
    README,
    *sorted((ROOT / "docs").glob("*.md")),
    ROOT / "CHANGELOG.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "SECURITY.md",
    *sorted(
        ROOT / folder / "README.md"
        for folder in ("bench", "compose", "dashboards", "examples", "participants")
    ),
    *sorted((ROOT / "tools").rglob("README.md")),
]
"""What users and operators read."""

_CODE: Final = re.compile(r"(?<!`)`([^`]+)`(?!`)")


def page(name: str) -> str:
    """Return a page of the manual."""
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


def words(text: str) -> list[str]:
    """Return what stands in the text as code, outside of blocks, on one line each."""
    return [" ".join(word.split()) for word in _CODE.findall(without_blocks(text))]


def rows(text: str, head: str, *, tables: int = 1) -> list[list[str]]:
    """Return the cells of the one table, or of all, that have this first line."""
    found = re.findall(rf"^{re.escape(head)}\n\|[-|]+\|\n((?:\|.*\n)+)", text, re.M)
    assert len(found) == tables, head
    return [_cells(line) for table in found for line in table.splitlines()]


def table_rows(text: str) -> list[str]:
    """Return the lines of all tables, as they are written."""
    return re.findall(r"^\|.*\|$", without_blocks(text), re.MULTILINE)


@functools.cache
def make_targets() -> set[str]:
    """Return the targets of the Makefile."""
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    return set(re.findall(r"^([a-z][a-z0-9-]*):(?!=)", text, re.M))


@functools.cache
def options() -> dict[str, set[str]]:
    """Return the options of each command of `tracing-2pc`, and of its actions."""
    (choices,) = [a.choices for a in parser()._actions if a.metavar == "command"]
    assert isinstance(choices, dict)
    found: dict[str, set[str]] = {}
    for name, command in choices.items():
        found[name] = {o for a in command._actions for o in a.option_strings}
        for nested in [a.choices for a in command._actions if a.metavar == "action"]:
            for word, action in nested.items():
                own = {o for a in action._actions for o in a.option_strings}
                found[f"{name} {word}"] = found[name] | own
    return found


def _cells(line: str) -> list[str]:
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def pages() -> Iterator[tuple[str, str]]:
    """Yield each page's path and text."""
    for path in PAGES:
        yield str(path.relative_to(ROOT)), path.read_text(encoding="utf-8")
