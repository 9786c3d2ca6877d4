"""The gateway: events come in by HTTP, and a job reads them from its inbox.

`INBOX_DATABASE=sqlite:///inbox.db TPC_TOKENS_FILE=tokens \
 python -m participants.gateway`

A tokens file line for each producer: `producer TOKEN NAME`.
"""

from __future__ import annotations

from flask import Flask

from tracing_2pc.http.events import events_blueprint
from tracing_2pc.inbox import Inbox


def create_app() -> Flask:
    """Make the application; `INBOX_DATABASE` is a SQLAlchemy URL."""
    app = Flask(__name__)
    inbox = Inbox("env:INBOX_DATABASE")
    app.register_blueprint(events_blueprint(inbox))
    app.extensions["resource"] = inbox
    return app


if __name__ == "__main__":
    import os

    from .serve import serve

    # Who waits at one moment shares a flush.
    os.environ.setdefault("GUNICORN_CMD_ARGS", "--threads 32")
    serve("gateway", 8085, needs=("INBOX_DATABASE", "TPC_TOKENS_FILE"))
