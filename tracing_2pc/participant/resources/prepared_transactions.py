"""Rows in a plain table, held back by PostgreSQL's own prepared transactions."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any, Final, Literal

import psycopg.errors
import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.settings import adds_columns
from tracing_2pc.core.states import BranchState, Refusal
from tracing_2pc.participant.branch_store import BranchUpload
from tracing_2pc.participant.engine import ParticipantEngine
from tracing_2pc.participant.journal.journal import Journal
from tracing_2pc.participant.journal.open_database import open_database
from tracing_2pc.participant.journal.postgresql import PostgreSQL
from tracing_2pc.participant.journal.schema import TAG, Tables
from tracing_2pc.participant.resources.column_table import ColumnTable
from tracing_2pc.participant.resources.columns import sql_type
from tracing_2pc.participant.resources.external_branches import (
    ExternalBranch,
    ExternalBranches,
    ExternalEvidence,
    NotCarriedOutError,
    Written,
)
from tracing_2pc.participant.resources.loader import check_prefix, open_load
from tracing_2pc.store.engines.database import PLACE
from tracing_2pc.tracing.spans import database_span

_FLUSHES: Final = sa.text(
    "SELECT reset_val FROM pg_settings WHERE name = 'synchronous_commit'"
)
_PREFIX: Final = sa.text(
    "SELECT concat_ws('.', 'tpc', CAST(:table AS text), d.oid, CAST(:journal AS "
    "regclass)::oid, '') FROM pg_database d WHERE d.datname = current_database()"
)
_PREPARED: Final = sa.text(
    "SELECT gid FROM pg_prepared_xacts "
    "WHERE database = current_database() AND starts_with(gid, :prefix)"
)
_SLOTS: Final = sa.text(
    "SELECT (SELECT count(*) FROM pg_prepared_xacts), "
    "current_setting('max_prepared_transactions')::int"
)
_HELD_BACK: Final = sa.text(
    "SELECT count(DISTINCT p.gid) AS slots, count(l.locktype) AS locks, "
    "coalesce(max(age(p.transaction)), 0) AS horizon "
    "FROM pg_prepared_xacts p LEFT JOIN pg_locks own ON own.pid IS NULL "
    "AND own.locktype = 'transactionid' AND own.transactionid = p.transaction "
    "LEFT JOIN pg_locks l ON l.pid IS NULL "
    "AND l.virtualtransaction = own.virtualtransaction WHERE p.gid = ANY(:gids)"
)
"""Slots used, locks held, and the age of the oldest in transactions, which VACUUM waits
for. Its lock on its own id names its virtual transaction, which names its other locks.
"""

_BRANCH: Final = re.compile(r"(\d+)\.([^.]+\.\d+\.\d+)\.\d+\.\d+")
"""A branch's name after the prefix: tag, transaction, branch."""

logger = logging.getLogger(__name__)


class PreparedTransactions(ParticipantEngine):
    """Keeps committed records in a plain table of PostgreSQL, without view or tag.

    Each branch is a COPY inside PREPARE TRANSACTION; COMMIT PREPARED shows it. The
    server must allow it (`max_prepared_transactions`, 0 by default: one for each branch
    in doubt), and a branch in doubt holds locks and keeps VACUUM from cleaning up. A
    pooler in transaction mode is refused. Use one role: PostgreSQL lets only the role
    that prepared commit (others get 503).

    Branches of a transaction are committed one by one: for a moment a reader may see
    some of them. After a crash in between the next commit continues; the coordinator
    repeats it until it is answered.

    The table is made from the first prepare's Arrow schema, or exists already; the
    journal is in the same database. A value that a column would round, cut or read by
    the session's settings is a vote to abort. Columns that the table fills may be left
    out.

    Prepared transactions of others are never touched. If one of ours was rolled back by
    hand its commit is answered *unknown* (404); if it was committed by hand its abort
    is answered *committed* (409). Either way the transaction is quarantined.

    Args:
        url: `postgresql://host/name`, or `env:NAME` to read it from there. No password
            in it.
        table: the table for the records, from which readers SELECT.
        evolve: with "add" a column that a batch has and the table has not is added,
            as by `TaggedRows`, while nothing is prepared in the table.
        clock: Unix seconds; by default the database's clock.

    Raises:
        ConfigurationError: not PostgreSQL, a password in the URL, or a name that cannot
            be a table.
    """

    def __init__(
        self,
        url: str,
        table: str,
        *,
        evolve: Literal["add"] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        database = open_database(url)
        if not isinstance(database, PostgreSQL):
            raise ConfigurationError(
                "PreparedTransactions needs PostgreSQL: use TaggedRows here"
            )
        tables = Tables("prepared_transactions", check_prefix(table))
        place = _PreparedBranches(tables, database, evolve=adds_columns(evolve))
        evidence = ExternalEvidence(place)
        journal = Journal(tables, database, clock, evidence=evidence)
        super().__init__(journal, ExternalBranches(journal, place))


class _PreparedBranches:
    """Prepared transactions of PostgreSQL (`external_branches.BranchPlace`).

    A row in a table of outcomes, written inside the prepared transaction, is the
    evidence that it was committed.
    """

    # PREPARE TRANSACTION and COMMIT PREPARED flush the log that the journal is in.
    shares_flush = True

    def __init__(self, tables: Tables, database: PostgreSQL, *, evolve: bool) -> None:
        self._tables = tables
        self._database = database
        tag = sa.Column("tag", TAG, primary_key=True, autoincrement=False)
        self._outcome = tables.add("outcome", tag)
        self._table = ColumnTable(
            database, tables.name, self._create, will_be_prepared=True, evolve=evolve
        )
        self._prefix = ""

    def _create(self, connection: Connection, schema: pa.Schema) -> None:
        columns = [sa.Column(f.name, sql_type(f.type)) for f in schema]
        sa.Table(self._table.name, sa.MetaData(), *columns).create(connection)

    def set_up(self, connection: Connection) -> None:
        _, most = connection.execute(_SLOTS).one()
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
        name, inspector = self._table.name, sa.inspect(connection)
        if name in inspector.get_view_names():
            raise ConfigurationError(
                f"{name} is a view: name the table itself. If TaggedRows has made it, "
                "choose another table"
            )
        if inspector.has_table(name):
            self._table.check(connection)
        self._tables.raise_next_tag(connection, [self._outcome.c.tag])
        self.find(connection)

    def find(self, connection: Connection) -> None:
        # Names are unique in the server: they contain this database and journal.
        about = {"table": self._table.name, "journal": self._tables.branch.name}
        self._prefix = str(connection.execute(_PREFIX, about).scalar())

    @contextlib.contextmanager
    def write(self, upload: BranchUpload) -> Iterator[Written]:
        # Another session writes the journal: the prepared transaction holds no lock
        # that commit, abort or list wait for.
        with open_load(self._table, upload, will_be_prepared=True) as (connection, tag):
            connection.execute(self._outcome.insert().values(tag=tag))
            # 193 bytes at most, of 199.
            gid = f"{self._prefix}{tag}.{upload.transaction}.{upload.ref.branch}"
            yield Written(lambda: self._prepare(connection, gid), connection)
            connection.rollback()  # of nothing, if it was prepared

    def _prepare(self, connection: Connection, gid: str) -> None:
        place = connection.get_execution_options()[PLACE]
        try:
            with database_span("PREPARE TRANSACTION", place):
                connection.exec_driver_sql(f"PREPARE TRANSACTION '{gid}'")
        except sa.exc.OperationalError as error:
            if isinstance(error.orig, psycopg.errors.OutOfMemory):
                logger.error("no prepared transaction left: max_prepared_transactions")
                detail = "max_prepared_transactions of the database is exhausted"
                raise RefusalError(Refusal.NOT_NOW, f"{detail}: ask again") from None
            raise
        except sa.exc.NotSupportedError:
            detail = "a trigger of the table uses what PREPARE TRANSACTION refuses"
            raise RefusalError(Refusal.CONFLICT, detail, state="unknown") from None

    def prepared(self, connection: Connection) -> dict[int, ExternalBranch]:
        gids = connection.execute(_PREPARED, {"prefix": self._prefix}).scalars().all()
        names = [(gid, _BRANCH.fullmatch(gid[len(self._prefix) :])) for gid in gids]
        return {
            int(name[1]): ExternalBranch(gid, TransactionId.parse(name[2]))
            for gid, name in names
            if name
        }

    def committed(self, connection: Connection, tags: Collection[int]) -> set[int]:
        o, array = self._outcome, sa.literal(list(tags), sa.ARRAY(sa.BigInteger))
        statement = sa.select(o.c.tag).where(o.c.tag == sa.any_(array))
        return set(connection.execute(statement).scalars())

    def forget(self, connection: Connection, tags: sa.Select[Any]) -> None:
        connection.execute(self._outcome.delete().where(self._outcome.c.tag.in_(tags)))

    def end(
        self, connection: Connection, branch: ExternalBranch, outcome: BranchState
    ) -> bool:
        keep = outcome is BranchState.COMMITTED
        verb = "COMMIT PREPARED" if keep else "ROLLBACK PREPARED"
        place = connection.get_execution_options()[PLACE]
        try:
            outside = self._database.autocommit(connection)
            with outside, database_span(verb, place):
                connection.exec_driver_sql(f"{verb} '{branch.name}'")
        except sa.exc.DBAPIError as error:
            if isinstance(error.orig, psycopg.errors.UndefinedObject):
                return False
            raise NotCarriedOutError(type(error.orig).__name__) from None
        return True

    def usage(
        self, connection: Connection, branches: Collection[ExternalBranch]
    ) -> dict[str, int]:
        if not branches:
            return {"slots": 0, "locks": 0, "horizon": 0}
        gids = {"gids": [branch.name for branch in branches]}
        return dict(connection.execute(_HELD_BACK, gids).mappings().one())

    def gauges(self, connection: Connection) -> dict[str, float]:
        used, most = connection.execute(_SLOTS).one()
        return {"tpc.prepared_slots.used": used, "tpc.prepared_slots.max": most}
