"""A person's requests to a participant that keeps requests, such as an outbox."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Protocol, runtime_checkable

from tracing_2pc.core.model import QuarantinedRequest, RequestKey
from tracing_2pc.core.states import RequestState


@dataclasses.dataclass(frozen=True, slots=True)
class RequestQuery:
    """The page of a quarantine to return."""

    application: str | None  # None is any
    key: RequestKey | None  # None is any
    state: RequestState
    after: tuple[float, str]  # time and key of the last request on the page before
    limit: int


@dataclasses.dataclass(frozen=True, slots=True)
class RequestOrder:
    """A person's order about a request in quarantine, and their signature."""

    key: RequestKey
    participant: str
    who: str
    reason: str


@dataclasses.dataclass(frozen=True, slots=True)
class RequestPage:
    """A page of requests, at the participant's time."""

    requests: Sequence[QuarantinedRequest]
    now: float


@runtime_checkable
class KeepsRequests(Protocol):
    """A resource that has requests in quarantine, or could have."""

    def list_requests(self, query: RequestQuery) -> RequestPage:
        """List those in quarantine, or those that a person has dropped."""

    def send_again(self, order: RequestOrder) -> RequestState:
        """Have one sent once more; durable when this returns, and idempotent."""

    def drop_request(self, order: RequestOrder) -> RequestState:
        """Drop one for ever; durable when this returns, and idempotent."""
