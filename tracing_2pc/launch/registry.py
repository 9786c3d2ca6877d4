"""One repository of an OCI registry (OCI Distribution Specification, version 1.1)."""

from __future__ import annotations

import base64
import dataclasses
import functools
import hashlib
import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import urllib3

from tracing_2pc.core.errors import ConfigurationError, TwoPhaseError

ANNOTATION: Final = "tracing-2pc.transaction"
"""In a staged manifest: its digest is then its own, although the image may be equal."""

MOST: Final = 1 << 18
"""Bytes of a manifest: it goes into the decision log with the votes."""

_KINDS: Final = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
_REPOSITORY: Final = re.compile(
    r"(?P<host>[A-Za-z0-9.\-]+(:[0-9]+)?)/(?P<path>[a-z0-9][a-z0-9._/-]*)"
)
_TAG: Final = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


class RegistryError(TwoPhaseError):
    """The registry did not do what it was asked: not now, perhaps later."""


class BlobGoneError(RegistryError):
    """The registry does not have what a manifest names: it cannot be put."""


@dataclasses.dataclass(frozen=True)
class Manifest:
    """An image's manifest: the bytes that its digest is of."""

    kind: str
    content: bytes

    @property
    def digest(self) -> str:
        """The name of exactly these bytes."""
        return f"sha256:{hashlib.sha256(self.content).hexdigest()}"

    @property
    def transaction(self) -> str | None:
        """The transaction that staged it, where one did."""
        try:
            found = json.loads(self.content).get("annotations", {}).get(ANNOTATION)
        except (AttributeError, ValueError):
            return None
        return found if isinstance(found, str) else None

    def staged_by(self, transaction: str) -> Manifest:
        """Return it with the transaction's id in it, and so with a digest of its own.

        Raises:
            ConfigurationError: it is no JSON object.
        """
        try:
            item = json.loads(self.content)
            annotations = {**(item.get("annotations") or {}), ANNOTATION: transaction}
        except (AttributeError, TypeError, ValueError):
            raise ConfigurationError("the pushed manifest is no JSON object") from None
        text = json.dumps({**item, "annotations": annotations})
        return Manifest(self.kind, text.encode())


def check_repository(repository: str) -> str:
    """Return `host/path` as it is, or raise `ValueError`."""
    if not _REPOSITORY.fullmatch(repository):
        raise ValueError(f"{repository[:80]!r}: expected host[:port]/path, without tag")
    return repository


def check_tag(tag: str) -> str:
    """Return a tag as it is, or raise `ValueError`."""
    if not _TAG.fullmatch(tag):
        raise ValueError(f"tag {tag[:80]!r}: letters, digits and _ . -, at most 128")
    return tag


@dataclasses.dataclass(frozen=True)
class Repository:
    """A repository, as `host[:port]/path`. Opens nothing until it is asked.

    Over HTTP where the host is this machine, as Docker does it, else over HTTPS. Who we
    are is taken from Docker's own file, `~/.docker/config.json` or that in
    `DOCKER_CONFIG`; helpers that such a file may name are not called.
    """

    name: str
    timeout: float = 30.0

    def get(self, reference: str) -> Manifest | None:
        """Return the manifest of a tag or digest; None if there is none.

        Raises:
            RegistryError: no answer, or none that fits what was asked for.
        """
        answer = self._ask("GET", reference, headers={"Accept": ", ".join(_KINDS)})
        if answer.status == 404:
            return None
        self._expect(answer, 200, f"GET of {reference}")
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        found = Manifest(kind, answer.data)
        wanted = answer.headers.get("Docker-Content-Digest", found.digest)
        by_digest = reference if reference.startswith("sha256:") else found.digest
        if {wanted, by_digest} != {found.digest}:
            raise RegistryError(
                f"{self.name}:{reference} has another digest than its bytes: {wanted}"
            )
        if len(found.content) > MOST:
            raise ConfigurationError(
                f"{self.name}:{reference}: its manifest has {len(found.content)} "
                f"bytes, and a launch keeps {MOST}: build for fewer platforms"
            )
        return found

    def put(self, reference: str, manifest: Manifest) -> None:
        """Put a manifest under a tag; the same again changes nothing.

        Raises:
            BlobGoneError: a layer that it names is not there any more.
            RegistryError: it may or may not stand there now.
        """
        headers = {"Content-Type": manifest.kind}
        answer = self._ask("PUT", reference, manifest.content, headers)
        codes = _codes(answer)
        if answer.status in (400, 404) and codes & {
            "MANIFEST_BLOB_UNKNOWN",
            "BLOB_UNKNOWN",
            "MANIFEST_UNKNOWN",
        }:
            raise BlobGoneError(
                f"{self.name} has no longer what {manifest.digest} is made of"
            )
        cure = ""
        if 400 <= answer.status < 500 and self._has_other(reference, manifest):
            cure = f": if its tags are immutable, exempt {reference}"
        self._expect(answer, 201, f"PUT of {reference}", cure)
        if answer.headers.get("Docker-Content-Digest") not in {None, manifest.digest}:
            raise RegistryError(f"{self.name}:{reference} was stored with other bytes")

    def _has_other(self, reference: str, manifest: Manifest) -> bool:
        return self.get(reference) not in {None, manifest}

    def delete(self, digest: str) -> None:
        """Delete a manifest, with every tag of it; gone already is well, too.

        Raises:
            RegistryError: it may or may not be gone.
        """
        answer = self._ask("DELETE", digest)
        if answer.status not in (202, 404):
            cure = ""
            if "UNSUPPORTED" in _codes(answer):
                cure = ": let the registry delete (REGISTRY_STORAGE_DELETE_ENABLED)"
            self._expect(answer, 202, f"DELETE of {digest}", cure)

    def _expect(
        self, answer: urllib3.BaseHTTPResponse, status: int, asked: str, cure: str = ""
    ) -> None:
        if answer.status != status:
            said = ", ".join(sorted(_codes(answer))) or "no reason given"
            raise RegistryError(
                f"{self.name} answered {answer.status} to {asked} ({said}){cure}"
            )

    def _ask(
        self,
        method: str,
        reference: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        found = _REPOSITORY.fullmatch(self.name)
        assert found is not None  # noqa: S101 - checked where it was read
        host, path = found["host"], found["path"]
        near = host.partition(":")[0] in {"localhost", "127.0.0.1"}
        url = f"{'http' if near else 'https'}://{host}/v2/{path}/manifests/{reference}"
        told = dict(headers or {})
        if basic := _credentials(host):
            told["Authorization"] = f"Basic {basic}"
        answer = self._send(method, url, body, told)
        challenge = answer.headers.get("WWW-Authenticate", "")
        if answer.status == 401 and challenge.lower().startswith("bearer "):
            told["Authorization"] = f"Bearer {self._token(challenge, basic)}"
            answer = self._send(method, url, body, told)
        return answer

    def _token(self, challenge: str, basic: str | None) -> str:
        """Ask the place that a challenge names for a token, by our credentials."""
        words = dict(re.findall(r'(\w+)="([^"]*)"', challenge))
        realm = words.pop("realm", "")
        if not realm.startswith(("https://", "http://127.0.0.1", "http://localhost")):
            raise RegistryError(f"{self.name} wants a token of {realm!r}: not asked")
        headers = {"Authorization": f"Basic {basic}"} if basic else {}
        wanted = {name: words[name] for name in ("service", "scope") if name in words}
        answer = self._send("GET", realm, None, headers, wanted)
        try:
            item = json.loads(answer.data)
            token = item.get("token") or item["access_token"]
        except (AttributeError, KeyError, ValueError):
            token = None
        if not isinstance(token, str):
            raise RegistryError(f"{realm} answered {answer.status} without a token")
        return token

    def _send(
        self,
        method: str,
        url: str,
        body: bytes | None,
        headers: Mapping[str, str],
        fields: Mapping[str, str] | None = None,
    ) -> urllib3.BaseHTTPResponse:
        try:
            return _pool(os.getpid()).request(
                method,
                url,
                fields=fields,
                body=body,
                headers=headers,
                timeout=self.timeout,
                retries=False,
                redirect=False,
            )
        except urllib3.exceptions.HTTPError as error:
            kind = type(error).__name__
            raise RegistryError(f"no answer of {self.name} ({kind})") from error


def _codes(answer: urllib3.BaseHTTPResponse) -> set[str]:
    """Return the codes of a registry's error document."""
    try:
        errors = json.loads(answer.data)["errors"]
        return {str(error["code"])[:60] for error in errors}
    except (KeyError, TypeError, ValueError):
        return set()


def _credentials(host: str) -> str | None:
    """Return what `docker login` has kept for a host, as Basic wants it."""
    folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
    try:
        item: Any = json.loads((Path(folder) / "config.json").read_text())
        kept = item["auths"][host]["auth"]
        base64.b64decode(kept, validate=True)
    except (KeyError, OSError, TypeError, ValueError):
        return None
    return str(kept)


@functools.cache
def _pool(_pid: int) -> urllib3.PoolManager:
    return urllib3.PoolManager()
