"""`format("two_phase_commit")`: streams and whole DataFrames, by a data source."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark import cloudpickle
from pyspark.errors import PySparkException
from support import folder_sink
from support.folder_sink import Folder, in_files
from support.spark import numbers_of, started, write_numbers
from support.stream_world import HAS_ARROW_WRITERS, World, below_a_root, failing_query
from support.waiting import ANSWERED, until

from tracing_2pc import DeltaSink, ParticipantSink, Settings
from tracing_2pc.core.states import TransactionState
from tracing_2pc.testing import Fault, FaultProxy

if not HAS_ARROW_WRITERS:
    pytest.skip("it needs PySpark 4.1", allow_module_level=True)
from tracing_2pc.spark import TwoPhaseCommitDataSource

pytestmark = pytest.mark.spark


@pytest.fixture(autouse=True)
def _registered(spark) -> Iterator[None]:
    """Workers cannot import a test: what it gives them is pickled by value."""
    ours = sys.modules[__name__], folder_sink
    for module in ours:
        cloudpickle.register_pickle_by_value(module)
    spark.dataSource.register(TwoPhaseCommitDataSource)
    yield
    for module in ours:
        cloudpickle.unregister_pickle_by_value(module)


def options(world: World, **more: str) -> dict[str, str]:
    """Return what a user gives to `.options(...)`."""
    return {
        "application": "test",
        "log": world.log_url,
        "participants": f"a={world.a},b={world.b}",
        "token": "",
        "request_timeout": f"{ANSWERED}s",
        "backoff_base": "200ms",
        "backoff_cap": "500ms",
    } | more


def written(
    world: World, writer: Any, name: str = "two_phase_commit", **more: str
) -> Any:
    """Return a writer of a stream or DataFrame that writes by the data source."""
    return writer.format(name).options(**options(world, **more))


def start(world: World, source: Any = None, **more: str) -> Any:
    source = world.source() if source is None else source
    return started(written(world, source.writeStream, **more), world.folder / "ck")


def save(world: World, numbers: Any, **more: str) -> None:
    written(world, numbers.write, **more).mode("append").save()


def run(world: World, source: Any = None, **more: str) -> None:
    start(world, source, **more).awaitTermination()


@pytest.mark.smoke
def test_each_batch_of_a_stream_lands_in_both(world):
    """The simplest promise: three batches, two services, each row once in each."""
    write_numbers(world.folder, range(3))
    run(world, world.source().repartition(2))
    assert world.held() == (numbers_of(3), numbers_of(3))
    states = [world.state(f"test.{batch}.1") for batch in range(3)]
    assert states == [TransactionState.COMMITTED] * 3
    with world.log() as log:
        assert log.unfinished() == []


def test_the_column_of_links_is_read_and_not_written(world):
    write_numbers(world.folder, range(1))
    headers = "map('traceparent', 'none of W3C') AS headers"
    run(world, world.source().selectExpr("value", headers), links="headers")
    assert world.held() == (numbers_of(1), numbers_of(1))


def test_a_batch_that_spark_repeats_is_not_written_again(world):
    """As after a crash just before Spark's own commit."""
    write_numbers(world.folder, range(2))
    run(world)
    world.forget_sparks_commit_of(1)
    write_numbers(world.folder, range(2, 3))
    run(world)
    assert world.held() == (numbers_of(3), numbers_of(3))
    assert world.state("test.1.2") is None


def test_a_batch_without_rows_commits_as_well(world):
    """Every partition votes read_only."""
    write_numbers(world.folder, range(2))
    run(world, world.source().where("value < 10").repartition(4))
    assert world.held() == (numbers_of(1), numbers_of(1))
    assert world.state("test.1.1") is TransactionState.COMMITTED


def test_a_task_that_fails_aborts_what_the_others_prepared(world):
    """At once, everywhere; the next start writes the batch anew."""
    write_numbers(world.folder, range(2))
    flag, go_on = world.folder / "mended", world.folder / "go-on"
    broken = failing_until(flag, go_on)
    numbers = world.source().repartition(2).mapInArrow(broken, "value long")
    query = start(world, numbers)
    until(lambda: has_ended_tasks(world.spark, query.runId))
    go_on.touch()
    with failing_query("not mended"):
        query.awaitTermination()
    assert world.state("test.0.1") is TransactionState.ABORTED
    assert world.held() == (Counter(), Counter())
    flag.touch()
    run(world, numbers)
    assert world.held() == (numbers_of(2), numbers_of(2))
    assert world.state("test.0.2") is TransactionState.COMMITTED


def failing_until(flag: Path, go_on: Path | None = None) -> Any:
    """Return a function for `mapInArrow`: one partition fails, when it may go on."""

    def mapped(batches: Iterator[Any]) -> Iterator[Any]:
        from pyspark import TaskContext

        task: Any = TaskContext.get()
        if task.partitionId() == 1 and not flag.exists():
            if go_on is not None:
                until(go_on.exists)
            raise ValueError("not mended")
        yield from batches

    return mapped


def has_ended_tasks(spark: Any, run: str) -> bool:
    """Whether a task has written its partition, so that Spark has its message."""
    tracker = spark.sparkContext.statusTracker()
    jobs = filter(None, map(tracker.getJobInfo, tracker.getJobIdsForGroup(run)))
    stages = [tracker.getStageInfo(stage) for job in jobs for stage in job.stageIds]
    return any(s and s.numTasks == 2 and s.numCompletedTasks for s in stages)


def test_a_decided_batch_outlives_the_abort_that_spark_asks_for(world):
    """`commit` raises, so Spark calls `abort`: the log is asked, and says commit."""
    write_numbers(world.folder, range(2))
    with FaultProxy(world.b) as proxy:
        proxy.plan("commit", Fault.UNAVAILABLE, times=2)
        more = {"participants": f"a={world.a},b={proxy.url}", "inline_tries": "2"}
        with failing_query("is decided commit"):
            run(world, on_pending="fail", **more)
        assert world.state("test.0.1") is TransactionState.COMMITTING
        assert world.held() == (numbers_of(1), Counter())
        assert "abort" not in {request.verb for request in proxy.seen}
        run(world, on_pending="fail", **more)
    assert world.held() == (numbers_of(2), numbers_of(2))
    assert world.state("test.0.2") is None


def test_stop_returns_while_a_participant_is_waited_for(world):
    """The tasks of the next batch wait, and are ended; the next start goes on."""
    write_numbers(world.folder, range(2))
    with FaultProxy(world.b) as proxy:
        proxy.plan("commit", Fault.UNAVAILABLE, times=1000)
        participants = f"a={world.a},b={proxy.url}"
        query = start(world, participants=participants, inline_tries="2")
        until((world.folder / "ck" / "commits" / "0").exists)
        tries = len(proxy.seen)
        until(lambda: len(proxy.seen) > tries + 5)
        query.stop()
        assert world.held() == (numbers_of(1), Counter())
        assert world.state("test.0.1") is TransactionState.COMMITTING
        assert world.state("test.1.1") is None
    run(world)
    assert world.held() == (numbers_of(2), numbers_of(2))
    assert world.state("test.0.2") is None


def test_what_a_stopped_query_still_writes_is_never_seen(world):
    """Spark may start a task after it has called `abort`, or never call it."""
    write_numbers(world.folder, range(2))
    stopped = world.folder / "stopped"
    late = world.source().repartition(2).mapInArrow(after(stopped), "value long")
    query = start(world, late)
    until(lambda: (world.folder / "ck" / "offsets" / "0").exists())
    query.stop()
    stopped.touch()
    run(world)
    assert world.held() == (numbers_of(2), numbers_of(2))
    with world.log() as log:
        assert log.unfinished() == []


def after(flag: Path) -> Any:
    """Return a function for `mapInArrow` that holds its rows back until then."""

    def mapped(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            until(flag.exists)
            yield batch

    return mapped


def test_a_stateful_query_runs_its_plan_in_a_replay(world):
    """Else its state store fails."""
    write_numbers(world.folder, range(2))
    distinct = world.source().dropDuplicates(["value"])
    run(world, distinct)
    world.forget_sparks_commit_of(1)
    write_numbers(world.folder, range(1, 3))  # the last one is new
    run(world, distinct)
    assert world.held() == (numbers_of(3), numbers_of(3))


class Files(TwoPhaseCommitDataSource):
    """Writes to a folder, beside the participants."""

    own_options = ("folder",)

    @classmethod
    def name(cls) -> str:
        return "with_files"

    def sink(self, settings: Settings) -> Any:
        return [super().sink(settings), Folder(Path(self.options["folder"]), "files")]


def test_sinks_of_your_own_take_part(world, spark):
    """`sink` of a subclass says what is written to."""
    spark.dataSource.register(Files)
    write_numbers(world.folder, range(2))
    folder = world.folder / "files"
    folder.mkdir()
    run(world, name="with_files", folder=str(folder))
    assert world.held() == (numbers_of(2), numbers_of(2))
    assert in_files(folder) == numbers_of(2)


class Lake(TwoPhaseCommitDataSource):
    """Writes to a Delta table, and to nothing else."""

    own_options = ("table",)

    @classmethod
    def name(cls) -> str:
        return "lake"

    def sink(self, settings: Settings) -> Any:
        return DeltaSink(self.options["table"], evolve="add")


def test_a_column_comes_to_a_delta_table(world, spark):
    """It is added where the write is planned, before its tasks."""
    deltalake = pytest.importorskip("deltalake")
    table = world.folder / "lake"
    deltalake.DeltaTable.create(table, pa.schema([("value", pa.int64())]))
    spark.dataSource.register(Lake)
    numbers = spark.range(4).withColumnRenamed("id", "value")
    save(world, numbers, name="lake", table=str(table))
    noted = numbers.selectExpr("value", "CAST(value AS string) AS note")
    save(world, noted.repartition(2), name="lake", table=str(table))
    rows = deltalake.DeltaTable(table).to_pyarrow_table().to_pylist()
    notes = Counter((row["value"], row["note"]) for row in rows)
    assert notes == Counter((n, note) for n in range(4) for note in (None, str(n)))


def test_a_dataframe_is_one_batch(world, spark):
    """Appended twice it is there twice: nobody said that it is the same."""
    numbers = spark.range(10).withColumnRenamed("id", "value").repartition(3)
    for _ in range(2):
        save(world, numbers)
    assert world.held() == (numbers_of(1) + numbers_of(1),) * 2
    assert world.state("test.1.1") is TransactionState.COMMITTED


def test_a_write_with_the_same_number_is_a_replay(world, spark):
    """So a job that failed after its write can be run again."""
    numbers = spark.range(10).withColumnRenamed("id", "value")
    flag = world.folder / "mended"
    numbers = numbers.repartition(2).mapInArrow(failing_until(flag), "value long")
    with pytest.raises(PySparkException, match="not mended"):
        save(world, numbers, batch="0")
    flag.touch()
    assert world.state("test.0.1") is TransactionState.ABORTED
    for number in "001":
        save(world, numbers, batch=number)
    assert world.held() == (numbers_of(1) + numbers_of(1),) * 2
    with pytest.raises(PySparkException, match="option batch: 0 of test is refused"):
        save(world, numbers, batch="0")


class Stumbling(TwoPhaseCommitDataSource):
    """It fails when it has begun, and before it has prepared anything."""

    @classmethod
    def name(cls) -> str:
        return "stumbling"

    def sink(self, settings: Settings) -> Any:
        class Sink(ParticipantSink):
            def pre_commit(self, handle: Any) -> Any:
                raise RuntimeError("stumbled")

        return Sink(settings.participants, token=None)


def test_a_write_that_failed_does_not_stop_the_next(world, spark):
    """Its numbers are the program's: an abandoned one stays aborted on record."""
    numbers = spark.range(10).withColumnRenamed("id", "value").coalesce(1)
    spark.dataSource.register(Stumbling)
    with pytest.raises(PySparkException, match="stumbled"):
        save(world, numbers, name="stumbling", batch="0")
    save(world, numbers, batch="1")
    assert world.held() == (numbers_of(1), numbers_of(1))
    assert world.state("test.0.1") is TransactionState.ABORTED


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"application": ""}, "option application: name the query"),
        ({"pace": "fast"}, "no setting 'pace'"),
        ({"participants": ""}, "give at least one participant"),
        ({"participants": "a=http://u:p@h/"}, "a URL must not hold a password"),
        ({"token": "secret"}, "give a reference, env:NAME or file:PATH"),
        ({"batch": "7"}, "a stream counts its own batches"),
    ],
)
def test_a_wrong_option_is_refused_by_name(world, wrong, said):
    """Before anything is on record."""
    write_numbers(world.folder, range(1))
    with failing_query(re.escape(said)):
        run(world, **wrong)
    with world.log() as log:
        assert log.applications() == []


def test_a_query_without_a_checkpoint_of_its_own_is_refused(world):
    """Spark would draw a folder below the one of the setting, at each start another."""
    write_numbers(world.folder, range(1))
    writer = written(world, world.source().writeStream).trigger(availableNow=True)
    with (
        below_a_root(world),
        failing_query("has no checkpoint that a next start would find"),
    ):
        writer.start().awaitTermination()
    with world.log() as log:
        assert log.applications() == []


def test_a_dataframe_waits_for_all(world, spark):
    """`save()` returns when the last one has acknowledged, whenever that is."""
    numbers = spark.range(10).withColumnRenamed("id", "value")
    with FaultProxy(world.b) as proxy:
        proxy.plan("commit", Fault.UNAVAILABLE, times=6)
        participants = f"a={world.a},b={proxy.url}"
        save(world, numbers, participants=participants, inline_tries="2")
    assert world.held() == (numbers_of(1), numbers_of(1))
    assert world.state("test.0.1") is TransactionState.COMMITTED


def test_overwriting_is_refused(world, spark):
    """There is nothing that could be replaced in one step."""
    rows = written(world, spark.range(1).write)
    with pytest.raises(PySparkException, match='only mode\\("append"\\)'):
        rows.mode("overwrite").save()
