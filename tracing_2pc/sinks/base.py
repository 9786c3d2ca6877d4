"""Any sink, as the coordinator and a task see it."""

from __future__ import annotations

import dataclasses
import inspect
import json
import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tracing_2pc.core.errors import (
    ConfigurationError,
    ContractError,
    ParticipantError,
    ParticipantNotToldError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    Receipt,
    TransactionRecord,
    branch_receipts,
)
from tracing_2pc.core.ports import DistributedSink, Participant, TwoPhaseCommitSink
from tracing_2pc.core.settings import check_name
from tracing_2pc.core.states import Vote
from tracing_2pc.tracing.decorator import handles

logger = logging.getLogger(__name__)

Sink = TwoPhaseCommitSink | DistributedSink

_TEXT: Final = 500
"""Characters of what a sink raised that its answer repeats; the log has all of it."""


def participants_of(sink: Sink) -> Mapping[str, Participant]:
    """Return the participants that a decision is delivered to, by name.

    A hand-written sink is one participant. Its name is the sink's attribute `name`, if
    that is text, else the name of its class.

    Raises:
        ContractError: it lacks a phase.
        ConfigurationError: its name cannot be a participant's.
    """
    if isinstance(sink, DistributedSink):
        return sink.participants
    phases = ("begin", "pre_commit", "commit", "abort")
    missing = [phase for phase in phases if not _has(sink, phase)]
    if not (_has(sink, "invoke") or _has(sink, "invoke_batch")):
        missing.append("invoke")
    if missing:
        raise ContractError(
            f"{type(sink).__name__} is not a sink: it has no {', '.join(missing)}. The "
            "coordinator calls the phases by these names; others are for a driver of "
            "your own"
        )
    name = type(sink).__name__
    if isinstance(own := getattr(sink, "name", None), str):
        try:
            name = check_name(own)
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}") from None
    return {name: SinkParticipant(name, sink)}


def check_leftovers(sink: Sink) -> None:
    """Warn, by name, of a sink that cannot find what a killed task left prepared.

    Raises:
        ContractError: its `abort_transaction` does not take the handles to keep.
    """
    for name, participant in participants_of(sink).items():
        if not isinstance(participant, SinkParticipant):
            continue
        method = getattr(participant.sink, "abort_transaction", None)
        if not callable(method):
            logger.warning(
                "%s has no abort_transaction(transaction_id, keep): what a task "
                "prepares that is killed, or is retried, stays prepared for ever, "
                "whatever is decided",
                name,
            )
            continue
        try:
            inspect.signature(method).bind("", [])
        except TypeError:
            raise ContractError(
                f"{name}.abort_transaction must take (transaction_id, keep): it is "
                "called after a commit, too, with the handles that were committed"
            ) from None


@dataclasses.dataclass(frozen=True)
class SinkParticipant:
    """A hand-written sink as one participant.

    `ParticipantRefusedError` is a refusal. All else that it raises means "not now".
    """

    name: str
    sink: TwoPhaseCommitSink

    def commit(self, record: TransactionRecord) -> None:
        """Commit the chosen branches, then drop what else the transaction prepared.

        The sink's `commit_transaction` does both. Without it, `commit` is called for
        each branch, and after them `abort_transaction`, if there is one.
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
        self._tell_each(record, "abort", record.chosen(self.name))
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
        # A handle that is made and given to no phase would be remembered for ever.
        handles = [_handle(self.sink, receipt.handle) for receipt in receipts]
        try:
            getattr(self.sink, method)(str(record.id), handles)
        except Exception as error:
            about = (record.id, self.name, method)
            logger.exception("sink raised: transaction=%s method=%s.%s", *about)
            raise self._answer(record, error) from error

    def _tell_each(
        self, record: TransactionRecord, method: str, receipts: Sequence[Receipt]
    ) -> None:
        """Call it for every branch, and then raise: a refusal, if there was one."""
        errors: dict[str, Exception] = {}
        for receipt in receipts:
            try:
                getattr(self.sink, method)(_handle(self.sink, receipt.handle))
            except Exception as error:
                if errors.setdefault(repr(error), error) is error:
                    logger.exception(
                        "sink raised: transaction=%s branch=%s method=%s.%s",
                        *(record.id, receipt.branch, self.name, method),
                    )
        if errors:
            worst = min(errors.values(), key=_is_not_now)
            raise self._answer(record, worst) from worst

    def _answer(self, record: TransactionRecord, error: Exception) -> ParticipantError:
        text = " ".join(str(error).split())[:_TEXT]
        kind: type[ParticipantError] = ParticipantRefusedError
        if _is_not_now(error):
            kind, text = ParticipantUnavailableError, f"{type(error).__name__}: {text}"
        text, of = f"{self.name}: {text}", str(record.id)
        return kind(text, transaction_id=of, participant=self.name)


class Branch:
    """A branch at one sink, in the task that writes it; see `ports` for the phases.

    The participants of its context are those of the sink.
    """

    def __init__(self, sink: Sink, context: BranchContext) -> None:
        self._sink = sink
        self._context = context
        self._rows = 0
        # As in Flink, a `begin` without context is accepted.
        arguments = [context] if inspect.signature(sink.begin).parameters else []
        self._handle = sink.begin(*arguments)

    def write(self, batch: Any) -> None:
        """Write an Arrow batch, whole or record by record."""
        self._rows += batch.num_rows
        if _has(self._sink, "invoke_batch"):
            self._sink.invoke_batch(self._handle, batch)  # type: ignore[union-attr]
            return
        for record in batch.to_pylist():
            self._sink.invoke(self._handle, record)  # type: ignore[union-attr]

    def prepare(self) -> tuple[Receipt, ...]:
        """Make it durable; return the vote of each participant of the sink.

        Raising is a vote to abort.
        """
        if isinstance(self._sink, DistributedSink):
            return tuple(self._sink.pre_commit(self._handle))
        # A sink that is not typed may return anything.
        returned: object = self._sink.pre_commit(self._handle)  # type: ignore[func-returns-value]
        if returned is not None:
            raise ContractError(
                f"{type(self._sink).__name__}.pre_commit returned a "
                f"{type(returned).__name__}: return None; what commit needs goes into "
                "the handle"
            )
        votes = dict.fromkeys(self._context.participants, Vote.COMMIT)
        handle = _plain(self._sink, self._handle)
        return branch_receipts(self._context.branch, self._rows, "", votes, handle)

    def abort(self) -> None:
        """Drop what the task could not finish; log what that raises."""
        try:
            self._sink.abort(self._handle)
        except Exception:  # the first error is the one to see; the seal drops the rest
            logger.exception(
                "abort failed: transaction=%s branch=%s",
                *(self._context.transaction_id, self._context.branch),
            )


def write_branch(
    sink: Sink, context: BranchContext, batches: Iterable[Any]
) -> tuple[Receipt, ...]:
    """Run the task's half of the protocol over the Arrow batches of one partition.

    Returns one receipt per participant. A partition without rows doesn't touch the
    sink: its votes are read_only. When anything raises, the branch is aborted, and
    the error goes on: it is the vote.
    """
    branch: Branch | None = None
    try:
        for batch in batches:
            if not batch.num_rows:
                continue
            if branch is None:
                failpoint("executor.before_begin")
                branch = Branch(sink, context)
            else:
                failpoint("executor.mid_invoke")
            branch.write(batch)
        if branch is None:
            return read_only(context.branch, context.participants)
        failpoint("executor.before_pre_commit")
        receipts = branch.prepare()
    except BaseException:
        if branch is not None:
            branch.abort()
        raise
    failpoint("executor.after_pre_commit")
    return receipts


def read_only(branch: BranchId, participants: Iterable[str]) -> tuple[Receipt, ...]:
    """Return the votes about a branch without rows: nobody was asked."""
    votes = dict.fromkeys(participants, Vote.READ_ONLY)
    return branch_receipts(branch, 0, "", votes)


def _plain(sink: Sink, handle: Any) -> Any:
    """Return the handle as JSON keeps it: all that a recovery will have."""
    kind, plain = type(handle).__name__, handle
    if dataclasses.is_dataclass(handle) and not isinstance(handle, type):
        if not isinstance(handle, getattr(sink, "handle_type", ())):
            raise ContractError(
                f"the handle of {type(sink).__name__} is a {kind}: set `handle_type = "
                f"{kind}` on the sink, so that recovery can rebuild it from the log"
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
