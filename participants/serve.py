"""One command per service: check the environment, then become gunicorn.

The command replaces this process, so that its id is the server's and a signal to it
is a signal to the server.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NoReturn

HERE: Final = Path(__file__).parent
PACKAGE: Final = __package__ or "participants"
ROOT: Final = HERE.parents[PACKAGE.count(".")]
"""What must be importable from: a clone's top folder, or site-packages."""


def serve(
    name: str, port: int, *, needs: Sequence[str], config: str = "gunicorn_conf"
) -> NoReturn:
    """Serve the application that `<name>.create_app()` makes, until SIGTERM.

    Args:
        name: the module beside this one.
        port: where to listen unless `--port` says otherwise.
        needs: environment variables without which it cannot start.
        config: gunicorn's settings, a module beside this one.
    """
    parser = argparse.ArgumentParser(
        prog=f"python -m {PACKAGE}.{name}", epilog=f"environment: {', '.join(needs)}"
    )
    parser.add_argument("--host", default="127.0.0.1", help="address to listen on")
    parser.add_argument("--port", type=int, default=port, help="port to listen on")
    chosen = parser.parse_args()
    if missing := [variable for variable in needs if not os.environ.get(variable)]:
        sys.exit(f"{name}: set {' and '.join(missing)} in the environment")
    os.environ.setdefault("OTEL_SERVICE_NAME", name)
    command = gunicorn(name, f"{chosen.host}:{chosen.port}", config)
    os.execv(command[0], command)  # noqa: S606 - our own interpreter, no shell


def gunicorn(name: str, bind: str, config: str) -> list[str]:
    """Return the command line of the server."""
    return [
        *(sys.executable, "-m", "gunicorn"),
        *("--config", str(HERE / f"{config}.py")),
        *("--pythonpath", str(ROOT)),
        *("--bind", bind),
        f"{PACKAGE}.{name}:create_app()",
    ]
