"""A log with very many transactions, and ledgers that hold the unfinished ones.

The finished ones are of one application.

The unfinished ones are decided an hour ago, and prepared at every participant: there is
most to say of them. They belong to a hundred applications, of which one has the
finished ones, too. The library begins and decides the first. All their checksums are
right: a watcher refuses an application with a wrong one.
"""

from __future__ import annotations

import contextlib
import dataclasses
import time
from collections.abc import Iterator, Sequence
from typing import Any, Final

import sqlalchemy as sa

from bench.driver import APPLICATION, apply, coordinator
from bench.empty import obedient, write_nothing
from bench.growth.finished import changing, insert, repeat_first, write_like
from bench.stored import LEDGER
from tracing_2pc.core.model import BranchId, Receipt, TransactionId, TransactionRecord
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, Vote
from tracing_2pc.participant import TaggedRows
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.store.log import schema

NAMES: Final = ("ledger-1", "ledger-2")
"""Of the participants."""

ROWS: Final = 10
"""In the branch that an unfinished transaction has at each participant."""

_APPLICATIONS: Final = 100
_AGO: Final = 3600.0
_CARRIER: Final = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"}
_DIGEST: Final = f"sha-256=:{'A' * 43}=:"


def fill_log(url: str, finished: int, unfinished: int) -> list[TransactionId]:
    """Make a log with so many of both; return the unfinished ones.

    Raises:
        RuntimeError: the library does not read what was written.
    """
    with contextlib.closing(open_log(url)) as log:
        driver = coordinator(log, obedient(*NAMES))
        apply(driver, 0, write_nothing)  # by the library: the others are like it
        repeat_first(log, url, finished)
        ids = list(_spread(finished, unfinished))
        decided = _decide(log, ids[0])
        with changing(url) as connection:
            _age(connection)
            names = sorted({id_.application for id_ in ids} - {APPLICATION})
            known = {"forgotten_through": None, "durable_forgotten_through": None}
            applications = [{"name": name, "query": name, **known} for name in names]
            if applications:
                insert(connection, schema.application, applications)
            tables = (schema.transaction, schema.delivery, schema.receipt)
            write_like(connection, decided, ids[1:], tables)
        for id_ in (TransactionId(APPLICATION, finished - 1, 1), ids[0], ids[-1]):
            _read(log, id_)
        if len(log.unfinished()) != unfinished:
            raise RuntimeError(f"the log has not {unfinished} unfinished transactions")
    return ids


def _spread(batch: int, count: int) -> Iterator[TransactionId]:
    """Return ids: each application has the same batches, from this one on."""
    for number in range(count):
        place, of = divmod(number, _APPLICATIONS)
        name = f"{APPLICATION}-{of}" if of else APPLICATION
        yield TransactionId(name, batch + place, 1)


def _read(log: SqlDecisionLog, id_: TransactionId) -> TransactionRecord:
    if (record := log.read(id_)) is None:
        raise RuntimeError(f"{id_} is not in the log")
    return record


def _decide(log: SqlDecisionLog, id_: TransactionId) -> TransactionRecord:
    begun = log.begin(
        id_.application,
        id_.batch,
        Opening(run="run", query="query", participants=NAMES, carrier=_CARRIER),
    )
    branch = BranchId(0, 0)
    receipts = [Receipt(branch, name, ROWS, _DIGEST, Vote.COMMIT) for name in NAMES]
    log.decide(begun.record.id, Decision.COMMIT, receipts)
    return _read(log, begun.record.id)


def _age(connection: sa.Connection) -> None:
    t = schema.transaction
    times = {t.c.started: t.c.started - _AGO, t.c.decided: t.c.decided - _AGO}
    connection.execute(t.update().where(t.c.finished.is_(None)).values(times))


def fill_ledger(url: str, name: str, prepared: Sequence[TransactionId]) -> None:
    """Put a branch of each transaction into a ledger's journal, prepared and hidden.

    The ledger is not running. Its rows are left out: who looks does not ask for them.
    """
    resource = TaggedRows(url, LEDGER[0])
    resource.open()
    resource.close()
    metadata = sa.MetaData()
    with changing(url) as connection:
        metadata.reflect(connection)
        tables = {
            suffix: metadata.tables[f"{LEDGER[0]}_tpc_{suffix}"]
            for suffix in ("application", "transaction", "branch", "hidden")
        }
        for suffix, rows in _journal(name, prepared).items():
            insert(connection, tables[suffix], rows)


def _journal(
    name: str, prepared: Sequence[TransactionId]
) -> dict[str, list[dict[str, Any]]]:
    now = time.time()
    keys = [dataclasses.asdict(id_) for id_ in prepared]
    names = sorted({id_.application for id_ in prepared})
    branch = {
        "partition": 0,
        "task_attempt": 0,
        "state": "prepared",
        "rows": ROWS,
        "digest": _DIGEST,
        "since": now - _AGO,
    }
    return {
        "application": [{"application": n, "participant": name} for n in names],
        "transaction": [{**key, "carrier": "{}"} for key in keys],
        "branch": [{"tag": n, **key, **branch} for n, key in enumerate(keys, 1)],
        "hidden": [{"tag": n} for n in range(1, len(keys) + 1)],
    }
