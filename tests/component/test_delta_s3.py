"""`DeltaSink` on an object store, the S3 of moto's server: nothing is shared.

python test_delta_s3.py URL TABLE job FOLDER [fail]     the second batch of a job
python test_delta_s3.py URL TABLE commit HANDLES        the commits of transactions
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import pickle
import subprocess
import sys
import tempfile
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
from support.file_job import FileJob, ids_of, prepared, received, rows_of
from support.s3 import BUCKET, S3, SECRET, s3
from support.texts import texts

from tracing_2pc import DeltaSink
from tracing_2pc.core.errors import (
    ConfigurationError,
    HeuristicError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import TransactionId
from tracing_2pc.sinks import delta_folder
from tracing_2pc.store import open_log
from tracing_2pc.testing import SinkContract

deltalake = pytest.importorskip("deltalake", reason="deltalake is not installed here")
DeltaTable, write_deltalake = deltalake.DeltaTable, deltalake.write_deltalake

TEXTS = texts("sinks")
T = TransactionId("orders", 0, 1)
SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])
HERE = Path(__file__).parents[1]


@pytest.fixture(scope="module")
def store() -> Iterator[S3]:
    with s3() as running:
        yield running


@pytest.fixture(autouse=True)
def _login(monkeypatch) -> None:
    """Give the secret, and nothing else that boto3 would find."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("LAKE_SECRET", SECRET)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    monkeypatch.setenv("AWS_CONFIG_FILE", os.devnull)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", os.devnull)


@dataclasses.dataclass(frozen=True)
class Table:
    """A table of the store."""

    store: S3
    key: str

    @property
    def url(self) -> str:
        return f"s3://{BUCKET}/{self.key}"

    def sink(self, kind: type[DeltaSink] = DeltaSink, **about: Any) -> DeltaSink:
        return kind(self.url, properties=self.store.properties, **about)

    def make(self, schema: Any = SCHEMA, **about: Any) -> Table:
        options = self.store.options
        DeltaTable.create(self.url, schema, storage_options=options, **about)
        return self

    def open(self) -> Any:
        return DeltaTable(self.url, storage_options=self.store.options)

    def rows(self) -> list[dict[str, Any]]:
        """Read the table through deltalake's own engine."""
        query = deltalake.QueryBuilder().register("t", self.open())
        return pa.table(query.execute("SELECT * FROM t ORDER BY id")).to_pylist()

    def visible(self) -> list[int]:
        """Return the ids that three readers see."""
        seen = [row["id"] for row in self.rows()]
        assert sorted(self.open().to_pandas()["id"]) == seen
        assert self._by_duckdb() == seen
        return seen

    def _by_duckdb(self) -> list[int]:
        """Read copies of the files that the log lists."""
        keys = [uri.removeprefix(f"s3://{BUCKET}/") for uri in self.open().file_uris()]
        with tempfile.TemporaryDirectory() as folder, self.store.client() as client:
            for n, key in enumerate(keys):
                client.download_file(BUCKET, key, f"{folder}/{n}.parquet")
            if not keys:
                return []
            query = "SELECT id FROM read_parquet(?) ORDER BY id"
            with duckdb.connect() as database:
                found = database.execute(query, [f"{folder}/*.parquet"]).fetchall()
        return [n for (n,) in found]

    def prepared(self) -> list[str]:
        """Return what is prepared."""
        keys = self.store.keys(f"{self.key}/_tpc")
        return [key for key in keys if key.endswith((".parquet", ".json"))]

    def left(self) -> list[str]:
        """Return what is prepared, or is in the table's folder and not listed."""
        listed = {uri.rpartition("/")[2] for uri in self.open().file_uris()}
        keys = self.store.keys(self.key)
        loose = {key for key in keys if "/" not in key and key.endswith(".parquet")}
        return [*self.prepared(), *sorted(loose - listed)]


@pytest.fixture
def table(store) -> Table:
    """Return an empty table."""
    return Table(store, f"tables/{uuid.uuid4().hex}").make()


def process(
    table: Table, *arguments: Any, **environment: str
) -> subprocess.Popen[bytes]:
    """Start this file as a program, in a group of its own."""
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    return subprocess.Popen(
        [sys.executable, __file__, table.store.url, table.key, *map(str, arguments)],
        env={**os.environ, "PYTHONPATH": path, **environment},
        start_new_session=True,
    )


@pytest.mark.ci
class TestDeltaSinkOnS3(SinkContract):
    """The promises of any sink."""

    @pytest.fixture
    def where(self, store: S3) -> Table:
        return Table(store, f"kit/{uuid.uuid4().hex}")

    def make_sink(self, where: Table) -> Any:
        schema = pa.schema([("id", pa.int64()), ("amount", pa.float64())])
        where.make(schema, mode="ignore")
        return where.sink()

    def refused(self, where: Table) -> Mapping[str, Any]:
        amount = pa.field("amount", pa.float64(), nullable=False)
        where.make(pa.schema([("id", pa.int64()), amount]))
        return {**self.record(0), "amount": None}

    def visible(self, where: Table) -> Iterable[Mapping[str, Any]]:
        return where.rows()

    def leftovers(self, where: Table) -> Iterable[Any]:
        return where.left()


def test_a_job_writes_objects(table, log):
    """What is prepared is copied by the server, and nothing but the table stays."""
    sink = table.sink(evolve="add")
    sink.check_job("orders")
    for batch in range(2):
        FileJob(sink, log).apply(batch)
    assert table.visible() == ids_of(0, 1)
    assert (table.left(), table.open().version()) == ([], 2)
    written = table.store.seen(f"^PUT /{BUCKET}/{table.key}/orders.* ")
    assert len(written) == 4  # with the key that each is copied from
    notes = pa.record_batch([[8], ["n"], ["x"]], ["id", "region", "note"])
    FileJob(sink, log).apply(2, [notes])
    assert [row["note"] for row in table.rows()][-1:] == ["x"]


def test_a_table_with_partitions(table, log):
    """Many files are one entry in the log: it has a digest, and no names."""
    parted = Table(table.store, f"{table.key}-parted").make(partition_by=["region"])
    sink = parted.sink()
    given = pa.RecordBatch.from_pydict(
        {"id": [*range(40)], "region": [f"r{n}" for n in range(40)]}
    )
    handle = received(prepared(sink, given))
    assert len(json.dumps(dataclasses.asdict(handle))) < len(given) * 10
    sink.commit_transaction(str(T), [handle])
    assert (parted.visible(), parted.left()) == ([*range(40)], [])


def test_an_abort_leaves_nothing(table):
    """Neither of a branch, nor of a transaction of which no receipt came."""
    sink = table.sink()
    sink.abort(prepared(sink))
    assert table.left() == []
    prepared(sink)
    sink.abort_transaction(str(T), [])
    assert (table.left(), table.rows()) == ([], [])


@pytest.mark.parametrize("gone", [".0.parquet", ".json"])
def test_what_was_removed_is_lost_and_never_acknowledged(table, log, gone):
    """As by a rule of the bucket, unseen: quarantined, and nothing is listed."""

    class Expired(DeltaSink):
        def commit_transaction(self, transaction_id: str, handles: Any) -> None:
            (key,) = [k for k in table.prepared() if ".1.1." in k and k.endswith(gone)]
            table.store.delete(f"{table.key}/_tpc/{key}")
            super().commit_transaction(transaction_id, handles)

    with pytest.raises(HeuristicError, match=TEXTS["not listed"]):
        FileJob(table.sink(Expired), log).apply(0)
    assert (table.visible(), table.open().version()) == ([], 0)
    assert len(table.prepared()) == 3  # they may be the only copy of these rows


def test_a_list_that_another_has_written_is_not_believed(table):
    sink = table.sink()
    handle, other = received(prepared(sink)), received(prepared(sink, branch="0.7"))
    with pytest.raises(ParticipantRefusedError, match=TEXTS["not listed"]):
        sink.commit(dataclasses.replace(handle, digest=other.digest))
    sink.commit(handle)
    assert table.visible() == [0, 1]


@pytest.mark.parametrize("count", [10**12, -1, 1.0, "1"])
def test_a_receipt_names_as_many_files_as_a_task_can_make(table, count):
    """Whatever it says, it is no list in memory."""
    sink = table.sink()
    handle = received(prepared(sink))
    with pytest.raises(ParticipantRefusedError, match=TEXTS["a receipt"]):
        sink.commit(dataclasses.replace(handle, count=count))
    sink.commit(handle)
    assert table.visible() == [0, 1]


IN_CI = [pytest.param(fault, marks=pytest.mark.ci) for fault in ("slow", "late")]

REQUESTS = {
    "a file": "PUT .*/_tpc/.*parquet$",
    "its list": "PUT .*/_tpc/.*json$",
    "a copy": "PUT .*parquet .*/_tpc/",
    "the table's log": "PUT .*/_delta_log/.*1.json ",
    "a removal": "DELETE .*/_tpc/.*parquet$",
}


@pytest.mark.parametrize("fault", ["lose", *IN_CI])
@pytest.mark.parametrize("request_", REQUESTS)
def test_an_answer_is_lost_or_comes_late(table, log, request_, fault):
    """Each row is there once, and one commit of the table has it."""
    table.store.fail(f"{REQUESTS[request_]}", fault)
    FileJob(table.sink(), log).apply(0)
    assert (table.visible(), table.left()) == (ids_of(0), [])
    assert table.open().version() == 1
    assert len(table.store.seen(REQUESTS[request_])) > 1


@pytest.mark.parametrize("fault", ["lose", IN_CI[1]])
@pytest.mark.parametrize("request_", ["a copy", "the table's log"])
def test_no_answer_comes_at_all(table, request_, fault):
    """Not now, but for what was done, as the table tells; nothing is done twice."""
    sink = table.sink()
    handle = received(prepared(sink))
    table.store.fail(REQUESTS[request_], fault, times=100)
    expected = (
        pytest.raises(OSError, match="copying")
        if request_ == "a copy"
        else nullcontext()
    )
    try:
        with expected:
            sink.commit_transaction(str(T), [handle])
    finally:
        table.store.heal()
    table.sink().commit_transaction(str(T), [handle])
    assert (table.visible(), table.left()) == ([0, 1], [])
    assert table.open().version() == 1


@pytest.mark.parametrize("part", ["PUT .*partNumber=", "POST .* uploadId="])
@pytest.mark.parametrize("fault", ["lose", *IN_CI])
def test_a_large_file_is_sent_in_parts(table, log, part, fault):
    """It is there whole, or its task fails, and the next attempt is another file."""
    ids = pa.array(range(1 << 20))
    texts_ = pa.array([uuid.UUID(int=(n * n) << 64).hex * 2 for n in range(1 << 20)])
    large = pa.record_batch([ids, texts_], ["id", "region"])
    table.store.fail(part, fault)
    sent = False
    with contextlib.suppress(OSError):
        sent = FileJob(table.sink(), log).apply(0, [large])
    if not sent:
        FileJob(table.sink(), log).apply(0, [large])
    assert table.open().version() == 1
    assert (len(table.rows()), table.left()) == (len(ids), [])
    assert len(table.store.seen(part)) > 1


POINTS = {
    "files.after_write": 2,
    "delta.before_list": 2,
    "delta.between_places": 2,
    "delta.before_commit": 1,
    "delta.after_commit": 1,
    "files.before_abort": 1,
}
"""And how often each is reached in a batch."""


@pytest.mark.parametrize(
    "point",
    [
        pytest.param(
            f"{point}:{n}",
            id=f"{n}-{point}",
            marks=[] if point == "delta.before_commit" else pytest.mark.ci,
        )
        for point, times in POINTS.items()
        for n in range(1, times + 1)
    ],
)
def test_a_job_is_killed_at(table, tmp_path, point):
    """Each row is there once after the next start, and nothing stays prepared."""

    def apply(batch: int) -> None:
        with contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db")) as log:
            FileJob(table.sink(), log).apply(batch)

    apply(0)
    aborts = ["fail"] if "abort" in point else []
    assert process(table, "job", tmp_path, *aborts, TPC_FAILPOINT=point).wait() == -9
    decided = "after_commit" in point
    assert table.visible() == (ids_of(0, 1) if decided else ids_of(0))
    assert bool(table.left()) == (point != "files.after_write:1")  # nothing is closed
    apply(1)
    # What was placed of an attempt that is over is for the next vacuum.
    assert (table.visible(), table.prepared()) == (ids_of(0, 1), [])


@pytest.mark.ci
def test_two_processes_commit_the_same_while_others_append(table, tmp_path):
    """Each batch is there once, and so is each row of the others."""
    sink, batches = table.sink(), range(3)
    handles = []
    for batch in batches:
        (given, _), of = rows_of(batch), TransactionId("orders", batch, 1)
        handles.append(dataclasses.asdict(prepared(sink, given, of=of)))
    (file := tmp_path / "handles").write_text(json.dumps(handles))
    running = [process(table, "commit", file) for _ in range(2)]
    others, about = range(1000, 1003), {"storage_options": table.store.options}
    for n in others:
        more = pa.table({"id": [n], "region": ["other"]})
        write_deltalake(table.url, more, mode="append", **about)
    assert [one.wait() for one in running] == [0, 0]
    ours = [n for batch in batches for n in ids_of(batch)[:2]]
    assert (table.visible(), table.prepared()) == ([*ours, *others], [])
    assert table.open().version() == 6


def test_a_vacuum_before_the_commit_takes_no_row(table):
    """Not what is prepared; what was placed and not listed is placed again."""

    class Vacuumed(DeltaSink):
        def _append(self, *arguments: Any) -> str:
            about = {"dry_run": False, "enforce_retention_duration": False}
            gone = table.open().vacuum(0, full=True, **about)
            assert len(gone) == 1
            return super()._append(*arguments)

    sink = table.sink(Vacuumed)
    sink.commit_transaction(str(T), [prepared(sink)])
    assert (table.visible(), table.left()) == ([0, 1], [])


def test_a_store_that_lets_two_puts_through_is_refused(table):
    """One commit of the table could replace another; nothing is left of the trial."""
    table.store.be_careless()
    try:
        with pytest.raises(ConfigurationError, match=TEXTS["careless"]) as caught:
            table.sink().check_job("orders")
    finally:
        table.store.be_careless(False)
    assert "\n" not in str(caught.value)
    assert table.store.keys(f"{table.key}/_tpc") == []
    for fault in ("lose", "slow", "late"):
        table.store.fail("PUT .*/_tpc/[^.]* if nothing", fault)
        table.sink().check_job("orders")


def test_an_object_that_s3_could_not_copy_votes_abort(table, log, monkeypatch):
    """At its prepare, and not for ever at its commit."""
    monkeypatch.setattr(delta_folder, "_LARGEST", 100)
    with pytest.raises(ConfigurationError, match=TEXTS["too large to copy"]):
        FileJob(table.sink(), log).apply(0)
    assert table.left() == []


def test_a_login_is_found_as_boto3_does(table, monkeypatch):
    """From the environment, without any property; and named if there is none."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", table.store.url)
    monkeypatch.setenv("AWS_REGION", "eu-central-1")
    sink = DeltaSink(table.url)
    with pytest.raises(ConfigurationError, match="no login") as caught:
        sink.check_job("orders")
    assert "\n" not in str(caught.value)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", SECRET)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET)
    sink = DeltaSink(table.url.replace("s3:", "s3a:"))
    sink.check_job("orders")
    sink.commit(prepared(sink))
    assert table.visible() == [0, 1]
    assert SECRET.encode() not in pickle.dumps(sink)


def test_the_environment_does_not_undo_the_condition(table, monkeypatch):
    """Each version of the table is put where none is, whatever deltalake finds."""
    monkeypatch.setenv("AWS_CONDITIONAL_PUT", "disabled")
    monkeypatch.setenv("AWS_S3_ALLOW_UNSAFE_RENAME", "true")
    sink = table.sink()
    sink.commit(prepared(sink))
    puts = table.store.seen(f"PUT .*{table.key}/_delta_log/.*1.json")
    assert [line.partition("json ")[2] for line in puts] == ["if nothing is there"]


def test_what_is_no_table_is_said(table):
    """Neither in a folder, nor in a bucket that there is not."""
    with pytest.raises(ConfigurationError, match=r"DeltaTable\.create"):
        Table(table.store, "tables/none").sink().check_job("orders")
    nowhere = DeltaSink("s3://nowhere/t", properties=table.store.properties)
    with pytest.raises((ConfigurationError, ParticipantUnavailableError)) as caught:
        nowhere.check_job("orders")
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("address", "properties", "says"),
    [
        ("s3://me:hush@b/t", {}, "an address of S3 is"),
        ("s3://b/t?secret=hush", {}, "an address of S3 is"),
        ("s3://b", {}, "expected s3://bucket/folder"),
        ("s3://b/t", {"AWS_SECRET_ACCESS_KEY": "hush"}, "give a reference"),
        ("s3://b/t", {"AWS_SESSION_TOKEN": "hush"}, "give a reference"),
        ("s3://b/t", {"AWS_ENDPOINT_URL": "http://me:hush@h"}, "give a reference"),
        ("s3://b/t", {"aws_region": "hush"}, "'aws_region': one of AWS_"),
        ("gs://b/t", {}, "hard links, which gs"),
        ("abfss://b@h/t", {}, "hard links, which abfss"),
        ("/b/t", {"AWS_REGION": "hush"}, "of a table on S3 only"),
    ],
)
def test_a_secret_is_never_in_an_address_or_a_property(address, properties, says):
    """Refused where the sink is made, in one line that does not repeat it."""
    with pytest.raises(ConfigurationError, match=says) as caught:
        DeltaSink(address, properties=properties)
    assert "\n" not in str(caught.value)
    assert "hush" not in str(caught.value)


def main(url: str, key: str, what: str, place: str, *fails: str) -> None:
    """Do what the module's docstring says."""
    sink = Table(S3(url), key).sink()
    if what == "job":
        with contextlib.closing(open_log(f"sqlite:///{place}/log.db")) as log:
            FileJob(sink, log).apply(1, fails=bool(fails))
        return
    for kept in json.loads(Path(place).read_text()):
        handle = DeltaSink.handle_type(**kept)
        sink.commit_transaction(handle.transaction, [handle])


if __name__ == "__main__":
    main(*sys.argv[1:])
