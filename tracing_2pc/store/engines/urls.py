"""Addresses of databases: the accepted ones, and the parts that may be shown."""

from __future__ import annotations

import itertools
import pathlib
from typing import Final

import sqlalchemy as sa

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.settings import is_reference, read_secret

_DRIVERS: Final = {
    "sqlite": "sqlite+pysqlite",
    "sqlite+pysqlite": "sqlite+pysqlite",
    "postgresql": "postgresql+psycopg",
    "postgresql+psycopg": "postgresql+psycopg",
}
_SECRET_OPTIONS: Final = ("password", "sslpassword", "oauth_client_secret")
"""Options of libpq that hold a secret."""


def database_url(reference: str, setting: str) -> sa.URL:
    """Return the URL of a database, with the driver that we use.

    `reference` is a URL, or `env:NAME` of a variable, or `file:PATH` of a file, that
    holds one: only that may hold a password. `setting` is its name, for messages.

    Raises:
        ConfigurationError: not a URL of SQLite or PostgreSQL, or one with a password.
    """
    by_name = is_reference(reference)
    text = read_secret(reference, setting) if by_name else reference
    try:
        url = sa.make_url(text)
    except (sa.exc.ArgumentError, ValueError):
        raise ConfigurationError(f"{setting}: {_EXPECTED}") from None
    has_port = url.port is None or 0 < url.port < 1 << 16
    if not text.isprintable() or not has_port:
        raise ConfigurationError(f"{setting}: {_EXPECTED}")
    if (driver := _DRIVERS.get(url.drivername)) is None:
        raise ConfigurationError(f"{setting} ({url.drivername}): {_EXPECTED}")
    if not by_name and secrets_in(url):
        raise ConfigurationError(
            f"{setting}: the URL holds a password. Write `env:NAME` and keep the URL "
            "in that environment variable, or leave the password to the database's "
            "own password file (~/.pgpass)"
        )
    if passwords := url.normalized_query.get("password"):
        # As the URL's own password it is masked where SQLAlchemy shows the URL.
        url = url.difference_update_query(["password"]).set(password=passwords[-1])
    return url.set(drivername=driver)


def display_url(url: sa.URL) -> str:
    """Return an address without its password and its options, which may be secret."""
    name = url.get_backend_name()
    shown = url.set(drivername=name, query={})
    return shown.render_as_string(hide_password=True)


def missing_file(url: sa.URL) -> str | None:
    """Return the file of a SQLite URL if it is not there; to connect would make it."""
    path = pathlib.Path(url.database or "")
    is_missing = url.get_backend_name() == "sqlite" and not path.is_file()
    return str(path) if is_missing else None


def describe_place(url: sa.URL) -> dict[str, str | int]:
    """Return a database's attributes by OpenTelemetry's conventions; nothing secret."""
    system, name = url.get_backend_name(), url.database or ""
    if system == "sqlite":
        name = pathlib.PurePath(name).name
    hosts = url.normalized_query.get("host", ())
    host = url.host or (hosts[0] if len(hosts) == 1 else None)
    place: dict[str, str | int] = {"db.system.name": system, "db.namespace": name}
    if host:
        place |= {"server.address": host, "server.port": url.port or 5432}
    return place


def secrets_in(url: sa.URL) -> list[str]:
    """Return every secret that a URL holds."""
    options = (url.normalized_query.get(name, ()) for name in _SECRET_OPTIONS)
    candidates = [str(url.password or ""), *itertools.chain(*options)]
    return [secret for secret in candidates if secret]


_EXPECTED: Final = (
    "expected sqlite:///folder/file.db or postgresql://user@host/database, or env:NAME "
    "of a variable that holds it"
)
