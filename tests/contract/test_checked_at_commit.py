"""What a table's constraint refuses only when the transaction ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import psycopg
import pyarrow as pa
import pytest
from support.participant import (
    ONE,
    Branch,
    World,
    claimed_rows,
    keep,
    records,
    tagged_rows,
)

Make = Callable[[str], World]

TABLE = """CREATE TABLE orders_tpc
    (id bigint UNIQUE {}, amount double precision, tpc_tag bigint)"""
LATER = "DEFERRABLE INITIALLY DEFERRED"

pytestmark = pytest.mark.parametrize("make", [tagged_rows, claimed_rows])


def created(url: str, when: str, make: Make) -> World:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(TABLE.format(when))
    return make(url)


def orders(ids: Sequence[int]) -> Branch:
    return records(id=pa.array(ids, pa.int64()), amount=[1.5] * len(ids))


def test_it_is_a_vote_to_abort(postgres_database: str, make: Make) -> None:
    """Whichever way the body goes, and as often as it is asked."""
    world = created(postgres_database, LATER, make)
    keep(world, "orders.1.1", ONE)
    for _ in range(2):
        answer = world.prepare("orders.2.1", ONE)
        assert answer.status_code == 409
        assert answer.get_json()["vote"] == "abort"
    world.resource.close()


@pytest.mark.parametrize("when", ["", LATER], ids=["at once", "later"])
def test_aborted_rows_in_the_way_are_deleted(
    postgres_database: str, make: Make, when: str
) -> None:
    """Not now, until they are gone; never a vote to abort."""
    world = created(postgres_database, when, make)
    many = orders(range(40_000))
    assert world.prepare("orders.1.1", many).status_code == 200
    assert world.abort("orders.1.1").status_code == 200
    few = orders([100, 101, 39_998, 39_999])
    answers = [world.prepare("orders.1.2", few).status_code for _ in range(3)]
    assert set(answers) <= {200, 503}
    assert answers[-1] == 200
    world.resource.close()
