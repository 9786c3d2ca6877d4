"""Reads participants, all at once: their lists, and their answers about one."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final, NamedTuple, Protocol, TypeAlias

from tracing_2pc.core.errors import ParticipantError, TwoPhaseError
from tracing_2pc.core.model import (
    HeldBranch,
    Holds,
    Listing,
    QuarantineListing,
    RequestKey,
    Shown,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.ports import Clock
from tracing_2pc.core.remote_participant import RemoteOutbox
from tracing_2pc.core.states import (
    BranchState,
    ParticipantState,
    Refusal,
    RequestState,
    Word,
)
from tracing_2pc.protocol.fan_out import ask_at_once

LOG: Final = "log"
"""Name of the decision log beside participants' names, in a sweep and in metrics."""

BRANCHES: Final = 200
"""Branches of one participant that a report keeps."""

NOT_READ: Final = "could not be read"
"""The missing part of the list of a participant that gave none."""

Lists: TypeAlias = Mapping[str, Listing]
"""A list by participant; incomplete and empty where none could be read."""


class PreparedSummary(NamedTuple):
    """One participant's prepared branches of one transaction."""

    age: float  # of the oldest branch: seconds by the participant's clock
    branches: int
    rows: int


PreparedByParticipant: TypeAlias = Mapping[str, PreparedSummary]


class ReadableParticipant(Protocol):
    """A participant that is only read."""

    @property
    def name(self) -> str:
        """Its configured name."""

    def prepared(self, application: str | None = None) -> Listing:
        """List its branches in doubt."""

    def show(self, transaction: TransactionId, journal: str | None = None) -> Shown:
        """Return its state and branches of one transaction."""


class SourceKind(Word):
    """The kind of a source that could not be read, or not trusted."""

    PARTICIPANT = "participant"
    SCOPE = "scope"
    OUTBOX = "outbox"
    LOG = "log"
    RECORDS = "records"
    JOBS = "jobs"
    JOB = "job"
    CLOCK = "clock"
    SETTINGS = "settings"
    ENVIRONMENT = "environment"


class Source(NamedTuple):
    """A source of evidence, which may fail to be read."""

    # `SCOPE` is a participant that lists one application only, because our token is
    # bound to that; `OUTBOX` is what one has of an application, and `RECORDS` are an
    # application's in the log.
    kind: SourceKind
    participant: str = ""  # its name; empty for what is none
    application: str = ""  # of `SCOPE`, `OUTBOX`, `RECORDS` and `JOB`

    def __str__(self) -> str:
        words = {
            SourceKind.PARTICIPANT: self.participant,
            SourceKind.OUTBOX: self.participant,
            SourceKind.SCOPE: f"{self.participant} beyond {self.application}",
            SourceKind.LOG: LOG,
            SourceKind.RECORDS: f"{LOG} of {self.application}",
            SourceKind.CLOCK: "the clock",
            SourceKind.JOB: self.application,
        }
        return words.get(self.kind, str(self.kind))


def participant_source(name: str) -> Source:
    """Return a participant as a source."""
    return Source(SourceKind.PARTICIPANT, name)


def list_prepared(
    participants: Mapping[str, ReadableParticipant],
    unreadable: dict[Source, str],
    clock: Clock | None = None,
    skews: dict[str, float] | None = None,
) -> Lists:
    """Ask all for their lists; note those that could not be read, or not whole.

    With a clock, note also the seconds by which theirs are ahead of it.
    """

    def ask(keyed: tuple[str, ReadableParticipant]) -> Listing:
        (name, participant), before = keyed, clock.now() if clock else 0.0
        try:
            listing = participant.prepared()
            if clock and skews is not None and listing.now is not None:
                skews[name] = listing.now - (before + clock.now()) / 2
        except TwoPhaseError as error:
            unreadable[participant_source(name)] = str(error)
            return Listing((), NOT_READ)
        if not listing.complete:
            unreadable[participant_source(name)] = f"its list {listing.missing}"
        if listing.only is not None:
            unreadable[Source(SourceKind.SCOPE, name, listing.only)] = (
                f"the token is bound to {listing.only}: nothing else is listed there"
            )
        return listing

    return ask_at_once(ask, {key: (key, p) for key, p in participants.items()})


class RefusedRequests(NamedTuple):
    """Requests that partners did not take; `unreadable`: errors instead of a list."""

    listings: Mapping[str, QuarantineListing]
    unreadable: Mapping[str, str]


def list_refused(
    participants: Mapping[str, ReadableParticipant],
    application: str | None = None,
    *,
    state: RequestState = RequestState.QUARANTINED,
    limit: int = 100,
    key: RequestKey | None = None,
) -> RefusedRequests:
    """Ask all outboxes at once; one that does not answer stops no other."""

    def ask(participant: ReadableParticipant) -> QuarantineListing | str | None:
        if not isinstance(participant, RemoteOutbox):
            return None
        try:
            return participant.quarantined(application, state, limit, key)
        except ParticipantError as error:
            return None if error.refusal is Refusal.UNKNOWN else str(error)
        except TwoPhaseError as error:
            return str(error)

    answers = ask_at_once(ask, participants)
    return RefusedRequests(
        {n: a for n, a in answers.items() if isinstance(a, QuarantineListing)},
        {n: a for n, a in answers.items() if isinstance(a, str)},
    )


@dataclasses.dataclass(frozen=True, slots=True)
class ParticipantReport:
    """One participant's answer about one transaction, or the error instead.

    Times are corrected to our clock, as far as it goes.
    """

    participant: str
    state: ParticipantState | None = None  # None where it could not be read
    # The first `BRANCHES` of them; `of` is how many there are.
    branches: tuple[HeldBranch, ...] = ()
    of: int = 0
    rows: int = 0  # in those that are prepared or committed
    resolved_by_hand: bool = False
    holds: Holds = dataclasses.field(default_factory=Holds)  # what it keeps busy
    # Seconds that its clock is ahead of ours; None if it did not say.
    skew: float | None = None
    # Seconds for which its oldest branch is in doubt, by its own clock.
    oldest: float | None = None
    error: str | None = None  # why it could not be read
    # It is a sink of the job's own, so that only the job can ask it.
    own_sink: bool = False
    # All that it answered, by its own clock.
    answer: Shown | None = dataclasses.field(default=None, repr=False)

    @property
    def all_branches(self) -> tuple[HeldBranch, ...]:
        """All branches, with those beyond `BRANCHES`; their times are corrected."""
        return _corrected(self.answer, self.skew) if self.answer else ()

    @property
    def prepared(self) -> PreparedSummary | None:
        """A summary of its prepared branches, as its list would have it."""
        if self.answer is None or self.oldest is None:
            return None
        states = [branch.state for branch in self.answer.branches]
        count = states.count(BranchState.PREPARED)
        return PreparedSummary(self.oldest, count, self.holds.rows)


def ask_about(
    participants: Mapping[str, ReadableParticipant],
    transaction: TransactionId,
    clock: Clock,
    record: TransactionRecord | None = None,
) -> dict[str, ParticipantReport]:
    """Ask all about one transaction. One that cannot be read stops no other.

    Nor does one that is not the journal on record: its branches belong to another one.
    """

    def ask(participant: ReadableParticipant) -> ParticipantReport:
        before = clock.now()
        try:
            journal = record.journal_of(participant.name) if record else None
            answer = participant.show(transaction, journal)
            if answer.state is ParticipantState.FORGOTTEN:
                answer = _still_listed(participant, transaction, before) or answer
        except TwoPhaseError as error:
            return ParticipantReport(participant.name, error=str(error))
        return report_of(participant.name, answer, (before + clock.now()) / 2)

    return ask_at_once(ask, participants)


def _still_listed(
    participant: ReadableParticipant, transaction: TransactionId, asked_at: float
) -> Shown | None:
    """Return the listed branches of a transaction that `show` does not have any more.

    A participant shows nothing up to forgotten_through, but lists branches in doubt.
    """
    listing = participant.prepared(transaction.application)
    now = asked_at if listing.now is None else listing.now
    prepared = BranchState.PREPARED
    branches = tuple(
        HeldBranch(row.branch, prepared, row.rows, "", now - row.age)
        for row in listing.branches
        if row.transaction == transaction
    )
    if not branches:
        return None
    holds = Holds(sum(branch.rows for branch in branches))
    return Shown(ParticipantState.PREPARED, branches, now=listing.now, holds=holds)


def report_of(name: str, answer: Shown, read_at: float) -> ParticipantReport:
    """Return a participant's answer, with its times as our clock would have them."""
    skew = None if answer.now is None else answer.now - read_at
    kept = [b for b in answer.branches if b.state is not BranchState.ABORTED]
    since = [
        branch.prepared_at or read_at
        for branch in answer.branches
        if branch.state is BranchState.PREPARED and branch.sealed_at is None
    ]
    now = read_at if answer.now is None else answer.now
    return ParticipantReport(
        name,
        answer.state,
        _corrected(answer, skew)[:BRANCHES],
        len(answer.branches),
        sum(branch.rows for branch in kept),
        answer.resolved_by_hand,
        answer.holds,
        skew,
        max(0.0, now - min(since)) if since else None,
        answer=answer,
    )


def _corrected(answer: Shown, skew: float | None) -> tuple[HeldBranch, ...]:
    def corrected(theirs: float | None) -> float | None:
        return None if theirs is None else theirs - (skew or 0.0)

    return tuple(
        dataclasses.replace(
            branch,
            prepared_at=corrected(branch.prepared_at),
            sealed_at=corrected(branch.sealed_at),
        )
        for branch in answer.branches
    )
