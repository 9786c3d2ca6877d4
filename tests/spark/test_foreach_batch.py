"""`two_phase_commit(...)` in real micro-batches: what lands, and what is refused."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shutil
import socket
import sqlite3
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.service import create_app
from support.spark import ROWS, held, numbers_of, serving, write_numbers
from support.stream_world import (
    BOTH_PATHS,
    OUT_OF_TIME,
    QUICK,
    b_hangs_up,
    below_a_root,
    failing_query,
)
from support.texts import texts
from support.transports import OTHERS, TRANSPORTS
from support.waiting import ANSWERED, AT_LAST, PATIENT, UNDELAYED, until

from tracing_2pc import ParticipantSink, TableSink
from tracing_2pc.core import names
from tracing_2pc.core.errors import (
    AbortedError,
    ConfigurationError,
    DecisionLogError,
)
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.store import open_log

pytestmark = pytest.mark.spark
TEXTS = texts("spark")
POISON = "IF(value % 10 = 7, raise_error('poison'), value) AS value"
SMOKE_BY_EXECUTORS, SMOKE_BY_DRIVER = (
    pytest.mark.parametrize("world", paths, indirect=True)
    for paths in (
        [pytest.param("executors", marks=pytest.mark.smoke), "driver"],
        ["executors", pytest.param("driver", marks=pytest.mark.smoke)],
    )
)
"""Both paths; one of them in `make test`, too."""

UNROUTED = r"missing \['b'\], unknown \['c'\]"


@SMOKE_BY_EXECUTORS
def test_each_batch_lands_in_both(world):
    """The simplest promise: three batches, two services, each row once in each."""
    write_numbers(world.folder, range(3))
    world.run(world.callback(), world.source().repartition(2))
    assert world.held() == (numbers_of(3), numbers_of(3))
    assert world.state("test.2.1") is TransactionState.COMMITTED


@pytest.mark.parametrize("transport", OTHERS)
@BOTH_PATHS
def test_each_batch_lands_over_another_transport(world, transport):
    """From workers that Spark has forked, and from the driver, beside one by HTTP."""
    app = create_app(f"sqlite:///{world.folder / 'b.db'}")
    world.apps.callback(app.extensions["resource"].close)
    b = world.apps.enter_context(TRANSPORTS[transport].serve(app))
    (world.folder / "token").write_text("anything")
    token = f"file:{world.folder / 'token'}"  # NATS needs one
    sink = ParticipantSink({"a": world.a, "b": b}, token=token, timeout=ANSWERED)
    write_numbers(world.folder, range(3))
    callback = world.callback(sink=sink)
    world.run(callback, world.source().repartition(4))
    assert world.held() == (numbers_of(3), numbers_of(3))
    assert world.state("test.2.1") is TransactionState.COMMITTED


@BOTH_PATHS
def test_what_rows_came_with_is_linked_to_and_not_written(world, exported):
    """By the routes that keep the column; a batch without it ends the query."""
    write_numbers(world.folder, range(1))
    parent = "format_string('00-%032x-0000000000000001-01', value + 1)"
    headers = f"map('traceparent', {parent}) AS headers"
    routes = {"a": lambda batch: batch.drop("headers"), "b": lambda batch: batch}
    source = world.source().selectExpr("value", headers)
    world.run(world.callback(links="headers", routes=routes), source)
    assert world.held() == (numbers_of(1), numbers_of(1))
    (root,) = (span for span in exported() if span.name == names.TRANSACTION)
    assert {link.context.trace_id for link in root.links} == set(range(1, ROWS + 1))
    other = world.callback(links="headers", application="other")
    with failing_query("no such column"):
        world.run(other, checkpoint="other")


@BOTH_PATHS
def test_one_spark_job_per_batch_that_names_its_transaction(world):
    """Tag and description lead from the Spark UI to the transaction, and don't leak."""
    seen: list[tuple[str, int]] = []
    write_numbers(world.folder, range(2))
    real = world.callback()

    def callback(df: Any, batch: int) -> None:
        real(df, batch)
        context = df.sparkSession.sparkContext
        group = context.getLocalProperty("spark.jobGroup.id")
        jobs = context.statusTracker().getJobIdsForGroup(group)
        transaction = f"test.{batch}.1"
        tagged = [job for job in jobs if f"tpc-{transaction}" in _tags(context, job)]
        seen.append((transaction, len(tagged)))
        assert not [t for t in context.getJobTags() if str(t).startswith("tpc-")]

    world.run(callback)
    assert seen == [("test.0.1", 1), ("test.1.1", 1)]


def _tags(context: Any, job: int) -> str:
    store = context._jsc.sc().statusStore()
    return str(store.job(job).jobTags())


def test_what_a_worker_has_loaded_is_not_searched_after_each_task(world):
    """PySpark collects garbage there: of a small partition that is most of its time."""
    seen: list[Any] = []
    real = world.callback()

    def count(batches: Iterator[Any]) -> Iterator[Any]:
        import gc

        import pyarrow as pa

        for _ in batches:
            searched, left_out = len(gc.get_objects()), gc.get_freeze_count()
            yield pa.RecordBatch.from_pydict({"s": [searched], "l": [left_out]})

    def callback(df: Any, batch: int) -> None:
        real(df, batch)
        seen.extend(df.mapInArrow(count, "s long, l long").collect())

    write_numbers(world.folder, range(1))
    world.run(callback, world.source().repartition(2))
    assert seen
    assert not [tuple(row) for row in seen if row.l < 10 * row.s]


@BOTH_PATHS
def test_empty_batches_and_partitions(world):
    """A partition without rows sends nothing; a batch without rows commits as well."""
    write_numbers(world.folder, range(2))
    source = world.source().where(f"value < {ROWS}").repartition(8)
    world.run(world.callback(), source)
    assert world.held() == (numbers_of(1), numbers_of(1))
    assert world.state("test.1.1") is TransactionState.COMMITTED
    with world.log() as log:
        record = log.read(TransactionId.parse("test.1.1"))
    assert record is not None
    assert record.chosen("a") == ()


@BOTH_PATHS
def test_routes_give_each_participant_its_own_rows(world):
    """Two DataFrames of one batch, in one transaction."""
    write_numbers(world.folder, range(2))
    routes = {
        "a": lambda df: df.where("value % 2 = 0"),
        "b": lambda df: df.selectExpr("value + 100 AS value"),
    }
    world.run(world.callback(routes=routes))
    a, b = world.held()
    assert sorted(a) == list(range(0, 2 * ROWS, 2))
    assert sorted(b) == list(range(100, 100 + 2 * ROWS))
    assert world.spark.sparkContext._jsc.getPersistentRDDs().size() == 0


@pytest.mark.smoke
def test_a_task_that_fails_after_prepare_leaves_no_twin(world):
    """Spark retries the task: only the attempt that reported is committed."""
    write_numbers(world.folder, range(1))
    flag = str(world.folder / "failed-once")

    class Stumbling(ParticipantSink):
        def pre_commit(self, handle: Any) -> Any:
            import os

            receipt = super().pre_commit(handle)
            with contextlib.suppress(FileExistsError):
                os.close(os.open(flag, os.O_CREAT | os.O_EXCL))
                raise RuntimeError("after prepare")
            return receipt

    sink = Stumbling({"a": world.a, "b": world.b}, token=None)
    world.run(world.callback(sink=sink), world.source().repartition(2))
    assert Path(flag).exists()
    assert world.held() == (numbers_of(1), numbers_of(1))
    assert world.state("test.0.1") is TransactionState.COMMITTED


@BOTH_PATHS
def test_a_batch_that_fails_is_aborted_and_written_anew(world):
    """The query ends with the job's own error; the next start writes it, once."""
    write_numbers(world.folder, range(1))
    broken = world.source().selectExpr(
        "IF(value = 7, raise_error('poison'), value) AS value"
    )
    with failing_query("poison"):
        world.run(world.callback(), broken)
    assert world.state("test.0.1") is TransactionState.ABORTED
    assert world.held()[0].total() == 0
    world.run(world.callback())
    assert world.held() == (numbers_of(1), numbers_of(1))
    assert world.state("test.0.2") is TransactionState.COMMITTED


@SMOKE_BY_DRIVER
def test_a_replayed_batch_is_recognised(world):
    """The last entry of Spark's commit log is lost: delivered again, not written."""
    write_numbers(world.folder, range(2))
    world.run(world.callback())
    world.forget_sparks_commit_of(1)
    write_numbers(world.folder, range(2, 3))
    world.run(world.callback())
    assert world.held() == (numbers_of(3), numbers_of(3))
    assert world.state("test.1.2") is None


@BOTH_PATHS
def test_a_stateful_query_survives_a_skipped_replay(world):
    """The plan runs, so that the state store commits; the participants see nothing."""
    write_numbers(world.folder, range(2))

    def source() -> Any:
        return world.source().dropDuplicates(["value"])

    world.run(world.callback(), source())
    world.forget_sparks_commit_of(1)
    write_numbers(world.folder, range(2, 3))
    world.run(world.callback(), source())
    assert world.held() == (numbers_of(3), numbers_of(3))
    assert world.state("test.1.2") is None


@SMOKE_BY_EXECUTORS
def test_a_second_dataframe_of_a_batch_is_refused(world):
    """It would be taken for a replay: at the first batch, and after each start.

    Whichever callback it is given to, for it is the application's batch.
    """
    write_numbers(world.folder, range(2))
    first, second = world.callback(), world.callback()

    def each(df: Any, batch: int) -> None:
        first(df.where("value % 2 = 0"), batch)
        second(df.where("value % 2 = 1"), batch)

    for _ in range(2):
        with failing_query(TEXTS["called twice"].format(batch=0)):
            world.run(each)
    even = Counter(range(0, ROWS, 2))
    assert world.held() == (even, even)
    assert world.state("test.0.2") is None


@BOTH_PATHS
def test_a_call_that_raised_may_be_repeated(world):
    """It is no second one: what it has to write is what the first one had."""
    write_numbers(world.folder, range(2))
    callback = world.callback()

    def each(df: Any, batch: int) -> None:
        with pytest.raises(AbortedError):
            callback(df.selectExpr(POISON), batch)
        callback(df, batch)

    world.run(each)
    assert world.held() == (numbers_of(2), numbers_of(2))
    assert world.state("test.1.2") is TransactionState.COMMITTED


@SMOKE_BY_EXECUTORS
def test_a_caught_error_loses_no_batch(world):
    """Spark counts the batch as done: the next one is refused until Spark goes back."""
    write_numbers(world.folder, range(4))
    callback = world.callback()

    def each(df: Any, batch: int) -> None:
        with contextlib.suppress(AbortedError):
            callback(df.selectExpr(POISON) if batch == 1 else df, batch)

    refused = TEXTS["not committed before"].format(before="test.1.1", batch=2)
    for started in (each, callback):
        with failing_query(refused):
            world.run(started)
    assert world.held() == (numbers_of(1), numbers_of(1))
    world.go_back_to(1)
    world.run(callback)
    world.assert_exactly_once(4)
    assert world.state("test.1.2") is TransactionState.COMMITTED


@pytest.mark.parametrize("world", ["driver"], indirect=True)
def test_a_query_that_keeps_state_goes_back(world):
    """Its state has the batch already: that is computed anew, with the same rows."""
    write_numbers(world.folder, range(4))
    flag = world.folder / "fails"

    class Stumbling(ParticipantSink):
        def pre_commit(self, handle: Any) -> Any:
            if flag.exists():
                raise RuntimeError("before prepare")
            return super().pre_commit(handle)

    callback = world.callback(sink=Stumbling({"a": world.a, "b": world.b}, token=None))

    def each(df: Any, batch: int) -> None:
        if batch == 1:
            flag.touch()
        with contextlib.suppress(AbortedError):
            callback(df, batch)
        flag.unlink(missing_ok=True)

    def source() -> Any:
        return world.source().dropDuplicates(["value"])

    refused = TEXTS["not committed before"].format(before="test.1.1", batch=2)
    with failing_query(refused):
        world.run(each, source())
    world.go_back_to(1)
    world.run(callback, source())
    world.assert_exactly_once(4)


@BOTH_PATHS
def test_a_batch_is_given_up_by_one_without_rows(world):
    """Its rows were put somewhere else: that is on record, and the query goes on."""
    write_numbers(world.folder, range(3))
    callback = world.callback()

    def each(df: Any, batch: int) -> None:
        try:
            callback(df.selectExpr(POISON) if batch == 1 else df, batch)
        except AbortedError:
            callback(df.limit(0), batch)

    world.run(each)
    rest = numbers_of(3) - Counter(range(ROWS, 2 * ROWS))
    assert world.held() == (rest, rest)
    assert world.state("test.1.2") is TransactionState.COMMITTED


def test_a_batch_that_is_not_called_is_passed(world):
    """A callback that finds nothing to write may return."""
    write_numbers(world.folder, range(3))
    callback = world.callback()

    def each(df: Any, batch: int) -> None:
        df = df.where(f"value < {ROWS} OR value >= {2 * ROWS}")
        if not df.isEmpty():
            callback(df, batch)

    world.run(each)
    assert world.state("test.1.1") is None
    assert world.state("test.2.1") is TransactionState.COMMITTED


def test_what_ends_a_query_is_one_line(world, caplog):
    """The reason and the cure, in one line of the log, and short in the exception.

    Spark repeats what a callback raises, with all that was its cause.
    """
    write_numbers(world.folder, range(1))

    def poison(batches: Iterator[Any]) -> Iterator[Any]:
        for batch in batches:
            raise ValueError(f"{batch.num_rows} poisoned rows")

    broken = world.source().mapInArrow(poison, "value long")
    query = world.start(world.callback(), broken)
    until(lambda: not query.isActive)
    said = str(query.exception())
    assert len(said.splitlines()) < 40, said
    cure = "10 poisoned rows. Nothing was committed; start the query again"
    assert f"tracing_2pc.core.errors.AbortedError: ValueError: {cure}" in said
    ours = [r for r in caplog.records if r.name.startswith("tracing_2pc")]
    assert ours[-1].levelname == "ERROR"
    assert cure in ours[-1].getMessage()
    assert ours[-1].exc_info is None
    with world.log() as log:
        failed = log.read(TransactionId.parse("test.0.1")).detail
    assert failed == "while it was written: ValueError: 10 poisoned rows"


@BOTH_PATHS
def test_a_batch_that_fails_by_its_data_is_told_so(world):
    """A start would not mend it: it is not advised. No task fails or is tried again."""
    write_numbers(world.folder, range(1))
    broken = world.source().selectExpr("array(value) AS v")
    query = world.start(world.callback(), broken)
    until(lambda: not query.isActive)
    (said,) = (
        line
        for line in str(query.exception()).splitlines()
        if "errors.AbortedError" in line
    )
    assert "votes abort (400)" in said
    assert "at each try until this is mended: columns v (list" in said
    assert said.endswith("Nothing was committed")
    tracker = world.spark.sparkContext.statusTracker()
    jobs = tracker.getJobIdsForGroup(str(query.runId))
    assert {tracker.getJobInfo(job).status for job in jobs} == {"SUCCEEDED"}


def test_a_job_that_works_says_so(world, caplog):
    """At INFO: a line when it is set up, and one a batch."""
    write_numbers(world.folder, range(2))
    name = "tracing_2pc.spark.foreach_batch"
    with caplog.at_level("INFO", name):
        world.run(world.callback())
    lines = [r.getMessage() for r in caplog.records if r.name == name]
    assert lines[0].startswith("ready: application=test participants=a,b")
    assert [line.partition(" seconds=")[0] for line in lines[1:]] == [
        f"committed: application=test batch={n} rows={ROWS}" for n in (0, 1)
    ]


@pytest.mark.parametrize("where", ["nowhere", "below a root"])
def test_a_query_without_a_checkpoint_is_refused(world, where):
    """No next start would find its batch: refused at the first, nothing is written."""
    write_numbers(world.folder, range(1))
    writer = world.source().writeStream.trigger(availableNow=True)
    root = below_a_root(world) if where == "below a root" else contextlib.nullcontext()
    with root, failing_query('.option\\("checkpointLocation"'):
        writer.foreachBatch(world.callback()).start().awaitTermination()
    assert world.state("test.0.1") is None
    assert [h.total() for h in world.held()] == [0, 0]


def test_a_named_query_below_a_root_has_a_checkpoint(world):
    """Its next start finds the folder of that name."""
    write_numbers(world.folder, range(1))
    with below_a_root(world):
        writer = world.source().writeStream.trigger(availableNow=True)
        query = writer.queryName("orders").foreachBatch(world.callback()).start()
        query.awaitTermination()
    assert world.state("test.0.1") is TransactionState.COMMITTED


@pytest.mark.parametrize(
    ("arguments", "error", "says"),
    [
        ({"log": "decisions.db"}, ConfigurationError, "expected sqlite:///folder"),
        ({"log": "mysql://host/log"}, ConfigurationError, "expected sqlite:///folder"),
        ({"log": "env:NO_SUCH"}, ConfigurationError, "NO_SUCH is empty"),
        ({"log": "postgresql://127.0.0.1:1/log"}, DecisionLogError, "127.0.0.1"),
        ({"routes": {"a": None, "c": None}}, ConfigurationError, UNROUTED),
    ],
)
def test_what_is_wrong_is_refused_at_the_call(world, arguments, error, says):
    """Where the job is written, not at its first batch."""
    with pytest.raises(error, match=says):
        world.callback(**arguments)


def test_another_checkpoint_is_refused(world):
    """A lost checkpoint would begin at batch 0 again: refused, nothing is written."""
    write_numbers(world.folder, range(2))
    world.run(world.callback())
    shutil.rmtree(world.folder / "ck")
    with failing_query("checkpoint"):
        world.run(world.callback())
    assert world.held() == (numbers_of(2), numbers_of(2))


def test_changed_participants_are_refused(world):
    """What a run leaves out by mistake is not lost; on purpose it says `replaces`."""
    write_numbers(world.folder, range(1))
    world.run(world.callback())
    write_numbers(world.folder, range(1, 2))
    fewer = ParticipantSink({"a": world.a}, token=None, timeout=ANSWERED)
    with failing_query("replaces=\\('a', 'b'\\)"):
        world.run(world.callback(sink=fewer))
    assert world.state("test.1.1") is None
    assert world.held() == (numbers_of(1), numbers_of(1))
    world.run(world.callback(sink=fewer, replaces=("a", "b")))
    assert world.held() == (numbers_of(2), numbers_of(1))


def test_another_log_is_refused(world):
    """A log that does not know the application accepts batch 0 only."""
    write_numbers(world.folder, range(1))
    world.run(world.callback())
    write_numbers(world.folder, range(1, 2))
    empty = f"sqlite:///{world.folder / 'other.db'}"
    with failing_query("tracing-2pc init --application test --from-batch 1"):
        world.run(world.callback(log=empty))
    assert world.held() == (numbers_of(1), numbers_of(1))
    with contextlib.closing(open_log(empty)) as log:
        log.initialise("test", 1)
    world.run(world.callback(log=empty))
    assert world.held() == (numbers_of(2), numbers_of(2))


def test_an_empty_log_cannot_write_a_batch_twice(world):
    """Log and checkpoint lost together: the participants refuse, and a person looks."""
    write_numbers(world.folder, range(1))
    world.run(world.callback())
    other = f"sqlite:///{world.folder / 'other.db'}"
    with failing_query("this transaction is committed here"):
        world.run(world.callback(log=other), checkpoint="ck2")
    assert world.held() == (numbers_of(1), numbers_of(1))
    with contextlib.closing(open_log(other)) as log:
        (record,) = log.unfinished("test")
    assert record.state is TransactionState.QUARANTINED


@BOTH_PATHS
def test_stop_returns_while_a_participant_is_down(world, caplog):
    """Decided, not acknowledged, and stopped: the next start finishes it.

    That is no failure of the query; the log says what is left to do.
    """
    write_numbers(world.folder, range(1))
    with b_hangs_up(world, "/commit") as gone:
        query = world.start(world.callback())
        assert gone.wait(AT_LAST)
        until(lambda: world.state("test.0.1") is TransactionState.COMMITTING)
        started = time.monotonic()
        query.stop()
        assert time.monotonic() - started < UNDELAYED
    assert query.exception() is None
    (warning,) = (m for m in caplog.messages if m.startswith("stopped in batch 0"))
    assert "test.0.1 is decided commit and not acknowledged by b yet" in warning
    assert world.state("test.0.1") is TransactionState.COMMITTING
    assert [h.total() for h in world.held()] == [ROWS, 0]
    world.run(world.callback())
    assert world.held() == (numbers_of(1), numbers_of(1))
    assert world.state("test.0.1") is TransactionState.COMMITTED


@BOTH_PATHS
def test_a_participant_that_is_restarted_before_prepare_is_waited_for(world):
    """Down for some tries, before anybody has voted: the batch lands all the same."""
    write_numbers(world.folder, range(1))
    app = create_app(f"sqlite:///{world.folder / 'late'}.db")
    world.apps.callback(app.extensions["resource"].close)
    door = world.apps.enter_context(socket.create_server(("127.0.0.1", 0)))
    port = door.getsockname()[1]
    up = threading.Event()

    def come_up() -> None:
        with door:
            for _ in range(3):
                door.accept()[0].close()
        world.apps.enter_context(serving(app, port))
        up.set()

    sink = ParticipantSink({"a": world.a, "b": f"http://127.0.0.1:{port}"}, token=None)
    thread = threading.Thread(target=come_up)
    thread.start()
    world.run(world.callback(sink=sink))
    thread.join()
    assert up.is_set()
    assert held(world.folder / "late.db") == numbers_of(1)
    assert world.state("test.0.1") is TransactionState.COMMITTED


def test_a_missing_token_is_found_before_anything_runs(world, monkeypatch):
    """Where the job is started, not in a task."""
    monkeypatch.delenv("TPC_TOKEN", raising=False)
    with pytest.raises(ConfigurationError, match="the variable TPC_TOKEN is empty"):
        world.callback(sink=ParticipantSink({"a": world.a, "b": world.b}))


@BOTH_PATHS
def test_fail_raises_and_the_next_start_finishes(world):
    """`on_pending="fail"`: the query ends after the inline tries; nothing is lost."""
    write_numbers(world.folder, range(1))
    quick = dataclasses.replace(QUICK, inline_tries=2)
    with b_hangs_up(world, "/commit"), failing_query("not acknowledged by b"):
        world.run(world.callback(on_pending="fail", settings=quick))
    world.run(world.callback())
    assert world.held() == (numbers_of(1), numbers_of(1))


def test_stop_in_the_middle_of_the_tasks_aborts(world):
    """`stop()` interrupts the job: abort is decided, late tasks are refused."""
    write_numbers(world.folder, range(1))
    running, stopped, over = (world.folder / n for n in ("running", "stopped", "over"))

    class Slow(ParticipantSink):
        def pre_commit(self, handle: Any) -> Any:
            running.touch()
            until(stopped.exists)
            try:
                return super().pre_commit(handle)
            finally:
                over.touch()

    sink = Slow({"a": world.a, "b": world.b}, token=None)
    query = world.start(world.callback(sink=sink))
    until(running.exists)
    query.stop()
    assert query.exception() is None
    assert world.state("test.0.1") is TransactionState.ABORTED
    stopped.touch()
    until(over.exists)  # the task outlives stop(), and prepares now
    assert [h.total() for h in world.held()] == [0, 0]
    world.run(world.callback())
    assert world.held() == (numbers_of(1), numbers_of(1))


def test_out_of_time_the_jobs_are_cancelled(world):
    """No decision in time: abort is decided, the tasks end, the message says why."""
    write_numbers(world.folder, range(1))

    class Slow(ParticipantSink):
        def pre_commit(self, handle: Any) -> Any:
            import time

            time.sleep(PATIENT)
            return super().pre_commit(handle)

    sink = Slow({"a": world.a, "b": world.b}, token=None)
    short = dataclasses.replace(QUICK, **OUT_OF_TIME)
    started = time.monotonic()
    with failing_query("no decision within transaction_timeout"):
        world.run(world.callback(sink=sink, settings=short))
    assert time.monotonic() - started < UNDELAYED
    assert world.state("test.0.1") is TransactionState.ABORTED


@pytest.mark.smoke
def test_a_sink_of_ones_own(world):
    """Any class with the five methods: its handles come back from the log as JSON."""
    write_numbers(world.folder, range(2))
    folder = str(world.folder)

    class Files:
        def begin(self, context: Any) -> Any:
            name = f"{context.transaction_id}.{context.branch}"
            return {"name": name, "rows": []}

        def invoke(self, handle: Any, record: Any) -> None:
            handle["rows"].append(record["value"])

        def pre_commit(self, handle: Any) -> None:
            file = Path(folder, handle["name"] + ".tmp")
            file.write_text(json.dumps(handle["rows"]))
            handle["rows"].clear()

        def commit(self, handle: Any) -> None:
            file = Path(folder, handle["name"] + ".tmp")
            if file.exists():
                file.rename(file.with_suffix(".done"))

        def abort(self, handle: Any) -> None:
            Path(folder, handle["name"] + ".tmp").unlink(missing_ok=True)

    world.run(world.callback(sink=Files()))
    done = [json.loads(f.read_text()) for f in world.folder.glob("*.done")]
    assert sorted(value for rows in done for value in rows) == list(range(2 * ROWS))


def test_the_stream_itself_is_refused(world):
    """Called with the stream instead of being passed to foreachBatch."""
    write_numbers(world.folder, range(1))
    with pytest.raises(Exception, match="foreachBatch"):
        world.callback()(world.source(), 0)


def _rejecting(world: Any, **arguments: Any) -> Any:
    """Return a callback of the two services, a table that is picky, and rejects."""
    place = world.folder / "rows.db"
    columns = "value bigint CHECK (value % 10 <> 7), tpc_tag bigint NOT NULL DEFAULT 0"
    with contextlib.closing(sqlite3.connect(place)) as database:
        database.execute(f"CREATE TABLE IF NOT EXISTS picky_tpc ({columns})")
    tables = (TableSink(f"sqlite:///{place}", name) for name in ("picky", "rejected"))
    sinks = [world.sink, *tables]
    return world.callback(sink=sinks, rejects="rejected", **arguments)


def _held_by(world: Any) -> tuple[list[int], list[int]]:
    """Return what the picky table has, and what was rejected."""
    with contextlib.closing(sqlite3.connect(world.folder / "rows.db")) as database:
        kept = database.execute("SELECT value FROM picky").fetchall()
        records = database.execute("SELECT record FROM rejected").fetchall()
    rejected = [json.loads(record)["value"] for (record,) in records]
    return sorted(value for (value,) in kept), sorted(rejected)


@BOTH_PATHS
def test_rows_that_one_refuses_are_rejected_and_the_stream_goes_on(world):
    """Of several partitions: each row is at all three, or kept as rejected."""
    write_numbers(world.folder, range(3))
    world.run(_rejecting(world), world.source().repartition(3))
    every = sorted(numbers_of(3))
    bad = [value for value in every if value % 10 == 7]
    good = [value for value in every if value % 10 != 7]
    assert bad
    assert _held_by(world) == (good, bad)
    assert world.held() == (Counter(good), Counter(good))
    records = [world.read(f"test.{batch}.1") for batch in range(3)]
    assert sum(record.rejected for record in records) == len(bad)
    assert sum(record.rows for record in records) == len(good)


@BOTH_PATHS
def test_a_row_is_rejected_by_its_own_route(world):
    """At the others it is for it lands; rejects has no route."""
    write_numbers(world.folder, range(2))
    routes = {
        "a": lambda batch: batch,
        "b": lambda batch: batch.where("value % 10 = 7"),
        "picky": lambda batch: batch,
    }
    world.run(_rejecting(world, routes=routes), world.source().repartition(2))
    every = sorted(numbers_of(2))
    bad = [value for value in every if value % 10 == 7]
    assert _held_by(world) == ([v for v in every if v % 10 != 7], bad)
    assert world.held() == (Counter(every), Counter(bad))
    with pytest.raises(ConfigurationError, match="rejected"):
        _rejecting(world, routes={**routes, "rejected": lambda batch: batch})
