"""A Spark data source: `df.writeStream.format("two_phase_commit")`, and `df.write`.

Spark calls us, not we Spark: `write` in each task, `commit` and `abort` in a process of
their own, which may be another one each time. They share nothing but the decision log
and the messages that tasks return. The first task of a batch opens the transaction, and
the others join it. So executors must reach the decision log.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import logging
import socket
import uuid
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.errors import (
    AbortedError,
    CommitPendingError,
    ConfigurationError,
    TwoPhaseError,
)
from tracing_2pc.core.log_reader import TransactionFilter
from tracing_2pc.core.model import Receipt, TransactionId, TransactionRecord
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import FINAL, Decision
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.protocol.decisions import ask_until_answered
from tracing_2pc.sinks.base import Sink, before_tasks, check_job, participants_of
from tracing_2pc.sinks.job import Job
from tracing_2pc.sinks.participant_sink import ParticipantSink
from tracing_2pc.sinks.sending import send_waiting
from tracing_2pc.spark.links import check_links
from tracing_2pc.spark.pickling import check_pickles
from tracing_2pc.spark.tasks import (
    FLUSH_SECONDS,
    arrow_schema,
    freeze_gc,
    raise_if_unread,
    write_partition,
)
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.store.engines.urls import database_url
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.sdk import environment, lifecycle
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

try:
    from pyspark.sql.datasource import (
        DataSource,
        DataSourceArrowWriter,
        DataSourceStreamArrowWriter,
        WriterCommitMessage,
    )
except ImportError:
    raise ConfigurationError(
        "the data source needs PySpark 4.1 or newer, which hands it rows as Arrow: "
        "use two_phase_commit(...) with foreachBatch"
    ) from None

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

logger = logging.getLogger(__name__)

_OF_SPARK: Final = {"checkpointlocation", "queryname", "path"}
_OF_BATCHES: Final = {"application", "batch", "links", "replaces"}


class TwoPhaseCommitDataSource(DataSource):  # type: ignore[misc]
    """Write each micro-batch, or a whole DataFrame, everywhere or nowhere.

    Register it with `spark.dataSource.register(TwoPhaseCommitDataSource)`. The promises
    are those of `two_phase_commit`: through a crash of anything each batch lands
    exactly once at every participant. It works under Spark Connect, too. It has no
    routes and no driver path, and after `transaction_timeout` only a sweep
    (`tracing-2pc recover` or `watch`) aborts a batch that is not decided.

    Options are `application`, which is required, and the names of `Settings`: `log`,
    `participants` as `ledger=http://…,notifier=http://…`, `token`, `on_pending` and the
    others. Missing ones are read from `tpc.toml` and the environment of the driver.
    `replaces` and `links` are as for `two_phase_commit`: names with commas, and a
    column; the setting `links` is no option here.

    A `DataFrame` that is no stream is written by `df.write…mode("append").save()` as
    one batch. Its number is the option `batch`, which must rise from write to write:
    the same number again is a replay: it writes nothing, and logs a warning. A lower
    one is refused before any task. Without it the number is the one after the newest on
    record, so that a write that is repeated is written again; of two such writes at
    once, one is refused. Streams have applications of their own.

    If a participant does not acknowledge a commit, that is tried `inline_tries` times,
    about two minutes. Then, with `on_pending` as *wait*, the tasks of the next batch
    wait for it before they write; with *fail* the query ends. So the last batch of a
    query that ends by itself may be left to its next batch or `tracing-2pc recover`.
    `df.write` waits until all have acknowledged. Commits that are sent again before a
    batch come from executors, perhaps from several at once.

    To write to sinks of your own, override `sink`, and name its options in
    `own_options`, in small letters.

    Raises:
        ConfigurationError: an option that is missing, unknown or wrong.
    """

    own_options: Collection[str] = ()

    @classmethod
    def name(cls) -> str:
        """Return the name for `format(...)`."""
        return "two_phase_commit"

    def sink(self, settings: Settings) -> Sink | Sequence[Sink]:
        """Return the sink to write to, or several."""
        return ParticipantSink(
            settings.participants,
            token=settings.token or None,
            timeout=settings.request_timeout,
        )

    def streamWriter(self, schema: StructType, overwrite: bool) -> StreamWriter:  # noqa: FBT001, N802
        """Return the writer of micro-batches. Spark calls this in several processes."""
        if "batch" in self.options:
            raise ConfigurationError("option batch: a stream counts its own batches")
        if not {"checkpointlocation", "queryname"} & {n.lower() for n in self.options}:
            raise ConfigurationError(
                "the query has no checkpoint that a next start would find. Give it one "
                'with .option("checkpointLocation", "state/checkpoint")'
            )
        job = self._job(schema)
        return StreamWriter(job, _newest(job))

    def writer(self, schema: StructType, overwrite: bool) -> BatchWriter:  # noqa: FBT001
        """Return the writer of one DataFrame; Spark calls this before its tasks."""
        if overwrite:
            raise ConfigurationError('only mode("append") is supported: no overwriting')
        job = self._job(schema)
        newest, number = _newest(job), self.options.get("batch")
        if number is None:
            return BatchWriter(job, newest, _next_batch(job, newest), is_drawn=True)
        if not str(number).isdecimal():
            raise ConfigurationError(f"option batch: {number!r} is not a whole number")
        return BatchWriter(job, newest, int(number))

    def _job(self, schema: StructType) -> Job:
        raise_if_unread(schema)
        given = {name.lower(): value for name, value in self.options.items()}
        others = {*_OF_SPARK, *_OF_BATCHES, *self.own_options}
        ours = {name: given[name] for name in given if name not in others}
        if not (application := given.get("application")):
            raise ConfigurationError("option application: name the query, for ever")
        settings = Settings.load(**ours)
        replaces = [n.strip() for n in given.get("replaces", "").split(",") if n]
        links = given.get("links")
        if links is not None:
            check_links(links, [schema])
        own = settings.addresses_of(application)
        settings = dataclasses.replace(settings, participants=own)
        job = Job.of(self.sink(settings), application, settings, replaces, links)
        check_pickles(job.sink)
        _check_once(tuple(sorted(given.items())), job)
        before_tasks(job.sink, lambda: arrow_schema(schema, links))
        return job


@dataclasses.dataclass(frozen=True)
class TaskMessage(WriterCommitMessage):  # type: ignore[misc]
    """A task's message to the process that commits: its votes, and the transaction."""

    transaction: str
    replay: bool
    receipts: tuple[str, ...] = ()
    rows: int = 0  # of a replay: they were not written


class _Writer:
    """One batch, in whichever process. All that it shares with others is in the log."""

    _is_stream = True

    def __init__(self, job: Job, newest: TransactionRecord | None) -> None:
        self._job = job
        self._telemetry = environment.telemetry_settings()
        self._log_at = _place_of(job.settings.log)
        self._run_before = newest and newest.run

    def _write(
        self, batch: int, run: str, query: str | None, batches: Iterator[pa.RecordBatch]
    ) -> TaskMessage:
        job = self._job
        if (here := _place_of(job.settings.log)) != self._log_at:
            raise ConfigurationError(
                f"the decision log {job.settings.log} is {self._log_at} for the driver "
                f"and {here} for this executor: use a log on PostgreSQL, which all of "
                "them reach, or foreachBatch"
            )
        with self._coordinator(f"{job.application}\n{run}\n{batch}") as coordinator:
            if (record := coordinator.join(batch, run)) is None:
                self._refuse_late(batch, run)
                begun = coordinator.open(batch, run, query)
                record = begun.record
                if begun.replay:
                    self._check_replay(record, run)
                    # Counted, for a stateful query must still run its plan.
                    rows = sum(batch.num_rows for batch in batches)
                    return TaskMessage(str(record.id), replay=True, rows=rows)
            receipts = write_partition(
                job.sink, record, self._telemetry, batches, job.links
            )
        freeze_gc()
        written = tuple(receipt.to_json() for receipt in receipts)
        return TaskMessage(str(record.id), replay=False, receipts=written)

    def _refuse_late(self, batch: int, run: str) -> None:
        """Refuse a task that began after its run was replaced, or its batch aborted."""
        newest = _newest(self._job)
        if newest is None:
            return
        if newest.run not in (self._run_before, run):
            raise AbortedError(
                f"run {newest.run} of {self._job.application} has gone on since this "
                "one was planned. Nothing of this one was committed; start one of them"
            )
        is_mine = (newest.id.batch, newest.run) == (batch, run)
        if is_mine and newest.decision is Decision.ABORT:
            raise AbortedError(
                f"{newest.id} is decided abort: it failed or ran out of time, and this "
                "task began too late. Start it again",
                transaction_id=str(newest.id),
            )

    def _check_replay(self, record: TransactionRecord, run: str) -> None:
        """Refuse a replay that can be none."""

    def _commit(
        self, messages: Sequence[TaskMessage | None], *, is_limited: bool
    ) -> None:
        """Decide, deliver, and send; if `is_limited`, missing acknowledgements wait.

        No process of ours lasts: requests not sent soon wait for the next batch.
        """
        self._close(messages, is_limited=is_limited)
        send_waiting(participants_of(self._job.sink))

    def _close(
        self, messages: Sequence[TaskMessage | None], *, is_limited: bool
    ) -> None:
        if not messages:
            return  # no partition: no task has opened a transaction
        task_messages = [message for message in messages if message is not None]
        about = {(message.transaction, message.replay) for message in task_messages}
        if len(task_messages) < len(messages):
            raise AbortedError(
                f"{self._job.application}: a task has sent no message. Nothing was "
                "committed; start it again"
            )
        if len(about) != 1:
            raise AbortedError(
                f"{self._job.application}: its tasks wrote to several attempts, "
                f"{sorted(id_ for id_, _ in about)}: another process has aborted the "
                "first. Nothing was committed; start it again"
            )
        ((transaction, replay),) = about
        if replay:
            self._skip(transaction, sum(message.rows for message in task_messages))
            return
        with self._coordinator() as coordinator:
            record = _read(coordinator, transaction)
            if record is None:
                raise AbortedError(
                    f"{transaction} is not on record: a newer run has taken over, or "
                    "its tasks have another decision log. Nothing was committed",
                    transaction_id=transaction,
                )
            if not is_limited:
                coordinator.close(record, _receipts(task_messages, transaction))
                return
            # Nothing tells this process that the query is being stopped. A task that
            # waits is ended, so a long wait is left to those of the next batch.
            limited = dataclasses.replace(coordinator.settings, on_pending="fail")
            try:
                dataclasses.replace(coordinator, settings=limited).close(
                    record, _receipts(task_messages, transaction)
                )
            except CommitPendingError as error:
                if self._job.settings.on_pending == "fail":
                    raise
                logger.warning(
                    "the next batch waits: transaction=%s: %s", transaction, error
                )

    def _skip(self, transaction: str, rows: int) -> None:
        """Log that a batch is not written again, which has so many rows now."""
        text = "replay of a decided batch: transaction=%s rows=%d"
        logger.info(text, transaction, rows)

    def _abort(self, messages: Sequence[TaskMessage | None]) -> None:
        """Abort the messages' transactions unless decided; else a sweep does."""
        task_messages = [
            message for message in messages if message and not message.replay
        ]
        with self._coordinator() as coordinator:
            for transaction in sorted(
                {message.transaction for message in task_messages}
            ):
                cause = AbortedError(
                    "Spark ended the batch", transaction_id=transaction
                )
                # Rule 8: the log is asked; a decided commit is left to be delivered.
                record = _read(coordinator, transaction)
                if record is not None and record.state not in FINAL:
                    coordinator.fail(
                        record, cause, _receipts(task_messages, transaction)
                    )

    @contextlib.contextmanager
    def _coordinator(self, shared: str | None = None) -> Iterator[Coordinator]:
        """Yield this process's coordinator; `shared`: others may open the batch too."""
        job = self._job
        environment.apply(self._telemetry)
        lifecycle.start(job.application)
        instruments.start(job.application)
        log = _log(job.settings.log or "")
        try:
            yield job.coordinator(
                log, OpenTelemetryTracing(shared), lambda: False, stream=self._is_stream
            )
        finally:
            lifecycle.flush(FLUSH_SECONDS)


class StreamWriter(_Writer, DataSourceStreamArrowWriter):  # type: ignore[misc]
    """The writer of micro-batches."""

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write a partition, in a task."""
        from pyspark import TaskContext

        task: Any = TaskContext.get()
        batch = task.getLocalProperty("streaming.sql.batchId")
        query = task.getLocalProperty("sql.streaming.queryId")
        run = task.getLocalProperty("spark.jobGroup.id")  # the run id of the query
        if not (batch and run):
            raise ConfigurationError(
                "only micro-batches are written: use processingTime"
            )
        return self._write(int(batch), run, query, iterator)

    def commit(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Commit a batch; raise, and Spark calls `abort` and ends the query."""
        self._commit(messages, is_limited=True)

    def abort(self, messages: list[Any], batchId: int) -> None:  # noqa: N803
        """Abort a batch, as far as it is known. Spark calls it late, twice or never."""
        with _logged(self._job.application, batchId):
            self._abort(messages)

    def _check_replay(self, record: TransactionRecord, run: str) -> None:
        if record.run == run:
            raise AbortedError(
                f"{record.id} is committed by this very run, and a batch is one "
                "transaction: nothing of this task was written. If it is no late "
                "twin of another, start a second query with an application of its own",
                transaction_id=str(record.id),
            )


class BatchWriter(_Writer, DataSourceArrowWriter):  # type: ignore[misc]
    """The writer of one DataFrame: one batch, one run."""

    _is_stream = False  # its number is the caller's

    def __init__(
        self,
        job: Job,
        newest: TransactionRecord | None,
        batch: int,
        *,
        is_drawn: bool = False,
    ) -> None:
        super().__init__(job, newest)
        self._batch, self._run = batch, uuid.uuid4().hex
        self._is_drawn = is_drawn
        committed = newest is not None and newest.decision is Decision.COMMIT
        if newest is not None and committed and batch < newest.id.batch:
            raise ConfigurationError(
                f"option batch: {batch} of {job.application} is refused, for batch "
                f"{newest.id.batch} is committed: a number must rise from write to "
                "write. Nothing was written; give a higher one"
            )

    def write(self, iterator: Iterator[pa.RecordBatch]) -> TaskMessage:
        """Write a partition, in a task."""
        return self._write(self._batch, self._run, self._job.writes, iterator)

    def _check_replay(self, record: TransactionRecord, run: str) -> None:
        if self._is_drawn and record.run != run:
            raise AbortedError(
                f"another write has taken batch {self._batch} of "
                f"{self._job.application} meanwhile. Nothing of this one was written; "
                "write again"
            )

    def _skip(self, transaction: str, rows: int) -> None:
        with self._coordinator() as coordinator:
            record = _read(coordinator, transaction)
        held = "" if record is None else f", with {record.rows} rows"
        logger.warning(
            "%s is committed already%s: nothing of this write was written, which has "
            "%d rows. If it is another one, give it another number",
            *(transaction, held, rows),
        )

    def commit(self, messages: list[Any]) -> None:
        """Commit what all tasks have written; wait until all have acknowledged."""
        self._commit(messages, is_limited=False)

    def abort(self, messages: list[Any]) -> None:
        """Abort it: here the run is known, with or without a message."""
        with _logged(self._job.application, self._batch):
            with self._coordinator() as coordinator:
                record = coordinator.join(self._batch, self._run)
            known = (
                () if record is None else (TaskMessage(str(record.id), replay=False),)
            )
            self._abort([*messages, *known])


@contextlib.contextmanager
def _logged(application: str, batch: int) -> Iterator[None]:
    """Log an error that is raised: the first one is the one the user must see."""
    try:
        yield
    except TwoPhaseError as error:
        logger.warning(
            "not aborted: application=%s batch=%d: %s", application, batch, error
        )


def _receipts(messages: Sequence[TaskMessage], transaction: str) -> list[Receipt]:
    mine = (m.receipts for m in messages if m.transaction == transaction)
    return [Receipt.from_json(text) for receipts in mine for text in receipts]


def _read(coordinator: Coordinator, transaction: str) -> TransactionRecord | None:
    return coordinator.read(TransactionId.parse(transaction))


def _newest(job: Job) -> TransactionRecord | None:
    """Return the newest transaction of a job's application."""

    def ask() -> TransactionRecord | None:
        log = _log(job.settings.log or "")
        chosen = TransactionFilter(application=job.application, limit=1)
        rows = log.transactions(chosen)
        return log.read(rows[0].transaction) if rows else None

    return ask_until_answered(ask, job.retry(lambda: False))


def _next_batch(job: Job, newest: TransactionRecord | None) -> int:
    """Return the number after the newest batch on record."""
    if newest is not None:
        return newest.id.batch + 1
    log = _log(job.settings.log or "")
    forgotten = log.forgotten_by_application().get(job.application)
    return 0 if forgotten is None else forgotten + 1


@functools.cache
def _log(url: str) -> SqlDecisionLog:
    """Open the log once in a process: Spark uses its processes again."""
    return open_log(url)


_checked: Final[set[tuple[tuple[str, str], ...]]] = set()


def _check_once(options: tuple[tuple[str, str], ...], job: Job) -> None:
    """Check tokens and addresses once in a process, not for each batch.

    Sinks are asked each time: their notes then go to the tasks with them.
    """
    if options in _checked:
        check_job(job.sink, job.application)
        return
    job.check()
    _checked.add(options)


def _place_of(log: str | None) -> str:
    """Return a log's place: equal for all processes that reach the same one."""
    url = database_url(log or "", "log")
    if url.get_backend_name() == "sqlite":
        return f"{Path(url.database or '').absolute()} on {socket.gethostname()}"
    return "on a server"
