"""The participant's part of the protocol, for every kind of resource.

A prepare looks first: one read, and a refused request is refused before a byte of its
body is read. The body is received: up to 1 MiB into memory, above that streamed on
PostgreSQL, spooled to a file without a name on SQLite, or where it is read twice (JSON
lines for a table, a partner that checks). Once its first record batch is there, one
local transaction writes the rows, takes the application's lock, shared, reads again
(rule 20), puts the branch on record as prepared, and commits.

Rows come before the lock: a process that is stopped in the middle of a COPY keeps its
session, and an abort must wait neither for that nor for triggers or locks of the table.
Rare steps have a short transaction of their own before: an application's first prepare
(name, table, view), a note under which nothing was prepared, leftovers of aborts.

A client that resends a branch while it is written gets *in progress*, and keeps
retrying. The check is an advisory lock, which ends with the transaction. No promise
rests on it: without it a client of a slow server would send the same rows again and
give up.
"""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core import names
from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.forks import after_fork
from tracing_2pc.core.model import BranchId, Carrier, Identity, TransactionId, Unfit
from tracing_2pc.core.states import BranchState, Decision, Refusal
from tracing_2pc.participant import answers
from tracing_2pc.participant.answers import Answer, BranchRef, BranchRow, TransactionRow
from tracing_2pc.participant.body import Body
from tracing_2pc.participant.branch_store import (
    SLICE,
    BranchStore,
    BranchUpload,
    ViolatedError,
)
from tracing_2pc.participant.journal.database import UnderWayError
from tracing_2pc.participant.journal.journal import Journal
from tracing_2pc.store.engines.database import describe_error, refuse_not_now
from tracing_2pc.store.engines.urls import missing_file
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.propagation import extract
from tracing_2pc.tracing.spans import identity, past_span

_MOST_SLICES: Final = 100
"""Slices of rows that one prepare deletes at most, where they are in its way."""

_LONG_WAIT: Final = 10.0  # seconds in doubt from which on a wait is a span of its own

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Order:
    """A commit, an abort or a resolution, as it was asked for."""

    transaction: TransactionId
    participant: str
    forgotten_through: int | None = None
    branches: tuple[BranchRef, ...] = ()  # those to commit
    branch: BranchId | None = None  # the one to abort, alone
    digest: str | None = None  # and only if its digest is this one
    reason: str | None = None  # a person's
    may_name: bool = True  # a job or an operator: the name that it gives us is kept
    journal: str | None = None  # the id of the one that is meant; None is any


@dataclasses.dataclass(frozen=True, slots=True)
class Query:
    """The page of the list to return; None is any."""

    application: str | None
    after: int
    limit: int


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Branches that are not sealed, and where the next page begins."""

    branches: Sequence[tuple[TransactionId, BranchRow, Carrier]]
    next: int | None
    now: float


class ParticipantEngine:
    """Answers requests by the protocol's table, and carries out its answers.

    Called from many threads and processes; each request is repeated until it is
    answered. A request raises `RefusalError` to refuse outside of the table, and the
    database's own errors for "not now". `participant` is the name that the
    caller gives: the first one of an application is kept, if the caller may name it.
    A request for another name, or for another `journal` than this one, is refused as
    misdirected and changes nothing.
    """

    sends: ClassVar[bool] = False  # after the commit, in the background

    def __init__(self, journal: Journal, store: BranchStore) -> None:
        self._journal = journal
        self._database = journal.database
        self._store = store
        self._reset()
        after_fork(self._reset)
        self._opened = self._found = False
        self._closed = False
        self._not_ready = ""

    def _reset(self) -> None:
        self._opening = threading.Lock()

    def open(self) -> None:
        """Check the settings, make missing tables. Idempotent.

        No connection is left open that a fork would share.

        Raises:
            ConfigurationError: with the setting or the SQL that cures it.
        """
        self._closed = False
        with self._opening:
            if self._opened:
                return
            try:
                with self._database.setup() as connection:
                    self._journal.tables.create(connection)
                    failpoint("participant.at_open")
                    self._store.set_up(connection)
            finally:
                self._database.engine.dispose()
            self._opened = True

    def find(self) -> None:
        """Find the tables that `open` has made; from now on make none. Idempotent.

        No file, no table and no view is made, and to SELECT is enough.

        Raises:
            RefusalError: not now: it is not there.
            ConfigurationError: as `Schema.exists`.
        """
        self._closed = False
        if self._opened or self._found:
            return
        obstacle = f"no participant's table {self._journal.tables.prefix}… is there"
        if (file := missing_file(self._database.url)) is None:
            with self._database.read() as connection:
                if self._journal.tables.exists(connection):
                    self._store.find(connection)
                    self._found = True
        else:
            obstacle = f"there is no {file} on this machine"
        if not self._found:
            obstacle = f"{obstacle}: the start of a job makes it"
            raise RefusalError(Refusal.NOT_NOW, obstacle)

    def _open_or_find(self) -> None:
        if not self._found:
            self.open()

    def settle(self) -> None:
        """Check systems behind the tables, once these are made: for a job's start.

        Raises:
            ConfigurationError: with the change to make.
        """

    def start(self) -> None:
        """Start background work. Called with every request, after forks.

        Without a service the process that is told to do so calls it, if the resource
        `sends`.
        """

    def rest(self) -> None:
        """Stop background work, until `start`."""

    def waiting(self) -> int:
        """Count records that are committed, and are to be sent from here."""
        return 0

    def prepare(
        self,
        transaction: TransactionId,
        participant: str,
        ref: BranchRef,
        body: Body,
        carrier: Carrier,
        *,
        may_name: bool = True,
        journal: str | None = None,
        name_rows: int = 0,
    ) -> Answer:
        """Make a branch durable and invisible, and vote (rule 13).

        Its rows and its note in the journal become durable together: an upload that is
        killed leaves nothing. With `name_rows` a refusal of the data names the rows
        without which the branch would be prepared, one more than so many at most.

        Raises:
            RefusalError: in progress, while another request writes this very branch.
        """
        self._open_or_find()
        notes = self._journal

        def look(connection: Connection) -> tuple[TransactionRow, Answer | None]:
            row = notes.read(connection, transaction, ref.branch)
            self._check_address(connection, row, participant, journal)
            return row, answers.prepare(row, ref)

        def add(connection: Connection, tag: int) -> Answer | None:
            # Rule 20: read again under the lock, which is held until the commit.
            row, answer = look(connection)
            if answer is not None:
                return answer
            if row.participant not in (None, participant):
                detail = "another name of this participant came meanwhile: ask again"
                raise RefusalError(Refusal.NOT_NOW, detail)
            if not ref.rows:
                return answers.prepared(ref)
            if not notes.add_prepared(connection, row, ref, tag=tag, carrier=carrier):
                raise UnderWayError
            return None

        with self._database.look() as connection:
            row, answer = look(connection)
        if answer is None:
            answer = self._note(look, row, participant, may_name=may_name)
        if answer is not None:
            return answer
        if row.leftovers:
            self._store.delete_leftovers(1 + ref.rows // SLICE)
        failpoint("participant.before_prepare")
        upload = BranchUpload(transaction, ref, body, notes, name_rows=name_rows)
        try:
            with self._database.alone(upload.name):
                answer = self._store.prepare(upload, add)
        except (UnderWayError, ViolatedError, sa.exc.IntegrityError) as error:
            # What is in the way may be this very branch, prepared meanwhile.
            with self._database.look() as connection:
                row, answer = look(connection)
            if answer is None:
                under_way = isinstance(error, UnderWayError) or bool(row.dead)
                violated = error if isinstance(error, ViolatedError) else None
                raise self._in_the_way(violated, under_way=under_way) from None
            return answer
        if answer is not None:
            return answer
        failpoint("participant.after_prepare")
        return answers.prepared(ref)

    def _note(
        self,
        look: Callable[[Connection], tuple[TransactionRow, Answer | None]],
        row: TransactionRow,
        participant: str,
        *,
        may_name: bool,
    ) -> Answer | None:
        """Note a new name, and drop a dead note, before a branch is written."""
        is_new = row.participant != participant
        if not row.dead and not (is_new and (may_name or row.participant)):
            return None
        with self._store.noting(row.transaction.application) as connection:
            row, answer = look(connection)
            if answer is not None:
                return answer
            if may_name:
                self._journal.note_participant(connection, row, participant)
            elif row.participant != participant:  # and nothing is in use
                self._journal.forget_participant(connection, row)
            self._journal.drop_dead(connection, row)
        return None

    def _in_the_way(
        self, violated: ViolatedError | None, *, under_way: bool
    ) -> RefusalError:
        if under_way:
            detail = "a prepare of this branch is under way: ask again"
            return RefusalError(Refusal.IN_PROGRESS, detail, state="unknown")
        rows = violated.rows if violated else ()
        if not rows and self._store.delete_leftovers(_MOST_SLICES):
            detail = "aborted rows were in the way and are deleted: ask again"
            return RefusalError(Refusal.NOT_NOW, detail)
        detail = "a record violates a constraint or trigger of the table"
        detail = f"{detail}: {violated}" if violated and str(violated) else detail
        return RefusalError(Refusal.CONFLICT, detail, state="unknown", rows=rows)

    def commit(self, order: Order) -> Answer:
        """Make the chosen branches visible or none, abort the others, seal."""
        failpoint("participant.before_commit")
        answer = self._decide(order, lambda row: answers.commit(row, order.branches))
        if answer.refusal is None:
            failpoint("participant.after_commit")
        return answer

    def abort(self, order: Order) -> Answer:
        """Abort all and seal, or one branch, of that digest; waits for no upload."""
        failpoint("participant.before_abort")
        answer = self._decide(
            order, lambda row: answers.abort(row, order.branch, order.digest)
        )
        if answer.refusal is None:
            failpoint("participant.after_abort")
        return answer

    def resolve(self, order: Order, outcome: Decision) -> Answer:
        """Carry out a person's decision about an orphan, and record the reason."""
        return self._decide(order, lambda row: answers.resolve(row, outcome))

    def show(
        self,
        transaction: TransactionId,
        participant: str | None,
        journal: str | None = None,
    ) -> Answer:
        """Look a transaction up, with the clock here, its rows, slots and locks."""
        with self._reading() as connection:
            row = self._journal.read(connection, transaction)
            self._check_address(connection, row, participant, journal)
            holds = self._store.usage(connection, row)
            return answers.show(row, self._journal.clock(), holds)

    def identity(self, application: str | None) -> Identity:
        """Return this journal's id, and its names by application, of all or one."""
        with self._reading() as connection:
            return self._journal.identity(connection, application)

    def list_open(self, query: Query) -> Page:
        """List branches that are not sealed, oldest first."""
        with self._reading() as connection:
            wanted = dataclasses.asdict(query)
            branches, next_ = self._journal.list_open(connection, **wanted)
        return Page(branches, next_, self._journal.clock())

    def ready(self) -> str:
        """Raise `RefusalError`, *not now*, unless the database can be read and written.

        Return a word for work that has stopped although prepares go on; empty for none.
        Strangers ask: count nothing, and log a reason once, not for each of them.
        """
        try:
            with self._reading() as connection:
                connection.execute(sa.select(self._journal.tables.identity.c.version))
                trouble = self._trouble(connection)
            self._database.check_writable()
        except (sa.exc.SQLAlchemyError, ConfigurationError) as error:
            before, self._not_ready = self._not_ready, describe_error(error)
            if before != self._not_ready:
                logger.warning("not ready: %s", self._not_ready)
            raise RefusalError(Refusal.NOT_NOW, refuse_not_now(error)) from None
        self._not_ready = ""
        return trouble

    def _trouble(self, connection: Connection) -> str:
        return ""

    @property
    def is_in_a_file(self) -> bool:
        """Only processes of this machine reach its database: it is SQLite's."""
        return self._database.url.get_backend_name() == "sqlite"

    @property
    def journal_at(self) -> tuple[sa.URL, str]:
        """The database of its journal, and the name that the journal's tables have."""
        return self._database.url, self._journal.name

    @property
    def pooled(self) -> bool:
        """Its database stands behind a pooler in transaction mode."""
        return not self._database.keeps_sessions

    def unfit(self) -> Sequence[Unfit]:
        """Return misfits of the systems that it depends on, each with its cure."""
        if not self._journal.tables.grows:
            return []
        with self._reading() as connection:
            return [
                Unfit(
                    "its tables lack a column of this release",
                    f"as their owner run: {sql}",
                )
                for sql in self._journal.tables.lacking(connection)
            ]

    def gauges(self) -> dict[str, float]:
        """Measure, by the names of the registry; nothing once it is closed.

        Each is a number in JSON, too: PostgreSQL's sums are decimals.
        """
        if self._closed:
            return {}
        with self._reading() as connection:
            count, since = self._store.count_in_doubt(connection)
            age = 0.0 if since is None else max(0.0, self._journal.clock() - since)
            gauges: dict[str, Any] = {
                "tpc.in_doubt.branches": count,
                "tpc.oldest_in_doubt_age": age,
                "tpc.uploads": self._database.uploads(connection, self._journal.name),
                **self._store.gauges(connection),
            }
        return {
            name: value if isinstance(value, int) else float(value)
            for name, value in gauges.items()
        }

    def close(self) -> None:
        """Release everything. Nothing is lost if it is never called."""
        self._closed = True
        self.release()

    def release(self) -> None:
        """Close idle connections; the next request opens new ones."""
        self._database.engine.dispose()
        self._store.close()

    @contextlib.contextmanager
    def _reading(self) -> Iterator[Connection]:
        self._open_or_find()
        with self._database.read() as connection:
            yield connection

    def _decide(
        self, order: Order, answer_to: Callable[[TransactionRow], Answer]
    ) -> Answer:
        """Answer from the journal, and carry out the answer."""
        self._open_or_find()
        with self._store.deciding(order.transaction) as (connection, row):
            self._check_address(connection, row, order.participant, order.journal)
            answer = answer_to(row)
            if answer.refusal is None:
                self._obey(connection, row, order, answer)
        if answer.seal is not None:
            self._record_wait(row, answer.seal)
        return answer

    def _check_address(
        self,
        connection: Connection,
        row: TransactionRow,
        participant: str | None,
        journal: str | None,
    ) -> None:
        """Refuse a request that is meant for another journal, or for another name.

        Another name is taken as long as the application has nothing here.
        """
        if journal not in (None, row.journal):
            raise RefusalError(
                Refusal.MISDIRECTED,
                f"this is journal {row.journal}, and application "
                f"{row.transaction.application} has {participant!r} in journal "
                f"{journal}: mend its address in `participants`, where "
                f"{row.transaction.application}/{participant} is for that application",
            )
        if participant is None or row.participant in (None, participant):
            return
        if self._journal.is_in_use(connection, row.transaction.application):
            raise RefusalError(
                Refusal.MISDIRECTED,
                f"this is participant {row.participant!r} of application "
                f"{row.transaction.application}, not {participant!r}: mend its "
                "address in `participants`",
            )

    def _obey(
        self, connection: Connection, row: TransactionRow, order: Order, answer: Answer
    ) -> None:
        if order.branch is not None:
            self._journal.abort_branch(connection, row, order.branch)
        if order.may_name:
            self._journal.note_participant(connection, row, order.participant)
        if answer.seal is not None:
            losers = {branch.tag for branch in answer.losers}
            self._journal.seal(
                connection, row, answer.seal, losers=losers, because=order.reason
            )
            if answer.seal is BranchState.COMMITTED:
                prepared = row.branches_in(BranchState.PREPARED)
                kept = [branch for branch in prepared if branch.tag not in losers]
                self._store.committed(connection, row, kept)
        if order.forgotten_through is not None:
            self._store.raise_forgotten_through(
                connection, row, order.forgotten_through
            )

    def _record_wait(self, row: TransactionRow, outcome: BranchState) -> None:
        """Measure its time in doubt; a long wait is a span, at its end."""
        prepared = row.branches_in(BranchState.PREPARED)
        if not prepared:
            return
        since, now = min(branch.since for branch in prepared), self._journal.clock()
        instruments.record("tpc.in_doubt.duration", None, now - since)
        if now - since > _LONG_WAIT:
            past_span(
                names.IN_DOUBT,
                extract(row.carrier),
                attributes={**identity(row.transaction), "tpc.state": str(outcome)},
                start=int(since * 1e9),
                end=int(now * 1e9),
            )
