"""`FileSink`: what readers of the folder see, and what a crash or a person leaves."""

from __future__ import annotations

import contextlib
import copy
import errno
import json
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable
from contextlib import nullcontext
from datetime import date, datetime, timezone
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import dataset
from support.file_job import (
    ROWS,
    Away,
    FileJob,
    flushed,
    give_up,
    ids_of,
    main,
    prepared,
    received,
    rows_of,
    transaction_of,
    write,
)
from support.texts import texts
from support.waiting import PAUSE

from tracing_2pc import FileSink
from tracing_2pc.core.errors import (
    EACH_TIME,
    CommitPendingError,
    ConfigurationError,
    HeuristicError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import TransactionId
from tracing_2pc.sinks import CompositeSink, branch_files, files
from tracing_2pc.store import open_log

TEXTS = texts("sinks")

T = TransactionId("orders", 0, 1)
MOMENTS = pa.array([0], pa.timestamp("us", "UTC"))
FORMATS = ("parquet", "json", "csv")
POINTS = {
    "files.after_write": 3,
    "files.between_renames": 6,
    "files.before_manifest": 2,
    "files.after_manifest": 2,
    "files.before_abort": 1,
}
"""And the time that a point is reached in the second batch first."""
MORE = pytest.mark.ci
HERE = Path(__file__).parents[1]

Jobs = Callable[..., FileJob]


@pytest.fixture
def out(tmp_path) -> Path:
    return tmp_path / "out"


@pytest.fixture
def job(out, log) -> Jobs:
    """Return jobs that share a log; by default with a sink of `out`."""
    return lambda sink=None, **about: FileJob(sink or FileSink(out), log, **about)


def by_duckdb(folder: Path, kind: str = "parquet") -> list[int]:
    """Read as strictly as can be: all below, hidden or not, with the format's name."""
    if not any(folder.rglob(f"*.{kind}")):
        return []
    files = f"read_{kind}('{folder}/**/*.{kind}', union_by_name = true)"
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT id FROM {files} ORDER BY id").fetchall()
    return [n for (n,) in found]


def by_pandas(folder: Path) -> list[int]:
    """Read the folder as pandas does."""
    if not any(p for p in folder.rglob("*.parquet") if ".tpc" not in p.parts):
        return []
    return sorted(int(n) for n in pd.read_parquet(folder)["id"])


def by_arrow(folder: Path, kind: str = "parquet") -> list[int]:
    """Read the folder as an Arrow data set."""
    table = dataset.dataset(folder, format=kind, partitioning="hive").to_table()
    return sorted(table.column("id").to_pylist())


def visible(folder: Path) -> list[int]:
    """Return the ids that every reader sees."""
    seen = by_duckdb(folder)
    assert by_pandas(folder) == seen
    return seen


def aside(folder: Path) -> list[str]:
    """Return the transactions that have something prepared or left over."""
    return sorted({transaction_of(path.name) for path in folder.glob(".tpc/*")})


def manifests(folder: Path) -> dict[str, Any]:
    """Return what the manifests say, by name."""
    return {
        str(file.relative_to(folder / "_tpc")): json.loads(file.read_text())
        for file in sorted((folder / "_tpc").rglob("*.manifest"))
    }


# --- what readers see -------------------------------------------------------------


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("by", [None, "region"])
def test_each_batch_is_there_once(out, job, kind, by):
    """In each format, with folders or without, for each reader; nothing is left."""
    orders = job(FileSink(out, kind, partition_by=by))
    assert orders.sink.driver_path, "small batches"
    assert [orders.apply(0), orders.apply(1), orders.apply(1)] == [True, True, False]
    assert by_duckdb(out, kind) == by_arrow(out, kind) == ids_of(0, 1)
    folders = {p.parent.name for p in out.rglob(f"*.{kind}")}
    assert folders == ({"region=north", "region=south"} if by else {"out"})
    assert aside(out) == []


def test_a_manifest_lists_the_files_of_its_transaction(out, job):
    """With the rows and bytes of each: who reads by manifests sees whole batches."""
    orders = job(FileSink(out, partition_by="region"))
    orders.apply(0)
    orders.apply(1, [rows_of(1)[0].slice(0, 0)])
    first, second = manifests(out).values()
    assert list(manifests(out)) == [
        "files.orders/0.manifest",
        "files.orders/1.manifest",
    ]
    assert (first["transaction"], first["rows"]) == ("orders.0.1", 4)
    assert sum(file["rows"] for file in first["files"]) == 4
    sizes = {str(p.relative_to(out)): p.stat().st_size for p in out.rglob("*.parquet")}
    assert {file["path"]: file["bytes"] for file in first["files"]} == sizes
    assert (second["rows"], second["files"]) == (0, [])


@pytest.mark.parametrize("kind", FORMATS)
def test_no_reader_sees_what_is_only_prepared(out, kind):
    """Not even one that looks into every folder by the ending of a name."""
    sink = FileSink(out, kind, partition_by="region")
    prepared(sink)
    assert list(out.rglob(f"*.{kind}")) == []
    assert len(list(out.rglob(f"*.{kind}.tmp"))) == 2


def test_a_file_has_the_time_of_its_commit(out, job):
    """However long it was prepared: readers that go by age, such as a stream of Spark,
    find it new."""

    class Late(FileSink):
        def commit_transaction(self, transaction_id: str, handles: Any) -> None:
            for file in out.rglob("*.tmp"):
                os.utime(file, (0, 0))
            super().commit_transaction(transaction_id, handles)

    orders = job(Late(out, partition_by="region"))
    (out.parent / "now").touch()
    orders.apply(0)
    now = (out.parent / "now").stat().st_mtime_ns
    times = [file.stat().st_mtime_ns for file in out.rglob("*.parquet")]
    assert len(times) == 4
    assert min(times) >= now


def test_no_folder_goes_away(out):
    """A reader that lists all of them is not told that one is not there."""

    def folders() -> set[Path]:
        return {path for path in out.rglob("*") if path.is_dir()}

    sink = FileSink(out, partition_by="region")
    handle, _ = prepared(sink), prepared(sink, branch="0.1")
    before = folders()
    sink.commit_transaction("orders.0.1", [handle])
    prepared(sink, of=TransactionId("orders", 1, 1))
    sink.abort_transaction("orders.1.1", [])
    assert aside(out) == []
    assert before <= folders()


@pytest.mark.parametrize(
    "point", [p if "renames" in p else pytest.param(p, marks=MORE) for p in POINTS]
)
def test_killed_anywhere_each_row_is_there_once(tmp_path, out, point):
    """No reader sees a row of a batch that is not decided, or one twice; and at the end
    all of them see all, and nothing is left aside."""
    fired = tmp_path / "fired"
    aborts = point == "files.before_abort"
    seen: list[list[int]] = []
    over = threading.Event()

    def read() -> None:
        while not over.wait(PAUSE):
            seen.append(by_duckdb(out))

    reader = threading.Thread(target=read)
    reader.start()
    try:
        code, error = killed(tmp_path, f"{point}:{POINTS[point]}", fails=aborts)
        assert (code, fired.exists()) == (-9, True), error
        decided = ids_of(0) if point == "files.after_write" else ids_of(0, 1)
        now = visible(out)
        assert set(now) <= set(decided)
        if aborts:
            assert now == ids_of(0)
        main(tmp_path, 1, 2)  # as Spark does: the batch that was begun
    finally:
        over.set()
        reader.join()
    assert visible(out) == ids_of(0, 1, 2)
    assert aside(out) == []
    assert all(len(set(ids)) == len(ids) for ids in seen)


def killed(tmp_path: Path, point: str, *, fails: bool) -> tuple[int, str]:
    """Run two batches in a process that is killed in the second."""
    command = [sys.executable, "-m", "support.file_job", str(tmp_path), "0", "1"]
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(HERE), str(HERE.parent)]),
        "TPC_FAILPOINT": point,
        "TPC_FAILPOINT_FILE": str(tmp_path / "fired"),
    }
    run = subprocess.run(
        [*command, *(["fail"] if fails else [])],
        env=env,
        start_new_session=True,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    return run.returncode, run.stderr


def test_durable_before_it_counts(out, monkeypatch):
    """Files and the folder that they are in are flushed before the vote, and then what
    is reserved; the folders that they move into before they do and after; the manifest
    before it is named."""
    sink, rename = FileSink(out, partition_by="region"), Path.rename
    sink.check_job("orders")
    steps = flushed(monkeypatch, out)

    def move(path: Path, target: Path) -> Path:
        kind = "manifest" if target.name == "0.manifest" else target.parent.name
        steps.append(f"move {kind}")
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", move)
    handle = prepared(sink)
    file, folders = ".tpc/files.orders.0.1", [".", ".tpc"]
    assert steps[:-3] == [file, file, *folders, *folders]
    reserved = [step.partition(".manifest.")[0] for step in steps[-3:]]
    assert reserved == [file, "move .tpc", ".tpc"]
    steps.clear()
    sink.commit_transaction("orders.0.1", [handle])
    folders = [".", "region=north", "region=south"]
    moves = ["move region=north", "move region=south"]
    assert steps[:8] == [*folders, *moves, *folders]
    named = [step.partition(".manifest.")[0] for step in steps[-3:]]
    assert named == [file, "move manifest", "_tpc/files.orders"]


def test_rows_are_written_as_they_come(tmp_path, out, monkeypatch):
    """A partition is never in memory as a whole."""
    monkeypatch.setattr(branch_files, "IN_MEMORY", 100)
    sink = FileSink(out, "json")
    handle = write(sink, *[ROWS] * 10)
    assert handle.writer._held < 100
    sink.abort(handle)
    assert list(tmp_path.rglob("*.tmp")) == []


# --- the decision, again and too late -----------------------------------------------


def test_a_loop_of_ones_own_may_commit_branch_by_branch(out):
    """`commit` for each, and `abort_transaction` with those to keep: the same ends."""
    sink = FileSink(out)
    handle, other = prepared(sink), prepared(sink, branch="1.1")
    for _ in range(2):
        sink.commit(handle)
        sink.commit(other)
        sink.abort_transaction("orders.0.1", [handle, other])
        assert visible(out) == [0, 0, 1, 1]
        assert list(manifests(out)) == ["files.orders/0.manifest"]


def test_a_file_that_somebody_removed_is_no_commit(out, job):
    """The transaction is quarantined, and none of its other files is shown."""

    class Careless(FileSink):
        def commit_transaction(self, transaction_id: str, handles: Any) -> None:
            next((out / ".tpc").glob("*.parquet.tmp")).unlink()
            super().commit_transaction(transaction_id, handles)

    orders = job(Careless(out))
    with pytest.raises(HeuristicError, match=TEXTS["neither prepared nor there"]):
        orders.apply(0)
    assert visible(out) == []
    assert manifests(out) == {}


def test_what_is_removed_after_the_commit_stays_committed(out, job):
    """A compaction between commit and acknowledgement: the manifest is proof."""

    class Slow(FileSink):
        lost = 1

        def commit_transaction(self, transaction_id: str, handles: Any) -> None:
            super().commit_transaction(transaction_id, handles)
            for file in out.glob("*.parquet"):
                file.unlink()
            if self.lost:
                self.lost -= 1
                raise TimeoutError("the acknowledgement is lost")

    orders = job(Slow(out))
    assert orders.apply(0)
    assert orders.log.unfinished() == []
    assert not orders.apply(0)  # asked again before the replay is skipped


def test_another_process_may_finish_the_commit_first(out):
    """Even if what it committed was compacted meanwhile: the manifest is proof."""

    class Slow(FileSink):
        def _show(self, transaction: TransactionId, handles: Any) -> None:
            FileSink(out).commit_transaction(str(transaction), handles)
            for file in out.glob("*.parquet"):
                file.unlink()
            super()._show(transaction, handles)

    sink = Slow(out)
    sink.commit_transaction("orders.0.1", [prepared(sink)])
    assert visible(out) == aside(out) == []


@pytest.mark.parametrize("ours", [True, False])
def test_a_commit_that_is_overtaken_at_its_manifest(out, monkeypatch, ours):
    """By the same commit it is acknowledged; by other files of another log refused."""
    sink, rename = FileSink(out), Path.rename
    handle, foreign = prepared(sink), prepared(sink, branch="1.1")

    def overtaken(path: Path, target: Path) -> Path:
        if target.name == "0.manifest":
            monkeypatch.setattr(Path, "rename", rename)
            by = handle if ours else foreign
            FileSink(out).commit_transaction("orders.0.1", [by])
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    refused = pytest.raises(ParticipantRefusedError, match=TEXTS["other files"])
    with contextlib.nullcontext() if ours else refused:
        sink.commit_transaction("orders.0.1", [handle])
    (manifest,) = manifests(out).values()
    committed = handle if ours else foreign
    assert manifest["files"] == committed.files
    assert aside(out) == []


def test_a_late_task_of_what_is_over_is_never_seen(out, job):
    """After an abort its files wait for the next commit; after a commit it is refused,
    or, if it had begun before, its files are removed later as well."""
    orders = job()
    with pytest.raises(RuntimeError):
        orders.apply(0, fails=True)
    assert aside(out) == []
    prepared(orders.sink, of=T)
    sleeps = write(orders.sink, of=TransactionId("orders", 0, 2), branch="0.9")
    other = prepared(FileSink(out), of=TransactionId("other", 0, 1))
    assert aside(out) == ["files.orders.0.1", "files.orders.0.2", "files.other.0.1"]
    orders.apply(0)
    assert aside(out) == ["files.other.0.1"]
    with pytest.raises(ParticipantRefusedError, match="already committed"):
        write(orders.sink, of=TransactionId("orders", 0, 1))
    with pytest.raises(FileNotFoundError):
        orders.sink.pre_commit(sleeps)
    orders.sink.abort(sleeps)
    orders.apply(1)
    assert visible(out) == ids_of(0, 1)
    FileSink(out).commit_transaction("other.0.1", [other])
    assert visible(out) == sorted([*ids_of(0, 1), 0, 1])


@pytest.mark.parametrize("damaged", ["", "[]", '{"files": []}'])
def test_a_damaged_manifest_is_said(out, job, caplog, damaged):
    """By name. An older one does not hold back a commit: what it may prove stays."""
    orders = job()
    orders.apply(0)
    handle = prepared(orders.sink, of=TransactionId("orders", 1, 1))
    (out / ".tpc" / "files.orders.0.9.0.9.0123456789ab.0.parquet.tmp").touch()
    (manifest := out / "_tpc/files.orders/0.manifest").write_text(damaged)
    orders.sink.commit_transaction("orders.1.1", [handle])
    assert aside(out) == ["files.orders.0.9"]
    assert re.search(TEXTS["damaged manifest"], caplog.text)
    for what in partial(orders.apply, 0), partial(prepared, orders.sink):
        with pytest.raises(
            (CommitPendingError, ParticipantUnavailableError),
            match=TEXTS["damaged manifest"],
        ):
            what()
    manifest.unlink()
    assert not orders.apply(0)
    assert aside(out) == []


def test_a_contradiction_is_refused(out):
    """A batch commits once, and what is committed is not aborted."""
    sink = FileSink(out)
    second = TransactionId("orders", 0, 2)
    first, other = prepared(sink), prepared(sink, of=second)
    sink.commit_transaction("orders.0.1", [first])
    with pytest.raises(
        ParticipantRefusedError, match=r"but orders\.0\.1 has committed"
    ):
        sink.commit_transaction("orders.0.2", [other])
    with pytest.raises(
        ParticipantRefusedError, match="decided abort, and is committed"
    ):
        sink.abort_transaction("orders.0.1", [])
    sink.abort_transaction("orders.0.2", [])
    assert visible(out) == [0, 1]


def test_another_logs_manifest_is_no_commit_of_ours(tmp_path, out):
    """Two logs of one application name, at once: the second one is quarantined."""
    with (
        contextlib.closing(open_log(f"sqlite:///{tmp_path}/a.db")) as log,
        contextlib.closing(open_log(f"sqlite:///{tmp_path}/b.db")) as other,
    ):
        ours, theirs = FileJob(FileSink(out), log), FileJob(FileSink(out), other)

        class Slow(FileSink):
            def pre_commit(self, handle: Any) -> None:
                super().pre_commit(handle)
                theirs.apply(0)

        ours.sink = Slow(out)
        with pytest.raises(HeuristicError, match=TEXTS["other files"]):
            ours.apply(0, rows_of(0)[:1])
    assert visible(out) == ids_of(0)


def test_batches_that_another_log_has_committed_are_refused(tmp_path, out, job):
    """Also those whose manifests somebody has deleted since."""
    for batch in range(3):
        job().apply(batch)
    (out / "_tpc" / "files.orders" / "0.manifest").unlink()
    sink = FileSink(out)
    sink.check_job("orders")
    with (
        contextlib.closing(open_log(f"sqlite:///{tmp_path}/new.db")) as log,
        pytest.raises(ParticipantRefusedError, match=TEXTS["another application"]),
    ):
        FileJob(sink, log).apply(0)
    assert visible(out) == ids_of(0, 1, 2)


def test_what_a_person_ended_without_a_commit_is_kept(out, job):
    """The prepared files are then the only copy of these rows."""
    sink = type("Away", (Away, FileSink), {})(out)
    give_up(job(sink), "files")
    assert visible(out) == ids_of(1)
    assert aside(out) == ["files.orders.0.1"]
    assert len(list((out / ".tpc").rglob("*.parquet.tmp"))) == 2


def test_applications_and_sinks_share_a_folder(out, job):
    """Two sinks of one job need names; two jobs have theirs."""
    both = CompositeSink([FileSink(out), FileSink(out, name="copy")])
    orders, returns = job(both), job(application="returns")
    for batch in range(2):
        orders.apply(batch)
        returns.apply(batch)
    assert visible(out) == sorted(ids_of(0, 1) * 3)
    assert aside(out) == []
    assert len(manifests(out)) == 6


# --- the folder -----------------------------------------------------------------------


@pytest.mark.parametrize(
    "url",
    [
        *("s3://bucket/out", "s3a://bucket/out", "gs://bucket/out", "hdfs:///out"),
        *("abfss://c@a.dfs.core.windows.net/out", "dbfs:/out", "file://host/out"),
    ],
)
def test_what_cannot_rename_is_refused(url):
    """Where the sink is made, in one line that says what to use instead."""
    with pytest.raises(ConfigurationError, match=r"rename.* file:///") as caught:
        FileSink(url)
    assert "\n" not in str(caught.value)


def test_a_path_and_its_url_are_one_folder(tmp_path, monkeypatch):
    """And it is absolute: an executor has another working directory."""
    monkeypatch.chdir(tmp_path)
    (path,) = {
        FileSink(folder).folder
        for folder in ("my out", f"file://{tmp_path}/my%20out", tmp_path / "my out/")
    }
    assert path == tmp_path / "my out"


def test_a_folder_that_is_not_shared_is_noticed_before_anything_is_written(
    tmp_path, out, job
):
    """The driver's folder has an id, and a task looks for it in its own."""
    sink = FileSink(out)
    sink.check_job("orders")
    on_executor = copy.deepcopy(sink)
    on_executor._folder.path = tmp_path / "another disk"
    with pytest.raises(
        ConfigurationError, match=r"orders\.0\.1.* share with the driver"
    ):
        job(on_executor).apply(0)
    assert not (tmp_path / "another disk").exists()


@pytest.mark.parametrize("when", ["before", "during"])
def test_a_folder_that_goes_away_at_a_commit_is_waited_for(
    tmp_path, out, job, monkeypatch, when
):
    """Files that cannot be seen are not lost: it goes on later, nothing quarantined."""
    gone, make = tmp_path / "gone", files.make_folders

    class Unmounted(FileSink):
        def commit_transaction(self, transaction_id: str, handles: Any) -> None:
            if when == "before" and not gone.exists():
                out.rename(gone)
            super().commit_transaction(transaction_id, handles)

    def unmount(root: Path, folders: Any) -> None:
        make(root, folders)
        out.rename(gone)

    orders, says = job(Unmounted(out)), TEXTS["not the folder"]
    with monkeypatch.context() as patch:
        if when == "during":
            patch.setattr(files, "make_folders", unmount)
        with pytest.raises(
            CommitPendingError, match=says if when == "before" else "mount"
        ):
            orders.apply(0)
    assert not out.exists()
    gone.rename(out)
    job().coordinator().recover()
    assert visible(out) == ids_of(0)


def test_a_start_without_the_mount_writes_nothing(tmp_path, job):
    """A mount point that is empty after a restart is not taken for a new folder."""
    out, nas = tmp_path / "mnt" / "out", tmp_path / "nas"

    def start(run: str) -> FileJob:
        sink = FileSink(out)
        sink.check_job("orders")
        return job(sink, run=run)

    start("first").apply(0)
    out.parent.rename(nas)
    with pytest.raises(ConfigurationError, match=TEXTS["mounted"]):
        start("second").apply(1)
    assert not list(out.rglob("*.parquet*"))
    out.parent.rename(tmp_path / "mount point")
    nas.rename(out.parent)
    start("third").apply(1)
    assert visible(out) == ids_of(0, 1)


def test_an_error_of_the_file_system_is_no_loss(out, job, monkeypatch):
    """A stale handle says nothing of whether a file is there."""

    def stale(path: Path) -> Any:
        raise OSError(errno.ESTALE, "Stale file handle", str(path))

    orders = job()
    with monkeypatch.context() as patch:
        patch.setattr(Path, "lstat", stale)
        with pytest.raises(CommitPendingError, match="Stale file handle"):
            orders.apply(0)
    orders.apply(0)
    assert visible(out) == ids_of(0)


def test_an_empty_batch_does_not_make_a_folder_where_none_is_mounted(tmp_path, out):
    """The driver knows which folder it was; without a driver, the first makes it."""
    sink = FileSink(out)
    sink.check_job("orders")
    out.rename(tmp_path / "gone")
    with pytest.raises(ParticipantUnavailableError, match=TEXTS["not the folder"]):
        sink.commit_transaction("orders.0.1", [])
    assert not out.exists()
    FileSink(out).commit_transaction("orders.0.1", [])
    assert list(manifests(out)) == ["files.orders/0.manifest"]


def test_a_folder_that_somebody_removes_while_it_is_empty_is_no_loss(out, monkeypatch):
    """The commit is repeated: what was prepared is there still."""
    sink = FileSink(out, partition_by="region")
    handle = prepared(sink)
    make = files.make_folders

    def removed(root: Path, folders: Any) -> None:
        make(root, folders)
        (out / "region=south").rmdir()

    monkeypatch.setattr(files, "make_folders", removed)
    with pytest.raises(FileNotFoundError):
        sink.commit_transaction("orders.0.1", [handle])
    monkeypatch.setattr(files, "make_folders", make)
    sink.commit_transaction("orders.0.1", [handle])
    assert visible(out) == [0, 1]


def test_a_folder_that_cannot_be_written_is_refused_at_the_start(tmp_path):
    """In one line."""
    (tmp_path / "file").touch()
    with pytest.raises(
        ConfigurationError, match=TEXTS["cannot write"].format(application="orders")
    ):
        FileSink(tmp_path / "file" / "out").check_job("orders")


@pytest.mark.parametrize(
    "path",
    [
        *("{folder}/{name}", "../{name}", "_x=1/{name}", "region=a/b=/../{name}"),
        *("sub/{name}", "region=no%72th/{name}", "region=/{name}", "{name}/{name}"),
        *("_tpc/files.orders/7.manifest", "_tpc/folder-id", "orders.0.1.0.0.parquet"),
        *("region=south/{other}", "region=north/{seventh}", "", None, 7),
    ],
)
def test_a_path_of_a_receipt_is_not_believed(tmp_path, path):
    """Whatever it names, nothing is moved, replaced, removed or written elsewhere."""

    def files() -> dict[Path, Any]:
        return {p: p.is_file() and p.read_bytes() for p in tmp_path.rglob("*")}

    sink = FileSink(tmp_path / "out", partition_by="region")
    seventh = prepared(sink, of=TransactionId("orders", 7, 1))
    sink.commit_transaction("orders.7.1", [seventh])
    handle, other = received(prepared(sink)), prepared(sink, branch="1.1")
    handles = {"name": handle, "other": other, "seventh": seventh}
    names = {key: Path(h.files[0]["path"]).name for key, h in handles.items()}
    given = path.format(**names, folder=tmp_path) if isinstance(path, str) else path
    handle.files[0]["path"], before = given, files()
    for end in sink.commit_transaction, sink.abort_transaction:
        with pytest.raises(ParticipantRefusedError, match=TEXTS["a receipt"]) as caught:
            end("orders.0.1", [other, handle])
        assert "\n" not in str(caught.value)
    for one in sink.commit, sink.abort:
        if path != "region=south/{other}":  # a file of a branch's own, it seems
            with pytest.raises(ParticipantRefusedError, match=TEXTS["a receipt"]):
                one(handle)
    assert files() == before


@pytest.mark.parametrize("when", ["before the vote", "before the commit"])
def test_a_folder_that_is_a_symbolic_link_is_refused(tmp_path, out, when):
    """Files do not leave the folder by it; with a folder in its place it goes on."""
    sink = FileSink(out, partition_by=["region", "id"])
    rows = ROWS.append_column("n", ROWS["id"])
    (tmp_path / "elsewhere").mkdir()
    handle = write(sink, rows)
    end = partial(sink.pre_commit, handle)
    if when == "before the commit":
        end()
        shutil.rmtree(out / "region=south")
        end = partial(sink.commit_transaction, "orders.0.1", [handle])
    (out / "region=south").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ParticipantRefusedError, match=TEXTS["a symbolic link"]):
        end()
    assert (list((tmp_path / "elsewhere").iterdir()), by_duckdb(out)) == ([], [])
    if when == "before the commit":
        (out / "region=south").unlink()
        sink.commit_transaction("orders.0.1", [handle])
        assert visible(out) == [0, 1]


# --- columns and values ---------------------------------------------------------------


def of(**row: Any) -> pa.RecordBatch:
    """A batch of one record."""
    return pa.RecordBatch.from_pylist([row])


DAY = pa.scalar(-800_000, pa.date32())
NANOS = pa.array([1], pa.timestamp("ns"))
BEFORE = pa.array([-62_135_596_800_000_001], pa.timestamp("us", "UTC"))
AGO = pa.RecordBatch.from_pydict({"t": BEFORE})
AGO_INSIDE = pa.RecordBatch.from_pydict(
    {"s": pa.StructArray.from_arrays([BEFORE], ["t"])}
)


@pytest.mark.parametrize(
    ("by", "rows", "says"),
    [
        (["regoin"], ROWS, "'regoin', which the rows do not have: id, region"),
        (["id", "region"], ROWS, "one at least must be left"),
        ("x", pa.RecordBatch.from_pydict({"x": [1.5], "y": [1]}), "of type double"),
        ("x", pa.RecordBatch.from_pydict({"x": MOMENTS, "y": [1]}), "take a date"),
        (None, pa.RecordBatch.from_arrays([ROWS[0]] * 2, ["a", "a"]), "two columns"),
        (None, pa.RecordBatch.from_arrays([ROWS[0]] * 2, ["a", "A"]), "'a' and 'A'"),
        (None, of(s={"a": 1, "A": 2}), "inside of column 's' are named 'a' and 'A'"),
        (None, of(s=[{"m": {"a": 1, "A": 2}}]), "'s' are named 'a' and 'A'"),
        (None, of(t=NANOS[0]), r"CAST\(t AS TIMESTAMP_NTZ\)"),
        (None, of(t=NANOS.cast(pa.timestamp("ns", "UTC"))[0]), r"t AS TIMESTAMP\)"),
        (None, of(**{"a t": {"x": NANOS[0]}}), r"to_json\(`a t`\) AS `a t`"),
    ],
)
def test_columns_that_do_not_fit_are_refused_before_anything_is_written(
    tmp_path, out, by, rows, says
):
    """One line that names the column."""
    sink = FileSink(out, partition_by=by)
    with pytest.raises(ConfigurationError, match=says) as caught:
        write(sink, rows)
    assert "\n" not in str(caught.value)
    assert list(tmp_path.rglob("*.tmp")) == []


def test_too_many_folders_of_one_task_are_refused(out, monkeypatch):
    """Each is an open file and a part of the memory."""
    monkeypatch.setattr(branch_files, "MAX_FILES", 2)
    sink = FileSink(out, partition_by="id")
    rows = pa.RecordBatch.from_pydict({"id": [1, 2, 3], "n": [1, 2, 3]})
    with pytest.raises(ConfigurationError, match=TEXTS["repartition"]):
        write(sink, rows)


def test_values_become_folders_as_spark_names_them(tmp_path, out):
    """What a reader by Hive's rules reads back is the value; empty is null."""
    columns: dict[str, Any] = {
        "text": ["a/b=c%", "", None, "Łódź {1}"],
        "whole": [1, -2, None, 4],
        "day": [date(2024, 1, 2)] * 4,
        "yes": [True, False, None, True],
        "sum": [Decimal("1.50")] * 4,
    }
    sink = FileSink(out, partition_by=list(columns))
    rows = pa.RecordBatch.from_pydict({**columns, "n": [0, 1, 2, 3]})
    sink.commit_transaction("orders.0.1", [prepared(sink, rows)])
    null, rest = "__HIVE_DEFAULT_PARTITION__", "day=2024-01-02"
    assert {str(p.parent.relative_to(out)) for p in tmp_path.rglob("*.parquet")} == {
        f"text=a%2Fb%3Dc%25/whole=1/{rest}/yes=true/sum=1.50",
        f"text={null}/whole=-2/{rest}/yes=false/sum=1.50",
        f"text={null}/whole={null}/{rest}/yes={null}/sum=1.50",
        f"text=Łódź %7B1}}/whole=4/{rest}/yes=true/sum=1.50",
    }


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("€" * 83, "'region' has a value of 249 bytes, '€€€.*longer than 255 bytes"),
        ("__HIVE_DEFAULT_PARTITION__", "'region' .*, which readers take for null"),
    ],
)
def test_a_value_that_no_folder_can_have_is_a_vote_to_abort(out, value, says):
    """Never found at the commit, nor by its readers."""
    sink = FileSink(out, partition_by="region")
    rows = pa.RecordBatch.from_pydict({"id": [1], "region": [value]})
    with pytest.raises(ConfigurationError, match=says):
        prepared(sink, rows)
    assert list(out.rglob("*.tmp")) == []


def test_json_says_what_json_has_no_form_for_as_text(out):
    """Times by ISO 8601, decimals without loss, bytes by base64; nulls are left out."""
    moment = datetime(2024, 1, 2, tzinfo=timezone.utc)
    row = {
        "n": 1,
        "none": None,
        "nan": float("nan"),
        "inf": [float("-inf"), 1.5],
        "at": moment,
        "sum": Decimal("1.50"),
        "raw": b"\0\1",
        "deep": {"day": date(2024, 1, 2), "text": "Łódź\n"},
        "days": [(date(2024, 1, 2), [1.5, float("inf"), None])],
    }
    days = pa.field("days", pa.map_(pa.date32(), pa.list_(pa.float64())))
    plain = pa.RecordBatch.from_pylist([{**row, "days": None}]).schema
    schema = plain.set(plain.get_field_index("days"), days)
    rows = pa.RecordBatch.from_pylist([row, {**row, "n": 2, "days": []}], schema)
    sink = FileSink(out, "json")
    handle = prepared(sink, rows)
    sink.commit_transaction("orders.0.1", [handle])
    (file,) = out.glob("*.json")
    first, second = [json.loads(line) for line in file.read_text().splitlines()]
    assert first == {
        "n": 1,
        "nan": "NaN",
        "inf": ["-Infinity", 1.5],
        "at": "2024-01-02T00:00:00+00:00",
        "sum": "1.50",
        "raw": "AAE=",
        "deep": {"day": "2024-01-02", "text": "Łódź\n"},
        "days": {"2024-01-02": [1.5, "Infinity", None]},
    }
    assert (second["n"], second["days"]) == (2, {})


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ({"id": [[1]], "n": [1]}, "'id' is list.*: write to_json"),
        ({"id": [1, None]}, "readers skip"),
    ],
)
def test_csv_refuses_what_readers_would_not_get_back(tmp_path, out, rows, says):
    """Lists and the like; a line of nothing."""
    sink = FileSink(out, "csv")
    with pytest.raises(ConfigurationError, match=says):
        prepared(sink, pa.RecordBatch.from_pydict(rows))
    assert list(tmp_path.rglob("*.tmp")) == []


@pytest.mark.parametrize(
    ("kind", "by", "rows", "says"),
    [
        ("json", None, AGO, r"'t' has a date or time .* write CAST\(t AS STRING\)"),
        ("json", None, AGO_INSIDE, r"'s' has a date or time .* to_json\(s\) AS s"),
        ("parquet", "d", of(d=DAY, n=1), r"'d' has a date .* CAST\(d AS STRING\)"),
    ],
    ids=["plain", "inside", "folder"],
)
def test_a_day_that_no_text_has_is_a_vote_to_abort(tmp_path, out, kind, by, rows, says):
    """The first hour of year 1 is, in zones east of Greenwich, in no year of UTC's."""
    sink = FileSink(out, kind, by)
    with pytest.raises(ConfigurationError, match=says):
        prepared(sink, rows)
    assert list(tmp_path.rglob("*.tmp")) == []


def struct(**values: Any) -> Any:
    return pa.array([values] * 2)


@pytest.mark.parametrize(
    ("kind", "first", "then", "says"),
    [
        ("parquet", [1, 2], ["a", "b"], "'x' is string here, and int64 in the files"),
        (
            "parquet",
            struct(y=1),
            struct(y="a", z=1),
            r"'x.y' is string .*: \.withColumn\(\"x\", col\(\"x\"\)\.withField\(\"y\", "
            r"col\(\"x.y\"\)\.cast\(\"BIGINT\"\)\)\);",
        ),
        ("parquet", struct(y=1), [1, 2], "'x' is int64 here, and struct in the files;"),
        ("parquet", [[1], []], [["a"], []], "'x' is list<item: string>"),
        ("parquet", pa.nulls(2), struct(y=1), None),
        ("parquet", struct(y=1), struct(z="a", y=1), None),
        (
            "csv",
            None,
            [1, 2],
            "columns id, region, x here, and id, region in the files;",
        ),
        ("json", [1, 2], ["a", "b"], None),
        ("json", struct(y=1), [1, 2], None),
    ],
)
def test_a_folder_stays_one_that_readers_can_put_together(
    out, job, kind, first, then, says
):
    """A batch that they could not read with those before votes abort, at each try;
    others are in."""

    def rows(batch: int, values: Any) -> list[pa.RecordBatch]:
        given = rows_of(batch)[0]
        return [given if values is None else given.append_column("x", pa.array(values))]

    orders = job(FileSink(out, kind))
    orders.apply(0, rows(0, first))
    refused = pytest.raises(ConfigurationError, match=f"{EACH_TIME}: .*{says}")
    with refused if says else nullcontext():
        orders.apply(1, rows(1, then))
    assert orders.apply(2, rows(2, first))
    read = by_duckdb(out, kind)
    assert read == [0, 1, *([] if says else [4, 5]), 8, 9]
    if kind == "parquet":
        assert by_pandas(out) == read


V = {"text": pa.array(["a", "b"]), "whole": pa.array([1, 2])}


def with_v(kind: str, column: str = "v") -> pa.RecordBatch:
    """Return the rows with one more column, of one of two types."""
    return ROWS.append_column(column, V[kind])


@pytest.mark.parametrize("at_once", [False, True])
def test_two_jobs_that_begin_at_one_moment_leave_a_folder_that_can_be_read(
    out, monkeypatch, at_once
):
    """Of two that name a type each, one at most votes commit, and its type stays:
    no commit that is decided is refused for it."""
    sinks = {name: FileSink(out, name=name) for name in V}
    handles = {name: write(sink, with_v(name)) for name, sink in sinks.items()}
    votes, said = dict[str, bool](), list[str]()
    both, rename = threading.Barrier(2), Path.rename

    def vote(name: str) -> None:
        try:
            sinks[name].pre_commit(handles[name])
        except ConfigurationError as error:
            said.append(str(error))
            sinks[name].abort(handles[name])
        else:
            votes[name] = True

    def renamed(path: Path, target: Path) -> Path:
        moved = rename(path, target)
        if at_once:
            both.wait()
        return moved

    with monkeypatch.context() as patch:
        patch.setattr(Path, "rename", renamed)
        threads = [threading.Thread(target=vote, args=[name]) for name in V]
        for thread in threads:
            thread.start()
            if not at_once:
                thread.join()
        for thread in threads:
            thread.join()
    assert len(votes) <= 1 if at_once else [*votes] == ["text"]
    assert all(
        re.search(r" in the files of (text|whole)\.orders\.0\.1", s) for s in said
    )
    for name, sink in sinks.items():
        sink.commit_transaction(str(T), [handles[name]] if name in votes else [])
    second = TransactionId("again", 0, 1)
    for name in votes or ["text"]:
        prepared(FileSink(out), with_v(name), of=second)
        rows = with_v("text" if name == "whole" else "whole")
        with pytest.raises(ConfigurationError, match=TEXTS["another layout"]):
            prepared(FileSink(out, name="other"), rows, of=second)
    assert visible(out) == [0, 1][: 2 * len(votes)]


def test_what_is_over_reserves_no_column(out):
    """Neither an attempt that was aborted, however late its task, nor a twin of what is
    committed; what is neither committed nor aborted does."""
    sink, other = FileSink(out), FileSink(out, name="other")
    prepared(sink, with_v("text"))
    second = TransactionId("orders", 0, 2)
    handle = prepared(sink, with_v("whole"), of=second)
    with pytest.raises(ConfigurationError, match=TEXTS["another layout"]):
        prepared(other, with_v("text"))
    sink.abort_transaction(str(T), [])
    sink.commit_transaction(str(second), [handle])
    for file in out.glob("_tpc/*.columns/*"):
        file.unlink()
    late = out / f".tpc/files.{T}.0.9.{'0' * 12}.columns.parquet.{'0' * 32}.tmp"
    late.write_text('{"partition_by": [], "columns": {"v": "string"}}')
    prepared(other, with_v("whole"))
    sink.abort_transaction(str(second), [handle])
    assert aside(out) == ["other.orders.0.1"]


def test_two_commits_at_once_both_note_their_columns(out, monkeypatch):
    """No column of committed files is forgotten, wherever one overtakes the other."""
    sinks = {name: FileSink(out, name=name) for name in ("a", "b")}
    handles = {n: prepared(sink, with_v("text", n)) for n, sink in sinks.items()}
    rename = Path.rename

    def overtaken(path: Path, target: Path) -> Path:
        if ".columns" in str(target):
            monkeypatch.setattr(Path, "rename", rename)
            sinks["b"].commit_transaction(str(T), [handles["b"]])
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", overtaken)
    sinks["a"].commit_transaction(str(T), [handles["a"]])
    for name in handles:
        with pytest.raises(ConfigurationError, match=TEXTS["another layout"]):
            prepared(FileSink(out, name="c"), with_v("whole", name))


@pytest.mark.parametrize("kind", FORMATS)
def test_a_name_is_written_in_one_way(out, job, kind):
    """To Spark both are one column; to others they are two."""
    orders = job(FileSink(out, kind))
    orders.apply(0)
    with pytest.raises(ConfigurationError, match=r"'REGION' is 'region' in the files"):
        orders.apply(1, [rows_of(1)[0].rename_columns(["id", "REGION"])])
    assert by_duckdb(out, kind) == ids_of(0)


def test_a_folder_is_partitioned_in_one_way(out, job):
    """Readers by folder refuse another; so do jobs of other names."""
    job(FileSink(out, partition_by="region")).apply(0)
    other = job(FileSink(out), application="other")
    with pytest.raises(ConfigurationError, match=TEXTS["partitioned otherwise"]):
        other.apply(0)
    assert visible(out) == ids_of(0)


def test_a_column_of_no_type_needs_another_beside_it(out):
    """Nothing would be left; nor has a list of it a form that stays readable."""
    void = pa.nulls(1)
    for rows in ({"x": void}, {"id": [1], "x": pa.array([[None]])}):
        with pytest.raises(ConfigurationError, match=TEXTS["a void column"]):
            write(FileSink(out), pa.RecordBatch.from_pydict(rows))


@pytest.mark.parametrize(
    ("about", "says"),
    [({"format": "orc"}, "one of parquet, json, csv"), ({"name": "a b"}, "'a b'")],
)
def test_what_is_wrong_is_said_where_the_sink_is_made(about, says):
    """In one line."""
    with pytest.raises(ConfigurationError, match=says):
        FileSink("out", **about)
    with pytest.raises(ConfigurationError, match=TEXTS["needs a folder"]):
        FileSink("")
