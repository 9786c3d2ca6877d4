"""A Kafka broker as an outbox's relay: a transaction there for each one of ours."""

from __future__ import annotations

import contextlib
import itertools
import json
import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack
from typing import Any, Final, Protocol

from confluent_kafka import IsolationLevel, KafkaError, KafkaException, Producer

from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.forks import after_fork
from tracing_2pc.kafka.broker import (
    GONE,
    Broker,
    Place,
    PublishError,
    UnstableError,
)
from tracing_2pc.kafka.client_settings import (
    OWN_SETTINGS,
    SECRETS,
    check_references,
    refused_in_one_line,
    with_secrets,
)
from tracing_2pc.outbox.choosing import (
    Choice,
    ChooseText,
    Encode,
    conflict,
    longest_column,
    size_of,
)
from tracing_2pc.outbox.records import Record
from tracing_2pc.outbox.relay import (
    Message,
    OutlastedError,
    Position,
    Publication,
    Readers,
)

_OWN_BYTES: Final = 4_096
"""What the relay's own headers and a batch's frame take of a record, at most."""

_BATCH: Final = 250_000
"""Bytes of a batch at most; less where a topic takes less. Twice as many spare nothing.
"""

_LOOK: Final = 0.005
"""Seconds between two looks whether a transaction has ended: most often it has."""

_PAGE: Final = 1_000
"""Messages after which the producer is asked how it is getting on."""

logger = logging.getLogger(__name__)


class Encoding(Protocol):
    """How values are encoded: one of `tracing_2pc.kafka.schemas`."""

    def open(self, timeout: float) -> AbstractContextManager[Encode]:
        """Give what encodes a record of a number for a topic, in this process."""


class KafkaRelay:
    """Publishes each transaction to Kafka whole, once, in order.

    For `Outbox(url, KafkaRelay(...))`. A batch's messages are durable and invisible in
    the outbox's database until the commit. Then the outbox publishes them in one
    transaction of the broker, which also holds the relay's *position*: so nothing is
    ever in doubt at the broker, and a process that takes over, after any crash, reads
    there which transaction is in. Readers with `isolation.level=read_committed` see
    each record once, and nothing of a transaction that aborted. Others may see parts,
    and records twice.

    The position is a record of a topic of its own, `tpc-<journal>`, of one partition,
    compacted: it never expires. A consumer group's offset, the other place for it,
    expires some days after the last publication, and would have to be renewed by a
    process that may be down. The broker's transaction has the same name.

    Where the broker refuses a committed transaction, as after a topic was deleted, its
    application waits, in order, and others go on.

    Args:
        servers: addresses of brokers, `host:port`, separated by commas.
        topic: that records go to; or a function of the record that returns it.
        key: column whose text is the key; or a function that returns it. None: none.
        value: `schemas.Avro` or `schemas.Protobuf`; None: JSON.
        headers: columns whose texts are headers, too. Each message has `tpc-key`,
            `tpc-transaction` and the trace context of its commit.
        tombstone: boolean column; needs `key`. A record in which it is true is sent
            with its key and without a value, so that compaction deletes the key. Null
            is false. The column is in no value. A relay of a release that has no
            tombstones does not publish a transaction with one: it waits.
        allow_uncompacted: let tombstones go to a topic whose `cleanup.policy` is not
            compact, where nothing is deleted by them. Else it is refused: at a job's
            start, by the vote to abort of each prepare, and by `tracing-2pc check`.
        settings: of librdkafka, by its names, as for security. A secret is a
            reference, `env:NAME` or `file:PATH`; `oauth_cb` is a function of a module,
            or `module:function`, and is called in each process that connects.
        timeout: seconds that a call to the broker waits, at most.
        transaction_timeout: seconds after which the broker aborts the transaction of a
            relay that is gone; until then, or until another process takes over,
            readers wait behind it. One publication must take less. At most the
            broker's `transaction.max.timeout.ms`.

    Raises:
        ConfigurationError: a setting that is the relay's, a secret that is no
            reference, a function that cannot be pickled, or `tombstone` without `key`.
    """

    def __init__(
        self,
        servers: str,
        *,
        topic: str | ChooseText,
        key: str | ChooseText | None = None,
        headers: Sequence[str] = (),
        tombstone: str | None = None,
        allow_uncompacted: bool = False,
        value: Encoding | None = None,
        settings: Mapping[str, Any] | None = None,
        timeout: float = 10.0,
        transaction_timeout: float = 300.0,
    ) -> None:
        settings = dict(settings or {})
        if taken := sorted(OWN_SETTINGS & settings.keys()):
            raise ConfigurationError(f"settings: {', '.join(taken)}: the relay's own")
        if tombstone is not None and (key is None or key == tombstone):
            raise ConfigurationError(
                f"tombstone={tombstone!r} deletes the key of a record: give key="
            )
        check_references(settings, SECRETS)
        self._timeout = timeout
        self._topic = topic
        self._key = key
        self._choice = Choice(topic, key, headers, "topic", tombstone)
        self._must_compact = tombstone is not None and not allow_uncompacted
        self._encoding = value
        self._servers = servers
        self._settings = settings
        self._transaction_timeout = transaction_timeout
        self._left_by_parent: list[object] = []
        self._reset()
        after_fork(self._leave_to_parent)

    def _reset(self) -> None:
        self._broker: Broker | None = None
        self._producer: Producer | None = None
        self._encode: Encode | None = None
        self._opened = ExitStack()
        self._position_topic = ""
        self._refused: list[str] = []
        self._too_much_for = ""
        # By partition: where the transaction under way begins.
        self._firsts: dict[Place, int] = {}
        # Topics of the publication under way, as they were before anything was sent.
        self._ids: dict[str, str] = {}
        self._lost = ""
        self._until = 0.0  # then the publication under way has taken too long
        # By partition, offsets that readers must pass: those that are looked for, since
        # when and up to which publication; and what came after them.
        self._awaited: dict[Place, int] = {}
        self._since, self._awaited_number = 0.0, 0
        self._expected: dict[Place, int] = {}
        self._number = self._through = 0

    def _leave_to_parent(self) -> None:
        """Keep what has threads in the parent: to end it here would wait for them."""
        self._left_by_parent.append((self._broker, self._producer, self._opened))
        self._reset()

    def open(self) -> None:
        """Make clients of the settings, and end them: no broker is waited for.

        Raises:
            ConfigurationError: a setting is unknown, or cannot be used, or a secret or
                a file is not there.
        """
        settings = with_secrets(self._settings, SECRETS)
        with refused_in_one_line(settings, SECRETS):
            self._made({"bootstrap.servers": self._servers, **settings}, "tpc", _BATCH)
        if self._encoding is not None:
            with self._encoding.open(self._timeout):
                pass

    @property
    def address(self) -> str:
        """Where its broker is, for messages."""
        return self._servers

    def identify(self, *, make: bool = False) -> str:
        """Return the cluster's own id; with `make` its topic is made, if there is none.

        Raises:
            KafkaException: the broker does not answer.
        """
        broker = self._connected()
        if make and isinstance(self._topic, str):
            broker.make_topic(self._topic, compacted=self._must_compact)
        cluster = broker.cluster()
        return cluster and f"kafka:{cluster}"

    def settle(self) -> None:
        """Refuse a topic that does not fit its tombstones, when a job starts.

        Raises:
            ConfigurationError: with the setting that cures it.
            RefusalError: the broker does not answer: each prepare asks again.
        """
        if self._must_compact and isinstance(self._topic, str):
            self._connected().most_bytes(self._topic)
            if refusal := self._refusal(self._topic, keyed=True):
                raise ConfigurationError(refusal)

    def _refusal(self, topic: str, *, keyed: bool) -> str:
        return self._connected().refusal(
            topic,
            keyed=keyed,
            encoded=self._encoding is not None,
            compacted=self._must_compact,
        )

    # --- at prepare ------------------------------------------------------------------

    def check(self, records: Iterable[Record]) -> Iterator[Message]:
        """Encode records as they will be sent, and measure them.

        Raises:
            RefusalError: conflict: a record cannot be sent, with its column and the
                reason; not now: the broker does not answer what its topic takes.
        """
        if self._encode is None and self._encoding is not None:
            opened = self._encoding.open(self._timeout)
            self._encode = self._opened.enter_context(opened)
        encode, limits = self._encode, dict[str, int]()
        refusals = dict[tuple[str, bool], str]()
        for row, record in enumerate(records):
            message = self._choice.message(record, row, encode)
            if (topic := message.topic) not in limits:
                limits[topic] = self._connected().most_bytes(topic)
            most = limits[topic]
            if (size := _OWN_BYTES + size_of(message)) > most:
                raise conflict(
                    f"record {row}, column {longest_column(record)}: the record takes "
                    f"{size} bytes, topic {topic} takes {most}: raise its "
                    "max.message.bytes",
                    longest_column(record),
                )
            if (about := (topic, message.key is not None)) not in refusals:
                refusals[about] = self._refusal(topic, keyed=about[1])
            if refusals[about]:
                name = self._key if isinstance(self._key, str) else ""
                column = f", column {name}" if name else ""
                # What it refuses with a key, too, is no record's fault.
                is_topics = about[1] or self._refusal(topic, keyed=True)
                to_blame = None if is_topics else name
                raise conflict(f"record {row}{column}: {refusals[about]}", to_blame)
            yield message

    def _connected(self) -> Broker:
        if self._broker is None:
            settings = with_secrets(self._settings, SECRETS)
            self._broker = Broker(self._servers, settings, self._timeout)
        return self._broker

    # --- after the commit ------------------------------------------------------------

    def take_over(self, journal: str, *, must_exist: bool = False) -> Position | None:
        """Fence the previous publisher, then read the last position.

        Raises:
            KafkaException: the broker does not answer.
            UnstableError: it does not know yet, or never, how a transaction ended.
        """
        self._drop_producer()
        broker, name = self._connected(), f"tpc-{journal}"
        broker.connect()
        self._position_topic = name
        broker.make_position_topic(name)
        batch = min(_BATCH, broker.least_bytes(self._topics(broker)))
        self._producer = self._made(broker.settings, name, batch)
        self._producer.init_transactions(self._timeout)
        failpoint("relay.after_fence")
        text = broker.last_value(name)
        if open_ := self._open_places():
            self._raise_open(open_)
        if text is None:
            return None
        position = Position(*json.loads(text))
        self._number = position.number
        return position

    def _made(self, settings: Mapping[str, str], name: str, batch: int) -> Producer:
        """Make a producer, which does not ask the broker for anything yet."""
        return Producer(
            {
                "linger.ms": 50,  # a publication is of few batches; a flush waits not
                **settings,
                "transactional.id": name,
                "transaction.timeout.ms": int(self._transaction_timeout * 1000),
                "partitioner": "murmur2_random",  # as Java's clients
                "message.max.bytes": 1_000_000_000,  # `check` knows what a topic takes
                "batch.size": batch,
                # A producer that refreshes what it knows of topics creates those that
                # were deleted.
                "allow.auto.create.topics": "false",
            },
            logger=logger,
        )

    def publish(self, publication: Publication) -> None:
        """Send all messages and the position in one transaction of the broker.

        Raises:
            PublishError: the broker has refused a message.
            OutlastedError: it takes longer than the broker allows.
            UnstableError: it has committed, and readers are held back where it begins.
            KafkaException: anything else; only `take_over` knows what became of it.
        """
        producer = self._producer
        if producer is None:
            raise PublishError("nothing was taken over")
        self._refused.clear()
        self._too_much_for = ""
        self._until = time.monotonic() + self._transaction_timeout
        self._firsts.clear()
        self._ids.clear()
        try:
            self._publish(producer, publication)
        # The last is what a callback sees of a producer whose transaction was ended.
        except (PublishError, KafkaException, SystemError):
            self._raise_outlasted()
            raise

    def _publish(self, producer: Producer, publication: Publication) -> None:
        broker = self._connected()
        broker.require({self._position_topic}, self._ids)
        producer.begin_transaction()
        messages = iter(publication.messages)
        while page := list(itertools.islice(messages, _PAGE)):
            broker.require({message.topic for message in page}, self._ids)
            self._produce(producer, publication.keep, page)
            publication.keep()
            producer.poll(0)
            self._raise_refused()
        failpoint("relay.before_position")
        text = json.dumps(publication.position)
        position = Message(self._position_topic, "position", text)
        self._produce(producer, publication.keep, [position])
        self._flush(producer, publication.keep)
        failpoint("relay.before_commit")
        producer.commit_transaction(self._timeout)
        self._wait_for_end()
        self._number = publication.position.number
        if gone := broker.gone(self._ids):
            self._lost = (
                f"topic {gone[0]} was deleted, or made again, while "
                f"{publication.position.transaction} was published: look what is there"
            )
            logger.error("outbox: %s", self._lost)

    def _wait_for_end(self) -> None:
        """Wait until the transaction has ended in each partition.

        A broker that is killed can lose its end there. This producer's next abort would
        then be its end: all of it would be gone, although it was committed.
        """
        until = time.monotonic() + self._timeout
        while open_ := self._open_places(GONE):
            if time.monotonic() > until:
                self._raise_open(open_)
            time.sleep(_LOOK)

    def _open_places(self, *ends: float) -> list[Place]:
        """Return where the last transaction is open, or the end is one of these."""
        if not self._firsts:
            return []
        offsets = self._connected().ends(self._firsts, IsolationLevel.READ_COMMITTED)
        # Where readers are held back before it, somebody else's is open, too.
        return [
            place
            for place, end in offsets.items()
            if end in (self._firsts[place], *ends)
        ]

    def _raise_open(self, places: Sequence[Place]) -> None:
        named = ", ".join(f"{topic}/{partition}" for topic, partition in places[:5])
        raise UnstableError(f"the end of a transaction is not written in {named}")

    def _produce(
        self, producer: Producer, keep: Callable[[], None], messages: Iterable[Message]
    ) -> None:
        produce, delivered = producer.produce, self._delivered
        for topic, key, value, headers in messages:
            while True:
                try:
                    produce(
                        topic, value, key, on_delivery=delivered, headers=[*headers]
                    )
                except BufferError:  # until some of it is at the broker
                    keep()
                    producer.poll(1)
                    self._raise_refused()
                else:
                    break

    def _flush(self, producer: Producer, keep: Callable[[], None]) -> None:
        while producer.flush(1):
            keep()
            self._raise_refused()
        self._raise_refused()

    def _delivered(self, error: Any, message: Any) -> None:
        topic, offset = message.topic(), message.offset()
        if error is None and offset >= 0:
            place = topic, message.partition()
            self._firsts.setdefault(place, offset)
            self._expected[place] = offset
        elif not self._refused:
            detail = error.str() if error else "it is not said where it is"
            # A code below 0 is the client's own, as a time-out of ours.
            verb = "refuses" if error and error.code() >= 0 else "has not taken"
            self._refused.append(
                f"the broker {verb} a message: topic {topic}: {detail}"
            )
            if error and error.code() == KafkaError.MSG_SIZE_TOO_LARGE:
                self._too_much_for = topic

    def _raise_refused(self) -> None:
        if self._refused:
            message = self._refused[0] + self._cause()
            if self._too_much_for:  # another process prepared: the next try sends less
                with contextlib.suppress(RefusalError):
                    self._connected().most_bytes(self._too_much_for)
            raise PublishError(message)
        self._raise_outlasted()

    def _raise_outlasted(self) -> None:
        """Raise if it took too long, unless the broker was not there."""
        if time.monotonic() <= self._until:
            return
        with contextlib.suppress(KafkaException):
            self._connected().places(self._position_topic)
            seconds = self._transaction_timeout
            raise OutlastedError(
                f"it takes longer than transaction_timeout= ({seconds:g} s): raise it, "
                "and transaction.max.timeout.ms at the broker if that is less",
                seconds,
            )

    def _cause(self) -> str:
        """Return why the transaction under way failed: its messages are purged then."""
        try:
            if self._producer is not None:
                self._producer.begin_transaction()  # refused, and that says why
        except KafkaException as error:
            if error.args[0].txn_requires_abort():
                return f": {error.args[0].str()}"
        return ""

    def expect(self, topics: Iterable[str]) -> None:
        """Look out for all that is in these topics now.

        Raises:
            KafkaException: the broker does not answer.
        """
        broker = self._connected()
        places = [place for topic in topics for place in broker.places(topic)]
        ends = broker.ends(places, IsolationLevel.READ_UNCOMMITTED) if places else {}
        self._expected |= {place: int(end) - 1 for place, end in ends.items()}

    def readers(self) -> Readers:
        """Look how far readers get.

        A broker that is killed can lose the end of a transaction that it has committed.
        It counts after the longest that any transaction of this relay may take.

        Raises:
            KafkaException: the broker does not answer.
        """
        if not self._awaited:
            self._awaited, self._expected = self._expected, {}
            self._since, self._awaited_number = time.monotonic(), self._number
        ends: Mapping[Place, float] = {}
        if self._awaited:
            readers, broker = IsolationLevel.READ_COMMITTED, self._connected()
            try:
                ends = broker.ends(self._awaited, readers)
            except (KafkaException, TimeoutError, UnstableError):
                broker.connect()
                raise
        else:
            self._connected().ping()  # is it there?
        for place, end in ends.items():
            if end > self._awaited[place]:
                del self._awaited[place]
        if not self._awaited:
            self._through = self._awaited_number
        elif time.monotonic() - self._since > self._transaction_timeout:
            held = [
                f"{'/'.join(map(str, place))} at offset {ends[place]:.0f} of {last + 1}"
                for place, last in list(self._awaited.items())[:5]
            ]
            trouble = f"readers of {', '.join(held)} are held back"
            return Readers(self._through, trouble)
        lost, self._lost = self._lost, ""
        return Readers(self._through, lost)

    def let_go(self) -> None:
        """Do nothing: a successor fences this one."""

    def unfit(self, journal: str) -> Iterable[tuple[str, str]]:
        """Ask the broker what does not fit, of this topic or those that are known.

        Raises:
            KafkaException: the broker does not answer.
        """
        broker, name = self._connected(), f"tpc-{journal}"
        return broker.unfit(
            self._topics(broker),
            name,
            self._transaction_timeout,
            keyed=self._key is not None,
            encoded=self._encoding is not None,
            compacted=self._must_compact,
        )

    def _topics(self, broker: Broker) -> list[str]:
        """Return the topic of all records; or those that are known here."""
        topic = self._topic
        return [topic] if isinstance(topic, str) else broker.known_topics

    def ends(self) -> str:
        """Describe the transactions of the last records of its topic."""
        if not isinstance(self._topic, str):
            return ""
        transactions = self._connected().last_headers(self._topic, "tpc-transaction")
        return (
            f"topic {self._topic} ends with {', '.join(transactions) or 'none of ours'}"
        )

    def close(self) -> None:
        """Release connections. Nothing is lost if it is never called."""
        self._drop_producer()
        self._broker = self._encode = None
        self._opened.close()

    def _drop_producer(self) -> None:
        """Forget the producer, with its unsent messages: the next one aborts it."""
        producer, self._producer = self._producer, None
        if producer is not None:
            producer.purge()


__all__ = ["KafkaException", "KafkaRelay", "PublishError"]
