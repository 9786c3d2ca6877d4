"""What goes to SkyWalking over TLS, with which token, and what is refused at once."""

from __future__ import annotations

import logging
import socket
from collections.abc import Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from opentelemetry.sdk.trace import TracerProvider
from support import telemetry as telemetry_support
from support.endless import BODY, drip, flood
from support.served import StandIn, served
from support.skywalking import Oap, World, certificate, serving
from support.texts import texts
from support.waiting import AT_LAST, PATIENT, SOON, until

from tracing_2pc.skywalking import in_use, sender
from tracing_2pc.skywalking.start import CERTIFICATES, TOKEN, start

TEXTS = texts("component")

SENDS_TO_SKYWALKING = {
    "OTEL_TRACES_EXPORTER": "skywalking",
    "OTEL_PROPAGATORS": "tracecontext",
}


@pytest.fixture(autouse=True)
def _as_before(monkeypatch) -> Iterator[None]:
    before = in_use.processor()
    monkeypatch.setattr(sender, "TIMEOUT", PATIENT)
    yield
    in_use.use(before)


@pytest.fixture(scope="module")
def ours(tmp_path_factory) -> Path:
    return certificate(tmp_path_factory.mktemp("ours"), "oap")


@pytest.fixture(scope="module")
def foreign(tmp_path_factory) -> Path:
    return certificate(tmp_path_factory.mktemp("foreign"), "oap")


@pytest.fixture
def secure(ours) -> Iterator[Oap]:
    """A collector that speaks https."""
    with serving(ours) as server:
        yield server


@pytest.mark.parametrize("speaks", [drip, flood])
def test_an_answer_without_end_holds_nothing_up(speaks, monkeypatch):
    """Neither its bytes nor its time: what it has taken is taken."""

    class Endless(StandIn):
        def do_POST(self) -> None:  # noqa: N802 - as http.server has it
            self.body()
            speaks(self, BODY)
            self.close_connection = True

    monkeypatch.setattr(sender, "TIMEOUT", SOON)
    with served(ThreadingHTTPServer(("127.0.0.1", 0), Endless)) as server:
        collector: Any = SimpleNamespace(url=f"http://127.0.0.1:{server.server_port}")
        bridge = World(collector)
        bridge.tracer.start_span("x").end()
        assert bridge.flush()
        bridge.close()


def test_who_trusts_the_collectors_certificate_sends(secure, ours, monkeypatch):
    """Named by the variable alone."""
    monkeypatch.setenv(CERTIFICATES, str(ours))
    bridge = World(secure)
    bridge.tracer.start_span("x").end()
    assert bridge.tree() == ["Local x"]
    assert secure.mistrusted == 0
    bridge.close()


@pytest.mark.parametrize("trusting", ["another", "the system's"])
def test_nothing_is_sent_past_a_certificate_that_is_not_trusted(
    secure, foreign, monkeypatch, caplog, trusting
):
    """Neither spans nor token; it says so once, and loses only what finds no room."""
    monkeypatch.setattr(sender, "BACKOFF", (0.01, 0.02))
    monkeypatch.setattr(sender, "QUEUE", 3)
    monkeypatch.setenv(TOKEN, "s3cret")
    named = {"certificates": str(foreign)} if trusting == "another" else {}
    with caplog.at_level(logging.WARNING, sender.__name__):
        bridge = World(secure, **named)
        for number in range(3):
            bridge.tracer.start_span(str(number)).end()
            bridge.provider.force_flush(0)
        until(lambda: secure.mistrusted >= 3)
        assert bridge.processor.dropped == 0
        for number in range(5):
            bridge.tracer.start_span(str(number)).end()
            bridge.provider.force_flush(0)
        until(lambda: bridge.processor.dropped == 5)
        bridge.close()
    assert secure.posts == []
    assert [r.getMessage() for r in caplog.records] == [
        "SkyWalking takes nothing (SSLError); work goes on"
    ]


PROGRAM = "made(20); say(spans.is_set())"


def test_a_process_ends_whatever_the_certificate(secure, foreign):
    """In the time that it gives telemetry at its end."""
    told = {
        **SENDS_TO_SKYWALKING,
        "TPC_SKYWALKING_ENDPOINT": secure.url,
        CERTIFICATES: str(foreign),
    }
    traced, _ = telemetry_support.run(PROGRAM, **told)
    assert traced
    assert secure.mistrusted > 0
    assert secure.posts == []


def test_a_process_ends_though_nobody_answers_its_handshake():
    """As above, while a connection is half made."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"https://127.0.0.1:{silent.getsockname()[1]}"
        told = {**SENDS_TO_SKYWALKING, "TPC_SKYWALKING_ENDPOINT": url}
        traced, _ = telemetry_support.run(PROGRAM, **told)
        silent.settimeout(0)
        connection, _ = silent.accept()  # it had come
        connection.close()
    assert traced


def test_a_redirect_is_no_answer(bridge):
    """Spans and token go to the address that was given, or nowhere."""
    bridge.oap.status = 302
    bridge.tracer.start_span("x").end()
    assert not bridge.flush()
    assert bridge.oap.posts == []
    bridge.oap.status = 200
    until(lambda: bridge.oap.segments)
    assert bridge.tree() == ["Local x"]
    assert "/elsewhere" not in bridge.oap.asked
    assert bridge.processor.dropped == 0


@pytest.mark.parametrize(
    ("settings", "why"),
    [
        ({"endpoint": "oap:12800"}, "expected http://host:port"),
        ({"endpoint": "https://me:pw@oap"}, "must not hold a password"),
        ({"certificates": "{ours}"}, TEXTS["make it https"]),
        ({"endpoint": "https://oap", "certificates": "/not/there"}, "No such file"),
        ({"endpoint": "https://oap", "certificates": "{key}"}, "(?i)no.certificate"),
        ({"token": "s3cret\nmore"}, "one line"),
    ],
)
def test_settings_that_cannot_work_are_refused(ours, settings, why):
    """At the start, by a message that names what to change."""
    at = {"ours": ours, "key": ours.with_suffix(".key")}
    given = {name: value.format(**at) for name, value in settings.items()}
    with pytest.raises(ValueError, match=why) as refused:
        start(provider=TracerProvider(shutdown_on_exit=False), **given)
    assert "TPC_SKYWALKING_" in str(refused.value)
    assert "s3cret" not in str(refused.value)
    assert "pw" not in str(refused.value)


def test_a_job_says_why_it_is_not_traced(ours):
    """It works all the same, and its log names what to change."""
    code = "import logging; logging.basicConfig(stream=sys.stdout)\n"
    code = f"{telemetry_support.PRELUDE}{code}lifecycle.start('job')\nmade()\n"
    told = {**SENDS_TO_SKYWALKING, CERTIFICATES: str(ours)}
    with telemetry_support.started("-c", code, **told) as running:
        out, _ = running.running.communicate(timeout=AT_LAST)
    assert TEXTS["tracing did not start"] in out
    assert TEXTS["make it https"] in out


@pytest.mark.parametrize("by", ["variable", "argument"])
def test_a_token_is_sent_and_shown_nowhere(oap, monkeypatch, by):
    """An argument comes before the variable; no object shows either."""
    given: dict[str, Any] = {}
    if by == "variable":
        monkeypatch.setenv(TOKEN, "s3cret\n")
    else:
        monkeypatch.setenv(TOKEN, "overruled")
        given["token"] = "s3cret"
    bridge = World(oap, **given)
    bridge.tracer.start_span("x").end()
    assert bridge.tree() == ["Local x"]
    assert {headers["Authentication"] for _, headers, _ in oap.posts} == {"s3cret"}
    assert "s3cret" not in repr(bridge.processor) + repr(vars(bridge.processor))
    bridge.close()


def test_a_variable_that_looks_like_a_reference_is_none(oap, monkeypatch):
    """The secret is what it says, as in every variable of ours that holds one."""
    monkeypatch.setenv("OAP_TOKEN", "s3cret")
    monkeypatch.setenv(TOKEN, "env:OAP_TOKEN")
    bridge = World(oap)
    bridge.tracer.start_span("x").end()
    bridge.tree()
    assert oap.posts[0][1]["Authentication"] == "env:OAP_TOKEN"
    bridge.close()


@pytest.mark.parametrize(
    ("endpoint", "token", "warned"),
    [
        ("http://192.0.2.1:12800", "s3cret", True),
        ("http://192.0.2.1:12800", "", False),
        ("http://oap.invalid:12800", "s3cret", True),
        ("https://oap.invalid:12800", "s3cret", False),
        ("http://127.0.0.1:12800", "s3cret", False),
        ("http://[::1]:12800", "s3cret", False),
        ("http://localhost:12800", "s3cret", False),
    ],
)
def test_a_token_that_others_can_read_is_warned_of(
    endpoint, token, monkeypatch, caplog, *, warned
):
    """Once, when it starts, and without the token; not where nobody else listens."""
    monkeypatch.setenv(TOKEN, token)
    with caplog.at_level(logging.WARNING):
        start(endpoint, provider=TracerProvider(shutdown_on_exit=False))
    said = [r.getMessage() for r in caplog.records]
    assert (
        said == ["the token of SkyWalking can be read on its way: use https"] * warned
    )
