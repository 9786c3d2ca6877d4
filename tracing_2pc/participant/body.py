"""The body of a prepare: bytes that are counted and digested as they pass.

Records are read from it in Arrow batches, in any format on the wire.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import io
import shutil
import tempfile
from collections.abc import Iterator
from typing import IO, Any, Final

import pyarrow as pa

from tracing_2pc.core import content
from tracing_2pc.core.errors import MalformedError
from tracing_2pc.participant import arrow_stream, json_lines

CHUNK: Final = 1 << 18

AT_ONCE: Final = 1 << 20  # bytes of a body that is read into memory first, at most


class Body(io.RawIOBase):
    """A request's body, read once: the bytes and the digest that were promised."""

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
        """Return True: `io.RawIOBase` asks."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Read the bytes that have arrived; `MalformedError` if the body ends early."""
        view = memoryview(buffer).cast("B")
        if not (wanted := min(self._left, len(view))):
            return 0
        if not (piece := self._stream.read(wanted)):
            raise MalformedError(f"the body ended {self._left} bytes early")
        view[: len(piece)] = piece
        self._sha256.update(piece)
        self._left -= len(piece)
        return len(piece)

    def verify(self) -> None:
        """Read to the end; raise `MalformedError` if the digest is not the promised."""
        room = bytearray(CHUNK)
        while self.readinto(room):
            pass
        if content.write_digest(self._sha256.digest()) != self.digest:
            raise MalformedError("Content-Digest: the body has another digest")


@dataclasses.dataclass(frozen=True)
class Source:
    """Records to write: of a body as it arrives, or of one that is here, verified."""

    file: IO[bytes]
    content_type: str
    length: int
    owned: bool = False

    @classmethod
    def streamed(cls, body: Body) -> Source:
        """Return a body to be read as it arrives."""
        return cls(io.BufferedReader(body, CHUNK), body.content_type, body.length)

    @classmethod
    def spooled(cls, body: Body, folder: str | None = None) -> Source:
        """Return a body that is here, verified, and can be read again.

        A small one is in memory, another in a file without a name in this folder.
        """
        with contextlib.ExitStack() as stack:
            file: IO[bytes] = io.BytesIO()
            if body.length > AT_ONCE:
                file = stack.enter_context(tempfile.TemporaryFile(dir=folder))
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

    def batches(self, rows: int) -> tuple[pa.Schema, Iterator[pa.RecordBatch]]:
        """Open the records from the start: their schema, and batches to iterate once.

        Raises:
            MalformedError: the body has not the format in Content-Type, or there are
                more records than `rows`; also while iterating.
        """
        if self.content_type == content.NDJSON:
            schema = json_lines.read_schema(self.file, rows)
            self.rewind()
            return schema, json_lines.read_batches(self.file, schema, rows)
        schema, batches = arrow_stream.read_stream(self.file, self.length)
        return schema, _at_most(rows, batches)

    def lines(self, rows: int) -> Iterator[dict[str, Any]]:
        """Read JSON lines one by one, each with its types as they were written."""
        return (record for _, record in json_lines.read_lines(self.file, rows))


def _at_most(rows: int, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    count = 0
    for batch in batches:
        count += batch.num_rows
        json_lines.check_count(count, rows)
        yield batch
