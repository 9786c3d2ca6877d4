"""The demo's source and rules, for the job: where the data is, what is written where.

The expressions are SQL that Spark and SQLite both understand. The oracle has rules of
its own, written a second time on purpose: change both.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

APPLICATION: Final = "flights"
DATA: Final = Path(__file__).with_name("data")
DAYS: Final = range(1, 32)

SCHEMA: Final = (
    "year int, month int, day int, dep_time int, sched_dep_time int, dep_delay int, "
    "arr_delay int, carrier string, flight int, tailnum string, origin string, "
    "dest string"
)

DATE: Final = "printf('%04d-%02d-%02d', year, month, day)"
CANCELLED: Final = "dep_time IS NULL"
LATE: Final = "arr_delay > 120"
"""Arrived more than two hours after schedule. A diverted flight never arrived at its
destination, has no such delay, and is not late."""

GROUP: Final = {"day": DATE, "origin": "origin", "carrier": "carrier"}
MEASURES: Final = {
    "flights": "count(*)",
    "cancelled": f"sum(CASE WHEN {CANCELLED} THEN 1 ELSE 0 END)",
    "dep_delay_sum": "coalesce(sum(dep_delay), 0)",
    "arr_delay_sum": "coalesce(sum(arr_delay), 0)",
}
"""One row of the ledger: per day, origin and carrier; delays in minutes."""

CONSTRAINED: Final = (
    "CREATE TABLE flights_daily_tpc (day text, origin text, carrier text, "
    "flights bigint, cancelled bigint, dep_delay_sum bigint, arr_delay_sum bigint, "
    "tpc_tag bigint NOT NULL DEFAULT 0, "
    "CONSTRAINT no_delay_is_negative CHECK (dep_delay_sum >= 0))"
)
"""The ledger as somebody may make it who has not seen flights that leave early: each
day the planes of some carriers do, all together."""

NOTICE: Final = {
    "day": DATE,
    "carrier": "carrier",
    "flight": "flight",
    "origin": "origin",
    "dest": "dest",
    "sched_dep_time": "sched_dep_time",
    "reason": f"CASE WHEN {CANCELLED} THEN 'cancelled' ELSE 'late' END",
    "arr_delay": "arr_delay",
}
"""One message to the partner: a flight that was cancelled or late."""

NOTIFIED: Final = f"{CANCELLED} OR {LATE}"


def file_of(day: int) -> Path:
    """Return the file with the flights of one day of January 2013."""
    return DATA / f"flights-2013-01-{day:02}.csv.gz"


def feed(folder: Path, days: Iterable[int] = DAYS) -> None:
    """Put the days' files where a stream reads them, each whole or not at all.

    Spark's file source reads the oldest file first: each gets a second of its own, so
    that with `maxFilesPerTrigger` 1 batch n is the n-th day.
    """
    folder.mkdir(parents=True, exist_ok=True)
    for day in days:
        source = file_of(day)
        hidden = folder / f".{source.name}"
        shutil.copyfile(source, hidden)
        os.utime(hidden, (1_357_000_000 + day, 1_357_000_000 + day))
        hidden.replace(folder / source.name)


def to_ledger(flights: DataFrame) -> DataFrame:
    """Sum a batch up per day, origin and carrier: one row each."""
    from pyspark.sql.functions import expr

    group = [expr(text).alias(name) for name, text in GROUP.items()]
    sums = [expr(text).alias(name) for name, text in MEASURES.items()]
    return flights.groupBy(*group).agg(*sums)


def to_notifier(flights: DataFrame) -> DataFrame:
    """Keep the flights of which the partner is told."""
    columns = [f"{text} AS {name}" for name, text in NOTICE.items()]
    return flights.where(NOTIFIED).selectExpr(*columns)
