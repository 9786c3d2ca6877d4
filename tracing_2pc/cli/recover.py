"""`tracing-2pc recover`."""

from __future__ import annotations

import argparse

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import tell
from tracing_2pc.operations.recover import configured_log, recover
from tracing_2pc.operations.view import brief
from tracing_2pc.protocol.recovery import Recovered
from tracing_2pc.settings import Settings


def run(options: argparse.Namespace) -> int:
    """Finish what is decided; say of each transaction what came of it."""
    settings = Settings.load(options.config, log=options.log)
    items: list[Recovered] = []
    with configured_log(settings) as log:
        for item in recover(log, settings, options.application):
            items.append(item)
            shown = brief(item.record)
            tell(
                options,
                {
                    **shown,
                    "done": item.done,
                    "under_way": item.under_way,
                    "remark": item.remark,
                },
                f"{shown['transaction_id']:<44} {item.remark}",
            )
    done, under_way = sum(i.done for i in items), sum(i.under_way for i in items)
    left = len(items) - done - under_way
    if not options.json:
        going_on = f"{under_way} under way, " if under_way else ""
        counts = f"{done} finished, {going_on}{left} left"
        print(counts if items else "nothing unfinished")
    return LEFT if left else DONE
