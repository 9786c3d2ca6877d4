"""A wait that lasted is seen in the transaction's trace; a healthy one is not."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import Decision, SamplingResult, StaticSampler
from support.branches import ONE, TWIN
from support.kinds import sqlite_url, tagged_rows
from support.participant import World

T = "orders.7.1"


@pytest.fixture
def now() -> list[float]:
    return [1000.0]


@pytest.fixture
def world(tmp_path, now) -> Iterator[World]:
    made = tagged_rows(sqlite_url(tmp_path), clock=lambda: now[0])
    with contextlib.closing(made.resource):
        yield made


@pytest.mark.parametrize(
    ("waited", "ends", "expected"),
    [(9.0, "commit", 0), (11.0, "commit", 1), (11.0, "abort", 1), (11.0, "resolve", 1)],
)
def test_one_span_per_long_wait(world, now, exported, waited, ends, expected):
    """Its ends are the prepare and the decision, its trace is the transaction's."""
    world.prepare(T, ONE)
    now[0] += 1.0
    world.prepare(T, TWIN)
    now[0] += waited - 1.0
    for _ in range(2):
        about = {"commit": [ONE], "abort": [], "resolve": ["abort"]}[ends]
        getattr(world, ends)(T, *about)
    found = [span for span in exported() if span.name == "tpc.in_doubt"]
    assert len(found) == expected
    for span in found:
        assert (span.start_time, span.end_time) == (1000 * 10**9, 1011 * 10**9)
        assert f"{span.context.trace_id:032x}" == "a" * 32
        assert span.attributes["tpc.transaction.id"] == T


def test_a_sampler_that_fails_costs_no_commit(world, now, monkeypatch):
    """Whatever a tracer does, what was in doubt is committed and answered."""

    class Raising(StaticSampler):
        def should_sample(self, *_: object, **__: object) -> SamplingResult:
            raise RuntimeError

    assert world.prepare(T, ONE).status_code == 200
    now[0] += 60
    provider = TracerProvider(Raising(Decision.DROP), shutdown_on_exit=False)
    monkeypatch.setattr(trace, "_TRACER_PROVIDER", provider)
    assert world.commit(T, ONE).status_code == 200
