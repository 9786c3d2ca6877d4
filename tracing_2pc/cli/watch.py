"""`tracing-2pc watch`: prints what each sweep has changed."""

from __future__ import annotations

import argparse
import datetime
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import print_item
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.view import to_plain
from tracing_2pc.operations.watch import watch
from tracing_2pc.operations.watcher import Sweep, gravest_first
from tracing_2pc.operations.wiring import open_configured_log

LINES: Final = 20
"""Lines of one kind that a sweep prints; the rest is counted."""

_LOG_ONLY: Final = (
    " in the log; no participant was asked: `participants` in the settings is empty"
)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Print a line when something is wrong, and when it no longer is."""

    def report(sweep: Sweep) -> None:
        for item in items(sweep):
            print_item(options, item, line(item))

    with open_configured_log(settings, may_be_down=True) as log:
        last = watch(
            log,
            settings,
            report,
            recover=options.recover,
            once=options.once,
            listen=options.listen,
        )
    if options.once and last.clean and not last.held_back and not options.json:
        print(f"nothing is wrong{'' if settings.participants else _LOG_ONLY}")
    return DONE if last.clean or not options.once else LEFT


def items(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Return what has changed, as one object for each line; bounded by `LINES`."""
    for source in sweep.newly_unreadable:
        about = {"who": str(source), "why": sweep.unreadable[source]}
        yield {"at": sweep.at, "event": "unreadable", **about}
    for source in sweep.readable:
        yield {"at": sweep.at, "event": "readable", "who": str(source)}
    for event, changed in (("found", sweep.added), ("gone", sweep.removed)):
        shown = gravest_first(changed)
        for diagnosis in shown[:LINES]:
            yield {"at": sweep.at, "event": event, **to_plain(diagnosis)}
        if rest := shown[LINES:]:
            kinds = Counter(str(diagnosis.diagnosis) for diagnosis in rest)
            yield {"at": sweep.at, "event": event, "more": len(rest), **kinds}
    for id_ in sweep.newly_held_back[:LINES]:
        about = {"transaction": str(id_), "why": sweep.held_back[id_]}
        yield {"at": sweep.at, "event": "waiting", **about}
    for item in sweep.recovered[:LINES]:
        about = {"transaction": str(item.record.id), "why": item.remark}
        event = "recovered" if item.done else "tried"
        yield {"at": sweep.at, "event": event, **about}
    if more := len(sweep.recovered[LINES:]):
        yield {"at": sweep.at, "event": "recovered", "more": more}


def line(item: Mapping[str, Any]) -> str:
    """Write a change for a person."""
    at = datetime.datetime.fromtimestamp(item["at"], datetime.timezone.utc)
    head = f"{at:%Y-%m-%dT%H:%M:%SZ} {item['event']:<10}"
    if "more" in item:
        return f"{head} and {item['more']} more"
    if "diagnosis" not in item:
        about = item.get("who") or item.get("transaction")
        return f"{head} {about} {item.get('why', '')}".rstrip()
    what = f"{item['severity']} {item['diagnosis']} {item['transaction']}"
    if item["event"] == "gone":
        return f"{head} {what}"
    return f"{head} {what}: {item['why']}. Verdict: {item['verdict']}"
