"""PostgreSQL: large bodies stream into COPY; locks are advisory locks."""

from __future__ import annotations

import functools
import itertools
import logging
import re
from collections.abc import Hashable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, Final, NamedTuple

import psycopg
import psycopg.errors
import psycopg.sql
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.settings import LOCK_WAIT
from tracing_2pc.participant.body import AT_ONCE, Body, Source
from tracing_2pc.participant.journal import copy_binary
from tracing_2pc.participant.journal.database import (
    Database,
    Records,
    TableGoneError,
    TableInUseError,
    TableLook,
    UnderWayError,
)
from tracing_2pc.participant.journal.statements import delete_at
from tracing_2pc.store.engines import database as engines
from tracing_2pc.store.engines import postgresql
from tracing_2pc.store.engines.postgresql import advisory_key

_UPLOADS: Final = sa.text(
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND granted "
    "AND database = (SELECT oid FROM pg_database WHERE datname = current_database()) "
    "AND classid::bigint = :journal AND objsubid = 2"
)
_REFUSING: Final = {"0A", "38", "39", "42", "44", "54"}
"""Classes of errors that are the same each time, by records and table."""

_LOOK: Final = """
WITH RECURSIVE part AS (
    SELECT oid, relkind, relpersistence FROM pg_class WHERE oid = to_regclass({table})
    UNION ALL
    SELECT p.oid, p.relkind, p.relpersistence FROM part
    JOIN pg_inherits ON part.relkind = 'p' AND inhparent = part.oid
    JOIN pg_class p ON p.oid = inhrelid
)
SELECT ARRAY(
    SELECT concat_ws(' ', attname, atttypid::bigint, atttypmod,
      (attnotnull, atthasdef, attidentity, attgenerated)) FROM pg_attribute
    WHERE attrelid = t.oid AND attnum > 0 AND NOT attisdropped ORDER BY attnum),
  ARRAY(SELECT DISTINCT relkind::text FROM part ORDER BY 1),
  EXISTS (SELECT FROM part WHERE relpersistence <> 'p'),
  ARRAY(
    SELECT DISTINCT tgname::text FROM pg_trigger JOIN part ON tgrelid = part.oid
    WHERE NOT tgisinternal AND tgenabled IN ('O', 'A') AND tgtype & 12 <> 0 ORDER BY 1),
  ARRAY(
    SELECT DISTINCT rulename::text FROM pg_rewrite JOIN part ON ev_class = part.oid
    WHERE ev_enabled IN ('O', 'A') AND ev_type IN ('3', '4') ORDER BY 1),
  relrowsecurity,
  relhastriggers OR relkind = 'p',
  (SELECT EXISTS (
    SELECT FROM pg_rewrite r JOIN pg_depend ON objid = r.oid
    AND classid = 'pg_rewrite'::regclass AND refclassid = 'pg_class'::regclass
    JOIN pg_class shown ON shown.oid = refobjid
    WHERE ev_class = v.oid AND shown.oid <> v.oid
    AND (shown.oid = t.oid OR shown.relkind IN ('v', 'm') OR EXISTS (
      SELECT FROM pg_inherits WHERE inhrelid = t.oid AND inhparent = shown.oid)))
   FROM pg_class v WHERE v.oid = to_regclass({view})),
  (SELECT reloptions FROM pg_class WHERE oid = to_regclass({view}))
FROM pg_class t WHERE oid = to_regclass({table})
"""
"""INSERT is 4 in the type of a trigger and '3' in that of a rule, DELETE 8 and '4'.
The definition of another view, or a parent, that the view stands on is not read."""


class _CatalogRow(NamedTuple):
    """The columns of a row of `_LOOK`."""

    columns: tuple[str, ...]
    kinds: tuple[str, ...]
    unlogged: bool
    triggers: tuple[str, ...]
    rules: tuple[str, ...]
    policies: bool
    has_deferred_checks: bool
    view: bool | None
    options: tuple[str, ...] | None


_PREPARED_LOCKS: Final = sa.text(
    "SELECT EXISTS (SELECT FROM pg_locks WHERE pid IS NULL AND locktype = 'relation' "
    "AND relation = to_regclass(:table) AND database = "
    "(SELECT oid FROM pg_database WHERE datname = current_database()))"
)
"""Whether any prepared transaction has locked a table."""

_OWNS: Final = sa.text(
    "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(:name)"
)

_BRIEFLY: Final = "set_config('lock_timeout', '1500ms', true)"
"""SQL: the wait of a transaction that alters a table for others that use it. After
`deadlock_timeout`, one second, PostgreSQL ends an autovacuum that is in the way."""

_INVOKER: Final = re.compile("security_invoker=(true|on|yes|1)", re.IGNORECASE)
_VIOLATED: Final = ("constraint", "column", "table")
_LOCK_NOT_AVAILABLE: Final = "55P03"
_CHECK_NOW: Final = "SET CONSTRAINTS ALL IMMEDIATE"

_REASONS: Final = {
    "42501": "the role of this participant may not write to it: GRANT SELECT, INSERT, "
    "UPDATE, DELETE on it",
    "42703": "a column is no longer there",
    "54000": "a record is too large for a row of it, or has too many columns",
    "57014": "writing took longer than statement_timeout: raise it for the role of "
    "this participant, or write with more partitions",
}


logger = logging.getLogger(__name__)


class PostgreSQL(postgresql.PostgreSQL, Database):
    """`database.Database` on PostgreSQL by psycopg, with at `most` so many sessions."""

    driver = psycopg
    planned_anew = ("set_config('plan_cache_mode', 'force_custom_plan', true)",)
    most_in_memory = AT_ONCE
    """Bytes of a body that is received before a transaction is open, at most."""

    def __init__(self, url: sa.URL, most: int = 64) -> None:
        size, rest = most // 8, most - most // 8
        super().__init__(
            url, "url", lock_wait=LOCK_WAIT, pool_size=size, max_overflow=rest
        )
        (begin,) = self.relaxed_engine.get_execution_options()[engines.BEGIN]
        # After it was allowed to write: a list of what a standby has is no evidence.
        begin = f"{begin}, set_config('transaction_read_only', 'on', true)"
        self.read_engine = self.engine.execution_options(**{engines.BEGIN: (begin,)})

    def setup(self) -> AbstractContextManager[Connection]:
        """Warn of a pooler that uploads could take all sessions of."""
        if not self.keeps_sessions:
            logger.warning(
                "a pooler in transaction mode stands before this PostgreSQL: an upload "
                "takes a session for its whole length, and decisions need one more each"
            )
        return super().setup()

    def skip_flush(self, connection: Connection) -> None:
        """Let the open transaction become durable with the server's next flush."""
        connection.exec_driver_sql(f"SELECT {postgresql.UNFLUSHED}")

    @functools.cached_property
    def beside(self) -> PostgreSQL:
        return PostgreSQL(self.url, 16)

    @contextmanager
    def read_quickly(self) -> Iterator[Connection]:
        """Read a table although a transaction waits to alter it, and for the caller."""
        with self.read() as connection:
            connection.exec_driver_sql("SET LOCAL lock_timeout = '1s'")
            yield connection

    def receive(self, body: Body) -> Source:
        """Stream it into COPY as it arrives; a small one is read into memory first."""
        is_large = body.length > self.most_in_memory
        return Source.streamed(body) if is_large else self.spool(body)

    @contextmanager
    def upload(
        self,
        branch: str,
        tag: str,
        table: str | None = None,
        *,
        will_be_prepared: bool = False,
    ) -> Iterator[tuple[Connection, int]]:
        """Try an advisory lock, which ends with the transaction or with the session.

        The table's lock is the one that COPY takes: of the table by this name, not of
        its partitions. Others write under it, but cannot alter or rename the table, or
        make a trigger, a rule, a policy or a constraint.
        """
        keys = ", ".join(str(advisory_key(k, bits=32)) for k in branch.split(" ", 1))
        lock = f"pg_try_advisory_{'' if will_be_prepared else 'xact_'}lock({keys})"
        first = f"SELECT {lock}, {tag}"
        if table is not None:
            name = self.engine.dialect.identifier_preparer.quote(table)
            first = f"{first}; LOCK TABLE ONLY {name} IN ROW EXCLUSIVE MODE"
        unlock = f"SELECT pg_advisory_unlock({keys})"
        with self.write() as connection:
            cursor, is_alone = connection.connection.cursor(), True
            try:
                cursor.execute(first)
                is_alone, drawn = cursor.fetchone() or (False, 0)
                if not is_alone:
                    raise UnderWayError
                yield connection, drawn
                if will_be_prepared:  # and SQLAlchemy's transaction is over
                    cursor.execute(unlock)
            except BaseException as error:
                if will_be_prepared and is_alone:
                    _free(connection, unlock if isinstance(error, Exception) else None)
                if isinstance(error, psycopg.errors.UndefinedTable):
                    raise TableGoneError from None
                raise

    @contextmanager
    def autocommit(self, connection: Connection) -> Iterator[None]:
        """Execute statements outside of any transaction."""
        begin = connection.get_execution_options()[engines.BEGIN]
        connection.execution_options(**{engines.BEGIN: ()})
        try:
            yield
        finally:
            if not connection.invalidated:
                connection.commit()
                connection.execution_options(**{engines.BEGIN: begin})

    def shared_lock(self, connection: Connection, application: str) -> None:
        """Take it with an advisory lock of the transaction."""
        lock = f"SELECT pg_advisory_xact_lock_shared({advisory_key(application)})"
        connection.connection.cursor().execute(lock)

    def uploads(self, connection: Connection, journal: str) -> int:
        """Count the locks of `upload`, whichever process holds them."""
        key = advisory_key(journal, bits=32) % (1 << 32)
        count: int = connection.scalar(_UPLOADS, {"journal": key})
        return count

    @contextmanager
    def alter(self, table: str) -> Iterator[Connection]:
        """Wait for no prepared transaction: it may end in a day, or wait for this."""
        try:
            with self.write(_BRIEFLY, lock="") as connection:
                if connection.scalar(_PREPARED_LOCKS, {"table": self._quoted(table)}):
                    raise TableInUseError
                yield connection
        except sa.exc.OperationalError as error:
            if getattr(error.orig, "sqlstate", None) == _LOCK_NOT_AVAILABLE:
                raise TableInUseError from None
            raise

    def owns(self, connection: Connection, name: str) -> bool:
        return bool(connection.scalar(_OWNS, {"name": self._quoted(name)}))

    def _quoted(self, name: str) -> str:
        return psycopg.sql.Identifier(name).as_string()

    def look_at(self, connection: Connection, table: str, view: str | None) -> Hashable:
        """Read it in one statement, which takes locks of catalogs only."""
        cursor = connection.connection.cursor().execute(_look_at(table, view))
        if (row := cursor.fetchone()) is None:
            raise TableGoneError
        values: Any = (tuple(v) if isinstance(v, list) else v for v in row)
        return _CatalogRow(*values)

    def read_look(self, catalog: Any) -> TableLook:
        about = (column.rsplit(" ", 3) for column in catalog.columns)
        known = ((name, copy_binary.TYPES.get(int(kind))) for name, kind, *_ in about)
        return TableLook(
            exact={name: kind for name, kind in known if kind is not None},
            is_table={*catalog.kinds} <= {"r", "p"},
            has_parts="p" in catalog.kinds,
            is_unlogged=catalog.unlogged,
            fires=catalog.triggers + catalog.rules,
            has_policies=catalog.policies,
            has_deferred_checks=catalog.has_deferred_checks,
            view=catalog.view,
            is_invoker=any(map(_INVOKER.fullmatch, catalog.options or ())),
        )

    def load(self, connection: Connection, table: str, records: Records) -> int:
        """COPY batches: typed ones in binary, others as csv, where NULL is not ""."""
        if (first := next(records.batches, None)) is None:
            return 0
        typed = records.typed
        form, encode = ("binary", copy_binary.pieces) if typed else ("csv", _csv)
        statement = _copy_into(form, table, *first.schema.names)
        cursor = connection.connection.cursor()
        with cursor.copy(statement) as copy:
            copy.write(copy_binary.HEADER if typed else b"")
            for batch in itertools.chain([first], records.batches):
                for piece in encode(batch):
                    copy.write(piece)
            copy.write(copy_binary.TRAILER if typed else b"")
        kept: int = cursor.rowcount
        if records.has_deferred_checks:  # now, while no decision waits for it
            cursor.execute(_CHECK_NOW)
        return kept

    def misfit(self, connection: Connection, error: Exception, batch: Any) -> str:
        kind = type(error).__name__
        if kind == "UntranslatableCharacter":
            kind = f"text has {self.lacking(connection)}"
        names = "|".join(map(re.escape, batch.schema.names))
        context = str(getattr(getattr(error, "diag", None), "context", None))
        match = re.search(rf", \w+ ({names})(:|$)", context.partition("\n")[0])
        columns = [match[1]] if match else [*_not_ascii(batch)]
        about = f"{', '.join(columns)}: " if columns else ""
        return f"{about}a value does not fit the column it is for: {kind}"

    def lacking(self, connection: Connection) -> str:
        """Describe text that a database of an old encoding does not take."""
        session: Any = connection.connection.driver_connection
        encoding = session.info.parameter_status("server_encoding")
        return f"a character that the encoding of the database, {encoding}, lacks"

    def violation(self, error: Exception) -> str:
        """Name it, after its kind; and the line of COPY where it was found there."""
        diag: Any = getattr(error, "diag", None)
        names = {name: getattr(diag, f"{name}_name", None) for name in _VIOLATED}
        # `(names)=(values)`: of a unique constraint or a foreign key.
        key = re.search(r"\((.+?)\)=\(", str(getattr(diag, "message_detail", None)))
        names["column"] = names["column"] or (key[1] if key else None)
        context = str(getattr(diag, "context", None))
        function = re.search(r"^PL/pgSQL \w+ ([\w.]+)\(", context, re.MULTILINE)
        names["function"] = function[1] if function else None
        line = re.search(r"^COPY .*?, \w+ (\d+)", context, re.MULTILINE)
        parts = [f"{name} {value}" for name, value in names.items() if value]
        where = [f"line {line[1]} of COPY"] if line else []
        return ", ".join([type(error).__name__, *parts, *where])

    def refusal(self, error: Exception) -> str | None:
        state = str(getattr(error, "sqlstate", None))
        if state[:2] in _REFUSING:
            return _REASONS.get(state, f"PostgreSQL says {type(error).__name__}")
        return _REASONS.get(state)

    def delete_slice(
        self, connection: Connection, table: str, tag: int, limit: int
    ) -> int:
        """Delete some rows of a tag that are not locked, and do not move meanwhile."""
        name = self.engine.dialect.identifier_preparer.quote(table)
        chosen = (
            f"SELECT ROW(ctid, tableoid) FROM {name} "  # noqa: S608 - quoted
            "WHERE tpc_tag = :tag LIMIT :limit FOR UPDATE SKIP LOCKED"
        )
        statement = sa.text(delete_at(name, chosen))
        return connection.execute(statement, {"tag": tag, "limit": limit}).rowcount


def _not_ascii(batch: pa.RecordBatch) -> Iterator[str]:
    for name, column in zip(batch.schema.names, batch.columns, strict=True):
        is_text = column.type in (pa.string(), pa.large_string())
        if is_text and pc.all(pc.string_is_ascii(column)).as_py() is False:
            yield name


@functools.lru_cache(maxsize=100)
def _look_at(table: str, view: str | None) -> str:
    names = [psycopg.sql.Identifier(name or "").as_string() for name in (table, view)]
    names = [psycopg.sql.quote(name) for name in names]
    return _LOOK.format(table=names[0], view=names[1] if view else "NULL")


def _free(connection: Connection, unlock: str | None) -> None:
    """Free a session's lock, which no ROLLBACK frees; else end the session.

    One that ends keeps its locks until the server notices: a request that is repeated
    meanwhile is answered *in progress*.
    """
    is_free = False
    try:
        if unlock is not None and not connection.invalidated:
            session: Any = connection.connection.dbapi_connection
            session.rollback()
            session.execute(unlock)
            is_free = True
    except psycopg.Error:
        pass  # the error that led here goes on
    finally:
        if not is_free:
            connection.invalidate()


@functools.lru_cache(maxsize=100)
def _copy_into(form: str, table: str, *columns: str) -> str:
    quoted = [psycopg.sql.Identifier(name).as_string() for name in (table, *columns)]
    return f"COPY {quoted[0]} ({', '.join(quoted[1:])}) FROM STDIN (FORMAT {form})"


def _csv(batch: pa.RecordBatch) -> Iterator[memoryview]:
    sink = pa.BufferOutputStream()
    pa.csv.write_csv(batch, sink, pa.csv.WriteOptions(include_header=False))
    yield memoryview(sink.getvalue())
