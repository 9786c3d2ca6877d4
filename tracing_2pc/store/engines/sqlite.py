"""SQLite: one file on a local disk, written ahead, one writer at a time."""

from __future__ import annotations

import contextlib
import re
import sqlite3
import time
from pathlib import Path
from typing import Any, Final

import sqlalchemy as sa

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.store.engines.database import (
    Database,
    Failure,
    leave_where,
    not_now,
)

# IMMEDIATE: a writer waits for the lock at the start, where SQLite does wait.
_WRITE: Final = ("PRAGMA synchronous = FULL", "BEGIN IMMEDIATE")
_RELAXED: Final = ("PRAGMA synchronous = NORMAL", "BEGIN IMMEDIATE")

_DURABILITY: Final = {
    "journal_mode": "PRAGMA journal_mode",
    "synchronous": "SELECT CASE synchronous WHEN 0 THEN 'off' WHEN 1 THEN 'normal' "
    "WHEN 2 THEN 'full' ELSE 'extra' END FROM pragma_synchronous",
}

MOUNTS: Final = Path("/proc/self/mountinfo")
"""Linux's table of what is mounted where; other systems have none."""

_NETWORK: Final = frozenset(
    ("nfs", "nfs4", "cifs", "smb3", "smbfs", "afs", "fuse.sshfs", "fuse.glusterfs")
)
"""Where neither SQLite's locks nor its shared memory can be relied on."""

READ_ONLY: Final = "read-only: the file, its folder or its disk"
DAMAGED: Final = "the file is damaged: restore it ({})"
_DAMAGED: Final = re.compile("malformed|not a database|decode", re.IGNORECASE)
_IDENTITY: Final = "tpc_file"


class SQLite(Database):
    """The connections to a file; none is opened yet.

    A relative file is relative to the working directory. `setting` is its name, for
    messages; `lock_wait` is in seconds; `pool` is in SQLAlchemy's words.

    Raises:
        ConfigurationError: a database in memory, or on a network file system.
    """

    def __init__(
        self,
        url: sa.URL,
        setting: str,
        *,
        lock_wait: float,
        failure: Failure | None = None,
        **pool: int,
    ) -> None:
        file = str(url.database or "")
        if file in ("", ":memory:") or file.startswith("file:"):
            raise ConfigurationError(
                f"{setting}: a database in memory is lost with its process: give a "
                "file, as in sqlite:///state/decisions.db (in tests of a job: "
                "tracing_2pc.testing)"
            )
        path = Path(file).absolute()
        check_disk(path, setting)
        engine = sa.create_engine(
            url.set(database=str(path)),
            # isolation_level None: sqlite3 itself must begin no transaction for us.
            connect_args={"timeout": lock_wait, "isolation_level": None},
            hide_parameters=True,  # an error is logged, and they are rows
            **pool,
        )

        @sa.event.listens_for(engine, "connect")
        def write_ahead(connection: sqlite3.Connection, _: object) -> None:
            try:
                _write_ahead(connection, lock_wait)
            except (sqlite3.Error, UnicodeError) as error:
                if (damage := _damage(error)) is not None:
                    raise not_now(damage) from None
                raise sa.exc.OperationalError("", {}, error) from None

        @sa.event.listens_for(engine, "invalidate")
        def give_the_lock_back(connection: sqlite3.Connection, *_: object) -> None:
            # Closed in a read, SQLite keeps it until the cursor is collected.
            with contextlib.suppress(sqlite3.Error):
                connection.rollback()

        _follow(path, engine)
        leave_where(engine, _reason_to_leave)
        super().__init__(
            url,
            engine,
            write=_WRITE,
            relaxed=_RELAXED,
            read=("BEGIN",),
            clock="(julianday('now') - 2440587.5) * 86400.0",
            durability_queries=_DURABILITY,
            failure=failure,
        )


def _reason_to_leave(context: sa.engine.ExceptionContext) -> str | None:
    # A file that was opened while it was read-only stays so until it is opened anew.
    error = context.original_exception
    if "readonly database" in str(error):
        return READ_ONLY
    return _damage(error)


def _damage(error: BaseException) -> str | None:
    return DAMAGED.format(error) if _DAMAGED.search(str(error)) else None


def storage_faults(database: Database) -> list[str]:
    """Read all of a SQLite file; return its faults, a line each; [] without any.

    Tables and their indexes are compared, which no read of a record does. It takes as
    long as reading the file. The content of a row is checked by its checksum.
    """
    try:
        with database.read() as connection:
            lines = connection.exec_driver_sql("PRAGMA integrity_check(10)").scalars()
            faults = [line.replace("\n", " ") for line in lines if line != "ok"]
    except Exception as error:  # noqa: BLE001 - the owner's, or the driver's
        faults = [str(error).partition("\n")[0]]
    return [f"{database.address}: {DAMAGED.format(line)}" for line in faults]


def _write_ahead(connection: sqlite3.Connection, wait: float) -> None:
    """Switch to WAL: the one statement at which SQLite itself does not wait."""
    deadline = time.monotonic() + wait
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            return
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or time.monotonic() > deadline:
                raise
            time.sleep(0.01)


def check_disk(path: Path, setting: str, mounts: Path = MOUNTS) -> None:
    """Refuse a file on a network file system: there SQLite loses what it committed."""
    try:
        table = mounts.read_text(encoding="utf-8", errors="surrogateescape")
    except OSError:
        return
    point, kind = _mount_of(path.resolve(), table)
    if kind in _NETWORK:
        raise ConfigurationError(
            f"{setting}: {path} is on a network file system ({kind} at {point}), where "
            "SQLite cannot lock and flush reliably. Use PostgreSQL, "
            "postgresql://user@host/database, or a folder on a local disk of this "
            "machine"
        )


def _mount_of(path: Path, table: str) -> tuple[Path, str]:
    """Return where the file system of a path is mounted, and its kind."""
    point, kind = Path("/"), ""
    for line in table.splitlines():
        mount, _, source = line.partition(" - ")
        octal = re.compile(r"\\([0-7]{3})")
        there = Path(octal.sub(lambda c: chr(int(c[1], 8)), mount.split(" ")[4]))
        # The longest wins; of two at the same point the later, which hides the other.
        if path.is_relative_to(there) and len(there.parts) >= len(point.parts):
            point, kind = there, source.split(" ")[0]
    return point, kind


def _follow(path: Path, engine: sa.Engine) -> None:
    """Leave a file that was deleted, or that another one has replaced.

    No other process reads what is written to such a file, and it ends with this
    process. A file that replaces it is used instead; where none does, none is made.
    """
    opened: set[tuple[int, int]] = set()

    def identity() -> tuple[int, int] | None:
        try:
            status = path.stat()
        except OSError:
            if not opened:
                return None
            gone = FileNotFoundError(
                f"{path}: the file is gone, while we had it open. Put it back, or its "
                "newest copy, before an empty one is made"
            )
            raise sa.exc.OperationalError("", {}, gone) from None
        return status.st_dev, status.st_ino

    def before(*_: object) -> None:
        identity()

    def remember(_: object, entry: Any) -> None:
        if (now := identity()) is not None:
            opened.add(now)
        entry.info[_IDENTITY] = now

    def compare(_: object, entry: Any, __: object) -> None:
        if identity() != entry.info[_IDENTITY]:
            raise sa.exc.DisconnectionError("another file is in its place")

    sa.event.listen(engine, "do_connect", before)
    sa.event.listen(engine, "connect", remember)
    sa.event.listen(engine, "checkout", compare)
