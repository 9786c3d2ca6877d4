"""The outbox in real processes: killed, hung up on, restarted, several at once."""

from __future__ import annotations

import contextlib
import email.utils
import http.server
import json
import logging
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from multiprocessing.connection import Connection
from multiprocessing.context import ForkServerProcess
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
import sqlalchemy as sa
from support.branches import TRACE, Branch, records
from support.databases import url
from support.kinds import outbox_to
from support.log_tables import copy_database
from support.metrics import assert_of_the_registry, samples
from support.participant import World, end, keep, refusing, turns_of
from support.served import served
from support.texts import texts
from support.waiting import AT_LAST, AT_ONCE, PATIENT, PAUSE, UNDELAYED, until

from tracing_2pc.outbox import Outbox, sender
from tracing_2pc.outbox.partner import PartnerAnswer
from tracing_2pc.outbox.requests import Request, Requests
from tracing_2pc.participant.journal.open_database import open_database
from tracing_2pc.participant.journal.schema import Tables
from tracing_2pc.store.lease import LeaseState
from tracing_2pc.testing.other_process import forking

__all__ = ["url"]

T = "orders.7.1"
TEXTS = texts("outbox")
LIMITS: dict[str, Any] = {"timeout": PATIENT, "lease": 3 * PATIENT}
"""No busy machine makes an answer so late that it is sent again."""

LEASE = LIMITS["lease"]


class Partner:
    """A partner that notes what arrives, and does to each request what is planned.

    A plan is a status, or `drop` (no answer), `hang` (none until `let_go`, and then
    none), `cut` (200, without the body that it announces), `slow` (200, with a body
    that does not end), or a status with what `Retry-After` says. What `always` has, by
    the beginning of a key, counts where nothing is planned. `says` is the body with a
    status.

    Args:
        is_down: has its address, where nobody listens until `come_up`.
    """

    path = "/orders"

    def __init__(self, *, is_down: bool = False) -> None:
        self.keys: list[str] = []
        self.traces: list[str] = []
        self.bodies: list[Any] = []
        self.plan: list[int | str | tuple[int, str]] = []
        self.always: dict[str, int | str] = {}
        self.says = b""
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

            do_PUT = do_POST  # noqa: N815 - its name

            def log_message(self, *_: Any) -> None:
                pass

        self._server = http.server.ThreadingHTTPServer(
            ("127.0.0.1", 0), Handler, bind_and_activate=False
        )
        self._server.server_bind()
        self.url = f"http://127.0.0.1:{self._server.server_port}{self.path}"
        self._serving = contextlib.ExitStack()
        if not is_down:
            self.come_up()

    def come_up(self) -> None:
        self._server.server_activate()
        self._serving.enter_context(served(self._server))

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
        self.keys.append(key)
        if planned == "hang":
            self.let_go.wait(AT_LAST)
        if planned in {"hang", "drop"}:
            request.close_connection = True
            return
        has_body = planned in {"cut", "slow"}
        status, *after = planned if isinstance(planned, tuple) else (planned,)
        request.send_response(200 if has_body else int(status))
        for seconds in after:
            request.send_header("Retry-After", seconds)
        length = 100_000 if has_body else len(self.says)
        request.send_header("Content-Length", str(length))
        request.end_headers()
        request.wfile.write(b"" if has_body else self.says)
        request.close_connection |= has_body
        while planned == "slow" and not self.let_go.wait(PAUSE):
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
def quick(monkeypatch) -> None:
    monkeypatch.setattr(sender, "POLL", AT_ONCE)
    monkeypatch.setattr("tracing_2pc.outbox.turns.FIRST_PAUSE", 0.02)
    monkeypatch.setattr("tracing_2pc.outbox.turns.LONGEST_PAUSE", 0.02)


any_database = pytest.mark.parametrize("url", ["sqlite"], indirect=True)
"""For what no database has a part in."""

Make = Callable[..., World]


@pytest.fixture
def make(url, partner) -> Iterator[Make]:
    """Make a participant; `sends=False` for one whose sender never starts."""
    made: list[World] = []

    def one(*, sends: bool = True, **options: Any) -> World:
        resource = outbox_to(url=url, **{"partner": partner.url, **LIMITS, **options})
        if not sends:
            resource.start = lambda: None  # type: ignore[method-assign]
        made.append(World(resource, lambda: backlog(resource)))
        return made[-1]

    yield one
    for world in made:
        world.resource.close()


@pytest.fixture
def queue(url) -> Iterator[Requests]:
    """The queue as the sender of another process has it."""
    database = open_database(url)
    yield Requests(Tables("outbox", "outbox"), database, time.time)
    database.engine.dispose()


@pytest.fixture
def pauses(monkeypatch) -> list[float]:
    """The longest pause that each failure allows; none is made."""
    longest: list[float] = []

    def uniform(least: float, most: float) -> float:
        assert least == 0
        longest.append(most)
        return 0.0

    monkeypatch.setattr("random.uniform", uniform)
    return longest


def lease_runs_out(requests: Requests) -> None:
    """Let it run out now, and not in half an hour; whoever has it still thinks so."""
    queue = requests.queue
    with queue.deciding() as connection:
        connection.execute(queue.sender.update().values(until=0.0))


@pytest.fixture
def turns(monkeypatch) -> list[sender.Sender]:
    """Whose turn has ended, in this process, in order."""
    ended: list[sender.Sender] = []
    turn = sender.Sender.turn

    def counted(one: sender.Sender) -> float:
        pause = turn(one)
        ended.append(one)
        return pause

    monkeypatch.setattr(sender.Sender, "turn", counted)
    return ended


@pytest.fixture
def sending(url, partner) -> Iterator[Callable[[], ForkServerProcess]]:
    """Start a process that does nothing but send."""
    with contextlib.ExitStack() as stack:

        def start() -> ForkServerProcess:
            ours, theirs = forking().Pipe()
            about = (url, partner.url, theirs)
            process = forking().Process(target=send_alone, args=about, daemon=True)
            process.start()
            theirs.close()
            stack.callback(process.join, AT_LAST)
            stack.callback(ours.close)  # and so it ends
            assert ours.recv() == "ready"
            return process

        yield start


def send_alone(url: str, partner: str, parent: Connection) -> None:
    """Send what is queued until the parent ends; the main program of a process."""
    outbox = outbox_to(partner, url, **LIMITS)
    outbox.open()
    outbox.start()
    parent.send("ready")
    with contextlib.suppress(EOFError):
        parent.recv()
    outbox.close()


def backlog(resource: Outbox) -> int:
    return int(resource.gauges()["tpc.outbox.backlog"])


def all_sent(world: World) -> None:
    """Wait until nothing is queued any more."""
    until(lambda: backlog(world.resource), lambda left: left == 0)


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


def look_again(world: World, batch: int) -> str:
    """Return the key of a request that is sent after all that waits now."""
    commit(world, f"zz.{batch}.1", ids(1))
    all_sent(world)
    return f"zz.{batch}.1.0.1.0"


def test_nothing_before_the_commit_and_nothing_after_an_abort(make, partner):
    """Only the attempt, the branches and the outcome that were decided are sent."""
    world = make()
    first, twin = ids(1), ids(1, branch="0.2")
    assert world.prepare(T, first).status_code == 200
    assert world.prepare("orders.7.2", first).status_code == 200
    assert world.prepare("orders.7.2", twin).status_code == 200
    assert world.abort(T).status_code == 200
    first_look = look_again(world, 1)
    assert partner.keys == [first_look]
    for _ in range(3):  # an answer that was lost is asked for again
        assert world.commit("orders.7.2", twin).status_code == 200
    all_sent(world)
    assert world.abort("orders.7.2").status_code == 409
    last_look = look_again(world, 2)
    assert partner.keys == [first_look, "orders.7.2.0.2.0", last_look]


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
def test_the_check_at_prepare(make, partner, plan, status, asked):
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
    keep(world, T, branch)
    assert backlog(world.resource) == 2_001


@pytest.mark.parametrize("after", [86_400, 0])
def test_a_check_waits_as_long_as_the_partner_says(make, partner, after):
    """`Retry-After`: what is prepared meanwhile is neither yes nor no, unasked."""
    world = make(check=partner.url, sends=False)
    partner.plan = [(429, str(after))]
    answers = [world.prepare(T, ids(1), once=True).status_code for _ in range(2)]
    assert answers == [503, 503 if after else 200]
    assert len(partner.bodies) == (1 if after else 2)


@any_database
def test_an_older_copy_sends_what_had_left_again_with_its_key(
    url, make, partner, tmp_path
):
    """By it the partner knows the request; one that was committed later is not sent."""
    database, copy = Path(sa.make_url(url).database), tmp_path / "copy.db"
    before = make(sends=False)
    keep(before, T, records("0.0", id=[1], text=["x"]))
    copy_database(database, copy)
    sending = make()
    keep(sending, "orders.8.1", records("0.0", id=[2], text=["y"]))
    until(lambda: len(partner.keys) == 2 and not sending.visible())
    end(sending.resource)
    copy_database(copy, database)
    again = make()
    again.resource.start()
    until(lambda: len(partner.keys) == 3 and not again.visible())
    assert partner.keys == [f"{T}.0.0.0", "orders.8.1.0.0.0", f"{T}.0.0.0"]
    end(again.resource)


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
def test_a_value_that_json_cannot_say(make, partner, column, *, checks):
    """It is sent as it reads, or refused at prepare: never a fault, never stuck."""
    world = make(sends=False, check=partner.url if checks else None)
    answer = world.prepare(T, records(x=column))
    if answer.status_code == 200:
        assert column.type == pa.timestamp("ns")
        return
    assert (answer.status_code, answer.get_json()["vote"]) == (400, "abort")
    assert world.in_doubt() == 0


def test_a_long_branch_is_sent_in_order(make, partner):
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
    all_sent(world)
    assert "bills.900.1.0.1.0" in partner.keys[:2]
    partner.keys.remove("bills.900.1.0.1.0")
    assert partner.keys == [*keys_of(T, rows), "orders.10.1.0.1.0"]
    sent = [body["id"] for body in partner.bodies if body["id"] != -2]
    assert sent == [*range(rows), -1]
    assert partner.most == 1


@any_database
def test_whatever_happens_to_the_answer_the_key_stays(make, partner):
    """Dropped, cut off, refused for now: sent again with the same key, before the
    next.
    """
    partner.plan = ["drop", 500, "hang", 503, "cut"]
    world = make()
    commit(world, T, ids(1, 2))
    until(lambda: len(partner.keys) == 3)
    partner.let_go.set()
    all_sent(world)
    first, second = keys_of(T, 2)
    assert partner.keys == [first] * 6 + [second]


@any_database
def test_an_answer_that_does_not_come_in_time_is_none(make, partner, monkeypatch):
    """The request is sent again, and the next one waits for it."""
    monkeypatch.setattr(sender, "TRIES", 1_000_000)  # however slow the machine is
    partner.always = {"orders": "hang"}
    world = make(timeout=AT_ONCE)
    commit(world, T, ids(1, 2))
    until(lambda: len(partner.keys) > 1)
    world.resource.close()
    first, second = keys_of(T, 2)
    assert set(partner.keys) == {first}
    partner.always = {}
    partner.let_go.set()
    successor = make()
    successor.resource.open()
    successor.resource.start()
    all_sent(successor)
    assert partner.keys[-2:] == [first, second]


@any_database
def test_a_body_that_does_not_end_is_left_unread(make, partner, monkeypatch):
    """The status says that it was taken."""
    monkeypatch.setattr(sender, "TRIES", 1_000_000)  # however slow the machine is
    partner.always = {"orders": "slow"}
    world = make(timeout=AT_ONCE)
    commit(world, T, ids(1, 2))
    all_sent(world)
    assert list(dict.fromkeys(partner.keys)) == keys_of(T, 2)


def test_a_partner_that_is_down(make, pauses, monkeypatch):
    """What is committed waits, and is sent when the partner comes back."""
    monkeypatch.setattr(sender, "TRIES", 1_000_000)  # however slow the machine is
    down = Partner(is_down=True)
    world = make(partner=down.url)
    commit(world, T, ids(1, 2))
    until(lambda: len(pauses) > 2)
    assert backlog(world.resource) == 2
    assert world.client.get("/health/ready").status_code == 200
    down.come_up()
    try:
        all_sent(world)
        assert down.keys == keys_of(T, 2)
    finally:
        world.resource.close()
        down.close()


@any_database
def test_pauses_grow_and_start_anew(make, partner, pauses, monkeypatch):
    """Each failure doubles the longest pause, up to a cap; a success resets it."""
    monkeypatch.setattr("tracing_2pc.outbox.turns.LONGEST_PAUSE", 0.1)
    partner.plan = [500] * 5 + [200, 500]
    world = make()
    commit(world, T, ids(1, 2))
    all_sent(world)
    assert pauses == [0.02, 0.04, 0.08, 0.1, 0.1, 0.02]


def test_a_refusal_does_not_block_the_queue(make, partner, caplog):
    """It is kept whole for a person, counted, and reported without its content."""
    partner.plan = [422, 200, 413, 400]
    world = make()
    commit(world, T, cards(5))
    all_sent(world)
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
def test_an_expired_token_loses_nothing(make, partner, tmp_path):
    """401 speaks of the sender: all is kept, and sent in order with the new token."""
    token = tmp_path / "token"
    token.write_text("an-old-token-of-ours")
    world = make(token=f"file:{token}")
    partner.always = {"orders": 401}
    commit(world, T, cards(30))
    until(lambda: len(partner.keys) > 3)
    assert measured(world)["tpc_outbox_backlog"] == 30
    token.write_text("a-new-token-of-ours")
    partner.always = {}
    all_sent(world)
    assert list(dict.fromkeys(partner.keys)) == keys_of(T, 30)
    assert world.resource.quarantined() == []


NOT_OF_THE_RECORD = [
    *(301, 304, 401, 402, 403, 404, 405, 406, 407, 408, 409, 410, 411, 412, 414, 415),
    *(416, 417, 421, 423, 424, 425, 426, 428, 429, 431, 451, 499, 500, 501, 503, 511),
]


@any_database
@pytest.mark.parametrize(
    ("status", "after", "waits"),
    [
        (429, f"{PATIENT:.0f}", True),
        (503, 2 * PATIENT, True),
        (429, "9" * 400, True),
        (429, "0", False),
        (429, -PATIENT, False),
        (429, "soon", False),
        (429, "Wed, 99 Foo 2024 00:00:00 GMT", False),
    ],
)
def test_a_partner_is_not_asked_before_it_says(make, partner, status, after, waits):
    """`Retry-After`, in seconds or as a date: its application waits, others do not."""
    world = make()
    date = isinstance(after, float) and email.utils.formatdate(time.time() + after)
    partner.plan = [(status, date or str(after))]
    commit(world, T, ids(1))
    if not waits:
        all_sent(world)
        return
    until(lambda: len(partner.keys) == 1)
    commit(world, "bills.1.1", ids(*range(20)))
    until(lambda: partner.keys[-1] == keys_of("bills.1.1", 20)[-1])
    assert partner.keys.count(f"{T}.0.1.0") == 1
    (waiting,) = (w for w in turns_of(world)._waiting.values() if w.failures)
    assert UNDELAYED < waiting.resume - time.monotonic() <= 144 * PATIENT
    # What the partner has taken is noted a moment later.
    until(lambda: measured(world)["tpc_outbox_backlog"] == 1)


@any_database
@pytest.mark.parametrize(
    ("statuses", "again"), [(NOT_OF_THE_RECORD, True), ([422] * 16, False)]
)
def test_what_comes_between_others_stops_nobody(make, partner, statuses, again):
    """What speaks of the sender, the route or the moment is asked again; a refusal is
    put aside, and a request that is taken ends the row.
    """
    world = make()
    rows = 2 * len(statuses)
    partner.plan = [status for one in statuses for status in (one, 200)]
    commit(world, T, ids(*range(len(statuses) if again else rows)))
    all_sent(world)
    keys = keys_of(T, rows)
    once = [key for key in keys[: rows // 2] for _ in range(2)]
    assert partner.keys == (once if again else keys)
    assert len(world.resource.quarantined()) == (0 if again else 16)
    assert measured(world)["tpc_outbox_stopped"] == 0


def test_many_refusals_in_a_row_stop_the_sender(make, partner, caplog):
    """Ten are put aside; then it says that it has stopped, and goes on by itself when
    the partner takes the eleventh. Other applications do not wait.
    """
    world = make()
    partner.always = {"orders": 422}
    commit(world, T, cards(15))
    commit(world, "bills.1.1", ids(1))
    until(lambda: partner.keys.count(f"{T}.0.1.10") > 2)
    until(lambda: "bills.1.1.0.1.0" in partner.keys)
    assert len(world.resource.quarantined()) == 10
    assert measured(world)["tpc_outbox_stopped"] == 1
    assert "stopped" in caplog.text
    assert "card" not in str([vars(record) for record in caplog.records])
    partner.always = {}
    all_sent(world)
    assert len(world.resource.quarantined()) == 10
    assert measured(world)["tpc_outbox_stopped"] == 0
    assert [key for key in keys_of(T, 15) if key not in partner.keys] == []


def test_a_person_lets_a_stopped_sender_go_on(make, partner):
    """It is stopped for whoever sends next, too, until `resume`: ten more may go."""
    world = make()
    partner.always = {"orders": 422}
    commit(world, T, cards(15))
    until(lambda: measured(world)["tpc_outbox_stopped"] == 1)
    world.resource.close()
    successor = make()
    successor.resource.start()
    asked = partner.keys.count(f"{T}.0.1.10")
    until(lambda: partner.keys.count(f"{T}.0.1.10") > asked + 2)
    assert len(successor.resource.quarantined()) == 10
    make(sends=False).resource.resume()
    until(lambda: len(successor.resource.quarantined()) == 15)
    assert measured(successor)["tpc_outbox_stopped"] == 0


def test_one_application_does_not_hold_up_another(make, partner, monkeypatch):
    """Neither a busy one, nor one whose requests the partner does not take."""
    monkeypatch.setattr(sender, "TRIES", 1_000_000)  # however slow the machine is
    world = make(sends=False)
    for batch in range(3):
        commit(world, f"busy.{batch}.1", ids(*range(150)))
    commit(world, "ill.1.1", ids(1, 2))
    commit(world, "well.1.1", ids(1, 2, 3))
    partner.always = {"ill": 500}
    make().resource.start()
    until(lambda: "busy.2.1.0.1.149" in partner.keys)
    well = [place for place, k in enumerate(partner.keys) if k.startswith("well")]
    assert well[-1] < 10
    busy = [key for key in partner.keys if key.startswith("busy")]
    assert busy == [key for b in range(3) for key in keys_of(f"busy.{b}.1", 150)]
    assert {k for k in partner.keys if k.startswith("ill")} == {"ill.1.1.0.1.0"}
    partner.always = {}
    all_sent(world)
    assert world.resource.quarantined() == []


@pytest.mark.parametrize("branches", [1, 3], ids=["in a branch", "of three"])
def test_a_request_that_fails_alone_is_passed_over(make, partner, caplog, branches):
    """What the partner cannot digest is put aside once it has taken the one behind it;
    the rest is sent in order, after a last try: only one overtakes.
    """
    world = make()
    rows = 3 // branches
    ill = "orders.7.1.1.1.0" if branches > 1 else f"{T}.0.1.1"
    partner.always = {ill: 500}
    parts = [
        records(f"{b}.1", id=[f"card-{b}-{r}" for r in range(rows)])
        for b in range(branches)
    ]
    commit(world, T, *parts)
    all_sent(world)
    in_order = [key for b in range(branches) for key in keys_of(T, rows, f"{b}.1")]
    taken = [key for key in partner.keys if key != ill]
    assert taken == [key for key in in_order if key != ill]
    place = partner.keys.index(in_order[2])
    assert partner.keys[place - 1 : place + 2] == [ill, in_order[2], ill]
    (kept,) = world.resource.quarantined()
    assert (kept["key"], kept["status"]) == (ill, 500)
    assert measured(world)["tpc_outbox_quarantined"] == 1
    assert TEXTS["passed over"] in caplog.text
    assert "card" not in str([vars(record) for record in caplog.records])


def test_one_that_fails_before_one_that_is_refused_stops_nobody(make, partner):
    """A refusal shows, too, that the partner is there: both are put aside."""
    world = make()
    ill, refused, *rest = keys_of(T, 4)
    partner.always = {ill: 500, refused: 422}
    commit(world, T, ids(*range(4)))
    all_sent(world)
    kept = {(k["key"], k["status"]) for k in world.resource.quarantined()}
    assert kept == {(ill, 500), (refused, 422)}
    assert [key for key in partner.keys if key in rest] == rest


def test_a_partner_that_takes_nothing_gets_all_of_it_later(make, partner):
    """However long: nothing is put aside while nothing behind it is taken."""
    world = make()
    partner.always = {"orders": 500}
    commit(world, T, ids(*range(4)))
    until(lambda: len(partner.keys) > 60)
    assert set(partner.keys) == set(keys_of(T, 2))
    partner.always = {}
    all_sent(world)
    assert world.resource.quarantined() == []


def test_the_answer_to_a_sender_that_slept_counts_for_nothing(make, queue):
    """Another took over and had its answer: what it confirmed was never refused.

    And what both were refused is set aside once.
    """
    world = make(sends=False)
    commit(world, T, cards(2))
    confirmed, refused = queue.next("orders")
    queue.confirmed(confirmed)
    assert queue.move_to_quarantine(confirmed, 422) is False
    assert queue.move_to_quarantine(refused, 422) is True
    assert queue.move_to_quarantine(refused, 400) is False
    kept = world.resource.quarantined()
    assert [(k["key"], k["status"]) for k in kept] == [(refused.key, 422)]


@contextlib.contextmanager
def listening(event: str, heard: Callable[..., None]) -> Iterator[None]:
    """Hear what happens in the databases of this process."""
    sa.event.listen(sa.Engine, event, heard)
    try:
        yield
    finally:
        sa.event.remove(sa.Engine, event, heard)


def measured(world: World) -> dict[str, float]:
    text = world.client.get("/metrics").text
    assert_of_the_registry(text)
    return samples(text)


def test_what_is_measured(make, queue):
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
    for request in queue.next("orders"):
        queue.confirmed(request)
    assert measured(world)["tpc_outbox_backlog"] == 3
    assert measured(world)["tpc_outbox_oldest_age_seconds"] == 30


def test_readiness_counts_nothing(make):
    """A look at `/health/ready`, which is open to all, does not depend on the queue."""
    world = make(sends=False)
    commit(world, T, ids(1, 2, 3))
    asked: list[str] = []

    def ask(_: Any, __: Any, statement: str, *___: Any) -> None:
        asked.append(statement)

    with listening("before_cursor_execute", ask):
        assert world.client.get("/health/ready").status_code == 200
    read = [sql for sql in asked if "FROM" in sql]
    assert len(read) == 1
    assert "outbox_tpc_schema" in read[0]
    assert "count" not in read[0].lower()


def test_one_at_a_time_however_many_processes(make, partner, sending):
    """Processes that share the database send each request once, never two at once.

    As long as the partner answers in time: an answer that comes later is asked for
    again, by right.
    """
    for _ in range(2):
        sending()
    worlds = [make() for _ in range(2)]
    expected = []
    for batch in range(6):
        commit(worlds[batch % 2], f"orders.{batch}.1", ids(*range(4)))
        expected += keys_of(f"orders.{batch}.1", 4)
    all_sent(worlds[0])
    assert partner.keys == expected
    assert partner.most == 1


def test_a_killed_sender_is_followed_by_another(make, partner, queue, turns, sending):
    """What was under way is sent again with the same key, once the lease has run out.

    So is the rest, in order, in the trace of the prepare, which the killed process
    never saw and the new one finds at rest.
    """
    partner.plan = [200, "hang"]
    killed = sending()
    world = make(sends=False)
    commit(world, T, ids(1, 2, 3))
    until(lambda: len(partner.keys) == 2)
    killed.kill()
    killed.join(AT_LAST)
    partner.let_go.set()
    follower = make()
    follower.resource.start()
    until(lambda: turns)
    commit(follower, "zz.1.1", ids(9))  # it looks again
    until(lambda: len(turns) > 1)
    assert len(partner.keys) == 2
    lease_runs_out(queue)
    commit(follower, "zz.2.1", ids(9))
    all_sent(follower)
    sent = zip(partner.keys, partner.bodies, partner.traces, strict=True)
    ours = [about for about in sent if not about[0].startswith("zz")]
    one, two, three = keys_of(T, 3)
    assert [key for key, _, _ in ours] == [one, two, two, three]
    assert [body["id"] for _, body, _ in ours] == [1, 2, 2, 3]
    trace = TRACE["traceparent"].split("-")[1]
    assert [text.split("-")[1] for _, _, text in ours] == [trace] * 4


def test_a_lease_runs_out_by_itself(make, queue):
    """Until then nobody else has it; and who had it is told that he lost it."""
    make(sends=False).resource.open()
    assert queue.queue.hold("first", PATIENT) is LeaseState.TAKEN
    assert queue.queue.hold("second", PATIENT) is LeaseState.REFUSED
    assert queue.queue.hold("first", AT_ONCE) is LeaseState.RENEWED
    until(lambda: queue.queue.hold("second", PATIENT) is LeaseState.TAKEN)
    assert queue.queue.hold("first", PATIENT) is LeaseState.REFUSED


def test_a_lease_from_before_a_clock_was_set_back_runs_out(make, queue):
    """Of a holder that is gone; one that is there renews it, and nobody takes over."""
    make(sends=False).resource.open()
    assert queue.queue.hold("first", PATIENT) is LeaseState.TAKEN
    assert queue.queue.hold("second", AT_ONCE) is LeaseState.REFUSED
    assert queue.queue.hold("first", PATIENT) is LeaseState.RENEWED
    until(lambda: queue.queue.hold("second", AT_ONCE) is LeaseState.TAKEN)


@any_database
@pytest.mark.parametrize("when", ["idle", "waiting", "second", "never started"])
def test_close_is_quick(make, partner, turns, monkeypatch, when):
    """Nobody waits for a pause or a lease to end, and nothing is sent afterwards."""
    monkeypatch.setattr(sender, "POLL", PATIENT)
    monkeypatch.setattr("tracing_2pc.outbox.turns.FIRST_PAUSE", PATIENT)
    monkeypatch.setattr("tracing_2pc.outbox.turns.LONGEST_PAUSE", PATIENT)
    monkeypatch.setattr("random.uniform", lambda least, most: most)
    partner.plan = [500]
    world = make()
    world.resource.start()
    until(lambda: turns)
    if when == "waiting":
        commit(world, T, ids(1))
        until(lambda: partner.keys)
    other = make(sends=when != "never started")
    if when == "second":
        other.resource.start()
        until(lambda: len(set(turns)) == 2)
    closing = world if when in {"idle", "waiting"} else other
    started = time.monotonic()
    closing.resource.close()
    closing.resource.close()
    assert time.monotonic() - started < UNDELAYED
    threads = senders()
    assert len(threads) == (0 if closing is world else 1)
    closing.resource.start()
    assert senders() == threads


def senders() -> list[threading.Thread]:
    """Return the threads that send, of this process."""
    return [one for one in threading.enumerate() if one.name == "tpc-outbox-sender"]


@any_database
def test_a_stop_is_never_missed(make, monkeypatch):
    """A stop that comes just as the sender wakes up is heard as well."""
    outbox = turns_of(make())
    turned = threading.Event()
    stopping = threading.Event()

    def turn() -> float:
        turned.set()
        assert stopping.wait(AT_LAST)
        return PATIENT

    monkeypatch.setattr(outbox, "turn", turn)
    outbox.start()
    assert turned.wait(AT_LAST)
    clear = outbox._wake.clear

    def clear_late() -> None:
        outbox._stopping.set()  # the stop, in the worst moment
        clear()

    monkeypatch.setattr(outbox._wake, "clear", clear_late)
    outbox.wake()
    stopping.set()
    until(senders, lambda left: left == [])


@any_database
def test_a_database_that_does_not_answer(make, partner, caplog):
    """The sender outlives it, says so without a record's content, and goes on."""
    world = make()
    failed: list[Any] = []

    def fail(_: Any, __: Any, statement: str, about: Any, *___: Any) -> None:
        if "INTO outbox_tpc_quarantine" in statement and len(failed) < 2:
            failed.append(about)
            raise sa.exc.OperationalError(statement, about, Exception("disk full"))

    caplog.set_level(logging.DEBUG, "tracing_2pc")
    partner.always = {"orders": 422}
    with listening("before_cursor_execute", fail):
        commit(world, T, cards(1))
        for times in (1, 2):
            until(lambda: len(failed) >= times)  # noqa: B023
            commit(world, f"zz.{times}.1", ids(1))  # it looks again
        all_sent(world)
    assert "card" in str(failed)
    assert partner.keys.count(f"{T}.0.1.0") == 3
    assert len(world.resource.quarantined()) == 1
    assert caplog.text.count(TEXTS["database failed"]) == 2
    assert "card" not in caplog.text


class Answers:
    """A partner within the process: `answer` is asked about each request."""

    checks = False
    request = None
    bulk = 1
    longest = PATIENT

    def __init__(self, answer: Callable[[Request], PartnerAnswer]) -> None:
        self.answer = answer
        self.keys: list[str] = []

    def check(self, records: Any) -> None:
        raise AssertionError(records)

    def send(self, requests: Sequence[Request]) -> list[PartnerAnswer]:
        self.keys += [request.key for request in requests]
        return [self.answer(request) for request in requests]


TAKEN, REFUSED = PartnerAnswer(200, is_taken=True), PartnerAnswer(422, is_refused=True)


@any_database
def test_a_sender_that_slept_reads_its_queue_again(make, queue, monkeypatch):
    """Another one had the lease meanwhile, and what it was refused was dropped: none
    of that is sent, of whatever application.
    """
    world = make(sends=False)
    commit(world, T, ids(1, 2))
    commit(world, "pies.1.1", ids(3))
    now = [0.0]
    clock = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: clock() + now[0])
    others = Answers(lambda request: REFUSED)
    other = sender.Sender(queue, others, LEASE)

    def sleep(request: Request) -> PartnerAnswer:
        if len(slow.keys) == 1:
            now[0] += LEASE
            lease_runs_out(queue)
            other.turn()
            lease_runs_out(queue)
            assert set(others.keys) == {*keys_of(T, 2), "pies.1.1.0.1.0"}
            world.post(
                "/outbox/drop", key="pies.1.1.0.1.0", who="anna", reason="stolen"
            )
        return TAKEN

    slow = Answers(sleep)
    slept = sender.Sender(queue, slow, LEASE)
    assert slept.turn() == 0.0
    assert slept.turn() > 0.0
    assert slow.keys == [f"{T}.0.1.0"]


@any_database
def test_a_fault_of_one_application_is_its_own(make, queue, caplog):
    """A request that cannot even be sent fails like any other: the other applications
    go on, it is logged once, without the record, and is passed over in the end.
    """
    world = make(sends=False)
    commit(world, T, cards(2))
    commit(world, "pies.1.1", ids(3))
    ill = f"{T}.0.1.0"

    def answer(request: Request) -> PartnerAnswer:
        if request.key == ill:
            "card-\ud800".encode()
        return TAKEN

    partner = Answers(answer)
    sending = sender.Sender(queue, partner, LEASE)
    sending.start()
    try:
        all_sent(world)
    finally:
        sending.stop()
    assert set(partner.keys[:2]) == {ill, "pies.1.1.0.1.0"}
    assert [k["key"] for k in world.resource.quarantined()] == [ill]
    assert caplog.text.count("UnicodeEncodeError") == 1
    assert "card" not in caplog.text


@any_database
@pytest.mark.parametrize(
    "part", ["UPDATE outbox_tpc_queue", "SELECT min(", "UPDATE outbox_tpc_sender"]
)
def test_pauses_grow_while_the_database_does_not_answer(make, queue, monkeypatch, part):
    """The partner gets the same request with the same key, ever more rarely."""
    monkeypatch.undo()  # the pauses are the product's own
    monkeypatch.setattr("random.uniform", lambda _, most: most)
    world = make(sends=False)
    commit(world, T, ids(1))
    partner = Answers(lambda request: TAKEN)
    sending = sender.Sender(queue, partner, LEASE)
    with refusing(queue, part):
        assert [sending.turn() for _ in range(8)] == [1, 2, 4, 8, 16, 32, 60, 60]
    assert set(partner.keys) <= {f"{T}.0.1.0"}
    assert sending.turn() == 0.0
    assert (partner.keys[-1], world.visible()) == (f"{T}.0.1.0", 0)


@any_database
def test_that_it_stopped_is_logged_once(make, queue, monkeypatch, caplog):
    """However often it tries, and again after it went on."""
    world = make(sends=False)
    commit(world, T, cards(30))
    now = [0.0]
    clock = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: clock() + now[0])
    partner = Answers(lambda request: REFUSED)
    sending = sender.Sender(queue, partner, LEASE)
    for stops in (1, 2):
        for _ in range(4):
            now[0] += LEASE
            sending.turn()
        assert caplog.text.count("stopped") == stops
        world.resource.resume()
