"""Functions that are called in processes of their own, and killed if that is meant."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tracing_2pc.testing.other_process import OtherProcess


def elsewhere(
    scratch: Path,
    function: Callable[..., object],
    *about: Any,
    killed_at: str | None = None,
) -> str:
    """Call a function of a module in a process of its own; say how that ended.

    Args:
        scratch: an empty folder.
        function: to be called there.
        about: its arguments.
        killed_at: a failpoint, which kills it.

    Returns:
        `killed`, `ended`, or what it raised, with the traceback.
    """
    return _Call(("", ""), scratch, function, about).run(killed_at)


@dataclasses.dataclass(frozen=True)
class _Call(OtherProcess):
    function: Callable[..., object]
    about: tuple[Any, ...]

    def apply(self, moment: str | None) -> None:
        if moment is not None:
            self.arm(moment)
        self.function(*self.about)
