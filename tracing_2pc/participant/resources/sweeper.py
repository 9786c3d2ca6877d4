"""Deletes what aborted branches left: rows that nobody sees and nobody needs."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.participant.database import Database, Writer
from tracing_2pc.participant.journal import Journal

SLICE: Final = 10_000
"""Rows that one local transaction deletes at most."""

_SLICES: Final = 100
"""Slices that one prepare deletes at most, where rows are in its way."""

_log: Final = logging.getLogger(__name__)


class Sweeper:
    """Sweeps for a prepare, in local transactions of its own that cost no flush.

    A tag stays hidden until none of its rows are left: rows that somebody else has
    locked are left to a later sweep, never waited for. A sweep that the database
    refuses is logged and given up; no vote depends on it.

    Args:
        journal: knows the tags.
        database: where the rows are.
        table: that they lie in.
    """

    def __init__(self, journal: Journal, database: Database, table: str) -> None:
        self._journal = journal
        self._database = database
        self._table = table

    def some(self, writer: Writer) -> None:
        """Delete one slice."""
        next(filter(None, self._tried(writer)), 0)

    def all(self, writer: Writer) -> int:
        """Delete what there is, within reason; return how many rows."""
        slices = self._tried(writer)
        return sum(gone for gone, _ in zip(slices, range(_SLICES), strict=False))

    def _tried(self, writer: Writer) -> Iterator[int]:
        try:
            yield from self._slices(writer)
        except sa.exc.SQLAlchemyError as error:
            about = {"error": type(error).__name__}
            _log.warning("aborted rows not deleted", extra=about)

    def _slices(self, writer: Writer) -> Iterator[int]:
        after = 0
        while True:
            with writer.aside() as connection:
                found = self._journal.doomed(connection, after)
                if found is None:
                    return
                tag, left = found
                wanted = min(left, SLICE)
                gone = self._database.delete_slice(connection, self._table, tag, wanted)
                left -= gone
                if gone < wanted:
                    after = tag
                if gone < wanted or left == 0:
                    left = self._left(connection, tag, left)
                self._journal.doom(connection, tag, left)
            yield gone

    def _left(self, connection: Connection, tag: int, expected: int) -> int:
        """Look whether there are any: a tag that rows have is never shown.

        Where too few were deleted they are gone, or others hold them.
        """
        rows = sa.table(self._table, sa.column("tpc_tag"))
        some = sa.select(sa.literal(1)).where(rows.c.tpc_tag == tag).limit(1)
        return max(expected, 1) if connection.execute(some).first() else 0
