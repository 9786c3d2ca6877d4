"""A resource that keeps each record in the columns of a table."""

from __future__ import annotations

import abc
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.model import TransactionId
from tracing_2pc.participant.body import Body, Source
from tracing_2pc.participant.database import Writer
from tracing_2pc.participant.problems import Problem
from tracing_2pc.participant.resources.columns import (
    Column,
    binary_as_text,
    check_fit,
    check_names,
    plain,
    repeated,
    type_pair,
)
from tracing_2pc.participant.resources.journalled import JournalledResource
from tracing_2pc.participant.resources.values import keep_values
from tracing_2pc.transports import wire

_KINDS: Final = sa.text(
    "SELECT relkind, relpersistence FROM pg_class WHERE oid = to_regclass(:name) "
    "OR oid IN (SELECT relid FROM pg_partition_tree(to_regclass(:name)))"
)

Columns = Mapping[str, Column]


class TableResource(JournalledResource):
    """Brings a body's columns and the table's together; makes the table if need be."""

    _columns: Columns | None = None

    @abc.abstractmethod
    def ours(self, transaction: TransactionId, tag: int) -> dict[str, Any]:
        """Return the columns that we add to each record, and their value."""

    @abc.abstractmethod
    def make(self, connection: Connection, schema: pa.Schema) -> None:
        """Make the table for these records, in the transaction that sets things up."""

    def check_new(self, schema: pa.Schema) -> None:
        """Refuse records that no table can be made from."""

    def check_kept(self, connection: Connection) -> None:
        """Refuse a table whose rows would not survive a crash of PostgreSQL.

        Raises:
            ConfigurationError: it is unlogged, or no table at all.
        """
        if connection.dialect.name != "postgresql":
            return
        found = connection.execute(_KINDS, {"name": self.quote(self.rows)}).all()
        if any(persistence != "p" for _, persistence in found):
            raise ConfigurationError(
                f"{self.rows} is unlogged: its rows would not survive a crash. Run: "
                f"ALTER TABLE {self.quote(self.rows)} SET LOGGED"
            )
        if any(kind not in "rp" for kind, _ in found):
            raise ConfigurationError(f"{self.rows} is not a table: name a table")

    def receive(self, writer: Writer, body: Body) -> Source:
        """Put JSON lines where they are read twice: they don't begin with a schema."""
        source = super().receive(writer, body)
        if body.content_type == wire.NDJSON and not source.file.seekable():
            return Source.spooled(body)
        return source

    def records(
        self, source: Source, transaction: TransactionId, tag: int
    ) -> tuple[list[str], Iterable[Any]]:
        """Return the body's columns and ours.

        Raises:
            Problem: 400, the columns are not the table's.
        """
        schema, batches = source.batches()
        check_names(schema)
        if not schema.names:
            return [], batches
        fields = self._fit(schema, partial=source.content_type == wire.NDJSON)
        ours = self.ours(transaction, tag)
        return [*schema.names, *ours], self._stamped(
            batches, fields, list(ours.values())
        )

    def refused(self) -> None:
        """Look at its columns again, before the next records."""
        self._columns = None

    def look(self, connection: Connection) -> Columns:
        """Note which columns the table has for records: all but ours."""
        found = self.types(connection)
        self._columns = {n: column for n, column in found.items() if n[:4] != "tpc_"}
        return self._columns

    def types(self, connection: Connection) -> Columns:
        """Return all of its columns."""
        found = sa.inspect(connection).get_columns(self.rows)
        return {column["name"]: Column.reflected(column) for column in found}

    def quote(self, name: str) -> str:
        """Quote a name where SQL needs it."""
        return self._database.engine.dialect.identifier_preparer.quote(name)

    def _known(self) -> Columns | None:
        if self._columns is None:
            with self._database.read() as connection:
                if sa.inspect(connection).has_table(self.rows):
                    self.look(connection)
        return self._columns

    def _stamped(
        self, batches: Iterable[Any], fields: Columns, ours: list[Any]
    ) -> Iterator[Any]:
        names = [str(n) for n in range(len(fields) + len(ours))]
        for batch in batches:
            sent = zip(batch.schema, batch.columns, fields.values(), strict=True)
            columns = [self._kept(*column) for column in sent]
            columns += [repeated(value, batch.num_rows) for value in ours]
            yield pa.RecordBatch.from_arrays(columns, names)

    def _kept(self, field: pa.Field, values: pa.Array, there: Column) -> pa.Array:
        dialect = self._database.engine.dialect
        try:
            column = keep_values(plain(values), there.type, dialect.name)
        except (pa.ArrowException, ValueError):
            pair = type_pair(field, there.type, dialect)
            detail = f"a value would not come back as it was sent: {pair}"
            raise Problem(400, detail) from None
        return binary_as_text(column) if dialect.name == "postgresql" else column

    def _fit(self, schema: pa.Schema, *, partial: bool) -> Columns:
        """Return the table's columns for these records, in their order."""
        if self._known() is None:
            self._make(schema)
        dialect = self._database.engine.dialect
        columns = self._columns or {}
        try:
            check_fit(schema, columns, dialect, partial=partial)
        except Problem:
            # Somebody may have changed a column since: look once more.
            with self._database.read() as connection:
                columns = self.look(connection)
            check_fit(schema, columns, dialect, partial=partial)
        return {name: columns[name] for name in schema.names}

    def _make(self, schema: pa.Schema) -> None:
        self.check_new(schema)
        with self._database.setup() as connection:
            if not sa.inspect(connection).has_table(self.rows):
                self.make(connection, schema)
        with self._database.read() as connection:  # not before it is there for others
            self.look(connection)
