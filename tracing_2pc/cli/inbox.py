"""`tracing-2pc inbox ls`: who reads an inbox, and how far each is."""

from __future__ import annotations

import argparse
import time

from tracing_2pc.cli.arguments import DONE
from tracing_2pc.cli.terminal import paint, print_item, table
from tracing_2pc.core.settings import Settings
from tracing_2pc.inbox import Inbox
from tracing_2pc.inspection.wording import format_count, format_duration
from tracing_2pc.operations.actions.inbox import open_inbox

_HEAD = ("READER", "POSITION", "BEHIND", "MOVED")


def run(options: argparse.Namespace) -> int:
    """List its readers; only the database is asked."""
    address = options.inbox or Settings.load(options.config, log=options.log).inbox
    with open_inbox(address, options.name) as inbox:
        return _list(options, inbox)


def _list(options: argparse.Namespace, inbox: Inbox) -> int:
    now, end = time.time(), inbox.end().position
    readers = inbox.readers()
    if options.json:
        for row in readers:
            behind = end - row.position
            item = {"reader": row.reader, "position": row.position, "behind": behind}
            print_item(options, {"kind": "reader", **item, "moved": row.at}, "")
        return DONE
    rows = [
        (
            str(row.reader),
            str(row.position),
            str(end - row.position),
            format_duration(max(0.0, now - row.at)),
        )
        for row in readers
    ]
    if rows:
        head, *shown = table([_HEAD, *rows])
        print("\n".join([paint(head, "bold"), *shown]))
    print(f"{format_count(len(rows), 'reader')}; the inbox ends at position {end}")
    return DONE
