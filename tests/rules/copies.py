"""Copies of the project, and a rule taken out of one."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("tracing_2pc", "participants", "bench", "tests", "pyproject.toml")
"""What a test needs to run elsewhere."""

_LEFT_OUT: Final = shutil.ignore_patterns(".*")


@dataclasses.dataclass(frozen=True, slots=True)
class Edit:
    """A piece of source that stands in a file exactly once, and what replaces it."""

    file: str
    old: str
    new: str


class DoesNotApplyError(Exception):
    """The source is not what a mutation was written for: the mutation has rotted."""


def copy(source: Path, to: Path) -> Path:
    """Copy what a test needs, compiled or not; return where it is.

    A compiled file goes by the time and size of its source, which an edit changes.
    """
    to.mkdir(parents=True, exist_ok=True)
    for name in COPIED:
        if (source / name).is_dir():
            shutil.copytree(source / name, to / name, ignore=_LEFT_OUT)
        else:
            shutil.copy2(source / name, to / name)
    return to


def apply(edits: Iterable[Edit], to: Path) -> None:
    """Make the edits in a copy.

    Raises:
        DoesNotApplyError: as `edited`.
    """
    for file, text in edited(edits, to).items():
        (to / file).write_text(text)


def edited(edits: Iterable[Edit], source: Path) -> dict[str, str]:
    """Return the text that each edited file would have; write nothing.

    Raises:
        DoesNotApplyError: there is no such place, or more than one.
    """
    texts: dict[str, str] = {}
    for edit in edits:
        text = texts.get(edit.file) or (source / edit.file).read_text()
        if (found := text.count(edit.old)) != 1:
            raise DoesNotApplyError(
                f"{edit.file} holds this {found} times, not once: {edit.old!r}"
            )
        texts[edit.file] = text.replace(edit.old, edit.new)
    return texts
