"""`tracing-2pc advise`."""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator
from typing import Final

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import headed, print_either, prose, table
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.log_reader import TransactionFilter
from tracing_2pc.core.model import check_application
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.trigger import (
    NEEDED,
    NEWEST,
    OVERHEAD,
    Advice,
    Measured,
    Obstacle,
    Spread,
    advise,
)
from tracing_2pc.inspection.view import to_plain
from tracing_2pc.inspection.wording import (
    format_count,
    format_duration,
    format_elapsed,
    format_time,
)
from tracing_2pc.operations.recover import raise_if_unknown
from tracing_2pc.operations.wiring import open_configured_log

_CURES: Final = {
    Obstacle.TOO_FEW: "Too few records: {needed} batches with rows are needed. Let the "
    "job run; if records are forgotten before, raise keep_finished.",
    Obstacle.NOT_SEPARATED: "The batches are too much alike to tell what a batch costs "
    "from what its rows cost, and by the upper bounds of both the shortest interval is "
    "longer than the longest. Let the trigger be three times as long for "
    "{needed} batches, and ask again.",
    Obstacle.CONTRADICTION: "No interval is both: what a batch costs whatever its rows "
    "is too much for so short a recovery. They meet at --recover-within {meet_at}s. "
    "Else pay more than {overhead:.0%} for the fixed cost, or make it smaller: fewer "
    "partitions, the driver's path, a faster participant.",
    Obstacle.BACK_TO_BACK: "Batches follow each other without a pause. If a trigger "
    "interval is set, or rows wait at the source, the stream is slower than its rows "
    "come: set at least the shortest interval. If batches still do not end in it, "
    "use more partitions, executors, or faster participants.",
    Obstacle.ROWS_TOO_SLOW: "Rows alone take {load:.0%} of the time: no interval "
    "leaves {overhead:.0%} for the rest. Use more partitions, executors, or faster "
    "participants.",
    Obstacle.TIMEOUT_SHORT: "The job's transaction_timeout is shorter than three times "
    "its longest batch: set the one above before the batches become longer.",
}


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Print measurements and conclusions; 1 if something stands in the way."""
    application = check_application(options.application)
    if options.recover_within <= 0:
        raise ConfigurationError("--recover-within: give more than 0 seconds")
    with open_configured_log(settings) as log:
        raise_if_unknown(log, application)
        newest = log.transactions(TransactionFilter(application, limit=NEWEST))
        # The job's own timeout is on record; our setting does not count for it.
        record = log.read(newest[0].transaction) if newest else None
    timeout = settings.transaction_timeout if record is None else record.timeout
    spark = options.spark_overhead
    advice = advise(newest, timeout, options.recover_within, spark)
    item = {"application": application, **to_plain(advice)}
    item |= {"timeout_in_force": timeout, "needed": NEEDED}
    print_either(options, item, lines(application, advice, timeout))
    return LEFT if advice.findings else DONE


def lines(application: str, advice: Advice, timeout: float) -> Iterator[str]:
    """Return measurements, conclusions and advice, in plain lines."""
    counted = f"{application}: {format_count(advice.batches, 'batch', 'batches')}"
    left_out = f"left out: {advice.empty} without rows, {advice.aborted} aborted"
    if (measured := advice.measured) is not None:
        counted += f" since {format_time(measured.since)}"
    yield from prose(f"{counted}; {left_out}")
    if measured is not None:
        yield from headed("What was measured", table([*_measured(measured)], "  "))
        bounds = [*_bounds(advice, measured, timeout)]
        yield from headed("What follows", table(bounds, "  "))
    yield from headed("What to do", _cures(advice))


def _measured(measured: Measured) -> Iterator[tuple[str, str]]:
    yield "begin to decision", _times(measured.begin_to_decision)
    yield "decision to finished", _times(measured.decision_to_finished)
    median, p95 = measured.rows
    yield "rows", f"{median:,.0f}; 95% up to {p95:,.0f}"
    fixed = format_elapsed(measured.cost.fixed)
    per_row = f"{format_elapsed(1000 * measured.cost.per_row)} for 1,000 rows"
    if measured.cost.separated:
        yield "cost", f"{fixed} for a batch, and {per_row}"
    else:
        yield "cost", f"at most {fixed} for a batch, at most {per_row}: all alike"
    yield "Spark between two", f"taken as {format_elapsed(measured.between)}"
    pace = f"every {format_elapsed(measured.every)}, {measured.busy:.0%} of it busy"
    yield "a batch begins", f"{pace}; {measured.rows_per_second:,.0f} rows a second"


def _times(times: Spread) -> str:
    return f"{format_elapsed(times.median)}; 95% in {format_elapsed(times.p95)}"


def _bounds(
    advice: Advice, measured: Measured, timeout: float
) -> Iterator[tuple[str, str]]:
    known = measured.cost.separated
    share = f"{OVERHEAD:.0%} of it is the fixed cost, and Spark's own"
    shortest = _seconds(advice.shortest, "" if known else "at most ", share)
    step = f"in step {format_duration(advice.recover_within)} after a restart"
    longest = _seconds(advice.longest, "" if known else "at least ", step)
    yield "shortest interval", shortest
    yield "longest interval", longest
    in_force = format_duration(timeout) if timeout else "none"
    advised = format_duration(advice.timeout or 0.0)
    yield "transaction_timeout", f"{advised}; in force: {in_force}"


def _seconds(interval: float | None, bound: str, explanation: str) -> str:
    if interval is None:
        return "none"
    length = format_elapsed(interval) if interval < 20 else f"{interval:,.0f} s"
    return f"{bound}{length}: {explanation}"


def _cures(advice: Advice) -> Iterator[str]:
    values = {
        "needed": NEEDED,
        "overhead": OVERHEAD,
        "meet_at": math.ceil(advice.meet_at or 0.0),
        "load": advice.measured.load if advice.measured else 0.0,
    }
    for finding in advice.findings:
        yield from prose(_CURES[finding].format(**values), "    ", "  - ")
