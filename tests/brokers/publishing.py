"""Processes that publish what an outbox holds, to either broker; and what is there."""

from __future__ import annotations

import collections
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

from support.kinds import sqlite_url
from support.participant import World
from support.waiting import AT_LAST, until

from tracing_2pc.outbox import Outbox
from tracing_2pc.outbox.publisher import Publisher
from tracing_2pc.outbox.relay import Relay


class Broker(Protocol):
    """What tests ask of a broker."""

    address: str

    def start(self) -> None: ...

    def kill(self) -> None: ...

    def topic(self) -> str: ...

    def read(self, topic: str) -> Sequence[Any]: ...


def outbox(url: str, relay: Relay) -> World:
    """An outbox; what publishes is a process of its own."""
    resource = Outbox(url, relay)
    resource.start = lambda: None  # type: ignore[method-assign]
    return World(resource, lambda: int(resource.gauges()["tpc.outbox.backlog"]))


def publishing(
    broker: Broker | str,
    topic: str,
    folder: Path,
    point: str = "",
    word: str = "KILL",
    *,
    forks: bool = False,
) -> subprocess.Popen[bytes]:
    """Start a process that publishes all there is, or is stopped at a point."""
    fired = folder / f"fired {len(list(folder.iterdir()))}"
    armed = {
        "TPC_FAILPOINT": point,
        "TPC_FAILPOINT_FILE": str(fired),
        "TPC_FAILPOINT_SIGNAL": word,
    }
    address = broker if isinstance(broker, str) else broker.address
    about = [sqlite_url(folder), address, topic]
    return subprocess.Popen(
        [sys.executable, "-m", "brokers.publish", *about, *["fork"] * forks],
        stdin=subprocess.PIPE if forks else None,
        stdout=subprocess.PIPE if forks else None,
        env=os.environ | (armed if point else {}),
        cwd=Path(__file__).parents[1],
        start_new_session=True,
    )


def publish(broker: Broker | str, topic: str, folder: Path) -> None:
    assert publishing(broker, topic, folder).wait(AT_LAST) == 0


def asleep(
    broker: Broker, topic: str, folder: Path, point: str
) -> subprocess.Popen[bytes]:
    """Start a process that publishes, and return when it has stopped at a point."""
    process = publishing(broker, topic, folder, point, "STOP")
    os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
    return process


def drain(world: World, process: Publisher) -> None:
    """Take turns until nothing is left to publish."""
    until(lambda: (process.turn(), world.visible())[1] == 0)


def assert_once(seen: Sequence[Any], *batches: int) -> None:
    """Each record once; and each partition has one publication after the other."""
    keys = collections.Counter(one.headers["tpc-key"] for one in seen)
    assert keys == {f"orders.{b}.1.0.1.{row}": 1 for b in batches for row in range(3)}
    for number in {one.partition for one in seen}:
        order = [o.headers["tpc-transaction"] for o in seen if o.partition == number]
        assert order == sorted(order)
