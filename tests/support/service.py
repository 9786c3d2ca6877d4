"""A participant for the Spark tests: rows of one table, by gunicorn or in a thread."""

from __future__ import annotations

import os
from pathlib import Path

from flask import Flask

from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows


def create_app(database: str | None = None, tokens: Path | None = None) -> Flask:
    """Serve one; without a file of tokens it asks for none."""
    app = Flask(__name__)
    key = os.environ.get("KEY", "").split() or None
    rows = TaggedRows(database or os.environ["DATABASE"], table="numbers", key=key)
    blueprint = participant_blueprint(rows, tokens=tokens, insecure=tokens is None)
    app.register_blueprint(blueprint)
    app.extensions["resource"] = rows
    return app
