"""How the records of a body get into a table, or are refused."""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Iterable, Iterator
from typing import Any, NamedTuple, Protocol

from sqlalchemy import Connection

from tracing_2pc.core.errors import ConfigurationError, MalformedError, RefusalError
from tracing_2pc.core.states import Refusal
from tracing_2pc.participant.body import Source
from tracing_2pc.participant.journal.database import (
    Database,
    Definition,
    TableChangedError,
)
from tracing_2pc.participant.resources.branch_store import Upload, ViolatedError
from tracing_2pc.store.engines.database import PLACE, describe_error
from tracing_2pc.tracing.spans import database_span

logger = logging.getLogger(__name__)


class Records(NamedTuple):
    """Arrow batches of a table's columns, as `Database.load` takes them."""

    batches: Iterable[Any]
    typed: bool = False
    definition: Definition | None = None


class RecordTable(Protocol):
    """A table that records go into, and what becomes of them on the way."""

    name: str

    @property
    def is_ready(self) -> bool:
        """The table is there, and its columns are known."""

    def receive(self, upload: Upload) -> Source:
        """Return the body to read records from."""

    def records(self, source: Source, upload: Upload) -> Records:
        """Return what is to be written.

        Raises:
            RefusalError: the table cannot hold them.
        """

    def refused(self) -> None:
        """Forget what is known of the table: it refused records that seemed to fit."""


@contextlib.contextmanager
def loaded(
    database: Database, table: RecordTable, upload: Upload
) -> Iterator[Connection]:
    """Open the durable transaction that holds all of an upload's records, verified.

    Raises:
        RefusalError: they are not what was announced, or the table refuses them.
        ViolatedError: a constraint or trigger of the table refuses one of them.
    """
    with table.receive(upload) as source:
        records = table.records(source, upload)
        batches = _counted(records.batches, upload.ref.rows)
        # Before the transaction: the server ends one that waits for a slow client. Once
        # COPY has begun it may take its time.
        first = list(itertools.islice(batches, 1))
        with upload.writer.write() as connection:
            kept = records._replace(batches=itertools.chain(first, batches))
            upload.verify(_load(database, connection, table, kept))
            yield connection


def load_kept(
    database: Database, connection: Connection, table: RecordTable, upload: Upload
) -> None:
    """Write all of an upload's records, whose body is in memory; raises as `loaded`."""
    with table.receive(upload) as source:
        records = table.records(source, upload)
        counted = _counted(records.batches, upload.ref.rows)
        kept = records._replace(batches=counted)
        upload.verify(_load(database, connection, table, kept))


def _load(
    database: Database, connection: Connection, table: RecordTable, records: Records
) -> int:
    driver, system = database.driver, connection.dialect.name
    try:
        place = connection.get_execution_options()[PLACE]
        verb = "COPY" if system == "postgresql" else "INSERT"
        with database_span(verb, place, table.name):
            return database.load(
                connection,
                table.name,
                iter(records.batches),
                typed=records.typed,
                definition=records.definition,
            )
    except (driver.DataError, OverflowError):
        raise MalformedError("a value does not fit the column it is for") from None
    except driver.IntegrityError:
        raise ViolatedError from None
    except TableChangedError:
        raise altered(table) from None
    except driver.Error as error:
        if _is_raised_by_trigger(error):
            raise ViolatedError from None
        if reason := database.refusal(error):
            table.refused()
            detail = f"the table does not take these records: {reason}"
            raise RefusalError(Refusal.CONFLICT, detail, state="unknown") from None
        logger.warning("records not written: %s", describe_error(error))
        detail = "the participant's database did not answer: ask again"
        raise RefusalError(Refusal.NOT_NOW, detail) from None


def altered(table: RecordTable) -> RefusalError:
    """Refuse an upload that was made for a table as it is no more; read that again."""
    table.refused()
    detail = "the table has been altered meanwhile: ask again"
    return RefusalError(Refusal.NOT_NOW, detail)


def _counted(batches: Iterable[Any], most: int) -> Iterator[Any]:
    """Pass batches with records on, until there are more than were announced."""
    rows = 0
    for batch in batches:
        rows += batch.num_rows
        if rows > most:
            raise MalformedError(f"Tpc-Rows: it says {most}, the body has more records")
        if batch.num_rows:
            yield batch


def _is_raised_by_trigger(error: Exception) -> bool:
    """Tell whether a trigger of the table raised an error: PostgreSQL's class P0."""
    return str(getattr(error, "sqlstate", "")).startswith("P0")


def check_prefix(name: str) -> str:
    """Return a name that tables can be made from.

    Raises:
        ConfigurationError: it is not one.
    """
    if not (
        name.isascii() and name.isidentifier() and name.islower() and len(name) <= 40
    ):
        raise ConfigurationError(
            f"{name[:60]!r}: use 1 to 40 lower-case letters, digits and underscores, "
            "starting with a letter"
        )
    return name
