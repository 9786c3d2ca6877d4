"""Rows in PostgreSQL's binary form are the rows that were sent."""

from __future__ import annotations

import datetime
import decimal
from typing import Any

import psycopg
import pyarrow as pa
import pytest
from support.branches import Branch, records
from support.kinds import tagged_rows
from support.participant import World, database_of, keep, select

from tracing_2pc.participant.journal import copy_binary

DAY = datetime.date(1969, 7, 20)
ZONED = datetime.datetime(1815, 12, 10, 1, 2, 3, 4, tzinfo=datetime.timezone.utc)
MOMENT = ZONED.replace(tzinfo=None)
LATEST = ZONED.replace(year=9999, tzinfo=None)

VALUES: dict[str, tuple[pa.DataType, str, list[Any]]] = {
    "yes": (pa.bool_(), "boolean", [True, False, None]),
    "small": (pa.int16(), "smallint", [-(2**15), None, 2**15 - 1]),
    "middle": (pa.int32(), "integer", [-(2**31), None, 2**31 - 1]),
    "large": (pa.int64(), "bigint", [-(2**63), None, 2**63 - 1]),
    "short": (pa.float32(), "real", [0.5, None, float("-inf")]),
    "double": (pa.float64(), "double precision", [1e-300, None, float("inf")]),
    "day": (pa.date32(), "date", [DAY, None, datetime.date.max]),
    "moment": (pa.timestamp("us"), "timestamp", [MOMENT, None, LATEST]),
    "zoned": (pa.timestamp("us", "UTC"), "timestamptz", [ZONED, None, ZONED]),
    "text": (pa.string(), "text", ["", None, 'a "quoted", Ünïcode\nline']),
    "bytes": (pa.binary(), "bytea", [b"", None, b"\x00\xff\\"]),
}


@pytest.mark.parametrize("sliced", [False, True], ids=["whole", "sliced"])
def test_values_come_back_as_they_were(postgres_database, *, sliced):
    """Of each type, NULL and the ends of its range; also of a slice of a batch."""
    columns = ", ".join(f"{name} {kind}" for name, (_, kind, _) in VALUES.items())
    arrays = [pa.array(v[:1] * 8 + v, kind) for kind, _, v in VALUES.values()]
    batch = pa.RecordBatch.from_arrays(arrays, list(VALUES))
    rows = batch.slice(8) if sliced else batch
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE t ({columns})")
        connection.execute("SET TIME ZONE 'UTC'")
        with connection.cursor().copy("COPY t FROM STDIN (FORMAT binary)") as copy:
            copy.write(copy_binary.HEADER)
            copy.write(copy_binary.encode(rows))
            copy.write(copy_binary.TRAILER)
        stored = connection.execute("SELECT * FROM t").fetchall()
    assert stored == [tuple(row.values()) for row in rows.to_pylist()]


@pytest.mark.parametrize(
    ("kind", "value"),
    [
        (pa.date32(), -(2**31)),
        (pa.timestamp("us"), -(2**63)),
        (pa.date32(), 10_957 - 2**31),
        (pa.timestamp("us"), 946_684_800_000_000 - 2**63),
        (pa.timestamp("us", "UTC"), 946_684_800_000_000 - 2**63),
    ],
    ids=["day", "moment", "day -infinity", "-infinity", "zoned -infinity"],
)
def test_what_has_no_number_there_is_refused(kind, value):
    """Before a byte is sent: it would be another day."""
    column = pa.array([value], kind)
    batch = pa.RecordBatch.from_arrays([column], ["when"])
    with pytest.raises(OverflowError):
        copy_binary.encode(batch)


def test_a_batch_that_is_too_long_for_one_piece(monkeypatch):
    """Arrow joins 2 GiB at most; a batch of long records may come to more."""
    column = pa.array(range(7), pa.int64())
    batch = pa.RecordBatch.from_arrays([column], ["id"])
    whole, most = copy_binary.encode(batch), [3]
    encode = copy_binary.encode

    def bounded(part: pa.RecordBatch) -> memoryview:
        if part.num_rows > most[0]:
            raise pa.ArrowCapacityError("array cannot contain more")
        return encode(part)

    monkeypatch.setattr(copy_binary, "encode", bounded)
    pieces = list(copy_binary.pieces(batch))
    assert (len(pieces), b"".join(pieces)) == (3, bytes(whole))
    most[0] = 0
    with pytest.raises(OverflowError):
        list(copy_binary.pieces(batch))


LARGE = 40_000
"""Rows of a body that is sent on in binary."""


def world_of(url: str, columns: str) -> World:
    """Return a ledger whose table somebody else has made."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE TABLE orders_tpc ({columns}, tpc_tag bigint)")
    return tagged_rows(url)


def branch_of(**first: tuple[Any, pa.DataType]) -> Branch:
    """Return a large branch: of each column its value, and then NULL."""
    nulls = [None] * (LARGE - 1)
    arrays = {name: pa.array([v, *nulls], kind) for name, (v, kind) in first.items()}
    return records(**arrays)


def forms(world: World) -> list[str]:
    """Return, as they come, in which form COPY is asked for rows."""
    asked: list[str] = []
    database = database_of(world)
    load = database.load

    def note(connection: Any, table: str, sent: Any) -> int:
        asked.append("binary" if sent.typed else "csv")
        return int(load(connection, table, sent))

    database.load = note
    return asked


@pytest.mark.parametrize(
    ("sent", "value"),
    [
        (pa.decimal128(10, 1), decimal.Decimal("0.3")),
        (pa.decimal128(10, 2), decimal.Decimal("1234.56")),
        (pa.float32(), 0.1),
    ],
    ids=["tenth", "cents", "float"],
)
@pytest.mark.parametrize("column", ["real", "double precision"])
def test_a_float_does_not_depend_on_how_many_rows_come_with_it(
    postgres_database, column, sent, value
):
    """What is written is what PostgreSQL reads of the digits, in either form."""
    world = world_of(postgres_database, f"id bigint, amount {column}")
    asked = forms(world)
    of = {"id": (1, pa.int64()), "amount": (value, sent)}
    keep(world, "orders.1.1", branch_of(**of))
    few = {name: pa.array([value], kind) for name, (value, kind) in of.items()}
    keep(world, "orders.2.1", records(**few))
    stored = "SELECT DISTINCT amount FROM orders_tpc WHERE id = 1"
    assert asked == ["binary", "csv"]
    assert select(world.resource, stored) == [(float(str(value)),)]
    world.resource.close()


CODE = "0d1f4a0e-3a5b-4d7e-9d52-0c6f0b7c8a11"


@pytest.mark.parametrize(
    ("kind", "form"),
    [("text", "binary"), ("varchar(40)", "binary"), ("uuid", "csv"), ("code", "csv")],
)
def test_binary_is_for_types_that_are_known(postgres_database, kind, form):
    """Others, as a domain, take the same records as csv."""
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        connection.execute("CREATE DOMAIN code AS text")
    world = world_of(postgres_database, f"id bigint, code {kind}")
    asked = forms(world)
    branch = branch_of(id=(1, pa.int64()), code=(CODE, pa.string()))
    keep(world, "orders.1.1", branch)
    shown = "SELECT id, code::text FROM orders WHERE id IS NOT NULL"
    assert select(world.resource, shown) == [(1, CODE)]
    assert (asked, world.visible()) == ([form], LARGE)
    world.resource.close()
