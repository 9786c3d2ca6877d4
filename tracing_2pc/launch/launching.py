"""Launches by a transaction; any process can finish an interrupted one."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from tracing_2pc.core.errors import AbortedError, ConfigurationError, TwoPhaseError
from tracing_2pc.core.log_reader import LogReader, OperatorLog, TransactionFilter
from tracing_2pc.core.model import (
    BranchId,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.ports import Participant
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import TransactionState, Word
from tracing_2pc.launch import built_image, suspended_job
from tracing_2pc.launch.built_image import BuiltImage, staging_tag, task_name
from tracing_2pc.launch.cluster import Cluster, ClusterError, NoClusterError
from tracing_2pc.launch.launch_file import LaunchFile
from tracing_2pc.launch.own_cluster import own_cluster
from tracing_2pc.launch.suspended_job import SuspendedJob
from tracing_2pc.launch.waiting import Place, PlaceOf, wait_for
from tracing_2pc.sinks.base import Sink, SinkParticipant, write_traced_branch
from tracing_2pc.sinks.job import Job
from tracing_2pc.sinks.participant_sink import ParticipantSink
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


class Phase(Word):
    """How far a launch is, as `kubectl get tsj` shows it."""

    PENDING = "Pending"
    PREPARING = "Preparing"
    PREPARED = "Prepared"
    COMMITTING = "Committing"
    COMMITTED = "Committed"
    ROLLING_BACK = "RollingBack"
    ROLLED_BACK = "RolledBack"
    FAILED = "Failed"


@dataclasses.dataclass(frozen=True)
class Launched:
    """The result: the transaction, and whether it had been launched before."""

    transaction: TransactionId
    replay: bool


def launch(
    file: LaunchFile,
    log: OperatorLog,
    settings: Settings,
    *,
    again: bool = False,
    stopping: threading.Event | None = None,
    cluster: Cluster | None = None,
    say: Callable[[Phase, str], None] = lambda _phase, _line: None,
    is_current: Callable[[], bool] = lambda: True,
    is_withdrawn: Callable[[], bool] = lambda: False,
) -> Launched:
    """Launch the content of a file, everywhere or nowhere; return when it has started.

    A process that is killed on the way leaves it to the next launch of the file, or, if
    it is decided, to `recover`. The same file as that of the newest launch is not
    launched twice.

    Args:
        file: what is launched.
        log: where it is decided.
        settings: token and time-outs of the participants.
        again: try a launch once more that was rolled back.
        stopping: set it to have an undecided launch rolled back.
        cluster: the API server; by default as `own_cluster` finds it.
        say: called with each phase, and a line about it.
        is_current: called after the log is read: whether the file is up to date.
        is_withdrawn: called when the launch is on record, so that a later withdrawal
            finds it there.

    Raises:
        ConfigurationError: it was rolled back before, and is not tried again without
            `again`.
        TwoPhaseError: it was rolled back, for this reason, and nothing of it is left;
            or it is decided, and a participant has not acknowledged it yet.
    """
    import pyarrow as pa  # of the extra; a recovery needs none of it

    newest = newest_launch(file, log)
    if not is_current():
        raise AbortedError(f"{file.name} was changed or deleted: read it again")
    if newest is not None and file.is_of(newest):
        if newest.state in {TransactionState.COMMITTING, TransactionState.ABORTING}:
            newest = _finish(file, log, settings, cluster)
        if newest.state is TransactionState.COMMITTED:
            # Who cannot be asked says nothing against what is on record.
            with contextlib.suppress(ClusterError, NoClusterError):
                _check_known(file, cluster or own_cluster(), newest)
            return Launched(newest.id, replay=True)
        is_back = newest.state in {TransactionState.ABORTED, TransactionState.ABORTING}
        if is_back and not again:
            cause = newest.detail or newest.cause
            raise ConfigurationError(
                f"{newest.id} was rolled back ({cause}): change the file, or say "
                "--again",
                transaction_id=str(newest.id),
            )
    stopping = stopping or threading.Event()
    cluster = cluster or own_cluster()
    _check_known(file, cluster, newest)
    job = _job(file, log, settings, stopping, cluster, newest)
    job.check()
    coordinator = job.coordinator(
        log, OpenTelemetryTracing(), stopping.is_set, facts=file.facts()
    )
    row = pa.RecordBatch.from_pylist([dict(file.record) or {"job": file.name}])
    names: list[TransactionId] = []

    def is_wanted() -> bool:
        if is_withdrawn():
            raise AbortedError(f"{file.name} was deleted")
        return True

    def write(record: TransactionRecord) -> tuple[Receipt, ...]:
        names.append(record.id)
        wait_for(is_wanted, stopping, "the look whether it is still wanted")
        preparing = f"{record.id}: preparing {', '.join(record.participants)}"
        say(Phase.PREPARING, preparing)
        place = BranchId(0, 0)
        context = record.context_of(place)
        receipts = write_traced_branch(job.sink, context, [row])
        say(Phase.PREPARED, f"{record.id}: all are prepared")
        return receipts

    following = _following(newest, file)
    try:
        coordinator.apply(
            following.batch,
            run=uuid.uuid4().hex,
            query=None,
            write=write,
            cancel=lambda _: stopping.set(),
            attempt=following.attempt,
        )
    except AbortedError:
        if names or newest_launch(file, log) == newest:
            raise
    if not names:  # another launch was quicker: what it came to counts for this one
        how = {"again": again, "stopping": stopping, "cluster": cluster, "say": say}
        how |= {"is_current": is_current, "is_withdrawn": is_withdrawn}
        return launch(file, log, settings, **how)  # type: ignore[arg-type]
    return Launched(names[0], replay=False)


def _check_known(
    file: LaunchFile, cluster: Cluster, newest: TransactionRecord | None
) -> None:
    """Refuse a log that does not have what this cluster has seen, or the reverse.

    Another log counts from the beginning again: its launches would have names that are
    taken, and a rollback would delete what runs. In another cluster the one before
    would run on, where it is.
    """
    sink, namespace = SuspendedJob(cluster), file.plan.namespace
    known = sink.known(namespace, file.application)
    ended = {TransactionState.COMMITTED, TransactionState.ABORTED}
    has_ended = newest is not None and newest.state in ended
    if newest is not None and has_ended and (known is None or known < newest.id):
        raise ConfigurationError(
            f"{newest.id} was launched in another cluster than {cluster.url}, or its "
            f"ConfigMap in {namespace} was deleted: launch there, or by a log of this "
            "cluster's own",
            transaction_id=str(newest.id),
        )
    if known is not None and (newest is None or newest.id < known):
        raise ConfigurationError(
            f"{known} was launched in {namespace} of {cluster.url}, and this decision "
            "log does not have it: name the log of the earlier launches"
        )


def dry_run(file: LaunchFile, log: OperatorLog) -> list[str]:
    """Return what a launch would make, in lines; only the log is read."""
    id_ = _following(newest_launch(file, log), file)
    lines = [f"transaction  {id_}"]
    if (build := file.build) is not None:
        lines.append(f"staging tag  {build.repository}:{staging_tag(str(id_))}")
        if build.task_run is not None:
            lines.append(f"TaskRun      {task_name(str(id_))} in {file.plan.namespace}")
        lines.append(f"release tag  {build.repository}:{build.tag}")
    if file.plan.check:
        name = file.plan.check_job(id_, "…")["metadata"]["name"]
        lines.append(f"check        Job {name} in {file.plan.namespace}")
    made = file.plan.object(id_, "…")
    name = made["metadata"]["name"]
    lines.append(f"job          {made['kind']} {name} in {file.plan.namespace}")
    lines += [
        f"participant  {name} at {url}" for name, url in file.participants.items()
    ]
    return lines


def recovering_sinks(log: LogReader) -> Mapping[str, Participant]:
    """Return what finishes a decided launch, by name; opens nothing until asked."""
    place_of = _place_of(log)
    image, job = BuiltImage(place_of=place_of), SuspendedJob(place_of=place_of)
    return {
        built_image.NAME: SinkParticipant(built_image.NAME, image),
        suspended_job.NAME: SinkParticipant(suspended_job.NAME, job),
    }


def _place_of(log: LogReader) -> PlaceOf:
    def read(transaction: str) -> Place:
        record = log.read(TransactionId.parse(transaction))
        if record is None or record.launch_namespace is None:
            raise TwoPhaseError(f"{transaction} is not on record as a launch")
        newest = TransactionFilter(record.id.application, limit=1)
        is_past = any(
            later.transaction.batch > record.id.batch
            for later in log.transactions(newest)
        )
        by_task = record.launch_builder == "task"
        repository = record.launch_repository or ""
        return Place(record.launch_namespace, repository, by_task, is_past)

    return read


def withdraw(
    file: LaunchFile, log: OperatorLog, settings: Settings, cluster: Cluster
) -> None:
    """End what was launched: rolled back, or if decided, finished; then stopped."""
    newest = newest_launch(file, log)
    once = dataclasses.replace(settings, on_pending="fail", inline_tries=1)
    job = _job(file, log, once, threading.Event(), cluster, newest)
    coordinator = job.coordinator(log, OpenTelemetryTracing(), lambda: False)
    for record in log.unfinished(file.application):
        if record.state is TransactionState.ACTIVE:
            error = AbortedError("it was withdrawn", transaction_id=str(record.id))
            coordinator.fail(record, error)
    coordinator.recover()
    for record in log.unfinished(file.application):
        raise TwoPhaseError(
            f"{record.id} is not finished", transaction_id=str(record.id)
        )
    SuspendedJob(cluster).remove(file.plan.namespace, file.application)


def newest_launch(file: LaunchFile, log: OperatorLog) -> TransactionRecord | None:
    """Return the record of the newest launch of this file's application."""
    for summary in log.transactions(TransactionFilter(file.application, limit=1)):
        return log.read(summary.transaction)
    return None


def _finish(
    file: LaunchFile, log: OperatorLog, settings: Settings, cluster: Cluster | None
) -> TransactionRecord:
    """Deliver what is decided, and return the newest launch as it stands then."""
    job = _job(file, log, settings, threading.Event(), cluster, None)
    job.coordinator(log, OpenTelemetryTracing(), lambda: False).recover()
    newest = newest_launch(file, log)
    assert newest is not None  # noqa: S101 - it was there before
    return newest


def _job(
    file: LaunchFile,
    log: LogReader,
    settings: Settings,
    stopping: threading.Event,
    cluster: Cluster | None,
    newest: TransactionRecord | None,
) -> Job:
    place_of = _place_of(log)
    sinks = _sinks(file, settings, stopping, cluster or own_cluster(), place_of)
    # A launch has no rows: a job's setting is none of its own.
    timed = dataclasses.replace(
        settings, transaction_timeout=file.timeout, rejects=None
    )
    replaces = () if newest is None else newest.participants
    return Job.of(sinks, file.application, timed, replaces)


def _sinks(
    file: LaunchFile,
    settings: Settings,
    stopping: threading.Event,
    cluster: Cluster,
    place_of: PlaceOf,
) -> list[Sink]:
    sinks: list[Any] = []
    image = None
    if file.build is not None:
        namespace = file.plan.namespace
        image = BuiltImage(file.build, stopping, cluster, namespace, place_of)
        sinks.append(image)
    sinks.append(SuspendedJob(cluster, file.plan, image, stopping, place_of))
    if file.participants:
        services = ParticipantSink(
            file.participants, token=settings.token, timeout=settings.request_timeout
        )
        sinks.append(services)  # last: they hold rows from their vote on
    return sinks


def _following(newest: TransactionRecord | None, file: LaunchFile) -> TransactionId:
    """Return the id of the launch after the newest one that is on record."""
    if newest is None:
        return TransactionId(file.application, 0, 1)
    is_over = newest.state in {
        TransactionState.COMMITTING,
        TransactionState.COMMITTED,
        TransactionState.CONCLUDED,
    }
    if is_over:
        return TransactionId(file.application, newest.id.batch + 1, 1)
    return dataclasses.replace(newest.id, attempt=newest.id.attempt + 1)
