"""What a launch asks of a Kubernetes API server, and no more.

Written for the API as it is since Kubernetes 1.21; `urllib3` suffices for it.
"""

from __future__ import annotations

import atexit
import base64
import dataclasses
import functools
import json
import os
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode

import urllib3

from tracing_2pc.core.errors import ConfigurationError, TwoPhaseError

Object = dict[str, Any]

ROUTES: Final = {
    "Job": ("/apis/batch/v1", "jobs"),
    "Deployment": ("/apis/apps/v1", "deployments"),
    "Pod": ("/api/v1", "pods"),
    "ConfigMap": ("/api/v1", "configmaps"),
    "TransactionalSparkJob": (
        "/apis/stream.example.com/v1alpha1",
        "transactionalsparkjobs",
    ),
    "TaskRun": ("/apis/tekton.dev/v1", "taskruns"),
}
"""Kinds of objects that are asked for: where they stand in the API."""

_SERVICE_ACCOUNT: Final = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_PAGE: Final = 500


class ClusterError(TwoPhaseError):
    """The API server did not do what it was asked: not now, perhaps later."""


class NoClusterError(ConfigurationError):
    """Nothing here says which cluster is meant."""


class UnreachableError(ClusterError):
    """No answer, or none that says anything: it may or may not have been done."""


class ChangedError(ClusterError):
    """Somebody has changed the object since it was read: read it again."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """An API server, and who we are there. Opens nothing until it is asked.

    What it is asked raises `ClusterError` where no answer came: nobody knows then
    whether a change was made.
    """

    url: str
    ca_file: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    token_file: str | None = None  # read anew for each request: it is rotated
    certificate: tuple[str, str] | None = None
    timeout: float = 30.0

    @classmethod
    def load(cls) -> Cluster:
        """Return the cluster that this process belongs to, or that kubectl would ask.

        In a pod, that is its service account; else the current context of the file in
        `KUBECONFIG`, or `~/.kube/config`.

        Raises:
            NoClusterError: neither is there.
            ConfigurationError: its context signs in by a program, or cannot be read.
        """
        host = os.environ.get("KUBERNETES_SERVICE_HOST")
        if host and "KUBECONFIG" not in os.environ:
            port = os.environ.get("KUBERNETES_SERVICE_PORT", "443")
            place = f"[{host}]" if ":" in host else host
            ca, token = _SERVICE_ACCOUNT / "ca.crt", _SERVICE_ACCOUNT / "token"
            return cls(f"https://{place}:{port}", str(ca), None, str(token))
        import yaml  # a pod needs none

        kept = Path(os.environ.get("KUBECONFIG") or Path.home() / ".kube" / "config")
        try:
            item = yaml.safe_load(kept.read_text(encoding="utf-8"))
            return _of_context(item, kept.parent)
        except OSError as error:
            raise NoClusterError(
                f"no Kubernetes cluster: {kept}: {error.strerror}; set KUBECONFIG, or "
                "run in a pod with a service account"
            ) from None
        except (KeyError, TypeError, StopIteration, ValueError, yaml.YAMLError):
            raise ConfigurationError(
                f"{kept}: its current context names no server, or cannot be read"
            ) from None

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        """Return an object; None if there is none."""
        return self._ask("GET", _path(kind, namespace, name), missing=True)

    def list(
        self, kind: str, namespace: str, labels: Mapping[str, str]
    ) -> list[Object]:
        """Return all objects that have these labels."""
        wanted = {"labelSelector": ",".join(f"{k}={v}" for k, v in labels.items())}
        return list(self._pages(_path(kind, namespace), wanted | {"limit": str(_PAGE)}))

    def _pages(self, path: str, query: dict[str, str]) -> Iterator[Object]:
        while True:
            page = self._ask("GET", f"{path}?{urlencode(query)}") or {}
            yield from page.get("items") or []
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return
            query = {**query, "continue": following}

    def create(self, item: Object, *, dry_run: bool = False) -> bool:
        """Create an object; False if one of its name is there already."""
        path = _path(item["kind"], item["metadata"]["namespace"])
        path += "?dryRun=All" * dry_run
        return self._ask("POST", path, item, exists=True) is not None

    def patch(
        self, kind: str, namespace: str, name: str, change: Object, part: str = ""
    ) -> bool:
        """Merge a change into an object, or into its `part`; False if there is none.

        Raises:
            ChangedError: it is not at the `resourceVersion` that the change names.
        """
        path = _path(kind, namespace, name) + (f"/{part}" if part else "")
        return self._ask("PATCH", path, change, missing=True) is not None

    def delete(self, kind: str, namespace: str, name: str) -> None:
        """Delete an object, and what it owns, after it; gone already is well, too."""
        path = f"{_path(kind, namespace, name)}?propagationPolicy=Background"
        self._ask("DELETE", path, missing=True)

    def _ask(
        self,
        method: str,
        path: str,
        item: Object | None = None,
        *,
        missing: bool = False,
        exists: bool = False,
    ) -> Object | None:
        headers = {"Accept": "application/json"}
        if token := self._token():
            headers["Authorization"] = f"Bearer {token}"
        if item is not None:
            merge = "application/merge-patch+json"
            headers["Content-Type"] = merge if method == "PATCH" else "application/json"
        asked = f"{method} {path.partition('?')[0]}"
        try:
            answer = _pool(self, os.getpid()).request(
                method,
                self.url + path,
                body=None if item is None else json.dumps(item).encode(),
                headers=headers,
                timeout=self.timeout,
                retries=False,
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            why = f"no answer of {self.url} to {asked} ({type(error).__name__})"
            raise UnreachableError(why) from error
        try:
            found = json.loads(answer.data)
            assert isinstance(found, dict)  # noqa: S101 - caught below
        except (AssertionError, ValueError):
            found = {}
        if answer.status in (200, 201, 202) and found:
            return found
        reason = found.get("reason")
        if missing and answer.status == 404 and reason == "NotFound":
            return None
        if exists and answer.status == 409 and reason == "AlreadyExists":
            return None
        kind = ChangedError if reason == "Conflict" else ClusterError
        if answer.status >= 500 or answer.status == 429 or not found:
            kind = UnreachableError
        why = " ".join(str(found.get("message") or "no reason given").split())[:300]
        raise kind(f"{self.url} answered {answer.status} to {asked}: {why}")

    def _token(self) -> str | None:
        if self.token_file is None:
            return self.token
        try:
            return Path(self.token_file).read_text(encoding="utf-8").strip()
        except OSError as error:
            raise ClusterError(f"{self.token_file}: {error.strerror}") from None


def _path(kind: str, namespace: str, name: str = "") -> str:
    group, plural = ROUTES[kind]
    path = f"{group}/namespaces/{quote(namespace, safe='')}/{plural}"
    return f"{path}/{quote(name, safe='')}" if name else path


def _of_context(item: Any, folder: Path) -> Cluster:
    """Read the current context of a kubeconfig."""

    def named(kind: str, name: str) -> Any:
        return next(one[kind] for one in item[f"{kind}s"] if one["name"] == name)

    context = named("context", item["current-context"])
    cluster, user = named("cluster", context["cluster"]), named("user", context["user"])
    if "exec" in user or "auth-provider" in user:
        raise ConfigurationError(
            f"user {context['user']!r} of the kubeconfig signs in by a program: use a "
            "token or a client's certificate, or run in a pod"
        )

    def file_of(place: Any, what: str) -> str | None:
        if data := place.get(f"{what}-data"):
            return _kept(base64.b64decode(data))
        return str(folder / place[what]) if place.get(what) else None

    certificate, key = file_of(user, "client-certificate"), file_of(user, "client-key")
    token_file = user.get("tokenFile")
    return Cluster(
        str(cluster["server"]).rstrip("/"),
        file_of(cluster, "certificate-authority"),
        user.get("token"),
        None if token_file is None else str(folder / token_file),
        (certificate, key) if certificate and key else None,
    )


@functools.cache
def _kept(content: bytes) -> str:
    """Put bytes into a file that is gone with this process: TLS reads files only."""
    handle, path = tempfile.mkstemp(prefix="tpc-kubeconfig-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    atexit.register(Path(path).unlink, missing_ok=True)
    return path


@functools.cache
def _pool(cluster: Cluster, _pid: int) -> urllib3.PoolManager:
    certificate, key = cluster.certificate or (None, None)
    return urllib3.PoolManager(
        maxsize=8, ca_certs=cluster.ca_file, cert_file=certificate, key_file=key
    )
