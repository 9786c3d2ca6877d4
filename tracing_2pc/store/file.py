"""The file of a decision log in SQLite: what happens to it while we have it open."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tracing_2pc.errors import DecisionLogError

_FILE: Final = "tpc_file"


def follow(path: Path, *engines: sa.Engine) -> None:
    """Let go of a file that is no longer the log's: deleted, or another in its place.

    What is written to such a file nobody else reads, and it ends with this process.
    Another one in its place is taken for the log; in the place of none, none is made.
    """
    had: set[tuple[int, int]] = set()

    def look() -> tuple[int, int] | None:
        if (found := _identity(path)) is None and had:
            raise DecisionLogError(
                f"decision log {path}: the file is gone, while we had it open. Put it "
                "back, or its newest copy, before anybody makes an empty one"
            )
        return found

    def before(*_: object) -> None:
        look()

    def remember(_: object, entry: Any) -> None:
        if (found := look()) is not None:
            had.add(found)
        entry.info[_FILE] = found

    def compare(_: object, entry: Any, __: object) -> None:
        if look() != entry.info[_FILE]:
            raise sa.exc.DisconnectionError("another file is in the log's place")

    for engine in engines:
        sa.event.listen(engine, "do_connect", before)
        sa.event.listen(engine, "connect", remember)
        sa.event.listen(engine, "checkout", compare)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino
