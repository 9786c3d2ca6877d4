"""Participants behind a real NATS server: killed, frozen and started again, each."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from support.branches import Branch, arrow, commit_of, prepare_at
from support.nats import TOKEN, Instance, Nats, running
from support.programs import freeze, ran
from support.service import create_app
from support.skywalking import certificate
from support.spark import serving
from support.telemetry import PATH
from support.texts import texts
from support.waiting import ANSWERED, AT_LAST, PATIENT, SOON, until

from tracing_2pc.core.errors import ParticipantUnavailableError
from tracing_2pc.core.model import (
    BranchId,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.remote_participant import RemoteParticipant, open_participant
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import (
    ParticipantState,
    Vote,
)
from tracing_2pc.grpc.server import GrpcServer
from tracing_2pc.nats import NatsServer
from tracing_2pc.nats.link import LOOP
from tracing_2pc.operations.recover import recover
from tracing_2pc.operations.wiring import open_configured_log

ID = TransactionId("orders", 3, 1)
TEXTS = texts("process")
LARGE = Branch(
    arrow(pa.table({"id": range(40_000), "note": ["x" * 200] * 40_000})), 40_000
)
"""More than a NATS server, and than what is under way at a time, takes at once."""


@pytest.fixture(autouse=True)
def _token(monkeypatch) -> None:
    monkeypatch.setenv("TPC_TOKEN", TOKEN)


@pytest.fixture
def node(tmp_path) -> Iterator[Nats]:
    with running(tmp_path) as node:
        yield node


@contextlib.contextmanager
def served(
    folder: Path, url: str, name: str = "one", **environment: str
) -> Iterator[Instance]:
    """Start an instance of the participant; it is killed at the end."""
    instance = Instance(folder, name, url, "ledger.db")
    try:
        instance.start(**environment)
        instance.is_ready()
        yield instance
    finally:
        instance.kill()


@pytest.fixture
def start(tmp_path, node) -> Iterator[Callable[..., Instance]]:
    """Start instances of one participant, which are killed at the end."""
    with contextlib.ExitStack() as stack:

        def start(name: str = "one", **environment: str) -> Instance:
            made = served(tmp_path, node.url(), name, **environment)
            return stack.enter_context(made)

        yield start


def ledger(node: Nats, timeout: float = PATIENT) -> RemoteParticipant:
    return open_participant("ledger", node.url(), "env:TPC_TOKEN", timeout)


def prepare(participant: RemoteParticipant, body: Any = None) -> Vote:
    return prepare_at(participant, ID, LARGE, body)


def record() -> TransactionRecord:
    return commit_of(ID, "ledger", LARGE)


class Halfway(io.BytesIO):
    """A body in the middle of which something happens, when that much was taken."""

    def __init__(self, happens: Callable[[], object]) -> None:
        super().__init__(LARGE.body)
        self._happens = [happens]

    def read(self, size: int | None = -1) -> bytes:
        if self.tell() > len(LARGE.body) // 2 and self._happens:
            self._happens.pop()()
        return super().read(size)


def test_an_instance_that_is_killed_between_frames_leaves_nothing(node, start):
    """The prepare ends at once, and another instance begins it anew."""
    one = start("one")
    with pytest.raises(ParticipantUnavailableError) as cut:
        prepare(ledger(node), Halfway(one.kill))
    assert TEXTS["cut"] in str(cut.value)
    start("two")
    assert ledger(node).prepared().branches == ()
    assert prepare(ledger(node)) is Vote.COMMIT
    ledger(node).commit(record())
    assert ledger(node).show(ID).state is ParticipantState.COMMITTED


@pytest.mark.ci
def test_an_instance_that_is_killed_over_a_request_is_missed(node, start, tmp_path):
    """Its client does not wait for its time to run out: the NATS server says so."""
    armed = {"TPC_FAILPOINT": "participant.after_prepare"}
    one = start(**armed, TPC_FAILPOINT_FILE=str(tmp_path / "fired"))
    with pytest.raises(ParticipantUnavailableError) as cut:
        prepare(ledger(node))
    assert (one.alive(), TEXTS["cut"] in str(cut.value)) == (False, True)
    start("two")
    assert prepare(ledger(node)) is Vote.COMMIT


@pytest.mark.ci
def test_an_instance_that_is_frozen_between_frames_leaves_nothing(node, start):
    """The prepare is given up in its time; what was frozen drops what it had."""
    one = start("one")
    halfway = Halfway(lambda: freeze(one.pid))
    with pytest.raises(ParticipantUnavailableError, match="within"):
        prepare(ledger(node, SOON), halfway)
    two = start("two")
    os.kill(one.pid, signal.SIGCONT)
    assert two.alive()
    until(lambda: ledger(node).prepared().branches == ())
    assert prepare(ledger(node)) is Vote.COMMIT
    assert [b.branch for b in ledger(node).show(ID).branches] == [
        BranchId.parse(LARGE.branch)
    ]


def test_a_nats_server_that_is_killed_in_a_transaction(node, start):
    """Where it is not, nothing was sent; when it is there again, all go on."""
    start()
    assert prepare(ledger(node)) is Vote.COMMIT
    node.kill()
    with pytest.raises(ParticipantUnavailableError) as nobody:
        ledger(node).commit(record())
    assert TEXTS["not sent"] in str(nobody.value)
    node.listen()
    until(lambda: committed(node))
    assert ledger(node).show(ID).state is ParticipantState.COMMITTED


def committed(node: Nats) -> bool:
    with contextlib.suppress(ParticipantUnavailableError):
        ledger(node, ANSWERED).commit(record())
        return True
    return False


@pytest.mark.ci
def test_a_nats_server_that_is_killed_in_an_upload(node, start):
    """Who waits is told at once; nothing is prepared of what was cut."""
    start()
    with pytest.raises(ParticipantUnavailableError) as cut:
        prepare(ledger(node), Halfway(node.kill))
    assert TEXTS["cut"] in str(cut.value)
    node.listen()

    def prepared() -> bool:
        with contextlib.suppress(ParticipantUnavailableError):
            return prepare(ledger(node, ANSWERED)) is Vote.COMMIT
        return False

    until(prepared)
    assert len(ledger(node).show(ID).branches) == 1


@pytest.mark.ci
def test_an_end_that_cuts_off_what_waits_to_be_sent(node, tmp_path, monkeypatch):
    """nats-py fails then in the middle of its closing; both sides connect again."""
    connect, close, drain = Client.connect, Client._close, TcpTransport.drain
    first, cut = list[Client](), list[Client]()

    async def noted(self: Client, *servers: Any, **options: Any) -> None:
        await connect(self, *servers, **options)
        first.append(self)

    async def reset(transport: TcpTransport) -> None:
        raise ConnectionResetError("Connection lost")

    async def with_bytes_left(self: Client, *how: Any) -> None:
        if self in first and self not in cut:
            cut.append(self)
            self._pending.append(b"PING\r\n")
            self._pending_data_size += 6
        await close(self, *how)

    monkeypatch.setattr(Client, "connect", noted)
    (tmp_path / "tokens").write_text(f"job {TOKEN}\n")
    app = create_app(f"sqlite:///{tmp_path}/ledger.db", tmp_path / "tokens")
    with (
        contextlib.closing(app.extensions["resource"]),
        NatsServer(app, node.url()) as server,
    ):
        until(lambda: server.is_connected)
        assert prepare(ledger(node)) is Vote.COMMIT
        assert len(first) == 2  # the instance's, and ours
        monkeypatch.setattr(Client, "connect", connect)
        monkeypatch.setattr(Client, "_close", with_bytes_left)
        monkeypatch.setattr(TcpTransport, "drain", reset)
        node.kill()
        until(lambda: len(cut) == 2)
        monkeypatch.setattr(TcpTransport, "drain", drain)
        node.listen()
        until(lambda: committed(node))


@pytest.mark.ci
def test_what_has_begun_is_answered_at_the_end(node, start):
    """SIGTERM in the middle of an upload: it votes, ends with 0, and takes no more."""
    one = start()
    end = Halfway(lambda: os.kill(one.pid, signal.SIGTERM))
    assert prepare(ledger(node), end) is Vote.COMMIT
    assert one.wait(AT_LAST) == 0
    with pytest.raises(ParticipantUnavailableError) as nobody:
        ledger(node).commit(record())
    assert TEXTS["not sent"] in str(nobody.value)


JOB = """
import sys
from tracing_2pc import ParticipantSink
from tracing_2pc.store import open_log
from tracing_2pc.testing import run_one_batch
log, *urls = sys.argv[1:]
sink = ParticipantSink(dict(zip(("ledger", "search", "notes"), urls)), timeout=60)
run_one_batch(sink, [{"id": 1, "note": "a"}], log=open_log(log))
"""

POINTS = [
    "driver.after_decide",
    "delivery.before_commit",
    "delivery.between_commits",
    "delivery.before_finish",
]


@pytest.mark.parametrize(
    "point",
    [
        POINTS[2],
        *(pytest.param(p, marks=pytest.mark.ci) for p in POINTS if p != POINTS[2]),
    ],
)
def test_a_transaction_by_nats_grpc_and_http_is_whole(node, start, tmp_path, point):
    """Wherever its driver is killed in delivery, a recovery commits it at all three."""
    start()
    log, fired = f"sqlite:///{tmp_path}/log.db", tmp_path / "fired"
    with contextlib.ExitStack() as stack:
        apps = []
        for name in ("search", "notes"):
            app = create_app(f"sqlite:///{tmp_path}/{name}.db", tmp_path / "tokens")
            stack.enter_context(contextlib.closing(app.extensions["resource"]))
            apps.append(app)
        by_grpc = stack.enter_context(GrpcServer(apps[0], "127.0.0.1:0")).url
        by_http = stack.enter_context(serving(apps[1]))
        urls = {"ledger": node.url(), "search": by_grpc, "notes": by_http}
        environment = {
            **os.environ,
            "PYTHONPATH": PATH,
            "TPC_FAILPOINT": point,
            "TPC_FAILPOINT_FILE": str(fired),
        }
        command = [sys.executable, "-c", JOB, log, *urls.values()]
        killed = ran(command, env=environment, start_new_session=True)
        assert (killed.returncode, fired.exists()) == (-signal.SIGKILL, True), killed
        settings = Settings(log=log, participants=urls)
        with open_configured_log(settings) as opened:
            results = list(recover(opened, settings, None))
        assert [result.done for result in results] == [True]
        for name, url in urls.items():
            asked = open_participant(name, url, "env:TPC_TOKEN", PATIENT)
            shown = asked.show(TransactionId("test", 0, 1))
            assert shown.state == "committed"
            assert sum(branch.rows for branch in shown.branches) == 1
            assert asked.prepared().branches == ()


PERMISSIONS = """
authorization {
  users = [
    {user: job, password: "a:b", permissions: {
      publish: ["tpc.v1.ledger", "tpc.v1.ledger.>"], subscribe: "_INBOX.>"}}
    {user: ledger, password: secret, permissions: {
      publish: "_INBOX.>", subscribe: ["tpc.v1.ledger", "tpc.v1.ledger.>"]}}
    {user: viewer, password: secret, permissions: {
      publish: "other", subscribe: "_INBOX.>"}}
  ]
}
"""


@pytest.mark.ci
def test_a_nats_server_that_asks_who_one_is(tmp_path, monkeypatch):
    """The permissions of the manual suffice; who lacks them, or a password, is told."""
    monkeypatch.setenv("LOGIN", "ledger:secret")
    monkeypatch.setenv("TPC_NATS_CREDENTIALS", "env:LOGIN")
    with running(tmp_path, PERMISSIONS) as node, served(tmp_path, node.url()):
        monkeypatch.setenv("JOB", "job:a:b")
        monkeypatch.setenv("TPC_NATS_CREDENTIALS", "env:JOB")
        assert prepare(ledger(node)) is Vote.COMMIT
        monkeypatch.setenv("TPC_NATS_CREDENTIALS", "env:VIEWER")
        monkeypatch.setenv("VIEWER", "viewer:secret")

        def is_told() -> bool:
            with pytest.raises(ParticipantUnavailableError) as told:
                ledger(node, SOON).commit(record())
            return "ermissions" in str(told.value)

        until(is_told)  # the server's word may come too late to be said
        monkeypatch.setenv("NOBODY", "nobody:secret")
        for credentials in ("env:NOBODY", ""):
            monkeypatch.setenv("TPC_NATS_CREDENTIALS", credentials)
            with pytest.raises(ParticipantUnavailableError) as refused:
                ledger(node).commit(record())
            assert TEXTS["refused by NATS"] in str(refused.value)


@pytest.mark.ci
def test_tls_and_nothing_else(tmp_path, monkeypatch):
    """By nats+tls, with a certificate that is known; never in clear, no password."""
    made = certificate(tmp_path, "nats")
    lines = f'tls {{cert_file: "{made}", key_file: "{made.with_suffix(".key")}"}}'
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    with running(tmp_path, lines) as node:
        url = node.url(scheme="nats+tls")
        with served(tmp_path, url):
            by_tls = open_participant("ledger", url, "env:TPC_TOKEN", PATIENT)
            assert prepare(by_tls) is Vote.COMMIT
            monkeypatch.delenv("SSL_CERT_FILE")
            LOOP.close()
            with pytest.raises(ParticipantUnavailableError) as refused:
                by_tls.prepared()
            assert TEXTS["not certified"] in str(refused.value)


@pytest.mark.ci
def test_a_server_without_tls_is_told_nothing(tmp_path, monkeypatch):
    """The login is not sent to a server that has no TLS, where TLS was asked for."""
    monkeypatch.setenv("LOGIN", "ledger:secret")
    monkeypatch.setenv("TPC_NATS_CREDENTIALS", "env:LOGIN")
    with running(tmp_path, "debug: true\ntrace: true\n" + PERMISSIONS) as node:
        url = node.url(scheme="nats+tls")
        with pytest.raises(ParticipantUnavailableError) as refused:
            open_participant("ledger", url, "env:TPC_TOKEN", PATIENT).prepared()
        assert TEXTS["no TLS"] in str(refused.value)
        assert "[CONNECT" not in node.log.read_text()


def test_the_command_says_what_it_lacks(tmp_path, monkeypatch):
    """One line, and no traceback."""
    instance = Instance(tmp_path, "one", "nats://127.0.0.1", "ledger.db")
    done = ran(instance._command, env={**os.environ, **instance._environment})  # type: ignore[dict-item]
    assert done.returncode == 2
    assert "expected nats://host:4222/participant" in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr
