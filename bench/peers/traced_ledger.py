"""A ledger whose tracing the environment chooses: `gunicorn ...:create_app()`."""

from __future__ import annotations

from flask import Flask

from bench.peers import own_tracing
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows


def create_app() -> Flask:
    """Make the application that `tracing-2pc serve` makes of a ledger."""
    own_tracing.obey()
    app = Flask(__name__)
    rows = TaggedRows("env:LEDGER_DATABASE", table="flights_daily")
    app.register_blueprint(participant_blueprint(rows, name="ledger"))
    app.extensions["resource"] = rows
    return app
