"""The manifests of `examples/kubernetes` as data, and as processes."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from support.waiting import AT_LAST

from containers.files import ROOT
from participants.processes import Process

FOLDER: Final = ROOT / "examples" / "kubernetes"
TOKENS: Final = {"job": "j" * 20, "operator": "o" * 20, "viewer": "v" * 20}

_READ_ONLY: Final = """
mount --make-rprivate /
mount --bind "$0" "$0"
findmnt -rno TARGET | while read -r place; do case "$place" in
    "$0"|/proc*|/sys*|/dev*) ;;
    *) mount -o remount,bind,ro "$place" || true ;;
esac; done
exec "$@"
"""
"""Make all file systems read-only but one folder, as a container's root can be."""


def objects() -> Iterator[dict[str, Any]]:
    """Yield each object of each file."""
    for path in sorted(FOLDER.glob("*.yaml")):
        yield from yaml.safe_load_all(path.read_text(encoding="utf-8"))


def named(kind: str) -> dict[str, dict[str, Any]]:
    """Return the objects of a kind by name."""
    return {o["metadata"]["name"]: o for o in objects() if o["kind"] == kind}


def pods() -> dict[str, dict[str, Any]]:
    """Return what a pod is made from, by the name of its workload."""
    made = {**named("Deployment"), **named("StatefulSet")}
    return {name: o["spec"]["template"]["spec"] for name, o in made.items()}


def container(workload: str) -> dict[str, Any]:
    """Return the one container of a workload's pods."""
    (only,) = pods()[workload]["containers"]
    return dict(only)


def environment(workload: str) -> dict[str, str | None]:
    """Return its variables; None for those whose value is in a Secret."""
    its = container(workload)
    told: dict[str, str | None] = {}
    for source in its.get("envFrom", []):
        told |= named("ConfigMap")[source["configMapRef"]["name"]]["data"]
    return told | {v["name"]: v.get("value") for v in its.get("env", [])}


def mounted(workload: str) -> dict[str, dict[str, Any]]:
    """Return the volumes of a container by the path where it finds them."""
    volumes = {volume["name"]: volume for volume in pods()[workload]["volumes"]}
    mounts = container(workload)["volumeMounts"]
    return {mount["mountPath"]: volumes[mount["name"]] for mount in mounts}


def running(
    workload: str,
    folder: Path,
    changes: Mapping[str, str],
    secret: Mapping[str, str] | None = None,
    *,
    files: Mapping[str, str] | None = None,
    read_only: bool = False,
) -> Process:
    """Return a container's command as a process that is given Secrets and files.

    Args:
        workload: the name of a Deployment or StatefulSet.
        folder: in which its mounts are, and all that it may write.
        changes: other words for those of its command and its settings.
        secret: the variables whose values are in Secrets.
        files: those that are mounted from Secrets, beside the tokens.
        read_only: give it no other place to write. Skips the test where that cannot be.
    """
    changes = {"/secrets/": f"{folder}/secrets/", **changes}
    changes |= {"/settings/": f"{folder}/settings/"}

    def changed(text: str) -> str:
        for before, after in changes.items():
            text = text.replace(before, after)
        return text

    for name, text in named("ConfigMap")["tpc-settings"]["data"].items():
        (folder / "settings").mkdir(exist_ok=True)
        (folder / "settings" / name).write_text(changed(text))
    lines = [f"{role} {token}" for role, token in TOKENS.items()]
    mounts = {f"{role}/token": token for role, token in TOKENS.items()}
    mounts |= {**(files or {}), "participant/tokens": "\n".join(lines)}
    for name, text in mounts.items():
        (folder / "secrets" / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / "secrets" / name).write_text(f"{text}\n")
    its = container(workload)
    own = {v["name"]: changed(v["value"]) for v in its["env"] if "value" in v}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    told = {"PATH": path, "PYTHONPATH": str(FOLDER), "TMPDIR": str(folder)}
    program, *arguments = its["command"]
    command = [shutil.which(program, path=path) or program]
    command += [changed(argument) for argument in arguments]
    if read_only:
        command = [*_alone(), "sh", "-ec", _READ_ONLY, str(folder), *command]
    given = {
        name: f"{value}\n" for name, value in (secret or {}).items()
    }  # made from files
    return Process(workload, command, folder / "log", {**told, **own, **given})


def _alone() -> list[str]:
    command = ["unshare", "--mount", *(["--map-root-user"] if os.getuid() else [])]
    tried = [*command, "sh", "-ec", "mount --make-rprivate / && findmnt -rno TARGET"]
    try:
        done = subprocess.run(tried, capture_output=True, timeout=AT_LAST, check=False)
    except FileNotFoundError:
        pytest.skip("there is no unshare: a Linux with util-linux has it")
    if done.returncode:
        pytest.skip(f"no mounts of our own here: {done.stderr.decode()}")
    return command
