"""The programs of `examples/` do what their README says, as processes of their own."""

from __future__ import annotations

import os
import re
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import requests
from support.programs import ran
from support.waiting import AT_LAST, PATIENT

from participants.processes import Process, free_ports, stopping
from tracing_2pc.testing import Collector, span_tree

EXAMPLES = Path(__file__).parents[2] / "examples"
_, OUTPUT, TREE = re.findall(
    r"^```\w*\n(.*?)^```", (EXAMPLES / "README.md").read_text(), re.M | re.S
)


@pytest.fixture
def collector() -> Iterator[Collector]:
    with Collector() as made:
        yield made


def environment(collector: Collector, name: str) -> dict[str, str]:
    return {
        **os.environ,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.endpoint,
        "OTEL_SERVICE_NAME": name,
        "OTEL_BSP_SCHEDULE_DELAY": "100",
        "OTEL_EXPORTER_OTLP_TIMEOUT": f"{PATIENT:g}",
    }


@pytest.fixture
def partner(collector, tmp_path) -> Iterator[str]:
    """The service, started by the command of the README."""
    (port,) = free_ports(1)
    url = f"http://127.0.0.1:{port}"
    command = [sys.executable, str(EXAMPLES / "partner_service.py"), str(port)]
    told = environment(collector, "partner")
    service = Process("partner", command, tmp_path / "output", told)
    with stopping(service):
        service.start()
        service.until_answers(f"{url}/orders", AT_LAST)
        yield url


def written(partner: str, told: dict[str, str]) -> tuple[str, str]:
    """Run the example's job; return what it says, and its errors."""
    job = [sys.executable, EXAMPLES / "partner_sink.py", partner]
    done = ran(job, env=told, timeout=AT_LAST)
    return done.stdout, done.stderr


def traces(spans: list[dict[str, Any]]) -> list[list[dict[str, Any]]]:
    by_id = defaultdict(list)
    for span in spans:
        by_id[span["trace_id"]].append(span)
    return sorted(by_id.values(), key=lambda trace: min(s["start"] for s in trace))


def test_a_sink_of_ones_own_is_in_one_trace_with_its_partner(collector, partner):
    """Nothing of ours at the partner, and no coordinator: the decorator is enough."""
    assert written(partner, environment(collector, "job")) == (OUTPUT, "")
    first, second, third = traces(
        collector.wait_for(lambda spans: len(spans) >= 24, AT_LAST)
    )
    committed = TREE.splitlines()
    rolled_back = TREE.replace("PartnerSink.commit", "PartnerSink.abort")
    rolled_back = rolled_back.replace("POST /commit", "POST /rollback")
    seen = [span_tree(trace) for trace in (first, second, third)]
    assert seen == [committed, rolled_back.splitlines(), committed]
    (refused,) = [s for s in second if s["name"] == "PartnerSink.pre_commit"]
    assert refused["attributes"]["error.type"] == "HTTPError"
    (counted,) = [s for s in first if s["name"] == "PartnerSink.invoke"]
    assert counted["attributes"]["tpc.rows"] == 3
    kept = requests.get(f"{partner}/orders", timeout=AT_LAST).json()
    assert (kept["prepared"], kept["orders"].keys()) == ({}, {"orders-0", "orders-2"})


def test_without_a_collector_the_example_just_works(partner):
    """No variable, no trace, and nothing in what is sent that was not there before."""
    quiet = {k: v for k, v in os.environ.items() if not k.startswith("OTEL_")}
    assert written(partner, quiet) == (OUTPUT, "")
