"""Small batches, written by the driver: which they are, and that the promises hold."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.spark import ROWS, numbers_of, write_numbers
from support.stream_world import (
    BOTH_PATHS,
    OUT_OF_TIME,
    QUICK,
    World,
    b_hangs_up,
    failing_query,
    session_setting,
)
from support.waiting import AT_LAST

from tracing_2pc import ParticipantSink
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.sinks.composite import CompositeSink
from tracing_2pc.spark import two_phase_commit
from tracing_2pc.spark.driver_path import allows_driver_path

pytestmark = pytest.mark.spark
IN_DRIVER = pytest.mark.parametrize("world", ["driver"], indirect=True)


class Noting:
    """A sink that notes, in a file for each branch, who wrote it and what came."""

    handle_type = None
    driver_path = True

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.begun = 0

    def begin(self, context: Any) -> Any:
        self.begun += 1
        name = f"{context.transaction_id}@{context.branch}"
        return {"name": name, "rows": 0, "schema": "", "begun": self.begun}

    def invoke_batch(self, handle: Any, batch: Any) -> None:
        handle["rows"] += batch.num_rows
        handle["schema"] = str(batch.schema)

    def pre_commit(self, handle: Any) -> None:
        note = f"{os.getpid()}\n{handle['rows']}\n{handle['begun']}\n{handle['schema']}"
        (self.folder / handle["name"]).write_text(note)

    def commit(self, handle: Any) -> None:
        assert self.begun == 0, "what begin keeps in the sink reached commit"

    def abort(self, handle: Any) -> None:
        (self.folder / handle["name"]).unlink(missing_ok=True)

    def abort_transaction(self, transaction_id: str, keep: Any) -> None:
        pass


@dataclasses.dataclass
class Note:
    in_driver: bool
    rows: int
    begun: int
    schema: str


def notes(folder: Path, transaction: str) -> dict[str, Note]:
    """Return what was noted about each branch of a transaction."""
    found = {}
    for file in folder.glob(f"{transaction}@*"):
        process, rows, begun, schema = file.read_text().split("\n", 3)
        in_driver = int(process) == os.getpid()
        found[file.name.partition("@")[2]] = Note(
            in_driver, int(rows), int(begun), schema
        )
    return found


def paths(folder: Path, batches: int) -> list[str]:
    """Return who wrote each batch."""
    return [
        "driver"
        if all(n.in_driver for n in notes(folder, f"test.{batch}.1").values())
        else "executors"
        for batch in range(batches)
    ]


def noting_callback(world: World, **settings: Any) -> Any:
    from pyspark import cloudpickle

    # A worker cannot import this module.
    cloudpickle.register_pickle_by_value(sys.modules[__name__])
    return two_phase_commit(
        Noting(world.folder),
        application="test",
        log=world.log_url,
        settings=dataclasses.replace(QUICK, **settings),
    )


def test_a_small_batch_is_written_by_the_driver_as_one_branch(world):
    """From the second batch of a start on; the first one's size is not known before.

    As in a task, each batch has a copy of the sink: what `begin` keeps in it reaches
    nothing else. Its class is not copied.
    """
    commit = Noting.commit
    write_numbers(world.folder, range(3))
    world.run(noting_callback(world), world.source().repartition(2))
    assert paths(world.folder, 3) == ["executors", "driver", "driver"]
    (branch,) = notes(world.folder, "test.1.1")
    assert branch == "0.0"
    assert notes(world.folder, "test.1.1")[branch].rows == ROWS
    assert [n.begun for n in notes(world.folder, "test.2.1").values()] == [1]
    assert Noting.commit is commit


@pytest.mark.smoke
def test_the_size_of_the_batch_before_decides(world):
    """Ten numbers are 80 bytes; a large batch sends the next one to the executors."""
    write_numbers(world.folder, range(2))
    large = "\n".join(f'{{"value": {n}}}' for n in range(1000))
    for batch, text in ((2, large), (3, '{"value": 1}'), (4, '{"value": 2}')):
        file = world.folder / "in" / f"{batch}.json"
        file.write_text(text)
        os.utime(file, (1_600_000_000 + batch,) * 2)
    world.run(noting_callback(world, driver_path_bytes=2000))
    assert paths(world.folder, 5) == [
        *("executors", "driver", "driver"),
        *("executors", "driver"),
    ]


def test_each_start_begins_with_executors(world):
    """Also of one callback: what cannot be done in the driver ends a query once."""
    callback = noting_callback(world)
    write_numbers(world.folder, range(2))
    world.run(callback)
    write_numbers(world.folder, range(2, 4))
    world.run(callback)
    assert paths(world.folder, 4) == ["executors", "driver"] * 2


def test_a_changed_participant_sink_may_refuse_the_driver():
    """Its own phases may block, and in the driver nothing interrupts them."""

    class Blocking(ParticipantSink):
        driver_path = False

    address = {"a": "http://127.0.0.1:1"}
    assert allows_driver_path(ParticipantSink(address))
    assert not allows_driver_path(Blocking(address))
    assert not allows_driver_path(CompositeSink([Blocking(address)]))


@BOTH_PATHS
@pytest.mark.parametrize("last", [0, 3])
def test_the_rows_of_all_routes_are_on_record(world, last):
    """A lost commit is told from an empty one by their number."""
    write_numbers(world.folder, range(1))
    routes = {"a": lambda df: df, "b": lambda df: df.where(f"value < {last}")}
    world.run(world.callback(routes=routes))
    with world.log() as log:
        record = log.read(TransactionId.parse("test.0.1"))
    assert record is not None
    assert record.rows == ROWS + last


def test_a_batch_without_rows_says_nothing_of_the_next(world):
    """Neither that it is small, nor that it is large."""
    write_numbers(world.folder, range(4))
    empty_first = world.source().where(f"value >= {ROWS}")
    world.run(noting_callback(world), empty_first)
    assert paths(world.folder, 4)[1:] == ["executors", "driver", "driver"]


@pytest.mark.parametrize(
    ("settings", "sink"),
    [
        pytest.param({"driver_path_bytes": 0}, {}, id="never"),
        pytest.param({}, {"driver_path": False}, id="a sink that does not say so"),
    ],
)
def test_executors_write_it_if_the_driver_may_not(world, settings, sink):
    """By the setting, or because nothing could interrupt a sink of the user's own."""
    write_numbers(world.folder, range(2))
    callback = noting_callback(world, **settings)
    for name, value in sink.items():
        setattr(callback.job.sink, name, value)
    world.run(callback)
    assert paths(world.folder, 2) == ["executors", "executors"]


def test_both_paths_see_the_same_types(world):
    """Time zone, precision and nested fields are those that a task sees."""
    write_numbers(world.folder, range(2))
    kinds = world.source().selectExpr(
        "value",
        "CAST(value AS string) AS text",
        "CAST(value AS decimal(10, 2)) AS price",
        "timestamp_seconds(value) AS at",
        "CAST(timestamp_seconds(value) AS timestamp_ntz) AS wall",
        "date'2024-01-01' AS day",
        "CAST('x' AS binary) AS bytes",
        "array(value) AS list",
        "struct(value AS x, 'y' AS y) AS nested",
        "map('k', value) AS map",
        "CAST(NULL AS int) AS nothing",
        "interval '1' day AS wait",
        "value > 3 AS flag",
        "CAST(value AS tinyint) AS tiny",
        "CAST(value AS float) AS single",
    )
    with session_setting(world.spark, "spark.sql.session.timeZone", "Europe/Paris"):
        world.run(noting_callback(world), kinds)
    assert paths(world.folder, 2) == ["executors", "driver"]
    (task,) = notes(world.folder, "test.0.1").values()
    (driver,) = notes(world.folder, "test.1.1").values()
    assert "tz=UTC" in task.schema
    assert driver.schema == task.schema


@IN_DRIVER
def test_what_spark_does_not_hand_over_goes_to_the_executors(world, caplog):
    """A wrong guess is one attempt, which is aborted; the next one writes the batch."""
    write_numbers(world.folder, range(1))
    # Ten rows of a megabyte: Spark refuses them, each of two tasks has too many.
    source = world.source().selectExpr("value", "repeat('x', 1000000) AS much")
    with largest_result(world, "1m"):
        world.run(world.callback(), source)
    assert world.held() == (numbers_of(1), numbers_of(1))
    assert world.state("test.0.1") is TransactionState.ABORTED
    assert world.state("test.0.2") is TransactionState.COMMITTED
    (warning,) = (m for m in caplog.messages if "too large for the driver" in m)
    assert "application=test batch=0" in warning


@contextlib.contextmanager
def largest_result(world: World, size: str) -> Iterator[None]:
    """Change what Spark reads for each job; a session cannot change it."""
    conf, name = world.spark.sparkContext._jsc.sc().conf(), "spark.driver.maxResultSize"
    conf.set(name, size)
    try:
        yield
    finally:
        conf.remove(name)


@IN_DRIVER
def test_stop_in_the_middle_of_a_write_aborts(world):
    """While a participant does not answer: the wait ends, and abort is decided."""
    write_numbers(world.folder, range(1))
    with b_hangs_up(world, "/prepare") as gone:
        query = world.start(world.callback())
        assert gone.wait(AT_LAST)
        query.stop()  # would wait for the participant as long as a prepare is repeated
        assert world.state("test.0.1") is TransactionState.ABORTED
    assert query.exception() is None
    assert [h.total() for h in world.held()] == [0, 0]
    world.run(world.callback())
    assert world.held() == (numbers_of(1), numbers_of(1))


@IN_DRIVER
@pytest.mark.parametrize("where", ["in the job", "in a prepare"])
def test_out_of_time_the_write_ends(world, where):
    """Abort is decided; the Spark job is cancelled, or the wait for the answer ends."""
    write_numbers(world.folder, range(1))
    sleep = "reflect('java.lang.Thread', 'sleep', 600000L) IS NULL"
    slow = world.source().selectExpr(f"IF({sleep}, value, value) AS value")
    short = world.callback(settings=dataclasses.replace(QUICK, **OUT_OF_TIME))
    with failing_query("no decision within transaction_timeout"):
        if where == "in the job":
            world.run(short, slow)
        else:
            with b_hangs_up(world, "/prepare"):
                world.run(short)
    assert world.state("test.0.1") is TransactionState.ABORTED
    world.run(world.callback())
    assert world.held() == (numbers_of(1), numbers_of(1))
