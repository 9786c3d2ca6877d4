"""A participant's server by gRPC: who is answered, in which time, and what it tells."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf import descriptor_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc
from support.branches import ONE
from support.kinds import sqlite_url
from support.participant import World
from support.skywalking import certificate
from support.transports import over
from support.waiting import AT_LAST, PATIENT, PAUSE, SOON, until

from participants.processes import free_ports
from tracing_2pc.core.errors import ConfigurationError, ParticipantUnavailableError
from tracing_2pc.core.remote_participant import open_participant
from tracing_2pc.grpc import GrpcServer, messages, standard
from tracing_2pc.grpc import server as serving
from tracing_2pc.grpc.server import peer_of
from tracing_2pc.http import time_limits
from tracing_2pc.participant import TaggedRows

ROOT = Path(__file__).parents[2]
T = "orders.7.1"
TOKEN = "0123456789abcdef0123"
CODE = grpc.StatusCode
LOOPBACK = "127.0.0.1:0"
Vote, State, Refusal = (
    type(name, (), {v.name: v.number for v in enum.values})
    for name, enum in messages.DESCRIPTOR.enum_types_by_name.items()
)


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    made = World(TaggedRows(sqlite_url(tmp_path), "orders"), lambda: 0)
    yield made
    made.resource.close()


@pytest.fixture
def server(world) -> Iterator[GrpcServer]:
    with GrpcServer(world.app, LOOPBACK) as made:
        yield made


@pytest.fixture
def channel(server) -> Iterator[grpc.Channel]:
    """One of a client that is not ours."""
    with grpc.insecure_channel(server.url.removeprefix("grpc://")) as made:
        yield made


def call(channel: grpc.Channel, method: str, *sent: Any, **metadata: str) -> Any:
    """Call a method with these messages, and wait for its answer."""
    return calling(channel, method, iter(sent), **metadata).result()


def calling(
    channel: grpc.Channel, method: str, sent: Iterator[Any], **metadata: str
) -> Any:
    """Call a method with a stream, whatever it takes."""
    takes, returns = messages.METHODS[method]
    path = messages.path_of(method)
    ask = channel.stream_unary(path, takes.SerializeToString, returns.FromString)
    about = {"tpc-version": "1", "tpc-participant": "participant", **metadata}
    return ask.future(sent, metadata=list(about.items()), timeout=PATIENT)


@pytest.fixture
def rest() -> Iterator[threading.Event]:
    """What a caller waits for before it goes on."""
    event = threading.Event()
    yield event
    event.set()


def half(rest: threading.Event) -> Iterator[Any]:
    """Send the half of a branch, and no more."""
    yield first()
    yield piece(ONE.body[:40])
    rest.wait(AT_LAST)


def first(**changes: Any) -> Any:
    said = {
        "transaction_id": T,
        "branch": ONE.named,
        "length": len(ONE.body),
        "content_type": ONE.content_type,
    }
    return messages.PrepareRequest(**said | changes)


def piece(payload: bytes) -> Any:
    return messages.PrepareRequest(payload=payload)


def test_the_messages_are_those_of_the_file():
    """`participant.proto` is what travels: `tools/proto` writes the same bytes."""
    command = [sys.executable, str(ROOT / "tools" / "proto")]
    written = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    schema = ROOT / "tracing_2pc" / "grpc" / "schema.py"
    assert schema.read_text(encoding="utf-8") == written


def test_a_body_may_come_with_its_first_message(channel):
    """Whatever pieces it comes in, and whatever follows what was promised."""
    vote = call(channel, "Prepare", first(payload=ONE.body))
    assert (vote.transaction_id, vote.vote) == (T, Vote.VOTE_COMMIT)
    assert (vote.rows, vote.digest) == (ONE.rows, ONE.digest)
    assert vote.participant_name == "participant"
    pieces = (piece(bytes([byte])) for byte in ONE.body + b"more")
    assert call(channel, "Prepare", first(), *pieces).vote == vote.vote


def test_a_body_that_was_cut_is_not_prepared(world, channel):
    """Fewer bytes than its first message promises, or others than its digest."""
    for body in (ONE.body[:-1], b"", ONE.body[:-1] + b"x"):
        vote = call(channel, "Prepare", first(), piece(body))
        assert vote.vote == Vote.VOTE_ABORT
        assert vote.refusal == Refusal.REFUSAL_MALFORMED
        assert vote.message
    assert world.listed() == []


def test_who_hangs_up_in_the_middle_leaves_nothing(world, channel, rest):
    """The same branch can be sent again at once."""
    begun = threading.Event()
    world.app.before_request(begun.set)
    upload = calling(channel, "Prepare", half(rest))
    assert begun.wait(AT_LAST)
    upload.cancel()
    until(
        lambda: call(channel, "Prepare", first(payload=ONE.body)),
        lambda vote: vote.vote == Vote.VOTE_COMMIT,
    )
    assert world.in_doubt() == 1


def test_a_body_that_does_not_come_is_not_waited_for(channel, rest, monkeypatch):
    """The limits of HTTP's bodies hold, and the caller is told: ask again."""
    monkeypatch.setattr(time_limits, "PATIENCE", PAUSE)
    monkeypatch.setattr(time_limits, "SLOWEST", 1 << 20)
    vote = calling(channel, "Prepare", half(rest)).result()
    assert vote.refusal == Refusal.REFUSAL_NOT_NOW
    assert vote.vote == Vote.VOTE_UNSPECIFIED


@pytest.mark.parametrize("method", messages.METHODS)
def test_who_sends_no_message_holds_no_thread(channel, rest, monkeypatch, method):
    """Neither by a stream nor by a method that takes one message."""
    monkeypatch.setattr(serving, "HEAD", PAUSE)
    silent = (None for _ in range(1) if rest.wait(AT_LAST) and False)
    with pytest.raises(grpc.RpcError) as refused:
        calling(channel, method, silent).result()
    assert refused.value.code() is CODE.DEADLINE_EXCEEDED
    assert "no message came" in refused.value.details()


def test_a_rollback_that_is_not_understood_aborts_nothing(world, channel):
    """A field of a newer release may say that only a part is meant."""
    assert world.prepare(T).status_code == 200
    order = messages.RollbackRequest(transaction_id=T)
    unknown = messages.RollbackRequest.FromString(
        order.SerializeToString() + b"\x78\x01"
    )
    outcome = call(channel, "Rollback", unknown)
    assert outcome.refusal == Refusal.REFUSAL_MALFORMED
    assert world.in_doubt() == 1
    commit = messages.CommitRequest(transaction_id=T, branches=[ONE.named])
    unknown = messages.CommitRequest.FromString(
        commit.SerializeToString() + b"\x78\x01"
    )
    unknown.requires.append("field 15")
    assert call(channel, "Commit", unknown).refusal == outcome.refusal
    del unknown.requires[:]
    assert call(channel, "Commit", unknown).state == State.STATE_COMMITTED


@pytest.mark.parametrize(
    "changes",
    [
        {"transaction_id": ""},
        {"transaction_id": "\u043e\u0440.7.1"},
        {"transaction_id": "orders.7.1\nTpc-Rows: 3"},
        {"branch": {}},
        {"branch": {**ONE.named, "rows": -1}},
        {"branch": {**ONE.named, "digest": "sha-256=:x:"}},
        {"length": -5},
        {"length": 1 << 62},
        {"content_type": "text/\u043f"},
        {"content_type": ""},
    ],
    ids=str,
)
def test_what_is_not_in_its_form_is_no_vote_to_commit(world, channel, changes):
    """Whatever stands in the first message: it is refused, and nothing is prepared."""
    vote = call(channel, "Prepare", first(payload=ONE.body, **changes))
    assert vote.vote == Vote.VOTE_ABORT
    assert vote.refusal == Refusal.REFUSAL_MALFORMED
    assert vote.message
    assert world.listed() == []


def test_strangers_who_say_nothing_leave_room_for_the_job(world, rest, monkeypatch):
    """More of them than calls are open at a time; the job is served when they end."""
    monkeypatch.setattr(serving, "_CALLS", 8)
    monkeypatch.setattr(serving, "HEAD", SOON)

    def silent() -> Iterator[Any]:
        rest.wait(AT_LAST)
        yield from ()

    with GrpcServer(world.app, LOOPBACK) as server:
        address = server.url.removeprefix("grpc://")
        with grpc.insecure_channel(address) as strangers:
            asked = [calling(strangers, "Prepare", silent()) for _ in range(100)]
            job = open_participant("participant", server.url, None, PATIENT)
            until(lambda: job.describe().role == "anybody")
            rest.set()
            codes = {stranger.exception().code() for stranger in asked}
    assert codes <= {CODE.RESOURCE_EXHAUSTED, CODE.DEADLINE_EXCEEDED}


@pytest.fixture
def guarded(tmp_path) -> Iterator[World]:
    """A participant with tokens."""
    (tmp_path / "tokens").write_text(f"job {TOKEN}\n")
    resource = TaggedRows(sqlite_url(tmp_path), "guarded")
    made = World(resource, lambda: 0, tokens=tmp_path / "tokens")
    yield made
    resource.close()


@pytest.fixture
def silent(rest) -> Callable[[], Iterator[Any]]:
    """Return the messages of a call that sends none."""

    def messages() -> Iterator[Any]:
        rest.wait(AT_LAST)
        yield from ()

    return messages


def test_a_stranger_is_refused_before_a_message_is_waited_for(guarded, silent):
    """What needs a token holds no thread of a caller without one that is known."""
    with GrpcServer(guarded.app, LOOPBACK) as server, strangers_of(server) as channel:
        for method in ("Prepare", "Commit", "Rollback"):
            for metadata in ({}, {"authorization": "Bearer guessed-0123456789"}):
                asked = calling(channel, method, silent(), **metadata)
                assert asked.exception().code() is CODE.UNAUTHENTICATED


@pytest.mark.parametrize("method", ["Prepare", "Ask"])
def test_silent_strangers_take_no_place_of_those_with_a_token(
    guarded, silent, rest, monkeypatch, method
):
    """However many calls of theirs are open, and nobody waits until those end."""
    monkeypatch.setattr(serving, "STRANGER", AT_LAST)
    monkeypatch.setenv("OF_JOB", TOKEN)
    with GrpcServer(guarded.app, LOOPBACK) as server, strangers_of(server) as channel:
        asked = [calling(channel, method, silent()) for _ in range(2 * serving._CALLS)]
        until(lambda: waiting(asked) <= serving._STRANGERS)
        job = open_participant("participant", server.url, "env:OF_JOB", PATIENT)
        assert job.prepared().branches == ()
        health = health_pb2_grpc.HealthStub(channel)
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENT).status
        rest.set()


def test_a_stranger_who_says_nothing_is_put_out(guarded, silent, monkeypatch):
    """In less time than a caller has whose token is known."""
    assert serving.STRANGER < serving.HEAD
    monkeypatch.setattr(serving, "STRANGER", PAUSE)
    monkeypatch.setattr(serving, "HEAD", AT_LAST)
    with GrpcServer(guarded.app, LOOPBACK) as server, strangers_of(server) as channel:
        refused = calling(channel, "Ask", silent()).exception()
        assert refused.code() is CODE.DEADLINE_EXCEEDED
        assert "no message came" in refused.details()


def test_reflection_leaves_room_for_the_job(guarded, rest, monkeypatch):
    """Who asks for names, and for no more of them, holds few threads."""
    monkeypatch.setenv("OF_JOB", TOKEN)

    def questions() -> Iterator[Any]:
        yield reflection_pb2.ServerReflectionRequest(list_services="")
        rest.wait(AT_LAST)

    with GrpcServer(guarded.app, LOOPBACK) as server, strangers_of(server) as channel:
        stub = reflection_pb2_grpc.ServerReflectionStub(channel)
        asked = [
            stub.ServerReflectionInfo(questions(), timeout=PATIENT)
            for _ in range(2 * serving._CALLS)
        ]
        until(lambda: waiting(asked) <= standard._AT_ONCE)
        job = open_participant("participant", server.url, "env:OF_JOB", PATIENT)
        assert job.prepared().branches == ()
        rest.set()


def waiting(asked: list[Any]) -> int:
    return sum(not call.done() for call in asked)


def strangers_of(server: GrpcServer) -> grpc.Channel:
    return grpc.insecure_channel(server.url.removeprefix("grpc://"))


def test_ask_opens_no_other_route(world, channel):
    """Not those of the other methods, and nothing else that the application has."""
    world.app.add_url_rule("/admin", "admin", lambda: "secret")
    for method, path in (
        ("GET", "/admin"),
        ("POST", "/prepare"),
        ("POST", "/commit"),
        ("GET", "/transactions/a/../../admin"),
        ("GET", "/transactions/%2e%2e/admin"),
        ("DELETE", "/whoami"),
    ):
        with pytest.raises(grpc.RpcError) as refused:
            call(channel, "Ask", messages.AskRequest(method=method, path=path))
        assert refused.value.code() is CODE.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("peer", "address"),
    [
        ("ipv4:127.0.0.1:50000", "127.0.0.1"),
        ("ipv6:%5B::1%5D:50000", "::1"),
        ("ipv6:[2001:db8::7]:50000", "2001:db8::7"),
        ("unix:", None),
        ("unix:/run/x.sock", None),
        ("", None),
    ],
)
def test_who_asks(peer, address):
    """gRPC's word for a caller as an address, where it is the caller's own."""
    assert peer_of(peer) == address


def test_what_a_proxy_has_passed_on_is_refused_without_tokens(channel):
    """The peer is the proxy then, and the caller may be anybody."""
    who = messages.AskRequest(method="GET", path="/whoami")
    with pytest.raises(grpc.RpcError) as refused:
        call(channel, "Ask", who, **{"x-forwarded-for": "198.51.100.7"})
    assert refused.value.code() is CODE.PERMISSION_DENIED


@pytest.mark.parametrize("between", ["-", "_"])
def test_metadata_says_nothing_of_the_transaction(world, channel, between):
    """What stands in the messages counts, whatever a header of that name says."""
    other = {"tpc-transaction-id": "orders.8.1", "content-length": "3", "tpc-rows": "9"}
    # In an application's environment both characters are one.
    other |= {name.replace("-", between): value for name, value in other.items()}
    vote = call(channel, "Prepare", first(payload=ONE.body), **other)
    assert vote.vote == Vote.VOTE_COMMIT
    assert [transaction for transaction, *_ in world.listed()] == [T]


def test_more_calls_than_it_answers_are_told_to_ask_again(world, monkeypatch):
    """They are refused at once; the client asks again, as after a 503."""
    monkeypatch.setattr(serving, "_CALLS", 1)
    begun, go_on = threading.Event(), threading.Event()

    def hold() -> None:
        begun.set()
        assert go_on.wait(AT_LAST)

    world.app.before_request(hold)
    with GrpcServer(world.app, LOOPBACK) as server:
        asked = open_participant("participant", server.url, None, PATIENT)
        thread = threading.Thread(target=asked.prepared)
        thread.start()
        assert begun.wait(AT_LAST)
        with pytest.raises(ParticipantUnavailableError, match="imit exceeded"):
            asked.prepared()
        go_on.set()
        thread.join()


def test_health_is_that_of_the_application(world, channel, monkeypatch):
    """SERVING while its database answers; what is not here is not found."""
    health = health_pb2_grpc.HealthStub(channel)
    for service in ("", messages.SERVICE):
        question = health_pb2.HealthCheckRequest(service=service)
        assert health.Check(question, timeout=PATIENT).status == 1

    def fail() -> None:
        raise OSError("the disk is gone")

    monkeypatch.setattr(world.resource, "ready", fail)
    assert health.Check(health_pb2.HealthCheckRequest(), timeout=PATIENT).status == 2
    with pytest.raises(grpc.RpcError) as refused:
        health.Check(health_pb2.HealthCheckRequest(service="x"), timeout=PATIENT)
    assert refused.value.code() is CODE.NOT_FOUND


def test_reflection_names_services_and_messages(channel):
    """As grpcurl and its like ask for them."""
    stub = reflection_pb2_grpc.ServerReflectionStub(channel)
    ask = reflection_pb2.ServerReflectionRequest
    questions = [ask(list_services=""), ask(file_containing_symbol=messages.SERVICE)]
    names, files = stub.ServerReflectionInfo(iter(questions), timeout=PATIENT)
    assert messages.SERVICE in {s.name for s in names.list_services_response.service}
    (file,) = files.file_descriptor_response.file_descriptor_proto
    found = descriptor_pb2.FileDescriptorProto.FromString(file)
    assert [m.name for m in found.service[0].method] == list(messages.METHODS)


def test_a_port_that_is_taken_is_said(server, world):
    """Two servers at one port would share its calls."""
    listen = server.url.removeprefix("grpc://")
    with pytest.raises(ConfigurationError, match="cannot listen there"):
        GrpcServer(world.app, listen)
    with pytest.raises(ConfigurationError, match="expected address:port"):
        GrpcServer(world.app, "somewhere")


def test_who_was_not_there_is_reached_as_soon_as_it_is(world):
    """gRPC itself would wait before it tries again, longer each time."""
    (port,) = free_ports(1)
    asked = open_participant("participant", f"grpc://127.0.0.1:{port}", None, PATIENT)
    for _ in range(5):
        with pytest.raises(ParticipantUnavailableError, match="nothing listens"):
            asked.prepared()
    with GrpcServer(world.app, f"127.0.0.1:{port}"):
        assert asked.prepared().branches == ()


def test_tls_is_checked_as_for_https(world, tmp_path, monkeypatch):
    """By what Python trusts: with `SSL_CERT_FILE`, that file and nothing else."""
    own = certificate(tmp_path, "own")
    key = str(own.with_suffix(".key"))
    made = GrpcServer(world.app, LOOPBACK, certificate=str(own), key=key)
    with made as server:
        assert server.url.startswith("grpcs://127.0.0.1:")
        monkeypatch.delenv("SSL_CERT_FILE", raising=False)
        stranger = open_participant("participant", server.url, None, PATIENT)
        with pytest.raises(ParticipantUnavailableError):
            stranger.prepared()
        monkeypatch.setenv("SSL_CERT_FILE", str(own))
        assert stranger.prepared().branches == ()
    with pytest.raises(ConfigurationError, match="No such file"):
        GrpcServer(world.app, LOOPBACK, certificate=str(own) + "x")


def test_a_fault_of_the_participant_is_no_answer(world, monkeypatch):
    """An exception inside says nothing of the transaction, to anybody."""

    def fail(*_: Any, **__: Any) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(world.resource, "commit", fail)
    with over("grpc", world) as reached:
        answer = reached.commit(T, ONE)
    assert (answer.status_code, "transaction_id" in answer.get_json()) == (500, False)
    assert "this participant has a fault: see its log" in answer.text
