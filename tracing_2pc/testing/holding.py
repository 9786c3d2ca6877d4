"""Requests that are held back until their moment."""

from __future__ import annotations

import selectors
import socket
import threading
from collections.abc import Callable, Iterable

from tracing_2pc.testing.forwarding import Answer, Request


class Gate:
    """Closed until it is opened; can be waited for beside a socket."""

    def __init__(self) -> None:
        self._here, self._there = socket.socketpair()

    def open(self) -> None:
        """Let everybody through, now and later."""
        self._there.close()

    def wait(
        self, seconds: float | None = None, beside: socket.socket | None = None
    ) -> bool:
        """Wait until it is open, time is over, or something comes from `beside`.

        Returns:
            Whether it is open.
        """
        with selectors.DefaultSelector() as selector:
            selector.register(self._here, selectors.EVENT_READ)
            if beside is not None:
                selector.register(beside, selectors.EVENT_READ)
            ready = selector.select(seconds)
        return any(key.fileobj is self._here for key, _ in ready)

    def close(self) -> None:
        """Give its sockets back; nobody may wait any more."""
        self._there.close()
        self._here.close()


class Held:
    """One request that is held back.

    Args:
        request: which one.
        ask: asks the participant.
        seconds: it is sent then; None for no such time.
        beside: it is sent when the other side of this socket has closed it.
        is_late: it is sent when it is too late.
    """

    def __init__(
        self,
        request: Request,
        ask: Callable[[], Answer | None],
        *,
        seconds: float | None = None,
        beside: socket.socket | None = None,
        is_late: bool = False,
    ) -> None:
        self._request = request
        self._ask = ask
        self._seconds = seconds
        self._beside = beside
        self._is_late = is_late
        self._gate = Gate()
        self._dropped = False
        self._over = threading.Event()

    def waits_for(self, decision: Request) -> bool:
        """Whether it is too late after this commit or abort."""
        same = decision.transaction == self._request.transaction
        of_branch = decision.branch in {"", self._request.branch}
        return self._is_late and same and of_branch

    def release(self) -> None:
        """Let it be sent now."""
        self._gate.open()

    def drop(self) -> None:
        """Let it never be sent, if it has not been."""
        self._dropped = True
        self._gate.open()

    def send(self) -> Answer | None:
        """Wait, then ask; None if it was dropped, or not answered."""
        try:
            self._gate.wait(self._seconds, self._beside)
            return None if self._dropped else self._ask()
        finally:
            self._gate.close()
            self._over.set()

    def wait(self) -> None:
        """Return when it has been answered or dropped."""
        self._over.wait()


class Holding:
    """All that one proxy holds back."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._held: list[Held] = []
        self._ended = False

    def add(self, held: Held) -> None:
        """Hold one back; at the end it is dropped."""
        with self._lock:
            self._held.append(held)
            if self._ended:
                held.drop()

    def send(self, held: Held) -> Answer | None:
        """Wait for its moment, and send it."""
        try:
            return held.send()
        finally:
            with self._lock:
                self._held.remove(held)

    def release(self) -> None:
        """Send all of it on; return when it has been answered."""
        _release(self._now())

    def decided(self, decision: Request) -> None:
        """Send on what is too late now; return when it has been answered."""
        _release([held for held in self._now() if held.waits_for(decision)])

    def end(self) -> None:
        """Drop what is held back, and what will be."""
        with self._lock:
            self._ended = True
            for held in self._held:
                held.drop()

    def _now(self) -> list[Held]:
        with self._lock:
            return list(self._held)


def _release(held_back: Iterable[Held]) -> None:
    chosen = list(held_back)
    for held in chosen:
        held.release()
    for held in chosen:
        held.wait()
