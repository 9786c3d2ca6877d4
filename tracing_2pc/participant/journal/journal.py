"""The participant's durable memory. The statements of each batch are in `statements`.

Its rows live in the service's own database, next to the data. A writer holds the
application's lock: exclusive for everything but the end of a prepare, which may share
it with other prepares. The first look of a prepare holds none.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import time
import zlib
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, TypeVar

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import (
    BranchId,
    Carrier,
    Identity,
    TransactionId,
    carrier_from_json,
)
from tracing_2pc.core.states import BranchState, Refusal
from tracing_2pc.participant.answers import BranchRef, BranchRow, TransactionRow
from tracing_2pc.participant.journal.database import Database
from tracing_2pc.participant.journal.schema import Tables
from tracing_2pc.participant.journal.statements import Statements
from tracing_2pc.store.engines.writes import execute
from tracing_2pc.store.kit import settled

_SLICE: Final = 500
_STATES: Final = frozenset(map(str, BranchState))
_NAMES: Final = {
    kind: tuple(field.name for field in dataclasses.fields(kind))
    for kind in (TransactionId, BranchId)
}
_Item = TypeVar("_Item")

OnEnd = Callable[[Connection, sa.Select[Any], Mapping[str, Any], BranchState], None]
"""Called in the local transaction that ends branches, before their rows change, with a
SELECT of their tags, its parameters, and the outcome. A commit is of all that are not
sealed: the SELECT is `Statements.unsealed`."""

Evidence = Callable[[Connection, Sequence[Any], dict[int, BranchState]], None]
"""Corrects the states, by tag, that the journal's rows alone would give."""


class Journal:
    """One participant's record of transactions and branches."""

    def __init__(
        self,
        tables: Tables,
        database: Database,
        clock: Callable[[], float] | None = None,
        *,
        evidence: Evidence | None = None,
    ) -> None:
        self.tables = tables
        self.database = database
        self.clock = clock or self._database_clock
        self._offset: float | None = None
        self._evidence = evidence
        self.on_end: OnEnd = lambda *_: None
        dialect = database.engine.dialect.name
        self.statements = Statements(tables, dialect, database.clock)

    @property
    def name(self) -> str:
        """The prefix of its tables' names: one participant in its database."""
        return self.tables.name

    def read(
        self,
        connection: Connection,
        transaction: TransactionId,
        branch: BranchId | None = None,
    ) -> TransactionRow:
        """Read a transaction, with one of its branches or all of them."""
        statements = self.statements
        statement = statements.read_all if branch is None else statements.read_one
        rows = connection.execute(statement, _keys(transaction, branch)).all()
        self._set_clock(rows[0].now)
        of_attempt = [r for r in rows if r.attempt == transaction.attempt]
        own = of_attempt[0] if of_attempt else None
        stored = next((r.carrier for r in of_attempt if r.carrier), None)
        committed = (
            dataclasses.replace(transaction, attempt=r.attempt)
            for r in rows
            if r.seal == "committed" and r.attempt != transaction.attempt
        )
        branch_rows = [r for r in of_attempt if r.tag is not None]
        for r in branch_rows:
            self._raise_if_damaged(transaction, r)
        branches = self._branches(connection, branch_rows)
        known = {branch.tag for branch in branches}
        return TransactionRow(
            transaction,
            forgotten_through=rows[0].forgotten_through,
            participant=rows[0].participant,
            journal=str(rows[0].journal),
            recorded=own is not None,
            seal=self._seal(transaction, own.seal) if own and own.seal else None,
            by_hand=own is not None and own.resolved_because is not None,
            carrier=carrier_from_json(stored or "{}"),
            branches={branch.ref.branch: branch for branch in branches},
            dead=tuple(r.tag for r in branch_rows if r.tag not in known),
            committed=next(committed, None),
            leftovers=branch is not None and bool(rows[0].leftovers),
        )

    def _database_clock(self) -> float:
        """Return the database's time, from the last read, not this machine's own."""
        if self._offset is None:
            with self.database.look() as connection:
                self.read_clock(connection)
        return time.time() + (self._offset or 0.0)

    def read_clock(self, connection: Connection) -> None:
        """Read the database's clock, which `read` reads, too."""
        self._set_clock(connection.scalar(self.statements.clock))

    def _set_clock(self, now: Any) -> None:
        self._offset = float(now) - time.time()

    def _raise_if_damaged(self, transaction: TransactionId, r: Any) -> None:
        """Refuse a branch's row that was damaged: SQLite has no checksums.

        Columns that change are compared with each other: no single bit turns both.
        """
        ref = BranchRef(BranchId(r.partition, r.task_attempt), r.row_count, r.digest)
        is_state = r.state in _STATES and (r.state == "prepared") == (r.sealed is None)
        if not is_state or r.checksum != checksum_of(transaction, ref, r.tag):
            raise self._damaged(transaction, f"branch {ref.branch} in {self.name}_tpc_")

    def _seal(self, transaction: TransactionId, seal: str) -> BranchState:
        if seal not in _STATES:
            raise self._damaged(transaction, f"its seal in {self.name}_tpc_")
        return BranchState(seal)

    def _damaged(self, transaction: TransactionId, subject: str) -> RefusalError:
        where = f"{subject}… does not match its checksum"
        detail = f"{transaction}: {where}: restore the participant's database"
        return RefusalError(Refusal.NOT_NOW, detail, transaction_id=str(transaction))

    def _branches(self, connection: Connection, rows: Sequence[Any]) -> list[BranchRow]:
        """Return the branches of these rows, without those noted and never prepared."""
        states = {r.tag: BranchState(r.state) for r in rows}
        if self._evidence is not None:
            self._evidence(connection, rows, states)
        return [
            BranchRow(
                BranchRef(BranchId(r.partition, r.task_attempt), r.row_count, r.digest),
                states[r.tag],
                r.tag,
                r.since,
                r.sealed,
            )
            for r in rows
            if r.tag in states
        ]

    def draw_tag(self) -> int:
        """Draw one for another transaction. A crash may only leave it unused."""
        is_drawn = self.database.engine.dialect.name == "postgresql"
        database = self.database
        with database.look() if is_drawn else database.relaxed() as connection:
            tag = int(
                connection.exec_driver_sql(
                    f"SELECT {self.statements.next_tag}"
                ).scalar_one()
            )
            if not is_drawn:
                self.tables.set_last_tag(connection, tag)
        return tag

    def drop_dead(self, connection: Connection, row: TransactionRow) -> None:
        """Forget prepares that never happened: under the exclusive lock none will."""
        b = self.tables.branch
        for some in in_slices(row.dead):
            connection.execute(b.delete().where(b.c.tag.in_(some)))

    def add_prepared(
        self,
        connection: Connection,
        row: TransactionRow,
        ref: BranchRef,
        *,
        tag: int,
        carrier: Carrier,
    ) -> bool:
        """Put a branch on record that is prepared when this commits.

        False where another prepare of it has come between, by a caller that shares the
        lock: the transaction must be rolled back then.
        """
        since = self.clock()
        if row.recorded or self.statements.add_prepared is None:
            self._record(connection, row, carrier)
        if self.statements.add_prepared is None:
            values = {"tag": tag, "state": "prepared", "since": since}
            self._add(connection, row, ref, values)
            execute(connection, self.statements.hide, {"of_tag": tag})
            return True
        values = _values(row.transaction, ref.branch) | {"since": since, "tag": tag}
        values |= {"rows": ref.rows, "digest": ref.digest}
        values["checksum"] = checksum_of(row.transaction, ref, tag)
        values["carrier"] = json.dumps(carrier)
        return connection.scalar(self.statements.add_prepared, values) is not None

    def _add(
        self,
        connection: Connection,
        row: TransactionRow,
        ref: BranchRef,
        values: Mapping[str, Any],
    ) -> None:
        checksum = checksum_of(row.transaction, ref, values.get("tag", 0))
        content = {"rows": ref.rows, "digest": ref.digest, "checksum": checksum}
        values = {**_values(row.transaction, ref.branch), **content, **values}
        connection.execute(self.tables.branch.insert(), values)

    def _record(
        self, connection: Connection, row: TransactionRow, carrier: Carrier
    ) -> None:
        t = self.tables.transaction
        if not row.recorded:
            values = _values(row.transaction)
            connection.execute(t.insert(), {**values, "carrier": json.dumps(carrier)})
        elif carrier and not row.carrier:
            update = t.update().where(*rows_of(t, row.transaction))
            connection.execute(update.values(carrier=json.dumps(carrier)))

    def is_in_use(self, connection: Connection, application: str) -> bool:
        """Tell whether an application has anything here that is not aborted."""
        name = self.tables.application.c.application
        statement = sa.select(name).where(name == application, self._in_use())
        return connection.execute(statement).first() is not None

    def _in_use(self) -> sa.ColumnElement[bool]:
        a, b, t = self.tables.application, self.tables.branch, self.tables.transaction
        name = a.c.application
        return sa.or_(
            a.c.forgotten_through.is_not(None),
            sa.exists().where(b.c.application == name, b.c.sealed.is_(None)),
            sa.exists().where(t.c.application == name, t.c.seal == "committed"),
        )

    def note_participant(
        self, connection: Connection, row: TransactionRow, participant: str
    ) -> None:
        """Note an application's name for this participant."""
        if row.participant == participant:
            return
        a, name = self.tables.application, row.transaction.application
        statement: sa.Insert | sa.Update = a.update().where(a.c.application == name)
        if row.participant is None:
            statement = a.insert().values(application=name)
        connection.execute(statement.values(participant=participant))

    def forget_participant(self, connection: Connection, row: TransactionRow) -> None:
        """Drop the name: nothing was prepared under it, and the caller may not name."""
        if row.participant is not None:
            a = self.tables.application
            condition = a.c.application == row.transaction.application
            connection.execute(a.delete().where(condition))

    def identity(self, connection: Connection, application: str | None) -> Identity:
        """Return the journal's id, and our names by application, in use."""
        a = self.tables.application
        names = sa.select(a.c.application, a.c.participant).where(self._in_use())
        if application is not None:
            names = names.where(a.c.application == application)
        journal = connection.execute(sa.select(self.tables.identity.c.id)).scalar()
        rows = connection.execute(names.order_by(a.c.application)).all()
        return Identity(str(journal), {r.application: r.participant for r in rows})

    def seal(
        self,
        connection: Connection,
        row: TransactionRow,
        outcome: BranchState,
        *,
        losers: Collection[int],
        because: str | None = None,
    ) -> None:
        """Seal a transaction: its prepared branches take the outcome, `losers` abort.

        `row` was read in this local transaction, under the lock, with all branches.
        """
        self._record(connection, row, Carrier())
        keys = _keys(row.transaction)
        self._abort(connection, losers)
        self.drop_dead(connection, row)
        self.on_end(connection, self.statements.unsealed, keys, outcome)
        is_commit = outcome is BranchState.COMMITTED
        # Rule 16: the seal stays until forgotten_through has passed it.
        writes = self.statements.commit if is_commit else self.statements.abort
        values = {"outcome": str(outcome), "now": self.clock(), "because": because}
        execute(connection, writes, {**keys, **values})

    def touch_seal(self, connection: Connection, transaction: TransactionId) -> None:
        """Write the seal again, so that this local transaction has to be flushed."""
        t = self.tables.transaction
        conditions = rows_of(t, transaction)
        connection.execute(t.update().where(*conditions).values(seal=t.c.seal))

    def abort_branch(
        self, connection: Connection, row: TransactionRow, branch: BranchId
    ) -> None:
        """Abort one branch; an unknown one leaves a tombstone."""
        known = row.branches.get(branch)
        if known is not None and known.state is not BranchState.ABORTED:
            self._abort(connection, [known.tag])
        elif known is None and row.seal is None:
            self._record(connection, row, Carrier())
            now = self.clock()
            values = {"state": "aborted", "since": now, "sealed": now}
            self.drop_dead(connection, row)
            self._add(connection, row, BranchRef(branch, 0, ""), values)

    def _abort(self, connection: Connection, tags: Iterable[int]) -> None:
        b = self.tables.branch
        values = {"state": "aborted", "sealed": self.clock()}
        for some in in_slices(tags):
            aborted = b.c.tag.in_(some)
            tags_of = sa.select(b.c.tag).where(aborted)
            self.on_end(connection, tags_of, {}, BranchState.ABORTED)
            connection.execute(b.update().where(aborted).values(values))

    def raise_forgotten_through(
        self, connection: Connection, row: TransactionRow, to: int
    ) -> None:
        """Raise an application's forgotten_through, and drop sealed rows below it.

        The application has a row already, or gets it in the same local transaction.
        """
        # Rule 19: it never falls.
        if row.forgotten_through is not None and to <= row.forgotten_through:
            return
        a, b, t = self.tables.application, self.tables.branch, self.tables.transaction
        name = row.transaction.application
        update = a.update().where(a.c.application == name)
        connection.execute(update.values(forgotten_through=to))
        below = (b.c.application == name, b.c.batch <= to)
        # Rule 12: a prepared branch is kept and listed.
        connection.execute(b.delete().where(*below, b.c.state != "prepared"))
        rest = sa.exists().where(self._of_transaction())
        below = (t.c.application == name, t.c.batch <= to)
        connection.execute(t.delete().where(*below, ~rest))

    def list_open(
        self, connection: Connection, *, application: str | None, after: int, limit: int
    ) -> tuple[list[tuple[TransactionId, BranchRow, Carrier]], int | None]:
        """List a page of unsealed branches, oldest first, and the next page's start."""
        self.read_clock(connection)
        b, t = self.tables.branch, self.tables.transaction
        statement = (
            sa.select(*settled(b), b.c.rows.label("row_count"), t.c.carrier)
            .join_from(b, t, self._of_transaction())
            .where(b.c.sealed.is_(None), b.c.tag > after)
        )
        if application is not None:
            statement = statement.where(b.c.application == application)
        rows = connection.execute(statement.order_by(b.c.tag).limit(limit)).all()
        by_tag = {r.tag: r for r in rows}
        for r in rows:
            id_ = TransactionId(r.application, r.batch, r.attempt)
            self._raise_if_damaged(id_, r)
        page = [
            (
                TransactionId(r.application, r.batch, r.attempt),
                branch,
                carrier_from_json(r.carrier),
            )
            for branch in self._branches(connection, rows)
            if (r := by_tag[branch.tag])
        ]
        return page, (rows[-1].tag if len(rows) == limit else None)

    def _of_transaction(self) -> sa.ColumnElement[bool]:
        """Join branches with their transaction."""
        b, t = self.tables.branch.c, self.tables.transaction.c
        names = ("application", "batch", "attempt")
        return sa.and_(*(b[name] == t[name] for name in names))

    def count_in_doubt(self, connection: Connection) -> tuple[int, float | None]:
        """Count the prepared branches, and return since when the oldest waits."""
        self.read_clock(connection)
        b = self.tables.branch.c
        statement = sa.select(sa.func.count(), sa.func.min(b.since))
        in_doubt = statement.where(b.sealed.is_(None), b.state == "prepared")
        count, since = connection.execute(in_doubt).one()
        return count, since

    def applications(self, connection: Connection) -> set[str]:
        """Return the applications that are known to have written here."""
        a, t = self.tables.application.c, self.tables.transaction.c
        known = sa.union(sa.select(a.application), sa.select(t.application))
        return set(connection.execute(known).scalars())


def checksum_of(transaction: TransactionId, ref: BranchRef, tag: int) -> int:
    """Return CRC-32 over the constant columns of a branch's row.

    One that was never prepared gets its tag as it is stored, and has no rows by it.
    """
    text = f"{transaction} {ref.branch} {ref.rows} {ref.digest} {tag * bool(ref.rows)}"
    return zlib.crc32(text.encode())


def in_slices(items: Iterable[_Item], size: int = _SLICE) -> Iterator[list[_Item]]:
    """Return a few at a time, as many as a statement may have parameters."""
    rest = iter(items)
    while some := list(itertools.islice(rest, size)):
        yield some


def _keys(transaction: TransactionId, branch: BranchId | None = None) -> dict[str, Any]:
    values = _values(transaction) if branch is None else _values(transaction, branch)
    return {f"of_{name}": value for name, value in values.items()}


def _values(*keys: TransactionId | BranchId) -> dict[str, Any]:
    return {n: getattr(key, n) for key in keys for n in _NAMES[type(key)]}


def rows_of(
    table: sa.Table, *keys: TransactionId | BranchId
) -> tuple[sa.ColumnElement[bool], ...]:
    """Return the conditions for a table's rows of a transaction, or of a branch."""
    return tuple(table.c[name] == value for name, value in _values(*keys).items())
