"""What is explored: the whole protocol within bounds, and without each rule."""

from __future__ import annotations

from typing import Final, NamedTuple

from spec.protocol import Bounds

ONE: Final = Bounds(batches=1, driver_crashes=0)

WHOLE: Final = (
    Bounds(driver_crashes=1, time_outs=1),
    Bounds(driver_crashes=1, twins=1),
    Bounds(participants=3, batches=1, driver_crashes=1, twins=1),
    ONE._replace(
        driver_crashes=1,
        participant_crashes=1,
        log_crashes=1,
        refusals=1,
        slow_uploads=1,
    ),
    Bounds(attempts=2, driver_crashes=0, rivals=1),
    ONE._replace(rivals=1, twins=1),
    Bounds(driver_crashes=1, lost_answers=1),
    Bounds(driver_crashes=1, bad_rows=1),
    ONE._replace(driver_crashes=1, twins=1, bad_rows=2),
    ONE._replace(participants=3, driver_crashes=1, bad_rows=1),
)
"""Together at least a million worlds, in all of which every promise holds."""

QUICK: Final = (
    ONE._replace(driver_crashes=1, twins=1),
    ONE._replace(driver_crashes=1, time_outs=1, lost_answers=1),
    ONE._replace(refusals=1, slow_uploads=1, participant_crashes=1),
    Bounds(driver_crashes=1),
    ONE._replace(driver_crashes=1, bad_rows=1),
)
"""The same for a test."""


class Without(NamedTuple):
    """Rules that are taken out together, and a world in which that shows."""

    rules: tuple[str, ...]
    bounds: Bounds


WITHOUT: Final = (
    Without(("1",), ONE._replace(refusals=1)),
    Without(("1 branch",), ONE._replace(bad_rows=1)),
    Without(("2",), ONE._replace(driver_crashes=1, log_crashes=1)),
    Without(("3",), ONE._replace(driver_crashes=1, time_outs=1)),
    Without(("4",), ONE._replace(twins=1)),
    Without(("5",), ONE._replace(take_overs=1)),
    Without(("6", "19"), Bounds(driver_crashes=0)),
    Without(("7",), ONE._replace(driver_crashes=1)),
    Without(("8",), ONE._replace(lost_answers=1)),
    Without(("9",), ONE),
    Without(("10",), ONE._replace(driver_crashes=1)),
    Without(("11",), ONE),
    Without(("12",), ONE),
    Without(("13",), ONE._replace(participant_crashes=1)),
    Without(("14", "write once"), ONE._replace(driver_crashes=1, rivals=1)),
    Without(("15",), ONE._replace(time_outs=1)),
    Without(("15 again",), ONE._replace(lost_answers=1)),
    Without(("16",), ONE),
    Without(("17", "17 watermark"), ONE._replace(driver_crashes=1)),
    Without(("18 replay",), ONE._replace(driver_crashes=1)),
    Without(("18 replay", "18 attempt", "18 index"), ONE._replace(driver_crashes=1)),
    Without(("20",), ONE._replace(twins=1, slow_uploads=1)),
)

BEHIND: Final = ("6", "14", "17", "18 index", "18 attempt", "19")
"""Each of these stands behind another rule: without it alone, all promises hold."""

WORDS: Final = {
    "1 branch": "the votes that a commit stands on are about the same branches",
    "15 again": "a decision that is not answered is asked for again",
    "17 watermark": "`begin` looks at `forgotten_through`",
    "18 replay": "a batch that is decided commit is not begun again",
    "18 attempt": "a participant refuses another attempt of a batch that it has",
    "18 index": "the log takes one commit of a batch",
    "write once": "a decision is written once",
}
"""Parts of a rule, and what stands beside the table."""
