"""The part of its receipts that a commit keeps, and their checks (rule 1)."""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any, Final

from tracing_2pc.core.errors import ContractError
from tracing_2pc.core.model import MAX_BRANCHES, Receipt, TransactionRecord
from tracing_2pc.core.states import Vote
from tracing_2pc.protocol.votes import check_votes, refuse_receipt

_ENCODER: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), allow_nan=False
)
"""Made once: `json.dumps` makes one for each call with options of its own."""

MAX_HANDLE: Final = 64 * 1024
"""Bytes of a handle as JSON: it is kept in the log and read by every recovery."""


def check_receipts(
    record: TransactionRecord, receipts: Sequence[Receipt]
) -> tuple[Receipt, ...]:
    """Return the receipts that a commit of this record keeps, as JSON keeps them.

    Raises:
        ContractError: as `check_votes`; or more branches than a commit can name, or a
            handle that cannot be kept.
    """
    # Rule 1: decide commit only with every vote.
    check_votes(record, receipts)
    commits = (r.participant for r in receipts if r.vote is Vote.COMMIT)
    for participant, count in Counter(commits).items():
        if count > MAX_BRANCHES:
            raise ContractError(
                f"{record.id} cannot commit: {count} branches at {participant}, and a "
                f"commit names at most {MAX_BRANCHES}: coalesce the batch into fewer "
                "partitions",
                transaction_id=str(record.id),
                participant=participant,
            )
    return tuple(_kept(record, receipt) for receipt in receipts)


def _kept(record: TransactionRecord, receipt: Receipt) -> Receipt:
    try:
        text = canonical(receipt.handle)
    except (TypeError, ValueError):
        raise refuse_receipt(record, receipt, "its handle is not plain JSON") from None
    if (size := len(text.encode())) > MAX_HANDLE:
        raise refuse_receipt(
            record, receipt, f"its handle is {size} bytes, at most {MAX_HANDLE}"
        )
    return dataclasses.replace(receipt, handle=json.loads(text))


def canonical(value: Any) -> str:
    """Write JSON in its one spelling: sorted, ASCII, no spaces, no NaN."""
    return _ENCODER.encode(value)
