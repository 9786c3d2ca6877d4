"""The partner: a Flask service that knows nothing of us, with OpenTelemetry of its own.

    python examples/partner_service.py 8084

It keeps what was prepared and what counts in memory; a real one has a database for
both, and answers a second commit as it did the first.
"""

from __future__ import annotations

import sys
from typing import Any

from flask import Flask, abort, request
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.instrumentation.flask import FlaskInstrumentor
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor

app = Flask("partner")
prepared: dict[str, list[Any]] = {}
orders: dict[str, list[Any]] = {}


@app.post("/prepare")
def prepare() -> dict[str, str]:
    asked = request.get_json()
    if any(row["amount"] < 0 for row in asked["rows"]):
        abort(422, "an order has an amount")
    prepared[asked["id"]] = asked["rows"]
    return {"state": "prepared"}


@app.post("/commit/<batch>")
def commit(batch: str) -> dict[str, str]:
    if batch not in orders:
        if batch not in prepared:
            abort(404)
        orders[batch] = prepared.pop(batch)
    return {"state": "committed"}


@app.post("/rollback/<batch>")
def rollback(batch: str) -> dict[str, str]:
    prepared.pop(batch, None)
    return {"state": "rolled back"}


@app.get("/orders")
def show() -> dict[str, Any]:
    return {"prepared": prepared, "orders": orders}


if __name__ == "__main__":
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    FlaskInstrumentor().instrument_app(app, excluded_urls="/orders$")
    app.run("127.0.0.1", int(sys.argv[1]))
