"""A participant for the Spark tests, by gunicorn or in a thread.

It keeps rows of one table; with KAFKA in its environment, servers and a topic, it
publishes them there.
"""

from __future__ import annotations

import os
from pathlib import Path

from flask import Flask

from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.outbox import Outbox
from tracing_2pc.participant import TaggedRows


def create_app(database: str | None = None, tokens: Path | None = None) -> Flask:
    """Serve one; without a file of tokens it asks for none."""
    app = Flask(__name__)
    if tokens is None and "TOKENS" in os.environ:
        tokens = Path(os.environ["TOKENS"])
    url = database or os.environ["DATABASE"]
    rows = _outbox(url) if "KAFKA" in os.environ else _table(url)
    blueprint = participant_blueprint(rows, tokens=tokens, insecure=tokens is None)
    app.register_blueprint(blueprint)
    app.extensions["resource"] = rows
    return app


def _table(url: str) -> TaggedRows:
    key = os.environ.get("KEY", "").split() or None
    return TaggedRows(url, table="numbers", key=key)


def _outbox(url: str) -> Outbox:
    from tracing_2pc.kafka import KafkaRelay

    servers, topic = os.environ["KAFKA"].split()
    return Outbox(url, KafkaRelay(servers, topic=topic))
