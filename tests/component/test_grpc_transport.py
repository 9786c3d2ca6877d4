"""What counts as an answer over gRPC, and what never does."""

from __future__ import annotations

import dataclasses
import functools
import io
import json
import threading
from collections.abc import Callable, Iterator
from concurrent import futures
from typing import Any

import grpc
import pytest
from support.branches import Branch, commit_of, prepare_at
from support.texts import texts
from support.waiting import AT_LAST, AT_ONCE, PATIENT, SOON

from tracing_2pc.core.content import digest_of
from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import BranchId, Receipt, TransactionId
from tracing_2pc.core.remote_participant import open_participant
from tracing_2pc.core.states import Refusal, Vote
from tracing_2pc.grpc import messages
from tracing_2pc.grpc.client import CHUNK, GrpcParticipant
from tracing_2pc.grpc.connection import forget

ID = TransactionId("orders", 3, 1)
TEXTS = texts("component")
CODE = grpc.StatusCode
PAIR = Branch(b"rows", 2, "0.7")
BEATEN = Receipt(BranchId(1, 8), "p", 0, "", Vote.READ_ONLY)
prepare = functools.partial(prepare_at, transaction=ID, branch=PAIR)
record = functools.partial(commit_of, ID, "p", PAIR, BEATEN, forgotten_through=1)


class Wire:
    """A server that says exactly what the test wants, and keeps what it heard.

    It has the three methods of a participant, and no Ask.
    """

    def __init__(self) -> None:
        self.says: Callable[[Any], Any] = lambda context: None
        self.heard: list[tuple[str, list[Any], dict[str, Any]]] = []
        self.participant: GrpcParticipant

    def handlers(self) -> dict[str, Any]:
        return {
            name: grpc.stream_unary_rpc_method_handler(
                self._answering(name), sent.FromString, received.SerializeToString
            )
            for name, (sent, received) in messages.METHODS.items()
            if name != "Ask"
        }

    def _answering(self, name: str) -> Callable[[Any, Any], Any]:
        def answer(requests: Iterator[Any], context: Any) -> Any:
            metadata = dict(context.invocation_metadata())
            self.heard.append((name, list(requests), metadata))
            return self.says(context)

        return answer


@pytest.fixture
def wire() -> Iterator[Wire]:
    wire = Wire()
    with futures.ThreadPoolExecutor() as pool:
        server = grpc.server(pool, options=[("grpc.so_reuseport", 0)])
        handlers = grpc.method_handlers_generic_handler(
            messages.SERVICE, wire.handlers()
        )
        server.add_generic_rpc_handlers((handlers,))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        wire.participant = GrpcParticipant(
            "p", f"grpc://127.0.0.1:{port}", None, PATIENT
        )
        forget(wire.participant.url)  # of an earlier test's server at the same port
        yield wire
        server.stop(None).wait()


def outcome(**fields: Any) -> Callable[[Any], Any]:
    said = {"transaction_id": str(ID), "state": "STATE_COMMITTED", **fields}
    return lambda context: messages.Outcome(**said)


def vote(**fields: Any) -> Callable[[Any], Any]:
    said = {"transaction_id": str(ID), "vote": "VOTE_COMMIT", "rows": 2}
    said |= {"digest": PAIR.digest, **fields}
    return lambda context: messages.PrepareResponse(**said)


def status(code: grpc.StatusCode, details: str = "because") -> Callable[[Any], Any]:
    return lambda context: context.abort(code, details)


def test_a_commit_names_its_branches_and_forgotten_through(wire):
    """Only branches that voted commit are named; the rest travels beside them."""
    wire.says = outcome()
    wire.participant.commit(record())
    ((method, (order,), metadata),) = wire.heard
    assert method == "Commit"
    assert {"tpc-version": "1", "tpc-participant": "p"}.items() <= metadata.items()
    assert order == messages.CommitRequest(
        transaction_id="orders.3.1",
        branches=[PAIR.named],
        forgotten_through=1,
    )


NOT_ANSWERS = {
    "another transaction": outcome(transaction_id="orders.4.1"),
    "no transaction": outcome(transaction_id=""),
    "another state": outcome(state="STATE_PREPARED"),
    "no state": outcome(state="STATE_UNSPECIFIED"),
    "a state of a newer release": outcome(state=99),
    "another participant": outcome(participant_name="q"),
    "ask again": outcome(refusal="REFUSAL_IN_PROGRESS"),
    "not now": outcome(refusal="REFUSAL_NOT_NOW"),
    "a refusal of a newer release": outcome(refusal=99),
    "misdirected": outcome(refusal="REFUSAL_MISDIRECTED"),
    "an empty message": lambda context: messages.Outcome(),
    **{str(code.name): status(code) for code in CODE if code is not CODE.OK},
}


@pytest.mark.parametrize("said", NOT_ANSWERS.values(), ids=NOT_ANSWERS.keys())
def test_anything_else_is_no_answer(wire, said):
    """Not OK with a message that repeats id and state: asked again, by the caller."""
    wire.says = said
    with pytest.raises(ParticipantUnavailableError) as caught:
        wire.participant.commit(record())
    about = (caught.value.transaction_id, caught.value.participant)
    assert about == ("orders.3.1", "p")
    assert wire.participant.url in str(caught.value)
    assert len(wire.heard) == 1, "nothing is repeated behind the coordinator's back"


@pytest.mark.parametrize(
    ("state", "refusal"),
    [
        ("unknown", Refusal.UNKNOWN),
        ("aborted", Refusal.CONFLICT),
        ("forgotten", Refusal.FORGOTTEN),
    ],
)
def test_a_definite_no_says_what_is_there(wire, state, refusal):
    """Refusals about this transaction are answers, with their state."""
    wire.says = outcome(
        state=f"STATE_{state.upper()}",
        refusal=f"REFUSAL_{str(refusal).upper()}",
        message="because",
    )
    with pytest.raises(ParticipantRefusedError, match="because") as caught:
        wire.participant.commit(record())
    assert (caught.value.refusal, caught.value.state) == (refusal, state)


@pytest.mark.parametrize(
    "said",
    [
        {"rows": 1},
        {"digest": digest_of(b"other")},
        {"vote": "VOTE_READ_ONLY"},
        {"vote": "VOTE_ABORT", "message": "no room"},
        {"refusal": "REFUSAL_CONFLICT", "state": "STATE_COMMITTED"},
        {"refusal": "REFUSAL_MALFORMED"},
    ],
    ids=str,
)
def test_a_vote_counts_only_for_these_rows_and_this_digest(wire, said):
    """What it counted must be what was sent, and it must say commit."""
    wire.says = vote()
    assert prepare(wire.participant) is Vote.COMMIT
    wire.says = vote(**said)
    with pytest.raises(ParticipantRefusedError):
        prepare(wire.participant)
    _, requests, _ = wire.heard[0]
    assert requests[0].branch == messages.Branch(**PAIR.named)
    assert b"".join(request.payload for request in requests) == PAIR.body


@pytest.mark.parametrize(
    "said",
    [
        vote(vote="VOTE_UNSPECIFIED"),
        vote(vote=99),
        vote(transaction_id="orders.4.1"),
        vote(state="STATE_COMMITTED"),
        vote(refusal="REFUSAL_NOT_NOW"),
        status(CODE.INTERNAL),
        status(CODE.RESOURCE_EXHAUSTED),
    ],
    ids=range(7),
)
def test_what_is_no_vote_is_no_abort_either(wire, said):
    """The branch may be prepared: nobody knows."""
    wire.says = said
    with pytest.raises(ParticipantUnavailableError):
        prepare(wire.participant)


@pytest.mark.parametrize("code", [CODE.UNAUTHENTICATED, CODE.PERMISSION_DENIED])
def test_a_token_that_is_not_taken_is_no_vote(wire, code):
    """It does not mend itself within the task: said at once, with the cure."""
    wire.says = status(code)
    with pytest.raises(ParticipantRefusedError, match="because") as caught:
        prepare(wire.participant)
    assert TEXTS["nobody voted"] in str(caught.value)
    assert str(caught.value).endswith("none is configured: set `token`")


def test_without_ask_it_cannot_be_listed_and_says_so(wire):
    """It takes part all the same; who lists, looks up or checks reads why not."""
    told = TEXTS["no Ask"]
    for ask in (wire.participant.prepared, wire.participant.identity):
        with pytest.raises(ParticipantUnavailableError, match=told):
            ask()
    with pytest.raises(ParticipantUnavailableError, match=told) as caught:
        wire.participant.show(ID)
    assert f"GET /transactions/{ID} at {wire.participant.url}" in str(caught.value)
    assert told in str(wire.participant.describe().unreachable)


def test_a_service_that_is_no_participant_is_not_one(wire, monkeypatch):
    """Something else answers gRPC there: nobody voted, nothing is acknowledged."""
    method = messages.path_of
    monkeypatch.setattr(
        "tracing_2pc.grpc.connection.path_of", lambda m: method(m) + "x"
    )
    with pytest.raises(ParticipantUnavailableError, match="mend its address"):
        wire.participant.commit(record())
    with pytest.raises(ParticipantRefusedError, match="mend its address") as caught:
        prepare(wire.participant)
    assert caught.value.refusal is Refusal.MISDIRECTED


def test_a_body_goes_in_pieces_that_each_server_takes(wire):
    """No message is near the 4 MiB that servers take unless they are told."""
    large = Branch(bytes(3 * CHUNK + 1), 2, "0.7")
    wire.says = vote(digest=large.digest)
    assert prepare(wire.participant, branch=large) is Vote.COMMIT
    sizes = [len(request.payload) for request in wire.heard[0][1]]
    assert sizes == [0, CHUNK, CHUNK, CHUNK, 1]


def test_who_is_silent_is_late(wire):
    """No answer within the timeout, of a commit and of a prepare."""
    heard, over = threading.Semaphore(0), threading.Event()

    def silent(context: Any) -> None:
        heard.release()
        over.wait(AT_LAST)

    wire.says = silent
    hasty = dataclasses.replace(wire.participant, timeout=AT_ONCE)
    for ask in (lambda: hasty.commit(record()), lambda: prepare(hasty)):
        with pytest.raises(
            ParticipantUnavailableError, match=r"within 0\.05 s"
        ) as late:
            ask()
        assert str(late.value).endswith("it may or may not have happened")
    over.set()


def test_each_piece_of_a_body_has_the_time_and_not_all_of_them_together(wire):
    """A slow source is not a silent participant."""
    wire.says = vote()
    hasty = dataclasses.replace(wire.participant, timeout=SOON)

    class Slow(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            threading.Event().wait(SOON / 2)
            return super().read(1)

    assert prepare(hasty, body=Slow(PAIR.body)) is Vote.COMMIT


def test_a_body_that_cannot_be_read_is_no_answer(wire, caplog):
    """The disk of the caller has failed: nothing is said of the participant."""

    class Broken(io.BytesIO):
        def read(self, size: int | None = -1) -> bytes:
            raise OSError("the disk is gone")

    wire.says = vote()
    with pytest.raises(ParticipantUnavailableError, match="may or may not") as caught:
        prepare(wire.participant, body=Broken())
    assert "answered" not in str(caught.value)


def test_the_abort_of_no_branch_is_not_sent(wire):
    """A message cannot say null: left out, it would be the abort of all branches."""
    body = json.dumps({"transaction_id": str(ID), "branch": None}).encode()
    with pytest.raises(ValueError, match="null"):
        wire.participant.exchange("POST", "/abort", body, {}, PATIENT, 1)
    assert wire.heard == []


def test_no_proxy_is_used(wire, monkeypatch):
    """Whatever the environment says."""
    for name in ("grpc_proxy", "http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    wire.says = outcome()
    wire.participant.commit(record())


def test_an_answer_that_is_too_long_is_none(wire, monkeypatch):
    """More than was asked for is not read."""
    monkeypatch.setattr("tracing_2pc.wire.contract.MAX_ANSWER_BYTES", 10)
    wire.says = outcome(message="x" * (9 << 20))
    with pytest.raises(ParticipantUnavailableError):
        wire.participant.commit(record())


def test_metadata_that_cannot_travel_is_left_out(wire, monkeypatch):
    """A trace context changes no answer: neither by its letters nor by its length."""
    given = {"traceparent": "00-a", "baggage": "b=" + "x" * 9000, "Sw8": "1-\u00e9"}
    monkeypatch.setattr("tracing_2pc.wire.client.current_carrier", lambda: given)
    wire.says = outcome()
    wire.participant.commit(record())
    metadata = wire.heard[0][2]
    assert metadata["traceparent"] == "00-a"
    assert metadata.keys().isdisjoint({"baggage", "sw8"})


def test_a_port_and_no_path(wire):
    """gRPC has no paths, and no port that one could guess."""
    for url in ("grpc://there", "grpcs://there:1/base"):
        with pytest.raises(ConfigurationError, match=r"write grpcs?://host:port"):
            open_participant("p", url, None, PATIENT)


def test_the_extra_that_is_missing_is_named(monkeypatch):
    """In one line, for which participant."""
    monkeypatch.setitem(__import__("sys").modules, "grpc", None)
    monkeypatch.delitem(__import__("sys").modules, "tracing_2pc.grpc.client")
    with pytest.raises(ConfigurationError) as caught:
        open_participant("p", "grpc://there:1", None, PATIENT)
    assert str(caught.value) == (
        "participant 'p': grpc:// needs grpc: pip install 'tracing-2pc[grpc]'"
    )
