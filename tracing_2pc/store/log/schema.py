"""The tables of the decision log: one schema for SQLite and PostgreSQL, versioned."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.store.engines.database import Database

VERSION: Final = 1
_CREATING: Final = 0x7470635F  # "tpc_": one creator at a time, by advisory lock

metadata: Final = sa.MetaData()

version: Final = sa.Table(
    "tpc_version", metadata, sa.Column("version", sa.Integer, primary_key=True)
)

application: Final = sa.Table(
    "tpc_application",
    metadata,
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("query", sa.Text, unique=True),
    sa.Column("forgotten_through", sa.BigInteger),
    # Rule 19: participants are told this value only, which `begin` has flushed.
    sa.Column("durable_forgotten_through", sa.BigInteger),
    sa.Column("lease_holder", sa.Text),
    sa.Column("lease_until", sa.Double),
)

run: Final = sa.Table(
    "tpc_run",
    metadata,
    sa.Column("application", sa.Text, primary_key=True),
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("registered", sa.Double, nullable=False),
    sa.Column("batch", sa.BigInteger, nullable=False),  # that it began with
    sa.UniqueConstraint("application", "sequence"),
)

transaction: Final = sa.Table(
    "tpc_transaction",
    metadata,
    sa.Column("id", sa.Text, primary_key=True),
    sa.Column("application", sa.Text, nullable=False),
    sa.Column("batch", sa.BigInteger, nullable=False),
    sa.Column("attempt", sa.BigInteger, nullable=False),
    sa.Column("run", sa.Text, nullable=False),
    sa.Column("state", sa.Text, nullable=False),
    sa.Column("decision", sa.Text),
    sa.Column("started", sa.Double, nullable=False),
    sa.Column("decided", sa.Double),
    sa.Column("finished", sa.Double),
    sa.Column("timeout", sa.Double, nullable=False, server_default="0"),
    sa.Column("deadline", sa.Double),
    sa.Column("carrier", sa.Text, nullable=False),
    sa.Column("rows", sa.BigInteger),
    sa.Column("reason", sa.Text),
    sa.Column("checksum", sa.Text, nullable=False),
    sa.UniqueConstraint("application", "batch", "attempt"),
)

delivery: Final = sa.Table(
    "tpc_delivery",
    metadata,
    sa.Column("transaction_id", sa.Text, primary_key=True),
    sa.Column("participant", sa.Text, primary_key=True),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("acknowledged", sa.Double),
    sa.Column("retries", sa.BigInteger, nullable=False),
    sa.Column("retry_at", sa.Double),
    sa.Column("error", sa.Text),
    sa.Column("own_sink", sa.Boolean, nullable=False, server_default=sa.false()),
    sa.Column("untold", sa.Text),
    sa.Column("given_up", sa.Double),
)

receipt: Final = sa.Table(
    "tpc_receipt",
    metadata,
    sa.Column("transaction_id", sa.Text, primary_key=True),
    sa.Column("participant", sa.Text, primary_key=True),
    sa.Column("branch", sa.Text, primary_key=True),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("vote", sa.Text, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("handle", sa.Text, nullable=False),
)

audit: Final = sa.Table(
    "tpc_audit",
    metadata,
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("what", sa.Text, nullable=False),
    sa.Column("why", sa.Text, nullable=False),
    sa.Column("before", sa.Text),
    sa.Column("after", sa.Text),
)

EPOCH: Final = 1.0
"""Seconds: one bit of a damaged file makes it of a NULL. Nothing happened then."""


def is_null(time: sa.ColumnElement[float | None]) -> sa.ColumnElement[bool]:
    """Whether nothing was stored, also where a bit of it is damaged now."""
    return time.is_(None) | (time <= EPOCH)


_COMMITTED: Final = sa.text("decision = 'commit'")
_UNFINISHED: Final = sa.text("finished IS NULL")
# Rule 18: a batch commits once, whatever the code does.
sa.Index(
    "tpc_one_commit",
    transaction.c.application,
    transaction.c.batch,
    unique=True,
    sqlite_where=_COMMITTED,
    postgresql_where=_COMMITTED,
)
# What is open is found in time that does not grow with what is finished.
sa.Index(
    "tpc_unfinished",
    transaction.c.application,
    transaction.c.batch,
    transaction.c.attempt,
    sqlite_where=_UNFINISHED,
    postgresql_where=_UNFINISHED,
)
# So are the few that a batch did not end well with, among all that did.
_OTHERS: Final = sa.text("state IN ('aborted', 'concluded')")
sa.Index(
    "tpc_not_committed",
    transaction.c.application,
    transaction.c.batch,
    transaction.c.attempt,
    sqlite_where=_OTHERS,
    postgresql_where=_OTHERS,
)


def ensure(database: Database) -> None:
    """Create what is missing, else write and lock nothing. Idempotent, and at once.

    Raises:
        ConfigurationError: a newer release made this log.
    """
    if exists(database):
        return
    with database.durable() as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(sa.select(sa.func.pg_advisory_xact_lock(_CREATING)))
        if not _is_known(connection):
            metadata.create_all(connection)
            connection.execute(version.insert().values(version=VERSION))


def exists(database: Database) -> bool:
    """Whether there is a log of a version that we know."""
    with database.reading() as connection:
        return _is_known(connection)


def _is_known(connection: sa.Connection) -> bool:
    if not sa.inspect(connection).has_table(version.name):
        return False
    made = version_of(connection)
    if made > VERSION:
        raise ConfigurationError(
            f"the decision log has schema version {made}, this release of "
            f"tracing_2pc knows {VERSION}: upgrade tracing_2pc, or point `log` at "
            "another database"
        )
    return made > 0


def version_of(connection: sa.Connection) -> int:
    """Return the version of the tables; 0 where they are not complete."""
    return connection.scalar(sa.select(sa.func.max(version.c.version))) or 0
