"""Drop old finished transactions from the log, in slices, each of which is durable."""

from __future__ import annotations

import functools
from typing import Final

from tracing_2pc.core.model import check_application
from tracing_2pc.inspection.actions import Advice
from tracing_2pc.inspection.wording import (
    format_count,
    format_iso,
    format_time,
    parse_time,
)
from tracing_2pc.operations.actions.action import (
    Action,
    Argument,
    Done,
    Given,
    PreparedAction,
    Preview,
    Reach,
    Reason,
    application_given,
    of_application,
)
from tracing_2pc.protocol.delivery import SLICE


def prepare(reach: Reach, given: Given) -> PreparedAction:
    """Count transactions that finished so long ago."""
    from tracing_2pc.operations.recover import raise_if_unknown  # opens stores

    application = check_application(given["application"])
    # A moment: what is confirmed later is about the same transactions.
    moment = format_iso(parse_time(given["before"], reach.clock.now())) or ""
    before, given = parse_time(moment, 0.0), {**given, "before": moment}
    raise_if_unknown(reach.log, application)
    count, through = reach.log.forgettable(application, before)

    def run(_who: str, _reason: str) -> list[Done]:
        gone = 0
        # In slices: each is durable, and others may work between two.
        while dropped := reach.log.forget(
            application, finished_before=before, limit=SLICE
        ):
            gone += dropped
            reach.progress(f"{gone} of {count} forgotten")
        reach.progress("")
        newest = reach.log.forgotten_by_application()[application]
        return [_report(application, gone, newest, dry_run=False)]

    effect = f"forgets {format_count(count, 'transaction')} of {application}, for ever"
    preview = Preview(
        Advice(FORGET.command(given), safe=False, effect=effect),
        facts=(("Application", application), ("Finished before", format_time(before))),
        gone="" if count else f"nothing of {application} finished before {moment}",
        report=_report(application, count, through, dry_run=True),
    )
    return PreparedAction(
        given, "Forget", str(count), "their number", lambda: preview, run, first=effect
    )


def _report(
    application: str, count: int, through: int | None, *, dry_run: bool
) -> Done:
    """Return the number of forgotten transactions, or of those that would be."""
    item = {"application": application, "forgotten": count, "dry_run": dry_run}
    word = "would be forgotten" if dry_run else "forgotten"
    line = f"{format_count(count, 'transaction')} of {application} {word}"
    shown = "none" if through is None else through
    item |= {"forgotten_through": through}
    return Done(f"{line}; forgotten_through {shown}", item)


FORGET: Final = Action(
    "forget",
    "drop old finished transactions from the log",
    (
        of_application("its transactions"),
        Argument(
            "before",
            "finished so long ago or longer, as in 7d, or before a time, in UTC",
            functools.partial(parse_time, now=0.0),
            required=True,
            metavar="AGE",
        ),
    ),
    prepare,
    title="Forget old transactions",
    place="application",
    reason=Reason.NOT_KEPT,
    can_rehearse=True,
    application=application_given,
    examples=("forget --application orders --before 7d --dry-run",),
)
