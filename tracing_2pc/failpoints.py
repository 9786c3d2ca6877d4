"""Kill this process at a named point of the protocol: for tests and the demo.

Set `TPC_FAILPOINT=<name>` or `<name>:<n>` (the n-th time it is reached, from 1) and
`TPC_FAILPOINT_FILE` to a path that does not exist. The first process to get there
creates the file with the name in it and kills its whole process group by SIGKILL;
as the file exists then, it happens once however many processes are started again.
Start such a process in a session of its own; a Spark task that shall take its driver
along is given the driver's group in `TPC_FAILPOINT_GROUP`. Without the variables a
failpoint costs one test of a flag.
"""

from __future__ import annotations

import os
import signal
import threading

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.names import FAILPOINTS

_lock = threading.Lock()
_seen = 0


def _armed() -> tuple[str, int, str] | None:
    wanted = os.environ.get("TPC_FAILPOINT")
    if not wanted:
        return None
    name, _, times = wanted.partition(":")
    if name not in FAILPOINTS:
        known = ", ".join(sorted(FAILPOINTS))
        raise ConfigurationError(f"TPC_FAILPOINT={name}: unknown; one of {known}")
    return name, int(times or 1), os.environ["TPC_FAILPOINT_FILE"]


_ARMED = _armed()


def failpoint(name: str) -> None:
    """Die here if this point is armed and has not fired before."""
    if _ARMED is None or _ARMED[0] != name:
        return
    global _seen
    with _lock:
        _seen += 1
        if _seen == _ARMED[1]:
            _die(name, _ARMED[2])


def is_armed(name: str) -> bool:
    """Whether this process would die there."""
    return _ARMED is not None and _ARMED[0] == name


def _die(name: str, path: str) -> None:
    try:
        file = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except FileExistsError:
        return
    os.write(file, name.encode())
    os.fsync(file)
    os.killpg(int(os.environ.get("TPC_FAILPOINT_GROUP", os.getpgrp())), signal.SIGKILL)
