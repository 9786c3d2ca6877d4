"""Participants as processes, by each transport: killed, frozen, forked, and large."""

from __future__ import annotations

import hashlib
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.branches import commit_of, prepare_at
from support.nats import TOKEN
from support.programs import descendants, freeze, in_child, ran
from support.telemetry import PATH
from support.transports import OTHERS, Served
from support.waiting import AT_LAST, AT_ONCE, PATIENT

from participants.processes import stopping
from tracing_2pc.core.content import write_digest
from tracing_2pc.core.errors import ParticipantUnavailableError
from tracing_2pc.core.model import (
    BranchId,
    TransactionId,
)
from tracing_2pc.core.remote_participant import RemoteParticipant, open_participant
from tracing_2pc.core.states import Vote

ID, BRANCH = TransactionId("orders", 7, 1), BranchId(0, 1)

every_transport = pytest.mark.parametrize(
    "transport", [*OTHERS, pytest.param("http", marks=pytest.mark.ci)]
)


class Ledger(Served):
    """With one table, and one process by HTTP: a failpoint kills all of it."""

    def __init__(self, transport: str, folder: Path) -> None:
        super().__init__(transport, f"sqlite:///{folder}/ledger.db?table=t", folder)
        self.fired = folder / "fired"

    def start(self, **environment: str | None) -> None:
        super().start(WEB_CONCURRENCY="1", **environment)

    def armed(self, point: str) -> dict[str, str]:
        return {"TPC_FAILPOINT": point, "TPC_FAILPOINT_FILE": str(self.fired)}


@pytest.fixture(autouse=True)
def _token(monkeypatch) -> None:
    monkeypatch.setenv("TPC_TOKEN", TOKEN)


@pytest.fixture
def ledger(transport, tmp_path) -> Iterator[Ledger]:
    made = Ledger(transport, tmp_path)
    with stopping(made):
        yield made


def prepare(participant: RemoteParticipant) -> Vote:
    return prepare_at(participant, ID)


def commit(participant: RemoteParticipant) -> None:
    participant.commit(commit_of(ID, "ledger"))


POINTS: dict[str, Callable[[RemoteParticipant], Any]] = {
    "participant.before_prepare": prepare,
    "participant.after_prepare": prepare,
    "participant.before_commit": commit,
    "participant.after_commit": commit,
}


@every_transport
@pytest.mark.parametrize(
    "point",
    [
        pytest.param(p, marks=() if p.endswith("after_commit") else pytest.mark.ci)
        for p in POINTS
    ],
)
def test_killed_and_started_again_it_does_it_once(ledger, point):
    """Nobody knows what happened; the same request is answered after the restart."""
    ledger.start(**ledger.armed(point))
    asked = ledger.asked()
    if POINTS[point] is commit:
        assert prepare(asked) is Vote.COMMIT
    with pytest.raises(ParticipantUnavailableError, match="may or may not"):
        POINTS[point](asked)
    assert ledger.wait(AT_LAST) == -signal.SIGKILL
    ledger.start()
    POINTS[point](asked)
    (branch,) = asked.show(ID).branches
    assert branch.state == ("committed" if POINTS[point] is commit else "prepared")


@every_transport
def test_frozen_it_is_late_and_thawed_it_answers(ledger):
    """SIGSTOP in the middle of a job: the time runs out, and nothing else happens."""
    ledger.start()
    assert prepare(ledger.asked()) is Vote.COMMIT
    hasty = ledger.asked(AT_ONCE)
    try:
        for process in [ledger.pid, *descendants(ledger.pid)]:
            freeze(process)
        with pytest.raises(ParticipantUnavailableError, match="may or may not"):
            commit(hasty)
    finally:
        os.killpg(ledger.pid, signal.SIGCONT)
    commit(ledger.asked())
    assert ledger.asked().show(ID).state == "committed"


@every_transport
def test_at_sigterm_it_ends_cleanly(ledger):
    """With 0, and its address is free for the next one."""
    ledger.start()
    assert prepare(ledger.asked()) is Vote.COMMIT
    assert ledger.stop(PATIENT) == 0
    ledger.start()
    assert len(ledger.asked().prepared().branches) == 1


@every_transport
@pytest.mark.filterwarnings("ignore:.*fork:DeprecationWarning")
def test_a_forked_child_has_connections_of_its_own(ledger, tmp_path):
    """As Spark's workers, and those of a parent that has used its own already.

    The parent's is still good afterwards. In a child of a child it is the same.
    """
    ledger.start()
    assert main_says("fork", ledger.url) == f"{'0 ' * 5}parent 0 " * 2


def main_says(*words: str) -> str:
    """Run the main program below; return what it says."""
    program = [sys.executable, __file__, *words]
    done = ran(program, env={**os.environ, "PYTHONPATH": PATH}, timeout=AT_LAST)
    assert done.returncode == 0, done.stderr
    return done.stdout


def fork(url: str) -> None:
    """Fork children that ask, before and after this process has asked."""
    participant = open_participant("ledger", url, "env:TPC_TOKEN", PATIENT)

    def ask() -> int:
        return 0 if participant.prepared().branches == () else 1

    def grandchild() -> int:
        return in_child(ask) + ask()

    for _ in range(2):
        for _ in range(4):
            sys.stdout.write(f"{in_child(ask)} ")
        sys.stdout.write(f"{in_child(grandchild)} parent {ask()} ")


@every_transport
@pytest.mark.nightly
def test_memory_does_not_grow_with_a_body(ledger):
    """100 MB take as much as 10 MB, in the client and in the service."""
    ledger.start()
    peaks = []
    for megabytes in (10, 100):
        client = int(main_says("upload", ledger.url, str(megabytes)))
        service = max(map(_peak, [ledger.pid, *descendants(ledger.pid)]))
        peaks.append((client, service))
    (client, service), (more, most) = peaks
    assert more < client + (30 << 10)
    assert most < service + (50 << 10)


def _peak(pid: int) -> int:
    """Return the most memory that a process has had, in KiB."""
    told = Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    (line,) = (line for line in told.splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1])


def upload(url: str, megabytes: str) -> None:
    """Prepare a branch of so many rows of a megabyte; tell the most memory."""
    rows, sha256 = int(megabytes), hashlib.sha256()
    batch = pa.record_batch([["x" * (1 << 20)]], ["text"])
    with tempfile.TemporaryFile() as file:
        with pa.ipc.new_stream(file, batch.schema) as writer:
            for _ in range(rows):
                writer.write_batch(batch)
        length = file.tell()
        file.seek(0)
        for piece in iter(lambda: file.read(1 << 20), b""):
            sha256.update(piece)
        file.seek(0)
        vote = open_participant("ledger", url, "env:TPC_TOKEN", PATIENT).prepare(
            TransactionId("orders", rows, 1), BRANCH, lambda: file,
            rows=rows, length=length, digest=write_digest(sha256.digest()),
        )  # fmt: skip
    assert vote is Vote.COMMIT
    sys.stdout.write(str(_peak(os.getpid())))


if __name__ == "__main__":
    {"fork": fork, "upload": upload}[sys.argv[1]](*sys.argv[2:])
