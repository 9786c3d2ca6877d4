"""All SQL of the coordinator, each statement with a name and what it is for.

What is open and what is committed is spelled as the partial indexes spell it: with a
parameter in its place neither database would use them.
"""

from __future__ import annotations

from typing import Final

import sqlalchemy as sa

from tracing_2pc.states import TransactionState
from tracing_2pc.store.schema import (
    application,
    audit,
    delivery,
    receipt,
    run,
    transaction,
    version,
)

_OF: Final = transaction.c.application == sa.bindparam("of")
_BATCH: Final = transaction.c.batch == sa.bindparam("in_batch")
_OPEN: Final = transaction.c.finished.is_(None)
_COMMIT: Final = transaction.c.decision == sa.literal_column("'commit'")

KEPT_RUNS: Final = 1_000
"""Superseded runs that an application keeps: whoever wakes late is told so by name."""

LOCK_APPLICATION: Final = (
    sa.select(
        application.c.query, application.c.watermark, application.c.durable_watermark
    )
    .where(application.c.name == sa.bindparam("of"))
    .with_for_update()
)
"""First in every write: `begin`, `decide` and `forget` of one application queue up
here. SQLite has them queued already (BEGIN IMMEDIATE)."""

ADD_APPLICATION: Final = sa.text(
    "INSERT INTO tpc_application (name, query, watermark)"
    " VALUES (:name, :query, :watermark) ON CONFLICT DO NOTHING"
)
"""Two first drivers at once: one of them inserts, the other waits and does nothing."""

QUERY_OWNER: Final = sa.select(application.c.name).where(
    application.c.query == sa.bindparam("asked"),
    application.c.name != sa.bindparam("of"),
)

BIND_QUERY: Final = (
    application.update()
    .where(application.c.name == sa.bindparam("of"), application.c.query.is_(None))
    .values(query=sa.bindparam("asked"))
)

RUNS: Final = (
    sa.select(run.c.run, run.c.sequence)
    .where(
        run.c.application == sa.bindparam("of"),
        sa.or_(
            run.c.run == sa.bindparam("asking"),
            run.c.sequence
            == sa.select(sa.func.max(run.c.sequence))
            .where(run.c.application == sa.bindparam("of"))
            .scalar_subquery(),
        ),
    )
    .order_by(run.c.sequence)
)
"""The newest run, last, and before it the one that asks, if it is another."""

REGISTER_RUN: Final = run.insert()

QUARANTINED: Final = (
    sa.select(transaction.c.id, transaction.c.reason)
    .where(_OF, _OPEN, transaction.c.state == str(TransactionState.QUARANTINED))
    .order_by(transaction.c.batch, transaction.c.attempt)
    .limit(1)
)

NEWEST_COMMITTED: Final = (
    sa.select(transaction.c.batch)
    .where(_OF, _COMMIT)
    .order_by(transaction.c.batch.desc())
    .limit(1)
)

PARTICIPANTS_BEFORE: Final = (
    sa.select(delivery.c.transaction_id, delivery.c.participant)
    .where(
        delivery.c.transaction_id
        == sa.select(transaction.c.id)
        .where(_OF)
        .order_by(transaction.c.batch.desc(), transaction.c.attempt.desc())
        .limit(1)
        .scalar_subquery()
    )
    .order_by(delivery.c.position)
)
"""Those of the application's newest transaction, whatever became of it."""

NEWEST_ATTEMPT: Final = (
    sa.select(transaction.c.attempt, transaction.c.carrier)
    .where(_OF, _BATCH)
    .order_by(transaction.c.attempt.desc())
    .limit(1)
)

RIVALS: Final = (
    sa.select(transaction.c.id)
    .where(
        _OF,
        _BATCH,
        sa.or_(transaction.c.attempt > sa.bindparam("than_attempt"), _COMMIT),
    )
    .limit(1)
)
"""A newer attempt of the batch, or a committed one (rules 14 and 18)."""

# What `load` may be asked for.
ONE: Final = transaction.c.id == sa.bindparam("one")
COMMITTED: Final = sa.and_(_OF, _BATCH, _COMMIT)
UNFINISHED: Final = _OPEN
UNFINISHED_OF: Final = sa.and_(_OPEN, _OF)
ACTIVE_OF: Final = sa.and_(
    _OPEN, _OF, transaction.c.state == str(TransactionState.ACTIVE)
)
ABORTING_OF: Final = sa.and_(
    _OPEN, _OF, transaction.c.state == str(TransactionState.ABORTING)
)


UNFINISHED_APPLICATIONS: Final = (
    sa.select(transaction.c.application)
    .distinct()
    .where(_OPEN)
    .order_by(transaction.c.application)
)


def load_transactions(which: sa.ColumnElement[bool]) -> sa.Select[tuple[object, ...]]:
    """Transactions with their application's durable watermark, in batch order."""
    joined = transaction.outerjoin(
        application, application.c.name == transaction.c.application
    )
    return (
        sa.select(transaction, application.c.durable_watermark.label("watermark"))
        .select_from(joined)
        .where(which)
        .order_by(transaction.c.application, transaction.c.batch, transaction.c.attempt)
    )


def load_parts(
    part: sa.Table, which: sa.ColumnElement[bool]
) -> sa.Select[tuple[object, ...]]:
    """Deliveries or receipts of the same transactions, by position."""
    return (
        sa.select(part)
        .where(part.c.transaction_id.in_(sa.select(transaction.c.id).where(which)))
        .order_by(part.c.transaction_id, part.c.position)
    )


ADD_TRANSACTION: Final = transaction.insert()
ADD_DELIVERIES: Final = delivery.insert()
ADD_RECEIPTS: Final = receipt.insert()
ADD_AUDIT: Final = audit.insert()

CHANGE: Final = transaction.update().where(transaction.c.id == sa.bindparam("one"))

ACKNOWLEDGE: Final = (
    delivery.update()
    .where(
        delivery.c.transaction_id == sa.bindparam("one"),
        delivery.c.participant == sa.bindparam("by"),
        delivery.c.acknowledged.is_(None),
        sa.exists().where(
            transaction.c.id == sa.bindparam("one"), transaction.c.decided.is_not(None)
        ),
    )
    .values(acknowledged=sa.bindparam("at"), untold=sa.bindparam("left"), retry_at=None)
)

GIVE_UP: Final = (
    delivery.update()
    .where(
        delivery.c.transaction_id == sa.bindparam("one"),
        delivery.c.participant == sa.bindparam("by"),
    )
    .values(given_up=sa.bindparam("at"), retry_at=None)
)

POSTPONE: Final = (
    delivery.update()
    .where(
        delivery.c.transaction_id == sa.bindparam("one"),
        delivery.c.participant == sa.bindparam("by"),
        delivery.c.acknowledged.is_(None),
    )
    .values(
        retries=delivery.c.retries + 1,
        error=sa.bindparam("why"),
        retry_at=sa.bindparam("due"),
    )
)

_NEWEST_BEGUN: Final = (
    sa.select(transaction.c.batch)
    .where(_OF)
    .order_by(transaction.c.batch.desc())
    .limit(1)
)
_OLDEST: Final = (
    sa.select(transaction.c.batch).where(_OF).order_by(transaction.c.batch).limit(1)
)
_IN_SLICE: Final = transaction.c.batch < (
    _OLDEST.scalar_subquery() + sa.bindparam("slice", type_=sa.BigInteger)
)
"""So many batch numbers from the oldest on: what lies above is not even looked at."""


def _may_go(*within: sa.ColumnElement[bool]) -> sa.ColumnElement[bool]:
    """Batches below the newest begun (rule 17) and below whatever must stay."""
    old = transaction.c.finished < sa.bindparam("finished_before")
    first_to_stay = (
        sa.select(transaction.c.batch)
        .where(_OF, *within, sa.or_(_OPEN, sa.not_(old)))
        .order_by(transaction.c.batch)
        .limit(1)
    )
    end = sa.func.coalesce(
        first_to_stay.scalar_subquery(), _NEWEST_BEGUN.scalar_subquery()
    )
    return sa.and_(_OF, *within, transaction.c.batch < end)


FORGETTABLE: Final = (
    sa.select(transaction.c.batch)
    .distinct()
    .where(_may_go(_IN_SLICE))
    .order_by(transaction.c.batch)
)
FORGETTABLE_COUNT: Final = sa.select(
    sa.func.count(), sa.func.max(transaction.c.batch)
).where(_may_go())
"""How many transactions that is in all, and the watermark after it."""

_FORGOTTEN: Final = sa.and_(_OF, transaction.c.batch <= sa.bindparam("up_to"))
_FORGOTTEN_IDS: Final = sa.select(transaction.c.id).where(_FORGOTTEN)
FORGET_RECEIPTS: Final = receipt.delete().where(
    receipt.c.transaction_id.in_(_FORGOTTEN_IDS)
)
FORGET_DELIVERIES: Final = delivery.delete().where(
    delivery.c.transaction_id.in_(_FORGOTTEN_IDS)
)
FORGET_TRANSACTIONS: Final = transaction.delete().where(_FORGOTTEN)
RAISE_WATERMARK: Final = (
    application.update()
    .where(application.c.name == sa.bindparam("of"))
    .values(watermark=sa.bindparam("up_to"))
)

FORGET_RUNS: Final = run.delete().where(
    run.c.application == sa.bindparam("of"),
    run.c.sequence
    < sa.select(sa.func.max(run.c.sequence) - KEPT_RUNS)
    .where(run.c.application == sa.bindparam("of"), run.c.batch < sa.bindparam("up_to"))
    .scalar_subquery(),
)
"""Those so many before a run that began below the new watermark: it superseded them at
that batch or one before it, so that what they can still ask for is refused by age."""
MAKE_DURABLE: Final = (
    application.update()
    .where(application.c.name == sa.bindparam("of"))
    .values(durable_watermark=application.c.watermark)
)

_EARLIER_COMMIT: Final = (
    sa.select(transaction.c.id, transaction.c.state)
    .where(_OF, _COMMIT, transaction.c.batch < sa.bindparam("in_batch"))
    .order_by(transaction.c.batch.desc())
    .limit(1)
    .subquery()
)
FORGET_EARLIER_RECEIPTS: Final = receipt.delete().where(
    receipt.c.transaction_id.in_(
        sa.select(_EARLIER_COMMIT.c.id).where(
            _EARLIER_COMMIT.c.state == str(TransactionState.COMMITTED)
        )
    )
)
"""Of the commit before this one, if it is finished: its batch is never begun again."""

COUNTS: Final = (
    sa.select(transaction.c.state, sa.func.count())
    .where(_OF)
    .group_by(transaction.c.state)
)
"""Transactions by state; reads every record of the application."""

# What an operator looks at.
DURABILITY: Final = {
    "sqlite": {
        "journal_mode": "PRAGMA journal_mode",
        "synchronous": "PRAGMA synchronous",
    },
    "postgresql": {
        "fsync": "SHOW fsync",
        "full_page_writes": "SHOW full_page_writes",
        "synchronous_commit": "SHOW synchronous_commit",
    },
}
"""By the kind of database: what says whether a commit outlives a crash."""

DELIVERIES_OF_OPEN: Final = load_parts(delivery, UNFINISHED)
DELIVERIES_OF_ONE: Final = load_parts(delivery, ONE)

STANDING: Final = sa.select(transaction.c.id, transaction.c.state).where(
    transaction.c.id.in_(sa.bindparam("ids", expanding=True))
)
"""By the primary key: a few transactions that participants have named."""

CLOCK: Final = sa.select(sa.extract("epoch", sa.func.clock_timestamp()).cast(sa.Double))
"""PostgreSQL's own time, as Unix seconds."""

WATERMARKS: Final = sa.select(application.c.name, application.c.watermark)

SCHEMA_VERSION: Final = sa.select(sa.func.max(version.c.version))

REASON: Final = sa.select(transaction.c.reason).where(ONE)

AUDIT_OF: Final = (
    sa.select(audit)
    .where(audit.c.what.in_(sa.bindparam("whats", expanding=True)))
    .order_by(audit.c.at)
)
"""Reads the whole audit, which has a row for each deed of a person."""

_SHOWN: Final = (
    *(transaction.c.id, transaction.c.application, transaction.c.state),
    *(transaction.c.decision, transaction.c.started, transaction.c.decided),
    *(transaction.c.finished, transaction.c.rows, transaction.c.reason),
    transaction.c.carrier,
)
OVERVIEW_OPEN: Final = (
    sa.select(*_SHOWN)
    .where(_OF, _OPEN)
    .order_by(transaction.c.batch.desc(), transaction.c.attempt.desc())
    .limit(sa.bindparam("most", type_=sa.Integer))
)
OVERVIEW: Final = (
    sa.select(*_SHOWN)
    .where(_OF)
    .order_by(transaction.c.batch.desc(), transaction.c.attempt.desc())
    .limit(sa.bindparam("most", type_=sa.Integer))
)
"""The newest of one application, backwards along the unique index."""

_DELIVERIES: Final = (
    sa.select(delivery.c.transaction_id, delivery.c.participant, delivery.c.own_sink)
    .where(delivery.c.transaction_id.in_(sa.bindparam("ids", expanding=True)))
    .order_by(delivery.c.transaction_id, delivery.c.position)
)
PENDING_OF: Final = _DELIVERIES.where(
    delivery.c.acknowledged.is_(None), delivery.c.given_up.is_(None)
)
UNTOLD_OF: Final = _DELIVERIES.where(delivery.c.untold.is_not(None))
"""Who was told a part of the decision only."""

TAKE_LEASE: Final = (
    application.update()
    .where(
        application.c.name == sa.bindparam("of"),
        sa.or_(
            application.c.lease_holder.is_(None),
            application.c.lease_holder == sa.bindparam("who"),
            application.c.lease_until < sa.bindparam("at"),
            application.c.lease_until > sa.bindparam("beyond"),
        ),
    )
    .values(lease_holder=sa.bindparam("who"), lease_until=sa.bindparam("until"))
)
GIVE_LEASE_BACK: Final = (
    application.update()
    .where(application.c.lease_holder == sa.bindparam("who"))
    .values(lease_holder=None, lease_until=None)
)

APPLICATIONS: Final = sa.select(application.c.name).order_by(application.c.name)
