"""The files and commands of the first pages are run, in an empty folder."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from manual import README, ROOT, block, blocks, page
from support.programs import ran
from support.spark import serving
from support.tracing import span_tree
from support.waiting import until

from participants.processes import answers, free_ports

PAGE = page("getting-started")


class Reader:
    """Types the commands of a page into one shell, in an empty folder.

    On ports of its own; jobs are numbered as in a shell that a person types into.
    """

    def __init__(self, folder: Path, text: str) -> None:
        self.folder, self.text = folder, text
        self.ports = dict(zip(("8081", "8082", "8083"), free_ports(3), strict=True))
        for name in ("ledger", "notifier", "job"):
            code = self.with_ports(block(text, "python", f"# {name}.py:"))
            (folder / f"{name}.py").write_text(code, encoding="utf-8")
        self._printed = folder / "printed"
        with self._printed.open("wb") as output:
            self.shell = subprocess.Popen(
                ["bash", "--norc"],
                cwd=folder,
                env=self.environment,
                stdin=subprocess.PIPE,
                stdout=output,
                stderr=output,
            )
        self.types("set -m\n")

    def with_ports(self, text: str) -> str:
        for shown, port in self.ports.items():
            text = text.replace(shown, str(port))
        return text

    @property
    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK")}
        spans = {"TPC_SPANS": str(self.folder / "spans")}
        return {**kept, **spans, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}

    def types(self, command: str) -> None:
        assert self.shell.stdin is not None
        self.shell.stdin.write(self.with_ports(command).encode())
        self.shell.stdin.flush()

    def follows(self, containing: str) -> None:
        """Type the block of the page that contains this."""
        self.types(block(self.text, "sh", containing))

    def printed(self) -> str:
        return self._printed.read_text(errors="replace")

    def sees(self, *patterns: str) -> None:
        """Wait until lines like these are printed, one after another."""
        wanted = re.compile(".*?".join(patterns), re.M | re.S)
        until(self.printed, wanted.search, tell=lambda said: said[-4000:])

    def sees_block(self, containing: str) -> None:
        """Wait until what a block of the page shows is printed, but for its numbers."""
        shown = self.with_ports(block(self.text, "", containing))
        self.sees(*(_like(line) for line in shown.splitlines() if line.strip() != "…"))

    def looks(self) -> str:
        """Run the commands that show the rows."""
        script = self.with_ports(block(self.text, "sh", "SELECT * FROM orders"))
        how = {"cwd": self.folder, "env": self.environment}
        return ran(["bash", "-c", script], **how).stdout

    def is_ready(self, port: str) -> bool:
        return answers(f"http://127.0.0.1:{self.ports[port]}/health/ready")

    def stop(self) -> None:
        for process in psutil.Process(self.shell.pid).children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                process.kill()
        self.shell.kill()
        self.shell.communicate()


def _like(line: str) -> str:
    """Return the pattern of a printed line: any numbers, times and spaces; … is any."""
    words = re.sub(r"[\d.]+ m?s\b", "{time}", " ".join(line.split()))
    pattern = re.escape(re.sub(r"\b[0-9a-f]{32}\b", "{id}", words))
    pattern = re.sub(
        r"(?<!u)[0-9]+", r"\\d+", pattern.replace(r"\{time\}", r"[\d.]+ m?s")
    )
    pattern = pattern.replace(r"\{id\}", "[0-9a-f]{32}").replace(r"\ ", " +")
    return "^ *" + re.sub("(?: [+])?…", r"[^\\n]*", pattern)


@pytest.fixture(params=["README", "getting-started"])
def reader(request, tmp_path) -> Iterator[Reader]:
    text = README.read_text("utf-8") if request.param == "README" else PAGE
    reader = Reader(tmp_path, text)
    yield reader
    reader.stop()


@pytest.mark.nightly
@pytest.mark.spark
def test_the_first_job_from_an_empty_folder(reader):
    """Three files and the commands beside them: each order is in both services and in a
    file, once, although the ledger is killed; and what the page shows is printed."""
    readme = reader.text != PAGE
    reader.follows("tracing-2pc init")
    reader.follows("gunicorn notifier")
    until(lambda: all(map(reader.is_ready, reader.ports)), tell=lambda _: "")
    reader.follows("mkdir -p in")
    reader.sees(r"ready: ", r"committed: .*batch=0 ")
    until(reader.looks, shown_everywhere(1), tell=lambda _: reader.printed())
    reader.follows("kill -9 %2")
    reader.sees(r"no vote yet")
    assert "7.5" not in reader.looks()
    (again,) = [b for b in blocks(reader.text, "sh") if b.startswith("gunicorn")]
    reader.types(again)
    reader.sees(r"committed: .*batch=1 ")
    until(reader.looks, shown_everywhere(2), tell=lambda _: reader.printed())
    reader.follows("tracing-2pc trace orders.1")
    reader.sees(r"tpc\.finish")
    if readme:
        for shown in ("ready:", "no vote yet", "batch=1", "tpc.transaction"):
            reader.sees_block(shown)
    reader.types("jobs\n")
    reader.sees(r"^\[4\].*python job\.py")


def shown_everywhere(orders: int) -> Callable[[str], bool]:
    """By the ledger, the partner and pandas."""
    amounts = {1: "9.5", 2: "7.5"}

    def shown(seen: str) -> bool:
        return all(
            f"({n}, {amounts[n]})" in seen
            and len(re.findall(rf'"amount":\s*{amounts[n]}', seen)) == 1
            and re.search(rf"^\d+ +{n} +{amounts[n]}$", seen, re.M) is not None
            for n in range(1, orders + 1)
        )

    return shown


def test_the_readme_shows_the_same_example():
    """Each of its blocks is one of the page that is run, word for word."""
    readme = README.read_text(encoding="utf-8")
    assert readme.count("\n") < 250
    for language in ("python", "sh"):
        shown = blocks(readme, language)
        assert len(shown) >= 3
        assert set(shown) <= set(blocks(PAGE, language))


def test_the_sink_of_the_manual_is_one_trace(exported):
    """A decorated sink: a span per phase, and the headers on the calls made inside."""
    from flask import Flask, request

    from tracing_2pc.core.model import BranchContext, BranchId, TransactionId

    received: list[tuple[str, str]] = []
    app = Flask(__name__)

    @app.post("/<path:path>")
    def receive(path: str) -> str:
        received.append((path, request.headers.get("traceparent", "")))
        return "ok"

    with serving(app) as url:
        names: dict[str, Any] = {}
        exec(block(page("sink"), "python", "class PartnerSink"), names)
        names["URL"] = url
        sink = names["PartnerSink"]()
        first, branch = TransactionId("orders", 0, 1), BranchId(0, 1)
        handle = sink.begin(BranchContext(first, branch, ("PartnerSink",), {}))
        for n in range(3):
            sink.invoke(handle, {"n": n})
        sink.pre_commit(handle)
        sink.commit(json.loads(json.dumps(handle)))
    assert [path for path, _ in received] == ["prepare", "commit/orders.0.1.0.1"]
    assert all(traceparent for _, traceparent in received)
    tree = [line.strip() for line in span_tree(exported())]
    phases = [line for line in tree if line.startswith("PartnerSink.")]
    expected = ("begin", "invoke", "pre_commit", "commit")
    assert phases == [f"PartnerSink.{phase}" for phase in expected]


def test_each_port_is_for_one_thing():
    """A console of one's own, each of the stack's services, a partner of one's own."""
    from tracing_2pc.console.server import LISTEN

    env = (ROOT / ".env").read_text(encoding="utf-8")
    stack = dict(re.findall(r"^(\w+)_PORT=(\d+)", env, re.MULTILINE))
    taken = [LISTEN.rpartition(":")[2], *stack.values()]
    assert len(set(taken)) == len(taken)
    examples = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    (own,) = re.findall(r'URL = "http://127.0.0.1:(\d+)"  # your partner', page("sink"))
    assert own not in taken
    console = f"http://127.0.0.1:{stack['CONSOLE']}/"
    assert console in " ".join(PAGE.split())
    assert set(re.findall(r"127\.0\.0\.1:(80\d\d)", examples)) == {own}
