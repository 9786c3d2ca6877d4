"""Rows of the decision log to records and back, with the checksum that guards them."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from typing import Any

import sqlalchemy as sa

from tracing_2pc.errors import DecisionLogError
from tracing_2pc.model import (
    BranchId,
    Carrier,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.states import Decision, TransactionState, Vote
from tracing_2pc.store.receipts import canonical

Row = sa.RowMapping


def checksum(record: TransactionRecord) -> str:
    """SHA-256 over what the protocol reads: a torn or edited record is noticed.

    The receipts of what is committed everywhere are dropped later: not over those.
    """
    committed = record.state is TransactionState.COMMITTED
    read = {
        "id": str(record.id),
        "batch": record.id.batch,
        "attempt": record.id.attempt,
        "run": record.run,
        "state": str(record.state),
        "decision": record.decision and str(record.decision),
        "participants": record.participants,
        "deadline": record.deadline,
        "own_sinks": sorted(record.own_sinks),
        "given_up": sorted(record.given_up),
        "receipts": [
            [
                str(r.branch),
                r.rows,
                r.digest,
                {name: str(vote) for name, vote in r.votes.items()},
                r.handle,
            ]
            for r in (() if committed else record.receipts)
        ],
    }
    return hashlib.sha256(canonical(read).encode()).hexdigest()


def changing(record: TransactionRecord) -> dict[str, Any]:
    """Columns of a transaction that a move may change, checksum included."""
    return {
        "state": str(record.state),
        "decision": record.decision and str(record.decision),
        "decided": record.decided,
        "finished": record.finished,
        "rows": record.rows if record.decision else None,
        "checksum": checksum(record),
    }


def carrier_of(text: str) -> Carrier:
    """Read the trace context of an attempt. What cannot be read is only not linked."""
    try:
        return dict(json.loads(text))
    except (TypeError, ValueError):
        return {}


def transaction_row(record: TransactionRecord) -> dict[str, Any]:
    """All columns of a transaction."""
    return {
        "id": str(record.id),
        "application": record.id.application,
        "batch": record.id.batch,
        "attempt": record.id.attempt,
        "run": record.run,
        "started": record.started,
        "timeout": record.timeout,
        "deadline": record.deadline,
        "carrier": canonical(record.carrier),
        **changing(record),
    }


def delivery_rows(record: TransactionRecord) -> list[dict[str, Any]]:
    """One row per participant: on record before it is asked anything."""
    return [
        {
            "transaction_id": str(record.id),
            "participant": participant,
            "position": position,
            "retries": 0,
            "own_sink": participant in record.own_sinks,
        }
        for position, participant in enumerate(record.participants)
    ]


def receipt_rows(record: TransactionRecord) -> list[dict[str, Any]]:
    """One row per vote; `position` says which votes are one receipt."""
    return [
        {
            "transaction_id": str(record.id),
            "participant": participant,
            "branch": str(receipt.branch),
            "position": position,
            "vote": str(vote),
            "rows": receipt.rows,
            "digest": receipt.digest,
            "handle": canonical(receipt.handle),
        }
        for position, receipt in enumerate(record.receipts)
        for participant, vote in receipt.votes.items()
    ]


def record_from(
    row: Row, deliveries: Iterable[Row], receipts: Iterable[Row]
) -> TransactionRecord:
    """Put a record together, and trust it only if its checksum says so.

    Args:
        row: the transaction, with the application's watermark.
        deliveries: its participants, by position.
        receipts: its votes, by position.

    Raises:
        DecisionLogError: it does not match its checksum; nothing of it is guessed.
    """
    try:
        record = _record(row, list(deliveries), receipts)
        if checksum(record) == row["checksum"]:
            return record
    except (TypeError, ValueError):
        pass  # not even readable: refused like any other mismatch
    raise DecisionLogError(
        f"record {row['id']} does not match its checksum: refused",
        transaction_id=str(row["id"]),
    )


def _record(
    row: Row, deliveries: list[Row], receipts: Iterable[Row]
) -> TransactionRecord:
    identity = TransactionId(row["application"], row["batch"], row["attempt"])
    if str(identity) != row["id"]:
        raise ValueError("the id and its parts differ")
    return TransactionRecord(
        id=identity,
        run=row["run"],
        state=TransactionState(row["state"]),
        decision=row["decision"] and Decision(row["decision"]),
        participants=tuple(d["participant"] for d in deliveries),
        acknowledged=frozenset(
            d["participant"] for d in deliveries if d["acknowledged"] is not None
        ),
        carrier=json.loads(row["carrier"]),
        started=row["started"],
        decided=row["decided"],
        finished=row["finished"],
        receipts=_receipts(receipts),
        rows=row["rows"] or 0,
        watermark=row["watermark"],
        timeout=row["timeout"],
        deadline=row["deadline"],
        own_sinks=frozenset(d["participant"] for d in deliveries if d["own_sink"]),
        given_up=frozenset(
            d["participant"] for d in deliveries if d["given_up"] is not None
        ),
    )


def _receipts(rows: Iterable[Row]) -> tuple[Receipt, ...]:
    found: dict[int, Receipt] = {}
    for row in rows:
        votes = dict(found[row["position"]].votes) if row["position"] in found else {}
        found[row["position"]] = Receipt(
            branch=BranchId.parse(row["branch"]),
            rows=row["rows"],
            digest=row["digest"],
            votes={**votes, row["participant"]: Vote(row["vote"])},
            handle=json.loads(row["handle"]),
        )
    return tuple(found.values())
