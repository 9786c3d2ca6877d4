"""The whole protocol, whatever is lost, late, doubled, killed or woken too late."""

from __future__ import annotations

import dataclasses
import itertools
from collections import Counter
from typing import Final

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule
from support.stateful import explore
from support.stateful_protocol import (
    COMMITTED,
    PARTICIPANTS,
    PREPARED,
    TIMEOUT,
    Actor,
    LogCall,
    MemoryParticipant,
    Message,
    World,
    WorldClock,
    ask_one_after_another,
)

from tracing_2pc.core.model import BranchId, TransactionId, TransactionRecord
from tracing_2pc.core.ports import DecisionLog
from tracing_2pc.core.states import BranchState, Decision, TransactionState
from tracing_2pc.protocol import delivery
from tracing_2pc.testing import temporary_log

BATCHES: Final = 3
"""The first batch is forgotten; participants hear it with the third commit."""

SEALS: Final = {
    Decision.COMMIT: BranchState.COMMITTED,
    Decision.ABORT: BranchState.ABORTED,
}
DRIVERS: Final = ("driver 1", "driver 2")
RECOVERY: Final = "recovery"
LONGEST: Final = 30
"""So many stops at most are waited for an actor to ask what the rule is about."""

anybody = st.integers(0, 2)
any_one = st.integers(0, 1000)
far = st.sampled_from([0, 1, 2, 3, 5, 8, 13, 21])
"""How often an actor stops before the rule's own event; a batch takes about twenty."""


class ProtocolMachine(RuleBasedStateMachine):
    """Two drivers and a sweep on one log, two participants, and no luck."""

    _applications = itertools.count(1)

    def __init__(self, log: DecisionLog, clock: WorldClock) -> None:
        super().__init__()
        self._world = World(log, f"orders-{next(self._applications)}", clock)
        self._actors: dict[str, Actor] = {}
        self._decided: dict[TransactionId, TransactionRecord] = {}
        self._forgotten_by_application = dict.fromkeys((*PARTICIPANTS, "log"), -1)

    @precondition(lambda self: self._free(DRIVERS))
    @rule(on_pending=st.sampled_from(["wait", "fail"]), twins=st.booleans(), so_far=far)
    def a_driver_starts(self, on_pending: str, twins: bool, so_far: int) -> None:
        driver = self._world.driver(BATCHES, on_pending=on_pending, twins=twins)
        self._actors[self._free(DRIVERS)[0]] = driver
        self._go_on(driver, so_far)

    @precondition(lambda self: self._free((RECOVERY,)) and self._world.sent)
    @rule(so_far=far)
    def a_sweep_starts(self, so_far: int) -> None:
        self._actors[RECOVERY] = self._world.recovery()
        self._go_on(self._actors[RECOVERY], so_far)

    @precondition(lambda self: self._living())
    @rule(who=anybody, so_far=far)
    def one_goes_on(self, who: int, so_far: int) -> None:
        self._go_on(self._choose(who), so_far)

    @precondition(lambda self: self._living())
    @rule(who=anybody, so_far=far, arrived=st.booleans())
    def one_gets_no_answer(self, who: int, so_far: int, arrived: bool) -> None:
        actor = self._choose(who)
        self._go_on(actor, so_far, then=Message)
        if isinstance(actor.waits_for, Message):
            if arrived:
                self._world.arrive(actor.waits_for)
            actor.go_on("silence")

    @precondition(lambda self: self._living())
    @rule(who=anybody, so_far=far, how=st.sampled_from(["unreachable", "answer lost"]))
    def the_log_does_not_answer(self, who: int, so_far: int, how: str) -> None:
        actor = self._choose(who)
        self._go_on(actor, so_far, then=LogCall)
        if isinstance(actor.waits_for, LogCall):
            actor.go_on(how)

    @precondition(lambda self: self._living())
    @rule(who=anybody, so_far=far)
    def one_is_killed(self, who: int, so_far: int) -> None:
        actor = self._choose(who)
        self._go_on(actor, so_far)
        actor.kill()

    @precondition(lambda self: self._world.sent)
    @rule(which=any_one, whole=st.booleans())
    def a_message_arrives_late_or_again(self, which: int, whole: bool) -> None:
        message = self._world.sent[-1 - which % len(self._world.sent)]
        if whole:
            self._world.arrive(message)
        else:
            self._world.participants[message.to].receive(message)

    @precondition(lambda self: self._uploads())
    @rule(which=any_one)
    def an_upload_ends(self, which: int) -> None:
        participant, tag = self._uploads()[which % len(self._uploads())]
        participant.end_upload(tag)

    @precondition(lambda self: self._world.sent)
    @rule(name=st.sampled_from(PARTICIPANTS))
    def a_participant_restarts(self, name: str) -> None:
        self._world.participants[name].restart()

    @precondition(lambda self: self._world.sent)
    @rule(seconds=st.sampled_from([TIMEOUT / 2, TIMEOUT + 1]))
    def time_passes(self, seconds: float) -> None:
        self._world.clock.time += seconds

    @invariant()
    def all_is_well(self) -> None:
        self.a_decision_stands()
        self.a_batch_is_committed_once()
        self.at_most_one_attempt_is_undecided()
        self.participants_do_as_it_was_decided()
        self.readers_see_the_chosen_branches()
        self.what_is_chosen_is_kept()
        self.finished_means_everywhere()
        self.the_forgotten_through_never_falls()

    def a_decision_stands(self) -> None:
        """What is decided is never decided otherwise; only what is decided can go."""
        for transaction, record in self._world.records().items():
            before = self._decided.get(transaction)
            if record is None:
                assert before is not None, f"{transaction} vanished undecided"
            elif before is not None:
                assert record.decision is before.decision, transaction
                if record.receipts != before.receipts:
                    self._is_committed_and_a_later_one_too(record)
                    record = dataclasses.replace(record, receipts=before.receipts)
            if record is not None and record.decision is not None:
                assert record.state is not TransactionState.QUARANTINED, transaction
                self._decided[transaction] = record

    def _is_committed_and_a_later_one_too(self, record: TransactionRecord) -> None:
        """Only then are receipts dropped: nobody can be told it again."""
        assert (record.receipts, record.state) == ((), TransactionState.COMMITTED)
        later = [t for t, r in self._decided.items() if r.decision is Decision.COMMIT]
        assert max(transaction.batch for transaction in later) > record.id.batch

    def a_batch_is_committed_once(self) -> None:
        committed = Counter(
            transaction.batch
            for transaction, record in self._decided.items()
            if record.decision is Decision.COMMIT
        )
        assert all(count == 1 for count in committed.values()), committed

    def at_most_one_attempt_is_undecided(self) -> None:
        """To begin is to abort what came before (rule 7)."""
        records = [r for r in self._world.records().values() if r is not None]
        active = [r.id for r in records if r.state is TransactionState.ACTIVE]
        assert len(active) <= 1, active

    def participants_do_as_it_was_decided(self) -> None:
        """Nothing is sealed before its decision, or against it; all or nothing."""
        for participant in self._world.participants.values():
            for transaction, seal in participant.history.items():
                record = self._decided.get(transaction)
                assert record is not None, f"{transaction} sealed undecided"
                assert record.decision is not None
                assert seal is SEALS[record.decision], transaction

    def readers_see_the_chosen_branches(self) -> None:
        """Of each committed transaction exactly those, and each of them once."""
        for participant in self._world.participants.values():
            expected = Counter(
                (transaction, branch)
                for transaction, seal in participant.history.items()
                if seal is COMMITTED
                for branch in self._chosen(transaction, participant)
            )
            assert Counter(participant.rows) == expected

    def what_is_chosen_is_kept(self) -> None:
        """A vote is a promise: until it is committed, the branch is prepared."""
        for transaction, record in self._decided.items():
            for participant in self._world.participants.values():
                if record.decision is Decision.COMMIT and (
                    transaction not in participant.history
                ):
                    prepared = participant.holding(PREPARED)
                    for branch in self._chosen(transaction, participant):
                        assert (transaction, branch) in prepared

    def finished_means_everywhere(self) -> None:
        for transaction, record in self._decided.items():
            if record.finished is not None:
                for participant in self._world.participants.values():
                    assert transaction in participant.history

    def the_forgotten_through_never_falls(self) -> None:
        """It passes what is committed everywhere, at the log before anywhere else."""
        records = self._world.records().values()
        known = [
            r.forgotten_through
            for r in records
            if r and r.forgotten_through is not None
        ]
        marks = {"log": max(known, default=self._forgotten_by_application["log"])}
        for name, participant in self._world.participants.items():
            mark = participant.forgotten_through
            marks[name] = -1 if mark is None else mark
            assert marks[name] <= marks["log"]
        for name, mark in marks.items():
            assert mark >= self._forgotten_by_application[name]
        self._forgotten_by_application = marks
        for batch in range(marks["log"] + 1):
            assert self._is_applied(batch)

    def teardown(self) -> None:
        for actor in self._actors.values():
            actor.kill()
        self._when_faults_stop()
        self._even_what_comes_later()

    def _when_faults_stop(self) -> None:
        """One driver and recovery finish everything; each batch is there, once."""
        for last in (self._last_sweep, self._last_driver, self._last_sweep):
            self._world.clock.time += TIMEOUT + 1
            last()
        assert self._world.log.unfinished(self._world.application) == []
        self._all_is_done()

    def _even_what_comes_later(self) -> None:
        """Nothing that still arrives changes anything, what was sent first last."""
        for message in reversed(self._world.sent):
            self._world.arrive(message)
        for participant, tag in self._uploads():
            participant.end_upload(tag)
        self._all_is_done()

    def _all_is_done(self) -> None:
        assert all(self._is_applied(batch) for batch in range(BATCHES))
        for participant in self._world.participants.values():
            assert participant.holding(PREPARED) == []
            batches = Counter(transaction.batch for transaction, _ in participant.rows)
            assert batches == dict.fromkeys(range(BATCHES), 2)
        self.all_is_well()

    def _last_sweep(self) -> None:
        self._to_its_end(self._world.recovery())

    def _last_driver(self) -> None:
        driver = self._world.driver(BATCHES, on_pending="fail", twins=False)
        self._to_its_end(driver)
        assert self._world.checkpoint == BATCHES

    def _to_its_end(self, actor: Actor) -> None:
        self._go_on(actor, 1000)
        assert actor.ended, f"{actor.name} does not come to an end"
        if actor.ended_by is not None:
            raise actor.ended_by

    def _go_on(self, actor: Actor, stops: int, then: type = object) -> None:
        """Let an actor go on as on a perfect day; look at everything at each stop.

        After so many stops it goes on until it waits for something of a kind.
        """
        for stop in itertools.count():
            arrived = stop >= stops and isinstance(actor.waits_for, then)
            if arrived or actor.ended or stop > stops + LONGEST:
                break
            self._world.answer(actor)
            self.all_is_well()

    def _is_applied(self, batch: int) -> bool:
        return all(
            any(
                transaction.batch == batch and seal is COMMITTED
                for transaction, seal in participant.history.items()
            )
            for participant in self._world.participants.values()
        )

    def _chosen(
        self, transaction: TransactionId, participant: MemoryParticipant
    ) -> list[BranchId]:
        chosen = self._decided[transaction].chosen(participant.name)
        return [receipt.branch for receipt in chosen]

    def _free(self, slots: tuple[str, ...]) -> list[str]:
        return [s for s in slots if s not in self._actors or self._actors[s].ended]

    def _living(self) -> list[Actor]:
        return [actor for actor in self._actors.values() if not actor.ended]

    def _uploads(self) -> list[tuple[MemoryParticipant, int]]:
        return [
            (participant, tag)
            for participant in self._world.participants.values()
            for tag in sorted(participant.uploads)
        ]

    def _choose(self, who: int) -> Actor:
        return self._living()[who % len(self._living())]


def test_any_history_ends_well():
    """Each batch is applied everywhere or nowhere, once, and in the end everywhere."""
    clock = WorldClock()
    log = temporary_log(now=clock.now)  # one for all histories
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(delivery, "ask_at_once", ask_one_after_another)
        explore(lambda: ProtocolMachine(log, clock), steps=25, quick=60, thorough=2500)
