"""Two-phase commit by plain SQL, on two PostgreSQL servers, beside the library.

    coordinator   the library's coordinator, its log on the first server; its two
                  participants acknowledge without being asked anything
    pgbench       BEGIN, PREPARE TRANSACTION, COMMIT PREPARED by PostgreSQL's program,
                  at one server and then at the other, without a row
    psycopg       the same statements by a Python client: both are prepared before the
                  first is committed
    row           the coordinator and two ledgers under gunicorn, a row to each
    psycopg-row   psycopg, and an INSERT of the row at each server

Nobody traces. Servers flush, and rows are counted and removed after each block.
"""

from __future__ import annotations

import contextlib
import itertools
import re
import subprocess
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from bench import pair
from bench.driver import Write, apply, coordinator, tasks
from bench.empty import obedient, write_nothing
from bench.ledgers import running
from bench.peers.sizes import Sizes
from bench.postgresql import postgresql, programs
from bench.records import orders
from bench.stored import LEDGER, check_and_empty
from tracing_2pc import ParticipantSink
from tracing_2pc.core.ports import DecisionLog, Participant
from tracing_2pc.store import open_log

if TYPE_CHECKING:
    from collections.abc import Mapping

    import psycopg

EMPTY: Final = {"empty pgbench": "pgbench", "empty psycopg": "psycopg"}
"""What the coordinator's empty transaction is compared with."""
_SCRIPT: Final = "BEGIN;\nPREPARE TRANSACTION 'bench';\nCOMMIT PREPARED 'bench';\n"
_TABLE: Final = (
    "CREATE TABLE plain (id bigint, day date, origin text, carrier text, "
    "amount double precision, units int, seen timestamptz, remark text)"
)
_INSERT: Final = "INSERT INTO plain VALUES (%s, %s, %s, %s, %s, %s, %s, %s)"


def measure(folder: Path, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield both comparisons of the empty transaction, then that of one row."""
    count = sizes.transactions
    with contextlib.ExitStack() as stack:
        servers = [stack.enter_context(postgresql()) for _ in range(2)]
        plain = [new_database() for new_database in servers]
        ledgers = {f"ledger-{n}": server() for n, server in enumerate(servers)}
        log = stack.enter_context(contextlib.closing(open_log(servers[0]())))
        clients = [stack.enter_context(_connected(url)) for url in plain]
        empty = {
            "coordinator": _coordinator(log, obedient(), write_nothing, "empty", count),
            "pgbench": _pgbench(folder, plain, count),
            "psycopg": _psycopg(clients, count),
        }
        costs = pair.measure(empty, sizes.rounds)
        settings = {"transactions": count}
        for name, base in EMPTY.items():
            ratio = pair.compare(costs["coordinator"], costs[base])
            yield pair.peer(name, ratio, settings)
        services = stack.enter_context(running(folder, ledgers))
        sink = ParticipantSink(services.urls, token=services.token)
        write = tasks(sink, [orders(1)])
        with_row = {
            "row": _checked(
                _coordinator(log, sink.participants, write, "row", count),
                list(ledgers.values()),
                count,
                *LEDGER,
            ),
            "psycopg-row": _checked(
                _psycopg(clients, count, list(orders(1).to_pylist()[0].values())),
                plain,
                count,
                *("plain", "plain"),
            ),
        }
        costs = pair.measure(with_row, sizes.rounds)
        ratio = pair.compare(costs["row"], costs["psycopg-row"])
        yield pair.peer("row psycopg", ratio, settings)


def _coordinator(
    log: DecisionLog,
    participants: Mapping[str, Participant],
    write: Write,
    application: str,
    count: int,
) -> pair.Block:
    driver = coordinator(log, participants, application)
    batches = itertools.count()

    def block() -> float:
        started = time.perf_counter()
        for batch in itertools.islice(batches, count):
            apply(driver, batch, write, query=application)
        return time.perf_counter() - started

    return block


def _pgbench(folder: Path, urls: Sequence[str], count: int) -> pair.Block:
    """Return an arm that takes what pgbench says: neither its start nor connecting."""
    script = folder / "transaction.sql"
    script.write_text(_SCRIPT)
    command = [str(programs() / "pgbench"), "-n", "-t", str(count), "-f", str(script)]

    def block() -> float:
        average = 0.0
        for url in urls:
            done = subprocess.run(
                [*command, url], capture_output=True, text=True, check=True
            )
            (said,) = re.findall(r"latency average = ([\d.]+) ms", done.stdout)
            average += float(said) / 1000
        return average * count

    return block


def _psycopg(
    clients: Sequence[psycopg.Connection], count: int, row: Sequence[Any] = ()
) -> pair.Block:
    def block() -> float:
        started = time.perf_counter()
        for _ in range(count):
            for client in clients:
                client.execute("BEGIN")
                if row:
                    client.execute(_INSERT, row)
                client.execute("PREPARE TRANSACTION 'bench'")
            for client in clients:
                client.execute("COMMIT PREPARED 'bench'")
        return time.perf_counter() - started

    return block


def _checked(
    block: pair.Block, urls: Sequence[str], rows: int, shown: str, stored: str
) -> pair.Block:
    def checked() -> float:
        cost = block()
        for url in urls:
            check_and_empty(url, rows, shown, stored)
        return cost

    return checked


@contextlib.contextmanager
def _connected(url: str) -> Iterator[psycopg.Connection]:
    import psycopg

    with psycopg.connect(url, autocommit=True) as client:
        client.execute(_TABLE)
        yield client
