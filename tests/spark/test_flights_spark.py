"""The job's frames of one day, as Spark makes them, are what the oracle expects."""

from __future__ import annotations

from typing import Any

import pytest

from participants import flights
from participants.oracle import expected


@pytest.mark.spark
def test_spark_gives_what_the_oracle_expects(spark: Any) -> None:
    """The job's two frames of one day are the oracle's, with Spark's own types."""
    day = spark.read.csv(str(flights.file_of(1)), schema=flights.SCHEMA, header=True)
    sums = {tuple(r[:3]): tuple(r[3:]) for r in flights.to_ledger(day).collect()}
    told = {
        (r[0], r[1], str(r[2])): tuple(r[3:])
        for r in flights.to_notifier(day).collect()
    }
    source = expected.read_day("2013-01-01")
    assert sums == expected.expected_sums(source)
    assert told == expected.expected_notices(source)
