"""A branch on its way: encoded and digested once, sent as often as it takes."""

from __future__ import annotations

import hashlib
import io
import os
import tempfile
from typing import IO, Any, Final

from tracing_2pc.core.content import write_digest

IN_MEMORY: Final = 8 << 20
"""Bytes of a branch that are kept in memory; beyond that it is a temporary file."""


class Spool(io.RawIOBase):
    """Write once, then open as many independent readers as there are participants."""

    def __init__(self, in_memory: int = IN_MEMORY) -> None:
        super().__init__()
        self._file: IO[bytes] = io.BytesIO()
        self._in_memory = in_memory
        self._sha256 = hashlib.sha256()
        self.length = 0

    def writable(self) -> bool:
        """Return True: Arrow's writer asks."""
        return True

    def write(self, data: Any, /) -> int:
        """Append a buffer of bytes."""
        view = memoryview(data)
        self._sha256.update(view)
        self._file.write(view)
        self.length += view.nbytes
        if self.length > self._in_memory and isinstance(self._file, io.BytesIO):
            memory = self._file.getbuffer()
            self._file = tempfile.TemporaryFile(prefix="tpc-")  # noqa: SIM115 - see close
            self._file.write(memory)
        return view.nbytes

    @property
    def digest(self) -> str:
        """`Content-Digest` of all that was written."""
        return write_digest(self._sha256.digest())

    def open(self) -> IO[bytes]:
        """Return a reader from the start, with a position of its own."""
        if isinstance(self._file, io.BytesIO):
            return io.BytesIO(self._file.getvalue())  # shares the bytes
        self._file.flush()
        return io.BufferedReader(_Reader(self._file.fileno()), 1 << 16)

    def close(self) -> None:
        """Drop the bytes."""
        if not self.closed:
            self._file.close()
        super().close()


class _Reader(io.RawIOBase):
    """Reads a file by position, so that several threads can share its descriptor."""

    def __init__(self, descriptor: int) -> None:
        super().__init__()
        self._descriptor = descriptor
        self._position = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count = os.preadv(self._descriptor, [buffer], self._position)
        self._position += count
        return count
