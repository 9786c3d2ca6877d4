"""A world without I/O for the protocol: a log, participants that can fail, a clock."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import NoReturn

import pytest

from tracing_2pc.core.errors import (
    CommitPendingError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import (
    BranchId,
    Receipt,
    TransactionId,
    TransactionRecord,
    branch_receipts,
)
from tracing_2pc.core.ports import DecisionLog
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Refusal, TransactionState, Vote
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


class FakeClock:
    """Time passes only by sleeping."""

    def __init__(self) -> None:
        self.time = 1_000_000.0
        self.slept: list[float] = []
        self.meanwhile: Callable[[], object] = bool
        """What happens while it sleeps."""

    def now(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.time += seconds
        self.meanwhile()


@dataclasses.dataclass
class FakeParticipant:
    """Keeps what was prepared and what became of it; `silent` tries get no answer.

    With `after` the answer is lost after the work was done.
    """

    name: str
    silent: int = 0
    after: bool = False
    refusal: tuple[Refusal, str] | None = None
    prepared: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    committed: dict[str, set[str]] = dataclasses.field(default_factory=dict)
    aborted: set[str] = dataclasses.field(default_factory=set)
    heard: list[str] = dataclasses.field(default_factory=list)
    forgotten_by_application: list[int | None] = dataclasses.field(default_factory=list)

    def prepare(self, record: TransactionRecord, branch: BranchId) -> None:
        self.prepared.setdefault(str(record.id), set()).add(str(branch))

    def commit(self, record: TransactionRecord) -> None:
        def work() -> None:
            named = {str(r.branch) for r in record.chosen(self.name)}
            held = self.prepared.pop(str(record.id), set())
            done = self.committed.setdefault(str(record.id), named)
            assert named <= held | done, "commit of something never prepared"

        self._answer("commit", record, work)

    def abort(self, record: TransactionRecord) -> None:
        def work() -> None:
            assert str(record.id) not in self.committed, "abort after commit"
            self.prepared.pop(str(record.id), None)
            self.aborted.add(str(record.id))

        self._answer("abort", record, work)

    def _answer(
        self, verb: str, record: TransactionRecord, work: Callable[[], None]
    ) -> None:
        self.heard.append(f"{verb} {record.id}")
        self.forgotten_by_application.append(record.forgotten_through)
        if self.refusal is not None:
            refusal, state = self.refusal
            raise ParticipantRefusedError("no", refusal=refusal, state=state)
        if self.silent > 0:
            self.silent -= 1
            if self.after:
                work()
            raise ParticipantUnavailableError("lost")
        work()


class World:
    """One application, its log and its participants, on a clock of its own."""

    def __init__(self, log: DecisionLog, clock: FakeClock, **settings: object) -> None:
        self.log = log
        self.clock = clock
        self.settings = Settings(**settings)  # type: ignore[arg-type]
        self.a = FakeParticipant("a")
        self.b = FakeParticipant("b")
        self.stopped = False
        self.wrote: list[str] = []
        self.cancelled: list[str] = []

    @property
    def participants(self) -> dict[str, FakeParticipant]:
        return {"a": self.a, "b": self.b}

    def retry(self) -> RetryPolicy:
        return RetryPolicy(
            self.clock, inline_tries=3, stopping=lambda: self.stopped, uniform=max
        )

    def delivery(self, *names: str) -> Delivery:
        known = {n: self.participants[n] for n in names or ("a", "b")}
        tracing = OpenTelemetryTracing()
        return Delivery(self.log, known, tracing=tracing, retry=self.retry())

    def coordinator(self) -> Coordinator:
        return Coordinator(
            "orders",
            ("a", "b"),
            self.log,
            self.delivery(),
            OpenTelemetryTracing(),
            self.clock,
            self.settings,
            self.retry(),
        )

    def write(self, record: TransactionRecord) -> Sequence[Receipt]:
        self.wrote.append(str(record.id))
        receipts: list[Receipt] = []
        for partition in range(2):
            branch = BranchId(partition, 10 * record.id.attempt + partition)
            for participant in self.participants.values():
                participant.prepare(record, branch)
            votes = {"a": Vote.COMMIT, "b": Vote.COMMIT}
            receipts += branch_receipts(branch, 5, "sha-256=:x:", votes)
        return receipts

    def write_for_a(self, record: TransactionRecord) -> Sequence[Receipt]:
        """Write a batch whose rows are all for `a`."""
        branch = BranchId(0, 10)
        self.a.prepare(record, branch)
        votes = {"a": Vote.COMMIT, "b": Vote.READ_ONLY}
        return list(branch_receipts(branch, 5, "sha-256=:x:", votes))

    def run_batch(
        self,
        batch: int,
        run: str = "run-1",
        write: Callable[[TransactionRecord], Sequence[Receipt]] | None = None,
    ) -> bool:
        return self.coordinator().apply(
            batch,
            run=run,
            query="query",
            write=write or self.write,
            cancel=lambda r: self.cancelled.append(str(r.id)),
        )

    def leave_committing(self, batch: int = 0, silent: Sequence[str] = ("b",)) -> None:
        """Commit a batch, and give up on those who do not answer; later they do."""
        self.settings = dataclasses.replace(self.settings, on_pending="fail")
        for name in silent:
            self.participants[name].silent = 100
        with pytest.raises(CommitPendingError, match="tracing-2pc recover"):
            self.run_batch(batch)
        for name in silent:
            self.participants[name].silent = 0

    def leave_active(self) -> None:
        """Let a driver die in its tasks."""

        def die(record: TransactionRecord) -> Sequence[Receipt]:
            self.write(record)
            raise DriverDiedError

        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(Coordinator, "fail", lambda *_: None)
            with pytest.raises(DriverDiedError):
                self.run_batch(0, write=die)

    def state(self, id_: TransactionId | str) -> TransactionState | None:
        record = self.log.read(TransactionId.parse(str(id_)))
        return record and record.state

    def in_doubt(self) -> int:
        return sum(
            len(b) for p in self.participants.values() for b in p.prepared.values()
        )

    def visible(self) -> int:
        return sum(
            len(b) for p in self.participants.values() for b in p.committed.values()
        )


def raising(error: Exception) -> Callable[..., NoReturn]:
    """Return what takes the place of a method that fails."""

    def fail(*_: object, **__: object) -> NoReturn:
        raise error

    return fail


class DriverDiedError(BaseException):
    """Stands for SIGKILL: nothing may be done about it."""
