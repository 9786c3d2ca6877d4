"""What a round of looking has brought, and what of it is about one transaction.

The order of looking makes it evidence: the lists of all participants, then the log,
a pause, then the lists again. Before every prepare a record is written, so that a
branch from the first lists without a record is forgotten or foreign, never too new.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TypeAlias

from tracing_2pc.model import (
    DeliveryRecord,
    InDoubt,
    Listing,
    Shown,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.states import TransactionState

Lists = Mapping[str, Listing | None]
"""A list by participant; None where none could be read."""


@dataclasses.dataclass(frozen=True, slots=True)
class Logged:
    """What the log said, after the first lists and before the second ones.

    Args:
        records: what is unfinished.
        deliveries: of those, by participant.
        closed: the state of what is finished and was in a list.
        watermarks: of every application that the log knows.
        clock: the log's, by which deadlines are judged.
        refused: applications with a record that cannot be trusted: nothing is said
            of them.
    """

    records: Mapping[TransactionId, TransactionRecord]
    deliveries: Mapping[TransactionId, Mapping[str, DeliveryRecord]]
    closed: Mapping[TransactionId, TransactionState]
    watermarks: Mapping[str, int | None]
    clock: float
    refused: frozenset[str] = frozenset()


@dataclasses.dataclass(frozen=True, slots=True)
class Held:
    """What a participant has held prepared from the first look to the second.

    Args:
        age: seconds of the oldest branch, by the participant's clock.
        branches: how many.
        rows: in them.
    """

    age: float
    branches: int
    rows: int


@dataclasses.dataclass(frozen=True, slots=True)
class Case:
    """All that is known of one transaction.

    Args:
        transaction: which one.
        record: what the log holds; of what is finished only where it was asked for.
        closed: its state in the log, if it is finished.
        deliveries: by participant.
        known: the log knows its application.
        watermark: of its application in the log.
        held: by participant, only from lists that were whole, twice.
        shown: what participants that were asked say of it.
        stood: seconds for which it has been seen like this, whatever the clocks say.
        clock: the log's, by which deadlines are judged.
    """

    transaction: TransactionId
    record: TransactionRecord | None = None
    closed: TransactionState | None = None
    deliveries: Mapping[str, DeliveryRecord] = dataclasses.field(default_factory=dict)
    known: bool = True
    watermark: int | None = None
    held: Mapping[str, Held] = dataclasses.field(default_factory=dict)
    shown: Mapping[str, Shown] = dataclasses.field(default_factory=dict)
    stood: float = 0.0
    clock: float = 0.0

    @property
    def overdue(self) -> bool:
        """Whether its deadline has passed, by the log's clock."""
        deadline = self.record.deadline if self.record else None
        return deadline is not None and self.clock >= deadline

    @property
    def forgotten(self) -> bool:
        """Whether its record may have been dropped: at or below the watermark."""
        return self.watermark is not None and self.transaction.batch <= self.watermark

    @property
    def moved(self) -> float:
        """When it last got on, by the log's times: begun, decided, acknowledged."""
        if self.record is None:
            return 0.0
        heard = [d.acknowledged for d in self.deliveries.values() if d.acknowledged]
        return max([self.record.started, self.record.decided or 0.0, *heard])


@dataclasses.dataclass(frozen=True, slots=True)
class Evidence:
    """One round. `logged` is None where the log could not be read: nothing follows.

    Args:
        now: our clock, for the log's times.
        safety: seconds by the participant's clock; younger branches are not seen.
        first: what participants listed before the log was read.
        logged: what the log said.
        second: what they listed after the pause.
        shown: what they say of single transactions, asked after the log was read.
        stood: seconds for which somebody has seen it as it is; see `Standing`.
    """

    now: float
    safety: float
    first: Lists
    logged: Logged | None
    second: Lists
    shown: Mapping[TransactionId, Mapping[str, Shown]]
    stood: Mapping[TransactionId, float] = dataclasses.field(default_factory=dict)

    def cases(self) -> Iterator[Case]:
        """Yield what is unfinished, oldest first, then what only participants hold."""
        if self.logged is None:
            return
        held = self._held()
        known = self.logged.records
        for transaction in [*known, *sorted(held.keys() - known.keys())]:
            if transaction.application not in self.logged.refused:
                yield self._case(self.logged, transaction, held.get(transaction, {}))

    def _case(
        self, logged: Logged, transaction: TransactionId, held: Mapping[str, Held]
    ) -> Case:
        application = transaction.application
        return Case(
            transaction,
            record=logged.records.get(transaction),
            closed=logged.closed.get(transaction),
            deliveries=logged.deliveries.get(transaction, {}),
            known=application in logged.watermarks,
            watermark=logged.watermarks.get(application),
            held=held,
            shown=self.shown.get(transaction, {}),
            stood=self.stood.get(transaction, 0.0),
            clock=logged.clock,
        )

    def _held(self) -> dict[TransactionId, dict[str, Held]]:
        found: dict[TransactionId, dict[str, Held]] = {}
        for name, first in self.first.items():
            for one in both(first, self.second.get(name)):
                if one.age >= self.safety:
                    of = found.setdefault(one.transaction, {})
                    of[name] = add(of.get(name), one)
        return found


_Steps: TypeAlias = tuple[float | None, frozenset[str]]
"""When it was decided, and who has acknowledged that."""


class Standing:
    """For how long what is unfinished has been seen to stand still.

    By seconds that only grow: a clock that is set back makes everything younger than
    it is, but what somebody has watched all the time is no younger than that.

    Args:
        clock: seconds that only grow.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._seen: dict[TransactionId, tuple[_Steps, float]] = {}

    def watched(self, evidence: Evidence) -> Evidence:
        """Return a round with what those before have seen; remember it for the next."""
        if (logged := evidence.logged) is None:
            return evidence
        now, before = self._clock(), self._seen
        self._seen = {}
        for id_, record in logged.records.items():
            # Not `moved`: after a clock is set back, the newest is not the last.
            told = logged.deliveries.get(id_, {}).items()
            heard = frozenset(name for name, one in told if one.acknowledged)
            steps = (record.decided, heard)
            last, since = before.get(id_, (steps, now))
            self._seen[id_] = (steps, since if last == steps else now)
        stood = {id_: now - since for id_, (_, since) in self._seen.items()}
        return dataclasses.replace(evidence, stood=stood)


def both(first: Listing | None, second: Listing | None) -> Iterable[InDoubt]:
    """Return what is in both lists, as the second has it; nothing if one is not whole.

    A list that failed or came back in part says nothing, about anything.
    """
    if first is None or second is None or not (first.complete and second.complete):
        return []
    before = {(one.transaction, one.branch) for one in first.branches}
    return [b for b in second.branches if (b.transaction, b.branch) in before]


def add(held: Held | None, one: InDoubt) -> Held:
    """Return what is held with one more branch."""
    if held is None:
        return Held(one.age, 1, one.rows)
    return Held(max(held.age, one.age), held.branches + 1, held.rows + one.rows)
