"""What the data source's writers make of messages, without Spark."""

from __future__ import annotations

import dataclasses
import socket

import pytest
from pyspark.sql.types import (
    ArrayType,
    StringType,
    StructField,
    StructType,
    YearMonthIntervalType,
)
from support.stream_world import HAS_ARROW_WRITERS
from support.texts import texts

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.errors import AbortedError, ConfigurationError
from tracing_2pc.core.model import BranchId, TransactionId, branch_receipts
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, TransactionState, Vote
from tracing_2pc.sinks.base import read_only
from tracing_2pc.sinks.job import Job
from tracing_2pc.store import SqlDecisionLog

if not HAS_ARROW_WRITERS:
    pytest.skip("it needs PySpark 4.1", allow_module_level=True)
from tracing_2pc.spark.data_source import (
    BatchWriter,
    StreamWriter,
    TaskMessage,
    TwoPhaseCommitDataSource,
)

TEXTS = texts("sinks")
TEXTS_OF_SPARK = texts("spark")


@pytest.fixture
def writer(tmp_path, log) -> StreamWriter:
    """One whose participants nobody can reach: they are not to be asked."""
    sink = ParticipantSink({"a": "http://127.0.0.1:9"}, token=None)
    settings = Settings(log=f"sqlite:///{tmp_path}/log.db", backoff_cap=1.0)
    return StreamWriter(Job(sink, "orders", settings), None)


def begin(log: SqlDecisionLog, run: str, query: str | None = None) -> str:
    begun = log.begin(
        "orders", 0, Opening(run=run, query=query, participants=["a"], carrier={})
    )
    return str(begun.record.id)


def empty(transaction: str, partition: int = 0) -> TaskMessage:
    """Return the message of a task without rows."""
    receipts = read_only(BranchId(partition, partition), ["a"])
    return TaskMessage(
        transaction, replay=False, receipts=tuple(r.to_json() for r in receipts)
    )


def state(log: SqlDecisionLog, transaction: str) -> TransactionState:
    record = log.read(TransactionId.parse(transaction))
    assert record
    return record.state


def test_tasks_of_two_attempts_are_not_committed(writer, log):
    """Somebody has aborted the first while its tasks ran: late ones opened another."""
    first, second = begin(log, "old"), begin(log, "new")
    with pytest.raises(AbortedError, match=r"orders\.0\.1.*orders\.0\.2.*start it"):
        writer.commit([empty(first), empty(second, 1)], 0)
    assert state(log, second) is TransactionState.ACTIVE


def test_a_type_that_no_task_can_read_is_refused_before_there_is_one():
    """In a column or inside of one, by name and with a cast."""
    interval = YearMonthIntervalType()
    inside = ArrayType(StructType([StructField("n", interval)]))
    for kind in (interval, YearMonthIntervalType(1, 1), inside):
        source = TwoPhaseCommitDataSource({"checkpointLocation": "ck"})
        for writer in (source.writer, source.streamWriter):
            with pytest.raises(ConfigurationError, match=r"'v' is .*CAST\(v AS STRING"):
                writer(StructType([StructField("v", kind)]), overwrite=False)


@pytest.mark.parametrize(
    ("kind", "match"),
    [(None, "no such column"), (StringType(), "the column is string")],
    ids=["none", "a string"],
)
def test_links_need_a_column_of_headers(kind, match):
    fields = [] if kind is None else [StructField("headers", kind)]
    given = {"application": "orders", "links": "headers", "checkpointLocation": "ck"}
    source = TwoPhaseCommitDataSource(given)
    for writer in (source.writer, source.streamWriter):
        with pytest.raises(ConfigurationError, match=match):
            writer(StructType([StructField("v", StringType()), *fields]), False)


def test_a_lost_message_is_a_missing_vote(writer, log):
    """Nothing is committed without it."""
    transaction = begin(log, "run")
    with pytest.raises(AbortedError, match=TEXTS["nothing committed"]):
        writer.commit([empty(transaction), None], 0)
    assert state(log, transaction) is TransactionState.ACTIVE


def test_an_abort_without_messages_touches_nothing(writer, log):
    """It cannot know its run: what is under way may be the next one's."""
    transaction = begin(log, "next")
    writer.abort([None, None], 0)
    assert state(log, transaction) is TransactionState.ACTIVE


def test_an_abort_that_comes_late_leaves_a_commit(writer, log, caplog):
    """The log is asked, and says what it has decided; the warning names it."""
    transaction = begin(log, "run")
    writer.commit([empty(transaction)], 0)
    assert state(log, transaction) is TransactionState.COMMITTING
    writer.abort([empty(transaction)], 0)
    assert state(log, transaction) is TransactionState.COMMITTING
    assert f"{transaction} is decided commit" in caplog.text


def test_a_log_that_is_a_file_of_another_host_is_refused(writer, tmp_path, monkeypatch):
    """An executor there would open an empty one of its own, however it is named."""
    for named in (f"sqlite+pysqlite:///{tmp_path}/log.db", "env:TPC_LOG"):
        monkeypatch.setenv("TPC_LOG", f"sqlite:///{tmp_path}/log.db")
        settings = dataclasses.replace(writer._job.settings, log=named)
        there = StreamWriter(dataclasses.replace(writer._job, settings=settings), None)
        with monkeypatch.context() as patch:
            patch.setattr(socket, "gethostname", lambda: "another-host")
            with pytest.raises(ConfigurationError, match=r"log\.db on another-host"):
                there._write(0, "run", None, iter(()))


def test_a_task_that_begins_after_its_batch_was_aborted_is_refused(writer, log):
    """It would open an attempt that nobody ends."""
    transaction = begin(log, "run")
    log.decide(TransactionId.parse(transaction), Decision.ABORT)
    after = StreamWriter(writer._job, log.read(TransactionId.parse(transaction)))
    with pytest.raises(AbortedError, match=r"orders\.0\.1 is decided abort"):
        after._write(0, "run", None, iter(()))
    assert log.unfinished_applications() == ["orders"]
    assert log.read(TransactionId("orders", 0, 2)) is None


def test_a_late_task_does_not_take_over(writer, log):
    """Its query was stopped before it began anything; the next one is at work."""
    transaction = begin(log, "next")
    with pytest.raises(
        AbortedError,
        match=TEXTS["another run"].format(run="next", application="orders"),
    ):
        writer._write(0, "late", None, iter(()))
    assert state(log, transaction) is TransactionState.ACTIVE


def test_of_two_writes_that_drew_one_number_one_is_refused(writer, log):
    """It would be taken for a replay, and its rows would be nowhere."""
    record = log.read(TransactionId.parse(begin(log, "first")))
    assert record
    second = BatchWriter(writer._job, record, 0, is_drawn=True)
    with pytest.raises(
        AbortedError, match=TEXTS["number taken"].format(batch=0, application="orders")
    ):
        second._check_replay(record, "second")
    second._check_replay(record, "first")  # a late twin of the one that took it
    BatchWriter(writer._job, record, 0)._check_replay(record, "second")  # a replay


def test_a_write_that_is_committed_already_says_what_it_did_not_write(
    writer, log, caplog
):
    """In a warning, with both numbers of rows; a lower number runs no task."""
    transaction = begin(log, "first")
    receipts = branch_receipts(BranchId(0, 0), 10, "digest", {"a": Vote.COMMIT})
    log.decide(TransactionId.parse(transaction), Decision.COMMIT, receipts)
    again = BatchWriter(writer._job, None, 0)
    again.commit([TaskMessage(transaction, replay=True, rows=n) for n in (3, 4)])
    (line,) = caplog.messages
    assert line.startswith(transaction)
    assert TEXTS["committed already"] in line
    assert TEXTS["rows that were not written"] in line
    begun = log.begin(
        "orders", 1, Opening(run="2", query=None, participants=["a"], carrier={})
    )
    decided = log.decide(begun.record.id, Decision.COMMIT, receipts)
    with pytest.raises(ConfigurationError, match=TEXTS["a lower number"]):
        BatchWriter(writer._job, decided, 0)


def test_a_batch_of_a_stream_is_written_once_in_a_run(writer, log):
    """What this run has committed itself is no replay; what an earlier one did is."""
    record = log.read(TransactionId.parse(begin(log, "run")))
    assert record
    with pytest.raises(AbortedError, match=TEXTS_OF_SPARK["committed by this run"]):
        writer._check_replay(record, "run")
    writer._check_replay(record, "next run")


def test_a_stream_and_a_dataframe_do_not_share_an_application(writer, log):
    """The stream's batch would be taken for a replay of the other's."""
    newest = log.read(TransactionId.parse(begin(log, "stream", "a query")))
    with pytest.raises(ConfigurationError, match=r"this is query writes of"):
        BatchWriter(writer._job, newest, 0).write(iter(()))
