"""What is done to a running world, at random: kills, pauses, and company."""

from __future__ import annotations

import contextlib
import os
import random
import signal
from collections.abc import Callable
from typing import Final

from support.programs import descendants

from chaos.world import Place, World
from participants.processes import Process

_PAUSES: Final = (0.3, 2.0, 12.0)
"""Seconds that a pause lasts at most; the last is longer than a request's timeout."""


_AFTER_A_COMMIT: Final = 0.4
"""How often the world first comes to the next commit: else nobody ever would."""


class Deeds:
    """Picks what is done next, and to whom.

    Args:
        world: to whom.
        chance: what is picked; moments are chance in any case.
    """

    def __init__(self, world: Place, chance: random.Random) -> None:
        self._world = world
        self._chance = chance

    def moment(self) -> tuple[float, float]:
        """Say when the next is due: for how long to wait for a commit, and after it."""
        patience = 60.0 if self._chance.random() < _AFTER_A_COMMIT else 0.0
        return patience, self._chance.uniform(0, 3)

    def next(self) -> str:
        """Do one; return what it was, empty if there was nobody to do it to."""
        deeds: list[tuple[int, Callable[[], str]]] = [
            (3, self._driver),
            (2, self._java),
            (3, self._python_worker),
            (5, self._service),
            (4, self._worker_of_a_service),
            (2, self._session),
            (1, self._server),
            *self._world.more_deeds(self._chance),
        ]
        if isinstance(self._world, World):
            deeds += [(1, self._rival), (3, self._recovery)]
        weights, names = zip(*deeds, strict=True)
        (deed,) = self._chance.choices(names, weights)
        return deed()

    def _driver(self) -> str:
        """Hit the driver's Python alone, or with all that is below it."""
        name = self._chance.choice(list(self._world.drivers))
        driver = self._world.drivers[name]
        if driver.alive() and self._chance.random() < 0.5:
            driver.kill()
            return f"kill all of {name}"
        return self._hit(f"python of {name}", [driver.pid] if driver.alive() else [])

    def _java(self) -> str:
        name = self._chance.choice(list(self._world.drivers))
        return self._hit(f"JVM of {name}", self._below(name, "java"))

    def _python_worker(self) -> str:
        """Hit the daemon that forks the tasks' Python, one of those, or a source."""
        name = self._chance.choice(list(self._world.drivers))
        return self._hit(f"worker of {name}", self._below(name, "-m pyspark."))

    def _service(self) -> str:
        others = self._world.others.values()
        service = self._chance.choice([*self._world.services.values(), *others])
        if self._chance.random() < 0.5:
            service.kill()
            return f"kill all of {service.name}"
        return self._hit(f"{service.name}", _itself(service))

    def _worker_of_a_service(self) -> str:
        others = self._world.others.values()
        service = self._chance.choice([*self._world.services.values(), *others])
        pids = list(descendants(service.pid)) if service.alive() else []
        return self._hit(f"worker of {service.name}", pids)

    def _session(self) -> str:
        """Hit a session of PostgreSQL: killed, it takes all others along."""
        return self._hit("session of PostgreSQL", list(self._world.sessions()))

    def _server(self) -> str:
        self._world.kill_server()
        return "kill PostgreSQL"

    def _rival(self) -> str:
        assert isinstance(self._world, World)
        self._world.start_rival()
        return "a second driver"

    def _recovery(self) -> str:
        """Run a recovery; hit one that runs."""
        assert isinstance(self._world, World)
        if self._world.recovery.alive():
            return self._hit("recovery", _itself(self._world.recovery))
        self._world.start_recovery()
        return "a recovery"

    def _below(self, driver: str, command: str) -> list[int]:
        process = self._world.drivers[driver]
        below = descendants(process.pid) if process.alive() else {}
        return [pid for pid, line in below.items() if command in line]

    def _hit(self, who: str, pids: list[int]) -> str:
        if not pids:
            return ""
        pid = self._chance.choice(pids)
        if self._chance.random() < 0.5:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
            return f"kill {who}"
        seconds = self._chance.uniform(0, self._chance.choice(_PAUSES))
        self._world.pause(pid, seconds)
        return f"pause {who} for {seconds:.1f} s"


def _itself(process: Process) -> list[int]:
    return [process.pid] if process.alive() else []
