"""How many rows something has that a sink or a writer is given."""

from __future__ import annotations


def known_rows(given: object) -> int | None:
    """Return the rows that a batch of Arrow knows it has; None for all else."""
    try:
        found = getattr(given, "num_rows", None)
    except Exception:  # noqa: BLE001 - somebody else's property
        return None
    return found if type(found) is int else None
