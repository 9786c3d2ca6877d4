"""The store of a participant's branches: the seam for a resource of your own."""

from __future__ import annotations

import abc
import contextlib
import dataclasses
from collections.abc import Callable, Sequence
from typing import Final

from sqlalchemy import Connection

from tracing_2pc.core.errors import MalformedError
from tracing_2pc.core.model import RejectedRow, TransactionId
from tracing_2pc.core.states import BranchState
from tracing_2pc.participant.answers import Answer, BranchRef, BranchRow, TransactionRow
from tracing_2pc.participant.body import Body, Source
from tracing_2pc.participant.journal.journal import Journal

_LARGE: Final = 1 << 17  # bytes of a body

SLICE: Final = 10_000  # rows that one local transaction deletes at most


class ViolatedError(Exception):
    """A constraint or trigger, which it names, refused a record; without values.

    `rows` are those without which the branch would be taken, where they are known.
    """

    def __init__(self, message: str, rows: Sequence[RejectedRow] = ()) -> None:
        super().__init__(message)
        self.rows = rows


@dataclasses.dataclass(frozen=True, slots=True)
class BranchUpload:
    """A branch to be written, whose body has not been read yet."""

    transaction: TransactionId
    ref: BranchRef
    body: Body
    journal: Journal
    tag: int = 0
    """The number of this branch, which is never used again; 0 before it is drawn."""
    name_rows: int = 0
    """Rejected rows that a refusal is to name; it may name one more. 0: none."""

    @property
    def name(self) -> str:
        """The branch's, in the database."""
        return f"{self.journal.name} {self.transaction} {self.ref.branch}"

    @property
    def is_large(self) -> bool:
        """Whether its records are worth a question about the table's types."""
        return self.body.length > _LARGE

    def receive(self) -> Source:
        """Return the body to read records from: here, or as it arrives."""
        return self.journal.database.receive(self.body)

    def verify(self, rows: int) -> None:
        """Compare digest and rows with those announced; raise `MalformedError`."""
        self.body.verify()
        if rows != self.ref.rows:
            detail = f"Tpc-Rows: it says {self.ref.rows}, the body has {rows} records"
            raise MalformedError(detail)


Add = Callable[[Connection, int], Answer | None]
"""Puts the branch of a tag on record, as prepared when the transaction commits; or
returns an answer that refuses it. Called under the application's lock, shared, which is
held until the branch is prepared."""


class BranchStore(abc.ABC):
    """Holds the rows of branches for a `ParticipantEngine`.

    The engine answers by the protocol's table and keeps the journal. A store makes
    rows durable and invisible, and then visible or gone. It is called from many threads
    and processes. It raises `RefusalError` to refuse, and the database's own errors for
    "not now".
    """

    def __init__(self, journal: Journal) -> None:
        self.journal = journal

    @abc.abstractmethod
    def set_up(self, connection: Connection) -> None:
        """Check the settings and make missing tables, in one transaction. Idempotent.

        Raises:
            ConfigurationError: with the setting or the SQL that cures it.
        """

    def find(self, connection: Connection) -> None:  # noqa: B027 - most look nothing up
        """Read the tables that `set_up` has made; change nothing."""

    @abc.abstractmethod
    def prepare(self, upload: BranchUpload, add: Add) -> Answer | None:
        """Make the rows durable and invisible, if `add` allows it (rule 13).

        The rows are written first: a process that is stopped then must not hold the
        lock that `add` is called under. An answer is the reason why no row is kept.

        Raises:
            UnderWayError: another request writes this very branch; nothing is kept.
            ViolatedError: a constraint refused a record; nothing is kept.
        """

    def noting(self, application: str) -> contextlib.AbstractContextManager[Connection]:
        """Open a local transaction with the application's exclusive lock.

        No branch is about to be prepared then. A crash may undo its writes.
        """
        return self.journal.database.relaxed(lock=application)

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
        """Forget sealed transactions at or below a batch."""
        self.journal.raise_forgotten_through(connection, row, to)

    def delete_leftovers(self, slices: int) -> int:
        """Delete some invisible rows; return their number. No vote depends on it.

        Called before a prepare, if the journal finds `leftovers`. It takes at most
        `slices` transactions, of `SLICE` rows each.
        """
        return 0

    def usage(self, connection: Connection, row: TransactionRow) -> dict[str, int]:
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
