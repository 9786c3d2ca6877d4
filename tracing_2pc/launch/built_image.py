"""An image that is built before the decision, and tagged by it."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import tempfile
import threading
from collections.abc import Mapping, Sequence
from typing import IO, Any, Final

from tracing_2pc.core.errors import (
    AbortedError,
    ConfigurationError,
    ParticipantRefusedError,
    TwoPhaseError,
)
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import BranchContext, TransactionId
from tracing_2pc.core.settings import without_secrets
from tracing_2pc.launch.cluster import Cluster
from tracing_2pc.launch.own_cluster import own_cluster
from tracing_2pc.launch.registry import BlobGoneError, Manifest, Repository
from tracing_2pc.launch.waiting import (
    TRANSACTION,
    Place,
    PlaceOf,
    create,
    new_creation,
    wait_for,
)
from tracing_2pc.tracing.decorator.traced_sink import traced_sink
from tracing_2pc.tracing.propagation import environment_of
from tracing_2pc.tracing.sdk.environment import telemetry_settings
from tracing_2pc.tracing.spans import current_carrier

NAME: Final = "launch-image"

_SPAN: Final = "tekton.dev/taskrunSpanContext"
"""Annotation from which Tekton has the parent of its own spans."""

_LAST: Final = 3
"""Lines of a failed command that its reason has."""

_TAIL: Final = 1 << 16
"""Bytes of its end in which they are looked for."""

_PASSED: Final = (
    *("PATH", "HOME", "USER", "LOGNAME", "SHELL", "LANG", "LC_ALL", "LC_CTYPE", "TZ"),
    *("TMPDIR", "XDG_CACHE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR"),
    *("DOCKER_CONFIG", "DOCKER_HOST", "DOCKER_CONTEXT", "DOCKER_BUILDKIT"),
    *("DOCKER_TLS_VERIFY", "DOCKER_CERT_PATH", "REGISTRY_AUTH_FILE"),
    *("SSH_AUTH_SOCK", "SSL_CERT_FILE", "SSL_CERT_DIR", "VIRTUAL_ENV"),
    *("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY"),
    *("http_proxy", "https_proxy", "no_proxy"),
)
"""Variables of ours that a build's command gets, beside those that its file names."""


@dataclasses.dataclass(frozen=True)
class Build:
    """How an image is built: by a command here, or by a Tekton TaskRun.

    A command gets the place to push to in its environment, as `IMAGE`; of ours it gets
    the variables that a program needs to run and to push, telemetry's settings without
    secrets, and those that `environment` names. A TaskRun's `spec` gets the place as
    the param `image`, and the TaskRun these labels.
    """

    repository: str
    tag: str
    command: tuple[str, ...] = ()
    task_run: dict[str, Any] | None = None
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    environment: tuple[str, ...] = ()


@traced_sink
class BuiltImage:
    """Builds, and pushes under a tag of its own; the commit sets the real tag.

    Before the vote the image stands under the staging tag `tpc-<transaction>`, in a
    manifest that has the transaction's id, so that its digest is no other image's. The
    handle keeps the manifest: a commit needs neither the staging tag nor the build. It
    may be repeated, by any process. Only layers that the registry has dropped since
    cannot be recovered: the commit is refused then, and never acknowledged.

    Args:
        build: the build. None in a recovery, which has the handle.
        stopping: set when the vote is no longer waited for.
        cluster: where a TaskRun is made.
        namespace: of the TaskRun.
        place_of: where an abort looks, and a late commit; by default, where this one
            builds.
    """

    name = NAME

    def __init__(
        self,
        build: Build | None = None,
        stopping: threading.Event | None = None,
        cluster: Cluster | None = None,
        namespace: str = "default",
        place_of: PlaceOf | None = None,
    ) -> None:
        self.build = build
        self.stopping = stopping or threading.Event()
        self.cluster = cluster
        self.namespace = namespace
        self.place_of = place_of or self._own_place
        self.pushed: str | None = None

    def begin(self, context: BranchContext) -> dict[str, Any]:
        build = self._build()
        return {
            "transaction": str(context.transaction_id),
            "repository": build.repository,
            "tag": build.tag,
        }

    def invoke(self, handle: dict[str, Any], record: Any) -> None:
        """Take the row of the services: an image needs nothing of it."""

    def pre_commit(self, handle: dict[str, Any]) -> None:
        """Build and push; stage what was pushed under a digest of its own.

        Raises:
            ConfigurationError: the build failed, with its reason; or pushed nothing.
            TwoPhaseError: the registry, or the API server, did not answer.
        """
        build, transaction = self._build(), handle["transaction"]
        place, staging = Repository(build.repository), staging_tag(transaction)
        reference = f"{build.repository}:{staging}"
        if build.task_run is not None:
            self._run_task(build, transaction, reference)
        else:
            self._run_command(build, transaction, reference)
        failpoint("launch.after_push")
        pushed = place.get(staging)
        if pushed is None:
            raise ConfigurationError(f"the build ended well and pushed no {reference}")
        staged = pushed.staged_by(transaction)
        place.put(staging, staged)
        if place.get(staged.digest) != staged:
            raise TwoPhaseError(f"{reference}: the registry did not keep its bytes")
        handle.update(kind=staged.kind, manifest=staged.content.decode())
        self.pushed = f"{build.repository}@{staged.digest}"

    def commit(self, handle: dict[str, Any]) -> None:
        """Put exactly these bytes under the release tag, unless a later launch began.

        Raises:
            ParticipantRefusedError: the registry has dropped a layer.
        """
        staged = Manifest(handle["kind"], handle["manifest"].encode())
        place, tag = Repository(handle["repository"]), handle["tag"]
        if (standing := place.get(tag)) == staged or _is_later(standing, handle):
            return
        is_ours = standing is not None and standing.transaction is not None
        if not is_ours and self.place_of(handle["transaction"]).is_past:
            return  # a hand has changed the tag since
        try:
            place.put(tag, staged)
        except BlobGoneError as error:
            raise ParticipantRefusedError(
                f"{error}, so {place.name}:{tag} cannot be set: have the registry keep "
                "what is tagged tpc-…; conclude this launch, and launch --again"
            ) from error

    def commit_transaction(self, _id: str, chosen: Sequence[dict[str, Any]]) -> None:
        """Commit the launch's one branch; there is no other to drop."""
        for handle in chosen:
            self.commit(handle)

    def abort(self, handle: dict[str, Any]) -> None:
        """Delete what this transaction staged, and no tag of anything else."""
        _unstage(Repository(handle["repository"]), handle["transaction"])

    def abort_transaction(self, transaction_id: str, keep: Sequence[Any]) -> None:
        """Delete what it staged and built, unless it was committed."""
        if keep:
            return
        place = self.place_of(transaction_id)
        if place.by_task:
            cluster = self.cluster or own_cluster()
            where = "TaskRun", place.namespace, task_name(transaction_id)
            labels = (cluster.get(*where) or {}).get("metadata", {}).get("labels") or {}
            if labels.get(TRANSACTION) == transaction_id:
                cluster.delete(*where)
        _unstage(Repository(place.repository), transaction_id)

    def _own_place(self, _transaction: str) -> Place:
        build = self._build()
        return Place(self.namespace, build.repository, build.task_run is not None)

    def _build(self) -> Build:
        if self.build is None:
            raise ConfigurationError("a recovery builds nothing")
        return self.build

    def _run_command(self, build: Build, transaction: str, reference: str) -> None:
        command, environment = build.command, _environment_of(build)
        environment |= {"IMAGE": reference, "TRANSACTION_ID": transaction}
        environment |= environment_of(current_carrier())
        # Into a file: a child that the build has left may hold a pipe for ever.
        with tempfile.TemporaryFile() as output:
            try:
                process = subprocess.Popen(  # noqa: S603 - the user's own command
                    command,
                    env=environment,
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                    start_new_session=True,
                )
            except OSError as error:
                raise ConfigurationError(
                    f"the build cannot start: {command[0]}: {error.strerror}"
                ) from None
            subject = f"the build {transaction}"
            try:
                wait_for(lambda: process.poll() is not None, self.stopping, subject)
            finally:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.wait()
            if process.returncode:
                last = " / ".join(_last_lines(output)) or "it said nothing"
                raise ConfigurationError(
                    f"the build failed ({process.returncode}): {last}"[:500]
                )
        if self.stopping.is_set():
            raise AbortedError(f"{subject} was not over within the launch's `timeout`")

    def _run_task(self, build: Build, transaction: str, reference: str) -> None:
        cluster, spec = self.cluster, build.task_run or {}
        assert cluster is not None  # noqa: S101 - the file's reader gave one
        name, namespace = task_name(transaction), self.namespace
        params = [
            *(p for p in spec.get("params", ()) if p.get("name") != "image"),
            {"name": "image", "value": reference},
        ]
        labels = {**build.labels, TRANSACTION: transaction}
        notes = new_creation()
        if traceparent := current_carrier().get("traceparent"):
            notes[_SPAN] = json.dumps({"traceparent": traceparent})
        meta = {"name": name, "namespace": namespace, "labels": labels}
        meta["annotations"] = notes
        made = {"apiVersion": "tekton.dev/v1", "kind": "TaskRun", "metadata": meta}
        create(cluster, {**made, "spec": {**spec, "params": params}}, self.stopping)
        ended: dict[str, Any] = {}

        def is_over() -> bool:
            item = cluster.get("TaskRun", namespace, name)
            if item is None:
                raise ConfigurationError(f"TaskRun {name} was deleted while it ran")
            for condition in (item.get("status") or {}).get("conditions") or ():
                if condition.get("type") == "Succeeded":
                    ended.update(condition)
            return ended.get("status") in {"True", "False"}

        wait_for(is_over, self.stopping, f"TaskRun {name}")
        if ended["status"] == "False":
            message = without_secrets(str(ended.get("message") or ended.get("reason")))
            text = " ".join(message.split())
            raise ConfigurationError(f"the build failed: TaskRun {name}: {text}"[:500])


def staging_tag(transaction: str) -> str:
    """Return the tag that a transaction pushes to."""
    return f"tpc-{transaction}"


def task_name(transaction: str) -> str:
    """Return the name of a transaction's TaskRun."""
    return f"{transaction.replace('.', '-').replace('_', '-').lower()}-build"


def _environment_of(build: Build) -> dict[str, str]:
    """Return what a build's command gets of our environment."""
    for name in build.environment:
        if name not in os.environ:
            raise ConfigurationError(f"build.environment: {name} is not set here")
    names = {*_PASSED, *build.environment} & os.environ.keys()
    return telemetry_settings() | {name: os.environ[name] for name in names}


def _last_lines(output: IO[bytes]) -> list[str]:
    """Return the last lines of a command's output, without our secrets."""
    end = output.seek(0, os.SEEK_END)
    output.seek(max(end - _TAIL, 0))
    text = without_secrets(output.read().decode(errors="replace"))
    if end > _TAIL:  # it may begin in the middle of a secret
        text = re.sub(r"^\S*", "", text)
    lines = (" ".join(line.split())[:200] for line in text.splitlines())
    return [line for line in lines if line][-_LAST:]


def _unstage(place: Repository, transaction: str) -> None:
    """Delete a transaction's staged image, by a digest that no other image has."""
    staging = staging_tag(transaction)
    if (manifest := place.get(staging)) is None:
        return
    if manifest.transaction != transaction:  # killed between push and stage
        manifest = manifest.staged_by(transaction)
        place.put(staging, manifest)
    place.delete(manifest.digest)


def _is_later(standing: Manifest | None, handle: dict[str, Any]) -> bool:
    """Return whether a later launch of the same application has set the tag since."""
    if standing is None or standing.transaction is None:
        return False
    mine = TransactionId.parse(handle["transaction"])
    try:
        other = TransactionId.parse(standing.transaction)
    except ValueError:
        return False
    return other.application == mine.application and other > mine
