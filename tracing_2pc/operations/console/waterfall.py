"""A transaction on a time axis: from a view to lanes with numbers. No I/O, no HTML.

Places are per cent of the axis, heights are pixels, times are seconds by our clock.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from typing import Final, NamedTuple, TypeAlias

from tracing_2pc.model import DeliveryRecord, HeldBranch
from tracing_2pc.operations.console.axis import Axis, Cut, Tick, bent
from tracing_2pc.operations.console.words import counted, short
from tracing_2pc.operations.said import Said
from tracing_2pc.operations.view import View
from tracing_2pc.protocol.diagnosis import lasting
from tracing_2pc.states import BranchState

FOLD: Final = 12
"""Branches of one participant that are drawn each on a lane of their own."""

SLOWEST: Final = 5
"""Branches that still are where there are more than that."""

SKEW: Final = 1.0
"""Seconds between two clocks from which on it is said."""

HEAD: Final = 26
LANE: Final = 30
TOP: Final = 48
_LEAST: Final = 0.4


class Stretch(NamedTuple):
    """What went on from when to when; `end` None is: still."""

    kind: str
    start: float
    end: float | None


class Story(NamedTuple):
    """What one lane tells, in words, and its stretches."""

    label: str
    stretches: tuple[Stretch, ...]


_Told: TypeAlias = tuple[str, str | None, Sequence[Story]]
"""Who, a note, and what there is to tell."""


class Segment(NamedTuple):
    """A stretch as it is drawn."""

    kind: str
    x: float
    width: float
    still: bool
    said: str


class Lane(NamedTuple):
    """Segments beside each other below their label.

    The label begins at `label_x`, or ends there where `ends` is set.
    """

    y: int
    label: str
    label_x: float
    ends: bool
    segments: tuple[Segment, ...]


class Group(NamedTuple):
    """Lanes of the log or of a participant; a note where there is more to say."""

    y: int
    who: str
    note: str | None
    lanes: tuple[Lane, ...]


class Mark(NamedTuple):
    """A line across all lanes: the decision, now, the end."""

    x: float
    kind: str
    label: str


class Waterfall(NamedTuple):
    """A drawing of `height` pixels that begins at `start` and lasts `span` seconds.

    Where nothing has happened for long, `cut` says from where on the axis is another.
    """

    start: float
    span: float
    height: int
    cut: Cut | None
    ticks: tuple[Tick, ...]
    marks: tuple[Mark, ...]
    groups: tuple[Group, ...]
    notes: tuple[str, ...]


def waterfall(view: View) -> Waterfall | None:
    """Draw it; None where no time of it is known."""
    told: list[_Told] = [("decision log", _standing(view), _of_log(view))]
    deliveries = {one.participant: one for one in view.deliveries}
    for one in view.participants:
        delivery = deliveries.get(one.participant)
        stories = list(_of_participant(view, one, delivery))
        told.append((one.participant, _note(one), stories))
    stories = [story for _, _, lanes in told for story in lanes]
    if not any(story.stretches for story in stories):
        return None
    axis = _axis(view, stories)
    groups, height = _placed(told, axis)
    return Waterfall(
        axis.start,
        axis.end - axis.start,
        height,
        axis.cut(_since_then(view)),
        axis.ticks(),
        tuple(_marks(view, axis)),
        groups,
        _notes(view),
    )


def _since_then(view: View) -> str:
    """Say what there was while nothing else happened."""
    tries = max((d.retries for d in view.deliveries if d.pending), default=0)
    return _in_vain(tries) or " of nothing"


def _axis(view: View, stories: Sequence[Story]) -> Axis:
    """Give what has happened most of the axis, however long nothing has since."""
    known = [
        at
        for story in stories
        for one in story.stretches
        for at in (one.start, one.end)
        if at is not None
    ]
    still = any(one.end is None for story in stories for one in story.stretches)
    return bent(min(known), max(known), view.at if still else None)


# --- what is told --------------------------------------------------------------------


def _of_log(view: View) -> list[Story]:
    if view.started is None:
        return []
    if view.decided is None:
        said = f"not decided for {lasting(view.at - view.started)}"
        return [Story(said, (Stretch("deciding", view.started, None),))]
    said = f"decided {view.decision} after {short(view.decided - view.started)}"
    stories = [Story(said, (Stretch("deciding", view.started, view.decided),))]
    if view.finished is not None:
        said = f"closed {short(view.finished - view.decided)} later"
    else:
        said = f"not closed for {lasting(view.at - view.decided)}"
    vain = any(one.retries for one in view.deliveries)
    closing = Stretch("vain" if vain else "delivering", view.decided, view.finished)
    return [*stories, Story(said, (closing,))]


def _of_participant(
    view: View, said: Said, delivery: DeliveryRecord | None
) -> Iterator[Story]:
    branches = sorted(said.branches, key=lambda branch: branch.branch)
    if len(branches) <= FOLD:
        shown, folded = branches, []
    else:
        slow = set(sorted(branches, key=_prepared)[-SLOWEST:])
        shown = [branch for branch in branches if branch in slow]
        folded = [branch for branch in branches if branch not in slow]
    vain = delivery is not None and delivery.retries > 0
    yield from (_of_branch(view, branch, vain=vain) for branch in shown)
    if folded:
        yield _of_many(view, folded, said.of - len(shown), vain=vain)
    if view.decided is not None and delivery is not None:
        yield _of_delivery(view, view.decided, delivery)


def _prepared(branch: HeldBranch) -> float:
    return -math.inf if branch.prepared_at is None else branch.prepared_at


def _of_branch(view: View, branch: HeldBranch, *, vain: bool) -> Story:
    if branch.prepared_at is None:
        return Story(f"{branch.branch}: {branch.state}, no times", ())
    said = f"{branch.branch}: prepared{_after(view, branch.prepared_at)}"
    life = _life(view, branch.prepared_at, branch, branch.sealed_at, vain=vain)
    return Story(said, tuple(life))


def _after(view: View, at: float) -> str:
    return (
        "" if view.started is None else f" after {short(max(0.0, at - view.started))}"
    )


def _life(
    view: View,
    prepared: float,
    branch: HeldBranch,
    sealed: float | None,
    *,
    vain: bool,
) -> Iterator[Stretch]:
    """Tell of writing, of the wait for the decision, and of the time until sealed.

    In vain is that time where the participant was told more than once: how long its
    own work took then is not known.
    """
    if view.started is not None:
        yield Stretch("writing", min(view.started, prepared), prepared)
    decided = view.decided
    if sealed is not None:
        # Sealed by hand, or by clocks that differ: there was no wait after that.
        decided = sealed if decided is None else min(decided, sealed)
    if decided is not None:
        decided = max(decided, prepared)
    yield Stretch("waiting", prepared, decided)
    if decided is not None:
        kind = "aborting" if branch.state is BranchState.ABORTED else "committing"
        yield Stretch("vain" if vain else kind, decided, sealed)


def _of_many(
    view: View, branches: Sequence[HeldBranch], count: int, *, vain: bool
) -> Story:
    """Tell of many at once: the last prepare, and the last seal, if all are sealed."""
    prepared = [b.prepared_at for b in branches if b.prepared_at is not None]
    label = counted(count, "more branch", "more branches")
    if not prepared:
        return Story(f"{label}, no times", ())
    sealed = [b.sealed_at for b in branches if b.sealed_at is not None]
    whole = max(sealed) if len(sealed) == len(branches) else None
    last = max(prepared)
    label += _after(view, last)
    return Story(label, tuple(_life(view, last, branches[0], whole, vain=vain)))


def _of_delivery(view: View, decided: float, delivery: DeliveryRecord) -> Story:
    heard = delivery.acknowledged
    if heard is not None:
        said = f"acknowledged after {short(max(0.0, heard - decided))}"
    else:
        said = f"not acknowledged for {lasting(view.at - decided)}"
        if view.finished is not None:
            said = "never acknowledged"
    end = heard if heard is not None else view.finished
    kind = "vain" if delivery.retries else "delivering"
    return Story(f"{said}{_in_vain(delivery.retries)}", (Stretch(kind, decided, end),))


def _in_vain(tries: int) -> str:
    return f", {counted(tries, 'try', 'tries')} in vain" if tries else ""


def _standing(view: View) -> str | None:
    return "no record" if view.started is None else None


def _note(said: Said) -> str | None:
    if said.own_sink:
        return "a sink of the job's own: only the job can ask it"
    if said.error is not None:
        return "cannot be read"
    if not said.branches and said.state is not None:
        return f"holds nothing: {said.state}"
    if said.resolved_by_hand:
        return "resolved by hand"
    return None


def _notes(view: View) -> tuple[str, ...]:
    notes = []
    for one in view.participants:
        if one.skew is not None and abs(one.skew) >= SKEW:
            side = "ahead of" if one.skew > 0 else "behind"
            notes.append(
                f"The clock of {one.participant} is {lasting(abs(one.skew))} {side} "
                "ours; its times are corrected."
            )
        if one.of > len(one.branches):
            notes.append(
                f"{one.participant} has {counted(one.of, 'branch', 'branches')}; times "
                f"are of the first {len(one.branches)}."
            )
    return tuple(notes)


# --- where it is placed --------------------------------------------------------------


def _placed(told: Iterable[_Told], axis: Axis) -> tuple[tuple[Group, ...], int]:
    y, groups = TOP, []
    for who, note, stories in told:
        lanes = []
        head, y = y, y + HEAD
        for story in stories:
            lanes.append(_lane(story, y, axis))
            y += LANE
        groups.append(Group(head, who, note, tuple(lanes)))
    return tuple(groups), y + 8


def _segment(one: Stretch, axis: Axis) -> Segment:
    """Place a stretch; one without length is still seen, and stays inside."""
    end = axis.end if one.end is None else max(one.start, one.end)
    width = max(_LEAST, axis.place(end) - axis.place(one.start))
    x = min(axis.place(one.start), 100 - width)
    lasts = short(end - one.start)
    said = f"{one.kind}: {lasts}" + (" so far" if one.end is None else "")
    return Segment(one.kind, round(x, 3), round(width, 3), one.end is None, said)


def _lane(story: Story, y: int, axis: Axis) -> Lane:
    segments = tuple(_segment(one, axis) for one in story.stretches)
    if not segments:
        return Lane(y, story.label, 0.0, ends=False, segments=())
    left = min(one.x for one in segments)
    right = max(one.x + one.width for one in segments)
    ends = left > 45
    return Lane(y, story.label, right if ends else left, ends, segments)


def _marks(view: View, axis: Axis) -> Iterator[Mark]:
    if view.decided is not None:
        yield Mark(axis.place(view.decided), "decision", f"decided {view.decision}")
    if view.finished is None and view.at <= axis.end:
        yield Mark(axis.place(view.at), "now", "now")
