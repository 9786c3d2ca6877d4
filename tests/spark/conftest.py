"""One Spark session for all tests that don't kill it, and the world of a query."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from pyspark import cloudpickle
from support import waiting
from support.spark import new_session, serve_numbers, write_numbers
from support.stream_world import World


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = new_session("tests")
    session.sparkContext.setLogLevel("OFF")
    cloudpickle.register_pickle_by_value(waiting)  # workers cannot import it
    yield session
    session.stop()


@pytest.fixture
def world(spark, tmp_path, request) -> Iterator[World]:
    """By executors; `BOTH_PATHS` of `support/stream_world.py` adds the driver path."""
    in_driver = getattr(request, "param", "executors") == "driver"
    with contextlib.ExitStack() as apps:
        yield World(spark, tmp_path, *serve_numbers(apps, tmp_path), apps, in_driver)


@pytest.fixture
def command(tmp_path) -> Iterator[list[str]]:
    """`job.py` on two participants in threads of this process, and three batches."""
    write_numbers(tmp_path, range(3))
    with contextlib.ExitStack() as stack:
        job = Path(__file__).with_name("job.py")
        urls = serve_numbers(stack, tmp_path)
        yield [sys.executable, str(job), str(tmp_path), *urls]
