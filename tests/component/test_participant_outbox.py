"""What an outbox sends; how often and when is in `contract/test_outbox.py`."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import pyarrow as pa
import pytest
from support.branches import json_lines, records
from support.kinds import outbox_to, sqlite_url
from support.participant import World, select, turns_of
from support.texts import texts
from support.transports import OTHERS, TRANSPORTS
from support.waiting import PATIENT, until

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.outbox import Outbox
from tracing_2pc.wire.bridge import start_sending

T = "orders.7.1"
TEXTS = texts("outbox")


Make = Callable[..., World]


@pytest.fixture
def make(tmp_path, partner) -> Iterator[Make]:
    made: list[World] = []

    def one(*, sends: bool = True, **options: Any) -> World:
        limits = {"timeout": PATIENT, "lease": 3 * PATIENT}
        address = f"{partner.url}/orders"
        resource = outbox_to(address, sqlite_url(tmp_path), **limits, **options)
        if not sends:
            resource.start = lambda: None  # type: ignore[method-assign]
        made.append(World(resource, lambda: int(backlog(resource))))
        return made[-1]

    yield one
    for world in made:
        world.resource.close()


def backlog(resource: Outbox) -> float:
    return resource.gauges()["tpc.outbox.backlog"]


def send(world: World, transaction: str, *branches: Any) -> None:
    for branch in branches:
        assert world.prepare(transaction, branch).status_code == 200
    assert world.commit(transaction, *branches).status_code == 200


def ids(*found: int, branch: str = "0.1") -> Any:
    return records(branch, id=pa.array(found, pa.int64()))


def test_order(make, partner):
    """An application's leave by batch, branch and row, as numbers, not as text."""
    world = make(sends=False)
    send(world, "orders.2.1", ids(20))
    later = ids(105, branch="10.1"), ids(*range(101, 104), branch="2.1")
    send(world, "orders.10.1", *later)
    send(world, "orders.9.1", ids(90))
    send(world, "bills.99.1", ids(1))
    make().resource.start()
    until(lambda: backlog(world.resource) == 0)
    order = [body["id"] for _, _, body in partner.got]
    assert 1 in order[:2]
    order.remove(1)
    assert order == [20, 90, 101, 102, 103, 105]


def test_close_gives_the_lease_back(make, partner):
    """After a graceful stop the next process sends at once."""
    first, second = make(), make()
    first.resource.open()
    lease = "SELECT 1 FROM outbox_tpc_sender WHERE holder <> ''"
    first.client.get("/health/live")
    until(lambda: select(first.resource, lease))
    first.resource.close()
    send(second, T, ids(1))
    until(lambda: len(partner.got) == 1)


@pytest.mark.parametrize("transport", OTHERS)
def test_what_waits_is_sent_before_the_first_request(make, partner, transport):
    """A service that was started again waits for nobody who asks it something."""
    world = make(sends=False)
    send(world, T, ids(1))
    with TRANSPORTS[transport].serve(make().app):
        until(lambda: backlog(world.resource) == 0)


def test_a_process_has_the_name_of_its_participant_from_the_start(make, monkeypatch):
    """In traces and metrics: not that of the outbox's tables."""
    names: list[str] = []
    monkeypatch.setattr("tracing_2pc.tracing.sdk.lifecycle.start", names.append)
    start_sending(make().app)
    assert names[0] == "participant"


@pytest.mark.parametrize("reloads", [False, True])
def test_an_application_that_runs_alone_sends_at_once(
    make, partner, monkeypatch, reloads
):
    """A reloader's first process, which serves nothing, sends nothing."""
    world = make(sends=False)
    send(world, T, ids(1))

    def serve(*_: Any, **__: Any) -> None:
        names = {thread.name for thread in threading.enumerate()}
        assert ("tpc-outbox-sender" in names) is not reloads
        if not reloads:
            until(lambda: backlog(world.resource) == 0)
        served.append(True)

    served: list[bool] = []
    monkeypatch.setattr("werkzeug.serving.run_simple", serve)
    make().app.run("127.0.0.1", 0, use_reloader=reloads, load_dotenv=False)
    assert served == [True]


def test_no_thread_before_a_process_serves(make):
    """The sender starts in the process that answers, so after a server's fork."""
    world = make()
    for sends in (False, True):
        names = {thread.name for thread in threading.enumerate()}
        assert ("tpc-outbox-sender" in names) is sends
        world.client.get("/health/ready")


def test_the_check_call(make, partner):
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


def test_what_a_record_looks_like(make, partner):
    """Arrow's types have one form in JSON; JSON lines arrive as they were sent."""
    import datetime
    import decimal

    utc = datetime.timezone.utc
    first = datetime.datetime(2026, 1, 2, 3, 4, 5, 6, utc)
    branch = records(
        when=[first, datetime.datetime.min.replace(tzinfo=utc), None],
        day=[datetime.date(2026, 1, 2), datetime.date.max, None],
        price=[decimal.Decimal("1.10"), None, decimal.Decimal(2)],
        raw=[b"\x00\xff", b"", None],
        text=['ü " \n', 'a, "b", null', None],
        deep=[{"a": [1, 2]}, {"a": None}, None],
        **{"100 %s": pa.array([None, 1, -2], pa.int64())},
    )
    sent = {"when": "2026-01-02", "n": 12345678901234567890, "f": 1.0}
    world = make()
    send(world, T, branch)
    send(world, "orders.8.1", json_lines(sent))
    until(lambda: len(partner.got) == 4)
    assert [body for *_, body in partner.got] == [
        {
            "when": "2026-01-02T03:04:05.000006+00:00",
            "day": "2026-01-02",
            "price": "1.10",
            "raw": "AP8=",
            "text": 'ü " \n',
            "deep": {"a": [1, 2]},
            "100 %s": None,
        },
        {
            "when": "0001-01-01T00:00:00+00:00",
            "day": "9999-12-31",
            "price": None,
            "raw": "",
            "text": 'a, "b", null',
            "deep": {"a": None},
            "100 %s": 1,
        },
        {
            **dict.fromkeys(("when", "day", "raw", "text", "deep")),
            "price": "2.00",
            "100 %s": -2,
        },
        sent,
    ]


_AFTER = 2_932_897
"""Days from 1970 to the one after Python's last."""


@pytest.mark.parametrize(
    "branch",
    [
        records(x=[1.0, float("nan")]),
        json_lines({"x": float("nan")}),
        records(x=pa.array([1, None, _AFTER], pa.date32())),
        records(x=pa.array([_AFTER * 86_400_000_000], pa.timestamp("us", "UTC"))),
        records(x=pa.array([-719_163], pa.date32())),
    ],
)
def test_a_record_that_json_cannot_say(make, branch):
    """NaN, or a day without a date in Python: it is refused at prepare, not sent."""
    assert make().prepare(T, branch).status_code == 400


def test_the_partner_s_token_is_a_reference(make, partner, monkeypatch):
    """It is read when it is used, and sent as a bearer token, beside other headers."""
    monkeypatch.setenv("PARTNER_TOKEN", "the-partners-token")
    world = make(token="env:PARTNER_TOKEN", headers={"X-Shop": "7"})
    send(world, T, ids(1))
    until(lambda: len(partner.got) == 1)
    sent = {"Authorization": "Bearer the-partners-token", "X-Shop": "7"}
    assert sent.items() <= partner.got[0][1].items()
    assert "the-partners-token" not in repr(vars(turns_of(world)._partner))


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"partner": "ftp://x/y"}, TEXTS["url without http"]),
        ({"partner": "http://user:secret@x/y"}, "password"),
        ({"partner": "http://x/y", "timeout": PATIENT, "lease": PATIENT}, "timeout"),
        ({"partner": "http://x/y", "name": "No Table"}, "lower-case"),
    ],
)
def test_settings_that_cannot_work(tmp_path, options, says):
    """They are refused when the outbox is made, with the setting to change."""
    with pytest.raises(ConfigurationError, match=says):
        outbox_to(url=sqlite_url(tmp_path), **options)


def test_a_forked_process_has_connections_of_its_own():
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
        partner = HttpPartner(address, check=address, timeout=PATIENT)
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
