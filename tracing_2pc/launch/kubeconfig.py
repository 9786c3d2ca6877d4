"""YAML as kubectl reads it; and its own files: the cluster, and our identity there.

Each field is obeyed or refused by name. To ignore one could mean another cluster,
namespace or set of rights than kubectl uses.
"""

from __future__ import annotations

import atexit
import base64
import functools
import os
import re
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import yaml

from tracing_2pc.core.addresses import split_address
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.launch.cluster import Cluster, NoClusterError

_KNOWN: Final = {
    "cluster": {"server", "certificate-authority", "certificate-authority-data"},
    "context": {"cluster", "user", "namespace"},
    "user": {
        *("token", "tokenFile", "as", "as-uid", "as-groups"),
        *("client-certificate", "client-certificate-data"),
        *("client-key", "client-key-data"),
    },
}
_IGNORED: Final = {"extensions", "disable-compression"}
"""Fields that change nothing of what is asked, or of whom."""

_EACH_ADDRESS: Final = re.compile(r"^(https?://)0\.0\.0\.0(?=[:/]|$)")


class _Loader(yaml.SafeLoader):
    """Refuses a key that comes twice: one of its values would be left out."""

    def compose_mapping_node(self, anchor: Any) -> yaml.MappingNode:
        # As it is written: later, what is merged into it stands among its own keys.
        node = super().compose_mapping_node(anchor)
        seen: set[tuple[str, str]] = set()
        for key, _ in node.value:
            if isinstance(key, yaml.ScalarNode) and key.tag != _MERGE:
                if (key.tag, key.value) in seen:
                    raise yaml.composer.ComposerError(
                        None, None, f"the key {key.value!r} comes twice", key.start_mark
                    )
                seen.add((key.tag, key.value))
        return node


_MERGE: Final = "tag:yaml.org,2002:merge"


def read_yaml(text: str) -> Any:
    """Return the content of a text, or raise `yaml.YAMLError`."""
    loader = _Loader(text)
    try:
        return loader.get_single_data()
    finally:
        loader.dispose()


class _Entry(NamedTuple):
    """A cluster, a context or a user, and the folder that its paths begin at."""

    called: str
    fields: Mapping[str, Any]
    folder: Path

    def text(self, name: str) -> str | None:
        """Return a field; None if it is empty."""
        value = self.fields.get(name)
        if value is not None and not isinstance(value, str):
            raise ValueError(f"{self.called}: {name}: expected text")
        return value or None

    def file(self, name: str) -> str | None:
        """Return the path of a field that has one, or bytes as `…-data`."""
        if data := self.text(f"{name}-data"):
            try:
                return _kept(base64.b64decode(data, validate=True))
            except ValueError:
                raise ValueError(f"{self.called}: {name}-data is no base64") from None
        path = self.text(name)
        return None if path is None else str(self.folder / path)


def load() -> Cluster:
    """Return the cluster of the current context.

    Raises:
        NoClusterError: there is no such file.
        ConfigurationError: one cannot be read, or has a field that is not understood
            here.
    """
    paths = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
    items: list[tuple[Path, Mapping[str, Any]]] = []
    missing = ""
    for path in (Path(name) for name in paths.split(os.pathsep) if name):
        try:
            document = read_yaml(path.read_text(encoding="utf-8"))
            items.append((path, {} if document is None else _object(document)))
        except FileNotFoundError as error:
            missing = f"{path}: {error.strerror}"
        except OSError as error:
            raise NoClusterError(
                f"no Kubernetes cluster: {path}: {error.strerror}"
            ) from None
        except (UnicodeDecodeError, ValueError, yaml.YAMLError):
            raise ConfigurationError(
                f"{path}: it cannot be read as a kubeconfig"
            ) from None
    if not items:
        raise NoClusterError(
            f"no Kubernetes cluster: {missing or paths!r}; set KUBECONFIG, or run in a "
            "pod with a service account"
        )
    try:
        return _cluster(items)
    except ValueError as error:
        raise ConfigurationError(f"kubeconfig {paths}: {error}") from None


def _cluster(items: Sequence[tuple[Path, Mapping[str, Any]]]) -> Cluster:
    current = next((c for _, i in items if (c := i.get("current-context"))), None)
    if current is None:
        raise ValueError("it has no current-context")
    context = _entry(items, "context", current)
    cluster = _entry(items, "cluster", context.text("cluster"))
    user = _entry(items, "user", context.text("user"))
    # k3d's: the address that a port is open at, which is each one of this machine.
    server = _EACH_ADDRESS.sub(r"\g<1>127.0.0.1", cluster.text("server") or "")
    try:
        place = split_address(server)
    except ValueError as error:
        raise ValueError(f"{cluster.called}: server: {error}") from None
    near = place.hostname in {"localhost", "127.0.0.1", "::1"}
    if place.scheme != "https" and not (place.scheme == "http" and near):
        raise ValueError(
            f"{cluster.called}: server: expected https://…, since who we are goes there"
        )
    certificate, key = user.file("client-certificate"), user.file("client-key")
    if (certificate is None) != (key is None):
        raise ValueError(f"{user.called}: a client-certificate needs its client-key")
    token_file = user.text("tokenFile")
    return Cluster(
        server.rstrip("/"),
        cluster.file("certificate-authority"),
        user.text("token"),
        None if token_file is None else str(user.folder / token_file),
        (certificate, key) if certificate and key else None,
        namespace=context.text("namespace") or "default",
        acts_as=_acts_as(user),
    )


def _acts_as(user: _Entry) -> tuple[tuple[str, str], ...]:
    """Return the headers by which an API server gives us the rights of another."""
    name, uid = user.text("as"), user.text("as-uid")
    groups = user.fields.get("as-groups") or []
    if not isinstance(groups, list) or not all(isinstance(g, str) for g in groups):
        raise ValueError(f"{user.called}: as-groups: expected a list of names")
    if name is None and (uid or groups):
        raise ValueError(f"{user.called}: as-uid and as-groups need `as`")
    headers = [("Impersonate-User", name), ("Impersonate-Uid", uid)]
    headers += [("Impersonate-Group", group) for group in groups]
    return tuple((header, value) for header, value in headers if value)


def _entry(
    items: Sequence[tuple[Path, Mapping[str, Any]]], kind: str, name: object
) -> _Entry:
    """Return the first of a name; `ValueError` names a field that is not understood."""
    for path, item in items:
        for entry in item.get(f"{kind}s") or ():
            if not isinstance(entry, dict) or entry.get("name") != name:
                continue
            called = f"{kind} {name!r}"
            fields = _object(entry.get(kind) or {})
            present = {field for field, value in fields.items() if value}
            for field in sorted(map(str, present - _KNOWN[kind] - _IGNORED)):
                raise ValueError(
                    f"{called} has {field!r}, which is not understood here: use a "
                    "context without it, with a token or a client's certificate, or "
                    "run in a pod"
                )
            return _Entry(called, fields, path.parent)
    raise ValueError(f"no {kind} {name!r}")


def _object(item: object) -> Mapping[str, Any]:
    if not isinstance(item, dict):
        raise ValueError("expected names and values")
    return item


@functools.cache
def _kept(content: bytes) -> str:
    """Put bytes into a file that is gone with this process: TLS reads files only."""
    handle, path = tempfile.mkstemp(prefix="tpc-kubeconfig-")
    with os.fdopen(handle, "wb") as file:
        file.write(content)
    atexit.register(Path(path).unlink, missing_ok=True)
    return path
