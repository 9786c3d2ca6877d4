"""A connection to a NATS server; after any error it is of no use."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
import math
import ssl
from collections.abc import Awaitable, Callable
from typing import Any, Final
from urllib.parse import urlsplit

from nats import errors
from nats.aio.client import Client

from tracing_2pc.core.addresses import split_address
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.settings import check_name, read_secret

PORT: Final = 4222

CREDENTIALS: Final = "TPC_NATS_CREDENTIALS"
"""The variable with the reference to what the NATS server asks for."""

CLOSE: Final = 2.0
"""Seconds that hanging up may take."""

_PING: Final = 10
"""Seconds between two signs of life; a server that owes two of them is gone."""

_THEIRS: Final = logging.getLogger("nats")
if _THEIRS.level == logging.NOTSET:  # an error of ours says it, too
    _THEIRS.setLevel(logging.CRITICAL)


class NotAdmittedError(Exception):
    """The NATS server does not take us, or not by TLS; with the cure."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a participant is reached: a NATS server, and a subject there.

    Raises:
        ConfigurationError: the URL's path is not the one name of a participant.
    """

    url: str

    def __post_init__(self) -> None:
        try:
            parts = split_address(self.url)
            if parts.scheme not in {"nats", "nats+tls"} or not parts.hostname:
                raise ValueError("no NATS server")
            check_name(parts.path[1:])
        except ValueError as error:
            text = f"expected nats://host:{PORT}/participant: {error}"
            raise ConfigurationError(text) from None

    @property
    def name(self) -> str:
        """The participant's name there."""
        return urlsplit(self.url).path[1:]

    @property
    def subject(self) -> str:
        """Subject that all instances read; each subject below it has one reader."""
        return f"tpc.v1.{self.name}"

    @property
    def by_tls(self) -> bool:
        """Whether nothing may be sent without TLS."""
        return urlsplit(self.url).scheme == "nats+tls"

    @property
    def server(self) -> str:
        """The NATS server's URL, for nats-py."""
        parts = urlsplit(self.url)
        host = f"[{parts.hostname}]" if ":" in str(parts.hostname) else parts.hostname
        return f"{'tls' if self.by_tls else 'nats'}://{host}:{parts.port or PORT}"


class _Client(Client):
    """Reports its end also if a reset connection still had bytes to send.

    nats-py then fails in the middle of closing: no callback runs, nothing is freed.
    """

    async def _close(self, *how: Any, **options: Any) -> None:
        try:
            await super()._close(*how, **options)
        except OSError:
            self._pending, self._pending_data_size = [], 0
            self._status = Client.DISCONNECTED  # else there is nothing to be closed
            await super()._close(*how, **options)


async def connect(
    place: Place,
    credentials: str | None,
    timeout: float,
    *,
    closed: Callable[[], Awaitable[None]],
    trouble: Callable[[Exception], Awaitable[None]],
) -> Client:
    """Connect once. A message is sent on this connection or not at all.

    A reconnecting connection of nats-py would later send messages that a caller has
    given up.

    Args:
        place: its server is connected to.
        credentials: reference to `user:password`, or to a token of the NATS server.
        timeout: seconds to connect.
        closed: called once, when the connection has ended.
        trouble: called with each error that the NATS server reports.

    Raises:
        NotAdmittedError: the NATS server refuses us.
        OSError, TimeoutError, errors.Error: it does not answer.
        ConfigurationError: the credentials cannot be read.
    """
    connection = _Client()
    options: dict[str, Any] = {}
    if place.by_tls:
        options["tls"] = ssl.create_default_context()
    if credentials is not None:
        options |= _login(connection, place, read_secret(credentials, CREDENTIALS))
    try:
        await asyncio.wait_for(
            connection.connect(
                [place.server],
                name="tracing_2pc",
                allow_reconnect=False,
                max_reconnect_attempts=1,  # below it: for ever
                reconnect_time_wait=0,
                connect_timeout=math.ceil(timeout),
                ping_interval=_PING,
                closed_cb=closed,
                error_cb=trouble,
                **options,
            ),
            timeout,
        )
        _check_tls(connection, place)
    except BaseException as error:
        await hang_up(connection)
        if isinstance(error, errors.Error) and "uthoriz" in str(error):
            cure = f"set {CREDENTIALS} to a reference to its user:password, or token"
            raise NotAdmittedError(f"the NATS server refuses us: {cure}") from None
        if isinstance(error, ssl.SSLError):
            raise NotAdmittedError(
                f"no TLS with the NATS server: {error.reason or type(error).__name__}"
            ) from None
        raise
    return connection


async def hang_up(connection: Client) -> None:
    """Close a connection, and wait no longer than `CLOSE` for that."""
    with contextlib.suppress(Exception):
        await asyncio.wait_for(connection.close(), CLOSE)


def _login(connection: Client, place: Place, secret: str) -> dict[str, Any]:
    """Return the options of a login, which are read when nothing is sent in clear."""
    user, colon, password = secret.partition(":")

    def read(value: str) -> Callable[[], str]:
        def give() -> str:
            _check_tls(connection, place)
            return value

        return give

    if not colon:
        return {"token": read(secret)}
    return {"user": read(user), "password": read(password)}


def _check_tls(connection: Client, place: Place) -> None:
    # Without this nats-py would go on in clear.
    if place.by_tls and not connection._server_info.get("tls_required"):
        raise NotAdmittedError(
            f"the NATS server at {urlsplit(place.server).netloc} offers no TLS, so "
            "nothing was sent: give it a certificate, or mend the address"
        )
