"""The port of an outbox's partner: one request, one answer, nothing guessed.

`tracing_2pc.http.partner.HttpPartner` is one.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple, Protocol

from tracing_2pc.outbox.partner_request import MakeRequest
from tracing_2pc.outbox.requests import Request

LONGEST_ASKED: Final = 86_400.0
"""Seconds, however long a partner asks us to wait: a date may be wrong."""


class PartnerAnswer(NamedTuple):
    """The partner's answer to one request.

    Neither taken nor refused means that the same request may be taken later: there was
    no answer, or it is about something else than the record.
    """

    code: int  # of the transport, for a person; 0 for no answer
    is_taken: bool = False  # the partner confirmed the request
    is_refused: bool = False  # the partner refuses this record for ever
    retry_after: float = 0.0  # seconds from now in which it wants to be asked nothing
    why: str = ""  # of no answer: its address, without secrets, and what happened there
    # The beginning of what it said, for a person: foreign text, and no secret of ours.
    # It is kept with a request that is quarantined, and not logged.
    body: str = ""


class Partner(Protocol):
    """Where an outbox's requests go. It is called from threads, and after a fork."""

    @property
    def checks(self) -> bool:
        """Whether it is asked at prepare."""

    @property
    def request(self) -> MakeRequest | None:
        """Makes a record's request, at prepare; None: the record is the request."""

    @property
    def bulk(self) -> int:
        """Requests that may be sent together, at most."""

    @property
    def longest(self) -> float:
        """Seconds that a call waits for its next byte, at most."""

    def check(self, records: Sequence[str]) -> None:
        """Ask whether these records would be taken.

        Raises:
            RefusalError: conflict: they would not; not now: no answer.
        """

    def send(self, requests: Sequence[Request]) -> Sequence[PartnerAnswer]:
        """Send one request, or several as one, once; its key is the same each time.

        Returns an answer for each, or one for all of them.
        """
