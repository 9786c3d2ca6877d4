"""Others beside the library: what is compared with what, in the words of the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final

from bench.micro_batches import FLOOR, ROUNDS


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A ratio of what two cost, `measured` divided by `beside`: no limit judges it.

    Args:
        measured: what is done; most often what the library does.
        beside: what is done in its place.
        of: what the ratio is of.
    """

    measured: str
    beside: str
    of: str


_EMPTY: Final = "an empty batch of the coordinator, its log on PostgreSQL"
_BATCH: Final = "a batch of 1,000 rows to two ledgers"
_TRACED: Final = f"{_BATCH}, traced by the library"
_AUTO: Final = "traced by `opentelemetry-instrument`"
_UNTRACED: Final = "the same, not traced"

PEERS: Final[Mapping[str, Peer]] = {
    **{
        f"{FLOOR} {rows}": Peer(
            f"a batch of {rows:,} rows that Spark computes and throws away",
            "two appends of its JDBC sink",
            "time",
        )
        for rows in ROUNDS
    },
    "events copy": Peer(
        "a request of 1,000 events to a gateway, on PostgreSQL",
        "the same rows by COPY into a table with a unique key",
        "time",
    ),
    "events empty": Peer(
        "single events from 32 clients at once",
        "the same requests to a route that only reads",
        "time",
    ),
    "empty pgbench": Peer(
        _EMPTY, "an empty transaction at each of two servers, by `pgbench`", "time"
    ),
    "empty psycopg": Peer(
        _EMPTY, "an empty transaction over both servers, by psycopg", "time"
    ),
    "row psycopg": Peer(
        "a batch of one row to two ledgers, over HTTP",
        "an `INSERT` of the row over both servers, by psycopg",
        "time",
    ),
    "traced-cpu auto": Peer(_TRACED, f"the same, {_AUTO}", "CPU time"),
    "traced-cpu untraced": Peer(_TRACED, _UNTRACED, "CPU time"),
    "auto-cpu untraced": Peer(f"{_BATCH}, {_AUTO}", _UNTRACED, "CPU time"),
    "traced-wall auto": Peer(_TRACED, f"the same, {_AUTO}", "time"),
    "traced-wall untraced": Peer(_TRACED, _UNTRACED, "time"),
    "auto-wall untraced": Peer(f"{_BATCH}, {_AUTO}", _UNTRACED, "time"),
}

TEXT: Final = """\
There is no limit in this table, because no two of these promise the same. A ratio
above 1 means that what is measured costs more than what is beside it.
"""
_FLOOR: Final = """\
### Spark's own job

What Spark takes to compute a batch and to hand the rows to nobody (its sink `noop`) is
a part of every other figure, and nothing that a sink does makes it less. It was
measured in turn with I8, whose base is the same.
"""
_PLAIN_SQL: Final = """\
### Plain SQL

`BEGIN`, `PREPARE TRANSACTION` and `COMMIT PREPARED` at two PostgreSQL servers, one
after the other, by one client that keeps its connections. `pgbench` ends the
transaction at one server before it begins at the other; its start and its connecting
are not counted. psycopg prepares at both servers before it commits at the first.
Nobody traces.

- Plain SQL promises that what a server has prepared survives a crash of the server
  and of the client, and no more. Nobody writes down that both shall commit. If the
  client is killed between the two commits, one server has committed, and the other
  keeps a prepared transaction and its locks until a person decides. Nothing knows
  that a batch was written before: if it is repeated, its rows are there twice.
- The library promises a decision on disk before the first commit, which any process
  can carry out after a crash; that no batch is written twice; and that old attempts
  and old drivers are refused.
- In an *empty* batch the two do not do the same. The coordinator writes to its log
  only, in several database transactions, of which two wait for the disk. Its
  participants acknowledge inside the same process: nothing is sent, and nothing is
  prepared. Plain SQL has no log. It waits for the disk four times, twice at each
  server. So this is what the record costs, beside what two-phase commit without a
  record costs.
- In a batch of *one row* both do all that they do. The library sends the row over
  HTTP to two services under gunicorn; each makes it durable before it votes, and
  shows it to readers at the commit. Plain SQL has no service between: the client
  talks to the servers.

The ratios are about the fixed cost of a batch, which a large batch pays once, too.
Where waiting for the disk takes longer than on this machine, they are smaller.
"""
_TRACING: Final = """\
### Tracing

A driver without Spark and two ledgers under gunicorn, on PostgreSQL; blocks of 20
batches. The three arms have the same code, in one environment, and send their spans
to a collector that keeps nothing. CPU time is that of the driver and of both ledgers,
until all spans are exported. Time is that of the batches alone.

- The library exports 24 spans for such a batch, as one trace: the root with the
  outcome, the coordinator's steps, the sink's phases, each request at both ends, and
  what the ledger does in its database. The root is there even if the driver
  was killed, because it is built from the record.
- `opentelemetry-instrument`, with what it has for Flask and urllib3, exports 8 spans:
  the four requests, at both ends. Each request is a trace of its own; nothing joins
  those of a batch, and no span tells the outcome. The library's own tracing is off in
  this arm. Metrics and log records are off in all.
"""
_NOT_RUN: Final = """\
### What was not run

Not run: Delta, because its newest release, 4.4.1, is for Spark up to 4.2, and this is
Spark 4.3. Not run: Spark's Kafka sink, because its connector for Spark 4.3 could not
be loaded from Maven. Not run: SkyWalking's own agent for Python, because of such a
batch it would trace the services' four requests only, by its source (1.3.0): of urllib3
it wraps `PoolManager.request`, and the library's client sends by its pools. Not run:
Flink, Temporal, Seata and DTM, because each needs servers of its own, which are no part
of this project.
"""
SECTIONS: Final = (_FLOOR, _PLAIN_SQL, _TRACING, _NOT_RUN)
"""What is to be known of each."""
