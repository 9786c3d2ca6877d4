"""Several sinks of different kinds make one transaction."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Iterator
from types import SimpleNamespace
from typing import Any, ClassVar

import cloudpickle
import pyarrow as pa
import pytest
from support.protocol import FakeClock
from support.texts import texts

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
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import TransactionState, Vote
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.sinks.base import check_leftovers, participants_of, write_branch
from tracing_2pc.sinks.composite import CompositeSink, as_single_sink
from tracing_2pc.spark import foreach_batch
from tracing_2pc.spark.tasks import Written
from tracing_2pc.testing import temporary_log
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

TEXTS = texts("unit")

FIRST = TransactionId("orders", 0, 1)


@traced_sink
class Files:
    """Keeps its branches in memory, as a folder would."""

    def __init__(self, name: str | None = None) -> None:
        if name is not None:
            self.name = name
        self.prepared: dict[str, list[Any]] = {}
        self.visible: dict[str, list[Any]] = {}
        self.heard: list[str] = []
        self.fails: set[str] = set()

    def begin(self, context: BranchContext) -> Any:
        self._raise_if_told("begin")
        path = f"{context.transaction_id}-{context.branch}"
        return {"path": path, "of": ",".join(context.participants), "rows": []}

    def invoke(self, handle: Any, record: Any) -> None:
        handle["rows"].append(record["n"])

    def pre_commit(self, handle: Any) -> None:
        self._raise_if_told("pre_commit")
        self.prepared[handle["path"]] = handle.pop("rows")

    def commit(self, handle: Any) -> None:
        self._raise_if_told("commit")
        self.heard.append(f"commit {handle['of']} {handle['path']}")
        if handle["path"] in self.prepared:
            self.visible[handle["path"]] = self.prepared.pop(handle["path"])

    def abort(self, handle: Any) -> None:
        self.heard.append(f"abort {handle['of']} {handle['path']}")
        self._raise_if_told("abort")
        self.prepared.pop(handle["path"], None)

    def abort_transaction(self, transaction_id: str, keep: list[Any]) -> None:
        self.heard.append(f"abort_transaction {len(keep)}")
        kept = {handle["path"] for handle in keep}
        for path in [p for p in self.prepared if p.startswith(f"{transaction_id}-")]:
            if path not in kept:
                del self.prepared[path]

    def _raise_if_told(self, phase: str) -> None:
        if phase in self.fails:
            raise OSError(f"{phase}: disk full")


class Wire:
    """Stands in for the services `a` and `b`: what each was asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.asked: list[str] = []

        def prepare(me: HttpParticipant, *args: Any, **kwargs: Any) -> Vote:
            self.asked.append(f"prepare {me.name}")
            return Vote.COMMIT

        def ask(phase: str) -> Any:
            def call(me: HttpParticipant, record: Any, *args: Any) -> None:
                self.asked.append(f"{phase} {me.name}")

            return call

        monkeypatch.setattr(HttpParticipant, "prepare", prepare)
        for phase in ("commit", "abort", "abort_branch"):
            monkeypatch.setattr(HttpParticipant, phase, ask(phase))


@pytest.fixture
def wire(monkeypatch) -> Wire:
    return Wire(monkeypatch)


def services() -> ParticipantSink:
    return ParticipantSink({"a": "http://a:1", "b": "http://b:1"}, token=None)


class Job:
    """One application that writes to the sink."""

    def __init__(self, *members: Any) -> None:
        self.sink = CompositeSink(members)
        self.clock = FakeClock()
        self.log = temporary_log(now=self.clock.now)

    def apply(self, *branches: str, batch: int = 0) -> bool:
        participants = self.sink.participants
        tracing, retry = OpenTelemetryTracing(), RetryPolicy(self.clock, inline_tries=2)
        delivery = Delivery(self.log, participants, tracing=tracing, retry=retry)
        coordinator = Coordinator(
            "orders", tuple(participants), self.log, delivery, tracing, self.clock,
            Settings(on_pending="fail"), retry, frozenset(participants) - {"a", "b"},
        )  # fmt: skip
        return coordinator.apply(
            batch,
            run="run",
            query="query",
            write=lambda record: self.write(record, branches),
            cancel=lambda _: None,
        )

    def write(self, record: TransactionRecord, branches: Iterable[str]) -> Any:
        receipts: list[Receipt] = []
        for branch in branches:
            names = tuple(self.sink.participants)
            context = BranchContext(record.id, BranchId.parse(branch), names, {})
            receipts += write_branch(self.sink, context, rows())
        return receipts

    @property
    def state(self) -> TransactionState:
        record = self.log.read(FIRST)
        assert record is not None
        return record.state


def rows() -> Iterator[pa.RecordBatch]:
    yield pa.RecordBatch.from_pydict({"n": [1, 2]})
    yield pa.RecordBatch.from_pydict({"n": [3]})


def test_every_participant_of_every_sink_gets_each_partition_once(wire):
    """One receipt per participant; a hand-written sink's has its own handle."""
    files, more = Files("files"), Files("more")
    job = Job(services(), files, more)
    assert job.apply("0.1", "1.2") is True
    record = job.log.read(FIRST)
    assert record is not None
    assert record.participants == ("a", "b", "files", "more")
    assert [(str(r.branch), r.participant) for r in record.receipts] == [
        (branch, name)
        for branch in ("0.1", "1.2")
        for name in ("a", "b", "files", "more")
    ]
    assert (record.rows, record.state) == (6, TransactionState.COMMITTED)
    assert (
        sorted(wire.asked)
        == ["commit a", "commit b"] + ["prepare a"] * 2 + ["prepare b"] * 2
    )
    for name, sink in (("files", files), ("more", more)):
        assert sink.visible == {f"{FIRST}-{b}": [1, 2, 3] for b in ("0.1", "1.2")}
        assert sink.heard == [
            *(f"commit {name} {FIRST}-{b}" for b in ("0.1", "1.2")),
            "abort_transaction 2",
        ]


@pytest.mark.parametrize("phase", ["begin", "pre_commit"])
def test_a_member_that_fails_aborts_the_branch_of_all(wire, phase):
    """Its error is the branch's vote; the others drop what they have, and are told."""
    first, failing, last = Files("first"), Files("failing"), Files("last")
    failing.fails = {phase}
    job = Job(services(), first, failing, last)
    with pytest.raises(OSError, match="disk full"):
        job.apply("0.1")
    assert job.state is TransactionState.ABORTED
    assert first.prepared == last.prepared == {}
    assert first.heard == [f"abort first {FIRST}-0.1", "abort_transaction 0"]
    assert sorted(wire.asked[-2:]) == ["abort a", "abort b"]
    assert ("abort_branch a" in wire.asked) is (phase == "pre_commit")


def test_a_member_whose_abort_fails_keeps_no_other_from_it(wire):
    """The first error is the one that is raised."""
    first, failing, last = Files("first"), Files("failing"), Files("last")
    failing.fails = {"pre_commit", "abort"}
    with pytest.raises(OSError, match="pre_commit: disk full"):
        Job(first, failing, last).apply("0.1")
    assert last.heard[0] == f"abort last {FIRST}-0.1"


def test_a_member_that_is_late_with_its_commit_is_asked_again(wire):
    """The others have committed meanwhile; only that one is told again."""
    slow, files = Files("slow"), Files("files")
    slow.fails = {"commit"}
    job = Job(services(), slow, files)
    with pytest.raises(CommitPendingError, match="slow"):
        job.apply("0.1")
    assert (len(files.visible), len(slow.visible)) == (1, 0)
    slow.fails = set()
    assert job.apply("0.2", batch=1) is True
    assert (len(files.visible), len(slow.visible)) == (2, 2)
    assert wire.asked.count("commit a") == 2
    assert job.state is TransactionState.COMMITTED


def test_an_abort_before_the_votes_reaches_each_member(wire):
    """Each is told by itself, with what is its own."""
    files = Files()
    job = Job(services(), files)

    def write(record: TransactionRecord, branches: Iterable[str]) -> Any:
        receipts = Job.write(job, record, branches)
        job.log.abort(record.id, who="a person", why="a test")
        return receipts

    job.write = write  # type: ignore[method-assign]
    with pytest.raises(AbortedError):
        job.apply("0.1")
    assert files.prepared == {}
    assert files.heard == ["abort_transaction 0"]


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
    assert list(participants_of(Files())) == ["Files"]
    assert as_single_sink([(files := Files())]) is files
    assert as_single_sink(files) is files


def test_a_member_that_lacks_a_phase_is_named():
    """As where it is the only sink."""
    with pytest.raises(ContractError, match=TEXTS["an object is no sink"]):
        CompositeSink([Files(), object()])  # type: ignore[list-item]


def test_a_route_is_of_one_participant(wire):
    """Of whichever member it belongs to."""
    sink = CompositeSink([services(), Files("files")])
    for name in ("a", "b", "files"):
        routed = sink.route(name)
        assert list(participants_of(routed)) == [name]
        context = BranchContext(FIRST, BranchId(0, 1), (name,), {})
        (receipt,) = write_branch(routed, context, rows())
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
        .begin("orders", 0, run="r", query=None, participants=participants, carrier={})
        .record
    )

    def write(df: Any, routed: Any, of: TransactionRecord, _: None) -> Written:
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


def test_several_sinks_within_several(wire):
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


def test_a_partition_without_rows_touches_no_member(wire):
    """Everybody votes read_only, without a request or a file."""
    sink = CompositeSink([services(), (files := Files("files"))])
    context = BranchContext(FIRST, BranchId(0, 1), tuple(sink.participants), {})
    receipts = write_branch(sink, context, [])
    assert {r.vote for r in receipts} == {Vote.READ_ONLY}
    assert [r.participant for r in receipts] == ["a", "b", "files"]
    assert (wire.asked, files.heard) == ([], [])
    assert dataclasses.replace(context).participants == ("a", "b", "files")
