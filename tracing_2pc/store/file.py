"""The file of a decision log in SQLite: what happens to it while we have it open."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tracing_2pc.errors import ConfigurationError, DecisionLogError

_FILE: Final = "tpc_file"

MOUNTS: Final = Path("/proc/self/mountinfo")
"""Linux's table of what is mounted where; other systems have none."""

_NETWORK: Final = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "fuse.sshfs", "fuse.glusterfs")
)
"""Where neither SQLite's locks nor its shared memory can be relied on."""


def check_disk(path: Path, mounts: Path = MOUNTS) -> None:
    """Refuse a file on a network file system: there SQLite loses what it committed.

    Where there is no table of mounts nothing is refused.

    Raises:
        ConfigurationError: it is on one; says what to use instead.
    """
    try:
        table = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    point, kind = _mount_of(path.resolve(), table)
    if kind in _NETWORK:
        raise ConfigurationError(
            f"log: {path} is on a network file system ({kind} at {point}), where "
            "SQLite cannot lock and flush reliably. Use PostgreSQL, "
            "log='postgresql://user@host/database', or a folder on a local disk of "
            "the driver's machine"
        )


def _mount_of(path: Path, table: str) -> tuple[Path, str]:
    """Return where the file system of a path is mounted, and its kind."""
    point, kind = Path("/"), ""
    for line in table.splitlines():
        mount, _, source = line.partition(" - ")
        there = Path(re.sub(r"\\([0-7]{3})", _unescaped, mount.split(" ")[4]))
        # The longest wins; of two at the same point the later, which hides the other.
        if path.is_relative_to(there) and len(there.parts) >= len(point.parts):
            point, kind = there, source.split(" ")[0]
    return point, kind


def _unescaped(octal: re.Match[str]) -> str:
    return chr(int(octal[1], 8))


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
