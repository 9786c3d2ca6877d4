"""Rows in a plain table, held back by PostgreSQL's own prepared transactions."""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import psycopg.errors
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.failpoints import failpoint
from tracing_2pc.model import TransactionId
from tracing_2pc.participant.answers import Answer, Named, Seen, finish
from tracing_2pc.participant.database import Writer, commit, open_database
from tracing_2pc.participant.postgresql import (
    PostgreSQL,
    PostgreSQLWriter,
    flushed,
    unflushed,
)
from tracing_2pc.participant.problems import Problem, unavailable
from tracing_2pc.participant.resources.columns import sql_type
from tracing_2pc.participant.resources.journalled import (
    NotKeptError,
    ViolatedError,
    check_prefix,
    is_raised,
)
from tracing_2pc.participant.resources.prepared_journal import (
    PreparedJournal,
    Sealed,
)
from tracing_2pc.participant.resources.table_resource import TableResource
from tracing_2pc.states import BranchState
from tracing_2pc.telemetry.spans import database_span

_FLUSHES: Final = sa.text(
    "SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'"
)

_log: Final = logging.getLogger(__name__)


class PreparedTransactions(TableResource):
    """Keeps committed records in a plain table of PostgreSQL, without view or tag.

    Each branch is a COPY inside PREPARE TRANSACTION; COMMIT PREPARED shows it. It costs
    what a COPY costs, and readers need to know nothing. In return the server must allow
    it (`max_prepared_transactions`, 0 by default: one for each branch in doubt), and a
    branch in doubt holds locks and keeps VACUUM from cleaning up until it has heard the
    decision. A pooler in transaction mode is refused. And use one role: PostgreSQL lets
    only the one that prepared commit (others get 503).

    Branches of a transaction are committed one by one: for a moment a reader may see
    some of them. A crash in between is gone on with by the next commit, which is asked
    for until it is answered.

    The table is made from the first prepare's Arrow schema, or is one that exists; the
    journal lies beside it. A value that a column of it would round, cut or read by the
    session's settings is a vote to abort. Columns that the table fills may be left out.

    Prepared transactions of others are never touched. One of ours that somebody rolls
    back by hand is answered *unknown* (404) when it is to be committed; one that
    somebody commits is answered *committed* (409) when it is to be aborted. Either way
    the transaction is quarantined, for a person to look.

    Args:
        url: `postgresql://host/name`, or `env:NAME` to read it from there. No password
            in it.
        table: where the records go, and what readers SELECT from.
        clock: Unix seconds.

    Raises:
        ConfigurationError: not PostgreSQL, a password in the URL, or a name that cannot
            be a table.
    """

    def __init__(
        self, url: str, table: str, *, clock: Callable[[], float] = time.time
    ) -> None:
        database = open_database(url)
        if not isinstance(database, PostgreSQL):
            raise ConfigurationError(
                "PreparedTransactions needs PostgreSQL: use TaggedRows here"
            )
        super().__init__(check_prefix(table), database, clock)
        self._table = table
        self._postgresql = database
        # Of its own: a prepare holds a session while it waits for one of these.
        self._notes = PostgreSQL(database.engine.url, most=16, beside=database)
        self._journal: PreparedJournal = PreparedJournal(self._tables, database.alive)

    @property
    def rows(self) -> str:
        """Name of the table."""
        return self._table

    def set_up(self, connection: Connection) -> None:
        """Check what the votes rest on.

        Raises:
            ConfigurationError: with the setting to change.
        """
        _, most = self._journal.slots(connection)
        if most == 0:
            raise ConfigurationError(
                "PreparedTransactions: max_prepared_transactions is 0 on this server; "
                "set it to 64 or more in postgresql.conf and restart it, or use "
                "TaggedRows, which needs no setting"
            )
        if connection.execute(_FLUSHES).scalar() == "off":
            raise ConfigurationError(
                "PreparedTransactions: synchronous_commit is off for this database or "
                "role, so an answer might not survive a crash; set it to on, or use "
                "TaggedRows, which does so for its own sessions"
            )
        inspector = sa.inspect(connection)
        if self._table in inspector.get_view_names():
            raise ConfigurationError(
                f"{self._table} is a view: name the table itself. If TaggedRows has "
                "made it, choose another table"
            )
        if inspector.has_table(self._table):
            self.check_kept(connection)
            self.look(connection)

    def ours(self, transaction: TransactionId, tag: int) -> dict[str, Any]:
        """Add nothing: the table is the service's own."""
        return {}

    def make(self, connection: Connection, schema: pa.Schema) -> None:
        """Make the table."""
        columns = [sa.Column(f.name, sql_type(f.type)) for f in schema]
        sa.Table(self._table, sa.MetaData(), *columns).create(connection)

    def measured(self, connection: Connection) -> dict[str, float]:
        """Count what is in doubt, and the slots for it."""
        used, most = self._journal.slots(connection)
        slots = {"tpc_prepared_slots_used": used, "tpc_prepared_slots_max": most}
        return super().measured(connection) | slots

    def holds(self, connection: Connection, seen: Seen) -> dict[str, int]:
        """Count its rows, and what PostgreSQL holds back for them."""
        busy = self._journal.busy(connection, seen.transaction)
        return super().holds(connection, seen) | busy._asdict()

    def keep(
        self,
        writer: Writer,
        connection: Connection,
        transaction: TransactionId,
        wanted: Named,
        tag: int,
    ) -> Answer:
        """Look again behind the fence, note it, and prepare: one flush for both.

        The prepared transaction holds no lock on what commit, abort or list touch:
        what they read is noted by another session.
        """
        assert isinstance(writer, PostgreSQLWriter)  # noqa: S101 - we are on PostgreSQL
        self._journal.add_outcome(connection, tag)
        self._look_last(connection)
        with writer.fence(transaction.application):
            with self._notes.aside() as noting:
                seen = self._journal.read(noting, transaction, wanted.branch)
                answer = finish(seen, tag, wanted)
                if kept := answer.status == 200 and wanted.rows > 0:
                    self._journal.prepared(noting, tag, self._clock())
            if kept:
                gid = self._journal.gid(transaction, wanted.branch, tag)
                self._prepare(connection, gid)
        if not kept:
            raise NotKeptError(answer)
        return answer

    @contextlib.contextmanager
    def deciding(self, transaction: TransactionId) -> Iterator[tuple[Connection, Seen]]:
        """Note the decision, then carry it out, under one lock.

        The note is flushed with the first prepared transaction that obeys; without
        one, by itself.
        """
        self.open()
        with self._postgresql.held(transaction.application) as connection:
            with connection.begin():
                yield connection, self._journal.read(connection, transaction)
                sealed = self._journal.sealed(connection, transaction)
                if asked := [one for one in sealed if one.asked]:
                    unflushed(connection)
                else:
                    flushed(connection)
                    commit(connection)
            done = self._carry_out(connection, sealed)
            with connection.begin():
                if asked and not done:
                    flushed(connection)
                    self._journal.touch(connection, transaction)
                self._check(connection, transaction)

    def close(self) -> None:
        """Close the connections."""
        super().close()
        self._notes.engine.dispose()

    def _look_last(self, connection: Connection) -> None:
        """Let deferred constraints speak now, while nobody waits for us."""
        try:
            connection.exec_driver_sql("SET CONSTRAINTS ALL IMMEDIATE")
        except sa.exc.DBAPIError as error:
            if isinstance(error.orig, Exception) and is_raised(error.orig):
                raise ViolatedError from None
            raise

    def _prepare(self, connection: Connection, gid: str) -> None:
        try:
            with database_span("PREPARE TRANSACTION", "postgresql"):
                connection.exec_driver_sql(f"PREPARE TRANSACTION '{gid}'")
        except sa.exc.OperationalError as error:
            if isinstance(error.orig, psycopg.errors.OutOfMemory):
                _log.error("no prepared transaction left: max_prepared_transactions")
                detail = "max_prepared_transactions of the database is exhausted"
                raise unavailable(detail) from None
            raise
        except sa.exc.NotSupportedError:
            detail = "a trigger of the table uses what PREPARE TRANSACTION refuses"
            raise Problem(409, detail, fields={"state": "unknown"}) from None

    def _carry_out(self, connection: Connection, sealed: Sequence[Sealed]) -> int:
        """Commit and roll back, each in a flush of its own; return how many there were.

        Raises:
            Problem: 503, some of what is asked about is not done; the next request
                goes on. What was left by others is logged.
        """
        done = 0
        connection.execution_options(isolation_level="AUTOCOMMIT")
        for one in sealed:
            if done:
                failpoint("participant.between_branches")
            try:
                done += self._finish(connection, one)
            except sa.exc.DBAPIError as error:
                about = {"gid": one.gid, "error": type(error.orig).__name__}
                _log.error("decided and not carried out yet", extra=about)
                if one.asked or error.connection_invalidated:
                    detail = "decided, and only a part of it is done"
                    raise unavailable(detail) from None
        connection.commit()
        connection.execution_options(isolation_level="READ COMMITTED")
        return done

    def _finish(self, connection: Connection, one: Sealed) -> bool:
        """End a prepared transaction as it was decided; False if it was gone."""
        keep = one.outcome is BranchState.COMMITTED
        verb = "COMMIT PREPARED" if keep else "ROLLBACK PREPARED"
        try:
            with database_span(verb, "postgresql"):
                connection.exec_driver_sql(f"{verb} '{one.gid}'")
        except sa.exc.ProgrammingError as error:
            if isinstance(error.orig, psycopg.errors.UndefinedObject):
                return False
            raise
        return True

    def _check(self, connection: Connection, transaction: TransactionId) -> None:
        found = self._journal.contradicted(connection, transaction)
        if found is None:
            return
        branch, came = found
        if came is BranchState.COMMITTED:
            detail = f"branch {branch} is decided abort and was committed by hand"
            raise Problem(409, detail, fields={"state": str(came)})
        detail = f"branch {branch} is decided commit and was rolled back by hand"
        raise Problem(404, detail, fields={"state": "unknown"})
