"""A query on the tests' Spark session, with two services to look at."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections import Counter
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from support.spark import held, numbers_of, read_numbers, started
from support.waiting import ANSWERED, SOON
from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.conformance import check_run
from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.states import TransactionState
from tracing_2pc.spark import two_phase_commit
from tracing_2pc.store import SqlDecisionLog, open_log

HAS_ARROW_WRITERS = tuple(map(int, version("pyspark").split(".")[:2])) >= (4, 1)
NEEDS_ARROW_WRITERS = pytest.mark.skipif(
    not HAS_ARROW_WRITERS, reason="PySpark before 4.1 hands data sources rows, no Arrow"
)

QUICK = Settings(request_timeout=ANSWERED, backoff_base=0.2, backoff_cap=0.5)
OUT_OF_TIME = {"request_timeout": SOON / 2, "transaction_timeout": SOON}
BOTH_PATHS = pytest.mark.parametrize("world", ["executors", "driver"], indirect=True)


class Kept:
    """What a query leaves: a log, and two participants' files in a folder."""

    folder: Path
    log_url: str

    @contextlib.contextmanager
    def log(self) -> Iterator[SqlDecisionLog]:
        with contextlib.closing(open_log(self.log_url)) as log:
            yield log

    def read(self, transaction: str) -> TransactionRecord | None:
        with self.log() as log:
            return log.read(TransactionId.parse(transaction))

    def state(self, transaction: str) -> TransactionState | None:
        record = self.read(transaction)
        return record and record.state

    def held(self) -> tuple[Counter[int], Counter[int]]:
        return held(self.folder / "a.db"), held(self.folder / "b.db")

    def assert_exactly_once(self, batches: int) -> None:
        """Each has every number once, nothing is unfinished, all is explained."""
        assert self.held() == (numbers_of(batches), numbers_of(batches))
        with self.log() as log:
            assert log.unfinished() == []
        both = ((name, f"sqlite:///{self.folder}/{name}.db") for name in "ab")
        assert check_run(self.log_url, both) == []


@dataclasses.dataclass
class World(Kept):
    """Two participants in threads of this process, a source, and a log."""

    spark: Any
    folder: Path
    a: str
    b: str
    apps: contextlib.ExitStack
    in_driver: bool = False
    sink: Any = None

    def __post_init__(self) -> None:
        self.log_url = f"sqlite:///{self.folder / 'log.db'}"
        self.sink = ParticipantSink(
            {"a": self.a, "b": self.b}, token=None, timeout=ANSWERED
        )

    def callback(self, **arguments: Any) -> Any:
        """Return one that takes the path of this world from its first batch on."""
        settings = arguments.pop("settings", QUICK)
        if not self.in_driver:
            settings = dataclasses.replace(settings, driver_path_bytes=0)
        given = {"application": "test", "log": self.log_url, "settings": settings}
        sink = arguments.pop("sink", self.sink)
        callback = two_phase_commit(sink, **given | arguments)
        if self.in_driver:
            callback._driver_path.fits = lambda *_: True  # as after a small batch
        return callback

    def source(self) -> Any:
        return read_numbers(self.spark, self.folder)

    def start(self, callback: Any, source: Any = None, checkpoint: str = "ck") -> Any:
        source = self.source() if source is None else source
        return started(
            source.writeStream.foreachBatch(callback), self.folder / checkpoint
        )

    def run(self, callback: Any, source: Any = None, checkpoint: str = "ck") -> None:
        self.start(callback, source, checkpoint).awaitTermination()

    def forget_sparks_commit_of(self, batch: int) -> None:
        """Do what a crash just before Spark's own commit does."""
        commits = self.folder / "ck" / "commits"
        for file in (commits / str(batch), commits / f".{batch}.crc"):
            file.unlink(missing_ok=True)

    def go_back_to(self, batch: int) -> None:
        """Let Spark run a batch again that it counts as done, and all after it."""
        for folder, first in (("commits", batch), ("offsets", batch + 1)):
            for file in (self.folder / "ck" / folder).iterdir():
                if file.name.isdecimal() and int(file.name) >= first:
                    file.unlink()


@contextlib.contextmanager
def session_setting(spark: Any, name: str, value: str) -> Iterator[None]:
    """Give the session a setting inside of the block."""
    before = spark.conf.get(name, None)
    spark.conf.set(name, value)
    try:
        yield
    finally:
        spark.conf.unset(name) if before is None else spark.conf.set(name, before)


def below_a_root(world: World) -> contextlib.AbstractContextManager[None]:
    """Let the session have a folder for checkpoints of queries that name none."""
    root = "spark.sql.streaming.checkpointLocation"
    return session_setting(world.spark, root, str(world.folder / "root"))


@contextlib.contextmanager
def failing_query(match: str) -> Iterator[None]:
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException, match=match):
        yield


@contextlib.contextmanager
def b_hangs_up(world: World, path: str) -> Iterator[threading.Event]:
    """Let participant b hang up on requests of this process to a path; say when."""
    from tracing_2pc.http import client
    from tracing_2pc.wire.contract import NoAnswerError, Silence

    gone, real = threading.Event(), client.ask

    def ask(pool: Any, method: str, asked: str, *rest: Any) -> Any:
        if asked == path and str(pool.port) in world.b:
            gone.set()
            raise NoAnswerError(Silence.CUT, "down")
        return real(pool, method, asked, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "ask", ask)
        yield gone
