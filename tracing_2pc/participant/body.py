"""The body of a prepare: bytes that are counted and digested as they pass.

Records are read from it in Arrow batches, whatever the format on the wire.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import shutil
import tempfile
from collections.abc import Iterable, Iterator
from typing import IO, Any, Final

import pyarrow as pa

from tracing_2pc.participant import arrow_stream, json_lines
from tracing_2pc.participant.problems import Problem
from tracing_2pc.transports import wire

CHUNK: Final = 1 << 18


class Body(io.RawIOBase):
    """A request's body, read once.

    Args:
        stream: where it comes from.
        length: bytes that Content-Length promised; never more are read.
        content_type: Arrow or JSON lines.
        digest: what Content-Digest promised.
    """

    def __init__(
        self, stream: IO[bytes], length: int, content_type: str, digest: str
    ) -> None:
        self._stream = stream
        self._left = length
        self._sha256 = hashlib.sha256()
        self.length = length
        self.content_type = content_type
        self.digest = digest

    def readable(self) -> bool:
        """It is."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read what has arrived; a body that ends early is a problem, not an end."""
        view = memoryview(buffer).cast("B")
        if not (wanted := min(self._left, len(view))):
            return 0
        if not (piece := self._stream.read(wanted)):
            raise Problem(400, f"the body ended {self._left} bytes early")
        view[: len(piece)] = piece
        self._sha256.update(piece)
        self._left -= len(piece)
        return len(piece)

    def drain(self) -> None:
        """Read the rest and drop it, so that the client gets to reading the answer."""
        room = bytearray(CHUNK)
        while self.readinto(room):
            pass

    def verify(self) -> None:
        """Read to the end.

        Raises:
            Problem: 400, the bytes are not those that Content-Digest names.
        """
        self.drain()
        if wire.write_digest(self._sha256.digest()) != self.digest:
            raise Problem(400, "Content-Digest: the body has another digest")


@dataclasses.dataclass(frozen=True)
class Source:
    """Records to write: a body as it arrives, or a spooled one, verified already."""

    file: IO[bytes]
    content_type: str
    length: int
    owned: bool = False

    @classmethod
    def streamed(cls, body: Body) -> Source:
        """Return a body to be read as it arrives."""
        buffered = io.BufferedReader(body, CHUNK)
        return cls(buffered, body.content_type, body.length)

    @classmethod
    def spooled(cls, body: Body) -> Source:
        """Return a body that is on disk, verified, and can be read again."""
        with contextlib.ExitStack() as stack:
            file = stack.enter_context(tempfile.TemporaryFile())
            shutil.copyfileobj(body, file, CHUNK)
            body.verify()
            file.seek(0)
            stack.pop_all()
        return cls(file, body.content_type, body.length, owned=True)

    def __enter__(self) -> Source:
        return self

    def __exit__(self, *exception: object) -> None:
        if self.owned:
            self.file.close()

    def rewind(self) -> None:
        """Go back to the first record of a spooled body."""
        self.file.seek(0)

    def batches(self) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Open the records from the start: their schema, and batches to iterate once.

        JSON lines are read twice: they have to be spooled.

        Raises:
            Problem: 400, this is not what Content-Type says; also while iterating.
        """
        if self.content_type == wire.NDJSON:
            schema = json_lines.read_schema(self.file)
            self.rewind()
            return schema, json_lines.read_batches(self.file, schema)
        with unreadable(self.content_type):
            schema, batches = arrow_stream.read_stream(self.file, self.length)
            # Read once, while a name that is not UTF-8 is caught.
            _ = schema.names
        return schema, _readable(batches, self.content_type)

    def lines(self) -> Iterator[dict[str, Any]]:
        """Read JSON lines one by one, each with its types as they were written."""
        return (record for _, record in json_lines.read_lines(self.file))


class unreadable:  # noqa: N801 - reads as a word of the with statement
    """Turn Arrow's errors into a problem that names the format, and nothing else."""

    def __init__(self, content_type: str) -> None:
        self._content_type = content_type

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, _: Any) -> None:
        if isinstance(error, (pa.ArrowException, OSError, UnicodeDecodeError)):
            detail = f"the body cannot be read as {self._content_type}"
            raise Problem(400, detail) from None


def _readable(batches: Iterable[Any], content_type: str) -> Iterator[Any]:
    with unreadable(content_type):
        yield from batches
