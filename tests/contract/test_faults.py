"""Each fault of the network on each request: once everywhere, or nowhere.

A real coordinator, log and sink, two participants; one of them behind a proxy that
makes the fault happen.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import random
import re
import socket
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pyarrow as pa
import pytest
import urllib3
from support.branches import records
from support.kinds import KINDS, POSTGRESQL_ONLY, sqlite_url
from support.participant import World, select
from support.served import served
from support.texts import texts
from support.waiting import PATIENT, until
from werkzeug.serving import make_server

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.errors import ParticipantUnavailableError
from tracing_2pc.core.model import BranchContext, BranchId, Receipt, TransactionRecord
from tracing_2pc.core.ports import DecisionLog
from tracing_2pc.http import connection
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.sinks import participant_sink as sink_module
from tracing_2pc.sinks.base import write_branch
from tracing_2pc.sinks.job import Job as SinkJob
from tracing_2pc.spark.tasks import read_receipts
from tracing_2pc.store import open_log
from tracing_2pc.testing import Fault, FaultProxy, SeenRequest
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

pytestmark = pytest.mark.ci

MANUAL = Path(__file__).parents[2] / "docs" / "testing.md"
EXAMPLES = ["test_a_commit_whose_answer_is_lost", "test_an_order_is_at_both_once"]

ROWS = 4
"""Rows in a partition; a batch has two partitions."""

PER_CASE = 1_000
"""Ids that one case may use: the participants are started once, for all of them."""

READ = {
    "TaggedRows": "SELECT id FROM orders",
    "PreparedTransactions": "SELECT id FROM orders",
    "Outbox": """SELECT json_extract(body, '$.id') FROM outbox_tpc
        WHERE tpc_tag IN (SELECT tag FROM outbox_tpc_queue)""",
}
"""How the ids that a reader sees are read, for each kind of resource."""

SURVIVED = [f for f in Fault if f is not Fault.LATE_AFTER_ABORT]
OF_A_BRANCH = [
    Fault.DROP,
    Fault.LOSE_ANSWER,
    Fault.DUPLICATE,
    Fault.DUPLICATE_LATER,
    Fault.DELAY,
]
"""Faults of a task's own abort; whatever it is answered, it goes on to raise."""
UNANSWERED = [f for f in Fault if f not in {Fault.DUPLICATE, Fault.DUPLICATE_LATER}]

NOT_DONE = {Fault.DROP, Fault.UNAVAILABLE, Fault.GARBAGE, Fault.PAGE}
"""Faults that keep the request from the participant."""

EXPECTED: dict[Fault, set[tuple[int, ...]]] = {
    **{fault: {()} for fault in NOT_DONE},
    Fault.LOSE_ANSWER: {(200,)},
    Fault.DELAY: {(200,)},
    Fault.DUPLICATE: {(200, 200)},
    Fault.DUPLICATE_LATER: {(200, 200)},
    Fault.LATE_AFTER_ABORT: {(409,)},
}
"""What the participant answers to a request with a fault."""

OF_PREPARE = EXPECTED | {
    Fault.DELAY: {(200,), (425,), (409,)},
    Fault.DUPLICATE: {(200, 200), (200, 425)},
    Fault.DUPLICATE_LATER: {(200, 409)},
}
"""The same for a prepare: it may be under way already, or decided since."""

IMPATIENT = Settings(
    on_pending="fail", backoff_base=0.005, backoff_cap=0.02, inline_tries=30
)
"""A commit that nobody acknowledges fails the test, instead of being waited for."""

NUMBERS = itertools.count(1)
"""Numbers of the cases."""


class TaskFailedError(Exception):
    """A task that fails for a reason of its own."""


def fail_after_the_votes(partition: int) -> None:
    if partition == -1:
        raise TaskFailedError


def fail_in_the_second_task(partition: int) -> None:
    if partition == 1:
        raise TaskFailedError


@contextlib.contextmanager
def serving(world: World) -> Iterator[str]:
    """Serve a participant, and close it."""
    server = make_server("127.0.0.1", 0, world.app, threaded=True)
    with contextlib.closing(world.resource), served(server):
        yield f"http://127.0.0.1:{server.server_port}"


@dataclasses.dataclass(frozen=True)
class Servers:
    """What is started once: two participants, and a log.

    Args:
        kind: what the first participant holds its data with.
        worlds: the first participant, which gets the proxy, and the second.
        urls: theirs.
        log: the decision log.
    """

    kind: str
    worlds: tuple[World, World]
    urls: tuple[str, str]
    log: DecisionLog

    def visible(self) -> list[list[int]]:
        """Return the ids that readers of the two see."""
        kinds = zip((self.kind, "TaggedRows"), self.worlds, strict=True)
        return [
            [id_ for (id_,) in select(world.resource, READ[kind])]
            for kind, world in kinds
        ]


@dataclasses.dataclass
class Job:
    """A driver and its tasks; the first of its participants has faults.

    Args:
        number: of the case, for an application and ids of its own.
        servers: what it runs against.
        proxy: stands before the first participant.
        sink: reaches both.
        hang_up: once the proxy holds a request back, ends the connection it came by.
        settings: of the coordinator.
    """

    number: int
    servers: Servers
    proxy: FaultProxy
    sink: ParticipantSink
    hang_up: Callable[[], object]
    settings: Settings = IMPATIENT
    task_attempts: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    runs: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    @property
    def application(self) -> str:
        return f"orders-{self.number}"

    def ids(self, batch: int, partition: int) -> range:
        """Return the ids in a partition; no two have one in common."""
        start = self.number * PER_CASE + (2 * batch + partition) * ROWS
        return range(start, start + ROWS)

    def apply(self, batch: int, after: Callable[[int], None] = lambda _: None) -> bool:
        """Apply a batch, in a run of its own.

        Args:
            batch: its number.
            after: is told each partition whose rows are read, and -1 after the votes.
        """

        def write(record: TransactionRecord) -> Sequence[Receipt]:
            written = [r for n in range(2) for r in self._task(record, n, after)]
            after(-1)
            return read_receipts(r.to_json() for r in written)

        job = SinkJob(self.sink, self.application, self.settings)
        coordinator = job.coordinator(
            self.servers.log, OpenTelemetryTracing(), lambda: False
        )
        return coordinator.apply(
            batch,
            run=f"run-{next(self.runs)}",
            query=f"query of {self.application}",
            write=write,
            cancel=lambda _: None,
        )

    def _task(
        self,
        record: TransactionRecord,
        partition: int,
        after: Callable[[int], None],
    ) -> tuple[Receipt, ...]:
        def batches() -> Iterator[pa.RecordBatch]:
            ids = pa.array(self.ids(record.id.batch, partition), pa.int64())
            yield pa.RecordBatch.from_pydict({"id": ids})
            after(partition)

        branch = BranchId(partition, next(self.task_attempts))
        names = tuple(self.sink.participants)
        context = BranchContext(record.id, branch, names, record.carrier)
        return write_branch(self.sink, context, batches())

    def plan(self, verb: Any, fault: Fault) -> None:
        """Let a fault happen; a client whose request is held back gives up then."""
        self.proxy.plan(verb, fault)
        if fault is Fault.DELAY:
            self.hang_up()

    def happened(self, verb: str, fault: Fault) -> list[SeenRequest]:
        return [s for s in self.proxy.seen if (s.verb, s.fault) == (verb, fault)]

    def landed_once(
        self, verb: str, fault: Fault, expected: set[tuple[int, ...]]
    ) -> None:
        """The batch is in both, and the participant answered the fault's request so."""
        self.nothing_is_open()
        self.holds(1)
        (seen,) = self.happened(verb, fault)
        assert statuses_of(seen) in expected

    def nothing_is_open(self) -> None:
        """Nobody holds a branch without a decision, and the log owes nobody any."""
        self.proxy.release()
        mine = f"?application={self.application}"
        assert [world.listed(mine) for world in self.servers.worlds] == [[], []]
        assert self.servers.log.unfinished(self.application) == []

    def holds(self, batches: int) -> None:
        """Both hold the records of so many batches, each once, and no others."""
        numbers = itertools.product(range(batches), range(2))
        expected = Counter(itertools.chain(*(self.ids(*n) for n in numbers)))
        for found in self.servers.visible():
            mine = Counter(id_ for id_ in found if id_ // PER_CASE == self.number)
            assert mine == expected


@pytest.fixture(scope="module", params=["TaggedRows"])
def servers(request, tmp_path_factory) -> Iterator[Servers]:
    folders = [tmp_path_factory.mktemp(name) for name in ("first", "second")]
    url = sqlite_url(folders[0])
    if request.param in POSTGRESQL_ONLY:
        url = request.getfixturevalue("new_database")()
    first = KINDS[request.param](url)
    second = KINDS["TaggedRows"](sqlite_url(folders[1]))
    log = open_log(f"sqlite:///{folders[1]}/log.db")
    for world in (first, second):  # makes the table, whichever test is the first
        branch = records(id=pa.array([0], pa.int64()))
        assert world.prepare("first.0.1", branch).status_code == 200
        assert world.abort("first.0.1").status_code == 200
    with serving(first) as one, serving(second) as other, contextlib.closing(log):
        yield Servers(request.param, (first, second), (one, other), log)


@pytest.fixture
def open_job(servers, monkeypatch) -> Iterator[Callable[..., Job]]:
    """Make a job whose tasks ask again soon, for a long time, and that has time."""
    sockets: list[socket.socket] = []
    over = threading.Event()
    connect = urllib3.connection.HTTPConnection.connect

    def connect_and_note(self: Any) -> None:
        connect(self)
        sockets.append(self.sock)

    def hang_up(proxy: FaultProxy) -> None:
        held = {(Fault.DELAY, ())}
        until(
            lambda: over.is_set() or held & {(s.fault, s.statuses) for s in proxy.seen}
        )
        for one in sockets:
            with contextlib.suppress(OSError):  # closed already, or another's
                if one.getpeername()[1] == urlsplit(proxy.url).port:
                    one.shutdown(socket.SHUT_RDWR)

    def hasty(clock: Any, **_: Any) -> RetryPolicy:
        return RetryPolicy(clock, 0.002, 0.01)

    monkeypatch.setattr(sink_module, "RetryPolicy", hasty)
    monkeypatch.setattr(sink_module, "PREPARE_SECONDS", PATIENT)
    monkeypatch.setattr(urllib3.connection.HTTPConnection, "connect", connect_and_note)
    with contextlib.ExitStack() as stack:

        def start() -> Job:
            proxy = stack.enter_context(FaultProxy(servers.urls[0], timeout=PATIENT))
            urls = {"troubled": proxy.url, "healthy": servers.urls[1]}
            sink = ParticipantSink(urls, token=None, timeout=PATIENT)

            def hang_up_soon() -> None:
                thread = threading.Thread(target=hang_up, args=(proxy,))
                stack.callback(thread.join)
                stack.callback(over.set)
                thread.start()

            return Job(next(NUMBERS), servers, proxy, sink, hang_up_soon)

        yield start
    connection.pool_of.cache_clear()


def statuses_of(seen: SeenRequest) -> tuple[int, ...]:
    """Return what the participant answered, in no order for what was sent at once."""
    answered = [status for status in seen.statuses if status is not None]
    return tuple(sorted(answered)) if seen.fault is Fault.DUPLICATE else (*answered,)


each_kind = pytest.mark.parametrize(
    "servers",
    [pytest.param(k, marks=() if k == "TaggedRows" else pytest.mark.ci) for k in KINDS],
    indirect=True,
    scope="module",
)
"""Where the kind matters for what the participant holds. For the others it does not."""


@each_kind
@pytest.mark.parametrize(
    ("verb", "fault", "expected"),
    [
        *(("prepare", fault, OF_PREPARE[fault]) for fault in Fault),
        *(("commit", fault, EXPECTED[fault]) for fault in SURVIVED),
    ],
)
def test_it_is_asked_again_and_the_batch_lands_once(open_job, verb, fault, expected):
    """Whatever became of the first request: only the answer to this very one counts."""
    job = open_job()
    job.plan(verb, fault)
    assert job.apply(0) is True
    job.landed_once(verb, fault, expected)


@pytest.mark.parametrize(
    ("fault", "fail"),
    [(fault, fail_after_the_votes) for fault in SURVIVED]
    + [(fault, fail_in_the_second_task) for fault in OF_A_BRANCH],
)
def test_an_abort_is_delivered_before_the_next_attempt(open_job, fault, fail):
    """Nothing of the failed attempt is seen, ever; the next one lands once."""
    job = open_job()
    job.plan("abort", fault)
    with pytest.raises(TaskFailedError):
        job.apply(0, fail)
    job.holds(0)
    assert job.apply(0) is True
    job.landed_once("abort", fault, EXPECTED[fault])


@pytest.mark.parametrize("fault", UNANSWERED)
def test_a_prepare_that_is_given_up_aborts(open_job, fault, monkeypatch):
    """The attempt is nowhere, even if its prepare comes at last; the next one lands."""
    job = open_job()
    job.plan("prepare", fault)
    with monkeypatch.context() as patch:
        patch.setattr(sink_module, "PREPARE_SECONDS", -1.0)
        with pytest.raises(ParticipantUnavailableError):
            job.apply(0)
    job.nothing_is_open()
    job.holds(0)
    (seen,) = job.happened("prepare", fault)
    assert statuses_of(seen) in OF_PREPARE[fault]
    assert job.apply(0) is True
    job.nothing_is_open()
    job.holds(1)


def test_a_participant_that_does_not_vote_is_named_before_it_is_waited_for(
    open_job, caplog
):
    """Once, however often it is asked: who starts a job sees what it waits for."""
    job = open_job()
    job.plan("prepare", Fault.UNAVAILABLE)
    assert job.apply(0) is True
    (line,) = [r.getMessage() for r in caplog.records if r.name == sink_module.__name__]
    said = texts("contract")["asks again"].format(seconds=PATIENT)
    assert line.startswith(said)
    assert job.proxy.url in line


def test_a_prepare_after_the_seal_is_refused(open_job, monkeypatch):
    """Its branch's own abort was lost: the seal of the transaction keeps it out."""
    monkeypatch.setattr(sink_module, "PREPARE_SECONDS", -1.0)
    job = open_job()
    job.proxy.plan("prepare", Fault.LATE_AFTER_ABORT)
    job.proxy.plan("abort", Fault.DROP)
    with pytest.raises(ParticipantUnavailableError):
        job.apply(0)
    (late,) = job.happened("prepare", Fault.LATE_AFTER_ABORT)
    (lost,) = job.happened("abort", Fault.DROP)
    assert late.statuses == (409,)
    assert (late.branch, lost.statuses) == (lost.branch, ())
    job.nothing_is_open()
    job.holds(0)


@pytest.mark.parametrize(
    ("keep_finished", "refused"), [(3600.0, (409, 200, 200)), (0.0, (410, 410, 410))]
)
def test_what_comes_again_batches_later_changes_nothing(
    open_job, keep_finished, refused
):
    """A prepare and an abort of a failed attempt, and a commit: known, or forgotten."""
    job = open_job()
    job.settings = dataclasses.replace(job.settings, keep_finished=keep_finished)
    job.proxy.plan("prepare", Fault.DUPLICATE_LATER)
    job.proxy.plan("abort", Fault.DUPLICATE_LATER)
    job.proxy.plan("commit", Fault.DUPLICATE_LATER)
    with pytest.raises(TaskFailedError):
        job.apply(0, fail_after_the_votes)
    for batch in range(3):
        assert job.apply(batch) is True
    job.nothing_is_open()
    job.holds(3)
    again = [s for s in job.proxy.seen if s.fault is not None]
    assert [s.verb for s in again] == ["prepare", "abort", "commit"]
    assert [s.statuses for s in again] == [(200, status) for status in refused]


@pytest.mark.parametrize("seed", range(2))
def test_one_fault_after_another(open_job, seed):
    """Batch for batch, whatever goes wrong in whatever order: each lands once."""
    job = open_job()
    chance = random.Random(seed)
    faults = [f for f in SURVIVED if f is not Fault.DELAY]
    failed = 0
    for batch in range(6):
        for fault in chance.sample(faults, 2):
            job.plan("prepare", fault)
        for fault in chance.sample(faults, 2):
            job.plan("commit", fault)
        if chance.random() < 0.5:
            failed += 1
            job.proxy.plan("abort", chance.choice(faults))
            with pytest.raises(TaskFailedError):
                job.apply(batch, fail_after_the_votes)
        assert job.apply(batch) is True
    job.nothing_is_open()
    job.holds(6)
    happened = Counter(s.verb for s in job.proxy.seen if s.fault is not None)
    assert (happened["prepare"], happened["abort"]) == (12, failed)
    assert happened["commit"] >= 6


@pytest.mark.parametrize("example", EXAMPLES)
def test_the_examples_in_the_manual(example, tmp_path, monkeypatch):
    """Tests of a job pass as they stand there."""
    text = MANUAL.read_text(encoding="utf-8")
    found = rf"^```python\n([^`]*def {example}\(.*?)^```"
    (block,) = re.findall(found, text, re.M | re.S)
    names: dict[str, Any] = {}
    exec(block, names)
    names[example](tmp_path, monkeypatch)
