"""Trace context in headers, rule by rule: what is read, what is as if absent."""

from __future__ import annotations

import copy
import json
import logging
import operator
import pickle

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry import baggage, trace
from support.tracing import span_tree

from tracing_2pc.core import names
from tracing_2pc.core.model import Carrier, carrier_from_json
from tracing_2pc.tracing import propagation, spans, w3c

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE}-{SPAN}-01"


def sent_on(traceparent: str = PARENT, tracestate: str | None = None) -> dict[str, str]:
    """What goes out where this came in, and no span was opened in between."""
    headers = {"Traceparent": traceparent, "TRACESTATE": tracestate}
    given = {name: value for name, value in headers.items() if value is not None}
    carrier: dict[str, str] = {}
    propagation.inject(carrier, propagation.extract(given))
    return carrier


@pytest.mark.parametrize(
    ("sent", "kept"),
    [*((f"0{n}", f"0{n}") for n in range(4)), ("ff", "03"), ("fc", "00"), ("09", "01")],
)
def test_a_traceparent_is_passed_on(sent, kept):
    """Ids and both known flags, of which level 2 added *random*; no flag but these.

    Who gives it a meaning some day must not be told by us that it holds.
    """
    kept_of_it = {"traceparent": f"00-{TRACE}-{SPAN}-{kept}"}
    assert sent_on(f"00-{TRACE}-{SPAN}-{sent}") == kept_of_it


@pytest.mark.parametrize("random", ["00", "02"])
def test_a_child_keeps_the_random_flag(exported, random):
    """It speaks of the trace id, which the child has too."""
    flags = f"{int(random, 16) | 1:02x}"
    came = {"traceparent": f"00-{TRACE}-{SPAN}-{flags}"}
    with spans.server_span("GET /transactions/<transaction_id>", came):
        carrier = spans.current_carrier()
    assert carrier["traceparent"].startswith(f"00-{TRACE}-")
    assert carrier["traceparent"].endswith(f"-{flags}")
    assert SPAN not in carrier["traceparent"]


@pytest.mark.parametrize("after", ["", "-", "-x", "-00-what.ever\t\u00e9"])
@pytest.mark.parametrize("version", ["01", "cc", "fe"])
def test_a_later_version_is_read_as_far_as_we_know_it(version, after):
    """What follows after a dash is for others; we write our own version."""
    later = f"{version}-{TRACE}-{SPAN}-01{after}"
    assert sent_on(later) == {"traceparent": PARENT}


@pytest.mark.parametrize("around", ["{} ", " {}", "\t{} \t"])
def test_blanks_around_a_traceparent_are_not_its_own(around):
    """A server may leave them in."""
    assert sent_on(around.format(PARENT)) == {"traceparent": PARENT}


MALFORMED = {
    "empty": "",
    "version ff": f"ff-{TRACE}-{SPAN}-01",
    "our version and more": f"{PARENT}-more",
    "our version and a dash": f"{PARENT}-",
    "later, and no dash": f"01-{TRACE}-{SPAN}-01x",
    "no trace": f"00-{'0' * 32}-{SPAN}-01",
    "no span": f"00-{TRACE}-{'0' * 16}-01",
    "upper case trace": f"00-{TRACE.upper()}-{SPAN}-01",
    "upper case span": f"00-{TRACE}-{SPAN.upper()}-01",
    "upper case version": f"CC-{TRACE}-{SPAN}-01",
    "upper case flags": f"00-{TRACE}-{SPAN}-0A",
    "short version": f"0-{TRACE}-{SPAN}-01",
    "long version": f"000-{TRACE}-{SPAN}-01",
    "short trace": f"00-{TRACE[1:]}-{SPAN}-01",
    "long trace": f"00-{TRACE}a-{SPAN}-01",
    "short span": f"00-{TRACE}-{SPAN[1:]}-01",
    "long span": f"00-{TRACE}-{SPAN}a-01",
    "short flags": f"00-{TRACE}-{SPAN}-1",
    "long flags": f"00-{TRACE}-{SPAN}-001",
    "no hexadecimal": f"00-{TRACE[:-1]}g-{SPAN}-01",
    "digits of another script": f"00-{TRACE[:-1]}\u0661-{SPAN}-01",
    "underscores": f"00-{TRACE}_{SPAN}_01",
    "a line end": f"{PARENT}\n",
    "twice": f"{PARENT},{PARENT}",
    "too long": f"01-{TRACE}-{SPAN}-01-{'x' * 512}",
}


@pytest.mark.parametrize("traceparent", MALFORMED.values(), ids=MALFORMED.keys())
def test_a_malformed_traceparent_is_as_if_absent(traceparent, caplog):
    """So is its tracestate, and nobody can write into our log by sending one."""
    caplog.set_level(logging.INFO)
    assert sent_on(traceparent, "vendor=x") == {}
    assert caplog.records == []


def test_several_traceparents_are_as_if_absent():
    """Whoever sent the second one, it is not for us to choose."""
    other = f"00-{TRACE[::-1]}-{SPAN}-01"
    found = propagation.extract({"traceparent": PARENT, "Traceparent": other})
    assert not trace.get_current_span(found).get_span_context().is_valid


def test_a_tracestate_alone_is_nothing():
    """It belongs to a trace."""
    carrier: dict[str, str] = {}
    propagation.inject(carrier, propagation.extract({"tracestate": "vendor=x"}))
    assert carrier == {}


VALUE = "".join(c for c in map(chr, range(0x20, 0x7F)) if c not in ",=")
BAR = ",".join(f"m{n}={n}" for n in range(32))
LONG = ",".join(f"{n:02}{'k' * 253}={'v' * 256}" for n in range(16))[:8192]
"""As long as a list may be."""

KEPT = {
    "one": ("vendor=x", "vendor=x"),
    "in order": ("b=1,a=2,c=3", "b=1,a=2,c=3"),
    "@ anywhere but first": ("t@v=1,t@=2,t@@v=3,a@b@c=4", "t@v=1,t@=2,t@@v=3,a@b@c=4"),
    "a digit first": ("0=1,9a=2", "0=1,9a=2"),
    "all of a key": ("az09_-*/@=1", "az09_-*/@=1"),
    "all of a value": (f"a={VALUE}", f"a={VALUE}"),
    "a blank first in a value": ("a= b", "a= b"),
    "blanks around members": (" a=1 \t,\t b=2 ,c=3\t", "a=1,b=2,c=3"),
    "empty members": (",a=1,, \t,b=2,", "a=1,b=2"),
    "the longest key": (f"{'k' * 256}=1,a=2", f"{'k' * 256}=1,a=2"),
    "the longest key with @": (f"{'k' * 254}@v=1", f"{'k' * 254}@v=1"),
    "the longest value": (f"a={'v' * 256}", f"a={'v' * 256}"),
    "32 members": (BAR, BAR),
    "32 members and empty ones": (f",{BAR},,", BAR),
    "the longest list": (LONG, LONG),
    "a key twice": ("a=1,b=2,a=3", "a=1,b=2"),
    "a member twice": ("a=1,a=1", "a=1"),
}


@pytest.mark.parametrize(("tracestate", "kept"), KEPT.values(), ids=KEPT.keys())
def test_a_tracestate_is_passed_on(tracestate, kept):
    """As it came, without empty members; of a key that is there twice the newest."""
    assert sent_on(PARENT, tracestate) == {"traceparent": PARENT, "tracestate": kept}


DISCARDED = {
    "an upper case key": "Vendor=x",
    "@ first": "@v=1",
    "a dash first": "-a=1",
    "a dot in a key": "a.b=1",
    "a blank in a key": "a b=1",
    "a blank after a key": "a =1",
    "no key": "=1",
    "no value": "a=",
    "no equals sign": "a",
    "an equals sign in a value": "a=b=c",
    "a tab in a value": "a=b\tc",
    "a line end in a value": "a=b\nc",
    "a letter of elsewhere": "a=\u00e9",
    "a key that is too long": f"{'k' * 257}=1",
    "a key with @ that is too long": f"{'k' * 255}@v=1",
    "a value that is too long": f"a={'v' * 257}",
    "33 members": BAR,
    "33 members, one twice": BAR.replace("m31=31", "m0=0"),
    "too long": LONG,
}


@pytest.mark.parametrize("bad", DISCARDED.values(), ids=DISCARDED.keys())
@pytest.mark.parametrize("order", ["{0},ok=1", "ok=1,{0}"], ids=["first", "last"])
def test_a_malformed_tracestate_costs_itself_only(order, bad, caplog):
    """All of it, never the trace; and nothing of it reaches a log."""
    caplog.set_level(logging.INFO)
    assert sent_on(PARENT, order.format(bad)) == {"traceparent": PARENT}
    assert caplog.records == []


def test_a_tracestate_outlives_spans_of_ours(exported):
    """Sampled or not, through a server span and the client span inside it."""
    for flags in ("00", "01"):
        headers = {"traceparent": f"{PARENT[:-2]}{flags}", "tracestate": "a@=1,b=2"}
        with spans.server_span("POST /prepare", headers), spans.client_span("POST"):
            assert spans.current_carrier()["tracestate"] == "a@=1,b=2"
    assert span_tree(exported()) == ["POST /prepare", "  POST"]


def test_what_others_read_is_kept_beside_a_malformed_traceparent():
    """Baggage has nothing to do with it."""
    headers = {"traceparent": "x", "baggage": "tenant=a"}
    assert baggage.get_baggage("tenant", propagation.extract(headers)) == "a"


BAGGAGE = {
    "a pair": ("tenant=a", "tenant=a"),
    "no value": ("tenant=", "tenant="),
    "several": ("a=1, b=2\t,c=3", "a=1,b=2,c=3"),
    "properties": ("a=1 ; b = 2;c", "a=1;b=2;c"),
    "blanks": (" a = 1 ", "a=1"),
    "empty members": (",,a=1,", "a=1"),
    "an equals sign in a value": ("a=b=c", "a=b=c"),
    "no pair": ("a,b=1", "b=1"),
    "no key": ("=1,b=1", "b=1"),
    "a blank in a key": ("a b=1,b=1", "b=1"),
    "a blank in a value": ("a=1 2,b=1", "b=1"),
    "a quote": ('a="1",b=1', "b=1"),
    "a line end": ("a=1\n,b=1", "b=1"),
    "a letter of elsewhere": ("a=\u00e9,b=1", "b=1"),
    "a malformed property": ("a=1;=,b=1", "b=1"),
    "a member that is too long": (f"a={'x' * 4095},b=1", "b=1"),
    "the longest member": (f"a={'x' * 4094}", f"a={'x' * 4094}"),
    "181 members": (",".join(["a=1"] * 181), ",".join(["a=1"] * 180)),
    "the longest header": (f"a=1{' ' * 8189}", "a=1"),
    "too long": (f"a=1{' ' * 8190}", ""),
    "nothing": ("", ""),
}


@pytest.mark.parametrize(("sent", "kept"), BAGGAGE.values(), ids=BAGGAGE.keys())
def test_baggage_that_is_malformed_costs_itself_only(sent, kept, caplog):
    """The members that W3C Baggage allows are there, and are read in silence."""
    assert w3c.read_baggage(sent) == kept
    caplog.set_level(0)
    found = baggage.get_all(propagation.extract({"Baggage": sent}))
    keys = dict.fromkeys(m.split("=")[0] for m in kept.split(","))
    assert list(found) == list(keys)[: len(kept)]
    assert caplog.records == []


@given(st.text(st.sampled_from('a=;, \t%\u00e9"1')))
def test_any_baggage_is_read_or_not_there(sent):
    """What comes out is baggage: sifting it again changes nothing."""
    once = w3c.read_baggage(sent)
    assert w3c.read_baggage(once) == once
    assert once.isascii()


COUNTED = {
    "nothing": ({}, None),
    "both are right": ({"traceparent": PARENT, "tracestate": "a=1"}, None),
    "tracestate alone": ({"tracestate": "@"}, None),
    "traceparent": ({"TraceParent": "x"}, "traceparent"),
    "traceparent hides tracestate": (
        {"traceparent": "", "tracestate": "@"},
        "traceparent",
    ),
    "tracestate": ({"traceparent": PARENT, "tracestate": "@"}, "tracestate"),
}


@pytest.mark.parametrize(("headers", "wrong"), COUNTED.values(), ids=COUNTED.keys())
def test_what_a_request_brings_is_counted_where_it_is_malformed(headers, wrong):
    """Once for each request, by header; a context at rest was counted before."""
    before = propagation.rejected()
    found = propagation.receive(headers)
    more = {name: 1 if name == wrong else 0 for name in before}
    assert propagation.rejected() == {n: before[n] + more[n] for n in before}
    stored = propagation.extract(headers)
    assert propagation.rejected() == {n: before[n] + more[n] for n in before}
    assert trace.get_current_span(found).get_span_context() == (
        trace.get_current_span(stored).get_span_context()
    )


def test_only_headers_of_the_registry_are_counted():
    """The label's values are a closed set, in which SkyWalking's have their place."""
    assert tuple(propagation.rejected()) == names.LABELS["header"]


def test_a_carrier_is_parsed_once_and_does_not_change(monkeypatch):
    """However often it is read back or asked for; pickled it is its headers."""
    parsed: list[object] = []
    read = w3c.read
    monkeypatch.setattr(w3c, "read", lambda sent: (parsed.append(sent), read(sent))[1])
    stored = json.dumps({"traceparent": PARENT, "tpc-run": "parsed once"})
    for _ in range(3):
        carrier = carrier_from_json(stored)
        assert propagation.span_of(carrier).span_id == int(SPAN, 16)
        with spans.span("tpc.deliver", carrier=carrier):
            propagation.storable_context(propagation.extract(carrier))
    assert len(parsed) == 1
    for copied in (copy.deepcopy(carrier), pickle.loads(pickle.dumps(carrier))):
        assert (type(copied), copied, copied.parsed) == (Carrier, carrier, None)
    for change in (
        lambda: carrier.update(traceparent=""),
        lambda: carrier.pop("traceparent"),
        lambda: operator.setitem(carrier, "traceparent", ""),
        lambda: operator.ior(carrier, {}),
    ):
        with pytest.raises(TypeError, match="does not change"):
            change()


members = st.text(st.characters(max_codepoint=0x100), max_size=40)


@given(st.lists(members, max_size=40).map(",".join))
def test_any_tracestate_is_read_or_not_there(tracestate):
    """What comes out is a list of level 2 again: reading it changes nothing."""
    once = sent_on(PARENT, tracestate)
    assert once["traceparent"] == PARENT
    assert sent_on(**once) == once
    assert once.get("tracestate", "").isascii()
