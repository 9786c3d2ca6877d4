"""Whether the receipts of a batch carry a commit (rule 1)."""

from __future__ import annotations

import pytest
from support.texts import texts

from tracing_2pc.core.errors import ContractError
from tracing_2pc.core.model import (
    BranchId,
    Receipt,
    TransactionId,
    TransactionRecord,
    branch_receipts,
)
from tracing_2pc.core.states import TransactionState, Vote
from tracing_2pc.protocol.votes import check_votes

TEXTS = texts("unit")

BOTH = {"a": Vote.COMMIT, "b": Vote.COMMIT}
ONE = {"a": Vote.COMMIT}
OTHER = {"b": Vote.COMMIT}

RECORD = TransactionRecord(
    id=TransactionId("orders", 0, 1),
    run="r",
    state=TransactionState.ACTIVE,
    decision=None,
    participants=("a", "b"),
    acknowledged=frozenset(),
    carrier={},
    started=0.0,
)


def written(
    partition: int, task: int, votes: dict[str, Vote] = BOTH
) -> tuple[Receipt, ...]:
    return branch_receipts(BranchId(partition, task), 3, "sha-256=:x:", votes)


@pytest.mark.parametrize(
    "receipts",
    [
        written(0, 7, dict.fromkeys("ab", Vote.READ_ONLY)),
        written(0, 7),
        written(0, 7) + written(1, 8, dict.fromkeys("ab", Vote.READ_ONLY)),
        written(0, 7, ONE) + written(1, 8, ONE) + written(0, 9, OTHER),
    ],
    ids=["nothing was written", "one partition", "one is empty", "two routes"],
)
def test_every_vote_is_there(receipts: tuple[Receipt, ...]) -> None:
    """One per partition and participant; routes have partitions of their own."""
    check_votes(RECORD, receipts)


@pytest.mark.parametrize(
    ("receipts", "why"),
    [
        ((), TEXTS["nobody voted"]),
        (written(0, 7, ONE), TEXTS["b did not vote"]),
        (written(0, 7) + written(1, 8, ONE), TEXTS["b did not vote on 1.8"]),
        (written(0, 7, ONE) + written(1, 8), TEXTS["b did not vote on 0.7"]),
        (written(0, 7, {**BOTH, "c": Vote.COMMIT}), TEXTS["c is not on record"]),
        (written(0, 7, {**BOTH, "b": Vote.ABORT}), TEXTS["b voted abort"]),
        (written(0, 7) + written(0, 8), TEXTS["two receipts for a partition"]),
    ],
    ids=["nobody", "b", "missing", "first", "stranger", "abort", "twins"],
)
def test_without_every_vote_there_is_no_commit(
    receipts: tuple[Receipt, ...], why: str
) -> None:
    """A vote missing, one too many, one to abort, or a partition's rows twice."""
    with pytest.raises(ContractError, match=TEXTS["it cannot commit"].format(why=why)):
        check_votes(RECORD, receipts)
