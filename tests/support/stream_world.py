"""A query on the tests' Spark session, with two services to look at."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pytest

from support.spark import held
from support.waiting import ANSWERED, SOON
from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.model import TransactionId
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


@dataclasses.dataclass
class World:
    """Two participants in threads of this process, a source, and a log."""

    spark: Any
    folder: Path
    a: str
    b: str
    apps: contextlib.ExitStack
    in_driver: bool = False
    sink: Any = None

    def __post_init__(self) -> None:
        self.sink = ParticipantSink(
            {"a": self.a, "b": self.b}, token=None, timeout=ANSWERED
        )

    @property
    def log_url(self) -> str:
        return f"sqlite:///{self.folder / 'log.db'}"

    @contextlib.contextmanager
    def log(self) -> Iterator[SqlDecisionLog]:
        with contextlib.closing(open_log(self.log_url)) as log:
            yield log

    def state(self, transaction: str) -> TransactionState | None:
        with self.log() as log:
            record = log.read(TransactionId.parse(transaction))
            return record and record.state

    def callback(self, **arguments: Any) -> Any:
        """Return one that takes the path of this world from its first batch on."""
        settings = arguments.pop("settings", QUICK)
        if not self.in_driver:
            settings = dataclasses.replace(settings, driver_path_bytes=0)
        given = {"application": "test", "log": self.log_url, "settings": settings}
        sink = arguments.pop("sink", self.sink)
        callback = two_phase_commit(sink, **given | arguments)
        if self.in_driver:
            callback._fits_driver = lambda *_: True  # as after a small batch
        return callback

    def source(self) -> Any:
        reader = self.spark.readStream.schema("value long")
        return reader.option("maxFilesPerTrigger", 1).json(str(self.folder / "in"))

    def start(self, callback: Any, source: Any = None, checkpoint: str = "ck") -> Any:
        return (
            (self.source() if source is None else source)
            .writeStream.option("checkpointLocation", str(self.folder / checkpoint))
            .trigger(availableNow=True)
            .foreachBatch(callback)
            .start()
        )

    def run(self, callback: Any, source: Any = None, checkpoint: str = "ck") -> None:
        self.start(callback, source, checkpoint).awaitTermination()

    def held(self) -> tuple[Any, Any]:
        return held(self.folder / "a.db"), held(self.folder / "b.db")

    def forget_sparks_commit_of(self, batch: int) -> None:
        """Do what a crash just before Spark's own commit does."""
        commits = self.folder / "ck" / "commits"
        for file in (commits / str(batch), commits / f".{batch}.crc"):
            file.unlink(missing_ok=True)


@contextlib.contextmanager
def failing_query(match: str) -> Iterator[None]:
    from pyspark.errors import StreamingQueryException

    with pytest.raises(StreamingQueryException, match=match):
        yield


@contextlib.contextmanager
def b_hangs_up(world: World, path: str) -> Iterator[threading.Event]:
    """Let participant b hang up on requests of this process to a path; say when."""
    import urllib3

    from tracing_2pc.http import client

    gone, real = threading.Event(), client.ask

    def ask(pool: Any, method: str, asked: str, *rest: Any) -> Any:
        if asked == path and str(pool.port) in world.b:
            gone.set()
            raise urllib3.exceptions.ProtocolError("down")
        return real(pool, method, asked, *rest)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client, "ask", ask)
        yield gone
