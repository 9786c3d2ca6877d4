"""`two_phase_commit(...)`: the callback for `writeStream.foreachBatch`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import time
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

from tracing_2pc.core.errors import (
    EACH_TIME,
    AbortedError,
    ConfigurationError,
    ParticipantError,
    ParticipantRefusedError,
    TwoPhaseError,
)
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.model import Receipt, TransactionRecord, count_rows
from tracing_2pc.core.settings import Settings
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.sinks.base import Sink, before_tasks, participants_of, rejects_of
from tracing_2pc.sinks.composite import CompositeSink
from tracing_2pc.sinks.job import Job
from tracing_2pc.sinks.participant_sink import ParticipantSink
from tracing_2pc.sinks.sending import start_sending
from tracing_2pc.spark.calls import called_once
from tracing_2pc.spark.context import (
    ConnectContext,
    StreamContext,
    refuse_local_files,
    under_connect,
)
from tracing_2pc.spark.driver_path import DriverPath, TooLargeError, write_in_driver
from tracing_2pc.spark.links import check_links
from tracing_2pc.spark.pickling import check_pickles
from tracing_2pc.spark.presence import be_present, end_presence
from tracing_2pc.spark.query_errors import (
    StoppedError,
    describe_end,
    describe_failure,
    forget_end,
    reason_of,
    report_end,
)
from tracing_2pc.spark.tasks import (
    Written,
    arrow_schema,
    materialised,
    write_partitions,
)
from tracing_2pc.store import open_log
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.sdk import environment, lifecycle
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

Route = Callable[["DataFrame"], "DataFrame"]


def two_phase_commit(
    sink: Sink | Sequence[Sink],
    *,
    application: str,
    log: str | None = None,
    routes: Mapping[str, Route] | None = None,
    on_pending: Literal["wait", "fail"] | None = None,
    settings: Settings | None = None,
    replaces: Collection[str] = (),
    links: str | None = None,
    rejects: str | None = None,
    rejects_at_most: int | None = None,
) -> ForeachBatch:
    """Return a callback for `foreachBatch`: each batch lands everywhere or nowhere.

    Through a crash of anything, each batch lands exactly once at every participant:
    a batch whose commit was decided is delivered again at the next start and not
    written again; one that was not decided is aborted and written again. One Spark job
    per batch; with several routes one more than routes.

    A batch is written by the driver itself if the one before it came to at most the
    setting `driver_path_bytes`, else by tasks on executors; each start begins with
    tasks. The promises are the same. A sink of your own is written by tasks unless it
    has `driver_path = True`.

    Call it once for each batch, with all of its rows: a second call in one run is
    refused, for it would be taken for a replay. One that raised may be repeated.

    The query needs a `checkpointLocation`. Its batches are logged: one line each at
    INFO, and one at ERROR for the batch that ends the query.

    A replayed batch that is skipped leaves the participants with its first content. If
    the source or a function is not deterministic, Spark's own state may hold another.

    Args:
        sink: a `ParticipantSink`, or a sink of your own; or several of any kind, in a
            list: each batch lands in all of them or in none (`CompositeSink`).
        application: the name of this streaming query, for ever: 1 to 40 lower-case
            letters, digits and dashes. Two queries need two names.
        log: URL of the decision log, `sqlite:///state/decisions.db` or
            `postgresql://host/database`, or `env:NAME`. Keep it as long as the
            checkpoint. Default: the setting `log`.
        routes: participant to a function that makes its DataFrame from the batch. The
            batch is computed once, and written in one job per route, in one
            transaction. An executor that is lost meanwhile takes its part of the batch
            along: the attempt is aborted. Every participant needs a route.
        on_pending: the reaction to a participant that has not acknowledged a commit:
            `wait` (the default) holds the batch back and tries on; `fail` raises
            `CommitPendingError` after some tries, and the next start goes on.
        settings: default is `Settings.load()`.
        replaces: all participants of the run before, where those of `sink` are others
            on purpose; a change is refused without it. It allows the change from
            exactly those, so it can stay.
        links: the column with the headers that a row came with, as Spark's source of
            Kafka gives them (`includeHeaders`), or a carrier: a map of names to values.
            It is read and not written. The transaction's root span links to the spans
            that are named in `traceparent` or `sw8`: to the first 32 different ones,
            partition by partition in the order of rows. They are stored with the
            decision, so each process that exports the root has the same; an abort has
            none. Several routes: it is read in those that keep the column.
        rejects: the participant that keeps the rows which others refuse, in the same
            transaction: each row of a committed batch is at all that it is for, or
            there, once. It is given the columns `participant`, `reason`, `column`,
            `transaction`, `partition` and `record`, and no route. A refusal that
            names no rows aborts the batch as without it. Default: the setting
            `rejects`; without one a refused row aborts its batch.
        rejects_at_most: rows of a batch that may be rejected; more abort it. Default:
            the setting `rejects_at_most`, 100.

    Raises:
        ConfigurationError: with the change to make.
        ContractError: with the error of a sink of your own, such as the attribute
            that does not pickle: executors get the sink pickled.
        DecisionLogError: the log cannot be reached.
    """
    chosen = settings or Settings.load()
    chosen = chosen.with_arguments(
        log=log,
        on_pending=on_pending,
        rejects=rejects,
        rejects_at_most=rejects_at_most,
    )
    job = Job.of(sink, application, chosen, replaces, links)
    check_pickles(job.sink)
    if routes is not None:
        _check_routes(job.sink, routes)
    # Under Connect a process beside the server runs the callback, and opens all that.
    remote = under_connect()
    if not remote:
        # Before an outbox that the driver sends from: it would be named after that.
        lifecycle.start(application)
        instruments.start(application)
        refuse_local_files(job.sink)
        job.check()
        start_sending(participants_of(job.sink))
    log_here = None if remote else open_log(chosen.log or "")
    callback = ForeachBatch(job, dict(routes or {}), log_here)
    logger.info(
        "ready: application=%s participants=%s log=%s",
        *(application, ",".join(participants_of(job.sink)), chosen.log),
    )
    return callback


@dataclasses.dataclass(eq=False, repr=False)
class ForeachBatch:
    """The callback. Picklable: open resources stay in their process."""

    job: Job
    routes: Mapping[str, Route]
    log: OperatorLog | None

    def __post_init__(self) -> None:
        self._connect: ConnectContext | None = None
        self._stream: StreamContext | None = None  # of the last batch
        self._driver_path = DriverPath(self.job.settings.driver_path_bytes)

    def __getstate__(self) -> dict[str, Any]:
        telemetry = environment.telemetry_settings()
        open_here = {"log": None, "_stream": None}
        return {**self.__dict__, **open_here, "telemetry": telemetry}

    def __setstate__(self, state: dict[str, Any]) -> None:
        environment.apply(state.pop("telemetry"))
        self.__dict__.update(state)
        self._connect = ConnectContext.here()

    def __call__(self, df: DataFrame, batch: int) -> None:
        """Apply one micro-batch. An error ends the query; Spark replays it later.

        Raises:
            AbortedError: nothing was committed. It failed, or a newer run has taken
                over, which the log decides (`store/log/rules.py`).
            CommitPendingError: decided, and not acknowledged by all yet.
            HeuristicError: a participant went against the decision.
            ContractError: it was called before for this batch in this run, or it got
                the stream itself.
            ConfigurationError: checkpoint, log and application don't belong together;
                the participants changed, and `replaces` does not name the earlier
                ones; there is no checkpoint that a next start would find; or the batch
                before is not committed, because an error was caught.
            StoppedError: `stop()` came first. It does not become `query.exception()`.
        """
        lifecycle.start(self.job.application)
        instruments.start(self.job.application)
        forget_end(self.job.application)
        stream = None
        try:
            stream = self._stream_of(df)
            log = self._open_log()
            # Under Connect Spark kills the process where a query ends, as it may end.
            if self._connect is None:
                be_present(log, self.job.application, stream.run, stream.find_query)
            address = self.job.settings.log or ""
            with called_once(self.job.application, address, stream.run, batch):
                self._apply(df, batch, stream, log)
        except Exception as error:  # noqa: BLE001 - raised again, or what it stands for
            stopping = stream is not None and stream.stopping()
            short = report_end(error, self.job.application, batch, stopping=stopping)
            reason = None if isinstance(short, StoppedError) else describe_end(error)
            if self.log is not None:
                end_presence(self.log, self.job.application, batch, reason)
        else:
            return
        # Py4J hands the whole traceback on as text, with causes and contexts.
        raise short.with_traceback(None) from None

    def _apply(
        self, df: DataFrame, batch: int, stream: StreamContext, log: OperatorLog
    ) -> None:
        started = time.monotonic()
        path = self._driver_path
        in_driver = path.fits(self.job.sink, stream.query and stream.run)
        attempt = _Attempt(df, stream, self.job, self.routes, in_driver)
        try:
            wrote = self._try(attempt, batch, log)
        except TooLargeError:
            if stream.stopping():
                raise
            logger.warning(
                "batch is too large for the driver, executors write it: "
                "application=%s batch=%d bytes_of_batch_before=%d; raise "
                "spark.driver.maxResultSize, or lower driver_path_bytes",
                *(self.job.application, batch, path.arrow_bytes or 0),
            )
            attempt = _Attempt(df, stream, self.job, self.routes, in_driver=False)
            wrote = self._try(attempt, batch, log)
        path.arrow_bytes = attempt.arrow_bytes or path.arrow_bytes
        if wrote:
            logger.info(
                "committed: application=%s batch=%d rows=%d seconds=%.1f",
                *(
                    self.job.application,
                    batch,
                    attempt.rows,
                    time.monotonic() - started,
                ),
            )
        else:
            text = "replay of a decided batch: application=%s batch=%d"
            logger.info(text, self.job.application, batch)
            # A stateful query must still run its plan, or its state store fails.
            df.write.format("noop").mode("overwrite").save()

    def _stream_of(self, df: DataFrame) -> StreamContext:
        if self._connect is not None:
            return self._connect.of_batch(df, self.job.application)
        if self._stream is None or df.isStreaming or not self._stream.has(df):
            self._stream = StreamContext.of(df)
            refuse_local_files(self.job.sink)  # a session may be younger than its job
        return self._stream

    def _try(self, attempt: _Attempt, batch: int, log: OperatorLog) -> bool:
        """Make one attempt at the batch; False if it was a replay."""
        stream = attempt.stream
        try:
            return self._coordinator(stream, log).apply(
                batch,
                run=stream.run,
                query=stream.query,
                write=attempt.write,
                cancel=attempt.cancel,
            )
        except Exception as error:
            voted = isinstance(error, ParticipantRefusedError)
            if voted or (error is attempt.error and _is_of_the_job(error)):
                reason = reason_of(error)
                again = "; start the query again, it writes the batch anew"
                again = "" if EACH_TIME in reason else again
                message = f"{reason}. Nothing was committed{again}"
                raise AbortedError(message) from error
            raise

    def _open_log(self) -> OperatorLog:
        if self.log is None:
            self.job.check()
            start_sending(participants_of(self.job.sink))
            self.log = open_log(self.job.settings.log or "")
        return self.log

    def _coordinator(self, stream: StreamContext, log: OperatorLog) -> Coordinator:
        coordinator = self.job.coordinator(
            log,
            OpenTelemetryTracing(),
            stream.stopping,
            stream=stream.query is not None,  # else it is called by hand
        )
        return dataclasses.replace(coordinator, describe=describe_failure)


@dataclasses.dataclass
class _Attempt:
    """The writing of one batch, once."""

    df: DataFrame
    stream: StreamContext
    job: Job
    routes: Mapping[str, Route]
    in_driver: bool
    cancelled: bool = False
    rows: int = 0
    arrow_bytes: int = 0
    error: Exception | None = None

    def write(self, record: TransactionRecord) -> list[Receipt]:
        with self.stream.jobs_of(record):
            try:
                if self.routes:
                    receipts = self._write_routes(record)
                else:
                    self._check_links([self.df])
                    receipts = self._write(self.df, self.job.sink, record)
            except Exception as error:
                self.error = error
                if self.cancelled:
                    raise AbortedError(
                        f"{record.id} had no decision within transaction_timeout; "
                        "its jobs were cancelled and nothing was committed. Make the "
                        "batches smaller, or the timeout longer",
                        transaction_id=str(record.id),
                    ) from error
                raise
        self.rows = count_rows(receipts, record.rejects)
        return receipts

    def cancel(self, record: TransactionRecord) -> None:
        self.cancelled = True
        self.stream.cancel(record)

    def _write(
        self, df: DataFrame, sink: Sink, record: TransactionRecord, route: int = 0
    ) -> list[Receipt]:
        links = self.job.links
        before_tasks(sink, lambda: arrow_schema(df.schema, links))
        written: Written
        if self.in_driver:
            about = sink, record, route, self._stopping, links
            written = write_in_driver(df, *about)
        else:
            written = write_partitions(df, sink, record, links, route)
        self.arrow_bytes += written.arrow_bytes
        return written.receipts

    def _stopping(self) -> bool:
        return self.cancelled or self.stream.stopping()

    def _write_routes(self, record: TransactionRecord) -> list[Receipt]:
        whole = self.job.sink
        assert isinstance(whole, ParticipantSink | CompositeSink)  # noqa: S101 - checked
        once = materialised if len(self.routes) > 1 else contextlib.nullcontext
        with once(self.df) as batch:
            frames = {name: route(batch) for name, route in self.routes.items()}
            self._check_links(frames.values())
            receipts = []
            for number, (name, frame) in enumerate(frames.items()):
                receipts += self._write(frame, whole.route(name), record, number)
            return receipts

    def _check_links(self, frames: Iterable[DataFrame]) -> None:
        if self.job.links is not None:
            check_links(self.job.links, (frame.schema for frame in frames))


def _is_of_the_job(error: Exception) -> bool:
    """Whether the error is one that a task would hand on as text, of any class."""
    if isinstance(error, TooLargeError):
        return False
    return not isinstance(error, TwoPhaseError) or isinstance(error, ParticipantError)


def _check_routes(sink: Sink, routes: Mapping[str, Route]) -> None:
    if not isinstance(sink, ParticipantSink | CompositeSink):
        raise ConfigurationError("routes need a ParticipantSink, or several sinks")
    wanted = set(sink.participants) - {rejects_of(sink)}
    given = set(routes)
    if wanted != given:
        raise ConfigurationError(
            f"routes must name every participant: missing {sorted(wanted - given)}, "
            f"unknown {sorted(given - wanted)}"
        )
