"""Functions that are called in processes of their own, and killed if that is meant."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from support.telemetry import PATH
from support.waiting import AT_LAST
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


class Holding:
    """A program of its own that says `writing`, and waits until it is killed."""

    def __init__(self, *command: str) -> None:
        self._process = subprocess.Popen(
            [sys.executable, *command],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": PATH},
        )

    def __enter__(self) -> subprocess.Popen[str]:
        assert self._process.stdout is not None
        assert self._process.stdout.readline() == "writing\n"
        return self._process

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        with self._process:
            self._process.wait(AT_LAST)


def hold() -> None:
    """Be such a program: until it is killed, or nobody is there any more."""
    sys.stdout.write("writing\n")
    sys.stdout.flush()
    sys.stdin.read()
