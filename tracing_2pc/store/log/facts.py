"""The columns of a transaction: one list, of which its SQL and its records are made.

To add a fact, add a line to `FACTS` and a field of that name to `TransactionRecord`.
Where lists of transactions show it, too, `TransactionSummary` has the same field.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import operator
from collections.abc import Callable, Iterable, Set
from typing import Any, Final, NamedTuple

import sqlalchemy as sa

from tracing_2pc.core.log_reader import TransactionSummary
from tracing_2pc.core.model import (
    Carrier,
    JournalAt,
    TransactionRecord,
    carrier_from_json,
)
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.store.engines.database import storable
from tracing_2pc.store.kit import added
from tracing_2pc.store.log.receipts import canonical

Store = Callable[[TransactionRecord], Any]
Read = Callable[[Any], Any]


class Fact(NamedTuple):
    """A column, the value that a record stores there, and how it is read back.

    `read` is None where no field of the record has that name. A fact that `changes` is
    stored again with each new state. A `foreign` one is text from elsewhere: it may
    hold characters that the database does not take.
    """

    name: str
    types: tuple[type, ...]
    column: sa.Column[Any]
    store: Store
    read: Read | None
    changes: bool
    foreign: bool


_TYPES: Final = {sa.Text: (str,), sa.BigInteger: (int,), sa.Double: (float, int)}


def _of(
    column: sa.Column[Any],
    store: Store | None,
    read: Read | None,
    *,
    changes: bool,
    foreign: bool = False,
) -> Fact:
    own = store or operator.attrgetter(column.name)
    types = _TYPES[type(column.type)]
    return Fact(column.name, types, column, own, read, changes, foreign)


def _as_stored(value: Any) -> Any:
    return value


def _fact(
    name: str,
    type_: sa.types.TypeEngine[Any],
    store: Store | None = None,
    read: Read | None = _as_stored,
    *,
    changes: bool = False,
    primary_key: bool = False,
    server_default: str | None = None,
) -> Fact:
    column = sa.Column(
        *(name, type_),
        nullable=False,
        primary_key=primary_key,
        server_default=server_default,
    )
    return _of(column, store, read, changes=changes)


def _maybe(
    name: str,
    type_: sa.types.TypeEngine[Any],
    store: Store | None = None,
    read: Read = _as_stored,
    *,
    changes: bool = True,
    foreign: bool = False,
    since: str | None = None,
) -> Fact:
    """A fact that is None until it is known."""
    column = added(since, name, type_) if since else sa.Column(name, type_)
    return _of(column, store, read, changes=changes, foreign=foreign)


def _word(name: str) -> Store:
    attribute = operator.attrgetter(name)
    return lambda record: (word := attribute(record)) and str(word)


def _stored_links(record: TransactionRecord) -> str | None:
    return canonical(record.links) if record.links else None


def _contexts(text: str | None) -> tuple[Carrier, ...]:
    return tuple(map(Carrier, json.loads(text))) if text else ()


def _stored_journals(record: TransactionRecord) -> str | None:
    return canonical(record.journals) if record.journals else None


def journals_from_json(text: str | None) -> dict[str, JournalAt]:
    """Read journals as they are stored; no text has none."""
    items = json.loads(text).items() if text else ()
    return {name: JournalAt(*journal) for name, journal in items}


def _stored_rejected(record: TransactionRecord) -> int | None:
    return record.rejected if record.rejects and record.decision else None


def _rows(stored: int | None) -> int:
    return stored or 0


def checksum_of(record: TransactionRecord) -> str:
    """Return SHA-256 over what the protocol reads: it detects a torn or edited record.

    Not over the receipts of a batch that is committed everywhere: they are dropped
    later. The ids of journals are in it, because a participant with another id is told
    nothing; their addresses are not, because no address in the log is opened. Of a
    launch it covers the place too: an abort looks there for the objects that were made.
    """
    committed = record.state is TransactionState.COMMITTED
    read = {
        "id": str(record.id),
        "batch": record.id.batch,
        "attempt": record.id.attempt,
        "run": record.run,
        "state": str(record.state),
        "decision": record.decision and str(record.decision),
        "participants": record.participants,
        "deadline": record.deadline,
        "own_sinks": sorted(record.own_sinks),
        "given_up": sorted(record.given_up),
        "receipts": [
            [str(r.branch), r.participant, r.rows, r.digest, str(r.vote), r.handle]
            for r in (() if committed else record.receipts)
        ],
    }
    if record.journals:
        read["journals"] = {name: known.id for name, known in record.journals.items()}
    launch = [record.launch_digest, record.launch_namespace]
    launch += [record.launch_repository, record.launch_builder]
    if any(launch):
        read["launch"] = launch
    if record.rejects:
        read["rejects"] = record.rejects
    return hashlib.sha256(canonical(read).encode()).hexdigest()


FACTS: Final = (
    _fact("id", sa.Text(), lambda r: str(r.id), None, primary_key=True),
    _fact("application", sa.Text(), lambda r: r.id.application, None),
    _fact("batch", sa.BigInteger(), lambda r: r.id.batch, None),
    _fact("attempt", sa.BigInteger(), lambda r: r.id.attempt, None),
    _fact("run", sa.Text()),
    _fact("state", sa.Text(), _word("state"), TransactionState, changes=True),
    _maybe("decision", sa.Text(), _word("decision"), lambda w: w and Decision(w)),
    _fact("started", sa.Double()),
    _maybe("decided", sa.Double()),
    _maybe("finished", sa.Double()),
    _fact("timeout", sa.Double(), server_default="0"),
    _maybe("deadline", sa.Double(), changes=False),
    _fact("carrier", sa.Text(), lambda r: canonical(r.carrier), Carrier.from_json),
    # The traceparent of the attempt before it at the same batch.
    _maybe("previous", sa.Text(), changes=False),
    _maybe("root_link", sa.Text(), changes=False),
    _maybe("root_start", sa.BigInteger(), changes=False),
    _maybe("root_resource", sa.Text(), changes=False),
    _maybe("launch_digest", sa.Text(), changes=False),
    _maybe("launch_namespace", sa.Text(), changes=False),
    _maybe("launch_repository", sa.Text(), changes=False),
    _maybe("launch_builder", sa.Text(), changes=False),
    # Contexts that its rows came with, as JSON.
    _maybe("links", sa.Text(), _stored_links, _contexts),
    _maybe("rows", sa.BigInteger(), lambda r: r.rows if r.decision else None, _rows),
    # The participant for rows that others refuse, and how many they were.
    _maybe("rejects", sa.Text(), changes=False),
    _maybe("rejected", sa.BigInteger(), _stored_rejected, _rows),
    _maybe("cause", sa.Text()),  # of an abort
    _maybe("detail", sa.Text(), foreign=True),
    # Why it was quarantined, if it ever was.
    _maybe("reason", sa.Text(), foreign=True),
    # The batch of a stream that was begun after it, and refused.
    _maybe("passed_by", sa.BigInteger()),
    # Of each participant the id of its journal, and its address, as JSON.
    _maybe("journals", sa.Text(), _stored_journals, journals_from_json),
    _fact("checksum", sa.Text(), checksum_of, None, changes=True),
)
"""The checksum covers what the protocol decides by, and no other fact."""


@functools.cache
def present(absent: Set[str], *, only_changes: bool = False) -> tuple[Fact, ...]:
    """Return the facts whose columns are there; of those that change, or of all."""
    return tuple(
        fact
        for fact in FACTS
        if fact.name not in absent and (fact.changes or not only_changes)
    )


@functools.cache
def listed(absent: Set[str]) -> tuple[Fact, ...]:
    """Return the facts that lists show, those of a summary, and how they are read."""
    names = {field.name for field in dataclasses.fields(TransactionSummary)}
    # Not decided is not zero rows; and who has no trace context is only not linked.
    lenient = {"rows": _as_stored, "carrier": carrier_from_json}
    return tuple(
        fact._replace(read=lenient.get(fact.name, fact.read))
        for fact in present(absent)
        if fact.name in names
    )


def stored(
    connection: sa.Connection, record: TransactionRecord, facts: Iterable[Fact]
) -> dict[str, Any]:
    """Return the values of some of a record's columns."""
    values = {}
    for fact in facts:
        value = fact.store(record)
        if fact.foreign and value is not None:
            value = storable(connection, value)
        values[fact.name] = value
    return values


def read(facts: Iterable[Fact], row: Iterable[Any]) -> dict[str, Any]:
    """Return the fields of a record from a row that begins with these facts.

    Raises:
        TypeError, ValueError: a value is damaged.
    """
    fields = {}
    for fact, value in zip(facts, row):  # noqa: B905 - other columns follow
        # In SQLite one bit makes 0 of a NULL.
        if value is not None and not isinstance(value, fact.types):
            raise TypeError(fact.name)
        if fact.read is _as_stored:
            fields[fact.name] = value
        elif fact.read is not None:
            fields[fact.name] = fact.read(value)
    return fields
