"""What the data source's writers make of messages, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.stream_world import HAS_ARROW_WRITERS

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.errors import AbortedError, ConfigurationError
from tracing_2pc.core.model import BranchId, TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.sinks.base import read_only
from tracing_2pc.spark.job import Job
from tracing_2pc.store import SqlDecisionLog, open_log

if not HAS_ARROW_WRITERS:
    pytest.skip("it needs PySpark 4.1", allow_module_level=True)
from tracing_2pc.spark.data_source import StreamWriter, TaskMessage


@pytest.fixture
def log(tmp_path: Path) -> Iterator[SqlDecisionLog]:
    with contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db")) as log:
        yield log


@pytest.fixture
def writer(tmp_path: Path, log: SqlDecisionLog) -> StreamWriter:
    """One whose participants nobody can reach: they are not to be asked."""
    sink = ParticipantSink({"a": "http://127.0.0.1:9"}, token=None)
    settings = Settings(log=f"sqlite:///{tmp_path}/log.db", backoff_cap=1.0)
    return StreamWriter(Job(sink, "orders", settings))


def begin(log: SqlDecisionLog, run: str) -> str:
    begun = log.begin("orders", 0, run=run, query=None, participants=["a"], carrier={})
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


def test_tasks_of_two_attempts_are_not_committed(
    writer: StreamWriter, log: SqlDecisionLog
) -> None:
    """Somebody has aborted the first while its tasks ran: late ones opened another."""
    first, second = begin(log, "old"), begin(log, "new")
    with pytest.raises(AbortedError, match=r"orders\.0\.1.*orders\.0\.2.*start the"):
        writer.commit([empty(first), empty(second, 1)], 0)
    assert state(log, second) is TransactionState.ACTIVE


def test_a_lost_message_is_a_missing_vote(
    writer: StreamWriter, log: SqlDecisionLog
) -> None:
    """Nothing is committed without it."""
    transaction = begin(log, "run")
    with pytest.raises(AbortedError, match="Nothing was committed"):
        writer.commit([empty(transaction), None], 0)
    assert state(log, transaction) is TransactionState.ACTIVE


def test_an_abort_without_messages_touches_nothing(
    writer: StreamWriter, log: SqlDecisionLog
) -> None:
    """It cannot know its run: what is under way may be the next one's."""
    transaction = begin(log, "next")
    writer.abort([None, None], 0)
    assert state(log, transaction) is TransactionState.ACTIVE


def test_an_abort_that_comes_late_leaves_a_commit(
    writer: StreamWriter, log: SqlDecisionLog, caplog: pytest.LogCaptureFixture
) -> None:
    """The log is asked, and says what it has decided; the warning names it."""
    transaction = begin(log, "run")
    writer.commit([empty(transaction)], 0)
    assert state(log, transaction) is TransactionState.COMMITTING
    writer.abort([empty(transaction)], 0)
    assert state(log, transaction) is TransactionState.COMMITTING
    assert f"{transaction} is decided commit" in caplog.text


def test_a_log_that_is_a_file_of_another_host_is_refused(writer: StreamWriter) -> None:
    """An executor there would open an empty one of its own."""
    writer._driver = "another-host"
    with pytest.raises(ConfigurationError, match=r"file of the driver's host, another"):
        writer._write(0, "run", None, iter(()))
