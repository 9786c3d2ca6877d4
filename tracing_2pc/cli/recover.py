"""`tracing-2pc recover`."""

from __future__ import annotations

import argparse

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import tell
from tracing_2pc.operations.recover import configured_log, recover
from tracing_2pc.operations.view import brief
from tracing_2pc.settings import Settings


def run(options: argparse.Namespace) -> int:
    """Finish what is decided; say of each transaction what came of it."""
    settings, left, seen = Settings.load(options.config, log=options.log), 0, 0
    with configured_log(settings) as log:
        for item in recover(log, settings, options.application):
            seen += 1
            left += not item.done
            shown = brief(item.record)
            tell(
                options,
                {**shown, "done": item.done, "remark": item.remark},
                f"{shown['transaction_id']:<44} {item.remark}",
            )
    if not options.json:
        print(f"{seen - left} finished, {left} left" if seen else "nothing unfinished")
    return LEFT if left else DONE
