"""The sinks of the manual and the examples keep the promises of a sink."""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import requests
from manual import ROOT, block, blocks, page
from support.programs import ran
from support.served import served
from support.waiting import AT_LAST, PATIENT
from werkzeug.serving import make_server

from tracing_2pc.testing import SinkContract
from tracing_2pc.testing.sink_contract import KILLS

GUIDE = page("writing-a-sink")
COMMAND = "python -m pytest -q test_shop_sink.py"


def follow(folder: Path, sink: str, *options: str) -> subprocess.CompletedProcess[str]:
    """Do what the guide says in an empty folder, with this sink."""
    (folder / "shop_sink.py").write_text(sink)
    test = block(GUIDE, "python", "class TestShopSink")
    (folder / "test_shop_sink.py").write_text(test)
    assert f"{COMMAND}\n" in blocks(GUIDE, "sh")
    options = (*options, f"--basetemp={folder}/base", "-p", "no:cacheprovider")
    told = {**os.environ, "PYTHONPATH": ""}
    command = [sys.executable, *COMMAND.split()[1:], *options]
    return ran(command, cwd=folder, env=told, timeout=AT_LAST)


def test_the_guide_leads_to_a_sink_that_passes(tmp_path):
    """Its two files, and its command."""
    sink = block(GUIDE, "python", "class ShopSink")
    done = follow(tmp_path, sink, "-k", "not killed")
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ passed, 8 deselected in", done.stdout, re.M), done.stdout


@pytest.mark.ci
def test_the_guides_sink_outlives_every_kill(tmp_path):
    """All tests of the kit pass, and none is skipped."""
    done = follow(tmp_path, block(GUIDE, "python", "class ShopSink"))
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ passed in", done.stdout, re.M), done.stdout


def test_the_guide_shows_the_failure_as_it_is(tmp_path):
    """Without the two lines that it names, the line that it shows."""
    sink = block(GUIDE, "python", "class ShopSink")
    looks = re.compile(r'( +if shop\.execute\(f"SELECT 1 FROM orders.*\n.*\n)')
    assert len(looks.findall(sink)) == 1
    done = follow(tmp_path, looks.sub("", sink), "-k", "commit_may_come_again")
    (shown,) = blocks(GUIDE, "")
    seen = re.sub(r"contract-[0-9a-f]{6}", "contract-3f9a2c", done.stdout)
    assert shown.splitlines()[1] in seen.splitlines(), done.stdout


@pytest.fixture(scope="module")
def partner() -> Iterator[tuple[Any, str]]:
    """The partner of `examples/`, in this process, and its URL."""
    path = ROOT / "examples" / "partner_service.py"
    spec = importlib.util.spec_from_file_location("partner_service", path)
    assert spec
    assert spec.loader
    service = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(service)
    server = make_server("127.0.0.1", 0, service.app, threaded=True)
    with served(server) as running:
        yield service, f"http://127.0.0.1:{running.server_port}"


class OfThePartner(SinkContract):
    """A sink that writes to it."""

    # The partner has no call that finds branches by their transaction.
    test_it_has_every_phase = None  # type: ignore[assignment]

    @pytest.fixture
    def where(self, partner) -> str:
        service, url = partner
        service.prepared.clear()
        service.orders.clear()
        return url

    def visible(self, where: str) -> Iterable[Mapping[str, Any]]:
        orders = requests.get(f"{where}/orders", timeout=PATIENT).json()["orders"]
        return [row for rows in orders.values() for row in rows]


class TestSinkOfTheManual(OfThePartner):
    """The one at the top of the page."""

    @pytest.mark.ci
    @pytest.mark.parametrize("moment", KILLS)
    def test_a_process_is_killed(self, world, tmp_path, moment):
        super().test_a_process_is_killed(world, tmp_path, moment)

    def make_sink(self, where: str) -> Any:
        code = block(page("sink"), "python", "class PartnerSink")
        space = {"__name__": "sink_of_the_manual"}
        exec(re.sub(r"http://127\.0\.0\.1:8084", where, code), space)
        return space["PartnerSink"]()


class TestSinkOfTheExamples(OfThePartner):
    """The one that a plain loop drives; here a coordinator does."""

    test_a_process_is_killed = None  # type: ignore[assignment] - as the manual's

    def make_sink(self, where: str) -> Any:
        path = ROOT / "examples" / "partner_sink.py"
        space = {"__name__": "partner_sink"}
        exec(path.read_text(), space)

        class ByContext(space["PartnerSink"]):  # type: ignore[misc]
            def begin(self, context: Any) -> Any:
                return super().begin(f"{context.transaction_id}-{context.branch}")

            def invoke(self, handle: Any, record: Any) -> None:
                super().invoke(handle, record["amount"])

        return ByContext(where)

    def record(self, n: int) -> Mapping[str, Any]:
        return {"amount": 1.5 * n}
