"""The tables of a store, which are made at once, and the columns that come later.

A store is a decision log, the journal of a participant, or an inbox: tables whose names
begin alike, of one kind and one version. Processes of two releases work on one store.
So a release adds columns and tables, and changes nothing else:

- A column that is `added` is NULL where the earlier release writes a row.
- Whether it is there is looked at for each connection, not assumed: a role that does
  not own the tables cannot add it, and works without it. `lacking` has the SQL for the
  owner, and `tracing-2pc check` shows it.
"""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterator
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn, SchemaItem

from tracing_2pc.core.errors import ConfigurationError

_SINCE: Final = "tpc_since"
_LOCK_WAIT: Final = "1s"
"""What adding a column waits for those who use the table. It is tried again at the next
start: meanwhile the store works without the column."""

_MAY_ALTER: Final = sa.text(
    "SELECT pg_has_role(relowner, 'USAGE') FROM pg_class WHERE oid = to_regclass(:name)"
)

_UNRELEASED: Final = "journal"
"""A column that identities had before the first release."""

_NONE: Final = frozenset[str]()

logger = logging.getLogger(__name__)


def added(since: str, name: str, type_: sa.types.TypeEngine[Any]) -> sa.Column[Any]:
    """Define a column that stores of releases before `since` lack; it may be NULL."""
    return sa.Column(name, type_, nullable=True, info={_SINCE: since})


def settled(table: sa.Table) -> list[sa.Column[Any]]:
    """Return the columns that are there whatever release has made the table."""
    return [column for column in table.columns if _SINCE not in column.info]


class Schema:
    """The tables of one store: `<prefix><suffix>`, of a kind and a version.

    The version is raised only when an earlier release must not read the tables.

    Args:
        prefix: of the names of its tables.
        kind: of the store. Another kind is refused.
        version: of the tables that this release makes.
        store: the store's name in messages.
        unreleased: a table of a version before the first release, which is refused.
    """

    def __init__(
        self, prefix: str, kind: str, version: int, store: str, unreleased: str = ""
    ) -> None:
        self.prefix = prefix
        self.kind = kind
        self.version = version
        self.store = store
        self._unreleased = unreleased
        self.grows = False  # some column is `added`
        self.metadata = sa.MetaData()
        self.identity = self.add(
            "schema",
            sa.Column("version", sa.Integer, nullable=False),
            sa.Column("id", sa.String(32), nullable=False),
            sa.Column("kind", sa.String(40), nullable=False),
        )

    def add(self, suffix: str, *items: SchemaItem, **options: Any) -> sa.Table:
        """Define one more table: it is made with the others."""
        table = sa.Table(self.prefix + suffix, self.metadata, *items, **options)
        self.grows |= any(_SINCE in column.info for column in table.columns)
        return table

    def exists(self, connection: sa.Connection) -> bool:
        """Whether it is there, complete, of our kind and of a version that we know.

        Raises:
            ConfigurationError: a newer release made it, or a version before the first
                release; it is of another kind, or damaged.
        """
        has_table = sa.inspect(connection).has_table
        if self._unreleased and has_table(self._unreleased):
            raise ConfigurationError(_unreleased(self.store))
        if not has_table(self.identity.name):
            return False
        every = connection.execute(sa.select(sa.text("*")).select_from(self.identity))
        if _UNRELEASED in set(every.keys()):
            raise ConfigurationError(_unreleased(self.store))
        row = connection.execute(sa.select(self.identity)).one_or_none()
        if row is None:
            return False
        if not isinstance(row.version, int):
            raise ConfigurationError(
                f"{self.store} is damaged: it has version {row.version!r}. "
                "Restore its database"
            )
        if row.version > self.version:
            raise ConfigurationError(
                f"{self.store} has schema version {row.version}, this release of "
                f"tracing_2pc knows {self.version}: upgrade tracing_2pc here"
            )
        if row.kind != self.kind:
            raise ConfigurationError(
                f"{self.store} is of another kind, {row.kind}: choose another name for "
                f"this {self.kind}"
            )
        return True

    def is_complete(self, connection: sa.Connection) -> bool:
        """Whether `create` would change nothing."""
        has_table = sa.inspect(connection).has_table
        return all(map(has_table, self.metadata.tables)) and not any(
            _may_alter(connection, table) for table, _ in self._absent(connection)
        )

    def create(self, connection: sa.Connection) -> None:
        """Make what is missing. The caller excludes other creators.

        Raises:
            ConfigurationError: as `exists`.
        """
        is_new = not self.exists(connection)
        self.metadata.create_all(connection)
        if is_new:
            made = {"version": self.version, "id": uuid.uuid4().hex, "kind": self.kind}
            connection.execute(self.identity.insert().values(made))
        for table, column in list(self._absent(connection)):
            if _may_alter(connection, table):
                _alter(connection, _adding(connection, table, column))

    def lacking(self, connection: sa.Connection) -> list[str]:
        """Return the SQL by which the tables' owner adds the columns that are absent.

        The store works without them.
        """
        return [_adding(connection, *absent) for absent in self._absent(connection)]

    def absent(self, connection: sa.Connection) -> frozenset[str]:
        """Return the columns that are not there, as `table.column`.

        It is asked once for each connection, and only where this release adds columns.
        """
        if not self.grows:
            return _NONE
        known: dict[str, frozenset[str]] = connection.info.setdefault(_SINCE, {})
        if self.prefix not in known:
            known[self.prefix] = frozenset(
                f"{table.name}.{column.name}"
                for table, column in self._absent(connection)
            )
        return known[self.prefix]

    def _absent(
        self, connection: sa.Connection
    ) -> Iterator[tuple[sa.Table, sa.Column[Any]]]:
        for table in self.metadata.tables.values():
            if columns := [column for column in table.columns if _SINCE in column.info]:
                stored = sa.inspect(connection).get_columns(table.name)
                names = {column["name"] for column in stored}
                yield from ((table, c) for c in columns if c.name not in names)


def _adding(connection: sa.Connection, table: sa.Table, column: sa.Column[Any]) -> str:
    quoted = connection.dialect.identifier_preparer.quote(table.name)
    defined = CreateColumn(column).compile(dialect=connection.dialect)
    return f"ALTER TABLE {quoted} ADD COLUMN {defined}"


def _alter(connection: sa.Connection, statement: str) -> None:
    """Add a column; where its table is in use, the next start does."""
    connection.exec_driver_sql("SAVEPOINT tpc_add")
    try:
        if connection.dialect.name == "postgresql":
            wait = f"SELECT set_config('lock_timeout', '{_LOCK_WAIT}', true)"
            connection.exec_driver_sql(wait)
        connection.exec_driver_sql(statement)
    except sa.exc.OperationalError as error:
        if error.connection_invalidated:
            raise
        connection.exec_driver_sql("ROLLBACK TO SAVEPOINT tpc_add")
        logger.warning("not added, the table is in use: %s", statement)
    connection.exec_driver_sql("RELEASE SAVEPOINT tpc_add")


def _may_alter(connection: sa.Connection, table: sa.Table) -> bool:
    if connection.dialect.name != "postgresql":
        return True
    quoted = connection.dialect.identifier_preparer.quote(table.name)
    return bool(connection.execute(_MAY_ALTER, {"name": quoted}).scalar())


def _unreleased(store: str) -> str:
    return (
        f"{store} was made by a version before the first release, and cannot be read: "
        "finish what is in it with that version, then begin with a new one"
    )
