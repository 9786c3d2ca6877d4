"""Recordings, and the states that a loss of power leaves of them, judged."""

from __future__ import annotations

import contextlib
import dataclasses
import random
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

from power.disk import State, Tree, last_state, read_tree, states, write_tree
from power.recording import DISK, Step, record
from power.worlds import WORLDS


@dataclasses.dataclass
class Recording:
    """What a world's writer did, and where its states are built."""

    name: str
    folder: Path
    before: Tree
    steps: list[Step]

    def states(self, drawn: random.Random, share: float = 1.0) -> Iterator[State]:
        """Yield different states, without end while there are new ones."""
        seen, known = set[bytes](), -1
        while len(seen) > known:
            known = len(seen)
            yield from states(self.before, self.steps, drawn, seen, share)

    def judged(self, drawn: random.Random) -> Iterator[tuple[State, list[str]]]:
        """Yield them with what is wrong then."""
        return ((state, self.faults(state)) for state in self.states(drawn))

    def faults(self, state: State) -> list[str]:
        """Open a state, where its writer wrote: what it stored may name the place."""
        disk = self.folder / DISK
        shutil.rmtree(disk)
        disk.mkdir()
        write_tree(state.tree, disk)
        try:
            return list(WORLDS[self.name].judge(disk, state.promises))
        except Exception as error:  # noqa: BLE001 - whatever it is, it did not open
            return [f"{type(error).__name__}: {error}"]


@contextlib.contextmanager
def recorded(name: str, fault: str = "") -> Iterator[Recording]:
    """Record a world's writer; with a fault it leaves out a flush.

    Raises:
        RuntimeError: what was recorded is not what is on the disk.
    """
    with tempfile.TemporaryDirectory() as text:
        folder = Path(text)
        (folder / DISK).mkdir()
        WORLDS[name].prepare(folder / DISK)
        before = read_tree(folder / DISK)
        steps = record(folder, name, fault)
        if last_state(before, steps) != read_tree(folder / DISK):
            raise RuntimeError(f"{name}: a call that writes was not seen")
        yield Recording(name, folder, before, steps)
