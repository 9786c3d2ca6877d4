"""One broker for all of these tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from bench.kafka_broker import Broker, running


@pytest.fixture(scope="session")
def broker(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Broker]:
    """A real one, which tests may kill and start again."""
    with running(tmp_path_factory.mktemp("kafka")) as broker:
        yield broker
