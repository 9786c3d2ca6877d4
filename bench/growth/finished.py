"""An empty batch, with ever more finished transactions in the decision log.

The library writes the first of them, and the database copies its rows: the others are
the same but for the number of the batch. The newest are read through the library, which
refuses a record that is not whole.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from bench import pair
from bench.driver import APPLICATION, apply, coordinator
from bench.empty import obedient, write_nothing
from bench.goals import GOALS
from bench.growth.sizes import Sizes
from bench.postgresql import postgresql
from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.states import TransactionState
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.store.log import schema
from tracing_2pc.store.log.facts import checksum_of

_READ: Final = 100
"""Finished transactions, the newest, whose checksums are right."""
_AT_ONCE: Final = 10_000
"""Transactions that are written together."""


def measure(folder: Path, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield the points and the goal of each database."""
    files = itertools.count()
    yield from _measure(
        "sqlite", lambda: f"sqlite:///{folder / str(next(files))}.db", sizes
    )
    with postgresql() as new_database:
        yield from _measure("postgresql", new_database, sizes)


def _measure(
    kind: str, new_database: Callable[[], str], sizes: Sizes
) -> Iterator[dict[str, Any]]:
    with contextlib.ExitStack() as stack:
        arms: dict[str, pair.Block] = {}
        for count in sizes.finished:
            log, next_batch = filled_log(new_database(), count)
            stack.callback(log.close)
            arms[str(count)] = _block(log, next_batch, sizes.transactions)
        seconds = pair.measure(arms, sizes.rounds)
    base = seconds[str(sizes.finished[0])]
    settings = {"transactions": sizes.transactions}
    for count in sizes.finished:
        ratio = pair.compare(seconds[str(count)], base)
        height = {"one empty batch": ratio.ratio}
        yield pair.point(f"finished-{kind}", count, ratio, height, settings)
    goal = f"I12-{kind}"
    most = {**settings, "finished": sizes.finished[-1]}
    yield pair.line(goal, ratio, GOALS[goal].limit, most)


def _block(log: SqlDecisionLog, batch: int, transactions: int) -> pair.Block:
    driver = coordinator(log, obedient())
    batches = itertools.count(batch)

    def block() -> float:
        started = time.perf_counter()
        for number in itertools.islice(batches, transactions):
            apply(driver, number, write_nothing)
        return time.perf_counter() - started

    return block


def filled_log(url: str, count: int) -> tuple[SqlDecisionLog, int]:
    """Make a log with so many finished transactions; return the number of the next.

    Raises:
        RuntimeError: what was written is not what the library reads.
    """
    log = open_log(url)
    if count:
        apply(coordinator(log, obedient()), 0, write_nothing)
        repeat_first(log, url, count)
        for batch in {0, count - 1}:
            _check(log, batch)
    return log, count


def repeat_first(log: SqlDecisionLog, url: str, count: int) -> None:
    """Fill a log with transactions like the first, batch 0, up to so many of them.

    The database copies its rows; of the newest, which are read, the checksums are
    right, too. Of the others nobody reads more than an entry of an index.
    """
    first = log.read(_id(0))
    assert first is not None
    newest = range(max(1, count - _READ), count)
    with changing(url) as connection:
        _repeat(connection, first.id, newest.start - 1)
        # Without receipts: the next commit drops those of the one before.
        tables = (schema.transaction, schema.delivery)
        write_like(connection, first, map(_id, newest), tables)


def _repeat(connection: sa.Connection, first: TransactionId, last: int) -> None:
    """Have the database write the rows of batch 0 for the batches up to this one."""
    id_ = f"'{first.application}.' || n || '.1'"
    for table, key, change in (
        (schema.transaction, "id", {"id": id_, "batch": "n"}),
        (schema.delivery, "transaction_id", {"transaction_id": id_}),
    ):
        where = f"{key} = '{first}'"
        repeat(connection, table.name, [c.name for c in table.c], change, where, last)


def repeat(
    connection: sa.Connection,
    table: str,
    columns: Sequence[str],
    change: dict[str, str],
    where: str,
    last: int,
) -> None:
    """Have the database write the rows of `where` again for each `n` up to the last.

    `change` has SQL for columns that differ.
    """
    names = ", ".join(f'"{name}"' for name in columns)
    values = ", ".join(change.get(name, f'"{name}"') for name in columns)
    connection.exec_driver_sql(
        "WITH RECURSIVE numbers (n) AS "
        f"(SELECT 1 UNION ALL SELECT n + 1 FROM numbers WHERE n < {last}) "
        f"INSERT INTO {table} ({names}) SELECT {values} FROM {table}, numbers "
        f"WHERE {where} AND n <= {last}"
    )


@contextlib.contextmanager
def changing(url: str) -> Iterator[sa.Connection]:
    """Open a database to be filled in bulk; then have its statistics made.

    As autovacuum does it while a log grows.
    """
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    try:
        with engine.begin() as connection:
            yield connection
        if engine.dialect.name == "postgresql":
            how = engine.execution_options(isolation_level="AUTOCOMMIT")
            with how.connect() as connection:
                connection.execute(sa.text("VACUUM ANALYZE"))
    finally:
        engine.dispose()


def write_like(
    connection: sa.Connection,
    record: TransactionRecord,
    ids: Iterable[TransactionId],
    tables: Sequence[sa.Table],
) -> None:
    """Write the rows that a record has in these tables for other transactions, too.

    Only what follows from the id is another; the checksums are right.
    """
    first = {table: rows_of(connection, table, record.id) for table in tables}
    rest = iter(ids)
    while some := list(itertools.islice(rest, _AT_ONCE)):
        for table, rows in first.items():
            copies = [_of(record, id_, row) for id_ in some for row in rows]
            insert(connection, table, copies)


def rows_of(
    connection: sa.Connection, table: sa.Table, transaction: TransactionId
) -> list[dict[str, Any]]:
    """Return the rows of one transaction."""
    key = table.c.id if table is schema.transaction else table.c.transaction_id
    rows = connection.execute(sa.select(table).where(key == str(transaction)))
    return [row._asdict() for row in rows]


def _of(
    record: TransactionRecord, id_: TransactionId, row: dict[str, Any]
) -> dict[str, Any]:
    if "transaction_id" in row:
        return {**row, "transaction_id": str(id_)}
    checksum = checksum_of(dataclasses.replace(record, id=id_))
    key = {"id": str(id_), **dataclasses.asdict(id_)}
    return {**row, **key, "checksum": checksum}


def insert(
    connection: sa.Connection, table: sa.Table, rows: Sequence[dict[str, Any]]
) -> None:
    """Write rows in the fastest way that the database has."""
    names = ", ".join(f'"{name}"' for name in rows[0])
    raw: Any = connection.connection.driver_connection
    if connection.dialect.name == "postgresql":
        copying = f"COPY {table.name} ({names}) FROM STDIN"
        with raw.cursor().copy(copying) as copy:
            for row in rows:
                copy.write_row(list(row.values()))
        return
    marks = ", ".join("?" * len(rows[0]))
    inserting = f"INSERT INTO {table.name} ({names}) VALUES ({marks})"
    raw.executemany(inserting, [tuple(row.values()) for row in rows])


def _check(log: SqlDecisionLog, batch: int) -> None:
    """Read a record through the library, which refuses one that is not whole."""
    record, first = log.read(_id(batch)), log.read(_id(0))
    assert first is not None
    # The next commit drops the receipts of the one before.
    receipts = first.receipts if batch == 0 else ()
    same = dataclasses.replace(first, id=_id(batch), receipts=receipts)
    if record != same or first.state is not TransactionState.COMMITTED:
        raise RuntimeError(f"{_id(batch)} is not what the library writes: {record}")


def _id(batch: int) -> TransactionId:
    return TransactionId(APPLICATION, batch, 1)
