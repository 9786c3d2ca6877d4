"""`tracing-2pc recover`."""

from __future__ import annotations

import argparse

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import print_item
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.view import summarize_record
from tracing_2pc.operations.recover import recover, send_outboxes
from tracing_2pc.operations.wiring import open_configured_log
from tracing_2pc.protocol.recovery import RecoveryResult


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Finish what is decided; print for each transaction what came of it."""
    items: list[RecoveryResult] = []
    with open_configured_log(settings) as log:
        for item in recover(log, settings, options.application):
            items.append(item)
            about = {
                **summarize_record(item.record),
                "done": item.done,
                "under_way": item.under_way,
                "remark": item.remark,
            }
            print_item(options, about, f"{item.record.id!s:<44} {item.remark}")
        waiting = send_outboxes(settings, options.application)
        for name, count in waiting.items():
            about = {"participant": name, "waiting": count}
            text = f"{count} records wait in its outbox: start its job, or again"
            text = count if isinstance(count, str) else f"participant {name!r}: {text}"
            print_item(options, about, text)
    done, under_way = sum(i.done for i in items), sum(i.under_way for i in items)
    left = len(items) - done - under_way
    if not options.json:
        going_on = f"{under_way} under way, " if under_way else ""
        counts = f"{done} finished, {going_on}{left} left"
        print(counts if items else "nothing unfinished")
    return LEFT if left or waiting else DONE
