"""One participant over gRPC: `WireParticipant`, whose requests take another road."""

from __future__ import annotations

import dataclasses
import io
import json
import threading
import time
from collections.abc import Iterator, Mapping
from typing import IO, Any, Final
from urllib.parse import urlsplit

import grpc

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.states import Refusal
from tracing_2pc.grpc.connection import forget, stub_of
from tracing_2pc.grpc.messages import (
    AskRequest,
    Branch,
    CommitRequest,
    PrepareRequest,
    RollbackRequest,
    read_outcome,
    read_response,
)
from tracing_2pc.wire import contract
from tracing_2pc.wire.client import WireParticipant
from tracing_2pc.wire.contract import NoAnswerError, Silence
from tracing_2pc.wire.error_responses import FAULT, OK, PROBLEM, STATUSES

CHUNK: Final = 1 << 18
"""Bytes of a body in one message: every server takes as many."""

_MOST_METADATA: Final = 7 << 10
"""Bytes of names and values, and 32 for each: many servers refuse more than 8 KiB."""

_IN_MESSAGES: Final = frozenset(
    name.lower()
    for name in (
        *("Accept", "Content-Type", "Content-Length", contract.TRANSACTION_HEADER),
        *(contract.BRANCH_HEADER, contract.ROWS_HEADER, contract.DIGEST_HEADER),
    )
)
"""Headers that are fields of a message, or nothing, here."""

_SILENCES: Final = {
    grpc.StatusCode.UNAVAILABLE: Silence.CUT,
    grpc.StatusCode.CANCELLED: Silence.CUT,
    grpc.StatusCode.DEADLINE_EXCEEDED: Silence.LATE,
}
"""Statuses that our own side makes: nobody knows what happened."""

_STATUSES: Final = {
    grpc.StatusCode.UNAUTHENTICATED: STATUSES[Refusal.NOT_ADMITTED],
    grpc.StatusCode.PERMISSION_DENIED: STATUSES[Refusal.NOT_ALLOWED],
    grpc.StatusCode.RESOURCE_EXHAUSTED: STATUSES[Refusal.NOT_NOW],
    grpc.StatusCode.UNIMPLEMENTED: STATUSES[Refusal.MISDIRECTED],
}
"""What a server's status is over HTTP; another one is a fault of the server. With none
of them comes a transaction's id, so that none is an acknowledgement."""

_NOT_CONNECTED: Final = (
    "failed to connect to all addresses",
    "errors resolving",
    "DNS resolution failed",
)
"""How gRPC begins to say that there was no connection to send a request on. In other
words it would be a connection that ended: nothing but the message depends on it."""

_OF_A_TRANSACTION: Final = ("/prepare", "/commit", "/abort")

_NO_ASK: Final = (
    "this participant answers no Ask: it takes part in transactions, and what it holds "
    "can neither be listed nor looked up from here"
)

Answered = tuple[int, str, bytes]


@dataclasses.dataclass(frozen=True)
class GrpcParticipant(WireParticipant):
    """A participant as `participant.proto` describes it. Picklable; opens nothing.

    `timeout` is for a request in all. Of a prepare it is for connecting, for each
    piece of the body, and for the answer after the last one.
    """

    def __post_init__(self) -> None:
        parts = urlsplit(self.url)
        if not parts.port or parts.path.strip("/"):
            raise ConfigurationError(
                f"participant {self.name!r}: {self.url}: gRPC has ports and no paths: "
                f"write {parts.scheme}://host:port"
            )

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | IO[bytes] | None,
        headers: Mapping[str, str],
        timeout: float,
        most: int,
    ) -> Answered:
        stub, metadata = stub_of(self.url), _metadata(headers)
        try:
            if path == "/prepare":
                upload = _Upload(body, headers, timeout)
                call = stub.prepare.future(upload.messages(), metadata=metadata)
                return _answered(*read_response(upload.answer_of(call), self.name))
            content = body if isinstance(body, bytes) else b""
            if path == "/commit":
                order = _order(CommitRequest, content)
                outcome = stub.commit(order, timeout, metadata)
                return _answered(*read_outcome(outcome, self.name))
            if path == "/abort":
                order = _order(RollbackRequest, content)
                outcome = stub.rollback(order, timeout, metadata)
                return _answered(*read_outcome(outcome, self.name))
            question = AskRequest(method=method, path=path, body=content)
            answer = stub.ask(question, timeout, metadata)
        except NoAnswerError:
            forget(self.url)
            raise
        except grpc.RpcError as error:
            return self._judge(error, path)
        if len(answer.document) > most:
            raise NoAnswerError(Silence.CUT, "too long")
        return answer.status, answer.content_type, answer.document

    def _judge(self, error: grpc.RpcError, path: str) -> Answered:
        """Return the answer as over HTTP, or raise `NoAnswerError` if there is none."""
        code, detail = error.code(), error.details() or ""
        if silence := _SILENCES.get(code):
            forget(self.url)
            if detail.startswith(_NOT_CONNECTED):
                silence = Silence.NOT_SENT
            raise NoAnswerError(silence, code.name) from error
        if code is grpc.StatusCode.UNIMPLEMENTED and path not in _OF_A_TRANSACTION:
            raise NoAnswerError(Silence.NOT_OFFERED, _NO_ASK) from error
        document = json.dumps({"detail": detail or code.name})
        return _answered(_STATUSES.get(code, FAULT), document)


class _Upload:
    """A body as messages, and how long each of them may take.

    gRPC asks for a message when the one before is on its way: no more of the body than
    that is in memory, and a server that reads nothing is noticed.
    """

    def __init__(self, body: Any, headers: Mapping[str, str], timeout: float) -> None:
        self._body: IO[bytes] = io.BytesIO(body) if isinstance(body, bytes) else body
        self._headers = headers
        self._timeout = timeout
        self._until = time.monotonic() + timeout
        self._error: Exception | None = None

    def messages(self) -> Iterator[Any]:
        """Yield the branch, then its records; keep what reading them raises."""
        try:
            yield from self._messages()
        except Exception as error:
            self._error = error
            raise

    def _messages(self) -> Iterator[Any]:
        headers = self._headers
        branch = Branch(
            branch=headers[contract.BRANCH_HEADER],
            rows=int(headers[contract.ROWS_HEADER]),
            digest=headers[contract.DIGEST_HEADER],
        )
        yield PrepareRequest(
            transaction_id=headers[contract.TRANSACTION_HEADER],
            branch=branch,
            length=int(headers["Content-Length"]),
            content_type=headers["Content-Type"],
            name_rows=int(headers.get(contract.NAME_ROWS_HEADER, 0)),
        )
        while piece := self._body.read(CHUNK):
            self._until = time.monotonic() + self._timeout
            yield PrepareRequest(payload=piece)
        self._until = time.monotonic() + self._timeout

    def answer_of(self, call: Any) -> Any:
        """Wait for the answer, as long as the next step is in time."""
        is_done = threading.Event()
        call.add_done_callback(lambda _: is_done.set())
        while not is_done.wait(max(self._until - time.monotonic(), 0)):
            if time.monotonic() >= self._until:
                call.cancel()
                raise NoAnswerError(Silence.LATE, "TimeoutError")
        try:
            return call.result()
        except grpc.RpcError as error:
            if self._error is None:
                raise
            kind = type(self._error).__name__
            raise NoAnswerError(Silence.CUT, kind) from error


def _order(kind: Any, content: bytes) -> Any:
    """Return a commit or rollback of these fields; it raises at any other field."""
    fields = json.loads(content)
    if fields.get("forgotten_through", 0) is None:
        del fields["forgotten_through"]
    if None in fields.values():  # it would be left out: the abort of a branch, of all
        raise ValueError(f"null in {fields}")
    return kind(**fields)


def _answered(status: int, document: str) -> Answered:
    return status, contract.JSON if status == OK else PROBLEM, document.encode()


def _metadata(headers: Mapping[str, str]) -> list[tuple[str, str]]:
    """Return the headers that go beside the messages: the contract's and the trace's.

    Values that metadata cannot hold are left out, as are those too large for many
    servers: that is a trace's, which changes no answer.
    """
    metadata, room = [], _MOST_METADATA
    for name, value in headers.items():
        size = len(name) + len(value) + 32
        if name.lower() in _IN_MESSAGES or size > room:
            continue
        if value.isascii() and value.isprintable():
            metadata.append((name.lower(), value))
            room -= size
    return metadata
