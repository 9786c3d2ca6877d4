"""Rows that are written once, and shown when their transaction is committed."""

from __future__ import annotations

import contextlib
import logging
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final, Literal

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import ConfigurationError, MalformedError, RefusalError
from tracing_2pc.core.settings import adds_columns
from tracing_2pc.core.states import Refusal
from tracing_2pc.participant.branch_store import BranchUpload
from tracing_2pc.participant.engine import ParticipantEngine
from tracing_2pc.participant.journal.database import TableLook
from tracing_2pc.participant.journal.journal import Journal
from tracing_2pc.participant.journal.open_database import open_database
from tracing_2pc.participant.journal.schema import TAG, Tables
from tracing_2pc.participant.resources.column_table import ColumnTable
from tracing_2pc.participant.resources.columns import python_type, sql_type
from tracing_2pc.participant.resources.loader import check_prefix
from tracing_2pc.participant.resources.repeated_keys import RepeatedKeys
from tracing_2pc.participant.resources.superseded import SupersededRows
from tracing_2pc.participant.resources.tagged_branches import (
    TaggedBranches,
    replica_identity,
)

_TAG: Final = "tpc_tag"
_OWNER: Final = ("tpc_application", "tpc_batch")
"""Columns of a row's application and batch: with a key the latest row is shown."""

_HIDES: Final = re.compile(
    r'"?tpc_nth"? = 1\)?\s+AND\s+\(?'
    r'(?:"?\w+"?\.)?(?:"((?:[^"]|"")+)"|(\w+)) IS NOT TRUE'
)
"""In a view of ours, as the database shows it: the column of `deleted=`."""


_OPTIONS: Final = sa.text(
    "SELECT array_to_string(reloptions, ', ') FROM pg_class "
    "WHERE oid = to_regclass(:name)"
)
"""Of a view, as `WITH (…)` has them: CREATE OR REPLACE drops those that it lacks."""

logger = logging.getLogger(__name__)


class TaggedRows(ParticipantEngine):
    """Keeps committed records in a table of PostgreSQL or SQLite.

    Readers SELECT from the view `table`. Rows are in `<table>_tpc`, each with the tag
    of its branch in `tpc_tag`; the view leaves out the few tags in
    `<table>_tpc_hidden`, prepared or aborted. Rows are never moved: writing costs one
    COPY, and reading does not slow down with the number of transactions.

    Both are made from the first prepare's Arrow schema. To keep rows of an existing
    table, rename it and add the tag, as the error at start says; old rows have tag 0
    and stay visible. A record that violates a primary key or index of your own on
    `<table>_tpc` is a vote to abort. A unique index includes hidden rows: a retried
    task is refused while its twin is prepared, until the batch has been aborted and is
    tried again. An index that contains `tpc_tag` avoids that.

    A trigger would fire when a branch is prepared, also for one that aborts, and again
    when rows are deleted: on INSERT or DELETE it is refused without `triggers=True`.
    The other refusals, at start and in each prepare, are on the page *Service*.

    Tags are never used twice. At start they continue above the highest one in the
    table, even if the journal was lost; the index on `tpc_tag` makes that cheap.

    A value that a column would round, cut or read by the session's settings is a vote
    to abort that names both types. Columns that the table fills may be left out.

    SQLite has no type for decimals, times and NaN: they are kept as text, in a key as
    one text for each value.

    Args:
        url: `postgresql://host/name`, `sqlite:///relative`, `sqlite:////absolute`, or
            `env:NAME` to read it from there. No password in it.
        table: the view that readers SELECT from.
        key: column or columns that identify a row. With it the view shows, per key
            and application, the row of the latest committed batch, as an update-mode
            aggregate needs it. Older rows of a key are deleted by later prepares.
            Rows from before there was a key belong to the application in
            `tpc_application`: the SQL of the error sets the only one known, or none.
        deleted: boolean column; needs `key`. A row in which it is true hides its key,
            of its own application, until the key comes again; null is false. The row
            stays in the table as long as the key has no newer one. A key that a batch
            brings twice is a vote to abort, which names the key's columns.
        triggers: let triggers of the table fire when a branch is prepared.
        evolve: with "add" a column that a batch has and the table has not is added to
            table and view, nullable, at the end, before the batch is written. It stays
            if the batch aborts or the process is killed. A batch may then lack columns
            that may be NULL. Without it both are a vote to abort.
        clock: Unix seconds; by default the database's clock.

    Raises:
        ConfigurationError: a password in the URL, or a name that cannot be a table, or
            `deleted` without `key`.
    """

    def __init__(
        self,
        url: str,
        table: str,
        key: str | Sequence[str] | None = None,
        *,
        deleted: str | None = None,
        triggers: bool = False,
        evolve: Literal["add"] | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        tables = Tables("tagged_rows", check_prefix(table))
        journal = Journal(tables, open_database(url), clock)
        names = (key,) if isinstance(key, str) else tuple(key or ())
        if deleted is not None and (not names or deleted in names):
            raise ConfigurationError(
                f"deleted={deleted!r} hides the key of a row: give key=, without it"
            )
        grows = adds_columns(evolve)
        view = _View(table, names, deleted, journal, triggers=triggers, evolve=grows)
        store = TaggedBranches(
            journal, view.rows, set_up=view.set_up, superseded=view.superseded
        )
        super().__init__(journal, store)


class _View:
    """The view that readers SELECT from, and its table."""

    def __init__(
        self,
        name: str,
        key: tuple[str, ...],
        deleted: str | None,
        journal: Journal,
        *,
        triggers: bool,
        evolve: bool,
    ) -> None:
        self._name = name
        self._key = key
        self._deleted = deleted
        self._journal = journal
        self._triggers = triggers
        self._hidden = f"{name}_tpc_hidden"
        self.rows = ColumnTable(
            journal.database,
            f"{name}_tpc",
            self._create,
            self._stamp,
            self._check,
            written=self._check_keys,
            view=name,
            key=key,
            evolve=evolve,
            showing=self._showing,
        )
        self._quote = self.rows.quote
        columns = (_OWNER[0], *key)
        self._repeated = (
            RepeatedKeys(self.rows.name, columns, self._quote) if deleted else None
        )
        self.superseded = (
            SupersededRows(
                journal.tables,
                self.rows.name,
                self._hidden,
                columns,
                self._quote,
            )
            if key
            else None
        )

    def set_up(self, connection: Connection) -> None:
        """Refuse a table that is not ours; make the view of one that is."""
        inspector = sa.inspect(connection)
        tables, views = inspector.get_table_names(), inspector.get_view_names()
        if self._name in tables:
            raise ConfigurationError(
                f"{self._name} is a table; readers need a view of that name. Run: "
                f"ALTER TABLE {self._quote(self._name)} RENAME TO {self.rows.name}; "
                f"{self._adopt(connection, self._tpc_columns)} "
                f"{' '.join(self._index_by_key(connection))}"
            )
        if self.rows.name not in tables:
            if self._name in views:
                raise ConfigurationError(
                    f"{self._name} is a view of something else: choose another table"
                )
            return
        if self._name in views:
            self._check_deleted(inspector.get_view_definition(self._name))
        if changes := self._changes(connection, views):
            settings = f"key={self._key or None}"
            if self._deleted:
                settings += f", deleted={self._deleted!r}"
            raise ConfigurationError(
                f"{self._name} and {self.rows.name} do not fit {settings}. Run: "
                + " ".join(changes)
            )
        look = self.rows.check(connection)
        columns = self.rows.read_columns(connection)
        if lacking := [name for name in self._key if name not in columns]:
            raise ConfigurationError(
                f"{self.rows.name} has no column {', '.join(lacking)}"
            )
        if self._deleted and python_type(columns[self._deleted].type) is not bool:
            raise ConfigurationError(
                f"{self.rows.name}: column {self._deleted} is not boolean: deleted= "
                "names one that is"
            )
        if self._name not in views:
            self._make_view(connection, as_reader=look.has_policies)
        rows = sa.table(self.rows.name, sa.column(_TAG, TAG))
        self._journal.tables.raise_next_tag(connection, [rows.c[_TAG]])

    @property
    def _tpc_columns(self) -> list[str]:
        return [_TAG, *(_OWNER if self._key else ())]

    @property
    def _tag_index(self) -> str:
        """Return PostgreSQL's kind of index by tag.

        Tags only grow: brin is a few pages, and costs a COPY nothing. Where replaced
        rows make room for new ones, tags are mixed.
        """
        return "btree" if self._key else "brin"

    def _check(self, look: TableLook) -> None:
        """Refuse a table whose view would show its rows otherwise than intended."""
        if look.fires and not self._triggers:
            raise ConfigurationError(
                f"{self.rows.name} has triggers: {', '.join(look.fires)}. They would "
                "fire when a branch is prepared, for attempts that abort too, and when "
                "aborted or replaced rows are deleted. Drop or disable them, or say "
                "triggers=True if that is meant"
            )
        if look.view is False:
            raise ConfigurationError(
                f"{self._name} shows another table than {self.rows.name}, which has "
                "taken its name. Give the old one its name back; or move its rows into "
                f"the new one, run: DROP VIEW {self._quote(self._name)}, and start "
                "this service again"
            )
        if look.has_policies and look.view and not look.is_invoker:
            raise self._shows_all()

    def _check_deleted(self, view: str) -> None:
        """Refuse a view that hides deleted keys by another column than `deleted`."""
        hides = deleted_of(view)
        if hides in (None, self._deleted):
            return
        key = partition_of(view)[1:]
        raise ConfigurationError(
            f"{self._name} hides the keys of rows whose column {hides} is true: write "
            f"key={[*key]}, deleted={hides!r}, in an address "
            f"key={','.join(key)}&deleted={hides}; or, for a view that does not, run: "
            f"DROP VIEW {self._quote(self._name)}"
        )

    def _check_keys(self, connection: Connection, upload: BranchUpload) -> None:
        if self._repeated is not None:
            self._repeated.check(connection, upload)

    def _shows_all(self) -> ConfigurationError:
        view, rows = self._quote(self._name), self._quote(self.rows.name)
        invoker = f"ALTER VIEW {view} SET (security_invoker = true)"
        grant = f"GRANT SELECT ON {rows}, {self._quote(self._hidden)} TO <its readers>"
        return ConfigurationError(
            f"{self.rows.name} has row level security, and {self._name} would show "
            f"each reader all rows. From PostgreSQL 15 on, run: {invoker}; {grant}. "
            f"Else run: ALTER TABLE {rows} DISABLE ROW LEVEL SECURITY"
        )

    def _changes(self, connection: Connection, views: Sequence[str]) -> list[str]:
        """Return the SQL that makes table and view fit the settings."""
        inspector = sa.inspect(connection)
        there = {column["name"] for column in inspector.get_columns(self.rows.name)}
        lacking = [name for name in self._tpc_columns if name not in there]
        changes = [self._adopt(connection, lacking)] if lacking else []
        if self._deleted and self._deleted not in there:
            column = self._quote(self._deleted)
            changes.append(f"ALTER TABLE {self.rows.name} ADD COLUMN {column} boolean;")
        view, is_other_key = "", bool(lacking)
        if self._name in views:
            view = inspector.get_view_definition(self._name)
            shown = partition_of(view)
            is_other_key |= shown != ((_OWNER[0], *self._key) if self._key else ())
        if view and (is_other_key or deleted_of(view) != self._deleted):
            # It is made again at the next start, without what was granted on it.
            changes.append(f"DROP VIEW {self._quote(self._name)};")
        return [*changes, *(self._index_by_key(connection) if is_other_key else ())]

    def _index_by_key(self, connection: Connection) -> tuple[str, ...]:
        if self.superseded is None:
            return ()
        return self.superseded.make_index(connection.dialect.name)

    def _stamp(self, upload: BranchUpload, names: frozenset[str]) -> dict[str, Any]:
        """Return the tag, and application and batch if the table has such columns."""
        stamp: dict[str, Any] = {_TAG: upload.tag}
        if names >= set(_OWNER):
            owner = (upload.transaction.application, upload.transaction.batch)
            stamp.update(zip(_OWNER, owner, strict=True))
        return stamp

    def _create(self, connection: Connection, schema: pa.Schema) -> None:
        if lacking := [name for name in self._key if name not in schema.names]:
            raise MalformedError(f"the key {', '.join(lacking)} is not in the records")
        if self._deleted:
            _check_boolean(schema, self._deleted)
        if self._name in sa.inspect(connection).get_view_names():
            detail = f"{self._name} is a view of something else: drop it"
            raise RefusalError(Refusal.CONFLICT, detail, state="unknown")
        self._table(schema).create(connection)
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(replica_identity(self._quote(self.rows.name)))
        for statement in self._index_by_key(connection):
            connection.exec_driver_sql(statement)
        self._make_view(connection)

    def _table(self, schema: pa.Schema) -> sa.Table:
        columns = [sa.Column(f.name, sql_type(f.type)) for f in schema]
        columns.append(sa.Column(_TAG, TAG, nullable=False))
        if self._key:
            columns.append(sa.Column(_OWNER[0], sa.String(40), nullable=False))
            columns.append(sa.Column(_OWNER[1], sa.BigInteger, nullable=False))
        table = sa.Table(self.rows.name, sa.MetaData(), *columns)
        using = self._tag_index
        sa.Index(f"{self.rows.name}_tag", table.c[_TAG], postgresql_using=using)
        return table

    @contextlib.contextmanager
    def _showing(self, connection: Connection, added: Sequence[str]) -> Iterator[None]:
        """Show columns that the block adds; leave a view that a person made alone.

        The view is made twice. The first time shows whether it is ours, and takes its
        lock before that of the table, as its readers do: no two wait for each other.
        """
        inspector = sa.inspect(connection)
        if self._name not in inspector.get_view_names():
            yield
            return
        shown = [column["name"] for column in inspector.get_columns(self._name)]
        is_ours = self._is_ours(connection, shown)
        yield
        if is_ours:
            self._replace_view(connection, [*shown, *added])
        else:
            text = "%s is not as TaggedRows makes it: let it show %s if readers need it"
            logger.warning(text, self._name, ", ".join(added))

    def _is_ours(self, connection: Connection, shown: Sequence[str]) -> bool:
        """Return whether the view is one that we make, by making it again."""
        if not self._journal.database.owns(connection, self._name):
            return False
        before = _definition(connection, self._name)
        connection.exec_driver_sql("SAVEPOINT tpc_view")
        try:
            self._replace_view(connection, shown)
            is_ours = _definition(connection, self._name) == before
        except sa.exc.ProgrammingError:  # it has columns that the table has not
            is_ours = False
        if not is_ours:
            connection.exec_driver_sql("ROLLBACK TO SAVEPOINT tpc_view")
        connection.exec_driver_sql("RELEASE SAVEPOINT tpc_view")
        return is_ours

    def _replace_view(self, connection: Connection, shown: Sequence[str]) -> None:
        """Let it show these columns. In PostgreSQL its rights and options stay."""
        if connection.dialect.name == "postgresql":
            options = connection.scalar(_OPTIONS, {"name": self._quote(self._name)})
            self._make_view(
                connection,
                names=shown,
                verb="CREATE OR REPLACE VIEW",
                options=f" WITH ({options})" if options else "",
            )
            return
        connection.exec_driver_sql(f"DROP VIEW {self._quote(self._name)}")
        self._make_view(connection, names=shown)

    def _make_view(
        self,
        connection: Connection,
        *,
        as_reader: bool = False,
        names: Sequence[str] = (),
        verb: str = "CREATE VIEW",
        options: str = "",
    ) -> None:
        """Make it; `as_reader`: policies of the table restrict each reader's rows.

        It shows the columns of these `names`; by default all of the table's.
        """
        quote = self._quote
        if as_reader:
            if (connection.dialect.server_version_info or ()) < (15,):
                raise self._shows_all()
            options = " WITH (security_invoker = true)"
            logger.warning(
                "%s obeys the policies of its table: its readers need SELECT on %s, %s",
                *(self._name, self.rows.name, self._hidden),
            )
        columns = self.rows.read_columns(connection)
        names = names or [name for name in columns if name[:4] != "tpc_"]
        shown = ", ".join(f"r.{quote(name)}" for name in names)
        read = "r.*"
        if connection.dialect.name == "postgresql":  # which would write all out
            read_too = {*names, self._deleted}
            ours = (n for n in columns if n in read_too or n[:4] == "tpc_")
            read = ", ".join(f"r.{quote(name)}" for name in ours)
        shown_rows = (
            f"SELECT {read} FROM {quote(self.rows.name)} r WHERE NOT EXISTS (SELECT 1 "  # noqa: S608 - quoted
            f"FROM {quote(self._hidden)} h WHERE h.tag = r.{_TAG})"
        )
        if self._key:
            key = ", ".join(f"r.{quote(name)}" for name in (_OWNER[0], *self._key))
            newest = f"PARTITION BY {key} ORDER BY r.{_OWNER[1]} DESC, r.{_TAG} DESC"
            shown_rows = (
                f"SELECT r.*, row_number() OVER ({newest}) AS tpc_nth "  # noqa: S608 - quoted
                f"FROM ({shown_rows}) r"
            )
        last = " WHERE r.tpc_nth = 1" if self._key else ""
        if self._deleted:
            last += f" AND r.{quote(self._deleted)} IS NOT TRUE"
        connection.exec_driver_sql(
            f"{verb} {quote(self._name)}{options} AS SELECT {shown} "  # noqa: S608 - quoted
            f"FROM ({shown_rows}) r{last}"
        )

    def _adopt(self, connection: Connection, names: Sequence[str]) -> str:
        """Return the SQL that adds some of our columns to a table."""
        # Existing rows belong to the one application that is known, if there is one.
        known = self._journal.applications(connection)
        owner = known.pop() if len(known) == 1 else ""
        kinds = {
            _TAG: "bigint NOT NULL DEFAULT 0",
            _OWNER[0]: f"varchar(40) NOT NULL DEFAULT '{owner}'",
            _OWNER[1]: "bigint NOT NULL DEFAULT -1",
        }
        rows = self.rows.name
        changes = [f"ALTER TABLE {rows} ADD COLUMN {n} {kinds[n]};" for n in names]
        if _TAG in names:
            postgresql = connection.dialect.name == "postgresql"
            using = f" USING {self._tag_index}" * postgresql
            changes.append(f"CREATE INDEX {rows}_tag ON {rows}{using} ({_TAG});")
        return " ".join(changes)


def _definition(connection: Connection, view: str) -> str:
    """Return a database's definition of a view, without its layout."""
    return "".join((sa.inspect(connection).get_view_definition(view) or "").split())


def partition_of(view: str) -> tuple[str, ...]:
    """Return the columns by which a view of ours shows one row; none without a key."""
    match = re.search(r"PARTITION BY (.*?) ORDER BY", view, re.DOTALL)
    names = re.findall(r'\.(?:"((?:[^"]|"")+)"|(\w+))', match[1] if match else "")
    return tuple(quoted.replace('""', '"') or plain for quoted, plain in names)


def deleted_of(view: str) -> str | None:
    """Return the column by which a view of ours hides keys; None if it hides none."""
    match = re.search(_HIDES, view)
    return match and ((match[1] or "").replace('""', '"') or match[2])


def _check_boolean(schema: pa.Schema, name: str) -> None:
    if name not in schema.names:
        raise MalformedError(f"column {name}, of deleted=, is not in the records")
    if not pa.types.is_boolean(kind := schema.field(name).type):
        raise MalformedError(f"column {name} is {kind}: deleted= needs a boolean")
