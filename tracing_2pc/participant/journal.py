"""The participant's durable memory; all of its SQL is in this module.

Rows live in the service's own database, next to the data, and change in the same
local transaction. Callers hold the application's lock: exclusive for everything but
the end of a prepare, which may share it with other prepares.
"""

from __future__ import annotations

import itertools
import json
import logging
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.model import BranchId, Carrier, Identity, TransactionId
from tracing_2pc.participant.answers import Held, Named, Seen
from tracing_2pc.participant.schema import VERSION, Tables
from tracing_2pc.states import BranchState
from tracing_2pc.store.rows import carrier_of

_SLICE: Final = 500

_LAST_TAG: Final = {
    "sqlite": "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = :name",
    "postgresql": "SELECT coalesce(pg_sequence_last_value(s), 0) "
    "FROM (SELECT CAST(pg_get_serial_sequence(:name, 'tag') AS regclass) s) counter "
    "WHERE has_sequence_privilege(s, 'USAGE')",
}
"""The last tag that was given, 0 before the first; no row for who cannot give any."""

_NUMBER: Final = {
    "sqlite": (
        "DELETE FROM sqlite_sequence WHERE name = :name",
        "INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :to)",
    ),
    "postgresql": ("SELECT setval(pg_get_serial_sequence(:name, 'tag'), :to)",),
}
"""Let the next tag be the one after this."""

Alive = Callable[[Connection, set[int]], set[int]]
"""Which of these writers still live."""

_log: Final = logging.getLogger(__name__)


class Journal:
    """What one resource holds of transactions and branches."""

    not_ours = "outcome"
    """A table that only another kind of journal has."""

    def __init__(self, tables: Tables, alive: Alive) -> None:
        self.t = tables
        self.alive = alive
        self.tags = [tables.branch.c.tag, tables.hidden.c.tag]

    def create(self, connection: Connection) -> None:
        """Make the tables that are missing. The caller excludes other creators.

        Raises:
            ConfigurationError: a newer version of this package has made them, or
                another kind of resource.
        """
        if sa.inspect(connection).has_table(f"{self.t.name}_tpc_{self.not_ours}"):
            raise ConfigurationError(
                f"the journal {self.t.name}_tpc_… is another kind of resource's: "
                "choose another name here"
            )
        self.t.metadata.create_all(connection)
        version = connection.execute(sa.select(self.t.schema.c.version)).scalar()
        if version is None:
            row = {"version": VERSION, "journal": uuid.uuid4().hex}
            connection.execute(self.t.schema.insert().values(row))
        elif version > VERSION:
            raise ConfigurationError(
                f"{self.t.schema.name} has version {version}, this tracing_2pc knows "
                f"{VERSION}: upgrade tracing_2pc here"
            )
        for tags in self.tags:
            self.number_above(connection, tags)

    def number_above(self, connection: Connection, tags: sa.ColumnElement[int]) -> None:
        """Have each tag to come be above those that rows carry: none comes twice.

        A tag that comes again hides what others have committed, and has it deleted.
        A counter begins anew where it was dropped, or was not copied with the rows: in
        a logical replica, or a dump of some tables. The caller excludes other creators.
        An index on the tags makes this cheap.
        """
        last = sa.text(_LAST_TAG[connection.dialect.name])
        name = {"name": self.t.branch.name}
        known = connection.execute(last, name).scalar()
        if known is None:
            return
        highest = sa.select(sa.func.max(tags)).where(tags > known)
        if (to := connection.execute(highest).scalar()) is None:
            return
        _log.warning("tags go on above those that rows carry", extra={"tag": to})
        if connection.dialect.name == "postgresql":
            # No tag is given out meanwhile, which `to` could be behind.
            quoted = connection.dialect.identifier_preparer.quote(self.t.branch.name)
            connection.exec_driver_sql(f"LOCK TABLE {quoted} IN EXCLUSIVE MODE")
            to = max(to, connection.execute(last, name).scalar_one())
        for statement in _NUMBER[connection.dialect.name]:
            connection.execute(sa.text(statement), {**name, "to": to})

    def read(
        self,
        connection: Connection,
        transaction: TransactionId,
        branch: BranchId | None = None,
    ) -> Seen:
        """Read what is known of a transaction: of one branch, or of all of them."""
        rows = connection.execute(self._select(transaction, branch)).all()
        known = [r for r in rows if r.attempt == transaction.attempt]
        own = known[0] if known else None
        others = [
            r.attempt
            for r in rows
            if r.seal == "committed" and r.attempt != transaction.attempt
        ]
        return Seen(
            transaction,
            watermark=rows[0].watermark,
            participant=rows[0].participant,
            recorded=own is not None,
            seal=BranchState(own.seal) if own and own.seal else None,
            by_hand=own is not None and own.resolved_because is not None,
            carrier=carrier_of(own.carrier) if own else {},
            branches={h.named.branch: h for h in self._held(connection, known)},
            committed=TransactionId(
                transaction.application, transaction.batch, others[0]
            )
            if others
            else None,
        )

    def _select(
        self, transaction: TransactionId, branch: BranchId | None
    ) -> sa.Select[Any]:
        one = sa.select(sa.literal(1).label("one")).subquery()
        a, t, b = self.t.application, self.t.transaction, self.t.branch
        joined = one.outerjoin(a, a.c.application == transaction.application)
        batch = sa.and_(
            t.c.application == transaction.application, t.c.batch == transaction.batch
        )
        own = sa.and_(t.c.attempt == transaction.attempt, *rows_of(b, transaction))
        if branch is not None:
            own = sa.and_(own, *_is(b, branch))
        return sa.select(
            *(a.c.watermark, a.c.participant),
            *(t.c.attempt, t.c.seal, t.c.resolved_because, t.c.carrier),
            *(b.c.tag, b.c.partition, b.c.task_attempt, b.c.state),
            *(b.c.rows.label("row_count"), b.c.digest, b.c.writer),
            *(b.c.since, b.c.sealed),
        ).select_from(joined.outerjoin(t, batch).outerjoin(b, own))

    def _held(self, connection: Connection, rows: Iterable[Any]) -> list[Held]:
        found = [r for r in rows if r.tag is not None]
        states = self.states(connection, found)
        return [
            Held(
                Named(BranchId(r.partition, r.task_attempt), r.row_count, r.digest),
                state,
                r.tag,
                r.since,
                r.sealed,
            )
            for r in found
            if (state := states.get(r.tag))
        ]

    def states(
        self, connection: Connection, rows: Sequence[Any]
    ) -> dict[int, BranchState]:
        """Say in which state branches are, by tag: not those whose writer died."""
        writers = {r.writer for r in rows if r.state == "writing"}
        alive = self.alive(connection, writers) if writers else set()
        return {
            r.tag: BranchState(r.state)
            for r in rows
            if r.state != "writing" or r.writer in alive
        }

    def claim(
        self,
        connection: Connection,
        seen: Seen,
        wanted: Named,
        *,
        carrier: Carrier,
        writer: int,
        now: float,
    ) -> int:
        """Put a writing branch on record, and return its tag.

        A row of the same branch can only be a dead writer's here.
        """
        self._record(connection, seen, carrier)
        b = self.t.branch
        connection.execute(
            b.delete().where(*rows_of(b, seen.transaction), *_is(b, wanted.branch))
        )
        state = BranchState.WRITING
        return self._insert(
            connection, seen.transaction, wanted, state, writer=writer, since=now
        )

    def _insert(
        self,
        connection: Connection,
        transaction: TransactionId,
        named: Named,
        state: BranchState,
        **values: Any,
    ) -> int:
        statement = self.t.branch.insert().values(
            application=transaction.application,
            batch=transaction.batch,
            attempt=transaction.attempt,
            partition=named.branch.partition,
            task_attempt=named.branch.task_attempt,
            state=str(state),
            rows=named.rows,
            digest=named.digest,
            **values,
        )
        key = connection.execute(statement).inserted_primary_key
        assert key is not None  # noqa: S101 - an insert of one row has a key
        return int(key[0])

    def _record(self, connection: Connection, seen: Seen, carrier: Carrier) -> None:
        t, text = self.t.transaction, json.dumps(carrier)
        if not seen.recorded:
            id_ = seen.transaction
            connection.execute(
                t.insert().values(
                    application=id_.application,
                    batch=id_.batch,
                    attempt=id_.attempt,
                    carrier=text,
                )
            )
        elif carrier and not seen.carrier:
            statement = t.update().where(*rows_of(t, seen.transaction))
            connection.execute(statement.values(carrier=text))

    def prepared(self, connection: Connection, tag: int, now: float) -> None:
        """Move a written branch to prepared, hidden from readers."""
        b = self.t.branch
        values = {"state": "prepared", "writer": None, "since": now}
        connection.execute(b.update().where(b.c.tag == tag).values(values))
        connection.execute(self.t.hidden.insert().values(tag=tag))

    def is_in_use(self, connection: Connection, seen: Seen) -> bool:
        """Whether an application has anything here that is not aborted."""
        name = self.t.application.c.application
        statement = sa.select(name).where(
            name == seen.transaction.application, self._in_use()
        )
        return connection.execute(statement).first() is not None

    def _in_use(self) -> sa.ColumnElement[bool]:
        a, b, t = self.t.application, self.t.branch, self.t.transaction
        name = a.c.application
        return sa.or_(
            a.c.watermark.is_not(None),
            sa.exists().where(b.c.application == name, b.c.sealed.is_(None)),
            sa.exists().where(t.c.application == name, t.c.seal == "committed"),
        )

    def call(self, connection: Connection, seen: Seen, participant: str) -> None:
        """Note by which name an application calls us."""
        if seen.participant == participant:
            return
        a, name = self.t.application, seen.transaction.application
        statement = (
            a.insert().values(application=name, participant=participant)
            if seen.participant is None
            else a.update()
            .where(a.c.application == name)
            .values(participant=participant)
        )
        connection.execute(statement)

    def identity(self, connection: Connection, application: str | None) -> Identity:
        """Say which journal this is, and how applications, or one of them, call us.

        Only those that are in use: another name would be refused.
        """
        a = self.t.application
        names = sa.select(a.c.application, a.c.participant).where(self._in_use())
        if application is not None:
            names = names.where(a.c.application == application)
        journal = connection.execute(sa.select(self.t.schema.c.journal)).scalar()
        rows = connection.execute(names.order_by(a.c.application)).all()
        return Identity(str(journal), {r.application: r.participant for r in rows})

    def release(
        self, connection: Connection, transaction: TransactionId, tag: int
    ) -> None:
        """Forget a branch whose writing failed; its transaction too if that was all."""
        b, t = self.t.branch, self.t.transaction
        connection.execute(
            b.delete().where(b.c.tag == tag, b.c.state == str(BranchState.WRITING))
        )
        rest = sa.exists().where(*rows_of(b, transaction))
        connection.execute(
            t.delete().where(*rows_of(t, transaction), t.c.seal.is_(None), ~rest)
        )

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
        """Seal a transaction: its prepared branches take the outcome, losers abort.

        Args:
            connection: in the local transaction that holds the application's lock.
            seen: what was read in it.
            outcome: committed or aborted.
            losers: tags that abort whatever the outcome: not named, or still writing.
            now: Unix seconds.
            because: a person's reason, where a person decided.
        """
        self._record(connection, seen, {})
        t, b = self.t.transaction, self.t.branch
        values = {"seal": str(outcome), "resolved_because": because}
        connection.execute(
            t.update().where(*rows_of(t, seen.transaction)).values(values)
        )
        self._abort(connection, losers, now)
        of = (*rows_of(b, seen.transaction), b.c.sealed.is_(None))
        writing = b.c.state == str(BranchState.WRITING)
        connection.execute(b.delete().where(*of, writing))  # whose writers are dead
        tags = sa.select(b.c.tag).where(*of)
        self.unhide(connection, tags, outcome)
        sealed = {"state": str(outcome), "sealed": now}
        connection.execute(b.update().where(*of).values(sealed))

    def abort_branch(
        self, connection: Connection, seen: Seen, branch: BranchId, now: float
    ) -> None:
        """Abort one branch; an unknown one leaves a tombstone."""
        held = seen.branches.get(branch)
        if held is not None and held.state is not BranchState.ABORTED:
            self._abort(connection, [held.tag], now)
        elif held is None and seen.seal is None:
            self._record(connection, seen, {})
            b = self.t.branch
            dead = (*rows_of(b, seen.transaction), *_is(b, branch))
            connection.execute(b.delete().where(*dead))
            tombstone = Named(branch, 0, "")
            aborted = BranchState.ABORTED
            self._insert(
                connection, seen.transaction, tombstone, aborted, since=now, sealed=now
            )

    def _abort(self, connection: Connection, tags: Iterable[int], now: float) -> None:
        b = self.t.branch
        values = {"state": "aborted", "sealed": now, "writer": None}
        never_prepared = b.c.state == str(BranchState.WRITING)
        since = sa.case((never_prepared, now), else_=b.c.since)
        for some in in_slices(tags):
            aborted = b.c.tag.in_(some)
            which = sa.select(b.c.tag).where(aborted)
            self.unhide(connection, which, BranchState.ABORTED)
            connection.execute(b.update().where(aborted).values(**values, since=since))

    def unhide(
        self, connection: Connection, tags: sa.Select[Any], outcome: BranchState
    ) -> None:
        """Show what is committed; what is aborted is to be deleted."""
        h, b = self.t.hidden, self.t.branch
        if outcome is BranchState.COMMITTED:
            connection.execute(h.delete().where(h.c.tag.in_(tags)))
            return
        rows = sa.select(b.c.rows).where(b.c.tag == h.c.tag).scalar_subquery()
        connection.execute(h.update().where(h.c.tag.in_(tags)).values(doomed=rows))

    def raise_watermark(self, connection: Connection, seen: Seen, to: int) -> None:
        """Raise an application's watermark and drop what lies below (rule 19).

        It never falls. A branch that is prepared is kept and listed (rule 12). The
        application has a name for us, or gets it in the same local transaction.
        """
        if seen.watermark is not None and to <= seen.watermark:
            return
        a, b, t = self.t.application, self.t.branch, self.t.transaction
        name = seen.transaction.application
        statement = a.update().where(a.c.application == name).values(watermark=to)
        connection.execute(statement)
        below = (b.c.application == name, b.c.batch <= to)
        connection.execute(b.delete().where(*below, b.c.state != "prepared"))
        rest = sa.exists().where(
            b.c.application == t.c.application,
            b.c.batch == t.c.batch,
            b.c.attempt == t.c.attempt,
        )
        below = (t.c.application == name, t.c.batch <= to)
        connection.execute(t.delete().where(*below, ~rest))

    def open_branches(
        self,
        connection: Connection,
        *,
        application: str | None,
        state: str | None,
        after: int,
        limit: int,
    ) -> tuple[list[tuple[TransactionId, Held, Carrier]], int | None]:
        """List what is not sealed, oldest first: a page, and where the next begins."""
        b, t = self.t.branch, self.t.transaction
        same = sa.and_(
            t.c.application == b.c.application,
            t.c.batch == b.c.batch,
            t.c.attempt == b.c.attempt,
        )
        statement = (
            sa.select(b, b.c.rows.label("row_count"), t.c.carrier)
            .join_from(b, t, same)
            .where(b.c.sealed.is_(None), b.c.tag > after)
        )
        if application is not None:
            statement = statement.where(b.c.application == application)
        if state is not None:
            statement = statement.where(b.c.state == state)
        rows = connection.execute(statement.order_by(b.c.tag).limit(limit)).all()
        about = {r.tag: r for r in rows}
        page = [
            (
                TransactionId(r.application, r.batch, r.attempt),
                held,
                carrier_of(r.carrier),
            )
            for held in self._held(connection, rows)
            if (r := about[held.tag]) and state in (None, held.state)
        ]
        return page, (rows[-1].tag if len(rows) == limit else None)

    def in_doubt(self, connection: Connection) -> tuple[int, float | None]:
        """Count the prepared branches, and say since when the oldest waits."""
        b = self.t.branch
        count, since = connection.execute(
            sa.select(sa.func.count(), sa.func.min(b.c.since)).where(
                b.c.sealed.is_(None), b.c.state == str(BranchState.PREPARED)
            )
        ).one()
        return count, since

    def applications(self, connection: Connection) -> set[str]:
        """Return the applications that have written here, as far as it is known."""
        a, t = self.t.application.c, self.t.transaction.c
        known = sa.union(sa.select(a.application), sa.select(t.application))
        return set(connection.execute(known).scalars())

    def any_doomed(self, connection: Connection) -> bool:
        """Say whether there are rows to be deleted."""
        h = self.t.hidden
        some = sa.select(h.c.tag).where(h.c.doomed.is_not(None)).limit(1)
        return connection.execute(some).first() is not None

    def doomed(self, connection: Connection, after: int) -> tuple[int, int] | None:
        """Lock the next tag whose rows are to be deleted: the tag, and rows left."""
        h = self.t.hidden
        statement = (
            sa.select(h.c.tag, h.c.doomed)
            .where(h.c.doomed.is_not(None), h.c.tag > after)
            .order_by(h.c.tag)
            .limit(1)
            .with_for_update(skip_locked=True)
        )
        found = connection.execute(statement).one_or_none()
        return (found.tag, found.doomed) if found else None

    def doom(self, connection: Connection, tag: int, left: int) -> None:
        """Note how many rows of an aborted tag are left; none ends it."""
        h = self.t.hidden
        if left <= 0:
            connection.execute(h.delete().where(h.c.tag == tag))
            return
        connection.execute(h.update().where(h.c.tag == tag).values(doomed=left))


def in_slices(tags: Iterable[int]) -> Iterator[list[int]]:
    """Return a few tags at a time: a statement takes only so many parameters."""
    left = iter(tags)
    while some := list(itertools.islice(left, _SLICE)):
        yield some


def rows_of(
    table: sa.Table, transaction: TransactionId
) -> tuple[sa.ColumnElement[bool], ...]:
    """Return what a table's rows of a transaction have in common."""
    c = table.c
    return (
        c.application == transaction.application,
        c.batch == transaction.batch,
        c.attempt == transaction.attempt,
    )


def _is(table: sa.Table, branch: BranchId) -> tuple[sa.ColumnElement[bool], ...]:
    c = table.c
    return (
        c.partition == branch.partition,
        c.task_attempt == branch.task_attempt,
    )
