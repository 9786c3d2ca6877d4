"""The objects of one launch in the cluster: made of a job as one would apply it."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Mapping
from typing import Final

from tracing_2pc.core.model import TransactionId
from tracing_2pc.launch.cluster import Object
from tracing_2pc.launch.waiting import TRANSACTION, new_creation
from tracing_2pc.tracing.propagation import environment_of
from tracing_2pc.tracing.spans import current_carrier

APPLICATION: Final = "tracing-2pc/application"
ROLE: Final = "tracing-2pc/role"
STARTED: Final = "tracing-2pc/started"
FINALIZER: Final = "tracing-2pc/launch"
BUILT: Final = "built"
"""What a container's `image` says where it is the one that was built."""

KINDS: Final = ("Job", "Deployment")


@dataclasses.dataclass(frozen=True)
class Plan:
    """The objects to create."""

    manifest: Object  # a Job or a Deployment as one would apply it, with a namespace
    # A command that is run to its end in the same pod first.
    check: tuple[str, ...] = ()
    # Goes into each container.
    environment: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def namespace(self) -> str:
        """Where all of it is."""
        return str(self.manifest["metadata"]["namespace"])

    def object(self, transaction: TransactionId, image: str | None) -> Object:
        """Return the object of one transaction: there, and not running."""
        item = self._own(transaction, image, "job")
        item["metadata"]["finalizers"] = [FINALIZER]
        spec = item["spec"]
        if item["kind"] == "Job":
            spec["suspend"] = True
        else:
            selector = spec.setdefault("selector", {}).setdefault("matchLabels", {})
            selector |= {TRANSACTION: str(transaction)}
            spec["replicas"] = 0
        return item

    def check_job(self, transaction: TransactionId, image: str | None) -> Object:
        """Return the Job that runs the check in the same pod."""
        item = self._own(transaction, image, "check")
        item["metadata"]["name"] += "-check"
        template = item["spec"]["template"]
        pod = template["spec"]
        pod["restartPolicy"] = "Never"
        first = pod["containers"][0]
        first["command"] = list(self.check)
        first.pop("args", None)
        first["terminationMessagePolicy"] = "FallbackToLogsOnError"
        pod["containers"] = [first]
        spec = {"backoffLimit": 0, "template": template}
        return {**item, "apiVersion": "batch/v1", "kind": "Job", "spec": spec}

    def _own(self, transaction: TransactionId, image: str | None, role: str) -> Object:
        item = copy.deepcopy(self.manifest)
        meta, template = item["metadata"], item["spec"]["template"]
        labels = {
            APPLICATION: transaction.application,
            TRANSACTION: str(transaction),
            ROLE: role,
        }
        for labelled in (meta, template.setdefault("metadata", {})):
            labelled["labels"] = {**(labelled.get("labels") or {}), **labels}
        meta["name"] = object_name(meta["name"], transaction)
        meta["annotations"] = {**(meta.get("annotations") or {}), **new_creation()}
        meta["annotations"].pop(STARTED, None)  # of a copy
        environment = {**self.environment, "TRANSACTION_ID": str(transaction)}
        environment |= environment_of(current_carrier())
        pod = template["spec"]
        for volume in pod.get("volumes") or ():
            if (volume.get("image") or {}).get("reference") == BUILT:
                volume["image"]["reference"] = image
        for container in (*(pod.get("initContainers") or ()), *pod["containers"]):
            if container.get("image") == BUILT:
                container["image"] = image
            kept = [
                e
                for e in container.get("env") or ()
                if e.get("name") not in environment
            ]
            # Ours come first, so that the job's own can name them as `$(NAME)`; of
            # ours each `$` is one.
            new = [
                {"name": n, "value": v.replace("$", "$$")}
                for n, v in environment.items()
            ]
            container["env"] = new + kept
        return item


def object_name(name: str, transaction: TransactionId) -> str:
    """Return the name of one transaction's object; with a pod's suffix it is short."""
    cut = name[:36].rstrip("-.")
    return f"{cut}-{transaction.batch}-{transaction.attempt}"
