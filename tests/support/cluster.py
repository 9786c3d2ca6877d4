"""A stand-in for a Kubernetes API server, with a kubelet and Tekton that run things.

Objects are kept as the real one keeps them: resource versions, finalizers, merge
patches, label selectors. What runs is real: a Job's, a Deployment's and a TaskRun's
command is a process of this machine, in the environment that it is given.
"""

from __future__ import annotations

import contextlib
import copy
import json
import os
import signal
import subprocess
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from support.served import served

Object = dict[str, Any]
Key = tuple[str, str, str]  # plural, namespace, name


class FakeCluster:
    """What is stored, and what runs. `asked` has each request, in order."""

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.asked: list[str] = []
        self.started: list[tuple[str, str]] = []  # object's name, image
        self.fault: Callable[[str, str], str | None] = lambda _method, _path: None
        self.lingering = threading.Event()  # pods that are stopped stay while it is set
        self.lock = threading.RLock()
        self._version = 0
        self._running: dict[Key, subprocess.Popen[str]] = {}
        self._waiters: list[threading.Thread] = []

    def named(self, plural: str) -> dict[str, Object]:
        """Return the objects of a kind by name."""
        with self.lock:
            found = {key[2]: o for key, o in self.objects.items() if key[0] == plural}
            return copy.deepcopy(found)

    def answer(self, method: str, path: str, item: Object | None) -> tuple[int, Object]:
        """Do what the API server does."""
        place, query = urlsplit(path), parse_qs(urlsplit(path).query)
        words = [unquote(word) for word in place.path.split("/") if word]
        at = words.index("namespaces")
        namespace, plural, *rest = words[at + 1 :]
        with self.lock:
            self.asked.append(f"{method} {place.path}")
            if not rest:
                if method == "POST":
                    assert item is not None
                    return self._create(plural, namespace, item, "dryRun" in query)
                labels = query.get("labelSelector", [""])[0]
                wanted = dict(p.split("=", 1) for p in labels.split(",") if p)
                return 200, {"items": self._list(plural, namespace, wanted)}
            key = plural, namespace, rest[0]
            if key not in self.objects:
                return _problem(404, "NotFound", f"{plural} {rest[0]!r} not found")
            if method == "GET":
                return 200, copy.deepcopy(self.objects[key])
            if method == "DELETE":
                return 200, self.delete(key)
            assert item is not None
            return self._patch(key, item)

    def _create(
        self, plural: str, namespace: str, item: Object, dry: bool
    ) -> tuple[int, Object]:
        key = plural, namespace, item["metadata"]["name"]
        if key in self.objects:
            return _problem(409, "AlreadyExists", f"{key[2]} already exists")
        kept = copy.deepcopy(item)
        if not dry:
            self._keep(key, kept)
        return 201, copy.deepcopy(kept)

    def _patch(self, key: Key, change: Object) -> tuple[int, Object]:
        kept = self.objects[key]
        version = change.get("metadata", {}).get("resourceVersion")
        if version not in {None, kept["metadata"]["resourceVersion"]}:
            return _problem(409, "Conflict", "the object has been modified")
        _merge(kept, change)
        self._keep(key, kept)
        return 200, copy.deepcopy(kept)

    def _keep(self, key: Key, item: Object) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self.objects[key] = item
        if "deletionTimestamp" in item["metadata"]:
            self.delete(key)
        else:
            self._run(key, item)

    def delete(self, key: Key) -> Object:
        """Delete an object, as a hand does: what has a finalizer stays, marked."""
        item = self.objects[key]
        if item["metadata"].get("finalizers"):
            item["metadata"].setdefault("deletionTimestamp", "now")
            return copy.deepcopy(item)
        del self.objects[key]
        self._stop(key)
        return item

    def _list(self, plural: str, namespace: str, wanted: Object) -> list[Object]:
        return [
            copy.deepcopy(item)
            for (kind, where, _), item in self.objects.items()
            if (kind, where) == (plural, namespace)
            and wanted.items() <= item["metadata"].get("labels", {}).items()
        ]

    def _run(self, key: Key, item: Object) -> None:
        """Be the controller and the kubelet: run what is to run, stop what is not."""
        plural, spec = key[0], item.get("spec", {})
        if plural == "taskruns":
            if key not in self._running:
                params = {p["name"]: p["value"] for p in spec["params"]}
                (step,) = spec["taskSpec"]["steps"]
                words = [_filled(word, params) for word in step["command"]]
                self._begin(key, item, words, {})
            return
        if plural not in {"jobs", "deployments"}:
            return
        runs = not spec.get("suspend") if plural == "jobs" else spec.get("replicas", 1)
        if not runs:
            self._stop(key)
        elif key not in self._running and not item.get("status"):
            (first, *_) = spec["template"]["spec"]["containers"]
            told = {one["name"]: one["value"] for one in first.get("env", ())}
            self.started.append((key[2], first["image"]))
            pod = copy.deepcopy(spec["template"])
            pod["metadata"] |= {"name": f"{key[2]}-pod", "namespace": key[1]}
            pod["status"] = {"phase": "Running"}
            self._keep(("pods", key[1], f"{key[2]}-pod"), pod)
            self._begin(key, item, first["command"], told)

    def _begin(self, key: Key, item: Object, words: list[str], told: Object) -> None:
        process = subprocess.Popen(
            words,
            env={**os.environ, **told},
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            start_new_session=True,
        )
        self._running[key] = process
        waiter = threading.Thread(target=self._wait, args=(key, process))
        self._waiters.append(waiter)
        waiter.start()

    def _wait(self, key: Key, process: subprocess.Popen[str]) -> None:
        said, _ = process.communicate()
        with self.lock:
            if (item := self.objects.get(key)) is None or self._running.get(
                key
            ) is not process:
                return
            well = process.returncode == 0
            if key[0] == "taskruns":
                state = "True" if well else "False"
                done = {"type": "Succeeded", "status": state, "message": said}
            else:
                done = {"type": "Complete" if well else "Failed", "status": "True"}
                pod = self.objects[("pods", key[1], f"{key[2]}-pod")]
                ended = {"exitCode": process.returncode, "message": said}
                pod["status"] = {
                    "phase": "Succeeded" if well else "Failed",
                    "containerStatuses": [{"state": {"terminated": ended}}],
                }
            item["status"] = {"conditions": [done]}

    def _stop(self, key: Key) -> None:
        process = self._running.pop(key, None)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        if not self.lingering.is_set():
            self.objects.pop(("pods", key[1], f"{key[2]}-pod"), None)

    def let_go(self) -> None:
        """Let pods that were stopped be gone."""
        with self.lock:
            self.lingering.clear()
            for kind, namespace, name in list(self.objects):
                owner = name.removesuffix("-pod")
                runs = any(key[2] == owner for key in self._running)
                if kind == "pods" and not runs:
                    del self.objects[kind, namespace, name]

    def close(self) -> None:
        """End all that runs."""
        with self.lock:
            for key in list(self._running):
                self._stop(key)
        for waiter in self._waiters:
            waiter.join()


@contextlib.contextmanager
def fake_cluster(kubeconfig: Path) -> Iterator[FakeCluster]:
    """Serve one, and write the file by which kubectl and launches find it."""
    cluster = FakeCluster()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            length = int(self.headers.get("Content-Length") or 0)
            item = json.loads(self.rfile.read(length)) if length else None
            fault = cluster.fault(self.command, self.path)
            if fault == "refuse":
                status, found = _problem(403, "Forbidden", "not allowed to do this")
            else:
                status, found = cluster.answer(self.command, self.path, item)
            if fault == "lose":
                self.close_connection = True
                return
            body = json.dumps(found).encode()
            self.send_response(status)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

        def log_message(self, *_: Any) -> None:
            pass

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(url)))
        try:
            yield cluster
        finally:
            cluster.close()


def _kubeconfig(url: str) -> Object:
    return {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": url}}],
        "users": [{"name": "test", "user": {"token": "a-token-of-this-test"}}],
    }


def _problem(status: int, reason: str, message: str) -> tuple[int, Object]:
    return status, {"kind": "Status", "reason": reason, "message": message}


def _merge(kept: Object, change: Object) -> None:
    for name, value in change.items():
        if value is None:
            kept.pop(name, None)
        elif isinstance(value, dict):
            _merge(kept.setdefault(name, {}), value)
        else:
            kept[name] = value


def _filled(word: str, params: Object) -> str:
    for name, value in params.items():
        word = word.replace(f"$(params.{name})", str(value))
    return word
