"""The notifier: tells a partner of flights through its HTTP API, by way of an outbox.

`NOTIFIER_DATABASE=sqlite:///notifier.db PARTNER_URL=http://127.0.0.1:8083/notifications
TPC_TOKENS_FILE=tokens python -m participants.notifier`

"Committed" means that the partner will be told: durably accepted for sending.
"""

from __future__ import annotations

import os

from flask import Flask

from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.outbox import Outbox


def create_app() -> Flask:
    """Make the application; `PARTNER_URL` takes one POST per record."""
    app = Flask(__name__)
    outbox = Outbox(
        "env:NOTIFIER_DATABASE",
        HttpPartner(os.environ["PARTNER_URL"], timeout=2.0),
        lease=6.0,  # a killed one's successor waits so long before it sends
    )
    app.register_blueprint(participant_blueprint(outbox, name="notifier"))
    app.extensions["resource"] = outbox
    return app


if __name__ == "__main__":
    from .serve import serve

    serve(
        "notifier", 8082, needs=("NOTIFIER_DATABASE", "PARTNER_URL", "TPC_TOKENS_FILE")
    )
