"""Requests to a partner: stored at prepare, sent after commit, never dropped."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import ConfigurationError, RefusalError
from tracing_2pc.core.model import RequestKey, Unfit
from tracing_2pc.core.states import Refusal, RelayTrouble, RequestState, UnfitKind
from tracing_2pc.outbox.choosing import conflict
from tracing_2pc.outbox.partner import Partner
from tracing_2pc.outbox.partner_request import MakeRequest, made_by
from tracing_2pc.outbox.publications import AnotherBrokerError, Publications, is_used
from tracing_2pc.outbox.publisher import Publisher, cause_of
from tracing_2pc.outbox.records import json_records, read_records
from tracing_2pc.outbox.relay import Message, Relay, write_block
from tracing_2pc.outbox.requests import Requests
from tracing_2pc.outbox.sender import Sender
from tracing_2pc.outbox.stopped_relay import StoppedRelay
from tracing_2pc.outbox.turns import Turns
from tracing_2pc.participant.answers import Answer
from tracing_2pc.participant.body import Source
from tracing_2pc.participant.branch_store import BranchUpload
from tracing_2pc.participant.engine import Order, ParticipantEngine
from tracing_2pc.participant.journal.database import Records
from tracing_2pc.participant.journal.journal import Journal, in_slices
from tracing_2pc.participant.journal.open_database import open_database
from tracing_2pc.participant.journal.schema import Tables
from tracing_2pc.participant.requests import RequestOrder, RequestPage, RequestQuery
from tracing_2pc.participant.resources.loader import Arriving, check_prefix
from tracing_2pc.participant.resources.tagged_branches import TaggedBranches
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.sdk import lifecycle

_LEASE: Final = 30.0

_CHUNK: Final = 1_000
"""Records that one check call names, and one INSERT writes, at most."""

_BLOCK: Final = 1_000
_BLOCK_SIZE: Final = 1 << 18
"""Messages that are stored together, and what their values take, at most."""


logger = logging.getLogger(__name__)

_START_BROKER: Final = "start it, or correct its address; then all goes on by itself"

_RELAYS: Final = frozenset(name for name in vars(Relay) if not name.startswith("_"))


class Outbox(ParticipantEngine):
    """Sends each committed record to a partner, such as `HttpPartner`, or to a relay.

    A relay, such as `KafkaRelay`, takes each transaction whole or not at all, once,
    even after a crash; its docstring has the promises. The rest is about partners.

    *Committed* means durably accepted for sending. One sender for all processes that
    share the database sends one request at a time: applications take turns, each in
    order of batch, branch and row. Each request carries an `Idempotency-Key`, the same
    however often it is sent, and the trace context of its transaction. It is sent until
    the partner takes it, with growing pauses; until then no later one of its
    application is sent. No request is dropped, but two kinds are quarantined for a
    person, in `<name>_tpc_quarantine`, and the next one is sent:

    - a refusal, which is about the record. After ten refusals in a row an application's
      sender stops, logs it, and tries the same request again until it is taken, or
      `resume` is called.
    - a request that fails alone: it failed ten times, then the next one was taken, and
    this one failed once more. Only that one overtakes it.

    In a bulk all this holds for each record separately, except that the partner may
    take those behind one that it does not take. A person has a request sent again, or
    drops it: `tracing-2pc outbox`, or the console.

    A partner that does not know idempotency keys may see a request twice after a
    crash, after a pause longer than the lease, or while the database cannot be
    written. Keys are made of transaction, branch and row: two outboxes of the same
    application need two URLs, or a partner that tells them apart by a header.

    Args:
        url: database URL, as for `TaggedRows`.
        partner: where the requests go; or a relay, whose records go to a broker.
        name: prefix of the tables; one per partner in a database.
        lease: seconds after which another process takes over from a silent sender; by
            default 30, or three times what a call to the partner may wait.
        clock: Unix seconds; by default the database's clock.

    Raises:
        ConfigurationError: a URL that cannot be used or holds a password, or a lease
            that is too short.
    """

    sends = True

    def __init__(
        self,
        url: str,
        partner: Partner | Relay,
        *,
        name: str = "outbox",
        lease: float | None = None,
        clock: Callable[[], float] | None = None,
    ) -> None:
        if not isinstance(partner, Relay) and not hasattr(partner, "send"):
            lacking = sorted(_RELAYS - {*dir(partner)})
            raise ConfigurationError(
                f"{type(partner).__name__} is neither a Partner nor a Relay: "
                f"as a Relay it lacks {', '.join(lacking)}"
            )
        # The broker of a relay fences who had the lease before.
        longest = 0.0 if isinstance(partner, Relay) else partner.longest
        least = 3 * longest
        if lease is not None and lease < least:
            raise ConfigurationError(
                f"lease ({lease:g} s) must be at least three times the partner's "
                f"timeout ({longest:g} s): a request must end within it"
            )
        lease = lease or max(_LEASE, least)
        kind = "relay" if isinstance(partner, Relay) else "outbox"
        tables = Tables(kind, check_prefix(name))
        database = open_database(url)
        journal = Journal(tables, database, clock)
        self._name = name
        self._partner = partner
        self._outgoing: Requests | Publications
        self._person: Requests | StoppedRelay
        self._turns: Turns
        table: _RequestTable
        if isinstance(partner, Relay):
            publications = Publications(tables, database, journal.clock)
            self._outgoing, self._person = publications, StoppedRelay(publications)
            self._turns = Publisher(publications, partner, lease)
            table = _MessageTable(publications, partner)
        else:
            requests = Requests(tables, database, journal.clock, partner.bulk)
            self._outgoing = self._person = requests
            self._turns = Sender(requests, partner, lease)
            table = _PartnerTable(requests.queue.row.name, partner)
        store = TaggedBranches(
            journal,
            table,
            set_up=self._outgoing.set_up,
            committed=self._outgoing.add,
            gauges=self._outgoing.gauges,
        )
        super().__init__(journal, store)

    def open(self) -> None:
        """Check the settings, a relay's first, and make what is missing. Idempotent.

        Raises:
            ConfigurationError: with the setting or the SQL that cures it.
        """
        if isinstance(self._partner, Relay) and not self._opened:
            self._partner.open()
        super().open()

    def start(self) -> None:
        """Start this process's sender, if it does not run yet.

        Our servers, our gunicorn worker and `app.run()` do so when a process begins to
        serve, and so does every request of the blueprint. With another server call it
        after the fork; traces and metrics then know the process by the outbox's name,
        unless `OTEL_SERVICE_NAME` sets another.
        """
        lifecycle.start(self._name)
        instruments.start(self._name)
        self._turns.start()

    def settle(self) -> None:
        """Compare a relay's broker with the one on record; make its topic, if new.

        Raises:
            ConfigurationError: it is another broker than this outbox belongs to, or as
                the relay raises.
        """
        publications, relay = self._outgoing, self._partner
        if isinstance(publications, Requests) or not isinstance(relay, Relay):
            return
        try:
            make = not is_used(publications.positions())
            publications.check_broker(relay.identify(make=make))
            if (settle := getattr(relay, "settle", None)) is not None:
                settle()
        except AnotherBrokerError as error:
            raise ConfigurationError(str(error)) from None
        except ConfigurationError:
            raise
        except Exception as error:  # noqa: BLE001 - each prepare asks again
            logger.info("outbox: not known yet which broker it is: %s", error)

    def waiting(self) -> int:
        """Count records that are committed, and not sent yet."""
        with self._reading() as connection:
            return self._outgoing.count_waiting(connection)

    def rest(self) -> None:
        """Stop sending after the request under way, until `start`."""
        self._turns.rest()

    def commit(self, order: Order) -> Answer:
        """Commit, and wake this process's sender."""
        answer = super().commit(order)
        self._turns.wake()
        return answer

    def list_requests(self, query: RequestQuery) -> RequestPage:
        """List requests in quarantine, or those that a person has dropped."""
        with self._reading() as connection:
            requests = self._person.page(connection, query)
        return RequestPage(requests, self._journal.clock())

    def send_again(self, order: RequestOrder) -> RequestState:
        """Put a request back into its queue, with its key, for a person.

        It gets its old place: before all of its application that the sender has not
        read yet, because the requests sent meanwhile have overtaken it, and no others
        should. Durable when this returns, with the person and the reason. Repeated, it
        changes nothing, and returns whether the request waits or was taken.

        Raises:
            RefusalError: unknown: it is not in quarantine; conflict: it was dropped.
        """
        self._check_order(order)
        with self._outgoing.queue.deciding() as connection:
            state = self._person.again(connection, order)
        self._turns.wake()
        return state

    def drop_request(self, order: RequestOrder) -> RequestState:
        """Take a request out of quarantine for ever, for a person.

        Durable when this returns, with the person and the reason. The request stays in
        `<name>_tpc_by_hand`, with its body, until its row is deleted there: nothing
        else needs it. Repeated, it changes nothing: the first reason is kept.

        Raises:
            RefusalError: unknown: it is not in quarantine; conflict: it was sent again,
                and the partner has taken it.
        """
        self._check_order(order)
        with self._outgoing.queue.deciding() as connection:
            return self._person.drop(connection, order)

    def unfit(self) -> Sequence[Unfit]:
        """Return what does not fit at a relay's broker, asked each minute.

        First that it does not answer, if so.
        """
        person = self._person
        with self._reading() as connection:
            silent = []
            if isinstance(person, StoppedRelay):
                reasons = person.unreadable(connection)
                silent = [Unfit(r, _START_BROKER, UnfitKind.BROKER) for r in reasons]
            return [*silent, *super().unfit(), *self._outgoing.unfit(connection)]

    def _trouble(self, connection: Connection) -> str:
        return self._person.trouble(connection)

    def _check_order(self, order: RequestOrder) -> None:
        with self._reading() as connection:
            row = self._journal.read(connection, order.key.transaction)
            self._check_address(connection, row, order.participant, None)

    def quarantined(self) -> list[dict[str, Any]]:
        """Return the requests in quarantine, oldest first, with their whole bodies."""
        self.open()
        with self._database.read() as connection:
            rows = self._outgoing.quarantine.rows(connection, RelayTrouble.REFUSED)
        return [dict(row._mapping) for row in rows]

    def resume(self) -> None:
        """Let refusals be quarantined again, if ten in a row have stopped the sender.

        From any process; the sender goes on within a minute.
        """
        self.open()
        if isinstance(self._outgoing, Requests):
            self._outgoing.resume()

    def close(self) -> None:
        """Stop sending after the request under way, and give the lease back."""
        self._turns.stop()
        super().close()


class _RequestTable:
    """Where prepare writes records, each as a text (`loader.RecordTable`)."""

    def __init__(self, name: str) -> None:
        self.name = name

    def receive(self, upload: BranchUpload) -> Source:
        return upload.receive()

    def arriving(self, source: Source, upload: BranchUpload) -> Arriving:
        return Arriving(None, in_slices(self._texts(source, upload), _CHUNK))

    def _texts(self, source: Source, upload: BranchUpload) -> Iterator[str]:
        raise NotImplementedError

    def records(
        self, connection: Connection, arriving: Arriving, upload: BranchUpload
    ) -> Records:
        # Made with the journal: nobody alters it.
        return Records(_requests(arriving.batches, upload.tag), typed=upload.is_large)

    def refused(self) -> None:
        pass


class _PartnerTable(_RequestTable):
    """The text of a record is a request."""

    def __init__(self, name: str, partner: Partner) -> None:
        super().__init__(name)
        self._partner = partner

    def receive(self, upload: BranchUpload) -> Source:
        # A checked body is read twice.
        if self._partner.checks:
            return upload.journal.database.spool(upload.body)
        return super().receive(upload)

    def _texts(self, source: Source, upload: BranchUpload) -> Iterator[str]:
        if self._partner.checks:
            for chunk in in_slices(json_records(source, upload.ref.rows), _CHUNK):
                self._partner.check(chunk)
            source.rewind()
        records = json_records(source, upload.ref.rows)
        if (make := self._partner.request) is None:
            return records
        return _made(make, records, upload)


class _MessageTable(_RequestTable):
    """A row holds a block of messages, as they will be sent, by its first record."""

    def __init__(self, publications: Publications, relay: Relay) -> None:
        super().__init__(publications.queue.row.name)
        self._publications = publications
        self._relay = relay

    def arriving(self, source: Source, upload: BranchUpload) -> Arriving:
        try:
            self._publications.check_broker(self._relay.identify())
        except AnotherBrokerError as error:
            raise conflict(str(error)) from None
        except sa.exc.SQLAlchemyError:
            raise
        except Exception as error:  # noqa: BLE001 - a broker's own may be any
            where = getattr(self._relay, "address", "")
            detail = (
                f"the broker{where and f' at {where}'} does not answer: "
                f"{cause_of(error)}: start it, or correct its address"
            )
            raise RefusalError(Refusal.NOT_NOW, detail) from None
        records = read_records(source, upload.ref.rows)
        return Arriving(None, _in_blocks(self._relay.check(records)))

    def records(
        self, connection: Connection, arriving: Arriving, upload: BranchUpload
    ) -> Records:
        count = 0

        def rows() -> Iterator[pa.RecordBatch]:
            nonlocal count
            first = 0
            for block in arriving.batches:
                count = len(block)
                yield _rows(upload.tag, range(first, first + 1), [write_block(block)])
                first += count

        return Records(rows(), typed=True, count=lambda _: count)


def _in_blocks(messages: Iterator[Message]) -> Iterator[list[Message]]:
    block, size = [], 0
    for message in messages:
        block.append(message)
        size += len(message.value or "")
        if len(block) >= _BLOCK or size >= _BLOCK_SIZE:
            yield block
            block, size = [], 0
    if block:
        yield block


def _made(
    make: MakeRequest, records: Iterator[str], upload: BranchUpload
) -> Iterator[str]:
    for row, record in enumerate(records):
        yield made_by(
            make, record, RequestKey(upload.transaction, upload.ref.branch, row)
        )


def _requests(chunks: Iterator[list[str]], tag: int) -> Iterator[Any]:
    first = 0
    for chunk in chunks:
        yield _rows(tag, range(first, first + len(chunk)), chunk)
        first += len(chunk)


def _rows(tag: int, rows: range, bodies: list[str]) -> pa.RecordBatch:
    tags, numbers = pa.repeat(tag, len(rows)), pa.array(rows, pa.int64())
    columns = [tags, numbers, pa.array(bodies, pa.string())]
    return pa.RecordBatch.from_arrays(columns, ["tpc_tag", "tpc_row", "body"])
