"""A stand-in for a Kubernetes API server.

Objects are kept as the real one keeps them: resource versions, finalizers, merge
patches, label selectors. What they say is run by `support/kubelet.py`, as with the real
one, which `make test-k8s` asks instead.
"""

from __future__ import annotations

import contextlib
import copy
import json
import threading
from collections.abc import Callable, Iterator
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import yaml

from support.served import StandIn, served
from support.waiting import PATIENT

Object = dict[str, Any]
Key = tuple[str, str, str]  # plural, namespace, name
TOKEN = "a-token-of-this-test"


class FakeCluster:
    """What is stored; `fault` says of a request that it is refused, or its answer lost.

    Only requests by the token of the test's own kubeconfig have faults. `webhook`
    changes what is about to be created, as an admission webhook does, also if it is
    only asked what would be.
    """

    def __init__(self) -> None:
        self.objects: dict[Key, Object] = {}
        self.fault: Callable[[str, str], str | None] = lambda _method, _path: None
        self.webhook: Callable[[Object], None] = lambda _item: None
        self.thawed = threading.Event()  # lets requests go on that hang
        self.lock = threading.RLock()
        self._version = 0

    def answer(self, method: str, path: str, item: Object | None) -> tuple[int, Object]:
        """Do what the API server does."""
        place, query = urlsplit(path), parse_qs(urlsplit(path).query)
        words = [unquote(word) for word in place.path.split("/") if word]
        namespace, plural, *rest = words[words.index("namespaces") + 1 :]
        with self.lock:
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
                return 200, self._delete(key)
            assert item is not None
            return self._patch(key, item)

    def _create(
        self, plural: str, namespace: str, item: Object, dry: bool
    ) -> tuple[int, Object]:
        key = plural, namespace, item["metadata"]["name"]
        if key in self.objects:
            return _problem(409, "AlreadyExists", f"{key[2]} already exists")
        kept = _as_kept(item)
        self.webhook(kept)
        kept["metadata"]["uid"] = f"uid-{self._version}"
        kept["metadata"]["generation"] = 1
        if not dry:
            self._keep(key, kept)
        return 201, copy.deepcopy(kept)

    def _patch(self, key: Key, change: Object) -> tuple[int, Object]:
        kept = self.objects[key]
        version = change.get("metadata", {}).get("resourceVersion")
        if version not in {None, kept["metadata"]["resourceVersion"]}:
            return _problem(409, "Conflict", "the object has been modified")
        before = copy.deepcopy(kept.get("spec"))
        _merge(kept, change)
        kept["metadata"]["generation"] += kept.get("spec") != before
        self._keep(key, kept)
        return 200, copy.deepcopy(kept)

    def _keep(self, key: Key, item: Object) -> None:
        self._version += 1
        item["metadata"]["resourceVersion"] = str(self._version)
        self.objects[key] = item
        if "deletionTimestamp" in item["metadata"]:
            self._delete(key)

    def _delete(self, key: Key) -> Object:
        item = self.objects[key]
        if item["metadata"].get("finalizers"):
            item["metadata"].setdefault("deletionTimestamp", "2026-01-01T00:00:00Z")
        else:
            del self.objects[key]
        return copy.deepcopy(item)

    def _list(self, plural: str, namespace: str, wanted: Object) -> list[Object]:
        return [
            copy.deepcopy(item)
            for (kind, where, _), item in self.objects.items()
            if (kind, where) == (plural, namespace)
            and wanted.items() <= item["metadata"].get("labels", {}).items()
        ]


@contextlib.contextmanager
def fake_cluster(kubeconfig: Path) -> Iterator[tuple[FakeCluster, str]]:
    """Serve one at a URL, and write the file by which kubectl and launches find it."""
    cluster = FakeCluster()

    class Handler(StandIn):
        protocol_version = "HTTP/1.1"

        def _serve(self) -> None:
            item = json.loads(self.body() or b"null")
            is_ours = self.headers.get("Authorization") == f"Bearer {TOKEN}"
            fault = cluster.fault(self.command, self.path) if is_ours else None
            if fault == "hang":
                cluster.thawed.wait(PATIENT)
            if fault == "refuse":
                status, found = _problem(403, "Forbidden", "not allowed to do this")
            else:
                status, found = cluster.answer(self.command, self.path, item)
            if fault in {"lose", "hang"}:
                self.close_connection = True
                return
            self.answer(status, json.dumps(found).encode(), "application/json")

        do_GET = do_POST = do_PATCH = do_DELETE = _serve  # noqa: N815

    with served(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as server:
        url = f"http://127.0.0.1:{server.server_address[1]}"
        kubeconfig.write_text(kubeconfig_of(url, TOKEN))
        try:
            yield cluster, url
        finally:
            cluster.thawed.set()


def kubeconfig_of(url: str, token: str, certificate: str | None = None) -> str:
    """Write what kubectl reads."""
    server = {"server": url}
    if certificate is not None:
        server["certificate-authority"] = certificate
    item = {
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": server}],
        "users": [{"name": "test", "user": {"token": token}}],
    }
    return yaml.safe_dump(item)


def _problem(status: int, reason: str, message: str) -> tuple[int, Object]:
    return status, {"kind": "Status", "reason": reason, "message": message}


def _as_kept(item: Object) -> Object:
    """Return an object as it is kept: without what is empty, and with defaults."""

    def filled(value: Any) -> Any:
        if isinstance(value, dict):
            parts = {name: filled(part) for name, part in value.items()}
            return {n: p for n, p in parts.items() if p not in ("", None, [])}
        return list(map(filled, value)) if isinstance(value, list) else value

    if item["kind"] not in {"Job", "Deployment"}:
        return copy.deepcopy(item)
    kept: Object = filled(item)
    template = kept.get("spec", {}).get("template")
    if template is not None:
        for container in template["spec"]["containers"]:
            container.setdefault("imagePullPolicy", "IfNotPresent")
            container.setdefault("terminationMessagePath", "/dev/termination-log")
    if kept["kind"] == "Job":
        name = {"batch.kubernetes.io/job-name": kept["metadata"]["name"]}
        template.setdefault("metadata", {}).setdefault("labels", {}).update(name)
    return kept


def _merge(kept: Object, change: Object) -> None:
    for name, value in change.items():
        if value is None:
            kept.pop(name, None)
        elif isinstance(value, dict):
            _merge(kept.setdefault(name, {}), value)
        else:
            kept[name] = value
