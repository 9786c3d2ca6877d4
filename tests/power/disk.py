"""A disk that forgets: what may be on it when the power goes, at each moment.

What was flushed is there. Of what was not, any part may be: each sector of 512 bytes
of a write, each length that a file had, each entry of a folder by itself. Two things
are taken for granted, as every journaling file system gives them: a write changes no
byte outside of it, and a rename never loses both names of a file.
"""

from __future__ import annotations

import dataclasses
import hashlib
import os
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

from power.recording import Call, Promise, Step

SECTOR: Final = 512
_ZEROS: Final = 0.2
"""How often files have the length that the kernel showed, whatever is in them."""

Tree = Mapping[str, bytes | None]
"""Files with what is in them, by path; None is a folder."""


@dataclasses.dataclass(eq=False)
class _Node:
    """A file, or a folder: what is durable of it, and what waits to be."""

    is_folder: bool = False
    data: bytes = b""
    entries: dict[str, _Node] = dataclasses.field(default_factory=dict)
    now: dict[str, _Node] = dataclasses.field(default_factory=dict)
    writes: list[_Write] = dataclasses.field(default_factory=list)
    size: int = 0


@dataclasses.dataclass(frozen=True, slots=True)
class _Write:
    """A part of a write within one sector; or a truncate, to `offset`."""

    number: int
    offset: int
    data: bytes
    cuts: bool = False


@dataclasses.dataclass(frozen=True, slots=True)
class _Change:
    """Names that change at once; a part of a rename follows another change."""

    number: int
    folder: _Node
    names: tuple[tuple[str, _Node | None], ...]
    after: int = -1


Survives = Callable[[int, bool], bool]
"""Whether what a call did survives, by its number, and if it is a name in a folder."""

Choice = Callable[[random.Random, Sequence[int]], Survives]
"""Chooses what survives of the calls, of these numbers, that are not flushed."""


class Disk:
    """What the kernel shows, what is durable, and what is between."""

    def __init__(self, tree: Tree) -> None:
        self._root = _Node(is_folder=True)
        self._changes: list[_Change] = []
        self._open: dict[int, _Node] = {}
        self.number = 0
        for path, data in sorted(tree.items()):
            self._add(path, data is None)
            if data is not None:
                node = self._find(path)
                node.data, node.size = data, len(data)
        self._settle(lambda change: True)

    def _settle(self, is_chosen: Callable[[_Change], bool]) -> None:
        """Make names durable."""
        for change in filter(is_chosen, self._changes):
            _rename(change.folder.entries, change)
        self._changes = [c for c in self._changes if not is_chosen(c)]

    def apply(self, call: Call) -> None:
        """Do what a call did."""
        self.number += 1
        getattr(self, f"_do_{call.kind}")(call)

    # --- calls ----------------------------------------------------------------------

    def _do_open(self, call: Call) -> None:
        folder, name = self._parent(call.path)
        if name not in folder.now and b"c" in call.data:
            self._add(call.path, False)
        self._open[call.file] = node = self._find(call.path)
        if b"t" in call.data and node.size:
            self._truncate(node, 0)

    def _do_write(self, call: Call) -> None:
        node = self._open[call.file]
        at = start = node.size if call.offset < 0 else call.offset
        end = at + len(call.data)
        node.size = max(node.size, end)
        while start < end:
            stop = min(end, (start // SECTOR + 1) * SECTOR)
            data = call.data[start - at : stop - at]
            node.writes.append(_Write(self.number, start, data))
            start = stop

    def _do_truncate(self, call: Call) -> None:
        self._truncate(self._open[call.file], call.offset)

    def _truncate(self, node: _Node, size: int) -> None:
        node.size = size
        node.writes.append(_Write(self.number, size, b"", cuts=True))

    def _do_mkdir(self, call: Call) -> None:
        self._add(call.path, True)

    def _do_unlink(self, call: Call) -> None:
        folder, name = self._parent(call.path)
        self._change(folder, (name, None))

    def _do_link(self, call: Call) -> None:
        folder, name = self._parent(call.to)
        self._change(folder, (name, self._find(call.path)))

    def _do_rename(self, call: Call) -> None:
        (old, source), (new, target) = self._parent(call.path), self._parent(call.to)
        node = old.now[source]
        if old is new:
            self._change(old, (target, node), (source, None))
            return
        self._change(new, (target, node))
        self._change(old, (source, None), after=self.number)

    def _do_flush(self, call: Call) -> None:
        node = self._open[call.file]
        if node.is_folder:
            # A rename out of it is flushed as a whole.
            halves = {c.after for c in self._changes if c.folder is node}
            self._settle(lambda c: c.folder is node or c.number in halves)
        else:
            node.data = _with(node.data, node.writes)
            node.writes = []

    # --- states ---------------------------------------------------------------------

    @property
    def pending(self) -> list[int]:
        """Numbers of the calls that are not flushed, in order."""
        files = {id(n): n for n in self._nodes()}.values()
        writes = {w.number for node in files for w in node.writes}
        return sorted(writes | {change.number for change in self._changes})

    def state(self, survives: Survives) -> Tree:
        """Build the tree of what is durable, and of what survives of the rest."""
        kept: set[int] = set()
        folders: dict[int, dict[str, _Node]] = {}
        pending = {change.number for change in self._changes if change.after < 0}
        for change in self._changes:
            follows = change.after in pending and change.after not in kept
            if not follows and survives(change.number, True):
                kept |= {change.number} if change.after < 0 else set()
                entries = folders.setdefault(
                    id(change.folder), dict(change.folder.entries)
                )
                _rename(entries, change)
        found: dict[str, bytes | None] = {}
        content: dict[int, bytes] = {}

        def walk(folder: _Node, prefix: str) -> None:
            for name, node in folders.get(id(folder), folder.entries).items():
                if node.is_folder:
                    found[prefix + name] = None
                    walk(node, f"{prefix}{name}/")
                    continue
                if id(node) not in content:
                    some = [w for w in node.writes if survives(w.number, False)]
                    content[id(node)] = _with(node.data, some)
                found[prefix + name] = content[id(node)]

        walk(self._root, "")
        return found

    # --- names ----------------------------------------------------------------------

    def _add(self, path: str, is_folder: bool) -> None:
        folder, name = self._parent(path)
        self._change(folder, (name, _Node(is_folder)))

    def _change(
        self, folder: _Node, *names: tuple[str, _Node | None], after: int = -1
    ) -> None:
        change = _Change(self.number, folder, names, after)
        _rename(folder.now, change)
        self._changes.append(change)

    def _parent(self, path: str) -> tuple[_Node, str]:
        *above, name = path.split("/")
        node = self._root
        for part in above:
            node = node.now[part]
        return node, name

    def _find(self, path: str) -> _Node:
        if path == ".":
            return self._root
        folder, name = self._parent(path)
        return folder.now[name]

    def _nodes(self) -> Iterator[_Node]:
        waiting = [self._root, *(n for c in self._changes for _, n in c.names if n)]
        while waiting:
            node = waiting.pop()
            yield node
            waiting += [*node.entries.values(), *node.now.values()]


def _rename(entries: dict[str, _Node], change: _Change) -> None:
    for name, node in change.names:
        if node is None:
            entries.pop(name, None)
        else:
            entries[name] = node


def _with(data: bytes, writes: list[_Write]) -> bytes:
    """Apply writes in order; what lies between is zeros."""
    found = bytearray(data)
    for write in writes:
        end = write.offset + len(write.data)
        if write.cuts:
            del found[end:]
        found.extend(bytes(max(0, end - len(found))))
        found[write.offset : end] = write.data
    return bytes(found)


# --- the known classes ------------------------------------------------------------


def _flushed_only(_: random.Random, pending: Sequence[int]) -> Survives:
    return lambda number, folder: False


def _everything(_: random.Random, pending: Sequence[int]) -> Survives:
    return lambda number, folder: True


def _in_order(drawn: random.Random, pending: Sequence[int]) -> Survives:
    last = drawn.choice(pending)
    return lambda number, folder: number <= last


def _torn(drawn: random.Random, pending: Sequence[int]) -> Survives:
    """All but some sectors of one write."""
    torn = drawn.choice(pending)
    return lambda number, folder: folder or number != torn or drawn.random() < 0.5


def _names_only(_: random.Random, pending: Sequence[int]) -> Survives:
    return lambda number, folder: folder


def _data_only(_: random.Random, pending: Sequence[int]) -> Survives:
    return lambda number, folder: not folder


def _newest_only(drawn: random.Random, pending: Sequence[int]) -> Survives:
    first = drawn.choice(pending)
    return lambda number, folder: number >= first


def _one_lost(drawn: random.Random, pending: Sequence[int]) -> Survives:
    lost = drawn.choice(pending)
    return lambda number, folder: number != lost


def _one_kept(drawn: random.Random, pending: Sequence[int]) -> Survives:
    kept = drawn.choice(pending)
    return lambda number, folder: number == kept


def _any_sectors(drawn: random.Random, pending: Sequence[int]) -> Survives:
    share = drawn.random()
    return lambda number, folder: drawn.random() < share


CLASSES: Final[Mapping[str, Choice]] = {
    "only what was flushed": _flushed_only,
    "everything": _everything,
    "in order, up to a call": _in_order,
    "one write torn": _torn,
    "names without their data": _names_only,
    "data without names": _data_only,
    "the newest, not the older": _newest_only,
    "one call lost": _one_lost,
    "one call alone": _one_kept,
    "any sectors, any names": _any_sectors,
}
"""Ways in which power is lost, by name. With each, a file may be longer than its data:
zeros."""


@dataclasses.dataclass(frozen=True, slots=True)
class State:
    """A disk after a loss of power, and what had been promised until then."""

    moment: int  # how many steps were done
    kind: str  # of `CLASSES`
    tree: Tree
    promises: tuple[Promise, ...]


def states(
    tree: Tree,
    steps: Sequence[Step],
    drawn: random.Random,
    seen: set[bytes],
    share: float = 1.0,
) -> Iterator[State]:
    """Yield a state of each class at each moment, if it was not `seen` before.

    `share`: of the moments; less for a sample.
    """
    disk, promises = Disk(tree), list[Promise]()
    for moment, step in enumerate(steps):
        if isinstance(step, Promise):
            promises.append(step)
        else:
            disk.apply(step)
        if drawn.random() >= share:
            continue
        pending = disk.pending or [0]
        for kind, choose in CLASSES.items():
            survives = choose(drawn, pending)
            found = disk.state(survives)
            if drawn.random() < _ZEROS:
                kind, found = f"{kind}; lengths before data", _zeros(disk, found)
            key = _digest(found, len(promises))
            if key not in seen:
                seen.add(key)
                yield State(moment, kind, found, tuple(promises))


def _zeros(disk: Disk, found: Tree) -> Tree:
    """Extend files to the length that the kernel showed."""
    now = disk.state(lambda number, folder: True)
    return {
        path: data if data is None else data.ljust(len(now.get(path) or b""), b"\0")
        for path, data in found.items()
    }


def _digest(tree: Tree, promises: int) -> bytes:
    digest = hashlib.sha256(str(promises).encode())
    for path, data in sorted(tree.items()):
        digest.update(f"{path}\0{-1 if data is None else len(data)}\0".encode())
        digest.update(data or b"")
    return digest.digest()


def last_state(tree: Tree, steps: Sequence[Step]) -> Tree:
    """Return what the kernel showed at the end: to be held against the real folder."""
    disk = Disk(tree)
    for step in steps:
        if isinstance(step, Call):
            disk.apply(step)
    return disk.state(lambda number, folder: True)


def read_tree(folder: Path) -> Tree:
    """Read a folder."""
    return {
        str(path.relative_to(folder)): None if path.is_dir() else path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if not path.name.endswith("-shm")
    }


def write_tree(tree: Tree, folder: Path) -> None:
    """Write a folder."""
    for path, data in sorted(tree.items()):
        if path.endswith("-shm"):
            continue
        if data is None:
            os.makedirs(folder / path, exist_ok=True)
        else:
            (folder / path).write_bytes(data)
