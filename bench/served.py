"""A participant in this process, behind real HTTP."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from flask import Flask
from werkzeug.serving import WSGIRequestHandler, make_server

from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant.engine import ParticipantEngine


class _Quiet(WSGIRequestHandler):
    def log_request(self, *_: Any) -> None:
        pass


def application(resource: ParticipantEngine) -> Flask:
    """Return a service that holds its data with this resource."""
    app = Flask("participant")
    app.register_blueprint(participant_blueprint(resource, insecure=True))
    return app


@contextlib.contextmanager
def serving(app: Any) -> Iterator[str]:
    """Serve a WSGI application from a thread; yield its URL."""
    server = make_server("127.0.0.1", 0, app, threaded=True, request_handler=_Quiet)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
