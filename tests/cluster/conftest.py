"""One cluster for this folder, one driver for who does not kill it, and a world."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
import standalone
from cluster_driver import Driver, driver
from cluster_world import PYTHON, World
from standalone import Cluster
from support.spark import serve_numbers

TOKEN = "a-token-in-a-file-on-each-host"


@pytest.fixture(scope="package")
def cluster(tmp_path_factory) -> Iterator[Cluster]:
    folder = tmp_path_factory.mktemp("cluster")
    with standalone.cluster(folder, *PYTHON) as running:
        yield running


@pytest.fixture(scope="package")
def shared_driver(cluster, tmp_path_factory) -> Iterator[Driver]:
    with driver(cluster.url, tmp_path_factory.mktemp("driver")) as running:
        yield running


@pytest.fixture
def world(tmp_path, postgres_database) -> Iterator[World]:
    """Participants that demand a token; the log is in PostgreSQL."""
    world = World(tmp_path, postgres_database)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"job {TOKEN}\n")
    tokens.chmod(0o600)
    (tmp_path / "token").write_text(TOKEN)
    with contextlib.ExitStack() as stack:
        stack.callback(world.go_on)  # a task that is held has an executor's only core
        world.urls += serve_numbers(stack, tmp_path, tokens=tokens, note=world.note)
        yield world
