"""Whether the receipts of a batch carry a commit (rule 1), and whether it fits."""

from __future__ import annotations

import pytest
import urllib3
from support.branches import committing
from support.texts import texts

from tracing_2pc.core import content
from tracing_2pc.core.errors import ContractError, ParticipantUnavailableError
from tracing_2pc.core.model import (
    MAX_BRANCHES,
    BranchId,
    Receipt,
    TransactionId,
    TransactionRecord,
    branch_receipts,
)
from tracing_2pc.core.states import TransactionState, Vote
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.protocol.votes import check_votes
from tracing_2pc.store.log.receipts import check_receipts
from tracing_2pc.wire import contract

TEXTS = texts("unit")

BOTH = {"a": Vote.COMMIT, "b": Vote.COMMIT}
ONE = {"a": Vote.COMMIT}
OTHER = {"b": Vote.COMMIT}

LONGEST = 10**18 - 1
DIGEST = content.write_digest(bytes(32))


UNDECIDED: dict[str, object] = {"state": TransactionState.ACTIVE, "decision": None}
RECORD = committing(TransactionId("orders", 0, 1), **UNDECIDED, participants=("a", "b"))


def active(**changes: object) -> TransactionRecord:
    largest = TransactionId("a" * 40, LONGEST, 999_999_999)
    names = {"participants": ("ledger", "notifier")}
    return committing(largest, **UNDECIDED, **names, **changes)


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
def test_every_vote_is_there(receipts):
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
def test_without_every_vote_there_is_no_commit(receipts, why):
    """A vote missing, one too many, one to abort, or a partition's rows twice."""
    with pytest.raises(ContractError, match=TEXTS["it cannot commit"].format(why=why)):
        check_votes(RECORD, receipts)


def receipts(count: int, vote: Vote = Vote.COMMIT) -> tuple[Receipt, ...]:
    votes = {"ledger": vote, "notifier": Vote.READ_ONLY}
    return tuple(
        receipt
        for n in range(count)
        for receipt in branch_receipts(
            BranchId(LONGEST - n, LONGEST), 2**53 - 1, DIGEST, votes
        )
    )


def test_more_branches_than_a_commit_can_name_are_refused():
    """Before the commit point: no participant could ever accept such a commit."""
    assert len(check_receipts(active(), receipts(MAX_BRANCHES))) == 2 * MAX_BRANCHES
    with pytest.raises(ContractError, match=TEXTS["too many branches"]):
        check_receipts(active(), receipts(MAX_BRANCHES + 1))


def test_branches_that_a_commit_does_not_name_are_not_counted():
    """Partitions without rows cost a participant nothing."""
    silent = receipts(MAX_BRANCHES + 1, Vote.READ_ONLY)
    assert len(check_receipts(active(), silent)) == len(silent)


def test_the_largest_commit_fits_into_a_request(monkeypatch):
    """As many branches as may be decided, each of them as long as it can be."""
    sent: list[bytes] = []

    def cut(_: object, method: str, url: str, body: bytes, **__: object) -> None:
        sent.append(body)
        raise urllib3.exceptions.HTTPError

    monkeypatch.setattr(urllib3.HTTPConnectionPool, "urlopen", cut)
    largest = active(receipts=receipts(MAX_BRANCHES), forgotten_through=LONGEST)
    with pytest.raises(ParticipantUnavailableError):
        HttpParticipant("ledger", "http://127.0.0.1:9", None, 1.0).commit(largest)
    (body,) = sent
    assert body.count(DIGEST.encode()) == MAX_BRANCHES
    assert len(body) < contract.MAX_CONTROL_BYTES


KEEPING = committing(
    TransactionId("orders", 0, 1),
    **UNDECIDED,
    participants=("a", "b", "r"),
    rejects="r",
)
KEPT, NONE = {"r": Vote.COMMIT}, {"r": Vote.READ_ONLY}


@pytest.mark.parametrize(
    "receipts",
    [
        written(0, 7) + written(0, 7, KEPT),
        written(0, 7) + written(0, 7, NONE) + written(1, 8) + written(1, 8, KEPT),
        written(0, 7, dict.fromkeys("abr", Vote.READ_ONLY)),
        written(0, 7, ONE)
        + written(0, 7, KEPT)
        + written(0, 9, OTHER)
        + written(0, 9, NONE),
    ],
    ids=["some are rejected", "two partitions", "nothing was written", "two routes"],
)
def test_rejects_votes_about_each_branch(receipts):
    """Routes have branches of their own, and share who keeps what is rejected."""
    check_votes(KEEPING, receipts)


@pytest.mark.parametrize(
    ("receipts", "missing"),
    [
        (written(0, 7), "r"),
        (written(0, 7) + written(0, 7, KEPT) + written(1, 8), "r about branch 1.8"),
        (written(0, 7, ONE) + written(0, 7, KEPT), "b"),
        (written(0, 7) + written(0, 8, KEPT), "r about branch 0.7"),
        (written(0, 7) + written(0, 7, KEPT) * 2, "two receipts"),
        (written(0, 7) + written(0, 7, KEPT) + written(1, 7, NONE), "a, b about"),
    ],
)
def test_a_vote_that_rejects_lacks(receipts, missing):
    """Rows that were rejected would be lost."""
    with pytest.raises(ContractError, match=missing):
        check_votes(KEEPING, receipts)
