"""Others beside the library: what is compared with what, in the words of the page."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Final


@dataclasses.dataclass(frozen=True, slots=True)
class Peer:
    """A ratio of what `library` and `other` cost: a fact, which no limit judges.

    Args:
        library: what the library does.
        other: what the other does, or who stands in its place.
        of: what is measured.
    """

    library: str
    other: str
    of: str


_EMPTY: Final = "an empty batch of the coordinator, its log on PostgreSQL"

PEERS: Final[Mapping[str, Peer]] = {
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
}

TEXT: Final = """\
There is no limit in this table, because no two of these promise the same. A ratio
above 1 means that the library takes longer.
"""
PLAIN_SQL: Final = """\
### Plain SQL

`BEGIN`, `PREPARE TRANSACTION` and `COMMIT PREPARED` at two PostgreSQL servers, one after
the other, by one client that keeps its connections. `pgbench` ends the transaction at
one server before it begins at the other. psycopg prepares at both before it commits at
the first. Nobody traces.

- Plain SQL promises that what a server has prepared survives a crash of the server and
  of the client, and no more. Nobody writes down that both shall commit. If the client
  is killed between the two commits, one server has committed, and the other keeps a
  prepared transaction and its locks until a person decides. Nothing knows that a batch
  was written before: if it is repeated, its rows are there twice.
- The library promises a decision on disk before the first commit, which any process can
  carry out after a crash; that no batch is written twice; and that old attempts and old
  drivers are refused.
- In an *empty* batch the two do not do the same. The coordinator writes to its log only,
  in several database transactions, of which two wait for the disk. Its participants
  acknowledge inside the same process: nothing is sent, and nothing is prepared. Plain
  SQL has no log. It waits for the disk four times, twice at each server. So this is what
  the record costs, beside what two-phase commit without a record costs.
- In a batch of *one row* both do all that they do. The library sends the row over HTTP
  to two services under gunicorn; each makes it durable before it votes, and shows it to
  readers at the commit. Plain SQL has no service between: the client talks to the
  servers.

The ratios are about the fixed cost of a batch, which a large batch pays once, too. Where
waiting for the disk takes longer than on this machine, they are smaller.
"""
NOT_RUN: Final = """\
### What was not run

Not run: Delta, because its newest release, 4.4.1, is for Spark up to 4.2, and this is
Spark 4.3. Not run: Spark's Kafka sink, because its connector for Spark 4.3 could not be
loaded from Maven. Not run: Flink, Temporal, Seata and DTM, because each needs servers of
its own, which are no part of this project.
"""
