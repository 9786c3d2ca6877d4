"""What a commit may keep, where asking every decision log would take too long."""

from __future__ import annotations

import pytest
import urllib3
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
from tracing_2pc.http import contract
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.store.log.receipts import check_receipts

TEXTS = texts("unit")

LONGEST = 10**18 - 1
DIGEST = content.write_digest(bytes(32))


def active(**changes: object) -> TransactionRecord:
    fields = {
        "id": TransactionId("a" * 40, LONGEST, 999_999_999),
        "run": "r",
        "state": TransactionState.ACTIVE,
        "decision": None,
        "participants": ("ledger", "notifier"),
        "acknowledged": frozenset(),
        "carrier": {},
        "started": 0.0,
        **changes,
    }
    return TransactionRecord(**fields)  # type: ignore[arg-type]


def receipts(count: int, vote: Vote = Vote.COMMIT) -> tuple[Receipt, ...]:
    votes = {"ledger": vote, "notifier": Vote.READ_ONLY}
    return tuple(
        receipt
        for n in range(count)
        for receipt in branch_receipts(
            BranchId(LONGEST - n, LONGEST), 2**53 - 1, DIGEST, votes
        )
    )


def test_more_branches_than_a_commit_can_name_are_refused() -> None:
    """Before the commit point: no participant could ever accept such a commit."""
    assert len(check_receipts(active(), receipts(MAX_BRANCHES))) == 2 * MAX_BRANCHES
    with pytest.raises(ContractError, match=TEXTS["too many branches"]):
        check_receipts(active(), receipts(MAX_BRANCHES + 1))


def test_branches_that_a_commit_does_not_name_are_not_counted() -> None:
    """Partitions without rows cost a participant nothing."""
    silent = receipts(MAX_BRANCHES + 1, Vote.READ_ONLY)
    assert len(check_receipts(active(), silent)) == len(silent)


def test_the_largest_commit_fits_into_a_request(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
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
