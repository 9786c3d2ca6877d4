"""One Spark session for all tests that don't kill it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from support.spark import new_session


@pytest.fixture(scope="session")
def spark() -> Iterator[Any]:
    session = new_session("tests")
    session.sparkContext.setLogLevel("OFF")
    yield session
    session.stop()
