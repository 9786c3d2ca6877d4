"""PySpark's own writers, decorated, in real Spark: one trace a batch."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from support.stream_world import NEEDS_ARROW_WRITERS
from support.tracing import read_trace_file, span_tree
from support.waiting import AT_LAST

pytestmark = [NEEDS_ARROW_WRITERS, pytest.mark.spark]
HERE = Path(__file__).parent


@pytest.fixture(scope="module")
def lines(tmp_path_factory) -> list[dict[str, Any]]:
    """What all processes of the job have exported by the time that it has ended."""
    folder = tmp_path_factory.mktemp("writers")
    search = os.pathsep.join([str(HERE.parent), str(HERE.parents[1])])
    with (folder / "output").open("wb") as output:
        done = subprocess.run(
            [sys.executable, HERE / "writer_job.py", folder],
            env={
                **os.environ,
                "PYTHONPATH": search,
                "TPC_TRACE_FILE": str(folder / "trace"),
            },
            stdout=output,
            stderr=output,
            timeout=AT_LAST,
            check=False,
        )
    assert done.returncode == 0, (folder / "output").read_text()[-3000:]
    return read_trace_file(folder / "trace")


def of_batch(lines: list[dict[str, Any]], writer: str, batch: int) -> list[Any]:
    """Return the spans of a batch, without a second batch that was only begun."""
    return [
        line
        for line in lines
        if line["name"].startswith(f"{writer}.")
        and line["attributes"]["tpc.batch"] == batch
    ]


@pytest.mark.parametrize("batch", [0, 1])
@pytest.mark.parametrize("writer", ["Rows", "Batches"])
def test_a_batch_is_one_trace(lines, writer, batch):
    """Tasks and commit run in processes of their own, which leave without a word."""
    spans = of_batch(lines, writer, batch)
    assert span_tree(spans) == [
        f"{writer}.batch",
        f"  {writer}.write",
        f"  {writer}.write",
        f"  {writer}.commit",
    ]
    assert len({span["trace_id"] for span in spans}) == 1
    writes = [s["attributes"] for s in spans if s["name"].endswith(".write")]
    assert [w["tpc.rows"] for w in writes] == [5, 5]
    assert {w["tpc.branch"].split(".")[0] for w in writes} == {"0", "1"}
    assert len({s["attributes"]["tpc.run"] for s in spans}) == 1


def test_batches_are_traces_of_their_own(lines):
    traces = {of_batch(lines, "Rows", batch)[0]["trace_id"] for batch in (0, 1)}
    assert len(traces) == 2


def test_a_batch_that_fails_has_its_root(lines):
    """One task has written; the other fails as often as Spark lets it, then abort."""
    spans = of_batch(lines, "Failing", 0)
    tree = span_tree(spans)
    assert tree[0] == "Failing.batch"
    assert {line for line in tree if line.startswith("  ")} == {
        "  Failing.write",
        "  Failing.abort",
    }
    known = {span["span_id"] for span in spans}
    assert {s["parent_id"] for s in spans if s["parent_id"]} <= known
    assert len({span["trace_id"] for span in spans}) == 1
    failed = [s for s in spans if "error.type" in s["attributes"]]
    assert [s["attributes"]["tpc.rows"] for s in failed] == [1, 1]
    assert "customer" not in repr(spans)


def test_no_span_of_a_finished_batch_lacks_its_parent(lines):
    """A batch that stop() has cut off is not finished; Spark writes it again."""
    known = {line["span_id"] for line in lines} | {None}
    ended = {s["trace_id"] for s in lines if not s["name"].endswith(".write")}
    lacking = [s for s in lines if s["parent_id"] not in known]
    assert len(ended) >= 5
    assert [s["name"] for s in lacking if s["trace_id"] in ended] == []
