"""A relay's publications and their progress: all of that SQL.

A transaction is in the queue by its branches. It is *begun* before anything of it is at
the broker, and *confirmed* when it is in there. When readers pass it, its rows are
deleted in portions; until then it counts as waiting.
"""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.model import (
    BranchId,
    RequestKey,
    TransactionId,
    Unfit,
    carrier_from_json,
)
from tracing_2pc.core.states import RelayTrouble
from tracing_2pc.outbox.quarantine import ALL, Quarantine
from tracing_2pc.outbox.queue import Queue, key_of
from tracing_2pc.outbox.relay import Message, Position, Publication, read_block
from tracing_2pc.outbox.turns import LeaseLostError
from tracing_2pc.participant.answers import BranchRow, TransactionRow
from tracing_2pc.participant.journal.database import Database
from tracing_2pc.participant.journal.schema import Tables
from tracing_2pc.store.engines.database import storable

_PAGE: Final = 4
_SLICE: Final = 40
"""Blocks of messages that are read, or deleted, in one transaction."""

_DONE: Final = -1

BEGUN: Final = "begun"
CONFIRMED: Final = "confirmed"
SIGNED: Final = "signed"
FOUND: Final = "found"
"""Positions on record: of what is under way, of what is in last; that a person has
drawn a line, so that it is written anew; and what was found where it stopped."""

REFUSED: Final = RelayTrouble.REFUSED
STOPPED: Final = RelayTrouble.STOPPED
UNREADABLE: Final = RelayTrouble.UNREADABLE
HIDDEN: Final = RelayTrouble.HIDDEN


class AnotherBrokerError(TwoPhaseError):
    """A relay leads to another broker than the one that the outbox belongs to."""


class Waiting(NamedTuple):
    """A transaction that is committed and not published."""

    transaction: TransactionId
    committed: float


def is_used(positions: Mapping[str, Position]) -> bool:
    """Whether anything was ever published, or begun."""
    return BEGUN in positions or positions[CONFIRMED].number > 0


class Publications:
    """The publications of one outbox by its relay."""

    def __init__(
        self, tables: Tables, database: Database, clock: Callable[[], float]
    ) -> None:
        self.queue = Queue(
            tables,
            database,
            clock,
            sa.Column("digest", sa.String(64), nullable=False),
            # The number under which it is in there, and readers may not see it yet; 0
            # for what is not in; `_DONE` for rows that are left to delete.
            sa.Column("published", sa.BigInteger, nullable=False),
        )
        self.quarantine = Quarantine(self.queue)
        self._tables = tables
        self._database = database
        self._row = self.queue.row
        self._branch = self.queue.branch
        self._position = tables.add(
            "position",
            sa.Column("state", sa.String(10), primary_key=True),
            sa.Column("number", sa.BigInteger, nullable=False),
            sa.Column("transaction", sa.String(100), nullable=False),
            sa.Column("digest", sa.String(64), nullable=False),
        )
        # The words by which the broker is known that this outbox belongs to.
        self._broker = tables.add(
            "broker", sa.Column("words", sa.Text, primary_key=True)
        )
        self._unfit = tables.add(
            "unfit",
            sa.Column("what", sa.Text, nullable=False),
            sa.Column("cure", sa.Text, nullable=False),
        )
        self._belongs_to: set[str] = set()

    def set_up(self, connection: Connection) -> None:
        """Put the lease and the first position on record."""
        self.queue.set_up(connection)
        if CONFIRMED not in self.positions_in(connection):
            self._put(connection, CONFIRMED, Position())

    def add(
        self, connection: Connection, row: TransactionRow, kept: Iterable[BranchRow]
    ) -> None:
        """Queue branches, in the local transaction that commits them."""

        def how_far(branch: BranchRow) -> dict[str, Any]:
            digest = hashlib.sha256(branch.ref.digest.encode()).hexdigest()
            return {"digest": digest, "published": 0}

        self.queue.add(connection, row, kept, how_far)

    # --- the relay's turn ------------------------------------------------------------

    @property
    def sessions_lost(self) -> int:
        """How many of this process have ended by themselves."""
        return self._database.sessions_lost

    def journal(self) -> str:
        """Return the journal's id, of which all names at a broker are made."""
        with self._database.read() as connection:
            return self._journal(connection)

    def _journal(self, connection: Connection) -> str:
        journal = sa.select(self._tables.identity.c.id)
        return str(connection.execute(journal).scalar_one())

    def positions(self) -> Mapping[str, Position]:
        """Return what is on record of positions."""
        with self._database.read() as connection:
            return self.positions_in(connection)

    def is_stopped(self) -> bool:
        """Whether a person must decide before anything is published."""
        with self._database.read() as connection:
            return self.quarantine.count(connection, STOPPED) > 0

    def check_broker(self, broker: str, *, is_proven: bool = False) -> None:
        """Compare a broker, as of `identify`, with the one that messages here are for.

        The first one is recorded, and so is one that `is_proven`: it has our position.

        Raises:
            AnotherBrokerError: it is another one.
        """
        words = {*broker.split()}
        if not words or words == self._belongs_to:
            return
        with self.queue.deciding() as connection:
            known = {*connection.execute(sa.select(self._broker)).scalars()}
            if words & known or is_proven or not known:
                if words != known:
                    connection.execute(self._broker.delete())
                    rows = [{"words": word} for word in sorted(words)]
                    connection.execute(self._broker.insert(), rows)
                known = words
            journal = self._journal(connection)
        if known == words:  # also on record
            self._belongs_to = words
            return
        raise AnotherBrokerError(
            f"outbox {self.queue.name} belongs to {' '.join(sorted(known))}, and this "
            f"address leads to {broker}: use an outbox of its own (prefix=); if the "
            f"broker has moved, with tpc-{journal} in it, run `tracing-2pc recover`"
        )

    def is_empty(self) -> bool:
        """Whether nothing is left to publish or to delete; waits for no lock."""
        with self._database.read() as connection:
            return connection.scalar(sa.select(self._branch.c.tag).limit(1)) is None

    def begin(
        self, holder: str, passed: Sequence[str], confirmed: Position
    ) -> Publication | None:
        """Begin the next publication, durably; None if nothing waits.

        It is not the turn of the applications `passed`, unless a person ordered it.

        Raises:
            LeaseLostError: the records have a begun publication, or another confirmed
                position than this one, as after a fail-over to a replica that is
                behind.
        """
        with self._held(holder) as connection:
            on_record = self.positions_in(connection)
            if BEGUN in on_record or on_record[CONFIRMED] != confirmed:
                raise LeaseLostError
            still = self.refused_applications(connection) if passed else set()
            firsts = [
                (branches[0].committed, branches[0].application, branches)
                for application in self._applications(connection)
                if not (application in passed and application in still)
                and (branches := self._first(connection, application))
            ]
            if not firsts:
                return None
            _, _, branches = min(firsts)
            first = branches[0]
            transaction = TransactionId(first.application, first.batch, first.attempt)
            number, name = confirmed.number + 1, str(transaction)
            position = Position(number, name, _digest_of(branches))
            self._put(connection, BEGUN, position)
        carrier = carrier_from_json(first.carrier)
        own = (("tpc-transaction", str(transaction)), *sorted(carrier.items()))
        messages = self._messages(transaction, branches, own)
        return Publication(position, transaction, carrier, messages)

    def _applications(self, connection: Connection) -> list[str]:
        names = sa.select(self._branch.c.application).distinct()
        return list(connection.execute(names).scalars())

    def refused_applications(self, connection: Connection) -> set[str]:
        """Return those that wait because of the broker."""
        rows = self.quarantine.rows(connection, REFUSED)
        return {RequestKey.parse(row.key).transaction.application for row in rows}

    def _first(self, connection: Connection, application: str) -> Sequence[Any]:
        """Return the branches of an application's first transaction to publish."""
        q = self._branch.c
        conditions = (q.application == application, q.published == 0)
        first = sa.select(sa.func.min(q.batch)).where(*conditions).scalar_subquery()
        branches = sa.select(self._branch).where(*conditions, q.batch == first)
        order = branches.order_by(q.partition, q.task_attempt)
        return connection.execute(order).all()

    def _messages(
        self,
        transaction: TransactionId,
        branches: Sequence[Any],
        own: tuple[tuple[str, str], ...],
    ) -> Iterator[Message]:
        """Read messages page by page."""
        for branch in branches:
            task, read = BranchId(branch.partition, branch.task_attempt), 0
            prefix = str(RequestKey(transaction, task, 0))[:-1]
            for first, block in self._blocks(branch.tag):
                if first != read:  # one before it is not there
                    break
                for topic, key, value, headers in read_block(block):
                    named = ("tpc-key", f"{prefix}{read}"), *own
                    if headers:
                        named = *map(tuple, headers), *named
                    yield Message(topic, key, value, named)
                    read += 1
            if read != branch.rows:
                detail = f"{transaction}: {read} of {branch.rows} messages are stored"
                raise LookupError(detail)

    def _blocks(self, tag: int) -> Iterator[tuple[int, str]]:
        """Read a branch's blocks, each with its first message's number, in pages."""
        r, first = self._row.c, 0
        page = sa.select(r.tpc_row, r.body).order_by(r.tpc_row).limit(_PAGE)
        while True:
            with self._database.read() as connection:
                some = page.where(r.tpc_tag == tag, r.tpc_row >= first)
                rows = connection.execute(some).all()
            for number, block in rows:
                yield number, block
                first = number + 1
            if len(rows) < _PAGE:
                return

    def confirm(self, holder: str, position: Position) -> None:
        """Note, durably, that a publication is in; its rows stay until it is seen.

        Raises:
            LeaseLostError: it is not what is begun on record, as after a fail-over.
        """
        transaction = TransactionId.parse(position.transaction)
        with self._held(holder) as connection:
            if self.positions_in(connection).get(BEGUN) != position:
                raise LeaseLostError
            self._settle(connection, transaction, position.number)
            self._put(connection, CONFIRMED, position)
            self._clear(connection, BEGUN)

    def withdraw(self, holder: str) -> None:
        """Note that the begun publication is not at the broker: it is begun again."""
        with self._held(holder) as connection:
            self._clear(connection, BEGUN)

    def refuse(self, holder: str, transaction: TransactionId, reason: str) -> None:
        """Note, until it is published, why its application waits."""
        with self._held(holder) as connection:
            self.quarantine.put(connection, str(key_of(transaction)), reason)

    def note(self, holder: str, trouble: RelayTrouble, reason: str) -> None:
        """Note why nothing is published or seen; since when it is so stays."""
        with self._held(holder) as connection:
            self.quarantine.put(connection, ALL, reason, trouble=trouble)

    def stop(self, holder: str, position: Position, reason: str) -> None:
        """Note that a person must decide, and the position that is at the broker."""
        with self._held(holder) as connection:
            self._put(connection, FOUND, position)
            self.quarantine.put(connection, ALL, reason, trouble=STOPPED)

    def note_unfit(self, holder: str, unfit: Iterable[tuple[str, str]]) -> None:
        """Note what does not fit at the broker, each with its cure."""
        with self._held(holder) as connection:
            rows = [
                {
                    "what": storable(connection, problem),
                    "cure": storable(connection, cure),
                }
                for problem, cure in unfit
            ]
            if rows == [row._asdict() for row in self._unfit_rows(connection)]:
                return
            connection.execute(self._unfit.delete())
            if rows:
                connection.execute(self._unfit.insert(), rows)

    def clear(self, holder: str, trouble: RelayTrouble) -> None:
        """Note that it is so no more."""
        with self._held(holder) as connection:
            self.quarantine.clear(connection, ALL, trouble)

    def go_on_from(self, holder: str, *, is_well: bool) -> None:
        """Note that publishing goes on; `is_well`: it does so without errors."""
        with self._held(holder) as connection:
            self._clear(connection, SIGNED)
            if is_well:
                self.quarantine.clear(connection, ALL, UNREADABLE)

    def seen(self, through: int) -> None:
        """Note that readers pass what is in, up to a number: its rows may go."""
        q = self._branch.c
        done = self._branch.update().where(q.published.between(1, through))
        with self._database.relaxed(*self._database.planned_anew) as connection:
            connection.execute(done.values(published=_DONE))
            if not self.unseen(connection):
                self.quarantine.clear(connection, ALL, HIDDEN)

    def unseen(self, connection: Connection) -> list[TransactionId]:
        """Return what is in there, and may be held back from readers; in order."""
        q = self._branch.c
        batch = (q.application, q.batch, q.attempt, q.published)
        rows = sa.select(*batch).where(q.published > 0).distinct()
        return [
            TransactionId(*transaction)
            for *transaction, _ in connection.execute(rows.order_by(q.published))
        ]

    def topics_unseen(self, keep: Callable[[], None]) -> set[str]:
        """Return where that was published: its messages are here still."""
        topics: set[str] = set()
        with self._database.read() as connection:
            query = sa.select(self._branch.c.tag).where(self._branch.c.published > 0)
            tags = connection.execute(query).scalars().all()
        for tag in tags:
            for _, block in self._blocks(tag):
                topics.update(topic for topic, *_ in read_block(block))
                keep()
        return topics

    def delete_published(self) -> bool:
        """Delete one portion of rows that are done with; False if none can be now."""
        q, r = self._branch.c, self._row.c
        some = sa.select(q.tag).where(q.published == _DONE).limit(1)
        with self._database.relaxed(*self._database.planned_anew) as connection:
            if (tag := connection.scalar(some)) is None:
                return False
            name = self._row.name
            deleted = self._database.delete_slice(connection, name, tag, _SLICE)
            left = sa.select(r.tpc_row).where(r.tpc_tag == tag).limit(1)
            if connection.execute(left).first() is None:
                connection.execute(self._branch.delete().where(q.tag == tag))
                return True
        return deleted > 0

    @contextlib.contextmanager
    def _held(self, holder: str) -> Iterator[Connection]:
        """Open a durable transaction in which the lease stays with its holder."""
        mine = sa.select(self.queue.sender.c.holder)
        with self.queue.deciding() as connection:
            if connection.execute(mine).scalar_one() != holder:
                raise LeaseLostError
            yield connection

    # --- what a person decides -------------------------------------------------------

    def waiting(self, connection: Connection) -> list[Waiting]:
        """Return unpublished transactions in order, refused ones last."""
        q, refused = self._branch.c, self.refused_applications(connection)
        batch = (q.application, q.batch, q.attempt)
        rows = connection.execute(
            sa.select(*batch, sa.func.min(q.committed))
            .where(q.published == 0)
            .group_by(*batch)
        ).all()
        # An application's in order of batch, whatever the clock was.
        left: dict[str, list[Any]] = {
            name: [] for name in sorted({row.application for row in rows})
        }
        for row in sorted(rows, key=lambda row: row.batch):
            left[row.application].append(row)
        ordered = []
        while left:
            name = min(left, key=lambda name: (name in refused, left[name][0][3]))
            *batch, since = left[name].pop(0)
            ordered.append(Waiting(TransactionId(*batch), since))
            left = {name: rows for name, rows in left.items() if rows}
        return ordered

    def go_on(
        self, connection: Connection, sent: Sequence[TransactionId], last: Position
    ) -> None:
        """End a stop: these transactions are in, and the position is written again."""
        for transaction in sent:
            self._settle(connection, transaction, last.number)
        self._put(connection, CONFIRMED, last)
        self._put(connection, SIGNED, Position())
        self._clear(connection, BEGUN, FOUND)
        self.quarantine.clear(connection, ALL, STOPPED)

    def give_up(self, connection: Connection, transaction: TransactionId) -> None:
        """Delete a transaction that is never published, for a person."""
        self._settle(connection, transaction, _DONE)

    def _settle(
        self, connection: Connection, transaction: TransactionId, number: int
    ) -> None:
        q, key = self._branch.c, str(key_of(transaction))
        self.quarantine.clear(connection, key, REFUSED)
        conditions = (
            q.application == transaction.application,
            q.batch == transaction.batch,
        )
        connection.execute(
            self._branch.update().where(*conditions).values(published=number)
        )

    # --- rows ------------------------------------------------------------------------

    def positions_in(self, connection: Connection) -> Mapping[str, Position]:
        """Return what is on record of positions, by its state."""
        rows = connection.execute(sa.select(self._position))
        return {state: Position(*position) for state, *position in rows}

    def _put(self, connection: Connection, state: str, position: Position) -> None:
        self._clear(connection, state)
        row = {"state": state, **position._asdict()}
        connection.execute(self._position.insert().values(row))

    def _clear(self, connection: Connection, *states: str) -> None:
        gone = self._position.delete().where(self._position.c.state.in_(states))
        connection.execute(gone)

    def unfit(self, connection: Connection) -> Sequence[Unfit]:
        """Return what does not fit at the broker, each with its cure."""
        return [Unfit(row.what, row.cure) for row in self._unfit_rows(connection)]

    def _unfit_rows(self, connection: Connection) -> Sequence[Any]:
        return connection.execute(sa.select(self._unfit)).all()

    def count_waiting(self, connection: Connection) -> int:
        """Count messages that are not published yet."""
        q = self._branch.c
        waiting = sa.select(sa.func.sum(q.rows)).where(q.published == 0)
        return int(connection.scalar(waiting) or 0)

    def gauges(self, connection: Connection) -> dict[str, float]:
        """Measure what waits, and why."""
        q = self._branch.c
        waiting = sa.select(sa.func.sum(q.rows), sa.func.min(q.committed))
        rows, oldest = connection.execute(waiting.where(q.published >= 0)).one()
        now = self.queue.clock()

        def age_of(trouble: RelayTrouble) -> float:
            rows = self.quarantine.rows(connection, trouble)
            return max(0.0, now - rows[0].since) if rows else 0.0

        publications = len(self.waiting(connection)) + len(self.unseen(connection))
        return {
            "tpc.outbox.backlog": int(rows or 0),
            "tpc.outbox.oldest_age": max(0.0, now - oldest) if rows else 0.0,
            "tpc.outbox.quarantined": 0,
            "tpc.outbox.stopped": self.quarantine.count(connection, STOPPED),
            "tpc.relay.position": self.positions_in(connection)[CONFIRMED].number,
            "tpc.relay.open": publications,
            "tpc.relay.refused": len(self.refused_applications(connection)),
            "tpc.relay.hidden_age": age_of(HIDDEN),
            "tpc.relay.unreadable_age": age_of(UNREADABLE),
        }


def _digest_of(branches: Sequence[Any]) -> str:
    """Return a digest of a transaction's branches, each with that of its content."""
    names = [f"{b.partition}.{b.task_attempt} {b.digest}" for b in branches]
    return hashlib.sha256("\n".join(names).encode()).hexdigest()
