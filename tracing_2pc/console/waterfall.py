"""A transaction on a time axis: from a view to lanes with numbers. No I/O, no HTML.

Places are per cent of the axis, heights are pixels, times are seconds by our clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from tracing_2pc.console.axis import Axis, Tick, compressed_axis
from tracing_2pc.core.model import DeliveryRecord, HeldBranch
from tracing_2pc.core.states import BranchState
from tracing_2pc.inspection.participants import ParticipantReport
from tracing_2pc.inspection.view import TransactionView
from tracing_2pc.inspection.wording import format_count, format_duration, format_elapsed

FOLD: Final = 12
"""Branches of one participant that are drawn each on a lane of their own."""

SLOWEST: Final = 5
"""Branches with a lane of their own where there are more than that."""

SKEW: Final = 1.0
"""Seconds between two clocks from which on a note says so."""

HEAD: Final = 26
LANE: Final = 30
TOP: Final = 48
_LEAST: Final = 0.4


class Phase(NamedTuple):
    """An activity, from `start` to `end`; `end` None: it still goes on."""

    kind: str
    start: float
    end: float | None


LaneContent: TypeAlias = tuple[str, Sequence[Phase]]
"""A lane before it has a place: its label, and what it shows."""


class Segment(NamedTuple):
    """A phase as it is drawn."""

    kind: str
    x: float
    width: float
    still: bool
    title: str


class Lane(NamedTuple):
    """Segments beside each other below their label."""

    y: int
    label: str
    label_x: float  # where the label begins
    ends: bool  # there, and does not begin
    segments: tuple[Segment, ...]


class Group(NamedTuple):
    """Lanes of the log or of a participant; a note where there is more to say."""

    y: int
    who: str
    note: str | None
    lanes: tuple[Lane, ...]


class Mark(NamedTuple):
    """A line across all lanes: the decision, or now."""

    x: float
    kind: str
    label: str


class Waterfall(NamedTuple):
    """A drawing of `height` pixels that begins at `start` and lasts `span` seconds.

    Where nothing has happened for long, the axis is compressed from `cut` on; `quiet`
    ends its label, where there is room.
    """

    start: float
    span: float
    height: int
    cut: Tick | None
    quiet: str
    ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    groups: tuple[Group, ...]
    notes: tuple[str, ...]


def waterfall(view: TransactionView) -> Waterfall | None:
    """Draw it; None where no time of it is known."""
    note = "no record" if view.started is None else None
    contents = [("decision log", note, list(_log_lanes(view)))]
    for report in view.participants:
        lanes = list(_participant_lanes(view, report))
        contents.append((report.participant, _note(report), lanes))
    phases = [p for _, _, lanes in contents for _, part in lanes for p in part]
    if not phases:
        return None
    starts = [phase.start for phase in phases]
    ends = [phase.end for phase in phases if phase.end is not None]
    now = view.at if len(ends) < len(phases) else None
    axis = compressed_axis(min(starts + ends), max(starts + ends), now)
    groups, y = [], TOP
    for who, note, lanes in contents:
        places = range(y + HEAD, y + HEAD + LANE * len(lanes), LANE)
        drawn = [
            _lane(*lane, place, axis) for lane, place in zip(lanes, places, strict=True)
        ]
        groups.append(Group(y, who, note, tuple(drawn)))
        y = places.stop
    tries = max((d.retries for d in view.deliveries if d.pending), default=0)
    return Waterfall(
        axis.start,
        axis.end - axis.start,
        y + 8,
        axis.cut(),
        _in_vain(tries) or " of nothing",
        axis.ticks(),
        tuple(_marks(view, axis)),
        tuple(groups),
        tuple(_notes(view)),
    )


def _log_lanes(view: TransactionView) -> Iterator[LaneContent]:
    if view.started is None:
        return
    deciding = [Phase("deciding", view.started, view.decided)]
    if view.decided is None:
        age = format_duration(view.at - view.started)
        yield f"not decided for {age}", deciding
        return
    took = format_elapsed(view.decided - view.started)
    yield f"decided {view.decision} after {took}", deciding
    if view.finished is not None:
        label = f"closed {format_elapsed(view.finished - view.decided)} later"
    else:
        label = f"not closed for {format_duration(view.at - view.decided)}"
    retried = any(delivery.retries for delivery in view.deliveries)
    kind = "vain" if retried else "delivering"
    yield label, [Phase(kind, view.decided, view.finished)]


def _participant_lanes(
    view: TransactionView, report: ParticipantReport
) -> Iterator[LaneContent]:
    by_name = {delivery.participant: delivery for delivery in view.deliveries}
    delivery = by_name.get(report.participant)
    retried = delivery is not None and delivery.retries > 0
    branches = sorted(report.branches, key=lambda branch: branch.branch)
    slow = branches
    if len(branches) > FOLD:
        slow = sorted(branches, key=_prepared)[-SLOWEST:]
    folded = [branch for branch in branches if branch not in slow]
    for branch in branches:
        if branch in slow:
            word = branch.state if branch.prepared_at is None else "prepared"
            label = f"{branch.branch}: {word}"
            yield _branch_lane(view, label, [branch], retried=retried)
    if folded:
        label = format_count(report.of - len(slow), "more branch", "more branches")
        yield _branch_lane(view, label, folded, retried=retried)
    if view.decided is not None and delivery is not None:
        yield _delivery_lane(view, view.decided, delivery)


def _prepared(branch: HeldBranch) -> float:
    return -math.inf if branch.prepared_at is None else branch.prepared_at


def _branch_lane(
    view: TransactionView, label: str, branches: Sequence[HeldBranch], *, retried: bool
) -> LaneContent:
    """Draw the last prepare, the wait for the decision, and the time until all ended.

    That time is *vain* where the participant was told more than once: the length of its
    own work is not known then.
    """
    prepared = max(map(_prepared, branches))
    if prepared == -math.inf:
        return f"{label}, no times", []
    phases = []
    if view.started is not None:
        label += f" after {format_elapsed(max(0.0, prepared - view.started))}"
        phases.append(Phase("writing", min(view.started, prepared), prepared))
    ends = [branch.sealed_at for branch in branches if branch.sealed_at is not None]
    sealed = max(ends) if len(ends) == len(branches) else None
    # Sealed by hand, or by clocks that differ: there was no wait after that.
    sent = None if view.undelivered else view.decided
    known = [moment for moment in (sent, sealed) if moment is not None]
    decided = max(prepared, min(known)) if known else None
    phases.append(Phase("waiting", prepared, decided))
    if decided is not None:
        aborted = branches[0].state is BranchState.ABORTED
        kind = "vain" if retried else "aborting" if aborted else "committing"
        phases.append(Phase(kind, decided, sealed))
    return label, phases


def _delivery_lane(
    view: TransactionView, decided: float, delivery: DeliveryRecord
) -> LaneContent:
    end = view.finished
    if delivery.acknowledged is not None:
        end = delivery.acknowledged
        label = f"acknowledged after {format_elapsed(max(0.0, end - decided))}"
    elif end is not None:
        label = "never acknowledged"
    else:
        word = "told" if view.undelivered else "acknowledged"
        label = f"not {word} for {format_duration(view.at - decided)}"
    kind = "vain" if delivery.retries else "delivering"
    return label + _in_vain(delivery.retries), [Phase(kind, decided, end)]


def _in_vain(tries: int) -> str:
    return f", {format_count(tries, 'try', 'tries')} in vain" if tries else ""


def _note(report: ParticipantReport) -> str | None:
    if report.own_sink:
        return "a sink of the job's own: only the job can ask it"
    if report.error is not None:
        return "cannot be read"
    if not report.branches and report.state is not None:
        return f"holds nothing: {report.state}"
    return "resolved by hand" if report.resolved_by_hand else None


def _notes(view: TransactionView) -> Iterator[str]:
    for report in view.participants:
        name, shown = report.participant, len(report.branches)
        if report.skew is not None and abs(report.skew) >= SKEW:
            side = "ahead of" if report.skew > 0 else "behind"
            skew = format_duration(abs(report.skew))
            yield f"The clock of {name} is {skew} {side} ours; its times are corrected."
        if report.of > shown:
            count = format_count(report.of, "branch", "branches")
            yield f"{name} has {count}; times are of the first {shown}."


def _lane(label: str, phases: Sequence[Phase], y: int, axis: Axis) -> Lane:
    segments = tuple(_segment(phase, axis) for phase in phases)
    left = min((segment.x for segment in segments), default=0.0)
    right = max((segment.x + segment.width for segment in segments), default=0.0)
    ends = left > 45
    return Lane(y, label, right if ends else left, ends, segments)


def _segment(phase: Phase, axis: Axis) -> Segment:
    """Place a phase; one without length is still seen, and stays inside."""
    still = phase.end is None
    end = axis.end if phase.end is None else max(phase.start, phase.end)
    width = max(_LEAST, axis.place(end) - axis.place(phase.start))
    x = min(axis.place(phase.start), 100 - width)
    title = f"{phase.kind}: {format_elapsed(end - phase.start)}"
    title += " so far" if still else ""
    return Segment(phase.kind, round(x, 3), round(width, 3), still, title)


def _marks(view: TransactionView, axis: Axis) -> Iterator[Mark]:
    if view.decided is not None:
        yield Mark(axis.place(view.decided), "decision", f"decided {view.decision}")
    if view.finished is None and view.at <= axis.end:
        yield Mark(axis.place(view.at), "now", "now")
