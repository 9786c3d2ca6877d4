"""What the blueprint asks of a resource: the seam for one of your own."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol

from tracing_2pc.model import BranchId, Carrier, Identity, TransactionId
from tracing_2pc.participant.answers import Answer, Held, Named
from tracing_2pc.participant.body import Body
from tracing_2pc.states import Decision


@dataclasses.dataclass(frozen=True, slots=True)
class Page:
    """Branches that are not sealed, and where the next page begins."""

    branches: Sequence[tuple[TransactionId, Held, Carrier]]
    next: int | None
    now: float


class Resource(Protocol):
    """What can hold a prepared branch. Called from many threads and processes.

    A method raises `Problem` for what it refuses without an answer of the protocol's,
    and the database's own errors for "not now". `participant` is whom the caller means:
    the first name that an application gives is kept, and what is meant for another is
    refused with 421 and changes nothing.
    """

    def open(self) -> None:
        """Check the settings, make what is missing. Idempotent.

        Raises:
            ConfigurationError: with the setting or the SQL that cures it.
        """

    def start(self) -> None:
        """Start what runs in the background. Called with every request, after forks."""

    def prepare(
        self,
        transaction: TransactionId,
        participant: str,
        wanted: Named,
        body: Body,
        carrier: Carrier,
    ) -> Answer:
        """Make a branch durable, invisible, and vote (rule 13)."""

    def commit(
        self,
        transaction: TransactionId,
        participant: str,
        named: Sequence[Named],
        watermark: int | None,
    ) -> Answer:
        """Make the named branches visible, abort the others, seal."""

    def abort(
        self,
        transaction: TransactionId,
        participant: str,
        branch: BranchId | None,
        digest: str | None,
        watermark: int | None,
    ) -> Answer:
        """Abort a branch, or the whole transaction, which seals it.

        With a digest: no branch of another content.
        """

    def resolve(
        self,
        transaction: TransactionId,
        participant: str,
        outcome: Decision,
        reason: str,
    ) -> Answer:
        """Do what a person decided, and remember why."""

    def show(self, transaction: TransactionId, participant: str | None) -> Answer:
        """Look a transaction up, with the clock here and what it keeps busy."""

    def identity(self, application: str | None) -> Identity:
        """Say which journal this is, and how applications, or one of them, call it."""

    def in_doubt(
        self, *, application: str | None, state: str | None, after: int, limit: int
    ) -> Page:
        """List what is not sealed."""

    def ready(self) -> None:
        """Raise unless the database answers. Strangers ask: count nothing."""

    def gauges(self) -> dict[str, float]:
        """Measure, by the names of the registry."""

    def close(self) -> None:
        """Release everything. Nothing is lost if it is never called."""
