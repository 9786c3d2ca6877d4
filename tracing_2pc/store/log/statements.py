"""The statements of a batch in the decision log, and all that change it.

The SQL of lists for persons is in `listing`.

*Unfinished* and *committed* are spelled as in the partial indexes: with a parameter
instead, neither database would use these.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Iterable, Mapping, Set
from typing import Any, Final

import sqlalchemy as sa

from tracing_2pc.store.engines.writes import Writes, join_writes, supports_joined_writes
from tracing_2pc.store.kit import settled
from tracing_2pc.store.log import schema
from tracing_2pc.store.log.facts import Fact, present


def sql(text: str) -> sa.TextClause:
    """Make a statement of a text that is indented as its source."""
    return sa.text(inspect.cleandoc(text))


KEPT_RUNS: Final = 1_000
"""Superseded runs that an application keeps: a late driver is refused by name."""

LOCK_APPLICATION: Final = (
    sa.select(schema.application.c.name)
    .where(schema.application.c.name == sa.bindparam("of"))
    .with_for_update()
)
"""First in every write: `begin`, `decide` and `forget` of one application queue up
here. SQLite has them queued already (BEGIN IMMEDIATE)."""

ADD_APPLICATION: Final = sql("""
    INSERT INTO tpc_application (name, forgotten_through, query)
    VALUES (:of, :forgotten_through, :asked) ON CONFLICT DO NOTHING
""")
"""Two first drivers at once: one of them inserts, the other waits and does nothing."""

CHANGE_APPLICATION: Final = sql("""
    UPDATE tpc_application
    SET query = coalesce(query, :asked), durable_forgotten_through = forgotten_through
    WHERE name = :of
""")

REGISTER_RUN: Final = sql("""
    INSERT INTO tpc_run (application, run, sequence, registered, batch)
    SELECT :of, :asking, coalesce(max(sequence), 0) + 1, :at, :in_batch
    FROM tpc_run WHERE application = :of
""")

KEPT_PRESENCES: Final = 5
"""Runs of an application whose presence is kept, the newest."""

SEE: Final = sql("""
    UPDATE tpc_presence SET seen = :at, ended = NULL, error = NULL
    WHERE application = :of AND run = :run
""")
ADD_PRESENCE: Final = sql("""
    INSERT INTO tpc_presence (application, run, host, process, since, seen)
    VALUES (:of, :run, :host, :process, :at, :at) ON CONFLICT DO NOTHING
""")
END_PRESENCE: Final = sql("""
    UPDATE tpc_presence SET ended = :at, error = :error
    WHERE application = :of AND run = :run
""")
RETIRE_PRESENCES: Final = sql("""
    UPDATE tpc_presence SET ended = coalesce(ended, :at), error = NULL
    WHERE application = :of
""")
FORGET_PRESENCES: Final = sql("""
    DELETE FROM tpc_presence WHERE application = :of AND run <> :run AND run NOT IN
        (SELECT run FROM tpc_presence WHERE application = :of
         ORDER BY since DESC LIMIT :kept)
""").bindparams(kept=KEPT_PRESENCES)

# A column has a name of ours: SQLite's own may be damaged, in upper or lower case.
_STATUS: Final = """
    SELECT {clock} AS clock, of_newest.participant AS participant,
        query AS query, forgotten_through AS forgotten_through,
        durable_forgotten_through AS durable_forgotten_through,
        (SELECT name FROM tpc_application
         WHERE query = :asked AND name <> :of) AS query_owner,
        (SELECT run FROM tpc_run WHERE application = :of
         ORDER BY sequence DESC LIMIT 1) AS newest_run,
        EXISTS (SELECT 1 FROM tpc_run
                WHERE application = :of AND run = :asking) AS run_known,
        (SELECT id FROM tpc_transaction
         WHERE application = :of AND finished IS NULL AND state = 'quarantined'
         ORDER BY batch, attempt LIMIT 1) AS quarantined,
        (SELECT reason FROM tpc_transaction
         WHERE application = :of AND finished IS NULL AND state = 'quarantined'
         ORDER BY batch, attempt LIMIT 1) AS reason,
        (SELECT batch FROM tpc_transaction
         WHERE application = :of AND decision = 'commit'
         ORDER BY batch DESC LIMIT 1) AS committed,
        (SELECT id FROM tpc_transaction WHERE application = :of
         ORDER BY batch DESC, attempt DESC LIMIT 1) AS newest,
        (SELECT state FROM tpc_transaction WHERE application = :of
         ORDER BY batch DESC, attempt DESC LIMIT 1) AS state,
        (SELECT journals FROM tpc_transaction WHERE application = :of
         ORDER BY batch DESC, attempt DESC LIMIT 1) AS journals,
        (SELECT attempt FROM tpc_transaction
         WHERE application = :of AND batch = :in_batch
         ORDER BY attempt DESC LIMIT 1) AS attempt,
        (SELECT carrier FROM tpc_transaction
         WHERE application = :of AND batch = :in_batch
         ORDER BY attempt DESC LIMIT 1) AS carrier,
        EXISTS (SELECT 1 FROM tpc_transaction
                WHERE application = :of AND finished IS NULL
                AND state = 'active') AS has_active
    FROM tpc_application LEFT JOIN tpc_delivery AS of_newest
      ON of_newest.transaction_id =
        (SELECT id FROM tpc_transaction WHERE application = :of
         ORDER BY batch DESC, attempt DESC LIMIT 1)
    WHERE name = :of ORDER BY of_newest.position
"""


@functools.cache
def status(clock: str) -> sa.TextClause:
    """Select what `begin` needs of an application, each from an index's first entries.

    A row for each participant of its newest transaction, or one.
    """
    return sql(_STATUS.format(clock=clock))


@functools.cache
def time_by(clock: str) -> sa.TextClause:
    """The time by a database's clock."""
    return sa.text(f"SELECT {clock}")


RIVALS: Final = sql("""
    SELECT id FROM tpc_transaction
    WHERE application = :of AND batch = :in_batch
      AND (attempt > :than_attempt OR decision = 'commit')
    LIMIT 1
""")
"""A newer attempt of the batch, or a committed one (rules 14 and 18)."""

# Which transactions `load_transactions` and `load_parts` may be asked for.
ONE: Final = sa.text("id = :one")
COMMITTED: Final = sa.text(
    "application = :of AND batch = :in_batch AND decision = 'commit'"
)
UNFINISHED: Final = sa.text("finished IS NULL")
UNFINISHED_OF: Final = sa.text("finished IS NULL AND application = :of")
UNFINISHED_IN_STATE: Final = sa.text(
    "finished IS NULL AND application = :of AND state = :state"
)

SOME_UNFINISHED: Final = sql("""
    SELECT 1 FROM tpc_transaction WHERE finished IS NULL ORDER BY application LIMIT 1
""")
SOME_UNFINISHED_OF: Final = sql("""
    SELECT 1 FROM tpc_transaction
    WHERE finished IS NULL AND application = :of ORDER BY batch LIMIT 1
""")
"""The first entry of the partial index: without an order, a database may look for it
among what is finished."""

UNFINISHED_APPLICATIONS: Final = sql("""
    SELECT DISTINCT application AS application FROM tpc_transaction
    WHERE finished IS NULL ORDER BY application
""")


@functools.cache
def load_transactions(
    which: sa.TextClause, absent: Set[str] = frozenset()
) -> sa.Select[Any]:
    """Transactions in batch order, a row for each participant, at least one."""
    t, a, d = schema.transaction, schema.application, schema.delivery
    columns = [t.c[fact.name] for fact in present(absent)]
    durable = a.c.durable_forgotten_through.label("forgotten_through")
    joined = t.outerjoin(a, a.c.name == t.c.application)
    return (
        sa.select(*columns, durable, *settled(d))
        .select_from(joined.outerjoin(d, d.c.transaction_id == t.c.id))
        .where(which)
        .order_by(t.c.application, t.c.batch, t.c.attempt, d.c.position)
    )


@functools.cache
def load_parts(part: sa.Table, which: sa.TextClause) -> sa.Select[Any]:
    """Deliveries or receipts of the same transactions, by position."""
    ids = sa.select(schema.transaction.c.id).where(which)
    return (
        sa.select(*settled(part))
        .where(part.c.transaction_id.in_(ids))
        .order_by(part.c.transaction_id, part.c.position)
    )


@functools.cache
def as_array_condition(which: sa.TextClause, dialect: str) -> sa.TextClause:
    """The same condition as an array: PostgreSQL then expects few, and uses the index.

    What it expects of an application's unfinished ones grows with the finished ones of
    that application, and it then reads all deliveries, or all transactions, rather than
    look for some. Of an array it expects ten elements, and looks for each.
    """
    if dialect != "postgresql":
        return which
    return sa.text(
        "tpc_transaction.id = ANY (ARRAY("  # noqa: S608 - ours alone
        f"SELECT id FROM tpc_transaction WHERE {which.text}))"
    )


DELIVERIES_OF_ONE: Final = load_parts(schema.delivery, ONE)

ADD_AUDIT: Final = schema.audit.insert()


def _add_rows(table: sa.Table, rows: int) -> list[sa.Insert]:
    """Insert so many, `numbered`: SQLAlchemy would make one INSERT of all each time."""
    names = [column.name for column in settled(table)]
    return [
        table.insert().values({c: sa.bindparam(f"{c}_{n}") for c in names})
        for n in range(rows)
    ]


def numbered(rows: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Return the parameters of several rows as those of one statement."""
    return {f"{k}_{n}": value for n, row in enumerate(rows) for k, value in row.items()}


MOST_JOINED: Final = 16
"""Rows that are added in one statement with another write; more go by themselves."""


@functools.cache
def add_transaction(
    dialect: str, participants: int, absent: Set[str] = frozenset()
) -> Writes:
    """Add a transaction and so many deliveries, which are `numbered`."""
    deliveries = _add_rows(schema.delivery, participants)
    add = schema.transaction.insert().values(_values(present(absent)))
    return join_writes(dialect, *deliveries, add)


def _values(facts: Iterable[Fact]) -> dict[str, sa.BindParameter[Any]]:
    return {fact.name: sa.bindparam(fact.name) for fact in facts}


@functools.cache
def update_transaction(
    dialect: str, receipts: int, absent: Set[str] = frozenset()
) -> Writes:
    """Store a decision of `one` with so many receipts, `numbered`; or a later state."""
    t = schema.transaction
    update = t.update().where(t.c.id == sa.bindparam("one"))
    update = update.values(_values(present(absent, only_changes=True)))
    return join_writes(dialect, *_add_rows(schema.receipt, receipts), update)


ADD_RECEIPTS: Final = schema.receipt.insert()
ADD_DELIVERIES: Final = schema.delivery.insert()


_BY: Final[sa.BindParameter[str]] = sa.bindparam("by", expanding=True)
"""Names of participants."""


def _acknowledge() -> sa.Update:
    t, d, id_ = schema.transaction, schema.delivery, sa.bindparam("one", type_=sa.Text)
    is_decided = sa.exists().where(t.c.id == id_, t.c.decided.is_not(None))
    return (
        d.update()
        .where(
            d.c.transaction_id == id_,
            d.c.participant.in_(_BY),
            d.c.acknowledged.is_(None),
            is_decided,
        )
        .values(
            acknowledged=sa.bindparam("at"),
            untold=sa.bindparam("untold"),
            retry_at=None,
        )
    )


ACKNOWLEDGE: Final = _acknowledge()


def _locked(dialect: str) -> tuple[sa.ColumnElement[bool], ...]:
    """Lock the application before the row, which is compared again after the wait."""
    if not supports_joined_writes(dialect):
        return ()
    return (sa.exists(sa.select(LOCK_APPLICATION.cte("locked").c.name)),)


@functools.cache
def acknowledge_last(dialect: str) -> Writes:
    """Acknowledge for all of `by`, and finish, unless another one is missing.

    Only a record whose `state_before` and `checksum_before` are known. Where it changes
    no row of the transactions, the acknowledgements alone are stored.
    """
    t, d, id_ = schema.transaction, schema.delivery, sa.bindparam("one", type_=sa.Text)
    others = (
        sa.exists()
        .where(d.c.transaction_id == id_, d.c.participant.not_in(_BY))
        .where(schema.is_null(d.c.acknowledged), schema.is_null(d.c.given_up))
    )
    finish = (
        t.update()
        .where(t.c.id == id_, t.c.state == sa.bindparam("state_before"), ~others)
        .where(t.c.checksum == sa.bindparam("checksum_before"))
        .where(*_locked(dialect))
        .values(
            state=sa.bindparam("state"),
            checksum=sa.bindparam("checksum"),
            finished=sa.bindparam("at"),
        )
    )
    return join_writes(dialect, _acknowledge(), finish)


GIVE_UP: Final = sql("""
    UPDATE tpc_delivery SET given_up = :at, retry_at = NULL
    WHERE transaction_id = :one AND participant = :by
""")

POSTPONE: Final = sql("""
    UPDATE tpc_delivery SET retries = retries + 1, error = :error, retry_at = :retry_at
    WHERE transaction_id = :one AND participant = :by AND acknowledged IS NULL
""")

_MAY_GO: Final = """
    application = :of {0} AND batch < coalesce(
        (SELECT batch FROM tpc_transaction
         WHERE application = :of {0}
           AND (finished IS NULL OR finished >= :finished_before)
         ORDER BY batch LIMIT 1),
        (SELECT batch FROM tpc_transaction
         WHERE application = :of ORDER BY batch DESC LIMIT 1))
"""
"""Batches below the newest begun (rule 17) and below whatever must stay."""

_IN_SLICE: Final = """
    AND batch < :slice + (SELECT batch FROM tpc_transaction
                          WHERE application = :of ORDER BY batch LIMIT 1)
"""
"""So many batch numbers from the oldest on: what lies above is not even looked at."""

FORGETTABLE: Final = sa.text(
    "SELECT DISTINCT batch FROM tpc_transaction WHERE "  # noqa: S608 - ours alone
    f"{_MAY_GO.format(_IN_SLICE)} ORDER BY batch"
)
FORGETTABLE_COUNT: Final = sa.text(
    "SELECT count(*), max(batch) FROM tpc_transaction WHERE "  # noqa: S608 - ours alone
    f"{_MAY_GO.format('')}"
)
"""How many transactions that is in all, and forgotten_through after it."""

RAISE_FORGOTTEN_THROUGH: Final = sql("""
    UPDATE tpc_application SET forgotten_through = :up_to WHERE name = :of
""")
_FORGET: Final = """
    DELETE FROM {} WHERE transaction_id IN
        (SELECT id FROM tpc_transaction WHERE application = :of AND batch <= :up_to)
"""
FORGET_RECEIPTS: Final = sql(_FORGET.format("tpc_receipt"))
FORGET_DELIVERIES: Final = sql(_FORGET.format("tpc_delivery"))
FORGET_TRANSACTIONS: Final = sql("""
    DELETE FROM tpc_transaction WHERE application = :of AND batch <= :up_to
""")
FORGET_RUNS: Final = sql("""
    DELETE FROM tpc_run WHERE application = :of AND sequence <
        (SELECT max(sequence) - :kept FROM tpc_run
         WHERE application = :of AND batch < :up_to)
""").bindparams(kept=KEPT_RUNS)
"""Superseded runs beyond the newest 1,000. A request of one of them is refused, because
its batch is too old."""

FORGET_EARLIER_RECEIPTS: Final = sql("""
    DELETE FROM tpc_receipt WHERE transaction_id IN
        (SELECT id FROM
            (SELECT id, state FROM tpc_transaction
             WHERE application = :of AND decision = 'commit' AND batch < :in_batch
             ORDER BY batch DESC LIMIT 1) AS earlier
         WHERE state = 'committed')
""")
"""Of the commit before this one, if it is finished: its batch is never begun again."""
