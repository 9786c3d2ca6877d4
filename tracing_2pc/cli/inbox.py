"""`tracing-2pc inbox`: who reads an inbox, how far each is, and what is kept."""

from __future__ import annotations

import argparse
import contextlib
import time

from tracing_2pc.cli.acting import perform
from tracing_2pc.cli.arguments import DONE
from tracing_2pc.cli.terminal import paint, print_item, table
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.inbox import Inbox
from tracing_2pc.inspection.actions import Advice
from tracing_2pc.inspection.wording import format_count, format_duration
from tracing_2pc.operations.acts import Act, Done

_HEAD = ("READER", "POSITION", "BEHIND", "MOVED")


def run(options: argparse.Namespace) -> int:
    """List readers, retire one, or change what is kept; only the database is asked."""
    inbox = Inbox(options.inbox, options.name, must_exist=True)
    with contextlib.closing(inbox), inbox.translated():
        if options.action == "ls":
            return _list(options, inbox)
        if options.action == "keep":
            return _keep(options, inbox)
        return _retire(options, inbox)


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


def _retire(options: argparse.Namespace, inbox: Inbox) -> int:
    reader = options.reader
    known = {row.reader: row for row in inbox.readers()}
    if reader not in known:
        here = ", ".join(sorted(known)) or "none"
        raise ConfigurationError(f"reader {reader}: there is none; there are: {here}")
    behind = inbox.end().position - known[reader].position

    def retire(_who: str, _reason: str) -> Done:
        gone = inbox.retire(reader)
        text = f"reader {reader} is retired: no event is kept for it"
        return Done(text, {"reader": reader, "retired": gone}, well=gone)

    what = f"{format_count(behind, 'event')} that {reader} has not committed"
    act = Act(
        "retire",
        "Retire",
        Advice(
            "tracing-2pc inbox retire",
            safe=False,
            effect=f"{what} will not be kept for it; its query ends where one is gone",
        ),
        reader,
        "its name",
        retire,
        needs_reason=False,
    )
    return perform(options, act, act.action.effect)


def _keep(options: argparse.Namespace, inbox: Inbox) -> int:
    given = options.keep, options.ids
    keep, ids = (new or now for new, now in zip(given, inbox.times(), strict=True))
    what = f"events for {format_duration(keep)}, and ids for {format_duration(ids)}"

    def set_times(_who: str, _reason: str) -> Done:
        inbox.set_times(keep, ids)
        text = f"inbox {inbox.name} keeps {what}"
        return Done(text, {"keep": keep, "ids": ids}, well=True)

    act = Act(
        "keep",
        "Keep",
        Advice(
            "tracing-2pc inbox keep",
            safe=False,
            effect=f"{inbox.name} keeps {what} after every reader has committed them; "
            "an id that is repeated later is a new event",
        ),
        inbox.name,
        "its name",
        set_times,
        needs_reason=False,
    )
    return perform(options, act, act.action.effect)
