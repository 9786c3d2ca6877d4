"""`tracing-2pc new`: a project that runs at once, in an empty folder."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import Final

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import check_application

FILES: Final = (
    *("README.md", "requirements.txt", "tpc.toml", "pytest.ini", ".gitignore"),
    *("job.py", "ledger.py", "notifier.py", "partner.py"),
    *("tests/test_job.py", "tests/test_sink.py", "Dockerfile", "compose.yaml"),
)
"""Each is a template in `project/`: its name without a leading dot, and `.txt`."""


def new_project(folder: Path) -> Iterator[str]:
    """Write a job, two services, settings and tests; yield a line about each file.

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
        for target in FILES:
            file = folder / target
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(_filled(file.name, name), encoding="utf-8")
            yield f"wrote {file}"
        (folder / "in").mkdir()
    except OSError as error:
        raise ConfigurationError(f"{error.filename}: {error.strerror}") from None
    yield f"{folder / 'README.md'} says how to run it, kill it and test it"


def _filled(file: str, name: str) -> str:
    template = f"{file.removeprefix('.')}.txt"
    text = resources.files(__package__).joinpath("project", template)
    version = importlib.metadata.version("tracing-2pc")
    filled = text.read_text(encoding="utf-8").replace("{name}", name)
    return filled.replace("{version}", version)
