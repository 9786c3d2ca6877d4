"""What processes take: sockets, files, threads, memory, by /proc."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple


class Usage(NamedTuple):
    """Of a process and all below it; memory in KiB, shared pages by their share."""

    sockets: int
    files: int
    threads: int
    memory: int


def usage(pid: int) -> Usage:
    """Read it; a file or a thread that ends meanwhile counts nothing."""
    own = Path(f"/proc/{pid}")
    files = [*_read(os.readlink, own / "fd")]
    sockets = sum(file.startswith("socket:") for file in files)
    told = [*_read(lambda thread: (thread / "children").read_text(), own / "task")]
    memory = int((own / "smaps_rollup").read_text().partition("Pss:")[2].split()[0])
    own_usage = Usage(sockets, len(files), len(told), memory)
    below = [usage(int(child)) for text in told for child in text.split()]
    return Usage(*map(sum, zip(own_usage, *below, strict=True)))


def _read(look: Callable[[Path], str], folder: Path) -> Iterator[str]:
    for one in folder.iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            yield look(one)
