"""The store of a participant's branches: the seam for a resource of your own."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Sequence
from typing import Final

from sqlalchemy import Connection

from tracing_2pc.core.errors import MalformedError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import BranchState
from tracing_2pc.participant import answers
from tracing_2pc.participant.answers import Answer, BranchRef, BranchRow, TransactionRow
from tracing_2pc.participant.body import Body, Source
from tracing_2pc.participant.journal.database import Writer
from tracing_2pc.participant.journal.journal import Journal

_LARGE: Final = 1 << 17
"""Bytes of a body."""

SLICE: Final = 10_000
"""Rows that one local transaction deletes at most."""


class ViolatedError(Exception):
    """A constraint or trigger refused a record."""


class NotKeptError(Exception):
    """Carries an answer out of a prepare whose rows must be dropped."""

    def __init__(self, answer: Answer) -> None:
        super().__init__(answer.detail)
        self.answer = answer


@dataclasses.dataclass(frozen=True, slots=True)
class Upload:
    """A branch on record as writing, whose body has not been read yet."""

    transaction: TransactionId
    ref: BranchRef
    tag: int
    """The number of this branch, which is never used again."""
    body: Body
    writer: Writer

    @property
    def is_large(self) -> bool:
        """Whether its records are worth a question about the table's types."""
        return self.body.length > _LARGE

    def receive(self) -> Source:
        """Return the body to read records from: in memory, or as its writer has it."""
        if self.body.kept is not None:
            return Source.kept(self.body)
        return self.writer.receive(self.body)

    def verify(self, rows: int) -> None:
        """Compare digest and number of rows with those that were announced.

        Raises:
            MalformedError: they differ.
        """
        self.body.verify()
        if rows != self.ref.rows:
            detail = f"Tpc-Rows: it says {self.ref.rows}, the body has {rows} records"
            raise MalformedError(detail)


class BranchStore(abc.ABC):
    """Holds the rows of branches for a `ParticipantEngine`.

    The engine answers by the protocol's table and keeps the journal. A store makes
    rows durable and invisible, and then visible or gone. It is called from many threads
    and processes. It raises `RefusalError` for what it refuses, and the database's own
    errors for "not now".

    Args:
        journal: of this participant.
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    @abc.abstractmethod
    def set_up(self, connection: Connection) -> None:
        """Check the settings and make what is missing, in one transaction. Idempotent.

        Raises:
            ConfigurationError: with the setting or the SQL that cures it.
        """

    @abc.abstractmethod
    def prepare(self, upload: Upload) -> Answer:
        """Make the rows durable and invisible, if `look_again` allows it (rule 13).

        Raises:
            NotKeptError: nothing is kept, for the reason that its answer gives.
            ViolatedError: a constraint refused a record; nothing is kept.
        """

    at_once_bytes = 0
    """Bodies up to this size may be prepared in one local transaction; 0 for none."""

    def takes_at_once(self, length: int) -> bool:
        """Tell whether a body of so many bytes may be given to `write_rows`."""
        return length <= self.at_once_bytes

    def write_rows(self, connection: Connection, upload: Upload) -> None:
        """Write rows of a branch that is not on record yet, in the open transaction.

        The engine puts the branch on record as prepared in the same transaction, by
        `Journal.add_prepared`: then they are invisible. The body is in memory.

        Raises:
            ViolatedError: a constraint refused a record.
        """
        raise NotImplementedError

    @abc.abstractmethod
    def deciding(
        self, transaction: TransactionId
    ) -> contextlib.AbstractContextManager[tuple[Connection, TransactionRow]]:
        """Read the journal under the exclusive lock, and let the block decide.

        Leaving the block normally makes the decision durable, and the rows visible or
        gone, even if the process is killed then. An exception changes nothing.
        """

    def committed(  # noqa: B027 - most stores write nothing else
        self, connection: Connection, row: TransactionRow, kept: Sequence[BranchRow]
    ) -> None:
        """Write further effects of the commit of these branches, in its transaction."""

    def raise_forgotten_through(
        self, connection: Connection, row: TransactionRow, to: int
    ) -> None:
        """Forget what is sealed at or below a batch."""
        self.journal.raise_forgotten_through(connection, row, to)

    def has_leftovers(self, connection: Connection) -> bool:
        """Tell whether rows that nobody sees are still there."""
        return False

    def delete_leftovers(self, writer: Writer, slices: int) -> int:
        """Delete some of them; return how many rows. No vote depends on it.

        Args:
            writer: of a prepare.
            slices: of `SLICE` rows, each in a transaction of its own, at most.
        """
        return 0

    def holds(self, connection: Connection, row: TransactionRow) -> dict[str, int]:
        """Count the resources that a transaction holds while it is in doubt."""
        prepared = row.branches_in(BranchState.PREPARED)
        return {"rows": sum(branch.ref.rows for branch in prepared)}

    def count_in_doubt(self, connection: Connection) -> tuple[int, float | None]:
        """Count the prepared branches, and return since when the oldest waits."""
        return self.journal.count_in_doubt(connection)

    def gauges(self, connection: Connection) -> dict[str, float]:
        """Measure this kind of store, by the names of the registry."""
        return {}

    def close(self) -> None:  # noqa: B027 - most hold nothing else
        """Release connections of its own."""

    def look_again(self, connection: Connection, upload: Upload) -> Answer:
        """Answer a prepare whose rows are written: may they become durable?

        The caller holds the application's lock, shared, until they are.
        """
        # Rule 20: seal and forgotten_through are read again, under the lock.
        row = self.journal.read(
            connection,
            upload.transaction,
            upload.ref.branch,
            writer=upload.writer.owner,
        )
        return answers.vote(row, upload.tag, upload.ref)
