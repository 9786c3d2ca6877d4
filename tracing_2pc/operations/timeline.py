"""What happened to a transaction, in order, as log and participants tell it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import NamedTuple

from tracing_2pc.model import DeliveryRecord, HeldBranch, TransactionRecord
from tracing_2pc.operations.said import Said
from tracing_2pc.protocol.diagnosis import count
from tracing_2pc.states import BranchState
from tracing_2pc.store.overview import Audited


class Event(NamedTuple):
    """When, in Unix seconds by our clock; who tells it; what it was."""

    at: float
    who: str
    what: str


def timeline(
    record: TransactionRecord | None,
    deliveries: Mapping[str, DeliveryRecord],
    audit: Iterable[Audited],
    participants: Iterable[Said],
) -> tuple[Event, ...]:
    """Put it in order. Clocks differ: neighbours may have happened the other way."""
    events: list[Event] = []
    if record is not None:
        events += _of_log(record, deliveries)
    events += (Event(one.at, one.who, f"{one.what}: {one.why}") for one in audit)
    for one in participants:
        events += _of_participant(one)
    return tuple(sorted(events, key=lambda event: event.at))


def _of_log(
    record: TransactionRecord, deliveries: Mapping[str, DeliveryRecord]
) -> Iterator[Event]:
    names = ", ".join(record.participants)
    yield Event(record.started, "log", f"begun, for {names}; run {record.run}")
    if record.decided is not None:
        said = f"decided {record.decision}: {record.rows} rows"
        yield Event(record.decided, "log", said)
    for one in deliveries.values():
        if one.acknowledged is not None:
            what = f"{one.participant} acknowledged"
            if one.untold is not None:
                what = f"{one.participant} was not told all: {one.untold}"
            yield Event(one.acknowledged, "log", what)
    if record.finished is not None:
        yield Event(record.finished, "log", f"closed as {record.state}")


def _of_participant(said: Said) -> Iterator[Event]:
    branches = said.all_branches
    prepared = [b for b in branches if b.prepared_at is not None]
    yield from _at(said.participant, "prepared", prepared)
    for state in (BranchState.COMMITTED, BranchState.ABORTED):
        sealed = [b for b in branches if b.state is state]
        yield from _at(said.participant, str(state), sealed)


def _at(who: str, word: str, branches: list[HeldBranch]) -> Iterator[Event]:
    """Tell the first and the last of some branches."""
    times = sorted(
        at
        for branch in branches
        if (at := branch.prepared_at if word == "prepared" else branch.sealed_at)
        is not None
    )
    if not times:
        return
    rows = sum(branch.rows for branch in branches)
    if len(times) > 1 and times[0] != times[-1]:
        yield Event(times[0], who, f"{word} the first of {len(times)} branches")
    yield Event(
        times[-1], who, f"{word} {count(len(times), 'branch', 'branches')}, {rows} rows"
    )
