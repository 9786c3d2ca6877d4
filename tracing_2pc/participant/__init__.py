"""What a service embeds to become a participant.

A blueprint gives a Flask application the routes of `openapi.yaml`; a resource does
the work. Whatever only one service needs does not belong here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracing_2pc.participant.blueprint import participant_blueprint
from tracing_2pc.participant.resources.outbox import Outbox
from tracing_2pc.participant.resources.tagged_rows import TaggedRows

if TYPE_CHECKING:
    from tracing_2pc.participant.resources.prepared_transactions import (
        PreparedTransactions,
    )

__all__ = ["Outbox", "PreparedTransactions", "TaggedRows", "participant_blueprint"]


def __getattr__(name: str) -> Any:
    # It needs PostgreSQL's driver, which others do without.
    if name == "PreparedTransactions":
        from tracing_2pc.participant.resources import prepared_transactions

        return prepared_transactions.PreparedTransactions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
