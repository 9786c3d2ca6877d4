"""A participant's application behind gRPC: one server, with threads.

Each call is handed to the application as the request that it is over HTTP. So tokens,
limits, answers, spans and metrics are the same.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import logging
import re
import signal
import ssl
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from functools import partial
from pathlib import Path
from typing import IO, Any, Final
from urllib.parse import unquote

import grpc

from tracing_2pc.core.access import Gate
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.states import Refusal
from tracing_2pc.grpc.arriving import Arriving
from tracing_2pc.grpc.messages import (
    METHODS,
    SERVICE,
    AskResponse,
    order_of,
    outcome_of,
    response_of,
)
from tracing_2pc.grpc.standard import (
    CHECK,
    HEALTH,
    NOT_SERVING,
    SERVING,
    add_reflection,
)
from tracing_2pc.wire import contract
from tracing_2pc.wire.auth import identify
from tracing_2pc.wire.bridge import (
    PARTICIPANT,
    Answered,
    WsgiApplication,
    ask_application,
    start_sending,
)
from tracing_2pc.wire.error_responses import FAULT, OK, STATUSES, Problem
from tracing_2pc.wire.serving import parse_address

GRACE: Final = 5.0
"""Seconds in which what has begun is answered, once a server is to end."""

HEAD: Final = 10.0
"""Seconds in which the first message of a call must be there."""

STRANGER: Final = 0.5
"""The same, of a caller without a known token."""

_CALLS: Final = 128
"""Calls that are open at a time; more of them are refused: RESOURCE_EXHAUSTED."""

_STRANGERS: Final = 8
"""Callers without a known token who are waited for, or answered, at a time."""

_OPTIONS: Final = (
    ("grpc.so_reuseport", 0),  # two servers at one port would share its calls
    ("grpc.max_receive_message_length", contract.MAX_CONTROL_BYTES + (1 << 10)),
    ("grpc.max_concurrent_streams", _CALLS),
    ("grpc.max_metadata_size", 1 << 15),
    ("grpc.max_allowed_incoming_connections", 512),
    # Longer than a trigger; a connection without a call takes another one's place.
    ("grpc.max_connection_idle_ms", 75_000),
    ("grpc.server_handshake_timeout_ms", 10_000),
)

_ASKED: Final = re.compile(
    r"GET /(transactions(/[^/?]+)?|outbox|whoami|health/(live|ready)|metrics)(\?.*)?"
    r"|POST /(resolve|outbox/(again|drop))"
)
"""What Ask answers. The application may have other routes, for other callers."""

_FOR_ANYBODY: Final = frozenset({"Check", "Ask"})
"""Methods that answer what needs no token: health."""

_OF_HTTP: Final = frozenset(
    {"content-type", "content-length", "content-encoding", "transfer-encoding", "te"}
)
"""Names of metadata that would say something of a body that is not HTTP's."""

_CODES: Final = {
    STATUSES[Refusal.NOT_ADMITTED]: grpc.StatusCode.UNAUTHENTICATED,
    STATUSES[Refusal.NOT_ALLOWED]: grpc.StatusCode.PERMISSION_DENIED,
    FAULT: grpc.StatusCode.INTERNAL,
}
"""Answers that say nothing of a transaction, and end a call with a status."""

logger = logging.getLogger(__name__)


def serve_grpc(
    application: WsgiApplication,
    listen: str,
    *,
    certificate: str | None = None,
    key: str | None = None,
    threads: int = 8,
) -> None:
    """Serve a participant by gRPC until SIGTERM; then answer running requests.

    They have five seconds. The resource in `application.extensions["resource"]` is
    closed at the end. The health service (grpc.health.v1) reports SERVING while
    `/health/ready` is answered 200; reflection names the services.

    Args:
        application: a Flask application with `participant_blueprint`, at its root.
        listen: IP address and port, as in `127.0.0.1:50051`.
        certificate: file of the certificate, and those of its issuers, for `grpcs://`;
            without it, TLS is the work of a proxy.
        key: file of its key.
        threads: requests that the application answers at a time.

    Raises:
        ConfigurationError: it cannot listen there, or a file cannot be read.
    """
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    made = GrpcServer(
        application, listen, certificate=certificate, key=key, threads=threads
    )
    with made as server:
        logger.info("listening at %s", server.url)
        ended.wait()
    resource = getattr(application, "extensions", {}).get("resource")
    if resource is not None:
        resource.close()


class GrpcServer:
    """The same inside of `with`, without a signal and without closing the resource.

    Arguments and errors are those of `serve_grpc`. Port 0 is one that is free; `url`
    tells it.
    """

    def __init__(
        self,
        application: WsgiApplication,
        listen: str,
        *,
        certificate: str | None = None,
        key: str | None = None,
        threads: int = 8,
    ) -> None:
        host, port = parse_address(listen)
        place = f"[{host}]" if ":" in host else host
        self._application = application
        participant: Any = getattr(application, "extensions", {}).get(PARTICIPANT)
        self._gate: Gate | None = participant and participant.gate
        self._turns = threading.BoundedSemaphore(threads)
        self._strangers = _Strangers()
        self._pool = futures.ThreadPoolExecutor(_CALLS, "tpc-grpc")
        self._server = grpc.server(
            self._pool, options=_OPTIONS, maximum_concurrent_rpcs=_CALLS
        )
        answers = {
            "Prepare": self._prepare,
            "Commit": partial(self._order, path="/commit"),
            "Rollback": partial(self._order, path="/abort"),
            "Ask": self._ask,
        }
        kinds = {name: (answer, *METHODS[name]) for name, answer in answers.items()}
        self._add(SERVICE, kinds)
        self._add(HEALTH, {"Check": (self._check, *CHECK)})
        add_reflection(self._server)
        try:
            if certificate is None:
                port = self._server.add_insecure_port(f"{place}:{port}")
            else:
                tls = _credentials(certificate, key)
                port = self._server.add_secure_port(f"{place}:{port}", tls)
        except RuntimeError:
            raise ConfigurationError(
                f"--listen {listen}: cannot listen there"
            ) from None
        self.url = f"{'grpc' if certificate is None else 'grpcs'}://{place}:{port}"

    def __enter__(self) -> GrpcServer:
        start_sending(self._application)
        self._server.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Take no more calls, answer what has begun, and leave no thread."""
        self._server.stop(GRACE).wait()
        self._pool.shutdown()

    def _add(self, service: str, methods: Mapping[str, tuple[Any, Any, Any]]) -> None:
        """Serve all as streams: else gRPC waits for ever for the one message."""
        handlers = {
            name: grpc.stream_unary_rpc_method_handler(
                partial(self._serve, answer, needs_token=name not in _FOR_ANYBODY),
                sent.FromString,
                received.SerializeToString,
            )
            for name, (answer, sent, received) in methods.items()
        }
        handler = grpc.method_handlers_generic_handler(service, handlers)
        self._server.add_generic_rpc_handlers((handler,))

    def _serve(
        self,
        answer: Callable[[_Call], Any],
        messages: Iterator[Any],
        context: Any,
        *,
        needs_token: bool,
    ) -> Any:
        """Answer a call. Its metadata is here already: a token is looked at first."""
        headers, seconds = _headers(context), HEAD
        refused = self._refusal(headers, peer_of(context.peer()))
        if refused is not None and needs_token:
            context.abort(_CODES[refused.status], refused.detail)
        arriving = Arriving(messages)
        try:
            if refused is None:
                if first := arriving.message(HEAD):
                    return answer(_Call(first, arriving, context, headers))
            else:
                seconds = STRANGER
                if first := self._strangers.message(arriving):
                    with self._strangers.place(context):
                        return answer(_Call(first, arriving, context, headers))
            details = f"no message came within {seconds:g} s"
            context.abort(grpc.StatusCode.DEADLINE_EXCEEDED, details)
        finally:
            arriving.shutdown()

    def _refusal(self, headers: Mapping[str, str], peer: str | None) -> Problem | None:
        """Return why a caller is not admitted; None also where there is no gate."""
        if self._gate is None:
            return None
        try:
            identify(self._gate, headers.items(), peer)
        except Problem as problem:
            return problem
        return None

    def _check(self, call: _Call) -> Any:
        if call.first.service not in ("", SERVICE):
            call.context.abort(grpc.StatusCode.NOT_FOUND, "no such service here")
        stream = io.BytesIO()
        answered = self._answer(call, "GET", "/health/ready", stream, 0)
        return SERVING if answered.status == OK else NOT_SERVING

    def _prepare(self, call: _Call) -> Any:
        first = call.first
        of_branch = {
            contract.TRANSACTION_HEADER: first.transaction_id,
            contract.BRANCH_HEADER: first.branch.branch,
            contract.ROWS_HEADER: str(first.branch.rows),
            contract.DIGEST_HEADER: first.branch.digest,
            "Content-Type": first.content_type,
        }
        if first.name_rows:
            of_branch[contract.NAME_ROWS_HEADER] = str(first.name_rows)
        call.headers.update({name.lower(): of_branch[name] for name in of_branch})
        call.body.begin(first)
        body: Any = call.body
        answered = self._answer(call, "POST", "/prepare", body, first.length)
        return response_of(answered.status, _item(answered), call.participant)

    def _order(self, call: _Call, path: str) -> Any:
        content = json.dumps(order_of(call.first)).encode()
        call.headers["content-type"] = contract.JSON
        stream = io.BytesIO(content)
        answered = self._answer(call, "POST", path, stream, len(content))
        return outcome_of(answered.status, _item(answered), call.participant)

    def _ask(self, call: _Call) -> Any:
        method, path, content = call.first.method, call.first.path, call.first.body
        if not _ASKED.fullmatch(f"{method} {path}"):
            details = "Ask answers no such route"
            call.context.abort(grpc.StatusCode.INVALID_ARGUMENT, details)
        if content:
            call.headers["content-type"] = contract.JSON
        stream = io.BytesIO(content)
        answered = self._answer(call, method, path, stream, len(content))
        return AskResponse(
            status=answered.status,
            content_type=answered.content_type,
            document=answered.body,
        )

    def _answer(
        self, call: _Call, method: str, path: str, body: IO[bytes], length: int
    ) -> Answered:
        """Hand a call over; end it with a status if the answer is about no data."""
        with self._turns:
            answered = ask_application(
                self._application,
                method,
                path,
                call.headers,
                body,
                length,
                scheme="grpc",
                peer=peer_of(call.context.peer()),
            )
        if code := _CODES.get(answered.status):
            call.context.abort(code, str(_item(answered).get("detail", "")))
        return answered


@dataclasses.dataclass(frozen=True)
class _Call:
    """One call: its first message, the messages after it, and its headers."""

    first: Any
    body: Arriving
    context: grpc.ServicerContext
    headers: dict[str, str]

    @property
    def participant(self) -> str:
        """The participant that is meant, which has answered: others refuse."""
        return self.headers.get(contract.PARTICIPANT_HEADER.lower(), "")


class _Strangers:
    """Calls without a known token: few at a time; a silent one makes room."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._silent: dict[Arriving, None] = {}  # the oldest is first
        self._answered = threading.BoundedSemaphore(_STRANGERS)

    def message(self, arriving: Arriving) -> Any:
        """Return a first message; None where none came in time, or others came."""
        with self._lock:
            if len(self._silent) >= _STRANGERS:
                oldest = next(iter(self._silent))
                del self._silent[oldest]
                oldest.shutdown()
            self._silent[arriving] = None
        try:
            return arriving.message(STRANGER)
        finally:
            with self._lock:
                self._silent.pop(arriving, None)

    @contextlib.contextmanager
    def place(self, context: Any) -> Iterator[None]:
        """Let one of a few be answered, and end the calls of others."""
        if not self._answered.acquire(blocking=False):
            details = "too many calls without a known token: ask again"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        try:
            yield
        finally:
            self._answered.release()


def _headers(context: Any) -> dict[str, str]:
    """Return metadata as headers: given twice, they are one with a comma, as there."""
    headers: dict[str, str] = {}
    for name, value in context.invocation_metadata():
        if name in _OF_HTTP or name.endswith("-bin"):
            continue
        headers[name] = f"{headers[name]}, {value}" if name in headers else value
    return headers


def peer_of(peer: str) -> str | None:
    """Return the IP address of gRPC's word for a caller; None where there is none.

    Over a unix socket anybody may have come that a proxy let in: no address.
    """
    kind, _, address = peer.partition(":")
    host = unquote(address).rpartition(":")[0].strip("[]")
    return host if kind in {"ipv4", "ipv6"} else None


def _item(answered: Answered) -> dict[str, Any]:
    """Return the object that the application answered; an empty one if it is none."""
    try:
        item = json.loads(answered.body)
    except ValueError:
        return {}
    return item if isinstance(item, dict) else {}


def _credentials(certificate: str, key: str | None) -> grpc.ServerCredentials:
    try:
        pair = Path(key or certificate).read_bytes(), Path(certificate).read_bytes()
        # gRPC would find at each connection that the two do not fit.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key, password="")
    except OSError as error:  # that of TLS is one, too
        raise ConfigurationError(
            f"certificate {certificate}, key {key}: {error.strerror}"
        ) from None
    return grpc.ssl_server_credentials([pair])
