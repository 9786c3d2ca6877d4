"""Waiting for work elsewhere, until the vote is no longer waited for."""

from __future__ import annotations

import dataclasses
import json
import threading
import uuid
from collections.abc import Callable, Iterator
from typing import Any, Final

from tracing_2pc.core.errors import AbortedError, ConfigurationError
from tracing_2pc.launch.cluster import Cluster, Object, UnreachableError

TRANSACTION: Final = "tracing-2pc/transaction"
"""The label by which an object says whose it is."""

CREATION: Final = "tracing-2pc/creation"
"""An annotation that nobody can guess: by it an object is known to be our own."""

WORD: Final = "tracing-2pc/transactionId"
"""The label with a user's own word for a launch; it means nothing to us."""

QUEUES: Final = "kueue.x-k8s.io/"
"""How names begin by which Kueue starts a job by itself."""


@dataclasses.dataclass(frozen=True)
class Place:
    """Where a launch makes what an abort has to find: its record has it as facts."""

    namespace: str
    repository: str = ""  # empty where nothing is built
    by_task: bool = False  # by a TaskRun
    is_past: bool = False  # a later launch is on record: this one has ended everywhere


PlaceOf = Callable[[str], Place]
"""Says of a transaction where it was launched, whatever a file says now."""

_FIRST: Final = 0.1
_LONGEST: Final = 2.0


def wait_for(
    is_over: Callable[[], bool], stopping: threading.Event, subject: str
) -> None:
    """Ask until it is over: soon at first, then every two seconds.

    An API server that does not answer is asked again.

    Raises:
        AbortedError: `stopping` was set: the launch has run out of time.
    """
    pause = _FIRST
    while True:
        try:
            if is_over():
                return
            cause = ""
        except UnreachableError as error:
            cause = f": {error}"
        if stopping.wait(pause):
            raise AbortedError(
                f"{subject} was not over within the launch's `timeout`{cause}"
            )
        pause = min(pause * 1.5, _LONGEST)


def new_creation() -> dict[str, str]:
    """Return the annotation of an object that is about to be created."""
    return {CREATION: uuid.uuid4().hex}


def create(cluster: Cluster, item: Object, stopping: threading.Event) -> None:
    """Create an object; it is kept as it was sent, or it is refused.

    A dry run comes first, so that an object that a webhook changes does not run. If an
    earlier try was stored and its answer lost, the annotation shows that the object is
    ours. A ConfigMap has no such annotation: it is used, with any author.

    Raises:
        AbortedError: as `wait_for`.
        ConfigurationError: one of this name is there, and it is not this launch's; or
            the cluster keeps another object than was sent.
        ClusterError: the API server refuses it.
    """
    meta, kind = item["metadata"], item["kind"]
    name = f"{kind} {meta['name']}"

    def is_there() -> bool:
        kept = cluster.create(item, dry_run=True)
        if kept is not None and refusal(item, kept) is None:
            kept = cluster.create(item)
        if kept is None:
            kept = cluster.get(kind, meta["namespace"], meta["name"])
            if kept is None or "deletionTimestamp" in kept["metadata"]:
                return False
            if not is_same(kept, item):
                raise ConfigurationError(
                    f"{name} is there already, and it is not this launch's: delete it, "
                    "or name the job otherwise"
                )
        if (objection := refusal(item, kept)) is not None:
            raise ConfigurationError(objection)
        return True

    wait_for(is_there, stopping, f"the creation of {name}")


def refusal(sent: Object, kept: Object) -> str | None:
    """Return why the object that a cluster would keep is refused, and the cure.

    None if it is not. A label or an annotation of Kueue's may have come from its
    webhook: Kueue would start the job before the decision.
    """
    meta, name = kept["metadata"], f"{sent['kind']} {sent['metadata']['name']}"
    for field in ("labels", "annotations"):
        added = (meta.get(field) or {}).keys() - (sent["metadata"].get(field) or {})
        for key in sorted(n for n in added if n.startswith(QUEUES)):
            return (
                f"{name}: Kueue would start it before the decision, by the "
                f"{field[:-1]} {key} that its webhook adds: launch it in a namespace "
                "without a default LocalQueue"
            )
    if (part := difference(sent, kept)) is None:
        return None
    return (
        f"{name}: the cluster would keep another {part} than was sent; a webhook "
        "changes it: exempt this job from it, or write the changed value into the file"
    )


def is_same(kept: Object, item: Object) -> bool:
    """Return whether the object in the cluster is the one that was sent."""

    def own(manifest: Object) -> tuple[object, object]:
        meta = manifest["metadata"]
        labels, notes = meta.get("labels") or {}, meta.get("annotations") or {}
        return labels.get(TRANSACTION), notes.get(CREATION)

    return own(kept) == own(item)


def difference(sent: Object, kept: Object) -> str | None:
    """Name the first part that is not kept as it was sent; None if there is none.

    It compares the parts that a transaction rests on: the owner, that it does not run,
    and the program. Additions of a cluster are ignored.
    """
    wanted, actual = dict(_parts(sent)), dict(_parts(kept))
    return next((n for n, value in wanted.items() if actual.get(n) != value), None)


def _parts(item: Object) -> Iterator[tuple[str, Any]]:
    meta, spec = item["metadata"], item.get("spec") or {}
    template = spec.get("template") or {}
    yield "annotation", (meta.get("annotations") or {}).get(CREATION)
    selector = (spec.get("selector") or {}).get("matchLabels") or {}
    inner = (template.get("metadata") or {}).get("labels") or {}
    for where, labels in (
        ("label", meta.get("labels") or {}),
        ("label of its pods", inner),
        ("selector", selector),
    ):
        yield from ((f"{where} {n}", v) for n, v in labels.items() if _is_ours(n))
    yield from (
        (f"finalizer {n}", True) for n in filter(_is_ours, _all(meta, "finalizers"))
    )
    for field in ("suspend", "replicas"):
        if field in spec:
            yield field, spec[field]
    for param in _all(spec, "params"):
        yield f"param {param.get('name')}", _as_tekton_keeps(param.get("value"))
    yield "taskRef", (spec.get("taskRef") or {}).get("name")
    pod = template.get("spec") or {}
    for kind in ("initContainers", "containers"):
        for container in _all(pod, kind):
            name = f"of container {container.get('name')}"
            yield f"image {name}", container.get("image")
            for field in ("command", "args"):
                yield f"{field} {name}", container.get(field) or []
            for variable in _all(container, "env"):  # the last one of a name counts
                value = bool(variable.get("valueFrom")) or variable.get("value") or ""
                yield f"{variable.get('name')} {name}", value
    for volume in _all(pod, "volumes"):
        if image := volume.get("image"):
            yield f"image of volume {volume.get('name')}", image.get("reference")


def _as_tekton_keeps(value: Any) -> Any:
    """Return a param's value as Tekton has it: a list, an object, or text."""
    if isinstance(value, float) and value.is_integer():
        value = int(value)  # the API server writes 1.0 so
    keeps = isinstance(value, str | list | dict)
    return value if keeps else "" if value is None else json.dumps(value)


def _all(item: Object, field: str) -> Any:
    return item.get(field) or ()


def _is_ours(name: str) -> bool:
    return name.startswith("tracing-2pc/")
