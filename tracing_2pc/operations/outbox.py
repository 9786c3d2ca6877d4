"""What outboxes' partners did not take, and what a person does about it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantError,
    ParticipantUnavailableError,
    TwoPhaseError,
)
from tracing_2pc.core.model import QuarantinedRequest, QuarantineListing, RequestKey
from tracing_2pc.core.remote_participant import RemoteOutbox, RemoteParticipant
from tracing_2pc.core.states import Refusal, RequestState
from tracing_2pc.inspection.wording import join_names
from tracing_2pc.protocol.fan_out import ask_at_once

STATE_WORDS: Final = {
    RequestState.WAITING: "waits in its queue, and will be sent again",
    RequestState.SENT: "was sent again, and the partner has taken it",
    RequestState.DROPPED: "is dropped: it stays on record, and is not sent",
}
"""What has become of a request that a person has decided about."""


@dataclasses.dataclass(frozen=True, slots=True)
class Quarantines:
    """The quarantines of all outboxes, by participant; one without an outbox has none.

    `unreadable` are those that gave no list, and why.
    """

    listings: Mapping[str, QuarantineListing]
    unreadable: Mapping[str, str]


def list_quarantines(
    participants: Mapping[str, RemoteParticipant],
    application: str | None = None,
    *,
    state: RequestState = RequestState.QUARANTINED,
    limit: int = 100,
    key: RequestKey | None = None,
) -> Quarantines:
    """Ask all at once; one that does not answer stops no other."""

    def ask(participant: RemoteParticipant) -> QuarantineListing | str | None:
        if not isinstance(participant, RemoteOutbox):
            return None
        try:
            return participant.quarantined(application, state, limit, key)
        except ParticipantError as error:
            return None if error.refusal is Refusal.UNKNOWN else str(error)
        except TwoPhaseError as error:
            return str(error)

    answers = ask_at_once(ask, participants)
    return Quarantines(
        {n: a for n, a in answers.items() if isinstance(a, QuarantineListing)},
        {n: a for n, a in answers.items() if isinstance(a, str)},
    )


def find_outboxes(
    participants: Mapping[str, RemoteParticipant], key: RequestKey
) -> tuple[list[str], QuarantinedRequest | None]:
    """Return the outbox that has a request in quarantine, and the request.

    If none has it, all outboxes: one of them may have it no more. Two outboxes of one
    application have the same keys: what is meant is never guessed, so that an order
    which is repeated does not act at the other one.

    Raises:
        ConfigurationError: another outbox has it, too, has dropped it, or cannot be
            asked; or nobody has an outbox.
    """
    quarantines = list_quarantines(participants, key=key)
    listings = quarantines.listings
    holders = {name: li.requests[0] for name, li in listings.items() if li.requests}
    if len(holders) > 1:
        raise ConfigurationError(
            f"request {key} is in quarantine at {join_names(holders)}: name one of "
            "them by --participant"
        )
    if holders:
        ((name, request),) = holders.items()
        dropped = list_quarantines(participants, state=RequestState.DROPPED, key=key)
        others = {n for n, li in dropped.listings.items() if li.requests} - {name}
        if others or quarantines.unreadable or dropped.unreadable:
            silent = {*quarantines.unreadable, *dropped.unreadable}
            why = "was dropped at" if others else "may be known, too, at"
            raise ConfigurationError(
                f"request {key} is in quarantine at {name}, and {why} "
                f"{join_names(sorted(others or silent))}: say which is meant by "
                "--participant"
            )
        return [name], request
    if quarantines.unreadable:
        raise ParticipantUnavailableError(next(iter(quarantines.unreadable.values())))
    if not listings:
        names = join_names(participants) if participants else "nobody in the settings"
        raise ConfigurationError(f"{names} has no outbox")
    return list(listings), None


def outbox_of(participant: RemoteParticipant) -> RemoteOutbox:
    """Return a participant as what can be asked about its outbox."""
    if not isinstance(participant, RemoteOutbox):
        raise ConfigurationError(
            f"participant {participant.name!r}: its transport reaches no outbox"
        )
    return participant
