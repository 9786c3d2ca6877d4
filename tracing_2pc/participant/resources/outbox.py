"""Requests to a partner: stored at prepare, sent after commit, never dropped."""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

import pyarrow as pa
from sqlalchemy import Connection

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.model import TransactionId
from tracing_2pc.participant.answers import Answer, Held, Named, Seen
from tracing_2pc.participant.body import Body, Source
from tracing_2pc.participant.database import Writer, open_database
from tracing_2pc.participant.resources.journalled import (
    JournalledResource,
    check_prefix,
)
from tracing_2pc.participant.resources.partner import Partner
from tracing_2pc.participant.resources.queue import Queue
from tracing_2pc.participant.resources.records import json_records
from tracing_2pc.participant.resources.sender import Sender
from tracing_2pc.telemetry import lifecycle, metrics

_CHUNK: Final = 1_000
"""Records that one check call names, and one INSERT writes, at most."""


class Outbox(JournalledResource):
    """Sends each committed record to a partner's HTTP API, as one JSON POST.

    *Committed* means durably accepted for sending. Requests leave one at a time, by one
    sender for all processes that share the database: applications take turns, and an
    application's leave in order of batch, branch and row. Each carries an
    `Idempotency-Key`, the same however often it is sent, and the trace context of its
    transaction. It is sent until the partner answers 2xx, with growing pauses; until
    then nothing of its application behind it is sent. Nothing is dropped, but two kinds
    are set aside for a person to look at, in `<name>_tpc_quarantine`, and the next one
    is sent:

    - a refusal: 400, 413 or 422, which speak of the record. All else is "not now": an
      expired token or a wrong address cost time, and no request. After ten refusals
      in a row an application's sender stops, says so, and tries the same request again
      until it is taken, or `resume` is called.
    - a request that fails alone: ten times in vain, then the one behind it was taken,
      and this one not once more. Only that one overtakes it.

    A partner that does not know idempotency keys may see a request twice after a
    crash, after a pause longer than the lease, or while the database cannot be
    written. Keys are made of transaction, branch and row: two outboxes of the same
    application need two URLs, or a partner that tells them apart by a header.

    Args:
        url: database URL, as for `TaggedRows`.
        partner: URL that each record is posted to.
        check: URL that is asked at prepare, with `{"records": [...]}` of up to 1000
            records a time. 400, 409, 413 and 422 are a vote to abort; nothing may
            happen there yet.
        headers: sent with each request; no secrets.
        token: reference to a bearer token for the partner, `env:NAME` or `file:PATH`.
        name: prefix of the tables; one per partner in a database.
        timeout: seconds to connect, and for each read.
        lease: seconds after which another process takes over from a silent sender.
        clock: Unix seconds.

    Raises:
        ConfigurationError: a URL that cannot be used or holds a password, or a lease
            that is too short.
    """

    def __init__(
        self,
        url: str,
        *,
        partner: str,
        check: str | None = None,
        headers: Mapping[str, str] | None = None,
        token: str | None = None,
        name: str = "outbox",
        timeout: float = 5.0,
        lease: float = 30.0,
        clock: Callable[[], float] = time.time,
    ) -> None:
        super().__init__(check_prefix(name), open_database(url), clock)
        if lease < 3 * timeout:
            raise ConfigurationError(
                f"lease ({lease:g} s) must be at least three times timeout "
                f"({timeout:g} s): a request must end within it"
            )
        self._name = name
        self._partner = Partner(partner, check, headers or {}, token, timeout)
        self._queue = Queue(self._tables.metadata, name, self._database)
        self._sender = Sender(self._queue, self._partner, lease, clock)

    @property
    def rows(self) -> str:
        """Name of the table of requests."""
        return self._queue.request.name

    def set_up(self, connection: Connection) -> None:
        """Put the lease on record; the tables are made with the journal's."""
        for tags in (self._queue.request.c.tpc_tag, self._queue.queue.c.tag):
            self._journal.number_above(connection, tags)
        self._queue.set_up(connection)

    def start(self) -> None:
        """Start this process's sender, if it does not run yet.

        Every request of the blueprint does so, health checks too. Call it after the
        fork to go on sending without waiting for one; traces and metrics then know
        the process by the outbox's name, unless `OTEL_SERVICE_NAME` says another.
        """
        lifecycle.start(self._name)
        metrics.start(self._name)
        self._sender.start()

    def receive(self, writer: Writer, body: Body) -> Source:
        """Put a body on disk that is read twice: for the check, and for the rows."""
        if self._partner.checks:
            return Source.spooled(body)
        return super().receive(writer, body)

    def records(
        self, source: Source, transaction: TransactionId, tag: int
    ) -> tuple[list[str], Iterable[Any]]:
        """Ask the partner about all of the records, then return them as requests.

        Raises:
            Problem: 409, the partner refuses; 503, it did not answer.
        """
        if self._partner.checks:
            for chunk in _chunks(json_records(source)):
                self._partner.check(chunk)
            source.rewind()
        return ["tpc_tag", "tpc_row", "body"], _requests(json_records(source), tag)

    def committed(
        self, connection: Connection, seen: Seen, kept: Iterable[Held]
    ) -> None:
        """Queue the committed branches, in the local transaction of the commit."""
        for held in kept:
            self._queue.add(connection, seen, held, self._clock())

    def commit(
        self,
        transaction: TransactionId,
        participant: str,
        named: Sequence[Named],
        watermark: int | None,
    ) -> Answer:
        """Commit, and wake this process's sender."""
        answer = super().commit(transaction, participant, named, watermark)
        self._sender.wake()
        return answer

    def measured(self, connection: Connection) -> dict[str, float]:
        """Measure the journal and the queue."""
        queue = self._queue.gauges(connection, self._clock())
        return super().measured(connection) | queue

    def quarantined(self) -> list[dict[str, Any]]:
        """Return the requests that were set aside, oldest first."""
        self.open()
        with self._database.read() as connection:
            return self._queue.quarantined(connection)

    def resume(self) -> None:
        """Let refusals be set aside again, where ten in a row have stopped the sender.

        From any process; the sender goes on within a minute.
        """
        self.open()
        self._queue.resume()

    def close(self) -> None:
        """Stop sending after the request under way, and give the lease back."""
        self._sender.stop()
        super().close()


def _chunks(records: Iterator[str]) -> Iterator[list[str]]:
    while chunk := list(itertools.islice(records, _CHUNK)):
        yield chunk


def _requests(records: Iterator[str], tag: int) -> Iterator[Any]:
    first = 0
    for chunk in _chunks(records):
        rows = pa.array(range(first, first + len(chunk)), pa.int64())
        columns = [pa.repeat(tag, len(chunk)), rows, pa.array(chunk, pa.string())]
        yield pa.RecordBatch.from_arrays(columns, ["0", "1", "2"])
        first += len(chunk)
