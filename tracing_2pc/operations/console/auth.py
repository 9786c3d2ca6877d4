"""Who looks: tokens, sessions that end, forms that are ours, tries that slow down."""

from __future__ import annotations

import dataclasses
import hmac
import ipaddress
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, NamedTuple
from urllib.parse import urlsplit

from tracing_2pc.participant.auth import Caller, Gate, Role
from tracing_2pc.participant.problems import Problem

LIFE: Final = 8 * 3600.0
"""Seconds that a session lives, whether it is used or not."""

SESSIONS: Final = 1_000
"""Sessions at a time; the oldest one makes room."""

FREE_TRIES: Final = 3
LONGEST_WAIT: Final = 60.0
ADDRESSES: Final = 10_000
LONGEST_NAME: Final = 80

_ROLES: Final = frozenset({Role.VIEWER, Role.OPERATOR})


class Notice(NamedTuple):
    """What has become of what a person did; not `well`: not all of it is done."""

    text: str
    well: bool


@dataclasses.dataclass
class Login:
    """A session. `notice` is said on the next page, once.

    Args:
        caller: role, and the application that the token is bound to.
        name: what the person called themselves.
        until: when it ends, by a clock that only grows.
    """

    caller: Caller
    name: str
    until: float
    notice: Notice | None = None

    @property
    def operator(self) -> bool:
        """Whether it may resolve."""
        return self.caller.role is Role.OPERATOR

    @property
    def who(self) -> str:
        """Who signs in the audit."""
        return f"{self.name or self.caller.role} at the console"

    def may_see(self, application: str) -> bool:
        """Whether its token is for this application, or for all."""
        return self.caller.application in (None, application)


def admit(gate: Gate, token: str, name: str) -> tuple[Caller, str]:
    """Return whose token it is, and the name as the audit may have it.

    Raises:
        Problem: 403: not known, or for something else than looking.
        Problem: 400: a name that cannot be one.
    """
    name = name.strip()
    if len(name) > LONGEST_NAME or not name.isprintable():
        raise Problem(400, f"your name: up to {LONGEST_NAME} characters on one line")
    try:
        caller = gate.admit(f"Bearer {token}", None)
    except Problem:
        raise Problem(403, "this token is not known here") from None
    if caller.role not in _ROLES:
        raise Problem(
            403, f"this is a token for {caller.role}: log in as viewer or operator"
        )
    return caller, name


class Logins:
    """The sessions, kept in this process: a new start ends them all."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_id: OrderedDict[str, Login] = OrderedDict()

    def open(self, caller: Caller, name: str) -> str:
        """Begin a session; return its id, which nobody can guess."""
        found = secrets.token_urlsafe(32)
        with self._lock:
            self._by_id[found] = Login(caller, name, self._clock() + LIFE)
            while len(self._by_id) > SESSIONS:
                self._by_id.popitem(last=False)
        return found

    def find(self, id_: str | None) -> Login | None:
        """Return a session that has not ended."""
        with self._lock:
            found = self._by_id.get(id_ or "")
            if found is not None and found.until <= self._clock():
                del self._by_id[id_ or ""]
                return None
            return found

    def close(self, id_: str | None) -> None:
        """End a session, wherever its cookie still is."""
        with self._lock:
            self._by_id.pop(id_ or "", None)


class Throttle:
    """Slows down who tries wrong tokens: by address, doubling, up to a minute."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tries: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def check(self, peer: str) -> None:
        """Let this address try.

        Raises:
            Problem: 429: not yet; a right token is not looked at either.
        """
        with self._lock:
            _, until = self._tries.get(peer, (0, 0.0))
        left = until - self._clock()
        if left > 0:
            wait = int(left) + 1
            raise Problem(
                429,
                f"too many wrong tokens: try again in {wait} s",
                headers={"Retry-After": str(wait)},
            )

    def wrong(self, peer: str) -> None:
        """Note a wrong try."""
        with self._lock:
            count = self._tries.pop(peer, (0, 0.0))[0] + 1
            wait = 2.0 ** min(count - FREE_TRIES, 16) if count >= FREE_TRIES else 0.0
            until = self._clock() + min(wait, LONGEST_WAIT)
            self._tries[peer] = count, until
            while len(self._tries) > ADDRESSES:
                self._tries.popitem(last=False)

    def right(self, peer: str) -> None:
        """Forget what this address tried."""
        with self._lock:
            self._tries.pop(peer, None)


def address_of(peer: str, forwarded_for: str | None) -> str:
    """Return who asks: what a proxy of this machine says of it, else its peer.

    The last address is the proxy's own word; those before it are its client's.
    """
    last = (forwarded_for or "").rpartition(",")[2].strip()
    try:
        near = ipaddress.ip_address(peer).is_loopback
        return str(ipaddress.ip_address(last)) if near and last else peer
    except ValueError:
        return peer


def from_here(headers: Mapping[str, str], host: str) -> bool:
    """Whether a page of ours has sent a request, as the browser says.

    `Origin` is *null* from pages that give no referrer, as ours; then only a browser
    that says `Sec-Fetch-Site` is believed, which it does over https and on loopback.
    """
    site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
    if origin not in (None, "null") and _host_of(str(origin)) != host:
        return False
    return site == "same-origin" if site is not None else origin not in (None, "null")


def _host_of(origin: str) -> str | None:
    try:
        return urlsplit(origin).netloc
    except ValueError:  # as in http://[
        return None


def same(given: str | None, expected: str | None) -> bool:
    """Compare two secrets in constant time; nothing is equal to nothing."""
    if not given or not expected:
        return False
    return hmac.compare_digest(given.encode(), expected.encode())
