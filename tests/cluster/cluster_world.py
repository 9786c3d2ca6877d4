"""What a query on the cluster works on, and what is seen of it afterwards."""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from pathlib import Path
from typing import Any

from cluster_driver import Driver
from cluster_job import Job
from flask import request
from standalone import Cluster
from support.spark import write_numbers
from support.stream_world import Kept
from support.waiting import until

from participants.processes import Process
from tracing_2pc.testing import read_trace_file

HERE = Path(__file__).parent
PYTHON = (HERE, HERE.parent)


@dataclasses.dataclass
class World(Kept):
    """Participants a and b in threads of this process, a source, and a log."""

    folder: Path
    log_url: str
    urls: list[str] = dataclasses.field(default_factory=list)
    statuses: list[tuple[str, int]] = dataclasses.field(default_factory=list)
    """Path and status of each request that was answered."""

    def job(self, application: str, holds: str = "") -> Job:
        return Job(str(self.folder), application, self.log_url, *self.urls, holds)

    def note(self, answer: Any) -> Any:
        """Keep what is answered to the request of this moment."""
        self.statuses.append((request.path, answer.status_code))
        return answer

    def write(self, batches: range) -> None:
        write_numbers(self.folder, batches)

    def process(
        self, name: str, cluster: Cluster, job: Job, program: str = "cluster_job.py"
    ) -> Process:
        """Return a driver of its own for one job, by a program of this folder."""
        told = json.dumps(dataclasses.asdict(job))
        command = [sys.executable, str(HERE / program), cluster.url, told]
        path = os.pathsep.join(map(str, PYTHON))
        log = self.folder / f"{name}.log"
        return Process(name, command, log, {"PYTHONPATH": path})

    def waiting(self) -> int:
        """Return the executor of the task that is held, as soon as one is."""
        file = self.folder / "waiting"
        until(lambda: file.exists() and file.read_text())
        return int(file.read_text())

    def go_on(self) -> None:
        (self.folder / "go-on").touch()

    def prepared(self) -> dict[str, int]:
        """Return each branch that a sink has seen prepared, with its executor."""
        file = self.folder / "prepared"
        lines = file.read_text().splitlines() if file.exists() else []
        pairs = (line.split() for line in lines)
        return {branch: int(executor) for branch, executor in pairs}

    def assert_one_trace(self, driver: Driver, transaction: str) -> None:
        """The spans of driver and tasks are one tree; none lacks its parent."""
        record = self.read(transaction)
        assert record is not None
        until(lambda: driver.traces.exists())

        def look() -> list[Any]:
            spans = read_trace_file(driver.traces)
            return [span for span in spans if span["trace_id"] == record.trace_id]

        spans = until(look, _has_root)
        known = {span["span_id"] for span in spans}
        (root,) = {span["span_id"] for span in spans if not span["parent_id"]}
        assert root in known
        assert [
            s for s in spans if s["parent_id"] and s["parent_id"] not in known
        ] == []
        assert "tpc.branch" in {span["name"] for span in spans}


def _has_root(spans: list[Any]) -> bool:
    return any(not span["parent_id"] for span in spans)
