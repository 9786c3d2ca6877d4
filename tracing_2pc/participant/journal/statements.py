"""The journal's statements, made once: making one takes longer than executing it."""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa
from sqlalchemy.dialects import postgresql

from tracing_2pc.participant.journal.schema import Tables
from tracing_2pc.store.engines.writes import Writes, join_writes, supports_joined_writes

_APPLICATION: Final = ("application",)
_BATCH: Final = (*_APPLICATION, "batch")
_TRANSACTION: Final = (*_BATCH, "attempt")
_BRANCH: Final = ("partition", "task_attempt")
_CONTENT: Final = ("rows", "digest", "checksum", "since")

_NEXT_TAG: Final = {
    "postgresql": "nextval(pg_get_serial_sequence('{}', 'tag'))",
    # The database is locked. A row is not there before the first tag.
    "sqlite": "coalesce(max(seq), 0) + 1 FROM sqlite_sequence WHERE name = '{}'",
}


class Statements:
    """Parameters name a row's key `of_<column>`, and are else called as the columns."""

    def __init__(self, tables: Tables, dialect: str, clock: str) -> None:
        self._tables = tables
        self._dialect = dialect
        self._now = sa.literal_column(clock, sa.Double).label("now")
        b = tables.branch
        self.read_all = self._select()
        self.read_one = self._select(sa.false(), of_branch=True)
        self._is_unsealed = (*_bound(b, _TRANSACTION), b.c.sealed.is_(None))
        self.unsealed = sa.select(b.c.tag).where(*self._is_unsealed)
        self.clock = sa.select(self._now)
        self.next_tag = _NEXT_TAG[dialect].format(b.name)
        self._make_writes(None)

    def hide_in(self, hidden: sa.Table, leftovers: sa.ColumnElement[bool]) -> None:
        """Keep the tags of prepared branches in this table, until they are committed.

        The tags of aborted branches are left to `Journal.on_end`. `leftovers` is true
        if rows of theirs, or other invisible ones, are still there: it is read with
        one branch.
        """
        self.read_one = self._select(leftovers, of_branch=True)
        self._make_writes(hidden)

    def _make_writes(self, hidden: sa.Table | None) -> None:
        t, b = self._tables.transaction, self._tables.branch
        outcome: sa.BindParameter[Any] = sa.bindparam("outcome")
        now: sa.BindParameter[Any] = sa.bindparam("now")
        seal = t.update().where(*_bound(t, _TRANSACTION))
        seal = seal.values(seal=outcome, resolved_because=sa.bindparam("because"))
        end = b.update().where(*self._is_unsealed).values(state=outcome, sealed=now)
        self.hide: Writes = ()
        show: Writes = ()
        if hidden is not None:
            self.hide = (hidden.insert().values(tag=sa.bindparam("of_tag")),)
            show = (hidden.delete().where(hidden.c.tag.in_(self.unsealed)),)
        self.commit = join_writes(self._dialect, seal, *show, end)
        self.abort = join_writes(self._dialect, seal, end)
        several = supports_joined_writes(self._dialect)
        self.add_prepared = self._add_prepared(hidden) if several else None

    def _add_prepared(self, hidden: sa.Table | None) -> sa.Insert:
        """Add a prepared branch, and return its tag; none: another has added it."""
        t, b = self._tables.transaction, self._tables.branch
        add_transaction = (
            postgresql.insert(t)
            .values(_parameters(*_TRANSACTION, "carrier"))
            .on_conflict_do_nothing()
        )
        add: Any = (
            postgresql.insert(b)
            .values(_parameters(*_TRANSACTION, *_BRANCH, "tag", *_CONTENT))
            .values(state="prepared")
            .on_conflict_do_nothing()
            .returning(b.c.tag)
        )
        if hidden is not None:
            tags = sa.select(add.cte("added").c.tag)
            add = hidden.insert().from_select(["tag"], tags).returning(hidden.c.tag)
        with_transaction: sa.Insert = add.add_cte(add_transaction.cte("of_transaction"))
        return with_transaction

    def _select(
        self, *leftovers: sa.ColumnElement[bool], of_branch: bool = False
    ) -> sa.Select[Any]:
        nothing = sa.select(sa.literal(1).label("row")).subquery()
        tables = self._tables
        a, t, b = tables.application, tables.transaction, tables.branch
        joined = nothing.outerjoin(a, sa.and_(*_bound(a, _APPLICATION)))
        batch = sa.and_(*_bound(t, _BATCH))
        own = _bound(b, _TRANSACTION + _BRANCH * of_branch)
        # Only with the first branch: a transaction may have thousands.
        first = sa.select(sa.func.min(b.c.tag)).where(*own).scalar_subquery()
        is_first = sa.or_(b.c.tag.is_(None), b.c.tag == first)
        return sa.select(
            *(a.c.forgotten_through, a.c.participant),
            sa.select(tables.identity.c.id).scalar_subquery().label("journal"),
            *(t.c.attempt, t.c.seal, t.c.resolved_because),
            sa.case((is_first, t.c.carrier)).label("carrier"),
            *(b.c.tag, b.c.partition, b.c.task_attempt, b.c.state),
            *(b.c.rows.label("row_count"), b.c.digest, b.c.checksum),
            *(b.c.since, b.c.sealed, self._now),
            *(some.label("leftovers") for some in leftovers),
        ).select_from(
            joined.outerjoin(t, batch).outerjoin(
                b, sa.and_(t.c.attempt == sa.bindparam("of_attempt"), *own)
            )
        )


def _parameters(*names: str) -> dict[str, sa.BindParameter[Any]]:
    return {name: sa.bindparam(name) for name in names}


def _bound(
    table: sa.Table, names: tuple[str, ...]
) -> tuple[sa.ColumnElement[bool], ...]:
    return tuple(table.c[name] == sa.bindparam(f"of_{name}") for name in names)


def delete_at(table: str, chosen: str) -> str:
    """Return PostgreSQL's DELETE of chosen rows, by the name of their table, quoted.

    `chosen` is the SQL that selects one `ROW(ctid, tableoid)` each: partitions may use
    the same ctid. Each is found by its place, at the same cost, however many there are
    and whatever the planner knows of the table: it takes an array for a short one.
    """
    return (
        f"DELETE FROM {table} r USING unnest(ARRAY({chosen})) "  # noqa: S608 - quoted
        "AS c (place tid, part oid) WHERE r.ctid = c.place AND r.tableoid = c.part"
    )
