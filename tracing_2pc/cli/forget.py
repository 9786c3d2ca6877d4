"""`tracing-2pc forget`."""

from __future__ import annotations

import argparse
import time

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import (
    confirmed,
    print_item,
    progress,
    raise_if_no_terminal,
)
from tracing_2pc.core.model import check_application
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.wording import format_count
from tracing_2pc.operations.recover import raise_if_unknown
from tracing_2pc.operations.wiring import open_configured_log
from tracing_2pc.protocol.delivery import SLICE


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Drop what finished so long ago, once that is confirmed, or only count it."""
    application = check_application(options.application)
    before = time.time() - options.before
    with open_configured_log(settings) as log:
        raise_if_unknown(log, application)
        count, through = log.forgettable(application, before)
        what = f"{format_count(count, 'transaction')} of {application}"
        if not options.dry_run:
            if count and not options.yes and not _is_agreed(what, str(count)):
                return LEFT
            expected, count, through = count, 0, None
            # In slices: each is durable, and others may work between two.
            while gone := log.forget(application, finished_before=before, limit=SLICE):
                count += gone
                progress(f"{count} of {expected} forgotten")
            progress("")
        through = through or log.forgotten_by_application()[application]
    item = {
        "application": application,
        "forgotten": count,
        "dry_run": options.dry_run,
        "forgotten_through": through,
    }
    word = "would be forgotten" if options.dry_run else "forgotten"
    line = f"{format_count(count, 'transaction')} of {application} {word}"
    shown = "none" if through is None else through
    print_item(options, item, f"{line}; forgotten_through {shown}")
    return DONE


def _is_agreed(what: str, count: str) -> bool:
    """Whether the person has seen how many there are, and agrees."""
    raise_if_no_terminal(f"{what} would be forgotten")
    question = f"{what} will be forgotten, for ever. Type their number, {count}, or "
    return confirmed(f"{question}yes:", (count, "yes"))
