"""Spark reads an inbox: each event once, in the same batch whenever it is replayed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from pyspark.sql import functions
from pyspark.sql.streaming.datasource import ReadAllAvailable
from support.branches import TRACE
from support.spark import ROWS, numbers_of
from support.tracing import exported

from tracing_2pc.core import names
from tracing_2pc.core.model import Carrier
from tracing_2pc.http.events import events_blueprint
from tracing_2pc.inbox import Inbox, NewEvent
from tracing_2pc.inbox.changed import InboxChangedError
from tracing_2pc.spark.inbox_source import InboxSource

__all__ = ["exported"]

pytestmark = pytest.mark.ci


class Query:
    """A query that notes the ids of each batch, and may fail in one."""

    def __init__(self, spark: Any, inbox: Inbox, folder: Path, url: str) -> None:
        spark.dataSource.register(InboxSource)
        self._spark = spark
        self._folder = folder
        self.options = {"url": url, "reader": "numbers"}
        self.inbox = inbox
        self.batches: list[tuple[int, list[str]]] = []

    def run(self, *, fails_at: int | None = None, **options: str) -> None:
        """Read what is there, and end; from the checkpoint on, if there is one."""

        def note(frame: Any, number: int) -> None:
            rows = sorted(frame.select("position", "id").collect())
            self.batches.append((number, [row.id for row in rows]))
            if number == fails_at:
                raise RuntimeError("the job dies here")

        stream = self._spark.readStream.format("tpc_inbox")
        writer = stream.options(**{**self.options, **options}).load().writeStream
        checkpoint = str(self._folder / "checkpoint")
        query = (
            writer.foreachBatch(note)
            .option("checkpointLocation", checkpoint)
            .trigger(availableNow=True)
            .start()
        )
        try:
            query.awaitTermination()
        finally:
            query.stop()

    def add(self, *names: str) -> None:
        carrier = {"carrier": Carrier(TRACE)}
        self.inbox.store("shop", [NewEvent(n, "{}", **carrier) for n in names])


@pytest.fixture
def query(spark: Any, tmp_path: Path) -> Iterator[Query]:
    url = f"sqlite:///{tmp_path}/inbox.db"
    inbox = Inbox(url)
    yield Query(spark, inbox, tmp_path, url)
    inbox.close()


def test_each_event_is_read_once(query):
    """In batches of so many, through a job that fails after a batch was read, and
    what comes meanwhile is no part of the batch that is replayed."""
    query.add("a", "b", "c", "d", "e")
    with pytest.raises(Exception, match="the job dies here"):
        query.run(maxEventsPerTrigger="2", fails_at=1)
    query.add("f")
    query.run(maxEventsPerTrigger="3")
    assert query.batches == [
        (0, ["a", "b"]),
        (1, ["c", "d"]),
        (1, ["c", "d"]),
        (2, ["e", "f"]),
    ]
    query.add("g")
    query.run()  # Spark says that a batch is over when it plans the next one
    (reader,) = query.inbox.readers()
    assert (query.batches[-1], reader.reader, reader.position) == (
        (3, ["g"]),
        "numbers",
        6,
    )


def test_an_inbox_that_is_another_one_ends_the_query(query, tmp_path):
    """In one sentence, before anything is read."""
    query.add("a", "b")
    query.run()
    query.inbox.close()
    for file in tmp_path.glob("inbox.db*"):
        file.unlink()
    query.inbox = Inbox(f"sqlite:///{tmp_path}/inbox.db")
    query.add("other")
    with pytest.raises(Exception, match="position 2 was read in another inbox"):
        query.run()


def test_a_checkpoint_without_a_digest_is_read(query):
    """By position and id; one of another source is refused with a sentence."""
    query.add("a", "b")
    reader = InboxSource(query.options).streamReader(None)
    known = query.inbox.offset_at(query.inbox.start(), 1)._asdict()
    del known["digest"]
    assert reader.latestOffset(known, ReadAllAvailable()) == query.inbox.end()._asdict()
    with pytest.raises(InboxChangedError, match="and is another event 'a'"):
        reader.latestOffset({**known, "id": "c"}, ReadAllAvailable())
    with pytest.raises(InboxChangedError, match="the checkpoint is another source's"):
        reader.latestOffset({"position": 1}, ReadAllAvailable())
    reader.stop()


def test_columns(spark, query, tmp_path):
    """What an event was, and when, and where its trace is; split among tasks."""
    query.add(*(f"{n:04}" for n in range(2_500)))
    stream = spark.readStream.format("tpc_inbox").options(
        url=f"sqlite:///{tmp_path}/inbox.db", reader="other", partitions="3"
    )
    found: list[Any] = []

    def keep(frame: Any, _: int) -> None:
        assert frame.rdd.getNumPartitions() == 3
        found.extend(frame.orderBy("position").collect())

    running = stream.load().writeStream.foreachBatch(keep).trigger(availableNow=True)
    running.option("checkpointLocation", f"{tmp_path}/other").start().awaitTermination()
    assert [row.id for row in found] == [f"{n:04}" for n in range(2_500)]
    last = found[-1]
    assert (last.position, last.producer, last.body) == (2_500, "shop", "{}")
    assert last.carrier == dict(TRACE)
    (kept,) = query.inbox.read(
        query.inbox.offset_at(query.inbox.start(), 2_499), query.inbox.end()
    )
    assert abs(last.time.timestamp() - kept.at) < 1e-3


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"maxEventsPerTrigger": "0"}, "option maxEventsPerTrigger: '0'"),
        ({"reader": "a b"}, "option reader: reader name 'a b'"),
        ({"since": "x"}, "option since: an inbox has none"),
        ({"startingOffsets": "now"}, "neither earliest nor latest"),
    ],
)
def test_wrong_options_are_said(query, options, said):
    """Before anything is read."""
    query.add("a")
    with pytest.raises(Exception, match=said):
        query.run(**options)


def test_from_a_gateway_to_every_service_once(world, tmp_path, exported):
    """Each number that was posted, twice, is at both services once, although Spark runs
    a committed batch again; its transaction links to the trace that it came with."""
    inbox = Inbox(f"sqlite:///{tmp_path}/inbox.db")
    app = Flask(__name__)
    app.register_blueprint(events_blueprint(inbox, insecure=True))
    numbers = sorted(numbers_of(2))
    for number in [*numbers, *numbers]:
        event = {"id": str(number), "payload": {"value": number}}
        trace = f"00-{number + 1:032x}-0000000000000001-01"
        answer = app.test_client().post(
            "/events", json=event, headers={"traceparent": trace}
        )
        assert answer.status_code == 202
    world.spark.dataSource.register(InboxSource)

    def source() -> Any:
        stream = world.spark.readStream.format("tpc_inbox")
        stream = stream.options(url=f"sqlite:///{tmp_path}/inbox.db", reader="test")
        events = stream.option("maxEventsPerTrigger", ROWS).load()
        value = functions.get_json_object("body", "$.value").cast("long")
        return events.select(value.alias("value"), "carrier")

    world.run(world.callback(links="carrier"), source())
    world.assert_exactly_once(2)
    world.go_back_to(1)
    world.run(world.callback(links="carrier"), source())
    world.assert_exactly_once(2)
    roots = [span for span in exported() if span.name == names.TRANSACTION]
    linked = {link.context.trace_id for root in roots for link in root.links}
    assert {number + 1 for number in numbers} <= linked
    inbox.close()
