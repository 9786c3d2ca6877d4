"""A queue of ActiveMQ as an outbox's relay: one STOMP transaction for each of ours."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from tracing_2pc.activemq.connection import BrokerError, Brokers, Connection, Delivery
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.forks import after_fork
from tracing_2pc.outbox.choosing import (
    Choice,
    ChooseText,
    conflict,
    longest_column,
    size_of,
)
from tracing_2pc.outbox.records import Record
from tracing_2pc.outbox.relay import Message, Position, Publication, Readers

_RESERVED: Final = frozenset(
    {
        *("ack", "content-length", "destination", "expires", "id", "message-id"),
        *("persistent", "priority", "receipt", "redelivered", "subscription"),
        *("timestamp", "transaction", "transformation"),
    }
)
"""What makes a publication whole, or could make less of it."""

_NO_QUEUE: Final = frozenset(",*>?\0\r\n ")
"""Characters by which a name is of several queues, or of none."""

_LONGEST_HEADER: Final = 10_000
"""Bytes of a line: the connector takes 10,240."""

_MISSED: Final = 6
"""Times `timeout` that a token is missing which is gone."""

_TOKENS: Final = "tokens"

_LOCKS: Final = "locks"

_SOME: Final = 100
"""Tokens, or locks, at most that are taken at once: there is one."""


class ActiveMQRelay:
    """Publishes each transaction to a queue of ActiveMQ whole, once, in order.

    For `Outbox(url, ActiveMQRelay(...))`. A batch's messages are durable and invisible
    in the outbox's database until the commit. Then the outbox sends them in one STOMP
    transaction, and waits for the broker's receipt.

    The relay's *position* is a message, too: one *token* in a queue of its own,
    `tpc.<journal>`. Each transaction takes the token out and puts the next one in, so
    nothing is ever in doubt at the broker, and a process that takes over, after any
    crash, reads there which transaction is in. A second message, the *lock* in
    `tpc.<journal>.lock`, is never taken out: the broker gives it to one connection at a
    time, and a process without it sends nothing. It is given on when a connection ends,
    which after a kill is at once, and 10 to 30 s after a process, or its machine, has
    stopped.

    Two tokens, or none where one must be, mean that queues were put back, purged or
    doubled: the relay stops, for a person. A network of brokers is untried.

    Args:
        addresses: of brokers, `host:port` for STOMP, separated by commas; the first
            that answers is taken, by each new connection.
        queue: that records go to; or a function of the record that returns it.
        key: column whose text is the `JMSXGroupID`: messages that have the same go to
            one consumer, in order. Or a function that returns it. None: none.
        headers: columns whose texts are headers, too, as `correlation-id`. Each message
            has `tpc-key`, `tpc-transaction` and the trace context of its commit.
        user: for brokers that ask for one.
        password: a reference, `env:NAME` or `file:PATH`.
        ca: a file with certificates: TLS, with brokers that one of them vouches for.
        max_bytes: of a message; the connector's `maxDataLength` must not be less.
        timeout: seconds that an answer of the broker may take. A token that is missing
            for six times as long is gone.

    Raises:
        ConfigurationError: no such address, or a header that is the relay's.
    """

    def __init__(
        self,
        addresses: str,
        *,
        queue: str | ChooseText,
        key: str | ChooseText | None = None,
        headers: Sequence[str] = (),
        user: str | None = None,
        password: str | None = None,
        ca: str | None = None,
        max_bytes: int = 100_000_000,
        timeout: float = 10.0,
    ) -> None:
        own = ("JMS", "AMQ", "amq-", "tpc-")
        for name in headers:
            if name in _RESERVED or name.startswith(own):
                raise ConfigurationError(f"headers: {name}: the relay's own")
            if not name.isprintable() or ":" in name:
                raise ConfigurationError(f"headers: {name!r}: no name of a header")
        self.address = addresses
        self._brokers = Brokers(addresses, user, password, ca, timeout)
        self._choice = Choice(queue, key, headers, "queue")
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._missing_since = float("inf")
        self._reset()
        after_fork(self._leave_to_parent)

    def _reset(self) -> None:
        self._connection: Connection | None = None
        self._token_queue = ""
        self._token_texts: list[str] = []
        # What a token says that must come; none if the queue has none.
        self._awaited: Position | None = None
        self._held: list[Delivery] = []
        self._locks: list[Delivery] = []
        self._number = 0

    def _leave_to_parent(self) -> None:
        connection = self._connection
        self._reset()
        if connection is not None:
            connection.leave_to_parent()

    def open(self) -> None:
        """Read the password and the certificates: no broker is asked.

        Raises:
            ConfigurationError: one of them is not there, or cannot be used.
        """
        self._brokers.check()

    def identify(self, *, make: bool = False) -> str:
        """Return its kind: brokers of STOMP have no name of their own. Makes nothing.

        One broker may have several addresses. Another one is known by its position.
        """
        return "activemq"

    # --- at prepare ------------------------------------------------------------------

    def check(self, records: Iterable[Record]) -> Iterator[Message]:
        """Make messages as they will be sent, and measure them.

        Raises:
            RefusalError: conflict: a record cannot be sent, with its column and why.
        """
        for row, record in enumerate(records):
            message = self._choice.message(record, row)
            if not message.topic or _NO_QUEUE & set(message.topic):
                raise conflict(f"record {row}: {message.topic[:70]!r} is no queue", "")
            if message.topic.removeprefix("queue://").startswith("tpc."):
                raise conflict(
                    f"record {row}: {message.topic[:70]} is the relay's own", ""
                )
            named = ("queue", message.topic), ("key", message.key or "")
            for name, text in (*named, *message.headers):
                if _bytes_of(text) > _LONGEST_HEADER - len(name) or "\0" in text:
                    raise conflict(
                        f"record {row}: {name}: a header has at most "
                        f"{_LONGEST_HEADER - len(name)} bytes, and none of them is 0",
                        "",
                    )
            if (size := size_of(message)) > self._max_bytes:
                raise conflict(
                    f"record {row}, column {longest_column(record)}: the record takes "
                    f"{size} bytes, {self._max_bytes} are allowed: raise max_bytes=, "
                    "and maxDataLength at the broker",
                    longest_column(record),
                )
            yield message

    # --- after the commit ------------------------------------------------------------

    def take_over(self, journal: str, *, must_exist: bool = False) -> Position | None:
        """Get hold of the token, which keeps all others out, and read it.

        Raises:
            BrokerError: no broker answers; another connection has the token still; or
                it must exist, and was not missed for long enough.
        """
        self._drop()
        self._token_queue = f"tpc.{journal}"
        connection = self._connection = self._brokers.connect()
        self._lock(connection, f"{self._token_queue}.lock")
        failpoint("relay.after_fence")
        connection.subscribe(self._token_queue, _TOKENS, _SOME)
        self._held = self._all(connection, self._token_queue, _TOKENS)
        self._token_texts = [
            token.body.decode(errors="replace") for token in self._held
        ]
        if not self._held:
            if must_exist:
                self._miss()
            return None
        self._missing_since = float("inf")
        position = max(_position_of(token) for token in self._held)
        self._number = position.number
        if len(self._held) > 1:  # is none of ours
            return position._replace(digest=f"{len(self._held)} tokens")
        return position

    def _lock(self, connection: Connection, queue: str) -> None:
        """Keep all others out until this connection ends.

        It is the first thing that a connection does, and the message stays there: so
        who has it not, can have no transaction that takes a token out.
        """
        connection.subscribe(queue, _LOCKS, _SOME)
        self._locks = self._all(connection, queue, _LOCKS)
        if not self._locks:
            transaction = connection.begin()
            connection.send(queue, "lock", {}, transaction)
            connection.commit(transaction, lambda: None)
            self._locks = self._all(connection, queue, _LOCKS)
        for other in self._locks[1:]:  # two who began at one moment have made one each
            connection.acknowledge(other)
        if not self._locks:
            raise BrokerError(f"another connection has taken the lock of queue {queue}")

    def _all(
        self, connection: Connection, queue: str, subscription: str
    ) -> list[Delivery]:
        """Wait until all messages of a queue are held here; return them."""
        there, held = connection.browse(queue), list[Delivery]()

        def are_held() -> bool:
            held.extend(connection.delivered(subscription))
            return len(held) >= len(there)

        connection.wait(are_held, f"another connection has what is in queue {queue}")
        return held

    def _miss(self) -> None:
        """Raise until nothing can bring the token back.

        A token that a transaction takes out is invisible until that has ended; the
        broker may pass the lock on before it has ended a connection's transactions.
        """
        now = time.monotonic()
        self._missing_since = min(self._missing_since, now)
        if now - self._missing_since < _MISSED * self._timeout:
            cause = "it may be part of a transaction that is being ended"
            raise BrokerError(f"queue {self._token_queue} has no token: {cause}")

    def publish(self, publication: Publication) -> None:
        """Send all messages and the next token in one transaction of the broker.

        Raises:
            BrokerError: anything; only `take_over` knows what became of it.
        """
        connection = self._connection
        if connection is None:
            raise BrokerError("nothing was taken over")
        if self._awaited is not None:
            self._receive(connection, self._awaited)
            publication.keep()
        transaction = connection.begin()
        for message in publication.messages:
            self._send(connection, message, transaction)
            publication.keep()
        failpoint("relay.before_position")
        text = json.dumps(publication.position)
        receipt = f"all of {transaction}"
        connection.send(self._token_queue, text, {}, transaction, receipt)
        # What is refused, as for want of a right, need not end the transaction.
        connection.done(receipt, publication.keep)
        failpoint("relay.before_commit")
        for token in self._held:  # at last: until here everybody sees it
            connection.acknowledge(token, transaction)
        connection.commit(transaction, publication.keep)
        self._held, self._awaited = [], publication.position
        self._number = publication.position.number

    def _receive(self, connection: Connection, awaited: Position) -> None:
        """Wait for the token that the last publication has put in."""

        def held() -> list[Delivery]:
            self._held += connection.delivered(_TOKENS)
            return self._held

        connection.wait(held, "the token does not come: another connection has it")
        positions = [_position_of(token) for token in self._held]
        if positions != [awaited]:
            raise BrokerError(
                f"queue {self._token_queue} has another token: {positions}"
            )
        self._awaited = None

    @staticmethod
    def _send(connection: Connection, message: Message, transaction: str) -> None:
        headers = dict(message.headers)
        if message.key is not None:
            headers["JMSXGroupID"] = message.key
        value = message.value
        assert value is not None  # noqa: S101 - a tombstone is of Kafka
        connection.send(message.topic, value, headers, transaction)

    def expect(self, topics: Iterable[str]) -> None:
        """Do nothing: consumers see all that is committed."""

    def readers(self) -> Readers:
        """Return that consumers get as far as it has published.

        Raises:
            BrokerError: its connection has failed.
        """
        if self._connection is not None:
            self._connection.check()
        return Readers(self._number)

    def let_go(self) -> None:
        """Hold no token: the lease may be another process's.

        A token that was missed before is looked for again: meanwhile it may have been
        there.
        """
        self._missing_since = float("inf")
        self._drop()

    def _drop(self) -> None:
        connection = self._connection
        self._reset()
        if connection is not None:
            connection.close()

    def unfit(self, journal: str) -> Iterable[tuple[str, str]]:
        """Find nothing: STOMP does not show a broker's configuration."""
        return ()

    def ends(self) -> str:
        """Describe the tokens; a queue's former messages are with its consumers."""
        tokens = ", ".join(self._token_texts) or "no token"
        return f"queue {self._token_queue} has {tokens}"

    def close(self) -> None:
        """Release the connection. Nothing is lost if it is never called."""
        self.let_go()


def _bytes_of(text: str) -> int:
    """Return what a header's text takes as it is sent."""
    return len(text.encode()) + sum(map(text.count, "\\:\r\n"))


def _position_of(token: Delivery) -> Position:
    try:
        number, transaction, digest = json.loads(token.body)
        return Position(int(number), str(transaction), str(digest))
    except (ValueError, TypeError):
        return Position(digest="not ours")


__all__ = ["ActiveMQRelay", "BrokerError"]
