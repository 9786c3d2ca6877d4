"""Calls with `requests` inside of a phase: each in a process that starts afresh."""

from __future__ import annotations

import json
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest
from support.programs import ran
from support.tracing import read_trace_file, span_tree

from tracing_2pc.tracing.decorator import requests_headers

PROGRAM = """
import http.server, json, sys, threading
import cloudpickle
from tracing_2pc import traced_sink

class Partner(http.server.BaseHTTPRequestHandler):
    seen = []
    def do_POST(self):
        self.seen.append(self.headers["traceparent"])
        self.send_response(200)
        self.send_header("content-length", "0")
        self.end_headers()
    def log_message(self, *arguments): pass

server = http.server.HTTPServer(("127.0.0.1", 0), Partner)
threading.Thread(target=server.serve_forever, daemon=True).start()
port = server.server_port

@traced_sink(requests="unasked" not in sys.argv)
class Sink:
    def begin(self): return {}
    def pre_commit(self, handle):
        import requests
        url = f"http://me:secret@127.0.0.1:{port}/prepare?key=secret#secret"
        requests.post(url, timeout=120)

if "early" in sys.argv:
    import requests
if "missing" in sys.argv:
    sys.modules["opentelemetry.instrumentation.requests"] = None
if "instrumented" in sys.argv:
    from opentelemetry.instrumentation.requests import RequestsInstrumentor
    RequestsInstrumentor().instrument(
        request_hook=lambda span, _: span.set_attribute("theirs", True)
    )
sink = cloudpickle.loads(cloudpickle.dumps(Sink()))
for _ in range(2):
    sink.pre_commit(sink.begin())
print(json.dumps(Partner.seen))
"""


def run(tmp_path: Path, *how: str, **environment: str) -> tuple[list[Any], list[Any]]:
    """Return the trace headers that the partner saw, and the spans."""
    program, file = tmp_path / "program.py", tmp_path / "trace"
    program.write_text(textwrap.dedent(PROGRAM))
    told = {"TPC_TRACE_FILE": str(file)} | environment
    done = ran([sys.executable, "-W", "error", program, *how], env=told)
    said = "calls with requests carry no trace context: install tracing-2pc[requests]"
    assert done.returncode == 0
    assert [said in line for line in done.stderr.splitlines()] == [True] * (
        "missing" in how
    )
    return json.loads(done.stdout), read_trace_file(file)


@pytest.mark.parametrize("when", ["early", "late"])
def test_the_first_call_of_a_process_carries_it(tmp_path, when):
    """Imported at the top, or inside of the phase as one does for executors."""
    headers, spans = run(tmp_path, when)
    assert span_tree(spans) == [
        "Sink.begin",
        "  Sink.pre_commit",
        "    POST",
        "Sink.begin",
        "  Sink.pre_commit",
        "    POST",
    ]
    posts = [span for span in spans if span["name"] == "POST"]
    assert [header[36:52] for header in headers] == [p["span_id"] for p in posts]


@pytest.mark.parametrize("how", ["unasked", "missing"])
def test_nothing_in_a_process_is_instrumented_unasked(tmp_path, how):
    """What is asked for and is not installed is one line in the log."""
    headers, spans = run(tmp_path, "early", how)
    assert headers == [None] * 2
    assert span_tree(spans) == ["Sink.begin", "  Sink.pre_commit"] * 2


@pytest.mark.parametrize("words", ["", "http", "http/dup"])
def test_a_query_string_is_exported_by_nobody(tmp_path, words):
    """Nor a password in the URL; in either spelling of OpenTelemetry's attributes."""
    _, spans = run(tmp_path, "late", OTEL_SEMCONV_STABILITY_OPT_IN=words)
    assert "secret" not in json.dumps(spans)
    attributes = next(s["attributes"] for s in spans if s["name"] == "POST")
    urls = {attributes[name] for name in ("http.url", "url.full") if name in attributes}
    assert [url.partition("127.0.0.1")[0] for url in urls] == ["http://"]
    assert [url.endswith("/prepare") for url in urls] == [True]


@pytest.mark.parametrize("when", ["early", "late"])
def test_who_has_instrumented_it_keeps_it(tmp_path, when):
    headers, spans = run(tmp_path, when, "instrumented")
    posts = [span for span in spans if span["name"] == "POST"]
    assert [post["attributes"]["theirs"] for post in posts] == [True] * 2
    assert None not in headers


@pytest.mark.parametrize(
    ("name", "told", "expected"),
    [
        ("http.target", "/a?b=1#c", "/a"),
        ("url.query", "b=1", ""),
        ("url.full", "https://u:p@h:1/a@b?c", "https://h:1/a@b"),
        ("http.url", "https://h?c=http://d", "https://h"),
    ],
)
def test_each_attribute_that_may_hold_a_query(name, told, expected):
    class Span:
        def __init__(self) -> None:
            self.attributes = {name: told}
            self.set_attribute = self.attributes.__setitem__

    span = Span()
    requests_headers._leave_out_query(span, None)
    assert span.attributes == {name: expected}


def test_a_foreign_span_breaks_no_request():
    requests_headers._leave_out_query(object(), None)

    class Span:
        attributes = property(lambda self: 1 / 0)

    requests_headers._leave_out_query(Span(), None)
