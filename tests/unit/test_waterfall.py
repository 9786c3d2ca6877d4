"""A transaction on a time axis: places in per cent, whatever the times are."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest
from support.texts import texts

from tracing_2pc.console.axis import ticks
from tracing_2pc.console.waterfall import FOLD, SLOWEST, Lane, Waterfall, waterfall
from tracing_2pc.core.model import BranchId, DeliveryRecord, HeldBranch, TransactionId
from tracing_2pc.core.states import (
    BranchState,
    Decision,
    ParticipantState,
    TransactionState,
)
from tracing_2pc.inspection.participants import ParticipantReport
from tracing_2pc.inspection.view import TransactionView

TEXTS = texts("unit")

START = 1_700_000_000.0


def branch(
    number: int, prepared: float | None, sealed: float | None = None
) -> HeldBranch:
    return HeldBranch(
        BranchId(number, 100 + number),
        BranchState.PREPARED if sealed is None else BranchState.COMMITTED,
        3,
        "",
        None if prepared is None else START + prepared,
        None if sealed is None else START + sealed,
    )


def said(name: str, *branches: HeldBranch, **more: Any) -> ParticipantReport:
    state = ParticipantState.PREPARED if branches else ParticipantState.UNKNOWN
    return ParticipantReport(name, state, branches[:200], len(branches), **more)


def view(
    *participants: ParticipantReport,
    decided: float | None = None,
    finished: float | None = None,
    at: float = 100,
    started: float | None = 0,
    deliveries: Sequence[DeliveryRecord] = (),
) -> TransactionView:
    def when(seconds: float | None) -> float | None:
        return None if seconds is None else START + seconds

    fields: dict[str, Any] = {f.name: None for f in dataclasses.fields(TransactionView)}
    fields |= {"transaction": TransactionId("orders", 7, 1), "at": START + at}
    fields |= {"state": TransactionState.ACTIVE, "participants": participants}
    fields |= {"decision": None if decided is None else Decision.COMMIT}
    fields |= {"started": when(started), "decided": when(decided)}
    fields |= {"finished": when(finished), "deliveries": tuple(deliveries)}
    return TransactionView(**fields)


def drawn(found: TransactionView) -> Waterfall:
    made = waterfall(found)
    assert made is not None
    return made


def lanes(found: Waterfall, who: str) -> tuple[Lane, ...]:
    (group,) = [one for one in found.groups if one.who == who]
    return group.lanes


def pieces(lane: Lane) -> list[tuple[str, float, float]]:
    return [(one.kind, one.x, one.x + one.width) for one in lane.segments]


def test_a_finished_transaction_is_drawn_to_scale():
    """Begin to decision, each wait, each commit and delivery, at their places."""
    told = [DeliveryRecord("ledger", START + 9), DeliveryRecord("notifier", START + 10)]
    both = said("ledger", branch(0, 2, 9)), said("notifier", branch(0, 4, 10))
    found = drawn(view(*both, decided=5, finished=10, deliveries=told))
    assert (found.start, found.span, found.cut) == (START, 10, None)
    assert [pieces(one) for one in lanes(found, "decision log")] == [
        [("deciding", 0, 50)],
        [("delivering", 50, 100)],
    ]
    ledger = [pieces(one) for one in lanes(found, "ledger")]
    assert ledger == [
        [("writing", 0, 20), ("waiting", 20, 50), ("committing", 50, 90)],
        [("delivering", 50, 90)],
    ]
    assert [(mark.kind, mark.x) for mark in found.marks] == [("decision", 50)]
    assert [one.label for one in lanes(found, "notifier")] == [
        "0.100: prepared after 4.0 s",
        "acknowledged after 5.0 s",
    ]


def test_a_decision_that_nobody_delivers_is_no_commit_under_way():
    """What is prepared still waits: its driver is gone, and asked no participant."""
    prepared = said("ledger", branch(0, 2))
    left = view(prepared, decided=5, at=60, deliveries=[DeliveryRecord("ledger")])
    ledger = lanes(drawn(dataclasses.replace(left, undelivered=True)), "ledger")
    assert [part.kind for part in ledger[0].segments] == ["writing", "waiting"]
    assert ledger[1].label == "not told for 55 s"


def test_an_outage_is_drawn_as_one():
    """Tries in vain are no commit under way, and no time of nothing."""
    told = [
        DeliveryRecord("ledger", START + 6),
        DeliveryRecord("notifier", START + 780, 18, error="nothing listens"),
    ]
    both = said("ledger", branch(0, 2, 6)), said("notifier", branch(0, 4, 780))
    closed = drawn(view(*both, decided=5, finished=780, deliveries=told))
    assert [one[0] for one in pieces(lanes(closed, "ledger")[0])][-1] == "committing"
    branches, delivery = lanes(closed, "notifier")
    assert [one[0] for one in pieces(branches)] == ["writing", "waiting", "vain"]
    assert [one[0] for one in pieces(delivery)] == ["vain"]
    assert delivery.label == TEXTS["acknowledged after tries in vain"]
    assert [one[0] for one in pieces(lanes(closed, "decision log")[1])] == ["vain"]
    told = [DeliveryRecord("notifier", None, 18, error="nothing listens")]
    late = said("notifier", branch(0, 4))
    open_ = drawn(view(late, decided=5, at=780, deliveries=told))
    assert open_.cut is not None
    assert open_.cut.label + open_.quiet == TEXTS["then tries in vain"]
    assert lanes(open_, "notifier")[-1].label.endswith(TEXTS["tries in vain"])


def test_an_attempt_that_is_open_goes_on_until_now():
    """Nothing is decided: the wait is still going on, and so is the attempt."""
    found = drawn(view(said("ledger", branch(0, 40)), at=100))
    (deciding,) = lanes(found, "decision log")[0].segments
    assert (deciding.x, deciding.width, deciding.still) == (0, 100, True)
    writing, waiting = lanes(found, "ledger")[0].segments
    assert (writing.width, waiting.x, waiting.width) == (40, 40, 60)
    assert (writing.still, waiting.still) == (False, True)
    assert [(mark.kind, mark.x) for mark in found.marks] == [("now", 100)]


def test_what_happened_has_room_although_nothing_has_since():
    """Ten seconds of work and an hour of waiting: the order stays, the hour is cut."""
    found = drawn(view(said("ledger", branch(0, 5)), decided=10, at=3600))
    assert found.cut is not None
    assert TEXTS["nothing for an hour"] in found.cut.label + found.quiet
    (deciding,), (closing,) = (one.segments for one in lanes(found, "decision log"))
    assert deciding.width == found.cut.x == closing.x
    assert closing.x + closing.width == 100
    assert [mark.x for mark in found.marks] == [found.cut.x, 100]
    assert max(tick.x for tick in found.ticks) <= found.cut.x


@pytest.mark.parametrize("count", [1, 12, 13, 500])
def test_many_branches_are_folded(count):
    """Each has a lane up to a dozen; then the slowest have, and one is for the rest."""
    branches = [branch(number, 1 + number / 100, 9) for number in range(count)]
    found = drawn(view(said("ledger", *branches), decided=8, finished=9))
    shown = lanes(found, "ledger")
    if count <= FOLD:
        assert len(shown) == count
        return
    assert len(shown) == SLOWEST + 1
    assert shown[-1].label.startswith(f"{count - SLOWEST} more branches")
    last = min(count, 200) - 1
    assert shown[-2].label.startswith(f"{last}.{100 + last}:")
    if count == 500:
        assert "first 200" in found.notes[0]


def test_nothing_has_length():
    """All in one moment: everything is seen, inside the axis."""
    found = drawn(view(said("ledger", branch(0, 0, 0)), decided=0, finished=0, at=0))
    for group in found.groups:
        for lane in group.lanes:
            for one in lane.segments:
                assert one.width > 0
                assert 0 <= one.x <= one.x + one.width <= 100


def test_times_that_are_missing_leave_no_gap_and_no_error():
    """An older participant tells none; one cannot be read; one knows nothing."""
    silent = ParticipantReport("notifier", error="nothing listens")
    asked = said("ledger", branch(0, None)), silent, said("mailer")
    found = drawn(view(*asked, decided=5, finished=6))
    assert lanes(found, "ledger")[0].segments == ()
    assert "no times" in lanes(found, "ledger")[0].label
    notes = {group.who: group.note for group in found.groups}
    assert notes["notifier"] == "cannot be read"
    assert notes["mailer"] == "holds nothing: unknown"


def test_without_any_time_there_is_no_drawing():
    """Neither a record nor a participant tells one."""
    assert waterfall(view(said("ledger"), started=None)) is None


def test_without_a_record_the_wait_is_drawn_alone():
    """Prepared for somebody else: since when, and that it goes on."""
    found = drawn(view(said("ledger", branch(0, 10)), started=None, at=70))
    assert (found.start, found.span) == (START + 10, 60)
    assert pieces(lanes(found, "ledger")[0]) == [("waiting", 0, 100)]
    assert found.groups[0].note == "no record"


def test_what_is_over_without_a_record_ends_when_it_was_over():
    """Now is far behind it, and is not on the axis."""
    found = drawn(view(said("ledger", branch(0, 10, 20)), started=None, at=5_000))
    assert (found.span, found.marks) == (10, ())
    (lane,) = lanes(found, "ledger")
    assert [one.still for one in lane.segments] == [False, False]


def test_clocks_that_differ_are_told_and_turn_nothing_around():
    """Prepared before begin, sealed before decided: no length is below zero."""
    early = said("ledger", branch(0, -3, 4), skew=3600.0)
    late = said("notifier", branch(0, 2, 6), skew=-0.5)
    found = drawn(view(early, late, decided=5, finished=6))
    assert found.start == START - 3
    kinds = [kind for kind, _, _ in pieces(lanes(found, "ledger")[0])]
    assert kinds == ["writing", "waiting", "committing"]
    starts = [x for _, x, _ in pieces(lanes(found, "ledger")[0])]
    assert starts == sorted(starts)
    assert found.notes == (
        "The clock of ledger is 60 min ahead of ours; its times are corrected.",
    )


def test_lanes_do_not_overlap_and_labels_stay_inside():
    """Each lane has its own height; a label of what is late ends where that ends."""
    told = [DeliveryRecord("ledger", START + 9)]
    ledger = said("ledger", branch(0, 1, 9), branch(1, 2, 9))
    found = drawn(view(ledger, decided=8, finished=9, deliveries=told))
    tops = [lane.y for group in found.groups for lane in group.lanes]
    assert tops == sorted(set(tops))
    assert found.height > tops[-1]
    last = lanes(found, "ledger")[-1]
    assert (last.ends, last.label_x) == (True, 100)


@pytest.mark.parametrize(
    ("span", "labels"),
    [
        (0.004, ["0", "1 ms", "2 ms", "3 ms"]),
        (2.0, ["0", "500 ms", "1 s", "1.5 s"]),
        (10, ["0", "2 s", "4 s", "6 s", "8 s"]),
        (540, ["0", "2 min", "4 min", "6 min", "8 min"]),
        (86400 * 3, ["0", "1 d", "2 d"]),
        (86400 * 4000, None),
    ],
)
def test_ticks_are_round_and_few(span, labels):
    """Five or less, from 0 on, in the unit of their step, clear of the end."""
    found = ticks(span)
    assert 2 <= len(found) <= 6
    assert [tick.x for tick in found] == sorted(tick.x for tick in found)
    assert found[-1].x <= 93
    if labels is not None:
        assert [tick.label for tick in found] == labels
