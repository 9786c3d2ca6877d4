"""The columns of a table, and the records that are to go into them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.dialects.postgresql import DOMAIN

from tracing_2pc.core import content
from tracing_2pc.core.errors import ConfigurationError, MalformedError, RefusalError
from tracing_2pc.core.states import Refusal
from tracing_2pc.participant.body import Source
from tracing_2pc.participant.journal.database import Database, Definition
from tracing_2pc.participant.resources.branch_store import Upload
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
from tracing_2pc.participant.resources.loader import Records, altered
from tracing_2pc.participant.resources.values import keep_values

_KINDS: Final = sa.text(
    "SELECT relkind, relpersistence FROM pg_class WHERE oid = to_regclass(:name) "
    "OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass(:name)))"
)

_DOMAINS: Final = sa.text(
    "SELECT about.* FROM information_schema.columns about "
    "JOIN pg_namespace n ON nspname = table_schema "
    "JOIN pg_class c ON relnamespace = n.oid AND relname = table_name "
    "WHERE c.oid = to_regclass(:name) AND domain_name IS NOT NULL"
)

Columns = Mapping[str, Column]


class _Known(NamedTuple):
    """What was read of a table at one moment."""

    columns: Columns
    definition: Definition


class ColumnTable:
    """A table with a column for each of a record's (`loader.RecordTable`).

    Columns whose names begin with `tpc_` do not belong to records.

    Args:
        database: where it is.
        name: of the table, which may not exist yet.
        create: makes it for the first records, in the transaction that sets up.
        stamp: returns further columns, and their values, for all records of an upload.
        stays: its transactions are prepared (`Definition.stays`).
    """

    def __init__(
        self,
        database: Database,
        name: str,
        create: Callable[[Connection, pa.Schema], None],
        stamp: Callable[[Upload], dict[str, Any]] = lambda _: {},
        *,
        stays: bool = False,
    ) -> None:
        self.name = name
        self._database = database
        self._create = create
        self._stamp = stamp
        self._stays = stays
        self._known: _Known | None = None
        # The last records that were seen to fit: most are of the same schema.
        self._fits: tuple[_Known, bool, pa.Schema, list[Column]] | None = None
        self.names: frozenset[str] = frozenset()
        """All of its columns, as they were last read."""

    @property
    def is_ready(self) -> bool:
        """Its columns have been read, and nothing has refused them since."""
        return self._known is not None

    def check_durable(self, connection: Connection) -> None:
        """Refuse a table whose rows would not survive a crash of PostgreSQL.

        Raises:
            ConfigurationError: it is unlogged, or no table at all.
        """
        if connection.dialect.name != "postgresql":
            return
        name = self.quote(self.name)
        parts = connection.execute(_KINDS, {"name": name}).all()
        if any(persistence != "p" for _, persistence in parts):
            raise ConfigurationError(
                f"{self.name} is unlogged: its rows would not survive a crash. Run: "
                f"ALTER TABLE {name} SET LOGGED"
            )
        if any(kind not in "rp" for kind, _ in parts):
            raise ConfigurationError(f"{self.name} is not a table: name a table")

    def receive(self, upload: Upload) -> Source:
        """Spool JSON lines: they are read twice, first for their schema."""
        source = upload.receive()
        if source.content_type == content.NDJSON and not source.file.seekable():
            return Source.spooled(upload.body)
        return source

    def records(self, source: Source, upload: Upload) -> Records:
        """Return the records with their stamp.

        Raises:
            MalformedError: the columns are not the table's.
        """
        schema, batches = source.batches()
        if not schema.names:
            return Records(_without_columns(batches))
        partial = source.content_type == content.NDJSON
        known, fields = self._fitting(schema, partial=partial)
        stamp = self._stamp(upload)
        binary = upload.is_large
        types = known.definition.exact
        exact = _exact_for(types, schema.names, stamp) if binary else None
        batches = self._stamped(batches, fields, stamp, exact)
        kept = self._unless_altered(batches, known)
        return Records(kept, exact is not None, known.definition)

    def refused(self) -> None:
        """Read its columns again before the next records."""
        self._known = None

    def read_columns(self, connection: Connection) -> Columns:
        """Read all of its columns."""
        about = sa.inspect(connection).get_columns(self.name)
        if any(isinstance(column["type"], DOMAIN) for column in about):
            found = connection.execute(_DOMAINS, {"name": self.quote(self.name)})
            bases = {row.column_name: of_domain(row) for row in found}
            for column in about:
                column["type"] = bases.get(column["name"]) or column["type"]
        return {column["name"]: Column.reflected(column) for column in about}

    def _read(self, connection: Connection) -> _Known:
        """Remember its columns: in no transaction that makes it, which may yet fail.

        Raises:
            RefusalError: it would not keep them.
        """
        # First: it is compared with the table's again, when rows are in it.
        definition = self._database.definition(connection, self.name)
        definition = dataclasses.replace(definition, stays=self._stays)
        try:
            self.check_durable(connection)
        except ConfigurationError as error:
            raise RefusalError(Refusal.CONFLICT, str(error), state="unknown") from None
        columns = self.read_columns(connection)
        self.names = frozenset(columns)
        theirs = {n: c for n, c in columns.items() if n[:4] != "tpc_"}
        self._known = known = _Known(theirs, definition)
        return known

    def quote(self, name: str) -> str:
        """Quote a name where SQL needs it."""
        return self._database.engine.dialect.identifier_preparer.quote(name)

    def _unless_altered(self, batches: Iterable[Any], known: _Known) -> Iterator[Any]:
        """Refuse what does not fit, unless the table has become another meanwhile."""
        try:
            yield from batches
        except MalformedError:
            if self._database.is_altered(self.name, known.definition):
                raise altered(self) from None
            raise

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
            column = keep_values(plain(values), target.type, dialect.name)
            if exact is not None:
                return as_exact(column, exact)
        except (pa.ArrowException, ValueError):
            pair = type_pair(field, target.type, dialect)
            detail = f"a value would not come back as it was sent: {pair}"
            raise MalformedError(detail) from None
        return as_text(column) if dialect.name == "postgresql" else column

    def _fitting(
        self, schema: pa.Schema, *, partial: bool
    ) -> tuple[_Known, list[Column]]:
        """Return the table, and its columns for these records, in their order."""
        # What was checked is returned, whatever other threads read meanwhile.
        known, fits = self._known, self._fits
        if fits is not None and fits[0] is known and fits[1:3] == (partial, schema):
            return known, fits[3]
        check_names(schema)
        if known is None:
            known = self._read_or_create(schema)
        dialect = self._database.engine.dialect
        try:
            check_fit(schema, known.columns, dialect, partial=partial)
        except RefusalError:
            # A column may have been changed since they were read.
            with self._database.read() as connection:
                known = self._read(connection)
            check_fit(schema, known.columns, dialect, partial=partial)
        chosen = [known.columns[name] for name in schema.names]
        self._fits = known, partial, schema, chosen
        return known, chosen

    def _read_or_create(self, schema: pa.Schema) -> _Known:
        with self._database.read() as connection:
            if sa.inspect(connection).has_table(self.name):
                return self._read(connection)
        with self._database.setup() as connection:
            if not sa.inspect(connection).has_table(self.name):
                self._create(connection, schema)
        with self._database.read() as connection:  # not before others can see it
            return self._read(connection)


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
