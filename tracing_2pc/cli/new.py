"""`tracing-2pc new`."""

from __future__ import annotations

import argparse
from pathlib import Path

from tracing_2pc.cli.arguments import DONE
from tracing_2pc.cli.terminal import print_item
from tracing_2pc.operations.new_project import Kind, new_project


def run(options: argparse.Namespace) -> int:
    """Write the project; one line for each file."""
    kind = Kind.SERVICES if options.services else Kind.ONE_FILE
    for line in new_project(Path(options.folder), kind):
        print_item(options, {"done": line}, line)
    return DONE
