"""Between its last look and its end, a prepare cannot be overtaken (rule 20)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import psycopg
import pytest
from support.branches import ONE, OTHER
from support.kinds import KINDS
from support.participant import World, journal_of, keep
from support.waiting import AT_LAST, PAUSE

T = "orders.7.1"

OVERTAKE: dict[str, Callable[[World], Any]] = {
    "abort": lambda world: world.abort(T),
    "abort of the branch": lambda world: world.abort(T, branch=ONE.branch),
    "empty commit": lambda world: world.commit(T),
    "forgotten_through": lambda world: world.abort("orders.9.1", forgotten_through=8),
}


def blocks(url: str, thread: threading.Thread) -> bool:
    """Say whether it comes to wait for a lock of ours; False if it comes to its end."""
    waiting = (
        "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted AND "
        "database = (SELECT oid FROM pg_database WHERE datname = current_database())"
    )
    with psycopg.connect(url, autocommit=True) as connection:
        while thread.is_alive():
            if connection.execute(waiting).fetchone() != (0,):
                return True
            thread.join(PAUSE)
    return False


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("by", OVERTAKE)
def test_a_decision_waits_for_the_end_of_a_prepare(
    kind: str, by: str, postgres_database: str
) -> None:
    """It finds the branch prepared, never half way: what was sealed stays sealed."""
    world, other = (KINDS[kind](postgres_database) for _ in range(2))
    keep(world, "orders.1.1", OTHER)
    found: list[int] = []
    overtake = threading.Thread(
        target=lambda: found.append(OVERTAKE[by](other).status_code)
    )
    journal, waited = journal_of(world), []

    def look_and_sleep(note: Callable[..., Any]) -> Callable[..., Any]:
        def after_a_while(*arguments: Any, **named: Any) -> Any:
            overtake.start()
            waited.append(blocks(postgres_database, overtake))
            return note(*arguments, **named)

        return after_a_while

    journal.add_prepared = look_and_sleep(journal.add_prepared)
    assert world.prepare(T).status_code == 200
    overtake.join(AT_LAST)
    assert (waited, found) == ([True], [200])
    if by == "forgotten_through":
        assert other.listed() == [(T, ONE.branch, "prepared")]
        assert other.resolve(T, "abort").status_code == 200
    assert (other.in_doubt(), other.visible()) == (0, OTHER.rows)
    for made in (world, other):
        made.resource.close()
