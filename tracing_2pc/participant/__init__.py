"""The parts that a service embeds to become a participant.

A resource keeps the data; `tracing_2pc.http.server.participant_blueprint` gives a
Flask application the routes that reach it. Parts for one service only are not here.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tracing_2pc.participant.resources.tagged_rows import TaggedRows

if TYPE_CHECKING:
    from tracing_2pc.participant.resources.prepared_transactions import (
        PreparedTransactions,
    )

__all__ = ["PreparedTransactions", "TaggedRows"]


def __getattr__(name: str) -> Any:
    # It needs PostgreSQL's driver, which others do without.
    if name == "PreparedTransactions":
        from tracing_2pc.participant.resources import prepared_transactions

        return prepared_transactions.PreparedTransactions
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
