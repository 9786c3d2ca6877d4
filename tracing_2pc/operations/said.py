"""What a participant says of one transaction, or why it could not be read."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Final

from tracing_2pc.errors import TwoPhaseError
from tracing_2pc.interfaces import Clock
from tracing_2pc.model import HeldBranch, Holds, Shown, TransactionId
from tracing_2pc.operations.observation import Observed
from tracing_2pc.protocol.evidence import Held
from tracing_2pc.protocol.fan_out import ask_at_once
from tracing_2pc.states import BranchState, ParticipantState

SHOWN: Final = 200
"""Branches of one participant that are kept."""


@dataclasses.dataclass(frozen=True, slots=True)
class Said:
    """One participant's words. Times are corrected to our clock, as far as it goes.

    Args:
        participant: its configured name.
        state: None where it could not be read.
        branches: the first `SHOWN` of them.
        of: how many there are.
        rows: in those that are prepared or committed.
        resolved_by_hand: a person decided it there.
        holds: what it keeps busy.
        skew: seconds that its clock is ahead of ours; None if it did not say.
        oldest: seconds for which its oldest branch is in doubt, by its own clock.
        error: why it could not be read.
        own_sink: it is a sink of the job's own, so that nobody else can ask it.
        shown: all that it said, by its own clock.
    """

    participant: str
    state: ParticipantState | None = None
    branches: tuple[HeldBranch, ...] = ()
    of: int = 0
    rows: int = 0
    resolved_by_hand: bool = False
    holds: Holds = dataclasses.field(default_factory=Holds)
    skew: float | None = None
    oldest: float | None = None
    error: str | None = None
    own_sink: bool = False
    shown: Shown | None = dataclasses.field(default=None, repr=False)

    @property
    def all_branches(self) -> tuple[HeldBranch, ...]:
        """Those too that `branches` leaves out; their times are corrected."""
        found = () if self.shown is None else self.shown.branches
        return _corrected(found, self.skew)

    @property
    def held(self) -> Held | None:
        """What it holds prepared, as its list would say it."""
        if self.shown is None or self.oldest is None:
            return None
        found = [b for b in self.shown.branches if b.state is BranchState.PREPARED]
        return Held(self.oldest, len(found), self.holds.rows)


def ask_all(
    participants: Mapping[str, Observed], transaction: TransactionId, clock: Clock
) -> dict[str, Said]:
    """Ask them at once. One that cannot be read says so, and stops no other."""

    def ask(participant: Observed) -> Said:
        before = clock.now()
        try:
            shown = participant.show(transaction)
            if shown.state is ParticipantState.FORGOTTEN:
                shown = _still_held(participant, transaction, before) or shown
        except TwoPhaseError as error:
            return Said(participant.name, error=str(error))
        return said(participant.name, shown, (before + clock.now()) / 2)

    return ask_at_once(ask, participants)


def _still_held(
    participant: Observed, transaction: TransactionId, at: float
) -> Shown | None:
    """Return what its list has of a transaction that it does not show any more.

    A participant shows nothing at or below the watermark, and lists what is in doubt.
    """
    listing = participant.prepared(transaction.application)
    now = at if listing.now is None else listing.now
    held = tuple(
        HeldBranch(one.branch, BranchState.PREPARED, one.rows, "", now - one.age)
        for one in listing.branches
        if one.transaction == transaction
    )
    if not held:
        return None
    rows = sum(one.rows for one in held)
    return Shown(ParticipantState.PREPARED, held, now=listing.now, holds=Holds(rows))


def said(name: str, shown: Shown, read_at: float) -> Said:
    """Return what a participant said, its times as our clock would have them."""
    skew = None if shown.now is None else shown.now - read_at
    kept = [b for b in shown.branches if b.state is not BranchState.ABORTED]
    return Said(
        name,
        shown.state,
        _corrected(shown.branches[:SHOWN], skew),
        len(shown.branches),
        sum(branch.rows for branch in kept),
        shown.resolved_by_hand,
        shown.holds,
        skew,
        _oldest(shown, read_at),
        shown=shown,
    )


def _oldest(shown: Shown, read_at: float) -> float | None:
    since = [
        branch.prepared_at or read_at
        for branch in shown.branches
        if branch.state is BranchState.PREPARED and branch.sealed_at is None
    ]
    now = read_at if shown.now is None else shown.now
    return max(0.0, now - min(since)) if since else None


def _corrected(
    branches: Iterable[HeldBranch], skew: float | None
) -> tuple[HeldBranch, ...]:
    def ours(theirs: float | None) -> float | None:
        return None if theirs is None else theirs - (skew or 0.0)

    return tuple(
        dataclasses.replace(
            branch,
            prepared_at=ours(branch.prepared_at),
            sealed_at=ours(branch.sealed_at),
        )
        for branch in branches
    )
