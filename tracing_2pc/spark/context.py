"""Facts about a foreachBatch callback's query from Spark, and its stop."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import uuid
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.errors import ConfigurationError, ContractError
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.sinks.base import Sink, participants_of

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

logger = logging.getLogger(__name__)

_DRAWN: Final = re.compile(r"/[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}$")
_TEMPORARY: Final = re.compile(r"/temporary-[0-9a-f-]{36}$")
"""Where Spark keeps the checkpoint of a query that was given none."""


def refuse_local_files(sink: Sink) -> None:
    """Refuse a file of this machine where tasks may run on others.

    Without a session in this process nothing is known: then a task refuses.

    Raises:
        ConfigurationError: the session's master is not local.
    """
    from pyspark import SparkContext

    session = SparkContext._active_spark_context
    if session is None or re.match(r"local(\[|$)", session.master):
        return
    files = [
        name
        for name, participant in participants_of(sink).items()
        if getattr(getattr(participant, "inner", None), "is_local", False)
    ]
    if files:
        raise ConfigurationError(
            f"{', '.join(files)}: SQLite is a file of this machine, and tasks of "
            f"{session.master} may run on others: use postgresql:"
        )


@dataclasses.dataclass(frozen=True)
class StreamContext:
    """The query that a batch belongs to."""

    spark: Any  # the driver's SparkContext
    # Spark's run id, new at every start of the query; a fresh one when the callback is
    # called by hand.
    run: str
    # Spark's query id, kept in the checkpoint; None when called by hand.
    query: str | None
    session: Any = None  # the session that knows the query, in whatever thread one asks

    @classmethod
    def of(cls, df: DataFrame) -> StreamContext:
        """Read it inside the callback; `ContractError`: this is no micro-batch.

        Raises:
            ConfigurationError: asynchronous progress tracking, or a checkpoint that no
                next start would have.
        """
        _refuse_stream(df)
        spark = df.sparkSession.sparkContext
        run = spark.getLocalProperty("spark.jobGroup.id")
        query = spark.getLocalProperty("sql.streaming.queryId")
        run = run if query and run else uuid.uuid4().hex
        context = cls(spark, run, query, _active_session())
        context._refuse_what_cannot_be_replayed()
        if (running := context.find_query()) is not None:
            # Rather than the job group: a callback may have set its own.
            context = dataclasses.replace(context, run=str(running.runId))
        return context

    def has(self, df: DataFrame) -> bool:
        """Return whether a micro-batch is of the same run, as far as is known."""
        # After `spark.stop()` the context of the batches before answers no question.
        if self.query is None or df.sparkSession.sparkContext is not self.spark:
            return False
        asked = self.spark.getLocalProperty
        mine = self.run, self.query
        return mine == (asked("spark.jobGroup.id"), asked("sql.streaming.queryId"))

    def stopping(self) -> bool:
        """Whether the query is being stopped; False where that cannot be known.

        `stop()` interrupts Spark jobs, and waits for plain Python: a callback that
        waits must ask.
        """
        query = self.find_query()
        return query is not None and not query.isActive

    @contextlib.contextmanager
    def jobs_of(self, record: TransactionRecord) -> Iterator[None]:
        """Put the transaction's id on every Spark job started inside.

        A tag and a description, never a job group: Spark cancels a query's tasks by
        its own group.
        """
        traced = f" trace={record.trace_id}" if record.trace_id else ""
        self.spark.addJobTag(_tag_of(record))
        self.spark.setJobDescription(f"two-phase commit {record.id}{traced}")
        try:
            yield
        finally:
            with contextlib.suppress(Exception):  # the JVM may be gone: keep the error
                self.spark.removeJobTag(_tag_of(record))

    def cancel(self, record: TransactionRecord) -> None:
        """Cancel the transaction's jobs, and no others."""
        try:
            self._cancel_jobs(_tag_of(record))
        except Exception:  # Py4J's errors have no common class
            text = "could not cancel the jobs: transaction=%s"
            logger.exception(text, record.id, extra=record.log_fields)

    def _cancel_jobs(self, tag: str) -> None:
        self.spark.cancelJobsWithTag(tag)

    def find_query(self) -> Any:
        """Return Spark's query; None where there is none, or it cannot be asked for."""
        if self.query is None:
            return None
        try:
            return self.session and self.session.streams.get(self.query)
        except Exception:  # noqa: BLE001 - the JVM may be gone, Py4J has many errors
            return None

    def _refuse_what_cannot_be_replayed(self) -> None:
        kind, place, name = "", "", None
        with contextlib.suppress(Exception):  # a private API: absent is no answer
            query = self.find_query()
            kind = str(query._jsq.streamingQuery().getClass().getSimpleName())
            place = str(query._jsq.streamingQuery().resolvedCheckpointRoot())
            name = query.name
        if "AsyncProgress" in kind:
            raise ConfigurationError(
                "asynchronous progress tracking is refused: a batch must not begin "
                "before Spark has committed the one before it. Remove the option "
                "asyncProgressTrackingEnabled, or the trigger realTime"
            )
        if _TEMPORARY.search(place) or (name is None and self._is_drawn(place)):
            raise ConfigurationError(
                "the query has no checkpoint that a next start would find: after a "
                "crash its batch could never be replayed. Give it one with "
                '.option("checkpointLocation", "state/checkpoint")'
            )

    def _is_drawn(self, place: str) -> bool:
        """Whether Spark drew the last folder's name, below one from the settings."""
        setting = "spark.sql.streaming.checkpointLocation"
        root = self.find_query() and self.session.conf.get(setting, None)
        return bool(root) and _DRAWN.search(place) is not None


@dataclasses.dataclass(frozen=True)
class ConnectContext(StreamContext):
    """The same under Spark Connect: a process beside the server runs the callback.

    One such process is one run. Spark does not name its query to it: it takes the one
    with the application's name, else the only one of the client's session. Without
    either, the log cannot check that the checkpoint is the same as before,
    and `stop()` is not noticed while the callback waits.
    """

    @classmethod
    def here(cls) -> ConnectContext | None:
        """Return that of this process, at the moment when it gets the callback."""
        if not under_connect() or (client := _active_session()) is None:
            return None
        return cls(None, uuid.uuid4().hex, None, client)

    def of_batch(self, df: DataFrame, application: str) -> ConnectContext:
        """Return that of a micro-batch."""
        _refuse_stream(df)
        query = self.query
        if query is None:
            running = {q.id: q.name for q in self.session.streams.active}
            named = [id_ for id_, name in running.items() if name == application]
            ids = named or list(running)
            query = str(ids[0]) if len(ids) == 1 else None
        return dataclasses.replace(self, spark=df.sparkSession, query=query)

    @contextlib.contextmanager
    def jobs_of(self, record: TransactionRecord) -> Iterator[None]:
        """Put the transaction's id on every operation that is started inside."""
        self.spark.addTag(_tag_of(record))
        try:
            yield
        finally:
            self.spark.removeTag(_tag_of(record))

    def _cancel_jobs(self, tag: str) -> None:
        self.spark.interruptTag(tag)


def _refuse_stream(df: DataFrame) -> None:
    if df.isStreaming:
        raise ContractError(
            "two_phase_commit(...) takes a micro-batch: pass it to "
            "writeStream.foreachBatch(...), don't call it with the stream"
        )


def _active_session() -> Any:
    from pyspark.sql import SparkSession

    # Not the DataFrame's session: that is a clone which knows no query. Only the thread
    # of the callback has an active one.
    return SparkSession.getActiveSession()


def under_connect() -> bool:
    """Whether this process talks to Spark by Connect."""
    from pyspark.sql.utils import is_remote

    return bool(is_remote())


def _tag_of(record: TransactionRecord) -> str:
    return f"tpc-{record.id}"
