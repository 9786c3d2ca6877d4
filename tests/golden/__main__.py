"""Write log, journals and inbox with one of each kind, and the wire's answers.

    PYTHONPATH=tests:. python -m golden tests/golden/0.1.0

`orders.0.1` is committed, `orders.1.1` aborted, `orders.1.2` committed, `orders.2.1`
decided commit and prepared everywhere: the driver was killed before it told anybody.
The notifier's partner has refused the row of `orders.0.1` and not yet taken that of
`orders.1.2`. Of two events in the inbox its reader has committed one. `postgresql.sql`
has all of it in one database.
"""

from __future__ import annotations

import contextlib
import json
import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
from support.postgres import postgresql
from support.waiting import until

from bench.postgresql import programs
from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.core.model import BranchContext, BranchId
from tracing_2pc.core.states import Decision
from tracing_2pc.inbox.event import NewEvent
from tracing_2pc.inbox.inbox import Inbox
from tracing_2pc.outbox import Outbox
from tracing_2pc.outbox.partner import PartnerAnswer
from tracing_2pc.outbox.requests import Request
from tracing_2pc.participant import TaggedRows
from tracing_2pc.sinks.base import write_branch
from tracing_2pc.sinks.job import Job
from tracing_2pc.store import open_log
from tracing_2pc.testing import served
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


class Refusing:
    """A partner that refuses `orders.0.1`, and is away for all others."""

    checks, request, bulk, longest = False, None, 1, 1.0

    def check(self, records: Sequence[str]) -> None:
        """Take any."""

    def send(self, requests: Sequence[Request]) -> Sequence[PartnerAnswer]:
        """Answer one."""
        (request,) = requests
        is_first = request.transaction.batch == 0
        code, body = (422, "no such card") if is_first else (503, "")
        return [PartnerAnswer(code, is_refused=is_first, body=body)]


def write(target: Path) -> None:
    """Write the files into an empty folder."""
    target.mkdir()
    with tempfile.TemporaryDirectory() as name, postgresql() as url:
        os.chdir(name)
        answers = _write_databases(lambda file: f"sqlite:///{file}.db")
        (target / "answers.json").write_text(json.dumps(answers, indent=1) + "\n")
        for file in ("log", "ledger", "notifier", "inbox"):
            with contextlib.closing(sqlite3.connect(f"{file}.db")) as database:
                dump = "\n".join(database.iterdump())
            (target / f"{file}.sql").write_text(f"{dump}\n", encoding="utf-8")
        _write_databases(lambda _: url)
        command = [programs() / "pg_dump", "--inserts", "--no-owner", url]
        dump = subprocess.run(command, check=True, text=True, stdout=-1).stdout
        # Lines that begin with a backslash are for psql alone.
        lines = [n for n in dump.splitlines() if n and not n.startswith(("--", "\\"))]
        text = "\n".join(lines) + "\n"
        (target / "postgresql.sql").write_text(text, encoding="utf-8")


ANSWERED = ("0.1", "1.1", "1.2", "2.1")


def _write_databases(url: Callable[[str], str]) -> dict[str, Any]:
    """Write what a pipeline leaves when its driver is killed; return what is said."""
    rows, outbox = (
        TaggedRows(url("ledger"), table="orders"),
        Outbox(url("notifier"), Refusing()),
    )
    with served(rows, "ledger") as ledger, served(outbox, "notifier") as notifier:
        participants = {"ledger": ledger, "notifier": notifier}
        _write_transactions(participants, Settings(log=url("log")))
        until(lambda: len(outbox.quarantined()) == 1)
        answers = {f"/transactions/orders.{n}": _ask(ledger, n) for n in ANSWERED}
        answers["/transactions"] = _get(f"{ledger}/transactions")
    with contextlib.closing(Inbox(url("inbox"))) as inbox:
        inbox.begin("orders")
        inbox.store("shop", [NewEvent(f"e{n}", f'{{"id": {n}}}') for n in (1, 2)])
        inbox.confirm("orders", inbox.offset_at(inbox.start(), 1))
    return answers


def _write_transactions(participants: dict[str, str], settings: Settings) -> None:
    sink = ParticipantSink(participants, token=None)
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
