"""A launch's requests to a Kubernetes API server, and no more.

Written for the API as it is since Kubernetes 1.21; `urllib3` suffices for it.
"""

from __future__ import annotations

import dataclasses
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote, urlencode, urlsplit

import urllib3

from tracing_2pc.core.errors import ConfigurationError, TwoPhaseError
from tracing_2pc.core.settings import remember_secret, without_secrets
from tracing_2pc.http.connection import ask, pool_of
from tracing_2pc.wire.contract import NoAnswerError

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

_PAGE: Final = 250
_MOST_PAGES: Final = 1_000
_MOST_READ: Final = 1 << 26
"""Bytes of any answer: of a page, 250 KiB for each object of it."""


class ClusterError(TwoPhaseError):
    """The API server did not do what it was asked: not now, perhaps later."""


class NoClusterError(ConfigurationError):
    """No cluster is configured here."""


class UnreachableError(ClusterError):
    """No answer that can be understood: the request may or may not have been obeyed."""


class ChangedError(ClusterError):
    """The object has changed since it was read: read it again."""


@dataclasses.dataclass(frozen=True)
class Cluster:
    """An API server, and our identity there. Opens nothing until it is asked.

    A request raises `ClusterError` where no answer came: it is then unknown whether a
    change was made.
    """

    url: str
    ca_file: str | None = None
    token: str | None = dataclasses.field(default=None, repr=False)
    token_file: str | None = None  # read anew for each request: it is rotated
    certificate: tuple[str, str] | None = None
    timeout: float = 30.0
    namespace: str = "default"  # of what names none, as kubectl takes it
    acts_as: tuple[tuple[str, str], ...] = ()  # headers: whose rights we want, not ours

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
        for _ in range(_MOST_PAGES):
            page = self._ask("GET", f"{path}?{urlencode(query)}") or {}
            yield from page.get("items") or []
            following = (page.get("metadata") or {}).get("continue")
            if not following:
                return
            query = {**query, "continue": following}
        raise ClusterError(f"{self.url}: the list at {path} has no end")

    def create(self, item: Object, *, dry_run: bool = False) -> Object | None:
        """Create an object, and return it as it is kept; None if its name is taken."""
        path = _path(item["kind"], item["metadata"]["namespace"])
        path += "?dryRun=All" * dry_run
        return self._ask("POST", path, item, exists=True)

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
        """Delete an object, and then its dependents; a missing object is no error."""
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
        headers = urllib3.HTTPHeaderDict({"Accept": "application/json"})
        if token := self._token():
            remember_secret(token)
            headers["Authorization"] = f"Bearer {token}"
        for name, value in self.acts_as:
            headers.add(name, value)
        if item is not None:
            merge = "application/merge-patch+json"
            headers["Content-Type"] = merge if method == "PATCH" else "application/json"
        asked = f"{method} {path.partition('?')[0]}"
        body = None if item is None else json.dumps(item).encode()
        place = urlsplit(self.url)
        base, target = f"{place.scheme}://{place.netloc}", place.path + path
        pool = pool_of(base, self.timeout, os.getpid(), self.ca_file, self.certificate)
        rest = (body, headers, self.timeout, _MOST_READ)
        try:
            status, _, data = ask(pool, method, target, *rest)
        except NoAnswerError as error:
            raise UnreachableError(
                f"no answer of {self.url} to {asked} ({error.detail})"
            ) from error
        try:
            answer = json.loads(data)
            assert isinstance(answer, dict)  # noqa: S101 - caught below
        except (AssertionError, RecursionError, ValueError):
            answer = {}
        if status in (200, 201, 202) and answer:
            return answer
        reason = answer.get("reason")
        if missing and status == 404 and reason == "NotFound":
            return None
        if exists and status == 409 and reason == "AlreadyExists":
            return None
        kind = ChangedError if reason == "Conflict" else ClusterError
        if status >= 500 or status == 429 or not answer:
            kind = UnreachableError
        detail = without_secrets(str(answer.get("message") or "no reason given"))
        detail = " ".join(detail.split())[:300]
        raise kind(f"{self.url} answered {status} to {asked}: {detail}")

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
