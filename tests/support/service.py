"""A participant for the Spark tests: rows of one table, by gunicorn or in a thread."""

from __future__ import annotations

import os

from flask import Flask

from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows


def create_app(database: str | None = None) -> Flask:
    app = Flask(__name__)
    rows = TaggedRows(database or os.environ["DATABASE"], table="numbers")
    app.register_blueprint(participant_blueprint(rows, insecure=True))
    app.extensions["resource"] = rows
    return app
