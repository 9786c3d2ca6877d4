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
from support.service import create_app
from support.spark import new_session, serving, write_numbers
from support.stream_world import World


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = new_session("tests")
    session.sparkContext.setLogLevel("OFF")
    cloudpickle.register_pickle_by_value(waiting)  # workers cannot import it
    yield session
    session.stop()


@pytest.fixture
def world(
    spark: Any, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[World]:
    """By executors; `BOTH_PATHS` of `support/stream_world.py` adds the driver path."""
    in_driver = getattr(request, "param", "executors") == "driver"
    with contextlib.ExitStack() as apps:
        urls = []
        for name in ("a", "b"):
            app = create_app(f"sqlite:///{tmp_path / name}.db")
            apps.callback(app.extensions["resource"].close)
            urls.append(apps.enter_context(serving(app)))
        yield World(spark, tmp_path, urls[0], urls[1], apps, in_driver)


@pytest.fixture
def command(tmp_path: Path) -> Iterator[list[str]]:
    """`job.py` on two participants in threads of this process, and three batches."""
    write_numbers(tmp_path, range(3))
    with contextlib.ExitStack() as stack:
        urls = []
        for name in ("a", "b"):
            app = create_app(f"sqlite:///{tmp_path / name}.db")
            stack.callback(app.extensions["resource"].close)
            urls.append(stack.enter_context(serving(app)))
        job = Path(__file__).with_name("job.py")
        yield [sys.executable, str(job), str(tmp_path), *urls]
