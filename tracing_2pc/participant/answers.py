"""A participant's answers: one pure decision per request, from the rows read.

Nothing here reads or writes. A resource reads under its lock, asks one of these
functions, and carries out the answer in the same local transaction.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from tracing_2pc.core.model import BranchId, Carrier, TransactionId
from tracing_2pc.core.states import BranchState, Decision, Refusal

PREPARED = BranchState.PREPARED
COMMITTED, ABORTED = BranchState.COMMITTED, BranchState.ABORTED

_PRECEDENCE: Final = (Refusal.UNKNOWN, Refusal.CONFLICT)
"""A commit that is refused for several reasons answers with the first of these."""
_OTHER_CONTENT: Final = "this branch has other content: the digests differ"


@dataclasses.dataclass(frozen=True, slots=True)
class BranchRef:
    """A branch as a request names it: its content is part of its name (rule 4)."""

    branch: BranchId
    rows: int
    digest: str


@dataclasses.dataclass(frozen=True, slots=True)
class BranchRow:
    """A branch as the journal holds it. Times are Unix seconds."""

    ref: BranchRef  # its name and content
    state: BranchState  # where it stands
    tag: int  # the number its rows carry
    since: float  # when it was prepared
    # When it was decided, or None. It equals `since` where a branch was aborted that
    # was never prepared.
    sealed: float | None = None

    @property
    def prepared_at(self) -> float | None:
        """When it was prepared; None if it never was."""
        dropped = self.state is ABORTED and self.since == self.sealed
        return None if dropped else self.since


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionRow:
    """The journal's rows of one transaction, read under the lock."""

    transaction: TransactionId  # its id
    forgotten_through: int | None = None  # of its application here
    # Name by which its application calls this participant.
    participant: str | None = None
    journal: str = ""  # the id of the journal that it was read in
    recorded: bool = False  # it has a row in the journal
    seal: BranchState | None = None  # its outcome, once it is sealed
    by_hand: bool = False  # a person decided it
    # Trace context of its first prepare.
    carrier: Carrier = dataclasses.field(default_factory=Carrier)
    # Those that are prepared, or were.
    branches: Mapping[BranchId, BranchRow] = dataclasses.field(default_factory=dict)
    dead: tuple[int, ...] = ()  # tags of branches that were noted and never prepared
    # Another attempt of the same batch that is committed here.
    committed: TransactionId | None = None
    # Rows that nobody sees are to be deleted, of any transaction; only known if it was
    # read for one branch.
    leftovers: bool = False

    @property
    def forgotten(self) -> bool:
        """At or below forgotten_through."""
        return (
            self.forgotten_through is not None
            and self.transaction.batch <= self.forgotten_through
        )

    def branches_in(self, state: BranchState) -> list[BranchRow]:
        """Branches in a state."""
        return [row for row in self.branches.values() if row.state is state]


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """An acknowledgement or a refusal, and the changes that must be written for it."""

    state: str  # of the branch or transaction, or `unknown`, or `forgotten`
    refusal: Refusal | None = None  # None in an acknowledgement
    detail: str = ""  # of a refusal: the reason, and what to do
    # Further fields of the body.
    fields: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    seal: BranchState | None = None  # the outcome to seal the transaction with
    # Prepared branches that abort although it is committed.
    losers: tuple[BranchRow, ...] = ()


_TABLE: Final = """
                        unknown    prepared   committed   aborted   another_committed
prepare same            prepared   prepared   !committed  !aborted  !committed
prepare other           prepared   !prepared  !committed  !aborted  !committed
commit                  unknown    committed  committed   !aborted  unknown
commit empty            committed  committed  committed   !aborted  unknown
abort                   aborted    aborted    !committed  aborted   aborted
abort branch            aborted    aborted    !committed  aborted   aborted
abort branch by digest  aborted    aborted    !committed  aborted   aborted
abort branch of other   aborted    !prepared  !committed  aborted   aborted
look up                 unknown    prepared   committed   aborted   unknown
"""
"""Columns: the transaction's state. Rows: the request. Cells: the state in the answer.

*unknown* is a refusal, `!` a conflict; all others acknowledge. *Of other* content is a
branch whose digest differs. A transaction resolved by hand is answered like one that
ended the same way, and all at or below forgotten_through as *forgotten*.
"""


def _read_table() -> dict[str, dict[str, tuple[Refusal | None, str]]]:
    head, *lines = _TABLE.strip("\n").splitlines()
    table: dict[str, dict[str, tuple[Refusal | None, str]]] = {}
    for line in lines:
        asked, *cells = re.split(" {2,}", line)
        for given, cell in zip(head.split(), cells, strict=True):
            refusal = Refusal.CONFLICT if cell[0] == "!" else None
            refusal = Refusal.UNKNOWN if cell == "unknown" else refusal
            table.setdefault(given, {})[asked] = refusal, cell.lstrip("!")
    for end in ("committed", "aborted"):
        table[f"resolved_{end}"] = table[end]
    table["forgotten"] = dict.fromkeys(
        table["unknown"], (Refusal.FORGOTTEN, "forgotten")
    )
    return table


ANSWERS: Final = _read_table()
"""The table, by state and request: a refusal or None, and the state that is named."""


def prepare(row: TransactionRow, ref: BranchRef) -> Answer | None:
    """Answer a prepare, before its body is read and after; None lets it go on."""
    if (refused := _closed(row, ref.branch)) is not None:
        return refused
    if (known := row.branches.get(ref.branch)) is None:
        return None
    if known.state in (ABORTED, COMMITTED):
        return _conflict(row, known.state, f"this branch is {known.state}")
    if known.ref.digest != ref.digest:
        return _conflict(row, known.state, _OTHER_CONTENT)
    if known.ref != ref:
        detail = f"Tpc-Rows: the branch with this digest has {known.ref.rows} rows"
        return _refuse(row, Refusal.MALFORMED, PREPARED, detail)
    return prepared(ref)


def prepared(ref: BranchRef) -> Answer:
    """Answer a prepare whose branch is durable."""
    vote = "commit" if ref.rows else "read_only"
    branch = {"branch": str(ref.branch), "rows": ref.rows, "digest": ref.digest}
    return Answer(PREPARED, fields={**branch, "vote": vote})


def commit(row: TransactionRow, chosen: Collection[BranchRef]) -> Answer:
    """Answer a commit: all of the named branches, or none (rules 4 and 5)."""
    if row.forgotten:
        return _forgotten(row)
    if row.seal is ABORTED:
        return _conflict(row, ABORTED, "this transaction was aborted here")
    if row.seal is None and row.committed:
        return _unknown(row, f"{row.committed} has committed this batch")
    refusals = [refused for ref in chosen if (refused := _uncommittable(row, ref))]
    named = {ref.branch for ref in chosen}
    if (reason := _committed_by_hand(row, named)) is not None:
        refusals.append(_conflict(row, COMMITTED, f"{reason}, and not named"))
    if refusals:
        return min(refusals, key=lambda refused: _PRECEDENCE.index(refused.refusal))
    # Rule 4: a branch that the commit does not name aborts.
    losers = [b for b in row.branches_in(PREPARED) if b.ref.branch not in named]
    return dataclasses.replace(_yes(row, COMMITTED), losers=tuple(losers))


def _committed_by_hand(
    row: TransactionRow, expected: Collection[BranchId] = ()
) -> str | None:
    """Name a branch that was committed by hand, before the transaction was decided."""
    for branch_row in row.branches_in(COMMITTED):
        if row.seal is None and branch_row.ref.branch not in expected:
            return f"branch {branch_row.ref.branch} was committed by hand"
    return None


def _uncommittable(row: TransactionRow, ref: BranchRef) -> Answer | None:
    known, name = row.branches.get(ref.branch), f"branch {ref.branch}"
    if known is None:
        return _unknown(row, f"{name} is unknown here")
    if known.state is ABORTED:
        return _conflict(row, ABORTED, f"{name} was aborted here")
    if known.ref != ref:
        content = f"{known.ref.rows} rows with the digest {known.ref.digest}"
        detail = f"{name} holds {content}, not what commit names"
        return _conflict(row, known.state, detail)
    return None


def abort(
    row: TransactionRow, branch: BranchId | None = None, digest: str | None = None
) -> Answer:
    """Answer an abort of the whole transaction, or of one branch.

    With a digest, a branch aborts only if that is its content: a task, which must not
    decide, knows the digest of its own branch only.
    """
    if row.forgotten:
        return _forgotten(row)
    if branch is None:
        if row.seal is COMMITTED:
            return _conflict(row, COMMITTED, "this transaction is committed here")
        if (reason := _committed_by_hand(row)) is not None:
            return _conflict(row, COMMITTED, reason)
        return _yes(row, ABORTED)
    known = row.branches.get(branch)
    if known is not None and known.state is COMMITTED:
        return _conflict(row, COMMITTED, f"branch {branch} is committed here")
    if known is None or known.state is ABORTED or digest in (None, known.ref.digest):
        return Answer(ABORTED, fields={"branch": str(branch), **_flag(row)})
    return _conflict(row, known.state, _OTHER_CONTENT)


def resolve(row: TransactionRow, outcome: Decision) -> Answer:
    """Answer a resolution by hand of an orphan, also of one below forgotten_through."""
    if row.seal is not None:
        return _conflict(row, row.seal, f"this transaction is {row.seal} already")
    if not row.branches_in(PREPARED):
        if row.forgotten:
            return _forgotten(row)
        return _unknown(row, "nothing is prepared here under this id")
    if outcome is Decision.ABORT:
        if (reason := _committed_by_hand(row)) is not None:
            return _conflict(row, COMMITTED, reason)
    elif (because := _duplicate(row)) is not None:
        return _conflict(row, PREPARED, f"{because}: only abort is safe")
    seal = ABORTED if outcome is Decision.ABORT else COMMITTED
    return Answer(seal, fields={"resolved_by_hand": True}, seal=seal)


def _duplicate(row: TransactionRow) -> str | None:
    """Return why committing all prepared branches could write a record twice."""
    if row.committed:
        return f"{row.committed} has committed this batch"
    if row.forgotten:
        return "at or below forgotten_through another attempt may have been committed"
    partitions = [b.ref.branch.partition for b in row.branches_in(PREPARED)]
    if len(set(partitions)) < len(partitions):
        return "two branches hold the same partition's records"
    return None


def show(row: TransactionRow, now: float, holds: Mapping[str, int]) -> Answer:
    """Answer a look-up of one transaction; times are by the participant's clock.

    `holds` counts the rows, slots and locks of the transaction while it is in doubt.
    """
    if row.forgotten:
        return _forgotten(row)
    if row.seal is None and not row.branches:
        return _unknown(row, "nothing is known here under this id")
    branches = [
        {
            "branch": str(known.ref.branch),
            "state": str(known.state),
            "rows": known.ref.rows,
            "digest": known.ref.digest,
            "prepared_at": known.prepared_at,
            "sealed_at": known.sealed,
        }
        for _, known in sorted(row.branches.items())
    ]
    fields = {"resolved_by_hand": row.by_hand, "now": now, "holds": dict(holds)}
    return Answer(row.seal or PREPARED, fields={"branches": branches, **fields})


def _closed(row: TransactionRow, branch: BranchId) -> Answer | None:
    """Refuse a transaction that may no longer be prepared (rules 18, 19 and 20)."""
    if row.forgotten:
        return _forgotten(row)
    if row.seal is not None:
        known = row.branches.get(branch)
        state = known.state if known else row.seal
        return _conflict(row, state, f"this transaction is sealed: {row.seal}")
    if row.committed:
        return _conflict(row, COMMITTED, f"{row.committed} has committed this batch")
    return None


def _forgotten(row: TransactionRow) -> Answer:
    below = f"at or below forgotten_through {row.forgotten_through}"
    return Answer("forgotten", Refusal.FORGOTTEN, f"{below}: read the decision log")


def _yes(row: TransactionRow, outcome: BranchState) -> Answer:
    seal = outcome if row.seal is None else None
    return Answer(outcome, fields=_flag(row), seal=seal)


def _refuse(row: TransactionRow, refusal: Refusal, state: str, detail: str) -> Answer:
    other = {"committed": str(row.committed)} if row.committed else {}
    return Answer(state, refusal, detail, {**other, **_flag(row)})


def _unknown(row: TransactionRow, detail: str) -> Answer:
    # Rule 5: what is not known is refused, and never acknowledged.
    return _refuse(row, Refusal.UNKNOWN, "unknown", detail)


def _conflict(row: TransactionRow, state: str, detail: str) -> Answer:
    return _refuse(row, Refusal.CONFLICT, state, detail)


def _flag(row: TransactionRow) -> dict[str, Any]:
    return {"resolved_by_hand": True} if row.by_hand else {}
