"""Tasks that outlive their run: what they prepare is refused, and nothing stays.

A run dies or is replaced on the driver; its tasks may go on for minutes. Here they are
real tasks over HTTP, against each kind of resource, beside a coordinator of the next
run.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest
from fencing_support import APPLICATION, QUICK, Checkpoint, Query, numbers, sink_to
from support.branches import records
from support.kinds import KINDS
from support.participant import Upload, World
from support.spark import ROWS, serving
from support.texts import texts

from tracing_2pc import ParticipantSink
from tracing_2pc.core.errors import ParticipantRefusedError, ParticipantUnavailableError
from tracing_2pc.core.model import Receipt, TransactionRecord
from tracing_2pc.core.ports import Participant
from tracing_2pc.core.states import Refusal
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.store import SqlDecisionLog, open_log

TEXTS = texts("fencing")
OTHER = f"{APPLICATION}.1.2"
"""The attempt at batch 1 that the next run commits."""

TWIN = 7
"""Task attempt of a second task for partition 0, as speculation starts one."""


@dataclasses.dataclass(frozen=True, slots=True)
class Unheard:
    """A participant that no abort reaches: it is sent once, and may be lost."""

    inner: Participant

    @property
    def name(self) -> str:
        return self.inner.name

    def commit(self, record: TransactionRecord) -> None:
        self.inner.commit(record)

    def abort(self, record: TransactionRecord) -> None:
        raise ParticipantUnavailableError("lost on its way")


@dataclasses.dataclass(frozen=True, slots=True)
class AbortsGetLost(Query):
    """A query whose aborts reach nobody."""

    def coordinator(self, participants: Mapping[str, Participant]) -> Coordinator:
        unheard = {name: Unheard(one) for name, one in participants.items()}
        return Query.coordinator(self, unheard)


@dataclasses.dataclass(frozen=True, slots=True)
class Late:
    """Participants a and b of one kind, and a log on which runs replace each other."""

    a: World
    b: World
    log: SqlDecisionLog
    checkpoint: Checkpoint
    sink: ParticipantSink

    def run(self, name: str, kind: type[Query] = Query, keep: float = 60.0) -> Query:
        settings = dataclasses.replace(QUICK, keep_finished=keep)
        return kind(name, self.checkpoint, self.log, self.sink, settings=settings)

    def begun_by(self, older: Query) -> TransactionRecord:
        """Commit batch 0, begin batch 1, and leave it to its tasks."""
        older.apply(0)
        return older.begin(1)

    def in_doubt(self) -> tuple[int, int]:
        return self.a.in_doubt(), self.b.in_doubt()

    def assert_holds(self, batches: int) -> None:
        """Readers see so many batches, once; nothing waits for a decision."""
        assert (self.a.visible(), self.b.visible()) == (ROWS * batches, ROWS * batches)
        assert self.a.listed() == self.b.listed() == []
        assert self.log.unfinished() == []


@pytest.fixture(
    params=["TaggedRows", pytest.param("PreparedTransactions", marks=pytest.mark.ci)]
)
def worlds(request: pytest.FixtureRequest, tmp_path: Path) -> list[World]:
    """Two participants of a kind, each with a database of its own.

    Of each way to hold what is prepared one: every kind answers by the same table.
    """
    if request.param == "PreparedTransactions":
        new = request.getfixturevalue("new_database")
        return [KINDS[request.param](new()) for _ in "ab"]
    return [KINDS[request.param](f"sqlite:///{tmp_path / name}.db") for name in "ab"]


@pytest.fixture
def late(worlds: list[World], tmp_path: Path) -> Iterator[Late]:
    with contextlib.ExitStack() as stack:
        urls = {}
        for name, world in zip("ab", worlds, strict=True):
            world.name = name
            world.resource.open()
            stack.callback(world.resource.close)
            urls[name] = stack.enter_context(serving(world.app))
        log = open_log(f"sqlite:///{tmp_path / 'log.db'}")
        stack.callback(log.close)
        checkpoint = Checkpoint.at(tmp_path / "checkpoint")
        yield Late(*worlds, log, checkpoint, sink_to(**urls))


@contextlib.contextmanager
def refused(refusal: Refusal, says: str) -> Iterator[None]:
    """Expect a participant's definite no, which ends the task."""
    with pytest.raises(ParticipantRefusedError, match=says) as caught:
        yield
    assert caught.value.refusal is refusal


def test_a_late_task_after_the_abort(late: Late) -> None:
    """The next run has begun: its begin has aborted what the older one left."""
    older, newer = late.run("older"), late.run("newer")
    record = late.begun_by(older)
    older.task(record, 0)
    assert late.in_doubt() == (1, 1)
    newer.begin(1)
    assert late.in_doubt() == (0, 0)
    with refused(Refusal.CONFLICT, TEXTS["sealed"].format(state="aborted")):
        older.task(record, 1)
    newer.apply(1)
    late.assert_holds(batches=2)
    with refused(Refusal.CONFLICT, TEXTS["sealed"].format(state="aborted")):
        older.task(record, 0, TWIN)
    late.assert_holds(batches=2)


def test_a_late_task_after_the_commit_of_another_attempt(late: Late) -> None:
    """The abort was lost: the participant goes by what it has committed itself."""
    older = late.run("older")
    record = late.begun_by(older)
    older.task(record, 0)
    late.run("newer", AbortsGetLost).apply(1)
    assert late.in_doubt() == (1, 1)
    with refused(Refusal.CONFLICT, TEXTS["by another"].format(id=OTHER)):
        older.task(record, 1)
    assert late.in_doubt() == (1, 1)
    late.run("newer").apply(2)
    late.assert_holds(batches=3)


def test_a_late_task_after_forgotten_through(late: Late) -> None:
    """All is forgotten but how far it went: at or below that nothing is prepared."""
    older = late.run("older")
    record = late.begun_by(older)
    older.task(record, 0)
    newer = late.run("newer", keep=0.0)
    for batch in (1, 2, 3):
        newer.apply(batch)
    with refused(Refusal.FORGOTTEN, TEXTS["forgotten"].format(batch=1)):
        older.task(record, 1)
    late.assert_holds(batches=4)


OVERTAKEN = {
    # by what, the next run, its batches; then the answer's status, state, `committed`
    "abort": (Query, 1, 409, "aborted", OTHER),
    "commit of another attempt": (AbortsGetLost, 1, 409, "committed", OTHER),
    "forgotten_through": (Query, 3, 410, "forgotten", None),
}


@pytest.mark.parametrize("by", OVERTAKEN)
def test_an_upload_that_is_overtaken_votes_abort(late: Late, by: str) -> None:
    """The body is still on its way while the next run goes past; nobody waits for it.

    When it has arrived, the participant looks again and votes abort (rule 20).
    """
    kind, batches, status, state, committed = OVERTAKEN[by]
    record = late.begun_by(late.run("older"))
    newer = late.run("newer", kind, keep=0.0)
    with upload(late.a, record) as uploading:
        for batch in range(1, batches + 1):
            newer.apply(batch)
        answer = uploading.finish()
    body = answer.get_json()
    assert (answer.status_code, body["vote"], body["state"]) == (status, "abort", state)
    assert body.get("committed") == committed
    late.run("newer").apply(batches + 1)
    late.assert_holds(batches=batches + 2)


def test_of_twins_the_one_that_reported_is_committed(late: Late) -> None:
    """Two tasks wrote the same partition: commit names one and aborts the other.

    Then a third comes too late: the transaction is sealed, and stays so.
    """
    query = late.run("only")
    written: list[TransactionRecord] = []

    def write(record: TransactionRecord) -> list[Receipt]:
        written.append(record)
        query.task(record, 0)
        receipts = [*query.task(record, 0, TWIN), *query.task(record, 1)]
        assert late.in_doubt() == (3, 3)
        return receipts

    query.apply(0, write)
    late.assert_holds(batches=1)
    with refused(Refusal.CONFLICT, TEXTS["sealed"].format(state="committed")):
        query.task(written[0], 0, TWIN + 1)
    late.assert_holds(batches=1)


def test_a_twin_whose_upload_is_under_way_at_the_commit(late: Late) -> None:
    """The commit waits for no loser; what arrives afterwards votes abort."""
    query = late.run("only")
    with contextlib.ExitStack() as stack:
        uploads: list[Upload] = []

        def write(record: TransactionRecord) -> list[Receipt]:
            uploads.append(stack.enter_context(upload(late.a, record)))
            return query.write(record)

        query.apply(0, write)
        answer = uploads[0].finish()
    assert (answer.status_code, answer.get_json()["vote"]) == (409, "abort")
    late.assert_holds(batches=1)


def upload(
    world: World, record: TransactionRecord
) -> contextlib.AbstractContextManager[Upload]:
    """Hold a task of the record in the middle of its upload."""
    branch = records(f"0.{TWIN}", value=numbers(record.id.batch)[::2])
    return world.writing(str(record.id), branch)
