"""Others beside the library, those that can be run here.

A line says how many times as much as the other the library takes. There is no limit,
because no other promises the same: `beside.py` says, in words, what each of them does.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from bench.peers import plain_sql, tracing
from bench.peers.sizes import Sizes

Part = Callable[[Path, Sizes], Iterator[dict[str, Any]]]
"""Measures in a folder of its own."""

PARTS: Final[Mapping[str, Part]] = {
    "plain-sql": plain_sql.measure,
    "tracing": tracing.measure,
}


def measure(rounds: int, *, tiny: bool = False) -> Iterator[dict[str, Any]]:
    """Yield a line for each comparison when it is known."""
    sizes = Sizes.tiny(rounds) if tiny else Sizes.full(rounds)
    for part in PARTS.values():
        with tempfile.TemporaryDirectory(prefix="tpc-peers-") as folder:
            yield from part(Path(folder), sizes)
