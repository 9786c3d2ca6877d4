"""The tables of the decision log: one schema for SQLite and PostgreSQL, versioned."""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from tracing_2pc.store.engines.database import Database
from tracing_2pc.store.kit import Schema
from tracing_2pc.store.lease import Lease
from tracing_2pc.store.log.facts import FACTS

VERSION: Final = 1

LOG: Final = Schema("tpc_", "log", VERSION, "the decision log", "tpc_version")

application: Final = LOG.add(
    "application",
    sa.Column("name", sa.Text, primary_key=True),
    sa.Column("query", sa.Text, unique=True),
    sa.Column("forgotten_through", sa.BigInteger),
    # Rule 19: participants are told this value only, which `begin` has flushed.
    sa.Column("durable_forgotten_through", sa.BigInteger),
    sa.Column("lease_holder", sa.Text),
    sa.Column("lease_until", sa.Double),
)

LEASE: Final = Lease(
    application.c.lease_holder, application.c.lease_until, may_have_two=True
)

run: Final = LOG.add(
    "run",
    sa.Column("application", sa.Text, primary_key=True),
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("sequence", sa.BigInteger, nullable=False),
    sa.Column("registered", sa.Double, nullable=False),
    sa.Column("batch", sa.BigInteger, nullable=False),  # that it began with
    sa.UniqueConstraint("application", "sequence"),
)

# Of a run that its driver reports, also where it has begun no batch.
presence: Final = LOG.add(
    "presence",
    sa.Column("application", sa.Text, primary_key=True),
    sa.Column("run", sa.Text, primary_key=True),
    sa.Column("host", sa.Text, nullable=False),
    sa.Column("process", sa.BigInteger, nullable=False),
    sa.Column("since", sa.Double, nullable=False),
    sa.Column("seen", sa.Double, nullable=False),
    sa.Column("ended", sa.Double),
    sa.Column("error", sa.Text),  # why it failed; NULL where it was stopped
)

transaction: Final = LOG.add(
    "transaction",
    *(fact.column for fact in FACTS),
    sa.UniqueConstraint("application", "batch", "attempt"),
)

delivery: Final = LOG.add(
    "delivery",
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

receipt: Final = LOG.add(
    "receipt",
    sa.Column("transaction_id", sa.Text, primary_key=True),
    sa.Column("participant", sa.Text, primary_key=True),
    sa.Column("branch", sa.Text, primary_key=True),
    sa.Column("position", sa.Integer, nullable=False),
    sa.Column("vote", sa.Text, nullable=False),
    sa.Column("rows", sa.BigInteger, nullable=False),
    sa.Column("digest", sa.Text, nullable=False),
    sa.Column("handle", sa.Text, nullable=False),
)

audit: Final = LOG.add(
    "audit",
    sa.Column("at", sa.Double, nullable=False),
    sa.Column("who", sa.Text, nullable=False),
    sa.Column("verb", sa.Text, nullable=False),
    sa.Column("about", sa.Text, nullable=False),  # a transaction or an application
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
        ConfigurationError: as `exists`.
    """
    with database.read() as connection:
        if LOG.exists(connection) and LOG.is_complete(connection):
            return
    with database.setup() as connection:
        LOG.create(connection)


def exists(database: Database) -> bool:
    """Whether there is a log of a version that we know.

    Raises:
        ConfigurationError: a newer release made it, or a version before the first.
    """
    with database.read() as connection:
        return LOG.exists(connection)


def absent_facts(connection: sa.Connection) -> frozenset[str]:
    """Return the columns of transactions that an earlier release did not make."""
    if not (absent := LOG.absent(connection)):
        return absent
    start = f"{transaction.name}."
    return frozenset(n.removeprefix(start) for n in absent if n.startswith(start))
