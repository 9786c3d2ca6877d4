"""Death inside a database's own commit: at a system call, in a file, of a session."""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
from support.waiting import AT_LAST, PAUSE


class CannotReachError(Exception):
    """This environment does not let us do it."""


@contextlib.contextmanager
def killed_at_flush(pid: int, report: Path) -> Iterator[None]:
    """Let the process die at its next flush, before that has happened.

    Args:
        pid: of the process.
        report: file for what strace says.

    Raises:
        CannotReachError: strace is not there, or may not trace.
    """
    if (strace := shutil.which("strace")) is None:
        raise CannotReachError("strace is not installed: run tools/strace")
    command = [
        *(strace, "-f", "-p", str(pid), "-e", "trace=fdatasync"),
        *("-e", "inject=fdatasync:signal=KILL:when=1"),
    ]
    with report.open("wb") as output:
        tracer = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output
        )
    try:
        _until_attached(tracer, report)
        yield
    finally:
        tracer.kill()
        tracer.wait()


def _until_attached(tracer: subprocess.Popen[bytes], report: Path) -> None:
    until = time.monotonic() + AT_LAST
    while "attached" not in (said := report.read_text()):
        if tracer.poll() is not None or time.monotonic() > until:
            raise CannotReachError(f"strace cannot attach: {said.strip()[:200]}")
        time.sleep(PAUSE / 10)


def cut(log: Path, count: int, flushed: int) -> None:
    """Cut bytes off the end of a write-ahead log, as a power cut may.

    Args:
        log: the file.
        count: how many bytes.
        flushed: its size when it was last flushed: no disk loses those.
    """
    left = log.stat().st_size - count
    if left < flushed:
        raise CannotReachError(f"{count} bytes are more than were not flushed")
    os.truncate(log, left)


@contextlib.contextmanager
def killed_in_commit(url: str, table: str, when: str) -> Iterator[None]:
    """Let the session that does something die in its COMMIT, after the block.

    A deferred trigger waits there for a lock that is ours.

    Args:
        url: of the database, in a server that this harness started.
        table: what the session writes to.
        when: what it does there: `INSERT`, `UPDATE` or both, and `WHEN` a condition.
    """
    with psycopg.connect(url, autocommit=True) as ours:
        event, _, condition = when.partition(" WHEN ")
        ours.execute(
            "CREATE FUNCTION tested_wait() RETURNS trigger LANGUAGE plpgsql AS "
            "'BEGIN PERFORM pg_advisory_xact_lock(1, 1); RETURN NULL; END'"
        )
        ours.execute(
            f"CREATE CONSTRAINT TRIGGER tested_wait AFTER {event} ON {table} "
            f"DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN {condition} "
            "EXECUTE FUNCTION tested_wait()"
        )
        ours.execute("SELECT pg_advisory_lock(1, 1)")
        yield
        os.kill(_waiting(ours), signal.SIGKILL)
        # The server ends every session, ours too, and starts again.


def _waiting(ours: psycopg.Connection[tuple[int, ...]]) -> int:
    until = time.monotonic() + AT_LAST
    while time.monotonic() < until:
        found = ours.execute(
            "SELECT pid FROM pg_stat_activity WHERE datname = current_database() "
            "AND wait_event = 'advisory' AND query ILIKE 'commit%'"
        ).fetchone()
        if found:
            return found[0]
        time.sleep(PAUSE / 10)
    raise CannotReachError("no session came to its COMMIT")
