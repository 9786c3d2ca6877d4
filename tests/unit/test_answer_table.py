"""The decisions of a participant, cell by cell: pure, without a journal."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Final

import pytest

from tracing_2pc.core.content import digest_of
from tracing_2pc.core.model import BranchId, TransactionId
from tracing_2pc.core.states import BranchState
from tracing_2pc.participant import answers
from tracing_2pc.participant.answers import (
    ANSWERS,
    Answer,
    BranchRef,
    BranchRow,
    TransactionRow,
)

T = TransactionId("orders", 7, 1)
BRANCH = BranchId(0, 1)
ONE, OTHER = (BranchRef(BRANCH, 3, digest_of(body)) for body in (b"one", b"other"))

UNKNOWN: Final = TransactionRow(T)
PREPARED: Final = TransactionRow(
    T,
    recorded=True,
    branches={BRANCH: BranchRow(ONE, BranchState.PREPARED, tag=1, since=1.0)},
)


def sealed(outcome: BranchState, *, by_hand: bool = False) -> TransactionRow:
    branch = dataclasses.replace(PREPARED.branches[BRANCH], state=outcome, sealed=2.0)
    return dataclasses.replace(
        PREPARED, seal=outcome, by_hand=by_hand, branches={BRANCH: branch}
    )


GIVEN: dict[str, TransactionRow] = {
    "unknown": UNKNOWN,
    "prepared": PREPARED,
    "committed": sealed(BranchState.COMMITTED),
    "aborted": sealed(BranchState.ABORTED),
    "resolved_committed": sealed(BranchState.COMMITTED, by_hand=True),
    "resolved_aborted": sealed(BranchState.ABORTED, by_hand=True),
    "another_committed": TransactionRow(T, committed=TransactionId("orders", 7, 2)),
    "forgotten": TransactionRow(T, forgotten_through=8),
}


def prepare(row: TransactionRow, ref: BranchRef) -> Answer:
    """None is for the writer: the branch is then prepared."""
    return answers.prepare(row, ref) or answers.prepared(ref)


REQUESTS: dict[str, Callable[[TransactionRow], Answer]] = {
    "prepare same": lambda row: prepare(row, ONE),
    "prepare other": lambda row: prepare(row, OTHER),
    "commit": lambda row: answers.commit(row, [ONE]),
    "commit empty": lambda row: answers.commit(row, []),
    "abort": answers.abort,
    "abort branch": lambda row: answers.abort(row, BRANCH),
    "abort branch by digest": lambda row: answers.abort(row, BRANCH, ONE.digest),
    "abort branch of other": lambda row: answers.abort(row, BRANCH, OTHER.digest),
    "look up": lambda row: answers.show(row, now=3.0, holds={}),
}


@pytest.mark.parametrize("given", ANSWERS)
def test_each_answer_is_that_of_the_table(given):
    """Every request, of a transaction in every state."""
    row = GIVEN[given]
    found = {asked: REQUESTS[asked](row) for asked in ANSWERS[given]}
    assert {a: (f.refusal, f.state) for a, f in found.items()} == ANSWERS[given]
    for answer in found.values():
        assert bool(answer.detail) is (answer.refusal is not None)
        assert answer.seal is None or row.seal is None
