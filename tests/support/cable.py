"""A cable between a client and a server on loopback, which can fail at a sign."""

from __future__ import annotations

import contextlib
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Final

_LENGTH: Final = 1 << 16


class Cable:
    """Passes on bytes, until something fails; the connection after that is a good one.

    Args:
        place: of the server, `host:port`, or the path of its socket.
    """

    def __init__(self, place: str) -> None:
        self._server = place
        self._listener = socket.create_server(("127.0.0.1", 0))
        # Of who is not read, little is taken.
        self._listener.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _LENGTH)
        self.place = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._is_over = threading.Event()
        self._fault: Callable[[Link], None] | None = None
        self._sign = b""
        self.failed = threading.Event()
        """What was to happen has happened."""

    def fail(self, sign: bytes, fault: Callable[[Link], None]) -> None:
        """Let this happen, once, when a client sends these bytes, before they go on."""
        self._sign, self._fault = sign, fault

    @contextlib.contextmanager
    def laid(self) -> Iterator[Cable]:
        """Pass on what comes, until the end."""
        thread = threading.Thread(target=self._accept, daemon=True)
        thread.start()
        try:
            yield self
        finally:
            self._is_over.set()
            with contextlib.suppress(OSError):
                self._listener.shutdown(socket.SHUT_RDWR)
            self._listener.close()
            thread.join()

    def _accept(self) -> None:
        with contextlib.ExitStack() as stack:
            while not self._is_over.is_set():
                try:
                    client, _ = self._listener.accept()
                except OSError:
                    return
                stack.enter_context(Link(self, client).passing(self._server))

    def _failing(self, seen: bytes) -> Callable[[Link], None] | None:
        fault = self._fault
        if fault is None or self._sign not in seen:
            return None
        self._fault = None
        return fault


class Link:
    """One connection through it."""

    def __init__(self, cable: Cable, client: socket.socket) -> None:
        self._cable = cable
        self._client = client
        self._ends = threading.Event()
        self._lost_answer = b""
        self._is_silent = self._loses_answers = False

    @contextlib.contextmanager
    def passing(self, place: str) -> Iterator[None]:
        """Pass on in both directions; at the end both are closed."""
        with contextlib.ExitStack() as stack:
            try:
                server = _connected(place)
            except OSError:  # as a server that is down
                self._client.close()
                yield
                return
            self._server = server
            threads = [
                threading.Thread(target=work, daemon=True)
                for work in (self._up, self._down)
            ]
            for thread in threads:
                thread.start()
                stack.callback(thread.join)
            stack.callback(self.cut)
            yield
        for end in (self._client, server):
            end.close()

    # --- faults -------------------------------------------------------------------

    def cut(self) -> None:
        """End it both ways, at once; nothing of the sign has arrived."""
        self._ends.set()
        for end in (self._client, self._server):
            with contextlib.suppress(OSError):
                end.shutdown(socket.SHUT_RDWR)

    def lose_answer(self, answer: bytes = b"RECEIPT") -> None:
        """End it when the server has answered with this: nobody hears of it."""
        self._lost_answer = answer

    def be_silent(self) -> None:
        """Pass on nothing any more, and take all."""
        self._is_silent = True

    def lose_answers(self) -> None:
        """Pass on what the client says, and no answer any more."""
        self._loses_answers = True

    def read_no_further(self) -> None:
        """Take nothing more of the client; what the server says, it hears."""
        self._ends.wait()

    # --- the two directions -------------------------------------------------------

    def _up(self) -> None:
        last = b""
        while data := _received(self._client):
            if fault := self._cable._failing(last + data):
                fault(self)
                self._cable.failed.set()
            last = data[-len(self._cable._sign) :]
            if not (self._is_silent or self._ends.is_set()):
                with contextlib.suppress(OSError):
                    self._server.sendall(data)
        self.cut()

    def _down(self) -> None:
        while data := _received(self._server):
            if self._lost_answer and self._lost_answer in data:
                break
            if not (self._is_silent or self._loses_answers):
                with contextlib.suppress(OSError):
                    self._client.sendall(data)
        self.cut()


def _connected(place: str) -> socket.socket:
    if place.startswith("/"):
        server = socket.socket(socket.AF_UNIX)
        server.connect(place)
        return server
    host, port = place.split(":")
    return socket.create_connection((host, int(port)))


def _received(from_: socket.socket) -> bytes:
    try:
        return from_.recv(_LENGTH)
    except OSError:
        return b""
