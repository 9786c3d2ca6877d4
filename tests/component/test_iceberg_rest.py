"""`IcebergSink` at a REST catalog: answers that are lost, late, or never come.

python test_iceberg_rest.py URL HANDLE      the commit of a branch
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyiceberg.exceptions import CommitFailedException
from support.file_job import FileJob, ids_of, prepared, received
from support.lake import NAME, Lake
from support.rest_catalog import RestCatalog
from support.served import served
from support.texts import texts
from support.waiting import AT_ONCE

from tracing_2pc import IcebergSink
from tracing_2pc.core.errors import ConfigurationError, ParticipantUnavailableError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.sinks import iceberg_table

TEXTS = texts("sinks")
T = TransactionId("orders", 0, 1)
HERE = Path(__file__).parents[1]
TOKEN = "of the lake, and secret"


@pytest.fixture
def lake(tmp_path) -> Lake:
    made = Lake(tmp_path)
    made.make()
    return made


@pytest.fixture
def rest(lake, monkeypatch) -> Iterator[RestCatalog]:
    """Return a REST catalog over the lake's."""
    monkeypatch.setenv("LAKE_TOKEN", TOKEN)
    with served(RestCatalog(lake.catalog, TOKEN)) as catalog:
        yield catalog


def sink_of(url: str) -> IcebergSink:
    about = {"type": "rest", "uri": url, "token": "env:LAKE_TOKEN"}
    return IcebergSink("rest", NAME, properties=about)


def test_a_job_writes_through_it(lake, rest, log):
    """With its token, which is read where the catalog is opened."""
    sink = sink_of(rest.url)
    sink.check_job("orders")
    for batch in range(2):
        FileJob(sink, log).apply(batch)
    assert (lake.visible(), lake.left(), rest.commits) == (ids_of(0, 1), [], 2)


def test_an_answer_is_lost_after_it_was_carried_out(lake, rest):
    """It is looked up, and acknowledged."""
    sink = sink_of(rest.url)
    handle = prepared(sink)
    rest.fault = "lose"
    sink.commit_transaction(str(T), [handle])
    assert (lake.visible(), rest.commits) == ([0, 1], 1)


def test_a_request_is_lost_before_it_was_carried_out(lake, rest):
    """Not now: it is sent again by who delivers the decision."""
    sink = sink_of(rest.url)
    handle = prepared(sink)
    rest.fault = "refuse"
    with pytest.raises(ParticipantUnavailableError, match=TEXTS["no answer from"]):
        sink.commit_transaction(str(T), [handle])
    rest.fault = None
    sink.commit_transaction(str(T), [handle])
    assert (lake.visible(), rest.commits) == ([0, 1], 2)


@pytest.mark.parametrize("first", ["another process", "the late request"])
def test_a_request_is_carried_out_late(lake, rest, first):
    """While a second process delivers the same batch: it is there once."""
    sink = sink_of(rest.url)
    handle = received(prepared(sink))
    rest.fault = "late"
    with pytest.raises(ParticipantUnavailableError):
        sink.commit_transaction(str(T), [handle])
    rest.fault = None
    assert rest.deliver is not None
    if first == "the late request":
        rest.deliver()
    path = os.pathsep.join([str(HERE), str(HERE.parent)])
    kept = json.dumps(dataclasses.asdict(handle))
    run = [sys.executable, __file__, rest.url, kept]
    subprocess.run(run, env={**os.environ, "PYTHONPATH": path}, check=True)
    if first == "another process":
        with pytest.raises(CommitFailedException):
            rest.deliver()
    sink.commit_transaction(str(T), [handle])
    assert (lake.visible(), len(lake.table().snapshots())) == ([0, 1], 1)
    assert lake.left() == []


def test_a_catalog_that_says_nothing_is_unavailable(lake, rest, monkeypatch):
    """pyiceberg would wait for ever."""
    monkeypatch.setattr(iceberg_table, "SILENCE", AT_ONCE)
    sink = sink_of(rest.url)
    handle = prepared(sink)
    rest.fault = "hang"
    with pytest.raises(ParticipantUnavailableError, match="may have been changed"):
        sink.commit_transaction(str(T), [handle])
    rest.thawed.set()
    rest.fault = None
    sink_of(rest.url).commit_transaction(str(T), [handle])
    assert lake.visible() == [0, 1]


def test_a_token_that_is_refused(rest, monkeypatch):
    """Names the catalog, and no secret."""
    monkeypatch.setenv("LAKE_TOKEN", "another that is secret")
    with pytest.raises(ParticipantUnavailableError, match="the catalog") as caught:
        sink_of(rest.url).check_job("orders")
    assert "another that is secret" not in str(caught.value)
    monkeypatch.delenv("LAKE_TOKEN")
    with pytest.raises(ConfigurationError, match="LAKE_TOKEN is empty"):
        sink_of(rest.url).check_job("orders")


def main(url: str, kept: str) -> None:
    """Do what the module's docstring says."""
    sink = sink_of(url)
    handle: Any = IcebergSink.handle_type(**json.loads(kept))
    sink.commit_transaction(handle.transaction, [handle])


if __name__ == "__main__":
    main(*sys.argv[1:])
