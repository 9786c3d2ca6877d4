"""A real Redis, which flushes each write, and is killed and started again."""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import Final

import redis

from participants.processes import free_ports
from support.brokers import Node, Seen
from support.programs import left_out
from support.waiting import until

_UNPACKED: Final = Path(__file__).parents[2] / ".cache" / "redis"


class Broker(Node):
    """One server, in a folder."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        (self._port,) = free_ports(1)
        program = shutil.which("redis-server", path=f"{_UNPACKED}:/usr/bin")
        if program is None:
            left_out("there is no Redis: `tools/redis` unpacks one")
        self._log = folder / "log"
        options = {
            "bind": "127.0.0.1",
            "port": self._port,
            "dir": folder,
            "appendonly": "yes",
            "appendfsync": "always",
        }
        words = [(f"--{name}", str(value)) for name, value in options.items()]
        self._command = [program, *itertools.chain(*words)]
        self.url = f"redis://127.0.0.1:{self._port}/0"
        self.address = f"redis:{self.url}"
        self._names = (f"stream{n}" for n in itertools.count(1))

    def start(self) -> None:
        self._spawn(self._command, self._log)
        until(self._answers)

    def _answers(self) -> bool:
        self._assert_alive(self._log)
        try:
            with self.client() as client:
                return bool(client.ping())
        except redis.RedisError:
            return False

    def client(self) -> redis.Redis:
        """Connect somebody else's client."""
        return redis.Redis.from_url(self.url)

    def topic(self) -> str:
        """Name a stream of this test's own."""
        return next(self._names)

    def read(self, topic: str) -> list[Seen]:
        """Read a stream from its beginning."""
        with self.client() as client:
            return [_seen(fields) for _, fields in client.xrange(topic)]


def _seen(fields: dict[bytes, bytes]) -> Seen:
    named = {name.decode(): value for name, value in fields.items()}
    key, value = named.pop("key", None), named.pop("value")
    return Seen(0, key, value, {name: text.decode() for name, text in named.items()})
