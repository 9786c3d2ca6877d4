"""What a process does to files below a folder, and what it promises between: by strace.

The writer says what it has promised by `Marks`, a file beside the folder. A call counts
from its return: one writer at a time, so the order is the one that callers see.
"""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from support.waiting import PATIENT

DISK: Final = "disk"
"""The folder that is watched, in that of a recording."""

_MARKS: Final = "marks"

_CALLS: Final = (
    "open,openat,creat,close,dup,dup2,dup3,lseek,mmap,"
    "write,pwrite64,writev,pwritev,pwritev2,sendfile,copy_file_range,fallocate,"
    "truncate,ftruncate,rename,renameat,renameat2,link,linkat,symlink,symlinkat,"
    "unlink,unlinkat,rmdir,mkdir,mkdirat,fsync,fdatasync,msync,sync_file_range"
)
_HARMLESS: Final = frozenset(("lseek", "mmap", "close", "dup", "dup2", "dup3"))
_LINE: Final = re.compile(r"(\d+) +(\w+)\((.*)\) += (-?\d+|0x[0-9a-f]+)")
_PART: Final = re.compile(r"(\d+) +(\w+)\((.*) <unfinished \.\.\.>")
_REST: Final = re.compile(r"(\d+) +<\.\.\. (\w+) resumed>(.*)")
_HEX: Final = re.compile(r'"((?:\\x[0-9a-f]{2})*)"')


@dataclasses.dataclass(frozen=True, slots=True)
class Promise:
    """What the writer has answered, or is asked for, at that moment."""

    kind: str
    about: Mapping[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A system call that changes or flushes something below the folder.

    Args:
        kind: `open`, `write`, `truncate`, `link`, `rename`, `unlink`, `mkdir`,
            `flush`.
        path: relative to the folder, as it was called; "." is the folder.
        file: number of the open file, for a call by descriptor: it may have no name.
        to: the new name of a link or a rename.
    """

    kind: str
    path: str
    file: int = 0
    to: str = ""
    offset: int = 0
    data: bytes = b""


Step = Call | Promise


class Marks:
    """Where a writer notes its promises."""

    def __init__(self, folder: Path) -> None:
        flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND
        self._file = os.open(folder / _MARKS, flags)

    def __call__(self, kind: str, **about: Any) -> None:
        """Note one; of JSON."""
        os.write(self._file, json.dumps([kind, about]).encode() + b"\n")


def read_promises(folder: Path) -> list[Promise]:
    """Return what a writer has noted."""
    lines = (folder / _MARKS).read_text(encoding="utf-8").splitlines()
    return [Promise(*json.loads(line)) for line in lines]


def environment() -> dict[str, str]:
    """Return that of a process which imports what this one does."""
    tests = Path(__file__).parents[1]
    return {**os.environ, "PYTHONPATH": f"{tests}{os.pathsep}{tests.parent}"}


def record(folder: Path, world: str, fault: str = "") -> list[Step]:
    """Run a world's writer under strace, and return what it did, in order.

    Raises:
        RuntimeError: it failed.
    """
    trace, strace = folder / "trace", shutil.which("strace")
    ran = subprocess.run(
        [
            *(str(strace), "-f", "-qq", "-xx", "-s", str(1 << 24), "-o", str(trace)),
            *("-e", f"trace={_CALLS}", "-e", "signal=none"),
            *(sys.executable, "-W", "ignore", "-m", "power.worlds"),
            *(world, str(folder), fault),
        ],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=PATIENT,
        check=False,
    )
    if ran.returncode:
        raise RuntimeError(f"{world} under strace: {ran.stderr[-2000:]}")
    return list(_Reader(folder).read(_lines(trace)))


def _lines(trace: Path) -> Iterator[str]:
    """Yield whole calls: one of a thread may be cut in two by that of another."""
    begun: dict[str, str] = {}
    with trace.open(encoding="ascii") as file:
        for line in file:
            if part := _PART.match(line):
                begun[part[1]] = f"{part[1]} {part[2]}({part[3]}"
            elif rest := _REST.match(line):
                yield begun.pop(rest[1]) + rest[3]
            else:
                yield line


class _Reader:
    """Keeps the table of open files, as the kernel does."""

    def __init__(self, folder: Path) -> None:
        self._disk = str(folder / DISK)
        self._marks = str(folder / _MARKS)
        self._open: dict[int, tuple[int, str, bool]] = {}  # file, path, appends
        self._at: dict[int, int] = {}  # position, by file
        self._files = 0

    def read(self, lines: Iterator[str]) -> Iterator[Step]:
        for line in lines:
            found = _LINE.match(line)
            if found is None or found[4].startswith("-"):
                continue
            name, result = found[2], int(found[4], 0)
            yield from self._call(name, found[3].split(", "), result)

    def _call(self, name: str, given: list[str], result: int) -> Iterator[Step]:
        name = name.removesuffix("at") if name != "creat" else name
        if name in ("open", "creat"):
            yield from self._opened(given, result)
        elif name in ("rename", "renameat2", "link"):
            kind = "link" if name == "link" else "rename"
            source, target = (self._below(path) for path in _paths(given))
            if source is not None and target is not None:
                yield Call(kind, source, to=target)
            elif (source, target) != (None, None):
                raise RuntimeError(f"out of the folder, or into it: {kind} {given}")
        elif name in ("unlink", "rmdir", "mkdir"):
            if (path := self._below(_paths(given)[0])) is not None:
                yield Call("mkdir" if name == "mkdir" else "unlink", path)
        elif given[0].isdigit():
            yield from self._by_descriptor(name, int(given[0]), given, result)
        elif name == "mmap" and given[4].isdigit() and int(given[4]) in self._open:
            path = self._open[int(given[4])][1]
            shared = "MAP_SHARED" in given[3] and "PROT_WRITE" in given[2]
            if shared:
                raise RuntimeError(f"{path} is written by mmap")
        elif any(self._below(path) for path in _paths(given)):
            raise RuntimeError(f"not known here: {name} {given}")

    def _opened(self, given: list[str], result: int) -> Iterator[Step]:
        path = _paths(given)[0]
        flags = next((part for part in given if "O_" in part), "O_CREAT|O_TRUNC")
        below = self._below(path)
        if below is None and path != self._marks:
            self._open.pop(result, None)
            return
        self._files += 1
        self._open[result] = (self._files, path, "O_APPEND" in flags)
        self._at[self._files] = 0
        if below is not None:
            create = b"" if "O_CREAT" not in flags else b"c"
            truncate = b"" if "O_TRUNC" not in flags else b"t"
            yield Call("open", below, self._files, data=create + truncate)

    def _by_descriptor(
        self, name: str, number: int, given: list[str], result: int
    ) -> Iterator[Step]:
        if name.startswith("dup"):
            if number in self._open:
                self._open[result] = self._open[number]
            else:
                self._open.pop(result, None)
            return
        if number not in self._open:
            return
        file, path, appends = self._open[number]
        if name == "close":
            del self._open[number]
        elif name == "lseek":
            self._at[file] = result
        elif path == self._marks:
            kind, about = json.loads(_bytes(given[1]))
            yield Promise(kind, about)
        elif name == "write":
            data = _bytes(given[1])[:result]
            at = -1 if appends else self._at[file]
            self._at[file] += result
            yield Call("write", self._named(path), file, offset=at, data=data)
        elif name == "pwrite64":
            data = _bytes(given[1])[:result]
            yield Call(
                "write", self._named(path), file, offset=int(given[3]), data=data
            )
        elif name == "ftruncate":
            yield Call("truncate", self._named(path), file, offset=int(given[1]))
        elif name in ("fsync", "fdatasync"):
            yield Call("flush", self._named(path), file)
        elif name not in _HARMLESS:
            raise RuntimeError(f"not known here: {name} of {path}")

    def _below(self, path: str) -> str | None:
        path = os.path.normpath(path)
        if path == self._disk:
            return "."
        # SQLite makes its shared memory anew where nobody has it open.
        if path.startswith(f"{self._disk}/") and not path.endswith("-shm"):
            return path[len(self._disk) + 1 :]
        return None

    def _named(self, path: str) -> str:
        return self._below(path) or ""


def _paths(given: list[str]) -> list[str]:
    return [os.fsdecode(_bytes(part)) for part in given if part.startswith('"')]


def _bytes(text: str) -> bytes:
    found = _HEX.match(text)
    if found is None:
        raise RuntimeError(f"cut: {text[:80]}")
    return bytes.fromhex(found[1].replace("\\x", ""))
