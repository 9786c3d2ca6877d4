"""What a participant answers: one pure decision per request, from what was read.

Nothing here reads or writes. A resource reads under its lock, asks one of these
functions, and makes true what the answer says, in the same local transaction.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from tracing_2pc.model import BranchId, Carrier, TransactionId
from tracing_2pc.states import BranchState, Decision

WRITING, PREPARED = BranchState.WRITING, BranchState.PREPARED
COMMITTED, ABORTED = BranchState.COMMITTED, BranchState.ABORTED

_OTHER_CONTENT: Final = "this branch has other content: the digests differ"


@dataclasses.dataclass(frozen=True, slots=True)
class Named:
    """A branch as a request names it: its content is part of its name (rule 4)."""

    branch: BranchId
    rows: int
    digest: str


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """A branch as the journal holds it.

    Args:
        named: its name and content.
        state: where it stands.
        tag: the number its rows carry.
        since: Unix seconds: prepared at; while it is written, when that began.
        sealed: Unix seconds; None while nobody has decided it. Where it was aborted
            and never prepared, `since` is the same.
    """

    named: Named
    state: BranchState
    tag: int
    since: float
    sealed: float | None = None

    @property
    def prepared_at(self) -> float | None:
        """When it was prepared; None if it is not, or never was."""
        if self.state is WRITING:
            return None
        dropped = self.state is ABORTED and self.since == self.sealed
        return None if dropped else self.since


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """What the journal says about one transaction, read under the lock.

    Args:
        transaction: which one.
        watermark: of its application here; None for none yet.
        participant: name by which its application calls us; None for none yet.
        recorded: it has a row in the journal.
        seal: the outcome it was sealed with, if it was.
        by_hand: a person decided it.
        carrier: trace context of its first prepare.
        branches: without those whose writer died: they never happened.
        committed: another attempt of the same batch that is committed here.
    """

    transaction: TransactionId
    watermark: int | None = None
    participant: str | None = None
    recorded: bool = False
    seal: BranchState | None = None
    by_hand: bool = False
    carrier: Carrier = dataclasses.field(default_factory=dict)
    branches: Mapping[BranchId, Held] = dataclasses.field(default_factory=dict)
    committed: TransactionId | None = None

    @property
    def forgotten(self) -> bool:
        """At or below the watermark."""
        return self.watermark is not None and self.transaction.batch <= self.watermark

    def holding(self, state: BranchState) -> list[Held]:
        """Branches in a state."""
        return [held for held in self.branches.values() if held.state is state]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """A status, the state it speaks of, and what must be written to make it true.

    Args:
        status: HTTP status; 200 is an acknowledgement, anything else a problem.
        state: of the branch or transaction, `unknown` or `forgotten`.
        detail: for a problem, what holds and what to do.
        fields: what else the body says.
        seal: seal the transaction with this outcome.
    """

    status: int
    state: str
    detail: str = ""
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seal: BranchState | None = None


def prepare(seen: Seen, wanted: Named) -> Answer | None:
    """Answer a prepare before a byte of it is read; None means write it."""
    if (refused := _closed(seen, wanted.branch)) is not None:
        return refused
    held = seen.branches.get(wanted.branch)
    if held is None:
        return None
    if held.state in (ABORTED, COMMITTED):
        return _no(seen, 409, held.state, f"this branch is {held.state}")
    if held.named.digest != wanted.digest:
        return _no(seen, 409, held.state, _OTHER_CONTENT)
    if held.state is WRITING:
        return _no(seen, 425, WRITING, "a prepare of it is under way: ask again")
    if held.named != wanted:
        detail = f"Tpc-Rows: the branch with this digest has {held.named.rows} rows"
        return _no(seen, 400, PREPARED, detail)
    return Answer(200, PREPARED, fields=vote(wanted))


def finish(seen: Seen, tag: int, wanted: Named) -> Answer:
    """Answer a prepare whose rows are written: may they become durable (rule 20)?"""
    if (refused := _closed(seen, wanted.branch)) is not None:
        return refused
    held = seen.branches.get(wanted.branch)
    if held is None or held.tag != tag or held.state is not WRITING:
        return _no(seen, 409, ABORTED, "this branch was aborted while it was written")
    return Answer(200, PREPARED, fields=vote(wanted))


def vote(wanted: Named) -> dict[str, Any]:
    """Return what the answer to a prepare says beside its state."""
    return {
        "branch": str(wanted.branch),
        "vote": "commit" if wanted.rows else "read_only",
        "rows": wanted.rows,
        "digest": wanted.digest,
    }


def commit(seen: Seen, named: Iterable[Named]) -> Answer:
    """Answer a commit: all of the named branches, or none (rules 4 and 5)."""
    if seen.forgotten:
        return _forgotten(seen)
    if seen.seal is ABORTED:
        return _no(seen, 409, ABORTED, "this transaction was aborted here")
    if seen.seal is None and seen.committed:
        return _no(seen, 404, "unknown", f"{seen.committed} has committed this batch")
    named = list(named)
    refusals = [refused for n in named if (refused := _uncommittable(seen, n))]
    if (stray := _stray(seen, {n.branch for n in named})) is not None:
        refusals.append(_no(seen, 409, COMMITTED, f"{stray}, and not named"))
    if refusals:
        return min(refusals, key=lambda refused: refused.status)
    return _yes(seen, COMMITTED)


def _stray(seen: Seen, expected: Collection[BranchId]) -> str | None:
    """Say which branch somebody has committed behind our back, before the decision."""
    if seen.seal is not None:
        return None
    committed = [held.named.branch for held in seen.holding(COMMITTED)]
    strays = [branch for branch in committed if branch not in expected]
    return f"branch {strays[0]} was committed by hand" if strays else None


def _uncommittable(seen: Seen, wanted: Named) -> Answer | None:
    held = seen.branches.get(wanted.branch)
    if held is None:
        return _no(seen, 404, "unknown", f"branch {wanted.branch} is unknown here")
    if held.state is ABORTED:
        return _no(seen, 409, ABORTED, f"branch {wanted.branch} was aborted here")
    if held.named != wanted:
        detail = (
            f"branch {wanted.branch} holds {held.named.rows} rows with the digest "
            f"{held.named.digest}, not what commit names"
        )
        return _no(seen, 409, held.state, detail)
    if held.state is WRITING:
        detail = f"a prepare of branch {wanted.branch} is under way: ask again"
        return _no(seen, 425, WRITING, detail)
    return None


def abort(
    seen: Seen, branch: BranchId | None = None, digest: str | None = None
) -> Answer:
    """Answer an abort of the whole transaction, or of one branch.

    A branch that is there aborts by its own digest only, where one is given: who must
    not decide knows no other's.
    """
    if seen.forgotten:
        return _forgotten(seen)
    if branch is None:
        if seen.seal is COMMITTED:
            return _no(seen, 409, COMMITTED, "this transaction is committed here")
        if (stray := _stray(seen, ())) is not None:
            return _no(seen, 409, COMMITTED, stray)
        return _yes(seen, ABORTED)
    held = seen.branches.get(branch)
    if held is not None and held.state is COMMITTED:
        return _no(seen, 409, COMMITTED, f"branch {branch} is committed here")
    if held is not None and _is_of_other_content(held, digest):
        return _no(seen, 409, held.state, _OTHER_CONTENT)
    return Answer(200, ABORTED, fields={"branch": str(branch), **_flag(seen)})


def _is_of_other_content(held: Held, digest: str | None) -> bool:
    return held.state is not ABORTED and digest not in (None, held.named.digest)


def resolve(seen: Seen, outcome: Decision) -> Answer:
    """Answer a resolution by hand of an orphan, also of one below the watermark."""
    if seen.seal is not None:
        return _no(seen, 409, seen.seal, f"this transaction is {seen.seal} already")
    if not seen.holding(PREPARED):
        if seen.forgotten:
            return _forgotten(seen)
        if seen.holding(WRITING):
            return _no(seen, 425, WRITING, "a prepare is under way: ask again")
        return _no(seen, 404, "unknown", "nothing is prepared here under this id")
    if outcome is Decision.ABORT:
        if (stray := _stray(seen, ())) is not None:
            return _no(seen, 409, COMMITTED, stray)
        return Answer(200, ABORTED, fields={"resolved_by_hand": True}, seal=ABORTED)
    if (because := _duplicate(seen)) is not None:
        return _no(seen, 409, PREPARED, f"{because}: only abort is safe")
    return Answer(200, COMMITTED, fields={"resolved_by_hand": True}, seal=COMMITTED)


def _duplicate(seen: Seen) -> str | None:
    """Say why committing all that is prepared could write records twice."""
    if seen.committed:
        return f"{seen.committed} has committed this batch"
    if seen.forgotten:
        return "at or below the watermark another attempt may have been committed"
    partitions = [held.named.branch.partition for held in seen.holding(PREPARED)]
    if len(set(partitions)) < len(partitions):
        return "two branches hold the same partition's records"
    return None


def show(seen: Seen, now: float, holds: Mapping[str, int]) -> Answer:
    """Answer a look-up of one transaction.

    Args:
        seen: what the journal says.
        now: the participant's clock, by which the times of branches are meant.
        holds: what the transaction keeps busy while it is in doubt.
    """
    if seen.forgotten:
        return _forgotten(seen)
    if seen.seal is None and not seen.branches:
        return _no(seen, 404, "unknown", "nothing is known here under this id")
    branches = [
        {
            "branch": str(held.named.branch),
            "state": str(held.state),
            "rows": held.named.rows,
            "digest": held.named.digest,
            "prepared_at": held.prepared_at,
            "sealed_at": held.sealed,
        }
        for _, held in sorted(seen.branches.items())
    ]
    fields = {
        "branches": branches,
        "resolved_by_hand": seen.by_hand,
        "now": now,
        "holds": dict(holds),
    }
    return Answer(200, seen.seal or PREPARED, fields=fields)


def _closed(seen: Seen, branch: BranchId) -> Answer | None:
    """Refuse what may no longer be prepared (rules 18, 19 and 20)."""
    if seen.forgotten:
        return _forgotten(seen)
    if seen.seal is not None:
        held = seen.branches.get(branch)
        state = held.state if held else seen.seal
        return _no(seen, 409, state, f"this transaction is sealed: {seen.seal}")
    if seen.committed:
        return _no(seen, 409, COMMITTED, f"{seen.committed} has committed this batch")
    return None


def _forgotten(seen: Seen) -> Answer:
    detail = f"at or below the watermark {seen.watermark}: read the decision log"
    return Answer(410, "forgotten", detail)


def _yes(seen: Seen, outcome: BranchState) -> Answer:
    seal = outcome if seen.seal is None else None
    return Answer(200, outcome, fields=_flag(seen), seal=seal)


def _no(seen: Seen, status: int, state: str, detail: str) -> Answer:
    other = {"committed": str(seen.committed)} if seen.committed else {}
    return Answer(status, state, detail, {**other, **_flag(seen)})


def _flag(seen: Seen) -> dict[str, Any]:
    return {"resolved_by_hand": True} if seen.by_hand else {}
