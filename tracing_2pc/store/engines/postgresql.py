"""PostgreSQL: sessions that notice a peer that is gone, and transactions that flush.

A process that is frozen inside a transaction loses it, and its locks with it. While the
server waits for more of a COPY it is not idle: an upload may take as long as its client
does.

A small batch is mostly round trips. Sessions are in autocommit mode, and `BEGIN`
travels with the settings and locks of its transaction in one request. It fails there
where nothing may be written (`_WRITABLE`), before anything is read: a standby's data
may be behind, and is no evidence. A read ends without ROLLBACK, at which psycopg would
drop the statements that it has prepared; one statement that reads needs no transaction
at all.
"""

from __future__ import annotations

import functools
import hashlib
import re
import select
from typing import Any, Final

import sqlalchemy as sa

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.settings import PEER_TIMEOUT
from tracing_2pc.store.engines.database import (
    Database,
    Failure,
    leave_where,
    not_now,
)
from tracing_2pc.store.engines.urls import display_url

_NOTICE: Final = {
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 4,
    "tcp_user_timeout": PEER_TIMEOUT * 1_000,
}
"""A peer whose machine is gone is noticed after 30 s; by default after two hours."""

FLUSHED: Final = (
    "set_config('synchronous_commit', CASE current_setting('synchronous_commit') "
    "WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, true)"
)
"""SQL: the open transaction waits for the disk, whatever the role's default is."""

_READ_COMMITTED: Final = "BEGIN ISOLATION LEVEL READ COMMITTED"
"""SQL: what is read after a lock is new. One request with the statement after it."""

_WRITABLE: Final = "set_config('transaction_read_only', 'off', true)"
"""SQL: fails where the open transaction may not write, before anything is read."""

_READ_ONLY: Final = (
    "read-only: a standby, or default_transaction_read_only is on. Promote it, or name "
    "the primary, as by target_session_attrs=read-write in the URL"
)

_IS_READ_ONLY: Final = sa.text(
    "SELECT 1 FROM pg_settings WHERE name = 'default_transaction_read_only' AND "
    "setting = 'on' AND source NOT IN ('user', 'database user', 'client', 'session')"
)
"""SQL: whether that is so for each role; one that only looks may have set it so."""

UNFLUSHED: Final = "set_config('synchronous_commit', 'off', true)"
"""SQL: the open transaction becomes durable with the next flush of this server."""

_DURABILITY: Final = {
    name: f"SHOW {name}" for name in ("fsync", "full_page_writes", "synchronous_commit")
}


class PostgreSQL(Database):
    """The connections to a database; none is opened yet. Arguments as of `SQLite`.

    A server that does not flush is refused when a connection is opened.
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
        # In each transaction: a pooler may give the next one another session. Types are
        # known by their names: quoted ones SQLAlchemy does not recognise.
        begin = (
            f"{_READ_COMMITTED}; SELECT {_WRITABLE}, "
            "set_config('quote_all_identifiers', 'off', true), "
            f"set_config('lock_timeout', '{lock_wait}s', true), "
            "set_config('idle_in_transaction_session_timeout', "
            f"'{peer_timeout()}', true)"
        )
        # Without UTF-8 psycopg takes bytes for text where the server says SQL_ASCII.
        options = {"connect_timeout": 10, "client_encoding": "utf8", **_NOTICE}
        try:
            engine = sa.create_engine(
                url,
                connect_args={k: v for k, v in options.items() if k not in url.query},
                isolation_level="AUTOCOMMIT",  # psycopg begins none: `BEGIN` does
                hide_parameters=True,  # an error is logged, and they are rows
                **pool,
            )
        except ModuleNotFoundError:
            raise ConfigurationError(
                f"{setting}: PostgreSQL needs psycopg 3: "
                "pip install 'tracing-2pc[postgres]'"
            ) from None

        @sa.event.listens_for(engine, "do_connect")
        def connect(_: object, __: object, args: Any, options: Any) -> Any:
            from tracing_2pc.store.engines.sessions import Session  # its driver

            return Session.connect(*args, **options)

        @sa.event.listens_for(engine, "checkout")
        def notice_end(connection: Any, *_: object) -> None:
            try:
                if _has_news(connection):
                    connection.execute(";")
            except engine.dialect.loaded_dbapi.Error:
                raise sa.exc.DisconnectionError("the session has ended") from None

        @sa.event.listens_for(engine, "connect")
        def prepare_session(connection: Any, _: object) -> None:
            _check_server(connection, f"{setting} {display_url(url)}")
            if not _is_pooled(connection):
                _notice_peers(connection, lock_wait)

        leave_where(engine, _reason_to_leave)
        super().__init__(
            url,
            engine,
            write=(f"{begin}, {FLUSHED}",),
            relaxed=(f"{begin}, {UNFLUSHED}",),
            read=("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY",),
            clock="CAST(extract(epoch FROM clock_timestamp()) AS double precision)",
            durability_queries=_DURABILITY,
            failure=failure,
        )

    def lock(self, name: str) -> tuple[str, ...]:
        """Return the SQL of a lock that ends with the transaction."""
        return (f"pg_advisory_xact_lock({advisory_key(name)})",)

    def read_only_reason(self) -> str:
        """Return a reason if each new session is opened read-only."""
        with self.look() as connection:
            return _READ_ONLY if connection.scalar(_IS_READ_ONLY) else ""

    @functools.cached_property
    def keeps_sessions(self) -> bool:
        """A session outlives a transaction; else a pooler takes it away."""
        process = sa.text("SELECT pg_backend_pid()")
        with self.engine.connect() as first:
            before = first.scalar(process)
            first.commit()
            with self.engine.connect() as second:
                taken = second.scalar(process) == before
                return not taken and first.scalar(process) == before


def _has_news(connection: Any) -> bool:
    """Return whether the server has sent an idle session a message, such as its end."""
    poll = select.poll()  # unlike `select.select` it takes any number of a file
    poll.register(connection.fileno(), select.POLLIN)
    return bool(poll.poll(0))


def _check_server(connection: Any, where: str) -> None:
    asked = "SELECT current_setting('fsync'), pg_is_in_recovery()"
    fsync, is_standby = connection.execute(asked).fetchone()
    connection.commit()
    if not is_standby and fsync == "on":
        return
    connection.close()
    if is_standby:  # what it answers may be behind, and is no evidence
        raise not_now(_READ_ONLY)
    raise ConfigurationError(
        f"{where}: PostgreSQL runs with fsync = off: what it commits would not "
        "survive a crash; set fsync = on in postgresql.conf"
    )


def _reason_to_leave(context: sa.engine.ExceptionContext) -> str | None:
    error, statement = context.original_exception, context.statement or ""
    state = getattr(error, "sqlstate", None)
    if state == "25006" or (state == "25001" and _WRITABLE in statement):
        return _READ_ONLY
    if state not in {"42501", "3F000"} or context.connection is None:
        return None
    session: Any = context.connection.connection.driver_connection
    quote = context.dialect.identifier_preparer.quote
    role = quote(session.info.user)
    message = str(error).partition("\n")[0]
    if state == "3F000":
        return (
            f"{message}. Run: CREATE SCHEMA AUTHORIZATION {role}; or let search_path "
            f"of {role} name a schema on which it has USAGE and CREATE"
        )
    lacking = _LACKING.search(message)
    if lacking is None:
        is_owners = statement.startswith("ALTER TABLE")
        run = f". As its owner run: {statement}" if is_owners else ""
        return f"{message}, as role {role}{run}"
    right = _RIGHTS.get(lacking[1], _RIGHTS["table"])
    return f"{message}. Run: GRANT {right} {quote(lacking[2])} TO {role}"


_LACKING: Final = re.compile(r"permission denied for (\w+) (.+)")
_RIGHTS: Final = {
    "schema": "USAGE, CREATE ON SCHEMA",
    "sequence": "SELECT, UPDATE ON SEQUENCE",
    "table": "SELECT, INSERT, UPDATE, DELETE ON",
}


def peer_timeout() -> str:
    """Return how long a peer may be silent, as the server's settings have it."""
    return f"{PEER_TIMEOUT}s"


def _is_pooled(connection: Any) -> bool:
    """Return whether a pooler is before the server, by a new psycopg connection.

    A pooler makes up the process id that it gave the client. Then nothing is prepared
    from now on: the next transaction may be another session's.
    """
    (process,) = connection.execute("SELECT pg_backend_pid()").fetchone()
    connection.commit()
    connection.is_pooled = process != connection.info.backend_pid
    if connection.is_pooled:
        connection.prepare_threshold = None
    return bool(connection.is_pooled)


def _notice_peers(connection: Any, lock_wait: float) -> None:
    """Let the server, too, end the session of a machine that is gone.

    And what waits outside of a transaction: a pooler's sessions are not ours to set.
    """
    names = {f"tcp_{name.removeprefix('tcp_')}": v for name, v in _NOTICE.items()}
    values = {**names, "lock_timeout": f"{lock_wait}s"}
    settings = [f"set_config('{n}', '{v}', false)" for n, v in values.items()]
    connection.execute(f"SELECT {', '.join(settings)}")
    connection.commit()


@functools.lru_cache(maxsize=1_000)
def advisory_key(name: str, bits: int = 64) -> int:
    """Return the key of an advisory lock, signed as PostgreSQL has it."""
    digest = hashlib.sha256(b"tracing_2pc:" + name.encode()).digest()
    return int.from_bytes(digest[: bits // 8], "big", signed=True)
