"""The columns of a table, and the records that are to go into them.

`LOCK TABLE ONLY … IN ROW EXCLUSIVE MODE` holds off transactions that would alter or
rename the table, or make a trigger, a rule or a policy, until the commit; COPY takes
the same lock later anyway. Under it one statement reads the catalog
(`Database.look_at`). If that is unchanged since the last time, the columns derived from
it stand; else they are read again, and the table is checked as at the start. For a
transaction that is to be prepared another session looks at the table: reading the
catalogs would keep their locks in it. After COPY only the number of rows that the table
has kept is compared with the vote, and checks deferred until the commit are made,
before the application's lock is taken.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import DOMAIN

from tracing_2pc.core import content
from tracing_2pc.core.errors import ConfigurationError, MalformedError, RefusalError
from tracing_2pc.core.states import Refusal
from tracing_2pc.participant.body import Source
from tracing_2pc.participant.branch_store import BranchUpload
from tracing_2pc.participant.journal.database import Database, Records, TableLook
from tracing_2pc.participant.resources.added_columns import (
    AddedColumns,
    Showing,
    refusing_names,
    refusing_table,
    without_untyped,
)
from tracing_2pc.participant.resources.columns import (
    Column,
    as_exact,
    as_text,
    check_fit,
    check_names,
    of_domain,
    plain,
    repeated,
    type_pair,
)
from tracing_2pc.participant.resources.loader import Arriving
from tracing_2pc.participant.resources.values import ChangedError, keep_values, one_form

_DOMAINS: Final = sa.text(
    "SELECT about.* FROM information_schema.columns about "
    "JOIN pg_namespace n ON nspname = table_schema "
    "JOIN pg_class c ON relnamespace = n.oid AND relname = table_name "
    "WHERE c.oid = to_regclass(:name) AND domain_name IS NOT NULL"
)

_DECLARED: Final = sa.text("SELECT name, type FROM pragma_table_xinfo(:name)")

Columns = Mapping[str, Column]


class TableSnapshot(NamedTuple):
    """The catalog and the columns of a table at one moment."""

    catalog: Hashable
    look: TableLook
    columns: Columns
    names: frozenset[str]


class ColumnTable:
    """A table with a column for each of a record's (`loader.RecordTable`).

    It is looked at in each prepare, under a lock under which it cannot be altered:
    values made for another type could be rounded, or hidden rows be shown. Columns
    whose names begin with `tpc_` do not belong to records.

    Args:
        database: where it is.
        name: of the table, which may not exist yet.
        create: makes it for the first records, in the transaction that sets up.
        stamp: returns further columns, and their values, for all records of an upload,
            given all the names of the table.
        check: raises `ConfigurationError` for a table that must not take records.
        written: is called when the records of an upload are in the open transaction; it
            may raise `RefusalError`.
        view: the view that readers read in its place.
        key: columns by which that shows one row.
        will_be_prepared: its transactions are, and keep the locks of their reads. So
            it is looked at from beside.
        evolve: columns that records have and it has not are added before they are
            written, and records may lack nullable columns.
        showing: shows the columns that are added where readers read.
    """

    def __init__(
        self,
        database: Database,
        name: str,
        create: Callable[[Connection, pa.Schema], None],
        stamp: Callable[[BranchUpload, frozenset[str]], dict[str, Any]] = lambda *_: {},
        check: Callable[[TableLook], None] = lambda _: None,
        *,
        written: Callable[[Connection, BranchUpload], None] = lambda *_: None,
        view: str | None = None,
        key: Sequence[str] = (),
        will_be_prepared: bool = False,
        evolve: bool = False,
        showing: Showing = lambda *_: contextlib.nullcontext(),
    ) -> None:
        self.name = name
        self._database = database
        self._create = create
        self._stamp = stamp
        self._check = check
        self._written = written
        self._view = view
        self._key = frozenset(key)
        self._will_be_prepared = will_be_prepared
        added = AddedColumns(database, name, self.check, showing)
        self._added = added if evolve else None
        self._is_there = False
        self._known: TableSnapshot | None = None
        # The last records that were seen to fit: most are of the same schema.
        self._fits: tuple[TableSnapshot, bool, pa.Schema, list[Column]] | None = None

    def check(self, connection: Connection) -> TableLook:
        """Look at it; refuse one that would change records, with the cure."""
        catalog = self._database.look_at(connection, self.name, self._view)
        look = self._database.read_look(catalog)
        self._check_look(look)
        return look

    def _check_look(self, look: TableLook) -> None:
        if look.is_unlogged:
            raise ConfigurationError(
                f"{self.name} is unlogged: its rows would not survive a crash. Run: "
                f"ALTER TABLE {self.quote(self.name)} SET LOGGED"
            )
        if not look.is_table:
            raise ConfigurationError(f"{self.name} is not a table: name a table")
        self._check(look)

    def receive(self, upload: BranchUpload) -> Source:
        """Spool JSON lines: they are read twice, first for their schema."""
        if upload.body.content_type == content.NDJSON:
            return self._database.spool(upload.body)
        return upload.receive()

    def arriving(self, source: Source, upload: BranchUpload) -> Arriving:
        """Open the records; make the table by the first, or add missing columns."""
        schema, batches = source.batches(upload.ref.rows)
        if not schema.names:
            return Arriving(None, _without_columns(batches))
        check_names(schema)
        if not self._is_there:
            self._make(schema)
        known = self._known
        names = frozenset[str]() if known is None else known.names
        if self._added is not None and not names >= set(content.typed(schema, names)):
            self._added.add(schema)
        return Arriving(schema, batches)

    def records(
        self, connection: Connection, arriving: Arriving, upload: BranchUpload
    ) -> Records:
        """Return the records, stamped, for the table as it is now."""
        schema, batches = arriving
        if schema is None:
            return Records(batches)
        known = self._looked_at(connection)
        if self._added is not None:
            schema, batches = without_untyped(schema, batches, known.columns)
            if set(schema.names) - known.columns.keys():
                detail = "a column is no longer there, and is added again: ask again"
                raise RefusalError(Refusal.NOT_NOW, detail)
        partial = upload.body.content_type == content.NDJSON
        fields = self._fitting(known, schema, partial=partial)
        stamp = self._stamp(upload, known.names)
        types = known.look.exact if upload.is_large else {}
        exact = _exact_for(types, schema.names, stamp)
        stamped = self._stamped(batches, fields, stamp, exact)
        written = functools.partial(self._check_written, connection, known, upload)
        deferred = known.look.has_deferred_checks
        return Records(stamped, exact is not None, deferred, written)

    def refused(self) -> None:
        """Read it again before the next records, or make it."""
        self._known, self._is_there = None, False

    def read_columns(self, connection: Connection) -> Columns:
        """Read all of its columns."""
        about = sa.inspect(connection).get_columns(self.name)
        if any(isinstance(column["type"], DOMAIN) for column in about):
            rows = connection.execute(_DOMAINS, {"name": self.quote(self.name)})
            bases = {row.column_name: of_domain(row) for row in rows}
            for column in about:
                column["type"] = bases.get(column["name"]) or column["type"]
        declared: dict[str, str] = {}
        if connection.dialect.name == "sqlite":
            rows = connection.execute(_DECLARED, {"name": self.name})
            declared = {row.name: row.type for row in rows}
        return {
            column["name"]: Column.reflected(column, declared.get(column["name"]))
            for column in about
        }

    def quote(self, name: str) -> str:
        """Quote a name where SQL needs it."""
        return self._database.engine.dialect.identifier_preparer.quote(name)

    def _looked_at(self, connection: Connection) -> TableSnapshot:
        """Look at it under its lock; the last snapshot stands if it is unchanged."""
        catalog, known = self._read_catalog(connection), self._known
        if known is not None and known.catalog == catalog:
            return known
        look = self._database.read_look(catalog)
        with refusing_table():
            self._check_look(look)
        with contextlib.ExitStack() as stack:
            if self._will_be_prepared:
                connection = stack.enter_context(self._database.beside.read_quickly())
            columns = self.read_columns(connection)
        theirs = {n: c for n, c in columns.items() if n[:4] != "tpc_"}
        self._known = known = TableSnapshot(catalog, look, theirs, frozenset(columns))
        return known

    def _read_catalog(self, connection: Connection) -> Hashable:
        with contextlib.ExitStack() as stack:
            if self._will_be_prepared:
                connection = stack.enter_context(self._database.beside.look())
            return self._database.look_at(connection, self.name, self._view)

    def _check_written(
        self, connection: Connection, known: TableSnapshot, upload: BranchUpload
    ) -> None:
        """Look again, with the rows there, at partitions, which are locked by rows."""
        if known.look.has_parts and self._read_catalog(connection) != known.catalog:
            detail = "a partition was altered while rows were written: ask again"
            raise RefusalError(Refusal.NOT_NOW, detail)
        self._written(connection, upload)

    def _fitting(
        self, known: TableSnapshot, schema: pa.Schema, *, partial: bool
    ) -> list[Column]:
        """Return the table's columns for these records, in their order."""
        # What was checked is returned, whatever other threads read meanwhile.
        fits = self._fits
        if fits is not None and fits[0] is known and fits[1:3] == (partial, schema):
            return fits[3]
        required = set[str]() if partial else self._required(known.columns)
        dialect = self._database.engine.dialect
        check_fit(schema, known.columns, dialect, required=required)
        chosen = [known.columns[name] for name in schema.names]
        self._fits = known, partial, schema, chosen
        return chosen

    def _required(self, columns: Columns) -> set[str]:
        """Return the columns that records may not lack."""
        required = {name for name, column in columns.items() if column.required}
        if self._added is None:
            return required
        # A column that came must not stop a job that lacks it, nor a replay.
        return {n for n in required if n in self._key or not columns[n].nullable}

    def _make(self, schema: pa.Schema) -> None:
        with self._database.look() as connection:
            self._is_there = sa.inspect(connection).has_table(self.name)
        if not self._is_there:
            with self._database.setup() as connection:
                if not sa.inspect(connection).has_table(self.name):
                    with refusing_names(self._database, connection, schema.names):
                        self._create(connection, schema)
            self._is_there = True

    def _stamped(
        self,
        batches: Iterable[Any],
        fields: Sequence[Column],
        stamp: dict[str, Any],
        exact: Sequence[pa.DataType] | None,
    ) -> Iterator[Any]:
        types = exact or [None] * len(fields)
        for batch in batches:
            sent = zip(batch.schema, batch.columns, fields, types, strict=True)
            columns = [self._convert(*column) for column in sent]
            columns += [repeated(value, batch.num_rows) for value in stamp.values()]
            names = [*batch.schema.names, *stamp]
            yield pa.RecordBatch.from_arrays(columns, names)

    def _convert(
        self,
        field: pa.Field,
        values: pa.Array,
        target: Column,
        exact: pa.DataType | None,
    ) -> pa.Array:
        dialect = self._database.engine.dialect
        try:
            column = keep_values(plain(values), target, dialect.name)
            if exact is not None:
                return as_exact(column, exact)
            if dialect.name == "sqlite" and field.name in self._key:
                return one_form(column)
        except (pa.ArrowException, ValueError) as error:
            pair = type_pair(field, target.type, dialect)
            change = str(error) if isinstance(error, ChangedError) else ""
            change = f" ({change})" if change else ""
            detail = f"a value would not come back as it was sent{change}: {pair}"
            raise MalformedError(detail, field.name) from None
        return as_text(column) if dialect.name == "postgresql" else column


def _exact_for(
    exact: Mapping[str, pa.DataType], names: Sequence[str], stamp: Mapping[str, Any]
) -> list[pa.DataType] | None:
    """Return the exact types of columns; None unless each has one, ours too."""
    ours = {name: repeated(value, 1).type for name, value in stamp.items()}
    if ours.items() <= exact.items() and exact.keys() >= set(names):
        return [exact[name] for name in names]
    return None


def _without_columns(batches: Iterable[Any]) -> Iterator[Any]:
    for batch in batches:
        if batch.num_rows:
            raise MalformedError("records without columns")
        yield batch
