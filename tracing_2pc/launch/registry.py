"""One repository of an OCI registry (OCI Distribution Specification, version 1.1)."""

from __future__ import annotations

import base64
import dataclasses
import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlencode

from tracing_2pc.core.addresses import split_address
from tracing_2pc.core.errors import ConfigurationError, TwoPhaseError
from tracing_2pc.core.settings import remember_secret
from tracing_2pc.http.connection import ask, pool_of
from tracing_2pc.wire.contract import NoAnswerError

ANNOTATION: Final = "tracing-2pc.transaction"
"""In a staged manifest: its digest is then its own, although the image may be equal."""

MOST: Final = 1 << 18
"""Bytes of a manifest: it goes into the decision log with the votes."""

_MOST_READ: Final = 1 << 22
"""Bytes of any answer: registries take no longer manifest."""

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
_NEAR: Final = frozenset({"localhost", "127.0.0.1"})
"""Hosts that are asked over HTTP: nothing leaves this machine."""

_WANTED: Final = ("service", "scope")
"""Parameters of a challenge that are asked for."""

_WORD: Final = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
_CHALLENGE: Final = re.compile(
    rf'(?P<name>{_WORD})\s*=\s*(?:"(?P<quoted>(?:[^"\\]|\\.)*)"|(?P<plain>{_WORD}))'
    rf"|(?P<scheme>{_WORD})"
)
"""What `WWW-Authenticate` has one after another: parameters, and names of schemes."""


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
            annotation = json.loads(self.content).get("annotations", {}).get(ANNOTATION)
        except (AttributeError, ValueError):
            return None
        return annotation if isinstance(annotation, str) else None

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

    Over HTTP where the host is this machine, as Docker does it, else over HTTPS. Our
    login is taken from Docker's own file, `~/.docker/config.json` or that in
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
        if len(answer.data) > MOST:
            raise ConfigurationError(
                f"{self.name}:{reference}: its manifest has more than the {MOST} bytes "
                "that a launch keeps: build for fewer platforms"
            )
        kind = answer.headers.get("Content-Type", "").partition(";")[0].strip()
        manifest = Manifest(kind, answer.data)
        wanted = answer.headers.get("Docker-Content-Digest", manifest.digest)
        by_digest = reference if reference.startswith("sha256:") else manifest.digest
        if {wanted, by_digest} != {manifest.digest}:
            raise RegistryError(
                f"{self.name}:{reference} has another digest than its bytes: {wanted}"
            )
        return manifest

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

    def _expect(self, answer: _Answer, status: int, asked: str, cure: str = "") -> None:
        if answer.status != status:
            codes = ", ".join(sorted(_codes(answer))) or "no reason given"
            login = _Login.of(self.name)
            if answer.status == 401 or (answer.status == 403 and not login.basic):
                cure = cure or login.cure
            raise RegistryError(
                f"{self.name} answered {answer.status} to {asked} ({codes}){cure}"
            )

    def _ask(
        self,
        method: str,
        reference: str,
        body: bytes | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> _Answer:
        host, path = _parts(self.name)
        base = f"{'http' if _is_near(host) else 'https'}://{host}"
        target = f"/v2/{path}/manifests/{reference}"
        sent_headers, login = dict(headers or {}), _Login.of(self.name)
        if login.basic:
            sent_headers["Authorization"] = f"Basic {login.basic}"
        answer = self._send(method, base, target, body, sent_headers)
        if answer.status == 401 and (words := _bearer_of(answer.challenges)):
            sent_headers["Authorization"] = f"Bearer {self._token(words, login.basic)}"
            answer = self._send(method, base, target, body, sent_headers)
        return answer

    def _token(self, words: dict[str, str], basic: str | None) -> str:
        """Ask the place that a challenge names for a token, by our credentials."""
        base, target = self._realm(words["realm"])
        headers = {"Authorization": f"Basic {basic}"} if basic else {}
        wanted = [(name, words[name]) for name in _WANTED if name in words]
        if wanted:
            target += f"{'&' if '?' in target else '?'}{urlencode(wanted)}"
        answer = self._send("GET", base, target, None, headers)
        try:
            item = json.loads(answer.data)
            token = item.get("token") or item["access_token"]
        except (AttributeError, KeyError, RecursionError, ValueError):
            token = None
        if not (isinstance(token, str) and token.isascii() and token.isprintable()):
            cure = _Login.of(self.name).cure if answer.status == 401 else ""
            raise RegistryError(
                f"{base} answered {answer.status} without a token of {self.name}{cure}"
            )
        remember_secret(token, is_lent=True)
        return token

    def _realm(self, realm: str) -> tuple[str, str]:
        """Return where a token is asked for; credentials go nowhere else.

        Over HTTPS, or over HTTP from this machine to itself.
        """
        near = _is_near(_parts(self.name)[0])
        try:
            parts = split_address(realm)
            safe = parts.scheme == "https" or (
                parts.scheme == "http" and near and parts.hostname in _NEAR
            )
            if not (safe and parts.hostname):
                raise ValueError("over HTTPS, or on this machine")
        except ValueError as error:
            raise RegistryError(
                f"{self.name} wants a token of {realm[:200]!r}: not asked ({error})"
            ) from None
        query = f"?{parts.query}" if parts.query else ""
        return f"{parts.scheme}://{parts.netloc}", f"{parts.path or '/'}{query}"

    def _send(
        self,
        method: str,
        base: str,
        target: str,
        body: bytes | None,
        headers: Mapping[str, str],
    ) -> _Answer:
        pool = pool_of(base, self.timeout, os.getpid())
        try:
            status, answer_headers, data = ask(
                pool, method, target, body, headers, self.timeout, _MOST_READ
            )
        except NoAnswerError as error:
            raise RegistryError(f"no answer of {self.name} ({error.detail})") from error
        return _Answer(status, answer_headers, data)


class _Answer(NamedTuple):
    """An answer of a registry, or of its token server."""

    status: int
    headers: Mapping[str, str]
    data: bytes

    @property
    def challenges(self) -> str:
        """Each `WWW-Authenticate`, as if it were one."""
        return self.headers.get("WWW-Authenticate", "")


def _parts(repository: str) -> tuple[str, str]:
    match = _REPOSITORY.fullmatch(repository)
    assert match is not None  # noqa: S101 - checked where it was read
    return match["host"], match["path"]


def _is_near(host: str) -> bool:
    return host.partition(":")[0] in _NEAR


def _bearer_of(challenges: str) -> dict[str, str] | None:
    """Return the parameters of the first challenge that a token answers."""
    words: dict[str, str] | None = None
    for match in _CHALLENGE.finditer(challenges):
        if match["scheme"]:
            if words and "realm" in words:
                break
            words = {} if match["scheme"].lower() == "bearer" else None
        elif words is not None:
            quoted = match["quoted"]
            value = match["plain"] or re.sub(r"\\(.)", r"\1", quoted or "")
            words.setdefault(match["name"].lower(), value)
    return words if words and "realm" in words else None


def _codes(answer: _Answer) -> set[str]:
    """Return the codes of a registry's error document."""
    try:
        errors = json.loads(answer.data)["errors"]
        return {str(error["code"])[:60] for error in errors}
    except (KeyError, RecursionError, TypeError, ValueError):
        return set()


class _Login(NamedTuple):
    """The login that `docker login` has kept for a repository's host, as for Basic."""

    basic: str | None
    cure: str  # what to say if the registry refuses who we are

    @classmethod
    def of(cls, repository: str) -> _Login:
        """Look it up; its secrets are remembered, and quoted nowhere."""
        host = _parts(repository)[0]
        folder = os.environ.get("DOCKER_CONFIG") or Path.home() / ".docker"
        path = Path(folder) / "config.json"
        cure = f": no login of {host} found in {path}: `docker login {host}` writes one"
        try:
            item: Any = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, RecursionError, ValueError) as error:
            return cls(None, f"{cure} (it cannot be read: {type(error).__name__})")
        auths = item.get("auths") if isinstance(item, dict) else None
        for key in _keys(repository):
            kept = auths.get(key) if isinstance(auths, dict) else None
            if isinstance(kept, dict) and (basic := _basic(kept)):
                return cls(basic, f": the login of {host} in {path} is refused")
        return cls(None, f"{cure} (helpers that it names are not called)")


def _keys(repository: str) -> Iterator[str]:
    """Yield the names by which Docker, or podman, keeps a login, the best first."""
    host, path = _parts(repository)
    words = path.split("/")
    yield from ("/".join((host, *words[:n])) for n in range(len(words), 0, -1))
    for scheme in ("", "https://", "http://"):
        for end in ("", "/", "/v1/", "/v1", "/v2/", "/v2"):
            yield f"{scheme}{host}{end}"


def _basic(kept: Mapping[str, Any]) -> str | None:
    """Return an entry's name and password, encoded; None if it has none."""
    encoded, user, password = map(kept.get, ("auth", "username", "password"))
    if not encoded and isinstance(user, str) and isinstance(password, str):
        encoded = base64.b64encode(f"{user}:{password}".encode()).decode()
    try:
        kept_bytes = base64.b64decode(str(encoded or ""), validate=True)
    except ValueError:
        return None
    _, colon, known = kept_bytes.decode(errors="replace").partition(":")
    if not colon:
        return None
    for secret in (str(encoded), known.rstrip("\0")):
        remember_secret(secret)
    return str(encoded)
