"""Sends the requests in an outbox without a service, from a process that is told to."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Final

from tracing_2pc.core.errors import ConfigurationError, ParticipantError
from tracing_2pc.core.remote_participant import Embedded
from tracing_2pc.sinks.participant_sink import TracedParticipant

_LOOK: Final = 0.1
"""Seconds between two looks at waiting requests."""

SHORT: Final = 3.0
"""Seconds without progress after which a process that will not last gives up."""


def start_sending(participants: Mapping[str, object]) -> None:
    """Send waiting requests from this process, as long as it lasts."""
    for participant in embedded_of(participants).values():
        participant.start()


def send_waiting(
    participants: Mapping[str, object], patience: float = SHORT
) -> dict[str, int | str]:
    """Send until no request waits, or none was sent for so many seconds.

    Return by participant the number of records left, or the error if it is not known;
    none of them is lost: the next process that sends goes on.
    """
    senders = embedded_of(participants)
    left = {name: _waiting(sender) for name, sender in senders.items()}
    busy = [name for name in senders if left[name]]
    moved = time.monotonic()
    try:
        for name in busy:
            senders[name].start()
        while any(left.values()) and time.monotonic() - moved < patience:
            time.sleep(_LOOK)
            before, left = left, {name: _waiting(senders[name]) for name in busy}
            if left != before:
                moved = time.monotonic()
    finally:
        for name in busy:
            senders[name].rest()
    return {name: count for name, count in left.items() if count}


def _waiting(sender: Embedded) -> int | str:
    try:
        return sender.waiting()
    except (ParticipantError, ConfigurationError) as error:
        return str(error)


def embedded_of(participants: Mapping[str, object]) -> dict[str, Embedded]:
    """Return the participants without a service, by name."""
    inner = {
        name: p.inner if isinstance(p, TracedParticipant) else p
        for name, p in participants.items()
    }
    return {name: p for name, p in inner.items() if isinstance(p, Embedded)}
