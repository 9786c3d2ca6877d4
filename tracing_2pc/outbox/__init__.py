"""Requests that leave after the commit: a participant that keeps them until then.

The queue, its sender and a person's decisions about a request are here; the requests go
to a `Partner` that the service passes in, as `tracing_2pc.http.partner`.
"""

from __future__ import annotations

from tracing_2pc.outbox.outbox import Outbox
from tracing_2pc.outbox.partner_request import PartnerRequest

__all__ = ["Outbox", "PartnerRequest"]
