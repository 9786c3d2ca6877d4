"""A collector on loopback: keeps OTLP data in memory, or misbehaves."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from typing import NamedTuple

from tracing_2pc.testing import otlp
from tracing_2pc.testing.loopback import LoopbackConnection, LoopbackServer
from tracing_2pc.testing.otlp import Span

_ID = "tpc.transaction.id"


class _Manner(NamedTuple):
    """The delay of answers, None for never, and their status, 0 for none."""

    pause: float | None = 0.0
    status: int = 200


class Collector:
    """Receives spans by `OTEL_EXPORTER_OTLP_ENDPOINT`, and shows them to a test.

        with Collector() as collector:
            subprocess.run(job, env={"OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint})
            spans = collector.trace_of("orders.7.1")
        assert span_tree(spans)[0] == "tpc.transaction"

    It listens once, on 127.0.0.1 only, from its making to the end of `with`; then no
    thread and no socket is left, and the spans stay.

    Args:
        port: the port to listen on; 0 for a free one.

    Raises:
        ConfigurationError: the extra `otlp` is not installed.
    """

    def __init__(self, port: int = 0) -> None:
        otlp.messages()
        self._changed = threading.Condition()
        self._spans: list[Span] = []
        self._manner = _Manner()
        self._connections: set[tuple[str, int]] = set()
        self._server = LoopbackServer(
            type("Connection", (_Connection,), {"collector": self}),
            port=port,
            end=lambda: self._behave(_Manner(status=0)),
        )

    @property
    def endpoint(self) -> str:
        """The value for `OTEL_EXPORTER_OTLP_ENDPOINT`."""
        return self._server.url

    @property
    def connections(self) -> int:
        """The number of connections with requests, answered or not."""
        with self._changed:
            return len(self._connections)

    def spans(self) -> list[Span]:
        """Return all spans received, in the form of `read_trace_file`."""
        with self._changed:
            return list(self._spans)

    def trace_of(self, transaction_id: str) -> list[Span]:
        """Return all spans of the trace in which a span names this transaction."""
        spans = self.spans()
        ids = {
            s["trace_id"] for s in spans if s["attributes"].get(_ID) == transaction_id
        }
        return [span for span in spans if span["trace_id"] in ids]

    def wait_for(
        self, predicate: Callable[[Sequence[Span]], object], seconds: float = 10.0
    ) -> list[Span]:
        """Return the spans once this is true of them, or raise `TimeoutError`."""
        with self._changed:
            if self._changed.wait_for(lambda: predicate(self._spans), seconds):
                return list(self._spans)
            there = ", ".join(span["name"] for span in self._spans)
            raise TimeoutError(f"not so after {seconds:g} s; there is: {there or '-'}")

    def accept(self) -> None:
        """Answer, from now on; requests that hang are taken, too."""
        self._behave(_Manner())

    def refuse(self) -> None:
        """Answer 503 from now on: try again later."""
        self._behave(_Manner(status=503))

    def hang(self) -> None:
        """Answer nothing, until it is told something else."""
        self._behave(_Manner(pause=None))

    def answer_after(self, seconds: float) -> None:
        """Answer slowly, from now on."""
        self._behave(_Manner(pause=seconds))

    def __enter__(self) -> Collector:
        self._server.__enter__()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.__exit__()

    def take(self, client: tuple[str, int], body: bytes, encoding: str) -> int:
        """Keep the spans of a request; return the status, 0 for no answer at all."""
        with self._changed:
            self._connections.add(client)
            self._changed.notify_all()
            self._pause()
            if self._manner.status != 200:
                return self._manner.status
            try:
                self._spans += otlp.read(body, encoding)
            except ValueError:
                return 400
            self._changed.notify_all()
            return 200

    def _behave(self, manner: _Manner) -> None:
        with self._changed:
            self._manner = manner
            self._changed.notify_all()

    def _pause(self) -> None:
        """Wait for the manner's delay; another manner begins at once."""
        manner = None
        while manner is not self._manner:
            manner = self._manner
            is_other = functools.partial(self._is_other, manner)
            self._changed.wait_for(is_other, manner.pause)

    def _is_other(self, manner: _Manner) -> bool:
        return self._manner is not manner


class _Connection(LoopbackConnection):
    """One sender's connection. Answers by OTLP: protobuf, errors too."""

    collector: Collector

    def serve(self, body: bytes | None) -> None:
        """Take spans."""
        status = self._status(body)
        if not status or body is None:
            self.close_connection = True
        if not status:
            return
        answer = b"" if status == 200 else otlp.refusal(status)
        self.send_response(status)
        self.send_header("Content-Type", otlp.PROTOBUF)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def _status(self, body: bytes | None) -> int:
        if body is None:
            return 411
        if self.path != otlp.PATH:
            return 404
        encoding = self.headers.get("Content-Encoding", "identity")
        is_known = self.headers.get_content_type() == otlp.PROTOBUF
        if not is_known or encoding not in otlp.ENCODINGS:
            return 415
        return self.collector.take(self.client_address, body, encoding)
