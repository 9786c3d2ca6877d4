"""The files and commands of the page on getting started are run, in an empty folder."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from manual import ROOT, block, blocks, page
from support.following import Reader
from support.spark import serving
from support.tracing import span_tree
from support.waiting import until

from participants.processes import answers, free_ports

PAGE = page("getting-started")


PORTS = "8081", "8082", "8083"


@pytest.fixture
def reader(tmp_path) -> Iterator[Reader]:
    ports = dict(zip(PORTS, map(str, free_ports(3)), strict=True))
    reader = Reader(tmp_path, PAGE, ports)
    yield reader
    reader.stop()


@pytest.mark.nightly
@pytest.mark.spark
def test_a_service_of_one_s_own_from_an_empty_folder(reader):
    """Three files and the commands beside them: each order is in both services and in a
    file, once, although the ledger is killed."""

    def is_ready(port: str) -> bool:
        return answers(reader.typed(f"http://127.0.0.1:{port}/health/ready"))

    def look() -> str:
        return reader.follows("SELECT * FROM orders")

    reader.follows("tracing-2pc init")
    reader.follows("gunicorn notifier")
    until(lambda: all(map(is_ready, PORTS)), tell=lambda _: reader.printed())
    reader.follows("mkdir -p in")
    reader.sees(r"ready: ", r"committed: .*batch=0 ")
    until(look, shown_everywhere(1), tell=lambda _: reader.printed())
    reader.follows("kill -9 %2")
    reader.sees(r"no vote yet")
    assert "7.5" not in look()
    (again,) = [b for b in blocks(reader.text, "sh") if b.startswith("gunicorn")]
    reader.types(again)
    reader.sees(r"committed: .*batch=1 ")
    until(look, shown_everywhere(2), tell=lambda _: reader.printed())
    assert "tpc.finish" in reader.follows("tracing-2pc trace orders.1")
    assert re.search(r"^\[4\].*python job\.py", reader.types("jobs"), re.M)


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
