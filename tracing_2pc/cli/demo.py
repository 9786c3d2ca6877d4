"""`tracing-2pc demo`: runs `participants/`, beside the package or in a wheel."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from types import ModuleType

from tracing_2pc.cli.terminal import safe
from tracing_2pc.core.errors import ConfigurationError


def run(options: argparse.Namespace) -> int:
    """Call `main` of `participants/demo.py`."""
    module = _find("demo")
    try:
        return int(module.main(list(options.rest)) or 0)
    except RuntimeError as error:
        message, *log = str(error).splitlines() or [""]
        for line in log:
            print(safe(line), file=sys.stderr)
        raise ConfigurationError(f"tracing-2pc demo: {message.rstrip(':')}") from error


def _find(name: str) -> ModuleType:
    clone = Path(__file__).resolve().parents[2]
    if (clone / "participants" / f"{name}.py").is_file():
        sys.path.insert(0, str(clone))
        return importlib.import_module(f"participants.{name}")
    return importlib.import_module(f"tracing_2pc._participants.{name}")
