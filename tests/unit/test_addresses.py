"""Hostile addresses in settings: each is what it looks like, or refused in one line."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from urllib3.util import parse_url

from tracing_2pc.activemq.connection import Brokers
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.links import check_link
from tracing_2pc.core.settings import Settings, check_url
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.nats.connection import Place
from tracing_2pc.sinks import FileSink, ParticipantSink
from tracing_2pc.skywalking.start import start
from tracing_2pc.store.engines.urls import database_url
from tracing_2pc.wire.serving import parse_address

SECRET = "hunter2canary"

REFUSED = [
    *(f"http://u:{SECRET}@h", f"http://{SECRET}@h", f"http://:{SECRET}@h"),
    *(f"http://u%3A{SECRET}@h", f"http://good@{SECRET}@h", "http://@h"),
    *(f"http://h\\@{SECRET}", "http://evil\\.good", f"http://good#@{SECRET}"),
    *(f"http://h?token={SECRET}", f"http://u:{SECRET}\u2100@h"),
    *(f"http:\\\\u:{SECRET}@h", f"http//u:{SECRET}@h", f"u:{SECRET}@h"),
    *("http://[::1", "http://::1:80", "http://[v1.x]", f"http://u:{SECRET}@[::1"),
    *("file:///etc/passwd", "gopher://h:70/", "ftp://h/", "javascript:alert(1)"),
    *("data:text/html,x", "//h:80", "h:80", "http:h", "http:///x", "//"),
    *("http://127\u30020\u30020\u30021", "http://ex\u2024ample", "http://\u2170.x"),
    *("http://exa\u200bmple", "http://\u202eelpmaxe", "http://h%00", "http://%68ost"),
    *("http://h:0", "http://h:65536", "http://h:-1", "http://h:8a", "http://h:\u0661"),
    *("http://h:+80", "http://h: 80", f"http://u:{SECRET}", f"http://h:{SECRET}"),
    *("http://h/\r\nHost: evil", "http://h\nX: y", "\thttp://h", " http://h"),
    *("ht\ntp://h", "http://h/\x00", "http://h/a b"),
    *("env:NAME", "env:env:NAME", "file:/x", "http://env:NAME/"),
    *("http://169.254.169.254/latest", "http://[::ffff:169.254.169.254]"),
    *("http://[::ffff:a9fe:a9fe]", "http://2852039166", "http://0xa9fea9fe"),
    *("http://2130706433", "http://0x7f.1", "http://0177.0.0.1", "http://127.1"),
    *("http://0", "http://0.0.0.0:80", "http://[::]:80", "http://224.0.0.1"),
    *("http://h..x", "http://-h", f"http://{'a' * 64}.x", f"http://{'a.' * 127}b"),
]

TAKEN = {
    "http://[::1]:80": "[::1]",
    "http://[fe80::1%25eth0]:80": "[fe80::1%eth0]",
    "https://10.1.2.3:8443/below": "10.1.2.3",
    "http://h/../../x": "h",
    "http://h//evil": "h",
    "http://h/%2e%2e/x": "h",
    "HTTP://H:80": "h",
    "http://xn--bcher-kva.example.": "xn--bcher-kva.example.",
    "http://under_score": "under_score",
    "http://127.0.0.1.nip.example": "127.0.0.1.nip.example",
}


def from_variable(url: str, variable: str = "TPC_PARTICIPANTS") -> Any:
    return Settings.load("/dev/null", environ={variable: url})


WHO_READS: dict[str, Callable[[str], Any]] = {
    "a participant": check_url,
    "a sink": lambda url: ParticipantSink({"a": url}),
    "the settings": lambda url: Settings.load("/dev/null", participants={"a": url}),
    "a variable": lambda url: from_variable(f"a={url}"),
    "a variable without a name": from_variable,
    "a variable without a name, with =": lambda url: from_variable(f"{url}=="),
    "trace_apis without a name": lambda url: from_variable(f"{url}=", "TPC_TRACE_APIS"),
    "a partner": HttpPartner,
}

OTHERS: dict[str, tuple[Callable[[str], Any], list[str]]] = {
    "a link": (
        check_link,
        [
            *(f"http:\\\\u:{SECRET}@h", f"u:{SECRET}@h", f"http//u:{SECRET}@h"),
            *("http://@h/{trace}", "http://h\u3002x/{trace}", "http://h:99999/"),
            *(f"http://h:{SECRET}/", f"http://u:{SECRET}@[::1/"),
            *("http://169.254.169.254/{trace}", "http://h/\nx", "file:///{trace}"),
        ],
    ),
    "a database": (
        functools.partial(database_url, setting="log"),
        [
            *(f"postgresql://u:{SECRET}@h/db", f"postgresql://u:{SECRET}@h:x/db"),
            *(f"postgresql://u@h:{SECRET}/db", f"postgresql://u:{SECRET}@[::1/db"),
            *("postgresql://h:65536/db", "postgresql://h:0/db", "postgresql://h\n/db"),
            *(f"mysql://u:{SECRET}@h/db", "file:///etc/passwd", SECRET),
            *("env:env:NAME", f"postgresql:/u:{SECRET}@h"),
        ],
    ),
    "a folder": (
        FileSink,
        [f"s3a://key:{SECRET}@b/x", f"file://u:{SECRET}@h/x", "gopher://h/x"],
    ),
    "a broker": (
        Brokers,
        [
            *(f"tcp://u:{SECRET}@h:1", f"u:{SECRET}@h:1", f"u:{SECRET}@h", "h"),
            *("tcp://h:1", "h:0", "h:65536", "h:\u0661", "h:1,[::1", "h/x:1", "h\n:1"),
        ],
    ),
    "a NATS server": (
        Place,
        [
            *(f"nats://u:{SECRET}@h/a", f"nats://h:{SECRET}/a", "nats://h/a/b"),
            *("nats://h:65536/a", "nats://h\n/a", "http://h/a", "nats://[::1/a"),
        ],
    ),
    "a listener": (
        parse_address,
        [
            *(f"u:{SECRET}@127.0.0.1:1", "[::1", "127.0.0.1:65536", "127.0.0.1:1\n"),
            *("localhost:1", "127.1:1", "127.0.0.1:1/x", ":1", "\u0661.0.0.1:1"),
            *("127.0.0.1", "127.0.0.1:", "127.0.0.1:x"),
        ],
    ),
    "SkyWalking": (
        lambda url: start(url, provider=TracerProvider()),
        [
            *(f"http://u:{SECRET}@h", f"http://h:{SECRET}", "http://h:65536"),
            *(f"http://u:{SECRET}@[::1", "http://h\n", "file:///x", "http://h/a b"),
        ],
    ),
}


def refused(read: Callable[[str], Any], url: str) -> None:
    with pytest.raises((ConfigurationError, ValueError)) as raised:
        raise AssertionError(f"{url!r} was taken: {read(url)}")
    text = str(raised.value)
    assert text.isprintable(), text
    assert SECRET not in text
    chained = raised.value.__cause__
    assert chained is None or SECRET not in str(chained)


@pytest.mark.parametrize("who", WHO_READS)
def test_a_hostile_address_is_refused_at_the_start(who):
    """In one line, which shows nothing that could be a credential."""
    for url in REFUSED:
        refused(WHO_READS[who], url)


@pytest.mark.parametrize("who", OTHERS)
def test_each_reader_of_addresses_refuses_what_it_cannot_use(who):
    """Links, databases, folders, brokers and listeners, in the same way."""
    read, urls = OTHERS[who]
    for url in urls:
        refused(read, url)


@pytest.mark.parametrize("url", TAKEN)
def test_an_odd_address_that_is_taken_is_what_it_looks_like(url):
    """Who connects reads the host that was checked."""
    assert parse_url(check_url(url)).host == TAKEN[url]


@pytest.mark.parametrize("url", [f"postgresql://u:{SECRET}@h:x/db", SECRET, "env:LOG"])
def test_what_a_variable_holds_is_not_shown(monkeypatch, url):
    """A reference is read once, and never followed further."""
    monkeypatch.setenv("LOG", url)
    refused(functools.partial(database_url, setting="log"), "env:LOG")
