"""Values on their way to a table: each comes back, or is refused by name."""

from __future__ import annotations

import datetime
import decimal
import math
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from support.branches import ONE, Branch, arrow, json_lines, records
from support.databases import url
from support.kinds import prepared_transactions, tagged_rows
from support.participant import database_of, keep, refusal, select
from support.waiting import AT_LAST

__all__ = ["url"]

UTC = datetime.timezone.utc
MOMENT = datetime.datetime(2024, 2, 29, 23, 59, 59, 123456)  # noqa: DTZ001
TEXTS = ['it\'s "quoted", a\\b', "zwei\nZeilen\r\n\t", "€ 日本 🙂"]
D = decimal.Decimal
VALUES: dict[str, tuple[pa.DataType, list[Any], Any]] = {
    "int64": (pa.int64(), [-(2**63), 0, 2**63 - 1], None),
    "int8": (pa.int8(), [-128, 127, 5], None),
    "uint64": (pa.uint64(), [0, 2**64 - 1, 7], int),
    "double": (pa.float64(), [0.1, -1e308, math.inf], None),
    "float": (pa.float32(), [0.5, -2.25, 1e10], None),
    "bool": (pa.bool_(), [True, False, True], bool),
    "string": (pa.string(), TEXTS, None),
    "empty": (pa.string(), ["", " ", "NULL"], None),
    "dictionary": (pa.dictionary(pa.int32(), pa.string()), ["a", "b", "a"], None),
    "binary": (pa.binary(), [b"", b"\x00\xff\\x", b"'\n\""], bytes),
    "date": (pa.date32(), [datetime.date(1, 1, 1), datetime.date(2024, 2, 29)], str),
    "time": (pa.time64("us"), [datetime.time(23, 59, 59, 999999)], str),
    "naive": (pa.timestamp("us"), [MOMENT, datetime.datetime(1970, 1, 1)], str),  # noqa: DTZ001
    "zoned": (pa.timestamp("us", "UTC"), [MOMENT.replace(tzinfo=UTC)], str),
    "decimal": (pa.decimal128(38, 18), [D("-0.5"), D(f"{10**19}.{1:018}")], D),
}  # fmt: skip


@pytest.mark.parametrize("kind", VALUES)
def test_values_come_back(open_at, kind):
    """Every value of a type is read as it was written, and NULL is not empty."""
    type_, values, read = VALUES[kind]
    world = open_at()
    column = pa.array([*values, None], type_)
    ids = list(range(len(column)))
    branch = Branch(arrow(pa.table({"id": ids, "v": column})), len(ids))
    keep(world, "orders.0.1", branch)
    found = [v for (v,) in select(world.resource, "SELECT v FROM orders ORDER BY id")]
    assert found.pop() is None
    assert [
        _like(v, wanted, read) for v, wanted in zip(found, values, strict=True)
    ] == (values)


def _like(value: Any, wanted: Any, read: Any) -> Any:
    """Read what SQLite keeps as text as what it is."""
    if read in {int, bool, bytes, decimal.Decimal}:
        return read(value)
    if read is str and isinstance(value, str):
        return type(wanted).fromisoformat(value.replace("Z", "+00:00"))
    return value


def test_nan_is_kept(open_at):
    """NaN is not NULL: PostgreSQL keeps it, SQLite keeps the word."""
    world = open_at()
    keep(world, "orders.0.1", records(v=[math.nan, 1.0]))
    found = select(world.resource, "SELECT v FROM orders WHERE v IS NOT NULL")
    assert sorted(str(v).lower() for (v,) in found) == ["1.0", "nan"]


@pytest.mark.parametrize(
    "name", ["share%", "%(x)s", 'q"t', "a:b", "a\\b", "a'b", "a?b", "order", "ÄRGER x"]
)
def test_column_names(open_at, name):
    """A column may be called anything that can be printed, and a key too."""
    world = open_at(key=name)
    keep(world, "orders.0.1", records(**{name: [1, 2]}))
    keep(world, "orders.1.1", records(**{name: [2, 3]}))
    columns = sa.inspect(database_of(world).engine).get_columns("orders")
    assert [column["name"] for column in columns] == [name]
    assert world.visible() == 3
    open_at(key=name).resource.open()  # its view is recognised


@pytest.mark.parametrize("name", ["ctid", "xmin", "tableoid", "tpc_tag", "a\nb", ""])
def test_column_names_that_no_table_can_have(open_at, name):
    """They are a vote to abort that says which."""
    world = open_at()
    assert name in refusal(world, records(**{name: [1]}), status=400)


def test_json_text_stays_text(open_at):
    """A table made from JSON lines has text where they have text, dates or not."""
    said = {"id": 1, "day": "2013-01-01", "at": "2013-01-01T00:00:00Z", "ok": True}
    first, second = open_at(), open_at()
    keep(first, "orders.0.1", json_lines(said))
    keep(second, "orders.1.1", json_lines({**said, "day": "tomorrow", "id": 2}))
    found = select(first.resource, "SELECT day, at FROM orders ORDER BY id")
    assert found == [(d, said["at"]) for d in ("2013-01-01", "tomorrow")]


def test_json_lines_fit_a_table_that_arrow_made(open_at):
    """The table says what JSON cannot: times and dates are written as text there."""
    table = pa.table(
        {
            "id": [1],
            "day": pa.array([datetime.date(2024, 2, 29)]),
            "at": pa.array([MOMENT.replace(tzinfo=UTC)], pa.timestamp("us", "UTC")),
        }
    )
    world = open_at()
    keep(world, "orders.0.1", Branch(arrow(table), 1))
    said = {"id": 2, "day": "2024-03-01", "at": "2024-03-01T12:00:00+02:00"}
    keep(world, "orders.1.1", json_lines(said, {"id": 3}))
    found = select(world.resource, "SELECT day, at FROM orders ORDER BY id")
    assert str(found[1][0]) == "2024-03-01"
    assert re.match(r"2024-03-01 10:00:00", str(_utc(found[1][1])))
    assert found[2] == (None, None)


@pytest.mark.parametrize("zone", ["UTC", "Europe/Berlin", "+02:00"])
def test_a_moment_is_kept_whatever_its_zone_is_called(open_at, zone):
    """Also of a time when the zone's offset had seconds, as Berlin's of 1850."""
    moments = [MOMENT.replace(tzinfo=UTC), datetime.datetime(1850, 1, 1, tzinfo=UTC)]
    times = pa.array([*moments, None], pa.timestamp("us", zone))
    world = open_at()
    keep(
        world, "orders.0.1", Branch(arrow(pa.table({"id": [1, 2, 3], "at": times})), 3)
    )
    found = select(world.resource, "SELECT at FROM orders ORDER BY id")
    kept = [at if at is None else _utc(_moment(at)) for (at,) in found]
    assert kept == [*moments, None]


def _moment(value: Any) -> Any:
    """SQLite has text."""
    return (
        value if not isinstance(value, str) else datetime.datetime.fromisoformat(value)
    )


def _utc(value: Any) -> Any:
    return value.astimezone(UTC) if isinstance(value, datetime.datetime) else value


@pytest.mark.parametrize("make", [tagged_rows, prepared_transactions])
@pytest.mark.parametrize(
    ("encoding", "text", "status"),
    [("SQL_ASCII", "größer →", 200), ("LATIN1", "größer", 200), ("LATIN1", "→", 400)],
)
def test_text_is_kept_whatever_the_encoding_of_the_database(
    new_database, make, encoding, text, status
):
    """What it cannot hold is refused: that is a vote, and no fault."""
    world = make(new_database(f"TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"))
    branch = Branch(arrow(pa.table({"v": [text]})), 1)
    assert world.prepare("orders.0.1", branch).status_code == status
    if status == 200:
        assert world.commit("orders.0.1", branch).status_code == 200
        assert select(world.resource, "SELECT v FROM orders") == [(text,)]
        assert world.prepare("orders.1.1", branch).status_code == 200
    else:
        keep(world, "orders.0.1", records(v=["a"]))
        assert world.prepare("orders.1.1", records(v=["b"])).status_code == 200
    order = {"transaction_id": "orders.1.1", "outcome": "abort", "reason": "→"}
    answer = world.post("/resolve", **order)
    assert answer.status_code == (200 if encoding == "SQL_ASCII" else 400)
    world.resource.close()


DATA: dict[str, tuple[str, dict[str, pa.Array], str, str]] = {
    "NUL": ("UTF8", {"v": pa.array(["a", "b\0"])}, "v", "NUL"),
    "large NUL": ("UTF8", {"v": pa.array(["b\0"], pa.large_string())}, "v", "NUL"),
    "euro": ("LATIN1", {"v": pa.array(["x"]), "w": pa.array(["€"])}, "w", "LATIN1"),
    "many euros": ("LATIN1", {"w": pa.array(["€"] * 20_000)}, "w", "LATIN1"),
    "name": ("LATIN1", {"v": pa.array(["x"]), "€": pa.array(["x"])}, "€", "LATIN1"),
    "year 1": (
        "UTF8",
        {
            "v": pa.array([-62_135_596_800_000_001]).view(
                pa.timestamp("us", "Asia/Tokyo")
            )
        },
        "v",
        "year",
    ),
}


@pytest.mark.ci
@pytest.mark.parametrize("make", [tagged_rows, prepared_transactions])
@pytest.mark.parametrize("what", DATA)
def test_what_no_table_can_hold_is_said_of_its_column(new_database, make, what):
    """The column, the kind of its value, and the cause; never the value."""
    encoding, columns, column, cause = DATA[what]
    world = make(new_database(f"TEMPLATE template0 ENCODING '{encoding}' LOCALE 'C'"))
    why = refusal(world, records(**columns), "orders.0.1", 400)
    assert f"{column}: " in why or f"{column} is" in why
    assert cause in why
    assert (world.visible() if what != "name" else 0, world.listed()) == (0, [])
    world.resource.close()


FIRST_PREPARE = """
import pathlib, sys
from tracing_2pc.core.model import BranchId, TransactionId
from tracing_2pc.participant import TaggedRows
from tracing_2pc.participant.answers import BranchRef
from tracing_2pc.participant.body import Body
from tracing_2pc.core import content

file, url = sys.argv[1:]
digest = content.digest_of(pathlib.Path(file).read_bytes())
with open(file, "rb") as stream:
    body = Body(stream, pathlib.Path(file).stat().st_size, content.ARROW, digest)
    named = BranchRef(BranchId(0, 1), 3, digest)
    resource = TaggedRows(url, "orders", key="id")
    transaction = TransactionId("orders", 0, 1)
    answer = resource.prepare(transaction, "ledger", named, body, {})
assert answer.refusal is None, answer
resource.close()
print("pandas" in sys.modules)
"""


def test_a_first_prepare_does_not_wait_for_pandas(url, tmp_path):
    """Rows go from Arrow to the database without it: importing it takes seconds."""
    pytest.importorskip("pandas")
    body = tmp_path / "body"
    body.write_bytes(ONE.body)
    command = [sys.executable, "-c", FIRST_PREPARE, str(body), url]
    root = Path(__file__).parents[2]
    ran = subprocess.run(command, stdout=subprocess.PIPE, timeout=AT_LAST, cwd=root)
    assert (ran.returncode, ran.stdout) == (0, b"False\n")


def test_sqlite_has_one_zero(tmp_path, start):
    """There -0.0 comes back as 0.0, which is equal; PostgreSQL keeps the sign."""
    world = start(tagged_rows, f"sqlite:///{tmp_path}/orders.db")
    keep(world, "orders.0.1", records(v=[-0.0]))
    ((found,),) = select(world.resource, "SELECT v FROM orders")
    assert math.copysign(1, found) == 1


@pytest.mark.ci
def test_postgresql_has_two_zeros(postgres_database, start):
    """-0.0 comes back as it was sent."""
    world = start(tagged_rows, postgres_database)
    keep(world, "orders.0.1", records(v=[-0.0]))
    ((found,),) = select(world.resource, "SELECT v FROM orders")
    assert math.copysign(1, found) == -1
