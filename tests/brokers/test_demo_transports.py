"""The demo, over three transports at once, through kills."""

from __future__ import annotations

import contextlib
import dataclasses
import threading

import pytest
from support.nats import Nats
from support.skywalking import certificate
from support.transports import SERVE
from support.waiting import PAUSE, SOON, until

from participants.demo import Demo
from participants.embedded import databases
from participants.oracle import judge
from participants.processes import Ledger, Service, free_ports, stopping
from tracing_2pc.core.remote_participant import open_participant


class Other(Service):
    """A service of the demo that is reached by its transport's URL."""

    def __init__(self, of: Service, url: str, command: list[str]) -> None:
        self.__dict__.update(of.__dict__)
        self.url = url
        self._command = [*SERVE, *command]

    def ready(self) -> None:
        asked = open_participant(self.name, self.url, None, SOON)
        until(
            lambda: asked.describe(),
            lambda found: (found.unreachable, found.unready) == (None, None),
            tell=lambda found: f"{found} {self.tail()}",
        )


@pytest.mark.broker
@pytest.mark.spark
@pytest.mark.parametrize(
    "days", [12, pytest.param(31, marks=pytest.mark.nightly)], ids="{} days".format
)
def test_the_demo_over_nats_grpc_and_http(tmp_path, monkeypatch, days):
    """A ledger by NATS, a search by gRPC with TLS, a notifier by HTTP; each is killed.

    The driver dies, too, and so does the NATS server. Nothing is lost, twice or split.
    """
    made = certificate(tmp_path, "search")
    monkeypatch.setenv("SSL_CERT_FILE", str(made))
    nats = Nats(tmp_path)
    (port,) = free_ports(1)
    with contextlib.ExitStack() as stack:
        database = stack.enter_context(databases("postgres", tmp_path / "databases"))
        stack.enter_context(stopping(nats))
        nats.listen()

        databases_of = {n: database(n) for n in ("ledger", "notifier", "search")}
        laid = Demo.prepare(
            tmp_path / "demo",
            databases_of["ledger"],
            databases_of["notifier"],
            ledger=nats.url(),
        )
        told = laid.notifier._environment
        plain = Ledger(databases_of["ledger"], 0, tmp_path / "by-nats.log", told)
        ledger = Other(plain, nats.url(), ["--nats", nats.url()])
        plain = Ledger(databases_of["search"], port, tmp_path / "search.log", told)
        words = ["--grpc", "--listen", f"127.0.0.1:{port}"]
        words += ["--tls", str(made), str(made.with_suffix(".key"))]
        search = Other(plain, f"grpcs://127.0.0.1:{port}", words)
        monkeypatch.setenv("DEMO_SEARCH", search.url)
        stack.enter_context(stopping(search, ledger, *laid.services, laid.job))
        stack.enter_context(stopping(*laid.operator.processes))
        stack.enter_context(contextlib.closing(laid.log))
        for service, times in ((search, days // 2), (ledger, days // 2 + 2)):
            service.start(
                TPC_FAILPOINT=f"participant.before_commit:{times}",
                TPC_FAILPOINT_FILE=str(tmp_path / f"{service.name}-{service.url[:4]}"),
            )
        ended = threading.Event()
        hands = threading.Thread(target=_look_after, args=(search, ledger, nats, ended))
        hands.start()
        try:
            summary = laid.run(days, crash=True, ask=None)
        finally:
            ended.set()
            hands.join()
        partner = laid.partner.url
        searched = judge(databases_of["search"], partner, range(1, days + 1))
    assert len(list(tmp_path.glob("ledger-*"))) == 2
    assert summary.good, "\n".join(summary.lines())
    assert summary.committed == days
    assert searched.good, "\n".join(searched.lines())
    assert dataclasses.replace(searched, requests=0) == dataclasses.replace(
        summary.verdict, requests=0
    )


def _look_after(
    search: Service, ledger: Service, nats: Nats, ended: threading.Event
) -> None:
    """Start again what was killed, and the NATS server anew with the search."""
    while not ended.wait(PAUSE):
        if not search.alive():
            nats.kill()
            nats.listen()
            search.start()
        if not ledger.alive():
            ledger.start()
