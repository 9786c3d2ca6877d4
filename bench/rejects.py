"""Micro-batches of real Spark of which one row is rejected, beside batches without one.

    services      a batch to two services on PostgreSQL
    none          the same with `rejects`, and no row is refused
    tables        a batch to two tables on two PostgreSQL servers, without services
    value         the same with `rejects`; the first table refuses one row for its value
    check, unique, reference    for a constraint

Every batch has 10,000 rows on two partitions; what is stored is counted and removed.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.micro_batches import (
    PARTITIONS,
    WARM_UP,
    Arm,
    World,
    committed,
    listening_world,
    take_turns,
)
from bench.pair import compare, line
from bench.stored import LEDGER, check_and_empty

ROWS: Final = 10_000
ROUNDS: Final = 61
LIMITS: Final = {
    "R1": ("none", "services", 1.05),
    "R2": ("value", "tables", 4.0),
    "R3": ("check", "tables", 7.0),
    "R4": ("unique", "tables", 7.0),
    "R5": ("reference", "tables", 7.0),
}
"""Goals: whom they compare, and the most that is allowed."""

_COLUMNS: Final = (
    "id bigint, day date, origin text, carrier text, amount double precision, "
    "units int, seen timestamptz, remark text, tpc_tag bigint NOT NULL DEFAULT 0"
)
_KINDS: Final[Mapping[str, tuple[str, str, str]]] = {
    "value": ("", "remark", "concat(remark, char(0))"),
    "check": ("CHECK (amount >= 0)", "amount", "-1.0D"),
    "unique": ("UNIQUE (id)", "id", "0L"),
    "reference": ("FOREIGN KEY (units) REFERENCES every_unit", "units", "-1"),
}
"""A constraint of the first table, and the value that it refuses, of which column."""
_NAMES: Final = ("services", "none", "tables", *_KINDS)


def measure(
    most: int, rows: int = ROWS, warm_up: int = WARM_UP
) -> Iterator[dict[str, Any]]:
    """Yield a line for each goal."""
    with (
        tempfile.TemporaryDirectory(prefix="tpc-bench-") as folder,
        listening_world(Path(folder) / "world") as world,
    ):
        _make_tables(world)
        arms = {name: _arm(world, name) for name in _NAMES}
        rounds = min(most, ROUNDS)
        seconds = take_turns(world, rows, rounds, arms, warm_up, _check)
    for goal, (ours, base, limit) in LIMITS.items():
        settings = {"rows": rows, "base": base, "partitions": PARTITIONS}
        yield line(goal, compare(seconds[ours], seconds[base]), limit, settings)


def _arm(world: World, name: str) -> Arm:
    from pyspark.sql.functions import expr

    from tracing_2pc import ParticipantSink, TableSink

    first, second = world.databases
    rejecting = {} if name in ("services", "tables") else {"rejects": "rejected"}
    sinks: list[Any]
    if name in ("services", "none"):
        token = f"file:{world.folder / 'token'}"
        sinks = [ParticipantSink(world.participants, token=token)]
    else:
        sinks = [TableSink(first, _table(name)), TableSink(second, "kept")]
    if rejecting:
        sinks.append(TableSink(first, "rejected"))
    write = committed(world, name, sinks, **rejecting)
    _, column, value = _KINDS.get(name, ("", "units", "units"))
    wrong = expr(f"CASE WHEN id = 1 THEN {value} ELSE {column} END")

    def batch(df: Any, number: int) -> None:
        numbered = df.withColumn("id", expr("monotonically_increasing_id()"))
        write(numbered.withColumn(column, wrong), number)

    return batch


def _table(name: str) -> str:
    return f"{name}_rows"


def _make_tables(world: World) -> None:
    import psycopg

    with psycopg.connect(world.databases[0], autocommit=True) as connection:
        connection.execute(
            "CREATE TABLE every_unit AS SELECT generate_series(0, 999) AS id"
        )
        connection.execute("ALTER TABLE every_unit ADD PRIMARY KEY (id)")
        for name, (constraint, _, _) in _KINDS.items():
            more = f", {constraint}" if constraint else ""
            connection.execute(f"CREATE TABLE {_table(name)}_tpc ({_COLUMNS}{more})")


def _check(world: World, name: str, rows: int) -> None:
    first, second = world.databases
    if name in ("services", "none"):
        for url in world.databases:
            check_and_empty(url, rows, *LEDGER)
        return
    kept = rows - (name in _KINDS)
    check_and_empty(first, kept, _table(name), f"{_table(name)}_tpc")
    check_and_empty(second, kept, "kept", "kept_tpc")
    if name in _KINDS:
        check_and_empty(first, 1, "rejected", "rejected_tpc")
