"""The journal beside prepared transactions: PostgreSQL says what is prepared."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.model import BranchId, TransactionId
from tracing_2pc.participant.answers import Seen
from tracing_2pc.participant.journal import Alive, Journal, rows_of
from tracing_2pc.participant.schema import TAG, Tables
from tracing_2pc.states import BranchState

_PREFIX: Final = sa.text(
    "SELECT concat_ws('.', 'tpc', CAST(:table AS text), d.oid, CAST(:journal AS "
    "regclass)::oid, '') FROM pg_database d WHERE d.datname = current_database()"
)
_HELD: Final = sa.text(
    "SELECT gid FROM pg_prepared_xacts "
    "WHERE database = current_database() AND starts_with(gid, :prefix)"
)
_SLOTS: Final = sa.text(
    "SELECT (SELECT count(*) FROM pg_prepared_xacts), "
    "current_setting('max_prepared_transactions')::int"
)


class Sealed(NamedTuple):
    """A prepared transaction whose branch has heard the decision."""

    gid: str
    outcome: BranchState


class PreparedJournal(Journal):
    """Knows what was asked for and decided; PostgreSQL, what is prepared.

    A row says *prepared* just before its PREPARE TRANSACTION. One without a prepared
    transaction is a prepare that never happened, or that somebody has undone; one
    whose row of `outcome` is there was committed, because that row was a part of it.

    Args:
        name: of the table that the records go into.
        tables: the journal's; gets one more.
        alive: which writers still live.
    """

    def __init__(self, name: str, tables: Tables, alive: Alive) -> None:
        super().__init__(tables, alive)
        tables.metadata.remove(tables.hidden)  # nothing is visible before its time
        self._name = name
        self._prefix = ""
        self._outcome = sa.Table(
            f"{name}_tpc_outcome",
            tables.metadata,
            sa.Column("tag", TAG, primary_key=True, autoincrement=False),
        )

    def create(self, connection: Connection) -> None:
        """Make the tables; learn by what our prepared transactions are known.

        Their names are unique in the server: they hold this database and journal.
        """
        super().create(connection)
        about = {"table": self._name, "journal": self.t.branch.name}
        self._prefix = str(connection.execute(_PREFIX, about).scalar())

    def gid(self, transaction: TransactionId, branch: BranchId, tag: int) -> str:
        """Return a branch's name in PostgreSQL: 193 bytes at most, of 199."""
        return f"{self._prefix}{tag}.{transaction}.{branch}"

    def gids(self, connection: Connection) -> dict[int, str]:
        """Return what is prepared and ours, by tag. Others' is never touched."""
        found = connection.execute(_HELD, {"prefix": self._prefix}).scalars()
        return {int(gid[len(self._prefix) :].partition(".")[0]): gid for gid in found}

    def slots(self, connection: Connection) -> tuple[int, int]:
        """Count the server's prepared transactions, and those that it takes."""
        used, most = connection.execute(_SLOTS).one()
        return used, most

    def states(
        self, connection: Connection, rows: Sequence[Any]
    ) -> dict[int, BranchState]:
        """Say in which state branches are, by what PostgreSQL holds.

        Who lives is asked first: a writer that is dead by then has prepared or never
        will.
        """
        known = super().states(connection, rows)
        prepared = [r for r in rows if r.state == "prepared"]
        if not prepared:
            return known
        alive = self.alive(connection, {r.writer for r in prepared})
        there = self.gids(connection)
        committed = self._committed(connection, [r.tag for r in prepared])
        for r in prepared:
            if r.tag in committed:
                known[r.tag] = BranchState.COMMITTED
            elif r.tag not in there and r.writer in alive:
                known[r.tag] = BranchState.WRITING
            elif r.tag not in there:
                del known[r.tag]
        return known

    def prepared(self, connection: Connection, tag: int, now: float) -> None:
        """Say that a branch is about to be prepared."""
        b = self.t.branch
        values = {"state": "prepared", "since": now}
        connection.execute(b.update().where(b.c.tag == tag).values(values))

    def add_outcome(self, connection: Connection, tag: int) -> None:
        """Put into the transaction of a branch what its commit will show."""
        connection.execute(self._outcome.insert().values(tag=tag))

    def seal(
        self,
        connection: Connection,
        seen: Seen,
        outcome: BranchState,
        *,
        losers: Iterable[int],
        now: float,
        because: str | None = None,
    ) -> None:
        """Seal, without the prepares that never happened."""
        b = self.t.branch
        of = (*rows_of(b, seen.transaction), b.c.sealed.is_(None))
        known = {held.tag for held in seen.branches.values()}
        for tag in connection.execute(sa.select(b.c.tag).where(*of)).scalars().all():
            if tag not in known:
                connection.execute(b.delete().where(b.c.tag == tag))
        super().seal(connection, seen, outcome, losers=losers, now=now, because=because)

    def sealed(
        self, connection: Connection, transaction: TransactionId
    ) -> list[Sealed]:
        """Return what is still prepared of a decided transaction: commits first.

        Without a row in the journal it was named by nobody.
        """
        end = f".{transaction}."
        held = {tag: gid for tag, gid in self.gids(connection).items() if end in gid}
        if not held:
            return []
        b, t = self.t.branch, self.t.transaction
        sealed = sa.select(t.c.seal).where(*rows_of(t, transaction))
        whole = connection.execute(sealed).scalar() is not None
        rows = connection.execute(
            sa.select(b.c.tag, b.c.state, b.c.sealed).where(*rows_of(b, transaction))
        )
        known: Mapping[int, Any] = {r.tag: r for r in rows}
        found = []
        for tag, gid in sorted(held.items()):
            row = known.get(tag)
            if whole if row is None else row.sealed is not None:
                keep = row is not None and row.state == "committed"
                outcome = BranchState.COMMITTED if keep else BranchState.ABORTED
                found.append(Sealed(gid, outcome))
        return sorted(found, key=lambda one: one.outcome is BranchState.ABORTED)

    def lost(
        self, connection: Connection, transaction: TransactionId
    ) -> list[BranchId]:
        """Return branches that are committed by the journal, and in fact are not."""
        b, o = self.t.branch, self._outcome
        statement = (
            sa.select(b.c.partition, b.c.task_attempt)
            .outerjoin(o, o.c.tag == b.c.tag)
            .where(
                *rows_of(b, transaction), b.c.state == "committed", o.c.tag.is_(None)
            )
        )
        return [BranchId(*row) for row in connection.execute(statement)]

    def raise_watermark(self, connection: Connection, seen: Seen, to: int) -> None:
        """Raise it, and drop outcomes and what never happened as well."""
        b, o = self.t.branch, self._outcome
        below = (
            b.c.application == seen.transaction.application,
            b.c.batch <= to,
        )
        never = sa.select(b.c.tag).where(
            *below, b.c.sealed.is_(None), b.c.state == "prepared"
        )
        open_ = set(connection.execute(never).scalars())
        for tag in (
            open_ - self.gids(connection).keys() - self._committed(connection, open_)
        ):
            connection.execute(b.delete().where(b.c.tag == tag))
        gone = sa.select(b.c.tag).where(*below, b.c.sealed.is_not(None))
        connection.execute(o.delete().where(o.c.tag.in_(gone)))
        super().raise_watermark(connection, seen, to)

    def in_doubt(self, connection: Connection) -> tuple[int, float | None]:
        """Count what is prepared in fact and not sealed, and since when."""
        b = self.t.branch
        rows = connection.execute(
            sa.select(b.c.tag, b.c.since).where(
                b.c.sealed.is_(None), b.c.state == "prepared"
            )
        ).all()
        there = self.gids(connection) if rows else {}
        since = [r.since for r in rows if r.tag in there]
        return len(since), min(since, default=None)

    def unhide(
        self, connection: Connection, tags: sa.Select[Any], outcome: BranchState
    ) -> None:
        """Do nothing: PostgreSQL does."""

    def any_doomed(self, connection: Connection) -> bool:
        """Say no: PostgreSQL drops what is rolled back."""
        return False

    def doomed(self, connection: Connection, after: int) -> tuple[int, int] | None:
        """Return nothing, for the same reason."""
        return None

    def _committed(self, connection: Connection, tags: Iterable[int]) -> set[int]:
        o = self._outcome
        statement = sa.select(o.c.tag).where(
            o.c.tag == sa.any_(sa.literal(list(tags), sa.ARRAY(TAG)))
        )
        return set(connection.execute(statement).scalars())
