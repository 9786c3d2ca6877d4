"""A lease in a table: one process at a time has it, and it ends by itself."""

from __future__ import annotations

import enum
from typing import Final, NamedTuple

import sqlalchemy as sa

_LONGEST: Final = 10
"""Times ours: another process may have a longer one, and renews it in a third."""


class LeaseState(enum.Enum):
    """Result of a request for a lease."""

    RENEWED = "renewed"
    """The same process had it before, and no other one since."""
    TAKEN = "taken"
    """What was read before may be old: another process may have had it."""
    REFUSED = "refused"
    """Another process has it."""


class Lease(NamedTuple):
    """Two columns of a table: who has it, and until when; NULL before the first.

    A lease that lasts much longer than ours is from before a clock was set back. Where
    two holders do no harm it is taken; elsewhere it is cut, and its holder renews it.
    """

    holder: sa.Column[str]
    until: sa.Column[float]
    may_have_two: bool = False

    def hold(
        self,
        connection: sa.Connection,
        who: str,
        seconds: float,
        now: float | sa.ColumnElement[float],
        *row: sa.ColumnElement[bool],
    ) -> LeaseState:
        """Take or renew the lease of a row. Its holder renews it even if it ran out."""
        lease, until = sa.update(self.holder.table).where(*row), self.until
        hold = lease.values({self.holder: who, until: now + seconds})
        if connection.execute(hold.where(self.holder == who)).rowcount:
            return LeaseState.RENEWED
        longest = now + _LONGEST * seconds
        is_over = sa.or_(until.is_(None), until < now)
        if self.may_have_two:
            is_over = sa.or_(is_over, until > longest)
        if connection.execute(hold.where(is_over)).rowcount:
            return LeaseState.TAKEN
        connection.execute(lease.where(until > longest).values({until: longest}))
        return LeaseState.REFUSED

    def give_back(self, connection: sa.Connection, who: str) -> None:
        """End every lease of a holder."""
        mine = sa.update(self.holder.table).where(self.holder == who)
        connection.execute(mine.values({self.until: 0.0}))
