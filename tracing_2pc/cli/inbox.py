"""`tracing-2pc inbox ls`: the readers of an inbox, and how far each is."""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

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
    end, readers = inbox.end().position, []
    for row in inbox.readers():
        item = {"reader": row.reader, "position": row.position}
        readers.append({**item, "behind": end - row.position, "moved": row.at})
    if options.json:
        for item in readers:
            print_item(options, {"kind": "reader", **item}, "")
        counts = {"kind": "counts", "readers": len(readers), "end": end}
        print_item(options, counts, "")
    else:
        print("\n".join(_lines(readers, end)))
    return DONE


def _lines(readers: Sequence[Mapping[str, Any]], end: int) -> Iterator[str]:
    now = time.time()
    rows = [
        (
            str(row["reader"]),
            str(row["position"]),
            str(row["behind"]),
            format_duration(max(0.0, now - row["moved"])),
        )
        for row in readers
    ]
    if rows:
        head, *shown = table([_HEAD, *rows])
        yield paint(head, "bold")
        yield from shown
    yield f"{format_count(len(rows), 'reader')}; the inbox ends at position {end}"
