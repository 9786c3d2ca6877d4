"""A queue of ActiveMQ as a way into an inbox."""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from contextlib import closing
from typing import Final

import sqlalchemy as sa

from tracing_2pc.activemq.connection import BrokerError, Brokers, Connection, Delivery
from tracing_2pc.core.errors import (
    ConfigurationError,
    MalformedError,
    RefusalError,
    TwoPhaseError,
)
from tracing_2pc.core.settings import check_name
from tracing_2pc.core.states import Refusal
from tracing_2pc.inbox.event import NewEvent
from tracing_2pc.inbox.inbox import Inbox
from tracing_2pc.participant.json_lines import strict_json, why_no_json
from tracing_2pc.tracing.propagation import extract, storable_context

_LOOK: Final = 0.2
"""Seconds between two looks whether to stop, while nothing comes."""

_PAUSE: Final = 1.0
"""Seconds after something did not answer."""

_SUBSCRIPTION: Final = "events"

logger = logging.getLogger(__name__)


class ActiveMQIntake:
    """Takes messages from a queue into an inbox, each once, until it is stopped.

    A message is the broker's until it is on disk in the inbox: then it is acknowledged.
    After a crash in between the broker delivers it again, to this process or another
    one, and the inbox has its id. Any number may take from one queue.

    A message that cannot be an event goes to the broker's dead-letter queue, and the
    log has the reason: its body is no JSON or too large, it has no id, or the id is in
    the inbox with other content. The broker keeps persistent messages there; other
    messages only if it is configured so (`processNonPersistent`).

    Args:
        inbox: where events are kept.
        addresses: of brokers, `host:port` for STOMP, separated by commas; the first
            that answers is taken, by each new connection.
        queue: that events come from.
        id: header that is an event's id, as `order-id`: a message that is sent twice is
            then stored once. Without it, it is the broker's `message-id`, which is
            another one for each send.
        producer: that the ids are of; by default the queue's name.
        user: for brokers that ask for one.
        password: a reference, `env:NAME` or `file:PATH`.
        ca: a file with certificates: TLS, with brokers that one of them vouches for.
        most: messages that are taken together, at most, and held in memory.
        max_body_bytes: of a message.
        timeout: seconds that an answer of the broker may take.

    Raises:
        ConfigurationError: no such address, or a name that is none.
    """

    def __init__(
        self,
        inbox: Inbox,
        addresses: str,
        queue: str,
        *,
        id: str = "message-id",  # noqa: A002 - it is one
        producer: str | None = None,
        user: str | None = None,
        password: str | None = None,
        ca: str | None = None,
        most: int = 200,
        max_body_bytes: int = 8 << 20,
        timeout: float = 10.0,
    ) -> None:
        self._inbox = inbox
        self._brokers = Brokers(addresses, user, password, ca, timeout)
        self._queue = queue
        self._id = id
        try:
            self._producer = check_name(producer or queue, "producer")
        except ValueError as error:
            raise ConfigurationError(f"{error}: give producer=") from None
        self._most = most
        self._max_body_bytes = max_body_bytes
        self._stopping = threading.Event()
        self._logged = ""

    def stop(self) -> None:
        """Let `run` end, after what it has in hand."""
        self._stopping.set()

    def run(self) -> None:
        """Take messages until `stop`; ask a broker or inbox again that does not answer.

        Raises:
            ConfigurationError: password or certificates are not there, at the start.
        """
        self._brokers.check()
        while not self._stopping.is_set():
            try:
                with closing(self._brokers.connect()) as connection:
                    connection.subscribe(self._queue, _SUBSCRIPTION, self._most)
                    self._say(logging.INFO, "is taken from")
                    self._drain(connection)
            except BrokerError as error:
                self._pause(error)
            except Exception:  # the broker delivers again what was in hand
                logger.exception("intake: queue %s: it goes on anew", self._queue)
                self._stopping.wait(_PAUSE)

    def _drain(self, connection: Connection) -> None:
        while not self._stopping.is_set():
            connection.check()
            if some := connection.delivered(_SUBSCRIPTION, self._most):
                self._take(connection, some)
            else:
                connection.rest(_SUBSCRIPTION, _LOOK)

    def _take(self, connection: Connection, some: Sequence[Delivery]) -> None:
        events, deliveries = [], []
        for delivery in some:
            try:
                events.append(self._event(delivery))
                deliveries.append(delivery)
            except MalformedError as error:
                self._refuse(connection, delivery, error)
        if events:
            self._store(connection, events, deliveries)

    def _store(
        self,
        connection: Connection,
        events: Sequence[NewEvent],
        deliveries: Sequence[Delivery],
    ) -> None:
        """Store events, and acknowledge them; again, until it is known that they are.

        Messages not acknowledged when this ends are delivered again.
        """
        while not self._stopping.is_set():
            connection.check()
            try:
                with self._inbox.translated():
                    self._store_once(events)
            except RefusalError as error:
                if error.refusal is Refusal.NOT_NOW:
                    self._pause(error)
                elif len(events) == 1:
                    return self._refuse(connection, deliveries[0], error)
                else:  # one of them, or two, are in nobody's way
                    for event, delivery in zip(events, deliveries, strict=True):
                        self._store(connection, [event], [delivery])
                    return None
            except TwoPhaseError as error:
                self._pause(error)
            else:
                self._say(logging.INFO, "is taken from")
                for delivery in deliveries:
                    connection.acknowledge(delivery)
                return None
        return None

    def _store_once(self, events: Sequence[NewEvent]) -> None:
        try:
            self._inbox.store(self._producer, events)
        except sa.exc.DataError:
            detail = "it has a character that the database lacks"
            raise MalformedError(detail) from None

    def _pause(self, error: TwoPhaseError) -> None:
        self._say(logging.WARNING, f"waits: {error}")
        self._stopping.wait(_PAUSE)

    def _say(self, level: int, text: str) -> None:
        """Log once how it is, until that changes."""
        if text != self._logged:
            logger.log(level, "intake: queue %s %s", self._queue, text)
        self._logged = text

    def _refuse(
        self, connection: Connection, delivery: Delivery, error: Exception
    ) -> None:
        logger.error(
            "intake: message %s of queue %s goes to the dead-letter queue: %s",
            delivery.headers.get("message-id"),
            self._queue,
            error,
        )
        connection.refuse(delivery)

    def _event(self, delivery: Delivery) -> NewEvent:
        body, headers = delivery.body, delivery.headers
        if len(body) > self._max_body_bytes:
            detail = f"it has {len(body)} bytes, {self._max_body_bytes} are taken"
            raise MalformedError(detail)
        if self._id not in headers:
            raise MalformedError(f"it has no header {self._id}")
        try:
            strict_json(body)
        except ValueError as error:
            raise MalformedError(f"its body: {why_no_json(error)}") from None
        carrier = storable_context(extract(headers))
        return NewEvent(headers[self._id], body.decode(), carrier)
