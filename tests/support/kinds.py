"""The kinds of participants that suites are held against, on each database."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from support.branches import Branch
from support.files import FilePlace, Files
from support.participant import World, count, keep, outgoing_of
from support.waiting import AT_ONCE
from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.outbox import Outbox
from tracing_2pc.participant import PreparedTransactions, TaggedRows

SAID = '{"error":\n  "no such card"}'
"""What a partner answers with its 422."""


def tagged_rows(url: str, **settings: Any) -> World:
    """A ledger, whose readers SELECT from a view."""
    resource = TaggedRows(url, "orders", **settings)
    return World(resource, lambda: count(resource, "orders"))


def outbox_to(partner: str, url: str, **options: Any) -> Outbox:
    """Make an outbox whose partner is HTTP: with the options of both."""
    own = {n: options.pop(n) for n in ("name", "lease", "clock") if n in options}
    return Outbox(url, HttpPartner(partner, **options), **own)


def outbox(url: str) -> World:
    """A notifier, whose partner never answers: what is committed stays queued."""
    resource = outbox_to("http://127.0.0.1:9/orders", url, timeout=AT_ONCE)
    return World(resource, lambda: int(resource.gauges()["tpc.outbox.backlog"]))


def refusing_outbox(url: str, branch: Branch, name: str = "participant") -> World:
    """A notifier that never sends, with orders.7.1 refused by its partner: `SAID`."""
    resource = outbox_to("http://127.0.0.1:9/orders", url, timeout=AT_ONCE)
    resource.start = lambda: None  # type: ignore[method-assign]
    world = World(resource, lambda: int(resource.gauges()["tpc.outbox.backlog"]))
    world.name = name
    keep(world, "orders.7.1", branch)
    for request in outgoing_of(world).next("orders"):
        assert outgoing_of(world).move_to_quarantine(request, 422, SAID)
    return world


def prepared_transactions(url: str, **settings: Any) -> World:
    """A ledger, whose readers SELECT from the table itself."""
    resource = PreparedTransactions(url, "orders", **settings)
    return World(resource, lambda: count(resource, "orders"))


KINDS: dict[str, Callable[[str], World]] = {
    "TaggedRows": tagged_rows,
    "Outbox": outbox,
    "PreparedTransactions": prepared_transactions,
}
"""Add a resource here: the whole contract is then held against it."""


def files(url: str) -> World:
    """A folder of files, whose decisions are carried out outside of any database."""
    database = sa.make_url(url).database
    place = FilePlace(Path(f"{database}.files"))
    resource = Files(url, place.folder)
    return World(resource, place.visible)


ALL_KINDS = {**KINDS, "Files": files}

POSTGRESQL_ONLY = frozenset({"PreparedTransactions"})

IN_MAKE_TEST = frozenset({"TaggedRows-sqlite", "PreparedTransactions-postgresql"})
"""Each way to hold rows once; the other variants are for `make ci`."""


def variant(kind: str, database: str) -> Any:
    """Name a participant of a kind on a database, as a parameter of `started`."""
    name = f"{kind}-{database}"
    marks = () if name in IN_MAKE_TEST else (pytest.mark.ci,)
    return pytest.param((kind, database), id=name, marks=marks)


KINDS_AND_DATABASES = [
    variant(kind, database)
    for kind in KINDS
    for database in ("sqlite", "postgresql")
    if database == "postgresql" or kind not in POSTGRESQL_ONLY
]

CONTRACT_KINDS = [*KINDS_AND_DATABASES, variant("Files", "sqlite")]

BOTH_ENDS = [variant("TaggedRows", "sqlite"), variant("TaggedRows", "postgresql")]
"""For what one implementation does in front of all kinds: the two least alike."""


def started(
    request: pytest.FixtureRequest, tmp_path: Path
) -> Iterator[tuple[World, str, str]]:
    """Start the participant that a fixture's parameter names: it, its kind, its URL."""
    kind, database = request.param
    if database == "postgresql":
        url = request.getfixturevalue("postgres_database")
    else:
        url = sqlite_url(tmp_path)
    world = ALL_KINDS[kind](url)
    yield world, kind, url
    world.resource.close()


def sqlite_url(folder: Path, name: str = "participant") -> str:
    return f"sqlite:///{folder / name}.db"
