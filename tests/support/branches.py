"""Branches of a transaction, as tests send them to a participant."""

from __future__ import annotations

import dataclasses
import io
import json
from typing import IO, Any

import pyarrow as pa

from tracing_2pc.core import content
from tracing_2pc.core.model import BranchId, Receipt, TransactionId, TransactionRecord
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.states import Decision, TransactionState, Vote

TRACE = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-01", "tracestate": "vendor=x"}


def arrow(table: pa.Table) -> bytes:
    """Encode a table as a sink does."""
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table)
    return sink.getvalue()


def orders(*ids: int) -> bytes:
    """Encode records that every resource takes."""
    amounts = [1.5 * id_ for id_ in ids]
    columns = {
        "id": pa.array(ids, pa.int64()),
        "amount": pa.array(amounts, pa.float64()),
    }
    return arrow(pa.table(columns))


@dataclasses.dataclass(frozen=True)
class Branch:
    """One branch, as tests speak of it."""

    body: bytes
    rows: int
    branch: str = "0.1"
    content_type: str = content.ARROW

    @property
    def digest(self) -> str:
        return content.digest_of(self.body)

    @property
    def named(self) -> dict[str, Any]:
        return {"branch": self.branch, "rows": self.rows, "digest": self.digest}


def committing(
    transaction: TransactionId, *receipts: Receipt, **changes: Any
) -> TransactionRecord:
    """What a log has on record when it has decided commit, unless told otherwise."""
    about = {
        "run": "run",
        "state": TransactionState.COMMITTING,
        "decision": Decision.COMMIT,
        "participants": tuple(dict.fromkeys(one.participant for one in receipts)),
        "acknowledged": frozenset(),
        "carrier": {},
        "started": 0.0,
        "receipts": receipts,
    }
    return TransactionRecord(transaction, **{**about, **changes})


def records(branch: str = "0.1", **columns: Any) -> Branch:
    """Make a branch of any columns."""
    table = pa.table(columns)
    return Branch(arrow(table), table.num_rows, branch)


def json_lines(*found: dict[str, Any], branch: str = "0.1") -> Branch:
    """Make a branch that travels as JSON lines."""
    text = "".join(json.dumps(record) + "\n" for record in found)
    return Branch(text.encode(), len(found), branch, content.NDJSON)


ONE = Branch(orders(1, 2, 3), 3)

OTHER = Branch(orders(4), 1)

TWIN = Branch(orders(1, 2, 3), 3, "0.2")


def prepare_at(
    participant: RemoteParticipant,
    transaction: TransactionId,
    branch: Branch = ONE,
    body: IO[bytes] | None = None,
    **asked: Any,
) -> Vote:
    """Send a branch as a task does; what it tells of another body is about its own."""
    return participant.prepare(
        transaction,
        BranchId.parse(branch.branch),
        lambda: body or io.BytesIO(branch.body),
        rows=branch.rows,
        length=len(branch.body),
        digest=branch.digest,
        **asked,
    )


def commit_of(
    transaction: TransactionId,
    participant: str,
    branch: Branch = ONE,
    *more: Receipt,
    **fields: Any,
) -> TransactionRecord:
    """Return the record that the commit of a branch is sent by."""
    about = participant, branch.rows, branch.digest, Vote.COMMIT
    receipts = Receipt(BranchId.parse(branch.branch), *about), *more
    return committing(transaction, *receipts, participants=(participant,), **fields)
