"""A job without Spark: the real coordinator, a SQLite log, and tasks that are calls."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import os
import pickle
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.errors import CommitPendingError, RejectedRowsError
from tracing_2pc.core.model import BranchContext, BranchId, Receipt, TransactionRecord
from tracing_2pc.core.names import SINK_METHODS
from tracing_2pc.core.settings import Settings
from tracing_2pc.sinks.base import (
    Branch,
    Sink,
    SinkParticipant,
    participants_of,
    write_traced_branch,
)
from tracing_2pc.sinks.job import Job
from tracing_2pc.spark.tasks import read_receipts
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.testing.other_process import PATIENCE, OtherProcess, kill
from tracing_2pc.tracing.sdk import environment, lifecycle
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

if TYPE_CHECKING:
    from tracing_2pc.testing.promises import Records  # needs pytest

logger = logging.getLogger(__name__)

Receipts = tuple[Receipt, ...]

KILLS: Final = {
    "while_it_writes": "executor.mid_invoke",
    "before_pre_commit": "executor.before_pre_commit",
    "after_one_pre_commit": "executor.after_pre_commit",
    "after_every_pre_commit": "driver.after_votes",
    "after_the_decision": "driver.after_decide",
    "between_two_commits": "commit",
    "after_every_commit": "acknowledge",
    "after_the_abort": "acknowledge",
}
"""Moments at which a process is killed: a failpoint, or a method after its call."""

AT_ONCE: Final = 4  # jobs that commit in the same moment

_PAUSE: Final = 0.001  # seconds between two looks whether all of them have come

_MOST_NAMED: Final = 9  # rows of a branch, and one more

_TRIES: Final = 10  # a sink that is busy says "not now"

_SETTINGS: Final = {"inline_tries": 3, "backoff_base": 0.001, "backoff_cap": 0.001}


class TaskFailedError(Exception):
    """Raised by a task that is to fail."""


@dataclasses.dataclass(frozen=True)
class Tasks:
    """The tasks of one transaction."""

    sink: Sink
    record: TransactionRecord

    def begin(self, branch: str) -> Branch:
        """Open a branch, and leave the rest to the caller."""
        return Branch(self.sink, self._context(branch))

    def write(self, branch: str, records: Iterable[Mapping[str, Any]]) -> Receipts:
        """Run a task: a branch of its own, of which each record is an Arrow batch."""
        return self.write_arrow(branch, map(as_arrow, records))

    def rejected(self, branch: str, records: Records) -> list[int] | None:
        """Run a task of a job that has `rejects`; return the rows that are named.

        None: it votes commit. The branch is dropped.
        """
        import pyarrow as pa

        context = self._context(branch)
        opened = Branch(
            self.sink, dataclasses.replace(context, rejects_at_most=_MOST_NAMED)
        )
        try:
            opened.write(pa.RecordBatch.from_pylist([dict(r) for r in records]))
            opened.prepare()
        except RejectedRowsError as error:
            return [rejected.row for rejected in error.rows]
        except Exception:
            logger.exception("a branch was refused: branch=%s", branch)
            return []
        finally:
            opened.abort()
        return None

    def write_arrow(self, branch: str, batches: Iterable[Any]) -> Receipts:
        """Run a task over Arrow batches."""
        return write_traced_branch(self.sink, self._context(branch), batches)

    def _context(self, branch: str) -> BranchContext:
        names, record = tuple(participants_of(self.sink)), self.record
        return record.context_of(BranchId.parse(branch), names)

    def write_all(self, branches: Mapping[str, Records]) -> list[Receipt]:
        """Run a task for each branch."""
        return [r for branch in branches for r in self.write(branch, branches[branch])]


def as_arrow(record: Mapping[str, Any]) -> Any:
    """Return one record as an Arrow batch, with pandas, which is slow to import."""
    import pyarrow as pa

    return pa.RecordBatch.from_pylist([dict(record)])


class SinkJob:
    """A job of one application; its durable state is in the log and the sink."""

    def __init__(self, sink: Sink, log: SqlDecisionLog, application: str) -> None:
        self.sink = sink
        self.log = log
        self.application = application
        self.run = uuid.uuid4().hex  # Spark starts a query again as another run

    def apply(self, batch: int, write: Callable[[Tasks], Sequence[Receipt]]) -> bool:
        """Apply a batch as a driver that has just started; False is a replay."""
        settings = Settings(on_pending="fail", transaction_timeout=0, **_SETTINGS)  # type: ignore[arg-type]
        job = Job(self.sink, self.application, settings)
        coordinator = job.coordinator(self.log, OpenTelemetryTracing(), lambda: False)

        def as_tasks_return(record: TransactionRecord) -> list[Receipt]:
            receipts = write(Tasks(self.sink, record))
            return read_receipts(receipt.to_json() for receipt in receipts)

        return coordinator.apply(
            batch,
            run=self.run,
            query="query",
            write=as_tasks_return,
            cancel=lambda _: None,
        )


@dataclasses.dataclass(frozen=True)
class SinkProcess(OtherProcess):
    """A process that applies batch 0 to a sink and, if it is told so, is killed.

    Without a moment of `KILLS` it keeps its spans in the file `spans` of the scratch
    folder. A sink that is none raises `ContractError`.
    """

    sink: bytes  # as it arrives, pickled as Spark pickles it
    log: str  # URL of the decision log
    application: str  # whose job it is
    batches: Mapping[str, Sequence[Any]]  # what its tasks write, in Arrow, by branch

    def apply(self, moment: str | None) -> None:
        """Apply the batch, here."""
        self.import_module()
        sink = pickle.loads(self.sink)  # noqa: S301 - our own, from our parent  # nosec B301
        if moment is None:
            os.environ[environment.TRACE_FILE] = str(self.scratch / "spans")
            lifecycle.start(self.application)
        with contextlib.closing(open_log(self.log)) as log:
            if moment is not None:
                self._arm_moment(KILLS[moment], sink, log)
            job = SinkJob(sink, log, self.application)

            def write(tasks: Tasks) -> list[Receipt]:
                parts = self.batches.items()
                receipts = [
                    r
                    for name, batches in parts
                    for r in tasks.write_arrow(name, batches)
                ]
                if moment == "after_the_abort":
                    raise TaskFailedError("a task failed")
                return receipts

            job.apply(0, write)
        lifecycle.flush()

    def _arm_moment(self, point: str, sink: Sink, log: SqlDecisionLog) -> None:
        if point == "acknowledge":
            log.acknowledge = kill  # type: ignore[assignment, method-assign]
            log.acknowledge_last = kill  # type: ignore[assignment, method-assign]
        elif point == "commit":
            for own in own_sinks(sink):
                _kill_after(own, name_of(own, "commit"))
        else:
            self.arm(point)


@dataclasses.dataclass(frozen=True)
class JobAtOnce(OtherProcess):
    """A job that delivers each decision in the same moment as others do."""

    sink: bytes  # as it arrives, pickled as Spark pickles it
    application: str  # whose job it is
    number: int  # which one of them it is
    # What its tasks write, in Arrow, by branch.
    batches: Sequence[Mapping[str, Sequence[Any]]]

    def apply(self, moment: str | None = None) -> None:
        """Apply the batches, here."""
        self.import_module()
        self.write_to(pickle.loads(self.sink))  # noqa: S301 - our own, from our parent  # nosec B301

    def write_to(self, sink: Sink) -> None:
        """Apply the batches to a sink, which other threads may use as well."""
        url = f"sqlite:///{self.scratch}/{self.application}.db"
        with contextlib.closing(open_log(url)) as log:
            job = SinkJob(sink, log, self.application)
            try:
                for batch, branches in enumerate(self.batches):
                    with after_decide(log, partial(self._meet, batch)):
                        self._apply(job, batch, branches)
            finally:
                for batch in range(len(self.batches)):
                    self._come(batch)  # nobody waits for it any more

    def _apply(
        self, job: SinkJob, batch: int, branches: Mapping[str, Sequence[Any]]
    ) -> None:
        def write(tasks: Tasks) -> list[Receipt]:
            parts = branches.items()
            return [r for name, arrow in parts for r in tasks.write_arrow(name, arrow)]

        for _ in range(_TRIES):
            with contextlib.suppress(CommitPendingError):
                job.apply(batch, write)
                return
        job.apply(batch, write)

    def _come(self, batch: int) -> None:
        (self.scratch / f"decided.{batch}.{self.number}").touch()

    def _meet(self, batch: int) -> None:
        self._come(batch)
        end = time.monotonic() + PATIENCE
        while len([*self.scratch.glob(f"decided.{batch}.*")]) < AT_ONCE:
            if time.monotonic() > end:
                raise TimeoutError("another job did not come to its decision")
            time.sleep(_PAUSE)


@contextlib.contextmanager
def after_decide(log: SqlDecisionLog, call: Callable[[], object]) -> Iterator[None]:
    """Call something when a decision is in the log, before it is delivered."""
    decide = log.decide

    def deciding(*about: Any, **more: Any) -> TransactionRecord | None:
        record = decide(*about, **more)
        call()
        return record

    log.decide = deciding  # type: ignore[method-assign]
    try:
        yield
    finally:
        log.decide = decide  # type: ignore[method-assign]


def own_sinks(sink: Sink) -> list[Any]:
    """Return the hand-written sinks in a sink: those whose phases we call."""
    participants = participants_of(sink).values()
    return [p.sink for p in participants if isinstance(p, SinkParticipant)]


def name_of(sink: Any, phase: str) -> str:
    """Return a sink's name of a phase: ours, or Flink's."""
    names = SINK_METHODS[phase]
    return next((n for n in names if callable(getattr(sink, n, None))), phase)


def _kill_after(sink: Any, phase: str) -> None:
    method = getattr(sink, phase)

    def killing(*arguments: Any) -> None:
        method(*arguments)
        kill()

    object.__setattr__(sink, phase, killing)
