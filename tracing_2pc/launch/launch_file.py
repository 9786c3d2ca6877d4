"""The file that a launch is read from, strictly."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import Facts, TransactionRecord
from tracing_2pc.core.remote_participant import broker_of
from tracing_2pc.core.settings import check_name, check_url, seconds
from tracing_2pc.launch.built_image import Build
from tracing_2pc.launch.own_cluster import own_namespace
from tracing_2pc.launch.plan import BUILT, KINDS, Plan
from tracing_2pc.launch.registry import check_repository, check_tag
from tracing_2pc.launch.waiting import QUEUES, WORD

_LABEL: Final = r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?"
_NAMES: Final = {
    "name": re.compile(rf"(?=.{{1,63}}$){_LABEL}(\.{_LABEL})*"),
    "namespace": re.compile(_LABEL),
}
_VARIABLE: Final = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_KEYS: Final = {"job", "build", "check", "participants", "record", "timeout"}
_CUT: Final = 31


@dataclasses.dataclass(frozen=True)
class LaunchFile:
    """The parts that are launched together."""

    name: str  # of the job, as it stands in its `metadata`
    plan: Plan  # the job, its check, and what its containers are told
    # The image, if it is built; None where the job names one that is there.
    build: Build | None
    participants: Mapping[str, str]  # services that take part, by name
    record: Mapping[str, Any]  # the one row that each of them gets
    timeout: float  # seconds after which what is not decided is rolled back
    digest: str  # of the file's meaning: white space and comments do not count
    uid: str = ""  # of the resource that it is read from, where it is one

    @classmethod
    def read(cls, path: str | Path) -> LaunchFile:
        """Read a file; `ConfigurationError` names the field that is wrong."""
        import yaml  # of the extra; an operator needs none of it

        from tracing_2pc.launch.kubeconfig import read_yaml

        try:
            item = read_yaml(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise ConfigurationError(f"{path}: {error.strerror}") from None
        except (UnicodeDecodeError, yaml.YAMLError) as error:
            detail = " ".join(str(error).split())[:200]
            raise ConfigurationError(f"{path}: no YAML: {detail}") from None
        try:
            return cls.of(item)
        except (TypeError, ValueError) as error:
            raise ConfigurationError(f"{path}: {error}") from None

    @classmethod
    def of(cls, item: Any, *, uid: str = "", again: str = "") -> LaunchFile:
        """Read the content of a file, or a resource; `ValueError` names the field.

        Another `again` is another digest.
        """
        item = _object(item, "the file")
        if unknown := {*item} - _KEYS:
            raise ValueError(
                f"no field {min(map(str, unknown))[:60]!r} here; it has "
                f"{', '.join(sorted(_KEYS))}"
            )
        manifest = _job(item.get("job"))
        labels = manifest["metadata"].get("labels") or {}
        word = {WORD: labels[WORD]} if WORD in labels else {}
        build = _build(item["build"], word) if item.get("build") is not None else None
        images = _images(manifest["spec"]["template"]["spec"])
        if (build is not None) != (BUILT in images):
            raise ValueError(
                f"job: with `build`, and only then, a container has image: {BUILT}"
            )
        urls = {
            check_name(str(name)): check_url(str(url))
            for name, url in _object(
                item.get("participants", {}), "participants"
            ).items()
        }
        record = _object(item.get("record", {}), "record")
        if urls and not record:
            raise ValueError("record: say which row the participants get")
        name = manifest["metadata"]["name"]
        return cls(
            name,
            Plan(
                manifest, _command(item.get("check", ()), "check"), _environment(urls)
            ),
            build,
            urls,
            record,
            seconds(str(item.get("timeout", "10m"))),
            _digest(item, again),
            uid,
        )

    @property
    def application(self) -> str:
        """The launches' name in the log: that of the job, cut, and a digest."""
        return application_of(self.plan.namespace, self.name, self.uid)

    def is_of(self, record: TransactionRecord) -> bool:
        """Return whether a launch that is on record was of exactly this."""
        return record.launch_digest == self.digest

    def facts(self) -> Facts:
        """Return the facts to record: the content of a launch, and its place."""
        facts: Facts = {
            "launch_digest": self.digest,
            "launch_namespace": self.plan.namespace,
        }
        if (build := self.build) is not None:
            builder = "command" if build.task_run is None else "task"
            facts |= {"launch_repository": build.repository, "launch_builder": builder}
        return facts


def application_of(namespace: str, name: str, uid: str = "") -> str:
    """Return a resource's application: 40 characters at most, and its own."""
    whole = hashlib.sha256("\0".join((namespace, name, uid)).encode()).hexdigest()
    return f"{name[:_CUT].replace('.', '-').rstrip('-')}-{whole[:8]}"


def _digest(item: Any, again: str) -> str:
    text = json.dumps(item, sort_keys=True, default=str) + again
    return hashlib.sha256(text.encode()).hexdigest()


def _job(item: Any) -> dict[str, Any]:
    manifest = _object(item, "job")
    if manifest.get("kind") not in KINDS:
        raise ValueError("job: expected a Job or a Deployment, as it would be applied")
    meta = _object(manifest.get("metadata"), "job.metadata")
    if meta.get("namespace") is None:
        meta["namespace"] = own_namespace()
    for field, form in _NAMES.items():
        if not isinstance(meta.get(field), str) or not form.fullmatch(meta[field]):
            raise ValueError(f"job.metadata.{field}: small letters, digits and dashes")
    for field in ("labels", "annotations"):
        if any(str(name).startswith(QUEUES) for name in meta.get(field) or ()):
            raise ValueError(
                f"job.metadata.{field}: {QUEUES}… has Kueue start it by itself, "
                "before the decision: leave it out"
            )
    spec = _object(manifest.get("spec"), "job.spec")
    if spec.get("paused"):
        raise ValueError(
            "job.spec.paused: a Deployment that is paused does not start: leave it out"
        )
    template = _object(spec.get("template"), "job.spec.template")
    pod = _object(template.get("spec"), "job.spec.template.spec")
    containers = pod.get("containers")
    if not isinstance(containers, list) or not containers:
        raise ValueError("job.spec.template.spec.containers: expected at least one")
    for image in _images(pod):
        if image != BUILT and not re.search(r"@sha256:[0-9a-f]{64}$", str(image)):
            raise ValueError(
                f"image {str(image)[:80]!r}: name it by its digest (…@sha256:…), or "
                f"build it ({BUILT}): a tag may be another image tomorrow"
            )
    return manifest


def _images(pod: dict[str, Any]) -> list[Any]:
    """Return each image that a pod of the job would have."""
    references = [
        _object(container, f"{kind}: each").get("image")
        for kind in ("initContainers", "containers", "ephemeralContainers")
        for container in pod.get(kind) or ()
    ]
    volumes = [_object(volume, "volumes: each") for volume in pod.get("volumes") or ()]
    images = [v["image"] for v in volumes if v.get("image") is not None]
    return references + [_object(i, "volumes.image").get("reference") for i in images]


def _build(item: Any, labels: Mapping[str, str]) -> Build:
    item = _object(item, "build")
    if unknown := {*item} - {"image", "tag", "command", "environment", "taskRun"}:
        raise ValueError(f"build: no field {min(map(str, unknown))[:60]!r} here")
    if ("command" in item) == ("taskRun" in item):
        raise ValueError("build: give command or taskRun")
    task, names = item.get("taskRun"), item.get("environment", [])
    if not isinstance(names, list) or not all(
        isinstance(name, str) and _VARIABLE.fullmatch(name) for name in names
    ):
        raise ValueError("build.environment: expected a list of variables' names")
    if names and task is not None:
        raise ValueError("build.environment: a taskRun has none of ours")
    try:
        return Build(
            check_repository(str(item.get("image"))),
            check_tag(str(item.get("tag", "latest"))),
            _command(item.get("command", ()), "build.command"),
            None if task is None else _object(task, "build.taskRun"),
            labels,
            tuple(names),
        )
    except ValueError as error:
        raise ValueError(f"build: {error}") from None


def _environment(urls: Mapping[str, str]) -> dict[str, str]:
    """Return the environment variables about participants, for each container."""
    if not urls:
        return {}
    environment = {
        "TPC_PARTICIPANTS": ",".join(f"{n}={url}" for n, url in urls.items())
    }
    for url in urls.values():
        environment |= broker_of(url)
    return environment


def _command(item: Any, field: str) -> tuple[str, ...]:
    words = shlex.split(item) if isinstance(item, str) else item
    if not isinstance(words, list | tuple) or not all(
        isinstance(w, str) for w in words
    ):
        raise ValueError(f"{field}: expected a list of words")
    return tuple(words)


def _object(item: Any, field: str) -> dict[str, Any]:
    if not isinstance(item, dict):
        raise ValueError(f"{field}: expected names and values")
    return item
