"""Trace headers at a participant: whatever arrives, its answers stay the same."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry import propagate
from opentelemetry.propagators.composite import CompositePropagator
from support.branches import ONE, OTHER
from support.kinds import sqlite_url
from support.participant import World
from werkzeug.test import TestResponse

from tracing_2pc.participant import TaggedRows
from tracing_2pc.skywalking.propagator import SkyWalkingPropagator

PARENT = f"00-{'a' * 32}-{'b' * 16}-01"
NAMES = ("TRACEPARENT", "TRACESTATE", "BAGGAGE", "SW8", "SW8_CORRELATION", "B3")

numbers = itertools.count(1)


@pytest.fixture(scope="module", params=[True, False], ids=["trusting", "distrusting"])
def world(request, tmp_path_factory) -> Iterator[World]:
    """One that reads SkyWalking's headers, too."""
    folder: Path = tmp_path_factory.mktemp("participant")
    # Its clock stands still: answers tell times.
    resource = TaggedRows(sqlite_url(folder), "orders", clock=lambda: 1_700_000_000.0)
    both = CompositePropagator([SkyWalkingPropagator()])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(propagate, "_HTTP_TEXT_FORMAT", both)
        yield World(resource, lambda: 0, insecure=True, trust_inbound=request.param)
    resource.close()


def answers(world: World, headers: dict[str, str]) -> list[tuple[int, object]]:
    """Ask a participant everything that it keeps a trace of, with these headers."""
    sent = {f"HTTP_{name}": value for name, value in headers.items()}
    plain = dict.fromkeys(("traceparent", "tracestate"))
    batch = next(numbers)
    first, second = f"orders.{batch}.1", f"orders.{batch}.2"

    def posted(route: str, **fields: object) -> TestResponse:
        return world.client.post(
            route, json=fields, headers={"Tpc-Version": "1"}, environ_overrides=sent
        )

    def prepared(transaction: str, *arguments: object) -> TestResponse:
        return world.prepare(
            transaction, *arguments, headers=plain, environ_overrides=sent
        )

    got = [
        prepared(first),
        prepared(first),
        prepared(first, OTHER),
        posted("/abort", transaction_id=first),
        prepared(second),
        posted("/commit", transaction_id=second, branches=[ONE.named]),
        posted("/commit", transaction_id=first, branches=[ONE.named]),
        world.client.get(f"/transactions/{second}", environ_overrides=sent),
        world.client.get("/transactions", environ_overrides=sent),
    ]
    return [(one.status_code, one.text.replace(f".{batch}.", ".N.")) for one in got]


def latin(raw: bytes) -> str:
    """Bytes as a WSGI server hands them on, less those that end a header."""
    return raw.decode("latin-1").translate(dict.fromkeys(map(ord, "\r\n")))


values = st.one_of(
    st.binary(max_size=80).map(latin),
    st.sampled_from([PARENT, f"{PARENT}-", "a@=1,a@=2", "a=\x00", "k=v;p=%00%ff"]),
    st.from_regex(r"[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}(-.*)?").map(
        lambda text: latin(text.encode("latin-1", "replace"))
    ),
)


@settings(max_examples=25)
@given(headers=st.dictionaries(st.sampled_from(NAMES), values, min_size=1))
def test_no_header_changes_an_answer(world, headers):
    """Any bytes in any trace header: the same statuses, the same bodies, no error."""
    assert answers(world, headers) == answers(world, {})
