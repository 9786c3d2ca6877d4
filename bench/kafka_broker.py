"""A real Kafka broker of one node, which is killed and started again."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import (
    AclBinding,
    AclBindingFilter,
    AclOperation,
    AclPermissionType,
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourcePatternType,
    ResourceType,
)
from support.brokers import Node, Seen
from support.waiting import ANSWERED, AT_LAST, SOON, until

from participants.processes import free_ports

START = Path(__file__).parents[1] / "tools" / "kafka" / "start"


SECRET = "secret"
"""The password of `relay`, who may do at `guarded` what `allow` says."""


class Broker(Node):
    """One node, in a folder.

    Args:
        folder: of its data.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._ports = free_ports(3)
        self.address = f"127.0.0.1:{self._ports[0]}"
        self.guarded = f"127.0.0.1:{self._ports[2]}"
        self._names = (f"topic{n}" for n in itertools.count(1))
        self.admin = AdminClient({"bootstrap.servers": self.address, "log_level": 0})

    @property
    def command(self) -> list[str]:
        """What runs it."""
        ports = map(str, self._ports[:2])
        return [str(START), str(self.folder), *ports, *self._settings()]

    def start(self, *under: str) -> None:
        """Start it, under a command that becomes it; wait until it answers."""
        self._spawn([*under, *self.command], self.folder / "log")
        until(self._answers)

    def _settings(self) -> list[str]:
        own, controller = self.address, f"127.0.0.1:{self._ports[1]}"
        module = "org.apache.kafka.common.security.plain.PlainLoginModule"
        authorizer = "org.apache.kafka.metadata.authorizer.StandardAuthorizer"
        clients = f"PLAINTEXT://{own},GUARDED://{self.guarded}"
        return [
            f"listeners={clients},CONTROLLER://{controller}",
            f"advertised.listeners={clients}",
            "listener.security.protocol.map="
            "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT,GUARDED:SASL_PLAINTEXT",
            "sasl.enabled.mechanisms=PLAIN,OAUTHBEARER",
            "listener.name.guarded.plain.sasl.jaas.config="
            f'{module} required user_relay="{SECRET}";',
            # Tokens without a signature, as those of its own tests.
            "listener.name.guarded.oauthbearer.sasl.jaas.config="
            "org.apache.kafka.common.security.oauthbearer.OAuthBearerLoginModule "
            'required unsecuredLoginStringClaim_sub="broker";',
            f"authorizer.class.name={authorizer}",
            "super.users=User:ANONYMOUS",
            "auto.create.topics.enable=true",  # Kafka's default
            # What expires does so as soon as it may.
            "transaction.remove.expired.transaction.cleanup.interval.ms=1000",
        ]

    def _answers(self) -> bool:
        self._assert_alive(self.folder / "log")
        with contextlib.suppress(KafkaException):
            return bool(self.admin.list_topics(timeout=SOON).brokers)
        return False

    def topic(self, partitions: int = 3, name: str = "", **config: str) -> str:
        """Make a topic of this test's own; dots in names are underscores here."""
        name = name or next(self._names)
        config = {key.replace("_", "."): value for key, value in config.items()}
        topic = NewTopic(name, partitions, config=config)
        self.admin.create_topics([topic])[name].result(AT_LAST)
        until(lambda: name in self.admin.list_topics(timeout=ANSWERED).topics)
        return name

    def configure(self, topic: str, **config: str) -> None:
        """Alter a topic."""
        entries = [
            ConfigEntry(
                key.replace("_", "."),
                value,
                incremental_operation=AlterConfigOpType.SET,
            )
            for key, value in config.items()
        ]
        resource = ConfigResource("topic", topic, incremental_configs=entries)
        altered = self.admin.incremental_alter_configs([resource])
        altered[resource].result(AT_LAST)

    def allow(self, kind: str, name: str, *operations: str) -> None:
        """Let `relay` do this, and nothing else, with a topic or a transactional id."""
        about = ResourceType[kind], name, ResourcePatternType.LITERAL, "User:relay", "*"
        wanted = AclBindingFilter(*about, AclOperation.ANY, AclPermissionType.ANY)
        self.admin.delete_acls([wanted])[wanted].result(AT_LAST)
        rights = [
            AclBinding(*about, AclOperation[operation], AclPermissionType.ALLOW)
            for operation in operations
        ]
        if rights:
            for done in self.admin.create_acls(rights).values():
                done.result(AT_LAST)

    def add_partitions(self, topic: str, count: int) -> None:
        """Let a topic have so many partitions."""
        added = self.admin.create_partitions([NewPartitions(topic, count)])
        added[topic].result(AT_LAST)
        until(lambda: len(self._partitions(topic)) == count)

    def _partitions(self, topic: str) -> set[int]:
        return set(self.admin.list_topics(timeout=ANSWERED).topics[topic].partitions)

    def delete(self, topic: str) -> None:
        """Delete a topic, and wait until it is gone."""
        self.admin.delete_topics([topic])[topic].result(AT_LAST)
        until(lambda: topic not in self.admin.list_topics(timeout=ANSWERED).topics)

    def read(self, topic: str, isolation: str = "read_committed") -> list[Seen]:
        """Read a topic from its beginning to the end that readers have."""
        return [_seen(message) for message in self.each(topic, isolation)]

    def each(self, topic: str, isolation: str = "read_committed") -> Iterator[Any]:
        """Yield its messages one by one: there may be many."""
        consumer = Consumer(
            {
                "bootstrap.servers": self.address,
                "group.id": "readers",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "isolation.level": isolation,
            }
        )
        with contextlib.closing(consumer):
            found = consumer.list_topics(topic, timeout=ANSWERED).topics[topic]
            left = set(found.partitions)
            consumer.assign([TopicPartition(topic, number, 0) for number in left])
            while left:
                # A tombstone has no length, so that it is false.
                message: Any = until(lambda: consumer.poll(ANSWERED), _is_message)
                if message.error() is None:
                    yield message
                else:
                    assert message.error().code() == KafkaError._PARTITION_EOF
                    left.discard(message.partition())


def _is_message(polled: Any) -> bool:
    """Whether a consumer has got one, and not nothing within its time."""
    return polled is not None


def _seen(message: Any) -> Seen:
    headers = {name: text.decode() for name, text in message.headers() or ()}
    return Seen(message.partition(), message.key(), message.value(), headers)


running = Broker.running
