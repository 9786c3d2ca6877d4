"""A real pgbouncer for tests, before a server of ours."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psycopg

from support.programs import left_out
from support.waiting import AT_LAST, until

_UNPACKED = Path(__file__).parents[2] / ".cache" / "pgbouncer"
_CONFIGURATION = """\
[databases]
* = host={host} user=postgres
[pgbouncer]
auth_type = any
unix_socket_dir = {folder}
listen_port = 6432
pool_mode = {mode}
default_pool_size = 8
max_client_conn = 500
"""


@contextlib.contextmanager
def pgbouncer(url: str, mode: str) -> Iterator[str]:
    """Run one before a server; yield the URL of the same database behind it.

    Leaves the test out where there is none. As root it runs as the server's user, for
    it refuses to run as root.
    """
    program = shutil.which("pgbouncer", path=f"{_UNPACKED}:/usr/sbin:/usr/bin")
    if program is None:
        left_out("there is no pgbouncer: `tools/pgbouncer` unpacks one")
    address, _, host = url.partition("?host=")
    with tempfile.TemporaryDirectory(prefix="tpc-pool-") as name:
        folder, user = (
            Path(name),
            Path(host).stat().st_uid if os.getuid() == 0 else None,
        )
        file = folder / "pgbouncer.ini"
        settings = {"host": host, "folder": folder, "mode": mode}
        file.write_text(_CONFIGURATION.format(**settings))
        folder.chmod(0o755)
        if user is not None:
            shutil.chown(folder, user)
        with (folder / "log").open("w") as log:
            process = subprocess.Popen(
                [program, str(file)], user=user, stdout=log, stderr=log
            )
        pooled = f"{address}?host={folder}&port=6432"
        try:
            until(lambda: _answers(pooled), tell=lambda _: (folder / "log").read_text())
            yield pooled
        finally:
            process.terminate()
            process.wait(AT_LAST)


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True
