"""Kill or stop this process at a named point of the protocol: for tests and the demo.

Set `TPC_FAILPOINT=<name>` or `<name>:<n>` (the n-th time it is reached, from 1). The
process that gets there kills its whole process group by SIGKILL. With
`TPC_FAILPOINT_FILE`, a path that does not exist, the first process to get there creates
the file with the name in it: as the file exists then, it happens once however many
processes are started again. Start such a process in a group of its own, as an
interactive shell does; a Spark task that shall take its driver along is given the
driver's group in `TPC_FAILPOINT_GROUP`, which dies first. Without the variables a
failpoint costs one test of a flag.

They are read at import; `arm` reads them again.

`TPC_FAILPOINT_SIGNAL=STOP` pauses the group by SIGSTOP instead (`KILL`, the default,
is the only other word): SIGCONT wakes it, and it goes on from that very point, as a
driver does that slept through its own replacement.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from typing import Final, NamedTuple

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.names import FAILPOINTS

_SIGNALS: Final = {"KILL": signal.SIGKILL, "STOP": signal.SIGSTOP}
_ARRIVED: Final = 0.2
"""Seconds within which a signal to the group has reached every thread."""


class _Armed(NamedTuple):
    name: str
    times: int
    path: str | None
    signal: signal.Signals


_lock = threading.Lock()
_reached = 0


def _read_variables() -> _Armed | None:
    wanted = os.environ.get("TPC_FAILPOINT")
    if not wanted:
        return None
    name, _, times = wanted.partition(":")
    if name not in FAILPOINTS:
        known = ", ".join(sorted(FAILPOINTS))
        raise ConfigurationError(f"TPC_FAILPOINT={name}: unknown; one of {known}")
    word = os.environ.get("TPC_FAILPOINT_SIGNAL", "KILL")
    if word not in _SIGNALS:
        known = " or ".join(_SIGNALS)
        raise ConfigurationError(f"TPC_FAILPOINT_SIGNAL={word}: expected {known}")
    path = os.environ.get("TPC_FAILPOINT_FILE")
    return _Armed(name, int(times or 1), path, _SIGNALS[word])


_armed = _read_variables()


def arm() -> None:
    """Read the variables again and count from 0: for a process forked since import."""
    global _armed, _reached
    _armed, _reached = _read_variables(), 0


def failpoint(name: str) -> None:
    """Die or stop here if this point is armed and has not fired before."""
    if _armed is None or _armed.name != name:
        return
    global _reached
    with _lock:
        _reached += 1
        if _reached == _armed.times:
            _fire(_armed)


def _fire(armed: _Armed) -> None:
    if armed.path is not None:
        try:
            file = os.open(armed.path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
        except FileExistsError:
            return
        os.write(file, armed.name.encode())
        os.fsync(file)
    own = os.getpgrp()
    for group in dict.fromkeys((int(os.environ.get("TPC_FAILPOINT_GROUP", own)), own)):
        os.killpg(group, armed.signal)
    time.sleep(_ARRIVED)  # another thread may take it first: not one step further here
