"""`tracing-2pc forget`."""

from __future__ import annotations

import argparse
import time

from tracing_2pc.cli.acting import perform
from tracing_2pc.cli.arguments import DONE
from tracing_2pc.cli.terminal import print_item, progress
from tracing_2pc.core.model import check_application
from tracing_2pc.core.settings import Settings
from tracing_2pc.operations.acts import forgetting, forgotten
from tracing_2pc.operations.recover import raise_if_unknown
from tracing_2pc.operations.wiring import open_configured_log


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Drop what finished so long ago, once that is confirmed, or only count it."""
    application = check_application(options.application)
    before = time.time() - options.before
    with open_configured_log(settings) as log:
        raise_if_unknown(log, application)
        count, through = log.forgettable(application, before)
        if options.dry_run:
            done = forgotten(application, count, through, dry_run=True)
            print_item(options, done.item, done.text)
            return DONE
        options.yes = options.yes or not count
        act = forgetting(log, application, before, count, progress)
        return perform(options, act, f"{act.action.effect}")
