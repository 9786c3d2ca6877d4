"""Columns that come: a batch has them, and its table does not have them yet."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core import content
from tracing_2pc.core.errors import ConfigurationError, MalformedError, RefusalError
from tracing_2pc.core.states import Refusal
from tracing_2pc.participant.journal.database import Database, TableInUseError
from tracing_2pc.participant.resources.columns import sql_type

Showing = Callable[[Connection, Sequence[str]], contextlib.AbstractContextManager[None]]
"""Shows columns to readers of a view; the block gives them to its table."""


class AddedColumns:
    """Adds columns to a table: nullable, at the end; none is dropped or changed.

    They are added in a short transaction of their own, before the one of the rows, and
    stay even if that is rolled back. In the transaction of the rows readers would be
    locked out until the last row is written, two writers could wait for each other, and
    a prepared transaction would keep the lock until its decision.

    Args:
        database: where the table is.
        table: its name.
        check: raises `ConfigurationError` for a table that must not take records.
        showing: shows the columns where readers read.
    """

    def __init__(
        self,
        database: Database,
        table: str,
        check: Callable[[Connection], object],
        showing: Showing,
    ) -> None:
        self._database = database
        self._table = table
        self._check = check
        self._showing = showing
        self._quote = database.engine.dialect.identifier_preparer.quote

    def add(self, schema: pa.Schema) -> None:
        """Add the columns of records that the table lacks, if it is there.

        Of two processes that add one column at a moment the second finds it there.

        Raises:
            RefusalError: not now, while others use the table; or it cannot have them.
        """
        with self._database.look() as connection:
            names = ", ".join(field.name for field in self._absent(connection, schema))
        if not names:
            return
        try:
            with self._database.alter(self._table) as connection:
                if fields := self._absent(connection, schema):
                    self._alter(connection, fields)
        except TableInUseError:
            detail = f"columns {names} are to be added, and others use the table"
            raise RefusalError(Refusal.NOT_NOW, f"{detail}: ask again") from None
        except (sa.exc.ProgrammingError, sa.exc.OperationalError) as error:
            if error.orig is None or not self._database.refusal(error.orig):
                raise
            reason = str(error.orig).partition("\n")[0]  # it has names, and no values
            detail = f"columns {names} cannot be added to {self._table}: {reason}"
            raise RefusalError(Refusal.CONFLICT, detail, state="unknown") from None

    def _absent(self, connection: Connection, schema: pa.Schema) -> list[pa.Field]:
        inspector = sa.inspect(connection)
        if not inspector.has_table(self._table):
            return []
        names = {column["name"] for column in inspector.get_columns(self._table)}
        absent = [
            schema.field(n) for n in content.typed(schema, names) if n not in names
        ]
        folded = {name.lower(): name for name in names}
        if twins := [f.name for f in absent if f.name.lower() in folded]:
            others = ", ".join(folded[name.lower()] for name in twins)
            raise MalformedError(
                f"columns {', '.join(twins)}: the table has {others}, which differ in "
                "upper and lower case only"
            )
        return absent

    def _alter(self, connection: Connection, fields: Sequence[pa.Field]) -> None:
        with refusing_table():
            self._check(connection)
        names, adding = [f.name for f in fields], [self._adding(f) for f in fields]
        if not self._database.owns(connection, self._table):
            detail = (
                f"columns {', '.join(names)} are not in the table, which belongs to "
                f"another role. As that one run: {'; '.join(adding)}"
            )
            raise RefusalError(Refusal.CONFLICT, detail, state="unknown")
        with (
            refusing_names(self._database, connection, names),
            self._showing(connection, names),
        ):
            for statement in adding:
                connection.exec_driver_sql(statement)

    def _adding(self, field: pa.Field) -> str:
        kind = sql_type(field.type)
        assert kind is not None  # noqa: S101 - `check_names` refuses such a type
        type_ = kind.compile(self._database.engine.dialect)
        name = self._quote(field.name)
        return f"ALTER TABLE {self._quote(self._table)} ADD COLUMN {name} {type_}"


def without_untyped(
    schema: pa.Schema, batches: Iterable[Any], names: Collection[str]
) -> tuple[pa.Schema, Iterator[Any]]:
    """Leave out the columns that are only null, and have none of these names."""
    kept = content.typed(schema, names)
    if len(kept) == len(schema):
        return schema, iter(batches)
    fields = pa.schema([schema.field(name) for name in kept])
    return fields, (batch.select(kept) for batch in batches)


@contextlib.contextmanager
def refusing_table() -> Iterator[None]:
    """Refuse records because of an error of their table."""
    try:
        yield
    except ConfigurationError as error:
        raise RefusalError(Refusal.CONFLICT, str(error), state="unknown") from None


@contextlib.contextmanager
def refusing_names(
    database: Database, connection: Connection, names: Iterable[str]
) -> Iterator[None]:
    """Refuse names of columns that the encoding of the database lacks."""
    try:
        yield
    except sa.exc.DataError:
        named = ", ".join(name for name in names if not name.isascii())
        lacking = database.lacking(connection)
        raise MalformedError(f"columns {named}: a name has {lacking}") from None
