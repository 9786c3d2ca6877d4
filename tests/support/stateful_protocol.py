"""Drivers, recovery, participants and the ether between them, moved step by step.

Whoever speaks to others stops there, and goes on when the test says so, with the
answer that the test wants. Nothing happens by itself, so a history can be repeated.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

from support.waiting import AT_LAST
from tracing_2pc.core import content
from tracing_2pc.core.errors import (
    ContractError,
    DecisionLogError,
    DecisionUnknownError,
    HeuristicError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    TwoPhaseError,
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
from tracing_2pc.core.states import BranchState, Refusal, Vote
from tracing_2pc.participant import answers
from tracing_2pc.participant.answers import Answer, BranchRef, BranchRow, TransactionRow
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.recovery import Recovery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.tracing.transaction import OpenTelemetryTracing
from tracing_2pc.wire import contract, error_responses

PARTICIPANTS: Final = ("a", "b")
PARTITIONS: Final = (0, 1)
TIMEOUT: Final = 900.0

PREPARED = BranchState.PREPARED
COMMITTED, ABORTED = BranchState.COMMITTED, BranchState.ABORTED

Asked = TypeVar("Asked")
Said = TypeVar("Said")


class KilledError(BaseException):
    """Stands for SIGKILL: whoever is hit does nothing more."""


class TaskFailedError(Exception):
    """A task failed for good, and with it the Spark job."""


class Actor:
    """A process that stops where it speaks to others.

    It runs in a thread of its own, but never at the same time as anybody else: it is
    given the floor, and gives it back where it stops.

    Args:
        name: to be read in a failure.
        body: what it does; it is told who it is.
    """

    def __init__(self, name: str, body: Callable[[Actor], None]) -> None:
        self.name = name
        self.waits_for: Any = None
        self.ended = False
        self.ended_by: BaseException | None = None
        self._answer = ""
        self._killed = False
        self._floor, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._thread = threading.Thread(target=self._run, args=(body,), daemon=True)
        self._thread.start()
        self._until_it_stops()

    def stop_at(self, what: Any) -> str:
        """Give the floor back; return how it is answered. Called by its own body."""
        if not self._killed:
            self.waits_for = what
            self._back.release()
            self._floor.acquire()
        if self._killed:
            raise KilledError
        return self._answer

    def go_on(self, answer: str = "") -> None:
        """Give it the floor until it stops again, or ends."""
        self._answer = answer
        self._floor.release()
        self._until_it_stops()

    def kill(self) -> None:
        """End it where it stands."""
        if not self.ended:
            self._killed = True
            self.go_on()
            assert self.ended, f"{self.name} went on after its death"

    def _until_it_stops(self) -> None:
        assert self._back.acquire(timeout=AT_LAST), f"{self.name} does not stop"
        if self.ended:
            self._thread.join()
        if isinstance(self.ended_by, AssertionError | HeuristicError | ContractError):
            raise self.ended_by

    def _run(self, body: Callable[[Actor], None]) -> None:
        try:
            body(self)
        except KilledError:
            pass
        except (TwoPhaseError, TaskFailedError) as error:
            self.ended_by = error
        except BaseException as error:  # noqa: BLE001 - raised where it is read
            self.ended_by = AssertionError(f"{self.name}: {error!r}")
            self.ended_by.__cause__ = error
        self.ended, self.waits_for = True, None
        self._back.release()


@dataclasses.dataclass(frozen=True, slots=True)
class LogCall:
    """An actor is about to ask the decision log."""

    method: str


@dataclasses.dataclass(frozen=True, slots=True)
class Pause:
    """An actor sleeps, or is about to tell Spark's checkpoint."""


@dataclasses.dataclass(eq=False, slots=True)
class Message:
    """A request to a participant. It may arrive late, twice, or never.

    Args:
        to: whom.
        asks: prepare, commit, abort or abort branch.
        transaction: which.
        named: a prepare's branch, or those that a commit names.
        forgotten_through: that a commit or abort carries.
        answer: what the participant said last.
    """

    to: str
    asks: str
    transaction: TransactionId
    named: tuple[BranchRef, ...] = ()
    forgotten_through: int | None = None
    answer: Answer | None = None


class MemoryParticipant:
    """The real answers over a journal in memory: what `JournalledResource` does.

    `rows` are what readers see, `history` what was ever sealed: both outlive the
    journal's records, which go below forgotten_through.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.forgotten_through: int | None = None
        self.rows: list[tuple[TransactionId, BranchId]] = []
        self.history: dict[TransactionId, BranchState] = {}
        self.uploads: dict[int, Message] = {}
        self._seals: dict[TransactionId, BranchState] = {}
        self._branches: dict[TransactionId, dict[BranchId, BranchRow]] = {}
        self._tags = itertools.count(1)

    def holding(self, state: BranchState) -> list[tuple[TransactionId, BranchId]]:
        """Branches in a state, whosoever."""
        return [
            (transaction, branch)
            for transaction, branches in self._branches.items()
            for branch, held in branches.items()
            if held.state is state
        ]

    def receive(self, message: Message) -> None:
        """Answer a request; a prepare that is admitted is answered when it ends."""
        if message.asks == "prepare":
            self._prepare(message)
        else:
            message.answer = self._decided(message)

    def end_upload(self, tag: int) -> None:
        """Look again, now that all rows are there, and vote (rule 20)."""
        message = self.uploads.pop(tag)
        seen, (wanted,) = self._seen(message.transaction), message.named
        message.answer = answers.prepare(seen, wanted)
        if message.answer is None:
            held = BranchRow(wanted, PREPARED, tag, 0.0)
            self._branches.setdefault(message.transaction, {})[wanted.branch] = held
            message.answer = answers.prepared(wanted)

    def restart(self) -> None:
        """Lose what is not durable: what is being written."""
        self.uploads.clear()

    def _prepare(self, message: Message) -> None:
        seen, (wanted,) = self._seen(message.transaction), message.named
        message.answer = answers.prepare(seen, wanted)
        if seen.forgotten:
            assert message.answer is not None
            assert message.answer.refusal is Refusal.FORGOTTEN
        if message.answer is None:
            if self._is_written(message.transaction, wanted.branch):
                message.answer = Answer("unknown", Refusal.IN_PROGRESS)
                return
            self.uploads[next(self._tags)] = message

    def _is_written(self, transaction: TransactionId, branch: BranchId) -> bool:
        under_way = ((m.transaction, m.named[0].branch) for m in self.uploads.values())
        return (transaction, branch) in under_way

    def _decided(self, message: Message) -> Answer:
        seen = self._seen(message.transaction)
        if message.asks == "commit":
            answer = answers.commit(seen, message.named)
        else:
            one = message.named[0].branch if message.asks == "abort branch" else None
            answer = answers.abort(seen, one)
        if answer.refusal is None:
            self._obey(message, seen, answer)
        return answer

    def _obey(self, message: Message, seen: TransactionRow, answer: Answer) -> None:
        """Make true what the answer says."""
        if message.asks == "abort branch" and seen.seal is None:
            wanted = message.named[0]
            self._move(message.transaction, wanted, ABORTED)
        if answer.seal is not None:
            self._seal(seen, answer.seal, {named.branch for named in message.named})
        if message.forgotten_through is not None:
            self._forget(message.forgotten_through)

    def _seal(
        self, seen: TransactionRow, seal: BranchState, named: set[BranchId]
    ) -> None:
        self._seals[seen.transaction] = self.history[seen.transaction] = seal
        for branch, held in seen.branches.items():
            kept = seal is COMMITTED and held.state is PREPARED and branch in named
            self._move(seen.transaction, held.ref, COMMITTED if kept else ABORTED)
            if kept:
                self.rows.append((seen.transaction, branch))

    def _move(
        self, transaction: TransactionId, named: BranchRef, to: BranchState
    ) -> None:
        branches = self._branches.setdefault(transaction, {})
        branches[named.branch] = BranchRow(named, to, 0, 0.0)

    def _forget(self, forgotten_through: int) -> None:
        self.forgotten_through = max(
            forgotten_through,
            -1 if self.forgotten_through is None else self.forgotten_through,
        )
        for transaction in [
            t for t in self._seals if t.batch <= self.forgotten_through
        ]:
            del self._seals[transaction]
        for transaction, branches in self._branches.items():
            if transaction.batch <= self.forgotten_through:
                for branch in [b for b, h in branches.items() if h.state != PREPARED]:
                    del branches[branch]

    def _seen(self, transaction: TransactionId) -> TransactionRow:
        rivals = [
            other
            for other, seal in self._seals.items()
            if other.batch == transaction.batch
            and other != transaction
            and seal is COMMITTED
        ]
        return TransactionRow(
            transaction,
            forgotten_through=self.forgotten_through,
            recorded=transaction in self._branches,
            seal=self._seals.get(transaction),
            branches=dict(self._branches.get(transaction, {})),
            committed=rivals[0] if rivals else None,
        )


class World:
    """One application: its log, two participants, and every message ever sent.

    Args:
        log: the decision log under test.
        application: a name that the log does not know yet.
        clock: of everybody.
    """

    def __init__(self, log: DecisionLog, application: str, clock: WorldClock) -> None:
        self.log = log
        self.application = application
        self.clock = clock
        self.participants = {name: MemoryParticipant(name) for name in PARTICIPANTS}
        self.sent: list[Message] = []
        self.checkpoint = 0
        self._begun: set[TransactionId] = set()
        self._records: Mapping[TransactionId, TransactionRecord | None] | None = None
        self._runs, self._task_attempts = itertools.count(1), itertools.count(1)

    def driver(self, batches: int, *, on_pending: str, twins: bool) -> Actor:
        """Start the query: from Spark's checkpoint up to a number of batches."""
        settings = Settings(
            on_pending=on_pending, transaction_timeout=0, keep_finished=0
        )
        run = f"run-{next(self._runs)}"

        def drive(actor: Actor) -> None:
            coordinator = self._coordinator(actor, settings)
            for batch in range(self.checkpoint, batches):
                coordinator.apply(
                    batch,
                    run=run,
                    query=f"query of {self.application}",
                    write=lambda record: self._write(actor, record, twins=twins),
                    cancel=lambda record: None,
                )
                actor.stop_at(Pause())
                self.checkpoint = max(self.checkpoint, batch + 1)

        return Actor(run, drive)

    def recovery(self) -> Actor:
        """Start one sweep."""

        def sweep(actor: Actor) -> None:
            log, delivery = _ActorsLog(actor, self), self._delivery(actor)
            recovery = Recovery(log, delivery, OpenTelemetryTracing())  # type: ignore[arg-type]
            for _ in recovery.sweep(self.application):
                pass

        return Actor("recovery", sweep)

    def answer(self, actor: Actor) -> None:
        """Let an actor go on as on a perfect day."""
        if isinstance(actor.waits_for, Message):
            self.arrive(actor.waits_for)
        self.clock.time += 1
        actor.go_on()

    def arrive(self, message: Message) -> None:
        """Let a message arrive whole."""
        participant = self.participants[message.to]
        participant.receive(message)
        for tag in [t for t, m in participant.uploads.items() if m is message]:
            participant.end_upload(tag)

    def records(self) -> Mapping[TransactionId, TransactionRecord | None]:
        """Return everything that ever began, as the log holds it now."""
        if self._records is None:
            self._records = {id_: self.log.read(id_) for id_ in self._begun}
        return self._records

    def tell_log(self, method: str, *args: Any, **kwargs: Any) -> Any:
        """Call the log for an actor."""
        self._records = None
        if method == "begin":  # the job's own timer would go by the machine's clock
            *about, opening = args
            args = (*about, dataclasses.replace(opening, timeout=TIMEOUT))
        result = getattr(self.log, method)(*args, **kwargs)
        if method == "begin":
            self._begun.add(result.record.id)
        return result

    def _coordinator(self, actor: Actor, settings: Settings) -> Coordinator:
        clock = _ActorsClock(actor, self.clock)
        return Coordinator(
            self.application,
            PARTICIPANTS,
            _ActorsLog(actor, self),  # type: ignore[arg-type]
            self._delivery(actor),
            OpenTelemetryTracing(),
            clock,
            settings,
            _retry(clock),
        )

    def _delivery(self, actor: Actor) -> Delivery:
        return Delivery(
            _ActorsLog(actor, self),  # type: ignore[arg-type]
            self._channels(actor),
            tracing=OpenTelemetryTracing(),
            retry=_retry(_ActorsClock(actor, self.clock)),
        )

    def _channels(self, actor: Actor) -> dict[str, Channel]:
        return {name: Channel(name, actor, self.sent) for name in PARTICIPANTS}

    def _write(
        self, actor: Actor, record: TransactionRecord, *, twins: bool
    ) -> Sequence[Receipt]:
        channels = list(self._channels(actor).values())
        return [
            receipt
            for p in PARTITIONS
            for receipt in self._partition(record, p, channels, twins=twins)
        ]

    def _partition(
        self,
        record: TransactionRecord,
        partition: int,
        channels: Iterable[Channel],
        *,
        twins: bool,
    ) -> tuple[Receipt, ...]:
        """Run a task, and again if it fails; a twin that was as fast does not count."""
        if twins:
            twin = self._next_branch(partition)
            for channel in channels:
                channel.prepare(record.id, twin)
        for _ in range(2):
            named = self._next_branch(partition)
            if all(channel.prepare(record.id, named) for channel in channels):
                votes = dict.fromkeys(PARTICIPANTS, Vote.COMMIT)
                return branch_receipts(named.branch, named.rows, named.digest, votes)
            for channel in channels:
                channel.send("abort branch", record.id, (named,))
        raise TaskFailedError(f"{record.id} partition {partition}")

    def _next_branch(self, partition: int) -> BranchRef:
        branch = BranchId(partition, next(self._task_attempts))
        return BranchRef(branch, 1, content.digest_of(str(branch).encode()))


@dataclasses.dataclass(frozen=True, slots=True)
class Channel:
    """One actor's way to one participant: `Participant`, read as HTTP is read."""

    name: str
    actor: Actor
    sent: list[Message]

    def prepare(self, transaction: TransactionId, named: BranchRef) -> bool:
        """Ask for a vote, and again if there was no answer."""
        for _ in range(2):
            try:
                self._ask(self.send("prepare", transaction, (named,)), "prepared")
            except ParticipantUnavailableError:
                continue
            except ParticipantRefusedError:
                return False
            return True
        return False

    def commit(self, record: TransactionRecord) -> None:
        """Commit what is chosen."""
        chosen = record.chosen(self.name)
        named = tuple(BranchRef(r.branch, r.rows, r.digest) for r in chosen)
        message = self.send("commit", record.id, named, record.forgotten_through)
        self._ask(message, "committed")

    def abort(self, record: TransactionRecord) -> None:
        """Abort the whole of it."""
        message = self.send(
            "abort", record.id, forgotten_through=record.forgotten_through
        )
        self._ask(message, "aborted")

    def send(
        self,
        asks: str,
        transaction: TransactionId,
        named: tuple[BranchRef, ...] = (),
        forgotten_through: int | None = None,
    ) -> Message:
        """Put a message into the ether, and wait for nothing."""
        message = Message(self.name, asks, transaction, named, forgotten_through)
        self.sent.append(message)
        return message

    def _ask(self, message: Message, state: str) -> Mapping[str, Any]:
        if self.actor.stop_at(message) == "silence" or message.answer is None:
            raise ParticipantUnavailableError("no answer")
        said = message.answer
        body = {"transaction_id": str(message.transaction), "state": said.state}
        request = contract.Request(
            self.name,
            "http://there",
            None,
            f"POST /{message.asks}",
            str(message.transaction),
        )
        answer = contract.Answer(
            request,
            200 if said.refusal is None else error_responses.STATUSES[said.refusal],
            contract.JSON if said.refusal is None else error_responses.PROBLEM,
            json.dumps({**body, "detail": said.detail}).encode(),
        )
        return contract.read_answer(answer, state)


@dataclasses.dataclass(slots=True)
class WorldClock:
    """Time, which passes when the test says so."""

    time: float = 1_000_000.0

    def now(self) -> float:
        """Unix seconds."""
        return self.time


@dataclasses.dataclass(frozen=True, slots=True)
class _ActorsClock:
    """The world's clock; who sleeps gives the floor back."""

    actor: Actor
    clock: WorldClock

    def now(self) -> float:
        return self.clock.now()

    def sleep(self, seconds: float) -> None:
        self.actor.stop_at(Pause())
        self.clock.time += seconds


class _ActorsLog:
    """The decision log as one actor reaches it: sometimes not, or without an answer."""

    def __init__(self, actor: Actor, world: World) -> None:
        self._actor = actor
        self._world = world

    def __getattr__(self, method: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            answer = self._actor.stop_at(LogCall(method))
            if answer == "unreachable":
                raise DecisionLogError("the log cannot be reached")
            result = self._world.tell_log(method, *args, **kwargs)
            if answer == "answer lost":
                raise _without_answer(method)
            return result

        return call


def _without_answer(method: str) -> DecisionLogError | DecisionUnknownError:
    unknown = method == "decide"
    return (DecisionUnknownError if unknown else DecisionLogError)("no answer")


def _retry(clock: _ActorsClock) -> RetryPolicy:
    return RetryPolicy(clock, base=0.2, cap=0.2, inline_tries=2, uniform=max)


def ask_one_after_another(
    ask: Callable[[Asked], Said],
    participants: Mapping[str, Asked],
    *,
    each: Callable[[dict[str, Said]], object] | None = None,
) -> dict[str, Said]:
    """Stand in for `ask_at_once`: one thread has the floor.

    No history is lost by it: participants know nothing of each other, and a message
    that was given up can arrive at any time.
    """
    answers = {name: ask(participant) for name, participant in participants.items()}
    if each is not None:
        for name, answer in answers.items():
            each({name: answer})
    return answers
