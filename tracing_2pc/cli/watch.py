"""`tracing-2pc watch`: prints what each sweep has changed."""

from __future__ import annotations

import argparse
import datetime
import sys
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import print_item, safe
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.diagnosis import Finding
from tracing_2pc.inspection.summary import headline
from tracing_2pc.inspection.wording import format_duration, format_iso, join_names
from tracing_2pc.operations.watch import watch
from tracing_2pc.operations.watcher import Sweep
from tracing_2pc.operations.wiring import open_configured_log

LINES: Final = 20
"""Lines of one kind that a sweep prints; the rest is counted."""

ALIVE: Final = 600.0
"""Seconds without a line after which one says that the watch goes on."""

_EVENTS: Final = ("unreadable", "readable", "found", "gone", "waiting", "")
"""What a line begins with (`Kind.events`), in this order; empty for no line."""

_LOG_ONLY: Final = (
    " in the log; no participant was asked: `participants` in the settings is empty"
)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Print a line for each new fault, and when it is gone.

    For a person also a line about the scope, and now and then a sign of life.
    """
    tells, printed = not (options.once or options.json), time.monotonic()

    def report(sweep: Sweep) -> None:
        nonlocal printed
        for item in items(sweep):
            print_item(options, item, line(item))
            printed = time.monotonic()
        if tells and time.monotonic() - printed >= ALIVE:
            printed = time.monotonic()
            moment = format_iso(sweep.at)
            alive = f"{moment} watching: {headline(sweep.findings, sweep.at)}"
            print(safe(alive, 2000), file=sys.stderr, flush=True)

    with open_configured_log(settings, may_be_down=True) as log:
        if tells:
            names = join_names(settings.participants) if settings.participants else ""
            scope = f"{log.address}{names and f' and {names}'}"
            every = format_duration(settings.sweep)
            print(f"watching {scope}, every {every}", file=sys.stderr, flush=True)
        last = watch(
            log,
            settings,
            report,
            recover=options.recover,
            once=options.once,
            listen=options.listen,
        )
    if options.once and not options.json:
        print(headline(last.findings, last.at) + _scope(settings))
    return DONE if last.clean or not options.once else LEFT


def _scope(settings: Settings) -> str:
    return "" if settings.participants else _LOG_ONLY


def items(sweep: Sweep) -> Iterator[dict[str, Any]]:
    """Return what has changed, as one object for each line; bounded by `LINES`."""
    by_event: dict[str, list[Finding]] = {event: [] for event in _EVENTS}
    for finding in (*sweep.added, *sweep.changed):
        by_event[finding.kind.events[0]].append(finding)
    for finding in sweep.removed:
        by_event[finding.kind.events[1]].append(finding)
    for event in filter(None, by_event):
        findings, rest = by_event[event][:LINES], by_event[event][LINES:]
        for finding in findings:
            yield {"at": sweep.at, "event": event, **finding.to_json()}
        if rest:
            kinds = Counter(str(finding.kind) for finding in rest)
            yield {"at": sweep.at, "event": event, "more": len(rest), **kinds}
    for item in sweep.recovered[:LINES]:
        about = {"where": str(item.record.id), "why": item.remark}
        event = "recovered" if item.done else "tried"
        yield {"at": sweep.at, "event": event, **about}
    if more := len(sweep.recovered[LINES:]):
        yield {"at": sweep.at, "event": "recovered", "more": more}


def line(item: Mapping[str, Any]) -> str:
    """Write a change for a person."""
    moment = datetime.datetime.fromtimestamp(item["at"], datetime.timezone.utc)
    head = f"{moment:%Y-%m-%dT%H:%M:%SZ} {item['event']:<10}"
    if "more" in item:
        return f"{head} and {item['more']} more"
    if item["event"] == "readable":
        return f"{head} {item['where']}"
    if item["event"] not in ("found", "gone"):
        cure = f"; {item['cure']}" if item["event"] == "unreadable" else ""
        return f"{head} {item['where']} {item['why']}{cure}"
    subject = f"{item['severity']} {item['kind']} {item['where']}"
    if item["event"] == "gone":
        return f"{head} {subject}"
    then = f"Verdict: {item['verdict']}" if item["verdict"] else item["cure"]
    return f"{head} {subject}: {item['why']}. {then}"
