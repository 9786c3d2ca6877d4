"""Rows that somebody refuses are rejected, in the same transaction; the others land."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import sqlalchemy as sa
from hypothesis import given, settings
from hypothesis import strategies as st
from support.branches import Branch, prepare_at, records
from support.lake import Lake
from support.relay import Topic, TopicRelay
from support.texts import texts
from support.waiting import PATIENT

from tracing_2pc import DeltaSink, FileSink, ParticipantSink, TableSink, write
from tracing_2pc.core.errors import (
    AbortedError,
    ConfigurationError,
    ContractError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    RefusalError,
    RejectedRowsError,
)
from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    RejectedRow,
    TransactionId,
)
from tracing_2pc.core.remote_participant import open_participant
from tracing_2pc.core.states import Refusal, Vote
from tracing_2pc.embedded.addresses import with_options
from tracing_2pc.http.forms import MOST_NAMED
from tracing_2pc.outbox import Outbox
from tracing_2pc.outbox.choosing import Choice, conflict
from tracing_2pc.outbox.records import Record
from tracing_2pc.outbox.relay import Message
from tracing_2pc.participant import TaggedRows
from tracing_2pc.sinks import rejecting
from tracing_2pc.store import open_log
from tracing_2pc.testing import served
from tracing_2pc.wire import contract, reading
from tracing_2pc.wire.client import SEARCH, WireParticipant
from tracing_2pc.wire.error_responses import PROBLEM, problem_of

TEXTS = texts("rejects")
Row = dict[str, Any]


@dataclasses.dataclass
class World:
    """Two tables, a folder and a table of rejects, on one database."""

    url: str
    folder: Path
    has_into: bool = False

    @property
    def log(self) -> str:
        return f"sqlite:///{self.folder}/log.db"

    def sinks(self, *more: Any) -> list[Any]:
        ledger = TableSink(self.url, "ledger")
        if self.has_into:
            place = with_options(self.url, {"into": "ledger"})
            ledger = ParticipantSink({"ledger": place}, token=None)
        return [
            ledger,
            FileSink(self.folder / "out"),
            TableSink(self.url, "rejected"),
            *more,
        ]

    def write(self, rows: list[Row] | pa.Table, batch: int = 0, **more: Any) -> bool:
        about = {"application": "orders", "log": self.log, "rejects": "rejected"}
        sinks = more.pop("sinks", None) or self.sinks()
        return write(sinks, rows, batch=batch, **about | more)

    def run(self, statement: str) -> list[Any]:
        url = self.url.replace("postgresql:", "postgresql+psycopg:")
        engine = sa.create_engine(url, poolclass=sa.NullPool)
        with engine.begin() as connection:
            cursor = connection.exec_driver_sql(statement)
            return list(cursor.all()) if cursor.returns_rows else []

    def table(self, columns: str, name: str = "ledger") -> None:
        """Make the table that a participant finds."""
        if self.has_into and name == "ledger":
            self.run(f"CREATE TABLE {name} ({columns.replace('; ', ', ')})")
            return
        tag = "tpc_tag bigint NOT NULL DEFAULT 0"
        columns, *last = columns.split("; ")
        self.run(f"CREATE TABLE {name}_tpc ({', '.join([columns, tag, *last])})")

    def ids(self) -> list[int]:
        return [id_ for (id_,) in self.run("SELECT id FROM ledger ORDER BY id")]

    def filed(self) -> list[int]:
        files = [*(self.folder / "out").rglob("*.parquet")]
        parts = [pq.ParquetFile(file).read()["id"].to_pylist() for file in files]
        return sorted(id_ for part in parts for id_ in part)

    def rejected(self) -> list[tuple[str, str, int]]:
        """Return who rejected each row, which column, and the row's id."""
        with contextlib.suppress(sa.exc.DBAPIError):
            found = self.run('SELECT participant, "column", record FROM rejected')
            return sorted(
                (who, column, json.loads(r)["id"]) for who, column, r in found
            )
        return []


@pytest.fixture(params=["sqlite", "postgresql", "into"])
def world(request, tmp_path) -> World:
    if request.param == "sqlite":
        return World(f"sqlite:///{tmp_path}/rows.db", tmp_path)
    url = request.getfixturevalue("postgres_database")
    return World(url, tmp_path, has_into=request.param == "into")


@pytest.fixture
def sqlite(tmp_path) -> World:
    return World(f"sqlite:///{tmp_path}/rows.db", tmp_path)


def orders(*ids: int, **more: Any) -> list[Row]:
    return [{"id": id_, "amount": id_ * 10, **more} for id_ in ids]


REFUSED = {
    "CHECK": ("id bigint, amount bigint CHECK (amount < 30)", "amount"),
    "NOT NULL": ("id bigint, amount bigint NOT NULL", "amount"),
    "UNIQUE": ("id bigint, amount bigint; UNIQUE (amount)", "amount"),
    "FOREIGN KEY": (
        "id bigint, amount bigint; FOREIGN KEY (amount) REFERENCES amounts (amount)",
        "amount",
    ),
    "value": ("id bigint, amount smallint", "amount"),
}


@pytest.mark.parametrize("constraint", REFUSED)
def test_a_row_that_is_refused_goes_to_rejects(world, constraint):
    """With who refused it and why; the others land at all, in the same transaction."""
    columns, column = REFUSED[constraint]
    world.run("CREATE TABLE amounts (amount bigint PRIMARY KEY)")
    world.run("INSERT INTO amounts VALUES (10), (20), (40)")
    if "FOREIGN" in columns and world.url.startswith("sqlite"):
        pytest.skip("SQLite checks no foreign keys unless each session asks for it")
    world.table(columns)
    bad = {"NOT NULL": None, "UNIQUE": 20, "value": 1 << 40}.get(constraint, 30)
    if constraint == "value" and world.url.startswith("sqlite"):
        pytest.skip("SQLite has no short integers")
    rows = orders(1, 2, 3, 4)
    rows[2]["amount"] = bad
    if constraint == "CHECK":
        rows[3]["amount"] = 0
    assert world.write(rows)
    assert world.ids() == world.filed() == [1, 2, 4]
    ((who, about, id_),) = world.rejected()
    assert (who, id_) == ("ledger", 3)
    assert about in (column, "")  # SQLite names none of a CHECK
    ((reason, record),) = world.run("SELECT reason, record FROM rejected")
    assert constraint in reason or constraint == "value"
    assert json.loads(record) == rows[2]
    with contextlib.closing(open_log(world.log)) as log:
        on_record = log.read(TransactionId("orders", 0, 1))
    assert (on_record.rejects, on_record.rejected, on_record.rows) == ("rejected", 1, 3)


def test_a_batch_with_no_row_left_lands_all_the_same(world):
    """All of its rows are rejected, and the next batch is not held up."""
    world.table("id bigint CHECK (id > 9), amount bigint")
    assert world.write(orders(1, 2))
    assert world.write(orders(10), 1)
    assert world.ids() == world.filed() == [10]
    assert world.rejected() == [("ledger", at, i) for at in ["id"] for i in (1, 2)] or (
        [id_ for *_, id_ in world.rejected()] == [1, 2]
    )


def test_a_replay_rejects_nothing_again(world):
    """A batch that is committed is written neither here nor there."""
    world.table("id bigint CHECK (id <> 2), amount bigint")
    assert world.write(orders(1, 2, 3))
    assert not world.write(orders(1, 2, 3))
    assert world.ids() == [1, 3]
    assert [id_ for *_, id_ in world.rejected()] == [2]


def test_nothing_is_rejected_where_nobody_asked_for_it(world):
    """Without `rejects` a refused row aborts its batch, as ever."""
    world.table("id bigint CHECK (id <> 2), amount bigint")
    sinks = world.sinks()[:2]
    with pytest.raises(AbortedError, match=TEXTS["at each try"]):
        world.write(orders(1, 2), sinks=sinks, rejects=None)
    assert world.ids() == world.filed() == []


def test_a_column_that_is_not_there_rejects_no_row(world):
    """A fault of the schema would empty the table while all is green."""
    world.table("id bigint, amount bigint")
    with pytest.raises(AbortedError):
        world.write(orders(1, 2, more="x"))
    assert world.ids() == world.filed() == world.rejected() == []


def test_too_many_rejected_rows_abort_the_batch(world):
    """The first of them are named, by number and not by value."""
    world.table("id bigint, amount bigint CHECK (amount < 777)")
    rows = [{"id": n, "amount": 12_345_000 + n} for n in range(5)]
    with pytest.raises(AbortedError) as refused:
        world.write([*orders(7), *rows], rejects_at_most=2)
    assert TEXTS["too many"] in str(refused.value)
    assert "row 1: ledger" in str(refused.value)
    assert "12345" not in str(refused.value)
    assert world.ids() == world.filed() == world.rejected() == []


def test_a_partition_that_would_lose_a_row_aborts(sqlite, monkeypatch):
    """Rows that were written and rows that were rejected are those that came."""
    sqlite.table("id bigint CHECK (id <> 2), amount bigint")
    without = rejecting._Kept.without

    def losing(kept: Any, rejected: Any) -> Iterator[pa.RecordBatch]:
        first, *others = without(kept, rejected)
        return iter([first.slice(1), *others])

    monkeypatch.setattr(rejecting._Kept, "without", losing)
    with pytest.raises(ContractError, match=TEXTS["a row is lost"]):
        sqlite.write(orders(1, 2, 3))
    assert sqlite.ids() == sqlite.filed() == sqlite.rejected() == []


def test_where_rejects_refuses_the_batch_aborts(world):
    """A row that nobody keeps is not lost: nothing is written."""
    world.table("id bigint CHECK (id <> 2), amount bigint")
    world.table("participant text CHECK (participant = 'x')", "rejected")
    with pytest.raises(AbortedError, match="rejected"):
        world.write(orders(1, 2))
    assert world.ids() == world.filed() == []


@pytest.mark.parametrize("is_picky", [False, True])
def test_what_is_prepared_is_dropped_where_rejects_refuses(sqlite, is_picky):
    """A sink that finds nothing of a transaction by itself is told to drop its branch.

    Also where the refusal names rows: they are not those of the batch.
    """
    sqlite.table("id bigint CHECK (id <> 2), amount bigint")
    sqlite.table("participant text CHECK (participant = 'x')", "rejected")
    own = Picky(frozenset(), name="own")
    rejects = Strict(frozenset(), name="rejected") if is_picky else sqlite.sinks()[2]
    with pytest.raises(AbortedError, match="rejected"):
        sqlite.write(orders(1, 2, 3), sinks=[sqlite.sinks()[0], own, rejects])
    assert own.prepared == set()
    assert sqlite.ids() == []


def test_rejects_must_be_a_participant(sqlite):
    """And not the only one."""
    for rejects, sinks in (
        ("nobody", sqlite.sinks()),
        ("rejected", sqlite.sinks()[2:]),
    ):
        with pytest.raises(ConfigurationError, match="name one of the participants"):
            sqlite.write(orders(1), rejects=rejects, sinks=sinks)


def test_rejects_in_the_settings(sqlite, monkeypatch):
    """As every setting it may come from the environment."""
    monkeypatch.setenv("TPC_REJECTS", "rejected")
    sqlite.table("id bigint CHECK (id <> 2), amount bigint")
    assert sqlite.write(orders(1, 2, 3), rejects=None)
    assert [id_ for *_, id_ in sqlite.rejected()] == [2]


def test_values_are_kept_as_they_were_sent(sqlite):
    """Of each type, in a form that is read back to the same value."""
    sqlite.table("id bigint CHECK (id <> 1), d date, n float, b blob, t text")
    table = pa.table(
        {
            "id": [1, 2],
            "d": pa.array([19_000, 1], pa.date32()),
            "n": [float("nan"), 1.5],
            "b": [b"\x00\xff", b""],
            "t": ['ü\n"', None],
        }
    )
    ledger, _, rejected = sqlite.sinks()
    assert sqlite.write(table, sinks=[ledger, rejected])
    ((record,),) = sqlite.run("SELECT record FROM rejected")
    assert json.loads(record) == {
        "id": 1,
        "d": "2022-01-08",
        "n": "NaN",
        "b": "AP8=",
        "t": 'ü\n"',
    }


@dataclasses.dataclass
class Picky:
    """A sink of the user's own that rejects some ids, at one phase or the other."""

    rejects: frozenset[int]
    at_once: bool = False
    name: str = "picky"
    kept: list[int] = dataclasses.field(default_factory=list)
    prepared: set[str] = dataclasses.field(default_factory=set)

    def begin(self, context: Any) -> dict[str, Any]:
        return {"ids": [], "branch": str(context.branch)}

    def invoke(self, handle: Any, record: Row) -> None:
        handle["ids"].append(record["id"])
        if self.at_once:
            self.refuse(handle["ids"])

    def refuse(self, ids: list[int]) -> None:
        rows = [
            RejectedRow(n, "id", "odd") for n, i in enumerate(ids) if self.is_odd(i)
        ]
        if rows:
            raise RejectedRowsError(rows)

    def is_odd(self, id_: int) -> bool:
        return id_ in self.rejects

    def pre_commit(self, handle: Any) -> None:
        self.refuse(handle["ids"])
        self.prepared.add(handle["branch"])

    def commit(self, handle: Any) -> None:
        self.kept += handle["ids"]

    def abort(self, handle: Any) -> None:
        self.prepared.discard(handle["branch"])

    def abort_transaction(self, transaction_id: str, keep: Any) -> None: ...


class Strict(Picky):
    """Rejects whatever row it is given."""

    def invoke(self, handle: Any, record: Row) -> None:
        raise RejectedRowsError([RejectedRow(0, "record", "never")])


class Unread(Picky):
    """Rejects ids, and looks at no other column."""

    def invoke_batch(self, handle: Any, batch: pa.RecordBatch) -> None:
        handle["ids"] += batch["id"].to_pylist()


def test_values_that_python_has_none_of_are_kept(sqlite):
    """A year after 9999, at any depth; a zone of the session that only Java knows."""
    far, day = 1_589_684_381_945_678_901, 18_399_124
    before = -62_195_835_654_321_099
    moment, place = pa.timestamp("us"), pa.timestamp("us", "GMT+2")
    kept = pa.struct([("at", moment), ("n", pa.int64())])
    columns = {
        "id": pa.array([1, 2]),
        "at": pa.array([far, 0], place),
        "day": pa.array([day, 0], pa.date32()),
        "deep": pa.array([{"at": far, "n": 1}, None], kept),
        "many": pa.array([[before, None], []], pa.list_(moment)),
        "by": pa.array([[("a", far)], []], pa.map_(pa.string(), moment)),
        "took": pa.array([-93_784_500_000, 0], pa.duration("us")),
        "text": pa.array(["a", "b"], pa.string_view()),
    }
    own = Unread(frozenset({1}))
    sqlite.write(pa.table(columns), sinks=[own, sqlite.sinks()[2]])
    assert own.kept == [2]
    ((record,),) = sqlite.run("SELECT record FROM rejected")
    text = "+52345-02-03T18:59:05.678901"
    assert json.loads(record) == {
        "id": 1,
        "at": f"{text}+00:00",
        "day": "+52345-02-03",
        "deep": {"at": text, "n": 1},
        "many": ["-0001-02-03T18:59:05.678901", None],
        "by": {"a": text},
        "took": "-1 02:03:04.500000",
        "text": "a",
    }


@pytest.mark.parametrize("at_once", [False, True])
def test_a_sink_of_ones_own_rejects_rows(sqlite, at_once):
    """By its number among those that it was given, in `invoke` or `pre_commit`."""
    sqlite.table("id bigint CHECK (id <> 2), amount bigint")
    picky = Picky(frozenset({1, 4}), at_once)
    assert sqlite.write(orders(1, 2, 3, 4, 5), sinks=sqlite.sinks(picky))
    assert sqlite.ids() == sqlite.filed() == picky.kept == [3, 5]
    assert [(who, id_) for who, _, id_ in sqlite.rejected()] == [
        ("ledger", 2),
        ("picky", 1),
        ("picky", 4),
    ]


def delta_table(folder: Path) -> Any:
    """Make a table that has no null in `amount`, and no long text in `note`."""
    deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed")
    kind, field = deltalake.schema.PrimitiveType, deltalake.Field
    noted = {"__CHAR_VARCHAR_TYPE_STRING": "varchar(3)"}  # as Spark notes it
    fields = [
        field("id", kind("long")),
        field("amount", kind("long"), nullable=False),
        field("note", kind("string"), metadata=noted),
    ]
    deltalake.DeltaTable.create(folder / "delta", deltalake.Schema(fields))
    return lambda: pa.table(deltalake.DeltaTable(folder / "delta").to_pyarrow_table())


def test_a_delta_table_rejects_rows(sqlite):
    """A null, or a text that is too long, in more of Arrow's batches than rounds."""
    rows = delta_table(sqlite.folder)
    sinks = [DeltaSink(sqlite.folder / "delta"), *sqlite.sinks()]
    many = [orders(n, n + 10, note="abc") for n in range(10)]
    for n in range(1, 8):
        many[n][1]["amount"] = None
    many[3][0]["note"] = many[3][1]["note"] = "four"
    many[4][0]["note"] = None
    assert sqlite.write(pa.concat_tables(map(pa.Table.from_pylist, many)), sinks=sinks)
    bad = [3, *range(11, 18)]
    good = sorted({*range(20)} - {*bad})
    assert sorted(rows()["id"].to_pylist()) == sqlite.ids() == good
    assert sqlite.filed() == good
    columns = ["note", *["amount"] * 7]
    assert sqlite.rejected() == sorted(
        ("delta", column, id_) for column, id_ in zip(columns, bad, strict=True)
    )
    reasons = sqlite.run("SELECT DISTINCT reason FROM rejected ORDER BY reason")
    assert reasons == [("NOT NULL",), ("longer than varchar(3)",)]


@pytest.mark.parametrize(
    "fault", [{"note": 4}, {"amount": "x"}, {"other": 1}, {"amount": ...}]
)
def test_what_is_wrong_with_a_delta_tables_columns_rejects_no_row(sqlite, fault):
    """Another type, a column that the table has not, one that the rows have not."""
    rows = delta_table(sqlite.folder)
    sinks = [DeltaSink(sqlite.folder / "delta"), *sqlite.sinks()]
    (row,) = orders(1, note="abc")
    row = {n: v for n, v in (row | fault).items() if v is not ...}
    with pytest.raises(ConfigurationError, match=TEXTS["do not fit"]):
        sqlite.write([row], sinks=sinks)
    assert rows().num_rows == len(sqlite.rejected()) == 0


def test_too_many_rows_of_a_delta_table_abort_the_batch(sqlite):
    """As those of any other participant."""
    rows = delta_table(sqlite.folder)
    sinks = [DeltaSink(sqlite.folder / "delta"), *sqlite.sinks()]
    with pytest.raises(AbortedError, match=TEXTS["too many"]):
        sqlite.write(orders(1, 2, 3, note="four"), sinks=sinks, rejects_at_most=2)
    assert rows().num_rows == len(sqlite.rejected()) == 0


def iceberg_table(folder: Path) -> Lake:
    """Make a table that has no null in `amount`, nor in a member of `of`."""
    schema = pa.schema(
        [
            pa.field("id", pa.int64()),
            pa.field("amount", pa.int64(), nullable=False),
            pa.field("day", pa.date32()),
            pa.field("of", pa.struct([pa.field("x", pa.int64(), nullable=False)])),
        ]
    )
    lake = Lake(folder)
    lake.make(schema)
    return lake


def test_an_iceberg_table_rejects_rows(tmp_path):
    """A null at any depth, or a day that it has no bounds of; by their numbers."""
    lake, far = iceberg_table(tmp_path), 2_932_897
    kinds = [pa.int64(), pa.int64(), pa.int32(), pa.struct([("x", pa.int64())])]
    rows = [
        *((n, 1, 0, {"x": 1}) for n in range(3)),
        (3, None, far, None),
        (4, 1, far, None),
        (5, 1, None, None),
        (6, 1, 0, {"x": None}),
    ]
    columns = [
        pa.array(v, k) for v, k in zip(zip(*rows, strict=True), kinds, strict=True)
    ]
    columns[2] = columns[2].cast(pa.date32())
    batch = pa.RecordBatch.from_arrays(columns, ["id", "amount", "day", "of"])
    about = TransactionId("orders", 0, 1), BranchId.parse("0.0"), ("iceberg",), {}
    sink = lake.sink()
    handle = sink.begin(BranchContext(*about, rejects_at_most=3))
    for part in (batch.slice(0, 4), batch.slice(4)):
        sink.invoke_batch(handle, part)
    with pytest.raises(RejectedRowsError) as caught:
        sink.pre_commit(handle)
    sink.abort(handle)
    named = [(row.row, row.column, row.reason) for row in caught.value.rows]
    year = "before the year 1 or after 9999"
    assert named == [
        (3, "amount", "NOT NULL"),
        (4, "day", year),
        (6, "of.x", "NOT NULL"),
    ]
    handle = sink.begin(BranchContext(*about, rejects_at_most=2))
    with pytest.raises(RejectedRowsError):
        sink.invoke_batch(handle, batch)
    sink.abort(handle)
    assert lake.left() == []


def test_rows_that_an_iceberg_table_rejects_are_kept(sqlite):
    """Once, by who refused them; the others land everywhere."""
    lake = iceberg_table(sqlite.folder)
    sinks = [lake.sink(), *sqlite.sinks()]
    many = orders(*range(6))
    many[4]["amount"] = None
    assert sqlite.write(many, sinks=sinks)
    good = [0, 1, 2, 3, 5]
    assert [row["id"] for row in lake.rows()] == sqlite.ids() == sqlite.filed() == good
    assert sqlite.rejected() == [("iceberg", "amount", 4)]


@pytest.mark.parametrize("fault", [{"amount": "x"}, {"other": 1}, {"amount": ...}])
def test_what_is_wrong_with_an_iceberg_tables_columns_rejects_no_row(sqlite, fault):
    """Another type, a column that the table has not, one that the rows have not."""
    lake = iceberg_table(sqlite.folder)
    (row,) = orders(1)
    row = {n: v for n, v in (row | fault).items() if v is not ...}
    with pytest.raises(ConfigurationError, match=TEXTS["do not fit"]):
        sqlite.write([row], sinks=[lake.sink(), *sqlite.sinks()])
    assert len(lake.rows()) == len(sqlite.rejected()) == 0


@pytest.mark.parametrize("kind", ["parquet", "json", "csv"])
def test_a_folder_rejects_no_row(sqlite, kind):
    """It takes a row, or what it refuses is a fault of the batch."""
    moments = pa.array([0, 300_000_000_000_000_000], pa.timestamp("us"))
    table = pa.table({"id": [1, 2], "at": moments})
    out = sqlite.folder / kind
    sinks = [FileSink(out, kind, name="folder"), sqlite.sinks()[2]]
    is_taken = kind != "json"  # its text has years of four digits
    with contextlib.nullcontext() if is_taken else pytest.raises(ConfigurationError):
        sqlite.write(table, sinks=sinks)
    files = [f for f in out.rglob(f"*.{kind}") if ".tpc" not in f.parts]
    assert len(files) == is_taken
    assert sqlite.rejected() == []


def test_without_rejects_its_rows_are_a_vote_to_abort(sqlite):
    """Which names them."""
    with pytest.raises(AbortedError, match="row 0: id: odd"):
        sqlite.write(orders(1), sinks=[Picky(frozenset({1}))], rejects=None)


@settings(max_examples=25, deadline=None)
@given(
    st.lists(st.integers(0, 40), max_size=30),
    st.sets(st.integers(0, 40)),
    st.sets(st.integers(0, 40)),
)
def test_each_row_is_everywhere_or_rejected(tmp_path_factory, ids, here, there):
    """Whichever rows whichever participants refuse."""
    world = World("", tmp_path_factory.mktemp("rows"))
    world.url = f"sqlite:///{world.folder}/rows.db"
    bad = ", ".join(map(str, [*here, -1]))
    world.table(f"id bigint CHECK (id NOT IN ({bad})), amount bigint")
    picky = Picky(frozenset(there))
    assert world.write(orders(*ids), sinks=world.sinks(picky))
    left = [id_ for id_ in ids if id_ not in here | there]
    kept = [id_ for *_, id_ in world.rejected()]
    assert sorted(picky.kept) == sorted(left)
    assert (world.filed(), sorted([*left, *kept])) == (sorted(left), sorted(ids))
    if left:
        assert world.ids() == sorted(left)


# --- a participant names rows ---------------------------------------------------------


@dataclasses.dataclass
class Ledger:
    """A participant with a unique column, as tasks of several transactions ask it."""

    world: World

    def __post_init__(self) -> None:
        self.world.table("id bigint, amount bigint; UNIQUE (id)")
        url = with_options(self.world.url, {"table": "ledger"})
        self.participant = open_participant("ledger", url, None, 5.0)
        self.participant.set_up()  # type: ignore[attr-defined]

    def prepare(
        self, transaction: str, branch: Branch, name_rows: int | None = 9
    ) -> Vote:
        id_ = TransactionId.parse(transaction)
        return prepare_at(self.participant, id_, branch, name_rows=name_rows)


@pytest.fixture(params=["sqlite", "postgresql"])
def ledger(request, tmp_path) -> Ledger:
    url = f"sqlite:///{tmp_path}/rows.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_database")
    return Ledger(World(url, tmp_path))


def ids(*numbers: int, branch: str = "0.1") -> Branch:
    return records(branch, id=[*numbers], amount=[*numbers])


def test_of_two_equal_rows_the_first_is_kept(ledger):
    """And no more rows are named than one above what is asked for."""
    with pytest.raises(RejectedRowsError) as refused:
        ledger.prepare("orders.1.1", ids(1, 2, 1, 2, 1), 1)
    assert [r.row for r in refused.value.rows] == [2, 3]
    assert ledger.prepare("orders.1.1", ids(1, 2, branch="0.2")) is Vote.COMMIT


def test_a_row_in_doubt_of_another_transaction_rejects_none(ledger):
    """It may be aborted: the answer is *not now*, and nothing is rejected for it."""
    ledger.prepare("other.1.1", ids(1))
    with pytest.raises(ParticipantUnavailableError):
        ledger.prepare("orders.1.1", ids(1, 2))


def test_an_earlier_try_of_the_task_rejects_none(ledger):
    """Nor does its twin: one of them is named by the commit, the other dropped."""
    ledger.prepare("orders.1.1", ids(1))
    with pytest.raises(ParticipantRefusedError) as refused:
        ledger.prepare("orders.1.1", ids(1, 2, branch="0.2"))
    assert not isinstance(refused.value, RejectedRowsError)
    assert refused.value.refusal is Refusal.CONFLICT


def test_a_row_of_another_task_is_named_as_its_peers(ledger):
    """It is there to stay, if the transaction commits."""
    ledger.prepare("orders.1.1", ids(1))
    with pytest.raises(RejectedRowsError) as refused:
        ledger.prepare("orders.1.1", ids(1, 2, branch="1.2"))
    (row,) = refused.value.rows
    assert (row.row, row.is_peers) == (0, True)


def test_rows_of_an_aborted_branch_reject_none(ledger):
    """They are deleted, or are about to be."""
    ledger.prepare("orders.1.1", ids(1))
    ledger.participant.abort_branch(
        TransactionId.parse("orders.1.1"), BranchId(0, 1), ids(1).digest
    )
    with contextlib.suppress(ParticipantUnavailableError):
        assert ledger.prepare("orders.1.1", ids(1, branch="0.2")) is Vote.COMMIT
    assert ledger.prepare("orders.1.1", ids(1, branch="0.2")) is Vote.COMMIT


def test_a_prepare_is_answered_again_with_the_vote(ledger):
    """A second request for the same branch rejects nothing of the first one."""
    for name_rows in (None, 9):
        assert ledger.prepare("orders.1.1", ids(1), name_rows) is Vote.COMMIT


FUNCTION = """CREATE FUNCTION odd() RETURNS trigger LANGUAGE plpgsql AS
$$ BEGIN IF NEW.id & 1 = 1 THEN {}; END IF; RETURN NEW; END $$"""
BY_FUNCTION = "FOR EACH ROW EXECUTE FUNCTION odd()"
TRIGGERS = {
    "sqlite": [
        ("BEGIN SELECT RAISE(ABORT, 'odd') WHERE NEW.id & 1 = 1; END",),
        ("WHEN NEW.id & 1 = 1 BEGIN INSERT INTO audit VALUES (NULL); END",),
    ],
    "postgresql": [
        (BY_FUNCTION, FUNCTION.format("RAISE 'odd'")),
        (BY_FUNCTION, FUNCTION.format("INSERT INTO audit VALUES (NULL)")),
    ],
}


@pytest.mark.parametrize("which", [0, 1], ids=["raises", "violates a constraint"])
def test_a_trigger_rejects_no_row(ledger, which):
    """What it does with a row is its own affair: the refusal is of the branch."""
    body, *first = TRIGGERS[ledger.world.url.partition(":")[0]][which]
    ledger.world.run("CREATE TABLE audit (id bigint NOT NULL)")
    for statement in first:
        ledger.world.run(statement)
    ledger.world.run(f"CREATE TRIGGER odd BEFORE INSERT ON ledger_tpc {body}")
    rows = TaggedRows(ledger.world.url, "ledger", triggers=True)
    with contextlib.closing(rows), served(rows) as url:
        ledger.participant = open_participant("ledger", url, None, PATIENT)
        with pytest.raises(ParticipantRefusedError) as refused:
            ledger.prepare("orders.1.1", ids(2, 3, 4))
        assert not isinstance(refused.value, RejectedRowsError)
        assert ledger.prepare("orders.1.1", ids(2, 4)) is Vote.COMMIT


class Patience(WireParticipant):
    """Refuses, and notes how long it was waited for."""

    waits: ClassVar[list[float]] = []

    def exchange(self, *request: Any, **more: Any) -> tuple[int, str, bytes]:
        *_, timeout, _ = request
        self.waits.append(timeout)
        return 409, PROBLEM, b'{"state": "unknown"}'


def test_a_search_is_waited_for_longer_than_a_vote():
    """A refusal is not kept: one that came too late would be looked for for ever."""
    participant = Patience("ledger", "http://ledger", None, PATIENT)
    for name_rows in (None, 9):
        with pytest.raises(ParticipantRefusedError):
            prepare_at(
                participant,
                TransactionId.parse("orders.1.1"),
                ids(1),
                name_rows=name_rows,
            )
    assert participant.waits == [PATIENT, SEARCH * PATIENT]
    assert SEARCH > 1


def test_an_answer_that_names_rows_is_one_that_is_read():
    """However many there are, and whatever is said of them: others come next time."""
    rows = [RejectedRow(n, "é" * 63, "c" * 300) for n in range(MOST_NAMED + 1)]
    refused = RefusalError(Refusal.CONFLICT, "no", state="unknown", rows=rows)
    answer = json.dumps(problem_of(refused).document())
    assert len(answer) < contract.MAX_ANSWER_BYTES
    named = reading.read_rejected(json.loads(answer), len(rows))
    assert [r.row for r in named] == [*range(len(named))] != []


class OddRelay(TopicRelay):
    """A relay whose broker takes no odd ids, and nothing of a topic that is gone."""

    gone = False

    def check(self, records: Iterable[Record]) -> Iterator[Message]:
        for row, record in enumerate(records):
            if self.gone:
                raise conflict("topic odd: there is none")
            if record.values["id"] % 2:
                raise conflict(f"record {row}, column id: it is odd", "id")
            yield Message("even", None, record.text)


@pytest.mark.parametrize("gone", [False, True])
def test_a_relay_rejects_records_and_not_for_a_topic(tmp_path, gone):
    """A record that cannot be sent is named; what is wrong with a topic names none."""
    relay = OddRelay(Topic())
    relay.gone = gone
    outbox = Outbox(f"sqlite:///{tmp_path}/outbox.db", relay)
    with contextlib.closing(outbox), served(outbox) as url:
        topic = open_participant("topic", url, None, PATIENT)
        id_ = TransactionId.parse("orders.1.1")
        with pytest.raises(ParticipantRefusedError) as refused:
            prepare_at(topic, id_, ids(2, 3, 4, 5, 6), name_rows=9)
        rows = getattr(refused.value, "rows", ())
        named = [(1, "id"), (3, "id")]
        assert [(r.row, r.column) for r in rows] == ([] if gone else named)
        assert all("record" not in r.reason for r in rows)
        if not gone:
            assert prepare_at(topic, id_, ids(2, 4, 6), name_rows=9) is Vote.COMMIT


class ChosenRelay(TopicRelay):
    """A relay with a function of the user's that raises for each record."""

    def check(self, records: Iterable[Record]) -> Iterator[Message]:
        choice = Choice(
            lambda record: str(record["no such column"]), None, (), "topics"
        )
        for row, record in enumerate(records):
            yield choice.message(record, row)


@pytest.mark.parametrize(("at_most", "is_aborted"), [(2, True), (3, False)])
def test_a_function_that_raises_for_each_record(sqlite, at_most, is_aborted):
    """Ends a stream whose batches have more rows than may be rejected.

    No batch says whether the function or the record is wrong: the rows of a smaller one
    are in the table of rejected rows, and none is lost.
    """
    outbox = Outbox(f"sqlite:///{sqlite.folder}/outbox.db", ChosenRelay(Topic()))
    with contextlib.closing(outbox), served(outbox) as url:
        topic = ParticipantSink({"topic": url}, token=None)
        sinks = [topic, TableSink(sqlite.url, "rejected")]
        ends = pytest.raises(AbortedError) if is_aborted else contextlib.nullcontext()
        with ends:
            sqlite.write(orders(1, 2, 3), sinks=sinks, rejects_at_most=at_most)
    rejected = [] if is_aborted else [("topic", "", id_) for id_ in (1, 2, 3)]
    assert sqlite.rejected() == rejected
