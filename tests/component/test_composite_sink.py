"""Several sinks of different kinds make one transaction."""

from __future__ import annotations

import contextlib
import dataclasses
from types import SimpleNamespace
from typing import Any, ClassVar

import cloudpickle
import pyarrow as pa
import pytest
from support.file_job import FileJob
from support.own_sink import Base, Partner, ends
from support.texts import texts
from support.traced_sink import Plain

from tracing_2pc import ParticipantSink, traced_sink
from tracing_2pc.core.errors import (
    AbortedError,
    CommitPendingError,
    ConfigurationError,
    ContractError,
)
from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    Identity,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import TransactionState, Vote
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.sinks.base import check_leftovers, participants_of, write_branch
from tracing_2pc.sinks.composite import CompositeSink, as_single_sink
from tracing_2pc.spark import foreach_batch
from tracing_2pc.spark.tasks import Written
from tracing_2pc.testing import temporary_log

TEXTS = texts("unit")

FIRST = TransactionId("orders", 0, 1)


@traced_sink
class Files(Base):
    """One member, which is told of no other."""

    def __init__(self, name: str = "files") -> None:
        super().__init__(Partner())
        self.name = name

    def begin(self, context: BranchContext) -> Any:
        assert context.participants == (self.name,)
        return {**super().begin(context), "of": self.name}

    def commit(self, handle: Any) -> None:
        assert handle["of"] == self.name
        super().commit(handle)


@pytest.fixture
def asked(monkeypatch) -> list[str]:
    """What the services `a` and `b` were asked; they say yes."""
    asked: list[str] = []

    def answer(phase: str) -> Any:
        def call(me: HttpParticipant, *_: Any, **__: Any) -> Vote:
            asked.append(f"{phase} {me.name}")
            return Vote.COMMIT

        return call

    for phase in ("prepare", "commit", "abort", "abort_branch"):
        monkeypatch.setattr(HttpParticipant, phase, answer(phase))
    return asked


def services() -> ParticipantSink:
    return ParticipantSink({"a": "http://a:1", "b": "http://b:1"}, token=None)


def job_of(*members: Any) -> FileJob:
    """Return an application that writes to several sinks."""
    return FileJob(CompositeSink(members), temporary_log())


def state(job: FileJob) -> TransactionState:
    record = job.log.read(FIRST)
    assert record is not None
    return record.state


ROWS = pa.RecordBatch.from_pydict({"n": [1, 2, 3]})


def test_every_participant_of_every_sink_gets_each_partition_once(asked):
    """One receipt per participant; a hand-written sink's has its own handle."""
    files, more = Files("files"), Files("more")
    job = job_of(services(), files, more)
    assert job.apply(0, [ROWS, ROWS]) is True
    record = job.log.read(FIRST)
    assert record is not None
    assert record.participants == ("a", "b", "files", "more")
    assert [(str(r.branch), r.participant) for r in record.receipts] == [
        (branch, name)
        for branch in ("0.0", "1.1")
        for name in ("a", "b", "files", "more")
    ]
    assert (record.rows, record.state) == (6, TransactionState.COMMITTED)
    assert (
        sorted(asked)
        == ["commit a", "commit b"] + ["prepare a"] * 2 + ["prepare b"] * 2
    )
    for partner in (files.partner, more.partner):
        assert partner.rows == [1, 1, 2, 2, 3, 3]
        assert ends(partner) == [
            *(f"commit {FIRST}.{branch}" for branch in ("0.0", "1.1")),
            f"abort_transaction {FIRST}",
        ]


@pytest.mark.parametrize("phase", ["begin", "pre_commit"])
def test_a_member_that_fails_aborts_the_branch_of_all(asked, phase):
    """Its error is the branch's vote; the others drop what they have, and are told."""
    first, failing, last = Files("first"), Files("failing"), Files("last")
    failing.partner.raises[phase] = OSError("disk full")
    job = job_of(services(), first, failing, last)
    with pytest.raises(OSError, match="disk full"):
        job.apply(0, [ROWS])
    assert state(job) is TransactionState.ABORTED
    assert first.partner.prepared == last.partner.prepared == {}
    assert ends(first.partner) == [f"abort {FIRST}.0.0", f"abort_transaction {FIRST}"]
    assert sorted(asked[-2:]) == ["abort a", "abort b"]
    assert ("abort_branch a" in asked) is (phase == "pre_commit")


def test_a_member_whose_abort_fails_keeps_no_other_from_it(asked):
    """The first error is the one that is raised."""
    first, failing, last = Files("first"), Files("failing"), Files("last")
    failing.partner.raises = {n: OSError(f"{n}: full") for n in ("pre_commit", "abort")}
    with pytest.raises(OSError, match="pre_commit: full"):
        job_of(first, failing, last).apply(0, [ROWS])
    assert ends(last.partner)[0] == f"abort {FIRST}.0.0"


def test_a_member_that_is_late_with_its_commit_is_asked_again(asked):
    """The others have committed meanwhile; only that one is told again."""
    slow, files = Files("slow"), Files("files")
    slow.partner.raises["commit"] = TimeoutError("busy")
    job = job_of(services(), slow, files)
    with pytest.raises(CommitPendingError, match="slow"):
        job.apply(0, [ROWS])
    assert [len(sink.partner.visible) for sink in (files, slow)] == [1, 0]
    slow.partner.raises.clear()
    assert job.apply(1, [ROWS]) is True
    assert [len(sink.partner.visible) for sink in (files, slow)] == [2, 2]
    assert asked.count("commit a") == 2
    assert state(job) is TransactionState.COMMITTED


def test_an_abort_before_the_votes_reaches_each_member(asked):
    """Each is told by itself, with what is its own."""

    class Stopped(FileJob):
        def prepare(self, transaction: TransactionId, *about: Any) -> Any:
            receipts = super().prepare(transaction, *about)
            self.log.abort(transaction, who="a person", why="a test")
            return receipts

    files = Files()
    with pytest.raises(AbortedError):
        Stopped(CompositeSink([services(), files]), temporary_log()).apply(0, [ROWS])
    assert files.partner.prepared == {}
    assert ends(files.partner) == [f"abort_transaction {FIRST}"]


class Nobody(Files):
    """Nobody would be told its decision."""

    participants: ClassVar[dict[str, Any]] = {}


SAME_URL = ParticipantSink({"c": "http://a:1"}, token=None)


@pytest.mark.parametrize(
    ("members", "why"),
    [
        ([Files(), Files()], "two of one name"),
        ([services(), Files("a")], "one name in two sinks"),
        ([Files("x y")], "no name of a participant"),
        ([services(), SAME_URL], "two of one URL"),
        ([Nobody()], "a sink of no participant"),
        ([], "no sink at all"),
    ],
)
def test_what_cannot_be_one_transaction_is_refused(members, why):
    """Where the sink is made, in a line that says what to change."""
    with pytest.raises(ConfigurationError, match=TEXTS[why]):
        CompositeSink(members) if members else as_single_sink(members)


def test_a_single_sink_has_a_name_too():
    """Its participant has the name that the sink says, or that of its class."""
    assert list(participants_of(Files("files"))) == ["files"]
    assert list(participants_of(Plain())) == ["Plain"]
    assert as_single_sink([(files := Files())]) is files
    assert as_single_sink(files) is files


def test_a_member_that_lacks_a_phase_is_named():
    """As where it is the only sink."""
    with pytest.raises(ContractError, match=TEXTS["an object is no sink"]):
        CompositeSink([Files(), object()])  # type: ignore[list-item]


def test_a_route_is_of_one_participant(asked):
    """Of whichever member it belongs to."""
    sink = CompositeSink([services(), Files("files")])
    for name in ("a", "b", "files"):
        routed = sink.route(name)
        assert list(participants_of(routed)) == [name]
        context = BranchContext(FIRST, BranchId(0, 1), (name,), {})
        (receipt,) = write_branch(routed, context, [ROWS])
        assert (receipt.participant, receipt.rows) == (name, 3)
    with pytest.raises(ConfigurationError, match=TEXTS["no such participant"]):
        sink.route("c")


@dataclasses.dataclass
class Folder(Files):
    """A sink as a dataclass: equal by its fields, and with no hash."""

    name: str


def test_routes_to_sinks_that_have_no_hash(monkeypatch):
    """A dataclass is a sink like any other; each route's receipts count."""
    sink = CompositeSink([Folder("first"), Folder("last")])
    participants = tuple(sink.participants)
    record = (
        temporary_log()
        .begin(
            "orders",
            0,
            Opening(run="r", query=None, participants=participants, carrier={}),
        )
        .record
    )

    def write(df: Any, routed: Any, of: TransactionRecord, *_: Any) -> Written:
        (name,) = participants_of(routed)
        return Written([Receipt(BranchId(0, len(name)), name, 1, "", Vote.COMMIT)], 8)

    monkeypatch.setattr(foreach_batch, "write_partitions", write)
    monkeypatch.setattr(foreach_batch, "materialised", contextlib.nullcontext)
    stream = SimpleNamespace(jobs_of=contextlib.nullcontext)
    routes = {name: lambda df: df for name in ("first", "last")}
    job = SimpleNamespace(sink=sink, links=None)
    attempt = foreach_batch._Attempt(None, stream, job, routes, in_driver=False)  # type: ignore[arg-type]
    assert [r.participant for r in attempt.write(record)] == ["first", "last"]
    assert attempt.arrow_bytes == 16


def test_a_sink_may_call_something_its_members():
    """Only what is made of several sinks is looked into."""
    files = Files()
    files.members = 3  # type: ignore[attr-defined]
    check_leftovers(files)


def test_several_sinks_within_several(asked):
    """All are checked, and each can have a route."""
    inner = CompositeSink([services(), Files("files")])
    sink = CompositeSink([inner, Files("more")])
    for name in ("a", "files"):
        assert list(participants_of(sink.route(name))) == [name]
    services_of_none = ParticipantSink({"a": "http://a:1"}, token="env:TPC_NONE")
    with pytest.raises(ConfigurationError, match="TPC_NONE"):
        CompositeSink([CompositeSink([services_of_none])]).check("orders")


def test_two_names_of_one_service_are_found_at_the_start(monkeypatch):
    """Whichever members they belong to, and whatever their URLs are."""
    monkeypatch.setattr(HttpParticipant, "identity", lambda _: Identity("one", {}))
    members = [ParticipantSink({n: f"http://{n}:1"}, token=None) for n in ("a", "b")]
    with pytest.raises(ConfigurationError, match=TEXTS["two names of one service"]):
        CompositeSink(members).check("orders")


def test_it_travels_to_executors():
    """As any sink does: pickled, with its members."""
    sink = CompositeSink([services(), Files("files"), Files("more")])
    copy = cloudpickle.loads(cloudpickle.dumps(sink))
    assert list(copy.participants) == ["a", "b", "files", "more"]


def test_a_partition_without_rows_touches_no_member(asked):
    """Everybody votes read_only, without a request or a file."""
    sink = CompositeSink([services(), (files := Files("files"))])
    context = BranchContext(FIRST, BranchId(0, 1), tuple(sink.participants), {})
    receipts = write_branch(sink, context, [])
    assert {r.vote for r in receipts} == {Vote.READ_ONLY}
    assert [r.participant for r in receipts] == ["a", "b", "files"]
    assert (asked, files.partner.calls) == ([], [])
