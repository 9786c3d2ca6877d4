"""`DeltaSink`: what readers of the table see, and what a crash or a person leaves.

python test_delta_sink.py FOLDER before|after     a job, killed at the table's commit
python test_delta_sink.py FOLDER added            one, killed after it added a column
python test_delta_sink.py FOLDER commit HANDLES   the commits of some transactions
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import decimal
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from support.file_job import (
    Away,
    FileJob,
    flushed,
    give_up,
    ids_of,
    prepared,
    received,
    rows_of,
    transaction_of,
)
from support.texts import texts

from tracing_2pc import DeltaSink, FileSink
from tracing_2pc.core.errors import (
    EACH_TIME,
    CommitPendingError,
    ConfigurationError,
    HeuristicError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import Receipt, TransactionId
from tracing_2pc.sinks import CompositeSink, delta
from tracing_2pc.sinks.base import before_tasks
from tracing_2pc.sinks.rejecting import RejectingSink
from tracing_2pc.store import open_log
from tracing_2pc.testing import SinkContract

TEXTS = texts("sinks")

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed here")
DeltaTable, write_deltalake = deltalake.DeltaTable, deltalake.write_deltalake
Field, Schema = deltalake.Field, deltalake.Schema
PrimitiveType = deltalake.schema.PrimitiveType
NOTE = "__CHAR_VARCHAR_TYPE_STRING"

T = TransactionId("orders", 0, 1)
SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])
ROWS = pa.RecordBatch.from_pydict({"id": [0, 1], "region": ["north", "a b/%é=c"]})
HERE = Path(__file__).parents[1]

Jobs = Callable[..., FileJob]


@pytest.fixture
def out(tmp_path) -> Path:
    """Return where an empty table is."""
    DeltaTable.create(tmp_path / "out", SCHEMA)
    return tmp_path / "out"


@pytest.fixture
def job(out, log) -> Jobs:
    """Return jobs that share a log; by default with a sink of the table."""
    return lambda sink=None, **about: FileJob(sink or DeltaSink(out), log, **about)


def rows(out: Path) -> list[dict[str, Any]]:
    """Read the table through deltalake's own engine."""
    query = deltalake.QueryBuilder().register("t", DeltaTable(out))
    found = pa.table(query.execute("SELECT * FROM t ORDER BY id"))
    return found.to_pylist()


def visible(out: Path) -> list[int]:
    """Return the ids that both readers see."""
    seen = [row["id"] for row in rows(out)]
    arrow = DeltaTable(out).to_pyarrow_dataset().to_table()
    assert sorted(arrow.column("id").to_pylist()) == seen
    return seen


def left(out: Path) -> list[str]:
    """Return what is prepared, or is in the table's folder and not listed."""
    listed = {os.path.basename(uri) for uri in DeltaTable(out).file_uris()}
    unlisted = {path.name for path in out.glob("*.parquet")} - listed
    return sorted({*unlisted, *(transaction_of(p.name) for p in out.glob(".tpc/*"))})


def process(*arguments: Any) -> subprocess.Popen[bytes]:
    """Start this file as a program."""
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path},
    )


@pytest.mark.ci
class TestDeltaSink(SinkContract):
    """The promises of any sink."""

    def make_sink(self, where: Path) -> Any:
        schema = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
        DeltaTable.create(where / "table", schema, mode="ignore")
        return DeltaSink(where / "table")

    def refused(self, where: Path) -> Mapping[str, Any]:
        amount = pa.field("amount", pa.float64(), nullable=False)
        schema = pa.schema([("id", pa.int64()), amount])
        DeltaTable.create(where / "table", schema)
        return {**self.record(0), "amount": None}

    def visible(self, where: Path) -> Iterable[Mapping[str, Any]]:
        return rows(where / "table")

    def leftovers(self, where: Path) -> Iterable[Any]:
        names = [name for name in left(where / "table") if name.endswith(".parquet")]
        return [*names, *where.rglob("*.tmp")]


def test_each_batch_is_one_commit_of_the_table(out, job):
    """Beside another sink, in one transaction; an empty batch is noted as well."""
    copy = out.parent / "copy"
    orders = job(CompositeSink([FileSink(copy, format="json"), DeltaSink(out)]))
    assert [orders.apply(0), orders.apply(1), orders.apply(1)] == [True, True, False]
    assert visible(out) == ids_of(0, 1)
    text = "".join(path.read_text() for path in copy.glob("*.json"))
    assert sorted(json.loads(line)["id"] for line in text.splitlines()) == ids_of(0, 1)
    orders.apply(2, [rows_of(2)[0].slice(0, 0)])
    table = DeltaTable(out)
    assert (table.version(), left(out)) == (3, [])
    assert table.transaction_version("tracing_2pc/orders/delta") == 2
    assert table.history(1)[0]["tracing_2pc.transaction"] == "orders.2.1"


@pytest.mark.parametrize("value", ["__HIVE_DEFAULT_PARTITION__", "€" * 300, "a/b=c%"])
def test_values_of_partitions_are_kept(tmp_path, value):
    """Whatever characters they have, of any length, and null; no folder is named so."""
    out = tmp_path / "parted"
    DeltaTable.create(out, SCHEMA, partition_by=["region"])
    sink, last = DeltaSink(out), pa.RecordBatch.from_pylist([{"id": 3}], schema=SCHEMA)
    odd = pa.RecordBatch.from_pylist([{"id": 2, "region": value}])
    sink.commit_transaction(str(T), [prepared(sink, ROWS, odd, last)])
    expected = [*ROWS.to_pylist(), *odd.to_pylist(), {"id": 3, "region": None}]
    assert rows(out) == expected
    arrow = DeltaTable(out).to_pyarrow_dataset().to_table().sort_by("id")
    assert arrow.to_pylist() == expected


def noted(path: Path, kind: str, **about: Any) -> Path:
    """Make a table of Spark's, with a column `v` that it has noted this type of."""
    v = Field("v", PrimitiveType("string"), metadata={NOTE: kind})
    DeltaTable.create(path, Schema([Field("id", PrimitiveType("long")), v]), **about)
    return path


def test_what_spark_has_noted_of_a_text_is_kept(tmp_path):
    """Its length in characters; the types that Spark would pad are not written."""
    sink = DeltaSink(noted(tmp_path / "short", "varchar(3)"))
    prepared(sink, pa.RecordBatch.from_pydict({"id": [1, 2], "v": ["€€€", None]}))
    with pytest.raises(ConfigurationError, match=TEXTS["too long"]):
        prepared(sink, pa.RecordBatch.from_pydict({"id": [1], "v": ["four"]}))
    for kind in ("char(3)", "array<varchar(3)>"):
        with pytest.raises(ConfigurationError, match=re.escape(f"{kind} of 'v'")):
            DeltaSink(noted(tmp_path / kind, kind)).check_job("orders")


@pytest.mark.parametrize(
    "moment", [pytest.param("before", marks=pytest.mark.ci), "after"]
)
def test_killed_at_the_commit_each_row_is_there_once(out, job, moment):
    """Before it no row is visible, after it all are; the next start ends it."""
    assert process(out.parent, moment).wait() == -9
    assert visible(out) == (ids_of(0) if moment == "after" else [])
    DeltaTable(out).vacuum(
        0, dry_run=False, enforce_retention_duration=False, full=True
    )
    orders = job()
    orders.apply(0)
    orders.apply(1)
    assert visible(out) == ids_of(0, 1)
    assert left(out) == []


@pytest.mark.ci
def test_two_processes_commit_the_same_while_others_append(out):
    """Each batch is there once, and so is each row of the others."""
    sink, batches = DeltaSink(out), range(5)
    sink.check_job("orders")
    handles = []
    for batch in batches:
        (given, _), of = rows_of(batch), TransactionId("orders", batch, 1)
        handles.append(dataclasses.asdict(prepared(sink, given, of=of)))
    (file := out.parent / "handles").write_text(json.dumps(handles))
    running = [process(out.parent, "commit", file) for _ in range(2)]
    others = range(1000, 1005)
    for n in others:
        write_deltalake(out, pa.table({"id": [n], "region": ["other"]}), mode="append")
    assert [one.wait() for one in running] == [0, 0]
    ours = [n for batch in batches for n in ids_of(batch)[:2]]
    assert visible(out) == [*ours, *others]
    assert DeltaTable(out).version() == 10
    assert left(out) == []


@pytest.mark.parametrize(
    ("given", "fault"),
    [
        (
            {"id": ["0"], "region": ["n"]},
            r"column 'id' is string, the table's int64: CAST\(id AS BIGINT\)",
        ),
        ({"id": [0], "region": ["n"], "more": [1]}, "no column 'more'"),
    ],
)
def test_rows_that_do_not_fit_vote_abort(out, job, given, fault):
    """By name of the column, at each try, and leave nothing."""
    with pytest.raises(ConfigurationError, match=f"{EACH_TIME}: .*{fault}") as caught:
        job().apply(0, [pa.RecordBatch.from_pydict(given)])
    assert "\n" not in str(caught.value)
    assert [*out.rglob("*.tmp")] == []


def test_nulls_inside_of_a_column(tmp_path):
    """Spark declares all there as nullable; what is null itself lacks nothing."""
    strict = pa.struct([pa.field("x", pa.int32(), nullable=False)])
    DeltaTable.create(tmp_path / "t", pa.schema([("s", strict)]))
    sink = DeltaSink(tmp_path / "t")

    def batch(*values: dict[str, Any] | None) -> pa.RecordBatch:
        kind = pa.struct([("x", pa.int32())])
        return pa.RecordBatch.from_pydict({"s": pa.array(values, kind)})

    with pytest.raises(ConfigurationError, match=TEXTS["nulls"].format(column="s.x")):
        prepared(sink, batch({"x": None}))
    sink.commit_transaction(str(T), [prepared(sink, batch({"x": 1}, None))])
    read = DeltaTable(tmp_path / "t").to_pyarrow_table()
    assert read["s"].to_pylist() == [{"x": 1}, None]


def test_nulls_and_forms_of_a_type(tmp_path):
    """A column that allows no null is held to that; another zone is the same time."""
    id_, at = pa.field("id", pa.int64(), nullable=False), pa.timestamp("us", "UTC")
    parts = pa.field("parts", pa.list_(pa.string()))
    DeltaTable.create(tmp_path / "t", pa.schema([id_, ("at", at), parts]))
    sink = DeltaSink(tmp_path / "t")
    paris = pa.array([7], pa.timestamp("us", "Europe/Paris"))
    kind = pa.large_list(pa.large_string())
    large = pa.array([["x"]], kind)
    good = pa.RecordBatch.from_pydict({"parts": large, "id": [1], "at": paris})
    short = pa.RecordBatch.from_pydict({"id": [2]})
    with pytest.raises(ConfigurationError, match=TEXTS["nulls"].format(column="id")):
        prepared(sink, pa.RecordBatch.from_pydict({"id": pa.array([None], "int64")}))
    with pytest.raises(
        ConfigurationError, match=TEXTS["missing column"].format(column="id")
    ):
        prepared(sink, good.select(["at"]))
    handles = [prepared(sink, good), prepared(sink, short, branch="1.1")]
    sink.commit_transaction(str(T), handles)
    first, second = rows(tmp_path / "t")
    assert (first["at"].microsecond, first["parts"]) == (7, ["x"])
    assert second == {"id": 2, "at": None, "parts": None}


@pytest.mark.parametrize("hours", [None, 0])
@pytest.mark.parametrize("killed", [False, True])
def test_a_vacuum_before_the_commit_takes_no_row(out, hours, killed):
    """Not by default, however late the decision; by none for good: what is aside is the
    copy that is linked again, also by the next try, before it is removed."""

    class Vacuumed(DeltaSink):
        def _append(self, table: Any, *rest: Any) -> str:
            about = {"dry_run": False, "enforce_retention_duration": False}
            gone = DeltaTable(out).vacuum(hours, full=True, **about)
            assert (gone == []) == (hours is None)
            text = super()._append(table, *rest)
            if killed:
                raise TimeoutError(text)
            return text

    sink = Vacuumed(out)
    handle = prepared(sink)
    (file,) = (out / ".tpc").rglob("*.tmp")
    os.utime(file, (0, 0))
    if killed:
        os.link(file, out / handle.files[0]["path"])  # by an earlier try
        with pytest.raises(TimeoutError):
            sink.commit_transaction(str(T), [handle])
    sink.commit_transaction(str(T), [handle])
    assert (visible(out), left(out)) == ([0, 1], [])


def test_a_listed_file_that_is_gone_is_no_success(out):
    """With no copy left the batch is a contradiction; compacted, it is committed."""

    class Harmed(DeltaSink):
        def _append(self, *arguments: Any) -> str:
            text = super()._append(*arguments)
            for file in [*out.glob("*.parquet"), *out.rglob("*.tmp")]:
                file.unlink()
            return text

    sink = DeltaSink(out)
    handle = prepared(sink)
    sink.commit_transaction(str(T), [handle])
    write_deltalake(out, pa.table(SCHEMA.empty_table()), mode="overwrite")
    for file in out.glob("*.parquet"):
        file.unlink()
    sink.commit_transaction(str(T), [handle])
    harmed, second = Harmed(out), TransactionId("orders", 1, 1)
    with pytest.raises(ParticipantRefusedError, match=TEXTS["listed and gone"]):
        harmed.commit_transaction(str(second), [prepared(harmed, of=second)])


def test_a_vacuum_between_link_and_check_is_no_loss(out):
    """The commit is repeated: what was prepared is there still."""

    class Vacuumed(DeltaSink):
        def _fault(self, *arguments: Any) -> str | None:
            for file in out.glob("*.parquet"):
                file.unlink()
            return super()._fault(*arguments)

    sink = Vacuumed(out)
    handle = prepared(sink)
    with pytest.raises(ParticipantUnavailableError, match=TEXTS["placed again"]):
        sink.commit_transaction(str(T), [handle])
    DeltaSink(out).commit_transaction(str(T), [handle])
    assert visible(out) == [0, 1]


@pytest.mark.parametrize("content", ["\0" * 40, '{"commitInfo": {'])
def test_what_a_loss_of_power_left_of_the_log_is_named(out, content):
    """No writer flushes a commit before its name: the cure is in the line."""
    DeltaTable(out).alter.set_table_description("of orders")
    newest = out / "_delta_log" / f"{1:020}.json"
    newest.write_text(content)
    (hint := out / "_delta_log" / "_last_checkpoint").write_text("")
    sink = DeltaSink(out)
    torn = TEXTS["torn"].format(names=f"{newest.name}, {hint.name}")
    with pytest.raises(ParticipantUnavailableError, match=re.escape(torn)):
        sink.commit_transaction(str(T), [prepared(sink)])
    hint.unlink()
    newest.unlink()
    sink.commit_transaction(str(T), [prepared(sink)])
    assert visible(out) == [0, 1]


@pytest.mark.parametrize("harm", ["gone", "short"])
def test_a_file_that_somebody_harmed_is_not_listed(out, job, harm):
    """The transaction is quarantined, and the table stays readable."""

    class Careless(DeltaSink):
        def commit_transaction(self, transaction_id: str, handles: Any) -> None:
            file = next((out / ".tpc").rglob("*.tmp"))
            file.unlink() if harm == "gone" else file.write_bytes(b"PAR1")
            super().commit_transaction(transaction_id, handles)

    with pytest.raises(HeuristicError, match=TEXTS["not listed"]):
        job(Careless(out)).apply(0)
    assert (visible(out), DeltaTable(out).version()) == ([], 0)


def test_a_table_that_changed_after_the_vote_is_not_harmed(out):
    """New columns that may be null fit; another type of a column does not."""
    sink = DeltaSink(out)
    handle = prepared(sink)
    more = pa.table({"id": [9], "region": ["n"], "more": [1]})
    write_deltalake(out, more, mode="append", schema_mode="merge")
    sink.commit_transaction(str(T), [handle])
    assert visible(out) == [0, 1, 9]
    handle = prepared(sink, of=TransactionId("orders", 1, 1))
    text = pa.table({"id": ["9"], "region": ["n"]})
    write_deltalake(out, text, mode="overwrite", schema_mode="overwrite")
    with pytest.raises(
        ParticipantRefusedError,
        match=TEXTS["another type"].format(column="id", kind="int64"),
    ):
        sink.commit_transaction("orders.1.1", [handle])
    assert [row["id"] for row in rows(out)] == ["9"]


def overwritten(region: pa.Field, value: Any) -> Callable[[Path], object]:
    """Return what gives a table's column of partitions another type."""
    schema = pa.schema([SCHEMA.field("id"), region])
    row = pa.Table.from_pylist([{"id": 9, "region": value}], schema=schema)
    about = {"mode": "overwrite", "schema_mode": "overwrite", "partition_by": "region"}
    return lambda out: write_deltalake(out, row, **about)


CHANGES: dict[str, tuple[Callable[[Path], object], str]] = {
    "a constraint": (
        lambda out: DeltaTable(out).alter.add_constraint({"large": "id > 5"}),
        "uses the constraint large",
    ),
    "a feature": (
        lambda out: DeltaTable(out).alter.add_feature(
            deltalake.TableFeatures.DeletionVectors,
            allow_protocol_versions_increase=True,
        ),
        "uses deletionVectors",
    ),
    "a property": (
        lambda out: DeltaTable(out).alter.set_table_properties(
            {"delta.setTransactionRetentionDuration": "interval 1 days"}
        ),
        "uses setTransactionRetentionDuration",
    ),
    "the type of a partition": (
        overwritten(pa.field("region", pa.int32()), 1),
        "partitioned by region, of type integer",
    ),
    "no null in a partition": (
        overwritten(pa.field("region", pa.string(), nullable=False), "n"),
        "'region' has nulls",
    ),
}


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("change", CHANGES)
def test_what_the_table_asks_for_since_the_vote_is_never_passed_over(
    tmp_path, change, when
):
    """Before the commit reads the table, or while it writes: refused, nothing listed;
    an empty batch as well, if the table asks for more than a file."""
    out, (apply, says) = tmp_path / "parted", CHANGES[change]
    DeltaTable.create(out, SCHEMA, partition_by=["region"])

    class Late(DeltaSink):
        changes = int(when == "during")

        def _append(self, *arguments: Any) -> str:
            if self.changes:
                self.changes -= 1
                apply(out)
            return super()._append(*arguments)

    sink = Late(out)
    rows = pa.RecordBatch.from_pydict({"id": [0, 1], "region": ["north", None]})
    handle = received(prepared(sink, rows))
    if when == "before":
        apply(out)
    of_table = "partition" not in change
    for handles in [handle], *([[]] if of_table else []):
        version = None if when == "during" else DeltaTable(out).version()
        with pytest.raises(ParticipantRefusedError, match=says) as caught:
            sink.commit_transaction(str(T), handles)
        assert "\n" not in str(caught.value)
        assert version in (None, DeltaTable(out).version())
    assert "delta.orders.0.1" in left(out)
    if change == "a constraint":
        DeltaTable(out).alter.drop_constraint("large")
        sink.commit_transaction(str(T), [handle])
        assert (visible(out), left(out)) == ([0, 1], [])


@pytest.mark.parametrize(("text", "by"), [("four", []), ("four", ["v"]), ("€€€", [])])
def test_a_text_that_is_shortened_after_the_vote_is_asked_for_again(tmp_path, text, by):
    """No text is listed that is longer than the table allows now; all others are."""

    def notes(kind: str, mode: str) -> Path:
        return noted(tmp_path / "t", kind, mode=mode, partition_by=by)

    sink, row = DeltaSink(notes("varchar(4)", "error")), {"id": 1, "v": text}
    handle = received(prepared(sink, pa.RecordBatch.from_pylist([row])))
    notes("varchar(3)", "overwrite")
    if text == "four":
        with pytest.raises(ParticipantRefusedError, match=TEXTS["too long"]):
            sink.commit_transaction(str(T), [handle])
        assert rows(tmp_path / "t") == []
        notes("varchar(4)", "overwrite")
    sink.commit_transaction(str(T), [handle])
    assert rows(tmp_path / "t") == [row]


def test_a_change_between_reading_and_committing_is_read_again(out):
    """The commit is tried again on the table as it is then."""

    class Late(DeltaSink):
        changes = 1

        def _append(self, table: Any, *rest: Any) -> str:
            if self.changes:
                self.changes -= 1
                more = pa.table({"id": [9], "region": ["n"], "more": [1]})
                write_deltalake(out, more, mode="append", schema_mode="merge")
            return super()._append(table, *rest)

    sink = Late(out)
    sink.commit_transaction(str(T), [prepared(sink)])
    assert visible(out) == [0, 1, 9]


def test_the_attempt_is_known_after_compaction_and_clean_up(out):
    """A repeat changes nothing, another attempt or other files are refused."""
    sink, second = DeltaSink(out), TransactionId("orders", 0, 2)
    handle, other, foreign = prepared(sink), prepared(sink, of=second), prepared(sink)
    sink.commit_transaction(str(T), [handle])
    table = DeltaTable(out)
    table.optimize.compact()
    table.create_checkpoint()
    table.cleanup_metadata()
    version = DeltaTable(out).version()
    sink.commit_transaction(str(T), [handle])
    for of, files in (second, [other]), (T, [foreign]), (T, []):
        with pytest.raises(ParticipantRefusedError, match=TEXTS["nothing proves"]):
            sink.commit_transaction(str(of), files)
    with pytest.raises(ParticipantRefusedError, match=TEXTS["committed"]):
        sink.abort_transaction(str(T), [])
    sink.abort_transaction(str(second), [])
    with pytest.raises(
        ParticipantRefusedError,
        match=TEXTS["batch is there"].format(batch=0, application="orders"),
    ):
        prepared(sink, of=second)
    assert (visible(out), DeltaTable(out).version()) == ([0, 1], version)


def test_an_older_batch_is_repeated_if_the_history_proves_it(out):
    """Else it is refused, as is that of another log; the newest needs no history."""
    sink, later = DeltaSink(out), TransactionId("orders", 1, 1)
    handle, foreign = prepared(sink), prepared(sink)
    sink.commit_transaction(str(T), [handle])
    newest = prepared(sink, of=later)
    sink.commit_transaction(str(later), [newest])
    sink.commit_transaction(str(T), [handle])
    DeltaTable(out).create_checkpoint()
    for version in range(2):
        (out / "_delta_log" / f"{version:020}.json").unlink()
        with pytest.raises(ParticipantRefusedError, match=TEXTS["nothing proves"]):
            sink.commit_transaction(str(T), [foreign])
    with pytest.raises(ParticipantRefusedError, match=TEXTS["short history"]):
        sink.commit_transaction(str(T), [handle])
    sink.commit_transaction(str(later), [newest])
    assert (visible(out), DeltaTable(out).version()) == ([0, 0, 1, 1], 2)


@pytest.mark.parametrize("kind", [FileSink, DeltaSink])
def test_a_receipt_names_files_of_its_own_branch_only(out, job, kind):
    """Not those of its task's twin, which was not chosen."""

    class Forged(FileJob):
        def prepare(
            self, transaction: Any, branch: str, rows: pa.RecordBatch
        ) -> tuple[Receipt, ...]:
            (vote,) = super().prepare(transaction, branch, rows)
            (twin,) = super().prepare(transaction, f"{branch[0]}.9", rows)
            return (dataclasses.replace(vote, handle=twin.handle),)

    sink = kind(out)
    with pytest.raises(HeuristicError, match=TEXTS["a receipt"]):
        Forged(sink, job().log).apply(0)
    assert (visible(out), left(out)) == ([], [f"{sink.name}.orders.0.1"])


@pytest.mark.parametrize(
    ("what", "forged", "says"),
    [
        ("day", "soon", "column 'day' has 'soon', which is no date32"),
        ("day", 7, "column 'day' has 7"),
        ("n", "07", "column 'n' has '07'"),
        ("v", "", "column 'v' has ''"),
        ("v", "four", TEXTS["too long"]),
        ("v", "\ud800", "column 'v' has "),
        ("v", None, ""),
        ("more", "1", "is now partitioned by"),
        ("stats", '{"numRecords": 9}', "it has 1 rows, the receipt says "),
        ("path", "../{path}", TEXTS["a receipt"]),
        ("path", "day=0999-01-02/{path}", TEXTS["a receipt"]),
    ],
)
def test_what_a_receipt_says_of_a_file_is_not_believed(tmp_path, what, forged, says):
    """Nothing is listed that nobody could read, or that counts are wrong of."""
    out, note = tmp_path / "parted", {NOTE: "varchar(3)"}
    kinds = {"id": "long", "day": "date", "n": "integer", "d": "decimal(9,2)"}
    fields = [Field(name, PrimitiveType(kind)) for name, kind in kinds.items()]
    v, b = PrimitiveType("string"), Field("b", PrimitiveType("boolean"))
    schema = Schema([*fields, b, Field("v", v, metadata=note)])
    DeltaTable.create(out, schema, partition_by=["day", "n", "d", "b", "v"])
    at, d = datetime.date(999, 1, 2), decimal.Decimal("-1.50")
    row: dict[str, Any] = {"id": 0, "day": at, "n": -7, "d": d, "b": True, "v": "abc"}
    types = {"id": pa.int64(), "n": pa.int32(), "d": pa.decimal128(9, 2)}
    given = [pa.array([value], types.get(name)) for name, value in row.items()]
    sink = DeltaSink(out)
    handle = received(prepared(sink, pa.RecordBatch.from_arrays(given, [*row])))
    true = received(handle)
    of = handle.files[0]
    if what == "path":
        forged = forged.format(path=of["path"])
    (of if what in of else of["partition_values"])[what] = forged
    if says:
        with pytest.raises(ParticipantRefusedError, match=says) as caught:
            sink.commit(handle)
        assert "\n" not in str(caught.value)
        assert rows(out) == []
        handle = true
    else:
        row["v"] = None
    sink.commit(handle)
    assert rows(out) == [row]


def test_what_a_person_has_ended_is_kept(out, job):
    """What is prepared is then the only copy of these rows."""
    sink = type("Away", (Away, DeltaSink), {})(out)
    give_up(job(sink), "delta")
    assert (visible(out), left(out)) == (ids_of(1), ["delta.orders.0.1"])
    assert len([*(out / ".tpc").rglob("*.parquet.tmp")]) == 2


def test_what_late_tasks_leave_goes_at_the_next_commit(out, monkeypatch):
    """Of each batch that this sink has committed, whatever the attempt; not of another
    sink or application, nor of a batch without a commit: a person has ended it."""

    def commit(batch: int, sink: DeltaSink) -> None:
        of = TransactionId("orders", batch, 1)
        sink.commit_transaction(str(of), [prepared(sink, of=of)])

    sink, copy = DeltaSink(out), DeltaSink(out, "copy")
    for batch, one in ((0, sink), (0, copy), (1, copy), (3, sink)):
        commit(batch, one)
    kept = [
        "copy.orders.0.1",
        "delta.orders.01.1",  # no id
        "delta.orders.1.1",
        "delta.orders.9.1",
        "delta.other.0.1",
    ]
    gone = ["delta.orders.0.1", "delta.orders.0.2", "delta.orders.3.1"]
    for late in kept + gone:
        (out / ".tpc" / f"{late}.0.9.0123456789ab.0.parquet.tmp").touch()
    with monkeypatch.context() as patch:  # a commit that is proven is not held back
        patch.setattr(DeltaTable, "history", lambda _: 1 / 0)
        commit(4, sink)
    assert left(out) == sorted(kept + gone)
    commit(5, sink)
    assert left(out) == kept
    monkeypatch.setattr(DeltaTable, "history", None)  # what stays is asked for once
    commit(6, sink)
    assert left(out) == kept


@pytest.mark.parametrize("instead", ["nothing", "another table", "a later batch"])
def test_a_table_that_goes_away_during_a_commit_is_waited_for(
    tmp_path, out, job, instead
):
    """Files that cannot be seen are not lost, and another table proves nothing."""

    class Unmounted(DeltaSink):
        mounted = True

        def _fault(self, *arguments: Any) -> str | None:
            if self.mounted:
                self.mounted = False
                out.rename(tmp_path / "gone")
                if instead != "nothing":
                    DeltaTable.create(out, SCHEMA)
                if instead == "a later batch":
                    later, sink = TransactionId("orders", 1, 1), DeltaSink(out)
                    sink.commit_transaction(str(later), [prepared(sink, of=later)])
            return super()._fault(*arguments)

    orders = job(Unmounted(out))
    with pytest.raises(CommitPendingError, match="mount"):
        orders.apply(0)
    if instead != "nothing":
        out.rename(tmp_path / "mount point")
    (tmp_path / "gone").rename(out)
    orders.apply(0)
    assert visible(out) == ids_of(0)


def test_a_start_with_another_table_writes_nothing(tmp_path, out, job):
    """Neither in another folder, nor made anew in the same one."""

    def start(run: str) -> FileJob:
        sink = DeltaSink(out)
        sink.check_job("orders")
        return job(sink, run=run)

    def refused(run: str) -> None:
        with pytest.raises(ConfigurationError, match=TEXTS["another table"]):
            start(run).apply(1)
        assert ([*out.rglob("*.parquet*")], DeltaTable(out).version()) == ([], 0)
        out.rename(tmp_path / run)

    start("first").apply(0)
    out.rename(tmp_path / "kept")
    DeltaTable.create(out, SCHEMA)
    refused("another folder")
    DeltaTable.create(out, SCHEMA)
    (out / "_tpc").mkdir()
    same = (tmp_path / "kept" / "_tpc" / "folder-id").read_text()
    (out / "_tpc" / "folder-id").write_text(same)
    refused("made anew")
    (tmp_path / "kept").rename(out)
    start("last").apply(1)
    assert visible(out) == ids_of(0, 1)


def test_durable_before_it_counts(out, monkeypatch):
    """Files before the vote; their names in the table, and its log, before the end.

    Before them what others have added to its log: without that none of ours is read.
    """
    sink = DeltaSink(out)
    sink.check_job("orders")
    steps = flushed(monkeypatch, out)
    handle = prepared(sink)
    assert steps == [".tpc/delta.orders.0.1", ".", ".tpc"]
    steps.clear()
    sink.commit_transaction(str(T), [handle])
    log, first = "_delta_log", [f"_delta_log/{n:020}.json" for n in range(3)]
    assert steps == [".", first[0], log, first[1], log]
    steps.clear()
    second = TransactionId("orders", 1, 1)
    sink.commit_transaction(str(second), [prepared(sink, of=second)])
    assert steps[-3:] == [".", first[2], log]


def test_what_cannot_be_written_is_refused_at_the_start(tmp_path):
    """No table, another place, constraints and features; in one line."""

    def refused(what: str, path: Any) -> None:
        with pytest.raises(ConfigurationError, match=what) as caught:
            DeltaSink(path).check_job("orders")
        assert "\n" not in str(caught.value)

    refused("DeltaTable.create", tmp_path / "none")
    assert not (tmp_path / "none").exists()
    refused("DeltaSink.*hard links, which gs", "gs://bucket/table")
    table = DeltaTable.create(tmp_path / "checked", SCHEMA)
    table.alter.add_constraint({"positive": "id > 0"})
    refused("the constraint positive", tmp_path / "checked")
    vectors = {"delta.enableDeletionVectors": "true"}
    DeltaTable.create(tmp_path / "vectors", SCHEMA, configuration=vectors)
    refused("deletionVectors", tmp_path / "vectors")
    short = {"delta.setTransactionRetentionDuration": "interval 1 days"}
    DeltaTable.create(tmp_path / "short", SCHEMA, configuration=short)
    refused("setTransactionRetentionDuration", tmp_path / "short")
    at = pa.schema([("id", pa.int64()), ("at", pa.timestamp("us", "UTC"))])
    DeltaTable.create(tmp_path / "at", at, partition_by=["at"])
    refused("partitioned by 'at'", tmp_path / "at")


def test_another_folder_is_not_the_table(tmp_path, out):
    """An executor that does not share it is refused, a commit waits."""
    sink, there = DeltaSink(out), tmp_path / "there"
    sink.check_job("orders")
    handle = prepared(sink)
    out.rename(there)
    DeltaTable.create(out, SCHEMA)
    with pytest.raises(ConfigurationError, match=TEXTS["another folder"]):
        prepared(sink)
    with pytest.raises(ParticipantUnavailableError, match=TEXTS["not the folder"]):
        sink.commit_transaction(str(T), [handle])
    (out / "_delta_log").rename(tmp_path / "away")
    out.rename(tmp_path / "empty")
    there.rename(out)
    sink.commit_transaction(str(T), [handle])
    assert visible(out) == [0, 1]
    (listed,) = out.glob("*.parquet")
    assert parquet.read_table(listed).num_rows == 2


NEW = pa.RecordBatch.from_pydict({"id": [8], "region": ["north"], "note": ["x"]})


def columns(out: Path) -> list[str]:
    return [field.name for field in DeltaTable(out).schema().fields]


def test_a_column_comes_with_a_batch(out, job):
    """By a commit of its own, before any task; others do not have to send it."""
    orders = job(DeltaSink(out, evolve="add"))
    orders.apply(0)
    orders.apply(1, [NEW])
    orders.apply(0 + 2, [ROWS])  # as of another job, or of a batch that is older
    notes = {row["id"]: row["note"] for row in rows(out)}
    assert notes == {**dict.fromkeys(ids_of(0)), 8: "x"}
    assert columns(out) == ["id", "region", "note"]
    done = [version["operation"] for version in reversed(DeltaTable(out).history())]
    assert done == ["CREATE TABLE", "WRITE", "ADD COLUMN", "WRITE", "WRITE"]


def test_a_column_stays_when_its_batch_aborts(out, job):
    """No row of it is there, and a later batch finds it."""
    orders = job(DeltaSink(out, evolve="add"))
    with pytest.raises(RuntimeError):
        orders.apply(0, [NEW], fails=True)
    assert (columns(out), visible(out)) == (["id", "region", "note"], [])
    orders.apply(0, [NEW])
    assert visible(out) == [8]


def test_a_branch_from_before_is_committed_after_a_column_came(out):
    """Its files lack it, and its rows have null."""
    sink = DeltaSink(out, evolve="add")
    handle = prepared(sink)
    sink.before_tasks(NEW.schema)
    sink.commit_transaction(str(T), [handle])
    assert [row["note"] for row in rows(out)] == [None, None]


def test_rows_that_are_rejected_bring_their_table_no_column(tmp_path, out):
    """It has columns of its own, whatever the batch has."""
    kept = DeltaTable.create(tmp_path / "kept", SCHEMA)
    keeper = DeltaSink(tmp_path / "kept", "kept", evolve="add")
    sink = RejectingSink(DeltaSink(out, evolve="add"), keeper, 1)
    before_tasks(sink, lambda: NEW.schema)
    kept.update_incremental()
    assert (columns(out)[-1], kept.version()) == ("note", 0)


@pytest.mark.parametrize("other", ["string", "long"])
def test_two_jobs_add_a_column_at_one_moment(out, monkeypatch, other):
    """The second finds it there; in another type that is a vote to abort, with both."""
    sink, add = DeltaSink(out, evolve="add"), delta.add_fields

    def add_second(table: Any, fields: Any) -> str:
        monkeypatch.undo()
        first = Field("note", PrimitiveType(other))
        assert add(DeltaTable(out), [first])
        return str(add(table, fields))

    monkeypatch.setattr(delta, "add_fields", add_second)
    sink.before_tasks(NEW.schema)
    assert columns(out) == ["id", "region", "note"]
    if other == "string":
        sink.commit_transaction(str(T), [prepared(sink, NEW)])
        assert visible(out) == [8]
        return
    with pytest.raises(ConfigurationError, match=TEXTS["two types"]):
        prepared(sink, NEW)


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("at", pa.time64("us"), "column 'at': it is time64"),
        ("at", pa.timestamp("us"), r"column 'at': it is timestamp\[us\]"),
        ("at", pa.timestamp("ns", "UTC"), r"column 'at': it is timestamp\[ns"),
        ("n", pa.uint64(), "column 'n': it is uint64"),
        ("Region", pa.string(), "column 'Region': it has 'region'"),
    ],
)
def test_a_column_that_a_table_cannot_have(out, job, name, kind, says):
    """Refused with its name and type: not read as another one, nor by fewer readers."""
    batch = pa.record_batch(
        [[1], [None]], pa.schema([("id", pa.int64()), (name, kind)])
    )
    with pytest.raises(ConfigurationError, match=says):
        job(DeltaSink(out, evolve="add")).apply(0, [batch])
    table = DeltaTable(out)
    assert (table.version(), table.protocol().min_reader_version) == (0, 1)


def test_times_without_a_zone_where_readers_know_them(tmp_path, job):
    """A table that has such a column takes another one."""
    kind = pa.timestamp("us")
    out = tmp_path / "times"
    DeltaTable.create(out, pa.schema([("id", pa.int64()), ("at", kind)]))
    at = datetime.datetime(2024, 2, 29)  # noqa: DTZ001 - of no zone
    batch = pa.record_batch([[1], [at]], pa.schema([("id", pa.int64()), ("to", kind)]))
    job(DeltaSink(out, evolve="add")).apply(0, [batch])
    assert rows(out) == [{"id": 1, "at": None, "to": at}]


def test_a_column_of_nulls_waits_for_a_value(out, job):
    """It has no type yet, and its rows lose nothing."""
    orders = job(DeltaSink(out, evolve="add"))
    nulls = pa.record_batch([[1], pa.nulls(1)], ["id", "note"])
    orders.apply(0, [nulls])
    assert columns(out) == ["id", "region"]
    orders.apply(1, [NEW])
    assert [row["note"] for row in rows(out)] == [None, "x"]


def test_a_column_is_durable_before_a_task_begins(out, monkeypatch):
    """A commit whose column was lost with the power would fit no table."""
    sink = DeltaSink(out, evolve="add")
    steps = flushed(monkeypatch, out)
    sink.before_tasks(NEW.schema)
    assert f"_delta_log/{1:020}.json" in steps
    assert steps[-1] == "_delta_log"


@pytest.mark.ci
def test_killed_between_the_column_and_the_rows(out, job):
    """The next start goes on with the table as it is."""
    assert process(out.parent, "added").wait() == -9
    assert (columns(out), visible(out)) == (["id", "region", "note"], [])
    job(DeltaSink(out, evolve="add")).apply(0, [NEW])
    assert visible(out) == [8]


class Killed(DeltaSink):
    """Its process is killed at the commit of the table."""

    after = False
    added = False

    def begin(self, context: Any) -> Any:
        if self.added:
            os.kill(os.getpid(), 9)
        return super().begin(context)

    def _append(self, *arguments: Any) -> str:
        if self.after:
            super()._append(*arguments)
        os.kill(os.getpid(), 9)
        raise AssertionError


def main(folder: Path, what: str, handles: str = "") -> None:
    """Do what the module's docstring says."""
    if what == "commit":
        sink = DeltaSink(folder / "out")
        for kept in json.loads(Path(handles).read_text()):
            handle = DeltaSink.handle_type(**kept)
            sink.commit_transaction(handle.transaction, [handle])
        return
    killed = Killed(folder / "out", evolve="add")
    killed.after, killed.added = what == "after", what == "added"
    with contextlib.closing(open_log(f"sqlite:///{folder}/log.db")) as log:
        FileJob(killed, log).apply(0, [NEW] if killed.added else None)


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
