"""Any sink, as the coordinator and a task see it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
from collections.abc import Iterable, Mapping
from typing import Any

from tracing_2pc.errors import (
    ContractError,
    ParticipantError,
    ParticipantUnavailableError,
)
from tracing_2pc.failpoints import failpoint
from tracing_2pc.interfaces import (
    DistributedSink,
    Participant,
    TwoPhaseCommitSink,
)
from tracing_2pc.model import BranchContext, Receipt, TransactionRecord
from tracing_2pc.states import Vote
from tracing_2pc.telemetry import handles

logger = logging.getLogger("tracing_2pc.sink")

Sink = TwoPhaseCommitSink | DistributedSink


def participants_of(sink: Sink) -> Mapping[str, Participant]:
    """Return those that a decision is delivered to, by name.

    A hand-written sink is one participant, named after its class.

    Raises:
        ContractError: it lacks a phase.
    """
    if isinstance(sink, DistributedSink):
        return sink.participants
    missing = [
        m for m in ("begin", "pre_commit", "commit", "abort") if not _has(sink, m)
    ]
    if not (_has(sink, "invoke") or _has(sink, "invoke_batch")):
        missing.append("invoke")
    if missing:
        raise ContractError(
            f"{type(sink).__name__} is not a sink: it has no {', '.join(missing)}. The "
            "coordinator calls the phases by these names; others are for a driver of "
            "your own"
        )
    name = type(sink).__name__
    return {name: SinkParticipant(name, sink)}


@dataclasses.dataclass(frozen=True)
class SinkParticipant:
    """A hand-written sink as one participant. Whatever it raises means: not yet."""

    name: str
    sink: TwoPhaseCommitSink

    def commit(self, record: TransactionRecord) -> None:
        """Call `commit_transaction`, or `commit` for each chosen branch."""
        handles = [_handle(self.sink, r.handle) for r in record.chosen(self.name)]
        with _Answer(self.name, record):
            if _has(self.sink, "commit_transaction"):
                self.sink.commit_transaction(str(record.id), handles)  # type: ignore[attr-defined]
                return
            for handle in handles:
                self.sink.commit(handle)

    def abort(self, record: TransactionRecord) -> None:
        """Call `abort_transaction`, or `abort` for each branch that is known."""
        with _Answer(self.name, record):
            if _has(self.sink, "abort_transaction"):
                self.sink.abort_transaction(str(record.id))  # type: ignore[attr-defined]
                return
            for receipt in record.receipts:
                self.sink.abort(_handle(self.sink, receipt.handle))
            logger.warning(
                "may have left prepared branches behind: transaction=%s sink=%s; give "
                "it abort_transaction(transaction_id) to find them",
                record.id,
                self.name,
            )


def write_branch(sink: Sink, context: BranchContext, batches: Iterable[Any]) -> Receipt:
    """Run the task's half of the protocol over the Arrow batches of one partition.

    A partition without rows doesn't touch the sink: its votes are read_only. When
    anything raises, the branch is aborted, and the error goes on: it is the vote.
    """
    handle: Any = None
    rows = 0
    try:
        for batch in batches:
            if batch.num_rows:
                failpoint(
                    "executor.before_begin" if rows == 0 else "executor.mid_invoke"
                )
                handle = _begin(sink, context) if rows == 0 else handle
                rows += batch.num_rows
                _invoke(sink, handle, batch)
        if rows == 0:
            votes = dict.fromkeys(context.participants, Vote.READ_ONLY)
            return Receipt(context.branch, 0, "", votes)
        failpoint("executor.before_pre_commit")
        receipt = sink.pre_commit(handle)
        if not isinstance(receipt, Receipt | None):
            raise ContractError(
                f"{type(sink).__name__}.pre_commit returned a "
                f"{type(receipt).__name__}: return None; what commit needs goes into "
                "the handle"
            )
        if receipt is None:
            votes = dict.fromkeys(context.participants, Vote.COMMIT)
            plain = _plain(sink, handle)
            receipt = Receipt(context.branch, rows, "", votes, plain)
    except BaseException:
        if handle is not None:
            _abort_quietly(sink, handle, context)
        raise
    failpoint("executor.after_pre_commit")
    return receipt


def _begin(sink: Sink, context: BranchContext) -> Any:
    """Begin, with the context or, as in Flink, without."""
    if inspect.signature(sink.begin).parameters:
        return sink.begin(context)
    return sink.begin()  # type: ignore[call-arg]


def _invoke(sink: Sink, handle: Any, batch: Any) -> None:
    if _has(sink, "invoke_batch"):
        sink.invoke_batch(handle, batch)  # type: ignore[union-attr]
        return
    for record in batch.to_pylist():
        sink.invoke(handle, record)  # type: ignore[union-attr]


def _abort_quietly(sink: Sink, handle: Any, context: BranchContext) -> None:
    try:
        sink.abort(handle)
    except Exception:  # the first error is the one to see; the seal drops the rest
        logger.exception(
            "abort failed: transaction=%s branch=%s",
            context.transaction_id,
            context.branch,
        )


def _plain(sink: Sink, handle: Any) -> Any:
    """Return the handle as JSON keeps it: all that a recovery will have."""
    plain = handle
    if dataclasses.is_dataclass(handle) and not isinstance(handle, type):
        if not isinstance(handle, getattr(sink, "handle_type", ())):
            raise ContractError(
                f"the handle of {type(sink).__name__} is a {type(handle).__name__}: "
                f"set `handle_type = {type(handle).__name__}` on the sink, so that "
                "recovery can rebuild it from the log"
            )
        plain = dataclasses.asdict(handle)
    elif isinstance(handle, Mapping):
        plain = dict(handle)
    plain = handles.to_plain(handle, plain)
    try:
        json.dumps(plain, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ContractError(
            f"the handle of {type(sink).__name__} is not JSON after pre_commit "
            f"({error}): keep plain values in it, recovery gets nothing else"
        ) from None
    return plain


def _handle(sink: Sink, kept: Any) -> Any:
    kind = getattr(sink, "handle_type", None)
    return kept if kind is None else handles.from_plain(kind, kept)


def _has(sink: Any, method: str) -> bool:
    return callable(getattr(sink, method, None))


class _Answer:
    """Turns what a hand-written sink raises into "no answer yet"."""

    def __init__(self, name: str, record: TransactionRecord) -> None:
        self._name = name
        self._id = str(record.id)

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, _: object) -> None:
        if isinstance(error, Exception) and not isinstance(error, ParticipantError):
            raise ParticipantUnavailableError(
                f"{self._name} raised {type(error).__name__}: it may have happened",
                transaction_id=self._id,
                participant=self._name,
            ) from error
