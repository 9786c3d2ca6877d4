"""A queue of ActiveMQ as an outbox's relay: one STOMP transaction for each of ours."""

from __future__ import annotations

import json
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

_OWN_HEADERS: Final = frozenset(
    {
        "content-length",
        "destination",
        "id",
        "persistent",
        "receipt",
        "transaction",
        "JMSXGroupID",
    }
)
"""What makes a publication whole, and each key's group: the relay's."""

_LONGEST_HEADER: Final = 10_000
"""Bytes of a line: the connector takes 10,240."""

_PAGE: Final = 1_000
"""Messages after which it is asked whether the connection lives."""

_TOKENS: Final = "tokens"

_SOME: Final = 100
"""Tokens at most that are taken at once: there is one."""


class ActiveMQRelay:
    """Publishes each transaction to a queue of ActiveMQ whole, once, in order.

    For `Outbox(url, ActiveMQRelay(...))`. What a batch sends is durable and invisible
    in the outbox's database until the commit. Then the outbox sends it in one STOMP
    transaction, and waits for the broker's receipt.

    The relay's *position* is a message, too: one *token* in a queue of its own,
    `tpc.<journal>`. Each transaction takes the token out and puts the next one in, so
    nothing is ever in doubt at the broker, and whoever takes over, after any crash,
    reads there what is in. Only one process can have the token: it is the broker that
    keeps others out. It gives the token on when a connection ends, which after a kill
    is at once, and 10 to 20 s after a process, or its machine, has stopped.

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
        timeout: seconds that an answer of the broker may take.

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
        if taken := sorted(_OWN_HEADERS & set(headers)):
            raise ConfigurationError(f"headers: {', '.join(taken)}: the relay's own")
        self._brokers = Brokers(addresses, user, password, ca, timeout)
        self._choice = Choice(queue, key, headers, "queue")
        self._max_bytes = max_bytes
        self._timeout = timeout
        self._reset()
        after_fork(self._leave_to_parent)

    def _reset(self) -> None:
        self._connection: Connection | None = None
        self._token_queue = ""
        self._found: list[str] = []
        # What a token says that must come; none if the queue has none.
        self._awaited: Position | None = None
        self._held: list[Delivery] = []
        self._number = 0

    def _leave_to_parent(self) -> None:
        connection = self._connection
        self._reset()
        if connection is not None:
            connection.leave_to_parent()

    # --- at prepare ------------------------------------------------------------------

    def check(self, records: Iterable[Record]) -> Iterator[Message]:
        """Make messages as they will be sent, and measure them.

        Raises:
            RefusalError: conflict: a record cannot be sent, with its column and why.
        """
        for row, record in enumerate(records):
            message = self._choice.message(record, row)
            if not message.topic.strip() or message.topic.startswith("tpc."):
                raise conflict(f"record {row}: {message.topic[:70]!r} is no queue")
            for name, text in (("key", message.key or ""), *message.headers):
                if len(text.encode()) > _LONGEST_HEADER - len(name) or "\0" in text:
                    raise conflict(
                        f"record {row}: {name}: a header has at most "
                        f"{_LONGEST_HEADER - len(name)} bytes, and none of them is 0"
                    )
            if (size := size_of(message)) > self._max_bytes:
                raise conflict(
                    f"record {row}, column {longest_column(record)}: the record takes "
                    f"{size} bytes, {self._max_bytes} are allowed: raise max_bytes=, "
                    "and maxDataLength at the broker"
                )
            yield message

    # --- after the commit ------------------------------------------------------------

    def take_over(self, journal: str) -> Position | None:
        """Get hold of the token, which keeps all others out, and read it.

        Raises:
            BrokerError: no broker answers; or another connection has the token still.
        """
        self.let_go()
        self._token_queue = f"tpc.{journal}"
        connection = self._connection = self._brokers.connect()
        connection.subscribe(self._token_queue, _TOKENS, _SOME)
        self._hold(connection)
        failpoint("relay.after_fence")
        self._found = [token.body.decode() for token in self._held]
        if not self._held:
            return None
        positions = [Position(*json.loads(text)) for text in self._found]
        position = max(positions)
        self._number = position.number
        if len(positions) > 1:  # is none of ours
            return position._replace(digest=f"{len(positions)} tokens")
        return position

    def _hold(self, connection: Connection) -> None:
        """Wait until all tokens that are there are held here."""

        def held() -> bool:
            self._held += connection.delivered(_TOKENS)
            return len(self._held) >= len(there)

        there = connection.browse(self._token_queue)
        why = f"another connection has the token of queue {self._token_queue} still"
        connection.wait(held, why)
        self._awaited = None

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
        for token in self._held:
            connection.acknowledge(token, transaction)
        for number, message in enumerate(publication.messages):
            self._send(connection, message, transaction)
            if number % _PAGE == 0:
                publication.keep()
        failpoint("relay.before_position")
        text = json.dumps(publication.position)
        connection.send(self._token_queue, text, {}, transaction)
        failpoint("relay.before_commit")
        connection.commit(transaction, publication.keep)
        self._held, self._awaited = [], publication.position
        self._number = publication.position.number

    def _receive(self, connection: Connection, awaited: Position) -> None:
        """Wait for the token that the last publication has put in."""

        def held() -> list[Delivery]:
            self._held += connection.delivered(_TOKENS)
            return self._held

        connection.wait(held, "the token does not come: another connection has it")
        found = [Position(*json.loads(token.body)) for token in self._held]
        if found != [awaited]:
            raise BrokerError(f"queue {self._token_queue} has another token: {found}")
        self._awaited = None

    @staticmethod
    def _send(connection: Connection, message: Message, transaction: str) -> None:
        headers = dict(message.headers)
        if message.key is not None:
            headers["JMSXGroupID"] = message.key
        connection.send(message.topic, message.value, headers, transaction)

    def expect(self, topics: Iterable[str]) -> None:
        """Do nothing: what is committed, consumers see."""

    def readers(self) -> Readers:
        """Say that consumers get as far as it has published."""
        return Readers(self._number)

    def let_go(self) -> None:
        """Hold no token: the lease may be another process's."""
        connection = self._connection
        self._reset()
        if connection is not None:
            connection.close()

    def unfit(self, journal: str) -> Iterable[tuple[str, str]]:
        """Find nothing: by STOMP a broker does not say how it is set up."""
        return ()

    def ends(self) -> str:
        """Say which tokens there are; what was in a queue, its consumers have."""
        found = ", ".join(self._found) or "no token"
        return f"queue {self._token_queue} has {found}"

    def close(self) -> None:
        """Release the connection. Nothing is lost if it is never called."""
        self.let_go()


__all__ = ["ActiveMQRelay", "BrokerError"]
