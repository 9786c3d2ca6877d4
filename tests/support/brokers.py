"""A broker's process, which tests kill and start again, and what is read there."""

from __future__ import annotations

import contextlib
import os
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import pytest

from support.waiting import AT_LAST

_WHY = "asked by `make test-brokers`"
NEEDS_KAFKA = pytest.mark.skipif(not os.environ.get("TPC_KAFKA"), reason=_WHY)
NEEDS_ACTIVEMQ = pytest.mark.skipif(not os.environ.get("TPC_ACTIVEMQ"), reason=_WHY)

Kind = TypeVar("Kind", bound="Node")


class Seen(NamedTuple):
    """A record, or message, as a reader has it."""

    partition: int
    key: bytes | None
    value: bytes
    headers: Mapping[str, str]


class Node:
    """A broker of one node, in a folder.

    Args:
        folder: of its data.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._process: subprocess.Popen[bytes] | None = None

    @classmethod
    @contextlib.contextmanager
    def running(cls: type[Kind], folder: Path) -> Iterator[Kind]:
        """Run one."""
        node = cls(folder)
        try:
            node.start()
            yield node
        finally:
            if node._process is not None:
                node.kill()

    def start(self) -> None:
        """Start it, and wait until it answers."""
        raise NotImplementedError

    def _spawn(self, command: Sequence[Any], log: Path) -> None:
        with log.open("ab") as file:
            self._process = subprocess.Popen(command, stdout=file, stderr=file)

    def _assert_alive(self, log: Path) -> None:
        assert self._process is not None
        assert self._process.poll() is None, log.read_text()[-2000:]

    def kill(self) -> None:
        """Kill it; what was not flushed is in the system's memory still."""
        assert self._process is not None
        self._process.kill()
        self._process.wait(AT_LAST)

    @property
    def pid(self) -> int:
        """The id of its process."""
        assert self._process is not None
        return self._process.pid
