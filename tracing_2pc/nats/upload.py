"""A request's body, on its way from the event loop to the thread that reads it."""

from __future__ import annotations

import queue
from collections.abc import Callable


class Upload:
    """A body that is read by one thread; the unread part is bounded.

    Its client sends no more than a window of frames before the first of them was read.
    One that does is cut off.

    Args:
        length: bytes that were promised.
        most: frames that may wait.
        read: called, in the reading thread, for each frame of which more must follow.
    """

    def __init__(self, length: int, most: int, read: Callable[[], object]) -> None:
        self._frames: queue.SimpleQueue[bytes] = queue.SimpleQueue()
        self._most = most
        self._read = read
        self._to_come = length
        self._left = memoryview(b"")
        self._ended = not length

    def feed(self, data: bytes) -> None:
        """Take what arrived; nothing is the end, of a body that was cut."""
        waiting = self._frames.qsize()
        if waiting <= self._most:  # else it was cut off before
            self._frames.put(data if waiting < self._most else b"")

    def shutdown(self, _how: int = 0) -> None:
        """Let reads end, now and later."""
        self._frames.put(b"")

    def read(self, size: int = -1) -> bytes:
        """Return so many bytes as soon as they are here; fewer where the body ends."""
        wanted = size if size >= 0 else self._to_come + len(self._left)
        parts: list[bytes] = []
        while wanted and (self._left or self._next()):
            piece = bytes(self._left[:wanted])
            self._left = self._left[len(piece) :]
            wanted -= len(piece)
            parts.append(piece)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def _next(self) -> bool:
        if self._ended:
            return False
        data = self._frames.get()
        self._to_come -= len(data)
        self._left = memoryview(data)
        self._ended = not data or self._to_come <= 0
        if not self._ended:
            self._read()
        return bool(data)
