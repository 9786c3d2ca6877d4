"""The processes below one that a test has started, with their command lines."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path


def descendants(pid: int) -> dict[int, str]:
    """Return all that is below a process, parents first; dead ones have no command."""
    return dict(_below(pid))


def _below(pid: int) -> Iterator[tuple[int, str]]:
    for child in _children(pid):
        with contextlib.suppress(OSError):  # it has ended
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            yield child, command.replace(b"\0", b" ").decode(errors="replace")
            yield from _below(child)


def _children(pid: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        texts = [(thread / "children").read_text() for thread in threads]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]
