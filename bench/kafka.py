"""Micro-batches of real Spark to Kafka: exactly once, beside a plain producer.

    relay         two_phase_commit to a service whose outbox has a relay, in a process
                  of its own
    producer      an idempotent producer in each executor, which is kept: at least once

Each arm is measured until its callback returns, and until a reader of what is committed
has the last record. Without `make kafka`, nothing is measured.
"""

from __future__ import annotations

import contextlib
import functools
import os
import secrets
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench.micro_batches import PARTITIONS, ROOT, WARM_UP, Arm, World, open_session
from bench.micro_batches import stream as stream_batches
from bench.pair import compare, line
from bench.postgresql import postgresql
from participants.processes import Process, free_ports, stopping

if TYPE_CHECKING:
    from flask import Flask

ROWS: Final = 10_000
ROUNDS: Final = 21
LIMITS: Final = {"K1": 1.5, "K2": 1.5}
"""Until the callback returns; until a reader has the last record."""

TOPIC: Final = "TPC_BENCH_TOPIC"
SERVERS: Final = "TPC_BENCH_SERVERS"
DATABASE: Final = "TPC_BENCH_DATABASE"


def is_ready() -> bool:
    """Whether `make kafka` has been here."""
    return Path(os.environ.get("TPC_KAFKA", ROOT / ".cache" / "kafka")).exists()


def measure(
    most: int, rows: int = ROWS, warm_up: int = WARM_UP
) -> Iterator[dict[str, Any]]:
    """Yield a line for each goal."""
    if not is_ready():
        return
    with contextlib.ExitStack() as stack:
        place = tempfile.TemporaryDirectory(prefix="tpc-bench-")
        world = stack.enter_context(_world(Path(stack.enter_context(place))))
        seconds = _run(world, rows, min(most, ROUNDS), warm_up)
    for number, (goal, limit) in enumerate(LIMITS.items()):
        ours, base = (
            [times[number] for times in seconds[name]] for name in ("relay", "producer")
        )
        settings = {"rows": rows, "partitions": PARTITIONS}
        yield line(goal, compare(ours, base), limit, settings)


def _run(
    world: World, rows: int, rounds: int, warm_up: int
) -> Mapping[str, list[tuple[float, float]]]:
    arms = {"relay": _relay(world), "producer": _producer()}
    names = list(arms)
    seconds: dict[str, list[tuple[float, float]]] = {name: [] for name in names}
    with _reading() as wait:

        def batch(df: Any, number: int) -> None:
            turn, place = divmod(number, len(names))
            name = (names if turn % 2 else names[::-1])[place]
            start = time.perf_counter()
            arms[name](df, turn)
            returned = time.perf_counter() - start
            wait(rows)
            if turn >= warm_up:
                seconds[name].append((returned, time.perf_counter() - start))

        stream_batches(world, rows, (rounds + warm_up) * len(names), batch)
    return seconds


# --- arms ---------------------------------------------------------------------------


def _relay(world: World) -> Arm:
    from tracing_2pc import ParticipantSink
    from tracing_2pc.spark import two_phase_commit

    sink = ParticipantSink(world.participants, token=f"file:{world.folder / 'token'}")
    return two_phase_commit(sink, application="bench", log=world.databases[0])


def create_app() -> Flask:
    """Make the service with the relay."""
    from flask import Flask

    from tracing_2pc.http.server import participant_blueprint
    from tracing_2pc.kafka import KafkaRelay
    from tracing_2pc.outbox import Outbox

    app = Flask(__name__)
    relay = KafkaRelay(os.environ[SERVERS], topic=os.environ[TOPIC], key="id")
    outbox = Outbox(f"env:{DATABASE}", relay, name="totals")
    app.register_blueprint(participant_blueprint(outbox, name="totals"))
    app.extensions["resource"] = outbox
    return app


def _producer() -> Arm:
    def write(df: Any, _: int) -> None:
        records = df.selectExpr(
            "CAST(id AS STRING) AS id", "to_json(struct(*)) AS text"
        )
        records.foreachPartition(_send)

    return write


def _send(rows: Iterator[Any]) -> None:
    """Send a partition's records, with the producer of this Python worker."""
    producer, topic = _kept_producer(), os.environ[TOPIC]
    for number, row in enumerate(rows):
        producer.produce(topic, row.text, row.id)
        if number % 1_000 == 0:
            producer.poll(0)
    producer.flush()


@functools.cache
def _kept_producer() -> Any:
    from confluent_kafka import Producer

    settings = {"enable.idempotence": True, "linger.ms": 5}
    return Producer({"bootstrap.servers": os.environ[SERVERS], **settings})


@contextlib.contextmanager
def _reading() -> Iterator[Callable[[int], None]]:
    """Give what waits until a reader has so many more records."""
    from confluent_kafka import OFFSET_END, Consumer, TopicPartition
    from support.waiting import PATIENT

    consumer = Consumer(
        {
            "bootstrap.servers": os.environ[SERVERS],
            "group.id": "bench",
            "enable.auto.commit": False,
            "isolation.level": "read_committed",
        }
    )
    topic = os.environ[TOPIC]
    consumer.assign([TopicPartition(topic, n, OFFSET_END) for n in range(PARTITIONS)])
    consumer.poll(1)

    def wait(rows: int) -> None:
        while rows:
            rows -= len(consumer.consume(rows, PATIENT))

    with contextlib.closing(consumer):
        yield wait


# --- the world ----------------------------------------------------------------------


@contextlib.contextmanager
def _world(folder: Path) -> Iterator[World]:
    sys.path.append(str(ROOT / "tests"))  # the broker is that of the tests
    from bench.kafka_broker import running

    token = secrets.token_hex(16)
    (folder / "token").write_text(token)
    (folder / "tokens").write_text(f"job {token}\n")
    (folder / "kafka").mkdir()
    drain_port, port = free_ports(2)
    drained = [sys.executable, "-m", "bench.drain", str(drain_port)]
    served = [
        *(sys.executable, "-m", "gunicorn", "--bind", f"127.0.0.1:{port}"),
        *("--config", str(ROOT / "participants" / "gunicorn_conf.py")),
        "bench.kafka:create_app()",
    ]
    with contextlib.ExitStack() as stack:
        new_database = stack.enter_context(postgresql())
        broker = stack.enter_context(running(folder / "kafka"))
        os.environ |= {
            "PYTHONPATH": str(ROOT),
            "OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{drain_port}",
            "TPC_TOKENS_FILE": str(folder / "tokens"),
            SERVERS: broker.address,
            TOPIC: broker.topic(PARTITIONS),
            DATABASE: new_database(),
        }
        drain = Process("drain", drained, folder / "drain.log")
        service = Process("relay", served, folder / "relay.log")
        stack.enter_context(stopping(drain, service))
        drain.start()
        service.start()
        url = f"http://127.0.0.1:{port}"
        service.until_answers(f"{url}/health/ready", 120)
        spark = open_session(folder)
        stack.callback(spark.stop)
        yield World(folder, spark, [new_database()], {"totals": url}, PARTITIONS)
