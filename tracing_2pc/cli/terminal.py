"""What is printed: safe on any terminal, aligned, coloured where somebody looks."""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final, TextIO

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.protocol.diagnosis import lasting

_NOTHING_DONE: Final = "nothing was done"
_COLOURS: Final = {"red": "31", "yellow": "33", "green": "32", "bold": "1", "dim": "2"}
_WIDEST: Final = 60
"""Characters of a cell that others stand behind."""

_PLAIN_WIDTH: Final = 88
"""Of prose where nobody says how wide the terminal is."""


def safe(text: object, longest: int = 300) -> str:
    """Return somebody else's text in one line that changes nothing on a terminal.

    Control characters, escape sequences and marks that turn the direction of writing
    become question marks; what is longer is cut.
    """
    whole = str(text)
    shown = "".join(c if c.isprintable() else "?" for c in whole[:longest])
    return f"{shown[:-1]}…" if len(whole) > longest else shown


def by(participant: str, error: object) -> str:
    """Return what came instead of an answer, where the participant's name stands."""
    text = str(error).removeprefix(f"participant {participant!r}").lstrip(": ")
    return safe(text)


def paint(text: str, colour: str | None, stream: TextIO | None = None) -> str:
    """Colour a text that is already safe, on a terminal that may have colours."""
    stream = stream or sys.stdout
    if colour is None or os.environ.get("NO_COLOR") or not _moves(stream):
        return text
    return f"\x1b[{_COLOURS[colour]}m{text}\x1b[0m"


def _moves(stream: TextIO) -> bool:
    """Whether it is a terminal that knows escape sequences."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def width() -> int:
    """Return how wide a line of prose may be."""
    if not sys.stdout.isatty():
        return _PLAIN_WIDTH
    return max(40, min(100, shutil.get_terminal_size().columns))


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
    shown = safe(text, 2000)
    before = indent if first is None else safe(first).ljust(len(indent))
    return textwrap.wrap(
        shown, width(), initial_indent=before, subsequent_indent=indent
    ) or [before.rstrip()]


def when(at: float | None, now: float) -> str:
    """Say how long ago or in how long, and the time in UTC."""
    if at is None:
        return "never"
    ago = f"{lasting(now - at)} ago" if at <= now else f"in {lasting(at - now)}"
    return f"{ago} ({clock_time(at)})"


def clock_time(at: float) -> str:
    """Return a time in UTC, to the second."""
    try:
        found = datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return f"{at:.0f}"
    return found.strftime("%Y-%m-%d %H:%M:%SZ")


def iso(at: float | None) -> str | None:
    """Return a time as programs read it (ISO 8601, UTC, to the millisecond)."""
    if at is None:
        return None
    try:
        found = datetime.datetime.fromtimestamp(at, datetime.timezone.utc)
    except (ValueError, OverflowError, OSError):
        return None
    return found.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def say(lines: Iterable[str]) -> None:
    """Print lines that are already safe."""
    for line in lines:
        print(line)
    sys.stdout.flush()


def tell(options: argparse.Namespace, item: dict[str, Any], line: str) -> None:
    """Print an item for programs or its line for people, at once."""
    print(json.dumps(item) if options.json else safe(line, 2000), flush=True)


def progress(text: str) -> None:
    """Show how far long work is, where somebody looks; the next text replaces it."""
    if _moves(sys.stderr):
        print(f"\r\x1b[K{safe(text)}", end="", file=sys.stderr, flush=True)


@contextlib.contextmanager
def asking(names: Iterable[str]) -> Iterator[None]:
    """Say who is waited for, as long as that lasts."""
    progress(f"asking {', '.join(names)} …")
    try:
        yield
    finally:
        progress("")


def headed(title: str, lines: Iterable[str]) -> Iterator[str]:
    """Yield a section; nothing where it is empty."""
    inside = list(lines)
    if inside:
        yield ""
        yield paint(title, "bold")
        yield from inside


def confirmed(question: str, words: Sequence[str]) -> bool:
    """Ask on the terminal; whether one of the words was typed. If not, it says so."""
    print(f"{safe(question, 400)} ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip() in words:
        return True
    print(_NOTHING_DONE, file=sys.stderr)
    return False


def check_on_terminal(otherwise: str) -> None:
    """Check that a person can be asked; `otherwise` is what to know before `--yes`.

    Raises:
        ConfigurationError: nobody can.
    """
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigurationError(
            f"there is no terminal to ask on, so {_NOTHING_DONE}: give --yes. "
            f"{otherwise}"
        )
