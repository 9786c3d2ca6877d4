"""`tracing-2pc check`."""

from __future__ import annotations

import argparse
import dataclasses
import time
from collections.abc import Iterator

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.show import format_skew
from tracing_2pc.cli.terminal import (
    asking,
    headed,
    paint,
    print_either,
    prose,
    safe,
    table,
)
from tracing_2pc.core.model import ParticipantDescription
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.findings import find_not_taken
from tracing_2pc.inspection.summary import headline
from tracing_2pc.inspection.view import to_plain
from tracing_2pc.operations.check import CheckResult, check

_POOLED = (
    "stands behind a pooler in transaction mode: let the pool be larger than the "
    "number of partitions that are written there at once, plus four"
)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Print the settings in force, and the faults; 1 if there are any."""
    with asking(settings.participants):
        result = check(settings)
    if options.deep or options.journal or options.spans:
        from tracing_2pc.operations.deep import look_deeper  # reads a lot, imports too

        more = look_deeper(settings, options.journal or (), options.spans or ())
        result = dataclasses.replace(result, findings=(*result.findings, *more))
    item = to_plain(result) | {
        "findings": [finding.to_json() for finding in result.findings]
    }
    print_either(options, item, lines(result))
    return LEFT if result.findings else DONE


def lines(result: CheckResult) -> Iterator[str]:
    """Return settings, log, participants, problems with their cures."""
    yield paint("settings", "bold")
    yield from table([(s.name, s.origin, s.value) for s in result.settings], "  ")
    yield from headed("log", _log(result))
    yield from headed("jobs", _jobs(result))
    yield from headed("participants", _participants(result))
    yield from headed("problems", _problems(result))
    yield ""
    colour = "red" if result.findings else "green"
    yield paint(safe(headline(result.findings, time.time()), 2000), colour)


def _log(result: CheckResult) -> Iterator[str]:
    if result.log is None:
        return
    states = sorted(result.unfinished.items())
    rows = [
        ("address", result.log.shown),
        ("schema", f"version {result.log.version}"),
        *result.log.durability.items(),
        ("unfinished", ", ".join(f"{n} {state}" for state, n in states) or "none"),
    ]
    yield from table(rows, "  ")


def _jobs(result: CheckResult) -> Iterator[str]:
    rows = [(job.application, job.describe(time.time())) for job in result.jobs]
    yield from table(rows, "  ")


def _participants(result: CheckResult) -> Iterator[str]:
    if not result.participants:
        return
    head = ("NAME", "ANSWERS", "TOKEN", "CLOCK", "IN DOUBT", "SLOTS", "URL")
    yield from table([head, *map(_row, result.participants)], "  ")
    for description in result.participants:
        for text in find_not_taken(description):
            yield from prose(f"{description.participant}: {text}.", "    ", "  - ")
    for name in (d.participant for d in result.participants if d.pooled):
        yield from prose(f"{name} {_POOLED}.", "    ", "  - ")


def _row(probed: ParticipantDescription) -> tuple[str, ...]:
    if probed.unreachable is not None:
        return (probed.participant, "no", "", "", "", "", probed.url)
    used = probed.gauges.get("tpc.prepared_slots.used")
    most = probed.gauges.get("tpc.prepared_slots.max")
    return (
        probed.participant,
        "not ready" if probed.unready else "ready",
        probed.role_of_token,
        format_skew(probed.skew),
        "" if probed.role is None else str(probed.in_doubt),
        "" if used is None or most is None else f"{used:.0f} of {most:.0f}",
        probed.url,
    )


def _problems(result: CheckResult) -> Iterator[str]:
    for finding in result.findings:
        for line in prose(f"{finding.about}: {finding.text}.", "    ", "  - "):
            yield paint(line, "red")
        yield from prose(f"cure: {finding.cure}", "      ", "    ")
