"""What `tracing-2pc new` writes comes up in containers, and a batch arrives in it."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from support.waiting import AT_LAST, until

from containers.engine import IMAGES, Engine, base, engine, image
from containers.files import ENGINE, ROOT
from participants.processes import free_ports
from tracing_2pc.cli import main

pytestmark = [
    pytest.mark.compose,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(
        not (os.environ.get("TPC_COMPOSE") and (ENGINE / "base").exists()),
        reason="containers are started by `make test-compose`, as root on Debian",
    ),
]


class Project:
    """A generated project, with another port of its partner.

    Args:
        at: what it runs on.
        folder: where its files are.
    """

    def __init__(self, at: Engine, folder: Path) -> None:
        self._at = at
        self._folder = folder
        (port,) = free_ports(1)
        file = folder / "compose.yaml"
        file.write_text(file.read_text().replace(":8083:", f":{port}:"))
        self._partner = f"http://127.0.0.1:{port}/notifications"
        self._told = {"TOKENS": (folder / "tokens").read_text()}

    def build(self, scratch: Path) -> None:
        """Make its images: ours from a wheel, which no index has."""
        file = yaml.safe_load((self._folder / "compose.yaml").read_text())
        services = file["services"]
        dockerfile = (self._folder / "Dockerfile").read_text()
        base(self._at, scratch)
        image(self._at, dockerfile.split()[1], IMAGES / "python")
        image(self._at, services["postgres"]["image"], IMAGES / "postgres")
        wheel = [sys.executable, "-m", "hatchling", "build", "--target=wheel"]
        wheel += ["--directory", str(self._folder / "wheels")]
        subprocess.run(wheel, cwd=ROOT, check=True, timeout=AT_LAST)
        image(self._at, services["job"]["image"], self._folder)

    def compose(self, *words: str) -> str:
        """Run a command of docker compose, which must succeed; return what it says."""
        program = str(ENGINE / "docker-compose")
        where = ("--project-directory", str(self._folder))
        return self._at.run(program, *where, *words, told=self._told)

    def up(self) -> None:
        """Start it, and wait for what its README waits for."""
        self.compose("up", "--detach", "--wait", "--pull", "never", "--no-build")
        until(lambda: "ready: " in self.compose("logs", "job"))

    def order(self, number: int) -> None:
        """Give it an order."""
        file = self._folder / "in" / f"{number}.json"
        file.write_text(json.dumps({"id": number, "amount": 9.5}))

    def at_partner(self) -> list[int]:
        """Return what the partner has, by the port that is published."""
        with urllib.request.urlopen(self._partner, timeout=AT_LAST) as answer:
            return sorted(order["id"] for order in json.load(answer))

    def in_ledger(self) -> list[int]:
        """Return what a reader of the ledger sees."""
        ask = ("-tAc", "SELECT id FROM orders ORDER BY id")
        of = ("-T", "postgres", "psql", "-U", "postgres", "orders")
        return [int(line) for line in self.compose("exec", *of, *ask).split()]

    def files(self) -> int:
        """Return how many files are in the job's folder."""
        listed = self.compose("exec", "-T", "job", "ls", "out")
        return listed.count(".parquet")

    def trace(self, batch: str) -> str:
        """Return what the README's last question is answered with."""
        return self.compose("exec", "-T", "job", "tracing-2pc", "trace", batch)


@pytest.fixture
def project(tmp_path_factory, monkeypatch) -> Iterator[Project]:
    """One that runs; at the end containers, network and volumes are gone."""
    names = ("new", "images", "engine")  # short: sockets are in the last
    empty, scratch, folder = (tmp_path_factory.mktemp(name) for name in names)
    monkeypatch.chdir(empty)
    assert main(["new", "my-pipeline", "--services"]) == 0
    monkeypatch.chdir(empty / "my-pipeline")
    assert main(["init"]) == 0
    with engine(folder) as at, contextlib.ExitStack() as stack:
        made = Project(at, empty / "my-pipeline")
        made.build(scratch)
        stack.callback(made.compose, "down", "--volumes", "--timeout", "5")
        made.up()
        yield made


def test_each_batch_arrives_in_all_of_it(project):
    """Also while the ledger is killed: everything is everywhere, once."""
    project.order(1)
    until(lambda: project.at_partner() == [1])
    project.compose("kill", "ledger")
    project.order(2)
    until(lambda: "asking again" in project.compose("logs", "job"))
    assert project.at_partner() == [1]
    project.compose("start", "ledger")
    until(lambda: project.at_partner() == [1, 2])
    assert (project.in_ledger(), project.files()) == ([1, 2], 2)
    kept = project.trace("my-pipeline.0").splitlines()[1]
    assert {"my-pipeline", "ledger", "notifier"} <= set(re.findall(r"(\S+) \d+", kept))
