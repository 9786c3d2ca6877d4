"""An operator: launches resources of the kind `TransactionalSparkJob`.

It reads all of them again and again, and compares each with the decision log, which has
the content and the end of the newest launch. So nothing follows from a resource's
status, a killed operator has lost nothing, and a second one does no harm.
"""

from __future__ import annotations

import dataclasses
import logging
import re
import threading
import time
from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Any, Final

from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.core.settings import Settings, without_secrets
from tracing_2pc.core.states import TransactionState
from tracing_2pc.launch.cluster import Cluster, Object
from tracing_2pc.launch.launch_file import LaunchFile, application_of
from tracing_2pc.launch.launching import Phase, launch, newest_launch, withdraw
from tracing_2pc.launch.plan import BUILT
from tracing_2pc.launch.suspended_job import SuspendedJob
from tracing_2pc.launch.waiting import WORD

KIND: Final = "TransactionalSparkJob"
FINALIZER: Final = "tracing-2pc/operator"
AGAIN: Final = "tracing-2pc/again"
"""An annotation: another value of it tries once more what was rolled back."""

_LONGEST: Final = 500
_LABEL: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")

logger = logging.getLogger(__name__)


_PHASES: Final = {
    TransactionState.ACTIVE: Phase.PREPARING,
    TransactionState.COMMITTING: Phase.COMMITTING,
    TransactionState.COMMITTED: Phase.COMMITTED,
    TransactionState.ABORTING: Phase.ROLLING_BACK,
    TransactionState.ABORTED: Phase.ROLLED_BACK,
    TransactionState.QUARANTINED: Phase.FAILED,
    TransactionState.CONCLUDED: Phase.FAILED,
}
_ENDED: Final = {
    TransactionState.COMMITTED,
    TransactionState.ABORTED,
    TransactionState.QUARANTINED,
    TransactionState.CONCLUDED,
}


@dataclasses.dataclass
class _UnderWay:
    """One launch that this operator carries out."""

    thread: threading.Thread
    stopping: threading.Event = dataclasses.field(default_factory=threading.Event)
    phase: Phase = Phase.PREPARING  # as the launch says it, once it is on record
    error: str = ""


class Operator:
    """Looks at one namespace of a cluster; its launches are decided in the log."""

    def __init__(
        self, cluster: Cluster, namespace: str, log: OperatorLog, settings: Settings
    ) -> None:
        self._cluster = cluster
        self._namespace = namespace
        self._log = log
        self._settings = settings
        self._under_way: dict[str, _UnderWay] = {}
        self._seen: set[str] = set()
        self._written: dict[str, Object] = {}

    def run(self, stopping: threading.Event, pause: float = 2.0) -> None:
        """Look every `pause` seconds, until stopped; leave running launches to the log.

        An API server or a log that does not answer is asked again.
        """
        while not stopping.is_set():
            try:
                self.look()
            except TwoPhaseError as error:
                logger.warning("not looked: namespace=%s: %s", self._namespace, error)
            stopping.wait(pause)

    def look(self) -> None:
        """Do what there is to do for each resource, once, or raise: ask again."""
        items = self._cluster.list(KIND, self._namespace, {})
        for uid in self._under_way.keys() - {item["metadata"]["uid"] for item in items}:
            self._under_way[uid].stopping.set()  # its resource is gone
        for item in items:
            meta = item["metadata"]
            try:
                self._look_at(item)
            except TwoPhaseError as error:
                about = (self._namespace, meta["name"])
                logger.warning("not launched: resource=%s/%s: %s", *about, error)

    def _look_at(self, item: Object) -> None:
        meta = item["metadata"]
        uid, key = meta["uid"], (KIND, meta["namespace"], meta["name"])
        under_way = self._under_way.get(uid)
        if under_way is not None and not under_way.thread.is_alive():
            under_way = None
        try:
            file = launch_file_of(item, self._settings.participants)
        except ValueError as error:
            if "deletionTimestamp" in meta:
                self._remove_unread(item, under_way)
            else:
                self._tell(item, None, Phase.FAILED, f"the resource: {error}")
            return
        if "deletionTimestamp" in meta:
            if FINALIZER not in meta.get("finalizers", ()):
                return
            if under_way is not None:
                under_way.stopping.set()
                return
            withdraw(file, self._log, self._settings, self._cluster)
            self._let_go(item)
            return
        if FINALIZER not in meta.get("finalizers", ()):
            finalizers = [*meta.get("finalizers", ()), FINALIZER]
            version = {"resourceVersion": meta["resourceVersion"]}
            change = {"metadata": {**version, "finalizers": finalizers}}
            self._cluster.patch(*key, change)
            return  # the next look has it
        newest = newest_launch(file, self._log)
        if under_way is None and self._is_to_launch(uid, file, newest):
            under_way = self._begin(item, file)
        self._seen.add(uid)
        self._show(item, file, newest, under_way)

    def _remove_unread(self, item: Object, under_way: _UnderWay | None) -> None:
        """End what a resource has launched that cannot be read any more."""
        meta = item["metadata"]
        if under_way is not None:
            under_way.stopping.set()
            return
        application = application_of(meta["namespace"], meta["name"], meta["uid"])
        if self._log.unfinished(application):
            message = (
                "a launch is not finished: mend the resource, which names its parts"
            )
            self._tell(item, None, Phase.FAILED, message)
            return
        SuspendedJob(self._cluster).remove(meta["namespace"], application)
        self._let_go(item)

    def _is_to_launch(
        self, uid: str, file: LaunchFile, newest: TransactionRecord | None
    ) -> bool:
        if newest is None:
            return True
        if newest.state is TransactionState.QUARANTINED:
            return False  # a person's
        if not file.is_of(newest):
            return True
        if newest.state in _ENDED:
            return False
        if newest.state is not TransactionState.ACTIVE:
            return True  # decided: to be delivered, by anybody
        # Of another operator, or of this one's last life, whom nobody sees: the newer
        # run supersedes, once. Later, what another one has begun is left to it.
        is_mine = uid not in self._seen
        return is_mine or time.time() - newest.started > file.timeout

    def _begin(self, item: Object, file: LaunchFile) -> _UnderWay:
        meta = item["metadata"]

        def is_current() -> bool:
            now = self._cluster.get(KIND, meta["namespace"], meta["name"])
            return now is not None and _version(now) == _version(item)

        def is_withdrawn() -> bool:
            now = self._cluster.get(KIND, meta["namespace"], meta["name"])
            there = {} if now is None else now["metadata"]
            return there.get("uid") != meta["uid"] or "deletionTimestamp" in there

        def run() -> None:
            try:
                launch(
                    file,
                    self._log,
                    self._settings,
                    stopping=begun.stopping,
                    say=lambda phase, _: setattr(begun, "phase", phase),
                    cluster=self._cluster,
                    is_current=is_current,
                    is_withdrawn=is_withdrawn,
                )
            except TwoPhaseError as error:
                begun.error = str(error)
                logger.warning("launch: application=%s: %s", file.application, error)
            except Exception as error:
                begun.error = type(error).__name__
                logger.exception("launch: application=%s", file.application)

        begun = _UnderWay(threading.Thread(target=run, name="tpc-launch", daemon=True))
        self._under_way[meta["uid"]] = begun
        begun.thread.start()
        return begun

    def _show(
        self,
        item: Object,
        file: LaunchFile,
        newest: TransactionRecord | None,
        under_way: _UnderWay | None,
    ) -> None:
        if newest is None or not file.is_of(newest):
            error = under_way.error if under_way is not None else ""
            self._tell(item, newest, Phase.PENDING, error or "not on record yet")
            return
        phase = _PHASES[newest.state]
        if phase is Phase.PREPARING and under_way is not None:
            phase = under_way.phase
        message = newest.detail or newest.cause or ""
        if phase in {Phase.PREPARING, Phase.COMMITTING}:
            message = f"waits for {', '.join(newest.pending)}"
        self._tell(item, newest, phase, message)

    def _tell(
        self, item: Object, record: TransactionRecord | None, phase: Phase, message: str
    ) -> None:
        """Write the status, if it is another one than that which was written last."""
        meta = item["metadata"]
        report = {
            "phase": str(phase),
            "transaction": None if record is None else str(record.id),
            "message": without_secrets(message)[:_LONGEST],
            "observedGeneration": meta["generation"],
        }
        ended = {Phase.COMMITTED, Phase.ROLLED_BACK, Phase.FAILED}
        stands = {name: (item.get("status") or {}).get(name) for name in report}
        # Nothing comes after an end that would write over another operator's late word.
        is_told = phase not in ended or stands == report
        if self._written.get(meta["uid"]) == report and is_told:
            return
        word = {Phase.COMMITTED: "True"}.get(phase, "False")
        since = _since(record)
        condition = {
            "type": "Launched",
            "status": word if phase in ended else "Unknown",
            "reason": str(phase),
            "message": report["message"],
            "lastTransitionTime": since,
            "observedGeneration": meta["generation"],
        }
        status = {**report, "since": since, "conditions": [condition]}
        place = KIND, meta["namespace"], meta["name"]
        self._cluster.patch(*place, {"status": status}, "status")
        self._written[meta["uid"]] = report

    def _let_go(self, item: Object) -> None:
        meta = item["metadata"]
        rest = [name for name in meta.get("finalizers", ()) if name != FINALIZER]
        place = KIND, meta["namespace"], meta["name"]
        self._cluster.patch(*place, {"metadata": {"finalizers": rest}})
        for kept in (self._under_way, self._written):
            kept.pop(meta["uid"], None)


def launch_file_of(item: Object, known: Mapping[str, str] | None = None) -> LaunchFile:
    """Return the launch of a resource; `ValueError` names a wrong field.

    `TektonBuild` names its Task as `endpoint`; `ExternalService` its URL, which must be
    one of those that are known, if any is: the operator's token goes there. `SparkApp`
    is the job itself.
    """
    addresses = {url.rstrip("/") for url in (known or {}).values()}
    meta, spec = item["metadata"], item.get("spec") or {}
    job = spec.get("job")
    if not isinstance(job, dict) or not isinstance(job.get("image"), str):
        raise ValueError("spec.job.image: name the image")
    builds: list[Mapping[str, Any]] = []
    urls: dict[str, str] = {}
    for participant in spec.get("participants") or ():
        name, kind, endpoint = (
            participant.get(n) for n in ("name", "type", "endpoint")
        )
        if kind == "TektonBuild":
            builds.append(participant)
        elif kind == "ExternalService":
            urls[str(name)] = str(endpoint)
            if addresses and str(endpoint).rstrip("/") not in addresses:
                raise ValueError(
                    f"participants: {name} at {endpoint} is none of the addresses in "
                    "the operator's own setting `participants`, and its token goes to "
                    "no other"
                )
        elif kind != "SparkApp":
            raise ValueError(f"participants: no type {kind!r} is known")
    if len(builds) > 1:
        raise ValueError("participants: one TektonBuild at most")
    word = spec.get("transactionId") or ""
    if word and not (isinstance(word, str) and _LABEL.fullmatch(word)):
        raise ValueError(
            "spec.transactionId: at most 63 letters, digits, and -_. between them"
        )
    made_of = _job_of(meta, job, BUILT if builds else job["image"])
    if word:
        made_of["metadata"]["labels"] = {WORD: word}
        made_of["spec"]["template"]["metadata"] = {"labels": {WORD: word}}
    made: dict[str, Any] = {
        "job": made_of,
        "participants": urls,
        "record": {
            "job": meta["name"],
            "namespace": meta["namespace"],
            "generation": meta["generation"],
            "transaction_id": word,
        },
        "timeout": str(spec.get("timeout") or "10m"),
    }
    if builds:
        repository, _, tag = job["image"].rpartition(":")
        source = {"name": "source", "value": str(job.get("source") or "")}
        task = {"taskRef": {"name": builds[0].get("endpoint")}, "params": [source]}
        made["build"] = {"image": repository, "tag": tag, "taskRun": task}
    again = (meta.get("annotations") or {}).get(AGAIN, "")
    return LaunchFile.of(made, uid=meta["uid"], again=again)


def _job_of(meta: Object, job: Mapping[str, Any], image: str) -> Object:
    entrypoint = job.get("entrypoint")
    words = (
        entrypoint if isinstance(entrypoint, list) else str(entrypoint or "").split()
    )
    if not words:
        raise ValueError("spec.job.entrypoint: name the command")
    variables = {"SOURCE": job.get("source"), "PARALLELISM": job.get("parallelism")}
    env = [{"name": n, "value": str(v)} for n, v in variables.items() if v is not None]
    container = {"name": "job", "image": image, "command": words, "env": env}
    pod = {"restartPolicy": "Never", "containers": [container]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": meta["name"], "namespace": meta["namespace"]},
        "spec": {"template": {"spec": pod}},
    }


def _version(item: Object) -> tuple[object, ...]:
    """Return a value that changes when a resource is to be launched again, or to go."""
    meta = item["metadata"]
    again = (meta.get("annotations") or {}).get(AGAIN)
    return meta["uid"], meta["generation"], again, meta.get("deletionTimestamp")


def _since(record: TransactionRecord | None) -> str:
    """Return when a launch came to where it is, by its record; now, if it has none."""
    moment = time.time()
    if record is not None:
        moment = record.finished or record.decided or record.started
    return datetime.fromtimestamp(moment, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
