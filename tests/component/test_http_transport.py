"""What counts as an answer of a participant, and what never does."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import itertools
import json
import socketserver
import time
from collections.abc import Iterator
from typing import Any

import pytest
from support.branches import Branch, commit_of, prepare_at
from support.served import served
from support.texts import texts
from support.waiting import AT_ONCE, PATIENT, PAUSE, UNDELAYED

from tracing_2pc.core.content import digest_of
from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import MAX_BRANCHES, BranchId, Receipt, TransactionId
from tracing_2pc.core.states import Refusal, Vote
from tracing_2pc.http.client import HttpParticipant

ID = TransactionId("orders", 3, 1)
TEXTS = texts("component")
PAIR = Branch(b"rows", 2, "0.7")
BEATEN = Receipt(BranchId(1, 8), "p", 0, "", Vote.READ_ONLY)
prepare = functools.partial(prepare_at, transaction=ID, branch=PAIR)
record = functools.partial(commit_of, ID, "p", PAIR, BEATEN, forgotten_through=1)
DRIP = PAUSE / 5
"""Between two bytes: the longest line of HTTP then takes as long as `PATIENT`."""


def raw(status: str, body: bytes, content_type: str = "application/json") -> bytes:
    head = f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def answer(status: str, **item: Any) -> bytes:
    return raw(status, json.dumps({"transaction_id": str(ID), **item}).encode())


def is_whole(said: bytes) -> bool:
    head, _, body = said.partition(b"\r\n\r\n")
    return f"Content-Length: {len(body)}".encode() in head.split(b"\r\n")


class Wire:
    """A server that says exactly what the test wants, and keeps what it heard."""

    def __init__(self) -> None:
        self.says: list[bytes] = []
        self.heard: list[tuple[str, dict[str, str], bytes]] = []
        self.connections = 0
        self.drips = b""
        """What comes after that, a byte at a time, again and again."""
        self.participant: HttpParticipant


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()

    class Handler(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            wire.connections += 1
            while line := self.rfile.readline().decode().strip():
                headers: dict[str, str] = {}
                while text := self.rfile.readline().decode().strip():
                    name, _, value = text.partition(":")
                    headers[name.lower()] = value.strip()
                body = self.rfile.read(int(headers.get("content-length", 0)))
                wire.heard.append((line, headers, body))
                said = wire.says.pop(0)
                self.wfile.write(said)
                with contextlib.suppress(OSError):  # who asked has gone
                    for byte in itertools.cycle(wire.drips):
                        time.sleep(DRIP)
                        self.wfile.write(bytes([byte]))
                if not is_whole(said):
                    return

    server = socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)
    with served(server):
        url = f"http://127.0.0.1:{server.server_address[1]}"
        wire.participant = HttpParticipant("p", url, None, PATIENT)
        yield wire


def test_an_acknowledgement_is_compared_as_it_came(wire, monkeypatch):
    """Secrets are cut from what is quoted; a state that is one counts all the same."""
    monkeypatch.setenv("SOME_SECRET", "committed")
    wire.says = [answer("200 OK", state="committed")]
    wire.participant.commit(record())


def test_a_commit_names_its_branches_and_forgotten_through(wire):
    """Only branches that voted commit are named; others never matter (rule 4)."""
    wire.says = [answer("200 OK", state="committed")]
    wire.participant.commit(record())
    line, headers, body = wire.heard[0]
    assert line == "POST /commit HTTP/1.1"
    assert {"tpc-version": "1", "tpc-participant": "p"}.items() <= headers.items()
    assert json.loads(body) == {
        "transaction_id": "orders.3.1",
        "branches": [{"branch": "0.7", "rows": 2, "digest": PAIR.digest}],
        "forgotten_through": 1,
    }


NOT_ANSWERS = {
    "a state that is no word": answer("200 OK", state={"committed": 1}),
    "json too deep": raw("200 OK", b"[" * 100_000),
    "a page with 200": raw("200 OK", b"<html>hello</html>", "text/html"),
    "json with a page's type": raw("200 OK", b"{}", "text/html"),
    "an empty 200": raw("200 OK", b""),
    "another transaction": raw(
        "200 OK", b'{"transaction_id": "orders.4.1", "state": "committed"}'
    ),
    "another state": answer("200 OK", state="prepared"),
    "no state": answer("200 OK"),
    "a list": raw("200 OK", b"[]"),
    "a redirect": b"HTTP/1.1 302 Found\r\nLocation: /x\r\nContent-Length: 0\r\n\r\n",
    "accepted, not done": answer("202 Accepted", state="committed"),
    "ask again": answer("425 Too Early", state="unknown"),
    "locked": answer("423 Locked", state="prepared"),
    "overloaded": answer("503 Service Unavailable", state="prepared"),
    "a server's error": raw("500 Internal Server Error", b"oops", "text/plain"),
    "a proxy's 404": raw("404 Not Found", b"nothing here", "text/html"),
    "a 409 about nothing": raw("409 Conflict", b"{}", "application/problem+json"),
    "another participant": answer("421 Misdirected Request", detail="not 'p'"),
    "hung up": b"",
    "cut": b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    b'Content-Length: 999\r\n\r\n{"transaction_id": "orders.3.1", "state"',
    "garbage": b"\x00\x01\x02\r\n\r\n",
}


@pytest.mark.parametrize("said", NOT_ANSWERS.values(), ids=NOT_ANSWERS.keys())
def test_anything_else_is_no_answer(wire, said):
    """Not the exact status with a body that repeats id and state: ask again."""
    wire.says = [said]
    with pytest.raises(ParticipantUnavailableError) as caught:
        wire.participant.commit(record())
    about = (caught.value.transaction_id, caught.value.participant)
    assert about == ("orders.3.1", "p")
    assert len(wire.heard) == 1, "nothing is repeated behind the coordinator's back"


@pytest.mark.parametrize(
    ("status", "state", "refusal"),
    [
        ("404", "unknown", Refusal.UNKNOWN),
        ("409", "aborted", Refusal.CONFLICT),
        ("410", "forgotten", Refusal.FORGOTTEN),
    ],
)
def test_a_definite_no_says_what_is_there(wire, status, state, refusal):
    """404, 409 and 410 about this transaction are answers, with their state."""
    wire.says = [answer(f"{status} No", state=state, detail="because")]
    with pytest.raises(ParticipantRefusedError, match="because") as caught:
        wire.participant.commit(record())
    assert (caught.value.refusal, caught.value.state) == (refusal, state)


def test_one_connection_for_many_transactions(wire):
    """Requests one after another share a connection."""
    wire.says = [answer("200 OK", state="committed")] * 50
    for _ in range(50):
        wire.participant.commit(record())
    assert wire.connections == 1


def test_a_vote_counts_only_for_these_rows_and_this_digest(wire):
    """What the participant counted must be what was sent."""
    good = {"state": "prepared", "vote": "commit", "rows": 2}
    wire.says = [
        answer("200 OK", **good, digest=PAIR.digest),
        answer("200 OK", **good | {"rows": 1}, digest=PAIR.digest),
        answer("200 OK", **good, digest=digest_of(b"other")),
    ]
    assert prepare(wire.participant) is Vote.COMMIT
    for _ in range(2):
        with pytest.raises(ParticipantRefusedError, match="counted"):
            prepare(wire.participant)
    _, headers, body = wire.heard[0]
    assert body == PAIR.body
    assert headers["tpc-branch"] == "0.7"
    assert headers["content-digest"] == PAIR.digest


def test_who_hangs_up_at_once_is_not_called_slow(wire):
    """Killed in the middle of a commit: nobody waited for a timeout."""
    wire.says = [NOT_ANSWERS["hung up"]]
    with pytest.raises(ParticipantUnavailableError) as caught:
        wire.participant.commit(record())
    ended = "the connection ended without a whole answer to POST /commit of orders.3.1"
    assert f"{ended} at {wire.participant.url}: it may or may" in str(caught.value)
    assert "within" not in str(caught.value)


ELSEWHERE = raw("404 Not Found", b"<h1>nothing here</h1>", "text/html")
UNKNOWN_TOKEN = raw("401 Unauthorized", b'{"detail": "this token is not known here"}')
MEND_ADDRESS = "start participant 'p' there, or mend its address in `participants`"
MEND_TOKEN = "set MY_TOKEN to a token of its tokens file"


@pytest.mark.parametrize(
    ("said", "what", "cure"),
    [
        (ELSEWHERE, "answered 404 to POST /prepare", MEND_ADDRESS),
        (UNKNOWN_TOKEN, "answered 401 to POST /prepare", MEND_TOKEN),
    ],
    ids=["wrong port", "wrong token"],
)
def test_who_was_not_asked_has_not_voted(wire, monkeypatch, said, what, cure):
    """One line: what came, for which transaction, from which address, what to do.

    So it is while a commit is repeated.
    """
    monkeypatch.setenv("MY_TOKEN", "a-token-of-a-job")
    wire.participant = dataclasses.replace(wire.participant, token="env:MY_TOKEN")
    wire.says = [said]
    with pytest.raises(ParticipantRefusedError) as caught:
        prepare(wire.participant)
    text = str(caught.value)
    assert TEXTS["votes abort"] not in text
    assert f"{what} of orders.3.1 at {wire.participant.url}" in text
    assert TEXTS["nobody voted"] in text
    assert text.endswith(cure)
    wire.says = [said]
    with pytest.raises(ParticipantUnavailableError) as unknown:
        wire.participant.commit(record())
    assert f"to POST /commit of orders.3.1 at {wire.participant.url}" in str(
        unknown.value
    )
    assert str(unknown.value).endswith(cure)


def test_a_vote_to_abort_is_still_called_one(wire):
    """A participant that names the transaction, or says so, has voted."""
    wire.says = [
        answer("409 Conflict", detail="no room"),
        raw("413 Too Large", b'{"vote": "abort", "detail": "no room"}'),
    ]
    for _ in range(2):
        with pytest.raises(ParticipantRefusedError, match="no room") as caught:
            prepare(wire.participant)
        assert "votes abort" in str(caught.value)
        assert f"orders.3.1 at {wire.participant.url}" in str(caught.value)


@pytest.mark.parametrize("status", ["400", "401", "403", "404", "409", "413", "415"])
def test_before_the_decision_a_4xx_is_a_no(wire, status):
    """A wrong token or address doesn't mend itself within the task: fail at once."""
    wire.says = [raw(f"{status} No", b'{"detail": "your token"}')]
    with pytest.raises(ParticipantRefusedError, match="your token"):
        prepare(wire.participant)


def test_the_token_is_read_where_it_is_used(wire, monkeypatch):
    """A reference travels, the secret does not; missing, it is named."""
    import cloudpickle

    wire.participant = dataclasses.replace(wire.participant, token="env:MY_TOKEN")
    monkeypatch.setenv("MY_TOKEN", "s3cret-s3cret")
    assert b"s3cret" not in cloudpickle.dumps(wire.participant)
    assert "s3cret" not in repr(wire.participant)
    wire.says = [answer("200 OK", state="committed")]
    wire.participant.commit(record())
    assert wire.heard[0][1]["authorization"] == "Bearer s3cret-s3cret"
    monkeypatch.delenv("MY_TOKEN")
    with pytest.raises(ConfigurationError, match="MY_TOKEN"):
        wire.participant.commit(record())


@pytest.mark.parametrize("vote", ["read_only", "abort", "maybe", None])
def test_rows_without_a_vote_to_commit_are_refused(wire, vote):
    """A participant that took rows votes commit, or nothing is committed."""
    said = {"state": "prepared", "vote": vote, "rows": 2, "digest": PAIR.digest}
    wire.says = [answer("200 OK", **said)]
    with pytest.raises(ParticipantRefusedError, match=TEXTS["no vote to commit"]):
        prepare(wire.participant)


def test_a_refusals_words_are_made_harmless(wire):
    """Control characters and lone surrogates go into no message and no database."""
    wire.says = [answer("409 No", state="\ud800\n" * 99, detail="a\nb\x1b[31m")]
    with pytest.raises(ParticipantRefusedError) as caught:
        wire.participant.commit(record())
    assert caught.value.state is not None
    assert caught.value.state.isprintable()
    assert len(caught.value.state) <= 40
    assert str(caught.value).isprintable()


def test_a_token_file_with_two_lines_is_refused_and_not_shown(wire, tmp_path):
    """An easy mistake while rotating: said without the secret, and nothing is sent."""
    (tmp_path / "token").write_text("s3cret-old\ns3cret-new\n")
    reference = f"file:{tmp_path}/token"
    wire.participant = dataclasses.replace(wire.participant, token=reference)
    with pytest.raises(ConfigurationError, match="one token") as caught:
        wire.participant.commit(record())
    assert "s3cret" not in str(caught.value)
    assert wire.heard == []


@pytest.mark.parametrize(
    ("head", "rest"),
    [
        (raw("200 OK", bytes(1 << 16)).partition(b"\0")[0], b" "),
        (b"HTTP/1.1 200 OK\r\nX: ", b"y"),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n"),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"0"),
    ],
    ids=["body", "headers", "continue", "chunk"],
)
def test_an_answer_that_drips_is_no_answer(wire, head, rest):
    """The timeout holds for the whole answer, not only for each read."""
    wire.says, wire.drips = [head], rest
    started = time.monotonic()
    with pytest.raises(ParticipantUnavailableError):
        dataclasses.replace(wire.participant, timeout=AT_ONCE).commit(record())
    assert time.monotonic() - started < UNDELAYED


def test_a_transaction_of_as_many_branches_as_there_may_be_is_shown(wire):
    """A participant that holds much is not one that cannot be read."""
    held = {
        "state": "prepared",
        "rows": 10_000_000,
        "digest": digest_of(b""),
        "prepared_at": 1_700_000_000.123456,
        "sealed_at": 1_700_000_000.123456,
    }
    branches = [{"branch": f"{n}.{n + 10**6}", **held} for n in range(MAX_BRANCHES)]
    wire.says = [answer("200 OK", state="prepared", branches=branches)]
    assert len(wire.participant.show(ID).branches) == MAX_BRANCHES


@pytest.mark.parametrize(
    ("more", "answer_of_partner"),
    [({}, None), ({"answer": None}, None), ({"answer": "no\n\x1b"}, "no\n\x1b")],
    ids=["an older release", "nothing said", "foreign text"],
)
def test_a_refused_request_is_read_with_and_without_the_partners_answer(
    wire, more, answer_of_partner
):
    """What a release before did not send is not missed; the text is not judged."""
    request = {
        "key": f"{ID}.0.1.0",
        "state": "quarantined",
        "status": 422,
        "since": 1_700_000_000.5,
        "body": "{}",
        "length": 2,
        "again": 0,
        "dropped_at": None,
        "who": None,
        "reason": None,
        **more,
    }
    wire.says = [answer("200 OK", requests=[request], next=None, now=1_700_000_001.0)]
    (found,) = wire.participant.quarantined().requests
    assert (found.status, found.answer) == (422, answer_of_partner)
    wire.says = [
        answer("200 OK", requests=[{**request, "answer": 1}], next=None, now=1)
    ]
    with pytest.raises(ParticipantUnavailableError):
        wire.participant.quarantined()
