"""A round of events: through both doors of an inbox, to a ledger and a queue.

Clients post to a gateway and send to a queue; the example's job applies what comes. The
judge compares what clients were told with the ledger's view, by SQL, and with the
outgoing queue, and shares no code with either.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import queue
import random
import sys
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, NamedTuple

import psycopg
import stomp
from support.activemq import Broker
from support.producer import post_until_taken
from support.waiting import AT_LAST, until

from chaos.readers import differences
from chaos.world import Place, made
from participants.processes import Ledger, Process, Served, Service, free_ports
from tracing_2pc.embedded.addresses import with_options

_CLIENTS: Final = 32
_SENDERS: Final = 4
_PRODUCER, _JOB = "producer-token-0123456789", "job-token-0123456789"
_IN, _OUT = "event-queue-in", "event-queue-out"


class Sent(NamedTuple):
    """An event as its client knows it."""

    producer: str
    id: str
    payload: str


class Events(Place):
    """Clients that post and send while all else is killed, the broker, too.

    Args:
        folder: where everything is kept.
        url: of the first database of a PostgreSQL that is ours alone.
    """

    def __init__(self, folder: Path, url: str) -> None:
        inbox, ledger, notifier, log = (
            made(url, name) for name in ("inbox", "ledger", "notifier", "log")
        )
        super().__init__(url, log, "pipeline")
        self._inbox, self._ledger = inbox, ledger
        self.journals += [("ledger", ledger), ("notifier", notifier)]
        self._broker = Broker(folder / "broker")
        self._broker.folder.mkdir()
        tokens = folder / "tokens"
        tokens.write_text(f"producer {_PRODUCER} shop\njob {_JOB}\n")
        common = {
            "PYTHONPATH": os.pathsep.join(sys.path),
            "TPC_TOKENS_FILE": str(tokens),
            "WEB_CONCURRENCY": "2",
            "INBOX_DATABASE": inbox,
        }
        place = self._broker.place
        ports, outbox = free_ports(3), notifier.replace("+psycopg", "")
        out = with_options(f"activemq://{place}/{_OUT}", {"outbox": outbox})
        logs = [folder / f"{name}.log" for name in ("gateway", "ledger", "notifier")]
        self.services = {
            "gateway": Service("gateway", ports[0], logs[0], common),
            "ledger": Ledger(ledger, ports[1], logs[1], common, "events"),
            "notifier": Served("notifier", out, ports[2], logs[2], common),
        }

        def process(name: str, command: Sequence[str], **own: str) -> Process:
            return Process(name, command, folder / f"{name}.log", {**common, **own})

        python = [sys.executable, "-m"]
        where = {"ACTIVEMQ": place, "QUEUE": _IN, "EVENT_ID": "order-id"}
        self.others = {
            "broker": process("broker", self._broker.command),
            "intake": process("intake", [*python, "participants.intake"], **where),
        }
        urls = [self.services[name].url for name in ("ledger", "notifier")]
        job = [*python, "participants.pipeline", str(folder), *urls]
        self.drivers = {"job": process("job", job, TPC_TOKEN=_JOB)}
        self._is_over = threading.Event()
        self._sending: list[Future[None]] = []
        self.posted: dict[Sent, int] = {}
        """Events that were answered 202, and their positions."""
        self.sent: dict[Sent, None] = {}
        """Events for which the broker gave a receipt."""

    @contextlib.contextmanager
    def running(self) -> Iterator[None]:
        """Run the round, and the clients."""
        with super().running(), ThreadPoolExecutor(_CLIENTS + _SENDERS) as pool:
            works = [self._post] * _CLIENTS + [self._send] * _SENDERS
            try:
                self._sending = [
                    pool.submit(self._produce, number, work)
                    for number, work in enumerate(works)
                ]
                yield
            finally:
                self._is_over.set()

    def _produce(
        self, number: int, work: Callable[[random.Random, list[tuple[str, str]]], None]
    ) -> None:
        """Bring events until it is over; each until it is taken, some once more."""
        chance = random.Random(number)
        for turn in itertools.count():
            if self._is_over.wait(chance.expovariate(1)):
                return
            names = range(chance.choice((1, 1, 2, 20)))
            work(
                chance, [(f"{number}.{turn}.{n}", str(chance.random())) for n in names]
            )

    def _post(self, chance: random.Random, events: list[tuple[str, str]]) -> None:
        lines = [f'{{"id": "{name}", "payload": {body}}}' for name, body in events]

        def post() -> list[int]:
            url = self.services["gateway"].url
            return post_until_taken(url, _PRODUCER, "\n".join(lines))

        positions = post()
        if chance.random() < 0.3:
            again = post()
            assert again == positions, (events, positions, again)
        sent = [Sent("shop", *event) for event in events]
        self.posted.update(zip(sent, positions, strict=True))

    def _send(self, chance: random.Random, events: list[tuple[str, str]]) -> None:
        for name, body in events:
            for _ in range(chance.choice((1, 1, 2))):
                until(partial(self._is_sent, name, body))
            self.sent[Sent(_IN, name, body)] = None

    def _is_sent(self, name: str, body: str) -> bool:
        try:
            self._broker.send(_IN, body, order_id=name)
        except (OSError, stomp.exception.StompException, queue.Empty):
            return False
        return True

    def _no_more(self) -> None:
        self._is_over.set()
        for client in self._sending:
            client.result(AT_LAST)
        until(self._all_taken)

    def _all_taken(self) -> bool:
        self._tend_services()
        asked = "SELECT count(*) FROM events_tpc_key WHERE producer = %s"
        with contextlib.suppress(psycopg.OperationalError):
            return bool(_rows(self._inbox, asked, _IN) == [(len(self.sent),)])
        return False

    def settle(self) -> None:
        """Apply what is left, and wait for the outgoing queue.

        Raises:
            TimeoutError: something is stuck.
        """
        super().settle()
        wanted = self._events()
        until(lambda: not wanted - self._messages())

    def _events(self) -> Counter[Sent]:
        return Counter([*self.posted, *self.sent])

    def _messages(self) -> Counter[Sent]:
        """Return what was ever in the outgoing queue; nothing if it does not say."""
        self._tend_services()
        with contextlib.suppress(OSError, stomp.exception.StompException):
            records = [json.loads(one.value) for one in self._broker.taken(_OUT)]
            return Counter(Sent(r["producer"], r["id"], r["body"]) for r in records)
        return Counter()

    def faults(self) -> tuple[str, ...]:
        """Say what is lost, doubled, foreign or in another place, at both ends."""
        asked = "SELECT producer, id, body, position FROM events"
        rows = Counter(
            (Sent(*event), position if event[0] == "shop" else None)
            for *event, position in _rows(self._ledger, asked)
        )
        wanted = Counter([*self.posted.items(), *dict.fromkeys(self.sent).items()])
        return (
            *differences("ledger", rows, wanted),
            *differences(_OUT, self._messages(), self._events()),
        )


def _rows(url: str, asked: str, *values: str) -> list[Any]:
    with psycopg.connect(url.replace("+psycopg", "")) as connection:
        return connection.execute(asked, values).fetchall()
