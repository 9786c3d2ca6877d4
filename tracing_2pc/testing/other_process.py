"""A process of its own in which a contract kit works, and is killed on request."""

from __future__ import annotations

import abc
import dataclasses
import importlib
import importlib.util
import multiprocessing
import os
import pickle
import signal
import sys
import traceback
from collections.abc import Mapping
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Final, NoReturn

from tracing_2pc.core import failpoints
from tracing_2pc.core.errors import ContractError

PATIENCE: Final = 300.0
"""Seconds for a process that is to be killed; only one that hangs takes so long."""

_SLOW_TO_IMPORT: Final = (
    "flask.testing",
    "pandas",
    "psycopg",
    "pyarrow",
    "pyspark.cloudpickle",
    "pytest",
    "requests",
    "sqlalchemy.dialects.postgresql.psycopg",
    "sqlalchemy.dialects.sqlite",
    "werkzeug.serving",
)


def forking() -> ForkServerContext:
    """Return a context that forks from a process with the imports of this one.

    These are our own packages and slow ones; not the author's modules, which may open
    files or connections.
    """
    context = multiprocessing.get_context("forkserver")
    ours = [name for name in list(sys.modules) if name.startswith("tracing_2pc.")]
    context.set_forkserver_preload(
        [*(name for name in _SLOW_TO_IMPORT if name in sys.modules), *sorted(ours)]
    )
    return context


@dataclasses.dataclass(frozen=True)
class OtherProcess(abc.ABC):
    """Something to do in a process of its own. It has to pickle."""

    # Name and file of the test module: pytest may be the only one who knows how to
    # import it.
    module: tuple[str, str]
    scratch: Path  # an empty folder

    @abc.abstractmethod
    def apply(self, moment: str | None) -> None:
        """Do it, here, and be killed at that moment if one is named."""

    def run(self, moment: str | None = None) -> str:
        """Run it to its end: *killed*, *ended*, or its exception, with the traceback.

        It is killed at that `moment`, if one is named. It raises a `ContractError`.
        """
        context = forking()
        ours, theirs = context.Pipe(duplex=False)
        arguments = (pickle.dumps((self, moment)), dict(os.environ), theirs)
        process = context.Process(target=_be_the_process, args=arguments)
        process.start()
        theirs.close()
        with ours:
            try:
                outcome = ours.recv() if ours.poll(PATIENCE) else "it hangs"
            except EOFError:
                outcome = "killed"
        if outcome == "it hangs":
            process.kill()
        process.join()
        if isinstance(outcome, ContractError):
            raise outcome
        if outcome == "killed" and process.exitcode != -signal.SIGKILL:
            return f"it ended with {process.exitcode}"
        return str(outcome)

    def import_module(self) -> Any:
        """Import the test module, here, and return it."""
        name, file = self.module
        try:
            importlib.import_module(name)
        except ImportError:  # pytest's import mode `importlib` needs no sys.path
            spec = importlib.util.spec_from_file_location(name, file)
            if spec is None or spec.loader is None:
                raise
            sys.modules[name] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[name])
        return sys.modules[name]

    def arm(self, point: str) -> None:
        """Have this process killed at a failpoint."""
        os.environ["TPC_FAILPOINT"] = point
        os.environ["TPC_FAILPOINT_FILE"] = str(self.scratch / "fired")
        failpoints.arm()


def kill(*_: object) -> NoReturn:
    """Kill this process, at once."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("killed")


def _be_the_process(pickled: bytes, variables: Mapping[str, str], to: Any) -> None:
    os.setsid()  # a failpoint kills its whole group
    os.environ.clear()
    os.environ.update(variables)
    try:
        other, moment = pickle.loads(pickled)  # noqa: S301 - from our parent  # nosec B301
        other.apply(moment)
    except ContractError as error:
        to.send(error)
    except BaseException:  # noqa: BLE001 - told to the parent
        to.send(traceback.format_exc())
    else:
        to.send("ended")
