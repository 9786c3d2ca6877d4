"""Run what lies in `participants/`: beside the package, or inside it in a wheel."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Sequence
from pathlib import Path
from types import ModuleType

from tracing_2pc.errors import ConfigurationError


def run_service(name: str, arguments: Sequence[str]) -> int:
    """Call `main(arguments)` of a module in `participants/`.

    Raises:
        ConfigurationError: an extra is not installed.
    """
    try:
        module = _find(name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(
            f"`tracing-2pc {name}` needs {error.name}: pip install 'tracing-2pc[demo]'"
        ) from error
    try:
        return int(module.main(list(arguments)) or 0)
    except RuntimeError as error:
        raise ConfigurationError(f"tracing-2pc {name}: {error}") from error


def _find(name: str) -> ModuleType:
    clone = Path(__file__).resolve().parents[2]
    if (clone / "participants" / f"{name}.py").is_file():
        sys.path.insert(0, str(clone))
        return importlib.import_module(f"participants.{name}")
    return importlib.import_module(f"tracing_2pc._participants.{name}")
