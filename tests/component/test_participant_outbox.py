"""An outbox: what is committed reaches the partner, once, in order, and for sure."""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from opentelemetry.sdk.trace import ReadableSpan
from support.participant import (
    PartnerApi,
    World,
    end,
    json_lines,
    records,
    sqlite_url,
)

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.participant import Outbox
from tracing_2pc.participant.resources import sender

T = "orders.7.1"


@pytest.fixture
def partner() -> Iterator[PartnerApi]:
    made = PartnerApi()
    yield made
    made.close()


@pytest.fixture(params=["sqlite", "postgresql"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return sqlite_url(tmp_path)
    found: str = request.getfixturevalue("postgres_database")
    return found


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sender, "_POLL", 0.05)
    monkeypatch.setattr(sender, "_FIRST_PAUSE", 0.05)


Make = Callable[..., World]


@pytest.fixture
def make(url: str, partner: PartnerApi) -> Iterator[Make]:
    made: list[World] = []

    def one(**options: Any) -> World:
        settings = {"timeout": 5.0, "lease": 15.0, **options}
        resource = Outbox(url, partner=f"{partner.url}/orders", **settings)
        made.append(World(resource, lambda: int(backlog(resource))))
        return made[-1]

    yield one
    for world in made:
        end(world.resource)


def backlog(resource: Outbox) -> float:
    return resource.gauges()["tpc.outbox.backlog"]


def eventually(holds: Callable[[], bool]) -> None:
    until = time.monotonic() + 120
    while not holds():
        assert time.monotonic() < until, "it did not happen"
        time.sleep(0.02)


def send(world: World, transaction: str, *branches: Any) -> None:
    for branch in branches:
        assert world.prepare(transaction, branch).status_code == 200
    assert world.commit(transaction, *branches).status_code == 200


def ids(*found: int, branch: str = "0.1") -> Any:
    return records(branch, id=pa.array(found, pa.int64()))


def test_nothing_leaves_before_the_commit(make: Make, partner: PartnerApi) -> None:
    """Prepared requests stay, aborted ones are gone, committed ones are sent."""
    world = make()
    assert world.prepare(T, ids(1, 2)).status_code == 200
    assert world.prepare("orders.8.1", ids(3)).status_code == 200
    assert world.abort("orders.8.1").status_code == 200
    time.sleep(0.3)
    assert partner.got == []
    assert world.commit(T, ids(1, 2)).status_code == 200
    eventually(lambda: len(partner.got) == 2)
    eventually(lambda: backlog(world.resource) == 0)
    assert [body for _, _, body in partner.got] == [{"id": 1}, {"id": 2}]
    assert {path for path, _, _ in partner.got} == {"/orders"}


def test_order(
    make: Make, partner: PartnerApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An application's leave by batch, branch and row, as numbers, not as text."""
    world = make()
    with monkeypatch.context() as patch:
        patch.setattr(world.resource._sender, "start", lambda: None)
        send(world, "orders.2.1", ids(20))
        later = ids(105, branch="10.1"), ids(*range(101, 104), branch="2.1")
        send(world, "orders.10.1", *later)
        send(world, "orders.9.1", ids(90))
        send(world, "bills.99.1", ids(1))
    world.resource.start()
    eventually(lambda: backlog(world.resource) == 0)
    order = [body["id"] for _, _, body in partner.got]
    assert 1 in order[:2]
    order.remove(1)
    assert order == [20, 90, 101, 102, 103, 105]


def test_a_request_is_sent_until_it_is_confirmed(
    make: Make, partner: PartnerApi
) -> None:
    """Silence and "not now" are asked again with the same key; nothing overtakes."""
    partner.answers = [500, 503, 429, 408, 425, 302]
    world = make()
    send(world, T, ids(1, 2))
    eventually(lambda: backlog(world.resource) == 0)
    keys = [headers["Idempotency-Key"] for _, headers, _ in partner.got]
    assert keys == [f"{T}.0.1.0"] * 7 + [f"{T}.0.1.1"]
    assert world.resource.quarantined() == []


def test_a_refusal_is_set_aside_and_shown(make: Make, partner: PartnerApi) -> None:
    """A 4xx after commit blocks nobody, is kept with its content, and is counted."""
    partner.answers = [200, 422, 200]
    world = make()
    send(world, T, ids(1, 2, 3))
    eventually(lambda: len(partner.got) == 3)
    eventually(lambda: backlog(world.resource) == 0)
    (kept,) = world.resource.quarantined()
    assert (kept["key"], kept["status"]) == (f"{T}.0.1.1", 422)
    assert json.loads(kept["body"]) == {"id": 2}
    assert "\ntpc_outbox_quarantined 1\n" in world.client.get("/metrics").text


def test_backlog_is_measured(make: Make, partner: PartnerApi) -> None:
    """What waits, and how long the oldest has waited, are metrics."""
    partner.answers = [503] * 1000
    ticks = itertools.count(1000, 5)
    world = make(clock=lambda: float(next(ticks)))
    send(world, T, ids(1, 2, 3))
    eventually(lambda: len(partner.got) > 1)
    text = world.client.get("/metrics").text
    assert "\ntpc_outbox_backlog 3\n" in text
    age = text.rpartition("tpc_outbox_oldest_age_seconds ")[2].split()[0]
    assert float(age) > 0


def test_one_sender(make: Make, partner: PartnerApi) -> None:
    """However many processes share the outbox, each request is sent once, in order."""
    worlds = [make() for _ in range(4)]
    for world in worlds:
        world.client.get("/health/live")
    for batch in range(8):
        send(worlds[batch % 4], f"orders.{batch}.1", ids(batch * 2, batch * 2 + 1))
    eventually(lambda: backlog(worlds[0].resource) == 0)
    keys = [headers["Idempotency-Key"] for _, headers, _ in partner.got]
    assert len(keys) == len(set(keys)) == 16


def test_another_process_takes_over(make: Make, partner: PartnerApi) -> None:
    """When the sender falls silent, another one goes on once its lease has run out."""
    first, second = (make(timeout=1.0, lease=3.0) for _ in range(2))
    first.client.get("/health/live")
    eventually(lambda: first.resource._sender._held > 0)
    # Silent, not closed: as a process that was killed, it does not give the lease back.
    first.resource._queue.let_go = lambda holder: None
    first.resource._sender.stop()
    lease_ends = first.resource._sender._held + 3.0
    send(second, T, ids(1))
    eventually(lambda: backlog(second.resource) == 0)
    assert len(partner.got) == 1
    assert time.monotonic() > lease_ends


def test_close_gives_the_lease_back(make: Make, partner: PartnerApi) -> None:
    """After a graceful stop the next process sends at once."""
    # Longer than a test may take: nothing is sent because a lease has run out.
    first, second = make(lease=3600.0), make(lease=3600.0)
    first.client.get("/health/live")
    eventually(lambda: first.resource._sender._held > 0)
    first.resource.close()
    send(second, T, ids(1))
    eventually(lambda: len(partner.got) == 1)


def test_no_thread_before_the_first_request(make: Make) -> None:
    """The sender starts in the process that answers, so after a server's fork."""
    world = make()
    assert world.resource._sender._thread is None
    world.client.get("/health/ready")
    assert isinstance(world.resource._sender._thread, threading.Thread)


def test_the_check_call(make: Make, partner: PartnerApi) -> None:
    """The partner is asked at prepare: its no votes abort; silence asks again."""
    world = make(check=f"{partner.url}/check")
    partner.answers = [422, 500, 200]
    refused = world.prepare(T, ids(1, 2))
    assert (refused.status_code, refused.get_json()["vote"]) == (409, "abort")
    unsure = world.prepare(T, ids(1, 2), once=True)
    assert unsure.status_code == 503
    assert "vote" not in unsure.get_json()
    assert world.prepare(T, ids(1, 2)).status_code == 200
    assert [path for path, _, _ in partner.got] == ["/check"] * 3
    assert partner.got[0][2] == {"records": [{"id": 1}, {"id": 2}]}
    assert world.in_doubt() == 1


def test_what_a_record_looks_like(make: Make, partner: PartnerApi) -> None:
    """Arrow's types have one form in JSON; JSON lines arrive as they were sent."""
    import datetime
    import decimal

    utc = datetime.timezone.utc
    branch = records(
        when=pa.array([datetime.datetime(2026, 1, 2, 3, 4, 5, 6, utc)]),
        day=[datetime.date(2026, 1, 2)],
        price=[decimal.Decimal("1.10")],
        raw=[b"\x00\xff"],
        text=['ü " \n'],
        nothing=pa.array([None], pa.int64()),
        deep=[{"a": [1, 2]}],
    )
    lines = json_lines({"when": "2026-01-02", "n": 12345678901234567890, "f": 1.0})
    world = make()
    send(world, T, branch)
    send(world, "orders.8.1", lines)
    eventually(lambda: len(partner.got) == 2)
    assert partner.got[0][2] == {
        "when": "2026-01-02T03:04:05.000006+00:00",
        "day": "2026-01-02",
        "price": "1.10",
        "raw": "AP8=",
        "text": 'ü " \n',
        "nothing": None,
        "deep": {"a": [1, 2]},
    }
    assert partner.got[1][2] == {
        "when": "2026-01-02",
        "n": 12345678901234567890,
        "f": 1.0,
    }


@pytest.mark.parametrize(
    "branch",
    [
        records(x=[float("nan")]),
        json_lines({"x": float("nan")}),
    ],
)
def test_a_record_that_json_cannot_say(make: Make, branch: Any) -> None:
    """NaN is refused at prepare, not sent as something that is not JSON."""
    assert make().prepare(T, branch).status_code == 400


def test_the_partner_is_called_in_the_transaction_s_trace(
    make: Make,
    partner: PartnerApi,
    exported: Callable[[], list[ReadableSpan]],
) -> None:
    """The request carries the trace context that the first prepare came with."""
    world = make(headers={"X-Shop": "7"})
    send(world, T, ids(1))
    eventually(lambda: len(partner.got) == 1)
    headers = partner.got[0][1]
    assert headers["traceparent"].split("-")[1] == "a" * 32
    assert headers["X-Shop"] == "7"
    eventually(lambda: any(s.name == "tpc.outbox.send" for s in exported()))


def test_the_partner_s_token_is_a_reference(
    make: Make, partner: PartnerApi, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is read when it is used, and sent as a bearer token."""
    monkeypatch.setenv("PARTNER_TOKEN", "the-partners-token")
    world = make(token="env:PARTNER_TOKEN")
    send(world, T, ids(1))
    eventually(lambda: len(partner.got) == 1)
    assert partner.got[0][1]["Authorization"] == "Bearer the-partners-token"
    assert "the-partners-token" not in repr(vars(world.resource._sender._partner))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"partner": "ftp://x/y"}, "use http:// or https://"),
        ({"partner": "http://user:secret@x/y"}, "password"),
        ({"partner": "http://x/y", "lease": 5.0}, "timeout"),
        ({"partner": "http://x/y", "name": "No Table"}, "lower-case"),
    ],
)
def test_settings_that_cannot_work(
    tmp_path: Path, options: dict[str, Any], says: str
) -> None:
    """They are refused when the outbox is made, with the setting to change."""
    with pytest.raises(ConfigurationError, match=says):
        Outbox(sqlite_url(tmp_path), **options)


def test_a_forked_process_has_connections_of_its_own() -> None:
    """An answer on a shared one could confirm a record that was never taken."""
    peers: list[int] = []

    class Peer(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            peers.append(self.client_address[1])
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Peer) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        address = f"http://127.0.0.1:{server.server_port}"
        partner = HttpPartner(address, address, {}, None, 5.0)
        partner.check(["{}"])
        if (child := os.fork()) == 0:
            try:
                partner.check(["{}"])
            finally:
                os._exit(0)
        os.waitpid(child, 0)
        partner.check(["{}"])
        server.shutdown()
    assert len(peers) == 3
    assert peers[0] == peers[2] != peers[1]
