"""gunicorn's settings for a participant: threads, telemetry, a clean end.

`WEB_CONCURRENCY` says how many workers there are; one by default. Nothing is loaded
before the fork: threads and connections would not survive it.
"""

from __future__ import annotations

import os
from typing import Any

worker_class = "gthread"
threads = 8
timeout = 60
graceful_timeout = 5
control_socket_disable = True


def post_fork(server: Any, worker: Any) -> None:
    """Start telemetry in this worker, where its threads live."""
    from tracing_2pc.telemetry.lifecycle import start

    start(os.environ.get("OTEL_SERVICE_NAME", "participant"))


def worker_exit(server: Any, worker: Any) -> None:
    """Close the resource: an outbox stops sending and gives its lease back."""
    resource = getattr(worker.wsgi, "extensions", {}).get("resource")
    if resource is not None:
        resource.close()
