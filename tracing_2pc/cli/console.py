"""`tracing-2pc console`."""

from __future__ import annotations

import argparse

from tracing_2pc.cli.arguments import DONE
from tracing_2pc.core.settings import Settings


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Serve it until SIGTERM or Ctrl-C."""
    from tracing_2pc.console.server import serve

    serve(settings, options.listen, options.tokens_file)
    return DONE
