"""Rows that are written once, and seen when their transaction is committed."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.model import TransactionId
from tracing_2pc.participant.database import open_database
from tracing_2pc.participant.problems import Problem
from tracing_2pc.participant.resources.columns import sql_type
from tracing_2pc.participant.resources.journalled import check_prefix
from tracing_2pc.participant.resources.table_resource import Columns, TableResource
from tracing_2pc.participant.schema import TAG

_TAG: Final = "tpc_tag"
_WHEN: Final = ("tpc_application", "tpc_batch")

_TRIGGERS: Final = sa.text(
    "SELECT DISTINCT tgname FROM pg_trigger WHERE NOT tgisinternal "
    "AND tgenabled IN ('O', 'A') AND (tgtype & 12) <> 0 "  # of INSERT or DELETE
    "AND (tgrelid = to_regclass(:name) OR tgrelid IN "
    "(SELECT relid FROM pg_partition_tree(to_regclass(:name)))) ORDER BY 1"
)
_SQLITE_TRIGGERS: Final = sa.text(
    "SELECT name, sql FROM sqlite_master WHERE type = 'trigger' "
    "AND lower(tbl_name) = :name ORDER BY name"
)


class TaggedRows(TableResource):
    """Keeps committed records in a table of PostgreSQL or SQLite.

    `table` is what readers SELECT from: a view. Rows lie in `<table>_tpc`, each with
    the tag of its branch in `tpc_tag`; the view leaves out the few tags that stand in
    `<table>_tpc_hidden`, prepared or aborted. Nothing is ever moved, so writing costs
    one COPY, and reading does not slow down with the number of transactions.

    Both are made from the first prepare's Arrow schema. To keep rows of a table that
    exists, rename it and add the tag, as the error at start says; old rows have tag 0
    and stay visible. A primary key or index of your own on `<table>_tpc` is kept to:
    a record that violates it is a vote to abort. A unique one also sees rows that are
    hidden: a retried task is refused while its twin is prepared, until the batch has
    been aborted and is tried again. With `tpc_tag` among its columns it does not.

    A trigger of that table's fires when a branch is prepared, not when it commits: also
    for what aborts, for the twin of a retried task, and again when aborted rows are
    deleted. One of INSERT or DELETE is therefore refused at start, unless
    `triggers=True` says that this is meant.

    Tags are never used twice. At start they go on above the highest one in the table,
    whatever became of the journal; the index on `tpc_tag` makes that cheap.

    A value that a column would round, cut or read by the session's settings is a vote
    to abort that names both types. Columns that the table fills may be left out.

    SQLite has no type for decimals, times and NaN: they are kept as text.

    Args:
        url: `postgresql://host/name`, `sqlite:///relative`, `sqlite:////absolute`, or
            `env:NAME` to read it from there. No password in it.
        table: what readers SELECT from.
        key: column or columns that identify a row. With it the view shows, per key
            and application, the row of the latest committed batch, as an update-mode
            aggregate needs it. Older rows of a key stay in `<table>_tpc`. Rows from
            before there was a key belong to the application in `tpc_application`:
            what the SQL of the error says is the only one known, or nobody.
        triggers: let triggers of the table fire when a branch is prepared.
        clock: Unix seconds.

    Raises:
        ConfigurationError: a password in the URL, or a name that cannot be a table.
    """

    def __init__(
        self,
        url: str,
        table: str,
        key: str | Sequence[str] | None = None,
        *,
        triggers: bool = False,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(check_prefix(table), open_database(url), clock)
        self._view = table
        self._triggers = triggers
        self._key = (key,) if isinstance(key, str) else tuple(key or ())
        self._when = False

    @property
    def rows(self) -> str:
        """Name of the table that the rows lie in."""
        return f"{self._view}_tpc"

    def set_up(self, connection: Connection) -> None:
        """Refuse a table that is not ours; make the view of one that is.

        Raises:
            ConfigurationError: with the SQL to run.
        """
        inspector = sa.inspect(connection)
        tables, views = inspector.get_table_names(), inspector.get_view_names()
        wanted = [_TAG, *(_WHEN if self._key else ())]
        if self._view in tables:
            raise ConfigurationError(
                f"{self._view} is a table; readers need a view of that name. Run: "
                f"ALTER TABLE {self.quote(self._view)} RENAME TO {self.rows}; "
                f"{self._adopt(connection, wanted)}"
            )
        if self.rows not in tables:
            if self._view in views:
                raise ConfigurationError(
                    f"{self._view} is a view of something else: choose another table"
                )
            return
        if changes := self._changes(connection, views):
            raise ConfigurationError(
                f"{self._view} and {self.rows} do not fit key={self._key or None}. "
                f"Run: {' '.join(changes)}"
            )
        self.check_kept(connection)
        if not self._triggers and (names := self._fired(connection)):
            raise ConfigurationError(
                f"{self.rows} has triggers: {', '.join(names)}. They would fire when a "
                "branch is prepared, for attempts that abort too, and when aborted "
                "rows are deleted. Drop or disable them, or say triggers=True if that "
                "is meant"
            )
        columns = self.look(connection)
        if lacking := [name for name in self._key if name not in columns]:
            raise ConfigurationError(f"{self.rows} has no column {', '.join(lacking)}")
        if self._view not in views:
            self._make_view(connection)
        rows = sa.table(self.rows, sa.column(_TAG, TAG))
        self._journal.number_above(connection, rows.c[_TAG])

    def _fired(self, connection: Connection) -> list[str]:
        """Name the triggers that what we do would fire: we insert and delete."""
        if connection.dialect.name == "postgresql":
            name = {"name": self.quote(self.rows)}
            return list(connection.execute(_TRIGGERS, name).scalars())
        rows = connection.execute(_SQLITE_TRIGGERS, {"name": self.rows})
        ours = re.compile(r"\b(insert|delete)\s+on\b", re.IGNORECASE)
        return [name for name, made in rows if ours.search(made)]

    def _changes(self, connection: Connection, views: Sequence[str]) -> list[str]:
        """Return the SQL that makes table and view what the settings say."""
        inspector = sa.inspect(connection)
        there = {column["name"] for column in inspector.get_columns(self.rows)}
        wanted = [_TAG, *(_WHEN if self._key else ())]
        lacking = [name for name in wanted if name not in there]
        changes = [self._adopt(connection, lacking)] if lacking else []
        if self._view in views:
            shown = partition_of(inspector.get_view_definition(self._view))
            if shown != ((_WHEN[0], *self._key) if self._key else ()):
                # Made again at the next start; what was granted on it is not.
                changes.append(f"DROP VIEW {self.quote(self._view)};")
        return changes

    def ours(self, transaction: TransactionId, tag: int) -> dict[str, Any]:
        """Return the tag, and with a key, or after one, whose rows they are."""
        whose = (transaction.application, transaction.batch)
        return {_TAG: tag} | (
            dict(zip(_WHEN, whose, strict=True)) if self._when else {}
        )

    def check_new(self, schema: pa.Schema) -> None:
        """Refuse records without the key."""
        if lacking := [name for name in self._key if name not in schema.names]:
            raise Problem(400, f"the key {', '.join(lacking)} is not in the records")

    def make(self, connection: Connection, schema: pa.Schema) -> None:
        """Make the table and its view."""
        self._table(schema).create(connection)
        self._make_view(connection)

    def _table(self, schema: pa.Schema) -> sa.Table:
        columns = [sa.Column(f.name, sql_type(f.type)) for f in schema]
        columns.append(sa.Column(_TAG, TAG, nullable=False))
        if self._key:
            columns.append(sa.Column(_WHEN[0], sa.String(40), nullable=False))
            columns.append(sa.Column(_WHEN[1], sa.BigInteger, nullable=False))
        table = sa.Table(self.rows, sa.MetaData(), *columns)
        # Tags only grow: in PostgreSQL this is a few pages, and costs a COPY nothing.
        sa.Index(f"{self.rows}_tag", table.c[_TAG], postgresql_using="brin")
        return table

    def look(self, connection: Connection) -> Columns:
        """Note the columns, and of ours whether those are there that say whose rows.

        They stay when a key is given up, and are then written all the same.
        """
        self._when = self.types(connection).keys() >= set(_WHEN)
        return super().look(connection)

    def _make_view(self, connection: Connection) -> None:
        quote = self.quote
        names = [name for name in self.types(connection) if name[:4] != "tpc_"]
        shown = ", ".join(f"r.{quote(name)}" for name in names)
        seen = (
            f"SELECT r.* FROM {quote(self.rows)} r WHERE NOT EXISTS (SELECT 1 FROM "  # noqa: S608 - quoted
            f"{quote(self._tables.hidden.name)} h WHERE h.tag = r.{_TAG})"
        )
        if self._key:
            key = ", ".join(f"r.{quote(name)}" for name in (_WHEN[0], *self._key))
            newest = f"PARTITION BY {key} ORDER BY r.{_WHEN[1]} DESC, r.{_TAG} DESC"
            seen = (
                f"SELECT r.*, row_number() OVER ({newest}) AS tpc_nth FROM ({seen}) r"  # noqa: S608 - quoted
            )
        last = " WHERE r.tpc_nth = 1" if self._key else ""
        connection.exec_driver_sql(
            f"CREATE VIEW {quote(self._view)} AS SELECT {shown} FROM ({seen}) r{last}"  # noqa: S608 - quoted
        )

    def _adopt(self, connection: Connection, names: Sequence[str]) -> str:
        additions = self._additions(connection, names)
        changes = [f"ALTER TABLE {self.rows} {change};" for change in additions]
        if _TAG in names:
            brin = " USING brin" * (connection.dialect.name == "postgresql")
            index = f"CREATE INDEX {self.rows}_tag ON {self.rows}{brin} ({_TAG});"
            changes.append(index)
        return " ".join(changes)

    def _additions(self, connection: Connection, names: Iterable[str]) -> list[str]:
        # Rows that are there belong to the one application that we know, if we do.
        known = self._journal.applications(connection)
        owner = known.pop() if len(known) == 1 else ""
        kinds = {
            _TAG: "bigint NOT NULL DEFAULT 0",
            _WHEN[0]: f"varchar(40) NOT NULL DEFAULT '{owner}'",
            _WHEN[1]: "bigint NOT NULL DEFAULT -1",
        }
        return [f"ADD COLUMN {name} {kinds[name]}" for name in names]


def partition_of(view: str) -> tuple[str, ...]:
    """Return the columns that a view of ours has one row for; none without a key."""
    found = re.search(r"PARTITION BY (.*?) ORDER BY", view, re.DOTALL)
    names = re.findall(r'\.(?:"((?:[^"]|"")+)"|(\w+))', found[1] if found else "")
    return tuple(quoted.replace('""', '"') or plain for quoted, plain in names)
