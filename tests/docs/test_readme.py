"""What the README says is run: its files and commands, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from spark_support import serving
from tracing_support import exported, span_tree  # noqa: F401 - a fixture

from participants.processes import answers, free_ports
from tracing_2pc.cli.arguments import parser
from tracing_2pc.settings import Settings

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.M | re.S)


def block(language: str, containing: str) -> str:
    (found,) = [b for b in blocks(language) if containing in b]
    return found


class Reader:
    """Somebody who follows the README in an empty folder, on ports of their own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(("8081", "8082", "8083"), free_ports(3), strict=True))
        for name in ("ledger", "notifier", "job"):
            text = self.mine(block("python", f"# {name}.py:"))
            (folder / f"{name}.py").write_text(text, encoding="utf-8")
        self.shell: subprocess.Popen[bytes] | None = None

    def mine(self, text: str) -> str:
        for said, port in self.ports.items():
            text = text.replace(said, str(port))
        return text

    @property
    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK")}
        return {**kept, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}

    def follow(self) -> None:
        """Run the three steps, in one shell; the last one goes on."""
        ready = [f"http://127.0.0.1:{p}/health/ready" for p in self.ports.values()]
        script = [block("sh", "tracing-2pc init\n"), block("sh", "gunicorn")]
        script += [
            f"until curl -sf {url} >/dev/null; do sleep 0.2; done" for url in ready
        ]
        script += [block("sh", "mkdir -p in")]
        (self.folder / "steps.sh").write_text(self.mine("\n".join(script)))
        with (self.folder / "output").open("wb") as output:
            self.shell = subprocess.Popen(
                ["bash", "-e", "steps.sh"],
                cwd=self.folder,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )

    def look(self) -> str:
        """Run what the README says to look with."""
        script = self.mine(block("sh", "SELECT * FROM orders"))
        done = subprocess.run(
            ["bash", "-c", script],
            cwd=self.folder,
            env=self.environment,
            capture_output=True,
            text=True,
            check=False,
        )
        return done.stdout

    def stop(self) -> None:
        if self.shell is not None:
            os.killpg(self.shell.pid, signal.SIGKILL)
            self.shell.wait(10)


@pytest.fixture
def reader(tmp_path: Path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.stop()


@pytest.mark.spark
def test_the_first_example_from_an_empty_folder(reader: Reader) -> None:
    """Three files and the commands beside them: the order is in both services."""
    reader.follow()
    until = time.monotonic() + 600
    while "(1, 9.5)" not in (seen := reader.look()) or '"amount"' not in seen:
        output = (reader.folder / "output").read_text(errors="replace")
        assert time.monotonic() < until, output[-3000:]
        time.sleep(1)
    partner = f"http://127.0.0.1:{reader.ports['8083']}"
    assert answers(f"{partner}/health/ready")
    assert Counter(re.findall(r'"amount":\s*9.5', seen)).total() == 1


def test_the_second_example_is_one_trace(
    exported: Callable[[], Any],  # noqa: F811 - the fixture
) -> None:
    """A decorated sink: a span per phase, and the headers on the calls made inside."""
    from flask import Flask, request

    from tracing_2pc.model import BranchContext, BranchId, TransactionId

    heard: list[tuple[str, str]] = []
    app = Flask(__name__)

    @app.post("/<path:path>")
    def hear(path: str) -> str:
        heard.append((path, request.headers.get("traceparent", "")))
        return "ok"

    with serving(app) as url:
        names: dict[str, Any] = {}
        exec(block("python", "class PartnerSink"), names)
        names["URL"] = url
        sink = names["PartnerSink"]()
        handle = sink.begin(
            BranchContext(
                TransactionId("orders", 0, 1), BranchId(0, 1), ("PartnerSink",), {}
            )
        )
        for n in range(3):
            sink.invoke(handle, {"n": n})
        sink.pre_commit(handle)
        sink.commit(json.loads(json.dumps(handle)))
    assert [path for path, _ in heard] == ["prepare", "commit/orders.0.1.0.1"]
    assert all(traceparent for _, traceparent in heard)
    tree = [line.strip() for line in span_tree(exported())]
    phases = [line for line in tree if line.startswith("PartnerSink.")]
    assert phases == [
        f"PartnerSink.{p}" for p in ("begin", "invoke", "pre_commit", "commit")
    ]


def test_every_command_in_the_readme_exists() -> None:
    """A command that the README names can be called."""
    named = set(re.findall(r"tracing-2pc ([a-z]+)", README))
    assert named == set(_commands())


def test_every_command_in_a_message_exists() -> None:
    """An error message never sends anybody to a command that is not there."""
    for source in (ROOT / "tracing_2pc").rglob("*.py"):
        named = re.findall(r"`tracing-2pc ([a-z]+)", source.read_text(encoding="utf-8"))
        assert set(named) <= set(_commands()), source


def _commands() -> list[str]:
    (commands,) = [a for a in parser()._actions if a.metavar == "command"]
    return list(commands.choices or [])


def test_every_setting_in_the_readme_exists() -> None:
    """The table of settings names settings."""
    table = README.partition("## Settings")[2].partition("## ")[0]
    rows = re.findall(r"^\| (`.*?) \|", table, re.M)
    named = {name for row in rows for name in re.findall(r"`([a-z_]+)`", row)}
    assert named <= set(Settings.__dataclass_fields__)
    assert len(named) > 8


def test_every_test_in_the_failure_table_exists() -> None:
    """Each promise of the failure table is proven by a test that is there."""
    table = README.partition("## What holds")[2].partition("## ")[0]
    named = set(re.findall(r"`(test_[a-z_]+)", table))
    tests = "".join(p.read_text() for p in (ROOT / "tests").rglob("test_*.py"))
    assert named
    assert all(f"def {name}(" in tests for name in named)


def test_each_port_is_for_one_thing() -> None:
    """A console of one's own, each of the stack's services, a partner of one's own."""
    from tracing_2pc.operations.console.server import LISTEN

    env = (ROOT / ".env").read_text(encoding="utf-8")
    stack = dict(re.findall(r"^(\w+)_PORT=(\d+)", env, re.MULTILINE))
    taken = [LISTEN.rpartition(":")[2], *stack.values()]
    assert len(set(taken)) == len(taken)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    examples = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    (own,) = re.findall(r'URL = "http://127.0.0.1:(\d+)"  # your partner', readme)
    assert own not in taken
    assert f"The console at http://127.0.0.1:{stack['CONSOLE']}/" in readme
    assert set(re.findall(r"127\.0\.0\.1:(80\d\d)", examples)) == {own}
