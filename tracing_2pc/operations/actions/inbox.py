"""A gateway's inbox: give a reader up, and change how long read events are kept.

The inbox is that of `--inbox`, or else of the setting `inbox`: the browser does not ask
for an address.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.settings import seconds
from tracing_2pc.inspection.actions import Advice
from tracing_2pc.inspection.wording import format_count, format_duration
from tracing_2pc.operations.actions.action import (
    Action,
    Argument,
    Done,
    Given,
    PreparedAction,
    Preview,
    Reach,
    Reason,
)

if TYPE_CHECKING:
    from tracing_2pc.inbox import Inbox

WHICH: Final = (
    Argument(
        "inbox",
        "URL of its database, or env:NAME; default: the setting",
        metavar="URL",
        terminal_only=True,
    ),
    Argument("name", "of the inbox; default: events", default="events"),
)


@contextlib.contextmanager
def open_inbox(address: str | None, name: str) -> Iterator[Inbox]:
    """Open an inbox that is there, and close it.

    Raises:
        ConfigurationError: no address, or no inbox there.
        TwoPhaseError: its database does not do what it should.
    """
    from tracing_2pc.inbox import Inbox  # loads a store

    if not address:
        raise ConfigurationError("no inbox: give --inbox, or set `inbox`")
    inbox = Inbox(address, name, must_exist=True)
    with contextlib.closing(inbox), inbox.translated():
        yield inbox


def _open(reach: Reach, given: Given) -> contextlib.AbstractContextManager[Inbox]:
    address = given.get("inbox") or reach.settings.inbox
    return open_inbox(address, given.get("name", "events"))


def retiring(reach: Reach, given: Given) -> PreparedAction:
    """Look up the reader's position."""
    reader = given["reader"]
    with _open(reach, given) as inbox:
        known = {row.reader: row for row in inbox.readers()}
        end = inbox.end().position
    if reader not in known:
        here = ", ".join(sorted(known)) or "none"
        raise ConfigurationError(f"reader {reader}: there is none; there are: {here}")
    row = known[reader]

    def run(_who: str, _reason: str) -> list[Done]:
        with _open(reach, given) as inbox:
            gone = inbox.retire(reader)
        text = f"reader {reader} is retired: no event is kept for it"
        return [Done(text, {"reader": reader, "retired": gone}, well=gone)]

    behind = format_count(end - row.position, "event")
    moved = format_duration(max(0.0, reach.clock.now() - row.at))
    effect = "keeps no event for it any more; its query ends where one is gone"
    preview = Preview(
        Advice(RETIRE.command(given), safe=False, effect=effect),
        facts=(
            ("Reader", reader),
            ("It has not committed", behind),
            ("It has moved last", f"{moved} ago"),
        ),
        seen=(row.position,),  # one that moves is no dead one
    )
    first = f"{behind} that {reader} has not committed will not be kept for it"
    return PreparedAction(
        given, "Retire", reader, "its name", lambda: preview, run, first=first
    )


def keeping(reach: Reach, given: Given) -> PreparedAction:
    """Look up the current times: one that is not given stays."""
    with _open(reach, given) as inbox:
        name, now = inbox.name, dict(zip(("keep", "ids"), inbox.times(), strict=True))
    new = {key: seconds(given[key]) if key in given else now[key] for key in now}
    keep, ids = new["keep"], new["ids"]
    durations = (
        f"events for {format_duration(keep)}, and ids for {format_duration(ids)}"
    )

    def run(_who: str, _reason: str) -> list[Done]:
        with _open(reach, given) as inbox:
            inbox.set_times(keep, ids)
        return [Done(f"inbox {name} keeps {durations}", {"keep": keep, "ids": ids})]

    effect = (
        f"keeps {durations} after every reader of {name} has committed them; an id "
        "that is repeated later is a new event"
    )
    preview = Preview(
        Advice(KEEP.command(given), safe=False, effect=effect),
        facts=tuple((f"Now, {key}", format_duration(now[key])) for key in now),
        seen=tuple(now.values()),
    )
    return PreparedAction(given, "Keep so long", name, "its name", lambda: preview, run)


RETIRE: Final = Action(
    "inbox retire",
    "keep no event for a reader any more",
    (
        Argument("reader", "its name, as ls shows it", positional=True, required=True),
        *WHICH,
    ),
    retiring,
    title="Retire a reader of the inbox",
    reason=Reason.NOT_KEPT,
    examples=("inbox retire totals --inbox env:INBOX_DATABASE",),
)

KEEP: Final = Action(
    "inbox keep",
    "say for how long events and ids are kept",
    (
        Argument("keep", "of events, as 7d; by default as before", seconds),
        Argument("ids", "of their ids, as 30d; by default as before", seconds),
        *WHICH,
    ),
    keeping,
    title="Keep events of the inbox for so long",
    reason=Reason.NOT_KEPT,
)
