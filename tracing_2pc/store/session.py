"""Sessions of PostgreSQL, as the decision log and participants have them.

A peer that is gone is noticed on both sides, and a process that is frozen inside a
transaction loses it, and its locks with it. While the server waits for more of a COPY
it is not idle: an upload may take as long as its client does.
"""

from __future__ import annotations

from typing import Any, Final

import sqlalchemy as sa

PATIENCE: Final = 30
"""Seconds after which somebody who says nothing counts as gone."""

_OPTIONS: Final = {
    "connect_timeout": 10,
    # Without UTF-8 psycopg takes bytes for text where the server says SQL_ASCII.
    "client_encoding": "utf8",
    # A server whose machine is gone is noticed after 30 s; by default after two hours.
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": PATIENCE * 1_000,
}

_NOTICE: Final = (
    "SELECT set_config('tcp_keepalives_idle', '10', false), "
    "set_config('tcp_keepalives_interval', '5', false), "
    "set_config('tcp_keepalives_count', '4', false), "
    f"set_config('tcp_user_timeout', '{PATIENCE * 1_000}', false)"
)
"""The same from the server's side: it ends the session of a machine that is gone."""

FLUSHED: Final = (
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
    "WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
)
"""SQL: the open transaction waits for the disk, whatever the role's default is."""

UNFLUSHED: Final = "set_config('synchronous_commit', 'off', true)"
"""SQL: the open transaction becomes durable with the next flush of this server."""


def options(url: sa.URL) -> dict[str, Any]:
    """Return what libpq is told, unless the URL says something else."""
    return {name: v for name, v in _OPTIONS.items() if name not in url.query}


def patience() -> str:
    """Return how long somebody may say nothing, as the server's settings have it."""
    return f"{PATIENCE}s"


def limits(lock: int, *, local: bool) -> str:
    """Return SQL that bounds waits for a lock, and how long nothing is said meanwhile.

    Args:
        lock: seconds to wait for one.
        local: for the open transaction, not for the session.
    """
    of = str(local).lower()
    return (
        f"set_config('lock_timeout', '{lock}s', {of}), "
        f"set_config('idle_in_transaction_session_timeout', '{patience()}', {of})"
    )


def is_pooled(connection: Any) -> bool:
    """Say whether a pooler stands before the server, by a new psycopg connection.

    It has made up the process id that it told. If so, nothing is prepared from now on:
    the next transaction may be another session's.
    """
    (process,) = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.commit()
    if process == connection.info.backend_pid:
        return False
    connection.prepare_threshold = None
    return True


def notice_peers(connection: Any) -> None:
    """Let the server notice when this machine is gone."""
    connection.execute(_NOTICE)
    connection.commit()


def is_kept(engine: sa.Engine) -> bool:
    """Say whether a connection keeps its session when a transaction ends.

    One connection's session is free for another as soon as its transaction has ended,
    or it stays its own. Whether there is a pooler at all is asked first.
    """
    process = sa.text("SELECT pg_backend_pid()")
    with engine.connect() as first:
        before = first.scalar(process)
        first.commit()
        with engine.connect() as second:
            taken = second.scalar(process) == before
            return not taken and first.scalar(process) == before
