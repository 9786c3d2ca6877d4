"""`tracing-2pc demo`."""

from __future__ import annotations

import argparse

from tracing_2pc.operations.services import run_service


def run(options: argparse.Namespace) -> int:
    """Run what lies in `participants/`."""
    return run_service("demo", options.rest)
