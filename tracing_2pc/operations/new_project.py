"""`tracing-2pc new`: a project that runs at once, in an empty folder."""

from __future__ import annotations

import enum
import json
from collections.abc import Iterator
from importlib import metadata, resources
from pathlib import Path
from typing import Final

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import check_application


class Kind(str, enum.Enum):
    """The target of a project's job; the folder of its own templates."""

    ONE_FILE = "one_file"
    SERVICES = "services"


_BOTH: Final = (
    *("README.md", "requirements.txt", "tpc.toml", "pytest.ini", ".gitignore"),
    *("job.py", "tests/test_job.py", "tests/test_sink.py"),
)

FILES: Final = {
    Kind.ONE_FILE: _BOTH,
    Kind.SERVICES: (
        *_BOTH,
        *("notifier.py", "partner.py", "Dockerfile", "compose.yaml"),
    ),
}
"""Each is a template, in `project/` or the kind's folder there.

Its name is without a leading dot, and ends in `.txt`.
"""

_EXTRAS: Final = {
    Kind.ONE_FILE: "spark",
    Kind.SERVICES: "spark,participant,postgres,requests,otlp",
}


def new_project(folder: Path, kind: Kind = Kind.ONE_FILE) -> Iterator[str]:
    """Write a job, settings, tests and perhaps services; yield a line about each file.

    The folder's name is that of the application. No secret is written.

    Raises:
        ConfigurationError: a name that no application can have, or a folder that is not
            empty: nothing was written. Or a file that could not be written.
    """
    name = folder.resolve().name
    try:
        check_application(name)
    except ValueError as error:
        raise ConfigurationError(str(error)) from None
    try:
        if folder.exists() and any(folder.iterdir()):
            raise ConfigurationError(f"{folder} is not empty: nothing was written")
        for target in FILES[kind]:
            file = folder / target
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_filled(file.name, name, kind), encoding="utf-8")
            yield f"wrote {file}"
        (folder / "in").mkdir()
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from None
    yield f"{folder / 'README.md'} says how to run it, kill it and test it"


def _filled(file: str, name: str, kind: Kind) -> str:
    template, project = f"{file.removeprefix('.')}.txt", resources.files(__package__)
    text = project.joinpath("project", kind.value, template)
    if not text.is_file():
        text = project.joinpath("project", template)
    filled = text.read_text(encoding="utf-8").replace("{name}", name)
    return filled.replace("{requirement}", _requirement(_EXTRAS[kind]))


def _requirement(extras: str) -> str:
    """Return the requirement of this version, by its origin here (PEP 610)."""
    installed = metadata.distribution("tracing-2pc")
    if (text := installed.read_text("direct_url.json")) is None:
        return f"tracing-2pc[{extras}]~={installed.version}"
    origin = json.loads(text)
    url = origin["url"]
    if vcs := origin.get("vcs_info"):
        url = f"{vcs['vcs']}+{url}@{vcs['commit_id']}"
    return f"tracing-2pc[{extras}] @ {url}"
