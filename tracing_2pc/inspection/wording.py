"""The words for durations, times, counts, causes, states and verdicts, each once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Mapping
from datetime import datetime, timezone
from typing import Final

from tracing_2pc.core.model import Holds, QuarantinedRequest
from tracing_2pc.core.settings import seconds as read_duration
from tracing_2pc.core.states import TransactionState, Verdict

VERDICT_TEXT: Final[Mapping[Verdict, str]] = {
    Verdict.LEAVE: "Leave it: the log that owns it will finish it.",
    Verdict.FINISH: "It is safe to deliver the decision again.",
    Verdict.ABORT: "It is safe to abort it.",
    Verdict.ESCALATE: "Nothing here is safe without a person who knows the rows.",
}

STATE_TEXT: Final[Mapping[TransactionState, str]] = {
    TransactionState.ACTIVE: "under way: not decided yet",
    TransactionState.COMMITTING: "in doubt: commit is being delivered",
    TransactionState.ABORTING: "in doubt: abort is being delivered",
    TransactionState.QUARANTINED: "quarantined: a person must decide",
}

NO_ADDRESS: Final = "it has no address here"
"""The reason if a participant cannot be asked; `how_to_add` has the cure."""

OWN_SINK: Final = (
    "it is a sink of the job's own",
    "start the job, which finishes this first",
)

_UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60))


def format_duration(seconds: float) -> str:
    """Write a duration in one unit."""
    for unit, length in _UNITS:
        if seconds >= 2 * length:
            return f"{seconds / length:.0f} {unit}"
    return f"{seconds:.0f} s"


def format_elapsed(seconds: float) -> str:
    """Write an elapsed time, with milliseconds where they matter."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 20 else format_duration(seconds)


def format_distance(at: float, now: float) -> str:
    """Write the distance of a time: *3 min ago*, *in 5 s*, *just now*."""
    if abs(at - now) < 1:
        return "just now"
    away = format_duration(abs(at - now))
    return f"in {away}" if at > now else f"{away} ago"


def format_time(at: float) -> str:
    """Write a time in full, in UTC; other words where no calendar has it."""
    moment = _moment(at)
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC" if moment else "at no known time"


def format_time_of_day(at: float, now: float) -> str:
    """Write the time of day in UTC, with the date where that is not today's."""
    moment, today = _moment(at), _moment(now)
    if moment is None or today is None:
        return "an unknown time"
    return format_time(at).removeprefix(f"{today:%Y-%m-%d} ")


def parse_time(text: str, now: float) -> float:
    """Read a past time, as *2h* ago or in ISO 8601; `ValueError`: it is neither."""
    with contextlib.suppress(ValueError):
        return now - read_duration(text)
    try:
        moment = datetime.fromisoformat(text.strip().replace("Z", "+00:00"))
        zone = moment.tzinfo or timezone.utc
        return moment.replace(tzinfo=zone).timestamp()
    except (ValueError, OverflowError):
        form = "expected how long ago, as in 2h, or a time, as in 2026-01-31 18:05"
        raise ValueError(f"{text[:40]!r}: {form}, in UTC") from None


def format_iso(at: float | None) -> str | None:
    """Write a time as programs read it (ISO 8601, UTC, to the millisecond)."""
    moment = None if at is None else _moment(at)
    if moment is None:
        return None
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _moment(timestamp: float) -> datetime | None:
    try:
        return datetime.fromtimestamp(timestamp, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None


def format_count(number: int, singular: str, plural: str | None = None) -> str:
    """Write a number with its noun."""
    return f"{number:,} {singular if number == 1 else plural or singular + 's'}"


def format_rows(rows: int, rejected: int) -> str:
    """Write the number of written rows, and of rejected ones, if any."""
    return format_count(rows, "row") + format_rejected(rejected)


def format_rejected(rejected: int) -> str:
    """Write the number of rejected rows, after others; nothing if none were."""
    return f", {rejected:,} rejected" if rejected else ""


def join_names(names: Iterable[str]) -> str:
    """Write names as a sentence has them."""
    return " and ".join(names) or "nobody"


def quote_answer(request: QuarantinedRequest, longest: int = 2_000) -> str:
    """Return its partner's answer in one line; empty where it had no text."""
    text = " ".join((request.answer or "").split())
    return text if len(text) <= longest else f"{text[: longest - 1]}…"


def without_participant(participant: str, error: object) -> str:
    """Return an error's text without the participant's name, which stands beside it."""
    return str(error).removeprefix(f"participant {participant!r}").lstrip(": ")


def describe_votes(
    prepared: Iterable[str], missing: Iterable[str], unread: Iterable[str]
) -> str:
    """Write the participants' votes on a batch before its decision, as far as known.

    A participant that gets no row prepares nothing: that one is missing is no fault.
    """
    parts = (
        ("prepared at", prepared),
        ("nothing prepared yet at", missing),
        ("not known of", unread),
    )
    named = ((text, list(names)) for text, names in parts)
    return "; ".join(f"{text} {join_names(names)}" for text, names in named if names)


def format_load(holds: Holds) -> str:
    """Write the rows, slots and locks that a prepared transaction occupies."""
    parts = [format_count(holds.rows, "row")]
    if holds.slots is not None:
        parts.append(format_count(holds.slots, "prepared transaction"))
    if holds.locks is not None:
        parts.append(format_count(holds.locks, "lock"))
    if holds.horizon:
        parts.append(f"VACUUM back by {format_count(holds.horizon, 'transaction')}")
    return ", ".join(parts)
