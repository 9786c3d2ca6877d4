"""`tracing-2pc check`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import (
    asking,
    by,
    headed,
    paint,
    prose,
    say,
    table,
    tell,
)
from tracing_2pc.operations.check import Checked, Problem, check
from tracing_2pc.operations.view import plain
from tracing_2pc.protocol.diagnosis import count
from tracing_2pc.settings import Settings
from tracing_2pc.transports.probe import Probed


def run(options: argparse.Namespace) -> int:
    """Print what is in force and what is wrong; 1 if anything is."""
    settings = Settings.load(options.config, log=options.log)
    with asking(settings.participants):
        found = check(settings)
    if options.json:
        tell(options, plain(found), "")
    else:
        say(lines(found))
    return LEFT if found.problems else DONE


def lines(found: Checked) -> Iterator[str]:
    """Return settings, log, participants, problems with their cures."""
    yield paint("settings", "bold")
    yield from table([(s.name, s.origin, s.value) for s in found.settings], "  ")
    yield from headed("log", _log(found))
    yield from headed("participants", _participants(found))
    yield from headed("problems", _problems(found))
    yield ""
    if not found.problems:
        yield paint("all is well", "green")
    else:
        yield paint(count(len(found.problems), "problem"), "red")


def _log(found: Checked) -> Iterator[str]:
    if found.log is None:
        return
    of = ", ".join(f"{n} {state}" for state, n in sorted(found.unfinished.items()))
    rows = [
        ("address", found.log.shown),
        ("schema", f"version {found.log.version}"),
        *found.log.durability.items(),
        ("unfinished", of or "none"),
    ]
    yield from table(rows, "  ")


def _participants(found: Checked) -> Iterator[str]:
    if not found.participants:
        return
    head = ("NAME", "ANSWERS", "TOKEN", "CLOCK", "IN DOUBT", "SLOTS", "URL")
    yield from table([head, *map(_row, found.participants)], "  ")


def _row(one: Probed) -> tuple[str, ...]:
    if one.unreachable is not None:
        return (one.participant, "no", "", "", "", "", one.url)
    return (
        one.participant,
        "not ready" if one.unready else "ready",
        one.role or ("refused" if one.sent else "none was sent"),
        "" if one.skew is None else f"{one.skew:+.1f} s",
        "" if one.role is None else str(one.in_doubt),
        _slots(one),
        one.url,
    )


def _slots(one: Probed) -> str:
    used = one.gauges.get("tpc_prepared_slots_used")
    most = one.gauges.get("tpc_prepared_slots_max")
    return "" if used is None or most is None else f"{used:.0f} of {most:.0f}"


def _what(problem: Problem) -> str:
    return by(problem.where, problem.what)


def _problems(found: Checked) -> Iterator[str]:
    for problem in found.problems:
        for line in prose(f"{problem.where}: {_what(problem)}.", "    ", "  - "):
            yield paint(line, "red")
        yield from prose(f"cure: {problem.cure}", "      ", "    ")
