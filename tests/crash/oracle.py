"""Compares what participants hold with the source. Shares no code with the library.

It reads tables by SQL, the partner by HTTP, and files by their names' ending, and knows
the names of the columns.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import urllib.request
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import pyarrow.parquet as pq
import sqlalchemy as sa

Record = tuple[str, int, int, int]
"""Application, batch, value, and how long its text is."""


@dataclasses.dataclass(frozen=True, slots=True)
class Places:
    """Where to look.

    Args:
        source: folder of the source's files.
        log: URL of the decision log.
        databases: URL of each participant's database, by name.
        table: what readers of the ledger SELECT from.
        partner: URL of the partner's list of notifications.
        files: a folder that is a participant, too; None where there is none.
        refused: values with this remainder, by 4, are in the table of rejected rows,
            in the database `rejected`, and nowhere else; None where there is none.
    """

    source: Path
    log: str
    databases: Mapping[str, str]
    table: str
    partner: str
    files: Path | None = None
    refused: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong; all zeros is what was promised.

    Args:
        lost: source records that a participant does not have.
        duplicated: records that a participant has more often than the source.
        split: batches that one participant shows and another does not.
        stuck: work that nobody will ever finish.
    """

    lost: int = 0
    duplicated: int = 0
    split: int = 0
    stuck: int = 0


def judge(places: Places, unfinished: int) -> Verdict:
    """Read everything and compare; `unfinished` processes are stuck too."""
    held = {"ledger": ledger(places), "notifier": notifications(places)}
    left = 0
    if places.files is not None:
        held["files"] = files(places.files)
        left = sum(1 for _ in places.files.glob(".tpc/*"))
    wanted = expected(places.source)
    refused = Counter(r for r in wanted.elements() if r[2] % 4 == places.refused)
    verdict = compare(wanted - refused, held)
    if places.refused is not None:
        kept = compare(refused, {"rejected": rejected(places)})
        verdict = dataclasses.replace(
            verdict,
            lost=verdict.lost + kept.lost,
            duplicated=verdict.duplicated + kept.duplicated,
        )
    stuck = sum(open_work(places)) + left + unfinished
    return dataclasses.replace(verdict, stuck=stuck)


def compare(wanted: Counter[Record], held: Mapping[str, Counter[Record]]) -> Verdict:
    """Count what is lost, duplicated and split."""
    return Verdict(
        lost=sum((wanted - has).total() for has in held.values()),
        duplicated=sum((has - wanted).total() for has in held.values()),
        split=len(_split(held.values())),
    )


def _split(held: Iterable[Counter[Record]]) -> set[tuple[str, int]]:
    """Return the batches that some participants show and others don't."""
    shown = [{(application, batch) for application, batch, *_ in has} for has in held]
    every = {batch for some in shown for batch in some}
    return {batch for batch in every if not all(batch in some for some in shown)}


def expected(folder: Path) -> Counter[Record]:
    """Return the records of the source, each once."""
    return Counter(
        (file.parent.name, int(file.stem), value, held["text"])
        for file in folder.glob("*/*.json")
        for held in [json.loads(file.read_text())]
        for partition in held["partitions"]
        for part in partition
        for value in part
    )


def ledger(places: Places) -> Counter[Record]:
    """Return what readers of the ledger see."""
    with _reading(places.databases["ledger"]) as connection:
        if places.table not in _tables(connection):
            return Counter()
        rows = connection.execute(
            sa.text(
                f"SELECT application, batch, value, length(text) FROM {places.table}"
            )
        )
        return Counter(tuple(row) for row in rows)


def rejected(places: Places) -> Counter[Record]:
    """Return what is in the table of rejected rows."""
    with _reading(places.databases["rejected"]) as connection:
        if "rejected" not in _tables(connection):
            return Counter()
        texts = connection.execute(sa.text("SELECT record FROM rejected")).scalars()
        rows = [json.loads(text) for text in texts]
    return Counter(
        (row["application"], row["batch"], row["value"], len(row["text"]))
        for row in rows
    )


def write(url: str, statement: str) -> None:
    """Change a database."""
    with _reading(url) as connection:
        connection.execute(sa.text(statement))
        connection.commit()


def notifications(places: Places) -> Counter[Record]:
    """Return what the partner has been told: one per idempotency key."""
    found: Counter[Record] = Counter()
    after: int | None = 0
    while after is not None:
        with urllib.request.urlopen(f"{places.partner}?after={after}") as answer:
            page = json.load(answer)
        for body in (item["body"] for item in page["notifications"]):
            where = body["application"], body["batch"]
            found[(*where, body["value"], len(body["text"]))] += 1
        after = page["next"]
    return found


def files(folder: Path) -> Counter[Record]:
    """Return what a reader of the folder sees: also what lies aside, if it looks so."""
    found: Counter[Record] = Counter()
    for file in folder.rglob("*.parquet"):
        batch = int(file.parent.name.removeprefix("batch="))
        for row in pq.ParquetFile(file).read().to_pylist():
            found[row["application"], batch, row["value"], len(row["text"])] += 1
    return found


def attempts(places: Places, batch: int) -> int:
    """Return how often a batch was begun, by the decision log."""
    with _reading(places.log) as connection:
        return _count(connection, f"tpc_transaction WHERE batch = {batch}")


def open_work(places: Places) -> tuple[int, int, int]:
    """Count unfinished transactions, branches in doubt, and requests not sent."""
    databases = places.databases
    return (
        _transactions(places.log),
        sum(_branches(url) for url in databases.values()),
        _requests(databases["notifier"]),
    )


def _transactions(log: str) -> int:
    with _reading(log) as connection:
        if "tpc_transaction" not in _tables(connection):
            return 0
        return _count(connection, "tpc_transaction WHERE finished IS NULL")


def _branches(database: str) -> int:
    """Count branches without a decision, and whatever the database itself holds."""
    with _reading(database) as connection:
        journals = [t for t in _tables(connection) if t.endswith("_tpc_branch")]
        found = sum(_count(connection, f"{t} WHERE sealed IS NULL") for t in journals)
        if connection.dialect.name == "postgresql":
            mine = "pg_prepared_xacts WHERE database = current_database()"
            found += _count(connection, mine)
        return found


def _requests(database: str) -> int:
    """Count requests that wait for the partner or for a person."""
    with _reading(database) as connection:
        if "outbox_tpc" not in _tables(connection):
            return 0
        queued = (
            "outbox_tpc r JOIN outbox_tpc_queue q ON q.tag = r.tpc_tag "
            "AND r.tpc_row >= q.next_row"
        )
        return _count(connection, queued) + _count(connection, "outbox_tpc_quarantine")


def _count(connection: sa.Connection, what: str) -> int:
    return int(connection.execute(sa.text(f"SELECT count(*) FROM {what}")).scalar_one())


def _tables(connection: sa.Connection) -> list[str]:
    inspector = sa.inspect(connection)
    return [*inspector.get_table_names(), *inspector.get_view_names()]


@contextlib.contextmanager
def _reading(url: str) -> Iterator[sa.Connection]:
    """Open a connection of our own; nothing is kept open behind it."""
    plain = sa.make_url(url)
    if plain.get_backend_name() == "postgresql":
        plain = plain.set(drivername="postgresql+psycopg")
    engine = sa.create_engine(plain, poolclass=sa.NullPool)
    with engine.connect() as connection:
        yield connection
