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


WRONG = {
    "sampled": ["2", "", "01", "true"],
    "index": ["", "-1", "+1", "0x10", "1.0", "1 ", "2147483648", "1" * 40, *"²½٣"],
    "trace": ["", "%%%%", "ä", b64("x")[:-1], b64("x") + "\n", b64("x" * 2048)]
    + [b64(text) for text in (b"\xff\xfe", "a\r\nX: y", "a\x00b")]
    + ["QR=="],  # another spelling of b64("A")
    **{name: [""] for name in ("service", "instance", "endpoint", "peer")},
}
NO_HEADER = ["", "1", "1-a", "1-" * 5000, f" {header()}", f"{header()},{header()}"]
NO_HEADER += [f"{header()}-", f"{header()}-x", header().rpartition("-")[0]]
IN_DOUBT = [header(**{field: v}) for field, values in WRONG.items() for v in values]


@pytest.mark.parametrize("value", [*NO_HEADER, *IN_DOUBT], ids=repr)
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
