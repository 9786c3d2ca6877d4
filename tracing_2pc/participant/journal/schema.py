"""The tables of a participant's journal: how they are made, and how tags go on."""

from __future__ import annotations

import logging
import uuid
from collections.abc import Iterable
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection
from sqlalchemy.schema import CreateColumn, SchemaItem

from tracing_2pc.core.errors import ConfigurationError

VERSION: Final = 1
ADDED: Final = "added"
"""In `info` of a column, NULL by default, that tables of an older release lack."""

TAG: Final = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
"""The number that a branch's rows carry."""

_LAST_TAG: Final = {
    "sqlite": "SELECT coalesce(max(seq), 0) FROM sqlite_sequence WHERE name = :name",
    "postgresql": "SELECT coalesce(pg_sequence_last_value(s), 0) "
    "FROM (SELECT CAST(pg_get_serial_sequence(:name, 'tag') AS regclass) s) counter "
    "WHERE has_sequence_privilege(s, 'USAGE')",
}
"""The last tag that was given, 0 before the first; no row without the privilege."""

_SET_LAST_TAG: Final = {
    "sqlite": (
        "DELETE FROM sqlite_sequence WHERE name = :name",
        "INSERT INTO sqlite_sequence (name, seq) VALUES (:name, :to)",
    ),
    "postgresql": ("SELECT setval(pg_get_serial_sequence(:name, 'tag'), :to)",),
}

logger = logging.getLogger(__name__)


class Tables:
    """The journal of a resource, which is of one kind for ever: `<name>_tpc_…`."""

    def __init__(self, kind: str, name: str) -> None:
        self.kind = kind
        self.name = name
        self.metadata = sa.MetaData()
        self.schema = self.add(
            "schema",
            sa.Column("version", sa.Integer, nullable=False),
            sa.Column("journal", sa.String(32), nullable=False),
            sa.Column("kind", sa.String(40), nullable=False),
        )
        self.application = self.add(
            "application",
            sa.Column("application", sa.String(40), primary_key=True),
            sa.Column("forgotten_through", sa.BigInteger),
            # The name by which it calls us: of its own configuration.
            sa.Column("participant", sa.String(40), nullable=False),
        )
        self.transaction = self.add(
            "transaction",
            sa.Column("application", sa.String(40), primary_key=True),
            sa.Column("batch", sa.BigInteger, primary_key=True),
            sa.Column("attempt", sa.Integer, primary_key=True),
            sa.Column("seal", sa.String(9)),
            sa.Column("resolved_because", sa.Text),
            sa.Column("carrier", sa.Text, nullable=False),
        )
        key = ("application", "batch", "attempt", "partition", "task_attempt")
        self.branch = self.add(
            "branch",
            sa.Column("tag", TAG, primary_key=True),
            sa.Column("application", sa.String(40), nullable=False),
            sa.Column("batch", sa.BigInteger, nullable=False),
            sa.Column("attempt", sa.Integer, nullable=False),
            sa.Column("partition", sa.BigInteger, nullable=False),
            sa.Column("task_attempt", sa.BigInteger, nullable=False),
            sa.Column("state", sa.String(9), nullable=False),
            sa.Column("rows", sa.BigInteger, nullable=False),
            sa.Column("digest", sa.String(64), nullable=False),
            # Over what never changes of the row: `journal.checksum_of`.
            sa.Column("checksum", sa.BigInteger, nullable=False),
            sa.Column("since", sa.Float(53), nullable=False),
            sa.Column("sealed", sa.Float(53)),
            sa.UniqueConstraint(*key),
            sqlite_autoincrement=True,  # rows outlive the journal: no tag comes twice
        )
        unsealed = sa.text("sealed IS NULL")
        sa.Index(
            f"{name}_tpc_open",
            self.branch.c.tag,
            sqlite_where=unsealed,
            postgresql_where=unsealed,
        )

    def add(self, suffix: str, *items: SchemaItem, **options: Any) -> sa.Table:
        """Define one more table, `<name>_tpc_<suffix>`: it is made with the others."""
        return sa.Table(f"{self.name}_tpc_{suffix}", self.metadata, *items, **options)

    def create(self, connection: Connection) -> None:
        """Make what is missing. The caller excludes other creators.

        Raises:
            ConfigurationError: a newer release made them, or another kind of resource;
                or they are damaged.
        """
        self.metadata.create_all(connection)
        self._add_columns(connection)
        row = connection.execute(sa.select(self.schema)).one_or_none()
        if row is None:
            made = {"version": VERSION, "journal": uuid.uuid4().hex, "kind": self.kind}
            connection.execute(self.schema.insert().values(made))
        elif not isinstance(row.version, int):
            raise ConfigurationError(
                f"{self.schema.name} is damaged: it has version {row.version!r}. "
                "Restore its database"
            )
        elif row.version > VERSION:
            raise ConfigurationError(
                f"{self.schema.name} has version {row.version}, this tracing_2pc knows "
                f"{VERSION}: upgrade tracing_2pc here"
            )
        elif row.kind != self.kind:
            raise ConfigurationError(
                f"the journal {self.name}_tpc_… is of another kind of resource, "
                f"{row.kind}: choose another name for this {self.kind}"
            )
        self.raise_next_tag(connection, [self.branch.c.tag])

    def _add_columns(self, connection: Connection) -> None:
        """Add the columns that `ADDED` marks, where an older release made the tables.

        It may be at work beside us, and goes on: it leaves them NULL.
        """
        for table in self.metadata.sorted_tables:
            if not (added := [c for c in table.columns if ADDED in c.info]):
                continue
            there = {c["name"] for c in sa.inspect(connection).get_columns(table.name)}
            quoted = connection.dialect.identifier_preparer.quote(table.name)
            for column in added:
                if column.name not in there:
                    defined = CreateColumn(column).compile(dialect=connection.dialect)
                    alter = f"ALTER TABLE {quoted} ADD COLUMN {defined}"
                    connection.exec_driver_sql(alter)

    def raise_next_tag(
        self, connection: Connection, columns: Iterable[sa.ColumnElement[int]]
    ) -> None:
        """Make the next tag higher than each in these columns: none is used twice.

        Rows of a tag that is used again would be hidden and deleted with the new ones.
        A counter begins anew if it was dropped, or was not copied with the rows: in a
        logical replica, or a dump of some tables. The caller excludes other creators.
        An index on each column makes this cheap.
        """
        last = sa.text(_LAST_TAG[connection.dialect.name])
        name = {"name": self.branch.name}
        known = connection.execute(last, name).scalar()
        if known is None:
            return
        used = (sa.select(sa.func.max(c)).where(c > known) for c in columns)
        tags = [tag for query in used if (tag := connection.scalar(query)) is not None]
        if not tags:
            return
        to = max(tags)
        if connection.dialect.name == "postgresql":
            quoted = connection.dialect.identifier_preparer.quote(self.branch.name)
            connection.exec_driver_sql(f"LOCK TABLE {quoted} IN EXCLUSIVE MODE")
            # An upload draws without that lock: a counter never goes back to a tag.
            if connection.execute(last, name).scalar_one() >= to:
                return
        logger.warning("tags go on above those that rows carry: tag=%d", to)
        self.set_last_tag(connection, to)

    def set_last_tag(self, connection: Connection, to: int) -> None:
        """Go on above this tag."""
        values = {"name": self.branch.name, "to": to}
        for statement in _SET_LAST_TAG[connection.dialect.name]:
            connection.execute(sa.text(statement), values)
