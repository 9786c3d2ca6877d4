"""How much is measured beside others."""

from __future__ import annotations

import dataclasses


@dataclasses.dataclass(frozen=True, slots=True)
class Sizes:
    """Sizes of a block, and rounds.

    Args:
        rounds: of every comparison.
        transactions: of a block beside plain SQL.
        batches: of a block beside other tracing.
        rows: of such a batch.
    """

    rounds: int
    transactions: int = 50
    batches: int = 20
    rows: int = 1000

    @classmethod
    def full(cls, rounds: int) -> Sizes:
        """Return what results are made of: so many rounds at most."""
        return cls(min(rounds, 41))

    @classmethod
    def tiny(cls, rounds: int) -> Sizes:
        """Return sizes that only show that it works."""
        return cls(min(rounds, 41), transactions=2, batches=2, rows=10)
