"""SQLite's checkpoints, counted apart: they flush too, and are no transaction's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from bench.counts.count import Count, Expected
from bench.flushes import CHECKPOINTS

MEANWHILE: Final = Expected(
    0, "a checkpoint comes every thousand pages, and what is counted writes fewer"
)


def checkpoints(what: str, flushes: Mapping[str, int]) -> Count:
    """Say that none fell among the flushes that were counted."""
    name = f"{what}: SQLite's checkpoints meanwhile"
    return MEANWHILE.count(name, flushes[CHECKPOINTS])
