"""`examples/stock_go`: a participant in Go, of three methods and no Ask, takes part."""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from google.protobuf import descriptor_pb2
from support.branches import committing
from support.participant import select
from support.programs import left_out, ran
from support.texts import texts
from support.waiting import PATIENT, until

from participants.processes import Process, free_ports, stopping
from tracing_2pc import ParticipantSink
from tracing_2pc.core.errors import (
    AbortedError,
    CommitPendingError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import Receipt, TransactionId, TransactionRecord
from tracing_2pc.core.remote_participant import RemoteParticipant, open_participant
from tracing_2pc.core.states import Refusal
from tracing_2pc.grpc import messages
from tracing_2pc.participant import TaggedRows
from tracing_2pc.testing import served, temporary_log
from tracing_2pc.testing.sink_job import SinkJob, Tasks

TEXTS = texts("component")
ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "examples" / "stock_go"
TOKEN = "a-token-of-the-job-0123456789"
BRANCHES = {
    "0.0": [{"item": "nut", "count": 3}, {"item": "bolt", "count": 1}],
    "1.0": [{"item": "nut", "count": 4}],
}
STOCK = {"nut": 7, "bolt": 1}


def test_it_speaks_of_nothing_that_is_not_in_the_file():
    """Its words for methods, votes, states and refusals are those of the messages."""
    program = (FOLDER / "main.go").read_text(encoding="utf-8")
    file = descriptor_pb2.FileDescriptorProto()
    messages.DESCRIPTOR.CopyToProto(file)
    words = {f"{e.name}_{v.name}" for e in file.enum_type for v in e.value}
    assert set(re.findall(r"pb\.(\w+_[A-Z_]+)\b", program)) <= words
    methods = set(re.findall(r"^func \(s \*server\) ([A-Z]\w+)\(", program, re.M))
    assert methods == {"Prepare", "Commit", "Rollback"}


@pytest.fixture(scope="module")
def program(tmp_path_factory) -> Path:
    """It, built as its README says."""
    go = ran([ROOT / "tools" / "go"])
    if go.returncode:
        left_out(f"there is no Go: {go.stderr.strip()}")
    folder: Path = tmp_path_factory.mktemp("stock")
    environment = os.environ | {"GO": go.stdout.strip(), "PYTHON": sys.executable}
    built = ran([FOLDER / "build", folder], env=environment)
    if "dial tcp" in built.stderr:
        left_out("Go's modules cannot be had")
    assert built.returncode == 0, built.stderr
    return folder / "stock"


class Stock(Process):
    """It, with its journal."""

    def __init__(self, program: Path, folder: Path) -> None:
        (port,) = free_ports(1)
        self._show = [str(program), "-journal", str(folder / "journal")]
        command = [*self._show, "-listen", f"127.0.0.1:{port}"]
        super().__init__("stock", command, folder / "log", {"STOCK_TOKEN": TOKEN})
        self.url = f"grpc://127.0.0.1:{port}"

    def start(self, **environment: str | None) -> None:
        super().start(**environment)
        why = TEXTS["no Ask"]  # it listens, and says this
        until(lambda: why in str(self.asked().describe().unreachable))

    def asked(self) -> RemoteParticipant:
        return open_participant("stock", self.url, "env:TPC_TOKEN", PATIENT)

    def shown(self) -> dict[str, int]:
        """What is committed, read from its file."""
        shown: dict[str, int] = json.loads(ran([*self._show, "-show"]).stdout)
        return shown


@pytest.fixture
def stock(program, tmp_path, monkeypatch) -> Iterator[Stock]:
    monkeypatch.setenv("TPC_TOKEN", TOKEN)
    made = Stock(program, tmp_path)
    with stopping(made):
        made.start()
        yield made


@pytest.fixture
def ledger(tmp_path) -> TaggedRows:
    return TaggedRows(f"sqlite:///{tmp_path}/ledger.db", table="stock")


def totals(ledger: TaggedRows) -> dict[str, int]:
    sums = "SELECT item, sum(count) FROM stock GROUP BY item"
    return dict(select(ledger, sums))


@pytest.mark.nightly
@pytest.mark.parametrize("moment", ["never", "in doubt", "committed"])
def test_it_takes_part_beside_a_participant_by_http(stock, ledger, moment):
    """Also killed while it is in doubt, or when it has committed, and started again."""

    def write(tasks: Tasks) -> Sequence[Receipt]:
        receipts = tasks.write_all(BRANCHES)
        if moment == "in doubt":
            stock.kill()
        return receipts

    log = temporary_log()
    with served(ledger, "ledger") as url, contextlib.closing(log):
        sink = ParticipantSink({"ledger": url, "stock": stock.url})
        job = SinkJob(sink, log, "orders")
        if moment == "in doubt":
            with pytest.raises(CommitPendingError):
                job.apply(0, write)
            assert stock.shown() == {}
            stock.start()
        elif moment == "committed":
            assert job.apply(0, write)
            stock.kill()
            stock.start()
        else:
            assert job.apply(0, write)
        # The same batch again, as a driver that was started again: nothing is doubled.
        assert job.apply(0, lambda tasks: tasks.write_all(BRANCHES)) is False
        assert log.unfinished() == []
        assert (stock.shown(), totals(ledger)) == (STOCK, STOCK)
        # What it refuses is nowhere.
        with pytest.raises((AbortedError, ParticipantRefusedError), match="negative"):
            job.apply(
                1, lambda tasks: tasks.write("0.0", [{"item": "nut", "count": -1}])
            )
        assert (stock.shown(), totals(ledger)) == (STOCK, STOCK)


def record(transaction: TransactionId, *receipts: Receipt) -> TransactionRecord:
    return committing(transaction, *receipts, participants=("stock",))


@pytest.mark.nightly
def test_its_answers_are_exact(stock, monkeypatch):
    """Unknown, contradicted, repeated, for another, and without its token."""
    asked, first = stock.asked(), TransactionId("orders", 0, 1)
    asked.abort(record(first))
    asked.abort(record(first))
    with pytest.raises(ParticipantRefusedError) as refused:
        asked.commit(record(first))
    assert (refused.value.refusal, refused.value.state) == ("conflict", "aborted")
    second = TransactionId("orders", 1, 1)
    asked.commit(record(second))
    asked.commit(record(second))
    with pytest.raises(ParticipantRefusedError) as refused:
        asked.abort(record(second))
    assert (refused.value.refusal, refused.value.state) == ("conflict", "committed")
    with pytest.raises(ParticipantRefusedError) as refused:
        asked.commit(record(TransactionId("orders", 1, 2)))
    assert refused.value.refusal is Refusal.UNKNOWN
    other = open_participant("other", stock.url, "env:TPC_TOKEN", PATIENT)
    with pytest.raises(ParticipantUnavailableError, match="participant 'stock'"):
        other.commit(record(second))
    monkeypatch.setenv("TPC_TOKEN", "another-token-0123456789")
    with pytest.raises(ParticipantUnavailableError, match="set TPC_TOKEN to a token"):
        asked.commit(record(second))
