"""A database of each test's own, of either kind; PostgreSQL's from `make ci` on."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.kinds import sqlite_url


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.ci)])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """URL of an empty database of this test's own, on each database in turn."""
    if request.param == "postgresql":
        return str(request.getfixturevalue("postgres_database"))
    return sqlite_url(tmp_path)
