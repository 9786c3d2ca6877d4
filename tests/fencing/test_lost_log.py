"""The decision log is gone for good: `tracing-2pc adopt`, and each row is there once.

Participants and coordinator are real; the checkpoint has files like Spark's.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import shutil
from collections.abc import Iterator
from typing import Any

import pytest
from fencing_support import APPLICATION, Query, Services, services
from support.checkpoint import Checkpoint
from support.spark import numbers_of
from support.texts import texts

from tracing_2pc.cli import main
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision
from tracing_2pc.store import SqlDecisionLog, open_log

pytestmark = pytest.mark.ci

TEXTS = texts("fencing")
BATCHES = 3
"""Committed by the lost log: batches 0, 1 and 2."""

WHY = ("--yes", "--reason", "its disk is gone")


@dataclasses.dataclass(frozen=True, slots=True)
class World:
    """Participants a and b, a checkpoint, the lost log and the one in its place."""

    checkpoint: Checkpoint
    services: Services
    lost: SqlDecisionLog
    log: SqlDecisionLog
    capsys: pytest.CaptureFixture[str]

    def query(self, *, lost: bool = False, to: Services | None = None) -> Query:
        log, run = (self.lost, "before") if lost else (self.log, "after")
        return Query(run, self.checkpoint, log, (to or self.services).sink())

    def lose_under_way(self) -> tuple[Query, TransactionRecord]:
        """Lose the log after batch 3 was decided commit, and before it is told."""
        query = self.query(lost=True)
        return query, query.decide()

    def wait_as_orphans_must(self) -> None:
        self.services.a.age()
        self.services.b.age()

    def lose_halfway(self) -> tuple[Query, TransactionRecord]:
        """Lose the log after batch 3 was decided commit, and only a was told."""
        query, record = self.lose_under_way()
        query.sink.participants["a"].commit(record)
        return query, record

    def adopt(self, *words: str, **ends: Any) -> str:
        known = ("--application", APPLICATION)
        folder = ("--checkpoint", str(self.checkpoint.folder))
        return self.run("adopt", *known, *folder, *words, **ends)

    def run(
        self, *command: str, ends: int = 0, says: str = "", **values: object
    ) -> str:
        """Run a command, which ends and speaks so; return all that it said."""
        self.capsys.readouterr()
        code = main(command)
        said = "".join(self.capsys.readouterr())
        assert code == ends, said
        assert not says or TEXTS[says].format(**values) in said, said
        return said

    def assert_refused(self, batches: int = BATCHES) -> None:
        """The query still cannot go on: nothing was written, here or there."""
        with pytest.raises(ConfigurationError, match=TEXTS["lost"]):
            self.query().start(BATCHES + 2)
        assert self.log.applications() == []
        assert self.services.a.held() == numbers_of(batches)

    def assert_goes_on(self, batches: int = BATCHES + 2) -> None:
        """So many batches are in both, each row once, and the log has no more to do."""
        self.query().start(batches)
        assert self.services.held() == (numbers_of(batches), numbers_of(batches))
        assert self.log.unfinished() == []


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.ci)])
def world(request, tmp_path, monkeypatch, capsys) -> Iterator[World]:
    """Three batches are in both, and an empty log stands where theirs was."""
    url = f"sqlite:///{tmp_path}/empty.db"
    if request.param == "postgresql":
        url = request.getfixturevalue("postgres_database")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TPC_LOG", url)
    monkeypatch.setenv("TPC_TOKEN", "a-token-of-an-operator")
    with contextlib.ExitStack() as stack:
        both = stack.enter_context(services(tmp_path))
        listed = f"a={both.a.url},b={both.b.url}"
        monkeypatch.setenv("TPC_PARTICIPANTS", listed)
        lost, log = open_log(f"sqlite:///{tmp_path}/lost.db"), open_log(url)
        stack.callback(lost.close)
        stack.callback(log.close)
        checkpoint = Checkpoint.at(tmp_path / "checkpoint")
        world = World(checkpoint, both, lost, log, capsys)
        world.query(lost=True).start(1)
        shutil.copytree(tmp_path / "checkpoint", tmp_path / "older")
        world.query(lost=True).start(BATCHES)
        yield world


def test_nothing_in_flight(world):
    """Without `--yes` it only says what it would write; with it the query goes on.

    A start that is refused begins its batch at Spark: that is in flight from then on.
    """
    for text in ("Spark goes on", "the query goes on", "nothing written"):
        world.adopt(says=text, query=world.checkpoint.query)
    world.assert_refused()
    said = world.adopt(*WHY, says="committed nowhere", id="fence.3.1")
    assert TEXTS["start it"] in said
    world.assert_goes_on()


def test_in_flight_and_in_both(world):
    """The log then has it as finished: its replay is confirmed, and not written."""
    world.checkpoint.lose_commit(2)
    world.assert_refused()
    said = world.adopt(says="committed at both", id="fence.2.1")
    assert TEXTS["Spark runs it again"] in said
    assert TEXTS["at a"].format(id="fence.2.1", state="committed") in said
    world.assert_refused()
    world.adopt(*WHY)
    adopted = TransactionId(APPLICATION, 2, 1)
    (entry,) = world.log.audit(adopted)
    assert entry.why == "its disk is gone"
    kept, before = world.log.read(adopted), world.lost.read(adopted)
    assert kept is not None
    assert before is not None
    assert sorted(map(_told, kept.receipts)) == sorted(map(_told, before.receipts))
    # So that another database by the same name is refused, as with the lost log.
    assert kept.journals == before.journals != {}
    shown = json.loads(world.run("show", "--json", str(adopted)))
    assert shown["record"]["journals"] == {
        name: {"id": kept.journal_of(name), "url": kept.address_of(name)}
        for name in kept.participants
    }
    world.assert_goes_on()


def _told(receipt: Any) -> tuple[str, ...]:
    """Return what a commit tells a participant of a branch."""
    names = ("participant", "branch", "rows", "digest", "vote")
    return tuple(str(getattr(receipt, name)) for name in names)


def test_other_participants_do_not_confirm_an_adopted_batch(world, tmp_path):
    """Where the job writes elsewhere than `adopt` has looked, no batch disappears."""
    world.checkpoint.lose_commit(2)
    world.adopt(*WHY)
    (tmp_path / "others").mkdir()
    with (
        services(tmp_path / "others") as others,
        pytest.raises(ConfigurationError, match=TEXTS["finished here alone"]),
    ):
        world.query(to=others).start(BATCHES + 1)
    world.assert_goes_on()


def test_in_flight_and_in_none(world):
    """It is written again, as the next attempt; what is prepared is left to a person.

    The command that ends each orphan is printed; the other word is refused from now on.
    """
    world.lose_under_way()
    world.assert_refused()
    said = world.adopt(*WHY, says="committed nowhere", id="fence.3.2")
    assert TEXTS["at a"].format(id="fence.3.1", state="prepared") in said
    assert world.services.in_doubt() == (2, 2)
    world.assert_goes_on()
    assert world.services.in_doubt() == (2, 2)
    world.wait_as_orphans_must()
    commands = orphans(said)
    for name in "ab":
        assert commands[name][:2] == ["resolve", "fence.3.1"]
        by_mistake = ["--commit" if w == "--abort" else w for w in commands[name]]
        world.run(*by_mistake, "--yes", ends=2, says="only abort")
        world.run(*commands[name], "--yes")
    assert world.services.in_doubt() == (0, 0)
    world.assert_goes_on(BATCHES + 3)


def orphans(said: str) -> dict[str, list[str]]:
    """Return the commands for orphans, by participant."""
    lines = [line for line in said.splitlines() if line.startswith("orphan: ")]
    commands = (shlex.split(line.split("`")[1])[1:] for line in lines)
    return {command[command.index("--at") + 1]: command for command in commands}


def test_attempts_that_were_aborted_are_counted(world):
    """Also where a participant has not heard of each of them."""
    for _ in range(2):
        query = world.query(lost=True)
        coordinator = query.coordinator
        query.checkpoint.begin(3)
        record = query.begin(3)
        query.write(record)
        coordinator.fail(record, RuntimeError("stopped"))
    aborted = dataclasses.replace(query.begin(3), decision=Decision.ABORT)
    query.sink.participants["b"].abort(aborted)
    world.adopt(*WHY, says="committed nowhere", id="fence.3.4")
    world.assert_goes_on()


def test_in_flight_and_in_one_that_the_other_can_follow(world):
    """No program decides it, and nothing is written: 1. The command for b is named."""
    world.lose_halfway()
    said = world.adopt(*WHY, ends=1, says="committed at one")
    world.assert_refused(BATCHES + 1)
    world.wait_as_orphans_must()
    commands = orphans(said)
    assert commands.keys() == {"b"}
    world.run(*commands["b"], "--yes")
    world.adopt(*WHY, says="committed at both", id="fence.3.1")
    world.assert_goes_on()


def test_who_was_not_asked_is_said_to_be_so(world, monkeypatch):
    """b has no address, and holds prepared what a has committed: nobody says *all*."""
    world.lose_halfway()
    monkeypatch.setenv("TPC_PARTICIPANTS", f"a={world.services.a.url}")
    world.adopt(*WHY)
    assert TEXTS["every one"] not in world.run("explain", "fence.3.1", says="asked a")
    with pytest.raises(ConfigurationError, match=TEXTS["b was not asked"]):
        world.query().start(BATCHES + 1)
    assert world.checkpoint.next() == BATCHES


def test_in_flight_and_in_one_only(world):
    """b has aborted it: 1, until a person has brought the rows there, and says so.

    That is: Spark's commit is put into the checkpoint. Then the query goes on behind.
    """
    query, record = world.lose_halfway()
    aborted = dataclasses.replace(record, decision=Decision.ABORT)
    query.sink.participants["b"].abort(aborted)
    world.adopt(*WHY, ends=1, says="put it into the checkpoint")
    (item,) = map(json.loads, world.adopt("--json", ends=1).splitlines())
    assert (item["committed"], item["undecidable"]) == (["a"], True)
    world.assert_refused(BATCHES + 1)
    world.checkpoint.commit(3)
    world.adopt(*WHY, ends=1, says="not committed", name="b", batch=3)
    world.run("init", "--application", APPLICATION, "--from-batch", "4")
    world.query().start(BATCHES + 2)
    later = numbers_of(BATCHES + 2) - numbers_of(BATCHES + 1)
    assert world.services.a.held() == numbers_of(BATCHES + 2)
    assert world.services.b.held() == numbers_of(BATCHES) + later


def test_what_spark_has_passed_is_not_aborted(world):
    """Spark committed the batch before b was told: it is committed there, not dropped.

    Nothing is written before: the log would let nobody commit it any more.
    """
    world.lose_halfway()
    world.checkpoint.commit(3)
    said = world.adopt(*WHY, ends=1, says="Spark has passed it")
    assert world.log.applications() == []
    (command,) = orphans(said).values()
    assert command[:5] == ["resolve", "fence.3.1", "--at", "b", "--commit"]
    world.wait_as_orphans_must()
    world.run(*command, "--yes")
    world.adopt(*WHY)
    world.assert_goes_on()


def test_what_nobody_has_committed_and_spark_has_passed_is_named(world):
    """Both hold it prepared: decided it was, and no command is given to drop it."""
    world.lose_under_way()
    world.checkpoint.commit(3)
    said = world.adopt(*WHY, ends=1)
    assert said.count(TEXTS["nobody knows"]) == 2
    assert "--abort" not in said
    assert world.log.applications() == []


def test_participants_of_an_earlier_state_are_not_taken_over(world):
    """What Spark has passed would be nowhere; or it is another query's checkpoint."""
    for batch in range(BATCHES, BATCHES + 3):
        world.checkpoint.begin(batch)
        world.checkpoint.commit(batch)
    for name in ("a", "b"):
        world.adopt(*WHY, ends=1, says="not committed", name=name, batch=5)
    assert world.log.applications() == []


def test_an_attempt_that_nobody_heard_of_hides_no_other(world):
    """They were begun and their aborts arrived nowhere; a later one is committed."""
    query = world.query(lost=True)
    batch = query.checkpoint.next()
    query.checkpoint.begin(batch)
    query.begin(batch)
    about: dict[str, Any] = {"query": query.checkpoint.query, "carrier": {}}
    for again in range(30):
        begun = world.lost.begin(
            APPLICATION,
            batch,
            Opening(run=f"{again}", participants=("a", "b"), **about),
        )
    coordinator = query.coordinator
    record = coordinator.decide(begun.record, query.write(begun.record))
    for participant in query.sink.participants.values():
        participant.commit(record)
    assert str(record.id) == "fence.3.31"
    world.adopt(*WHY, says="committed at both", id="fence.3.31")
    world.assert_goes_on()


def test_a_commit_by_hand_is_no_proof(world):
    """A person has committed it at both: what its tasks had not sent yet is missing."""
    world.lose_under_way()
    world.wait_as_orphans_must()
    resolve = ("resolve", "fence.3.1", "--commit", "--reason", "a guess", "--yes")
    for name in ("a", "b"):
        world.run(*resolve, "--at", name)
    world.adopt(*WHY, ends=1, says="by hand")
    assert world.log.applications() == []


def test_what_is_known_is_not_adopted(world):
    """Neither an application of this log, nor its query under another name: 2."""
    world.adopt(*WHY)
    world.adopt(*WHY, ends=2, says="nothing to adopt")
    world.adopt("--application", "other", ends=2, says="not renamed")


def test_an_older_checkpoint_is_refused(world, tmp_path):
    """The participants have what it has not begun: adopting it would write it twice."""
    older = tmp_path / "older"
    for _ in range(2):
        world.adopt("--checkpoint", str(older), ends=2, says="an older copy")
        (older / "commits" / "0").unlink(missing_ok=True)
    world.assert_refused()


@pytest.mark.parametrize(
    ("participants", "words", "code", "said"),
    [
        ("a={a},b=http://127.0.0.1:9", WHY, 1, "down"),
        ("a={b},b={a}", WHY, 1, "another name"),
        ("", WHY, 2, "held by nobody"),
        ("a={a},b={b}", (*WHY, "--application", "fance"), 2, "held by nobody"),
        ("a={a},b={b}", ("--yes",), 2, "no reason"),
        ("a={a},b={b}", (*WHY, "--checkpoint", "nowhere"), 2, "no folder"),
    ],
)
def test_what_cannot_be_known_is_not_written(
    world, monkeypatch, participants, words, code, said
):
    """A participant that does not answer, a wrong name or folder: one clear line."""
    a, b = world.services.a.url, world.services.b.url
    monkeypatch.setenv("TPC_PARTICIPANTS", participants.format(a=a, b=b))
    name = words[-1] if "fance" in words else APPLICATION
    output = world.adopt(*words, ends=code, says=said, name=name)
    assert output.count("\n") == 1, output
    world.assert_refused()
