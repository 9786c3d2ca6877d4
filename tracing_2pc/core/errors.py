"""Errors, grouped by what the caller must do.

Every error names the transaction and the participant it is about, where there is
one, and survives pickle: a task raises it on an executor, the driver reads it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.states import Refusal

if TYPE_CHECKING:
    from tracing_2pc.core.model import RejectedRow

EACH_TIME: Final = "at each try until this is mended"
"""Said by an error of the batch's own data: a task hands on no more than its text."""


class TwoPhaseError(Exception):
    """Base of everything that this package raises on purpose.

    Args:
        message: what happened and what to do about it.
        transaction_id: the transaction it is about, as text.
        participant: its configured name.
    """

    def __init__(
        self,
        message: str,
        *,
        transaction_id: str | None = None,
        participant: str | None = None,
    ) -> None:
        super().__init__(message)
        self.transaction_id = transaction_id
        self.participant = participant

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self).__new__, (type(self), *self.args), dict(self.__dict__)


class ConfigurationError(TwoPhaseError):
    """Fix the settings: nothing was opened, nothing was sent."""


class ContractError(TwoPhaseError):
    """Fix the code: retrying cannot help."""


class IllegalTransitionError(ContractError):
    """A state was asked to move in a way its table does not know."""


class AbortedError(TwoPhaseError):
    """Nothing was committed; retrying the batch is safe."""


class InDoubtError(TwoPhaseError):
    """Do not retry, do not abort: recovery owns it."""


class CommitPendingError(InDoubtError):
    """Commit is decided, and a participant has not acknowledged it yet."""


class DecisionUnknownError(InDoubtError):
    """The log may or may not hold our decision: ask it again, guess nothing."""


class HeuristicError(TwoPhaseError):
    """A participant went against the decision; a person must look."""


class ParticipantError(TwoPhaseError):
    """One call to one participant failed.

    `refusal` is the meaning of a refusal, None without one that is understood; `state`
    is the transaction's state according to the participant.
    """

    def __init__(
        self,
        message: str,
        *,
        refusal: Refusal | None = None,
        state: str | None = None,
        transaction_id: str | None = None,
        participant: str | None = None,
    ) -> None:
        about = {"transaction_id": transaction_id, "participant": participant}
        super().__init__(message, **about)
        self.refusal = refusal
        self.state = state


class ParticipantUnavailableError(ParticipantError):
    """No answer, or none that can be trusted: it may or may not have happened."""


class ParticipantRefusedError(ParticipantError):
    """A definite no, in the participant's own words."""


class RejectedRowsError(ParticipantRefusedError):
    """A branch is refused because of some of its rows, and would be taken without them.

    A sink of your own raises it in `invoke`, `invoke_batch` or `pre_commit`. Where the
    job has `rejects`, the branch is aborted, the rows go there, and the others are
    written again; else it is a vote to abort.

    Args:
        rows: `RejectedRow`s, numbered as the sink was given them for this branch.
    """

    def __init__(
        self,
        rows: Sequence[RejectedRow],
        message: str = "",
        *,
        refusal: Refusal | None = None,
        state: str | None = None,
        transaction_id: str | None = None,
        participant: str | None = None,
    ) -> None:
        super().__init__(
            message or name_rows(rows),
            refusal=refusal,
            state=state,
            transaction_id=transaction_id,
            participant=participant,
        )
        self.rows = rows


_NAMED: Final = 10
"""Rejected rows that a message names."""


def name_rows(rows: Iterable[RejectedRow]) -> str:
    """Name the first of some rejected rows, in their order; no value of them."""
    some = sorted(rows, key=lambda rejected: rejected.row)
    texts = [f"row {r.row}: {describe_rejection(r)}" for r in some[:_NAMED]]
    more = len(some) - len(texts)
    return "; ".join(texts) + (f"; and {more} more" if more else "")


def describe_rejection(rejected: RejectedRow) -> str:
    """Describe a rejected row: its participant, and the reason."""
    parts = (rejected.participant, rejected.column, rejected.reason)
    return ": ".join(part for part in parts if part)


class ParticipantNotToldError(ParticipantError):
    """The decision was applied as far as possible; the rest cannot be told.

    The request is not repeated: that would change nothing. A person must look there.
    """


class ParticipantGivenUpError(ParticipantError):
    """A sink gives up a commit, as its options allow: its store may have dropped it.

    The commit is not repeated, and the transaction ends as *concluded*.
    """


class RefusalError(TwoPhaseError):
    """A participant refuses a request: raised by its own code.

    `detail` is the fault and the cure. Never SQL, a path or a record: the caller reads
    it. `state` is None where the answer has none; without `rows` a branch would be
    prepared. `column` is set where one record is to blame: the column of its value, or
    an empty text; else None.
    """

    def __init__(
        self,
        refusal: Refusal,
        detail: str,
        *,
        state: str | None = None,
        transaction_id: str | None = None,
        rows: Sequence[RejectedRow] = (),
        column: str | None = None,
    ) -> None:
        super().__init__(detail, transaction_id=transaction_id)
        self.refusal = refusal
        self.state = state
        self.rows = rows
        self.column = column


class MalformedError(RefusalError):
    """A participant refuses a request that is not in its form."""

    def __init__(self, detail: str, column: str | None = None) -> None:
        super().__init__(Refusal.MALFORMED, detail, column=column)


class DecisionLogError(TwoPhaseError):
    """The log was unreachable; nothing was decided. The message may name the cure."""

    def __init__(
        self,
        message: str,
        *,
        says_cure: bool = False,
        transaction_id: str | None = None,
    ) -> None:
        super().__init__(message, transaction_id=transaction_id)
        self.says_cure = says_cure
