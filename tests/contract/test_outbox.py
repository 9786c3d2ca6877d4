"""The outbox in real processes: killed, hung up on, restarted, several at once."""

from __future__ import annotations

import contextlib
import http.server
import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from support.metrics import assert_of_the_registry, samples
from support.participant import TRACE, Branch, World, end, records
from support.served import served

from participants import processes
from tracing_2pc.participant import Outbox
from tracing_2pc.participant.resources import sender
from tracing_2pc.participant.resources.partner import PartnerAnswer
from tracing_2pc.participant.resources.queue import Request

T = "orders.7.1"
TIMEOUT, LEASE = 5.0, 15.0
"""An answer that comes later is sent again, which where much else runs is no fault."""

SHORT = {"timeout": 2.0, "lease": 6.0}
"""For who waits until they run out."""

PATIENT = {"timeout": 60.0, "lease": 180.0}
"""For who counts requests: no busy machine makes an answer so late."""

SENDER = """
import sys
from tracing_2pc.participant import Outbox
url, partner, timeout, lease = sys.argv[1:]
outbox = Outbox(url, partner=partner, timeout=float(timeout), lease=float(lease))
outbox.open()
outbox.start()
print("ready", flush=True)
sys.stdin.read()
outbox.close()
"""


class Partner:
    """A partner that notes what arrives, and does to each request what is planned.

    A plan is a status, or `drop` (no answer), `hang` (none until `let_go`), `slow`
    (200, with a body that never ends). What `always` has, by the beginning of a key,
    counts where nothing is planned.
    """

    def __init__(self, port: int = 0) -> None:
        self.keys: list[str] = []
        self.traces: list[str] = []
        self.bodies: list[Any] = []
        self.times: list[float] = []
        self.plan: list[int | str] = []
        self.always: dict[str, int] = {}
        self.most = 0
        self.let_go = threading.Event()
        self._under_way = 0
        self._counting = threading.Lock()
        partner = self

        class Handler(http.server.BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                partner._count(1)
                try:
                    partner._answer(self)
                except OSError:
                    self.close_connection = True
                finally:
                    partner._count(-1)

            def log_message(self, *_: Any) -> None:
                pass

        server = http.server.ThreadingHTTPServer(("127.0.0.1", port), Handler)
        self.url = f"http://127.0.0.1:{server.server_port}/orders"
        self._serving = contextlib.ExitStack()
        self._serving.enter_context(served(server))

    def _count(self, more: int) -> None:
        with self._counting:
            self._under_way += more
            self.most = max(self.most, self._under_way)

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        body = json.loads(request.rfile.read(int(request.headers["Content-Length"])))
        key = request.headers["Idempotency-Key"]
        known = (s for k, s in self.always.items() if (key or "").startswith(k))
        planned = self.plan.pop(0) if self.plan else next(known, 200)
        self.bodies.append(body)
        self.traces.append(request.headers["traceparent"])
        self.times.append(time.monotonic())
        self.keys.append(key)
        if planned == "hang":
            self.let_go.wait(120)
        if planned in {"hang", "drop"}:
            request.close_connection = True
            return
        request.send_response(200 if planned == "slow" else int(planned))
        request.send_header("Content-Length", "100000" if planned == "slow" else "0")
        request.end_headers()
        while planned == "slow" and not self.let_go.wait(0.1):
            request.wfile.write(b".")
            request.wfile.flush()

    def close(self) -> None:
        self.let_go.set()
        self._serving.close()


@pytest.fixture
def partner() -> Iterator[Partner]:
    made = Partner()
    yield made
    made.close()


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_POLL", 0.05)
    monkeypatch.setattr(sender, "_FIRST_PAUSE", 0.02)


any_database = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""For what no database has a part in."""

Make = Callable[..., World]


@pytest.fixture
def make(url: str, partner: Partner) -> Iterator[Make]:
    """Make a participant; `sends=False` for one whose sender never starts."""
    made: list[World] = []

    def one(*, sends: bool = True, **options: Any) -> World:
        settings = {"partner": partner.url, "timeout": TIMEOUT, "lease": LEASE}
        resource = Outbox(url, **{**settings, **options})
        if not sends:
            resource.start = lambda: None  # type: ignore[method-assign]
        made.append(World(resource, lambda: backlog(resource)))
        return made[-1]

    yield one
    for world in made:
        end(world.resource)


Process = subprocess.Popen[bytes]


@pytest.fixture
def sending(url: str, partner: Partner) -> Iterator[Callable[..., Process]]:
    """Start a process that does nothing but send."""
    started: list[Process] = []

    def start(limits: Mapping[str, float] = SHORT) -> Process:
        command = [sys.executable, "-c", SENDER, url, partner.url]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        process = subprocess.Popen([*command, *map(str, limits.values())], **pipes)  # type: ignore[call-overload]
        started.append(process)
        assert process.stdout is not None
        assert process.stdout.readline() == b"ready\n"
        return process

    yield start
    for process in started:
        process.communicate(timeout=120)


def backlog(resource: Outbox) -> int:
    return int(resource.gauges()["tpc.outbox.backlog"])


def eventually(holds: Callable[[], bool], seconds: float = 120.0) -> None:
    until = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def ids(*found: int, branch: str = "0.1") -> Branch:
    made: Branch = records(branch, id=pa.array(found, pa.int64()))
    return made


def cards(rows: int) -> Branch:
    """What must not be in a log."""
    made: Branch = records(id=[f"card-{row}" for row in range(rows)])
    return made


def commit(world: World, transaction: str, *branches: Branch) -> None:
    for branch in branches:
        assert world.prepare(transaction, branch).status_code == 200
    assert world.commit(transaction, *branches).status_code == 200


def keys_of(transaction: str, rows: int, branch: str = "0.1") -> list[str]:
    return [f"{transaction}.{branch}.{row}" for row in range(rows)]


def test_nothing_before_the_commit_and_nothing_after_an_abort(
    make: Make, partner: Partner
) -> None:
    """Only the attempt, the branches and the outcome that were decided are sent."""
    world = make()
    first, twin = ids(1), ids(1, branch="0.2")
    assert world.prepare(T, first).status_code == 200
    assert world.prepare("orders.7.2", first).status_code == 200
    assert world.prepare("orders.7.2", twin).status_code == 200
    assert world.abort(T).status_code == 200
    time.sleep(0.3)
    assert partner.keys == []
    for _ in range(3):  # an answer that was lost is asked for again
        assert world.commit("orders.7.2", twin).status_code == 200
    eventually(lambda: backlog(world.resource) == 0)
    assert world.abort("orders.7.2").status_code == 409
    time.sleep(0.3)
    assert partner.keys == ["orders.7.2.0.2.0"]


def test_a_commit_by_hand_is_sent_too(make: Make, partner: Partner) -> None:
    """An orphan that an operator commits is sent, and one that is aborted is not."""
    world = make()
    assert world.prepare(T, ids(1)).status_code == 200
    assert world.prepare("orders.8.1", ids(2)).status_code == 200
    assert world.resolve(T, "commit").status_code == 200
    assert world.resolve("orders.8.1", "abort").status_code == 200
    eventually(lambda: partner.keys == [f"{T}.0.1.0"])
    eventually(lambda: backlog(world.resource) == 0)


@pytest.mark.parametrize(
    ("plan", "status", "asked"),
    [
        ([200, 200, 200], 200, 3),
        ([200, 200, 422], 409, 3),
        ([200, 413], 409, 2),
        ([200, 409], 409, 2),
        ([200, 403], 503, 2),
        ([404], 503, 1),
        ([200, 500], 503, 2),
        (["drop"], 503, 1),
        ([429], 503, 1),
        ([302], 503, 1),
    ],
)
def test_the_check_at_prepare(
    make: Make, partner: Partner, plan: list[int | str], status: int, asked: int
) -> None:
    """All records are asked about; a no votes abort, silence is neither; both leave
    nothing behind, and say nothing of the records.
    """
    world = make(check=partner.url, sends=False)
    branch = ids(*range(4710_000_000, 4710_000_000 + 2_001))
    partner.plan = list(plan)
    answer = world.prepare(T, branch, once=True)
    assert answer.status_code == status
    assert [len(body["records"]) for body in partner.bodies] == [1000, 1000, 1][:asked]
    assert partner.keys == [None] * asked
    body = answer.get_json()
    assert body.get("vote") == {200: "commit", 409: "abort"}.get(status)
    assert "471000" not in answer.text  # more digits than a port has
    assert world.in_doubt() == (1 if status == 200 else 0)
    partner.plan = []
    assert world.prepare(T, branch).status_code == 200
    assert world.commit(T, branch).status_code == 200
    assert backlog(world.resource) == 2_001


@any_database
@pytest.mark.parametrize(
    "column",
    [
        pa.array([2**62], pa.timestamp("us")),
        pa.array([2**62], pa.timestamp("ns")),
        pa.array([-(2**62)], pa.timestamp("s")),
        pa.array([2**31 - 1], pa.date32()),
        pa.array([7], pa.duration("s")),
        pa.array([float("-inf")]),
        pa.array([{"deep": [float("nan")]}]),
    ],
    ids=str,
)
@pytest.mark.parametrize("checks", [True, False], ids=["checked", "unchecked"])
def test_a_value_that_json_cannot_say(
    make: Make, partner: Partner, column: pa.Array, *, checks: bool
) -> None:
    """It is sent as it reads, or refused at prepare: never a fault, never stuck."""
    world = make(sends=False, check=partner.url if checks else None)
    answer = world.prepare(T, records(x=column))
    if answer.status_code == 200:
        assert column.type == pa.timestamp("ns")
        return
    assert (answer.status_code, answer.get_json()["vote"]) == (400, "abort")
    assert world.in_doubt() == 0


def test_a_long_branch_is_sent_in_order(make: Make, partner: Partner) -> None:
    """Rows keep their order over many slices, each with a key of its own; and an
    application that has more to send does not keep another one waiting.
    """
    world = make(sends=False)
    rows = 2 * 100 + 5
    commit(world, T, ids(*range(rows)))
    commit(world, "orders.10.1", ids(-1))
    commit(world, "bills.900.1", ids(-2))
    sender_ = make()
    sender_.resource.start()
    eventually(lambda: backlog(world.resource) == 0)
    assert "bills.900.1.0.1.0" in partner.keys[:2]
    partner.keys.remove("bills.900.1.0.1.0")
    assert partner.keys == [*keys_of(T, rows), "orders.10.1.0.1.0"]
    sent = [body["id"] for body in partner.bodies if body["id"] != -2]
    assert sent == [*range(rows), -1]
    assert partner.most == 1


@any_database
def test_whatever_happens_to_the_answer_the_key_stays(
    make: Make, partner: Partner
) -> None:
    """Dropped, late, refused for now: sent again with the same key, before the next."""
    partner.plan = ["drop", 500, "hang", 503, "slow"]
    world = make(**SHORT)
    commit(world, T, ids(1, 2))
    eventually(lambda: backlog(world.resource) == 0)
    first, second = keys_of(T, 2)
    assert partner.keys == [first] * 5 + [second]


def test_a_partner_that_is_down(make: Make) -> None:
    """What is committed waits, and is sent when the partner comes back."""
    (port,) = processes.free_ports(1)
    world = make(partner=f"http://127.0.0.1:{port}/orders")
    commit(world, T, ids(1, 2))
    time.sleep(0.3)
    assert backlog(world.resource) == 2
    assert world.client.get("/health/ready").status_code == 200
    back = Partner(port)
    try:
        eventually(lambda: backlog(world.resource) == 0)
        assert back.keys == keys_of(T, 2)
    finally:
        world.resource.close()
        back.close()


@any_database
def test_pauses_grow_and_start_anew(
    make: Make, partner: Partner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each failure doubles the longest pause, up to a cap; a success resets it."""
    pauses: list[float] = []

    def uniform(least: float, most: float) -> float:
        assert least == 0
        pauses.append(most)
        return min(most, 0.01)

    monkeypatch.setattr(sender.random, "uniform", uniform)
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.1)
    partner.plan = [500] * 5 + [200, 500]
    world = make()
    commit(world, T, ids(1, 2))
    eventually(lambda: backlog(world.resource) == 0)
    assert pauses == [0.02, 0.04, 0.08, 0.1, 0.1, 0.02]


def test_a_refusal_does_not_block_the_queue(
    make: Make, partner: Partner, caplog: pytest.LogCaptureFixture
) -> None:
    """It is kept whole for a person, counted, and reported without its content."""
    partner.plan = [422, 200, 413, 400]
    world = make()
    commit(world, T, cards(5))
    eventually(lambda: backlog(world.resource) == 0)
    assert partner.keys == keys_of(T, 5)
    kept = world.resource.quarantined()
    assert [(k["key"], k["status"], json.loads(k["body"])) for k in kept] == [
        (f"{T}.0.1.0", 422, {"id": "card-0"}),
        (f"{T}.0.1.2", 413, {"id": "card-2"}),
        (f"{T}.0.1.3", 400, {"id": "card-3"}),
    ]
    assert measured(world)["tpc_outbox_quarantined"] == 3
    assert "quarantined" in caplog.text
    assert "card" not in str([vars(record) for record in caplog.records])
    assert len(make().resource.quarantined()) == 3


@any_database
def test_an_expired_token_loses_nothing(
    make: Make, partner: Partner, tmp_path: Path
) -> None:
    """401 speaks of the sender: all is kept, and sent in order with the new token."""
    token = tmp_path / "token"
    token.write_text("an-old-token-of-ours")
    world = make(token=f"file:{token}")
    partner.always = {"orders": 401}
    commit(world, T, cards(30))
    eventually(lambda: len(partner.keys) > 3)
    assert measured(world)["tpc_outbox_backlog"] == 30
    token.write_text("a-new-token-of-ours")
    partner.always = {}
    eventually(lambda: backlog(world.resource) == 0)
    assert list(dict.fromkeys(partner.keys)) == keys_of(T, 30)
    assert world.resource.quarantined() == []


NOT_OF_THE_RECORD = [
    *(301, 304, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 414, 415),
    *(416, 417, 421, 423, 424, 425, 426, 428, 429, 431, 451, 499, 500, 501, 503, 511),
]


@any_database
def test_what_does_not_speak_of_the_record_is_no_refusal(
    make: Make, partner: Partner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What speaks of the sender, the route or the moment is asked again."""
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.02)
    world = make()
    partner.plan = [status for one in NOT_OF_THE_RECORD for status in (one, 200)]
    rows = len(NOT_OF_THE_RECORD)
    commit(world, T, ids(*range(rows)))
    eventually(lambda: backlog(world.resource) == 0)
    assert partner.keys == [key for key in keys_of(T, rows) for _ in range(2)]
    assert world.resource.quarantined() == []


def test_many_refusals_in_a_row_stop_the_sender(
    make: Make,
    partner: Partner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Ten are put aside; then it says that it has stopped, and goes on by itself when
    the partner takes the eleventh. Other applications do not wait.
    """
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.02)
    world = make()
    partner.always = {"orders": 422}
    commit(world, T, cards(15))
    commit(world, "bills.1.1", ids(1))
    eventually(lambda: partner.keys.count(f"{T}.0.1.10") > 2)
    eventually(lambda: "bills.1.1.0.1.0" in partner.keys)
    assert len(world.resource.quarantined()) == 10
    assert measured(world)["tpc_outbox_stopped"] == 1
    assert "stopped" in caplog.text
    assert "card" not in str([vars(record) for record in caplog.records])
    partner.always = {}
    eventually(lambda: backlog(world.resource) == 0)
    assert len(world.resource.quarantined()) == 10
    assert measured(world)["tpc_outbox_stopped"] == 0
    assert [key for key in keys_of(T, 15) if key not in partner.keys] == []


def test_a_person_lets_a_stopped_sender_go_on(
    make: Make, partner: Partner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is stopped for whoever sends next, too, until `resume`: ten more may go."""
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.02)
    world = make()
    partner.always = {"orders": 422}
    commit(world, T, cards(15))
    eventually(lambda: measured(world)["tpc_outbox_stopped"] == 1)
    end(world.resource)
    successor = make()
    successor.resource.start()
    asked = partner.keys.count(f"{T}.0.1.10")
    eventually(lambda: partner.keys.count(f"{T}.0.1.10") > asked + 2)
    assert len(successor.resource.quarantined()) == 10
    make(sends=False).resource.resume()
    eventually(lambda: len(successor.resource.quarantined()) == 15)
    assert measured(successor)["tpc_outbox_stopped"] == 0


def test_refusals_between_others_stop_nobody(make: Make, partner: Partner) -> None:
    """A request that is taken ends the row."""
    world = make()
    partner.plan = [422, 422, 422, 422, 200] * 4
    commit(world, T, ids(*range(20)))
    eventually(lambda: backlog(world.resource) == 0)
    assert partner.keys == keys_of(T, 20)
    assert len(world.resource.quarantined()) == 16
    assert measured(world)["tpc_outbox_stopped"] == 0


def test_one_application_does_not_hold_up_another(
    make: Make, partner: Partner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Neither a busy one, nor one whose requests the partner does not take."""
    monkeypatch.setattr(sender, "_TRIES", 1_000_000)  # however slow the machine is
    world = make(sends=False)
    for batch in range(3):
        commit(world, f"busy.{batch}.1", ids(*range(150)))
    commit(world, "ill.1.1", ids(1, 2))
    commit(world, "well.1.1", ids(1, 2, 3))
    partner.always = {"ill": 500}
    make().resource.start()
    eventually(lambda: "busy.2.1.0.1.149" in partner.keys, 60)
    well = [place for place, k in enumerate(partner.keys) if k.startswith("well")]
    assert well[-1] < 10
    busy = [key for key in partner.keys if key.startswith("busy")]
    assert busy == [key for b in range(3) for key in keys_of(f"busy.{b}.1", 150)]
    assert {k for k in partner.keys if k.startswith("ill")} == {"ill.1.1.0.1.0"}
    partner.always = {}
    eventually(lambda: backlog(world.resource) == 0)
    assert world.resource.quarantined() == []


@pytest.mark.parametrize("branches", [1, 3], ids=["in a branch", "of three"])
def test_a_request_that_fails_alone_is_passed_over(
    make: Make,
    partner: Partner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    branches: int,
) -> None:
    """What the partner cannot digest is put aside once it has taken the one behind it;
    the rest is sent in order.
    """
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.02)
    world = make()
    rows = 3 // branches
    ill = "orders.7.1.1.1.0" if branches > 1 else f"{T}.0.1.1"
    partner.always = {ill: 500}
    parts = [
        records(f"{b}.1", id=[f"card-{b}-{r}" for r in range(rows)])
        for b in range(branches)
    ]
    commit(world, T, *parts)
    eventually(lambda: backlog(world.resource) == 0)
    in_order = [key for b in range(branches) for key in keys_of(T, rows, f"{b}.1")]
    taken = [key for key in partner.keys if key != ill]
    assert taken == [key for key in in_order if key != ill]
    (kept,) = world.resource.quarantined()
    assert (kept["key"], kept["status"]) == (ill, 500)
    assert measured(world)["tpc_outbox_quarantined"] == 1
    assert "passed over" in caplog.text
    assert "card" not in str([vars(record) for record in caplog.records])


def test_one_that_fails_before_one_that_is_refused_stops_nobody(
    make: Make, partner: Partner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A refusal shows, too, that the partner is there: both are put aside."""
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.02)
    world = make()
    ill, refused, *rest = keys_of(T, 4)
    partner.always = {ill: 500, refused: 422}
    commit(world, T, ids(*range(4)))
    eventually(lambda: backlog(world.resource) == 0)
    kept = {(k["key"], k["status"]) for k in world.resource.quarantined()}
    assert kept == {(ill, 500), (refused, 422)}
    assert [key for key in partner.keys if key in rest] == rest


def test_only_one_overtakes_however_often_its_sender_ends(
    make: Make, partner: Partner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What was passed over is sent a last time before anything else is."""
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.02)
    world = make()
    ill, behind, *_ = keys_of(T, 4)
    partner.always = {ill: 500}
    commit(world, T, ids(*range(4)))
    eventually(lambda: backlog(world.resource) == 0)
    place = partner.keys.index(behind)
    assert partner.keys[place - 1 : place + 2] == [ill, behind, ill]


def test_a_partner_that_takes_nothing_gets_all_of_it_later(
    make: Make, partner: Partner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However long: nothing is put aside while nothing behind it is taken."""
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.02)
    world = make()
    partner.always = {"orders": 500}
    commit(world, T, ids(*range(4)))
    eventually(lambda: len(partner.keys) > 60)
    assert set(partner.keys) == set(keys_of(T, 2))
    partner.always = {}
    eventually(lambda: backlog(world.resource) == 0)
    assert world.resource.quarantined() == []


def test_the_answer_to_a_sender_that_slept_counts_for_nothing(make: Make) -> None:
    """Another took over and had its answer: what it confirmed was never refused.

    And what both were refused is set aside once.
    """
    world = make(sends=False)
    commit(world, T, cards(2))
    queue = world.resource._queue
    confirmed, refused = queue.next("orders")
    queue.confirmed(confirmed)
    assert queue.move_to_quarantine(confirmed, 422) is False
    assert queue.move_to_quarantine(refused, 422) is True
    assert queue.move_to_quarantine(refused, 400) is False
    kept = world.resource.quarantined()
    assert [(k["key"], k["status"]) for k in kept] == [(refused.key, 422)]


def measured(world: World) -> dict[str, float]:
    text = world.client.get("/metrics").text
    assert_of_the_registry(text)
    return samples(text)


def test_what_is_measured(make: Make, partner: Partner) -> None:
    """The backlog, and the age of the oldest request that still waits in it."""
    now = [1000.0]
    world = make(sends=False, clock=lambda: now[0])
    assert measured(world)["tpc_outbox_backlog"] == 0
    assert measured(world)["tpc_outbox_oldest_age_seconds"] == 0
    commit(world, T, ids(1, 2))
    assert world.prepare("orders.8.1", ids(3, 4, 5)).status_code == 200
    now[0] = 1100.0
    assert measured(world)["tpc_outbox_backlog"] == 2
    assert measured(world)["tpc_outbox_oldest_age_seconds"] == 100
    assert world.commit("orders.8.1", ids(3, 4, 5)).status_code == 200
    now[0] = 1130.0
    queue = world.resource._queue
    for request in queue.next("orders"):
        queue.confirmed(request)
    assert measured(world)["tpc_outbox_backlog"] == 3
    assert measured(world)["tpc_outbox_oldest_age_seconds"] == 30


def test_readiness_counts_nothing(make: Make) -> None:
    """A look at `/health/ready`, which is open to all, does not depend on the queue."""
    world = make(sends=False)
    commit(world, T, ids(1, 2, 3))
    asked: list[str] = []
    engine = world.resource._database.engine
    sa.event.listen(engine, "before_cursor_execute", lambda *a: asked.append(a[2]))
    assert world.client.get("/health/ready").status_code == 200
    read = [sql for sql in asked if "FROM" in sql]
    assert len(read) == 1
    assert "outbox_tpc_schema" in read[0]
    assert "count" not in read[0].lower()


def test_one_at_a_time_however_many_processes(
    make: Make, partner: Partner, sending: Callable[..., Process]
) -> None:
    """Processes that share the database send each request once, never two at once.

    As long as the partner answers in time: an answer that comes later is asked for
    again, by right.
    """
    for _ in range(2):
        sending(PATIENT)
    worlds = [make(**PATIENT) for _ in range(2)]
    expected = []
    for batch in range(6):
        commit(worlds[batch % 2], f"orders.{batch}.1", ids(*range(4)))
        expected += keys_of(f"orders.{batch}.1", 4)
    eventually(lambda: backlog(worlds[0].resource) == 0)
    assert partner.keys == expected
    assert partner.most == 1


def test_a_killed_sender_is_followed_by_another(
    make: Make, partner: Partner, sending: Callable[..., Process]
) -> None:
    """What was under way is sent again with the same key, once the lease has run out.

    So is the rest, in order, in the trace of the prepare, which the killed process
    never saw and the new one finds at rest.
    """
    partner.plan = [200, "hang"]
    killed = sending()
    world = make(sends=False)
    commit(world, T, ids(1, 2, 3))
    eventually(lambda: len(partner.keys) == 2)
    follower = make()
    follower.resource.start()
    killed.kill()
    killed.wait()
    died = time.monotonic()
    partner.let_go.set()
    eventually(lambda: backlog(follower.resource) == 0)
    one, two, three = keys_of(T, 3)
    assert partner.keys == [one, two, two, three]
    assert partner.bodies == [{"id": 1}, {"id": 2}, {"id": 2}, {"id": 3}]
    assert partner.times[2] - died > SHORT["lease"] / 3
    trace = TRACE["traceparent"].split("-")[1]
    assert [text.split("-")[1] for text in partner.traces] == [trace] * 4


@any_database
@pytest.mark.parametrize("when", ["idle", "waiting", "second", "never started"])
def test_close_is_quick(
    make: Make, partner: Partner, monkeypatch: pytest.MonkeyPatch, when: str
) -> None:
    """Nobody waits for a pause or a lease to end, and nothing is sent afterwards."""
    if when == "waiting":
        monkeypatch.setattr(sender, "_FIRST_PAUSE", 60.0)
        monkeypatch.setattr(sender.random, "uniform", lambda least, most: most)
        partner.plan = [500]
    world = make(lease=60.0)
    world.resource.start()
    if when == "waiting":
        commit(world, T, ids(1))
        eventually(lambda: len(partner.keys) == 1)
    other = make(lease=60.0, sends=when != "never started")
    if when == "second":
        eventually(lambda: world.resource._sender._held > 0)
        other.resource.start()
    closing = world if when in {"idle", "waiting"} else other
    time.sleep(0.2)
    started = time.monotonic()
    closing.resource.close()
    closing.resource.close()
    assert time.monotonic() - started < 10.0
    sent = len(partner.keys)
    closing.resource.start()
    time.sleep(0.2)
    assert len(partner.keys) == sent


@any_database
def test_a_stop_is_never_missed(make: Make, monkeypatch: pytest.MonkeyPatch) -> None:
    """A stop that comes just as the sender wakes up is heard as well."""
    world = make(lease=60.0)
    outbox = world.resource._sender
    turned = threading.Event()
    stopping = threading.Event()

    def turn() -> float:
        turned.set()
        assert stopping.wait(120)
        return 60.0

    monkeypatch.setattr(outbox, "_turn", turn)
    outbox.start()
    assert turned.wait(120)
    clear = outbox._wake.clear

    def clear_late() -> None:
        outbox._stopping.set()  # the stop, in the worst moment
        clear()

    monkeypatch.setattr(outbox._wake, "clear", clear_late)
    outbox._wake.set()
    stopping.set()
    outbox._thread.join(120)
    assert not outbox._thread.is_alive()


@any_database
def test_a_database_that_does_not_answer(
    make: Make,
    partner: Partner,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """The sender outlives it, says so without a record's content, and goes on."""
    world = make(**SHORT)
    queue = world.resource._queue
    move_to_quarantine = queue.move_to_quarantine
    failures = iter(range(2))

    def fail(request: Any, *rest: Any) -> None:
        if next(failures, None) is not None:
            about = {"body": request.body}
            raise sa.exc.OperationalError("INSERT", about, Exception("disk full"))
        move_to_quarantine(request, *rest)

    monkeypatch.setattr(queue, "move_to_quarantine", fail)
    caplog.set_level(logging.DEBUG, "tracing_2pc")
    partner.plan = [422] * 3
    commit(world, T, cards(1))
    eventually(lambda: backlog(world.resource) == 0)
    assert partner.keys == [f"{T}.0.1.0"] * 3
    assert len(world.resource.quarantined()) == 1
    assert "did not answer: Exception" in caplog.text
    assert "card" not in caplog.text


class Answers:
    """A partner within the process: `answer` is asked about each request."""

    checks = False

    def __init__(self, answer: Callable[[Request], PartnerAnswer]) -> None:
        self.answer = answer
        self.keys: list[str] = []

    def check(self, records: Any) -> None:
        raise AssertionError(records)

    def send(self, request: Request) -> PartnerAnswer:
        self.keys.append(request.key)
        return self.answer(request)

    def send_together(self, requests: Any) -> list[PartnerAnswer]:
        return [self.send(request) for request in requests]


TAKEN, REFUSED = PartnerAnswer(200, is_taken=True), PartnerAnswer(422, is_refused=True)


@any_database
def test_a_sender_that_slept_reads_its_queue_again(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Another one had the lease meanwhile, and what it was refused was dropped: none
    of that is sent, of whatever application.
    """
    world = make(sends=False)
    commit(world, T, ids(1, 2))
    commit(world, "pies.1.1", ids(3))
    queue = world.resource._queue
    now = [0.0]
    clock = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: clock() + now[0])
    others = Answers(lambda request: REFUSED)
    other = sender.Sender(queue, others, 60.0)

    def sleep(request: Request) -> PartnerAnswer:
        if len(slow.keys) == 1:
            now[0] += 100.0
            queue.let_go(slept._holder)  # its lease ran out
            other._turn()
            queue.let_go(other._holder)
            assert set(others.keys) == {*keys_of(T, 2), "pies.1.1.0.1.0"}
            world.post(
                "/outbox/drop", key="pies.1.1.0.1.0", who="anna", reason="stolen"
            )
        return TAKEN

    slow = Answers(sleep)
    slept = sender.Sender(queue, slow, 60.0)
    assert slept._turn() == 0.0
    assert slept._turn() > 0.0
    assert slow.keys == [f"{T}.0.1.0"]


@any_database
def test_a_fault_of_one_application_is_its_own(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """A request that cannot even be sent fails like any other: the other applications
    go on, it is logged once, without the record, and is passed over in the end.
    """
    monkeypatch.setattr(sender, "_LONGEST_PAUSE", 0.02)
    world = make(sends=False)
    commit(world, T, cards(2))
    commit(world, "pies.1.1", ids(3))
    ill = f"{T}.0.1.0"

    def answer(request: Request) -> PartnerAnswer:
        if request.key == ill:
            "card-\ud800".encode()
        return TAKEN

    partner = Answers(answer)
    sending = sender.Sender(world.resource._queue, partner, 60.0)
    sending.start()
    try:
        eventually(lambda: backlog(world.resource) == 0)
    finally:
        sending.stop()
    assert set(partner.keys[:2]) == {ill, "pies.1.1.0.1.0"}
    assert [k["key"] for k in world.resource.quarantined()] == [ill]
    assert caplog.text.count("UnicodeEncodeError") == 1
    assert "card" not in caplog.text


@any_database
def test_that_it_stopped_is_logged_once(
    make: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """However often it tries, and again after it went on."""
    world = make(sends=False)
    commit(world, T, cards(30))
    now = [0.0]
    clock = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: clock() + now[0])
    partner = Answers(lambda request: REFUSED)
    sending = sender.Sender(world.resource._queue, partner, 60.0)
    for stops in (1, 2):
        for _ in range(4):
            now[0] += 100.0
            sending._turn()
        assert caplog.text.count("stopped") == stops
        world.resource.resume()
