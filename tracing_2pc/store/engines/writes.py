"""Several writes of one transaction in as few statements as the database takes.

Each statement costs a round trip, and the time that SQLAlchemy and the driver need.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa

Write = sa.Insert | sa.Update | sa.Delete
Writes = tuple[Write, ...]
"""To be executed in this order, with the same parameters."""


def supports_joined_writes(dialect: str) -> bool:
    """Return whether a database takes several writes in one statement."""
    return dialect == "postgresql"


def join_writes(dialect: str, *writes: Write) -> Writes:
    """Join independent writes, whose parameters share names, where the database can."""
    if not supports_joined_writes(dialect):
        return writes
    *others, last = writes
    named = (write.cte(f"write_{n}") for n, write in enumerate(others))
    return (last.add_cte(*named),)


def execute(
    connection: sa.Connection, writes: Writes, values: Mapping[str, Any]
) -> int:
    """Execute them; return how many rows the last of them has changed."""
    changed = 0
    for write in writes:
        changed = connection.execute(write, values).rowcount
    return changed
