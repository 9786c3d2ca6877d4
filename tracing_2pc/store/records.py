"""Records inside one transaction of the database: load, lock, add, change."""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import sqlalchemy as sa

from tracing_2pc.model import TransactionId, TransactionRecord
from tracing_2pc.states import TransactionState
from tracing_2pc.store import rows, rules, schema
from tracing_2pc.store import statements as sql


def load(
    connection: sa.Connection, which: sa.ColumnElement[bool], values: Mapping[str, Any]
) -> list[TransactionRecord]:
    """Return the records, each of them checked, in batch order.

    Raises:
        DecisionLogError: one of them does not match its checksum.
    """
    found = connection.execute(sql.load_transactions(which), values).mappings().all()
    if not found:
        return []
    deliveries, receipts = (
        _by_transaction(
            connection.execute(sql.load_parts(part, which), values).mappings()
        )
        for part in (schema.delivery, schema.receipt)
    )
    return [
        rows.record_from(row, deliveries[row["id"]], receipts[row["id"]])
        for row in found
    ]


def _by_transaction(found: Iterable[rows.Row]) -> dict[str, list[rows.Row]]:
    parts: dict[str, list[rows.Row]] = collections.defaultdict(list)
    for row in found:
        parts[row["transaction_id"]].append(row)
    return parts


def one(
    connection: sa.Connection, transaction: TransactionId
) -> TransactionRecord | None:
    """Return the record, None if there is none."""
    return next(iter(load(connection, sql.ONE, {"one": str(transaction)})), None)


def locked(
    connection: sa.Connection, transaction: TransactionId
) -> TransactionRecord | None:
    """Lock the application, then return the record, None if there is none."""
    connection.execute(sql.LOCK_APPLICATION, {"of": transaction.application})
    return one(connection, transaction)


def locked_known(
    connection: sa.Connection, transaction: TransactionId
) -> TransactionRecord:
    """Lock the application, then return the record, which must be there."""
    if (record := locked(connection, transaction)) is None:
        raise rules.unknown(transaction)
    return record


def add(connection: sa.Connection, record: TransactionRecord) -> None:
    """Insert a record and its participants."""
    connection.execute(sql.ADD_TRANSACTION, rows.transaction_row(record))
    if deliveries := rows.delivery_rows(record):
        connection.execute(sql.ADD_DELIVERIES, deliveries)


def change(
    connection: sa.Connection, record: TransactionRecord, **columns: Any
) -> None:
    """Write the record's new state, its checksum, and further columns."""
    changed = {"one": str(record.id), **rows.changing(record), **columns}
    connection.execute(sql.CHANGE, changed)


def finish(connection: sa.Connection, record: TransactionRecord) -> None:
    """Write the record closed; drop the receipts that no replay can ask for now."""
    change(connection, record)
    if record.state is TransactionState.COMMITTED:
        of = {"of": record.id.application, "in_batch": record.id.batch}
        connection.execute(sql.FORGET_EARLIER_RECEIPTS, of)


def decide(connection: sa.Connection, record: TransactionRecord) -> None:
    """Write the record's decision and its receipts."""
    change(connection, record)
    if receipts := rows.receipt_rows(record):
        connection.execute(sql.ADD_RECEIPTS, receipts)
