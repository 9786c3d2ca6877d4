"""A stand-in for controllers, kubelet and Tekton: it runs what objects say.

It asks an API server, the real one or `support/cluster.py`, as they do, and is the only
one who makes pods. A Job's, a Deployment's and a TaskRun's command is a process of this
machine, in the environment that it is given.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import signal
import subprocess
import threading
from typing import Any

from support.waiting import PAUSE, until
from tracing_2pc.launch.cluster import Cluster, ClusterError

Object = dict[str, Any]
Key = tuple[str, str]  # kind, name

NOW = "2026-01-01T00:00:00Z"


class Kubelet:
    """Runs what one namespace has, until it is closed.

    `started` has the name and the image of each object that was run, in order. While
    `lingering` is set, pods that were stopped stay; while `late`, nothing is looked at.
    The next job that ends after `sidecar` is set has another container in its pod,
    which runs on.
    """

    def __init__(self, cluster: Cluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.lingering = threading.Event()
        self.late = threading.Event()
        self.sidecar = threading.Event()
        self.tasks: dict[str, list[str]] = {}  # commands of Tasks, by name
        self._started: list[tuple[str, str]] = []
        self._running: dict[Key, subprocess.Popen[str]] = {}
        self._rounds = 0
        self._closing = threading.Event()
        self._error: Exception | None = None
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    @property
    def started(self) -> list[tuple[str, str]]:
        self.settle()
        return self._started

    def named(self, kind: str) -> dict[str, Object]:
        """Return the objects of a kind by name, when all is run that is to run."""
        self.settle()
        found = self.cluster.list(kind, self.namespace, {})
        return {item["metadata"]["name"]: item for item in found}

    def settle(self) -> None:
        """Wait until all has been looked at that is there now."""
        end = self._rounds + 2
        until(lambda: self._rounds >= end or self._error is not None)
        if self._error is not None:
            raise self._error

    def be_late(self) -> None:
        """Look at nothing from now on; a look that has begun is ended first."""
        self.late.set()
        self.settle()

    def let_go(self) -> None:
        """Let pods that were stopped be gone."""
        self.lingering.clear()
        self.settle()

    def close(self) -> None:
        self._closing.set()
        self._thread.join()
        for key in list(self._running):
            self._kill(key)

    def _run(self) -> None:
        while not self._closing.wait(PAUSE / 5):
            try:
                self._look()
            except ClusterError:
                continue  # a conflict, or the test's end
            except Exception as error:  # noqa: BLE001 - the test's thread raises it
                self._error = error
                return
            self._rounds += 1

    def _look(self) -> None:
        if self.late.is_set():
            return
        wanted: dict[Key, Object] = {}
        for kind in ("Job", "Deployment", "TaskRun"):
            for item in self.cluster.list(kind, self.namespace, {}):
                if _is_to_run({**item, "kind": kind}):
                    wanted[kind, item["metadata"]["name"]] = item
                if kind != "TaskRun":
                    self._tell_seen(kind, item)
        for key in self._running.keys() - wanted.keys():
            self._kill(key)
        for key, item in wanted.items():
            if key not in self._running:
                self._begin(key, item)
            elif (code := self._running[key].poll()) is not None:
                self._ended(key, code)
        if self.lingering.is_set():
            return
        for pod in self.cluster.list("Pod", self.namespace, {}):
            name = pod["metadata"]["name"]
            owner = name.removesuffix("-pod")
            phase = (pod.get("status") or {}).get("phase")
            if phase == "Running" and not any(key[1] == owner for key in wanted):
                self.cluster.delete("Pod", self.namespace, name)

    def _begin(self, key: Key, item: Object) -> None:
        kind, name = key
        told: dict[str, str] = {}
        if kind == "TaskRun":
            params = {p["name"]: p["value"] for p in item["spec"]["params"]}
            if (task := item["spec"].get("taskRef")) is not None:
                words = self.tasks[task["name"]]
            else:
                (step,) = item["spec"]["taskSpec"]["steps"]
                words = step["command"]
            words = [_filled(word, params) for word in words]
        else:
            template = item["spec"]["template"]
            (first, *_) = template["spec"]["containers"]
            words = first["command"]
            told = self._told(first)
            meta = {"name": f"{name}-pod", "namespace": self.namespace}
            labels = template["metadata"]["labels"]
            self.cluster.create(
                {
                    "apiVersion": "v1",
                    "kind": "Pod",
                    "metadata": {**meta, "labels": labels},
                    "spec": template["spec"],
                }
            )
            self._say(("Pod", meta["name"]), {"phase": "Running"})
            self._started.append((name, first["image"]))
        self._running[key] = subprocess.Popen(
            words,
            env={**os.environ, **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )

    def _tell_seen(self, kind: str, item: Object) -> None:
        """Write into its status what of its spec has been seen."""
        told, meta = item.get("status") or {}, item["metadata"]
        if kind == "Deployment":
            replicas = item["spec"].get("replicas", 1)
            seen = {"observedGeneration": meta["generation"], "replicas": replicas}
        elif _has_ended(item):
            return
        else:
            stopped = bool(item["spec"].get("suspend"))
            seen = _conditions(("Suspended", str(stopped), ""))
            seen |= {} if stopped else {"startTime": NOW}
        if any(told.get(name) != value for name, value in seen.items()):
            self._say((kind, meta["name"]), {"startTime": None, **seen})

    def _told(self, container: Object) -> dict[str, str]:
        """Return its environment: from ConfigMaps, from Secrets, and as it stands."""
        told: dict[str, str] = {}
        for one in container.get("envFrom", ()):
            told |= self._stored("configmaps", one["configMapRef"]["name"])
        for one in container.get("env", ()):
            told[one["name"]] = _expanded(one.get("value", ""), told)
            if ref := one.get("valueFrom", {}).get("secretKeyRef"):
                kept = self._stored("secrets", ref["name"])[ref["key"]]
                told[one["name"]] = base64.b64decode(kept).decode()
        return told

    def _stored(self, plural: str, name: str) -> dict[str, str]:
        path = f"/api/v1/namespaces/{self.namespace}/{plural}/{name}"
        found = self.cluster._ask("GET", path, missing=True) or {}
        return found.get("data") or {}

    def _ended(self, key: Key, code: int) -> None:
        said, _ = self._running[key].communicate()
        if key[0] == "TaskRun":
            state = "True" if code == 0 else "False"
            self._say(key, _conditions(("Succeeded", state, said)))
        elif key[0] == "Job":
            ended = {"exitCode": code, "message": said[-4000:]}
            state = {"name": "totals", "state": {"terminated": ended}, **_OF_CONTAINER}
            phase = "Succeeded" if code == 0 else "Failed"
            pod = {"phase": phase, "containerStatuses": [state]}
            if self.sidecar.is_set():
                self.sidecar.clear()
                self._say(("Pod", f"{key[1]}-pod"), {**pod, "phase": "Running"})
                self._running[key] = subprocess.Popen(
                    ["sleep", "infinity"],
                    stdout=subprocess.PIPE,
                    text=True,
                    start_new_session=True,
                )
                return
            self._say(("Pod", f"{key[1]}-pod"), pod)
            names = ("SuccessCriteriaMet", "Complete")
            names = names if code == 0 else ("FailureTarget", "Failed")
            done = _conditions(*((name, "True", "") for name in names))
            done |= {"startTime": NOW, "active": 0}
            if code == 0:
                done |= {"completionTime": NOW, "succeeded": 1}
            self._say(key, done)
        self._running.pop(key)

    def _say(self, key: Key, status: Object) -> None:
        kind, name = key
        change = {"status": status}
        self.cluster.patch(kind, self.namespace, name, change, "status")

    def _kill(self, key: Key) -> None:
        process = self._running.pop(key)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


_OF_CONTAINER = {"ready": False, "restartCount": 0, "image": "", "imageID": ""}


def _is_to_run(item: Object) -> bool:
    if "deletionTimestamp" in item["metadata"]:
        return False
    if item["kind"] == "Deployment":
        return bool(item["spec"].get("replicas", 1))
    return not _has_ended(item) and not item["spec"].get("suspend")


def _has_ended(item: Object) -> bool:
    ended = (item.get("status") or {}).get("conditions") or ()
    return any(c["type"] in {"Complete", "Failed", "Succeeded"} for c in ended)


def _conditions(*states: tuple[str, str, str]) -> Object:
    return {
        "conditions": [
            {
                "type": name,
                "status": state,
                "reason": name,
                "message": said,
                "lastTransitionTime": NOW,
                "lastProbeTime": NOW,
            }
            for name, state, said in states
        ]
    }


def _expanded(value: str, told: Object) -> str:
    """Put variables that stand before it into a value; `$$` is one `$`."""

    def put(found: re.Match[str]) -> str:
        name = found["name"]
        return "$" if name is None else told.get(name, found[0])

    return re.sub(r"\$\$|\$\((?P<name>[^)]*)\)", put, value)


def _filled(word: str, params: Object) -> str:
    for name, value in params.items():
        word = word.replace(f"$(params.{name})", str(value))
    return word
