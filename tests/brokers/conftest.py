"""One broker of each kind for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from backends.conftest import backend
from support import activemq as activemq_broker
from support import redis_server

from bench.kafka_broker import Broker, running

__all__ = ["activemq", "backend", "broker", "kafka", "redis_example"]


@pytest.fixture(scope="session")
def kafka(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real one, which tests may kill and start again."""
    with running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker


@pytest.fixture(scope="session")
def broker(kafka: Broker) -> Broker:
    """The one that most of them ask."""
    return kafka


@pytest.fixture(scope="session")
def activemq(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[activemq_broker.Broker]:
    """A real one, too."""
    with activemq_broker.running(tmp_path_factory.mktemp("activemq")) as broker:
        yield broker


@pytest.fixture(scope="session")
def redis_example(
    tmp_path_factory: pytest.TempPathFactory,
) -> Iterator[redis_server.Broker]:
    """The server of the relay in `examples/redis_relay`, a real one, too."""
    with redis_server.Broker.running(tmp_path_factory.mktemp("redis")) as broker:
        yield broker
