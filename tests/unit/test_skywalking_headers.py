"""`sw8` and `sw8-correlation`: read strictly, whoever sent them."""

from __future__ import annotations

import base64

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tracing_2pc.skywalking import Sw8, parse_correlation, parse_sw8
from tracing_2pc.skywalking.headers import format_correlation, format_sw8

GIVEN = Sw8(
    sampled=True,
    trace_id="f2380ab2b6c24cd7a5f1c1f0ae0d3a11",
    segment_id="f2380ab2b6c24cd7a5f1c1f0ae0d3a11.00f067aa0ba902b7",
    span_index=3,
    service="orders",
    instance="412@driver",
    endpoint="tpc.transaction",
    peer="127.0.0.1:8081",
)


def b64(text: str | bytes) -> str:
    raw = text.encode() if isinstance(text, str) else text
    return base64.b64encode(raw).decode()


def header(**other: str) -> str:
    """Return a good header, with some of its fields as they are sent replaced."""
    fields = {
        "sampled": "1",
        "trace": b64(GIVEN.trace_id),
        "segment": b64(GIVEN.segment_id),
        "index": "3",
        "service": b64(GIVEN.service),
        "instance": b64(GIVEN.instance),
        "endpoint": b64(GIVEN.endpoint),
        "peer": b64(GIVEN.peer),
    }
    return "-".join({**fields, **other}.values())


def test_what_is_written_is_read():
    assert format_sw8(GIVEN) == header()
    assert parse_sw8(header()) == GIVEN
    assert parse_sw8(header(sampled="0")) == GIVEN._replace(sampled=False)
    assert parse_sw8(header(index="2147483647")) is not None
    assert parse_sw8(header(endpoint=b64("/größe"))) is not None


def test_what_is_written_is_never_too_long():
    """Names that its readers would refuse are cut, between two characters."""
    name = "größe-" * 90
    long = dict.fromkeys(("service", "instance", "endpoint", "peer"), name)
    read = parse_sw8(format_sw8(GIVEN._replace(**long)))
    assert read is not None
    assert read[:4] == GIVEN[:4]
    assert all(name.startswith(cut) for cut in read[4:])


@pytest.mark.parametrize(
    "value",
    [
        "",
        "1",
        "1-a",
        header() + "-",
        header() + "-x",
        header().rpartition("-")[0],
        f" {header()}",
        f"{header()},{header()}",
        header(sampled="2"),
        header(sampled=""),
        header(sampled="01"),
        header(sampled="true"),
        header(index=""),
        header(index="-1"),
        header(index="+1"),
        header(index="0x10"),
        header(index="1.0"),
        header(index="1 "),
        header(index="2147483648"),
        header(index="1" * 40),
        header(index="²"),
        header(index="½"),
        header(index="٣"),
        header(trace=""),
        header(trace="%%%%"),
        header(trace=b64("x")[:-1]),
        header(trace=b64("x") + "\n"),
        header(trace="QR=="),  # another spelling of b64("A")
        header(trace=b64(b"\xff\xfe")),
        header(trace=b64("a\r\nX: y")),
        header(trace=b64("a\x00b")),
        header(trace="ä"),
        header(service=""),
        header(instance=""),
        header(endpoint=""),
        header(peer=""),
        header(trace=b64("x" * 2048)),
        "1-" * 5000,
    ],
    ids=repr,
)
def test_what_is_in_doubt_is_absent(value):
    assert parse_sw8(value) is None


@given(st.text() | st.from_regex(r"[01]-(([A-Za-z0-9+/=]{0,12}|[0-9-]{0,9})-?){0,9}"))
def test_anything_is_read_or_absent(value):
    """Never an error; and what is read is what was written."""
    found = parse_sw8(value)
    assert found is None or format_sw8(found).split("-")[3:] == [
        str(int(value.split("-")[3])),
        *value.split("-")[4:],
    ]


@given(st.text())
def test_any_correlation_is_read(value):
    pairs = parse_correlation(value)
    assert len(pairs) <= 3
    assert parse_correlation(format_correlation(pairs)) == pairs


def test_correlation_is_bounded():
    """Three pairs of 128 bytes; what is none is left out, and hides no other."""
    many = {f"k{n}": str(n) for n in range(5)}
    written = ",".join(f"{b64(k)}:{b64(v)}" for k, v in many.items())
    assert parse_correlation(written) == {"k0": "0", "k1": "1", "k2": "2"}
    assert format_correlation(many) == ",".join(written.split(",")[:3])
    assert parse_correlation("") == parse_correlation(",,") == {}
    good = f"{b64('a')}:{b64('1')}"
    for bad in (
        "x",
        ":",
        f"{b64('k')}:%",
        f":{b64('v')}",
        f"{b64('k')}:{b64('v' * 129)}",
    ):
        assert parse_correlation(f"{bad},{good}") == {"a": "1"}
    assert parse_correlation(f"{b64('k')}:") == {"k": ""}
    assert parse_correlation(good + "," * 2048) == {}
    assert format_correlation({"k": "v" * 129, "a": "1"}) == good
