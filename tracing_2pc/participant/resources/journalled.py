"""A resource whose journal and data change in one local transaction.

Its subclasses say where a branch's records go and what a commit does to them; the
answers are the protocol's.
"""

from __future__ import annotations

import abc
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.failpoints import failpoint
from tracing_2pc.model import BranchId, Carrier, Identity, TransactionId
from tracing_2pc.participant import answers
from tracing_2pc.participant.answers import Answer, Held, Named, Seen
from tracing_2pc.participant.body import Body, Source
from tracing_2pc.participant.database import Database, Writer, commit
from tracing_2pc.participant.in_doubt import record_wait
from tracing_2pc.participant.journal import Journal
from tracing_2pc.participant.problems import Problem, unavailable
from tracing_2pc.participant.resources.base import Page
from tracing_2pc.participant.resources.sweeper import Sweeper
from tracing_2pc.participant.schema import Tables
from tracing_2pc.states import BranchState, Decision
from tracing_2pc.telemetry.spans import database_span
from tracing_2pc.transports import wire

_log: Final = logging.getLogger(__name__)


class ViolatedError(Exception):
    """A constraint of the table's refused a record."""


class NotKeptError(Exception):
    """Carries an answer out of a local transaction that must be rolled back."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.detail)
        self.answer = answer


class JournalledResource(abc.ABC):
    """A resource whose data and journal share a database.

    Args:
        name: prefix of its tables there.
        database: which one.
        clock: Unix seconds.
    """

    def __init__(
        self, name: str, database: Database, clock: Callable[[], float] = time.time
    ) -> None:
        self._tables = Tables(name)
        self._journal = Journal(self._tables, database.alive)
        self._database = database
        self._clock = clock
        self._opening = threading.Lock()
        self._opened = False
        self._closed = False

    @property
    @abc.abstractmethod
    def rows(self) -> str:
        """Name of the table that holds the records, each with its `tpc_tag`."""

    @abc.abstractmethod
    def set_up(self, connection: Connection) -> None:
        """Check the tables, make what can be made before the first prepare."""

    @property
    def _sweeper(self) -> Sweeper:
        return Sweeper(self._journal, self._database, self.rows)

    def receive(self, writer: Writer, body: Body) -> Source:
        """Return the body to read records from."""
        return writer.receive(body)

    @abc.abstractmethod
    def records(
        self, source: Source, transaction: TransactionId, tag: int
    ) -> tuple[list[str], Iterable[Any]]:
        """Return columns, and Arrow batches as they go into them, tag included."""

    def refused(self) -> None:  # noqa: B027 - a table of ours is as we made it
        """Forget what is known of the table: it has not taken records that fit it."""

    def committed(  # noqa: B027 - most commits mean nothing else
        self, connection: Connection, seen: Seen, kept: Iterable[Held]
    ) -> None:
        """Do what else a commit means, in its local transaction."""

    def start(self) -> None:  # noqa: B027 - most resources have no background
        """Have nothing to start."""

    def open(self) -> None:
        """Make the journal; leaves no connection behind for a fork to share."""
        self._closed = False
        with self._opening:
            if self._opened:
                return
            try:
                with self._database.setup() as connection:
                    self._journal.create(connection)
                    failpoint("participant.at_open")
                    self.set_up(connection)
            finally:
                self._database.engine.dispose()
            self._opened = True

    def prepare(
        self,
        transaction: TransactionId,
        participant: str,
        wanted: Named,
        body: Body,
        carrier: Carrier,
    ) -> Answer:
        """Claim the branch, write its rows, look again, make them durable."""
        self.open()
        with self._database.writer() as writer:
            with writer.note(transaction.application) as connection:
                seen = self._journal.read(connection, transaction, wanted.branch)
                self._check_name(connection, seen, participant)
                if (answer := answers.prepare(seen, wanted)) is not None:
                    return answer
                self._journal.call(connection, seen, participant)
                tag = self._journal.claim(
                    connection,
                    seen,
                    wanted,
                    carrier=carrier,
                    writer=writer.owner,
                    now=self._clock(),
                )
                sweep = self._journal.any_doomed(connection)
            if sweep:
                self._sweeper.some(writer)
            failpoint("participant.before_prepare")
            try:
                answer = self._write(writer, transaction, wanted, tag, body)
            except NotKeptError as refused:
                self._release(transaction, tag)
                return refused.answer
            except (ViolatedError, sa.exc.IntegrityError):
                self._release(transaction, tag)
                raise self._violated(writer) from None
            except BaseException:
                self._release(transaction, tag)
                raise
        failpoint("participant.after_prepare")
        return answer

    def _write(
        self,
        writer: Writer,
        transaction: TransactionId,
        wanted: Named,
        tag: int,
        body: Body,
    ) -> Answer:
        with self.receive(writer, body) as source:
            names, batches = self.records(source, transaction, tag)
            with writer.write() as connection:
                rows = self._load(connection, names, _counted(batches, wanted.rows))
                body.verify()
                if rows != wanted.rows:
                    detail = f"Tpc-Rows: it says {wanted.rows}, the body has {rows}"
                    raise Problem(400, f"{detail} records")
                return self.keep(writer, connection, transaction, wanted, tag)

    def keep(
        self,
        writer: Writer,
        connection: Connection,
        transaction: TransactionId,
        wanted: Named,
        tag: int,
    ) -> Answer:
        """Look again, under the lock, and make what is written durable.

        Raises:
            NotKeptError: it was sealed meanwhile, or there is nothing to keep.
        """
        writer.share(connection, transaction.application)
        seen = self._journal.read(connection, transaction, wanted.branch)
        answer = answers.finish(seen, tag, wanted)
        if answer.status != 200 or not wanted.rows:
            raise NotKeptError(answer)
        self._journal.prepared(connection, tag, self._clock())
        commit(connection)
        return answer

    def _load(
        self, connection: Connection, names: list[str], batches: Iterable[Any]
    ) -> int:
        driver, system = self._database.driver, connection.dialect.name
        if not names and not sum(batch.num_rows for batch in batches):
            return 0
        if not names:
            raise Problem(400, "records without columns")
        try:
            with database_span("COPY" if system == "postgresql" else "INSERT", system):
                return self._database.load(connection, self.rows, names, batches)
        except (driver.DataError, OverflowError):
            raise Problem(400, "a value does not fit the column it is for") from None
        except driver.IntegrityError:
            raise ViolatedError from None
        except driver.Error as error:
            if is_raised(error):
                raise ViolatedError from None
            if why := self._database.refusal(error):
                self.refused()
                detail = f"the table does not take these records: {why}"
                raise Problem(409, detail, fields={"state": "unknown"}) from None
            _log.warning("records not written", extra={"error": type(error).__name__})
            raise unavailable() from None

    def _violated(self, writer: Writer) -> Problem:
        if self._sweeper.all(writer):
            return unavailable("aborted rows were in the way and are deleted")
        detail = "a record violates a constraint or trigger of the table"
        return Problem(409, detail, fields={"state": "unknown"})

    def _release(self, transaction: TransactionId, tag: int) -> None:
        # What cannot be released here is a dead writer's soon, and taken for nothing.
        with (
            contextlib.suppress(sa.exc.SQLAlchemyError),
            self._database.note(transaction.application) as connection,
        ):
            self._journal.release(connection, transaction, tag)

    def commit(
        self,
        transaction: TransactionId,
        participant: str,
        named: Sequence[Named],
        watermark: int | None,
    ) -> Answer:
        """Commit all of the named branches or none, in one local transaction."""
        failpoint("participant.before_commit")
        with self._addressed(transaction, participant) as (connection, seen):
            answer = answers.commit(seen, named)
            chosen = {n.branch for n in named}
            prepared = seen.holding(BranchState.PREPARED)
            losers = [held for held in prepared if held.named.branch not in chosen]
            losers += seen.holding(BranchState.WRITING)
            self._obey(
                connection, seen, participant, answer, losers, watermark=watermark
            )
        self._waited(seen, answer)
        if answer.status == 200:
            failpoint("participant.after_commit")
        return answer

    def abort(
        self,
        transaction: TransactionId,
        participant: str,
        branch: BranchId | None,
        digest: str | None,
        watermark: int | None,
    ) -> Answer:
        """Abort in one local transaction, never waiting for an upload."""
        failpoint("participant.before_abort")
        with self._addressed(transaction, participant) as (connection, seen):
            answer = answers.abort(seen, branch, digest)
            if branch is not None and answer.status == 200:
                self._journal.abort_branch(connection, seen, branch, self._clock())
            losers = seen.holding(BranchState.WRITING)
            self._obey(
                connection, seen, participant, answer, losers, watermark=watermark
            )
        self._waited(seen, answer)
        if answer.status == 200:
            failpoint("participant.after_abort")
        return answer

    def resolve(
        self,
        transaction: TransactionId,
        participant: str,
        outcome: Decision,
        reason: str,
    ) -> Answer:
        """Seal an orphan by hand."""
        with self._addressed(transaction, participant) as (connection, seen):
            answer = answers.resolve(seen, outcome)
            losers = seen.holding(BranchState.WRITING)
            self._obey(connection, seen, participant, answer, losers, because=reason)
        self._waited(seen, answer)
        return answer

    def show(self, transaction: TransactionId, participant: str | None) -> Answer:
        """Read one transaction, and what it keeps busy while it is in doubt."""
        self.open()
        with self._database.read() as connection:
            seen = self._journal.read(connection, transaction)
            self._check_name(connection, seen, participant)
            return answers.show(seen, self._clock(), self.holds(connection, seen))

    def identity(self, application: str | None) -> Identity:
        """Read who this is, and how it is called."""
        self.open()
        with self._database.read() as connection:
            return self._journal.identity(connection, application)

    def holds(self, connection: Connection, seen: Seen) -> dict[str, int]:
        """Count what a transaction keeps busy here: its rows that are prepared."""
        prepared = seen.holding(BranchState.PREPARED)
        return {"rows": sum(held.named.rows for held in prepared)}

    def in_doubt(
        self, *, application: str | None, state: str | None, after: int, limit: int
    ) -> Page:
        """Read one page, oldest first."""
        self.open()
        with self._database.read() as connection:
            branches, next_ = self._journal.open_branches(
                connection,
                application=application,
                state=state,
                after=after,
                limit=limit,
            )
        return Page(branches, next_, self._clock())

    def ready(self) -> None:
        """Read one row, whatever there is."""
        self.open()
        with self._database.read() as connection:
            connection.execute(sa.select(self._tables.schema.c.version))

    def gauges(self) -> dict[str, float]:
        """Measure; nothing from `close` on, until it is used again."""
        if self._closed:
            return {}
        self.open()
        with self._database.read() as connection:
            return self.measured(connection)

    def measured(self, connection: Connection) -> dict[str, float]:
        """Count what is in doubt."""
        count, since = self._journal.in_doubt(connection)
        age = 0.0 if since is None else max(0.0, self._clock() - since)
        return {
            "tpc_in_doubt_branches": count,
            "tpc_oldest_in_doubt_age_seconds": age,
        }

    def close(self) -> None:
        """Close the connections; to be measured is no use, and opens none."""
        self._closed = True
        self._database.engine.dispose()

    @contextlib.contextmanager
    def _addressed(
        self, transaction: TransactionId, participant: str
    ) -> Iterator[tuple[Connection, Seen]]:
        """Read under the lock, as `deciding`, if it is us who are meant."""
        with self.deciding(transaction) as (connection, seen):
            self._check_name(connection, seen, participant)
            yield connection, seen

    def _check_name(
        self, connection: Connection, seen: Seen, participant: str | None
    ) -> None:
        """Refuse what is meant for another participant.

        Until an application has prepared or committed something here, it may give us
        another name.
        """
        names = {None, seen.participant}
        if participant in names or seen.participant is None:
            return
        if self._journal.is_in_use(connection, seen):
            raise Problem(
                wire.MISDIRECTED,
                f"this is participant {seen.participant!r} of application "
                f"{seen.transaction.application}, not {participant!r}: mend its "
                "address in `participants`",
            )

    @contextlib.contextmanager
    def deciding(self, transaction: TransactionId) -> Iterator[tuple[Connection, Seen]]:
        """Read under the lock; what is written till the end is one durable step."""
        self.open()
        with self._database.decide(transaction.application) as connection:
            yield connection, self._journal.read(connection, transaction)
            commit(connection)

    def _obey(
        self,
        connection: Connection,
        seen: Seen,
        participant: str,
        answer: Answer,
        losers: Sequence[Held],
        *,
        watermark: int | None = None,
        because: str | None = None,
    ) -> None:
        """Make true what the answer says; nothing changes unless it is 200."""
        if answer.status != 200:
            return
        self._journal.call(connection, seen, participant)
        if answer.seal is not None:
            lost = {held.tag for held in losers}
            self._journal.seal(
                connection,
                seen,
                answer.seal,
                losers=lost,
                now=self._clock(),
                because=because,
            )
            if answer.seal is BranchState.COMMITTED:
                prepared = seen.holding(BranchState.PREPARED)
                self.committed(
                    connection, seen, [h for h in prepared if h.tag not in lost]
                )
        if watermark is not None:
            self._journal.raise_watermark(connection, seen, watermark)

    def _waited(self, seen: Seen, answer: Answer) -> None:
        if answer.seal is not None:
            since = [held.since for held in seen.holding(BranchState.PREPARED)]
            record_wait(seen, since, self._clock(), answer.seal)


def _counted(batches: Iterable[Any], most: int) -> Iterator[Any]:
    """Pass batches on, until there are more records than were said to come."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows > most:
            raise Problem(400, f"Tpc-Rows: it says {most}, the body has more records")
        yield batch


def is_raised(error: Exception) -> bool:
    """Say whether a trigger of the table's has raised it: PostgreSQL's class P0."""
    return str(getattr(error, "sqlstate", "")).startswith("P0")


def check_prefix(name: str) -> str:
    """Return a name that tables can be made from.

    Raises:
        ConfigurationError: it is not one.
    """
    if not (
        name.isascii() and name.isidentifier() and name.islower() and len(name) <= 40
    ):
        raise ConfigurationError(
            f"{name[:60]!r}: use 1 to 40 lower-case letters, digits and underscores, "
            "starting with a letter"
        )
    return name
