"""The fault proxy: each fault does what it says, once, and nothing is left behind."""

from __future__ import annotations

import contextlib
import http.client
import http.server
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.served import served, unserved
from support.texts import texts
from support.waiting import AT_LAST, AT_ONCE, PATIENT, until

from tracing_2pc.core import content
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.testing import Fault, FaultProxy, SeenRequest
from tracing_2pc.wire import contract

TEXTS = texts("component")

T = "orders.7.1"
NONE = (0, b"")
"""In the place of an answer: there was none, or none that is whole."""
BRANCH = "0.3"
DIGEST = content.digest_of(b"rows")
STATES = {"prepare": "prepared", "commit": "committed", "abort": "aborted"}
VERBS = tuple(STATES)


class Participant(http.server.ThreadingHTTPServer):
    """Answers every request, and keeps what it heard."""

    def __init__(self) -> None:
        self.heard: list[tuple[str, str, list[tuple[str, str]], bytes]] = []
        self.silent = False
        self.status = 200
        self.more: dict[str, str] = {}
        self.meet: Callable[[], Any] = lambda: None
        super().__init__(("127.0.0.1", 0), Answering)
        self.url = f"http://127.0.0.1:{self.server_port}"

    @property
    def verbs(self) -> list[str]:
        return [path.rpartition("/")[2] for _, path, _, _ in self.heard]


class Answering(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Participant

    def do_GET(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        headers = [(name.lower(), value) for name, value in self.headers.items()]
        self.server.heard.append((self.command, self.path, headers, body))
        self.server.meet()
        if self.server.silent:
            self.close_connection = True
            return
        verb = self.path.rpartition("/")[2]
        said = {"transaction_id": T, "state": STATES.get(verb), "got": len(body)}
        answer = json.dumps(said).encode()
        self.send_response(self.server.status)
        for name, value in self.server.more.items():
            self.send_header(name, value)
        self.send_header("Content-Type", contract.JSON)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def do_POST(self) -> None:
        self.do_GET()

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def participant() -> Iterator[Participant]:
    with served(Participant()) as server:
        yield server


@pytest.fixture
def proxy(participant) -> Iterator[FaultProxy]:
    with FaultProxy(participant.url, timeout=PATIENT) as proxy:
        yield proxy


class Client:
    """One connection to a proxy."""

    def __init__(self, url: str, timeout: float = PATIENT) -> None:
        address = url.removeprefix("http://")
        self.connection = http.client.HTTPConnection(address, timeout=timeout)

    def post(self, verb: str, id_: str = T, **fields: str) -> tuple[int, bytes]:
        body, headers = b"rows", {"Tpc-Transaction-Id": id_, "Tpc-Branch": BRANCH}
        headers |= {"Tpc-Rows": "2", "Content-Digest": DIGEST}
        if verb != "prepare":
            body = json.dumps({"transaction_id": id_, **fields}).encode()
            headers = {"Content-Type": contract.JSON}
        return self.ask("POST", f"/{verb}", body, headers)

    def ask(
        self, method: str, path: str, body: bytes, headers: dict[str, str]
    ) -> tuple[int, bytes]:
        """Ask once."""
        try:
            self.connection.request(method, path, body, headers)
            with self.connection.getresponse() as response:
                return response.status, response.read()
        except (OSError, http.client.HTTPException):
            self.connection.close()
            return NONE


@pytest.fixture
def client(proxy) -> Iterator[Client]:
    client = Client(proxy.url)
    yield client
    client.connection.close()


def ask(proxy: FaultProxy, verb: str, **fields: str) -> tuple[int, bytes]:
    """Ask on a connection of its own."""
    client = Client(proxy.url)
    with contextlib.closing(client.connection):
        return client.post(verb, **fields)


def test_what_is_not_planned_passes_unchanged(participant, proxy, client):
    """Headers and eight megabytes arrive as sent; so do answers of any status."""
    sent = bytes(range(256)) * (1 << 15)
    participant.status, participant.more = 423, {"Retry-After": "1", "X-Own": "yes"}
    headers = {"traceparent": "00-a-b-01", "Tpc-Version": "1", "X-Two": "a, b"}
    client.connection.request("POST", "/commit?x=1", sent, headers)
    with client.connection.getresponse() as response:
        told = json.loads(response.read())
    assert (response.status, response.reason) == (423, "Locked")
    assert (response.headers["Retry-After"], response.headers["X-Own"]) == ("1", "yes")
    assert response.headers.get_all("Content-Type") == [contract.JSON]
    assert len(response.headers.get_all("Content-Length") or ()) == 1
    assert told["got"] == len(sent)
    method, path, heard, body = participant.heard[0]
    assert (method, path, body) == ("POST", "/commit?x=1", sent)
    assert sorted(heard) == sorted(
        [(name.lower(), value) for name, value in headers.items()]
        + [("accept-encoding", "identity"), ("content-length", str(len(sent)))]
        + [("host", participant.url.removeprefix("http://"))]
    )


def test_seen_says_what_each_request_was_about(proxy, client):
    """Verb, transaction and branch, wherever the request names them."""
    client.post("prepare")
    client.post("commit")
    client.post("abort", branch="1.4")
    client.post("resolve")
    client.ask("GET", f"/transactions/{T}", b"", {})
    client.ask("GET", "/transactions?state=prepared", b"", {})
    client.ask("POST", "/commit", b"[no json", {})
    named = [(s.verb, s.transaction, s.branch) for s in proxy.seen]
    assert named == [
        ("prepare", T, BRANCH),
        ("commit", T, ""),
        ("abort", T, "1.4"),
        ("resolve", T, ""),
        ("transactions", T, ""),
        ("transactions", "", ""),
        ("commit", "", ""),
    ]
    assert {(s.fault, s.statuses, s.returned) for s in proxy.seen} == {
        (None, (200,), 200)
    }


ONCE: dict[Fault, tuple[int, int | None]] = {
    Fault.DROP: (0, None),
    Fault.LOSE_ANSWER: (1, None),
    Fault.UNAVAILABLE: (0, 503),
    Fault.GARBAGE: (0, None),
    Fault.PAGE: (0, 200),
}
"""Faults that are over when the client knows: how often the participant heard it, and
the status that the client reads."""


@pytest.mark.parametrize("verb", VERBS[:2])
@pytest.mark.parametrize("fault", ONCE)
def test_a_fault_happens_once_and_is_on_record(participant, proxy, fault, verb):
    """The participant hears it or not, the client is told so, the next one passes."""
    proxy.plan(verb, fault)
    answer = ask(proxy, verb)
    heard, status = ONCE[fault]
    seen = SeenRequest(
        verb, T, BRANCH if verb == "prepare" else "", fault,
        (200,) * heard, status,
    )  # fmt: skip
    assert proxy.seen == (seen,)
    assert participant.verbs == [verb] * heard
    assert answer[0] == (status or 0)
    after = ask(proxy, verb)
    assert json.loads(after[1])["state"] == STATES[verb]
    assert proxy.seen[1].fault is None


def test_what_the_answers_hold_is_a_trap(proxy):
    """Each looks like an answer to a client that looks at one thing only."""
    for fault in (Fault.UNAVAILABLE, Fault.PAGE, Fault.GARBAGE):
        proxy.plan("commit", fault)
    assert ask(proxy, "commit") == (503, b"")
    assert ask(proxy, "commit")[1].startswith(b"<html>")
    host, _, port = proxy.url.removeprefix("http://").partition(":")
    with socket.create_connection((host, int(port)), timeout=PATIENT) as client:
        client.sendall(b"POST /commit HTTP/1.1\r\nContent-Length: 2\r\n\r\n{}")
        got = b"".join(iter(lambda: client.recv(65536), b""))
    assert got
    assert not got.startswith(b"HTTP")


def test_a_duplicate_arrives_at_the_same_moment(participant, proxy):
    """Both are with the participant before either is answered; one answer returns."""
    both = threading.Barrier(2)
    participant.meet = lambda: both.wait(AT_LAST)
    proxy.plan("prepare", Fault.DUPLICATE)
    answer = ask(proxy, "prepare")
    assert answer[0] == 200
    assert participant.verbs == ["prepare", "prepare"]
    assert participant.heard[0][3] == participant.heard[1][3] == b"rows"
    assert proxy.seen[0].statuses == (200, 200)


def test_a_later_duplicate_waits_for_release(participant, proxy):
    """It is answered at once; its copy arrives when the test says so, and once."""
    proxy.plan("commit", Fault.DUPLICATE_LATER)
    answer = ask(proxy, "commit")
    assert answer[0] == 200
    ask(proxy, "abort")
    assert participant.verbs == ["commit", "abort"]
    proxy.release()
    proxy.release()
    assert participant.verbs == ["commit", "abort", "commit"]
    assert proxy.seen[0].statuses == (200, 200)
    assert proxy.seen[0].returned == 200


def test_a_later_duplicate_comes_by_itself_after_its_time(participant, proxy):
    """With `after` nobody has to release it."""
    arrived = threading.Semaphore(0)
    participant.meet = arrived.release
    proxy.plan("commit", Fault.DUPLICATE_LATER, after=0.01)
    ask(proxy, "commit")
    assert arrived.acquire(timeout=AT_LAST)
    assert arrived.acquire(timeout=AT_LAST)


def test_a_delayed_request_arrives_when_its_client_has_given_up(participant, proxy):
    """That is longer than its timeout, whatever that is; then the request is done."""
    arrived = threading.Event()
    participant.meet = arrived.set
    proxy.plan("commit", Fault.DELAY)
    client = Client(proxy.url, timeout=AT_ONCE)
    assert client.post("commit") == NONE
    assert arrived.wait(AT_LAST)
    proxy.release()
    assert participant.verbs == ["commit"]
    assert proxy.seen[0].statuses == (200,)
    assert proxy.seen[0].returned is None


@pytest.mark.parametrize("after", [0.01, None])
def test_a_client_that_is_still_there_gets_the_delayed_answer(
    participant, proxy, after
):
    """After the time that was planned, or at `release()`."""
    proxy.plan("commit", Fault.DELAY, after=after)
    answers: list[Any] = []
    thread = threading.Thread(target=lambda: answers.append(ask(proxy, "commit")))
    thread.start()
    while after is None and not participant.heard:
        proxy.release()
    thread.join(AT_LAST)
    assert answers[0][0] == 200
    assert proxy.seen[0].returned == 200


@pytest.mark.parametrize("verb", ["commit", "abort"])
def test_a_late_prepare_arrives_after_the_decision(participant, proxy, verb):
    """Its client hears nothing; it arrives before the decision's answer is returned."""
    proxy.plan("prepare", Fault.LATE_AFTER_ABORT)
    assert ask(proxy, "prepare") == NONE
    assert participant.heard == []
    assert ask(proxy, verb) != NONE
    assert participant.verbs == [verb, "prepare"]
    assert proxy.seen[0].statuses == (200,)
    ask(proxy, verb)
    assert participant.verbs == [verb, "prepare", verb]


def test_a_late_prepare_waits_for_its_own_decision(participant, proxy):
    """Not for another transaction's, another branch's, or one that is not answered."""
    proxy.plan("prepare", Fault.LATE_AFTER_ABORT)
    ask(proxy, "prepare")
    ask(proxy, "abort", id_="orders.7.2")
    ask(proxy, "abort", branch="1.4")
    proxy.plan("abort", Fault.DROP)
    ask(proxy, "abort")
    participant.silent = True
    ask(proxy, "abort")
    participant.silent = False
    assert participant.verbs == ["abort", "abort", "abort"]
    ask(proxy, "abort", branch=BRANCH)
    assert participant.verbs == ["abort", "abort", "abort", "abort", "prepare"]


def test_faults_happen_in_the_order_of_the_plan(participant, proxy):
    """As often as planned, verb by verb, or until it is forgotten; then they pass."""
    proxy.plan("commit", Fault.DROP, times=2)
    proxy.plan("commit", Fault.UNAVAILABLE)
    proxy.plan("abort", Fault.PAGE)
    for _ in range(4):
        ask(proxy, "commit")
    ask(proxy, "abort")
    faults = [s.fault for s in proxy.seen]
    assert faults == [Fault.DROP, Fault.DROP, Fault.UNAVAILABLE, None, Fault.PAGE]
    proxy.plan("commit", Fault.DROP, times=10_000)
    ask(proxy, "commit")
    proxy.clear()
    ask(proxy, "commit")
    assert [s.fault for s in proxy.seen[5:]] == [Fault.DROP, None]
    assert participant.verbs == ["commit", "commit"]


@pytest.mark.parametrize(
    ("verb", "fault", "more", "why"),
    [
        ("comit", Fault.DROP, {}, "no verb 'comit'"),
        ("commit", Fault.LATE_AFTER_ABORT, {}, "only a prepare can be late"),
        ("commit", Fault.DROP, {"after": 1}, "after: only for delay"),
        ("commit", Fault.DROP, {"times": 0}, "at least once"),
    ],
)
def test_a_fault_that_cannot_happen_is_refused(participant, verb, fault, more, why):
    """Else a test would pass because nothing went wrong."""
    with pytest.raises(ConfigurationError, match=why):
        FaultProxy(participant.url).plan(verb, fault, **more)


def test_a_participant_that_is_down_gives_no_answer():
    """The client's connection is closed, and it is on record that it was asked."""
    with unserved() as url, FaultProxy(url) as proxy:
        assert ask(proxy, "commit") == NONE
        assert proxy.seen[0].statuses == (None,)


def test_a_base_url_may_have_a_path(participant):
    """The proxy's URL has the same one."""
    with FaultProxy(f"{participant.url}/ledger/") as proxy:
        assert proxy.url.endswith("/ledger")
        client = Client(proxy.url.removesuffix("/ledger"))
        with contextlib.closing(client.connection):
            client.ask("POST", "/ledger/commit", b"{}", {})
    assert participant.heard[0][1] == "/ledger/commit"
    assert proxy.seen[0].verb == "commit"


@pytest.mark.parametrize("url", ["https://127.0.0.1:1", "127.0.0.1:8081", "http://"])
def test_a_url_that_it_cannot_forward_to_is_refused(url):
    """Said where it is made."""
    with pytest.raises(ConfigurationError, match="expected http://host:port"):
        FaultProxy(url)


def test_it_listens_inside_of_with_only(participant):
    """There is no address before, and nobody there after."""
    proxy = FaultProxy(participant.url)
    with pytest.raises(ConfigurationError, match=TEXTS["only inside of with"]):
        _ = proxy.url
    with proxy:
        assert ask(proxy, "commit") != NONE
    assert ask(proxy, "commit") == NONE
    assert len(proxy.seen) == 1


def test_nothing_is_left_at_the_end(participant):
    """What is held is dropped; threads end, though clients keep connections open."""
    before = set(threading.enumerate())
    client = Client("http://127.0.0.1:9")
    with FaultProxy(participant.url) as proxy:
        client = Client(proxy.url)
        client.post("commit")
        proxy.plan("commit", Fault.DUPLICATE_LATER)
        proxy.plan("commit", Fault.DELAY)
        proxy.plan("prepare", Fault.LATE_AFTER_ABORT)
        client.post("commit")
        ask(proxy, "prepare")
        impatient = Client(proxy.url)
        answers: list[Any] = []
        waiting = threading.Thread(
            target=lambda: answers.append(impatient.post("commit"))
        )
        waiting.start()
        until(lambda: len(proxy.seen) == 4)
    waiting.join(AT_LAST)
    client.connection.close()
    assert answers == [NONE]
    assert participant.verbs == ["commit", "commit"]
    mine = [t for t in set(threading.enumerate()) - before if "proxy" in t.name]
    assert mine == []
    assert [len(s.statuses) for s in proxy.seen] == [1, 1, 0, 0]


def test_what_is_under_way_at_the_end_is_finished(participant):
    """The participant does it, its client hears of it, and only then `with` ends."""
    arrived = threading.Event()
    before = set(threading.enumerate())
    answers: list[Any] = []
    with FaultProxy(participant.url) as proxy:
        (accepting,) = set(threading.enumerate()) - before
        participant.meet = lambda: (arrived.set(), accepting.join(AT_LAST))
        asking = threading.Thread(target=lambda: answers.append(ask(proxy, "commit")))
        asking.start()
        assert arrived.wait(AT_LAST)
    assert proxy.seen[0].statuses == (200,)
    asking.join(AT_LAST)
    assert answers[0][0] == 200


def test_an_error_inside_of_with_goes_on(participant):
    """The test's own failure is what is seen."""

    def fail() -> None:
        with FaultProxy(participant.url) as proxy:
            proxy.plan("commit", Fault.DUPLICATE_LATER)
            ask(proxy, "commit")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert participant.verbs == ["commit"]
