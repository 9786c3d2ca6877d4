"""The records of the protocol: small, immutable, free of I/O."""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Mapping
from typing import Any, Final

from tracing_2pc.states import (
    BranchState,
    Decision,
    ParticipantState,
    TransactionState,
    Vote,
)

Carrier = dict[str, str]
"""A trace context at rest: header names to values."""

PREVIOUS: Final = "tpc-previous"
"""Key in the carrier of an attempt: traceparent of the one before it at this batch.
Stored for the link between their roots, and never sent."""

MAX_BRANCHES: Final = 20_000
"""A commit names at most so many branches to one participant: its body has a limit."""

_APPLICATION: Final = re.compile(r"[a-z0-9][a-z0-9-]{0,39}")
_ORDINAL: Final = r"(0|[1-9][0-9]{0,17})"
_TRANSACTION: Final = re.compile(
    rf"([a-z0-9][a-z0-9-]{{0,39}})\.{_ORDINAL}\.([1-9][0-9]{{0,8}})"
)
_BRANCH: Final = re.compile(rf"{_ORDINAL}\.{_ORDINAL}")


def check_application(name: str) -> str:
    """Return the name of an application, or raise `ValueError` saying what is wrong."""
    if not _APPLICATION.fullmatch(name):
        raise ValueError(
            f"application {name[:60]!r}: use 1 to 40 lower-case letters, digits and "
            "dashes, starting with a letter or digit"
        )
    return name


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class TransactionId:
    """One try to apply one micro-batch everywhere: `<application>.<batch>.<attempt>`.

    There is one spelling: ASCII digits without leading zeros, attempt from 1. An id
    is never used twice (rule 3).
    """

    application: str
    batch: int
    attempt: int

    def __str__(self) -> str:
        return f"{self.application}.{self.batch}.{self.attempt}"

    @classmethod
    def parse(cls, text: str) -> TransactionId:
        """Read an id; `ValueError` if it is not in its one spelling."""
        if not (found := _TRANSACTION.fullmatch(text)):
            raise ValueError(
                f"transaction id {text[:80]!r}: expected <application>.<batch>."
                "<attempt>, digits without leading zeros, attempt from 1"
            )
        return cls(found[1], int(found[2]), int(found[3]))


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class BranchId:
    """What one task attempt wrote: `<partition>.<task attempt>`.

    The task attempt is Spark's `taskAttemptId`, unique in a Spark application, so
    retries and speculative twins never share a branch.
    """

    partition: int
    task_attempt: int

    def __str__(self) -> str:
        return f"{self.partition}.{self.task_attempt}"

    @classmethod
    def parse(cls, text: str) -> BranchId:
        """Read an id; `ValueError` if it is not in its one spelling."""
        if not (found := _BRANCH.fullmatch(text)):
            raise ValueError(
                f"branch {text[:80]!r}: expected <partition>.<task attempt>, "
                "digits without leading zeros"
            )
        return cls(int(found[1]), int(found[2]))


@dataclasses.dataclass(frozen=True, slots=True)
class BranchContext:
    """What a sink's `begin` is told: all that it needs to name what it writes."""

    transaction_id: TransactionId
    branch: BranchId
    participants: tuple[str, ...]
    carrier: Carrier


@dataclasses.dataclass(frozen=True, slots=True)
class Receipt:
    """What a task returns when it voted.

    Args:
        branch: the branch it wrote.
        rows: records in the branch.
        digest: SHA-256 over the prepared bytes, as in `Content-Digest`; empty where
            a sink has none.
        votes: vote per participant.
        handle: for a hand-written sink, what its `commit` needs: plain JSON.
    """

    branch: BranchId
    rows: int
    digest: str
    votes: Mapping[str, Vote]
    handle: Any = None

    def to_json(self) -> str:
        """Write it as one JSON object, for the way from a task to the driver."""
        return json.dumps(
            {
                "branch": str(self.branch),
                "rows": self.rows,
                "digest": self.digest,
                "votes": {name: str(vote) for name, vote in self.votes.items()},
                "handle": self.handle,
            }
        )

    @classmethod
    def from_json(cls, text: str) -> Receipt:
        """Read what `to_json` wrote."""
        item = json.loads(text)
        votes = {name: Vote(vote) for name, vote in item["votes"].items()}
        branch = BranchId.parse(item["branch"])
        return cls(branch, item["rows"], item["digest"], votes, item["handle"])


def trace_id_of(carrier: Carrier) -> str | None:
    """Return a carrier's trace, as W3C writes it; None where nothing was traced."""
    parts = carrier.get("traceparent", "").split("-")
    return parts[1] if len(parts) == 4 else None


@dataclasses.dataclass(frozen=True, slots=True)
class TransactionRecord:
    """What the decision log holds of one transaction.

    Times are Unix seconds by the clock of whoever wrote them, but for `deadline`: that
    is by the log's clock, and only the log says whether it has passed. `timeout` is
    what the job set, in seconds; 0, and no deadline, means none. `watermark` is the
    application's, as durable in the log when this record was read: participants
    may be told it. `own_sinks` are the participants that are sinks of the job's own: no
    other process can reach them. `receipts` are kept until a later batch is committed,
    `rows`, which is their sum, as long as the record. `made_here` is no part of what
    the log holds: the call that returned this record is the one that made the decision,
    so that each is counted once.
    """

    id: TransactionId
    run: str
    state: TransactionState
    decision: Decision | None
    participants: tuple[str, ...]
    acknowledged: frozenset[str]
    carrier: Carrier
    started: float
    decided: float | None = None
    finished: float | None = None
    receipts: tuple[Receipt, ...] = ()
    rows: int = 0
    watermark: int | None = None
    timeout: float = 0.0
    deadline: float | None = None
    own_sinks: frozenset[str] = frozenset()
    given_up: frozenset[str] = frozenset()
    made_here: bool = dataclasses.field(default=False, compare=False)

    @property
    def pending(self) -> tuple[str, ...]:
        """Participants that are to acknowledge the decision, and have not yet."""
        done = self.acknowledged | self.given_up
        return tuple(p for p in self.participants if p not in done)

    @property
    def abandoned(self) -> tuple[str, ...]:
        """Participants that a person gave up, and that never acknowledged."""
        lost = self.given_up - self.acknowledged
        return tuple(p for p in self.participants if p in lost)

    @property
    def trace_id(self) -> str | None:
        """Its trace, as W3C writes it; None where nothing was traced."""
        return trace_id_of(self.carrier)

    def chosen(self, participant: str) -> tuple[Receipt, ...]:
        """Receipts that commit names to this participant (rule 4)."""
        return tuple(
            r for r in self.receipts if r.votes.get(participant) is Vote.COMMIT
        )


@dataclasses.dataclass(frozen=True, slots=True)
class DeliveryRecord:
    """How far a decision has got with one participant; times are Unix seconds.

    Args:
        participant: its configured name.
        acknowledged: when it did; None if it has not.
        retries: tries that failed.
        retry_at: when the next one is due, at the latest; None where nobody who tried
            will try again by himself.
        error: what came last instead of an acknowledgement, in short.
        own_sink: it is a sink of the job's own, which no other process can reach.
        untold: why it counts as acknowledged although part of it was not told.
        given_up: when a person said that it will never acknowledge; None if nobody did.
    """

    participant: str
    acknowledged: float | None = None
    retries: int = 0
    retry_at: float | None = None
    error: str | None = None
    own_sink: bool = False
    untold: str | None = None
    given_up: float | None = None

    @property
    def pending(self) -> bool:
        """Whether an acknowledgement is waited for."""
        return self.acknowledged is None and self.given_up is None


@dataclasses.dataclass(frozen=True, slots=True)
class Begun:
    """What `DecisionLog.begin` answers.

    Args:
        record: the attempt to write, or, in a replay, the one already decided.
        replay: the batch is decided commit: deliver again, write nothing.
        superseded: undecided attempts that this begin decided abort; where an attempt
            is joined, those that still have to be told so.
    """

    record: TransactionRecord
    replay: bool
    superseded: tuple[TransactionRecord, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True)
class InDoubt:
    """A branch in a participant's list: prepared, its decision not heard.

    `age` is in seconds, by the participant's clock.
    """

    transaction: TransactionId
    branch: BranchId
    age: float
    rows: int
    carrier: Carrier


@dataclasses.dataclass(frozen=True, slots=True)
class Listing:
    """What a participant holds prepared, oldest first.

    Args:
        branches: those that could be read.
        missing: why there may be more; None if these are all.
        now: the participant's clock in Unix seconds; None if it did not say.
        only: the one application that our token lets us see; None for all.
    """

    branches: tuple[InDoubt, ...]
    missing: str | None = None
    now: float | None = None
    only: str | None = None

    @property
    def complete(self) -> bool:
        """Whether what is not in it is not prepared there."""
        return self.missing is None

    def is_blind_to(self, application: str) -> bool:
        """Whether our token does not let us see what is of this application."""
        return self.only not in (None, application)


@dataclasses.dataclass(frozen=True, slots=True)
class Identity:
    """Which participant it is.

    Args:
        journal: an id of its own, made with its journal.
        participants: name by which each application calls it, as far as we may see.
    """

    journal: str
    participants: Mapping[str, str]


@dataclasses.dataclass(frozen=True, slots=True)
class HeldBranch:
    """A branch as a participant shows it; times by the participant's clock."""

    branch: BranchId
    state: BranchState
    rows: int
    digest: str
    prepared_at: float | None = None
    sealed_at: float | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Holds:
    """What a transaction keeps busy at a participant while it is in doubt.

    Args:
        rows: prepared, and not visible.
        slots: of `max_prepared_transactions`; None where nothing is held back so.
        locks: of prepared transactions.
        horizon: age of the oldest in transactions: VACUUM cleans up nothing younger.
    """

    rows: int = 0
    slots: int | None = None
    locks: int | None = None
    horizon: int | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Shown:
    """What a participant says about one transaction; *unknown* is an answer, too.

    Args:
        state: of the transaction there.
        branches: in their order; none where it is unknown or forgotten.
        resolved_by_hand: a person decided it there.
        now: the participant's clock in Unix seconds; None if it did not say.
        holds: what it keeps busy.
    """

    state: ParticipantState
    branches: tuple[HeldBranch, ...] = ()
    resolved_by_hand: bool = False
    now: float | None = None
    holds: Holds = Holds()
