"""What looking costs where the log holds ten million transactions: CPU time.

`tracing-2pc ls` and `tracing-2pc explain` are processes of their own, with Python's
start and all imports. A watcher is in this process, and each sweep is the first of a
new one, which finds everything for the first time; it only diagnoses, and does not wait
between its two looks. Python looks for cycles as seldom as in `tracing-2pc watch`. To
that is added what the log's PostgreSQL has used meanwhile.

Participants are real ledgers, on SQLite. What they use is not counted: it is that of a
list of what is prepared, and has nothing to do with the log.
"""

from __future__ import annotations

import contextlib
import gc
import os
import resource
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import psutil

from bench import pair
from bench.driver import APPLICATION
from bench.goals import GOALS
from bench.growth import view
from bench.growth.crowded import NAMES, fill_ledger, fill_log
from bench.growth.sizes import Sizes
from bench.ledgers import Ledgers, running
from bench.postgresql import postgresql
from tracing_2pc.cli import COLLECT_AFTER
from tracing_2pc.core.log_reader import MOST
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection import kinds
from tracing_2pc.operations.watcher import Watcher
from tracing_2pc.operations.wiring import open_configured_log, open_participants

SECONDS: Final = 2.0
"""Of CPU time: what the goals allow."""

_TIMEOUT: Final = 15.0
"""Seconds for a list, so that it is whole on a busy machine, too."""


def measure(folder: Path, sizes: Sizes) -> Iterator[dict[str, Any]]:
    """Yield a line for each way to look, and one for readers of a view."""
    finished, unfinished = sizes.looking
    with postgresql() as new_database:
        url = new_database()
        ids = fill_log(url, finished, unfinished)
        ledgers = {name: f"sqlite:///{folder / name}.db" for name in NAMES}
        for name, database in ledgers.items():
            fill_ledger(database, name, ids)
        with running(folder, ledgers) as those:
            arms = _arms(url, those, ids)
            costs = pair.measure(arms, sizes.looking_rounds)
        yield from _lines(costs, sizes)
        yield from view.measure(folder, new_database, sizes)


def _lines(costs: Mapping[str, list[float]], sizes: Sizes) -> Iterator[dict[str, Any]]:
    finished, unfinished = sizes.looking
    settings = {"finished": finished, "unfinished": unfinished}
    for what, seconds in costs.items():
        ratio = pair.compare(seconds, [SECONDS] * len(seconds))
        goal = f"I12-{what}"
        yield pair.line(goal, ratio, GOALS[goal].limit, settings)


def _arms(
    url: str, ledgers: Ledgers, ids: list[TransactionId]
) -> Mapping[str, pair.Block]:
    server = _server_of(url)
    environment = {
        "TPC_LOG": url,
        "TPC_PARTICIPANTS": ",".join(f"{n}={u}" for n, u in ledgers.urls.items()),
        "TPC_REQUEST_TIMEOUT": f"{_TIMEOUT}s",
        "TPC_TOKEN": Path(ledgers.token.removeprefix("file:")).read_text(),
    }
    one = next(id_ for id_ in reversed(ids) if id_.application == APPLICATION)
    settings = Settings(
        log=url,
        participants=ledgers.urls,
        token=ledgers.token,
        request_timeout=_TIMEOUT,
    )

    def ls() -> None:
        _run(["ls"], environment, f"{min(len(ids), MOST)} unfinished")

    def explain() -> None:
        _run(["explain", str(one)], environment, "decided_not_applied")

    def sweep() -> None:
        _sweep(settings, len(ids))

    looks = {"ls": ls, "explain": explain, "sweep": sweep}
    return {name: _block(look, server) for name, look in looks.items()}


def _block(look: Callable[[], None], server: psutil.Process) -> pair.Block:
    def block() -> float:
        before = _ours() + _theirs(server)
        look()
        return _ours() + _theirs(server) - before

    return block


def _run(command: list[str], environment: Mapping[str, str], shown: str) -> None:
    """Run a command; see that it has read what is there."""
    done = subprocess.run(
        [sys.executable, "-m", "tracing_2pc", *command],
        env={**os.environ, **environment},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    # 1: there is something to do for a person.
    if done.returncode not in (0, 1) or shown not in done.stdout:
        raise RuntimeError(f"{command} has not shown {shown!r}: {done.stdout[-2000:]}")


def _sweep(settings: Settings, unfinished: int) -> None:
    with _collecting_as_watch(), open_configured_log(settings) as log:
        watcher = Watcher(
            log,
            open_participants(settings),
            settings,
            clock=SystemClock(),
            pause=lambda _: None,
            recover=None,
            holder="bench",
        )
        sweep = watcher.sweep()
    unreadable = [f.text for f in sweep.findings if f.kind is kinds.UNREADABLE]
    if unreadable or len(sweep.diagnoses) != unfinished:
        raise RuntimeError(
            f"{len(sweep.diagnoses)} of {unfinished} diagnosed; {unreadable}"
        )


@contextlib.contextmanager
def _collecting_as_watch() -> Iterator[None]:
    usual = gc.get_threshold()
    gc.set_threshold(COLLECT_AFTER)
    try:
        yield
    finally:
        gc.set_threshold(*usual)


# --- CPU time -----------------------------------------------------------------------


def _ours() -> float:
    """Return what this process has used, and what processes that it has run have."""
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.process_time() + children.ru_utime + children.ru_stime


def _server_of(url: str) -> psutil.Process:
    import psycopg

    with psycopg.connect(url) as connection:
        ((folder,),) = connection.execute("SHOW data_directory").fetchall()
        connection.execute("CHECKPOINT")
    return psutil.Process(int((Path(folder) / "postmaster.pid").read_text().split()[0]))


def _theirs(server: psutil.Process) -> float:
    """Return what a PostgreSQL server has used: all its processes, in steps of 10 ms.

    Those that have ended are counted at their parent.
    """
    while True:
        every = [server, *server.children(recursive=True)]
        try:
            used = [process.cpu_times() for process in every]
        except psutil.NoSuchProcess:
            continue  # it has just ended, and is counted at its parent now
        of_ended = used[0].children_user + used[0].children_system
        return float(of_ended + sum(times.user + times.system for times in used))
