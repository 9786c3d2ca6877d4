"""The messages of one call, as they arrive: its first one, then a body's bytes."""

from __future__ import annotations

import contextlib
import io
import threading
from collections.abc import Iterator
from typing import Any


class Arriving(io.RawIOBase):
    """A caller's messages. No more than one of them waits here to be read.

    gRPC's own iterator waits for ever, and nothing but the end of the call wakes it.
    Here a thread waits in it, so that a read can be ended and still be answered. A
    reader that has enough calls `shutdown`; the thread ends with it, or with the call.
    """

    def __init__(self, messages: Iterator[Any]) -> None:
        self._change = threading.Condition()
        self._waiting: Any = None
        self._is_over = False
        self._left = memoryview(b"")
        thread = threading.Thread(target=self._receive, args=(messages,), daemon=True)
        thread.start()

    def message(self, timeout: float | None = None) -> Any:
        """Return the next message; None where none came in time, or none comes."""
        with self._change:
            self._change.wait_for(lambda: self._waiting or self._is_over, timeout)
            message, self._waiting = self._waiting, None
            self._change.notify_all()
        return message

    def begin(self, first: Any) -> None:
        """Begin a body with the part in the first message."""
        self._left = memoryview(first.payload)

    def readable(self) -> bool:
        """Return True: `io.RawIOBase` asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has arrived; nothing at the end of the body, or of the call."""
        while not self._left:
            if (message := self.message()) is None:
                return 0
            self._left = memoryview(message.payload)
        count = min(len(buffer), len(self._left))
        buffer[:count], self._left = self._left[:count], self._left[count:]
        return count

    def shutdown(self, _how: int = 0) -> None:
        """End what waits for a message, now and later; from any thread."""
        with self._change:
            self._is_over = True
            self._change.notify_all()

    def _receive(self, messages: Iterator[Any]) -> None:
        with contextlib.suppress(Exception):  # the call was ended: so is the body
            for message in messages:
                with self._change:
                    self._change.wait_for(lambda: not self._waiting or self._is_over)
                    if self._is_over:
                        return
                    self._waiting = message
                    self._change.notify_all()
        self.shutdown()
