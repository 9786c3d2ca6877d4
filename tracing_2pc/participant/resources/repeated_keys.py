"""Keys that a transaction brings twice: no reader could tell which row is the last."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import sqlalchemy as sa
from sqlalchemy import Connection

from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.states import Refusal
from tracing_2pc.participant.branch_store import BranchUpload
from tracing_2pc.participant.resources.superseded import in_text, same_key
from tracing_2pc.store.engines.postgresql import advisory_key

_WITHIN: Final = (
    "SELECT 1 FROM {table} WHERE tpc_tag = {tag} "
    "GROUP BY {key} HAVING count(*) > 1 LIMIT 1"
)
_OTHERS: Final = (
    "SELECT count(*) FROM {branch} WHERE application = :application AND "
    'batch = :batch AND attempt = :attempt AND "partition" <> :partition '
    "AND state = 'prepared'"
)
_BESIDE: Final = (
    "SELECT count(*) FROM {table} n WHERE n.tpc_tag = {tag} AND "
    "(SELECT count(*) FROM {table} o WHERE {same} AND o.tpc_batch = n.tpc_batch "
    "AND +o.tpc_tag <> n.tpc_tag AND ({others} AND tag = o.tpc_tag) > 0) > 0"
)
"""Each row is looked up by its key, and rows with the same one in the journal.

The planner takes a tag for a handful of rows, and would compare all rows of a branch
with all of the others. It joins no counts, and uses no index for a term with a `+`. The
tag stands in the text: a plan of a smaller table is never used again.
"""


class RepeatedKeys:
    """Refuses a branch whose keys are not unique in its transaction.

    Within the branch, and beside the branches of other tasks that are prepared: on
    PostgreSQL branches of one transaction are prepared one after another for that, so
    that of two with the same key the later one is refused, whichever it is. Branches of
    the same partition are tries of one task, of which one is committed at most.
    `key` has the application's column first, by which there is an index.
    """

    def __init__(
        self, table: str, key: Sequence[str], quote: Callable[[str], str]
    ) -> None:
        self._table = quote(table)
        self._names = ", ".join(key[1:])
        self._key = [quote(name) for name in key]

    def check(self, connection: Connection, upload: BranchUpload) -> None:
        """Look at the rows of an upload, in its open transaction.

        Raises:
            RefusalError: conflict: a key is there twice; it names the key's columns.
        """
        key = [in_text(name, connection) for name in self._key]
        names = {
            "table": in_text(self._table, connection),
            "tag": str(upload.tag),
            "key": ", ".join(key),
            "same": same_key(key, connection.dialect.name),
        }
        within = sa.text(_WITHIN.format(**names))
        if connection.execute(within).first() is not None:
            raise self._refused("a branch")
        if connection.dialect.name == "postgresql":
            # Until the commit: the next one sees the rows that are prepared here.
            about = advisory_key(f"keys of {upload.journal.name} {upload.transaction}")
            connection.execute(sa.text(f"SELECT pg_advisory_xact_lock({about})"))
        if self._is_beside(connection, upload, names):
            raise self._refused("two branches")

    def _is_beside(
        self, connection: Connection, upload: BranchUpload, names: Mapping[str, str]
    ) -> bool:
        others = _OTHERS.format(branch=upload.journal.tables.branch.name)
        about = {
            **dataclasses.asdict(upload.transaction),
            "partition": upload.ref.branch.partition,
        }
        # Most often it is the only branch, and then its rows are not read again.
        if not connection.scalar(sa.text(others), about):
            return False
        beside = _BESIDE.format(others=others, **names)
        return bool(connection.scalar(sa.text(beside), about))

    def _refused(self, where: str) -> RefusalError:
        detail = (
            f"key {self._names}: {where} of the batch brings a key twice, and with "
            "deleted= nobody could tell which row is the last: bring each key once"
        )
        return RefusalError(Refusal.CONFLICT, detail, state="unknown")
