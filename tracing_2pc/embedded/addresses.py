"""What an address without a service names: a table of a database, or an object.

Nothing is connected to here. `ConfigurationError` says what to change, in one line,
and repeats no value of an option.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Final
from urllib.parse import parse_qsl, quote, urlencode

import sqlalchemy as sa

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.outbox import Outbox
from tracing_2pc.participant.engine import ParticipantEngine
from tracing_2pc.store.engines.urls import secrets_in

_OBJECT: Final = "python:"
_OF_TABLES: Final = ("into", "key", "table", "url_file")


@dataclasses.dataclass(frozen=True)
class Address:
    """An address that was read.

    Attributes:
        url: the same address, as it means the same in each working directory.
        database: as resources take it: a URL, or `file:PATH` of one that holds it.
        options: those that are ours, by name.
        file: the database's file, of SQLite.
    """

    url: str
    database: str
    options: Mapping[str, str]
    file: str | None = None


def read_address(url: str) -> Address:
    """Read an address; a relative file becomes an absolute one.

    Raises:
        ConfigurationError: it is none, or has a wrong option or a password.
    """
    if url.startswith(_OBJECT):
        return Address(url, url, {})
    base, _, query = url.partition("?")
    pairs = _pairs(query)
    ours = {name: value for name, value in pairs.items() if name in _OF_TABLES}
    theirs = {name: value for name, value in pairs.items() if name not in _OF_TABLES}
    scheme = base.partition(":")[0].lower()
    _check_options(scheme, ours, theirs)
    if (file := ours.get("url_file")) is not None:
        if theirs or base.removeprefix(f"{scheme}:").strip("/"):
            raise ConfigurationError(
                f"url_file names all of the database: write {scheme}:///?url_file=…"
            )
        place = str(Path(file).absolute())
        ours = {**ours, "url_file": place}
        return Address(with_options(f"{scheme}:///", ours), f"file:{place}", ours)
    database = _database(base, theirs)
    path = database.database if scheme == "sqlite" else None
    text = database.render_as_string(hide_password=False)
    return Address(with_options(text, ours), text, ours, path)


def open_resource(address: Address) -> ParticipantEngine:
    """Return what keeps the rows of an address; it connects when it is asked.

    Raises:
        ConfigurationError: a name that cannot be a table's, a bad database, or an
            object that cannot be imported or is no resource.
        ModuleNotFoundError: a package is not installed.
    """
    if address.url.startswith(_OBJECT):
        return _imported(address.url)
    from tracing_2pc.participant import PreparedTransactions, TaggedRows

    options = address.options
    if "into" in options:
        return PreparedTransactions(address.database, options["into"])
    keys = options.get("key")
    return TaggedRows(
        address.database, options["table"], keys.split(",") if keys else None
    )


def _imported(url: str) -> ParticipantEngine:
    """Return an object of a module, as gunicorn names an application."""
    module, _, attribute = url.removeprefix(_OBJECT).partition(":")
    try:
        resource = getattr(importlib.import_module(module), attribute)
    except Exception as error:
        raise ConfigurationError(
            f"{url} cannot be imported ({type(error).__name__}): write "
            "python:module:attribute, and have the module where tasks run"
        ) from error
    if not isinstance(resource, ParticipantEngine):
        raise ConfigurationError(
            f"{url} is a {type(resource).__name__}, not a resource such as TaggedRows"
        )
    if isinstance(resource, Outbox):
        raise ConfigurationError(
            f"{url} is an Outbox, which sends from a process that lasts: serve it, and "
            "give the address of that service"
        )
    return resource


def _pairs(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, strict_parsing=True) if query else []
    except ValueError:
        raise ConfigurationError(
            "an option is written name=value, with & between two"
        ) from None
    names = [name for name, _ in pairs]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigurationError(f"option {twice[0]} is there twice")
    return dict(pairs)


def _check_options(
    scheme: str, ours: Mapping[str, str], theirs: Collection[str]
) -> None:
    libpq = _libpq_options() if scheme == "postgresql" else frozenset()
    for name in theirs:
        if name not in libpq:
            known = difflib.get_close_matches(name, _OF_TABLES, 1)
            meant = f": is {known[0]} meant?" if known else ""
            raise ConfigurationError(
                f"unknown option {name[:40]!r}{meant or _known(scheme)}"
            )
    if ("table" in ours) == ("into" in ours):
        raise ConfigurationError(
            "add ?table=NAME for a table with a view, or ?into=NAME for a plain table "
            "and prepared transactions: one of them"
        )
    if "into" in ours and "key" in ours:
        raise ConfigurationError("option key goes with table=, not with into=")
    if "into" in ours and scheme == "sqlite":
        raise ConfigurationError("option into needs PostgreSQL: use table= here")


def _known(scheme: str) -> str:
    names = ", ".join(_OF_TABLES)
    also = " and those of libpq" if scheme == "postgresql" else ""
    return f": known are {names}{also}"


def _libpq_options() -> frozenset[str]:
    from psycopg import pq

    return frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults())


def _database(base: str, theirs: Mapping[str, str]) -> sa.URL:
    try:
        url = sa.make_url(base).update_query_dict(dict(theirs))
    except (sa.exc.ArgumentError, ValueError):
        raise ConfigurationError(
            "expected postgresql://user@host/database?table=NAME or "
            "sqlite:///folder/file.db?table=NAME"
        ) from None
    if secrets_in(url):
        raise ConfigurationError(
            "the address holds a password, which would be pickled into Spark's files: "
            "use passfile=, service= or url_file="
        )
    is_file = url.database and url.database != ":memory:"
    if url.get_backend_name() == "sqlite" and is_file:
        url = url.set(database=str(Path(str(url.database)).absolute()))
    return url


def with_options(database: str, options: Mapping[str, str]) -> str:
    """Return an address: options are added to a database; a comma is written %2C."""
    mark = "&" if "?" in database else "?"
    pairs = urlencode(dict(sorted(options.items())), quote_via=quote, safe="/:@")
    return f"{database}{mark}{pairs}"
