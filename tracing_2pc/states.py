"""The two state machines of the protocol, as data.

A state machine that is a table can be read, drawn and tested over the whole
product of states and events; code asks `advance` and never compares by hand.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeAlias, TypeVar


class Word(str, enum.Enum):
    """An enum that is stored, sent and shown as its word, never as an ordinal."""

    def __str__(self) -> str:
        return str(self.value)


class Decision(Word):
    """What the coordinator wrote, once, in the decision log."""

    COMMIT = "commit"
    ABORT = "abort"


class Vote(Word):
    """What a participant answered to prepare. Silence is abort; so is raising."""

    COMMIT = "commit"
    ABORT = "abort"
    READ_ONLY = "read_only"


class TransactionState(Word):
    """Where a transaction stands in the decision log."""

    ACTIVE = "active"
    COMMITTING = "committing"
    COMMITTED = "committed"
    ABORTING = "aborting"
    ABORTED = "aborted"
    QUARANTINED = "quarantined"
    CONCLUDED = "concluded"


class TransactionEvent(Word):
    """What can happen to a transaction in the decision log."""

    DECIDE_COMMIT = "decide commit"
    DECIDE_ABORT = "decide abort"
    FINISH = "finish"
    FINISH_WITHOUT = "finish without"
    QUARANTINE = "quarantine"
    RESUME_COMMIT = "resume commit"
    RESUME_ABORT = "resume abort"
    CONCLUDE = "conclude"


class BranchState(Word):
    """Where a branch stands at one participant."""

    WRITING = "writing"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


class ParticipantState(Word):
    """What a participant answers to a look-up of a transaction."""

    UNKNOWN = "unknown"
    FORGOTTEN = "forgotten"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


class BranchEvent(Word):
    """What can happen to a branch at a participant."""

    PREPARE = "prepare"
    COMMIT = "commit"
    ABORT = "abort"


class DiagnosisKind(Word):
    """What can be wrong with a transaction. Computed from evidence, never stored."""

    STUCK = "stuck"
    ORPHANED = "orphaned"
    DECIDED_NOT_APPLIED = "decided_not_applied"
    LOST = "lost"
    DIVERGED = "diverged"


class Severity(Word):
    """How soon a person should look."""

    WARNING = "warning"
    CRITICAL = "critical"


class Verdict(Word):
    """What is safe: leave it, deliver it, decide abort by the log, ask a person."""

    LEAVE = "leave"
    FINISH = "finish"
    ABORT = "abort"
    ESCALATE = "escalate"


T: TypeAlias = TransactionState
E: TypeAlias = TransactionEvent
TRANSACTION_TABLE: Final[Mapping[tuple[T, E], T]] = {
    (T.ACTIVE, E.DECIDE_COMMIT): T.COMMITTING,
    (T.ACTIVE, E.DECIDE_ABORT): T.ABORTING,
    (T.COMMITTING, E.FINISH): T.COMMITTED,
    (T.ABORTING, E.FINISH): T.ABORTED,
    (T.COMMITTING, E.FINISH_WITHOUT): T.CONCLUDED,
    (T.ABORTING, E.FINISH_WITHOUT): T.CONCLUDED,
    (T.COMMITTING, E.QUARANTINE): T.QUARANTINED,
    (T.ABORTING, E.QUARANTINE): T.QUARANTINED,
    (T.QUARANTINED, E.RESUME_COMMIT): T.COMMITTING,
    (T.QUARANTINED, E.RESUME_ABORT): T.ABORTING,
    (T.QUARANTINED, E.CONCLUDE): T.CONCLUDED,
}
"""Legal moves of a transaction. It finishes *without* somebody where a person has
given up a participant that never acknowledged. `committing` to `aborting` does not
exist."""

BRANCH_TABLE: Final[Mapping[tuple[BranchState, BranchEvent], BranchState]] = {
    (BranchState.WRITING, BranchEvent.PREPARE): BranchState.PREPARED,
    (BranchState.WRITING, BranchEvent.ABORT): BranchState.ABORTED,
    (BranchState.PREPARED, BranchEvent.COMMIT): BranchState.COMMITTED,
    (BranchState.PREPARED, BranchEvent.ABORT): BranchState.ABORTED,
}
"""Legal moves of a branch. A prepared branch never moves by itself (rule 12)."""

UNFINISHED: Final = frozenset({T.COMMITTING, T.ABORTING})
FINAL: Final = frozenset({T.COMMITTED, T.ABORTED, T.CONCLUDED})
SEALED: Final = frozenset({BranchState.COMMITTED, BranchState.ABORTED})

StateT = TypeVar("StateT", TransactionState, BranchState)
EventT = TypeVar("EventT", TransactionEvent, BranchEvent)


def advance(
    table: Mapping[tuple[StateT, EventT], StateT], state: StateT, event: EventT
) -> StateT:
    """Return the state that follows.

    Raises:
        KeyError: the move is not in the table; callers turn it into
            `IllegalTransitionError`, with the transaction it happened to.
    """
    return table[state, event]
