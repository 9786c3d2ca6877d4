"""The kinds of participants that every point is tried with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import partial

from tracing_2pc.http.partner import HttpPartner
from tracing_2pc.outbox import Outbox
from tracing_2pc.participant import PreparedTransactions, TaggedRows
from tracing_2pc.participant.engine import ParticipantEngine

TABLE = "numbers"
"""What readers of a ledger SELECT from."""

REFUSED = 2
"""A ledger that refuses rows takes no value with this remainder, by 4."""

TIMEOUT, LEASE = 0.5, 1.5
"""An outbox whose sender was killed is silent for its lease: a short one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """Where participants and the decision log keep their data, and with what.

    Args:
        database: `sqlite` or `postgresql`.
        ledger: makes the resource that holds rows, from its database's URL.
        transport: by which the ledger is reached; the notifier is by HTTP. `embedded`:
            there is no process of it, and whoever asks opens its database.
    """

    database: str
    ledger: Callable[[str], ParticipantEngine]
    transport: str = "http"


def constrained(kind: Kind) -> str:
    """Return the statement that makes a ledger's table, which refuses rows."""
    assert isinstance(kind.ledger, partial)
    name, tag = f"{TABLE}_tpc", ", tpc_tag bigint NOT NULL DEFAULT 0"
    if kind.ledger.func is PreparedTransactions:
        name, tag = TABLE, ""
    columns = "application text, batch bigint, value bigint, text text"
    return f"CREATE TABLE {name} ({columns}{tag}, CHECK (value % 4 <> {REFUSED}))"


def outbox(url: str, partner: str) -> ParticipantEngine:
    """Return requests to a partner."""
    return Outbox(url, HttpPartner(partner, timeout=TIMEOUT), lease=LEASE)


KINDS: dict[str, Kind] = {
    "sqlite": Kind("sqlite", partial(TaggedRows, table=TABLE)),
    "postgresql": Kind("postgresql", partial(TaggedRows, table=TABLE)),
    "grpc": Kind("sqlite", partial(TaggedRows, table=TABLE), "grpc"),
    "nats": Kind("sqlite", partial(TaggedRows, table=TABLE), "nats"),
    "prepared": Kind("postgresql", partial(PreparedTransactions, table=TABLE)),
    "embedded": Kind(
        "postgresql", partial(PreparedTransactions, table=TABLE), "embedded"
    ),
}
"""Add a kind here: every point is then tried with it."""

SERVED = tuple(name for name in KINDS if KINDS[name].transport != "embedded")
"""Those whose ledger is a process of its own."""
