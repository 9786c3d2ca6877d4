"""Rows that a later row of the same key has replaced: found by an index, deleted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.participant.journal.schema import TAG, Tables
from tracing_2pc.participant.journal.sqlite import row_number
from tracing_2pc.participant.journal.statements import delete_at

_OLDER: Final = (
    "FROM (SELECT DISTINCT {key}, tpc_batch, tpc_tag FROM {table} "
    "WHERE tpc_tag = :tag) n JOIN {table} o ON {same} "
    "WHERE (o.tpc_batch, o.tpc_tag) < (n.tpc_batch, n.tpc_tag) AND NOT EXISTS "
    "(SELECT 1 FROM {hidden} h WHERE h.tag IN (o.tpc_tag, n.tpc_tag)) LIMIT :limit"
)
"""From the rows `o` that the rows `n` of a committed tag replace. NULL is a key, too.

Hidden ones stay: a prepared row is kept until its decision.
"""

_DELETE: Final = {
    "sqlite": "DELETE FROM {table} WHERE {number} IN (SELECT o.{number} {older})",
    "postgresql": delete_at(
        "{table}",
        "SELECT ROW(o.ctid, o.tableoid) {older} FOR UPDATE OF o SKIP LOCKED",
    ),
}


class SupersededRows:
    """The rows of a table that readers of the view with its key never see again.

    `key` has the application's column, too; `hidden` are the tags not to be seen.
    """

    def __init__(
        self,
        tables: Tables,
        table: str,
        hidden: str,
        key: Sequence[str],
        quote: Callable[[str], str],
    ) -> None:
        self.newer = tables.add(
            "newer", sa.Column("tag", TAG, primary_key=True, autoincrement=False)
        )
        """Committed tags whose rows may have replaced others that are still there."""
        self._name = table
        self._table = quote(table)
        self._index = quote(f"{table}_key")
        self._hidden = quote(hidden)
        self._key = [quote(name) for name in key]

    def make_index(self, dialect: str) -> tuple[str, str]:
        """Return the SQL that makes the index again by which they are found."""
        columns = _hash(self._key) if dialect == "postgresql" else ", ".join(self._key)
        return (
            f"DROP INDEX IF EXISTS {self._index};",
            f"CREATE INDEX {self._index} ON {self._table} ({columns});",
        )

    def note(
        self,
        connection: Connection,
        tags: sa.Select[Any],
        parameters: Mapping[str, Any],
    ) -> None:
        """Note that the rows of these tags are shown from this transaction on."""
        insert = self.newer.insert().from_select(["tag"], tags)
        connection.execute(insert, parameters)

    def next(self, connection: Connection, after: int) -> int | None:
        """Lock the next tag after this one whose rows may have replaced others."""
        n = self.newer
        tags = sa.select(n.c.tag).where(n.c.tag > after).order_by(n.c.tag).limit(1)
        tag: int | None = connection.scalar(tags.with_for_update(skip_locked=True))
        return tag

    def delete(self, connection: Connection, tag: int, limit: int) -> int:
        """Delete some that the rows of this tag replace; return their number.

        Rows that another transaction has locked are left out, and a table of SQLite
        without row numbers.
        """
        gone = self._delete(connection, tag, limit)
        if gone < limit:
            connection.execute(self.newer.delete().where(self.newer.c.tag == tag))
        return gone

    def _delete(self, connection: Connection, tag: int, limit: int) -> int:
        dialect = connection.dialect.name
        key = [in_text(name, connection) for name in self._key]
        number: str | None = ""
        if dialect != "postgresql":
            number = row_number(connection, self._name)
        if number is None:
            return 0
        names = {
            "table": in_text(self._table, connection),
            "hidden": in_text(self._hidden, connection),
            "number": number,
        }
        same = same_key(key, dialect)
        older = _OLDER.format(key=", ".join(key), same=same, **names)
        statement = sa.text(_DELETE[dialect].format(older=older, **names))
        return connection.execute(statement, {"tag": tag, "limit": limit}).rowcount


def same_key(key: Sequence[str], dialect: str) -> str:
    """Return the SQL that finds the rows `o` with the key of the rows `n`."""
    if dialect != "postgresql":
        return " AND ".join(f"o.{name} IS n.{name}" for name in key)
    same = [f"o.{name} IS NOT DISTINCT FROM n.{name}" for name in key]
    return " AND ".join([*same, f"{_hash(key, 'o.')} = {_hash(key, 'n.')}"])


def _hash(key: Sequence[str], row: str = "") -> str:
    """Return PostgreSQL's hash of a key: it takes NULL, and text of any length."""
    return f"hash_record(ROW({', '.join(f'{row}{name}' for name in key)}))"


def in_text(name: str, connection: Connection) -> str:
    """Return a quoted name as SQLAlchemy's `text` wants it: it is no parameter."""
    if connection.dialect.paramstyle in ("format", "pyformat"):
        name = name.replace("%%", "%")  # `text` doubles it
    return name.replace(":", "\\:")
