"""A service that was started again sends what it keeps, whoever asks it or not."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from support.branches import ONE
from support.kinds import outbox_to
from support.participant import World, keep, no_sender
from support.served import served
from support.waiting import AT_LAST, until

from participants.processes import Process, free_ports
from participants.serve import gunicorn
from tracing_2pc.outbox import Outbox


@contextlib.contextmanager
def partner() -> Iterator[str]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_: object) -> None:
            pass

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        yield f"http://127.0.0.1:{server.server_port}/notices"


@pytest.mark.parametrize(
    "preload", ["", pytest.param("--preload", marks=pytest.mark.nightly)]
)
def test_a_worker_sends_without_a_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, preload: str
) -> None:
    """After its fork, also where the application was loaded before that."""
    monkeypatch.setattr(Outbox, "start", no_sender)
    (tmp_path / "tokens").write_text("job a-token-of-the-job-0123456789\n")
    url = f"sqlite:///{tmp_path}/notifier.db"
    with partner() as address:
        world = World(
            outbox_to(address, url),
            lambda: int(world.resource.gauges()["tpc.outbox.backlog"]),
        )
        keep(world, "orders.1.1", ONE)
        assert world.visible() > 0
        (port,) = free_ports(1)
        environment = {
            "NOTIFIER_DATABASE": url,
            "PARTNER_URL": address,
            "TPC_TOKENS_FILE": str(tmp_path / "tokens"),
            "GUNICORN_CMD_ARGS": preload,
        }
        command = gunicorn("notifier", f"127.0.0.1:{port}", "gunicorn_conf")
        service = Process("notifier", command, tmp_path / "log", environment)
        service.start()
        try:
            until(lambda: world.visible() == 0, tell=lambda _: service.tail())
        finally:
            service.stop(AT_LAST)
        world.resource.close()
