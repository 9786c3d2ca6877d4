"""The stack as it runs: what its containers say, by compose and by published ports."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from typing import Any, Final

from containers.engine import Engine
from containers.files import ENGINE, ENV_FILES, settings
from participants.processes import free_ports

PROFILES: Final = "jaeger,skywalking,grafana,cluster"
DAYS: Final = 7


class Stack:
    """The unchanged file, with other ports and a shorter source.

    Args:
        engine: what it runs on.
        told: variables beside these: all that shows something, and a cluster.
    """

    def __init__(self, engine: Engine, **told: str) -> None:
        self._engine = engine
        named = [n for n in settings(ENV_FILES[0]) if n.endswith("_PORT")]
        self._ports = dict(zip(named, free_ports(len(named)), strict=True))
        self._told = {
            **{name: str(port) for name, port in self._ports.items()},
            "COMPOSE_PROJECT_NAME": "tracing-2pc-test",
            "COMPOSE_ENV_FILES": ".env,compose/everything.env,compose/cluster.env",
            "TRACES_EXPORTER": "otlp,skywalking",
            "COMPOSE_PROFILES": PROFILES,
            "DEMO_DAYS": str(DAYS),
            "DEMO_EVERY": "3 seconds",
            **told,
        }

    def compose(self, *words: str, **told: str) -> str:
        """Run a command of docker compose, which must succeed; return what it says."""
        program = str(ENGINE / "docker-compose")
        return self._engine.run(program, *words, told={**self._told, **told})

    def up(self, *services: str, **told: str) -> None:
        """Start all, or some and what they need; nothing is pulled or built."""
        how = ("--detach", "--wait", "--pull", "never", "--no-build")
        try:
            self.compose("up", *how, *services, **told)
        except AssertionError as refused:
            last = self.compose("logs", "--tail", "20")
            raise AssertionError(f"{refused}\n{last}"[-20_000:]) from None

    def url(self, name: str) -> str:
        """Return where a service is published."""
        return f"http://127.0.0.1:{self.port(name)}"

    def port(self, name: str) -> int:
        """Return the port of it."""
        return self._ports[f"{name}_PORT"]

    def inside(self, service: str, *command: str) -> str:
        """Run a command in a service's container."""
        return self.compose("exec", "-T", service, *command)

    def operator(self, *words: str) -> str:
        """Run `tracing-2pc` in the console's container; 1 is an answer, too."""
        script = 'tracing-2pc "$@" || [ $? -eq 1 ]'
        return self.inside("console", "sh", "-c", script, "sh", *words)

    def said(self, service: str) -> list[str]:
        """Return the lines of a service, without its name."""
        return self.compose("logs", "--no-log-prefix", service).splitlines()

    def called(self, what: str) -> list[str]:
        """Return what the webhook was told with these words."""
        return [line for line in self.said("webhook") if what in line]

    def transactions(self) -> list[dict[str, Any]]:
        """Return what `tracing-2pc ls` says in the console's container."""
        told = self.operator("ls", "--json").splitlines()
        return [json.loads(line) for line in told if line.startswith("{")]

    def in_state(self, state: str) -> list[str]:
        """Return the transactions that are in a state."""
        found = [one for one in self.transactions() if one.get("state") == state]
        return [one["transaction"] for one in found]

    def containers(self) -> dict[str, dict[str, Any]]:
        """Return all containers by service."""
        told = self.compose("ps", "--all", "--format", "json").splitlines()
        return {one["Service"]: one for one in map(json.loads, told)}

    def oracle(self) -> set[str]:
        """Return how many rows are lost, doubled, wrong or split."""
        told = self.compose("run", "--rm", "oracle")
        found = dict(line.split()[:2] for line in told.splitlines() if line.strip())
        return {found[name] for name in ("lost", "duplicated", "wrong", "split")}

    def restarts(self, service: str) -> int:
        """Return how often the engine has started a service again by itself."""
        form = ("--format", "{{.RestartCount}}")
        container = self.containers()[service]["ID"]
        return int(self._engine.docker("inspect", *form, container))


@contextlib.contextmanager
def stack(engine: Engine, *services: str, **told: str) -> Iterator[Stack]:
    """Start it, or some; at the end containers, networks and volumes are gone."""
    made = Stack(engine, **told)
    try:
        made.up(*services)
        yield made
    finally:
        made.compose("--profile", "*", "down", "--volumes", "--timeout", "5")
