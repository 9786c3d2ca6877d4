"""This process's connections as a client: a loop in a thread, a link to a server."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import threading
from collections.abc import Coroutine, Iterator
from typing import Any, Final, TypeVar

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from tracing_2pc.core.forks import after_fork
from tracing_2pc.nats.connection import Place, connect, hang_up
from tracing_2pc.nats.frames import ForgedError, Seal
from tracing_2pc.wire.contract import NoAnswerError, Silence

T = TypeVar("T")

_STILL: Final = 1.0
"""Seconds of silence after which is looked whether an instance is still there."""

_closing: Final[set[asyncio.Future[None]]] = set()
"""Links that are being closed: asyncio itself keeps no task alive."""

_NOBODY: Final = "503"
"""What a NATS server says where nobody reads a subject that was asked."""


class NobodyError(Exception):
    """The subject has no subscriber, so the message was not received."""


class Link:
    """A connection, until it fails; a failure ends every wait on it at once."""

    def __init__(self) -> None:
        self._prefix = f"_INBOX.{secrets.token_hex(12)}"
        self._talks: dict[str, Talk] = {}
        self._connection: Client
        self.is_open = False
        self.complaint = ""

    async def open(self, place: Place, credentials: str | None, timeout: float) -> None:
        """Connect, and listen for answers before anything is asked."""
        self._connection = await connect(
            place, credentials, timeout, closed=self._end, trouble=self._complain
        )
        try:
            await self._connection.subscribe(f"{self._prefix}.*", cb=self._receive)
            await asyncio.wait_for(self._connection.flush(), timeout)
        except BaseException:
            await hang_up(self._connection)
            raise
        self.is_open = self._connection.is_connected

    async def close(self) -> None:
        """Hang up."""
        self.is_open = False
        await hang_up(self._connection)

    def retire(self) -> None:
        """Give new exchanges another link: this one may be dead.

        A connection that was cut silently looks like a slow participant. Exchanges that
        wait on it keep waiting; it is closed with the last of them.
        """
        self.is_open = False

    @property
    def max_payload(self) -> int:
        """Bytes of a message that the NATS server takes."""
        return int(self._connection.max_payload)

    @contextlib.contextmanager
    def talk(self) -> Iterator[Talk]:
        """Open an inbox of its own for one exchange."""
        word = secrets.token_hex(12)
        talk = Talk(self, f"{self._prefix}.{word}")
        self._talks[word] = talk
        try:
            yield talk
        finally:
            del self._talks[word]
            if not (self.is_open or self._talks):
                closing = asyncio.ensure_future(self.close())
                _closing.add(closing)
                closing.add_done_callback(_closing.discard)

    async def send(self, subject: str, frame: bytes, reply: str) -> None:
        """Send one message; answers to it come to `reply`."""
        try:
            await self._connection.publish(subject, frame, reply)
        except errors.Error as error:
            self.retire()
            raise NoAnswerError(Silence.CUT, type(error).__name__) from error

    async def _receive(self, message: Msg) -> None:
        if talk := self._talks.get(message.subject.rpartition(".")[2]):
            talk.arrived.put_nowait(message)

    async def _complain(self, error: Exception) -> None:
        self.complaint = str(error)

    async def _end(self) -> None:
        self.is_open = False
        for talk in self._talks.values():
            talk.arrived.put_nowait(None)


class Talk:
    """The frames that arrive at one inbox, for one exchange."""

    def __init__(self, link: Link, inbox: str) -> None:
        self._link = link
        self.inbox = inbox
        self.instance: str | None = None  # the subject of who has begun
        self.arrived: asyncio.Queue[Msg | None] = asyncio.Queue()
        self.forged = 0

    async def read(self, *seals: Seal, until: float) -> tuple[Seal, Any, bytes]:
        """Return the next frame that fits a seal: the seal, its head, its data.

        A frame that fits none is counted, and dropped.

        Raises:
            NobodyError: the subject has no subscriber.
            NoAnswerError: the connection has ended, or `until` has come by the loop's
                clock.
        """
        while True:
            message = await self._next(until)
            if not message.data and (message.headers or {}).get("Status") == _NOBODY:
                raise NobodyError
            for seal in seals:
                with contextlib.suppress(ForgedError):
                    return (seal, *seal.read(message.data))
            self.forged += 1

    async def _next(self, until: float) -> Msg:
        clock = asyncio.get_running_loop().time
        while self.arrived.empty():
            wait = min(until - clock(), _STILL)
            try:
                message = await asyncio.wait_for(self.arrived.get(), max(wait, 0))
                break
            except asyncio.TimeoutError:
                if clock() >= until:
                    self._link.retire()
                    raise NoAnswerError(Silence.LATE, self._describe()) from None
            if self.instance is not None:  # of one that is gone, its server says so
                await self._link.send(self.instance, b"", self.inbox)
        else:
            message = self.arrived.get_nowait()
        if message is None:
            raise NoAnswerError(Silence.CUT, "the connection to the NATS server ended")
        return message

    def _describe(self) -> str:
        """Explain why no answer came."""
        if self.forged:
            return f"{self.forged} forged answers came: somebody else reads its subject"
        return self._link.complaint or "it is slow, or gone"


class _Loop:
    """The loop of this process, and its links; a child of a fork makes its own."""

    def __init__(self) -> None:
        self._reset()
        after_fork(self._reset)

    def _reset(self) -> None:
        self._lock = threading.Lock()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._links: dict[tuple[str, str | None], asyncio.Task[Link]] = {}
        _closing.clear()

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Do something in the loop, and wait for it."""
        with self._lock:
            if self._loop is None:
                self._loop = asyncio.new_event_loop()
                forever = self._loop.run_forever
                self._thread = threading.Thread(target=forever, daemon=True)
                self._thread.start()
        running = asyncio.run_coroutine_threadsafe(work, self._loop)
        try:
            return running.result()
        except BaseException:  # who waits was interrupted: nobody wants the answer
            running.cancel()
            raise

    async def link(self, place: Place, credentials: str | None, timeout: float) -> Link:
        """Return the link to a server; the first caller connects."""
        key = place.server, credentials
        task = self._links.get(key)
        if task is None or (task.done() and not _is_open(task)):
            task = asyncio.ensure_future(_open(place, credentials, timeout))
            self._links[key] = task
        return await asyncio.shield(task)

    def close(self) -> None:
        """Close all connections, and end the thread."""
        with self._lock:
            loop, links = self._loop, self._links
            self._loop, self._links = None, {}
        if loop is None:
            return

        async def hang_up() -> None:
            for task in links.values():
                if task.done() and _is_open(task):
                    await task.result().close()
            await asyncio.gather(*_closing)
            await loop.shutdown_default_executor()

        asyncio.run_coroutine_threadsafe(hang_up(), loop).result()
        loop.call_soon_threadsafe(loop.stop)
        self._thread.join()
        loop.close()


async def _open(place: Place, credentials: str | None, timeout: float) -> Link:
    link = Link()
    await link.open(place, credentials, timeout)
    return link


def _is_open(task: asyncio.Task[Link]) -> bool:
    return not (task.cancelled() or task.exception()) and task.result().is_open


LOOP: Final = _Loop()
