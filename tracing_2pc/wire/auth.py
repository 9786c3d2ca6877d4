"""The caller of an HTTP request: its bearer token, and where it comes from."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from tracing_2pc.core.access import Caller, Gate
from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.states import Refusal
from tracing_2pc.wire.error_responses import problem_of
from tracing_2pc.wire.serving import is_loopback_name

_NO_PAGE: Final = (
    "insecure: no page in a browser is answered, and no name but localhost and this "
    "machine's loopback addresses; use tokens"
)


def admit(
    gate: Gate,
    action: str,
    headers: Iterable[tuple[str, str]],
    peer: str | None,
    digest: bytes | None = None,
) -> Caller:
    """Return the caller of a request, who may do this, one of `core.access.MAY`.

    Raises:
        Problem: not admitted (401, with a challenge), or not allowed (403).
    """
    caller = identify(gate, headers, peer, digest)
    try:
        caller.check(action)
    except RefusalError as error:
        raise problem_of(error) from None
    return caller


def identify(
    gate: Gate,
    headers: Iterable[tuple[str, str]],
    peer: str | None,
    digest: bytes | None = None,
) -> Caller:
    """Return the caller of a request of any kind.

    `digest` is of a token that was not sent: the transport has verified that the caller
    holds it.

    Raises:
        Problem: as `admit`.
    """
    lower = {name.lower(): value for name, value in headers}
    scheme, _, word = lower.get("authorization", "").partition(" ")
    token = word.strip() if scheme.lower() == "bearer" else None
    # The peer of a forwarded request is the proxy, and the origin is not known. A proxy
    # that adds no header cannot be seen.
    forwarded = is_forwarded(lower)
    try:
        if digest is not None:
            caller = gate.admit_digest(digest)
        else:
            caller = gate.admit(token, None if forwarded else peer)
        if caller.role is None and _is_of_a_page(lower):
            raise RefusalError(Refusal.NOT_ALLOWED, _NO_PAGE)
    except RefusalError as error:
        problem = problem_of(error)
        if error.refusal is Refusal.NOT_ADMITTED:
            reason = "" if token is None else ', error="invalid_token"'
            challenge = f'Bearer realm="tracing_2pc"{reason}'
            problem.headers["WWW-Authenticate"] = challenge
        raise problem from None
    return caller


def is_forwarded(headers: Iterable[str]) -> bool:
    """Return whether a proxy has passed a request on, by its headers' names."""
    return any(
        name in {"forwarded", "via", "x-real-ip"} or name.startswith("x-forwarded-")
        for name in map(str.lower, headers)
    )


def _is_of_a_page(headers: Mapping[str, str]) -> bool:
    """Return whether a page of another site may have sent it, by any name."""
    host = headers.get("host")
    return "origin" in headers or not (host is None or is_loopback_name(host))
