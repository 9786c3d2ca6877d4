"""How much of everything is measured."""

from __future__ import annotations

import dataclasses
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of every series, and rounds.

    Args:
        rows: of a batch beside JDBC.
        partitions: of a batch that executors write, likewise.
        partition_rows: of such a batch.
        row_rounds: rounds at each of these, at most.
        participants: how many; the first is what the others are divided by.
        participant_goal: how many the goal is about.
        participant_rows: of a batch whose CPU time is measured.
        finished: transactions in the log, likewise.
        applications: at one log, likewise.
        looking: finished and unfinished transactions in the log that is looked at.
        looking_rounds: at it.
        kept: finished transactions that a participant has not forgotten.
        view_rows: in its view.
        memory: rows of a small batch, and of a large one.
        memory_rounds: pairs of processes.
        transactions: empty batches in a block.
        rounds: of all others.
    """

    rows: tuple[int, ...] = (10, 100, 1_000, 10_000, 100_000, 1_000_000)
    partitions: tuple[int, ...] = (1, 4, 16, 64)
    partition_rows: int = 100_000
    row_rounds: int = 15
    participants: tuple[int, ...] = (1, 2, 4, 8)
    participant_goal: int = 4
    participant_rows: int = 100_000
    finished: tuple[int, ...] = (0, 10_000, 1_000_000, 10_000_000)
    applications: tuple[int, ...] = (1, 2, 4, 8, 16)
    looking: tuple[int, int] = (10_000_000, 10_000)
    looking_rounds: int = 11
    kept: int = 60_480
    view_rows: int = 100_000
    memory: tuple[int, int] = (50_000, 5_000_000)
    memory_rounds: int = 7
    transactions: int = 50
    rounds: int = 41

    def limited_to(self, rounds: int) -> Sizes:
        """Return the same with so many rounds of everything at most."""
        return dataclasses.replace(
            self,
            row_rounds=min(rounds, self.row_rounds),
            looking_rounds=min(rounds, self.looking_rounds),
            memory_rounds=min(rounds, self.memory_rounds),
            rounds=min(rounds, self.rounds),
        )

    def up_to(self, rows: int) -> Sizes:
        """Return the same with batches of up to so many rows beside JDBC."""
        kept = tuple(n for n in self.rows if n < rows)
        return dataclasses.replace(self, rows=(*kept, rows))


FULL: Final = Sizes()
TINY: Final = Sizes(
    rows=(),
    partitions=(4,),
    partition_rows=100,
    participants=(1, 2),
    participant_goal=2,
    participant_rows=1_000,
    finished=(0, 1_000),
    applications=(1, 2),
    looking=(300, 200),
    looking_rounds=1,
    kept=100,
    view_rows=1_000,
    memory=(1_000, 5_000),
    memory_rounds=1,
    transactions=3,
)
"""They show that it works, and say nothing about any goal."""
