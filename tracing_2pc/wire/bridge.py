"""A participant's routes, asked by another road than HTTP.

A request by another transport is passed to the same WSGI application that a web server
serves: forms, tokens, limits, problem documents, spans and metrics are the same.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import IO, Any, Final, NamedTuple
from urllib.parse import unquote_to_bytes

PROVEN: Final = "tpc.token_digest"
"""Where an environment has the digest of a token that its caller has proven to hold."""

PARTICIPANT: Final = "tracing_2pc.participant"
"""Where a Flask application has, among its extensions, the participant's routes."""

STARTS: Final = "tracing_2pc.starts"
"""Where it has what a process that serves it calls at its start."""

WsgiApplication = Callable[[dict[str, Any], Callable[..., Any]], Iterable[bytes]]


class Answered(NamedTuple):
    """An application's answer, read whole."""

    status: int
    content_type: str
    body: bytes


def start_sending(application: Any) -> None:
    """Start what runs in the background, in a process that serves, after its fork.

    Without it the first request does so.
    """
    for start in getattr(application, "extensions", {}).get(STARTS, ()):
        start()


def ask_application(
    application: WsgiApplication,
    method: str,
    path: str,
    headers: Mapping[str, str],
    body: IO[bytes],
    length: int,
    *,
    scheme: str,
    peer: str | None = None,
    digest: bytes | None = None,
) -> Answered:
    """Pass one request to an application, and return its answer.

    Args:
        application: a Flask application, or any other.
        method: GET or POST.
        path: a route of the contract, with a query if there is one.
        headers: of the request; each transport chooses which ones it lets through. One
            with an underscore in its name is left out: it would take another's place.
        body: read by the application, in its time. Its reads must have limits: where
            it has a method `shutdown`, that is called when a read takes too long, from
            another thread, and must end it.
        length: bytes that the body has; fewer are a body that was cut.
        scheme: of the transport, as in a span.
        peer: the caller's address. None where it is not known: an application with
            `insecure=True` then refuses it.
        digest: SHA-256 of a token that the caller has proven to hold, where the
            transport sends none.
    """
    route, _, query = path.partition("?")
    environ: dict[str, Any] = {
        "REQUEST_METHOD": method,
        "SCRIPT_NAME": "",
        "PATH_INFO": unquote_to_bytes(_utf8(route)).decode("latin-1"),
        "QUERY_STRING": _utf8(query).decode("latin-1"),
        "SERVER_NAME": scheme,
        "SERVER_PORT": "0",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "CONTENT_LENGTH": str(length),
        "wsgi.version": (1, 0),
        "wsgi.url_scheme": scheme,
        "wsgi.input": body,
        "wsgi.errors": sys.stderr,
        "wsgi.multithread": True,
        "wsgi.multiprocess": True,
        "wsgi.run_once": False,
    }
    if hasattr(body, "shutdown"):
        environ["tpc.client"] = body
    if peer is not None:
        environ["REMOTE_ADDR"] = peer
    if digest is not None:
        environ[PROVEN] = digest
    for name, value in headers.items():
        if "_" not in name:
            key = name.upper().replace("-", "_")
            key = key if key == "CONTENT_TYPE" else f"HTTP_{key}"
            environ[key] = _utf8(value).decode("latin-1")
    environ.pop("HTTP_CONTENT_LENGTH", None)  # what was counted here counts
    started: list[tuple[str, list[tuple[str, str]]]] = []

    def start(
        status: str, headers: list[tuple[str, str]], _exc_info: Any = None
    ) -> None:
        started[:] = [(status, headers)]

    parts = application(environ, start)
    try:
        answer = b"".join(parts)
    finally:
        with contextlib.suppress(AttributeError):
            parts.close()  # type: ignore[attr-defined]
    ((status, answered),) = started
    kind = next((v for n, v in answered if n.lower() == "content-type"), "")
    return Answered(int(status.split()[0]), kind, answer)


def _utf8(text: str) -> bytes:
    """Return what came over a road that has other characters than HTTP's, as bytes."""
    return text.encode(errors="replace")
