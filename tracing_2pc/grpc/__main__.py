"""`python -m tracing_2pc.grpc ledger:app --listen 127.0.0.1:50051`: serve by gRPC."""

from __future__ import annotations

import argparse
import importlib
import sys

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.grpc.server import serve_grpc
from tracing_2pc.tracing.sdk.log_records import write_to_stderr


def main() -> None:
    """Read the command line, and serve until SIGTERM."""
    parser = argparse.ArgumentParser("python -m tracing_2pc.grpc", description=__doc__)
    parser.add_argument(
        "application", help="module:name, or module:make() of a function"
    )
    parser.add_argument("--listen", default="127.0.0.1:50051", help="address:port")
    parser.add_argument("--certificate", help="file of the certificate, for grpcs://")
    parser.add_argument("--key", help="file of its key")
    parser.add_argument("--path", default="", help="folder to import from")
    parser.add_argument("--threads", type=int, default=8, help="requests at a time")
    chosen = parser.parse_args()
    sys.path.insert(0, chosen.path)
    module, _, name = chosen.application.partition(":")
    found = getattr(importlib.import_module(module), name.removesuffix("()"))
    write_to_stderr()
    try:
        serve_grpc(
            found() if name.endswith("()") else found,
            chosen.listen,
            certificate=chosen.certificate,
            key=chosen.key,
            threads=chosen.threads,
        )
    except ConfigurationError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    main()
