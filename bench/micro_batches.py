"""Micro-batches of real Spark to two PostgreSQL servers: ours, and what others do.

One streaming query; its batches take turns at the arms, and each measures what its
callback takes. Every arm has the same rows from the same files, on two partitions:

    library       two_phase_commit, exactly once, traced, by the path that it chooses
    embedded      the same without services: driver and tasks open the databases
    executors     the same without the driver path
    jdbc          two appends of Spark's JDBC sink, at least once: of a batch that is
                  persisted, or read twice, whichever is quicker at that size
    copy          COPY by hand to both, in one pass over each partition, at least once
    parquet       an append to a folder, no server at all
    noop          Spark computes the rows, and nobody gets them

Servers flush (`fsync`), and what is stored is counted and removed after each batch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import os
import secrets
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from bench.pair import compare, line, peer
from bench.postgresql import listening
from bench.records import orders
from bench.stored import LEDGER, check_and_empty
from participants.processes import Ledger, Process, free_ports, stopping

if TYPE_CHECKING:
    import pyarrow as pa

ROOT: Final = Path(__file__).parents[1]
SERVERS: Final = 2
PARTITIONS: Final = 2
WARM_UP: Final = 4
"""Batches of each arm that are not counted: the JVM compiles, workers start."""

FLOOR: Final = "noop"
"""The arm of which every other does more: a batch costs at least that."""

Arm = Callable[[Any, int], None]
"""Writes a DataFrame as a batch of a number."""

ROUNDS: Final = {10: 21, 2_000: 21, 100_000: 25, 1_000_000: 15}
"""By rows of a batch."""

LIMITS: Final = {
    ("I8", 10): ("library", "jdbc", 0.25),
    ("I8", 2_000): ("library", "jdbc", 0.25),
    ("I8", 100_000): ("library", "jdbc", 0.50),
    ("I8", 1_000_000): ("library", "jdbc", 0.50),
    ("I13", 10): ("embedded", "library", 1.00),
    ("I13", 2_000): ("embedded", "library", 1.00),
    ("I13", 100_000): ("embedded", "library", 1.00),
    ("I13", 1_000_000): ("embedded", "library", 1.00),
    ("I9", 10): ("library", "copy", 0.60),
    ("I9", 2_000): ("library", "copy", 0.60),
    ("I9", 100_000): ("library", "copy", 1.25),
    ("I5", 2_000): ("library", "parquet", 0.50),
    ("I5", 100_000): ("library", "parquet", 1.95),
}
"""Goals, by the rows of a batch: whom they compare, and the most that is allowed."""


def measure(
    most: int, sizes: Sequence[int] = (), warm_up: int = WARM_UP
) -> Iterator[dict[str, Any]]:
    """Yield a line for each goal, from so many rounds of `ROUNDS` at most."""
    with tempfile.TemporaryDirectory(prefix="tpc-bench-") as folder:
        for rows in sizes or ROUNDS:
            goals = {goal: g for goal, g in LIMITS.items() if goal[1] == rows}
            names = {FLOOR, *(name for g in goals.values() for name in g[:2])}
            place = Path(folder) / str(rows)
            rounds = min(most, ROUNDS[rows])
            seconds = time_arms(place, rows, rounds, sorted(names), warm_up=warm_up)
            for (goal, _), (ours, base, limit) in goals.items():
                ratio = compare(seconds[ours], seconds[base])
                settings = {"rows": rows, "base": base, "partitions": PARTITIONS}
                yield line(f"{goal} {rows}", ratio, limit, settings)
            ratio = compare(seconds[FLOOR], seconds["jdbc"])
            yield peer(f"{FLOOR} {rows}", ratio, {"partitions": PARTITIONS})


def time_arms(
    folder: Path,
    rows: int,
    rounds: int,
    names: Sequence[str],
    *,
    warm_up: int = WARM_UP,
    partitions: int = PARTITIONS,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, list[float]]:
    """Return the seconds of each arm, round by round, after `warm_up` rounds.

    Of an arm with several ways, those of the quicker way.

    `settings` are Spark's.
    """
    ways = {name: _WAYS.get(name, (name,)) for name in names}
    chosen = [way for several in ways.values() for way in several]
    with contextlib.ExitStack() as stack:
        world = stack.enter_context(listening_world(folder, partitions, settings))
        arms = {way: ARMS[way](world) for way in chosen}
        seconds = take_turns(world, rows, rounds, arms, warm_up, _check_and_empty)
    return {
        name: min((seconds[way] for way in several), key=statistics.median)
        for name, several in ways.items()
    }


@dataclasses.dataclass(frozen=True)
class World:
    """What the arms write to, and with."""

    folder: Path
    spark: Any
    databases: Sequence[str]
    """URLs of libpq, one on each server."""
    participants: Mapping[str, str]
    partitions: int
    """Of a batch, each of which is a file."""


def take_turns(
    world: World,
    rows: int,
    rounds: int,
    arms: Mapping[str, Arm],
    warm_up: int,
    check: Callable[[World, str, int], None],
) -> dict[str, list[float]]:
    """Return the seconds of each arm, round by round, after `warm_up` rounds.

    `check` looks at what an arm has stored, by its name and the rows of a batch.
    """
    names = list(arms)
    seconds: dict[str, list[float]] = {name: [] for name in names}

    def batch(df: Any, number: int) -> None:
        # Forwards and backwards in turn, so that nobody is always the first.
        turn, place = divmod(number, len(names))
        name = (names if turn % 2 else names[::-1])[place]
        start = time.perf_counter()
        arms[name](df, turn)
        took = time.perf_counter() - start
        check(world, name, rows)
        if turn >= warm_up:
            seconds[name].append(took)

    stream(world, rows, (rounds + warm_up) * len(names), batch)
    return seconds


def stream(
    world: World, rows: int, batches: int, batch: Callable[[Any, int], None]
) -> None:
    """Run a query of so many batches of so many rows."""
    _write_input(world, rows, batches)
    files = world.spark.readStream.schema(SCHEMA)
    query = (
        files.option("maxFilesPerTrigger", world.partitions)
        .parquet(str(world.folder / "in"))
        .writeStream.option("checkpointLocation", str(world.folder / "checkpoint"))
        .trigger(availableNow=True)
        .foreachBatch(batch)
        .start()
    )
    query.awaitTermination()


# --- arms ---------------------------------------------------------------------------


def _library(world: World, **settings: Any) -> Arm:
    from tracing_2pc import ParticipantSink

    sink = ParticipantSink(world.participants, token=f"file:{world.folder / 'token'}")
    return committed(world, "executors" if settings else "library", sink, **settings)


def _embedded(world: World) -> Arm:
    from tracing_2pc import TableSink

    sinks = [
        TableSink(url, LEDGER[0], name=f"ledger{number}")
        for number, url in enumerate(world.databases)
    ]
    return committed(world, "embedded", sinks)


def committed(
    world: World, name: str, sink: Any, *, rejects: str | None = None, **settings: Any
) -> Arm:
    """Make an application that writes to a sink, with a decision log of its own."""
    import psycopg

    from tracing_2pc import Settings
    from tracing_2pc.spark import two_phase_commit

    log = f"{world.databases[0]}_{name}"  # a query is one application of a log
    with psycopg.connect(world.databases[0], autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {log.rpartition('/')[2]}")
    return two_phase_commit(
        sink,
        application=name,
        log=log,
        rejects=rejects,
        settings=Settings(**settings),
    )


def _executors(world: World) -> Arm:
    return _library(world, driver_path_bytes=0)


def _jdbc_persisted(world: World) -> Arm:
    append = _jdbc_read_twice(world)

    def write(df: Any, number: int) -> None:
        append(df.persist(), number)
        df.unpersist()

    return write


def _jdbc_read_twice(world: World) -> Arm:
    def append(df: Any, _: int) -> None:
        for url in world.databases:
            df.write.mode("append").format("jdbc").options(
                url=f"jdbc:{url.replace('postgres@', '')}?reWriteBatchedInserts=true",
                dbtable="plain",
                user="postgres",
                batchsize=10_000,
                driver="org.postgresql.Driver",
            ).save()

    return append


def _copy(world: World) -> Arm:
    databases = tuple(world.databases)

    def task(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import gc

        import psycopg
        import pyarrow as pa
        from pyarrow import csv

        gc.unfreeze()  # as in a worker that has never written for the library
        options = csv.WriteOptions(include_header=False)
        command = "COPY plain FROM STDIN (FORMAT csv)"
        with contextlib.ExitStack() as stack:
            to = [stack.enter_context(psycopg.connect(url)) for url in databases]
            copies = [stack.enter_context(c.cursor().copy(command)) for c in to]
            for batch in batches:
                # Arrow would look up the zone of each moment, for half of all its time.
                seen = batch.column("seen").cast(pa.timestamp("us"))
                text = io.BytesIO()
                csv.write_csv(batch.set_column(6, "seen", seen), text, options)
                for copy in copies:
                    copy.write(text.getbuffer())
        yield pa.RecordBatch.from_pydict({"done": [1]})

    def write(df: Any, _: int) -> None:
        df.mapInArrow(task, "done long").collect()

    return write


def _parquet(world: World) -> Arm:
    return lambda df, _: df.write.mode("append").parquet(str(world.folder / "out"))


def _noop(_: World) -> Arm:
    return lambda df, _: df.write.format("noop").mode("overwrite").save()


ARMS: Final[Mapping[str, Callable[[World], Arm]]] = {
    "library": _library,
    "embedded": _embedded,
    "executors": _executors,
    "jdbc persisted": _jdbc_persisted,
    "jdbc read twice": _jdbc_read_twice,
    "copy": _copy,
    "parquet": _parquet,
    FLOOR: _noop,
}
_WAYS: Final = {"jdbc": ("jdbc persisted", "jdbc read twice")}
"""Arms that are the quicker of several, by their median."""
_PLAIN_ARMS: Final = (*_WAYS["jdbc"], "copy")


def _check_and_empty(world: World, name: str, rows: int) -> None:
    """See that each server has the rows: an arm that stores nothing is fast."""
    if name in ("parquet", FLOOR):
        return
    shown, stored = ("plain", "plain") if name in _PLAIN_ARMS else LEDGER
    for url in world.databases:
        check_and_empty(url, rows, shown, stored)


# --- the world ----------------------------------------------------------------------

SCHEMA: Final = (
    "id long, day date, origin string, carrier string, amount double, units int, "
    "seen timestamp, remark string"
)
_PLAIN: Final = (
    "CREATE TABLE plain (id bigint, day date, origin text, carrier text, "
    "amount double precision, units int, seen timestamptz, remark text)"
)


def _write_input(world: World, rows: int, batches: int) -> None:
    """Write a batch of about 100 bytes a row, and link its files for all others."""
    import pyarrow as pa
    from pyarrow import parquet

    folder = world.folder / "in"
    folder.mkdir()
    part = rows // world.partitions
    for file in range(world.partitions):
        records = pa.Table.from_batches([orders(part, file * part)])
        parquet.write_table(records, folder / f"0.{file}.parquet")
        for batch in range(1, batches):
            os.link(folder / f"0.{file}.parquet", folder / f"{batch}.{file}.parquet")


@contextlib.contextmanager
def listening_world(
    folder: Path,
    partitions: int = PARTITIONS,
    settings: Mapping[str, str] = MappingProxyType({}),
) -> Iterator[World]:
    """Run Spark, and a ledger's service beside each of two PostgreSQL servers."""
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(listening()) for _ in range(SERVERS)]
        yield stack.enter_context(_world(folder, servers, partitions, settings))


@contextlib.contextmanager
def _world(
    folder: Path,
    servers: Sequence[str],
    partitions: int,
    settings: Mapping[str, str],
) -> Iterator[World]:
    import psycopg

    folder.mkdir()
    token = secrets.token_hex(16)
    (folder / "token").write_text(token)
    (folder / "tokens").write_text(f"job {token}\n")
    databases = [f"{server}/bench" for server in servers]
    for server, url in zip(servers, databases, strict=True):
        with psycopg.connect(f"{server}/postgres", autocommit=True) as connection:
            connection.execute("CREATE DATABASE bench")
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(_PLAIN)
    drain_port, ports = _drain_port(), free_ports(len(servers))
    environment = {
        "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{drain_port}",
        "TPC_TOKENS_FILE": str(folder / "tokens"),
        # A machine that is busy for two seconds must not cost a connection.
        "GUNICORN_CMD_ARGS": "--keep-alive 60",
    }
    os.environ |= environment
    drain = Process(
        "drain",
        [sys.executable, "-m", "bench.drain", str(drain_port)],
        folder / "drain.log",
        {"PYTHONPATH": str(ROOT)},
    )
    services = [
        Ledger(url, port, folder / f"{n}.log", {})
        for n, (port, url) in enumerate(zip(ports, databases, strict=True))
    ]
    with stopping(drain, *services):
        drain.start()
        for service in services:
            service.start()
        spark = open_session(folder, settings)
        try:
            urls = {f"ledger-{n}": s.url for n, s in enumerate(services)}
            yield World(folder, spark, databases, urls, partitions)
        finally:
            spark.stop()


@functools.cache
def _drain_port() -> int:
    """One for the whole process: its exporter is made once, for one address."""
    return free_ports(1)[0]


def open_session(folder: Path, more: Mapping[str, str] = MappingProxyType({})) -> Any:
    """Start Spark."""
    os.environ.setdefault("PYSPARK_PYTHON", sys.executable)
    from pyspark.sql import SparkSession

    jar = subprocess.run(
        [ROOT / "tools" / "jdbc"], capture_output=True, text=True, check=True
    ).stdout.strip()
    settings = {
        "spark.jars": jar,
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.bindAddress": "127.0.0.1",
        "spark.driver.host": "127.0.0.1",
        "spark.driver.memory": "3g",
        "spark.sql.session.timeZone": "UTC",
        # As much as the most of a partition: no two files make one.
        "spark.sql.files.openCostInBytes": "128m",
        "spark.local.dir": str(folder / "spark"),
        **more,
    }
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PySpark's own
        builder = SparkSession.builder.master(f"local[{PARTITIONS}]").appName("bench")
        session = builder.config(map=settings).getOrCreate()
    session.sparkContext.setLogLevel("ERROR")
    return session
