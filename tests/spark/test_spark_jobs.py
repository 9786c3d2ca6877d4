"""How many Spark jobs a batch costs; the other exact counts need no Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from support.bench import assert_counts_hold


@pytest.mark.spark
@pytest.mark.ci
def test_the_spark_jobs_of_a_batch(tmp_path: Path) -> None:
    """One without routes; with them one for the batch, one a route."""
    assert_counts_hold("spark-jobs", tmp_path)
