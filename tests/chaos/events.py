"""A round of events: clients, a gateway, a job that reads its inbox, and a ledger.

The judge compares what clients were told with the ledger's view, by SQL, and shares no
code with either.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import random
import sys
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Final, NamedTuple

import psycopg
from support.producer import post_until_taken
from support.waiting import AT_LAST

from chaos.world import Place, made
from participants.processes import Process, Service, free_ports

_CLIENTS: Final = 32
_PRODUCER, _JOB = "producer-token-0123456789", "job-token-0123456789"


class Sent(NamedTuple):
    """An event as its client knows it."""

    id: str
    payload: str


class Events(Place):
    """Clients that post while all else is killed.

    Args:
        folder: where everything is kept.
        url: of the first database of a PostgreSQL that is ours alone.
    """

    def __init__(self, folder: Path, url: str) -> None:
        inbox, self._ledger, log = (made(url, n) for n in ("inbox", "ledger", "log"))
        super().__init__(url, log, "events")
        tokens = folder / "tokens"
        tokens.write_text(f"producer {_PRODUCER} shop\njob {_JOB}\n")
        common = {"TPC_TOKENS_FILE": str(tokens), "WEB_CONCURRENCY": "2"}
        given = {
            "gateway": {"INBOX_DATABASE": inbox},
            "ledger": {"LEDGER_DATABASE": self._ledger},
        }
        self.services = {
            name: Service(name, port, folder / f"{name}.log", {**common, **own})
            for (name, own), port in zip(given.items(), free_ports(2), strict=True)
        }
        about = [str(folder), inbox, self.services["ledger"].url]
        command = [sys.executable, "-m", "chaos.inbox_job", *about]
        variables = {"PYTHONPATH": os.pathsep.join(sys.path), "TPC_TOKEN": _JOB}
        self.drivers = {"job": Process("job", command, folder / "job.log", variables)}
        self._is_over = threading.Event()
        self._sending: list[Future[None]] = []
        self.told: dict[Sent, int] = {}
        """Events that were answered 202, and their positions."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the round, and the clients."""
        with super().running(), ThreadPoolExecutor(_CLIENTS) as pool:
            try:
                self._sending = [
                    pool.submit(self._send, number) for number in range(_CLIENTS)
                ]
                yield
            finally:
                self._is_over.set()

    def _send(self, number: int) -> None:
        """Post until it is over; each until it is told 202, some once more."""
        chance = random.Random(number)
        for turn in itertools.count():
            if self._is_over.wait(chance.expovariate(1)):
                return
            events = [
                Sent(f"{number}.{turn}.{n}", str(chance.random()))
                for n in range(chance.choice((1, 1, 2, 20)))
            ]
            positions = self._post(events)
            if chance.random() < 0.3:
                again = self._post(events)
                assert again == positions, (events, positions, again)
            self.told.update(zip(events, positions, strict=True))

    def _post(self, events: Sequence[Sent]) -> list[int]:
        lines = (f'{{"id": "{e.id}", "payload": {e.payload}}}' for e in events)
        url = self.services["gateway"].url
        return post_until_taken(url, _PRODUCER, "\n".join(lines))

    def _no_more(self) -> None:
        self._is_over.set()
        for client in self._sending:
            client.result(AT_LAST)

    def faults(self) -> tuple[str, ...]:
        """Say what of the ledger is lost, doubled, foreign or in another place."""
        address = self._ledger.replace("postgresql+psycopg:", "postgresql:")
        with psycopg.connect(address) as connection:
            rows = connection.execute(
                "SELECT id, body, position FROM flights_daily WHERE producer = 'shop'"
            ).fetchall()
        found = Counter((Sent(name, body), position) for name, body, position in rows)
        wanted = Counter(self.told.items())
        lost, more = wanted - found, found - wanted
        return (
            *(f"lost: {one}" for one in itertools.islice(lost, 20)),
            *(f"doubled or foreign: {one}" for one in itertools.islice(more, 20)),
        )
