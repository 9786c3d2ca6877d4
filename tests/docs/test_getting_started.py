"""The files and commands of the first pages are run, in an empty folder."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual import README, ROOT, block, blocks, page
from support.programs import ran
from support.spark import serving
from support.tracing import span_tree
from support.waiting import AT_LAST, until

from participants.processes import answers, free_ports

PAGE = page("getting-started")


class Reader:
    """Follows the page in an empty folder, on ports of its own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.ports = dict(zip(("8081", "8082", "8083"), free_ports(3), strict=True))
        for name in ("ledger", "notifier", "job"):
            text = self.with_ports(block(PAGE, "python", f"# {name}.py:"))
            (folder / f"{name}.py").write_text(text, encoding="utf-8")
        self.shell: subprocess.Popen[bytes] | None = None

    def with_ports(self, text: str) -> str:
        for shown, port in self.ports.items():
            text = text.replace(shown, str(port))
        return text

    @property
    def environment(self) -> dict[str, str]:
        path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
        kept = {k: v for k, v in os.environ.items() if not k.startswith("PYSPARK")}
        return {**kept, "PATH": path, "SPARK_LOCAL_IP": "127.0.0.1"}

    def follow(self) -> None:
        """Run the three steps, in one shell; the last one goes on."""
        ready = [f"http://127.0.0.1:{p}/health/ready" for p in self.ports.values()]
        script = [block(PAGE, "sh", w) for w in ("tracing-2pc init\n", "gunicorn")]
        script += [
            f"until curl -sf {url} >/dev/null; do sleep 0.2; done" for url in ready
        ]
        script += [block(PAGE, "sh", "mkdir -p in")]
        (self.folder / "steps.sh").write_text(self.with_ports("\n".join(script)))
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

    def output(self) -> str:
        """Return the end of what was said, for whom it does not work for."""
        return (self.folder / "output").read_text(errors="replace")[-3000:]

    def look(self) -> str:
        """Run the command that shows the rows."""
        script = self.with_ports(block(PAGE, "sh", "SELECT * FROM orders"))
        how = {"cwd": self.folder, "env": self.environment}
        return ran(["bash", "-c", script], **how).stdout

    def stop(self) -> None:
        if self.shell is not None:
            os.killpg(self.shell.pid, signal.SIGKILL)
            self.shell.wait(AT_LAST)


@pytest.fixture
def reader(tmp_path) -> Iterator[Reader]:
    reader = Reader(tmp_path)
    yield reader
    reader.stop()


@pytest.mark.nightly
@pytest.mark.spark
def test_the_first_job_from_an_empty_folder(reader):
    """Three files and the commands beside them: the order is in both services, and in
    a file."""
    reader.follow()
    seen = until(reader.look, shown_everywhere, tell=lambda _: reader.output())
    partner = f"http://127.0.0.1:{reader.ports['8083']}"
    assert answers(f"{partner}/health/ready")
    assert Counter(re.findall(r'"amount":\s*9.5', seen)).total() == 1


def shown_everywhere(seen: str) -> bool:
    """By the ledger, the partner and pandas."""
    in_a_file = re.search(r"^0 +1 +9\.5$", seen, re.M) is not None
    return "(1, 9.5)" in seen and '"amount"' in seen and in_a_file


def test_the_readme_shows_the_same_example():
    """Each of its blocks is one of the page that is run, word for word."""
    readme = README.read_text(encoding="utf-8")
    assert readme.count("\n") < 250
    for language in ("python", "sh"):
        shown = [b for b in blocks(readme, language) if "git clone" not in b]
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
    readme, guide = (" ".join(p.split()) for p in (README.read_text("utf-8"), PAGE))
    examples = (ROOT / "examples" / "README.md").read_text(encoding="utf-8")
    (own,) = re.findall(r'URL = "http://127.0.0.1:(\d+)"  # your partner', page("sink"))
    assert own not in taken
    console = f"http://127.0.0.1:{stack['CONSOLE']}/"
    assert console in readme
    assert console in guide
    assert set(re.findall(r"127\.0\.0\.1:(80\d\d)", examples)) == {own}
