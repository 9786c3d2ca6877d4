"""What each fault does to one request and its answer."""

from __future__ import annotations

import contextlib
import dataclasses
import socket
import threading
from collections.abc import Callable, Mapping
from typing import Final

from tracing_2pc.testing.faults import Fault, Planned, Seen
from tracing_2pc.testing.forwarding import Answer, Request, Upstream, is_readable
from tracing_2pc.testing.holding import Held, Holding
from tracing_2pc.transports import wire

_DECIDING: Final = frozenset({"commit", "abort"})


class Threads:
    """Threads that have ended when `join` returns."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running: list[threading.Thread] = []

    def start(self, work: Callable[[], object]) -> threading.Thread:
        """Do some work in a thread of its own."""
        thread = threading.Thread(target=work, name="tpc-fault-proxy", daemon=True)
        with self._lock:
            self._running = [t for t in self._running if t.is_alive()]
            self._running.append(thread)
            thread.start()
        return thread

    def join(self) -> None:
        """Wait for all of them, and for those that they start."""
        while (thread := self._one()) is not None:
            thread.join()

    def _one(self) -> threading.Thread | None:
        with self._lock:
            return next((t for t in self._running if t.is_alive()), None)


class Elsewhere:
    """Where clients are redirected to; an acknowledgement waits for each of them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waiting: dict[str, Answer] = {}

    def keep(self, answer: Answer) -> str:
        """Keep an answer; return the path where it is found."""
        with self._lock:
            path = f"/redirected/{len(self._waiting) + 1}"
            self._waiting[path] = answer
        return path

    def find(self, path: str) -> Answer | None:
        """Return what waits there."""
        with self._lock:
            return self._waiting.get(path)


@dataclasses.dataclass(frozen=True, slots=True)
class Shared:
    """What the exchanges of one proxy have in common.

    Args:
        connect: opens another connection to the participant.
    """

    connect: Callable[[], Upstream]
    holding: Holding = dataclasses.field(default_factory=Holding)
    threads: Threads = dataclasses.field(default_factory=Threads)
    elsewhere: Elsewhere = dataclasses.field(default_factory=Elsewhere)


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """What a client is told: the bytes, the status in them, and whether that is all."""

    raw: bytes = b""
    status: int | None = None
    is_last: bool = True


@dataclasses.dataclass(slots=True, eq=False)
class Exchange:
    """One request, what is to go wrong with it, and what has become of it.

    Args:
        request: as it came.
        planned: what goes wrong; None for nothing.
        client: the connection that it came on.
        upstream: the participant's side of that connection.
        shared: what all exchanges of the proxy have in common.
        statuses: what the participant has answered so far.
        returned: the status that the client was told.
    """

    request: Request
    planned: Planned | None
    client: socket.socket
    upstream: Upstream
    shared: Shared
    statuses: list[int | None] = dataclasses.field(default_factory=list)
    returned: int | None = None

    def seen(self) -> Seen:
        """Return what is known of it by now."""
        return Seen(
            "redirected" if self._found is not None else self.request.verb,
            self.request.transaction,
            self.request.branch,
            self.planned.fault if self.planned else None,
            tuple(self.statuses),
            self.returned,
        )

    def play(self) -> Said:
        """Do what is planned; return what the client is to be told."""
        if self._found is not None:
            said = whole(self._found)
        elif self.planned is None:
            said = whole(self.ask(self.upstream))
        else:
            said = _PLAY[self.planned.fault](self)
        self.returned = said.status
        return said

    def ask(self, upstream: Upstream) -> Answer | None:
        """Ask the participant, once, and let go what waited for its answer."""
        answer = upstream.ask(self.request)
        self.statuses.append(answer.status if answer else None)
        if answer is not None and self.request.verb in _DECIDING:
            self.shared.holding.decided(self.request)
        return answer

    def ask_apart(self) -> Answer | None:
        """Ask on a connection of its own."""
        with contextlib.closing(self.shared.connect()) as upstream:
            return self.ask(upstream)

    def hold(
        self,
        *,
        seconds: float | None = None,
        beside: socket.socket | None = None,
        is_late: bool = False,
    ) -> Callable[[], Answer | None]:
        """Hold the request back from now on; return what sends it in its time."""
        held = Held(
            self.request,
            self.ask_apart,
            seconds=seconds,
            beside=beside,
            is_late=is_late,
        )
        self.shared.holding.add(held)
        return lambda: self.shared.holding.send(held)

    @property
    def after(self) -> float | None:
        """The seconds that were planned."""
        return self.planned.after if self.planned else None

    @property
    def _found(self) -> Answer | None:
        return self.shared.elsewhere.find(self.request.path)


def whole(answer: Answer | None) -> Said:
    """Tell all of an answer; without one, close the connection."""
    return Said(answer.raw(), answer.status, is_last=False) if answer else Said()


def _drop(_: Exchange) -> Said:
    return Said()


def _lose_answer(exchange: Exchange) -> Said:
    exchange.ask(exchange.upstream)
    return Said()


def _duplicate(exchange: Exchange) -> Said:
    together = threading.Barrier(2)

    def ask_too() -> None:
        together.wait()
        exchange.ask_apart()

    twin = exchange.shared.threads.start(ask_too)
    together.wait()
    answer = exchange.ask(exchange.upstream)
    twin.join()
    return whole(answer)


def _duplicate_later(exchange: Exchange) -> Said:
    answer = exchange.ask(exchange.upstream)
    exchange.shared.threads.start(exchange.hold(seconds=exchange.after))
    return whole(answer)


def _delay(exchange: Exchange) -> Said:
    beside = exchange.client if exchange.after is None else None
    send = exchange.hold(seconds=exchange.after, beside=beside)
    answer = send()
    return Said() if is_readable(exchange.client) else whole(answer)


def _late_after_abort(exchange: Exchange) -> Said:
    exchange.shared.threads.start(exchange.hold(is_late=True))
    return Said()


def _cut(exchange: Exchange) -> Said:
    if (answer := exchange.ask(exchange.upstream)) is None:
        return Said()
    lost = max(1, len(answer.body) // 2)
    return Said(answer.raw()[:-lost], answer.status)


def _redirect(exchange: Exchange) -> Said:
    request = exchange.request
    told = request.acknowledgement(request.transaction)
    path = exchange.shared.elsewhere.keep(told)
    return whole(Answer.of(302, "text/plain", b"", Location=path))


def _other_transaction(exchange: Exchange) -> Said:
    other = f"{exchange.request.transaction}1"
    return whole(exchange.request.acknowledgement(other))


def _always(said: Said) -> Callable[[Exchange], Said]:
    return lambda _: said


_NO_BODY: Final = Answer(503, "Service Unavailable", (), b"")
_NO_JSON: Final = Answer.of(200, wire.JSON, b'{"state": committed')
_HTML: Final = Answer.of(200, "text/html", b"<html><h1>Please log in</h1></html>")

_PLAY: Final[Mapping[Fault, Callable[[Exchange], Said]]] = {
    Fault.DROP: _drop,
    Fault.LOSE_ANSWER: _lose_answer,
    Fault.DUPLICATE: _duplicate,
    Fault.DUPLICATE_LATER: _duplicate_later,
    Fault.DELAY: _delay,
    Fault.LATE_AFTER_ABORT: _late_after_abort,
    Fault.CUT: _cut,
    Fault.UNAVAILABLE: _always(whole(_NO_BODY)),
    Fault.GARBAGE: _always(Said(b"\x00\x01 this is not HTTP\r\n\r\n")),
    Fault.NOT_JSON: _always(whole(_NO_JSON)),
    Fault.REDIRECT: _redirect,
    Fault.PAGE: _always(whole(_HTML)),
    Fault.OTHER_TRANSACTION: _other_transaction,
}
