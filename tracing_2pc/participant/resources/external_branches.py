"""Branches whose decision is carried out outside of the journal's transactions.

They are in PostgreSQL's prepared transactions, files, a broker or XA. The journal holds
requests and decisions; the place of the branches knows which are prepared.

1. Prepare: the branch is written there. Under the application's lock, shared, the
   journal notes *prepared*, and only then the branch is prepared. A note without a
   branch is a prepare that never happened, or that was undone by hand.
2. Decide: under the exclusive lock the decision is noted, durably. Then it is carried
   out branch by branch, and the journal is compared with the result.
3. A decision that a crash has interrupted is carried out by the next decision of the
   application here, and the coordinator repeats its request until it is answered.

With PostgreSQL the note needs no flush of its own: that of `PREPARE TRANSACTION` has
it. A row inside the prepared transaction proves later that it was committed. Only the
exclusive lock makes sure that a note has no branch. The locks are those of a session
(`journal/session_locks.py`): one of the transaction would stay with the prepared
branch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import operator
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import BranchId, TransactionId
from tracing_2pc.core.states import BranchState, Refusal
from tracing_2pc.participant.answers import Answer, TransactionRow
from tracing_2pc.participant.branch_store import Add, BranchStore, BranchUpload
from tracing_2pc.participant.journal.database import commit
from tracing_2pc.participant.journal.journal import Journal, in_slices, rows_of
from tracing_2pc.participant.journal.session_locks import session_locks
from tracing_2pc.store.kit import settled

logger = logging.getLogger(__name__)


class NotCarriedOutError(Exception):
    """A decision could not be carried out for a branch now; asking again is safe."""


@dataclasses.dataclass(frozen=True, slots=True)
class ExternalBranch:
    """A branch that is prepared outside: its name there, and its transaction."""

    name: str
    transaction: TransactionId


class Written(NamedTuple):
    """A branch that is written in its place, and not prepared yet."""

    # Prepares it durably; called under the application's lock, shared.
    prepare: Callable[[], None]
    # Of the journal's database, if that does it: its end must end the lock.
    session: Connection | None = None


class BranchPlace(Protocol):
    """Where branches are prepared and ended, one by one. Each step survives a crash.

    `connection` is the journal's, in a transaction unless stated otherwise.
    """

    shares_flush: bool
    """Each durable step here makes earlier notes of the journal durable, too."""

    def set_up(self, connection: Connection) -> None:
        """Check the settings that votes depend on; `ConfigurationError` has a cure."""

    def find(self, connection: Connection) -> None:
        """Read the tables that `set_up` has made; change nothing."""

    def write(self, upload: BranchUpload) -> contextlib.AbstractContextManager[Written]:
        """Write a branch, whose tag is drawn, and yield a function that prepares it.

        Unless that was called, and after an exception, leaving the block drops it.
        """

    def prepared(self, connection: Connection) -> Mapping[int, ExternalBranch]:
        """Return the prepared branches of this journal, by tag."""

    def committed(self, connection: Connection, tags: Collection[int]) -> set[int]:
        """Return those tags that are known to have been committed there.

        This includes commits that a crash interrupted, and commits by hand.
        """

    def forget(self, connection: Connection, tags: sa.Select[Any]) -> None:
        """Drop the evidence about these branches."""

    def end(
        self, connection: Connection, branch: ExternalBranch, outcome: BranchState
    ) -> bool:
        """Commit or abort a prepared branch, durably; False if it was gone.

        No transaction is open on the connection.

        Raises:
            NotCarriedOutError: it may be prepared still.
        """

    def usage(
        self, connection: Connection, branches: Collection[ExternalBranch]
    ) -> dict[str, int]:
        """Count the resources that these branches keep from others."""

    def gauges(self, connection: Connection) -> dict[str, float]:
        """Measure this place, by the names of the registry."""


class ExternalEvidence:
    """Corrects the journal's states by the branches there (`journal.Evidence`)."""

    def __init__(self, place: BranchPlace) -> None:
        self._place = place

    def __call__(
        self,
        connection: Connection,
        rows: Sequence[Any],
        states: dict[int, BranchState],
    ) -> None:
        """Compare each branch that the journal calls prepared with the place.

        One that is noted and not there is dead under the exclusive lock: it never will
        be prepared. Without the lock it may be so in a moment, and is not there yet.
        """
        noted = [r for r in rows if r.state == "prepared"]
        if not noted:
            return
        prepared = self._place.prepared(connection)
        committed = self._place.committed(connection, [r.tag for r in noted])
        for r in noted:
            if r.tag in committed:
                states[r.tag] = BranchState.COMMITTED
            elif r.tag not in prepared:
                del states[r.tag]


@dataclasses.dataclass(frozen=True, slots=True)
class DecidedBranch:
    """A prepared branch whose decision has not been carried out yet."""

    branch: ExternalBranch
    outcome: BranchState
    is_asked: bool
    """It is of the requested transaction, not left by an earlier one."""


class ExternalBranches(BranchStore):
    """Notes decisions in a journal with `ExternalEvidence`, and obeys them outside."""

    def __init__(self, journal: Journal, place: BranchPlace) -> None:
        super().__init__(journal)
        self._place = place
        self._database = journal.database
        self._locks = session_locks(journal.database)

    def set_up(self, connection: Connection) -> None:
        self._locks.check()
        self._place.set_up(connection)

    def find(self, connection: Connection) -> None:
        self._place.find(connection)

    def prepare(self, upload: BranchUpload, add: Add) -> Answer | None:
        """Note it under the lock, shared, and prepare it in its place."""
        # It holds a session while it waits for one of these.
        notes = self._database.beside
        note = notes.relaxed if self._place.shares_flush else notes.write
        upload = dataclasses.replace(upload, tag=self.journal.draw_tag())
        name = upload.transaction.application
        with (
            self._place.write(upload) as written,
            self._locks.shared_session_lock(written.session, name),
        ):
            with note() as noting:
                answer = add(noting, upload.tag)
            if answer is None:
                written.prepare()  # Rule 13: durable before the vote is answered.
        return answer

    @contextlib.contextmanager
    def noting(self, application: str) -> Iterator[Connection]:
        """Hold the lock that a prepare shares until its branch is prepared."""
        with self._locks.session_lock(application) as connection, connection.begin():
            self._database.skip_flush(connection)
            yield connection

    @contextlib.contextmanager
    def deciding(
        self, transaction: TransactionId
    ) -> Iterator[tuple[Connection, TransactionRow]]:
        """Note the decision, then carry it out, under one lock.

        If the place shares its flush with the journal, the note is flushed with the
        first branch that is ended, and by itself if there is none.
        """
        with self._locks.session_lock(transaction.application) as connection:
            with connection.begin():
                yield connection, self.journal.read(connection, transaction)
                decided = self._decided(connection, transaction)
                has_own = any(branch.is_asked for branch in decided)
                flushed_by_branch = self._place.shares_flush and has_own
                if flushed_by_branch:
                    self._database.skip_flush(connection)
                else:
                    commit(connection)
            ended = self._carry_out(connection, transaction, decided)
            with connection.begin():
                if flushed_by_branch and not ended:
                    self.journal.touch_seal(connection, transaction)
                self._check(connection, transaction)

    def raise_forgotten_through(
        self, connection: Connection, row: TransactionRow, to: int
    ) -> None:
        """Raise it, and drop branches that never happened, and evidence, as well.

        Not while a branch below is decided and still prepared, because its row holds
        the decision. It is carried out now; a later request raises forgotten_through.
        """
        decided = self._decided(connection, row.transaction)
        if any(decision.branch.transaction.batch <= to for decision in decided):
            return
        b, t = self.journal.tables.branch, row.transaction
        below = (b.c.application == t.application, b.c.batch <= to)
        gone = sa.select(b.c.tag).where(
            *below, _not_in(connection, b.c.tag, self._place.prepared(connection))
        )
        self._place.forget(connection, gone)
        connection.execute(b.delete().where(b.c.tag.in_(gone)))
        self.journal.raise_forgotten_through(connection, row, to)

    def usage(self, connection: Connection, row: TransactionRow) -> dict[str, int]:
        branches = self._place.prepared(connection).values()
        own = [b for b in branches if b.transaction == row.transaction]
        return super().usage(connection, row) | self._place.usage(connection, own)

    def count_in_doubt(self, connection: Connection) -> tuple[int, float | None]:
        """Count the branches prepared there, decided or not; return since when."""
        if not (prepared := self._place.prepared(connection)):
            return 0, None
        b = self.journal.tables.branch
        since: list[float] = []
        for tags in in_slices(prepared):
            rows = sa.select(b.c.since).where(b.c.tag.in_(tags))
            since += connection.execute(rows).scalars().all()
        return len(prepared), min(since, default=None)

    def gauges(self, connection: Connection) -> dict[str, float]:
        return self._place.gauges(connection)

    def close(self) -> None:
        self._database.beside.engine.dispose()

    def _decided(
        self, connection: Connection, transaction: TransactionId
    ) -> list[DecidedBranch]:
        """Return the decided branches of the application that are still prepared.

        Those of the requested transaction come first, and commits before aborts.
        """
        prepared = {
            tag: branch
            for tag, branch in self._place.prepared(connection).items()
            if branch.transaction.application == transaction.application
        }
        if not prepared:
            return []
        b, rows = self.journal.tables.branch, {}
        for tags in in_slices(prepared):
            query = sa.select(b.c.tag, b.c.state, b.c.sealed).where(b.c.tag.in_(tags))
            rows.update({r.tag: r for r in connection.execute(query)})
        t = self.journal.tables.transaction
        unnoted = {b.transaction for tag, b in prepared.items() if tag not in rows}
        sealed = {
            unnoted_id
            for unnoted_id in unnoted
            if connection.scalar(sa.select(t.c.seal).where(*rows_of(t, unnoted_id)))
        }
        decided = []
        for tag, branch in sorted(prepared.items(), key=operator.itemgetter(0)):
            row = rows.get(tag)
            # A sealed transaction's branch without a row was named by no commit.
            if branch.transaction in sealed if row is None else row.sealed is not None:
                keep = row is not None and row.state == "committed"
                outcome = BranchState.COMMITTED if keep else BranchState.ABORTED
                is_asked = branch.transaction == transaction
                decided.append(DecidedBranch(branch, outcome, is_asked))
        aborted = BranchState.ABORTED
        return sorted(
            decided,
            key=lambda decision: (not decision.is_asked, decision.outcome is aborted),
        )

    def _carry_out(
        self,
        connection: Connection,
        transaction: TransactionId,
        decided: Sequence[DecidedBranch],
    ) -> int:
        """Commit and abort, each durably by itself; return their number.

        Raises:
            RefusalError: not now, the requested transaction is not done; the next
                request goes on. Branches of earlier transactions are logged only.
        """
        ended = 0
        for decision in decided:
            if ended:
                failpoint("participant.between_branches")
            try:
                ended += self._place.end(connection, decision.branch, decision.outcome)
            except NotCarriedOutError as error:
                logger.error(
                    "decided and not carried out yet: transaction_id=%s branch=%s "
                    "error=%s",
                    decision.branch.transaction,
                    decision.branch.name,
                    error,
                    extra={"tpc_transaction_id": str(decision.branch.transaction)},
                )
                if decision.is_asked or connection.invalidated:
                    detail = "decided, and only a part of it is done: ask again"
                    detail = f"{transaction}: {detail}"
                    raise RefusalError(Refusal.NOT_NOW, detail) from None
        return ended

    def _check(self, connection: Connection, transaction: TransactionId) -> None:
        """Compare branches with the decision; refuse where one ended otherwise."""
        b = self.journal.tables.branch
        ended = b.c.state.in_(("committed", "aborted"))
        statement = sa.select(*settled(b)).where(*rows_of(b, transaction), ended)
        rows = connection.execute(statement).all()
        committed = self._place.committed(connection, [r.tag for r in rows])
        for r in rows:
            branch = f"branch {BranchId(r.partition, r.task_attempt)}"
            if r.state == "aborted" and r.tag in committed:
                detail = f"{branch} is decided abort and was committed by hand"
                raise RefusalError(Refusal.CONFLICT, detail, state="committed")
            if r.state == "committed" and r.tag not in committed:
                # Rule 5: a branch that is gone is never acknowledged as committed.
                detail = f"{branch} is decided commit and was rolled back by hand"
                raise RefusalError(Refusal.UNKNOWN, detail, state="unknown")


def _not_in(
    connection: Connection, column: sa.ColumnElement[int], tags: Collection[int]
) -> sa.ColumnElement[bool]:
    if connection.dialect.name != "postgresql":
        return column.not_in(list(tags))
    # PostgreSQL hashes rows once; it may search an array for each.
    array = sa.literal(list(tags), sa.ARRAY(sa.BigInteger))
    return column.not_in(sa.select(sa.func.unnest(array)))
