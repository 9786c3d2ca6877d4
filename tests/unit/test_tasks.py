"""What the driver makes of what its tasks returned."""

from __future__ import annotations

import pytest

from tracing_2pc import ParticipantSink
from tracing_2pc.errors import ContractError
from tracing_2pc.model import BranchId, Receipt, TransactionId, TransactionRecord
from tracing_2pc.spark.tasks import read_receipts
from tracing_2pc.states import TransactionState, Vote

SINK = ParticipantSink({"a": "http://a:1", "b": "http://b:1"}, token=None)
BOTH = {"a": Vote.COMMIT, "b": Vote.COMMIT}


def read(*receipts: Receipt) -> list[Receipt]:
    record = TransactionRecord(
        id=TransactionId("orders", 0, 1),
        run="r",
        state=TransactionState.ACTIVE,
        decision=None,
        participants=("a", "b"),
        acknowledged=frozenset(),
        carrier={},
        started=0.0,
    )
    return read_receipts((r.to_json() for r in receipts), SINK, record)


def receipt(partition: int, task: int, votes: dict[str, Vote] = BOTH) -> Receipt:
    return Receipt(BranchId(partition, task), 3, "sha-256=:x:", votes)


def test_one_receipt_per_partition_is_taken() -> None:
    """With the votes of everybody, those of a partition without rows too."""
    silent = receipt(1, 8, dict.fromkeys("ab", Vote.READ_ONLY))
    assert read(receipt(0, 7), silent) == [receipt(0, 7), silent]
    assert read() == []


@pytest.mark.parametrize(
    "votes",
    [{}, {"a": Vote.COMMIT}, {**BOTH, "c": Vote.COMMIT}],
    ids=["nobody", "one missing", "one too many"],
)
def test_a_receipt_without_everybodys_vote_is_refused(votes: dict[str, Vote]) -> None:
    """Nobody's, one missing, one too many: nothing is decided (rule 1)."""
    with pytest.raises(ContractError, match=r"orders\.0\.1: expected one receipt"):
        read(receipt(0, 7), receipt(1, 8, votes))


def test_two_receipts_for_a_partition_are_refused() -> None:
    """Of twins only one may be committed: its rows would be there twice (rule 1)."""
    with pytest.raises(ContractError, match=r"orders\.0\.1: expected one receipt"):
        read(receipt(0, 7), receipt(0, 8))
