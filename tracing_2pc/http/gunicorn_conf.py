"""gunicorn's settings for a participant: threads, and a clean end.

    gunicorn -c python:tracing_2pc.http.gunicorn_conf ledger:app -b 127.0.0.1:8081

`WEB_CONCURRENCY` is the number of workers, two by default. No application is loaded
before the fork: a reload (SIGHUP) reads everything again. At SIGTERM running requests
have five seconds; then the resource in `app.extensions["resource"]` is closed.
"""

from __future__ import annotations

import os
from typing import Any

worker_class = "tracing_2pc.http.gunicorn_worker.Worker"
workers = int(os.environ.get("WEB_CONCURRENCY", "2"))
threads = 4
worker_connections = 512  # of each worker; a system may allow a process 1024 files
keepalive = 75  # seconds: longer than a trigger, so that a batch finds its connection
timeout = 60
graceful_timeout = 5
control_socket_disable = True


def on_starting(_: Any) -> None:
    """Show what is logged, with the ids of transaction, trace and span."""
    from tracing_2pc.tracing.sdk.log_records import write_to_stderr

    write_to_stderr()


def worker_exit(server: Any, worker: Any) -> None:
    """Close the resource: an outbox stops sending and gives its lease back."""
    resource = getattr(getattr(worker, "wsgi", None), "extensions", {}).get("resource")
    if resource is not None:
        resource.close()
