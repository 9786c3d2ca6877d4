"""gunicorn's worker of threads, where who says nothing takes no thread.

    gunicorn -k tracing_2pc.participant.gunicorn_worker.Worker --threads 8 …

gunicorn gives a connection to a thread before it has said anything, and the thread
waits for the head of a request, for ever where it comes in drops. Here connections wait
together in the main loop until a head is whole, and not for long.
"""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import time
from functools import partial
from selectors import EVENT_READ
from typing import Any, Final

from gunicorn.workers.gthread import ThreadWorker

from tracing_2pc.participant.time_limits import hear_no_more

HEAD: Final = 3.0
"""Seconds in which the head of a request must be whole."""

_LONGEST_HEAD: Final = 1 << 16


@dataclasses.dataclass(slots=True)
class _Head:
    """A head that is not whole yet: until when it may come, and how much is there."""

    until: float
    bytes: int = -1


class Worker(ThreadWorker):  # type: ignore[misc]
    """Threads for requests whose head is there. With TLS it waits as gunicorn does."""

    def enqueue_req(self, conn: Any) -> None:
        """Give a request to a thread once its head is whole. Runs in the main loop."""
        if self.cfg.is_ssl:
            super().enqueue_req(conn)
            return
        head = conn.__dict__.setdefault("head", _Head(time.monotonic() + HEAD))
        there = _peek(conn.sock)
        if there is not None and _is_whole(conn, there):
            del conn.head
            _wake_at(conn.sock, 1)
            conn.data_ready = True
            super().enqueue_req(conn)
        elif there is None or len(there) <= head.bytes or _is_over(head, there):
            self.nr_conns -= 1
            conn.close()
        else:
            head.bytes = len(there)
            self._wait(conn, head)

    def _wait(self, conn: Any, head: _Head) -> None:
        conn.sock.settimeout(0)
        _wake_at(conn.sock, head.bytes + 1)
        conn.timeout = head.until
        self.pending_conns.append(conn)
        call = partial(self.on_pending_socket_readable, conn)
        self.poller.register(conn.sock, EVENT_READ, call)

    def handle_request(self, req: Any, conn: Any) -> bool:
        """Serve a request; no other one follows a body that was not read."""
        again: bool = super().handle_request(req, conn)
        # gunicorn would read it to its end first, for five seconds, in this thread.
        return again and not getattr(req.body.reader, "length", 1)

    def handle(self, conn: Any) -> Any:
        """Serve a request, and hear no more of a client that is to hang up."""
        again = super().handle(conn)
        if not again:
            # The main loop would listen for two seconds, and serve nobody meanwhile.
            hear_no_more(conn.sock)
        return again


def _peek(client: socket.socket) -> bytes | None:
    """Return what has come and leave it there; None from who has hung up."""
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


def _is_over(head: _Head, there: bytes) -> bool:
    return len(there) >= _LONGEST_HEAD or head.until < time.monotonic()


def _wake_at(client: socket.socket, count: int) -> None:
    """Be woken when so many bytes are there: those that are there wake nobody again."""
    with contextlib.suppress(OSError):
        client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, count)
