"""A Redis stream as an outbox's relay: one MULTI/EXEC for each transaction of ours."""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import redis

from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.forks import after_fork
from tracing_2pc.outbox.choosing import (
    Choice,
    ChooseText,
    conflict,
    longest_column,
    size_of,
)
from tracing_2pc.outbox.records import Record
from tracing_2pc.outbox.relay import Message, Position, Publication, Readers


class FencedError(TwoPhaseError):
    """Another process has taken over."""


class RedisStreamRelay:
    """Publishes each transaction to a Redis stream whole, once, in order.

    Messages and the position (`tpc:<journal>`) change in one MULTI/EXEC. It WATCHes the
    key that a successor writes first, so that a process that slept changes nothing.
    Redis must flush each write (`appendonly yes`, `appendfsync always`): else a crash
    takes back what was acknowledged, and the relay stops for a person.

    Args:
        url: as `redis://host:6379/0`.
        stream: where the messages go; or a function of the record.
        key: a column, or a function of the record; a field of the message.
        headers: columns that become fields of the message.
        max_bytes: of a message; a longer one is a vote to abort.
        timeout: seconds until a call of Redis is no answer.
    """

    def __init__(
        self,
        url: str,
        *,
        stream: str | ChooseText,
        key: str | ChooseText | None = None,
        headers: Sequence[str] = (),
        max_bytes: int = 100_000_000,
        timeout: float = 10.0,
    ) -> None:
        self._options: dict[str, Any] = {"url": url, "socket_timeout": timeout}
        self._choice = Choice(stream, key, headers, "stream")
        self._max_bytes = max_bytes
        self._name = self._epoch = ""
        self._number = 0
        self.let_go()
        after_fork(self.let_go)

    def open(self) -> None:
        redis.Redis.from_url(**self._options).close()  # a URL that cannot be read

    def identify(self, *, make: bool = False) -> str:
        return ""  # Redis has no name that outlives a restart

    def check(self, records: Iterable[Record]) -> Iterator[Message]:
        for row, record in enumerate(records):
            message = self._choice.message(record, row)
            if (size := size_of(message)) > self._max_bytes:
                raise conflict(
                    f"record {row}, column {longest_column(record)}: the record takes "
                    f"{size} bytes, {self._max_bytes} are allowed: raise max_bytes="
                )
            yield message

    def take_over(self, journal: str, *, must_exist: bool = False) -> Position | None:
        self._name, self._epoch = f"tpc:{journal}", secrets.token_hex(8)
        self._redis().set(f"{self._name}:owner", self._epoch)  # fences the last one
        failpoint("relay.after_fence")
        text = self._redis().get(self._name)
        position = None if text is None else Position(*json.loads(text))
        self._number = position.number if position else 0
        return position

    def publish(self, publication: Publication) -> None:
        owner = f"{self._name}:owner"
        with self._redis().pipeline() as pipe:
            pipe.watch(owner)
            if pipe.get(owner) != self._epoch.encode():
                raise FencedError("another process has taken over")
            pipe.multi()
            for stream, key, value, headers in publication.messages:
                fields = {"value": value, **dict(headers)}
                pipe.xadd(stream, fields if key is None else fields | {"key": key})
                publication.keep()
            failpoint("relay.before_position")
            pipe.set(self._name, json.dumps(publication.position))
            failpoint("relay.before_commit")
            pipe.execute()  # WatchError: a successor has begun; nothing was written
        self._number = publication.position.number

    def expect(self, topics: Iterable[str]) -> None:
        """Do nothing: what is there, readers see."""

    def readers(self) -> Readers:
        return Readers(self._number)

    def let_go(self) -> None:
        self._client: Any = None

    def unfit(self, journal: str) -> Iterable[tuple[str, str]]:
        for name, value in (("appendonly", "yes"), ("appendfsync", "always")):
            if self._redis().config_get(name).get(name) != value:
                what = "a crash of Redis takes back what is published"
                yield what, f"set {name} {value}"

    def ends(self) -> str:
        return f"key {self._name} has {self._redis().get(self._name)!r}"

    def close(self) -> None:
        self.let_go()

    def _redis(self) -> Any:
        if self._client is None:
            self._client = redis.Redis.from_url(**self._options)
        return self._client
