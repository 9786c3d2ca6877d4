"""A relay's queries to a Kafka broker, besides publishing."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, TypeAlias

from confluent_kafka import (
    Consumer,
    IsolationLevel,
    KafkaError,
    KafkaException,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (
    AclOperation,
    AdminClient,
    ConfigResource,
    NewTopic,
    OffsetSpec,
)

from tracing_2pc.core.errors import RefusalError, TwoPhaseError
from tracing_2pc.core.states import Refusal
from tracing_2pc.outbox.choosing import conflict

KNOWN_FOR: Final = 60.0
"""Seconds in which what is known of a topic is not asked for again."""

_LONGEST_AT_PREPARE: Final = 3.0
"""Seconds that a prepare waits for the broker; a client waits for 5 by default."""

_POSITION_TOPIC: Final = {"cleanup.policy": "compact", "segment.bytes": "16777216"}

_NO_TOPIC: Final = frozenset(
    {KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC}
)

Place: TypeAlias = tuple[str, int]
"""A topic, and the number of a partition."""

GONE: Final = float("inf")
"""The end of a partition that is not there."""

_REFUSED: Final = _NO_TOPIC | {
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_EXCEPTION,
}

_NOT_ALLOWED: Final = frozenset(
    {
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
        KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    }
)

_STATE: Final = "__transaction_state"
"""The broker's own topic: how its transactions have ended."""

_RIGHTS: Final = frozenset(
    {AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.DESCRIBE_CONFIGS}
)

_AGES: Final = tuple(
    f"message.timestamp.{kind}.max.ms" for kind in ("before", "after", "difference")
)
"""How far a record's time may be from the broker's."""

_VALUES: Final = (
    "confluent.value.schema.validation",
    "redpanda.value.schema.id.validation",
)
_KEYS: Final = tuple(name.replace("value", "key") for name in _VALUES)
"""Of brokers that look for a schema in what is sent."""

logger = logging.getLogger(__name__)


def _refusals(
    config: Mapping[str, str],
    *,
    keyed: bool,
    encoded: bool,
    compacted: bool,
    seconds: float,
) -> Iterator[tuple[str, str]]:
    """Yield why a topic's settings refuse records that take so long to arrive."""
    policy = config.get("cleanup.policy", "")
    if policy and "compact" not in policy and compacted:
        fault = f"cleanup.policy is {policy}, and tombstones delete nothing there"
        yield fault, "set it to compact, or say allow_uncompacted=True"
    if "compact" in policy and not keyed:
        yield "cleanup.policy is compact, and a record has no key", "give key="
    for name in _VALUES if not encoded else ():
        if config.get(name) == "true":
            yield f"{name} is true, and values have no schema", "give value="
    for name in _KEYS if keyed else ():
        if config.get(name) == "true":
            yield f"{name} is true, and keys are plain text", f"set {name} to false"
    for name in _AGES if config.get("message.timestamp.type") == "CreateTime" else ():
        if int(config.get(name, 1000 * seconds)) < 1000 * seconds:
            fault = (
                f"{name} is {config[name]}: a record may be {seconds:g} s on its way"
            )
            yield (
                fault,
                f"raise {name}, or set message.timestamp.type to LogAppendTime",
            )


class PublishError(TwoPhaseError):
    """A broker did not take a message, with its reason."""


class UnstableError(TwoPhaseError):
    """The broker has not answered how a transaction of this relay has ended."""


class Broker:
    """Topics, limits and positions; a call waits `timeout` seconds."""

    def __init__(
        self, servers: str, settings: Mapping[str, str], timeout: float
    ) -> None:
        self.settings = {"bootstrap.servers": servers, **settings}
        self._timeout = timeout
        self._limits: dict[str, tuple[int, float]] = {}
        self._configs: dict[str, dict[str, str]] = {}
        self.connect()

    def connect(self) -> None:
        """Connect again: after a restart the epochs that a client knows are too old."""
        self._admin = AdminClient(dict(self.settings), logger=logger)
        self._cluster = ""

    def cluster(self) -> str:
        """Return the cluster's id, asked for once a connection; empty if it has none.

        Raises:
            KafkaException: the broker does not answer.
        """
        if not self._cluster:
            seconds = min(self._timeout, _LONGEST_AT_PREPARE)
            asked = self._admin.describe_cluster(request_timeout=seconds)
            self._cluster = str(asked.result(seconds + 1).cluster_id or "")
        return self._cluster

    def ping(self) -> None:
        """Ask for the cluster's id again.

        Raises:
            KafkaException: the broker does not answer.
        """
        self._cluster = ""
        self.cluster()

    def make_topic(self, name: str, *, compacted: bool = False) -> None:
        """Make a topic, if it is not there, and we may: else as the broker does.

        Raises:
            KafkaException: the broker does not answer.
        """
        try:
            policy = {"cleanup.policy": "compact"} if compacted else {}
            self._make(NewTopic(name, config=policy))
        except KafkaException as error:
            if error.args[0].code() < 0:  # the client's own, as a time-out
                raise
            logger.info("outbox: topic %s: %s", name, error.args[0].str())

    def _ask(self, futures: Mapping[Any, Any]) -> Any:
        (future,) = futures.values()
        return future.result(self._timeout + 1)

    def most_bytes(self, topic: str) -> int:
        """Return how large a record may be; known for a minute, longer if it is down.

        Raises:
            RefusalError: conflict: there is no such topic; not now: no answer.
        """
        most, since = self._limits.get(topic, (0, -KNOWN_FOR))
        if most and time.monotonic() - since < KNOWN_FOR:
            return most
        resource = ConfigResource(ConfigResource.Type.TOPIC, topic)
        admin = self._admin  # a take-over may connect anew meanwhile
        try:
            asked = admin.describe_configs(
                [resource], request_timeout=min(self._timeout, _LONGEST_AT_PREPARE)
            )
            config = {
                setting.name: setting.value for setting in self._ask(asked).values()
            }
            most = int(config["max.message.bytes"])
            self._configs[topic] = config
        except (KafkaException, TimeoutError) as error:
            cause = error.args[0] if isinstance(error, KafkaException) else None
            if cause is not None and cause.code() in _REFUSED:
                self._limits.pop(topic, None)
                raise conflict(f"topic {topic}: {cause.str()}") from None
            if not most:
                detail = f"the broker does not say what topic {topic} takes: ask again"
                raise RefusalError(Refusal.NOT_NOW, detail) from None
        self._limits[topic] = (most, time.monotonic())
        return most

    def refusal(
        self, topic: str, *, keyed: bool, encoded: bool, compacted: bool
    ) -> str:
        """Return why a topic's settings, as read by `most_bytes`, refuse a record.

        Args:
            topic: where it goes.
            keyed: whether it has a key.
            encoded: whether its value has a schema.
            compacted: whether tombstones go there, and the topic must be compacted.
        """
        refusals = _refusals(
            self._configs.get(topic, {}),
            keyed=keyed,
            encoded=encoded,
            compacted=compacted,
            seconds=self._timeout,
        )
        return next(
            (f"topic {topic}: {problem}: {cure}" for problem, cure in refusals), ""
        )

    def require(self, topics: set[str], ids: dict[str, str]) -> None:
        """Add the ids of topics: a producer makes those that are not there.

        Raises:
            PublishError: one is not there.
            KafkaException: the broker does not answer, or they may not be asked for.
        """
        if new := topics - ids.keys():
            ids |= self._topic_ids(new)
            if missing := sorted(new - ids.keys()):
                raise PublishError(
                    f"the broker refuses a message: topic {missing[0]}: it is not "
                    "there, and the relay does not make it: make it again"
                )

    def gone(self, ids: Mapping[str, str]) -> list[str]:
        """Return those of these topics that were deleted, or made again."""
        now = self._topic_ids(ids)
        return [name for name, number in ids.items() if now.get(name) != number]

    def _topic_ids(self, topics: Iterable[str]) -> dict[str, str]:
        names = sorted(topics)
        asked = self._admin.describe_topics(
            TopicCollection(names), request_timeout=self._timeout
        )
        ids = {}
        for name in names:
            try:
                ids[name] = str(asked[name].result(self._timeout + 1).topic_id)
            except KafkaException as error:
                if error.args[0].code() not in _NO_TOPIC:
                    raise
        return ids

    @property
    def known_topics(self) -> list[str]:
        """Those that were asked for here."""
        return list(self._limits)

    def least_bytes(self, topics: Iterable[str]) -> int:
        """Return the least limit of these and of all known topics, asked for again."""
        for topic in {*topics, *self._limits}:
            if known := self._limits.get(topic):
                self._limits[topic] = (known[0], -KNOWN_FOR)
            try:
                self.most_bytes(topic)
            except RefusalError as error:
                logger.info("outbox: %s", error)
        return min((most for most, _ in self._limits.values()), default=16_384)

    def unfit(
        self,
        topics: Iterable[str],
        position: str,
        seconds: float,
        *,
        keyed: bool,
        encoded: bool,
        compacted: bool,
    ) -> Iterator[tuple[str, str]]:
        """Yield what may lose or stop what is published, each with its cure.

        Settings that the principal may not read are left out, and so are replicas in a
        cluster of one node. A transaction may take `seconds`. `keyed`, `encoded` and
        `compacted` are as for `refusal`.

        Raises:
            KafkaException: the broker does not answer.
        """
        wanted = dict.fromkeys(topics, _RIGHTS)
        wanted |= {position: _RIGHTS | {AclOperation.READ}, _STATE: frozenset()}
        described = self._admin.describe_topics(
            TopicCollection(list(wanted)),
            include_authorized_operations=True,
            request_timeout=self._timeout,
        )
        brokers = self._admin.list_topics(timeout=self._timeout).brokers
        for topic, rights in wanted.items():
            try:
                description = described[topic].result(self._timeout + 1)
            except KafkaException as error:
                if error.args[0].code() not in _REFUSED:
                    raise
                if topic not in (position, _STATE):
                    problem = f"topic {topic}: {error.args[0].str()}"
                    yield (
                        problem,
                        "make it, and grant Write, Describe and DescribeConfigs",
                    )
                continue
            lacks = sorted(
                r.name for r in rights - {*description.authorized_operations}
            )
            if lacks:
                yield f"topic {topic}: no right to {', '.join(lacks)}", "grant it"
            config = self._config(ConfigResource.Type.TOPIC, topic)
            replicas = min(len(p.replicas) for p in description.partitions)
            in_sync = config.get("min.insync.replicas", "unknown")
            if len(brokers) > 1 and (replicas < 2 or in_sync == "1"):
                problem = (
                    f"topic {topic}: replicas {replicas}, min.insync.replicas {in_sync}"
                )
                yield (
                    f"{problem}: what is published may go with one node",
                    "give it 3 replicas, and set min.insync.replicas to 2",
                )
            if config.get("unclean.leader.election.enable") == "true":
                problem = f"topic {topic}: unclean.leader.election.enable is true"
                yield (
                    f"{problem}: a replica that is behind takes records back",
                    "set it to false",
                )
            if rights is _RIGHTS:
                for problem, cure in _refusals(
                    config,
                    keyed=keyed,
                    encoded=encoded,
                    compacted=compacted,
                    seconds=seconds,
                ):
                    yield f"topic {topic}: {problem}", cure
            policy = config.get("cleanup.policy", "compact")
            if topic == position and policy != "compact":
                problem = (
                    f"topic {topic}: cleanup.policy is {policy}: the position expires"
                )
                yield problem, "set it to compact"
        most = self._config(ConfigResource.Type.BROKER, str(min(brokers)))
        name = "transaction.max.timeout.ms"
        if int(most.get(name, 1000 * seconds)) < 1000 * seconds:
            problem = (
                f"{name} is {most[name]} at the broker, transaction_timeout= is more"
            )
            yield (
                f"{problem}: {seconds:g} s",
                f"raise {name}, or lower transaction_timeout=",
            )

    def _config(self, kind: ConfigResource.Type, name: str) -> dict[str, str]:
        """Return settings of a topic or a broker; none if they may not be asked for."""
        resource = ConfigResource(kind, name)
        try:
            answers = self._ask(
                self._admin.describe_configs([resource], request_timeout=self._timeout)
            )
        except KafkaException as error:
            if error.args[0].code() in _NOT_ALLOWED:
                return {}
            raise
        return {setting.name: setting.value for setting in answers.values()}

    def make_position_topic(self, name: str) -> None:
        """Make a compacted topic of one partition, if it is not there."""
        self._make(NewTopic(name, 1, config=dict(_POSITION_TOPIC)))

    def _make(self, topic: NewTopic) -> None:
        waits = {"request_timeout": self._timeout, "operation_timeout": self._timeout}
        try:
            self._ask(self._admin.create_topics([topic], **waits))
        except KafkaException as error:
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise

    def end(self, topic: str, partition: int, isolation: IsolationLevel) -> int:
        """Return the offset after the last record: of all, or that readers may see.

        Raises:
            KafkaException: the broker does not answer, or there is no such topic.
            UnstableError: the broker did not answer that.
        """
        asked = {TopicPartition(topic, partition): OffsetSpec.latest()}
        return self._offset(*self._list_offsets(asked, isolation).values())

    def _list_offsets(self, asked: Any, isolation: IsolationLevel) -> Mapping[Any, Any]:
        futures: Mapping[Any, Any] = self._admin.list_offsets(
            asked, isolation_level=isolation, request_timeout=self._timeout
        )
        return futures

    def _offset(self, future: Any) -> int:
        offset = int(future.result(self._timeout + 1).offset)
        if offset < 0:  # so says the client where the connection breaks
            raise UnstableError("the end of a topic is not known")
        return offset

    def ends(
        self, places: Iterable[Place], isolation: IsolationLevel
    ) -> dict[Place, float]:
        """Return the offset after each one's last record, as `end`; infinite: gone."""
        asked = {TopicPartition(*place): OffsetSpec.latest() for place in places}
        return {
            (place.topic, place.partition): self._end_or_gone(future)
            for place, future in self._list_offsets(asked, isolation).items()
        }

    def _end_or_gone(self, future: Any) -> float:
        try:
            return self._offset(future)
        except KafkaException as error:
            if error.args[0].code() in _NO_TOPIC:
                return GONE
            raise

    def places(self, topic: str) -> list[Place]:
        """Return the partitions of a topic; none if it is not there."""
        # To ask for one topic would make it.
        metadata = self._admin.list_topics(timeout=self._timeout).topics.get(topic)
        return [(topic, number) for number in (metadata.partitions if metadata else ())]

    def last_value(self, topic: str) -> bytes | None:
        """Return the last committed record of a topic's only partition.

        No other process writes there, and open transactions were ended: so where
        readers are held back, its end is not known.

        Raises:
            UnstableError: readers are held back.
        """
        end = self.end(topic, 0, IsolationLevel.READ_UNCOMMITTED)
        stable = self.end(topic, 0, IsolationLevel.READ_COMMITTED)
        if stable < end:
            raise UnstableError(
                f"topic {topic}: readers are held back at offset {stable} of {end}"
            )
        values = self._read(topic, 0, 0, end)
        return values[-1].value() if values else None

    def last_headers(self, topic: str, name: str) -> list[str]:
        """Return a header's values in the last records of each partition, by time."""
        latest: dict[str, int] = {}
        for _, partition in self.places(topic):
            end = self.end(topic, partition, IsolationLevel.READ_COMMITTED)
            for message in self._read(topic, partition, max(0, end - 100), end):
                _, timestamp = message.timestamp()
                for header, text in message.headers() or ():
                    if header == name:
                        value = text.decode(errors="replace")
                        latest[value] = max(timestamp, latest.get(value, timestamp))
        return sorted(latest, key=latest.__getitem__)[-20:]

    def _read(self, topic: str, partition: int, first: int, end: int) -> list[Any]:
        """Read the last committed records before an end, at least one if there is."""
        consumer = Consumer(
            {
                **self.settings,
                "group.id": topic,  # never joined, and nothing is committed there
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
            },
            logger=logger,
        )
        try:
            start, step = end, 100
            while start > first:
                start, step = max(first, start - step), 10 * step
                consumer.assign([TopicPartition(topic, partition, start)])
                if messages := list(self._until_end(consumer)):
                    return messages
            return []
        finally:
            consumer.close()

    def _until_end(self, consumer: Consumer) -> Any:
        while True:
            message = consumer.poll(self._timeout)
            if message is None:
                raise UnstableError("a topic cannot be read to its end")
            if (error := message.error()) is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            elif error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # it looks for its group, which it does not need
            else:
                raise KafkaException(error)
