"""`tracing-2pc watch`."""

from __future__ import annotations

import argparse
from typing import Final

from tracing_2pc.cli import terminal
from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.operations.recover import configured_log
from tracing_2pc.operations.sweep import Sweep, items, line
from tracing_2pc.operations.watch import How, watch
from tracing_2pc.settings import Settings

_NOBODY: Final = "nobody else was asked: `participants` in the settings is empty"


def run(options: argparse.Namespace) -> int:
    """Print a line when something is wrong, and when it no longer is."""

    def tell(sweep: Sweep) -> None:
        for item in items(sweep):
            terminal.tell(options, item, line(item))

    settings = Settings.load(options.config, log=options.log)
    how = How(recover=options.recover, once=options.once, listen=options.listen)
    with configured_log(settings, may_be_down=True) as log:
        last = watch(log, settings, how, tell)
    if options.once and last.clean and not last.held_back and not options.json:
        alone = "" if settings.participants else f" in the log; {_NOBODY}"
        print(f"nothing is wrong{alone}")
    return DONE if last.clean or not options.once else LEFT
