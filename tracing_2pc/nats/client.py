"""One participant over NATS."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import IO, Any, ClassVar, Final

from nats import errors

from tracing_2pc.core.access import digest_of
from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.model import Identity, ParticipantDescription
from tracing_2pc.core.states import Refusal
from tracing_2pc.nats import frames
from tracing_2pc.nats.connection import CREDENTIALS, PORT, NotAdmittedError, Place
from tracing_2pc.nats.frames import Seal
from tracing_2pc.nats.link import LOOP, Link, NobodyError, Talk
from tracing_2pc.wire.client import WireParticipant
from tracing_2pc.wire.contract import NoAnswerError, Silence
from tracing_2pc.wire.error_responses import PROBLEM, problem_of, refusal_of

_ASKED: Final = 64
"""Times that the name is asked for, to see whether one database answers."""

_journals: Final[dict[str, str]] = {}
"""Which journal has answered first in this process, by URL."""

_Answer = tuple[int, str, bytes]


def _credentials() -> str | None:
    return os.environ.get(CREDENTIALS) or None


@dataclasses.dataclass(frozen=True)
class NatsParticipant(WireParticipant):
    """A participant at a NATS server: `nats://host:4222/ledger`.

    An exchange begins with a question to the name, which any instance answers: with a
    subject of its own, which the rest goes to. Nothing of the request is sent before an
    instance has shown that it knows our token, and which journal it has. So without a
    token only health is asked; anything else is a `ConfigurationError`.
    """

    default_ports: ClassVar[Mapping[str, int]] = {"nats": PORT, "nats+tls": PORT}

    # Reference to what the NATS server asks for; it goes to the tasks.
    credentials: str | None = dataclasses.field(default_factory=_credentials)

    def __post_init__(self) -> None:
        Place(self.url)

    def exchange(
        self,
        method: str,
        path: str,
        body: bytes | IO[bytes] | None,
        headers: Mapping[str, str],
        timeout: float,
        most: int,
    ) -> _Answer:
        sent = {name.lower(): value for name, value in headers.items()}
        token = sent.pop("authorization", "").removeprefix("Bearer ")
        key = frames.key_of(digest_of(token)) if token else None
        whole = body if isinstance(body, bytes) else b""
        length = int(sent.pop("content-length", len(whole)))
        head = {"method": method, "path": path, "headers": sent, "length": length}
        exchange = _Exchange(self, key, timeout, most)
        try:
            return LOOP.run(exchange.run(head, body))
        except NotAdmittedError as error:
            return _refused(Refusal.NOT_ADMITTED, str(error))

    def identity(self) -> Identity:
        """Also raises `ConfigurationError` where two databases answer to the name."""
        if conflict := self._two_databases():
            raise ConfigurationError(f"participant {self.name!r}: {conflict}")
        return super().identity()

    def describe(self) -> ParticipantDescription:
        description = super().describe()
        if description.unreachable is None and (conflict := self._two_databases()):
            return dataclasses.replace(description, unready=conflict)
        return description

    def _standing_headers(self) -> dict[str, str]:
        """Raise without a token: any subscriber could answer, and acknowledge."""
        if not self.token:
            raise ConfigurationError(
                f"participant {self.name!r}: nothing was sent to {self.url}: without a "
                "token anybody at the NATS server could answer it: set `token`"
            )
        return super()._standing_headers()

    def _two_databases(self) -> str | None:
        """Ask many times which journal answers; return a message if it varies."""
        try:
            token = self._standing_headers()["Authorization"]
        except ConfigurationError:
            return None
        digest = digest_of(token.removeprefix("Bearer "))
        exchange = _Exchange(self, frames.key_of(digest), self.timeout, 0)
        try:
            journals = LOOP.run(exchange.ask_journals())
        except (NoAnswerError, NotAdmittedError):
            return None
        return _two(self.url, journals) if len(journals) > 1 else None


class _Exchange:
    """One request, from the question to the name until its answer is whole."""

    def __init__(
        self, to: NatsParticipant, key: bytes | None, timeout: float, most: int
    ) -> None:
        self._place = Place(to.url)
        self._credentials = to.credentials
        self._key = key
        self._timeout = timeout
        self._most = most
        self._nonce = secrets.token_hex(16)

    async def run(self, head: dict[str, Any], body: Any) -> _Answer:
        link = await self._link()
        with link.talk() as talk:
            offer = await self._ask_name(link, talk, self._nonce)
            if "status" in offer:
                return offer["status"], offer["type"], offer["text"].encode()
            if self._key is not None:
                known = _journals.setdefault(self._place.url, offer["journal"])
                if known != offer["journal"]:
                    detail = _two(self._place.url, {known, offer["journal"]})
                    return _refused(Refusal.MISDIRECTED, detail)
            try:
                return await self._send(link, talk, offer, head, body)
            except NobodyError:
                detail = "the instance that had begun is gone"
                raise NoAnswerError(Silence.CUT, detail) from None

    async def ask_journals(self) -> set[str]:
        """Return the journals of all instances that answer now, as far as one sees."""
        link = await self._link()

        async def ask() -> str:
            nonce = secrets.token_hex(16)
            with link.talk() as talk:
                offer = await self._ask_name(link, talk, nonce, look=True)
                return str(offer.get("journal"))

        return set(await asyncio.gather(*(ask() for _ in range(_ASKED)))) - {"None"}

    async def _link(self) -> Link:
        """Return this process's link to the server; nothing has been sent before."""
        try:
            return await LOOP.link(self._place, self._credentials, self._timeout)
        except asyncio.TimeoutError as error:
            detail = "the NATS server does not answer"
            raise NoAnswerError(Silence.LATE, detail) from error
        except (OSError, errors.Error) as error:
            raise NoAnswerError(Silence.NOT_SENT, type(error).__name__) from error

    async def _ask_name(
        self, link: Link, talk: Talk, nonce: str, *, look: bool = False
    ) -> dict[str, Any]:
        """Return what an instance answers to the name; `look` asks for no more."""
        question: dict[str, Any] = {"nonce": nonce, "look": look}
        if self._key is not None:
            question["key"] = frames.name_of(self._key)
        frame = Seal(None, "").write(question)
        await link.send(self._place.subject, frame, talk.inbox)
        until = self._until()
        sealed, bare = frames.seal_of_offer(self._key, nonce), Seal(None, "")
        while True:
            try:
                seal, offer, _ = await talk.read(sealed, bare, until=until)
            except NobodyError:
                detail = f"nobody reads {self._place.subject}"
                raise NoAnswerError(Silence.NOT_SENT, detail) from None
            # Who does not know our token cannot seal. That is a refusal, and all that
            # may be believed without a seal: nothing takes it for an acknowledgement.
            if frames.fits(offer, status=int, type=str, text=str):
                refusal = refusal_of(offer["status"])
                if seal == sealed or refusal is Refusal.NOT_ADMITTED:
                    return dict(offer)
            elif seal == sealed and self._is_offer(offer, look=look):
                return dict(offer)
            talk.forged += 1

    def _is_offer(self, offer: Mapping[str, Any], *, look: bool) -> bool:
        if look:
            return frames.fits(offer, journal=str)
        if not frames.fits(offer, challenge=str, subject=str, journal=str):
            return False
        return str(offer["subject"]).startswith(f"{self._place.subject}.")

    async def _send(
        self,
        link: Link,
        talk: Talk,
        offer: Mapping[str, Any],
        head: dict[str, Any],
        body: Any,
    ) -> _Answer:
        challenge, subject = offer["challenge"], offer["subject"]
        talk.instance = subject
        out = frames.seal_of_request(self._key, self._nonce, challenge)
        reader = _Reader(self, talk, challenge)
        room = link.max_payload - len(json.dumps(head)) - 256
        size = max(min(frames.CHUNK, room), 1)
        number = 0
        try:
            async for piece in _pieces(body, head["length"], size):
                # One frame until somebody reads: bodies that wait there take little.
                window = frames.WINDOW if reader.acknowledged else 0
                while number - reader.acknowledged > window:
                    if answer := await reader.read():
                        return answer
                about = {"n": number, **(head if number == 0 else {})}
                await link.send(subject, out.write(about, piece), talk.inbox)
                number += 1
        except Exception:
            with contextlib.suppress(NoAnswerError):  # so that it need not wait
                await link.send(subject, out.write({"n": number}), talk.inbox)
            raise
        while True:
            if answer := await reader.read():
                return answer

    def _until(self) -> float:
        return asyncio.get_running_loop().time() + self._timeout


class _Reader:
    """Reads what an instance answers: acknowledgements of frames, then the answer."""

    def __init__(self, exchange: _Exchange, talk: Talk, challenge: str) -> None:
        self._exchange = exchange
        self._talk = talk
        key, nonce = exchange._key, exchange._nonce
        self._seal = frames.seal_of_answer(key, nonce, challenge)
        self._number = 0
        self.acknowledged = 0

    async def read(self) -> _Answer | None:
        """Wait for a frame; return the answer once it has begun, and is here whole."""
        head, data = await self._next(self._exchange._until())
        if frames.fits(head, read=int):
            self.acknowledged = head["read"]
            return None
        if not frames.fits(head, status=int, type=str, length=int):
            raise NoAnswerError(Silence.CUT, "its answer is none")
        length, content = head["length"], bytearray(data)
        if length > self._exchange._most:
            raise NoAnswerError(Silence.CUT, "its answer is too long")
        until = self._exchange._until()
        while len(content) < length:
            content += (await self._next(until))[1]
        return head["status"], head["type"], bytes(content)

    async def _next(self, until: float) -> tuple[dict[str, Any], bytes]:
        while True:
            _, head, data = await self._talk.read(self._seal, until=until)
            if head.get("n") == self._number:
                self._number += 1
                return head, data
            self._talk.forged += 1  # somebody repeats what was said


async def _pieces(body: Any, length: int, size: int) -> AsyncIterator[bytes]:
    """Yield a body in pieces, at least one; a stream is read beside the loop.

    An empty piece marks a stream that was shorter than its announced length.
    """
    if not hasattr(body, "read"):
        whole = body or b""
        for begin in range(0, max(len(whole), 1), size):
            yield whole[begin : begin + size]
        return
    loop, left, piece = asyncio.get_running_loop(), length, b"first"
    while piece and (left or piece == b"first"):
        piece = await loop.run_in_executor(None, body.read, min(size, left))
        left -= len(piece)
        yield piece


def _two(url: str, journals: set[str]) -> str:
    both = " and ".join(sorted(journals))
    return (
        f"{len(journals)} databases answer at {url} (journals {both}): let only "
        "instances run there that share one, or give each database a name of its own"
    )


def _refused(refusal: Refusal, detail: str) -> _Answer:
    """Answer in the participant's place: it was not asked."""
    problem = problem_of(RefusalError(refusal, detail))
    return problem.status, PROBLEM, json.dumps(problem.document()).encode()
