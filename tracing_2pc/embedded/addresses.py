"""Addresses without a service: of a table, a topic, a queue, or an object.

Nothing is connected to here. `ConfigurationError` names the cure, in one line, and
repeats no value of an option.
"""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import re
from collections.abc import Callable, Collection, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Literal
from urllib.parse import parse_qsl, quote, unquote, urlencode

import sqlalchemy as sa

from tracing_2pc.core.addresses import split_address
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.outbox import Outbox
from tracing_2pc.outbox.relay import Relay
from tracing_2pc.participant.engine import ParticipantEngine
from tracing_2pc.participant.resources.loader import check_prefix
from tracing_2pc.store.engines.urls import secrets_in

_OBJECT: Final = "python:"
_OF_TABLES: Final = ("deleted", "evolve", "into", "key", "table", "url_file")
_OF_BROKERS: Final = ("headers", "key", "outbox", "prefix")
_OF_TOPICS: Final = ("allow_uncompacted", *_OF_BROKERS, "tombstone")
_OF_QUEUES: Final = ("ca", *_OF_BROKERS, "password", "user")
_PORTS: Final = {"activemq": 61613, "kafka": 9092}
_NO_LETTER: Final = re.compile(r"[^a-z0-9_]")


@dataclasses.dataclass(frozen=True)
class Address:
    """An address that was read.

    Attributes:
        url: the same address, as it means the same in each working directory.
        open: makes what keeps its rows, which connects when it is asked. It may raise
            `ConfigurationError`, or `ModuleNotFoundError` of a package.
    """

    url: str
    open: Callable[[], ParticipantEngine]


def read_address(url: str) -> Address:
    """Read an address; a relative file becomes an absolute one.

    Raises:
        ConfigurationError: it is none, or has a wrong option or a password.
    """
    if url.startswith(_OBJECT):
        return Address(url, partial(_imported, url))
    base, _, query = url.partition("?")
    scheme, pairs = base.partition(":")[0].lower(), _pairs(query)
    return (_topic if scheme in _PORTS else _table)(scheme, base, pairs)


def is_address(url: str) -> bool:
    """Whether a URL names what a participant keeps, and not a database alone."""
    scheme, query = url.partition(":")[0].lower(), url.partition("?")[2]
    names = {name for name, _ in parse_qsl(query)}
    return f"{scheme}:" == _OBJECT or scheme in _PORTS or bool(names & {*_OF_TABLES})


def _table(scheme: str, base: str, pairs: Mapping[str, str]) -> Address:
    ours = {name: value for name, value in pairs.items() if name in _OF_TABLES}
    theirs = {name: value for name, value in pairs.items() if name not in _OF_TABLES}
    _check_known(theirs, _OF_TABLES, libpq=scheme == "postgresql")
    _check_options(scheme, ours)
    if (file := ours.get("url_file")) is not None:
        if theirs or base.removeprefix(f"{scheme}:").strip("/"):
            raise ConfigurationError(
                f"url_file names all of the database: write {scheme}:///?url_file=…"
            )
        place = str(Path(file).absolute())
        ours = {**ours, "url_file": place}
        url = with_options(f"{scheme}:///", ours)
        return Address(url, partial(_rows, f"file:{place}", ours))
    text = _database(base, theirs)
    return Address(with_options(text, ours), partial(_rows, text, ours))


def _rows(database: str, options: Mapping[str, str]) -> ParticipantEngine:
    from tracing_2pc.participant import TaggedRows

    evolve: Literal["add"] | None = "add" if "evolve" in options else None
    if "into" in options:  # needs PostgreSQL's driver, which others do without
        from tracing_2pc.participant import PreparedTransactions

        return PreparedTransactions(database, options["into"], evolve=evolve)
    key, deleted = _names(options, "key"), options.get("deleted")
    return TaggedRows(database, options["table"], key, deleted=deleted, evolve=evolve)


def _topic(scheme: str, base: str, pairs: Mapping[str, str]) -> Address:
    known = _OF_TOPICS if scheme == "kafka" else _OF_QUEUES
    # Settings of librdkafka, which checks them, have a dot in their names, but for one.
    ours = {
        name: value
        for name, value in pairs.items()
        if scheme != "kafka" or not ("." in name or name == "oauth_cb")
    }
    settings = {name: pairs[name] for name in pairs.keys() - ours.keys()}
    _check_known(ours.keys() - {*known}, known, libpq=False)
    servers, _, topic = base.partition("://")[2].partition("/")
    if "@" in servers:
        raise ConfigurationError(
            "who logs in is no part of an address: use "
            + ("sasl.username=" if scheme == "kafka" else "user=")
        )
    if not servers or not (topic := unquote(topic)):
        raise ConfigurationError(
            f"expected {scheme}://host:port/NAME?outbox=postgresql://user@host/database"
        )
    if not (outbox := ours.get("outbox")):
        raise ConfigurationError(
            "add ?outbox=postgresql://user@host/database: what is committed waits "
            "there until the broker has it"
        )
    if "tombstone" in ours and not ours.get("key"):
        raise ConfigurationError("option tombstone deletes by key: add key=")
    if ours.get("allow_uncompacted", "true") != "true":
        raise ConfigurationError(
            "option allow_uncompacted: write true, or leave it out"
        )
    places = []
    for place in servers.split(","):
        try:
            port = split_address(f"//{place}").port
        except ValueError as error:
            raise ConfigurationError(str(error)) from None
        places.append(place if port else f"{place}:{_PORTS[scheme]}")
    servers = ",".join(places)
    url = f"{scheme}://{servers}/{quote(topic)}"
    ours["outbox"] = _outbox(outbox)
    make = partial(_sent, scheme, servers, topic, ours, settings)
    return Address(with_options(url, {**settings, **ours}), make)


def _outbox(url: str) -> str:
    """Return the database of an outbox; a relative file becomes an absolute one."""
    if url.startswith("file:"):
        return f"file:{Path(url.removeprefix('file:')).absolute()}"
    base, _, query = url.partition("?")
    if (scheme := base.partition(":")[0]) not in ("postgresql", "sqlite"):
        raise ConfigurationError(
            "option outbox: expected postgresql://user@host/database, "
            "sqlite:///folder/file.db, or file:PATH of a file that holds it"
        )
    theirs = _pairs(query)
    _check_known(theirs, (), libpq=scheme == "postgresql")
    return _database(base, theirs)


def _sent(
    scheme: str,
    servers: str,
    topic: str,
    options: Mapping[str, str],
    settings: Mapping[str, str],
) -> ParticipantEngine:
    relay: Relay
    key, headers = options.get("key"), _names(options, "headers") or ()
    if scheme == "kafka":
        from tracing_2pc.kafka import KafkaRelay

        relay = KafkaRelay(
            servers,
            topic=topic,
            key=key,
            headers=headers,
            tombstone=options.get("tombstone"),
            allow_uncompacted="allow_uncompacted" in options,
            settings=settings,
        )
    else:
        from tracing_2pc.activemq import ActiveMQRelay

        relay = ActiveMQRelay(
            servers,
            queue=topic,
            key=key,
            headers=headers,
            user=options.get("user"),
            password=options.get("password"),
            ca=options.get("ca"),
        )
    name = options.get("prefix") or _NO_LETTER.sub("_", f"{scheme}_{topic}".lower())
    try:
        check_prefix(name)
    except ConfigurationError as error:
        raise ConfigurationError(f"option prefix: {error}") from None
    return Outbox(options["outbox"], relay, name=name)


def _names(options: Mapping[str, str], name: str) -> list[str] | None:
    return options[name].split(",") if options.get(name) else None


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


def _check_known(
    names: Collection[str], known: Collection[str], *, libpq: bool
) -> None:
    """Refuse an option that is none of ours, and none of libpq's if that gets it."""
    for name in sorted({*names} - (_libpq_options() if libpq else set())):
        close = difflib.get_close_matches(name, known, 1)
        listed = [*filter(None, [", ".join(known), "those of libpq" if libpq else ""])]
        which = (
            f"is {close[0]} meant?" if close else f"known are {' and '.join(listed)}"
        )
        raise ConfigurationError(f"unknown option {name[:40]!r}: {which}")


def _check_options(scheme: str, ours: Mapping[str, str]) -> None:
    if ("table" in ours) == ("into" in ours):
        raise ConfigurationError(
            "add ?table=NAME for a table with a view, or ?into=NAME for a plain table "
            "and prepared transactions: one of them"
        )
    for name in ("key", "deleted"):
        if "into" in ours and name in ours:
            raise ConfigurationError(f"option {name} goes with table=, not with into=")
    if "deleted" in ours and not ours.get("key"):
        raise ConfigurationError("option deleted hides keys: add key=")
    if ours.get("evolve", "add") != "add":
        raise ConfigurationError("option evolve: add is the only value that it has")
    if "into" in ours and scheme == "sqlite":
        raise ConfigurationError("option into needs PostgreSQL: use table= here")


def _libpq_options() -> frozenset[str]:
    from psycopg import pq

    return frozenset(option.keyword.decode() for option in pq.Conninfo.get_defaults())


def _database(base: str, theirs: Mapping[str, str]) -> str:
    """Return the URL of a database."""
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
    return url.render_as_string(hide_password=False)


def with_options(database: str, options: Mapping[str, str]) -> str:
    """Return an address: options are added to a database; a comma is written %2C."""
    mark = "&" if "?" in database else "?"
    pairs = urlencode(dict(sorted(options.items())), quote_via=quote, safe="/:@")
    return f"{database}{mark}{pairs}"
