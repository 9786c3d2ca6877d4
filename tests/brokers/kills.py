"""Kill and pause a service's processes and the broker at random; judge the topic.

`python -m brokers.kills --broker KIND --rounds N --seed S`. A small coordinator
prepares, commits and aborts meanwhile, and keeps a ledger of what it has decided. The
judge reads the topic as any reader does, and knows of the product what a reader knows:
two headers.
"""

from __future__ import annotations

import argparse
import contextlib
import http.client
import itertools
import json
import os
import random
import signal
import sys
import tempfile
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Final

from confluent_kafka import KafkaException
from support import activemq
from support.branches import TRACE, Branch, orders
from support.kinds import sqlite_url
from support.waiting import ANSWERED, AT_LAST, PAUSE, SOON, until

from bench.kafka_broker import Broker, running
from brokers import wire
from participants.processes import Process, free_ports

_APPLICATIONS: Final = ("orders", "others", "returns")

_MOST_ROWS: Final = 400

Tell = Callable[[str], None]


class Coordinator:
    """Prepares transactions at any process of a service, and ends each of them.

    Args:
        ports: of the processes.
        chance: how large each is, and how it ends.
    """

    def __init__(self, ports: list[int], chance: random.Random) -> None:
        self._ports = ports
        self._chance = chance
        self._ids = itertools.count(1)
        self._batches: Counter[str] = Counter()
        self.is_over = threading.Event()
        # What the topic must hold: the transaction and id of each record.
        self.ledger: list[tuple[str, int]] = []
        self.committed = self.aborted = 0

    def run(self) -> None:
        """Go on until it is over; what is begun then, is ended first."""
        while not self.is_over.wait(self._chance.expovariate(8)):
            application = self._chance.choice(_APPLICATIONS)
            self._batches[application] += 1
            for attempt in (1, 2):  # an attempt that aborts is followed by another
                name = f"{application}.{self._batches[application]}.{attempt}"
                if self._ended(name):
                    break

    def _ended(self, name: str) -> bool:
        """Prepare some branches; commit or abort. Whether it was a commit."""
        branches, rows = [], []
        for partition in range(self._chance.choice((1, 1, 2, 3))):
            some = self._chance.choice((1, 3, _MOST_ROWS))
            ids = list(itertools.islice(self._ids, some))
            branches.append(Branch(orders(*ids), len(ids), f"{partition}.1"))
            rows += [(name, one) for one in ids]
            self._until("/prepare", name, branches[-1])
        twin = Branch(orders(0), 1, "0.2")  # of a task that ran twice: not chosen
        if self._chance.random() < 0.3:
            self._until("/prepare", name, twin)
        if self._chance.random() < 0.2:
            self._until("/abort", name)
            self.aborted += 1
            return False
        passed = int(name.split(".")[1]) - 5
        named = [branch.named for branch in branches]
        forgotten = passed if passed > 0 else None
        self._until("/commit", name, branches=named, forgotten_through=forgotten)
        self.committed += 1
        self.ledger += rows
        return True

    def _until(
        self, route: str, name: str, branch: Branch | None = None, **order: Any
    ) -> None:
        """Ask until it is acknowledged, whichever process answers."""
        headers = {
            "Tpc-Version": "1",
            "Tpc-Participant": "totals",
            "Tpc-Transaction-Id": name,
            "Content-Type": "application/json",
            **TRACE,
        }
        body = json.dumps({"transaction_id": name, **order}).encode()
        if branch is not None:
            body = branch.body
            headers |= {
                "Tpc-Branch": branch.branch,
                "Tpc-Rows": str(branch.rows),
                "Content-Digest": branch.digest,
                "Content-Type": branch.content_type,
            }

        def ask() -> tuple[int, bytes]:
            port = self._chance.choice(self._ports)
            try:
                connection = http.client.HTTPConnection("127.0.0.1", port, SOON)
                with contextlib.closing(connection):
                    connection.request("POST", route, body, headers)
                    answer = connection.getresponse()
                    return answer.status, answer.read()
            except (OSError, http.client.HTTPException):
                return 0, b""

        status, text = until(ask, lambda answer: answer[0] not in (0, 425, 503))
        assert status == 200, (route, name, status, text)


class Scene:
    """A broker, two processes of a service, and what is done to them.

    Args:
        folder: of the service's database, and of logs.
        broker: which runs.
        chance: what is done, to whom and when.
        tell: is told each deed.
    """

    broker: Any

    def __init__(
        self, folder: Path, broker: Any, chance: random.Random, tell: Tell
    ) -> None:
        self.broker = broker
        self.topic = broker.topic()
        self._chance = chance
        self._tell = tell
        self.ports = free_ports(2)
        about = [sqlite_url(folder), broker.address, self.topic]
        command = [sys.executable, "-m", "brokers.publish", *about]
        paths = {"PYTHONPATH": os.pathsep.join(sys.path)}
        self.services = [
            Process(f"service {n}", [*command, str(port)], folder / f"log {n}", paths)
            for n, port in enumerate(self.ports, 1)
        ]
        self.deeds: Counter[str] = Counter()
        self.healed: Counter[str] = Counter()
        self._known: list[str] = []

    def stir(self) -> None:
        """Do something to one of them, or to several at once."""
        self._pause(3)
        deed = self._chance.choice(
            (
                *(self._kill, self._kill, self._sleep),
                *(self._kill_broker, self._kill_broker_in_commit, self._kill_all),
            )
        )
        done = deed()
        self.deeds[done] += 1
        self._tell(done)
        for service in self.services:
            if not service.alive() and self._chance.random() < 0.7:
                service.start()

    def _pause(self, most: float) -> None:
        time.sleep(self._chance.uniform(0, most))

    def _kill(self) -> str:
        self._chance.choice(self.services).kill()
        return "kill a service"

    def _sleep(self) -> str:
        """Stop one; sometimes for longer than its lease."""
        pids = [service.pid for service in self.services if service.alive()]
        if self._chance.random() < 0.3 or not pids:
            pids = [self.broker.pid]
        pid = self._chance.choice(pids)
        os.kill(pid, signal.SIGSTOP)
        self._pause(3 * SOON)
        os.kill(pid, signal.SIGCONT)
        return "pause the broker" if pid == self.broker.pid else "pause a service"

    def _kill_broker(self) -> str:
        self._restart_broker()
        return "kill the broker"

    def _kill_broker_in_commit(self) -> str:
        return self._kill_broker()

    def _kill_all(self) -> str:
        """Kill the broker, and who publishes, within the same moment."""
        victims: list[Any] = [*self.services, self.broker]
        self._chance.shuffle(victims)
        for victim in victims[: self._chance.choice((2, 3))]:
            victim.kill()
            self._pause(0.1)
        self._restart_broker()
        return "kill several"

    def _restart_broker(self) -> None:
        self.broker.kill()
        for service in self.services:
            if not service.alive():
                service.start()
        self.broker.start()
        if self._chance.random() < 0.5:
            self.heal()  # else later: an operator is not always there

    def settle(self) -> None:
        """Let all of them run."""
        for service in self.services:
            if not service.alive():
                service.start()

    def heal(self) -> None:
        """Do what an operator does, where a broker that was killed needs one."""

    def seen(self) -> list[Any]:
        """Return what readers have."""
        return list(self.broker.read(self.topic))


class KafkaScene(Scene):
    """One whose broker can lose the end of a transaction."""

    broker: Broker

    def _kill_broker_in_commit(self) -> str:
        """Kill it between what it has decided and the markers that say so."""
        end = time.monotonic() + SOON
        while time.monotonic() < end:
            with contextlib.suppress(AssertionError, OSError):
                if any(
                    wire.ended(self.broker.address, name).state == "PrepareCommit"
                    for name in self._position_topics()
                ):
                    break
        self._restart_broker()
        return "kill the broker in a commit"

    def heal(self) -> None:
        """End what the broker has lost the end of: a single node that is killed may.

        By a marker that commits, which no operator can write; or, where the position
        is hidden too, as `docs/kafka.md` says.
        """
        for position_topic in self._position_topics():
            with contextlib.suppress(AssertionError, OSError):
                self._heal(position_topic)

    def _position_topics(self) -> list[str]:
        if not self._known:
            with contextlib.suppress(KafkaException):
                topics = self.broker.admin.list_topics(timeout=ANSWERED).topics
                self._known = [name for name in topics if name.startswith("tpc-")]
        return self._known

    def _heal(self, position_topic: str) -> None:
        address = self.broker.address
        places = [(self.topic, p) for p in range(3)] + [(position_topic, 0)]
        before = wire.ended(address, position_topic)
        left = {
            place: [
                producer
                for producer in wire.open_in(address, *place)
                if producer.producer == before.producer
            ]
            for place in places
        }
        is_over = before.state in ("CompleteCommit", "CompleteAbort", "Empty")
        if not (any(left.values()) and is_over):
            return
        if left[position_topic, 0]:
            commit = before.state == "CompleteCommit" and self._chance.random() < 0.5
        else:
            commit = before.state != "CompleteAbort"  # its position can be seen
        if wire.ended(address, position_topic) != before:
            return
        for place, producers in left.items():  # the position's is the last one
            for producer in producers:
                wire.write_marker(address, *place, producer, commit=commit)
                self.healed["commit" if commit else "abort"] += 1
        self._tell(f"markers were lost, commit={commit}: {left}, {before}")


class ActiveMQScene(Scene):
    """One whose topic is a queue: what was read is gone there."""

    broker: activemq.Broker

    def seen(self) -> list[Any]:
        """Return what was ever there."""
        return self.broker.taken(self.topic)


def judge(seen: list[Any], ledger: list[tuple[str, int]]) -> list[str]:
    """Say what is lost, doubled, foreign or out of order; nothing is good."""
    found = [(o.headers["tpc-transaction"], json.loads(o.value)["id"]) for o in seen]
    counts, wanted = Counter(found), Counter(ledger)
    faults = [f"lost: {one}" for one in wanted - counts]
    faults += [f"doubled or foreign: {one}" for one in counts - wanted]
    orders: dict[tuple[int, str], list[tuple[int, int]]] = defaultdict(list)
    for (transaction, id_), one in zip(found, seen, strict=True):
        application, batch, _ = transaction.split(".")
        orders[one.partition, application].append((int(batch), id_))
    faults += [f"order: {where}" for where, o in orders.items() if o != sorted(o)]
    keys = Counter(one.headers["tpc-key"] for one in seen)
    return faults + [f"key: {key}" for key, count in keys.items() if count > 1]


def run(rounds: int, seed: int, folder: Path, broker: Any, tell: Tell) -> list[str]:
    """Kill for so many rounds; return what is wrong then."""
    tell(f"seed {seed}")
    chance = random.Random(seed)
    kind = KafkaScene if isinstance(broker, Broker) else ActiveMQScene
    scene = kind(folder, broker, chance, tell)
    coordinator = Coordinator(scene.ports, random.Random(seed + 1))
    scene.settle()
    with ThreadPoolExecutor() as pool, _ending(coordinator, scene):
        work = pool.submit(coordinator.run)
        until(lambda: coordinator.committed or work.done())
        for _ in range(rounds):
            scene.stir()
            if work.done():
                break
        scene.settle()
        coordinator.is_over.set()
        work.result(AT_LAST)
        faults = _settled(scene, coordinator)
    tell(
        f"{coordinator.committed} transactions committed, {coordinator.aborted} "
        f"aborted, {len(coordinator.ledger)} records; markers that were lost: "
        f"{dict(scene.healed)}; {dict(scene.deeds)}"
    )
    return faults


def _settled(scene: Scene, coordinator: Coordinator) -> list[str]:
    """Wait until the topic holds what the ledger does; say what is wrong at last."""
    end = time.monotonic() + AT_LAST
    while True:
        scene.heal()
        faults = judge(scene.seen(), coordinator.ledger)
        # What is lost may still come; nothing else may ever be.
        if time.monotonic() > end or not faults or not faults[0].startswith("lost"):
            return faults
        time.sleep(PAUSE)


@contextlib.contextmanager
def _ending(coordinator: Coordinator, scene: Scene) -> Iterator[None]:
    try:
        yield
    finally:
        coordinator.is_over.set()
        for service in scene.services:
            service.kill()


def main() -> int:
    """Run what the command line asks for; return the exit code."""
    parser = argparse.ArgumentParser(prog="python -m brokers.kills")
    parser.add_argument("--broker", choices=("kafka", "activemq"), default="kafka")
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32))
    chosen = parser.parse_args()
    started = time.monotonic()

    def tell(line: str) -> None:
        sys.stdout.write(f"{time.monotonic() - started:6.1f} s  {line}\n")
        sys.stdout.flush()

    folder = Path(tempfile.mkdtemp(prefix="tpc-kills-"))
    tell(f"folder {folder}")
    (folder / "broker").mkdir()
    start: Any = running if chosen.broker == "kafka" else activemq.running
    with start(folder / "broker") as broker:
        faults = run(chosen.rounds, chosen.seed, folder, broker, tell)
    for fault in faults[:50]:
        tell(fault)
    tell(f"{len(faults)} faults")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
