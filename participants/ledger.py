"""The ledger: sums per day, origin and carrier, in PostgreSQL or SQLite.

`LEDGER_DATABASE=sqlite:///ledger.db TPC_TOKENS_FILE=tokens \
 python -m participants.ledger`

Readers select from the view `flights_daily`, or `LEDGER_TABLE`. It has no key on
purpose: if a batch were ever applied twice, a reader should see it.
"""

from __future__ import annotations

import os

from flask import Flask

from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows


def create_app() -> Flask:
    """Make the application; `LEDGER_DATABASE` is a SQLAlchemy URL."""
    app = Flask(__name__)
    table = os.environ.get("LEDGER_TABLE", "flights_daily")
    rows = TaggedRows("env:LEDGER_DATABASE", table=table)
    app.register_blueprint(participant_blueprint(rows, name="ledger"))
    app.extensions["resource"] = rows
    return app


if __name__ == "__main__":
    from .serve import serve

    serve("ledger", 8081, needs=("LEDGER_DATABASE", "TPC_TOKENS_FILE"))
