"""The journal beside prepared transactions: PostgreSQL says what is prepared."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Sequence
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
_BUSY: Final = sa.text(
    "SELECT count(DISTINCT p.gid), count(l.locktype), "
    "coalesce(max(age(p.transaction)), 0) "
    "FROM pg_prepared_xacts p LEFT JOIN pg_locks own ON own.pid IS NULL "
    "AND own.locktype = 'transactionid' AND own.transactionid = p.transaction "
    "LEFT JOIN pg_locks l ON l.pid IS NULL "
    "AND l.virtualtransaction = own.virtualtransaction WHERE p.gid = ANY(:gids)"
)
"""Each has a lock on its own id, which tells how its other locks are named."""

_BRANCH: Final = re.compile(r"(\d+)\.([^.]+\.\d+\.\d+)\.\d+\.\d+")
"""A branch's name, behind the prefix: tag, transaction, branch."""


class Prepared(NamedTuple):
    """A prepared transaction of ours: its name in PostgreSQL, and whose it is."""

    gid: str
    transaction: TransactionId


class Busy(NamedTuple):
    """What prepared transactions of one of ours keep from others."""

    slots: int
    """Of `max_prepared_transactions`."""
    locks: int
    horizon: int
    """Age of the oldest in transactions: VACUUM cleans up nothing younger."""


class Sealed(NamedTuple):
    """A prepared transaction whose branch has heard the decision."""

    gid: str
    outcome: BranchState
    asked: bool
    """It is of the transaction that is asked about, not left by an earlier one."""


class PreparedJournal(Journal):
    """Knows what was asked for and decided; PostgreSQL, what is prepared.

    A row says *prepared* just before its PREPARE TRANSACTION. One without a prepared
    transaction is a prepare that never happened, or that somebody has undone; one
    whose row of `outcome` is there was committed, because that row was a part of it.

    Args:
        tables: the journal's; gets one more.
        alive: which writers still live.
    """

    not_ours = "hidden"

    def __init__(self, tables: Tables, alive: Alive) -> None:
        super().__init__(tables, alive)
        tables.metadata.remove(tables.hidden)  # nothing is visible before its time
        self._prefix = ""
        self._outcome = sa.Table(
            f"{tables.name}_tpc_outcome",
            tables.metadata,
            sa.Column("tag", TAG, primary_key=True, autoincrement=False),
        )
        self.tags = [tables.branch.c.tag, self._outcome.c.tag]

    def create(self, connection: Connection) -> None:
        """Make the tables; learn by what our prepared transactions are known.

        Their names are unique in the server: they hold this database and journal.
        """
        super().create(connection)
        about = {"table": self.t.name, "journal": self.t.branch.name}
        self._prefix = str(connection.execute(_PREFIX, about).scalar())

    def gid(self, transaction: TransactionId, branch: BranchId, tag: int) -> str:
        """Return a branch's name in PostgreSQL: 193 bytes at most, of 199."""
        return f"{self._prefix}{tag}.{transaction}.{branch}"

    def held(self, connection: Connection) -> dict[int, Prepared]:
        """Return what is prepared and ours, by tag. Others' is never touched."""
        found = connection.execute(_HELD, {"prefix": self._prefix}).scalars().all()
        branches = [(gid, _BRANCH.fullmatch(gid[len(self._prefix) :])) for gid in found]
        return {
            int(branch[1]): Prepared(gid, TransactionId.parse(branch[2]))
            for gid, branch in branches
            if branch
        }

    def busy(self, connection: Connection, transaction: TransactionId) -> Busy:
        """Measure what PostgreSQL holds back for a transaction."""
        held = self.held(connection).values()
        gids = [one.gid for one in held if one.transaction == transaction]
        if not gids:
            return Busy(0, 0, 0)
        return Busy(*connection.execute(_BUSY, {"gids": gids}).one())

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
        there = self.held(connection)
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
        known = [held.tag for held in seen.branches.values()]
        connection.execute(
            b.delete().where(
                *rows_of(b, seen.transaction),
                b.c.sealed.is_(None),
                b.c.tag.not_in(_unnested(known)),
            )
        )
        super().seal(connection, seen, outcome, losers=losers, now=now, because=because)

    def sealed(
        self, connection: Connection, transaction: TransactionId
    ) -> list[Sealed]:
        """Return what is decided and still prepared, of the whole application.

        What is asked about comes first, commits before aborts. Without a row in the
        journal a branch of a sealed transaction was named by nobody.
        """
        application = transaction.application
        held = {
            tag: prepared
            for tag, prepared in self.held(connection).items()
            if prepared.transaction.application == application
        }
        if not held:
            return []
        b = self.t.branch
        rows = {
            r.tag: r
            for r in connection.execute(
                sa.select(b.c.tag, b.c.state, b.c.sealed).where(
                    b.c.tag == sa.any_(_array(held))
                )
            )
        }
        unnamed = {whose for tag, (_, whose) in held.items() if tag not in rows}
        whole = self._sealed_among(connection, application, unnamed)
        found = []
        for tag, (gid, whose) in sorted(held.items()):
            row = rows.get(tag)
            if whose in whole if row is None else row.sealed is not None:
                keep = row is not None and row.state == "committed"
                outcome = BranchState.COMMITTED if keep else BranchState.ABORTED
                found.append(Sealed(gid, outcome, whose == transaction))
        aborted = BranchState.ABORTED
        return sorted(found, key=lambda one: (not one.asked, one.outcome is aborted))

    def _sealed_among(
        self, connection: Connection, application: str, some: Collection[TransactionId]
    ) -> set[TransactionId]:
        """Return which of these are sealed; nothing else of the journal is read."""
        if not some:
            return set()
        t = self.t.transaction
        keys = [(one.batch, one.attempt) for one in some]
        seals = connection.execute(
            sa.select(t.c.batch, t.c.attempt).where(
                t.c.application == application,
                sa.tuple_(t.c.batch, t.c.attempt).in_(keys),
                t.c.seal.is_not(None),
            )
        )
        return {TransactionId(application, *row) for row in seals}

    def contradicted(
        self, connection: Connection, transaction: TransactionId
    ) -> tuple[BranchId, BranchState] | None:
        """Return a branch that came out otherwise than the journal says, and how."""
        b, o = self.t.branch, self._outcome
        lost = sa.and_(b.c.state == "committed", o.c.tag.is_(None))
        stray = sa.and_(b.c.state == "aborted", o.c.tag.is_not(None))
        statement = (
            sa.select(b.c.partition, b.c.task_attempt, o.c.tag)
            .outerjoin(o, o.c.tag == b.c.tag)
            .where(*rows_of(b, transaction), sa.or_(lost, stray))
            .limit(1)
        )
        if (row := connection.execute(statement).one_or_none()) is None:
            return None
        came = BranchState.ABORTED if row.tag is None else BranchState.COMMITTED
        return BranchId(row.partition, row.task_attempt), came

    def touch(self, connection: Connection, transaction: TransactionId) -> None:
        """Write the seal again, so that this local transaction has to be flushed."""
        t = self.t.transaction
        of = rows_of(t, transaction)
        connection.execute(t.update().where(*of).values(seal=t.c.seal))

    def raise_watermark(self, connection: Connection, seen: Seen, to: int) -> None:
        """Raise it, and drop outcomes and what never happened as well.

        Not while something below is decided and still prepared: its row says how it
        has to end. It is carried out now, and a later request raises the watermark.
        """
        sealed = {one.gid for one in self.sealed(connection, seen.transaction)}
        held = self.held(connection)
        if any(p.gid in sealed and p.transaction.batch <= to for p in held.values()):
            return
        b, o = self.t.branch, self._outcome
        below = (b.c.application == seen.transaction.application, b.c.batch <= to)
        gone = sa.select(b.c.tag).where(*below, b.c.tag.not_in(_unnested(held)))
        connection.execute(o.delete().where(o.c.tag.in_(gone)))
        connection.execute(b.delete().where(b.c.tag.in_(gone)))
        super().raise_watermark(connection, seen, to)

    def in_doubt(self, connection: Connection) -> tuple[int, float | None]:
        """Count what is prepared in fact, decided or not, and say since when."""
        if not (held := self.held(connection)):
            return 0, None
        b = self.t.branch
        rows = sa.select(b.c.since).where(b.c.tag == sa.any_(_array(held)))
        since = connection.execute(rows).scalars().all()
        return len(held), min(since, default=None)

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
        statement = sa.select(o.c.tag).where(o.c.tag == sa.any_(_array(tags)))
        return set(connection.execute(statement).scalars())


def _array(tags: Iterable[int]) -> sa.BindParameter[list[int]]:
    return sa.literal(list(tags), sa.ARRAY(sa.BigInteger))


def _unnested(tags: Iterable[int]) -> sa.Select[tuple[int]]:
    """Return tags as rows, which are hashed once; an array may be searched."""
    return sa.select(sa.func.unnest(_array(tags)))
