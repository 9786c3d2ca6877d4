"""gunicorn's worker of threads, where a silent client takes no thread.

    gunicorn -k tracing_2pc.http.gunicorn_worker.Worker --threads 8 …

gunicorn gives a connection to a thread before anything came, and the thread waits for
the head of a request, for ever where it comes in drops. Here connections wait together
in the main loop until a head is whole, and not for long.

At SIGTERM gunicorn lets requests end for `graceful_timeout`. Close the resource in
your configuration's `worker_exit`, as `gunicorn_conf.py` does; an outbox that is not
closed stops when its process exits.
"""

from __future__ import annotations

import contextlib
import io
import socket
import ssl
import time
from functools import partial
from selectors import EVENT_READ
from typing import Any, Final

from gunicorn.http.body import Body, LengthReader
from gunicorn.workers.gthread import ThreadWorker

from tracing_2pc.http.time_limits import end_reading
from tracing_2pc.wire.bridge import start_sending

HEAD: Final = 3.0  # seconds in which the head of a request must be whole

_LONGEST_HEAD: Final = 1 << 16
_LARGE: Final = 1 << 18
"""Bytes that a participant asks for at a time, of a body that has as many left."""


class Worker(ThreadWorker):  # type: ignore[misc]
    """Threads for requests whose head is there. With TLS it waits as gunicorn does.

    The path of a request is its own: a header `SCRIPT_NAME` is dropped from anybody.
    """

    def init_process(self) -> None:
        """Take no path from a header: a proxy's rules are about the one it saw."""
        self.cfg.set("forwarder_headers", "")
        super().init_process()

    def load_wsgi(self) -> None:
        """Start what an outbox sends, after the fork and before the first request."""
        super().load_wsgi()
        start_sending(self.wsgi)

    def enqueue_req(self, conn: Any) -> None:
        """Give a request to a thread once its head is whole. Runs in the main loop."""
        if self.cfg.is_ssl:
            super().enqueue_req(conn)
            return
        until, before = conn.__dict__.setdefault("head", (time.monotonic() + HEAD, -1))
        there = _peek(conn.sock)
        if there is not None and _is_whole(conn, there):
            del conn.head
            _wake_at(conn.sock, 1)
            conn.data_ready = True
            super().enqueue_req(conn)
            return
        count = 0 if there is None else len(there)
        ended = there is None or count <= before or count >= _LONGEST_HEAD
        if ended or until < time.monotonic():
            self.nr_conns -= 1
            conn.close()
            return
        conn.head = until, count
        conn.sock.settimeout(0)
        _wake_at(conn.sock, count + 1)
        conn.timeout = until
        self.pending_conns.append(conn)
        call = partial(self.on_pending_socket_readable, conn)
        self.poller.register(conn.sock, EVENT_READ, call)

    def handle_request(self, req: Any, conn: Any) -> bool:
        """Serve a request; no other one follows a body that was not read."""
        if isinstance(req.body.reader, LengthReader):
            req.body = _Body(req.body.reader)
        again: bool = super().handle_request(req, conn)
        # gunicorn would read it to its end first, for five seconds, in this thread.
        return again and not getattr(req.body.reader, "length", 1)

    def handle(self, conn: Any) -> Any:
        """Serve a request, and read no more of a client that is to hang up."""
        again = super().handle(conn)
        if not again:
            # The main loop would wait for two seconds, and serve no request meanwhile.
            end_reading(conn.sock)
        return again


class _Body(Body):  # type: ignore[misc]
    """A body whose large pieces are taken from the socket, not copied five times."""

    def read(self, size: int | None = None) -> bytes:
        """Read so many bytes, or to the end; without a size to the end."""
        reader, unreader = self.reader, self.reader.unreader
        left = wanted = min(size or 0, reader.length)
        is_tls = isinstance(unreader.sock, ssl.SSLSocket)
        if wanted < _LARGE or self.buf.tell() or is_tls:
            return bytes(super().read(size))
        pieces = []
        if early := unreader.buf.getvalue():  # it came with the head
            unreader.buf = io.BytesIO()
            unreader.unread(early[wanted:])
            pieces.append(early[:wanted])
            left -= len(pieces[0])
        while left and (piece := _take(unreader.sock, left)):
            pieces.append(piece)
            left -= len(piece)
        reader.length -= wanted - left
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)


def _take(client: socket.socket, count: int) -> bytes:
    return client.recv(min(count, _LARGE), socket.MSG_WAITALL)


def _peek(client: socket.socket) -> bytes | None:
    """Return what has come and leave it there; None where the client has hung up."""
    try:
        there = client.recv(_LONGEST_HEAD, socket.MSG_PEEK | socket.MSG_DONTWAIT)
    except BlockingIOError:
        return b""
    except OSError:
        return None
    return there or None


def _is_whole(conn: Any, there: bytes) -> bool:
    before = conn.parser.unreader.buf.getvalue() if conn.parser else b""
    return b"\r\n\r\n" in (before + there).lstrip(b"\r\n")


def _wake_at(client: socket.socket, count: int) -> None:
    """Let a selector report the socket only when so many bytes are there."""
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
