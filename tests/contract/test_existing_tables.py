"""Records on their way into a table that somebody else has made."""

from __future__ import annotations

import collections
import datetime
import decimal
import itertools
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import sqlalchemy as sa
from sqlalchemy.dialects.sqlite.base import ischema_names
from support.branches import Branch, arrow, json_lines, records
from support.kinds import prepared_transactions, sqlite_url, tagged_rows
from support.participant import (
    World,
    count,
    database_of,
    keep,
    refusal,
    rows_table,
    select,
)
from support.texts import texts

from tracing_2pc.participant import PreparedTransactions
from tracing_2pc.participant.resources import column_table
from tracing_2pc.participant.resources.column_table import ColumnTable
from tracing_2pc.participant.resources.columns import check_fit

TEXTS = texts("contract")
D = decimal.Decimal
T = "orders.1.1"
UTC = datetime.timezone.utc
NOON = datetime.datetime(2024, 2, 29, 12, 0, 0, 123_456)  # noqa: DTZ001
ZONED, TENTH = NOON.replace(tzinfo=UTC), NOON.replace(microsecond=700_000)
BEFORE_CHRIST = pa.array([-62_135_596_800_000_001]).view(pa.timestamp("us"))
NAIVE, AWARE = "TIMESTAMP WITHOUT TIME ZONE", "TIMESTAMP WITH TIME ZONE"
Table = Callable[[str], World]


@pytest.fixture
def table(request, postgres_database, tmp_path) -> Iterator[Table]:
    """Make a table of these columns, and a participant that writes into it."""
    made: list[World] = []

    def make(columns: str) -> World:
        on_sqlite = request.param == "sqlite"
        url = sqlite_url(tmp_path) if on_sqlite else postgres_database
        ours = ", tpc_tag bigint NOT NULL DEFAULT 0" if on_sqlite else ""
        name = "orders_tpc" if on_sqlite else "orders"
        run(url, f"CREATE TABLE {name} ({columns}{ours})")
        made.append(tagged_rows(url) if on_sqlite else prepared_transactions(url))
        return made[-1]

    yield make
    for world in made:
        world.resource.close()


def run(url: str, statement: str) -> None:
    engine = sa.create_engine(url.replace("postgresql:", "postgresql+psycopg:"))
    with engine.begin() as connection:
        connection.exec_driver_sql(statement)
    engine.dispose()


def array_of(sent: pa.Array | list[Any]) -> pa.Array:
    return sent if isinstance(sent, pa.Array) else pa.array(sent)


POSTGRESQL = pytest.mark.parametrize("table", ["postgresql"], indirect=True)
LATER = pytest.param("postgresql", marks=pytest.mark.ci)
BOTH = pytest.mark.parametrize("table", ["sqlite", LATER], indirect=True)

CHANGED: dict[str, tuple[Any, ...]] = {
    "2^53+1": ("double precision", [2**53 + 1]),
    "2^24+1": ("real", pa.array([2**24 + 1], pa.int32())),
    "double to real": ("real", [0.1]),
    "decimal to double": ("double precision", [D("0.12345678901234567890")]),
    "double to numeric": ("numeric(10, 2)", [0.125]),
    "float to numeric": ("numeric(10, 2)", pa.array([0.125], pa.float32())),
    "decimal to numeric": ("numeric(10, 2)", [D("0.125")]),
    "hundreds": ("numeric(4, -2)", [1234]),
    "seconds": ("timestamp(0)", [NOON], "TIMESTAMP(0) WITHOUT TIME ZONE"),
    "milliseconds": ("timestamptz(3)", [ZONED], "TIMESTAMP(3) WITH TIME ZONE"),
    "nanoseconds": ("timestamp", pa.array([1], pa.timestamp("ns")), NAIVE),
    "zoned": ("timestamp", [ZONED], NAIVE),
    "naive": ("timestamptz", [NOON], AWARE),
    "time": ("time(1)", [NOON.time()], "TIME(1) WITHOUT TIME ZONE"),
    "a seventh digit": ("time", ["12:30:00.1234567"], "TIME WITHOUT TIME ZONE"),
    "a zone of the session": ("timetz", [NOON.time()], "TIME WITH TIME ZONE"),
    "blanks": ("varchar(3)", ["abc  "]),
    "too long": ("varchar(3)", ["abcd"]),
    "day and month": ("date", ["01/02/2024"]),
    "a moment of the session": ("timestamptz", ["2024-02-29T12:00:00"], AWARE),
    "smallint": ("smallint", [70_000]),
    "money": ("money", ["1.239"]),
    "interval": ("interval(0)", ["0.5 s"], "INTERVAL (0)"),
    "the year 10000": ("date", pa.array([2_932_897], pa.int32()).view(pa.date32())),
    "before Christ": ("timestamp", BEFORE_CHRIST, NAIVE),
    "a domain that cuts": ("short", ["abc  "], "VARCHAR(3)"),
    "a domain that rounds": ("cents", [0.125], "NUMERIC(10, 2)"),
    "text for numbers": ("cents", ["0.125"], "NUMERIC(10, 2)"),
    "a domain of days": ("days", ["01/02/2024"], "DATE"),
    "a domain of moments": ("moment", [NOON], "TIMESTAMP(0) WITHOUT TIME ZONE"),
    "domain of a domain": ("again", ["01/02/2024"], "again"),
    "a list of a domain": ("short[]", ["{a }"], "short[]"),
    "a domain of hundreds": ("hundreds", [1234], "NUMERIC(4, -2)"),
    "a domain of money": ("price", ["1.239"], "price"),
    "a domain of a range": ("period", ["[01/02/2024,)"], "period"),
    "a name": ("name", ["x" * 70], "VARCHAR"),
    "one byte": ('"char"', ["abc"], "VARCHAR"),
    "a list of names": ("name[]", ["{a}"], "VARCHAR[]"),
    "a list that rounds": ("numeric(10, 2)[]", ["{0.125}"]),
    "a list that cuts": ("varchar(3)[]", ['{"abc "}']),
    "a list of short floats": ("real[]", ["{0.12345678}"]),
    "a list of days": ("date[]", ["{01/02/2024}"]),
    "a range of days": ("daterange", ["[01/02/2024,)"]),
    "a range of moments": ("tstzrange", ["[2024-01-02 03:04:05,)"]),
    "oid": ("oid", ["-1"]),
}
"""A type, what is sent, and what it is called there if not as it is written."""

DOMAINS = """CREATE DOMAIN short AS varchar(3); CREATE DOMAIN cents AS numeric(10, 2);
    CREATE DOMAIN days AS date; CREATE DOMAIN again AS days;
    CREATE DOMAIN moment AS timestamp(0); CREATE TYPE color AS ENUM ('red', 'blue');
    CREATE DOMAIN paint AS color; CREATE DOMAIN hundreds AS numeric(4, -2);
    CREATE DOMAIN price AS money; CREATE DOMAIN period AS daterange;
    CREATE DOMAIN tags AS text[]; CREATE DOMAIN email AS text;
    CREATE DOMAIN wmail AS email; CREATE DOMAIN pos AS integer;
    CREATE DOMAIN pause AS interval"""


@POSTGRESQL
@pytest.mark.parametrize(
    "rows", [1, pytest.param(20_000, marks=pytest.mark.ci)], ids=["few", "many"]
)
@pytest.mark.parametrize("what", CHANGED)
def test_what_would_change_is_refused(table, postgres_database, what, rows):
    """A vote to abort names the column, its type there, and the type that was sent."""
    column, sent, *other = CHANGED[what]
    values = array_of(sent)
    run(postgres_database, DOMAINS)
    world = table(f"id bigint, v {column}")
    v = pa.concat_arrays([values, pa.nulls(rows - 1, values.type)])
    branch = records(id=pa.array([1] * rows, pa.int64()), v=v)
    why = refusal(world, branch, "orders.1.1", 400)
    said = TEXTS["another type was sent"].format(
        there=other[0] if other else column.upper(), sent=values.type
    )
    assert why.endswith(said)
    assert (world.visible(), world.listed()) == (0, [])


CHANGED_IN_SQLITE = {
    "2^53+1": ("REAL", pa.array([2**53 + 1])),
    "decimal": ("DECIMAL(38, 2)", pa.array([D("12345678901234567890.12")])),
    "uint64": ("NUMERIC", pa.array([2**64 - 1], pa.uint64())),
    "day and month": ("DATE", pa.array(["01/02/2024"])),
    "the year 10000": ("DATE", pa.array([2_932_897], pa.int32()).view(pa.date32())),
    "time": ("TIME", pa.array(["12345678901234567890"], pa.large_string())),
    "beyond all years": ("TIMESTAMP", pa.array([2**62]).view(pa.timestamp("us"))),
}


@pytest.mark.parametrize("table", ["sqlite"], indirect=True)
@pytest.mark.parametrize("what", CHANGED_IN_SQLITE)
def test_what_sqlite_would_change_is_refused(table, what):
    """SQLite takes anything, and makes of it what the column's affinity says."""
    column, values = CHANGED_IN_SQLITE[what]
    world = table(f"id bigint, v {column}")
    branch = Branch(arrow(pa.table({"id": [1], "v": values})), 1)
    assert str(values.type) in refusal(world, branch, "orders.1.1", 400)
    assert world.visible() == 0


DECLARED = (
    *("", "JSON(9)", "STRING", "UUID", "MY-TEXT", "VARCHAR-INT", "TEXT-INT", "$1"),
    *("FLOATING POINT", "native character(70)", "DOUBLE PRECISION", "BLOB-ish"),
    *ischema_names,
)
"""Every type that SQLAlchemy knows, and some that only SQLite's five rules tell."""

READ_AS_NUMBERS = (
    *("007", "12345678901234567890", "1e400", "2.10", "5", " 5 ", "\v-5.", "+.5E1"),
    *("\n.5\t", "9e-1", "-0"),
)
NO_NUMBERS = ('{"a": 1}', "0x1A", "1e", ".", "1 2", "inf", "5\u00a0", "")


@pytest.mark.parametrize("table", ["sqlite"], indirect=True)
def test_text_stays_text_whatever_sqlite_calls_a_column(table):
    """By the affinity of a declared type: one of numbers refuses text that is one."""
    columns = [f'c{n} "{declared}"' for n, declared in enumerate(DECLARED)]
    world = table(", ".join(columns).replace(' ""', "") + ", id bigint")
    pairs = list(itertools.product(range(len(DECLARED)), READ_AS_NUMBERS + NO_NUMBERS))
    lines = [
        json_lines({"id": id_, f"c{n}": text}, branch=f"{id_}.1")
        for id_, (n, text) in enumerate(pairs)
    ]
    taken = [line for line in lines if world.prepare(T, line).status_code == 200]
    assert world.commit(T, *taken).status_code == 200
    kept = collections.defaultdict(list)
    for *values, id_, _ in select(world.resource, "SELECT * FROM orders_tpc"):
        n, text = pairs[id_]
        assert (DECLARED[n], values[n]) == (DECLARED[n], text)
        kept[DECLARED[n]].append(text)
    for declared in ("", "TEXT", "VARCHAR", "NCHAR", "native character(70)"):
        assert kept[declared] == [*READ_AS_NUMBERS, *NO_NUMBERS]
    for declared in ("JSON", "JSONB", "JSON(9)", "VARCHAR-INT"):
        assert kept[declared] == [*NO_NUMBERS]


KEPT: dict[str, tuple[str, Any, Any]] = {
    "2^53": ("double precision", [2**53], 2.0**53),
    "half": ("real", [0.5], 0.5),
    "cents": ("numeric(10, 2)", [0.1], D("0.10")),
    "exact": ("double precision", pa.array([D("0.10")], pa.decimal128(38, 18)), 0.1),
    "second": ("timestamp(0)", [NOON.replace(microsecond=0)], None),
    "tenth": ("timestamp(1)", [TENTH], TENTH),
    "fits": ("varchar(3)", ["\u20ac\u20ac "], "\u20ac\u20ac "),
    "day": ("date", ["2024-02-01"], datetime.date(2024, 2, 1)),
    "time": ("time", ["12:30:00.5"], datetime.time(12, 30, 0, 500_000)),
    "moment": ("timestamptz", ["2024-02-29T14:00:00.123456+02:00"], ZONED),
    "small": ("smallint", [-(2**15)], -(2**15)),
    "uuid": ("uuid", ["00000000-0000-0000-0000-00000000000a"], ...),
    "json": ("jsonb", ['{"a": 1}'], {"a": 1}),
    "a domain": ("short", ["abc"], "abc"),
    "a domain of numbers": ("cents", [0.1], D("0.10")),
    "a domain of days": ("days", ["2024-02-01"], datetime.date(2024, 2, 1)),
    "numbers": ("bigint[]", ["{1,2}"], [1, 2]),
    "words": ("text[]", ['{"a ",b}'], ["a ", "b"]),
    "labels": ("color[]", ["{red,blue}"], ...),
    "a domain of a list": ("tags", ["{a,b}"], ...),
    "text of a domain of a domain": ("wmail", ["a "], "a "),
    "a list of numbers of a domain": ("pos[]", ["{1,2}"], ...),
    "pause": ("pause", ["00:00:05"], datetime.timedelta(0, 5)),
    "a domain of labels": ("paint", ["red"], "red"),
    "range": ("int4range", ["[1,5)"], ...),
    "no number": ("double precision", [float("-inf")], float("-inf")),
    "no value": ("numeric(10, 2)", pa.array([None], pa.float64()), None),
}


@POSTGRESQL
@pytest.mark.parametrize("what", KEPT)
def test_what_comes_back_is_taken(table, postgres_database, what):
    """Types need not be the same where the value is, whatever the DateStyle."""
    column, sent, wanted = KEPT[what]
    values = array_of(sent)
    set_in(postgres_database, "datestyle = 'ISO, DMY'")
    run(postgres_database, DOMAINS)
    world = table(f"id bigint, v {column}")
    keep(world, "orders.1.1", Branch(arrow(pa.table({"id": [1], "v": values})), 1))
    ((value,),) = select(world.resource, "SELECT v FROM orders")
    if wanted is not ...:
        assert value == (values[0].as_py() if wanted is None else wanted)


def set_in(url: str, setting: str) -> None:
    """Change a setting for the sessions that a database gets from now on."""
    run(url, f'ALTER DATABASE "{sa.make_url(url).database}" SET {setting}')


@BOTH
def test_what_the_table_fills_may_be_left_out(table):
    """Defaults, numbers of its own and generated columns are not asked of records."""
    world = table(
        "id integer PRIMARY KEY, v bigint, w bigint DEFAULT 7, "
        "x bigint GENERATED ALWAYS AS (v * 2) STORED"
    )
    url = str(database_of(world).engine.url)
    if not url.startswith("sqlite"):
        run(url, "ALTER TABLE orders ALTER id ADD GENERATED ALWAYS AS IDENTITY")
    keep(world, "orders.1.1", records(v=[1, 2]))
    keep(world, "orders.2.1", json_lines({"v": 3, "w": 8}))
    shown = select(world.resource, "SELECT v, w, x FROM orders ORDER BY id")
    assert shown == [(1, 7, 2), (2, 7, 4), (3, 8, 6)]
    for wrong, why in (
        (records(w=[1]), "a column is missing"),
        (records(v=[1], x=[2]), "a column is generated"),
    ):
        assert refusal(world, wrong, "orders.3.1", 400).endswith(TEXTS[why])


@BOTH
def test_a_column_that_was_dropped(table):
    """A vote to abort that names it, at once."""
    world = table("id bigint, v bigint, w bigint")
    rows = rows_table(world)
    whole, rest = records(id=[1], v=[1], w=[1]), records(id=[2], v=[2])
    keep(world, "orders.1.1", whole)
    if rows == "orders_tpc":
        run(str(database_of(world).engine.url), "DROP VIEW orders")
    run(str(database_of(world).engine.url), f"ALTER TABLE {rows} DROP COLUMN w")
    why = refusal(world, whole, "orders.2.1", 400)
    assert why.endswith(TEXTS["a column is not there"])
    assert world.prepare("orders.2.1", rest).status_code == 200


@BOTH
def test_a_column_that_is_dropped_beside_another_prepare(table, monkeypatch):
    """What one prepare learns about the table takes nothing from another one."""
    read_records = ColumnTable.records
    tables: list[ColumnTable] = []

    def remember(self: ColumnTable, *given: Any) -> Any:
        tables.append(self)
        return read_records(self, *given)

    def check_and_forget(*given: Any, **how: Any) -> None:
        check_fit(*given, **how)
        tables[-1].refused()  # as another thread's prepare does

    world = table("id bigint, v bigint")
    monkeypatch.setattr(ColumnTable, "records", remember)
    monkeypatch.setattr(column_table, "check_fit", check_and_forget)
    assert world.prepare("orders.1.1", records(id=[1], v=[1])).status_code == 200


@pytest.mark.ci
@POSTGRESQL
def test_a_row_that_is_too_large_for_a_page(table):
    """It never fits: a vote to abort, not "ask again"."""
    names = [f"c{n}" for n in range(1_100)]
    world = table(", ".join(f"{name} bigint" for name in names))
    row = records(**{name: [1] for name in names})
    assert TEXTS["no page holds it"] in refusal(world, row)


@pytest.mark.ci
@POSTGRESQL
def test_a_statement_timeout(table, postgres_database):
    """What takes longer takes longer again: a vote to abort names the setting."""
    run(
        postgres_database,
        "CREATE FUNCTION slow(v bigint) RETURNS boolean LANGUAGE plpgsql IMMUTABLE AS "
        "$$ BEGIN PERFORM pg_sleep(60); RETURN true; END $$",
    )
    set_in(postgres_database, "statement_timeout = 3000")
    world = table("v bigint CHECK (slow(v))")
    assert "statement_timeout" in refusal(world, records(v=[1]))


PG, LITE = "postgresql", "sqlite"
NAMED = (
    "id bigint CONSTRAINT once UNIQUE, v text NOT NULL, "
    "n bigint CONSTRAINT odd CHECK (n < 100)"
)


@pytest.mark.parametrize(
    ("table", "ids", "vs", "ns", "named"),
    [
        (
            PG,
            [4711, 2, 4711],
            "abc",
            [1] * 3,
            "UniqueViolation, constraint once, column id",
        ),
        (PG, [1, 2], ["a", None], [1] * 2, "NotNullViolation, column v, table orders"),
        (PG, [1], ["a"], [4712], "CheckViolation, constraint odd, table orders"),
        (LITE, [4711, 4711], "ab", [1] * 2, "UNIQUE constraint failed: orders_tpc.id"),
        (LITE, [1], [None], [1], "NOT NULL constraint failed: orders_tpc.v"),
        (LITE, [1], ["a"], [4712], "CHECK constraint failed: odd"),
    ],
    indirect=["table"],
)
def test_what_a_record_violates_is_named(table, ids, vs, ns, named):
    """The constraint, the column and the line that the database names; no value."""
    world = table(NAMED)
    row = records(id=ids, v=pa.array(list(vs), pa.string()), n=ns)
    why = refusal(world, row)
    assert named in why
    assert "471" not in why
    if database_of(world).engine.dialect.name == PG:
        assert why.endswith(f"line {len(ids)} of COPY")


@pytest.mark.parametrize("url_of", [PG, LITE])
def test_what_a_trigger_or_a_foreign_key_says_is_not_repeated(
    postgres_database, tmp_path, url_of, start
):
    """A trigger may say values: its function is named, or that it is one."""
    url = postgres_database if url_of == PG else sqlite_url(tmp_path)
    run(url, "CREATE TABLE customer (id bigint PRIMARY KEY)")
    kept = "CREATE TABLE orders_tpc (id bigint REFERENCES customer, tpc_tag bigint)"
    run(url, kept)
    if url_of == PG:
        run(
            url,
            "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN "
            "IF NEW.id = 7 THEN RAISE EXCEPTION 'secret'; END IF; RETURN NEW; END $$",
        )
    told = "EXECUTE FUNCTION refuse()"
    if url_of == LITE:
        told = "WHEN NEW.id = 7 BEGIN SELECT RAISE(ABORT, 'secret'); END"
    run(url, f"CREATE TRIGGER t BEFORE INSERT ON orders_tpc FOR EACH ROW {told}")
    world = start(tagged_rows, url, triggers=True)
    why = refusal(world, records(id=[7]))
    assert ("function refuse" if url_of == PG else "a trigger raises it") in why
    assert "secret" not in why
    if url_of == PG:
        why = refusal(world, records(id=[4711]))
        assert "constraint orders_tpc_id_fkey, column id, table orders_tpc" in why
        assert "4711" not in why


@POSTGRESQL
@pytest.mark.parametrize("column", ["char(5)", "five"])
def test_a_column_that_pads(table, postgres_database, column):
    """PostgreSQL fills CHAR(n) up with blanks, and compares without them.

    Text that ends with one would not be told from another: a vote to abort.
    """
    run(postgres_database, "CREATE DOMAIN five AS char(5)")
    world = table(f"v {column}")
    keep(world, "orders.1.1", records(v=["ab", "abcde", "", None]))
    found = "SELECT v FROM orders WHERE v IN ('ab', 'abcde', '')"
    assert len(select(world.resource, found)) == 3
    why = refusal(world, records(v=["ab "]), status=400)
    assert "(it ends with a blank): v is CHAR(5)" in why


@pytest.mark.parametrize("key", [None, "id"])
def test_names_that_the_server_quotes(postgres_database, start, key):
    """`quote_all_identifiers` hides no type, and no key of a view."""
    set_in(postgres_database, "quote_all_identifiers = on")
    for number in range(2):
        world = start(tagged_rows, postgres_database, key=key)
        row = records(id=[number], v=["x"], at=[NOON.date()], raw=[b"x"])
        keep(world, f"orders.{number}.1", row)
    assert world.visible() == 2


def test_a_table_that_is_truncated_under_a_prepared_batch(postgres_database, start):
    """What is prepared goes with the rest, as the manual says; the job goes on.

    With `PreparedTransactions` nobody can truncate it until the decision.
    """
    world = start(tagged_rows, postgres_database)
    keep(world, "orders.1.1", records(id=[1]))
    two, three = records(id=[2]), records(id=[3])
    assert world.prepare("orders.2.1", two).status_code == 200
    run(postgres_database, "TRUNCATE orders_tpc")
    assert world.commit("orders.2.1", two).status_code == 200
    keep(world, "orders.3.1", three)
    assert select(world.resource, "SELECT id FROM orders") == [(3,)]
    run(postgres_database, "CREATE TABLE own (id bigint)")
    other = PreparedTransactions(postgres_database, "own")
    held = World(other, lambda: count(other, "own"))
    assert held.prepare("orders.2.1", two).status_code == 200
    with psycopg.connect(postgres_database) as owner:
        owner.execute("SET lock_timeout = 10")
        with pytest.raises(psycopg.errors.LockNotAvailable):
            owner.execute("TRUNCATE own")
    assert held.commit("orders.2.1", two).status_code == 200
    assert held.visible() == 1
    other.close()
