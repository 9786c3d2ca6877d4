"""Sessions that end, and wrong tokens that slow down."""

from __future__ import annotations

import dataclasses
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

from tracing_2pc.core.access import Caller
from tracing_2pc.wire.error_responses import Problem

LIFE: Final = 8 * 3600.0
"""Seconds that a session lives, whether it is used or not."""

SESSIONS: Final = 1_000
"""Sessions at a time; the oldest one makes room."""

FREE_TRIES: Final = 3
LONGEST_WAIT: Final = 60.0
ADDRESSES: Final = 10_000


class Notice(NamedTuple):
    """The result of an action, shown once; not `well`: not all of it is done."""

    text: str
    well: bool


@dataclasses.dataclass
class Session:
    """A person's session, by a clock that only grows; `notice` is shown once."""

    caller: Caller
    name: str
    until: float
    notice: Notice | None = None

    @property
    def who(self) -> str:
        """The signature in the audit."""
        return f"{self.name or self.caller.role} at the console"

    def take_notice(self) -> Notice | None:
        """Return what is to be shown once, which is now."""
        notice, self.notice = self.notice, None
        return notice

    def raise_if_blind_to(self, application: str) -> None:
        """Refuse an application, as `Problem`, that its token is not for."""
        if (only := self.caller.application) not in (None, application):
            raise Problem(403, f"your token is for {only} only")


class Sessions:
    """The sessions, kept in this process: a new start ends them all."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._by_id: OrderedDict[str, Session] = OrderedDict()

    def open(self, caller: Caller, name: str) -> str:
        """Begin a session; return its id, which cannot be guessed."""
        id_ = secrets.token_urlsafe(32)
        with self._lock:
            self._by_id[id_] = Session(caller, name, self._clock() + LIFE)
            while len(self._by_id) > SESSIONS:
                self._by_id.popitem(last=False)
        return id_

    def find(self, id_: str | None) -> Session | None:
        """Return a session that has not ended."""
        with self._lock:
            session = self._by_id.get(id_ or "")
            return session if session and session.until > self._clock() else None

    def close(self, id_: str | None) -> None:
        """End a session, wherever its cookie still is."""
        with self._lock:
            self._by_id.pop(id_ or "", None)


class Throttle:
    """Slows down tries of wrong tokens: by address, doubling, up to a minute."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._tries: OrderedDict[str, tuple[int, float]] = OrderedDict()

    def raise_if_too_soon(self, peer: str) -> None:
        """Refuse an address, by 429, even with a good token."""
        _, until = self._tries.get(peer, (0, 0.0))
        if (left := until - self._clock()) > 0:
            wait = int(left) + 1
            detail = f"too many wrong tokens: try again in {wait} s"
            raise Problem(429, detail, headers={"Retry-After": str(wait)})

    def count_wrong(self, peer: str) -> None:
        """Note a wrong try."""
        with self._lock:
            count = self._tries.pop(peer, (0, 0.0))[0] + 1
            wait = 2.0 ** min(count - FREE_TRIES, 16) if count >= FREE_TRIES else 0.0
            until = self._clock() + min(wait, LONGEST_WAIT)
            self._tries[peer] = count, until
            while len(self._tries) > ADDRESSES:
                self._tries.popitem(last=False)

    def reset(self, peer: str) -> None:
        """Forget what this address tried."""
        with self._lock:
            self._tries.pop(peer, None)
