"""The SQL of the decision log's lists, for people."""

from __future__ import annotations

import functools
from collections.abc import Set
from typing import Final

import sqlalchemy as sa

from tracing_2pc.store.kit import settled
from tracing_2pc.store.log import schema
from tracing_2pc.store.log.facts import listed
from tracing_2pc.store.log.statements import sql

STATES_OF: Final = sa.text(
    "SELECT id AS id, state AS state FROM tpc_transaction WHERE id IN :ids"
).bindparams(sa.bindparam("ids", expanding=True))
"""By the primary key: a few transactions that participants have named."""

APPLICATIONS: Final = sa.text(
    "SELECT name AS name, forgotten_through AS forgotten_through "
    "FROM tpc_application ORDER BY name"
)
APPLICATION_OF: Final = sa.text(
    "SELECT name AS name FROM tpc_application WHERE query = :asked"
)

PASSED: Final = sa.text("""id IN
    (SELECT (SELECT id FROM tpc_transaction AS newest
             WHERE newest.application = tpc_application.name
             ORDER BY batch DESC, attempt DESC LIMIT 1) FROM tpc_application)
    AND passed_by IS NOT NULL AND state IN ('active', 'aborting', 'aborted')
""")
"""Newest transactions that a stream has passed without a commit."""

_NEWEST_COMMIT: Final = """
    SELECT (SELECT one.id FROM tpc_transaction AS one
            WHERE one.application = tpc_application.name AND one.decision = 'commit'
            ORDER BY one.batch DESC LIMIT 1 OFFSET {}) FROM tpc_application
"""
NEWEST_COMMITS: Final = sa.text(
    f"id IN ({' UNION ALL '.join(map(_NEWEST_COMMIT.format, range(3)))}) "
    "AND state = 'committed' AND started >= :since"
)
"""The last three of each application, as far as they are finished."""

PRESENCES: Final = sa.select(*settled(schema.presence)).order_by(
    schema.presence.c.application, schema.presence.c.since
)
"""Some of each application: `KEPT_PRESENCES`."""
PRESENCES_OF: Final = PRESENCES.where(
    schema.presence.c.application == sa.bindparam("of")
)

AUDIT_OF: Final = (
    sa.select(*settled(schema.audit))
    .where(schema.audit.c.about == sa.bindparam("one"))
    .order_by(schema.audit.c.at)
)
"""Reads the whole audit, which has a row for each action of a person."""

_SUMMARY: Final = """
    SELECT {columns}, id AS id
    FROM {source} WHERE {wanted} ORDER BY batch {order}, attempt {order} LIMIT :most
"""
_PLACE: Final = """application = :of AND batch BETWEEN :low AND :high
      AND (batch, attempt) {beyond} (:from_batch, :from_attempt)"""
_BEYOND: Final = {"ASC": ">", "DESC": "<"}
_OPPOSITE: Final = {"ASC": "DESC", "DESC": "ASC"}
_WANTED: Final = {
    # These as the partial indexes spell them.
    "unfinished": "finished IS NULL",
    "others": "state IN ('aborted', 'concluded')",
    "state": "state = :state",
    "since": "started >= :since",
    "until": "started <= :until",
    # Not by EXISTS, which a database may join, and read all deliveries for.
    "participant": """(SELECT count(*) FROM tpc_delivery WHERE
        transaction_id = id AND participant = :participant) > 0""",
}


@functools.cache
def summaries(
    order: str, *wanted: str, absent: Set[str] = frozenset()
) -> sa.TextClause:
    """Select one application's transactions beyond a place, along the index.

    `participant` is looked for in `:looked_at` transactions, since none may have it.
    """
    conditions = [_PLACE.format(beyond=_BEYOND[order])]
    conditions += [_WANTED[name] for name in wanted if name != "participant"]
    source, where = "tpc_transaction", " AND ".join(conditions)
    if "participant" in wanted:
        source = f"({_looked_at(order, where)}) AS looked_at"
        where = _WANTED["participant"]
    # A column has a name of ours, as above.
    columns = ", ".join(f"{fact.name} AS {fact.name}" for fact in listed(absent))
    made = {"source": source, "order": order, "wanted": where, "columns": columns}
    return sql(_SUMMARY.format(**made))


@functools.cache
def last_looked_at(order: str, *wanted: str) -> sa.TextClause:
    """Where `summaries` by participant stops to look, and how many it looks at."""
    conditions = [_PLACE.format(beyond=_BEYOND[order])]
    conditions += [_WANTED[name] for name in wanted if name != "participant"]
    last = _OPPOSITE[order]
    return sa.text(
        "SELECT id AS id, count(*) OVER () AS looked_at FROM "  # noqa: S608 - ours alone
        f"({_looked_at(order, ' AND '.join(conditions))}) AS looked_at "
        f"ORDER BY batch {last}, attempt {last} LIMIT 1"
    )


def _looked_at(order: str, where: str) -> str:
    return (
        f"SELECT * FROM tpc_transaction WHERE {where} "  # noqa: S608 - ours alone
        f"ORDER BY batch {order}, attempt {order} LIMIT :looked_at"
    )


AUDIT: Final = (
    sa.select(*settled(schema.audit))
    .where(
        schema.audit.c.at < sa.bindparam("before"),
        schema.audit.c.about.like(sa.bindparam("like"))
        | (schema.audit.c.about == sa.bindparam("about")),
    )
    .order_by(schema.audit.c.at.desc())
    .limit(sa.bindparam("most"))
)
"""The newest; reads the whole audit, as `AUDIT_OF` does."""

_BEGUN: Final = """
    SELECT started FROM tpc_transaction WHERE application = :of AND batch {} :at
    ORDER BY batch {order}, attempt {order} LIMIT 1
"""
BEGUN_FROM: Final = sql(_BEGUN.format(">=", order="ASC"))
"""When the first attempt at a batch, or after it, was begun."""
BEGUN_THROUGH: Final = sql(_BEGUN.format("<=", order="DESC"))
"""When the last attempt at a batch, or before it, was begun."""
OLDEST_AND_NEWEST: Final = sql("""
    SELECT (SELECT batch FROM tpc_transaction WHERE application = :of
            ORDER BY batch LIMIT 1) AS oldest,
           (SELECT batch FROM tpc_transaction WHERE application = :of
            ORDER BY batch DESC LIMIT 1) AS newest
""")

OUTSTANDING_OF: Final = (
    sa.select(*settled(schema.delivery))
    .where(
        schema.delivery.c.transaction_id.in_(sa.bindparam("ids", expanding=True)),
        schema.is_null(schema.delivery.c.acknowledged)
        | schema.delivery.c.untold.is_not(None),
    )
    .order_by(schema.delivery.c.transaction_id, schema.delivery.c.position)
)
"""Participants that have not acknowledged, or that were told a part only."""

DELIVERIES_AT: Final = sa.select(*settled(schema.delivery)).where(
    schema.delivery.c.transaction_id.in_(sa.bindparam("ids", expanding=True)),
    schema.delivery.c.participant == sa.bindparam("by"),
)
"""By the primary key: what one participant acknowledged of so many."""
