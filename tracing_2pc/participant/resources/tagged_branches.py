"""Rows in the journal's own database, each with the tag of its branch.

Journal and rows change in one local transaction. A row is written once: readers leave
out the few tags in a table of hidden ones, prepared or aborted.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import BranchState
from tracing_2pc.participant.answers import Answer, BranchRow, TransactionRow
from tracing_2pc.participant.branch_store import SLICE, Add, BranchStore, BranchUpload
from tracing_2pc.participant.journal.database import commit
from tracing_2pc.participant.journal.journal import Journal
from tracing_2pc.participant.journal.schema import TAG
from tracing_2pc.participant.resources.loader import RecordTable, open_load
from tracing_2pc.participant.resources.superseded import SupersededRows
from tracing_2pc.store.engines.database import describe_error

logger = logging.getLogger(__name__)


def replica_identity(table: str) -> str:
    """Return the SQL that lets a publication have deletions of rows without a key."""
    return f"ALTER TABLE {table} REPLICA IDENTITY FULL"


class TaggedBranches(BranchStore):
    """Holds branches as rows of one table, by their tags in `tpc_tag`.

    Readers leave out the tags in the table `<name>_tpc_hidden`: prepared, or aborted
    with rows left to delete. Each kind of resource adds `set_up`, `committed` and
    `gauges`; `superseded` are rows that those of a committed branch replace.
    """

    def __init__(
        self,
        journal: Journal,
        table: RecordTable,
        *,
        set_up: Callable[[Connection], None],
        committed: Callable[
            [Connection, TransactionRow, Sequence[BranchRow]], None
        ] = lambda *_: None,
        gauges: Callable[[Connection], dict[str, float]] = lambda _: {},
        superseded: SupersededRows | None = None,
    ) -> None:
        super().__init__(journal)
        journal.on_end = self._end
        self._hidden = journal.tables.add(
            "hidden",
            sa.Column("tag", TAG, primary_key=True, autoincrement=False),
            # Rows left to delete; NULL while the branch is prepared.
            sa.Column("doomed", sa.BigInteger),
        )
        shown = self._hidden.c.tag.in_(journal.statements.unsealed)
        self._not_shown = sa.select(self._hidden.c.tag)
        self._shown = self._not_shown.where(shown)
        self._superseded = superseded
        self._not_deleted = ""
        journal.statements.hide_in(self._hidden, self._some_leftover())
        self._table = table
        self._set_up = set_up
        self._committed = committed
        self._gauges = gauges

    def set_up(self, connection: Connection) -> None:
        """Go on with tags above those that are hidden; then as the kind needs."""
        tags = [self._hidden.c.tag]
        if self._superseded is not None:
            tags.append(self._superseded.newer.c.tag)
        self.journal.tables.raise_next_tag(connection, tags)
        self._set_up(connection)

    def prepare(self, upload: BranchUpload, add: Add) -> Answer | None:
        """Write the rows, hidden, and the journal's row, in one durable transaction."""
        database = self.journal.database
        opened = open_load(self._table, upload, hidden=self._not_shown)
        with opened as (connection, tag):
            database.shared_lock(connection, upload.transaction.application)
            if (answer := add(connection, tag)) is not None:
                connection.rollback()
                return answer
            commit(connection)  # Rule 13: durable before the vote is answered.
        return None

    @contextlib.contextmanager
    def deciding(
        self, transaction: TransactionId
    ) -> Iterator[tuple[Connection, TransactionRow]]:
        """Decide in one durable local transaction: journal and rows change together."""
        with self.journal.database.write(lock=transaction.application) as connection:
            yield connection, self.journal.read(connection, transaction)
            commit(connection)

    def committed(
        self, connection: Connection, row: TransactionRow, kept: Sequence[BranchRow]
    ) -> None:
        self._committed(connection, row, kept)

    def gauges(self, connection: Connection) -> dict[str, float]:
        return self._gauges(connection)

    def _end(
        self,
        connection: Connection,
        tags: sa.Select[Any],
        parameters: Mapping[str, Any],
        outcome: BranchState,
    ) -> None:
        """Note aborted and replaced rows, to be deleted."""
        h, b = self._hidden, self.journal.tables.branch
        if outcome is BranchState.COMMITTED:
            if self._superseded is not None:
                self._superseded.note(connection, self._shown, parameters)
            return
        rows = sa.select(b.c.rows).where(b.c.tag == h.c.tag).scalar_subquery()
        doom = h.update().where(h.c.tag.in_(tags)).values(doomed=rows)
        connection.execute(doom, parameters)

    def _some_leftover(self) -> sa.ColumnElement[bool]:
        """Return whether rows of aborted branches, or replaced ones, may be there."""
        h = self._hidden.c
        some = sa.exists(sa.select(h.tag).where(h.doomed.is_not(None)))
        if self._superseded is None:
            return some
        return sa.or_(some, sa.exists(sa.select(self._superseded.newer)))

    def delete_leftovers(self, slices: int) -> int:
        """Delete rows of aborted branches, and rows that later ones have replaced.

        The transactions cost no flush. A tag stays hidden until none of its rows are
        left. Rows that another transaction has locked are deleted by a later call, or
        with the next row of their key.
        """
        gone = after = 0
        left = slices
        with self._warned():
            while left and after >= 0:
                deleted, after = self._delete_slice(after)
                gone += deleted
                left -= bool(deleted)
        # Twice what is written: however much is left, it comes to an end.
        return gone + self._delete_superseded(2 * slices)

    def _delete_superseded(self, slices: int) -> int:
        """Delete slices of replaced rows; pass over one that fails."""
        gone, passed = 0, -1
        for _ in range(slices if self._superseded is not None else 0):
            assert self._superseded is not None  # noqa: S101 - for the type checker
            tag: int | None = None
            with self._warned(), self._deleting() as connection:
                tag = self._superseded.next(connection, passed)
                if tag is not None:
                    deleted, tag = self._superseded.delete(connection, tag, SLICE), -1
                    gone += deleted
            if tag is None:
                break
            passed = max(passed, tag)
        return gone

    @contextlib.contextmanager
    def _warned(self) -> Iterator[None]:
        """Log an error of the deletion, once: no vote depends on it."""
        try:
            yield
        except sa.exc.SQLAlchemyError as error:
            reason = describe_error(error)
            if getattr(getattr(error, "orig", None), "sqlstate", None) == "55000":
                reason = f"{reason}; run: {replica_identity(self._table.name)}"
            before, self._not_deleted = self._not_deleted, reason
            if before != reason:
                logger.warning("rows not deleted: %s", reason)

    def _delete_slice(self, after: int) -> tuple[int, int]:
        """Delete a slice of the next tag; return its size and tag; -1 at the end."""
        with self._deleting() as connection:
            if (row := self._next_doomed(connection, after)) is None:
                return 0, -1
            tag, left = row
            wanted, name = min(left, SLICE), self._table.name
            gone = self.journal.database.delete_slice(connection, name, tag, wanted)
            left -= gone
            if gone < wanted:
                after = tag
            if gone < wanted or left == 0:
                left = self._rows_left(connection, tag, left)
            h = self._hidden
            change = h.update().values(doomed=left) if left > 0 else h.delete()
            connection.execute(change.where(h.c.tag == tag))
        return gone, after

    def _deleting(self) -> contextlib.AbstractContextManager[Connection]:
        database = self.journal.database
        return database.relaxed(*database.planned_anew)

    def _next_doomed(self, connection: Connection, after: int) -> Any:
        """Lock the next tag whose rows are to be deleted: the tag, and rows left."""
        h = self._hidden
        return connection.execute(
            sa.select(h.c.tag, h.c.doomed)
            .where(h.c.doomed.is_not(None), h.c.tag > after)
            .order_by(h.c.tag)
            .limit(1)
            .with_for_update(skip_locked=True)
        ).one_or_none()

    def _rows_left(self, connection: Connection, tag: int, expected: int) -> int:
        """Read whether any are left, or locked: their tag must stay hidden."""
        rows = sa.table(self._table.name, sa.column("tpc_tag"))
        some = sa.select(sa.literal(1)).where(rows.c.tpc_tag == tag).limit(1)
        return max(expected, 1) if connection.execute(some).first() else 0
