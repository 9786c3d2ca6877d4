"""The tables of a participant's journal: their creation, and the next tag."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.store.kit import Schema

VERSION: Final = 1
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


class Tables(Schema):
    """The journal of a resource, which is of one kind for ever: `<name>_tpc_…`."""

    def __init__(self, kind: str, name: str) -> None:
        prefix = f"{name}_tpc_"
        super().__init__(prefix, kind, VERSION, f"the journal {prefix}…")
        self.name = name
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

    def create(self, connection: Connection) -> None:
        """Make missing tables. The caller excludes other creators.

        Raises:
            ConfigurationError: as `Schema.exists`.
        """
        super().create(connection)
        self.raise_next_tag(connection, [self.branch.c.tag])

    def raise_next_tag(
        self, connection: Connection, columns: Iterable[sa.ColumnElement[int]]
    ) -> None:
        """Make the next tag higher than each in these columns: none is used twice.

        Rows of a tag that is used again would be hidden and deleted with the new ones.
        A counter starts again if it was dropped, or was not copied with the rows: in a
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
