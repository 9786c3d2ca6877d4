"""One connection to a broker by STOMP; after any error it is of no use."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final, TypeVar

import stomp

from tracing_2pc.core.addresses import split_address
from tracing_2pc.core.errors import ConfigurationError, TwoPhaseError
from tracing_2pc.core.settings import is_reference, read_secret

_HEART_BEAT: Final = 10_000
"""Milliseconds, both ways: a busy machine has so long, a dead one is waited for."""

_SILENT: Final = 3 * _HEART_BEAT / 1_000
"""Seconds without a sign of life after which a broker is gone."""

_LOOK: Final = 1.0
"""Seconds between two looks whether an answer is still wanted."""

_THEIRS: Final = logging.getLogger("stomp.py")
if _THEIRS.level == logging.NOTSET:  # an error of ours says it, too
    _THEIRS.setLevel(logging.CRITICAL)

Result = TypeVar("Result")

Headers = Mapping[str, str]


class BrokerError(TwoPhaseError):
    """A broker does not answer, or refuses, with its reason."""


@dataclasses.dataclass(frozen=True)
class Delivery:
    """A message as it was delivered."""

    headers: Headers  # with those of STOMP
    body: bytes  # as it was sent


@dataclasses.dataclass(frozen=True)
class Brokers:
    """Where a broker may be, and how it is asked; the first that answers is taken.

    Raises:
        ConfigurationError: no such addresses, or a password that is no reference.
    """

    addresses: str  # `host:port` of its connectors for STOMP, separated by commas
    user: str | None = None  # for brokers that ask for one
    password: str | None = None  # a reference, `env:NAME` or `file:PATH`
    # A file with certificates: TLS, with brokers that one of them vouches for.
    ca: str | None = None
    timeout: float = 10.0  # seconds that an answer may take

    def __post_init__(self) -> None:
        if self.addresses.startswith("failover:"):
            raise ConfigurationError(
                "failover: is no address: a transaction would go on with another "
                "connection than it began with. List them, host:port,host:port"
            )
        list(self._places())
        if self.password and not is_reference(self.password):
            detail = "password: give a reference, env:NAME or file:PATH"
            raise ConfigurationError(detail)

    def _places(self) -> Iterator[tuple[str, int]]:
        for address in self.addresses.split(","):
            try:
                parts = split_address(f"//{address.strip()}")
            except ValueError as error:
                raise ConfigurationError(f"addresses: {error}") from None
            if not parts.hostname or not parts.port or parts.path:
                detail = "addresses: expected host:port, or several with commas"
                raise ConfigurationError(detail)
            yield parts.hostname, parts.port

    def check(self) -> None:
        """Read the password and the certificates, when a process starts.

        Raises:
            ConfigurationError: one of them is not there, or cannot be used.
        """
        if self.password:
            read_secret(self.password, "password")
        try:
            ssl.create_default_context(cafile=self.ca)
        except OSError as error:  # that of TLS is one, too
            detail = error.strerror or "no certificates"
            raise ConfigurationError(f"ca: {self.ca}: {detail}") from None

    def connect(self) -> Connection:
        """Connect to the first that answers; `BrokerError` names the cause for each."""
        password = self.password and read_secret(self.password, "password")
        reasons = []
        for place in self._places():
            try:
                return Connection(place, self, password)
            except Exception as error:  # noqa: BLE001 - stomp.py's own may be any
                detail = str(error) or "nothing listens there, or it is no broker"
                reasons.append(f"{place[0]}:{place[1]}: {detail}")
        raise BrokerError(f"no broker answers: {'; '.join(reasons)}")


class Connection(stomp.ConnectionListener):  # type: ignore[misc]  # has no types
    """A connection, whose calls raise `BrokerError` once it has failed."""

    def __init__(
        self, place: tuple[str, int], brokers: Brokers, password: str | None
    ) -> None:
        self._timeout = brokers.timeout
        self._changed = threading.Condition()
        self._error = ""
        self._is_connected = False
        self._heard = time.monotonic()
        self._receipts: set[str] = set()
        self._delivered: dict[str, deque[Delivery]] = {}
        self._numbers = itertools.count(1)
        self._link = stomp.StompConnection12(
            [place],
            prefer_localhost=False,
            try_loopback_connect=False,
            reconnect_sleep_initial=0.0,
            reconnect_attempts_max=1,
            timeout=brokers.timeout,
            heartbeats=(_HEART_BEAT, _HEART_BEAT),
            auto_decode=False,
            auto_content_length=False,
        )
        if brokers.ca is not None:
            self._link.set_ssl([place], ca_certs=brokers.ca)
        self._link.set_listener("connection", self)
        try:
            self._link.connect(brokers.user, password, wait=False)
            self.wait(lambda: self._is_connected, "it does not say CONNECTED")
            self._let_heart_beats_tell(self._link.transport.socket)
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _let_heart_beats_tell(connected: socket.socket) -> None:
        """Wait for answers without end; for room to send no longer than for a sign.

        A broker that has no memory left reads no further: what waits to be sent then
        waits for its own end.
        """
        if connected.gettimeout() != 0:  # TLS never blocks
            connected.settimeout(None)
        milliseconds = int(_SILENT * 1_000)
        connected.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, milliseconds)

    # --- what the threads of stomp.py say --------------------------------------------

    def on_connected(self, frame: Any) -> None:
        """The broker has let us in."""
        with self._changed:
            self._is_connected, self._heard = True, time.monotonic()
            self._changed.notify_all()

    def on_heartbeat(self) -> None:
        """It lives."""
        self._heard = time.monotonic()

    def on_message(self, frame: Any) -> None:
        """It has delivered one."""
        body = frame.body if isinstance(frame.body, bytes) else frame.body.encode()
        with self._changed:
            self._heard = time.monotonic()
            some = self._delivered.setdefault(frame.headers["subscription"], deque())
            some.append(Delivery(frame.headers, body))
            self._changed.notify_all()

    def on_receipt(self, frame: Any) -> None:
        """It has done what we asked for."""
        with self._changed:
            self._heard = time.monotonic()
            self._receipts.add(frame.headers["receipt-id"])
            self._changed.notify_all()

    def on_error(self, frame: Any) -> None:
        """It refuses, and ends the connection."""
        self._fail(
            str(frame.headers.get("message") or "it refuses, and does not say why")
        )

    def on_disconnected(self) -> None:
        """It is gone, or was silent for too long."""
        self._fail("the connection has ended")

    def _fail(self, error: str) -> None:
        with self._changed:
            self._error = self._error or error
            self._changed.notify_all()

    # --- what is asked ---------------------------------------------------------------

    def wait(self, poll: Callable[[], Result], missing: str) -> Result:
        """Wait, as long as an answer may take, until something is found."""
        until = time.monotonic() + self._timeout
        with self._changed:
            while not (result := poll()):
                self._check()
                left = until - time.monotonic()
                if left <= 0:
                    raise BrokerError(missing)
                self._changed.wait(left)
        return result

    def check(self) -> None:
        """Raise if the connection has failed."""
        with self._changed:
            self._check()

    def _check(self) -> None:
        if not self._error and time.monotonic() - self._heard > _SILENT:
            self._error = "it gives no sign of life"
        if self._error:
            raise BrokerError(self._error)

    def delivered(self, subscription: str, most: int | None = None) -> list[Delivery]:
        """Take what was delivered, oldest first."""
        with self._changed:
            there = self._delivered.get(subscription, deque())
            wanted = len(there) if most is None else min(most, len(there))
            return [there.popleft() for _ in range(wanted)]

    def rest(self, subscription: str, seconds: float) -> None:
        """Wait until something is delivered, or for so long."""
        with self._changed:
            if not (self._delivered.get(subscription) or self._error):
                self._changed.wait(seconds)

    def subscribe(self, queue: str, subscription: str, prefetch: int) -> None:
        """Let messages come; each is the broker's until it is acknowledged."""
        self._ask(
            self._link.subscribe,
            f"/queue/{queue}",
            subscription,
            "client-individual",
            {"activemq.prefetchSize": str(prefetch)},
        )

    def browse(self, queue: str) -> list[Delivery]:
        """Browse the messages of a small queue, delivered to a consumer or not."""
        name = f"browse {next(self._numbers)}"
        browser = {"browser": "true"}
        self._ask(self._link.subscribe, f"/queue/{queue}", name, "auto", browser)

        def end() -> bool:
            deliveries = self._delivered.get(name)
            return bool(deliveries and deliveries[-1].headers.get("browser") == "end")

        self.wait(end, f"it does not show queue {queue}")
        self._ask(self._link.unsubscribe, name)
        return self.delivered(name)[:-1]

    def send(
        self,
        queue: str,
        body: str | bytes,
        headers: Headers,
        transaction: str,
        receipt: str | None = None,
    ) -> None:
        """Send a durable message within a transaction; texts stay texts."""
        form = {"persistent": "true", "transaction": transaction}
        if receipt is not None:
            form["receipt"] = receipt
        if isinstance(body, bytes):  # without it, a message is a text
            form["content-length"] = str(len(body))
        headers = {**headers, **form}
        self._ask(self._link.send, f"/queue/{queue}", body, headers=headers)

    def acknowledge(self, delivery: Delivery, transaction: str | None = None) -> None:
        """Take a message from its queue."""
        self._ask(self._link.ack, delivery.headers["ack"], transaction)

    def refuse(self, delivery: Delivery) -> None:
        """Leave a message to the broker's dead-letter queue."""
        self._ask(self._link.nack, delivery.headers["ack"])

    def begin(self) -> str:
        """Begin a transaction, which ends with its connection."""
        name = f"tpc-{next(self._numbers)}"
        self._ask(self._link.begin, name)
        return name

    def commit(self, transaction: str, keep: Callable[[], None]) -> None:
        """Commit, and wait until that is on disk, as long as the broker is there.

        `keep` is called now and then; its exception ends the wait.

        Raises:
            BrokerError: it is unknown whether it is.
        """
        receipt = f"commit {transaction}"
        self._ask(self._link.commit, transaction, receipt=receipt)
        self.done(receipt, keep)

    def done(self, receipt: str, keep: Callable[[], None]) -> None:
        """Wait until the broker has done what has this receipt, and all before it."""
        while not self._is_done(receipt):
            keep()
        with self._changed:
            self._receipts.discard(receipt)
            self._check()

    def _is_done(self, receipt: str) -> bool:
        with self._changed:
            self._check()
            if receipt not in self._receipts:
                self._changed.wait(_LOOK)
            return receipt in self._receipts

    def _ask(self, call: Callable[..., Any], *about: Any, **named: Any) -> None:
        self.check()
        try:
            call(*about, **named)
        except Exception as error:  # noqa: BLE001 - its threads take things away
            self.check()
            raise BrokerError(f"the connection has ended: {error}") from None

    def close(self) -> None:
        """End the connection, and with it any uncommitted transaction; do not wait."""
        transport = self._link.transport
        with contextlib.suppress(Exception):  # it may be gone already
            self._link.remove_listener("connection")
        if (connected := transport.socket) is not None:
            with contextlib.suppress(OSError):  # first: TLS would say goodbye, and wait
                socket.socket.shutdown(connected, socket.SHUT_RDWR)
        with contextlib.suppress(Exception):
            transport.disconnect_socket()

    def leave_to_parent(self) -> None:
        """Let go of it in a child of a fork: it is the parent's."""
        if (inherited := self._link.transport.socket) is not None:
            inherited.close()  # of this process: the parent's stays open
