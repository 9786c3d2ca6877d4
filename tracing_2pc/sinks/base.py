"""Any sink, as the coordinator and a task see it."""

from __future__ import annotations

import contextlib
import dataclasses
import inspect
import json
import logging
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, TypeVar, runtime_checkable

from tracing_2pc.core import names
from tracing_2pc.core.errors import (
    EACH_TIME,
    AbortedError,
    ConfigurationError,
    ContractError,
    ParticipantError,
    ParticipantGivenUpError,
    ParticipantNotToldError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    RejectedRowsError,
)
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.log_reader import LogReader, TransactionFilter
from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    Receipt,
    RejectedRow,
    TransactionId,
    TransactionRecord,
    branch_receipts,
    count_rejected,
    count_rows,
)
from tracing_2pc.core.ports import (
    Clock,
    DistributedSink,
    Participant,
    SystemClock,
    TwoPhaseCommitSink,
)
from tracing_2pc.core.settings import check_name
from tracing_2pc.core.states import TransactionState, Vote
from tracing_2pc.sinks.members import call, find_method, option
from tracing_2pc.sinks.store_timeout import StoreTimeout
from tracing_2pc.sinks.values import check_values
from tracing_2pc.tracing.decorator import handles
from tracing_2pc.tracing.decorator.phases import raise_if_deferred
from tracing_2pc.tracing.spans import span

logger = logging.getLogger(__name__)

Sink = TwoPhaseCommitSink | DistributedSink

Asked = TypeVar("Asked")
Answer = TypeVar("Answer")


@runtime_checkable
class BranchWriter(Protocol):
    """A sink that runs the task's half of the protocol itself: see `write_branch`."""

    main: Sink
    """Takes the rows of a batch."""

    rejects: str
    """The participant that keeps the rows which others refuse."""

    def write_branch(
        self, context: BranchContext, batches: Iterable[Any]
    ) -> tuple[Receipt, ...]:
        """Write the rows of one partition; return the vote of each participant."""


def rejects_of(sink: Sink) -> str | None:
    """Return the participant of a sink that keeps the rows which others refuse."""
    return sink.rejects if isinstance(sink, BranchWriter) else None


_NO_HANDLE: Final = "the log has no handle of what was not decided commit"

_TEXT: Final = 500
"""Characters of a sink's error that its answer repeats; the log has all of it."""


def participants_of(sink: Sink) -> Mapping[str, Participant]:
    """Return the participants that a decision is delivered to, by name.

    A hand-written sink is one participant. Its name is the sink's attribute `name`, if
    that is text, else the name of its class.

    Raises:
        ContractError: it lacks a phase, one is `async` or a generator, or its
            `store_timeout` is not in its form.
        ConfigurationError: its name cannot be a participant's.
    """
    if isinstance(sink, DistributedSink):
        return sink.participants
    methods = {phase: find_method(sink, phase) for phase in names.SINK_METHODS}
    phases = ("begin", "pre_commit", "commit", "abort")
    missing = [phase for phase in phases if methods[phase] is None]
    if not (methods["invoke"] or methods["invoke_batch"]):
        missing.append("invoke")
    if missing:
        raise ContractError(
            f"{type(sink).__name__} is not a sink: it has no {', '.join(missing)}. The "
            "coordinator calls the phases by these names, or Flink's; others are for a "
            "driver of your own"
        )
    for phase, method in methods.items():
        if method is not None:
            raise_if_deferred(f"{type(sink).__name__}.{phase}", method)
    StoreTimeout.of(sink)
    name = type(sink).__name__
    if isinstance(own := option(sink, "name"), str):
        try:
            name = check_name(own)
        except ValueError as error:
            raise ConfigurationError(f"{name}: {error}") from None
    return {name: SinkParticipant(name, sink)}


def _own(participants: Mapping[str, Participant]) -> list[SinkParticipant]:
    return [p for p in participants.values() if isinstance(p, SinkParticipant)]


def check_leftovers(sink: Sink) -> None:
    """Warn, by name, of a sink that cannot find branches left by a killed task.

    Raises:
        ContractError: its `abort_transaction` does not take the handles to keep.
    """
    for own in _own(participants_of(sink)):
        if (method := find_method(own.sink, "abort_transaction")) is None:
            flinks = find_method(own.sink, "recover_and_abort")
            logger.warning(
                "%s has no abort_transaction(transaction_id, keep): what a task "
                "prepares that is killed, or is retried, stays prepared for ever, "
                "whatever is decided%s",
                own.name,
                f". Its recover_and_abort is not called: {_NO_HANDLE}" * bool(flinks),
            )
            continue
        try:
            inspect.signature(method).bind("", [])
        except TypeError:
            raise ContractError(
                f"{own.name}.abort_transaction must take (transaction_id, keep): it is "
                "called after a commit, too, with the handles that were committed"
            ) from None


def check_job(sink: Sink, application: str) -> None:
    """Call `check_job(application)` of each hand-written sink that has it."""
    for own in _own(participants_of(sink)):
        if check := find_method(own.sink, "check_job"):
            check(application)


def before_tasks(sink: Sink, schema: Callable[[], Any]) -> None:
    """Call `before_tasks(schema)` of each hand-written sink that has it."""
    main = sink.main if isinstance(sink, BranchWriter) else sink
    for own in _own(participants_of(main)):
        if method := find_method(own.sink, "before_tasks"):
            method(schema())


@dataclasses.dataclass(frozen=True)
class SinkParticipant:
    """A hand-written sink. `ParticipantRefusedError` refuses, all else is "not now"."""

    name: str
    sink: TwoPhaseCommitSink
    recovered: dict[tuple[TransactionId, BranchId], Any] = dataclasses.field(
        default_factory=dict, compare=False
    )
    """Handles that the sink has committed in a recovery, in their order."""
    clock: Clock = dataclasses.field(default_factory=SystemClock, compare=False)

    def commit(self, record: TransactionRecord) -> None:
        """Commit the chosen branches, then drop the transaction's other branches.

        The sink's `commit_transaction` does both. Without it, `commit` is called for
        each branch, and after them `abort_transaction`, if there is one. In a recovery
        `recover_and_commit` takes the place of `commit`, if there is one.

        Raises:
            ParticipantGivenUpError: it failed in a recovery after the time for which
                the store keeps it, and the sink has declared that to be the end of it.
        """
        limit, elapsed = StoreTimeout.of(self.sink), self.clock.now() - record.started
        limit.warn(record, self.name, elapsed)
        try:
            self._commit(record)
        except ParticipantUnavailableError as error:
            if not limit.may_give_up(record, elapsed):
                raise
            raise ParticipantGivenUpError(
                f"{error}; {elapsed:.0f} s after its begin, and the store keeps it for "
                f"{limit.seconds:g} s (store_timeout)",
                transaction_id=str(record.id),
                participant=self.name,
            ) from error

    def _commit(self, record: TransactionRecord) -> None:
        chosen = record.chosen(self.name)
        if find_method(self.sink, "commit_transaction"):
            self._tell_all(record, "commit_transaction", chosen)
            return
        again = record.recovering and find_method(self.sink, "recover_and_commit")
        self._tell_each(record, "recover_and_commit" if again else "commit", chosen)
        if find_method(self.sink, "abort_transaction"):
            self._tell_all(record, "abort_transaction", chosen)

    def finish_recovery(self) -> None:
        """Call the sink's `finish_recovery`, if there is one; log its error."""
        if (method := find_method(self.sink, "finish_recovery")) is None:
            return
        try:
            method(list(self.recovered.values()))
        except Exception:
            logger.exception("sink raised: method=%s.finish_recovery", self.name)
            raise

    def check_store(self, record: TransactionRecord) -> None:
        """Give the sink its handles of a transaction that is committed."""
        chosen = record.chosen(self.name)
        call(self.sink, "check_store")([_handle(self.sink, r) for r in chosen])

    def abort(self, record: TransactionRecord) -> None:
        """Call `abort_transaction`, or `abort` for each branch that is known.

        Raises:
            ParticipantNotToldError: it has no `abort_transaction`, and no record names
                branches without a receipt.
        """
        if find_method(self.sink, "abort_transaction"):
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
        handles = [_handle(self.sink, receipt) for receipt in receipts]
        try:
            call(self.sink, method)(str(record.id), handles)
        except Exception as error:
            about = (record.id, self.name, method)
            logger.exception("sink raised: transaction=%s method=%s.%s", *about)
            raise self._answer(record, error) from error
        if method == "commit_transaction":
            for receipt, handle in zip(receipts, handles, strict=True):
                self._note(record, receipt, handle)

    def _tell_each(
        self, record: TransactionRecord, method: str, receipts: Sequence[Receipt]
    ) -> None:
        """Call it for every branch, and then raise: a refusal, if there was one."""
        errors: dict[str, Exception] = {}
        for receipt in receipts:
            handle = _handle(self.sink, receipt)
            try:
                call(self.sink, method)(handle)
                self._note(record, receipt, handle)
            except Exception as error:
                if errors.setdefault(repr(error), error) is error:
                    logger.exception(
                        "sink raised: transaction=%s branch=%s method=%s.%s",
                        *(record.id, receipt.branch, self.name, method),
                    )
        if errors:
            worst = min(errors.values(), key=_is_not_now)
            raise self._answer(record, worst) from worst

    def _note(self, record: TransactionRecord, receipt: Receipt, handle: Any) -> None:
        if record.recovering and find_method(self.sink, "finish_recovery"):
            self.recovered[record.id, receipt.branch] = handle

    def _answer(self, record: TransactionRecord, error: Exception) -> ParticipantError:
        text = " ".join(str(error).split())[:_TEXT]
        kind: type[ParticipantError] = ParticipantRefusedError
        if _is_not_now(error):
            kind, text = ParticipantUnavailableError, f"{type(error).__name__}: {text}"
        text, id_ = f"{self.name}: {text}", str(record.id)
        return kind(text, transaction_id=id_, participant=self.name)


def finish_recovery(
    participants: Mapping[str, Participant], log: LogReader, application: str
) -> None:
    """Tell each hand-written sink that the leftovers of earlier runs are done.

    One with `check_store(handles)` is given its handles of the newest commit before, to
    refuse to write to another store than that. There are none of a batch without rows.

    Raises:
        Exception: a sink's error; nothing of the batch is written then.
    """
    own = _own(participants)
    checked = [p for p in own if find_method(p.sink, "check_store")]
    newest = TransactionFilter(application, TransactionState.COMMITTED, limit=1)
    for summary in log.transactions(newest) if checked else ():
        if (record := log.read(summary.transaction)) is not None:
            for participant in checked:
                participant.check_store(record)
    for participant in own:
        participant.finish_recovery()


class Branch:
    """A branch at one sink, in the task that writes it; see `ports` for the phases.

    The participants of its context are those of the sink.
    """

    def __init__(self, sink: Sink, context: BranchContext) -> None:
        self._sink = sink
        self.context = context
        self._rows = 0
        # As in Flink, a `begin` without context is accepted.
        begin = call(sink, "begin")
        arguments = [context] if inspect.signature(begin).parameters else []
        self._handle = begin(*arguments)

    def write(self, batch: Any) -> None:
        """Write an Arrow batch, whole or record by record."""
        with self._naming():
            self._write(batch)

    def _write(self, batch: Any) -> None:
        self._rows += batch.num_rows
        if find_method(self._sink, "invoke_batch"):
            self._sink.invoke_batch(self._handle, batch)  # type: ignore[union-attr]
            return
        for record in batch.to_pylist():
            self._sink.invoke(self._handle, record)  # type: ignore[union-attr]

    def prepare(self) -> tuple[Receipt, ...]:
        """Make it durable; return each participant's vote. Raising votes abort."""
        with self._naming():
            return self._prepare()

    def _prepare(self) -> tuple[Receipt, ...]:
        if isinstance(self._sink, DistributedSink):
            return tuple(self._sink.pre_commit(self._handle))
        # A sink that is not typed may return anything.
        returned: object = call(self._sink, "pre_commit")(self._handle)
        if returned is not None:
            raise ContractError(
                f"{type(self._sink).__name__}.pre_commit returned a "
                f"{type(returned).__name__}: return None; what commit needs goes into "
                "the handle"
            )
        votes = dict.fromkeys(self.context.participants, Vote.COMMIT)
        handle = _plain(self._sink, self._handle)
        return branch_receipts(self.context.branch, self._rows, "", votes, handle)

    @contextlib.contextmanager
    def _naming(self) -> Iterator[None]:
        """Name the participant that rejects rows, where a sink has not done so."""
        try:
            yield
        except RejectedRowsError as error:
            numbers = [rejected.row for rejected in error.rows]
            if not numbers or not 0 <= min(numbers) <= max(numbers) < self._rows:
                raise ContractError(
                    f"{type(self._sink).__name__} rejects rows {numbers[:9]} of "
                    f"{self._rows}: number at least one as it was given for this "
                    "branch, from 0"
                ) from error
            name = self.context.participants[0]
            error.rows = tuple(
                r if r.participant else dataclasses.replace(r, participant=name)
                for r in error.rows
            )
            error.participant = error.participant or error.rows[0].participant
            raise

    def abort(self) -> None:
        """Drop the branch that the task could not finish; log an error of that."""
        try:
            self._sink.abort(self._handle)
        except Exception:  # the first error is the one to see; the seal drops the rest
            logger.exception(
                "abort failed: transaction=%s branch=%s",
                *(self.context.transaction_id, self.context.branch),
            )


def asking(
    ask: Callable[[Asked], Answer],
) -> Callable[[Asked], Answer | RejectedRowsError]:
    """Return a function that returns the `RejectedRowsError` that `ask` raises."""

    def answer(asked: Asked) -> Answer | RejectedRowsError:
        try:
            return ask(asked)
        except RejectedRowsError as error:
            return error

    return answer


def gather(
    answers: Iterable[Answer | RejectedRowsError], context: BranchContext
) -> list[Answer]:
    """Return the answers; where some name rejected rows, raise one error for all.

    Where rows are written for the first time all are asked: another may reject others.
    Later the answers are read up to the first that rejects rows, and so they are where
    the job has no `rejects`.

    Raises:
        RejectedRowsError: with the rows that were named.
    """
    given: list[Answer] = []
    rejected: list[RejectedRow] = []
    for answer in answers:
        if not isinstance(answer, RejectedRowsError):
            given.append(answer)
        elif context.rejects_at_most is None or context.rewrite:
            raise answer
        else:
            rejected += answer.rows
    if rejected:
        raise RejectedRowsError(rejected, participant=rejected[0].participant)
    return given


def write_branch(
    sink: Sink,
    context: BranchContext,
    batches: Iterable[Any],
    complete: Callable[[tuple[Receipt, ...]], tuple[Receipt, ...]] = tuple,
) -> tuple[Receipt, ...]:
    """Run the task's half of the protocol over the Arrow batches of one partition.

    Returns one receipt per participant. A partition without rows doesn't touch the
    sink: its votes are read_only. Values that no reader could read (`check_values`) do
    not reach it. When anything raises, the branch is aborted, and the error is raised:
    it is the vote. The text of a `ConfigurationError` adds that it comes at each try.
    `complete` is given the receipts, once all is prepared, and returns those that the
    task votes by.
    """
    if isinstance(sink, BranchWriter):
        return sink.write_branch(context, batches)
    branch: Branch | None = None
    try:
        rows = (batch for batch in batches if batch.num_rows)
        for batch in check_values(rows):
            if branch is None:
                failpoint("executor.before_begin")
                branch = Branch(sink, context)
            else:
                failpoint("executor.mid_invoke")
            branch.write(batch)
        if branch is None:
            return complete(read_only(context.branch, context.participants))
        failpoint("executor.before_pre_commit")
        receipts = complete(branch.prepare())
    except BaseException as error:
        if branch is not None:
            branch.abort()
        if isinstance(error, ConfigurationError):
            id_ = str(context.transaction_id)
            message = f"{id_} votes abort, {EACH_TIME}: {error}"
            raise ConfigurationError(message, transaction_id=id_) from error
        raise
    failpoint("executor.after_pre_commit")
    return receipts


def write_traced_branch(
    sink: Sink, context: BranchContext, batches: Iterable[Any]
) -> tuple[Receipt, ...]:
    """Write a branch in a span of its own, which belongs to the transaction's trace."""
    ids = {"tpc.transaction.id": str(context.transaction_id)}
    ids["tpc.branch"] = str(context.branch)
    with span(names.BRANCH, carrier=context.carrier, attributes=ids) as open_span:
        receipts = write_branch(sink, context, batches)
        rejects = rejects_of(sink)
        open_span.set("tpc.rows", count_rows(receipts, rejects))
        if rejected := count_rejected(receipts, rejects):
            open_span.set("tpc.rows.rejected", rejected)
    return receipts


def until_stopped(batches: Iterable[Any], context: BranchContext) -> Iterator[Any]:
    """Yield the batches; raise `AbortedError` once `context.stopping` is true."""
    for batch in batches:
        if context.stopping():
            raise AbortedError(
                f"{context.transaction_id} was stopped while it was written",
                transaction_id=str(context.transaction_id),
            )
        yield batch


def read_only(branch: BranchId, participants: Iterable[str]) -> tuple[Receipt, ...]:
    """Return the votes about a branch without rows: no participant was asked."""
    votes = dict.fromkeys(participants, Vote.READ_ONLY)
    return branch_receipts(branch, 0, "", votes)


def _plain(sink: Sink, handle: Any) -> Any:
    """Return the handle as JSON keeps it: all that a recovery will have."""
    kind, plain = type(handle).__name__, handle
    if dataclasses.is_dataclass(handle) and not isinstance(handle, type):
        if not isinstance(handle, option(sink, "handle_type") or ()):
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


def _handle(sink: Sink, receipt: Receipt) -> Any:
    if (kind := option(sink, "handle_type")) is None:
        return receipt.handle
    handle = handles.from_plain(kind, receipt.handle)
    if hasattr(handle, "receipt_branch"):
        handle.receipt_branch = receipt.branch
    return handle


def _is_not_now(error: Exception) -> bool:
    return not isinstance(error, ParticipantRefusedError)
