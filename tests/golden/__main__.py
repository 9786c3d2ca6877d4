"""Write a log and a journal with one transaction of each kind, and the wire's answers.

    PYTHONPATH=tests:. python -m golden tests/golden/0.1.0

`orders.0.1` is committed, `orders.1.1` aborted, `orders.1.2` committed, `orders.2.1`
decided commit and prepared at the ledger: the driver was killed before it told anybody.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import sys
import tempfile
from pathlib import Path
from typing import Any

import pyarrow as pa

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.model import BranchContext, BranchId
from tracing_2pc.core.states import Decision
from tracing_2pc.participant import TaggedRows
from tracing_2pc.sinks.base import write_branch
from tracing_2pc.sinks.job import Job
from tracing_2pc.store import open_log
from tracing_2pc.testing import served
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


def write(target: Path) -> None:
    """Write the files into an empty folder."""
    target.mkdir()
    with tempfile.TemporaryDirectory() as name:
        os.chdir(name)
        rows = TaggedRows("sqlite:///ledger.db", table="orders")
        settings = Settings(log="sqlite:///log.db")
        with served(rows, "ledger") as url:
            _write_transactions(url, settings)
            answers = {f"/transactions/orders.{n}": _ask(url, n) for n in ANSWERED}
            answers["/transactions"] = _get(f"{url}/transactions")
        (target / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")
        for file in ("log", "ledger"):
            with contextlib.closing(sqlite3.connect(f"{file}.db")) as database:
                dump = "\n".join(database.iterdump())
            (target / f"{file}.sql").write_text(f"{dump}\n", encoding="utf-8")


ANSWERED = ("0.1", "1.1", "1.2", "2.1")


def _write_transactions(url: str, settings: Settings) -> None:
    sink = ParticipantSink({"ledger": url}, token=None)
    job = Job.of(sink, "orders", settings)
    with contextlib.closing(open_log(settings.log or "")) as log:
        coordinator = job.coordinator(log, OpenTelemetryTracing(), lambda: False)
        for batch, ends in ((0, "close"), (1, "fail"), (1, "close"), (2, "")):
            record = coordinator.open(batch, "a-run", None).record
            context = BranchContext(
                record.id, BranchId(0, 0), record.participants, record.carrier
            )
            table = pa.RecordBatch.from_pydict({"id": [batch], "amount": [batch + 0.5]})
            receipts = write_branch(job.sink, context, [table])
            if ends == "close":
                coordinator.close(record, receipts)
            elif ends == "fail":
                coordinator.fail(record, RuntimeError("a task failed"))
            else:
                log.decide(record.id, Decision.COMMIT, receipts)


def _ask(url: str, attempt: str) -> Any:
    return _get(f"{url}/transactions/orders.{attempt}")


def _get(url: str) -> Any:
    import urllib3

    answer = urllib3.request("GET", url)
    return {"status": answer.status, "body": json.loads(answer.data)}


if __name__ == "__main__":
    write(Path(sys.argv[1]).resolve())
