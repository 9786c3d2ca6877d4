"""Loads the records of a body into a table, or refuses them."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import ConfigurationError, MalformedError, RefusalError
from tracing_2pc.core.states import OF_ROWS, Refusal
from tracing_2pc.participant.body import Source
from tracing_2pc.participant.branch_store import BranchUpload, ViolatedError
from tracing_2pc.participant.journal.database import Database, Records, TableGoneError
from tracing_2pc.participant.resources.rejected_rows import RejectedRows
from tracing_2pc.store.engines.database import PLACE, describe_error, refuse_not_now
from tracing_2pc.tracing.spans import database_span

logger = logging.getLogger(__name__)


class Arriving(NamedTuple):
    """The source of an upload's records, before their table is looked at."""

    schema: pa.Schema | None
    batches: Iterator[Any]


class RecordTable(Protocol):
    """A table for records, and their conversion on the way."""

    name: str

    def receive(self, upload: BranchUpload) -> Source:
        """Return the body to read records from."""

    def arriving(self, source: Source, upload: BranchUpload) -> Arriving:
        """Open the records, and make the table if it is not there.

        Raises:
            RefusalError: no table can hold them.
        """

    def records(
        self, connection: Connection, arriving: Arriving, upload: BranchUpload
    ) -> Records:
        """Return the rows to write in the open transaction, with the upload's tag.

        The table must not be altered from now on until the transaction ends.

        Raises:
            RefusalError: the table cannot hold them.
        """

    def refused(self) -> None:
        """Drop the cached state of the table: it refused records that seemed to fit."""


@contextlib.contextmanager
def open_load(
    table: RecordTable,
    upload: BranchUpload,
    *,
    will_be_prepared: bool = False,
    hidden: sa.Select[Any] | None = None,
) -> Iterator[tuple[Connection, int]]:
    """Open the durable transaction that holds all of an upload's records, verified.

    It yields their tag, too, which it draws if the upload has none. If it
    `will_be_prepared`, it is left open. If a refusal is to name rows, they are looked
    for: `hidden` selects the tags of those that no reader sees.

    Raises:
        RefusalError: they differ from the announcement, or the table refuses them.
        UnderWayError: another request writes the same branch.
        ViolatedError: a constraint or trigger of the table refuses one of them.
    """
    database = upload.journal.database
    named = upload.name_rows > 0
    with database.spool(upload.body) if named else table.receive(upload) as source:
        is_written = False
        try:
            opened = _opened(table, upload, source, will_be_prepared=will_be_prepared)
            with opened as (connection, tag):
                is_written = True
                yield connection, tag
        except (RefusalError, ViolatedError) as error:
            of_rows = isinstance(error, ViolatedError) or error.refusal in OF_ROWS
            if is_written or not named or not of_rows:
                raise
            search = RejectedRows(table, upload, hidden)
            with _refusing(table, database):
                rows = search.find(source)
            if not rows:
                raise
            raise ViolatedError(str(error), rows) from None


@contextlib.contextmanager
def _opened(
    table: RecordTable, upload: BranchUpload, source: Source, *, will_be_prepared: bool
) -> Iterator[tuple[Connection, int]]:
    journal, database = upload.journal, upload.journal.database
    arriving = table.arriving(source, upload)
    # Before the transaction: the server ends one that waits for a slow client. Once
    # COPY has begun it may take its time.
    first = list(itertools.islice(arriving.batches, 1))
    arriving = arriving._replace(batches=itertools.chain(first, arriving.batches))
    with contextlib.ExitStack() as stack:
        with _refusing(table, database):
            locked = None if arriving.schema is None else table.name
            wanted = str(upload.tag) if upload.tag else journal.statements.next_tag
            opened = database.upload(
                upload.name, wanted, locked, will_be_prepared=will_be_prepared
            )
            connection, tag = stack.enter_context(opened)
            _load(connection, table, arriving, dataclasses.replace(upload, tag=tag))
        yield connection, tag


@contextlib.contextmanager
def _refusing(table: RecordTable, database: Database) -> Iterator[None]:
    """Turn an error of the database into a refusal, or "not now"."""
    driver = database.driver
    try:
        yield
    except driver.IntegrityError as error:
        raise ViolatedError(database.violation(error)) from None
    except TableGoneError:
        table.refused()
        detail = "the table is no longer there, and is made again: ask again"
        raise RefusalError(Refusal.NOT_NOW, detail) from None
    except driver.Error as error:
        # A trigger of the table raised it: PostgreSQL's class P0.
        if str(getattr(error, "sqlstate", "")).startswith("P0"):
            raise ViolatedError(database.violation(error)) from None
        if reason := database.refusal(error):
            table.refused()
            detail = f"the table does not take these records: {reason}"
            raise RefusalError(Refusal.CONFLICT, detail, state="unknown") from None
        logger.warning("records not written: %s", describe_error(error))
        raise RefusalError(Refusal.NOT_NOW, refuse_not_now(error)) from None


def _load(
    connection: Connection, table: RecordTable, arriving: Arriving, upload: BranchUpload
) -> None:
    place, system = connection.get_execution_options()[PLACE], connection.dialect.name
    database, last = upload.journal.database, None
    sent = rows = 0

    def counted(batches: Iterable[Any]) -> Iterator[Any]:
        nonlocal sent, rows, last
        for batch in batches:
            sent, rows = sent + records.count(batch), rows + batch.num_rows
            last = batch
            if batch.num_rows:
                yield batch

    records = table.records(connection, arriving, upload)
    verb = "COPY" if system == "postgresql" else "INSERT"
    with database_span(verb, place, table.name):
        try:
            counting = records._replace(batches=counted(records.batches))
            kept = database.load(connection, table.name, counting)
        except (database.driver.DataError, OverflowError) as error:
            raise MalformedError(database.misfit(connection, error, last)) from None
    records.written()
    upload.verify(sent)
    if kept != rows:
        detail = f"the table has kept {kept} of {rows} records: a trigger drops others"
        raise RefusalError(Refusal.CONFLICT, detail, state="unknown")


def check_prefix(name: str) -> str:
    """Return a name that tables can be made from, or raise `ConfigurationError`."""
    if not (
        name.isascii() and name.isidentifier() and name.islower() and len(name) <= 40
    ):
        raise ConfigurationError(
            f"{name[:60]!r}: use 1 to 40 lower-case letters, digits and underscores, "
            "starting with a letter"
        )
    return name
