"""`IcebergSink`: what readers of the table see, and what a crash or a person leaves.

python test_iceberg_sink.py FOLDER job FIRST [fail]  a job up to batch 1, to be killed
python test_iceberg_sink.py FOLDER commit HANDLES   the commits of some transactions
"""

from __future__ import annotations

import contextlib
import dataclasses
import datetime
import json
import os
import pickle
import re
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyarrow import parquet
from pyiceberg.exceptions import CommitStateUnknownException
from pyiceberg.io.pyarrow import ParquetFormatModel
from pyiceberg.partitioning import PartitionField, PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.transforms import (
    BucketTransform,
    DayTransform,
    HourTransform,
    IdentityTransform,
    MonthTransform,
    TruncateTransform,
    UnknownTransform,
    VoidTransform,
    YearTransform,
)
from pyiceberg.types import (
    IntegerType,
    ListType,
    LongType,
    MapType,
    NestedField,
    StringType,
    StructType,
    TimestamptzType,
)
from support.file_job import (
    Away,
    FileJob,
    flushed,
    give_up,
    ids_of,
    prepared,
    received,
    rows_of,
    write,
)
from support.lake import NAME, SCHEMA, Lake, properties
from support.texts import texts

from tracing_2pc import FileSink, IcebergSink
from tracing_2pc.core.errors import (
    EACH_TIME,
    ConfigurationError,
    HeuristicError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import Receipt, TransactionId
from tracing_2pc.sinks import CompositeSink
from tracing_2pc.sinks.iceberg_files import TableFolder
from tracing_2pc.store import open_log
from tracing_2pc.testing import SinkContract

TEXTS = texts("sinks")

T = TransactionId("orders", 0, 1)
SECOND = TransactionId("orders", 1, 1)
ROWS = pa.RecordBatch.from_pydict({"id": [0, 1], "region": ["north", "a b/%é=c"]})
MARKER = "tpc.orders.iceberg"
HERE = Path(__file__).parents[1]

Jobs = Callable[..., FileJob]


@pytest.fixture
def lake(tmp_path) -> Lake:
    """Return a lake with an empty table."""
    made = Lake(tmp_path)
    made.make()
    return made


@pytest.fixture
def job(lake, log) -> Jobs:
    """Return jobs that share a log; by default with a sink of the table."""
    return lambda sink=None, **about: FileJob(sink or lake.sink(), log, **about)


def process(*arguments: Any, **env: Any) -> subprocess.Popen[bytes]:
    """Start this file as a program."""
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    return subprocess.Popen(
        [sys.executable, __file__, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **env},
        start_new_session=True,
    )


@pytest.mark.ci
class TestIcebergSink(SinkContract):
    """The promises of any sink."""

    def make_sink(self, where: Path) -> Any:
        lake = Lake(where)
        if not (where / "lake").exists():
            lake.make(pa.schema([("id", pa.int64()), ("amount", pa.float64())]))
        return lake.sink()

    def refused(self, where: Path) -> Mapping[str, Any]:
        amount = pa.field("amount", pa.float64(), nullable=False)
        Lake(where).make(pa.schema([("id", pa.int64()), amount]))
        return {**self.record(0), "amount": None}

    def visible(self, where: Path) -> Iterable[Mapping[str, Any]]:
        return Lake(where).rows()

    def leftovers(self, where: Path) -> Iterable[Any]:
        return Lake(where).left()


def test_each_batch_is_one_snapshot_of_the_table(lake, tmp_path, job):
    """Beside another sink, in one transaction; an empty batch is noted as well."""
    copy = tmp_path / "copy"
    orders = job(CompositeSink([FileSink(copy, format="json"), lake.sink()]))
    assert [orders.apply(0), orders.apply(1), orders.apply(1)] == [True, True, False]
    assert lake.visible() == ids_of(0, 1)
    text = "".join(path.read_text() for path in copy.glob("*.json"))
    assert sorted(json.loads(line)["id"] for line in text.splitlines()) == ids_of(0, 1)
    orders.apply(2, [rows_of(2)[0].slice(0, 0)])
    table = lake.table()
    assert (len(table.snapshots()), lake.left()) == (3, [])
    newest = table.current_snapshot()
    assert newest.summary["tpc.transaction"] == "orders.2.1"
    marker = json.loads(table.properties[MARKER])
    assert (marker["batch"], marker["attempt"]) == (2, 1)
    assert marker["snapshot"] == newest.snapshot_id
    assert marker["sequence"] == newest.sequence_number
    assert marker["table"] == str(table.metadata.table_uuid)


def spec(*fields: tuple[int, Any]) -> PartitionSpec:
    return PartitionSpec(
        *(
            PartitionField(source, 1000 + n, transform, f"p{n}")
            for n, (source, transform) in enumerate(fields)
        )
    )


PLAIN = Schema(
    NestedField(1, "id", LongType(), required=False),
    NestedField(2, "region", StringType(), required=False),
)
WIDE = Schema(
    NestedField(11, "id", LongType(), required=True),
    NestedField(12, "region", StringType()),
    NestedField(13, "at", TimestamptzType()),
    NestedField(
        14,
        "n",
        StructType(
            NestedField(15, "x", IntegerType()),
            NestedField(16, "tags", ListType(17, StringType(), element_required=False)),
            NestedField(
                18,
                "of",
                MapType(19, StringType(), 20, LongType(), value_required=False),
            ),
        ),
    ),
    NestedField(21, "a.b", StringType()),
)


WHOLE = [(11, BucketTransform(3)), (12, IdentityTransform()), (13, DayTransform())]


@pytest.mark.parametrize(
    ("by", "version", "count"),
    [
        pytest.param(WHOLE, "2", 3, id="three fields"),
        pytest.param(WHOLE, "1", 3, id="format 1", marks=pytest.mark.ci),
        pytest.param([], "2", 1, id="none", marks=pytest.mark.ci),
        *(
            pytest.param([field], "2", count, id=str(field[1]), marks=pytest.mark.ci)
            for field, count in [
                ((12, TruncateTransform(2)), 3),
                ((13, YearTransform()), 2),
                ((13, MonthTransform()), 2),
                ((13, HourTransform()), 2),
                ((12, VoidTransform()), 1),
                ((15, IdentityTransform()), 2),
            ]
        ),
    ],
)
def test_hidden_partitions_and_nested_columns(tmp_path, by, version, count):
    """By each transform, with nulls: read back equal, and found by their bounds."""
    lake, each = Lake(tmp_path), (2, 3)
    about = {"partition_spec": spec(*by), "properties": {"format-version": version}}
    made = lake.make(WIDE, **about)
    fields = {source.field_id: source.name for source in made.schema().fields}
    assert made.format_version == int(version)
    at = datetime.datetime(2024, 2, 29, 13, tzinfo=datetime.timezone.utc)
    kind = pa.struct(
        [
            ("x", pa.int32()),
            ("tags", pa.list_(pa.string())),
            ("of", pa.map_(pa.string(), pa.int64())),
        ]
    )
    whole = {"x": 1, "tags": ["a", None], "of": [("k", 1)]}
    given = pa.RecordBatch.from_pydict(
        {
            "n": pa.array([whole, None, whole], kind),
            "id": pa.array([0, 1, 2], pa.int64()),
            "region": ["north/=%" * 40, None, ""],
            "at": pa.array([at, None, at], pa.timestamp("us", "UTC")),
            "a.b": ["dot", None, "dot"],
        }
    )
    sink = lake.sink()
    sink.check_job("orders")
    handle = prepared(sink, given.slice(0, 2), given.slice(2))
    sink.commit_transaction(str(T), [received(handle)])
    assert lake.rows() == given.select([*fields.values()]).to_pylist()
    for found in each:
        only = lake.table().scan(row_filter=f"id = {found - 1}").to_arrow()
        assert only.column("id").to_pylist() == [found - 1]
    files = lake.table().inspect.files().to_pylist()
    assert len(files) == count
    assert all(file["spec_id"] == 0 for file in files)
    (first, *_) = files
    footer = parquet.read_schema(first["file_path"].removeprefix("file://"))
    ids = {
        name: int(footer.field(name).metadata[b"PARQUET:field_id"]) for name in ("id",)
    }
    assert ids["id"] in fields


POINTS = {
    "iceberg.between_files": [3, 4],
    "iceberg.before_manifest": [3, 4],
    "iceberg.before_commit": [2],
    "iceberg.after_commit": [2],
    "files.before_abort": [1],
}
"""And the times at which a point is reached in the second batch."""


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            f"{point}:{n}",
            id=f"{n - times[0]}-{point}",
            marks=[] if point.endswith("commit") else pytest.mark.ci,
        )
        for point, times in POINTS.items()
        for n in times
    ],
)
def test_a_job_is_killed_at(lake, tmp_path, point):
    """Each row is there once after the next start, and nothing is left over."""
    name = point.partition(":")[0]
    aborts = ["fail"] if name == "files.before_abort" else []
    killed = process(tmp_path, "job", 0, *aborts, TPC_FAILPOINT=point)
    assert killed.wait() == -9
    decided = name == "iceberg.after_commit"
    assert lake.visible() == (ids_of(0, 1) if decided else ids_of(0))
    assert lake.left()
    assert process(tmp_path, "job", 1).wait() == 0
    assert (lake.visible(), lake.left()) == (ids_of(0, 1), [])


@pytest.mark.ci
def test_two_processes_commit_the_same_while_others_append(lake, tmp_path):
    """Each batch is there once, and so is each row of the others."""
    sink, batches = lake.sink(), range(4)
    sink.check_job("orders")
    handles = []
    for batch in batches:
        (given, _), of = rows_of(batch), TransactionId("orders", batch, 1)
        handles.append(dataclasses.asdict(prepared(sink, given, of=of)))
    (file := tmp_path / "handles").write_text(json.dumps(handles))
    running = [process(tmp_path, "commit", file) for _ in range(2)]
    others = range(1000, 1004)
    for n in others:
        lake.append(n)
    assert [one.wait() for one in running] == [0, 0]
    ours = [n for batch in batches for n in ids_of(batch)[:2]]
    assert lake.visible() == [*ours, *others]
    assert (len(lake.table().snapshots()), lake.left()) == (8, [])


class Overtaken(IcebergSink):
    """Something happens between its look at the table and its commit, once."""

    meanwhile: Callable[[], object] | None = None

    def _send(self, table: Any, change: Any) -> str:
        if self.meanwhile is not None:
            meanwhile, self.meanwhile = self.meanwhile, None
            meanwhile()
        return super()._send(table, change)


def test_another_process_of_the_application_is_faster(lake, tmp_path):
    """Between look and commit: pyiceberg's own retry would append the rows twice."""
    sink = lake.sink(Overtaken)
    handle = prepared(sink)
    (file := tmp_path / "handles").write_text(json.dumps([dataclasses.asdict(handle)]))
    sink.meanwhile = lambda: process(tmp_path, "commit", file).wait()
    sink.commit_transaction(str(T), [handle])
    assert (lake.visible(), len(lake.table().snapshots())) == ([0, 1], 1)


def test_another_process_has_committed_and_cleaned_up(lake):
    """Between the look at the table and at the files: gone is not lost."""

    class Slow(IcebergSink):
        def _files(self, *arguments: Any) -> Any:
            lake.sink().commit_transaction(str(T), [received(handle)])
            return super()._files(*arguments)

    sink = lake.sink(Slow)
    handle = prepared(sink)
    sink.commit_transaction(str(T), [handle])
    assert (lake.visible(), len(lake.table().snapshots())) == ([0, 1], 1)


@pytest.mark.parametrize("change", ["append", "column", "property", "compaction"])
def test_the_table_changes_between_look_and_commit(lake, change):
    """The commit looks again, and appends to the table as it is then."""
    sink = lake.sink(Overtaken)
    sink.commit_transaction(str(T), [prepared(sink)])

    def add() -> None:
        with lake.table().update_schema() as update:
            update.add_column("note", StringType())

    def compact() -> None:
        lake.table().overwrite(lake.table().scan().to_arrow())

    def note() -> None:
        with lake.table().transaction() as transaction:
            transaction.set_properties({"owner": "lake"})

    changes = {"append": lambda: lake.append(9), "column": add}
    changes |= {"compaction": compact, "property": note}
    of = rows_of(1)[0]
    handle = prepared(sink, of, of=SECOND)
    sink.meanwhile = changes[change]
    sink.commit_transaction(str(SECOND), [handle])
    assert lake.visible() == [0, 1, 4, 5, *([9] if change == "append" else [])]


class Lost(IcebergSink):
    """The answer to its commit is lost: after it was carried out, or before."""

    carried_out = True
    late: tuple[Any, ...] = ()

    def _send(self, table: Any, change: Any) -> str:
        sent = super()._send

        class Catalog:
            def commit_table(inner, *request: Any) -> None:  # noqa: N805
                if self.carried_out:
                    catalog.commit_table(*request)
                self.late = request
                raise CommitStateUnknownException("gateway timeout")

        catalog, process = self._catalog, os.getpid()
        self._opened = process, Catalog()
        try:
            return sent(table, change)
        finally:
            self._opened = process, catalog


def test_an_answer_that_is_lost_is_looked_up(lake):
    """Carried out, it is acknowledged at once."""
    sink = lake.sink(Lost)
    sink.commit_transaction(str(T), [prepared(sink)])
    assert (lake.visible(), lake.left()) == ([0, 1], [])


def test_a_commit_that_arrives_late_adds_nothing(lake):
    """It is of the table as it was: whoever has delivered it again was first."""
    sink = lake.sink(Lost)
    sink.carried_out = False
    handle = prepared(sink)
    with pytest.raises(ParticipantUnavailableError, match=TEXTS["changed, or not"]):
        sink.commit_transaction(str(T), [handle])
    assert lake.visible() == []
    lake.sink().commit_transaction(str(T), [received(handle)])
    with pytest.raises(Exception, match="branch main"):
        lake.catalog.commit_table(*sink.late)
    sink.commit_transaction(str(T), [handle])
    assert (lake.visible(), len(lake.table().snapshots())) == ([0, 1], 1)


def own(lake: Lake) -> str:
    """Return what the folders of a table are called by: its UUID, in short."""
    return str(lake.table().metadata.table_uuid).replace("-", "")[:12]


def test_an_abort_leaves_what_another_log_has_committed(lake, tmp_path, caplog):
    """Of the same id, before the newest batch: its snapshot tells; if that has expired
    nothing does, and nothing is removed. Aborts of what is not there are cleaned up.
    """
    logs = iter(open_log(f"sqlite:///{tmp_path}/{n}.db") for n in ("a", "b", "c"))
    first = FileJob(lake.sink(), next(logs))
    for batch in range(3):
        first.apply(batch)
    with pytest.raises(HeuristicError, match=TEXTS["committed"]):
        FileJob(lake.sink(), next(logs), run="second").apply(0)
    assert lake.visible() == ids_of(0, 1, 2)
    expire_all_but_the_newest(lake)
    with pytest.raises(ParticipantRefusedError, match="batch 0 is already committed"):
        FileJob(lake.sink(), next(logs), run="third").apply(0)
    assert lake.visible() == ids_of(0, 1, 2)
    assert "files left: table=lake.shop.orders transaction=orders.0.1" in caplog.text


def test_an_abort_that_comes_late_cleans_up(lake):
    """After another attempt at the batch and a later batch are committed."""
    sink = lake.sink()
    late, second = prepared(sink), TransactionId("orders", 0, 2)
    sink.commit_transaction(str(second), [prepared(sink, of=second)])
    sink.commit_transaction(str(SECOND), [prepared(sink, of=SECOND)])
    prepared(lake.sink(Unmarked), of=T, branch="0.7")
    sink.abort_transaction(str(T), [])
    assert (lake.left(), late.count) == ([], 1)


def test_tables_with_one_place_for_data_leave_each_others_files(lake, tmp_path):
    """Of one application, or of one table after another: the names have its UUID."""
    about = {"properties": {"write.data.path": f"file://{tmp_path}/shared"}}
    lake.catalog.drop_table(NAME)
    lake.make(**about)
    lake.make(name="shop.second", **about)
    FileJob(lake.sink(), open_log(f"sqlite:///{tmp_path}/a.db")).apply(0)
    second = IcebergSink("lake", "shop.second", properties=properties(tmp_path))
    with pytest.raises(RuntimeError, match="a user's function"):
        FileJob(second, open_log(f"sqlite:///{tmp_path}/b.db")).apply(0, fails=True)
    assert lake.visible() == ids_of(0)


def test_a_main_that_began_anew_does_not_have_what_was_before(lake):
    """As after CREATE OR REPLACE TABLE: properties and old snapshots stay there."""
    sink = lake.sink()
    handle = received(prepared(sink))
    sink.commit_transaction(str(T), [handle])
    lake.table().manage_snapshots().remove_branch("main").commit()
    with pytest.raises(ParticipantRefusedError, match=TEXTS["no branch"]):
        lake.sink().commit_transaction(str(T), [handle])
    lake.append(77)
    with pytest.raises(ParticipantRefusedError, match=TEXTS["rolled back"]):
        lake.sink().commit_transaction(str(T), [handle])
    assert lake.visible() == [77]


def test_a_commit_makes_no_new_main(lake):
    """Where it was removed since the vote: only what was prepared would be seen."""
    sink = lake.sink()
    sink.commit_transaction(str(T), [prepared(sink)])
    handle = prepared(sink, of=SECOND)
    table = lake.table()
    head = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_branch(head, "kept").commit()
    table.manage_snapshots().remove_branch("main").commit()
    with pytest.raises(ParticipantRefusedError, match=TEXTS["no branch"]):
        sink.commit_transaction(str(SECOND), [handle])
    assert lake.table().snapshot_by_name("main") is None


def test_a_table_that_is_gone_has_nothing_and_gets_nothing(lake, job):
    """An abort is carried out; a commit waits for the table, and says for which."""
    sink = lake.sink()
    handle, other = prepared(sink), prepared(sink, of=SECOND)
    identifier = lake.table().metadata_location
    lake.catalog.drop_table(NAME)
    sink.abort_transaction(str(SECOND), [])
    with pytest.raises(ParticipantUnavailableError, match="which is gone: bring"):
        sink.commit_transaction(str(T), [handle])
    lake.catalog.register_table(NAME, identifier)
    sink.commit_transaction(str(T), [handle])
    assert (lake.visible(), other.count) == ([0, 1], 1)


def test_a_marker_that_somebody_removed_doubles_nothing(lake):
    """The summary of the snapshot proves the commit, too."""
    sink = lake.sink()
    handle = received(prepared(sink))
    sink.commit_transaction(str(T), [handle])
    with lake.table().transaction() as change:
        change.remove_properties(MARKER)
    lake.sink().commit_transaction(str(T), [handle])
    assert (lake.visible(), len(lake.table().snapshots())) == ([0, 1], 1)


def test_a_sink_does_not_grow_with_its_batches(lake, job):
    """What it has flushed and told is not pickled into the tasks."""
    orders = job(sink := lake.sink())
    sizes = []
    for batch in range(3):
        orders.apply(batch)
        sizes.append(len(pickle.dumps(sink)))
    assert sizes[0] == sizes[-1]


def test_another_log_of_the_same_name_is_refused(lake):
    """A batch that is there, or one before it, is neither begun nor acknowledged."""
    sink, other = lake.sink(), lake.sink()
    early, foreign = prepared(other), prepared(other)
    again = prepared(other, of=TransactionId("orders", 0, 2))
    sink.commit_transaction(str(T), [prepared(sink)])
    with pytest.raises(
        ParticipantRefusedError,
        match=TEXTS["batch is there"].format(batch=0, application="orders"),
    ):
        prepared(other)
    cases: list[tuple[TransactionId, list[Any]]] = [(T, [early]), (T, [])]
    cases.append((TransactionId("orders", 0, 2), [again]))
    for of, handles in cases:
        with pytest.raises(ParticipantRefusedError, match=TEXTS["nothing proves"]):
            other.commit_transaction(str(of), handles)
    sink.commit_transaction(str(SECOND), [prepared(sink, of=SECOND)])
    with pytest.raises(ParticipantRefusedError, match=TEXTS["nothing proves"]):
        other.commit_transaction(str(T), [foreign])
    with pytest.raises(ParticipantRefusedError, match=TEXTS["committed"]):
        other.abort_transaction(str(SECOND), [])
    assert (lake.visible(), len(lake.table().snapshots())) == ([0, 0, 1, 1], 2)


def test_two_sinks_of_a_job_on_one_table(lake, job):
    """Each has a marker of its own: the rows are there twice."""
    orders = job(CompositeSink([lake.sink(), lake.sink(IcebergSink, "copy")]))
    orders.apply(0)
    orders.apply(1)
    assert lake.visible() == sorted(ids_of(0, 1) * 2)
    assert {n for n in lake.table().properties if n.startswith("tpc.")} == {
        MARKER,
        "tpc.orders.copy",
    }
    assert lake.left() == []


def test_a_repeat_of_what_was_rolled_back_is_quarantined(lake, job):
    """The other participants have its rows; a person must say which of both holds."""

    class Tired(IcebergSink):
        def _flush(self, table: Any, snapshot: Any = None) -> None:
            super()._flush(table, snapshot)
            if snapshot is None and len(table.snapshots()) == 2:
                raise TimeoutError

    orders = job()
    orders.apply(0)
    with pytest.raises(Exception, match="TimeoutError"):
        job(lake.sink(Tired)).apply(1)
    lake.roll_back()
    assert lake.visible() == ids_of(0)
    with pytest.raises(HeuristicError, match=TEXTS["rolled back"]):
        orders.apply(1)
    assert lake.visible() == ids_of(0)


@pytest.mark.parametrize("expired", [False, True])
def test_a_job_goes_on_after_a_rollback(lake, job, caplog, expired):
    """What was finished is named in a line, once; a later repeat of it is refused."""
    orders = job()
    orders.apply(0)
    orders.apply(1)
    gone = lake.table().current_snapshot().snapshot_id
    lake.roll_back()
    if expired:
        lake.table().maintenance.expire_snapshots().by_id(gone).commit()
    orders.apply(2)
    orders.apply(3)
    assert lake.visible() == ids_of(0, 2, 3)
    warned = [r.message for r in caplog.records if "rolled back" in r.message]
    assert warned == [
        f"rolled back: table=lake.{NAME} transaction=orders.1.1 participant=iceberg "
        f"snapshot={gone}: its rows are with the other participants, and not in this "
        "table any more"
    ]


def test_a_table_without_its_branch_is_not_written(lake):
    """What was committed there is nowhere any more: a vote to abort, in one line."""
    sink = lake.sink()
    sink.commit_transaction(str(T), [prepared(sink)])
    table = lake.table()
    head = table.current_snapshot().snapshot_id
    table.manage_snapshots().create_branch(head, "kept").commit()
    table.manage_snapshots().remove_branch("main").commit()
    with pytest.raises(ParticipantRefusedError, match=TEXTS["no branch"]) as caught:
        prepared(sink, of=SECOND)
    assert "\n" not in str(caught.value)


def test_a_copied_table_proves_nothing(lake, tmp_path):
    """Its property is of another table: refused at the start, at begin, at commit."""
    sink = lake.sink()
    handle = prepared(sink)
    noted = {MARKER: json.dumps({**marker_of(T), "table": "another"})}
    with lake.table().transaction() as transaction:
        transaction.set_properties(noted)
    copied = TEXTS["a copy"].format(property=MARKER)
    with pytest.raises(ConfigurationError, match=copied):
        lake.sink().check_job("orders")
    with pytest.raises(ConfigurationError, match=copied):
        prepared(sink, of=SECOND)
    with pytest.raises(ParticipantRefusedError, match=copied):
        sink.commit_transaction(str(T), [handle])
    with lake.table().transaction() as transaction:
        transaction.remove_properties(MARKER)
    sink.commit_transaction(str(T), [handle])
    assert lake.visible() == [0, 1]


@pytest.mark.parametrize("noted", ["of another", "null", {"batch": "0"}])
def test_a_property_that_is_none_of_ours_is_refused(lake, noted):
    """In one line, with its name, wherever it is read: not tried again for ever."""
    sink = lake.sink()
    handle = prepared(sink)
    about = {**marker_of(T), "table": str(lake.table().metadata.table_uuid)}
    text = noted if isinstance(noted, str) else json.dumps({**about, **noted})
    with lake.table().transaction() as transaction:
        transaction.set_properties({MARKER: text})
    for kind, asked in {
        ConfigurationError: lambda: lake.sink().check_job("orders"),
        ParticipantRefusedError: lambda: sink.commit_transaction(str(T), [handle]),
    }.items():
        with pytest.raises(kind, match=TEXTS["none of ours"]) as caught:
            asked()
        assert "\n" not in str(caught.value)


def marker_of(transaction: TransactionId) -> dict[str, Any]:
    at = {"batch": transaction.batch, "attempt": transaction.attempt}
    return {**at, "proof": "", "snapshot": 1, "sequence": 1}


def partitioned_by(table: Any) -> None:
    with table.update_spec() as update:
        update.add_field("region", IdentityTransform(), "by_region")


def required(table: Any) -> None:
    with table.update_schema(allow_incompatible_changes=True) as update:
        update._set_column_requirement("id", required=True)


def moved(table: Any) -> None:
    with table.transaction() as transaction:
        at = table.location() + "/elsewhere"
        transaction.set_properties({"write.data.path": at})


def orc(table: Any) -> None:
    with table.transaction() as transaction:
        transaction.set_properties({"write.format.default": "orc"})


CHANGES: dict[str, tuple[Callable[[Any], object], str]] = {
    "partitions": (partitioned_by, "it is partitioned in another way"),
    "required": (required, "column 'id' allows no null now"),
    "data path": (moved, "its data is not in .*/orders/data any more"),
    "format": (orc, "uses files of orc"),
}


@pytest.mark.parametrize("when", ["before", "during"])
@pytest.mark.parametrize("change", CHANGES)
def test_a_table_that_changed_after_the_vote_is_not_harmed(lake, change, when):
    """Before the commit reads the table, or while it writes: nothing is listed."""
    sink = lake.sink(Overtaken)
    handle = received(prepared(sink))
    apply, says = CHANGES[change]
    if when == "before":
        apply(lake.table())
    else:
        sink.meanwhile = lambda: apply(lake.table())
    if change in ("data path", "format") and when == "during":
        # It is no requirement of a commit: this one was of the table as it was seen.
        sink.commit_transaction(str(T), [handle])
        assert lake.visible() == [0, 1]
        return
    with pytest.raises(ParticipantRefusedError, match=says) as caught:
        sink.commit_transaction(str(T), [handle])
    assert "\n" not in str(caught.value)
    assert (lake.visible(), len(lake.left())) == ([], 2)


@pytest.mark.parametrize("is_new", [False, True])
def test_a_member_that_came_since_and_is_required(tmp_path, is_new):
    """No reader could open a file without it, but for one where its struct is null."""
    lake = Lake(tmp_path)
    x = StructType(NestedField(5, "x", IntegerType()))
    lake.make(Schema(*PLAIN.fields, NestedField(4, "at", x)))
    sink = lake.sink()
    handle = prepared(sink)
    with lake.table().update_schema(allow_incompatible_changes=True) as update:
        if is_new:
            y = StructType(NestedField(7, "y", IntegerType(), required=True))
            update.add_column("new", y)
        else:
            update.add_column(("at", "y"), IntegerType(), required=True)
    if is_new:
        sink.commit_transaction(str(T), [handle])
        assert lake.visible() == [0, 1]
        return
    with pytest.raises(ParticipantRefusedError, match=r"column 'at\.y' allows no null"):
        sink.commit_transaction(str(T), [handle])
    assert lake.table().snapshots() == []


def test_a_change_that_is_taken_back_lets_the_commit_through(lake):
    """The prepared files have waited for it."""
    sink = lake.sink()
    handle = prepared(sink)
    partitioned_by(lake.table())
    with pytest.raises(ParticipantRefusedError):
        sink.commit_transaction(str(T), [handle])
    with lake.table().update_spec() as update:
        update.remove_field("by_region")
    sink.commit_transaction(str(T), [handle])
    assert (lake.visible(), lake.left()) == ([0, 1], [])


def test_columns_that_come_and_go_and_widen_after_the_vote(tmp_path):
    """Have ids: what was prepared is read as all that was committed before."""
    lake = Lake(tmp_path)
    lake.make(pa.schema([*SCHEMA, ("n", pa.int32()), ("old", pa.string())]))
    sink = lake.sink()
    given = ROWS.append_column("n", pa.array([7, 8], pa.int32()))
    handle = prepared(sink, given.append_column("old", pa.array(["x", "y"])))
    with lake.table().update_schema() as update:
        update.add_column("new", MapType(1, StringType(), 2, LongType()))
        update.update_column("n", LongType())
        update.delete_column("old")
        update.rename_column("region", "place")
    sink.commit_transaction(str(T), [handle])
    first, second = lake.rows()
    assert first == {"id": 0, "place": "north", "n": 7, "new": None}
    assert second["n"] == 8


def test_five_hundred_files_in_a_branch(tmp_path):
    """More than may be open at once, and no larger a handle than that of one."""
    lake = Lake(tmp_path)
    lake.make(PLAIN, partition_spec=spec((1, IdentityTransform())))
    sink = lake.sink()
    ids = list(range(500))
    many = pa.RecordBatch.from_pydict({"id": ids, "region": ["n"] * 500})
    handle = received(prepared(sink, many))
    assert handle.count == 500
    assert len(json.dumps(dataclasses.asdict(handle))) < 1024
    sink.commit_transaction(str(T), [handle])
    assert (lake.visible(), lake.left()) == (ids, [])


def test_a_file_that_is_closed_costs_no_memory(tmp_path, monkeypatch):
    """Each has a codec of a MiB and more: a task holds as many as it has open."""
    monkeypatch.setattr("tracing_2pc.sinks.iceberg_files.MAX_FILES", 4)
    create, made, most = ParquetFormatModel.create_writer, weakref.WeakSet[Any](), []

    def counted(self: Any, *arguments: Any) -> Any:
        made.add(writer := create(self, *arguments))
        most.append(len(made))
        return writer

    monkeypatch.setattr(ParquetFormatModel, "create_writer", counted)
    lake = Lake(tmp_path)
    lake.make(PLAIN, partition_spec=spec((1, IdentityTransform())))
    given = pa.RecordBatch.from_pydict({"id": [*range(20)], "region": ["n"] * 20})
    sink = lake.sink()
    handle = prepared(sink, given)
    assert (len(most), max(most)) == (20, 4)
    sink.commit_transaction(str(T), [handle])
    assert lake.visible() == [*range(20)]


def test_a_task_with_too_many_files_votes_abort(tmp_path, monkeypatch):
    """Its commit would have to look at all of them; what it has written is removed."""
    monkeypatch.setattr("tracing_2pc.sinks.iceberg_files.MOST_FILES", 2)
    lake = Lake(tmp_path)
    lake.make(PLAIN, partition_spec=spec((1, IdentityTransform())))
    sink = lake.sink()
    given = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "region": ["n"] * 3})
    with pytest.raises(ConfigurationError, match=TEXTS["repartition"]) as caught:
        prepared(sink, given)
    assert "\n" not in str(caught.value)
    assert lake.left() == []
    sink.commit_transaction(str(T), [prepared(sink, given.slice(1))])
    assert lake.visible() == [2, 3]


BROKEN = {
    "write.target-file-size-bytes": ["64MB", "0", "-1"],
    "write.parquet.compression-codec": ["zip"],
    "write.parquet.page-size-bytes": ["large"],
    "write.metadata.metrics.default": ["truncate(0)"],
}


@pytest.mark.parametrize(
    ("name", "value"), [(name, value) for name in BROKEN for value in BROKEN[name]]
)
def test_a_property_that_no_file_can_be_written_by(lake, name, value):
    """Is refused where the job starts, and by a task; what has voted is committed."""
    sink = lake.sink(evolve="add")
    handle = prepared(sink)
    with lake.table().transaction() as change:
        change.set_properties({name: value})
    for asked in (
        lambda: lake.sink().check_job("orders"),
        lambda: sink.before_tasks(ROWS.schema),
        lambda: prepared(sink),
    ):
        with pytest.raises(ConfigurationError, match=r"has (the )?propert") as caught:
            asked()
        assert "\n" not in str(caught.value)
    sink.commit_transaction(str(T), [handle])
    assert lake.visible() == [0, 1]


def test_a_column_of_partitions_may_be_missing(tmp_path):
    """As any that is not required: it is null there."""
    lake = Lake(tmp_path)
    lake.make(PLAIN, partition_spec=spec((2, IdentityTransform())))
    sink = lake.sink()
    sink.commit_transaction(str(T), [prepared(sink, ROWS, ROWS.select(["id"]))])
    regions = [row["region"] for row in lake.rows()]
    assert sorted(regions, key=str) == [None, None, "a b/%é=c", "north"]


def test_rows_of_one_partition_go_on_in_its_file(tmp_path, monkeypatch):
    """A file is closed when others need its place, or when it is large enough."""
    monkeypatch.setattr("tracing_2pc.sinks.iceberg_files.IN_MEMORY", 1)
    monkeypatch.setattr("tracing_2pc.sinks.iceberg_files.MAX_FILES", 2)
    lake = Lake(tmp_path)
    about = {"write.target-file-size-bytes": "1000"}
    lake.make(PLAIN, partition_spec=spec((2, IdentityTransform())), properties=about)
    sink, n = lake.sink(), 0
    given = []
    for region in "aabbaacab":
        given.append(pa.RecordBatch.from_pydict({"id": [n], "region": [region]}))
        n += 1
    large = pa.RecordBatch.from_pydict({"id": [*range(n, 99)], "region": ["d"] * 90})
    handle = prepared(sink, *given, large.slice(0, 89), large.slice(89))
    assert handle.rows == 99
    sink.commit_transaction(str(T), [handle])
    assert lake.visible() == [*range(99)]
    rows = [file.file.record_count for file in lake.table().scan().plan_files()]
    assert sorted(rows) == [1, 1, 1, 1, 2, 4, 89]


def test_snapshots_expire_between_prepare_and_commit(lake):
    """What was prepared is in none: nothing of it goes."""
    lake.append(7)
    lake.append(8)
    sink = lake.sink()
    handle = prepared(sink)
    expire_all_but_the_newest(lake)
    sink.commit_transaction(str(T), [handle])
    assert lake.visible() == [0, 1, 7, 8]


def expire_all_but_the_newest(lake: Lake) -> None:
    table = lake.table()
    newest = table.current_snapshot().snapshot_id
    ids = [s.snapshot_id for s in table.snapshots() if s.snapshot_id != newest]
    table.maintenance.expire_snapshots().by_ids(ids).commit()


def test_the_newest_commit_is_known_without_its_snapshot(lake):
    """It was compacted and has expired; one before it needs a snapshot as its proof."""
    sink = lake.sink()
    handle, newest = prepared(sink), prepared(sink, rows_of(1)[0], of=SECOND)
    sink.commit_transaction(str(T), [handle])
    sink.commit_transaction(str(SECOND), [newest])
    sink.commit_transaction(str(T), [handle])
    lake.table().overwrite(lake.table().scan().to_arrow())
    lake.append(9)
    sink.commit_transaction(str(T), [handle])
    expire_all_but_the_newest(lake)
    sink.commit_transaction(str(SECOND), [newest])
    with pytest.raises(ParticipantRefusedError, match=TEXTS["snapshots have expired"]):
        sink.commit_transaction(str(T), [handle])
    assert lake.visible() == [0, 1, 4, 5, 9]


@pytest.mark.parametrize("harm", ["gone", "short", "no manifest", "another manifest"])
def test_a_file_that_somebody_harmed_is_not_listed(lake, job, tmp_path, harm):
    """The transaction is quarantined, and the table stays readable."""
    data = tmp_path / "lake" / "shop" / "orders" / "data"

    class Careless(IcebergSink):
        def commit_transaction(self, transaction_id: str, handles: Any) -> None:
            of = "*.avro" if "manifest" in harm else "*.parquet"
            file = next(data.rglob(of))
            if harm in ("gone", "no manifest"):
                file.unlink()
            else:
                file.write_bytes(b"PAR1")
            super().commit_transaction(transaction_id, handles)

    with pytest.raises(HeuristicError, match=TEXTS["harmed"]):
        job(lake.sink(Careless)).apply(0)
    assert (lake.visible(), lake.table().snapshots()) == ([], [])


@pytest.mark.parametrize(
    ("what", "forged", "says"),
    [
        ("stem", "other.0.1.0.0.0123456789ab", TEXTS["a receipt"]),
        ("stem", "../../orders.0.1.0.0.0123456789ab", TEXTS["a receipt"]),
        ("count", 0, "names other files"),
        *(("count", n, TEXTS["a receipt"]) for n in (10**12, -1, 1.0, "1")),
        ("digest", "0" * 64, "is not what its task has written"),
        ("table", "another", "it is another table"),
        ("spec", 7, "it is partitioned in another way"),
        ("schema_id", 7, "the schema that they were written with is gone"),
    ],
)
def test_what_a_receipt_says_is_not_believed(lake, what, forged, says):
    """Nothing is listed that its task cannot have made."""
    sink = lake.sink()
    true = received(prepared(sink))
    with pytest.raises(ParticipantRefusedError, match=says) as caught:
        sink.commit(dataclasses.replace(true, **{what: forged}))
    assert "\n" not in str(caught.value)
    assert lake.visible() == []
    sink.commit(true)
    assert lake.visible() == [0, 1]


def test_a_receipt_names_files_of_its_own_branch_only(lake, job):
    """Not those of its task's twin, which was not chosen."""

    class Forged(FileJob):
        def prepare(
            self, transaction: Any, branch: str, rows: pa.RecordBatch
        ) -> tuple[Receipt, ...]:
            (vote,) = super().prepare(transaction, branch, rows)
            (twin,) = super().prepare(transaction, f"{branch[0]}.9", rows)
            return (dataclasses.replace(vote, handle=twin.handle),)

    with pytest.raises(HeuristicError, match=TEXTS["a receipt"]):
        Forged(lake.sink(), job().log).apply(0)
    assert lake.visible() == []


def test_what_a_person_has_ended_is_kept(lake, job):
    """What is prepared is then the only copy of these rows."""
    sink = lake.sink(type("Gone", (Away, IcebergSink), {}))
    give_up(job(sink), "iceberg")
    assert lake.visible() == ids_of(1)
    names = [name.partition(".0.1.")[2][:4] for name in lake.left()]
    assert names == ["0.0.", "0.0.", "1.1.", "1.1."]


def test_what_late_tasks_leave_goes_at_the_next_commit(lake, monkeypatch):
    """Of each batch that this sink has committed, whatever the attempt; not of another
    sink or application, nor of a batch without a commit: a person has ended it."""
    sink, copy = lake.sink(), lake.sink(IcebergSink, "copy")

    def commit(batch: int) -> None:
        of = TransactionId("orders", batch, 1)
        sink.commit_transaction(str(of), [prepared(sink, rows_of(batch)[0], of=of)])

    late = [prepared(sink, branch="0.9")]  # as if it had begun before the commit
    late += [prepared(sink, of=TransactionId("orders", 0, 2))]
    ended = [prepared(sink, of=SECOND), prepared(copy)]
    ended += [prepared(sink, of=TransactionId("other", 0, 1))]
    after = prepared(sink, of=TransactionId("orders", 9, 1))
    lost = prepared(sink, branch="1.8")
    aside = lake.folder / "lake/shop/orders/data/.tpc" / own(lake) / "iceberg.orders"
    (aside / f"{lost.stem}.avro").unlink()
    (aside / "orders.01.1.avro").touch()
    handle = prepared(sink, branch="0.1")
    sink.commit_transaction(str(T), [handle])
    commit(2)
    kept = {handle.stem for handle in [*ended, after]}
    assert {n.rsplit(".", 1)[0].removesuffix(".0") for n in lake.left()} == {
        *kept,
        "orders.01.1",
    }
    assert lake.visible() == [0, 1, 8, 9]
    # One that is late by a whole batch: the snapshot tells its files from others.
    twin = lake.sink(Unmarked)
    prepared(twin, of=T, branch="0.7")
    commit(3)
    assert lake.visible() == [0, 1, 8, 9, 12, 13]
    assert all(".0.7." not in name for name in lake.left())
    assert late


def test_what_is_committed_stays_although_its_end_was_lost(lake):
    """Its manifest is still there at the next batch: the snapshot tells its files."""

    class Tired(IcebergSink):
        def _flush(self, table: Any, snapshot: Any = None) -> None:
            if snapshot is None:
                raise TimeoutError

    sink, tired = lake.sink(), lake.sink(Tired)
    handle, twin = prepared(sink), prepared(sink, branch="0.7")
    with pytest.raises(TimeoutError):
        tired.commit_transaction(str(T), [handle])
    assert {name.partition(".0.1.")[2][:3] for name in lake.left()} == {"0.0", "0.7"}
    of = rows_of(1)[0]
    sink.commit_transaction(str(SECOND), [prepared(sink, of, of=SECOND)])
    assert (lake.visible(), lake.left()) == ([0, 1, 4, 5], [])
    assert twin.count == 1


def test_what_a_late_task_of_an_earlier_attempt_writes_goes_at_the_commit(lake):
    """It was killed before it had a manifest; what a snapshot has is not touched."""
    sink, second = lake.sink(), TransactionId("orders", 0, 2)
    sink.abort_transaction(str(T), [])
    write(sink, of=T).writer._write_held()
    handle = prepared(sink, of=second)
    assert len(lake.left()) == 3
    sink.commit_transaction(str(second), [handle])
    assert (lake.visible(), lake.left()) == ([0, 1], [])
    with lake.table().transaction() as change:
        change.remove_properties(MARKER)
    third = TransactionId("orders", 0, 3)
    lake.sink().commit_transaction(str(third), [prepared(lake.sink(), of=third)])
    assert (lake.visible(), lake.left()) == ([0, 0, 1, 1], [])


@pytest.mark.parametrize("fault", [TimeoutError, ParticipantUnavailableError])
def test_a_clean_up_that_fails_holds_no_commit_back(lake, monkeypatch, caplog, fault):
    """Of what is in the table: a line says what is left, and the next commit tries."""
    sink = lake.sink()
    handle = prepared(sink)
    with monkeypatch.context() as away:

        def delete(self: TableFolder, locations: Any) -> None:
            raise fault("the store is slow\nvery slow")

        away.setattr(TableFolder, "_delete", delete)
        sink.commit_transaction(str(T), [handle])
    assert lake.visible() == [0, 1]
    (line,) = [r.getMessage() for r in caplog.records if "files left" in r.message]
    assert "transaction=orders.0.1 participant=iceberg place=" in line
    assert line.endswith(": the store is slow; the next commit tries it again")
    of = rows_of(1)[0]
    sink.commit_transaction(str(SECOND), [prepared(sink, of, of=SECOND)])
    assert (lake.visible(), lake.left()) == ([0, 1, 4, 5], [])


class Unmarked(IcebergSink):
    """A task that has looked at the table before the commit."""

    def _marker(self, table: Any, application: str) -> None:
        return None


def test_a_start_with_another_table_writes_nothing(lake, job):
    """It was dropped, and made anew with the same name."""
    job(run="first").apply(0)
    lake.catalog.drop_table(NAME)
    lake.make()
    before = lake.left()
    with pytest.raises(ConfigurationError, match=TEXTS["another table"]):
        job(run="second").apply(1)
    assert (lake.visible(), lake.left()) == ([], before)


@pytest.mark.parametrize("create", [False, True])
@pytest.mark.parametrize("anew", [False, True])
def test_a_table_that_is_dropped_while_the_job_runs_is_not_replaced(
    lake, job, create, anew
):
    """By an empty one without its partitions, which the job would go on with."""
    sink = lake.sink(create=create)
    sink.check_job("orders")
    orders = job(sink)
    orders.apply(0)
    lake.catalog.drop_table(NAME)
    if anew:
        lake.make()
    says = TEXTS["replaced" if anew else "gone"]
    with pytest.raises(ConfigurationError, match=says):
        orders.apply(1)
    assert lake.catalog.table_exists(NAME) == anew
    if anew:
        assert lake.table().snapshots() == []


def test_a_table_that_is_gone_at_a_start_is_not_made_again(lake, job):
    """By a job that has written to it, whatever it may make."""
    orders = job(lake.sink(create=True))
    orders.apply(0)
    lake.catalog.drop_table(NAME)
    sink = lake.sink(create=True)
    sink.check_job("orders")
    with pytest.raises(ConfigurationError, match=TEXTS["gone"]):
        job(sink, run="second").apply(1)
    assert not lake.catalog.table_exists(NAME)


def test_a_table_that_was_brought_back_from_before_is_named(lake, job, caplog):
    """By its catalog, with the property of then: what is not in it any more."""
    orders = job()
    orders.apply(0)
    before = lake.table().metadata_location
    orders.apply(1)
    lake.catalog.drop_table(NAME)
    lake.catalog.register_table(NAME, before)
    job(run="second").apply(2)
    assert lake.visible() == ids_of(0, 2)
    (line,) = [r.getMessage() for r in caplog.records if "rolled back" in r.message]
    assert f"table=lake.{NAME} transaction=orders.1.1 participant=iceberg: " in line


def test_a_start_after_a_commit_that_is_there_says_nothing(lake, job, caplog):
    """Not even if the property was removed: the snapshot tells."""
    job().apply(0)
    job(run="second").apply(1)
    with lake.table().transaction() as change:
        change.remove_properties(MARKER)
    job(run="third").apply(2)
    assert lake.visible() == ids_of(0, 1, 2)
    assert "rolled back" not in caplog.text


def test_another_folder_is_not_the_table(lake, tmp_path):
    """An executor that does not share it is refused, a commit waits."""
    sink = lake.sink()
    sink.check_job("orders")
    sink = pickle.loads(pickle.dumps(sink))
    handle = prepared(sink)
    id_file = tmp_path / "lake/shop/orders/data/_tpc/folder-id"
    true = id_file.read_text()
    id_file.write_text("another")
    with pytest.raises(ConfigurationError, match=TEXTS["another folder"]):
        prepared(sink)
    with pytest.raises(ParticipantUnavailableError, match=TEXTS["not the folder"]):
        sink.commit_transaction(str(T), [handle])
    id_file.write_text(true)
    sink.commit_transaction(str(T), [handle])
    assert lake.visible() == [0, 1]


def test_durable_before_it_counts(lake, tmp_path, monkeypatch):
    """Files before the vote; the table's metadata before the catalog, and the end."""
    sink = lake.sink()
    sink.check_job("orders")
    steps = flushed(monkeypatch, tmp_path / "lake" / "shop")
    handle = prepared(sink)
    data = "orders/data"
    assert steps[0] == f"{data}/_tpc/{own(lake)}/iceberg.orders.0.1/orders.0.1"
    aside = f"{data}/.tpc/{own(lake)}/iceberg.orders"
    assert steps.index(f"{aside}/orders.0.1") > 0
    assert steps[-1] == aside
    assert {"orders", data, f"{data}/_tpc", f"{data}/.tpc"} <= {*steps}
    steps.clear()
    sink.commit_transaction(str(T), [handle])
    kinds = [Path(s).suffix for s in steps if s.startswith("orders/metadata/")]
    assert kinds == [".avro", ".avro", ".json"]
    assert steps.count("orders/metadata") == 2
    steps.clear()
    lake.append(9)
    assert steps == []
    sink.commit_transaction(str(SECOND), [prepared(sink, of=SECOND)])
    kinds = [Path(s).suffix for s in steps if s.startswith("orders/metadata/")]
    assert kinds == [".avro"] * 3 + [".json"]


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
def test_rows_that_do_not_fit_vote_abort(lake, job, given, fault):
    """By name of the column, at each try, and leave nothing."""
    with pytest.raises(ConfigurationError, match=f"{EACH_TIME}: .*{fault}") as caught:
        job().apply(0, [pa.RecordBatch.from_pydict(given)])
    assert "\n" not in str(caught.value)
    assert lake.left() == []


def test_nulls_and_forms_of_a_type(tmp_path):
    """A column that is required is held to that; small integers and zones fit."""
    lake = Lake(tmp_path)
    lake.make(WIDE)
    sink = lake.sink()
    paris = pa.array([7], pa.timestamp("us", "Europe/Paris"))
    good = pa.RecordBatch.from_pydict({"at": paris, "id": [1]})
    with pytest.raises(ConfigurationError, match=TEXTS["nulls"].format(column="id")):
        prepared(sink, pa.RecordBatch.from_pydict({"id": pa.array([None], "int64")}))
    with pytest.raises(
        ConfigurationError, match=TEXTS["missing column"].format(column="id")
    ):
        prepared(sink, good.select(["at"]))
    small = pa.array([{"x": 3}], pa.struct([("x", pa.int8())]))
    with pytest.raises(ConfigurationError, match="column 'n' is struct"):
        prepared(sink, good.append_column("n", small))
    handles = [prepared(sink, good)]
    sink.commit_transaction(str(T), handles)
    (row,) = lake.rows()
    assert (row["at"].microsecond, row["region"]) == (7, None)


# --- what the driver makes before the tasks -------------------------------------------

NEW = pa.RecordBatch.from_pydict({"id": [8], "region": ["north"], "note": ["x"]})


def columns(lake: Lake) -> list[str]:
    return [field.name for field in lake.table().schema().fields]


def test_a_column_comes_with_a_batch(lake, job):
    """By a commit of its own, before any task; others do not have to send it."""
    orders = job(lake.sink(evolve="add"))
    orders.apply(0)
    orders.apply(1, [NEW])
    orders.apply(2, [ROWS])
    notes = {row["id"]: row["note"] for row in lake.rows()}
    assert notes == {**dict.fromkeys(ids_of(0)), 8: "x"}
    fields = lake.table().schema().fields
    assert [(f.name, f.field_id, f.required) for f in fields] == [
        ("id", 1, False),
        ("region", 2, False),
        ("note", 3, False),
    ]


def test_a_column_stays_when_its_batch_aborts(lake, job):
    """No row of it is there, and a later batch finds it."""
    orders = job(lake.sink(evolve="add"))
    with pytest.raises(RuntimeError):
        orders.apply(0, [NEW], fails=True)
    assert (columns(lake), lake.visible()) == (["id", "region", "note"], [])
    orders.apply(0, [NEW])
    assert lake.visible() == [8]


@pytest.mark.parametrize("other", [StringType(), LongType()])
def test_two_jobs_add_a_column_at_one_moment(lake, other):
    """The second finds it there; in another type that is a vote to abort, with both."""
    sink = lake.sink(Overtaken, evolve="add")

    def add_first() -> None:
        with lake.table().update_schema() as update:
            update.add_column("note", other)

    sink.meanwhile = add_first
    sink.before_tasks(NEW.schema)
    assert columns(lake) == ["id", "region", "note"]
    if other == StringType():
        sink.commit_transaction(str(T), [prepared(sink, NEW)])
        assert lake.visible() == [8]
        return
    with pytest.raises(ConfigurationError, match=TEXTS["two types"]):
        prepared(sink, NEW)


@pytest.mark.parametrize(
    ("name", "kind", "says"),
    [
        ("at", pa.timestamp("ns"), r"column 'at': it is timestamp\[ns"),
        ("n", pa.uint64(), "column 'n': it is uint64"),
        ("Region", pa.string(), "column 'Region': it has 'region'"),
    ],
)
def test_a_column_that_a_table_cannot_have(lake, job, name, kind, says):
    """Refused with its name and type: not read as another one."""
    batch = pa.record_batch(
        [[1], [None]], pa.schema([("id", pa.int64()), (name, kind)])
    )
    with pytest.raises(ConfigurationError, match=says):
        job(lake.sink(evolve="add")).apply(0, [batch])
    assert columns(lake) == ["id", "region"]


def test_a_column_of_nulls_waits_for_a_value(lake, job):
    """It has no type yet, and its rows lose nothing."""
    orders = job(lake.sink(evolve="add"))
    orders.apply(0, [pa.record_batch([[1], pa.nulls(1)], ["id", "note"])])
    assert columns(lake) == ["id", "region"]
    orders.apply(1, [NEW])
    assert [row["note"] for row in lake.rows()] == [None, "x"]


def test_a_table_is_made_by_the_driver_if_it_is_asked_to(tmp_path, log):
    """With the first batch's columns, nullable; a second driver finds it there."""
    lake = Lake(tmp_path)
    sinks = [lake.sink(create=True) for _ in range(2)]
    for sink in sinks:
        sink.check_job("orders")
    kinds = {"byte": pa.int8(), "day": pa.date32(), "of": pa.list_(pa.int16())}
    values = [pa.array([1], pa.int8()), pa.array([0], pa.date32())]
    values += [pa.array([[1, None]], pa.list_(pa.int16())), pa.nulls(1)]
    batch = pa.record_batch([pa.array([5]), *values], ["id", *kinds, "no"])
    for sink in sinks:
        sink.before_tasks(batch.schema)
    orders = FileJob(lake.sink(create=True, evolve="add"), log)
    orders.apply(0, [batch])
    day = datetime.date(1970, 1, 1)
    assert lake.rows() == [{"id": 5, "byte": 1, "day": day, "of": [1, None]}]
    assert not any(field.required for field in lake.table().schema().fields)


# --- what is refused at the start -----------------------------------------------------


def test_what_cannot_be_written_is_refused_at_the_start(tmp_path):
    """No table, and what asks for more than an append; in one line."""
    lake = Lake(tmp_path)

    def refused(what: str) -> None:
        with pytest.raises(ConfigurationError, match=what) as caught:
            lake.sink().check_job("orders")
        assert "\n" not in str(caught.value)

    lake.catalog.create_namespace("shop")
    refused(TEXTS["no table"])
    about: dict[str, dict[str, Any]] = {
        "files of orc": {"properties": {"write.format.default": "orc"}},
        "encryption": {"properties": {"encryption.key-id": "k"}},
        "the transform unknown of 'region'": {
            "partition_spec": spec((2, UnknownTransform("zorder")))
        },
    }
    for what, of in about.items():
        lake.make(PLAIN, **of)
        refused(what)
        lake.catalog.drop_table(NAME)
    about = {"properties": {"format-version": "1"}}
    lake.make(PLAIN, partition_spec=spec((2, IdentityTransform())), **about)
    with lake.table().update_spec() as update:
        update.remove_field("p0")
    with lake.table().update_schema() as change:
        change.delete_column("region")
    refused("the transform void of a column that is gone")
    lake.catalog.drop_table(NAME)
    made = Path(lake.make().metadata_location.removeprefix("file://"))
    newer = {**json.loads(made.read_text()), "format-version": 3, "next-row-id": 0}
    made.write_text(json.dumps(newer))
    refused("format version 3")


def test_secrets_are_references(tmp_path, monkeypatch):
    """None is pickled, or in a line; they are read where the catalog is opened."""
    for name, value in {
        "token": "s3cr3t",
        "credential": "id:s3cr3t",
        "s3.secret-access-key": "s3cr3t",
        "uri": "postgresql+psycopg://me:s3cr3t@db/catalog",
    }.items():
        with pytest.raises(ConfigurationError, match=f"{name}: give a ref") as caught:
            IcebergSink("lake", NAME, properties={name: value})
        assert "s3cr3t" not in str(caught.value)
    about = properties(tmp_path)
    monkeypatch.setenv("LAKE_URI", about["uri"])
    monkeypatch.setenv("LAKE_KEY", "s3cr3t")
    about |= {"uri": "env:LAKE_URI", "s3.secret-access-key": "env:LAKE_KEY"}
    Lake(tmp_path).make()
    sink = IcebergSink("lake", NAME, properties=about)
    sink.check_job("orders")
    assert sink._catalog.properties["s3.secret-access-key"] == "s3cr3t"
    assert b"s3cr3t" not in pickle.dumps(sink)
    monkeypatch.delenv("LAKE_URI")
    with pytest.raises(ConfigurationError, match="LAKE_URI is empty"):
        pickle.loads(pickle.dumps(sink)).check_job("orders")


def test_a_catalog_comes_from_pyicebergs_configuration(lake, tmp_path):
    """By its name, in the environment of each process."""
    code = (
        "from tracing_2pc import IcebergSink; "
        f"IcebergSink('mine', '{NAME}').check_job('orders')"
    )
    of = {key.upper(): value for key, value in properties(tmp_path).items()}
    env = {f"PYICEBERG_CATALOG__LAKE__{key}": value for key, value in of.items()}

    def run(name: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", code.replace("mine", name)],
            env={**os.environ, **env},
            cwd=tmp_path,
            capture_output=True,
            text=True,
            check=False,
        )

    assert run("lake").returncode == 0
    assert re.search(TEXTS["no catalog"], run("other").stderr)


def main(folder: Path, what: str, *rest: str) -> None:
    """Do what the module's docstring says."""
    sink = Lake(folder).sink()
    if what == "commit":
        for kept in json.loads(Path(rest[0]).read_text()):
            handle = IcebergSink.handle_type(**kept)
            sink.commit_transaction(handle.transaction, [handle])
        return
    sink.check_job("orders")
    with contextlib.closing(open_log(f"sqlite:///{folder}/log.db")) as log:
        for batch in range(int(rest[0]), 2):
            FileJob(sink, log).apply(batch, fails=bool(batch and rest[1:]))


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
