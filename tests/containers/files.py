"""The compose file and what belongs to it, as data; and the plugin, if it is there."""

from __future__ import annotations

import re
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

ROOT: Final = Path(__file__).parents[2]
COMPOSE: Final = ROOT / "docker-compose.yml"
DOCKERFILE: Final = ROOT / "Dockerfile"
ENGINE: Final = (ROOT / ".cache" / "engine").resolve()
ENV_FILES: Final = (ROOT / ".env", *sorted((ROOT / "compose").glob("*.env")))
PROFILES: Final = {
    "jaeger",
    "skywalking",
    "grafana",
    "cluster",
    "kafka",
    "ingest",
    "oracle",
}
OURS: Final = "${OURS_IMAGE}"
ONCE: Final = {"prepare", "init", "oracle"}
"""Services that end by themselves: nobody asks how they are, but how they ended."""

_VARIABLE: Final = re.compile(r"(?<!\$)\$\{([A-Z0-9_]+)\}")


def stack() -> dict[str, Any]:
    """Return the file, anchors resolved, variables as they are written."""
    loaded: dict[str, Any] = yaml.safe_load(COMPOSE.read_text(encoding="utf-8"))
    return loaded


def services() -> dict[str, dict[str, Any]]:
    """Return the services by name."""
    return dict(stack()["services"])


def variables(text: str) -> set[str]:
    """Return the names of the variables that a file reads."""
    return set(_VARIABLE.findall(text))


def settings(path: Path) -> dict[str, str]:
    """Read an env file."""
    lines = path.read_text(encoding="utf-8").splitlines()
    pairs = (line.split("=", 1) for line in lines if line and not line.startswith("#"))
    return dict(pairs)


def filled(text: str) -> str:
    """Put the values of .env where its variables are."""
    values = settings(ENV_FILES[0])
    return _VARIABLE.sub(lambda found: values[found[1]], text)


def mounts(service: Mapping[str, Any]) -> Iterator[tuple[str, str, bool]]:
    """Yield source, target and whether it is read only."""
    for mount in service.get("volumes", []):
        if isinstance(mount, str):
            source, target, *mode = mount.split(":")
            yield source, target, mode == ["ro"]
        else:
            yield mount["source"], mount["target"], mount.get("read_only", False)


def plugin() -> str:
    """Return the path of docker compose, or skip the test."""
    unpacked = ENGINE / "docker-compose"
    found = str(unpacked) if unpacked.exists() else shutil.which("docker-compose")
    if found is None:
        pytest.skip("there is no docker-compose: `make compose-plugin` builds one")
    return found
