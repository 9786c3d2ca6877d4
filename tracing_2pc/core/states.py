"""States, decisions, votes and refusals: the closed sets of words of the protocol.

The states of a transaction move by a table, so that it can be read, drawn and tested
over the whole product of states and events. Those of a branch are moved by a
participant's `answers`.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Final, TypeAlias


class Word(str, enum.Enum):
    """An enum that is stored, sent and shown as its word, never as an ordinal."""

    def __str__(self) -> str:
        return str(self.value)


class Decision(Word):
    """The coordinator's decision, written once in the decision log."""

    COMMIT = "commit"
    ABORT = "abort"


class Vote(Word):
    """A participant's answer to prepare. Silence is abort; so is raising."""

    COMMIT = "commit"
    ABORT = "abort"
    READ_ONLY = "read_only"


class Refusal(Word):
    """The meaning of a participant's answer that is no acknowledgement.

    The protocol knows these and no others; each transport translates them.
    """

    UNKNOWN = "unknown"
    """Nothing is known under this id. Never an acknowledgement (rule 5)."""

    FORGOTTEN = "forgotten"
    """At or below `forgotten_through`: only the decision log may know."""

    CONFLICT = "conflict"
    """It contradicts what the participant holds, which is named by a state."""

    MALFORMED = "malformed"
    """The request is not in its form: it says nothing about the data."""

    NOT_NOW = "not now"
    """Neither a yes nor a no: ask again."""

    IN_PROGRESS = "in progress"
    """Not now, because a prepare of this very branch is running: ask again."""

    MISDIRECTED = "misdirected"
    """The request reached another participant than the one that it names."""

    NOT_ADMITTED = "not admitted"
    """The caller gave no token, or one that is not known here."""

    NOT_ALLOWED = "not allowed"
    """The caller is known, and may not do this."""


ASK_AGAIN: Final = frozenset({Refusal.NOT_NOW, Refusal.IN_PROGRESS})
"""Refusals that neither vote nor answer: the same request may succeed later."""

OF_DATA: Final = frozenset({Refusal.UNKNOWN, Refusal.FORGOTTEN, Refusal.CONFLICT})
"""Refusals that say what became of the data: after a decision, others are no answer."""

OF_ROWS: Final = frozenset({Refusal.CONFLICT, Refusal.MALFORMED})
"""Refusals of a prepare that rows may be to blame for."""

OF_CALLER: Final = frozenset({Refusal.NOT_ADMITTED, Refusal.NOT_ALLOWED})
"""Refusals that are about the caller, and say nothing about a transaction."""


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
    """An event of a transaction in the decision log."""

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

    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


class ParticipantState(Word):
    """A participant's answer to a look-up of a transaction."""

    UNKNOWN = "unknown"
    FORGOTTEN = "forgotten"
    PREPARED = "prepared"
    COMMITTED = "committed"
    ABORTED = "aborted"


class Severity(Word):
    """How soon a person should look."""

    WARNING = "warning"
    CRITICAL = "critical"


class Verdict(Word):
    """The safe action: leave it, deliver it, decide abort by the log, ask a person."""

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

UNFINISHED: Final = frozenset({T.COMMITTING, T.ABORTING})
FINAL: Final = frozenset({T.COMMITTED, T.ABORTED, T.CONCLUDED})


def advance(state: TransactionState, event: TransactionEvent) -> TransactionState:
    """Return the state that follows; `KeyError`: the move is not in the table."""
    return TRANSACTION_TABLE[state, event]


class RequestState(Word):
    """The state of a request that an outbox's partner did not take."""

    QUARANTINED = "quarantined"
    WAITING = "waiting"  # to be sent again
    SENT = "sent"  # again, and the partner has taken it
    DROPPED = "dropped"  # by a person


class UnfitKind(Word):
    """The kind of a misfit at a participant."""

    SETTING = "setting"  # at its broker, or of its tables: it works meanwhile
    BROKER = "broker"  # it does not answer: nothing is published
    PARTNER = "partner"  # it does not take the requests of an application now


class RelayTrouble(Word):
    """Why transactions wait at an outbox's relay."""

    STOPPED = "stopped"  # store or broker was put back, or cloned: a person decides
    HIDDEN = "hidden"  # it is published, and readers are held back before it
    UNREADABLE = "unreadable"  # what is published is not known yet
    REFUSED = "refused"  # the broker did not take it: its application waits
