"""Any sink, as the coordinator and a task see it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tracing_2pc.errors import (
    ContractError,
    ParticipantError,
    ParticipantNotToldError,
    ParticipantRefusedError,
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

_TEXT: Final = 500
"""Characters of what a sink raised that its answer repeats; the log has all of it."""


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


def check_leftovers(sink: Sink) -> None:
    """Warn, by name, of a sink that cannot find what a killed task left prepared.

    Raises:
        ContractError: its `abort_transaction` does not take the handles to keep.
    """
    if isinstance(sink, DistributedSink):
        return
    name = type(sink).__name__
    if not _has(sink, "abort_transaction"):
        logger.warning(
            "%s has no abort_transaction(transaction_id, keep): what a task prepares "
            "that is killed, or is retried, stays prepared for ever, whatever is "
            "decided",
            name,
        )
        return
    try:
        inspect.signature(sink.abort_transaction).bind("", [])  # type: ignore[attr-defined]
    except TypeError:
        raise ContractError(
            f"{name}.abort_transaction must take (transaction_id, keep): it is called "
            "after a commit, too, with the handles that were committed"
        ) from None


@dataclasses.dataclass(frozen=True)
class SinkParticipant:
    """A hand-written sink as one participant.

    Whatever it raises means "not yet", but for `ParticipantRefusedError`.
    """

    name: str
    sink: TwoPhaseCommitSink

    def commit(self, record: TransactionRecord) -> None:
        """Commit the chosen branches, then drop what else the transaction prepared.

        That is `commit_transaction`, where it is there; else `commit` for each of
        them, and `abort_transaction`, if it is there, once all have returned.
        """
        chosen = record.chosen(self.name)
        if _has(self.sink, "commit_transaction"):
            self._tell_all(record, "commit_transaction", chosen)
            return
        self._tell_each(record, "commit", chosen)
        if _has(self.sink, "abort_transaction"):
            self._tell_all(record, "abort_transaction", chosen)

    def abort(self, record: TransactionRecord) -> None:
        """Call `abort_transaction`, or `abort` for each branch that is known.

        Raises:
            ParticipantNotToldError: it has no `abort_transaction`, and branches that
                no receipt names are known to nobody.
        """
        if _has(self.sink, "abort_transaction"):
            self._tell_all(record, "abort_transaction", [])
            return
        self._tell_each(record, "abort", record.receipts)
        raise ParticipantNotToldError(
            f"{self.name} may hold branches of {record.id} that no receipt names, and "
            "was not told to drop them: look there, and give it "
            "abort_transaction(transaction_id, keep) to find them",
            transaction_id=str(record.id),
            participant=self.name,
        )

    def _tell_all(
        self, record: TransactionRecord, method: str, receipts: Sequence[Receipt]
    ) -> None:
        # Made here: one that no phase is given would be remembered for ever.
        handles = [_handle(self.sink, receipt.handle) for receipt in receipts]
        try:
            getattr(self.sink, method)(str(record.id), handles)
        except Exception as error:
            logger.exception(
                "%s.%s raised: transaction=%s", self.name, method, record.id
            )
            raise self._answer(record, error) from error

    def _tell_each(
        self, record: TransactionRecord, method: str, receipts: Sequence[Receipt]
    ) -> None:
        """Tell every branch, whatever another one raises; a refusal goes before all."""
        errors: dict[str, Exception] = {}
        for receipt in receipts:
            try:
                getattr(self.sink, method)(_handle(self.sink, receipt.handle))
            except Exception as error:
                if repr(error) not in errors:
                    logger.exception(
                        "%s.%s raised: transaction=%s branch=%s",
                        *(self.name, method, record.id, receipt.branch),
                    )
                errors.setdefault(repr(error), error)
        if errors:
            worst = min(errors.values(), key=_is_not_now)
            raise self._answer(record, worst) from worst

    def _answer(self, record: TransactionRecord, error: Exception) -> ParticipantError:
        text = " ".join(str(error).split())[:_TEXT]
        kind: type[ParticipantError] = ParticipantRefusedError
        if _is_not_now(error):
            kind, text = ParticipantUnavailableError, f"{type(error).__name__}: {text}"
        return kind(
            f"{self.name}: {text}",
            transaction_id=str(record.id),
            participant=self.name,
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


def _is_not_now(error: Exception) -> bool:
    return not isinstance(error, ParticipantRefusedError)
