"""The protocol without I/O: what holds after each step and each crash."""

from __future__ import annotations

import contextlib
import dataclasses

import pytest
from support.deadline import by_hand
from support.protocol import raising
from support.texts import texts
from support.waiting import until

from tracing_2pc.core.errors import (
    AbortedError,
    CommitPendingError,
    ConfigurationError,
    DecisionLogError,
    DecisionUnknownError,
    HeuristicError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import Receipt, TransactionId, TransactionRecord
from tracing_2pc.core.states import Decision, Refusal, TransactionState

TEXTS = texts("component")


def test_participants_are_on_record_before_anybody_is_asked(world):
    """A crash after the first prepare leaves a record that names whom to ask."""
    seen: list[TransactionRecord | None] = []

    def write(record: TransactionRecord) -> list[Receipt]:
        seen.append(world.log.read(record.id))
        return list(world.write(record))

    world.run_batch(0, write=write)
    assert seen[0] is not None
    assert seen[0].participants == ("a", "b")
    assert seen[0].state is TransactionState.ACTIVE


def test_a_crash_after_the_decision_is_committed_by_the_replay(world):
    """Decided commit: delivered at the next start, and not written a second time."""
    world.leave_committing(silent="ab")
    assert (world.in_doubt(), world.visible()) == (4, 0)
    world.a.heard.clear()
    assert world.run_batch(0, run="run-2") is False
    assert world.wrote == ["orders.0.1"]
    assert (world.in_doubt(), world.visible()) == (0, 4)
    assert world.a.heard == ["commit orders.0.1"], "the replay asks nobody again"


def test_a_crash_between_two_commits_is_finished(world):
    """One has committed and one has not: the other is told again, nobody aborts."""
    world.leave_committing()
    assert (world.in_doubt(), world.visible()) == (2, 2)
    world.run_batch(0, run="run-2")
    assert (world.in_doubt(), world.visible()) == (0, 4)
    assert world.a.heard == ["commit orders.0.1"] * 2, "once by the replay's question"


def test_a_crash_before_sparks_own_commit_is_a_replay(world):
    """All acknowledged, and Spark replays it: recognised, and nothing moves.

    Before it is skipped, all that hold something of it are asked whether they have it.
    """
    world.run_batch(0)
    world.b.silent = 1
    assert world.run_batch(0, run="run-2") is False
    assert world.wrote == ["orders.0.1"]
    assert world.visible() == 4
    assert world.a.heard == ["commit orders.0.1"] * 2
    assert world.b.heard == ["commit orders.0.1"] * 3


@pytest.mark.parametrize(
    "answer", [(Refusal.UNKNOWN, "unknown"), (Refusal.CONFLICT, "aborted")]
)
def test_a_replay_that_a_participant_knows_nothing_of_is_not_skipped(world, answer):
    """Another log, or another service: refused; the record stays as it is."""
    world.run_batch(0)
    world.b.refusal = answer
    with pytest.raises(ConfigurationError) as refused:
        world.run_batch(0, run="run-2")
    assert f"but b answered {answer[0]}, {answer[1]} there" in str(refused.value)
    assert (refused.value.transaction_id, refused.value.participant) == (
        "orders.0.1",
        "b",
    )
    assert world.state("orders.0.1") is TransactionState.COMMITTED


def test_a_replay_that_a_participant_has_forgotten_is_done(world):
    """It forgets only what was finished."""
    world.run_batch(0)
    world.b.refusal = (Refusal.FORGOTTEN, "forgotten")
    assert world.run_batch(0, run="run-2") is False


def test_a_replay_asks_only_who_has_something_of_it(world):
    """To commit nothing would be news to a service that is not the right one."""
    world.run_batch(0, write=world.write_for_a)
    assert world.run_batch(0, run="run-2") is False
    assert world.a.heard == ["commit orders.0.1"] * 2
    assert world.b.heard == ["commit orders.0.1"]


def test_a_replay_that_nobody_answers_for_is_not_skipped(world):
    """It is waited for as a commit is; the error names who did not answer."""
    world.run_batch(0)
    world.settings = dataclasses.replace(world.settings, on_pending="fail")
    world.b.silent = 100
    with pytest.raises(CommitPendingError, match=r"b \(lost\)"):
        world.run_batch(0, run="run-2")
    world.b.silent = 0
    assert world.run_batch(0, run="run-3") is False


def test_what_a_person_has_concluded_is_not_asked_about_again(world):
    """That a participant contradicts it is why it was: the replay is skipped."""
    world.b.refusal = (Refusal.CONFLICT, "aborted")
    with pytest.raises(HeuristicError):
        world.run_batch(0)
    first = TransactionId("orders", 0, 1)
    world.log.conclude(first, "mixed", who="ada", why="looked")
    assert world.run_batch(0, run="run-2") is False
    assert world.b.heard == ["commit orders.0.1"]


def test_waiting_is_the_default_and_backs_off(world):
    """An unanswered commit holds the batch back until it is acknowledged."""
    world.b.silent = 6
    assert world.run_batch(0) is True
    assert world.visible() == 4
    waited = world.clock.now() - 1_000_000.0
    assert waited == pytest.approx(1 + 2 + 4 + 8 + 16 + 32)


def test_a_lost_answer_is_asked_again_and_counts_once(world):
    """Committed, and the answer was lost: the repeat is answered the same."""
    world.b.silent, world.b.after = 1, True
    assert world.run_batch(0) is True
    assert world.b.heard == ["commit orders.0.1"] * 2
    assert (world.in_doubt(), world.visible()) == (0, 4)


def test_stop_returns_while_a_participant_is_down(world):
    """A query that is being stopped does not wait for anybody; recovery goes on."""
    world.b.silent = 10**9

    def stop() -> None:
        world.stopped = world.clock.now() > 1_000_005

    world.clock.meanwhile = stop
    with pytest.raises(CommitPendingError):
        world.run_batch(0)
    assert world.clock.now() < 1_000_006
    assert world.state("orders.0.1") is TransactionState.COMMITTING


def test_an_abort_that_nobody_heard_is_sent_again_before_the_next_batch(world):
    """It isn't waited for, it isn't forgotten, and it does not hold the batch back."""

    def write(record: TransactionRecord) -> list[Receipt]:
        world.write(record)
        raise ZeroDivisionError

    world.b.silent = 1
    with pytest.raises(ZeroDivisionError):
        world.run_batch(0, write=write)
    assert world.state("orders.0.1") is TransactionState.ABORTING
    world.run_batch(0, run="run-2")
    assert world.state("orders.0.1") is TransactionState.ABORTED
    assert world.b.aborted == {"orders.0.1"}


def test_a_driver_that_is_replaced_while_its_tasks_run_is_told_so(world):
    """Its tasks only hear that they are too late; the error says why, and names it."""

    def write(record: TransactionRecord) -> list[Receipt]:
        world.run_batch(0, run="run-2")
        raise RuntimeError("refused: sealed")

    with pytest.raises(AbortedError, match=TEXTS["taken over"]) as told:
        world.run_batch(0, write=write)
    assert str(told.value.__cause__) == "refused: sealed"
    assert told.value.transaction_id == "orders.0.1"
    assert (world.in_doubt(), world.visible()) == (0, 4)


def test_a_superseded_driver_obeys_what_stands(world):
    """Who slept through a replacement is told abort, and commits nothing."""

    def sleep_through(record: TransactionRecord) -> list[Receipt]:
        receipts = list(world.write(record))
        world.run_batch(0, run="run-2")
        return receipts

    with pytest.raises(AbortedError, match="newer run"):
        world.run_batch(0, write=sleep_through)
    assert world.visible() == 4
    assert set(world.a.committed) == {"orders.0.2"}
    with pytest.raises(AbortedError):
        world.run_batch(1)


@pytest.mark.parametrize(
    "refusal",
    sorted(set(Refusal) - {Refusal.UNKNOWN, Refusal.FORGOTTEN, Refusal.CONFLICT}),
)
def test_a_refusal_that_says_nothing_of_the_data_is_no_answer(world, refusal):
    """Whatever transport raises it: the commit is sent again, nothing quarantined."""
    world.settings = dataclasses.replace(world.settings, on_pending="fail")
    world.b.refusal = (refusal, "unknown")
    with pytest.raises(CommitPendingError):
        world.run_batch(0)
    assert world.state("orders.0.1") is TransactionState.COMMITTING
    world.b.refusal = None
    world.run_batch(0)
    assert world.b.committed.keys() == {"orders.0.1"}


@pytest.mark.parametrize(
    "answer",
    [
        (Refusal.UNKNOWN, "unknown"),
        (Refusal.CONFLICT, "aborted"),
        (Refusal.FORGOTTEN, "forgotten"),  # and the log still waits for it
    ],
)
def test_lost_or_contradicted_is_quarantined(world, answer):
    """Nobody guesses: work on it stops, its application waits for a person."""
    world.b.refusal = answer
    with pytest.raises(HeuristicError, match=r"tracing-2pc resolve orders\.0\.1"):
        world.run_batch(0)
    assert world.state("orders.0.1") is TransactionState.QUARANTINED
    assert world.visible() == 2  # what the other has committed is on record
    with pytest.raises(HeuristicError):
        world.run_batch(0, run="run-2")


@pytest.mark.parametrize("refusal", [None, (Refusal.CONFLICT, "aborted")])
def test_an_acknowledgement_is_on_record_before_the_others_have_answered(
    world, refusal
):
    """A participant that is well is never shown with another one's delay."""
    real = world.b.commit
    before: list[frozenset[str]] = []

    def wait_for_a(record: TransactionRecord) -> None:
        def acknowledged() -> frozenset[str]:
            current = world.log.read(record.id)
            return current.acknowledged if current else frozenset()

        with contextlib.suppress(TimeoutError):
            until(acknowledged)
        before.append(acknowledged())
        world.b.refusal = refusal
        real(record)

    world.b.commit = wait_for_a  # type: ignore[method-assign]
    with pytest.raises(HeuristicError) if refusal else contextlib.nullcontext():
        world.run_batch(0)
    assert before == [frozenset({"a"})]


def test_what_was_acknowledged_is_on_record_although_a_token_is_missing(world):
    """A mistake of ours at one participant takes nothing from the others."""
    world.a.commit = raising(ConfigurationError("no token"))  # type: ignore[method-assign]
    with pytest.raises(ConfigurationError, match="no token"):
        world.run_batch(0)
    record = world.log.unfinished("orders")[0]
    assert record.pending == ("a",)


def test_an_abort_that_meets_a_commit_is_quarantined_at_once(world):
    """Somebody committed what is decided abort: the query stops, a person looks."""

    def fail(record: TransactionRecord) -> list[Receipt]:
        world.b.refusal = (Refusal.CONFLICT, "committed")
        raise ZeroDivisionError

    with pytest.raises(HeuristicError, match=TEXTS["quarantined abort"]):
        world.run_batch(0, write=fail)
    assert world.state("orders.0.1") is TransactionState.QUARANTINED


def test_forgotten_there_and_finished_here_is_done(world):
    """410 because somebody else has delivered it is as good as an acknowledgement."""
    real = world.b.commit

    def meanwhile(record: TransactionRecord) -> None:
        for name in ("a", "b"):
            world.log.acknowledge(record.id, name)
        world.log.finish(record.id)
        world.b.refusal = (Refusal.FORGOTTEN, "forgotten")
        real(record)

    world.b.commit = meanwhile  # type: ignore[method-assign]
    assert world.run_batch(0) is True
    assert world.state("orders.0.1") is TransactionState.COMMITTED


def test_a_participant_that_lost_its_address_is_named(world):
    """The others are asked; the transaction stays, and the message says what to do."""
    world.leave_committing()
    record = world.log.unfinished("orders")[0]
    with pytest.raises(
        ConfigurationError, match=TEXTS["on record"].format(participant="b")
    ):
        world.delivery("a").send_once(record)
    assert world.state("orders.0.1") is TransactionState.COMMITTING


def test_out_of_time_the_decision_is_abort_and_the_jobs_are_cancelled(
    world, caplog, monkeypatch
):
    """A warning at 0.8; then abort is decided, and late votes change nothing."""
    over = by_hand(monkeypatch)

    def slow(record: TransactionRecord) -> list[Receipt]:
        receipts = list(world.write(record))
        over.set()
        until(lambda: world.cancelled)
        return receipts

    with pytest.raises(AbortedError, match=TEXTS["out of time"]):
        world.run_batch(0, write=slow)
    assert world.cancelled == ["orders.0.1"]
    assert "no decision yet: transaction=orders.0.1" in caplog.text
    assert (world.in_doubt(), world.visible()) == (0, 0)


def test_the_second_timeout_in_a_row_says_what_to_set(world, caplog, monkeypatch):
    """A first batch that needs longer never gets through: said once, with a number."""
    over, limit = by_hand(monkeypatch), world.settings.transaction_timeout

    def slow(record: TransactionRecord) -> list[Receipt]:
        world.clock.time += limit
        receipts = list(world.write(record))
        over.set()
        until(lambda: str(record.id) in world.cancelled)
        return receipts

    for attempt, advice in ((1, False), (2, True), (3, True)):
        caplog.clear()
        over.clear()
        with pytest.raises(AbortedError) as aborted:
            world.run_batch(0, run=f"run-{attempt}", write=slow)
        warned = [r.getMessage() for r in caplog.records if r.levelname != "DEBUG"]
        (line,) = [text for text in warned if "no decision yet" not in text]
        assert f"orders.0.{attempt}" in line
        said = f"set transaction_timeout to {2 * limit:g}s or more" in str(
            aborted.value
        )
        assert said is advice


def test_a_decide_without_an_answer_is_asked_again(world):
    """The log wrote it and the answer was lost: the second asking finds it decided."""
    real, lost = world.log.decide, []

    def decide(*args: object, **kwargs: object) -> object:
        answer = real(*args, **kwargs)  # type: ignore[arg-type]
        if not lost:
            lost.append(answer)
            raise DecisionUnknownError("no answer")
        return answer

    world.log.decide = decide  # type: ignore[assignment, method-assign]
    assert world.run_batch(0) is True
    assert (world.in_doubt(), world.visible()) == (0, 4)


def test_a_log_that_stays_silent_is_not_taken_for_a_no(world):
    """Nobody aborts on a guess: it stays in doubt until the log can be asked."""
    real = world.log.decide
    world.log.decide = raising(DecisionLogError("down"))  # type: ignore[method-assign]
    with pytest.raises(DecisionUnknownError):
        world.run_batch(0)
    assert world.a.heard == []
    world.log.decide = real  # type: ignore[method-assign]
    assert world.run_batch(0, run="run-2") is True
    assert (world.in_doubt(), world.visible()) == (0, 4)


def test_an_undecided_error_after_a_commit_that_stands_never_aborts(world):
    """If the log says commit, an error of this driver changes nothing about it."""

    def decided_behind_our_back(record: TransactionRecord) -> list[Receipt]:
        world.log.decide(record.id, Decision.COMMIT, world.write(record))
        raise ZeroDivisionError

    with pytest.raises(CommitPendingError):
        world.run_batch(0, write=decided_behind_our_back)
    assert world.a.aborted == set()
    assert world.run_batch(0, run="run-2") is False
    assert (world.in_doubt(), world.visible()) == (0, 4)


def test_whoever_waits_is_told_why(world, caplog):
    """A wrong token at commit is in the warning, the error, and nowhere a riddle."""
    world.settings = dataclasses.replace(world.settings, on_pending="fail")
    refused = ParticipantUnavailableError("participant 'b' answered 401: your token")
    world.b.commit = raising(refused)  # type: ignore[method-assign]
    with pytest.raises(CommitPendingError, match="401: your token"):
        world.run_batch(0)
    assert "401: your token" in caplog.text


def test_a_fault_of_a_participants_adapter_is_no_answer(world):
    """Whatever a call raises, the transaction stays and is delivered later."""
    real, failures = world.b.commit, [KeyError("x"), RecursionError()]

    def fail(record: TransactionRecord) -> None:
        if failures:
            raise failures.pop()
        real(record)

    world.b.commit = fail  # type: ignore[method-assign]
    assert world.run_batch(0) is True
    assert world.visible() == 4


def test_an_abort_with_all_votes_in_names_the_branches(world):
    """A hand-written sink's handles are known then: it is told to drop them."""
    told: list[int] = []

    def sleep_through(record: TransactionRecord) -> list[Receipt]:
        receipts = list(world.write(record))
        world.log.decide(record.id, Decision.ABORT)
        return receipts

    world.a.abort = lambda record: told.append(len(record.chosen("a")))  # type: ignore[method-assign]
    with pytest.raises(AbortedError):
        world.run_batch(0, write=sleep_through)
    assert told == [2]


def test_a_clock_that_is_set_back_stops_nothing(world):
    """A wait is counted down, not compared with a clock."""
    world.b.silent = 1

    def set_back() -> None:
        world.clock.time -= 3600

    world.clock.meanwhile = set_back
    assert world.run_batch(0) is True
    assert sum(world.clock.slept) == pytest.approx(1.0)


def test_old_batches_are_forgotten_and_participants_are_told(world):
    """forgotten_through passes finished batches, never one that could be replayed."""
    world.settings = dataclasses.replace(world.settings, keep_finished=10.0)
    for batch in range(4):
        world.run_batch(batch)
        world.clock.time += 20
    assert world.state("orders.0.1") is None
    assert world.state("orders.3.1") is TransactionState.COMMITTED
    assert world.a.forgotten_by_application[-1] is not None
    assert world.a.forgotten_by_application[-1] < 3
