"""Prints: safe on any terminal, aligned, coloured where a person looks."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import sys
import textwrap
import threading
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TextIO

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.inspection.wording import format_distance, format_time

_NOTHING_DONE: Final = "nothing was done"
_COLOURS: Final = {"red": "31", "yellow": "33", "green": "32", "bold": "1"}
_WIDEST: Final = 60
"""Characters of a cell that others stand behind."""

SOON: Final = 2.0
"""Seconds for which nothing says what is waited for."""

_PLAIN_WIDTH: Final = 88
"""Of prose where no terminal has a width."""


def safe(text: object, longest: int = 300) -> str:
    """Return foreign text in one line that changes nothing on a terminal.

    Control characters, escape sequences and marks that turn the direction of writing
    become question marks; a longer text is cut.
    """
    whole = str(text)
    shown = "".join(c if c.isprintable() else "?" for c in whole[:longest])
    return f"{shown[:-1]}…" if len(whole) > longest else shown


def paint(text: str, colour: str | None, *, on: TextIO | None = None) -> str:
    """Colour a text that is already safe, on a terminal that may have colours."""
    if colour is None or os.environ.get("NO_COLOR") or not is_smart(on or sys.stdout):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def is_smart(stream: TextIO) -> bool:
    """Whether it is a terminal that knows escape sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def table(rows: Sequence[Sequence[object]], indent: str = "") -> list[str]:
    """Align rows of cells; the last cell of a row is as long as the line lets it."""
    cells = [[safe(cell, _WIDEST) for cell in row[:-1]] for row in rows]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    before = len(indent) + sum(widths) + 2 * len(widths)
    left = shutil.get_terminal_size().columns - before if sys.stdout.isatty() else 300
    return [
        (
            indent
            + "".join(f"{c:<{w}}  " for c, w in zip(row, widths, strict=True))
            + safe(whole[-1], max(20, left))
        ).rstrip()
        for row, whole in zip(cells, rows, strict=True)
    ]


def prose(text: str, indent: str = "", first: str | None = None) -> list[str]:
    """Wrap a sentence; `first` stands before its first line instead of the indent."""
    width = _PLAIN_WIDTH
    if sys.stdout.isatty():
        width = max(40, min(100, shutil.get_terminal_size().columns))
    before = indent if first is None else safe(first).ljust(len(indent))
    return textwrap.wrap(
        safe(text, 2000), width, initial_indent=before, subsequent_indent=indent
    ) or [before.rstrip()]


def when(at: float | None, now: float) -> str:
    """Return how long ago or in how long, and the time in UTC."""
    return "never" if at is None else f"{format_distance(at, now)} ({format_time(at)})"


def print_either(
    options: argparse.Namespace, item: dict[str, Any], lines: Iterable[str]
) -> None:
    """Print an item for programs, or for people lines that are already safe."""
    print(json.dumps(item) if options.json else "\n".join(lines), flush=True)


def print_item(options: argparse.Namespace, item: dict[str, Any], line: str) -> None:
    """Print an item for programs or its line for people, at once."""
    print_either(options, item, [safe(line, 2000)])


def progress(text: str) -> None:
    """Show how far long work is, on a terminal; the next text replaces it."""
    if is_smart(sys.stderr):
        print(f"\r\x1b[K{safe(text)}", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def asking(names: Iterable[str]) -> Iterator[None]:
    """Show after `SOON` which participants are waited for, as long as that lasts."""
    timer = threading.Timer(SOON, progress, [f"asking {', '.join(names)} …"])
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()
        progress("")


def headed(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield a section; nothing where it is empty."""
    inside = list(lines)
    if inside:
        yield ""
        yield paint(title, "bold")
        yield from inside


def confirmed(question: str, words: Sequence[str]) -> bool:
    """Ask on the terminal; return whether one of the words was typed."""
    print(f"{safe(question, 400)} ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() in words:
        return True
    print(_NOTHING_DONE, file=sys.stderr)
    return False


def raise_if_no_terminal(otherwise: str) -> None:
    """Check that a person can be asked; `otherwise` is what to know before `--yes`."""
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(
            f"there is no terminal to ask on, so {_NOTHING_DONE}: give --yes. "
            f"{otherwise}"
        )
