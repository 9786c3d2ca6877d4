"""What can go wrong with one request, and what is kept of it."""

from __future__ import annotations

import dataclasses
from collections import deque
from typing import Final, Literal, get_args

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.states import Word

Verb = Literal["prepare", "commit", "abort", "resolve", "transactions"]
"""The last segment of a path; `transactions` also for `/transactions/<id>`."""


class Fault(Word):
    """What goes wrong with one request.

    *The connection is closed* is what the client sees then: no answer at all.
    """

    DROP = "drop"
    """The participant never hears of it; the connection is closed."""

    LOSE_ANSWER = "lose answer"
    """The participant does it; the answer is lost, the connection is closed."""

    DUPLICATE = "duplicate"
    """It is sent twice at the same moment; the answer to one of them is returned."""

    DUPLICATE_LATER = "duplicate later"
    """It is answered, and sent again after some time or at `release()`."""

    DELAY = "delay"
    """It is held back until the client has given up, and sent then.

    With `after` it is held back for so many seconds, and a client that is still there
    gets the answer.
    """

    LATE_AFTER_ABORT = "late after abort"
    """A prepare whose connection is closed, and which is sent when it is too late.

    That is when the participant has answered the next commit or abort of the
    transaction, or the next abort of this very branch; and before that answer is
    returned.
    """

    CUT = "cut"
    """The participant does it; the body of the answer ends in the middle."""

    UNAVAILABLE = "unavailable"
    """503 without a body; the participant never hears of it."""

    GARBAGE = "garbage"
    """Bytes that are not HTTP; the participant never hears of it."""

    NOT_JSON = "not json"
    """200 that says JSON and is none; the participant never hears of it."""

    REDIRECT = "redirect"
    """302 to where an acknowledgement waits; the participant never hears of it.

    A client that goes there is told that all is done, and nothing is.
    """

    PAGE = "page"
    """200 with an HTML page, as a proxy shows; the participant never hears of it."""

    OTHER_TRANSACTION = "other transaction"
    """An acknowledgement of another transaction; the participant never hears of it."""


@dataclasses.dataclass(frozen=True, slots=True)
class Seen:
    """One request that came to the proxy, and what became of it.

    Args:
        verb: the last segment of its path; `transactions` for a look-up, `redirected`
            for a client that went where `REDIRECT` sent it.
        transaction: the id that it names; empty if it names none.
        branch: of a prepare, or of the abort of one branch; else empty.
        fault: what went wrong with it; None if nothing did.
        statuses: what the participant answered, once for each time that it was asked;
            None where it did not answer.
        returned: the status that the client was sent; None for no answer.
    """

    verb: str
    transaction: str
    branch: str
    fault: Fault | None
    statuses: tuple[int | None, ...]
    returned: int | None


@dataclasses.dataclass(frozen=True, slots=True)
class Planned:
    """What goes wrong with the next request of a verb; `after` is in seconds."""

    fault: Fault
    after: float | None = None


class Plan:
    """What goes wrong next, verb by verb, in the order it was planned."""

    def __init__(self) -> None:
        self._next: dict[str, deque[Planned]] = {}

    def add(self, verb: str, fault: Fault, times: int, after: float | None) -> None:
        """Let a fault happen to so many requests, after what is planned already.

        Raises:
            ConfigurationError: such a fault cannot happen.
        """
        if (why := _impossible(verb, fault, times, after)) is not None:
            raise ConfigurationError(why)
        planned = [Planned(fault, after)] * times
        self._next.setdefault(verb, deque()).extend(planned)

    def take(self, verb: str) -> Planned | None:
        """Return what goes wrong with this request, and count it."""
        waiting = self._next.get(verb)
        return waiting.popleft() if waiting else None


_VERBS: Final = get_args(Verb)
_TIMED: Final = (Fault.DELAY, Fault.DUPLICATE_LATER)


def _impossible(verb: str, fault: Fault, times: int, after: float | None) -> str | None:
    if verb not in _VERBS:
        return f"no verb {verb!r}: one of {', '.join(_VERBS)}"
    if fault is Fault.LATE_AFTER_ABORT and verb != "prepare":
        return f"{fault}: only a prepare can be late, not {verb}"
    if after is not None and fault not in _TIMED:
        return f"after: only for {' and '.join(_TIMED)}, not for {fault}"
    if times < 1:
        return f"times: {times}, but a fault happens at least once"
    return None
