"""Finds the rows of a branch that a table cannot keep, by trying and rolling back.

Blocks of rows are written under savepoints, as an upload of their own each, in one
transaction that ends in a rollback. Where a block is refused the row that COPY names is
tried alone, which is a hint only (a text has many lines); without a hint the block is
halved. The good rows stay until the end, so of two that exclude each other the first is
kept, and rows that a foreign key refused are tried again when all others are there.

Only an error of a row names one: a value that a column cannot hold, a constraint. An
error of the table (a column that is missing or has another type, a trigger, a right, a
lock) is raised before any row is tried, or ends the search.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
import re
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import pyarrow as pa
import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core import content
from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import RejectedRow
from tracing_2pc.core.states import Refusal
from tracing_2pc.participant.body import Source
from tracing_2pc.participant.branch_store import BranchUpload
from tracing_2pc.participant.journal.database import Database
from tracing_2pc.participant.journal.journal import rows_of

if TYPE_CHECKING:
    from tracing_2pc.participant.resources.loader import RecordTable

BLOCK: Final = 1_000
"""Rows that are tried together: those that are written again for one that is refused.
"""

_UPLOADS: Final = 10**6
"""More than one search writes."""

_KINDS: Final = {
    "23502": "NOT NULL",
    "23503": "FOREIGN KEY",
    "23505": "UNIQUE",
    "23514": "CHECK",
    "23P01": "EXCLUDE",
}
_LATE: Final = "FOREIGN KEY"
_ONE_OF_TWO: Final = frozenset({"UNIQUE", "EXCLUDE"})
"""Kinds that refuse a row because of another one."""

_COLUMNS_OF: Final = sa.text(
    "SELECT attname FROM pg_constraint c JOIN pg_attribute a "
    "ON attrelid = conrelid AND attnum = ANY (conkey) "
    "WHERE conrelid = to_regclass(:name) AND conname = :constraint ORDER BY attnum"
)

_LINE: Final = re.compile(r"^COPY [^\n]*?, line (\d+)(?:, column ([^\n:]*))?", re.M)
_FUNCTION: Final = re.compile(r"^PL/pgSQL ", re.M)
"""In the context of an error that a function, as of a trigger, has raised."""

_WHICH: Final = re.compile(r"\brecord \d+(, column [^:]*)?: ")
_OF_SQLITE: Final = re.compile(
    r"(UNIQUE|NOT NULL|CHECK|FOREIGN KEY) constraint failed(?:: (.*))?"
)
_MISMATCH: Final = "datatype mismatch"
"""SQLite's message for a value that is no number, for a key that is one."""


class _Failure(NamedTuple):
    """The error that refused rows; of several the column and reason of one."""

    column: str
    reason: str
    kind: str = ""
    line: int | None = None  # of the row that the database names, from 0


@dataclasses.dataclass
class RejectedRows:
    """One search. `hidden` selects the tags of rows that no reader sees, if any."""

    table: RecordTable
    upload: BranchUpload
    hidden: sa.Select[Any] | None
    _rows: dict[int, RejectedRow] = dataclasses.field(default_factory=dict)
    # Those that another row was in the way of, or not there yet for: kind, and row.
    _again: dict[int, tuple[str, Any]] = dataclasses.field(default_factory=dict)
    _uploads: Iterator[int] = dataclasses.field(default_factory=itertools.count)

    def find(self, source: Source) -> tuple[RejectedRow, ...]:
        """Return rows without which the others would be taken, all together.

        One more than `upload.name_rows` at most: the others were not tried then. None
        where another try of the same task is in the way.

        Raises:
            RefusalError: it is not about rows; or not now, where a row in doubt of
                another transaction is in the way.
        """
        if source.content_type != content.ARROW:
            return ()  # what a line leaves out is not in its batch
        source.rewind()
        schema, batches = source.batches(self.upload.ref.rows)
        name, next_tag = self.upload.name, self.upload.journal.statements.next_tag
        try:
            opened = self._database.upload(f"{name} rows", next_tag, self.table.name)
            with opened as (connection, tag):
                self.upload = dataclasses.replace(self.upload, tag=tag)
                self._write(connection, pa.RecordBatch.from_pylist([], schema))
                raise _FoundError(self._search(connection, batches))
        except _FoundError as end:
            return end.rows
        except _DroppedError:
            return ()

    @property
    def _database(self) -> Database:
        return self.upload.journal.database

    @property
    def _is_over(self) -> bool:
        return len(self._rows) > self.upload.name_rows

    def _search(
        self, connection: Connection, batches: Iterator[Any]
    ) -> tuple[RejectedRow, ...]:
        number = 0
        for batch in batches:
            for start in range(0, batch.num_rows, BLOCK):
                self._keep(connection, batch.slice(start, BLOCK), number + start)
            number += batch.num_rows
        if not self._is_over:
            self._keep_late(connection)
        if self.hidden is not None and self._is_own(connection, self.hidden):
            return ()
        return tuple(self._rows[number] for number in sorted(self._rows))

    def _keep(self, connection: Connection, batch: Any, number: int) -> None:
        """Write rows but for those that are refused; the first has this number."""
        while batch.num_rows and not self._is_over:
            if (failure := self._try(connection, batch)) is None:
                return
            if batch.num_rows == 1:
                rejected = RejectedRow(number, failure.column, failure.reason)
                self._rows[number] = rejected
                if failure.kind in {*_ONE_OF_TWO, _LATE}:
                    self._again[number] = failure.kind, batch
                return
            cut = failure.line
            if cut is None or cut >= batch.num_rows:
                cut = batch.num_rows // 2
                self._keep(connection, batch.slice(0, cut), number)
            else:
                self._keep(connection, batch.slice(0, cut), number)
                self._keep(connection, batch.slice(cut, 1), number + cut)
                cut += 1
            batch, number = batch.slice(cut), number + cut

    def _keep_late(self, connection: Connection) -> None:
        """Try again, with all others there: referenced rows may have come later."""
        late = {n: row for n, (kind, row) in self._again.items() if kind == _LATE}
        while late:
            table = pa.Table.from_batches([*late.values()]).combine_chunks()
            kept = [*late]  # rows that refer to each other, too
            if self._try(connection, table.to_batches()[0]) is not None:
                kept = [n for n in late if self._try(connection, late[n]) is None]
            if not kept:
                return
            for number in kept:
                del late[number], self._rows[number]

    def _is_own(self, connection: Connection, hidden: sa.Select[Any]) -> bool:
        """Find the owner of the row in the way: a unique index has hidden rows, too.

        Rows that other branches of this transaction have prepared are there to stay,
        but for those of the same partition: they are of an earlier try of this task,
        or of its twin.

        Raises:
            RefusalError: not now, because of a row of another transaction in doubt.
        """
        b, upload = self.upload.journal.tables.branch, self.upload
        rows = sa.table(self.table.name, sa.column("tpc_tag"))
        prepared = sa.select(b.c.tag).where(b.c.state == "prepared")
        this = sa.and_(*rows_of(b, upload.transaction))
        own = b.c.partition == upload.ref.branch.partition
        others = rows.c.tpc_tag.in_(prepared.where(sa.not_(this)))
        peers = rows.c.tpc_tag.in_(prepared.where(this, sa.not_(own)))
        is_hidden = rows.c.tpc_tag.in_(hidden)
        if self._goes_in(connection, rows, is_hidden & ~others & ~peers):
            return True
        if self._goes_in(connection, rows, is_hidden & others):
            detail = "a row of a transaction in doubt is in the way: ask again"
            raise RefusalError(Refusal.NOT_NOW, detail)
        for number in self._goes_in(connection, rows, is_hidden & peers):
            about = dataclasses.replace(self._rows[number], is_peers=True)
            self._rows[number] = about
        return False

    def _goes_in(
        self, connection: Connection, rows: Any, gone: sa.ColumnElement[bool]
    ) -> list[int]:
        """Delete some rows; return the rejected ones that are taken then."""
        unique = [n for n, (kind, _) in self._again.items() if kind in _ONE_OF_TWO]
        if not unique or not connection.execute(sa.delete(rows).where(gone)).rowcount:
            return []
        return [n for n in unique if self._try(connection, self._again[n][1]) is None]

    def _try(self, connection: Connection, batch: Any) -> _Failure | None:
        """Write rows, all or none; return the error that refused them."""
        driver = self._database.driver
        failure: _Failure | None = None
        connection.exec_driver_sql("SAVEPOINT tpc_rows")
        try:
            self._write(connection, batch)
        except (driver.IntegrityError, driver.DataError, OverflowError) as error:
            connection.exec_driver_sql("ROLLBACK TO SAVEPOINT tpc_rows")
            failure = self._describe(connection, error)
        except RefusalError as error:
            if error.column is None:
                raise
            connection.exec_driver_sql("ROLLBACK TO SAVEPOINT tpc_rows")
            reason = _WHICH.sub("", str(error))  # its number here is not the branch's
            failure = _Failure(error.column, reason)
        connection.exec_driver_sql("RELEASE SAVEPOINT tpc_rows")
        return failure

    def _write(self, connection: Connection, batch: Any) -> None:
        """Write rows as an upload of their own."""
        stream = io.BytesIO()
        with pa.ipc.new_stream(stream, batch.schema) as writer:
            writer.write_batch(batch)
        source = Source(stream, content.ARROW, stream.tell())
        source.rewind()
        ref = dataclasses.replace(self.upload.ref, rows=batch.num_rows)
        # A tag for each: an outbox numbers its rows within one. No branch has these.
        tag = -(self.upload.tag * _UPLOADS + next(self._uploads))
        upload = dataclasses.replace(self.upload, ref=ref, tag=tag)
        arriving = self.table.arriving(source, upload)
        records = self.table.records(connection, arriving, upload)
        made = [batch for batch in records.batches if batch.num_rows]
        again = records._replace(batches=iter(made))
        kept = self._database.load(connection, self.table.name, again) if made else 0
        if kept != sum(batch.num_rows for batch in made):
            raise _DroppedError

    def _describe(self, connection: Connection, error: Any) -> _Failure:
        """Name column and constraint of an error; no value, for others read it.

        One that a trigger raises is raised: it may be of another table.
        """
        diag: Any = getattr(error, "diag", None)
        if diag is None:
            return self._describe_in_sqlite(error)
        if _FUNCTION.search(diag.context or ""):
            raise error
        kind = _KINDS.get(str(error.sqlstate), "")
        line = _LINE.search(diag.context or "")
        key = re.match(r"Key \(([^)]*)\)=", diag.message_detail or "")
        column = diag.column_name or (key and key[1]) or (line and line[2]) or ""
        if not column and diag.constraint_name:
            about = {"name": self.table.name, "constraint": diag.constraint_name}
            columns = connection.execute(_COLUMNS_OF, about).scalars()
            column = ", ".join(columns)
        reason = f"{kind} {diag.constraint_name or ''}".strip() or type(error).__name__
        return _Failure(column, reason, kind, int(line[1]) - 1 if line else None)

    def _describe_in_sqlite(self, error: Exception) -> _Failure:
        """Name them as `_describe`."""
        if (match := _OF_SQLITE.match(str(error))) is None:
            is_integrity = isinstance(error, self._database.driver.IntegrityError)
            if is_integrity and str(error) != _MISMATCH:
                raise error
            return _Failure("", type(error).__name__)
        kind, about = match[1], match[2] or ""
        if kind == "CHECK":
            return _Failure("", f"CHECK {about}", kind)
        prefix = f"{self.table.name}."
        if about and not about.startswith((prefix, "index ")):
            raise error
        names = [name.removeprefix(prefix) for name in about.split(", ")]
        return _Failure(", ".join(names), kind, kind)


class _FoundError(Exception):
    """Ends the search, and rolls back the tried rows."""

    def __init__(self, rows: tuple[RejectedRow, ...]) -> None:
        super().__init__()
        self.rows = rows


class _DroppedError(Exception):
    """A trigger of the table drops records: that is no row's fault."""
