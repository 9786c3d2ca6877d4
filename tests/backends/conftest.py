"""Each test is told where to send spans and whom to ask: us, or a real Jaeger."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from backends.backend import Backend, Loopback
from backends.demo_path import DemoPath, demo_path
from backends.jaeger import jaeger
from backends.oap import Oap, oap
from tracing_2pc.testing import Collector

BINARY = "TPC_JAEGER"
JARS = "TPC_OAP"
ASKS_OAP = [
    pytest.mark.skywalking,
    pytest.mark.skipif(
        not os.environ.get(JARS), reason="a real OAP is asked by `make test-skywalking`"
    ),
]
REAL = pytest.param("jaeger", marks=pytest.mark.jaeger)


@pytest.fixture(scope="module", params=["loopback", REAL])
def backend(request, tmp_path_factory) -> Iterator[Backend]:
    """Where spans are sent to, and who is asked for them."""
    if request.param == "loopback":
        with Collector() as collector:
            yield Loopback(collector)
        return
    if not (binary := os.environ.get(BINARY)):
        pytest.skip("a real Jaeger is asked by `make test-jaeger`")
    with jaeger(Path(binary), tmp_path_factory.mktemp("jaeger")) as running:
        yield running


@pytest.fixture(scope="module")
def collector(tmp_path_factory) -> Iterator[Oap]:
    """A real SkyWalking."""
    with oap(Path(os.environ[JARS]), tmp_path_factory.mktemp("oap")) as running:
        yield running


@pytest.fixture(scope="module")
def path(backend, tmp_path_factory) -> Iterator[DemoPath]:
    """The demo's services, which send their spans there."""
    with demo_path(tmp_path_factory.mktemp("services"), backend.endpoint) as running:
        yield running
