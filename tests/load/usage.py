"""What processes take: sockets, files, threads, memory, by /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """Of processes; memory in KiB, shared pages by their share."""

    sockets: int
    files: int
    threads: int
    memory: int


def usage(pid: int, *, alone: bool = False) -> Usage:
    """Read what a process takes, and all below it unless `alone`.

    A file, a thread or a child that ends meanwhile counts nothing.
    """
    own = Path(f"/proc/{pid}")
    files = [*_read(os.readlink, own / "fd")]
    sockets = sum(file.startswith("socket:") for file in files)
    told = [*_read(lambda thread: (thread / "children").read_text(), own / "task")]
    memory = int((own / "smaps_rollup").read_text().partition("Pss:")[2].split()[0])
    own_usage = Usage(sockets, len(files), len(told), memory)
    if alone:
        return own_usage
    below = []
    for child in (child for text in told for child in text.split()):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            below.append(usage(int(child)))
    return Usage(*map(sum, zip(own_usage, *below, strict=True)))


def _read(look: Callable[[Path], str], folder: Path) -> Iterator[str]:
    for one in folder.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield look(one)
