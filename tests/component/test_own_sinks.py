"""A sink of the job's own: what is said of it by whoever only has log and services."""

from __future__ import annotations

import time
from typing import Any

import pytest
from support.branches import ONE
from support.cli import Operator
from support.console import VIEWER, console_of, visitor
from support.texts import texts

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import (
    BranchId,
    TransactionId,
    TransactionRecord,
    branch_receipts,
)
from tracing_2pc.core.ports import Opening, SystemClock
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision, TransactionState, Vote
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.sinks.base import participants_of
from tracing_2pc.sinks.job import Job
from tracing_2pc.spark.context import StreamContext
from tracing_2pc.spark.foreach_batch import ForeachBatch
from tracing_2pc.store import open_log
from tracing_2pc.testing import run_one_batch
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

TEXTS = texts("sinks")

T = TransactionId("orders", 7, 1)


class Archive:
    """Keeps what it prepared, and cannot find it again by its transaction."""

    def __init__(self) -> None:
        self.aborted: list[Any] = []

    def begin(self) -> Any:
        return {}

    def invoke(self, handle: Any, record: Any) -> None: ...
    def pre_commit(self, handle: Any) -> None: ...
    def commit(self, handle: Any) -> None: ...

    def abort(self, handle: Any) -> None:
        self.aborted.append(handle)


def begin(operator: Operator) -> TransactionRecord:
    record = operator.at.log.begin(
        "orders",
        7,
        Opening(
            run="run",
            query=None,
            participants=("ledger", "Archive"),
            carrier={},
            own_sinks={"Archive"},
        ),
    ).record
    operator.at.prepare(record.id, "ledger")
    return record


def committing(operator: Operator) -> TransactionRecord:
    """Decided commit, heard by the service; its own sink was not told yet."""
    record, at = begin(operator), operator.at
    votes = dict.fromkeys(record.participants, Vote.COMMIT)
    receipts = branch_receipts(BranchId(0, 1), ONE.rows, ONE.digest, votes, {"n": 1})
    assert at.log.decide(record.id, Decision.COMMIT, receipts)
    at.worlds["ledger"].commit(str(record.id), ONE)
    at.log.acknowledge(record.id, "ledger")
    at.time.time = time.time()
    return record


def delivery(operator: Operator, participants: Any) -> Delivery:
    retry, tracing = RetryPolicy(SystemClock()), OpenTelemetryTracing()
    return Delivery(operator.at.log, participants, tracing=tracing, retry=retry)


def aborted(operator: Operator) -> TransactionRecord:
    """Decided abort, and delivered by the job: the sink has no abort_transaction."""
    record, at = begin(operator), operator.at
    assert at.log.decide(record.id, Decision.ABORT)
    at.worlds["ledger"].abort(str(record.id))
    at.log.acknowledge(record.id, "ledger")
    delivery(operator, participants_of(Archive())).abort(at.log.read(record.id))
    at.time.time = time.time()
    return record


def page(operator: Operator, path: str) -> str:
    return visitor(console_of(operator.at), VIEWER).get(path)


def test_the_record_knows_which_participants_are_the_jobs_own(tmp_path):
    """Written when the attempt begins, from what the job was given."""
    log = open_log(f"sqlite:///{tmp_path}/log.db")
    callback = ForeachBatch(Job(Archive(), "orders", Settings()), {}, log)
    coordinator = callback._coordinator(StreamContext(None, "run", "query"), log)
    begun = coordinator.begin(0, "run", "query")
    assert begun.record.own_sinks == {"Archive"}
    assert log.read(begun.record.id).own_sinks == {"Archive"}
    log.close()


@pytest.mark.parametrize("command", ["explain", "ls", "check", "watch"])
def test_only_the_job_is_named_as_the_cure_for_its_own_sink(operator, command):
    """No address can be added for it, and no `recover` reaches it."""
    committing(operator)
    more = {"explain": [str(T)], "watch": ["--once"]}.get(command, [])
    code, out, _ = operator.says(command, *more)
    assert code == 1
    assert "Archive" in out
    assert "participants` in tpc.toml" not in out
    assert "tracing-2pc recover" not in out
    assert TEXTS["start the job"] in out
    shown = " ".join(operator.says("show", str(T))[1].split())  # as an alert says it
    assert TEXTS["start it"].format(sink="Archive") in shown


def test_recover_says_that_only_the_job_can_tell_its_own_sink(operator):
    """As an error of the delivery, and not that an address is missing."""
    record = committing(operator)
    current = operator.at.log.read(record.id)
    with pytest.raises(ConfigurationError) as caught:
        delivery(operator, {}).send_once(current)
    assert TEXTS["own sink"].format(sink="Archive") in str(caught.value)
    assert "Start the job" in str(caught.value)
    assert "tpc.toml" not in str(caught.value)


def test_the_console_names_the_job_too(operator):
    """On the page of the transaction, beside what an operator can do."""
    committing(operator)
    shown = page(operator, f"/transactions/{T}")
    assert "start the job of orders" in shown
    assert TEXTS["deliver"] not in shown
    assert "the job&#39;s own" in shown
    assert TEXTS["needs nobody"] not in shown


def test_an_abort_that_a_sink_could_not_be_told_is_on_record(operator):
    """Rows may be left: nothing that reads the record says that all is well."""
    record = aborted(operator)
    state = operator.at.log.read(record.id).state
    assert state is TransactionState.ABORTED, "nobody would ever tell it more"
    ledger, archive = operator.at.log.deliveries(record.id).values()
    assert ledger.untold is None
    assert "abort_transaction" in str(archive.untold)
    code, out, _ = operator.says("explain", str(T))
    assert code == 1
    assert "not told: Archive may hold branches of orders.7.1" in out
    assert TEXTS["all acknowledged"] not in out
    assert TEXTS["look there"].format(sink="Archive", transaction=T) in out
    code, out, _ = operator.says("show", str(T))
    assert code == 1
    assert TEXTS["may hold branches"].format(sink="Archive") in out
    assert TEXTS["not told all"].format(sink="Archive") in out
    assert TEXTS["not told all of it"].format(sink="Archive") in operator.says("ls")[1]
    (found, *_) = operator.json("ls")[1]
    assert found["untold"] == ["Archive"]
    shown = page(operator, f"/transactions/{T}")
    assert TEXTS["may hold branches"].format(sink="Archive") in shown
    assert TEXTS["all is well"] not in shown
    assert TEXTS["not told all of it"].format(sink="Archive") in page(operator, "/")


class Rows(Archive):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.given: list[Any] = []

    def invoke(self, handle: Any, record: Any) -> None:
        self.given.append(record)

    def abort_transaction(self, transaction_id: str, keep: Any) -> None: ...


def test_records_of_a_test_are_rows_of_one_data_frame():
    """What a record leaves out is null, and a column has one type in all partitions."""
    sink = Rows()
    first, then = [{"a": 1, "b": None}], [{"a": 1.5, "b": "x"}, {"b": "y"}]
    assert run_one_batch(sink, first, then, [])
    assert sink.given == [
        {"a": 1.0, "b": None},
        {"a": 1.5, "b": "x"},
        {"a": None, "b": "y"},
    ]
