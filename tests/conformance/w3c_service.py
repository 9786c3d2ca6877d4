"""The service that the public W3C Trace Context harness asks: `--port N`, loopback.

`POST` it a JSON array of `{"url": ..., "arguments": ...}`: it posts each `arguments`
to its `url`, in order, inside of spans as our blueprint and HTTP client open them.
"""

from __future__ import annotations

import argparse
from urllib.parse import urlsplit

import urllib3
from flask import Flask, request
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from werkzeug.serving import make_server

from tracing_2pc.tracing.spans import client_span, current_carrier, server_span

HOST = "127.0.0.1"


def service() -> Flask:
    """Make the service. It asks nobody but this machine."""
    app = Flask("w3c")
    pool = urllib3.PoolManager(retries=False, timeout=urllib3.Timeout(5))

    @app.post("/", defaults={"path": ""})
    @app.post("/<path:path>")
    def ask(path: str) -> tuple[str, int]:
        with server_span("POST", dict(request.headers)):
            asked = request.get_json()
            if any(urlsplit(one["url"]).hostname != HOST for one in asked):
                return "loopback only", 400
            for one in asked:
                with client_span("POST"):
                    headers = current_carrier()
                    pool.request(
                        "POST", one["url"], json=one["arguments"], headers=headers
                    )
        return "asked", 200

    return app


def main() -> None:
    """Serve until killed."""
    parser = argparse.ArgumentParser(prog="python -m tests.conformance.w3c_service")
    parser.add_argument("--port", type=int, required=True)
    port = parser.parse_args().port
    trace.set_tracer_provider(TracerProvider(shutdown_on_exit=False))
    make_server(HOST, port, service(), threaded=True).serve_forever()


if __name__ == "__main__":
    main()
