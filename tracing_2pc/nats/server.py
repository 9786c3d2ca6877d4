"""A participant's application, asked over NATS."""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import os
import re
import secrets
import signal
import threading
from collections.abc import Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, Final, NamedTuple

from nats import errors
from nats.aio.client import Client
from nats.aio.msg import Msg

from tracing_2pc.core.access import TokenGate
from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.settings import read_secret
from tracing_2pc.core.states import Refusal
from tracing_2pc.nats import frames
from tracing_2pc.nats.connection import CREDENTIALS, Place, connect, hang_up
from tracing_2pc.nats.frames import ForgedError, Seal
from tracing_2pc.nats.upload import Upload
from tracing_2pc.wire.bridge import (
    PARTICIPANT,
    Answered,
    ask_application,
    start_sending,
)
from tracing_2pc.wire.error_responses import PROBLEM, Problem, problem_of

GRACE: Final = 5.0
"""Seconds in which what has begun is answered, once a server is to end."""

_OPEN: Final = 256
"""Exchanges of one instance at a time; who asks for more is told *not now*."""

_UNUSED: Final = 30.0
"""Seconds after which an offer that nobody took up is forgotten."""

_LAST_OFFERS: Final = 1.0
"""The same, once a server is to end."""

_AGAIN: Final = 1.0
"""Seconds between two tries to connect."""

_CONNECT: Final = 5
"""Seconds that one try may take."""

_ROUTES: Final = re.compile(
    r"GET /(transactions(/[^/?]+)?|outbox|whoami|health/(live|ready)|metrics)(\?.*)?"
    r"|POST /(prepare|commit|abort|resolve|outbox/(again|drop))"
)
"""What is asked here. The application may have other routes, for other callers."""

_HIDDEN: Final = frozenset({"authorization", "forwarded", "via", "x-real-ip"})
"""Headers that mean something over HTTP, and nothing here."""

_QUESTION: Final = 1 << 10
"""Bytes of a question to the name, at most; of ours fewer than 200."""

_WORD: Final = 64
"""Characters of what a question has: a random number, a key's name."""

_SUBJECT: Final = 255
"""Characters of a subject that is answered to."""

logger = logging.getLogger(__name__)


def serve_nats(application: Any, url: str, *, threads: int = 8) -> None:
    """Serve a participant over NATS until SIGTERM; then answer running requests.

    They have five seconds. The resource in `application.extensions["resource"]` is
    closed at the end. Arguments and errors are those of `NatsServer`.
    """
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: ended.set())
    with NatsServer(application, url, threads=threads):
        ended.wait()
    resource = getattr(application, "extensions", {}).get("resource")
    if resource is not None:
        resource.close()


class NatsServer:
    """One instance of a participant: any number of them may run, on one database.

    It serves as a context. It connects again for as long as that lasts; at its end
    running requests are answered, if that takes no more than `GRACE`. A request that
    was cut off with a connection is sent again by its client, as over HTTP. An upload
    that was cut is never prepared.

    Args:
        application: a Flask application with a `participant_blueprint`, with tokens.
        url: `nats://host:4222/ledger`, or `nats+tls://…`, as clients have it.
        threads: requests that are worked on at a time.

    Raises:
        ConfigurationError: a URL that is none, credentials that cannot be read, an
            application without a participant, or one with `insecure=True`: NATS does
            not show where a caller is.
    """

    def __init__(self, application: Any, url: str, *, threads: int = 8) -> None:
        self._place = Place(url.rstrip("/"))
        self._application = application
        participant: Any = getattr(application, "extensions", {}).get(PARTICIPANT)
        self._participant = participant
        if self._participant is None:
            raise ConfigurationError("give a Flask application with a participant")
        gate = self._participant.gate
        if not isinstance(gate, TokenGate):
            raise ConfigurationError(
                f"{url}: insecure=True answers this machine only, and NATS does not "
                "show where a caller is: run `tracing-2pc init` and use its tokens"
            )
        digests = gate.digests
        keys = {digest: frames.key_of(digest) for digest in digests}
        self._callers = {frames.name_of(keys[d]): (d, keys[d]) for d in digests}
        self._credentials = os.environ.get(CREDENTIALS) or None
        if self._credentials is not None:
            read_secret(self._credentials, CREDENTIALS)
        self._pool = ThreadPoolExecutor(threads, "tpc-nats")
        self._exchanges: dict[str, _Exchange] = {}
        self._journal: str | None = None
        self._waiting = 0  # questions, until the journal is known
        self._stopping = threading.Event()
        self._wake: Future[None] = Future()
        self._complaint = ""
        self._connection: Client | None = None

    @property
    def url(self) -> str:
        """Where it is reached."""
        return self._place.url

    @property
    def is_connected(self) -> bool:
        """Whether requests come in now."""
        return self._connection is not None and self._connection.is_connected

    def __enter__(self) -> NatsServer:
        start_sending(self._application)
        self._thread = threading.Thread(target=asyncio.run, args=(self._run(),))
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stopping.set()
        self._wake.set_result(None)
        self._thread.join()
        self._pool.shutdown()

    async def _run(self) -> None:
        self._loop = asyncio.get_running_loop()
        stopped: asyncio.Future[Any] = asyncio.wrap_future(self._wake)
        while not self._stopping.is_set():
            closed = asyncio.Event()
            try:
                connection = await self._connect(closed)
            except Exception as error:  # noqa: BLE001 - whatever it is, it is tried again
                self._complain_once(f"{type(error).__name__}: {error}")
                await asyncio.wait({stopped}, timeout=_AGAIN)
                continue
            ended: asyncio.Future[Any] = asyncio.ensure_future(closed.wait())
            await asyncio.wait({stopped, ended}, return_when=asyncio.FIRST_COMPLETED)
            ended.cancel()
            if self._stopping.is_set() and not closed.is_set():
                await self._finish(connection)
            for exchange in self._exchanges.values():
                exchange.cut()
            self._exchanges.clear()

    async def _connect(self, closed: asyncio.Event) -> Client:
        async def close() -> None:
            closed.set()

        async def complain(error: Exception) -> None:
            if self.is_connected:
                self._complain_once(f"{type(error).__name__}: {error}")

        connection = await connect(
            *(self._place, self._credentials, _CONNECT), closed=close, trouble=complain
        )
        place, own = self._place, secrets.token_hex(12)
        self._subject = f"{place.subject}.{own}"
        try:
            await connection.subscribe(f"{self._subject}.*", cb=self._take)
            self._questions = await connection.subscribe(
                place.subject, queue=place.name, cb=self._offer
            )
            await connection.flush(_CONNECT)
        except BaseException:
            await hang_up(connection)
            raise
        self._connection = connection
        logger.info("serving: url=%s", place.url)
        self._complaint = ""
        return connection

    def _complain_once(self, complaint: str) -> None:
        if complaint != self._complaint:
            self._complaint = complaint
            logger.warning("not served: url=%s: %s", self._place.url, complaint)

    async def _finish(self, connection: Client) -> None:
        """Take no more questions; answer what has begun."""
        with contextlib.suppress(errors.Error):
            await self._questions.unsubscribe()
            await connection.flush(_CONNECT)
        until = self._loop.time() + GRACE
        while self._exchanges and self._loop.time() < until:
            self._forget_unused(_LAST_OFFERS)
            await asyncio.sleep(0.05)
        with contextlib.suppress(errors.Error):
            await connection.flush(_CONNECT)
        await hang_up(connection)

    def _forget_unused(self, seconds: float) -> None:
        # The oldest are first: what has begun is not an offer any more.
        old = self._loop.time() - seconds
        for word, exchange in list(self._exchanges.items()):
            if exchange.begun:
                continue
            if exchange.since > old:
                break
            del self._exchanges[word]

    # --- the question to the name -----------------------------------------------------

    async def _offer(self, message: Msg) -> None:
        """Tell where this instance is to be asked, and which database it has."""
        # Rejected whole before anything of it is kept.
        if len(message.data) > _QUESTION or not 0 < len(message.reply) <= _SUBJECT:
            return
        try:
            question, _ = Seal(None, "").read(message.data)
        except ForgedError:
            return
        question = {"key": "", **question}
        if not frames.fits(question, nonce=str, key=str):
            return
        nonce, name = question["nonce"], question["key"]
        if max(len(nonce), len(name)) > _WORD:
            return
        known = not name or name in self._callers
        digest, key = self._callers[name] if name and known else (None, None)
        seal = frames.seal_of_offer(key, nonce)
        if not known:
            error = RefusalError(Refusal.NOT_ADMITTED, "this token is not known here")
            await self._send(message.reply, Seal(None, ""), _refusal(error))
            return
        self._forget_unused(_UNUSED)
        is_full = len(self._exchanges) + self._waiting >= _OPEN
        if is_full and not (name and self._drop_stranger()):
            error = RefusalError(Refusal.NOT_NOW, "too many requests: ask again")
            await self._send(message.reply, seal, _refusal(error))
            return
        exchange = _Exchange(key, digest, nonce, message.reply, self._loop.time())
        if self._journal is not None and question.get("look"):
            await self._send(exchange.reply, seal, {"journal": self._journal})
            return
        if self._journal is not None:
            await self._promise(exchange, seal)
            return
        self._waiting += 1
        asked = self._loop.run_in_executor(self._pool, self._read_journal)

        async def promise() -> None:
            self._waiting -= 1
            await self._promise(exchange, seal)

        asked.add_done_callback(lambda _: asyncio.ensure_future(promise()))

    def _drop_stranger(self) -> bool:
        """Forget an offer to a caller without a token; return whether there was one."""
        for word, exchange in self._exchanges.items():
            if exchange.digest is None and not exchange.begun:
                del self._exchanges[word]
                return True
        return False

    async def _promise(self, exchange: _Exchange, seal: Seal) -> None:
        if self._journal is None:
            detail = "the participant's database is not ready: ask again"
            error = RefusalError(Refusal.NOT_NOW, detail)
            await self._send(exchange.reply, seal, _refusal(error))
            return
        self._exchanges[exchange.challenge] = exchange
        subject = f"{self._subject}.{exchange.challenge}"
        offer = {"challenge": exchange.challenge, "subject": subject}
        await self._send(exchange.reply, seal, offer | {"journal": self._journal})

    def _read_journal(self) -> None:
        try:
            self._journal = self._participant.resource.identity(None).journal
        except Exception as error:  # noqa: BLE001 - who asks is told in one way
            problem_of(error)  # which logs it

    # --- a request --------------------------------------------------------------------

    async def _take(self, message: Msg) -> None:
        """Take the next frame of a request."""
        word = message.subject.rpartition(".")[2]
        if (exchange := self._exchanges.get(word)) is None:
            return
        try:
            head, data = exchange.request.read(message.data)
            if head.get("n") != exchange.received:
                return
            exchange.received += 1
            if exchange.received == 1:
                self._begin(word, exchange, head)
            exchange.body.feed(data)
        except ForgedError:
            logger.debug("not a frame")

    def _begin(self, word: str, exchange: _Exchange, head: Mapping[str, Any]) -> None:
        # Read whole before it counts as begun: what is never answered stays for ever.
        if not frames.fits(head, method=str, path=str, headers=dict, length=int):
            raise ForgedError
        headers = {n: str(v) for n, v in head["headers"].items()}
        request = _Request(
            *(head["method"], head["path"]),
            {n: v for n, v in headers.items() if n.lower() not in _HIDDEN},
            max(head["length"], 0),
        )
        read = _counted(lambda n: self._later(exchange, {"read": n}))
        # Nothing is kept of a body whose caller has no token.
        most = frames.WINDOW + 1 if exchange.digest else 0
        exchange.body = Upload(request.length, most, read)
        exchange.begun = True
        self._pool.submit(self._work, word, exchange, request)

    def _work(self, word: str, exchange: _Exchange, request: _Request) -> None:
        """Have a request answered, in a thread."""
        try:
            if not _ROUTES.fullmatch(f"{request.method} {request.path}"):
                raise RefusalError(Refusal.UNKNOWN, "this is no route of a participant")
            answered = ask_application(
                *(self._application, request.method, request.path, request.headers),
                exchange.body,  # type: ignore[arg-type]
                request.length,
                scheme=self._place.url.partition(":")[0],
                digest=exchange.digest,
            )
        except Exception as error:  # noqa: BLE001 - as a web server answers it
            answered = _answered(problem_of(error))
        asyncio.run_coroutine_threadsafe(
            self._answer(word, exchange, answered), self._loop
        )

    async def _answer(self, word: str, exchange: _Exchange, answered: Answered) -> None:
        """Send an answer, in frames, and forget the exchange."""
        if exchange.is_cut or self._connection is None:
            return  # what a cut body is answered is no word about the transaction
        status, kind, body = answered
        size = max(1, min(frames.CHUNK, int(self._connection.max_payload) - 1024))
        head: dict[str, Any] = {"status": status, "type": kind, "length": len(body)}
        for begin in range(0, max(len(body), 1), size):
            await self._tell(exchange, head, body[begin : begin + size])
            head = {}
        self._exchanges.pop(word, None)

    def _later(self, exchange: _Exchange, head: Mapping[str, Any]) -> None:
        asyncio.run_coroutine_threadsafe(self._tell(exchange, head), self._loop)

    async def _tell(
        self, exchange: _Exchange, head: Mapping[str, Any], data: bytes = b""
    ) -> None:
        head = {"n": exchange.sent, **head}
        exchange.sent += 1
        await self._send(exchange.reply, exchange.answer, head, data)

    async def _send(
        self, subject: str, seal: Seal, head: Mapping[str, Any], data: bytes = b""
    ) -> None:
        if self._connection is None:
            return
        with contextlib.suppress(errors.Error, OSError):  # then its client is told
            await self._connection.publish(subject, seal.write(head, data))


class _Request(NamedTuple):
    """The head of a request's first frame."""

    method: str
    path: str
    headers: Mapping[str, str]
    length: int


class _Exchange:
    """The state of a request, from the offer to its answer."""

    def __init__(
        self,
        key: bytes | None,
        digest: bytes | None,
        nonce: str,
        reply: str,
        since: float,
    ) -> None:
        self.challenge = secrets.token_hex(16)
        self.digest = digest
        self.reply = reply
        self.since = since
        self.request = frames.seal_of_request(key, nonce, self.challenge)
        self.answer = frames.seal_of_answer(key, nonce, self.challenge)
        self.received = self.sent = 0
        self.begun = self.is_cut = False
        self.body: Upload = Upload(0, 0, lambda: None)

    def cut(self) -> None:
        """Let the body end where it is: no more of it will come."""
        self.is_cut = True
        self.body.shutdown()


def _counted(tell: Any) -> Any:
    """Return what calls `tell` with how often it was called."""
    count = 0

    def call() -> None:
        nonlocal count
        count += 1
        tell(count)

    return call


def _answered(problem: Problem) -> Answered:
    text = json.dumps(problem.document()).encode()
    return Answered(problem.status, PROBLEM, text)


def _refusal(error: RefusalError) -> dict[str, Any]:
    """Return the head of a refusal in the place of an offer."""
    status, kind, text = _answered(problem_of(error))
    return {"status": status, "type": kind, "text": text.decode()}
