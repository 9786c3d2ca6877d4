"""`tracing-2pc forget`."""

from __future__ import annotations

import argparse
import time

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import check_on_terminal, confirmed, progress, tell
from tracing_2pc.model import check_application
from tracing_2pc.operations.forget import forget
from tracing_2pc.operations.recover import check_known, configured_log
from tracing_2pc.protocol.diagnosis import count
from tracing_2pc.settings import Settings
from tracing_2pc.store import SqlDecisionLog


def run(options: argparse.Namespace) -> int:
    """Drop what finished so long ago, once that is confirmed, or only count it."""
    application = check_application(options.application)
    before = time.time() - options.before
    with configured_log(Settings.load(options.config, log=options.log)) as log:
        check_known(log, application)
        of, _ = log.overview.forgettable(application, before)
        if of and not options.dry_run and not _agreed(options, of):
            return LEFT
        gone = of if options.dry_run else _forget(log, application, before, of)
        watermark = log.overview.watermarks()[application]
        if options.dry_run:
            watermark = log.overview.forgettable(application, before)[1] or watermark
    word = "would be forgotten" if options.dry_run else "forgotten"
    item = {
        "application": application,
        "forgotten": gone,
        "dry_run": options.dry_run,
        "watermark": watermark,
    }
    line = f"{count(gone, 'transaction')} of {application} {word}; watermark"
    tell(options, item, f"{line} {'none' if watermark is None else watermark}")
    return DONE


def _agreed(options: argparse.Namespace, of: int) -> bool:
    """Whether the person has seen how many there are, and says so."""
    if options.yes:
        return True
    whose = f"{count(of, 'transaction')} of {options.application}"
    check_on_terminal(f"{whose} would be forgotten")
    question = f"{whose} will be forgotten, for ever. Type their number, {of}, or yes:"
    return confirmed(question, (str(of), "yes"))


def _forget(log: SqlDecisionLog, application: str, before: float, of: int) -> int:
    gone = 0
    for gone in forget(log, application, before):
        progress(f"{gone} of {of} forgotten")
    progress("")
    return gone
