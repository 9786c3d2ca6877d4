"""What a participant keeps: prepared for ever, sealed up to forgotten_through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.branches import ONE, OTHER, TWIN
from support.kinds import KINDS, tagged_rows
from support.participant import World, database_of, keep

from tracing_2pc.participant import TaggedRows

T = "orders.5.1"
YEAR = 365 * 24 * 3600.0

Open = Callable[..., World]


def test_a_prepared_branch_waits_for_ever(open_at: Open) -> None:
    """Time, starts, sweeps and what others do leave it as it is (rule 12).

    Only a decision, or a person, ends it; its rows are all there then.
    """
    now = [1_000_000_000.0]
    world = open_at(clock=lambda: now[0])
    assert world.prepare(T).status_code == 200
    for batch in (6, 8):
        now[0] += YEAR
        keep(world, f"orders.{batch}.1", OTHER)
        assert world.prepare(f"orders.{batch + 1}.1", TWIN).status_code == 200
        assert world.abort(f"orders.{batch + 1}.1").status_code == 200
    keep(world, "orders.10.1", OTHER)  # sweeps what was aborted
    started = open_at(clock=lambda: now[0])
    assert started.listed() == [(T, ONE.branch, "prepared")]
    assert started.visible() == 3 * OTHER.rows
    assert started.commit(T, ONE).status_code == 200
    assert started.visible() == 3 * OTHER.rows + ONE.rows


def test_what_is_sealed_is_kept_above_forgotten_through(open_at: Open) -> None:
    """Through a start too: what was committed and what was aborted (rule 16)."""
    world = open_at()
    for batch in (5, 6):
        keep(world, f"orders.{batch}.1", ONE)
    assert world.abort("orders.6.2").status_code == 200
    assert world.abort("orders.7.1").status_code == 200
    assert world.commit("orders.9.1", forgotten_through=5).status_code == 200
    started = open_at()
    assert started.prepare("orders.5.2").status_code == 410
    assert started.commit("orders.6.1", ONE).status_code == 200
    assert started.abort("orders.6.1").status_code == 409
    for late in ("orders.6.1", "orders.6.2", "orders.7.1", "orders.9.1"):
        assert started.prepare(late, TWIN).status_code == 409
    another = started.prepare("orders.6.3").get_json()
    assert (another["vote"], another["committed"]) == ("abort", "orders.6.1")
    assert (started.in_doubt(), started.visible()) == (0, 2 * ONE.rows)


def test_a_counter_never_goes_back(postgres_database: str) -> None:
    """A start beside others that draw tags leaves a counter that is not lost alone."""
    world = tagged_rows(postgres_database)
    keep(world, "orders.1.1", ONE)
    beginning, asked = TaggedRows(postgres_database, "orders"), []

    def draw_beside(_: Any, __: Any, statement: str, *___: Any) -> None:
        asked.append(statement)
        if "pg_sequence_last_value" in statement:
            batch = sum("pg_sequence_last_value" in one for one in asked)
            if batch == 1:  # it has read the counter, and not yet the tags
                keep(world, "orders.2.1", ONE)

    engine = database_of(beginning).engine
    sa.event.listen(engine, "after_cursor_execute", draw_beside)
    beginning.open()
    assert any(one.startswith("LOCK TABLE") for one in asked)
    assert not any("setval" in one for one in asked)
    for each in (world.resource, beginning):
        each.close()


@pytest.mark.parametrize("kind", KINDS)
def test_a_counter_that_begins_anew_refuses_nobody(
    postgres_database: str, kind: str
) -> None:
    """Where rows are copied and the counter is not, branches get tags of their own."""
    first = KINDS[kind](postgres_database)
    for attempt in (1, 2):
        assert first.prepare(f"orders.{attempt}.1").status_code == 200
        assert first.commit(f"orders.{attempt}.1", ONE).status_code == 200
    first.resource.close()
    with psycopg.connect(postgres_database) as connection:
        named = "SELECT tablename FROM pg_tables WHERE tablename LIKE '%_tpc_branch'"
        ((name,),) = connection.execute(named).fetchall()
        connection.execute(f"DELETE FROM {name}; ALTER SEQUENCE {name}_tag_seq RESTART")
    world = KINDS[kind](postgres_database)
    assert world.prepare("orders.3.1", OTHER).status_code == 200
    assert world.commit("orders.3.1", OTHER).status_code == 200
    assert world.visible() == 2 * ONE.rows + OTHER.rows
    world.resource.close()
