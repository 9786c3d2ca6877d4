"""Spans that stay on this machine, for `tracing-2pc trace`: a bounded ring of files.

Every process of a user appends whole lines to one file. A file that is full is put
aside, and the oldest one goes: never more than `FILES` times `FILE_BYTES`, and the
lines appended at that moment. Nothing is flushed. A process that is killed, or a disk
that is full, may leave a part of a line: the next write begins a new one.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import json
import math
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

VARIABLE: Final = "TPC_SPANS"
OFF: Final = "off"
FILE_BYTES: Final = 4 << 20
FILES: Final = 8

_CURRENT: Final = "spans.jsonl"
_DEFAULT: Final = "tracing-2pc-spans-"
_APPEND: Final = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
_READ: Final = os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK


def chosen() -> Path | None:
    """Return the folder that spans are kept in; None where that is turned off."""
    named = os.environ.get(VARIABLE, "").strip()
    if named.lower() == OFF:
        return None
    # Not `tempfile`: it raises where nothing can be written.
    temporary = os.environ.get("TMPDIR") or "/tmp"  # noqa: S108 - see `prepare`
    return Path(named) if named else Path(temporary) / _of(os.getuid())


def _of(user: int) -> str:
    return f"{_DEFAULT}{user}"


def prepare(folder: Path) -> None:
    """Make the folder; the default one is for its user alone.

    Raises:
        OSError: it cannot be made, or is another user's.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    _check(folder)


def _check(folder: Path) -> None:
    """Raise `PermissionError` where others can write into our folder, or root's."""
    for user in {os.getuid(), 0}:
        about = folder.lstat()
        if folder.name == _of(user) and (
            not stat.S_ISDIR(about.st_mode)
            or about.st_uid != user
            or about.st_mode & 0o022
        ):
            raise PermissionError(errno.EPERM, "others can write there", str(folder))


def append(folder: Path, lines: bytes) -> None:
    """Append whole lines in one write; where it raises `OSError`, some are lost."""
    file = _open(folder)
    try:
        # First a line's end: what stands before may be cut short.
        if os.write(file, b"\n" + lines) <= len(lines):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(folder))
    finally:
        os.close(file)


def _open(folder: Path) -> int:
    file = os.open(folder / _CURRENT, _APPEND, 0o640)
    if os.fstat(file).st_size < FILE_BYTES:
        return file
    os.close(file)
    _rotate(folder)
    file = os.open(folder / _CURRENT, _APPEND, 0o640)
    if os.fstat(file).st_size < 2 * FILE_BYTES:
        return file  # another process is about to put it aside
    os.close(file)
    raise OSError(errno.EFBIG, "the file cannot be put aside", str(folder))


def _rotate(folder: Path) -> None:
    """Put the file aside and drop the oldest; one process at a time does it."""
    lock = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            current = folder / _CURRENT
            if current.stat().st_size >= FILE_BYTES:
                current.rename(folder / f"spans-{time.time_ns()}.jsonl")
            for old in _files(folder)[: -FILES + 1]:
                old.unlink(missing_ok=True)
    finally:
        os.close(lock)


def _files(folder: Path) -> list[Path]:
    """Return the files that were put aside, the oldest first."""
    return sorted(folder.glob("spans-*.jsonl"))


def folders() -> list[Path]:
    """Return the folders that may be looked into: without a name, ours and root's.

    Files that another user has put into the same place may be forged.
    """
    named = chosen()
    if named is None or os.environ.get(VARIABLE, "").strip():
        return [named] if named else []
    both = [named.parent / _of(user) for user in sorted({0, os.getuid()})]
    return [folder for folder in both if os.path.lexists(folder)]


def read(folder: Path, id_: str, until: float = math.inf) -> Iterator[dict[str, Any]]:
    """Yield the spans with an id as a value in their line, some of them twice.

    A line that is not whole, or no object, is left out. Raises `OSError` for a file
    that cannot be read, and if any are left at `until` by the monotonic clock.
    """
    _check(folder)
    os.scandir(folder).close()
    wanted = json.dumps(id_).encode()
    for text in _texts(folder):
        place = 0
        while (hit := text.find(wanted, place)) >= 0:
            if time.monotonic() > until:
                raise TimeoutError(
                    errno.ETIMEDOUT,
                    "there are too many to read in time, and some are left out",
                    str(folder),
                )
            begin = text.rfind(b"\n", 0, hit) + 1
            place = text.find(b"\n", begin)
            if place < 0:  # it is being written
                break
            with contextlib.suppress(ValueError, RecursionError):
                if isinstance(span := json.loads(text[begin:place]), dict):
                    yield span


def _texts(folder: Path) -> Iterator[bytes]:
    yield _bytes(folder / _CURRENT)  # first: it may be put aside at any moment
    yield from map(_bytes, _files(folder)[-2 * FILES :])


def _bytes(path: Path) -> bytes:
    try:
        file = os.open(path, _READ)
    except FileNotFoundError:
        return b""  # it was put aside, or dropped, meanwhile
    with open(file, "rb") as opened:
        if not stat.S_ISREG(os.fstat(file).st_mode):
            return b""
        return opened.read(2 * FILE_BYTES + (1 << 20))
