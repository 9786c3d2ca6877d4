"""A Kubernetes Job or Deployment: created before the decision, started by it.

A ConfigMap of the application is the launch's journal in the cluster: the transaction
that was started last, and the one up to which nothing may be prepared any more. The
object's finalizer keeps it until the journal has it as started: neither a time-to-live
nor a hand can make a commit start it a second time.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

from tracing_2pc.core.errors import ConfigurationError, TwoPhaseError
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import BranchContext, TransactionId
from tracing_2pc.core.settings import without_secrets
from tracing_2pc.launch.built_image import BuiltImage
from tracing_2pc.launch.cluster import ChangedError, Cluster, ClusterError, Object
from tracing_2pc.launch.own_cluster import own_cluster
from tracing_2pc.launch.plan import (
    APPLICATION,
    FINALIZER,
    KINDS,
    ROLE,
    STARTED,
    Plan,
)
from tracing_2pc.launch.waiting import (
    TRANSACTION,
    Place,
    PlaceOf,
    create,
    difference,
    is_same,
    refusal,
    wait_for,
)
from tracing_2pc.tracing.decorator.traced_sink import traced_sink

NAME: Final = "launch-job"

_TRIES: Final = 20


@traced_sink
class SuspendedJob:
    """Checks, and creates the job so that nothing runs; the commit starts it.

    The vote is on the API server's disk. A commit stops the jobs of earlier launches,
    waits until their pods are gone, starts this one and notes it. It may be repeated,
    by any process and at any time: a job that was started once is not started again,
    even if it has ended and is gone. A job that was deleted by hand before its commit
    is created again from the handle.

    Args:
        cluster: the API server; by default as `own_cluster` finds it, when needed.
        plan: the objects to create. None in a recovery, which has the handle.
        image: whose digest the job is pinned to.
        stopping: set when the vote is no longer waited for.
        place_of: where an abort looks; by default, where the plan is.
    """

    name = NAME

    def __init__(
        self,
        cluster: Cluster | None = None,
        plan: Plan | None = None,
        image: BuiltImage | None = None,
        stopping: threading.Event | None = None,
        place_of: PlaceOf | None = None,
    ) -> None:
        self._given = cluster
        self.plan = plan
        self.image = image
        self.stopping = stopping or threading.Event()
        self.place_of = place_of or (lambda _: Place(self._plan().namespace))

    @property
    def cluster(self) -> Cluster:
        """The API server that is asked."""
        if self._given is None:
            self._given = own_cluster()
        return self._given

    def begin(self, context: BranchContext) -> dict[str, Any]:
        return {"transaction": str(context.transaction_id)}

    def invoke(self, handle: dict[str, Any], record: Any) -> None:
        """Take the row of the services: a job needs nothing of it."""

    def pre_commit(self, handle: dict[str, Any]) -> None:
        """Run the check to its end, then create the job, not running.

        Raises:
            ConfigurationError: the check failed, with its reason.
            TwoPhaseError: it is over already; or the API server did not answer.
        """
        plan, transaction = self._plan(), TransactionId.parse(handle["transaction"])
        image = self.image.pushed if self.image is not None else None
        handle["journal"] = self._journal(plan.namespace, transaction.application)
        if plan.check:
            self._check(plan.check_job(transaction, image))
        item = plan.object(transaction, image)
        replicas = plan.manifest["spec"].get("replicas", 1)
        handle.update(object=item, replicas=replicas)
        create(self.cluster, item, self.stopping)
        failpoint("launch.after_create")
        # What an abort did not see in its list, it told here before it looked.
        over = _noted(self._read_journal(plan.namespace, transaction), "over")
        if over is not None and over >= transaction:
            self._delete(item)
            raise TwoPhaseError(
                f"{transaction} is over: nothing may be prepared for it"
            )

    def commit(self, handle: dict[str, Any]) -> None:
        """Stop the one before, see its pods gone, and start this one."""
        kept: Object = handle["object"]
        namespace = kept["metadata"]["namespace"]
        transaction = TransactionId.parse(handle["transaction"])
        for _ in range(_TRIES):
            item = self.cluster.get(*_place(kept))
            if item is None or not _is_started(item, transaction):
                # Read after the object: it is noted before the finalizer goes.
                journal = self._read_journal(namespace, transaction)
                if journal is None or journal["metadata"]["uid"] != handle["journal"]:
                    raise ClusterError(
                        f"{transaction} was prepared in another cluster than "
                        f"{self.cluster.url}, or its ConfigMap "
                        f"{_journal_name(transaction.application)} was deleted: "
                        "nothing is started here"
                    )
                started = _noted(journal, "started")
                if started is not None and started >= transaction:
                    return
                try:
                    if item is None or "deletionTimestamp" in item["metadata"]:
                        self._create_again(kept, item)
                        continue
                    if (part := difference(kept, item)) is not None:
                        raise ClusterError(_changed(kept, part))
                    self._stop_before(kept, transaction)
                    failpoint("launch.before_start")
                    if not self._start(item, transaction, handle["replicas"]):
                        continue
                except ChangedError:
                    continue
            failpoint("launch.after_start")
            self._note(namespace, transaction, "started")
            self._let_go(kept)
            for item in self._before(kept["metadata"]["namespace"], transaction):
                self._delete(item)
            return
        raise ClusterError(f"{kept['metadata']['name']} changes faster than it is read")

    def commit_transaction(self, _id: str, chosen: Sequence[dict[str, Any]]) -> None:
        """Commit the launch's one branch; there is no other to drop."""
        for handle in chosen:
            self.commit(handle)

    def abort(self, handle: dict[str, Any]) -> None:
        """Delete what this transaction created, as far as it got."""
        if "object" in handle:
            self._delete(handle["object"])

    def abort_transaction(self, transaction_id: str, keep: Sequence[Any]) -> None:
        """Delete all that it created but for these, and let nothing new be prepared."""
        if keep:
            return  # a launch has one branch
        transaction = TransactionId.parse(transaction_id)
        namespace = self.place_of(transaction_id).namespace
        self._note(namespace, transaction, "over")
        labels = {TRANSACTION: transaction_id}
        for kind in KINDS:
            for item in self.cluster.list(kind, namespace, labels):
                self._delete({**item, "kind": kind})

    def remove(self, namespace: str, application: str) -> None:
        """Stop all that launches of an application have left, and delete it then.

        Raises:
            TwoPhaseError: not now; a pod has not ended yet.
        """
        mine = {APPLICATION: application}
        items = [
            {**item, "kind": kind}
            for kind in KINDS
            for item in self.cluster.list(kind, namespace, mine)
        ]
        self._stop(namespace, items, mine)
        for item in items:
            self._delete(item)

    def known(self, namespace: str, application: str) -> TransactionId | None:
        """Return the last transaction of an application that this cluster knows."""
        name = _journal_name(application)
        journal = self.cluster.get("ConfigMap", namespace, name) or {}
        noted = (journal.get("data") or {}).values()
        return max(map(TransactionId.parse, noted), default=None)

    def _plan(self) -> Plan:
        if self.plan is None:
            raise ConfigurationError("a recovery creates nothing new")
        return self.plan

    def _check(self, item: Object) -> None:
        kind, namespace, name = _place(item)
        create(self.cluster, item, self.stopping)
        ended: list[tuple[int, str]] = []
        failed: list[str] = []

        def is_over() -> bool:
            job = self.cluster.get(kind, namespace, name)
            if job is None:
                raise ConfigurationError(f"the check {name} was deleted while it ran")
            status = job.get("status") or {}
            ended[:] = self._ended(item)
            if ended:  # whatever was injected beside it runs on
                return True
            failed.extend(["its pod is gone"] * _is_any(status, "Failed"))
            return _has_ended(status)

        try:
            wait_for(is_over, self.stopping, f"the check {name}")
            for code, message in ended:
                if code:
                    text = " ".join(without_secrets(message).split())[-300:]
                    failed[:] = [f"{text or 'it said nothing'} (exit {code})"]
            if failed:
                raise ConfigurationError(f"the check of the job failed: {failed[0]}")
        finally:
            self._delete(item)

    def _ended(self, check: Object) -> list[tuple[int, str]]:
        """Return exit code and message of a check's container, once it has ended.

        Of the init container that failed, if the pod has failed without it. A sidecar
        is an init container, too: its end is no evidence about the check.
        """
        meta = check["metadata"]
        (own,) = check["spec"]["template"]["spec"]["containers"]
        mine = {name: meta["labels"][name] for name in (TRANSACTION, ROLE)}
        for pod in self.cluster.list("Pod", meta["namespace"], mine):
            status = pod.get("status") or {}
            containers = status.get("containerStatuses") or ()
            ends = _ends(c for c in containers if c.get("name") == own["name"])
            if not ends and status.get("phase") == "Failed":
                first = _ends(status.get("initContainerStatuses") or ())
                # The last one: none begins after it.
                ends = [end for end in first if end[0]][-1:]
            if ends:
                return ends
        return []

    def _create_again(self, kept: Object, item: Object | None) -> None:
        """Create an object again that was deleted by hand before its commit.

        Raises:
            ChangedError: another process may have done so, and started it.
            ClusterError: the cluster would keep another object than was prepared.
        """
        if item is not None:
            self._let_go_of(item, kept, item["metadata"]["resourceVersion"])
        result = self.cluster.create(kept, dry_run=True)
        if result is not None and (objection := refusal(kept, result)) is not None:
            raise ClusterError(objection)
        self.cluster.create(kept)

    def _start(self, item: Object, transaction: TransactionId, replicas: int) -> bool:
        """Start and mark it, in one change of the object as read; False: it is gone."""
        running = (
            {"suspend": False} if item["kind"] == "Job" else {"replicas": replicas}
        )
        meta = {
            "resourceVersion": item["metadata"]["resourceVersion"],
            "annotations": {STARTED: str(transaction)},
        }
        return self.cluster.patch(*_place(item), {"metadata": meta, "spec": running})

    def _stop_before(self, kept: Object, transaction: TransactionId) -> None:
        """Stop what earlier launches started; raise until their pods are gone."""
        namespace = kept["metadata"]["namespace"]
        mine = {APPLICATION: transaction.application, ROLE: "job"}
        before = self._before(namespace, transaction)
        self._stop(namespace, before, mine, str(transaction))

    def _stop(
        self,
        namespace: str,
        items: Sequence[Object],
        of_pods: Mapping[str, str],
        but: str | None = None,
    ) -> None:
        """Stop objects; raise while there are such pods of other transactions.

        A controller may be late. An object that it has not seen started is not stopped,
        and it must have seen the stop: else it makes pods after we have looked for
        them.
        """
        late = []
        for item in items:
            status = item.get("status") or {}
            stopped = {"suspend": True} if item["kind"] == "Job" else {"replicas": 0}
            key, value = next(iter(stopped.items()))
            if _has_ended(status) or "deletionTimestamp" in item["metadata"]:
                continue
            if item["spec"].get(key) != value:
                late.append(item["metadata"]["name"])
                if item["kind"] == "Deployment" or status.get("startTime"):
                    self.cluster.patch(*_place(item), {"spec": stopped})
            elif not _is_stopped(item):
                late.append(item["metadata"]["name"])
        left = late or [
            pod["metadata"]["name"]
            for pod in self.cluster.list("Pod", namespace, of_pods)
            if pod["metadata"]["labels"].get(TRANSACTION) != but
            and (pod.get("status") or {}).get("phase") not in {"Succeeded", "Failed"}
        ]
        if left:
            raise ClusterError(f"waits for the end of {', '.join(sorted(left)[:3])}")

    def _before(self, namespace: str, transaction: TransactionId) -> list[Object]:
        """List what earlier launches of the application have left, running or not."""
        mine = {APPLICATION: transaction.application}  # a check that came late, too
        return [
            {**item, "kind": kind}
            for kind in KINDS
            for item in self.cluster.list(kind, namespace, mine)
            if TransactionId.parse(item["metadata"]["labels"][TRANSACTION])
            < transaction
        ]

    def _delete(self, item: Object) -> None:
        """Delete an object, if it is still this transaction's."""
        current = self.cluster.get(*_place(item))
        if current is not None and is_same(current, item):
            self._let_go(item)
            self.cluster.delete(*_place(item))

    def _let_go(self, item: Object) -> None:
        """Take our finalizer from an object, and no other."""
        if (current := self.cluster.get(*_place(item))) is not None:
            self._let_go_of(current, item)

    def _let_go_of(
        self, current: Object, item: Object, version: str | None = None
    ) -> None:
        finalizers = current["metadata"].get("finalizers") or []
        if FINALIZER in finalizers:
            rest = [name for name in finalizers if name != FINALIZER]
            meta: Object = {"finalizers": rest}
            meta |= {"resourceVersion": version} if version else {}
            self.cluster.patch(*_place(item), {"metadata": meta})

    def _journal(self, namespace: str, application: str) -> str:
        """Return the uid of the cluster's journal of an application; make it first."""
        name = _journal_name(application)
        meta = {"name": name, "namespace": namespace}
        made = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
        create(self.cluster, made, self.stopping)
        if (journal := self.cluster.get("ConfigMap", namespace, name)) is None:
            raise ClusterError(f"ConfigMap {name} was deleted")
        return str(journal["metadata"]["uid"])

    def _read_journal(
        self, namespace: str, transaction: TransactionId
    ) -> Object | None:
        name = _journal_name(transaction.application)
        return self.cluster.get("ConfigMap", namespace, name)

    def _note(self, namespace: str, transaction: TransactionId, key: str) -> None:
        """Write it into the journal; it never goes back."""
        name = _journal_name(transaction.application)
        data = {key: str(transaction)}
        for _ in range(_TRIES):
            journal = self._read_journal(namespace, transaction)
            if journal is None:
                made = {
                    "apiVersion": "v1",
                    "kind": "ConfigMap",
                    "metadata": {"name": name, "namespace": namespace},
                    "data": data,
                }
                if self.cluster.create(made):
                    return
                continue
            last = _noted(journal, key)
            if last is not None and last >= transaction:
                return
            version = {"resourceVersion": journal["metadata"]["resourceVersion"]}
            change = {"metadata": version, "data": data}
            try:
                if self.cluster.patch("ConfigMap", namespace, name, change):
                    return
            except ChangedError:
                continue
        raise ClusterError(f"ConfigMap {name} changes faster than it is read")


def _place(item: Object) -> tuple[str, str, str]:
    meta = item["metadata"]
    return item["kind"], meta["namespace"], meta["name"]


def _changed(kept: Object, part: str) -> str:
    kind, namespace, name = _place(kept)
    differs = f"has another {part} than was prepared"
    if part == "annotation":
        differs = "is not the object that this launch made"
    return (
        f"{kind} {name} in {namespace} {differs}, so it is not started: delete it, and "
        "it is made anew as it was prepared"
    )


def _ends(containers: Iterable[Object]) -> list[tuple[int, str]]:
    """Return exit code and message of each container that has ended."""
    states = (container.get("state") or {} for container in containers)
    ended = (state["terminated"] for state in states if state.get("terminated"))
    return [(int(e.get("exitCode") or 0), str(e.get("message") or "")) for e in ended]


def _journal_name(application: str) -> str:
    return f"tpc-{application.replace('_', '-').lower()}"


def _has_ended(status: Object) -> bool:
    return _is_any(status, "Complete", "Failed")


def _is_any(status: Object, *conditions: str) -> bool:
    entries = status.get("conditions") or ()
    return any(c["type"] in conditions and c["status"] == "True" for c in entries)


def _is_stopped(item: Object) -> bool:
    """Return whether its controller has seen that it is to be stopped."""
    status = item.get("status") or {}
    if item["kind"] == "Deployment":
        seen = status.get("observedGeneration", 0) >= item["metadata"]["generation"]
        return bool(seen and not status.get("replicas"))
    return _is_any(status, "Suspended")


def _noted(journal: Object | None, key: str) -> TransactionId | None:
    """Return the transaction that a journal has under a key."""
    text = ((journal or {}).get("data") or {}).get(key)
    return None if text is None else TransactionId.parse(text)


def _is_started(item: Object, transaction: TransactionId) -> bool:
    annotations = item["metadata"].get("annotations") or {}
    return bool(annotations.get(STARTED) == str(transaction))
