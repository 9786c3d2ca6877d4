"""`python -m tracing_2pc.nats ledger:app nats://127.0.0.1/ledger`: serve by NATS."""

from __future__ import annotations

import argparse
import importlib
import sys

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.nats.server import serve_nats
from tracing_2pc.tracing.sdk.log_records import write_to_stderr


def main() -> None:
    """Read the command line, and serve until SIGTERM."""
    parser = argparse.ArgumentParser("python -m tracing_2pc.nats", description=__doc__)
    parser.add_argument(
        "application", help="module:name, or module:make() of a function"
    )
    parser.add_argument("url", help="nats://host:4222/participant")
    parser.add_argument("--path", default="", help="folder to import from")
    parser.add_argument("--threads", type=int, default=8, help="requests at a time")
    chosen = parser.parse_args()
    sys.path.insert(0, chosen.path)
    module, _, name = chosen.application.partition(":")
    found = getattr(importlib.import_module(module), name.removesuffix("()"))
    write_to_stderr()
    try:
        application = found() if name.endswith("()") else found
        serve_nats(application, chosen.url, threads=chosen.threads)
    except ConfigurationError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
