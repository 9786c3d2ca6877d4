"""What a table's constraints and triggers do only when the transaction ends."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pyarrow as pa
import pytest
from support.branches import ONE, Branch, records
from support.kinds import tagged_rows
from support.participant import keep, refusal
from support.waiting import until

TABLE = """CREATE TABLE orders_tpc
    (id bigint UNIQUE {}, amount double precision, tpc_tag bigint)"""
LATER = "DEFERRABLE INITIALLY DEFERRED"
WAITING, SHARED = (
    "SELECT count(*) FROM pg_locks WHERE locktype = 'transactionid' AND NOT granted",
    "SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND mode = 'ShareLock'",
)
RAISES = (
    "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql "
    "AS $$ BEGIN RAISE EXCEPTION 'no'; END $$",
    f"CREATE CONSTRAINT TRIGGER refuse AFTER INSERT ON orders_tpc {LATER} "
    "FOR EACH ROW EXECUTE FUNCTION refuse()",
)


def run(url: str, *statements: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        for statement in statements:
            connection.execute(statement)


def orders(ids: Sequence[int]) -> Branch:
    return records(id=pa.array(ids, pa.int64()), amount=[1.5] * len(ids))


@pytest.mark.parametrize("why", ["constraint", "trigger"])
def test_it_is_a_vote_to_abort(postgres_database, start, why):
    """As often as it is asked."""
    run(postgres_database, TABLE.format(LATER if why == "constraint" else ""))
    if why == "trigger":
        run(postgres_database, *RAISES)
    world = start(tagged_rows, postgres_database, triggers=why == "trigger")
    if why == "constraint":
        keep(world, "orders.1.1", ONE)
    for _ in range(2):
        assert refusal(world, ONE)


@pytest.mark.parametrize("when", ["", LATER], ids=["at once", "later"])
def test_aborted_rows_in_the_way_are_deleted(postgres_database, start, when):
    """Not now, until they are gone; never a vote to abort."""
    run(postgres_database, TABLE.format(when))
    world = start(tagged_rows, postgres_database)
    many = orders(range(40_000))
    assert world.prepare("orders.1.1", many).status_code == 200
    assert world.abort("orders.1.1").status_code == 200
    few = orders([100, 101, 39_998, 39_999])
    assert world.prepare("orders.1.2", few).status_code == 200  # 503 is asked again


def test_no_decision_waits_for_what_a_constraint_waits_for(postgres_database):
    """A prepare that waits for somebody's row holds no lock of its application."""
    with (
        psycopg.connect(postgres_database, autocommit=True) as connection,
        psycopg.connect(postgres_database) as other,
    ):
        connection.execute("CREATE TABLE customer (id bigint PRIMARY KEY)")
        connection.execute("INSERT INTO customer VALUES (1), (2), (3)")
        key = f"id bigint REFERENCES customer {LATER}"
        connection.execute(TABLE.format("").replace("id bigint UNIQUE", key))
        world = tagged_rows(postgres_database, triggers=True)
        keep(world, "orders.1.1", ONE)
        other.execute("DELETE FROM customer WHERE id = 2")
        with ThreadPoolExecutor(1) as pool:
            prepared = pool.submit(world.prepare, "orders.2.1", ONE)
            until(lambda: connection.execute(WAITING).fetchone() == (1,))
            assert connection.execute(SHARED).fetchone() == (0,)
            assert world.abort("orders.3.1").status_code == 200
            other.rollback()
            assert prepared.result().status_code == 200
        keep(world, "orders.2.1", ONE)
    world.resource.close()
