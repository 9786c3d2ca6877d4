"""The first pages, from an empty folder: their files and commands as they stand."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from brokers.conftest import kafka
from manual import README, page
from support.brokers import NEEDS_KAFKA
from support.following import Reader, kill_and_look

__all__ = ["kafka"]

Follow = Callable[..., Reader]

pytestmark = pytest.mark.spark


@pytest.fixture
def follow(tmp_path: Path) -> Iterator[Follow]:
    """Make readers of pages; they stop at the end."""
    readers: list[Reader] = []

    def make(text: str, **how: Any) -> Reader:
        readers.append(Reader(tmp_path, text, **how))
        return readers[-1]

    yield make
    for reader in readers:
        reader.stop()


def test_the_quick_start(follow):
    """A table of SQLite and a folder; and what the page shows is printed."""
    reader = follow(README.read_text("utf-8"))
    kill_and_look(reader)
    reader.sees_block("ready:")
    said = reader.follows("tracing-2pc init")
    assert "TPC_TOKEN" not in said
    reader.sees_block("tpc.transaction")


PAGES: list[Any] = [
    "two-postgresql",
    pytest.param("postgresql-and-parquet", marks=pytest.mark.nightly),
    pytest.param("postgresql-and-kafka", marks=[pytest.mark.broker, NEEDS_KAFKA]),
]


@pytest.mark.parametrize("name", PAGES)
def test_a_pair_of_stores(follow, name, new_database, request):
    """From the first command of its page to the last one."""
    text = page(name)
    urls = [new_database() for _ in range(2)]
    instead = {
        f"postgresql://app@localhost/{database}": url.partition("?")[0]
        for database, url in zip(("shop", "billing"), urls, strict=True)
    }
    (host,) = parse_qs(urlsplit(urls[0]).query)["host"]  # of all: a socket
    if "BROKER" in text:
        instead["localhost:9092"] = request.getfixturevalue("kafka").address
    reader = follow(text, instead=instead, told={"PGHOST": host})
    reader.follows("export SHOP")
    kill_and_look(reader)
    said = reader.follows("tracing-2pc trace")
    assert "All is well" in said, said
    assert re.search("^orders.1.2  trace ", said, re.M)
    assert re.search(" orders +tpc.transaction ", said)
