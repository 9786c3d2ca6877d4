"""Requests that leave after the commit: a participant that keeps them until then.

The queue, its sender and what a person decides about a request are here; where the
requests go is a `Partner` that the service hands in, as `tracing_2pc.http.partner`.
"""

from __future__ import annotations

from tracing_2pc.outbox.outbox import Outbox
from tracing_2pc.outbox.partner_request import PartnerRequest

__all__ = ["Outbox", "PartnerRequest"]
