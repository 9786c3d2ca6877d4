"""What a commit keeps of its receipts, and what they must say (rule 1)."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final, NoReturn

from tracing_2pc.errors import ContractError
from tracing_2pc.model import MAX_BRANCHES, Receipt, TransactionRecord
from tracing_2pc.states import Vote

MAX_HANDLE: Final = 64 * 1024
"""Bytes of a handle as JSON: it is kept in the log and read by every recovery."""


def check_receipts(
    record: TransactionRecord, receipts: Sequence[Receipt]
) -> tuple[Receipt, ...]:
    """Return the receipts that a commit of this record keeps, as JSON keeps them.

    One without votes and rows says nothing and is left out.

    Raises:
        ContractError: a vote is missing, to abort, or not from somebody on record;
            one partition twice for one participant; more branches than a commit can
            name; a handle that cannot be kept.
    """
    seen: set[tuple[str, int]] = set()
    for receipt in receipts:
        if receipt.rows and not receipt.votes:
            _refuse(record, receipt, f"{receipt.rows} rows, and nobody voted for them")
        for participant, vote in receipt.votes.items():
            _check_vote(record, receipt, participant, vote)
            if (key := (participant, receipt.branch.partition)) in seen:
                # Twins of one task: committing both would write its rows twice.
                _refuse(record, receipt, "its partition has two receipts", participant)
            seen.add(key)
    _check_count(record, receipts)
    return tuple(_kept(record, receipt) for receipt in receipts if receipt.votes)


def _check_vote(
    record: TransactionRecord, receipt: Receipt, participant: str, vote: Vote
) -> None:
    if participant not in record.participants:
        _refuse(record, receipt, f"{participant} is not on record", participant)
    if vote not in (Vote.COMMIT, Vote.READ_ONLY):
        _refuse(record, receipt, f"{participant} voted {vote}", participant)


def _check_count(record: TransactionRecord, receipts: Sequence[Receipt]) -> None:
    named = Counter(
        participant
        for receipt in receipts
        for participant, vote in receipt.votes.items()
        if vote is Vote.COMMIT
    )
    for participant, count in named.items():
        if count > MAX_BRANCHES:
            raise ContractError(
                f"{record.id} cannot commit: {count} branches at {participant}, and a "
                f"commit names at most {MAX_BRANCHES}: coalesce the batch into fewer "
                "partitions",
                transaction_id=str(record.id),
                participant=participant,
            )


def _kept(record: TransactionRecord, receipt: Receipt) -> Receipt:
    try:
        text = canonical(receipt.handle)
    except (TypeError, ValueError):
        _refuse(record, receipt, "its handle is not plain JSON")
    if (size := len(text.encode())) > MAX_HANDLE:
        _refuse(record, receipt, f"its handle is {size} bytes, at most {MAX_HANDLE}")
    return dataclasses.replace(
        receipt, votes=dict(receipt.votes), handle=json.loads(text)
    )


def _refuse(
    record: TransactionRecord,
    receipt: Receipt,
    what: str,
    participant: str | None = None,
) -> NoReturn:
    raise ContractError(
        f"{record.id} cannot commit, receipt of branch {receipt.branch}: {what}",
        transaction_id=str(record.id),
        participant=participant,
    )


def canonical(value: Any) -> str:
    """Write JSON in its one spelling: sorted, ASCII, no spaces, no NaN."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
