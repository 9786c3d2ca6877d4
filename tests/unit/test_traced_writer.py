"""`@traced_sink` above PySpark's own writer, as Spark calls it; here without Spark."""

from __future__ import annotations

import dataclasses
import pickle
import sys
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.trace import StatusCode
from support.traced_sink import Foreign, shipped
from support.tracing import span_tree

from tracing_2pc.tracing import spans
from tracing_2pc.tracing.decorator.traced_sink import traced_sink
from tracing_2pc.tracing.sdk import lifecycle


class WriterCommitMessage:
    """As PySpark has it: an empty class, pickled as any object is."""


@dataclasses.dataclass
class Written(WriterCommitMessage):
    path: str
    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class Closed(WriterCommitMessage):
    path: str
    rows: int


@traced_sink
class Files:
    """A writer as PySpark's documentation has them."""

    def __init__(self, kind: type = Written, take: int | None = None) -> None:
        self.kind = kind
        self.take = take

    def write(self, iterator):
        rows = 0
        for row in iterator:
            rows += 1
            if row == ("bad",):
                raise ValueError("a customer's name")
            if rows == self.take:
                break
        return self.kind("a", rows)

    def commit(self, messages, batchId):  # noqa: N803
        if batchId < 0:
            raise OSError("full")

    def abort(self, messages, batchId):  # noqa: N803
        pass


class Task:
    """Says what Spark's TaskContext says."""

    def __init__(self, partition: int, batch: str | None, run: str) -> None:
        self.partition = partition
        self.properties = {"streaming.sql.batchId": batch, "spark.jobGroup.id": run}

    def partitionId(self) -> int:  # noqa: N802
        return self.partition

    def taskAttemptId(self) -> int:  # noqa: N802
        return self.partition + 10

    def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
        return self.properties[name]


InTask = Callable[..., None]


@pytest.fixture
def in_task(monkeypatch) -> InTask:
    """Become a task of a batch; with no arguments, the process that commits."""

    def become(partition: int | None = None, batch: str | None = "7", run="r") -> None:
        task = None if partition is None else Task(partition, batch, run)
        spark = SimpleNamespace(TaskContext=SimpleNamespace(get=lambda: task))
        monkeypatch.setitem(sys.modules, "pyspark", spark)

    become()
    return become


def rows(count: int) -> Iterator[tuple[int]]:
    return ((n,) for n in range(count))


def from_task(message: Any) -> Any:
    return pickle.loads(pickle.dumps(message))


def written(in_task: InTask, count: int, *about: Any, **task: Any) -> Any:
    """Write by a task; return its message, as the process that commits has it."""
    in_task(**{"partition": 0, **task})
    message = from_task(shipped(Files(*about)).write(rows(count)))
    in_task()
    return message


def test_a_batch_is_one_trace_from_task_to_commit(exported, in_task):
    """Two tasks and the commit share nothing but the messages; the root is there."""
    messages = [written(in_task, n + 3, partition=n) for n in range(2)]
    shipped(Files()).commit(messages, 7)
    assert span_tree(exported()) == [
        "Files.batch",
        "  Files.write",
        "  Files.write",
        "  Files.commit",
    ]
    first, _, commit, root = exported()
    assert first.attributes == {
        "tpc.phase": "write",
        "tpc.batch": 7,
        "tpc.run": "r",
        "tpc.branch": "0.10",
        "tpc.rows": 3,
    }
    assert commit.attributes == {"tpc.phase": "commit", "tpc.batch": 7, "tpc.run": "r"}
    assert root.attributes == {"tpc.batch": 7, "tpc.run": "r"}
    assert root.parent is None
    assert root.start_time <= first.start_time
    assert root.end_time >= commit.end_time


def test_another_run_or_batch_is_another_trace(exported, in_task):
    for batch, run in (("7", "r"), ("8", "r"), ("7", "s")):
        written(in_task, 1, batch=batch, run=run)
    assert len({span.context.trace_id for span in exported()}) == 3


@pytest.mark.parametrize("take", [None, 1, 4])
def test_rows_are_those_that_the_writer_took(exported, in_task, take):
    """Counted as they are taken: the rest stays in Spark, unread."""
    in_task(0)
    left = rows(10)
    shipped(Files(take=take)).write(iterator=left)
    assert exported()[0].attributes["tpc.rows"] == (take or 10)
    assert len(list(left)) == 10 - (take or 10)


BATCH = pa.RecordBatch.from_pydict({"n": pa.array(range(500))})
COLUMN = type("Row", (tuple,), {"num_rows": 99})((1,))
LAZY = type("Lazy", (), {"num_rows": None})()


@pytest.mark.parametrize(("one", "counted"), [(BATCH, 500), (COLUMN, 1), (LAZY, 1)])
def test_batches_of_arrow_know_their_rows(exported, in_task, one, counted):
    """A column may be called so, too; what does not know its rows is one."""
    in_task(0)
    assert shipped(Files()).write(iter([one, one])).rows == 2
    assert exported()[0].attributes["tpc.rows"] == 2 * counted


@pytest.mark.usefixtures("exported")
def test_a_message_is_what_it_was(in_task):
    """Two attributes beside its fields, and none without tracing."""
    in_task(0)
    message = shipped(Files()).write(rows(2))
    assert message == Written("a", 2)
    assert repr(message) == repr(Written("a", 2))
    assert dataclasses.asdict(message) == {"path": "a", "rows": 2}
    assert vars(message).keys() == {"path", "rows", "tpc_carrier", "tpc_root"}


def test_without_tracing_a_message_gets_nothing(in_task):
    in_task(0)
    message = shipped(Files()).write(rows(2))
    shipped(Files()).commit([message], 7)
    assert vars(message) == {"path": "a", "rows": 2}


def test_a_message_that_carries_nothing_leaves_the_root_to_its_task(exported, in_task):
    """No span lacks its parent; the commit is in a trace of its own."""
    message = written(in_task, 2, Closed)
    assert message == Closed("a", 2)
    shipped(Files(Closed)).commit([message], 7)
    assert span_tree(exported()) == ["Files.batch", "  Files.write", "Files.commit"]
    assert exported()[1].attributes["tpc.root.reconstructed"] is True
    assert exported()[2].attributes == {"tpc.phase": "commit", "tpc.batch": 7}


def test_a_task_that_fails_has_its_root_whoever_comes(exported, in_task):
    """Abort with the messages that there are, late; or with none of them; or never."""
    message = written(in_task, 1)
    in_task(1)
    with pytest.raises(ValueError, match="customer"):
        shipped(Files()).write(iter([("good",), ("bad",)]))
    assert span_tree(exported()) == ["Files.batch", "  Files.write", "  Files.write"]
    in_task()
    shipped(Files()).abort([None, message], 7)
    assert span_tree(exported())[:4] == [
        "Files.batch",
        "  Files.write",
        "  Files.write",
        "  Files.abort",
    ]
    failed = exported()[1]
    assert failed.attributes["tpc.rows"] == 2
    assert failed.attributes["error.type"] == "ValueError"
    assert failed.status.status_code is StatusCode.ERROR
    assert "customer" not in failed.to_json()


@pytest.mark.parametrize("messages", [[None, None], []])
def test_an_abort_without_messages_is_a_trace_of_its_own(exported, in_task, messages):
    """Spark tells it the batch and nothing else."""
    in_task()
    shipped(Files()).abort(messages, 7)
    (abort,) = exported()
    assert (abort.name, abort.parent) == ("Files.abort", None)
    assert abort.attributes == {"tpc.phase": "abort", "tpc.batch": 7}


def test_a_commit_that_raises_raises_and_is_seen(exported, in_task):
    message = written(in_task, 1, batch="-1")
    with pytest.raises(OSError, match="full"):
        shipped(Files()).commit(messages=[message], batchId=-1)
    assert span_tree(exported()) == ["Files.batch", "  Files.write", "  Files.commit"]
    assert exported()[1].attributes["error.type"] == "OSError"


def test_tasks_that_know_no_run_leave_no_orphans(exported, in_task):
    """Each begins a trace then; the commit is in the first one, and ends them all."""
    of_no_run = {"batch": None, "run": None}
    messages = [written(in_task, 1, partition=n, **of_no_run) for n in range(2)]
    shipped(Files()).commit(messages, 7)
    assert span_tree(exported()) == [
        "Files.batch",
        "  Files.write",
        "  Files.commit",
        "Files.batch",
        "  Files.write",
    ]


def test_outside_of_spark_the_current_span_is_the_parent(exported, in_task):
    """A program that drives a writer itself has its own trace: nothing is added."""
    with spans.span("tpc.branch"):
        message = shipped(Files()).write(rows(1))
    shipped(Files()).commit([from_task(message)], 7)
    assert span_tree(exported()) == ["tpc.branch", "  Files.write", "  Files.commit"]


@pytest.mark.usefixtures("exported")
def test_each_call_flushes_in_bounded_time(in_task, monkeypatch):
    """These processes leave without a word: what is not out by then is lost."""
    flushed: list[float] = []
    monkeypatch.setattr(lifecycle, "flush", flushed.append)
    in_task(0)
    message = shipped(Files()).write(rows(1))
    with pytest.raises(ValueError, match="customer"):
        shipped(Files()).write(iter([("bad",)]))
    in_task()
    shipped(Files()).commit([message], 7)
    shipped(Files()).abort([message], 7)
    assert flushed == [0.5] * 4


def test_a_subclass_that_calls_its_parent_is_one_span(exported, in_task):
    @traced_sink
    class Special(Files):
        def write(self, iterator):
            return super().write(iterator)

        def commit(self, messages, batchId):  # noqa: N803
            super().commit(messages, batchId)

    in_task(0)
    message = shipped(Special()).write(rows(2))
    in_task()
    shipped(Special()).commit([message], 7)
    assert span_tree(exported()) == [
        "Special.batch",
        "  Special.write",
        "  Special.commit",
    ]
    assert exported()[0].attributes["tpc.rows"] == 2


class Once(WriterCommitMessage):
    """Hands its lines on once, as a message may that moves a file or a buffer."""

    def __init__(self, path: str, rows: int) -> None:
        self.lines = [path] * rows

    def __getstate__(self) -> dict[str, Any]:
        lines, self.lines = self.lines, []
        return {"lines": lines}


def test_a_message_is_pickled_by_nobody_but_spark(exported, in_task):
    """What its class does to pickle it is done once; the task exports the root then."""
    message = written(in_task, 2, Once)
    assert message.lines == ["a", "a"]
    assert span_tree(exported()) == ["Files.batch", "  Files.write"]


@pytest.mark.usefixtures("exported")
def test_a_foreign_span_that_raises_breaks_no_call(in_task, monkeypatch):
    """Neither does a Spark that says other things than the one we know."""
    foreign = SimpleNamespace(start_span=lambda *arguments: Foreign())
    monkeypatch.setattr(spans, "tracer", lambda: foreign)
    in_task(0, "no number")
    message = shipped(Files()).write(rows(2))
    assert message.rows == 2
    message.tpc_root = {"root_start": "no number"}
    in_task()
    monkeypatch.setattr(sys.modules["pyspark"], "TaskContext", object)
    shipped(Files()).commit([message], 7)
    assert shipped(Files()).write(rows(2)).rows == 2
