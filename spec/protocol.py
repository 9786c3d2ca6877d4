"""The protocol as a program that can be explored: who may do what next, and no more.

One application, micro-batches one after another, a partition each. A *world* is all
that there is at one moment: the decision log, Spark's own record of batches, two
drivers, the participants, and every message that was ever sent. Nothing is taken out of
the network: a message may arrive at any time, again, or never. Whoever sends gets an
answer, or does not. `steps` yields everything that can happen next, in the words of the
glossary.

With `bad_rows` the last participant keeps what ledger refuses: the task then writes the
other rows in a second round, as another branch. A participant without a service is no
other: an executor that dies between the commit of its database and the receipt is a
vote that is lost. Nothing is decided by a driver's presence, so it is not in here.

A rule is a number of ARCHITECTURE.md's table; `without` names those that are taken out.
Not in it: several partitions, views, time but for time-outs, a log that was put back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, NamedTuple

Id = tuple[int, int]
"""Of a transaction: batch and attempt."""

ACTIVE: Final = "active"
COMMITTING: Final = "committing"
COMMITTED: Final = "committed"
ABORTING: Final = "aborting"
ABORTED: Final = "aborted"
PREPARED: Final = "prepared"

PREPARE: Final = "prepare"
COMMIT: Final = "commit"
ABORT: Final = "abort"

ROUND: Final = 2
"""A task's number is this much higher in its second round: the task, its twin."""

FINISHED: Final = {COMMITTING: COMMITTED, ABORTING: ABORTED}


class Bounds(NamedTuple):
    """How large the world is, and how often each fault happens at most."""

    participants: int = 2
    batches: int = 2
    attempts: int = 3
    """Of a batch."""
    driver_crashes: int = 1
    participant_crashes: int = 0
    log_crashes: int = 0
    rivals: int = 0
    twins: int = 0
    time_outs: int = 0
    refusals: int = 0
    bad_rows: int = 0
    lost_answers: int = 0
    slow_uploads: int = 0
    take_overs: int = 0


class Record(NamedTuple):
    """A transaction, as the decision log has it."""

    id: Id
    state: str = ACTIVE
    task: int = -1
    """Whose branches are chosen."""
    acknowledged: frozenset[int] = frozenset()
    is_durable: bool = True


class Log(NamedTuple):
    """The decision log: records in the order of `begin`."""

    records: tuple[Record, ...] = ()
    run: int = 0
    forgotten_through: int = -1


class Driver(NamedTuple):
    """A driver, and what it has in memory."""

    step: str = "off"
    run: int = 0
    batch: int = 0
    attempt: int = 0
    task: int = -1
    votes: frozenset[tuple[int, int]] = frozenset()
    """Participant and task."""
    is_refused: bool = False
    """Somebody votes abort."""


class Participant(NamedTuple):
    """A service: its rows, its journal, and uploads that are under way."""

    rows: tuple[tuple[Id, int], ...] = ()
    """What readers see: transaction and task of each branch, as often as it is."""
    branches: frozenset[tuple[Id, int, str]] = frozenset()
    """Transaction, task, state."""
    seals: frozenset[tuple[Id, str]] = frozenset()
    forgotten_through: int = -1
    uploads: frozenset[tuple[Id, int]] = frozenset()


class Message(NamedTuple):
    """A request to a participant."""

    word: str
    participant: int
    id: Id
    task: int = -1
    forgotten_through: int = -1


class World(NamedTuple):
    """All that there is."""

    log: Log
    applied: int
    """How many batches Spark has on record as done."""
    drivers: tuple[Driver, ...]
    participants: tuple[Participant, ...]
    network: tuple[Message, ...]
    """All that was ever sent, in order of their contents."""
    left: Bounds
    """What may still go wrong."""


class Step(NamedTuple):
    """Something that happens: a line of a story, what is then, and if it is a fault."""

    story: str
    world: World
    is_fault: bool = False


def first(bounds: Bounds) -> World:
    """Return the world in which nothing has happened."""
    return World(
        Log(),
        0,
        (Driver(), Driver()),
        (Participant(),) * bounds.participants,
        (),
        bounds,
    )


class Protocol:
    """What can happen.

    Args:
        bounds: of the world.
        without: rules that are taken out.
    """

    def __init__(self, bounds: Bounds, without: frozenset[str] = frozenset()) -> None:
        self.bounds = bounds
        self._without = without
        self._everybody = frozenset(range(bounds.participants))

    def _keeps(self, rule: str) -> bool:
        return rule not in self._without

    def steps(self, world: World) -> Iterator[Step]:
        """Yield all that can happen next."""
        for number in (0, 1):
            yield from self._driver(world, number)
        yield from self._recovery(world)
        yield from self._arrivals(world)
        yield from self._alone(world)

    # --- the driver ------------------------------------------------------------------

    def _driver(self, world: World, number: int) -> Iterator[Step]:
        driver, who = world.drivers[number], ("the driver", "a second driver")[number]
        if driver.step == "off":
            yield from self._start(world, number, who)
            return
        if driver.step in ("done", "gone"):
            return
        step = {
            "recover": self._recover,
            "begin": self._begin,
            "write": self._write,
            "ask": self._ask,
            "send": self._send,
            "await": self._await,
            "return": self._return,
        }[driver.step]
        yield from step(world, number, who)
        if left := _less(world, "driver_crashes"):
            yield Step(
                f"{who} is killed", _moved(left, number, Driver()), is_fault=True
            )

    def _start(self, world: World, number: int, who: str) -> Iterator[Step]:
        if world.applied == self.bounds.batches:
            return
        driver = Driver("recover", batch=world.applied)
        if number == 0:
            if world.drivers[1].step == "off":
                yield Step(f"{who} starts", _moved(world, 0, driver))
        elif world.drivers[0].step != "off" and (left := _less(world, "rivals")):
            story = "a second driver starts on the same checkpoint"
            yield Step(story, _moved(left, 1, driver), is_fault=True)

    def _recover(self, world: World, number: int, who: str) -> Iterator[Step]:
        """Deliver what is decided; a commit is waited for, an abort is not."""
        if self._keeps("10") and _unsent(world):
            sent = _sent(world, *_unsent(world))
            yield Step(f"{who} sends again what is decided and not finished", sent)
        elif not any(record.state == COMMITTING for record in world.log.records):
            begins = world.drivers[number]._replace(step="begin")
            yield Step(f"{who} has recovered", _moved(world, number, begins))

    def _begin(self, world: World, number: int, who: str) -> Iterator[Step]:
        driver, log = world.drivers[number], world.log
        if driver.run and driver.run < log.run:
            story = f"{who} is refused: a newer run has begun"
            yield Step(story, _moved(world, number, Driver("gone")))
            return
        run, batch = driver.run or log.run + 1, driver.batch
        same = [record for record in log.records if record.id[0] == batch]
        done = [record for record in same if record.state in (COMMITTING, COMMITTED)]
        is_replay = bool(done) or batch <= log.forgotten_through
        if is_replay and self._keeps("18 replay"):
            step = "return" if not done or done[0].state == COMMITTED else "send"
            attempt = done[0].id[1] if done else 0
            then = driver._replace(step=step, run=run, attempt=attempt)
            found = world._replace(log=log._replace(run=run))
            story = (
                f"{who} begins batch {batch}: a replay, it is decided commit already"
            )
            yield Step(story, _moved(found, number, then))
            return
        ended = log.records
        if self._keeps("7"):
            ended = tuple(
                one._replace(state=ABORTING) if one.state == ACTIVE else one
                for one in log.records
            )
        attempt = max((record.id[1] for record in same), default=0) + 1
        if not self._keeps("3"):
            attempt = 1
            ended = tuple(one for one in ended if one.id != (batch, 1))
        if attempt > self.bounds.attempts:
            return
        record = Record((batch, attempt))
        begun = log._replace(records=(*ended, record), run=run)
        then = Driver("write", run, batch, attempt)
        prepares = [Message(PREPARE, p, record.id, 0) for p in self._everybody]
        found = _sent(world._replace(log=begun), *prepares)
        story = f"{who} begins {_name(record.id)}, and a task sends its partition"
        yield Step(story, _moved(found, number, then))

    def _write(self, world: World, number: int, who: str) -> Iterator[Step]:
        driver = world.drivers[number]
        id_ = driver.batch, driver.attempt
        twin = [Message(PREPARE, p, id_, 1) for p in self._everybody]
        if twin[0] not in world.network and (left := _less(world, "twins")):
            story = f"Spark starts the task of {_name(id_)} a second time: a twin"
            yield Step(story, _sent(left, *twin), is_fault=True)
        wanted = self._everybody if self._keeps("1") else frozenset({0})
        for task in range(2 * ROUND):
            alike = {task} if self._keeps("1 branch") else {*range(2 * ROUND)}
            voted = {p for p, of in driver.votes if of in alike}
            if wanted <= voted:
                then = driver._replace(step="ask", task=task)
                story = f"{who} has the votes of {_task(task)}"
                yield Step(story, _moved(world, number, then))
        if driver.is_refused:
            yield self._fail(world, number, who)

    def _fail(self, world: World, number: int, who: str) -> Step:
        """Decide abort, send it once, raise: Spark ends the query."""
        driver = world.drivers[number]
        id_ = driver.batch, driver.attempt
        found, decided = world, ABORT
        if self._keeps("8"):
            found, decided = self._decide(world, id_, ABORT)
        story = f"{who} cannot go on with {_name(id_)}: decided is {decided}"
        if not self._keeps("8"):
            story = f"{who} cannot go on with {_name(id_)}, and sends abort unasked"
        if decided == ABORT:
            found = _sent(found, *self._aborts(found, id_))
        return Step(story, _moved(found, number, Driver()))

    def _ask(self, world: World, number: int, who: str) -> Iterator[Step]:
        """Let the log decide; what it answers is what holds."""
        driver = world.drivers[number]
        id_ = driver.batch, driver.attempt
        found, decided = self._decide(world, id_, COMMIT, driver.task)
        story = f"{who} asks the log to decide commit of {_name(id_)}: it is {decided}"
        obeyed = decided if self._keeps("15") else COMMIT
        if obeyed == COMMIT:
            then = driver._replace(step="send")
            if decided != COMMIT:
                story += f", and {who} commits all the same"
            yield Step(story, _moved(found, number, then))
        else:
            sent = _sent(found, *self._aborts(found, id_))
            yield Step(f"{story}, and it ends", _moved(sent, number, Driver()))
        if left := _less(found, "lost_answers"):
            story = f"the log decides {decided} of {_name(id_)}; its answer is lost"
            if self._keeps("15 again"):
                yield Step(story, left, is_fault=True)
                if not self._keeps("8"):
                    yield self._fail(left, number, who)
            else:
                sent = _sent(left, *self._aborts(left, id_))
                story += f", and {who} takes that for an abort"
                yield Step(story, _moved(sent, number, Driver()), is_fault=True)

    def _send(self, world: World, number: int, who: str) -> Iterator[Step]:
        driver = world.drivers[number]
        id_ = driver.batch, driver.attempt
        task = driver.task
        for record in world.log.records:
            if record.id == id_ and record.task >= 0:
                task = record.task
        sent = _sent(world, *self._commits(world, id_, task))
        then = driver._replace(step="await")
        yield Step(f"{who} sends commit of {_name(id_)}", _moved(sent, number, then))

    def _await(self, world: World, number: int, who: str) -> Iterator[Step]:
        driver = world.drivers[number]
        record = _record(world, (driver.batch, driver.attempt))
        if record is None or record.state == COMMITTED:
            then = driver._replace(step="return")
            yield Step(
                f"{who} finishes batch {driver.batch}", _moved(world, number, then)
            )

    def _return(self, world: World, number: int, who: str) -> Iterator[Step]:
        """The callback returns: Spark notes the batch as done, and goes on."""
        driver = world.drivers[number]
        applied = max(world.applied, driver.batch + 1)
        is_over = driver.batch + 1 == self.bounds.batches
        then = Driver("done" if is_over else "begin", driver.run, driver.batch + 1)
        found = world._replace(applied=applied)
        yield Step(
            f"Spark notes batch {driver.batch} as done", _moved(found, number, then)
        )

    # --- the decision log ------------------------------------------------------------

    def _decide(
        self, world: World, id_: Id, wanted: str, task: int = -1
    ) -> tuple[World, str]:
        """Write the decision once, and return the one that stands."""
        records = world.log.records
        for number, record in enumerate(records):
            if record.id != id_:
                continue
            is_newest = number == len(records) - 1 or not self._keeps("14")
            others = (one for one in records if one.id[0] == id_[0] and one != record)
            is_first = not any(one.state in (COMMITTING, COMMITTED) for one in others)
            is_newest = is_newest and (is_first or not self._keeps("18 index"))
            if record.state == ACTIVE or not self._keeps("write once"):
                state = COMMITTING if wanted == COMMIT and is_newest else ABORTING
                durable = self._keeps("2") or state != COMMITTING
                decided = record._replace(state=state, task=task, is_durable=durable)
                found = _put(world, decided)
                return found, COMMIT if state == COMMITTING else ABORT
            return world, COMMIT if record.state in (COMMITTING, COMMITTED) else ABORT
        return world, ABORT

    def _acknowledged(self, world: World, message: Message) -> World:
        """Store an acknowledgement; with the last of them a transaction is finished."""
        record = _record(world, message.id)
        state = COMMITTING if message.word == COMMIT else ABORTING
        if record is None or record.state != state:
            return world
        stored = record.acknowledged | {message.participant}
        record = record._replace(acknowledged=stored)
        if stored == self._everybody or not self._keeps("11"):
            record = record._replace(state=FINISHED[state], is_durable=True)
        return _put(world, record)

    def _commits(self, world: World, id_: Id, task: int) -> Iterator[Message]:
        for participant in self._everybody:
            yield Message(COMMIT, participant, id_, task, world.log.forgotten_through)

    def _aborts(self, world: World, id_: Id) -> Iterator[Message]:
        for participant in self._everybody:
            yield Message(ABORT, participant, id_, -1, world.log.forgotten_through)

    # --- recovery, and time ----------------------------------------------------------

    def _recovery(self, world: World) -> Iterator[Step]:
        """`tracing-2pc watch --recover`, beside any driver, at any moment."""
        if self._keeps("10") and (unsent := _unsent(world)):
            yield Step(
                "recovery sends what is decided and not finished", _sent(world, *unsent)
            )
        for record in world.log.records:
            if record.state == ACTIVE and (left := _less(world, "time_outs")):
                found, _ = self._decide(left, record.id, ABORT)
                story = f"{_name(record.id)} is out of time: recovery decides abort"
                yield Step(story, found, is_fault=True)
        if self._keeps("6"):
            yield from self._orphans(world)
        yield from self._forget(world)

    def _orphans(self, world: World) -> Iterator[Step]:
        """End branches that somebody lists, by what the log says of them."""
        for number, participant in enumerate(world.participants):
            for id_, task, state in sorted(participant.branches):
                if state != PREPARED:
                    continue
                record = _record(world, id_)
                forgotten = world.log.forgotten_through
                is_unread = not self._keeps("9")
                if is_unread or record is None or record.state in (ABORTING, ABORTED):
                    word, task = ABORT, -1
                elif record.state == COMMITTED:
                    word, task = COMMIT, record.task
                else:
                    continue
                message = Message(word, number, id_, task, forgotten)
                if message not in world.network:
                    story = (
                        f"recovery sees a branch of {_name(id_)} in doubt, sends {word}"
                    )
                    yield Step(story, _sent(world, message))

    def _forget(self, world: World) -> Iterator[Step]:
        """Drop the oldest record, once it is finished and a later batch has begun."""
        records = world.log.records
        if not records or records[0].state not in (COMMITTED, ABORTED):
            return
        batch = records[0].id[0]
        if self._keeps("17") and not any(record.id[0] > batch for record in records):
            return
        left = records[1:]
        through = world.log.forgotten_through
        if not any(record.id[0] <= batch for record in left):
            through = max(through, batch)
        if not self._keeps("17 watermark"):
            through = -1
        log = world.log._replace(records=left, forgotten_through=through)
        yield Step(f"the log forgets {_name(records[0].id)}", world._replace(log=log))

    # --- what arrives ----------------------------------------------------------------

    def _arrivals(self, world: World) -> Iterator[Step]:
        """Let any message arrive; nobody may count on one that is late, or doubled."""
        for message in world.network:
            arrive = self._prepare if message.word == PREPARE else self._order
            is_due = self._is_due(world, message)
            for step in arrive(world, message):
                yield step._replace(is_fault=step.is_fault or not is_due)

    def _is_due(self, world: World, message: Message) -> bool:
        """Say whether somebody waits for the answer, and asks until there is one."""
        number, id_ = message.participant, message.id
        if message.word == PREPARE:
            vote = number, message.task
            return any(
                driver.step == "write"
                and (driver.batch, driver.attempt) == id_
                and vote not in driver.votes
                for driver in world.drivers
            )
        record = _record(world, id_)
        return record is None or number not in record.acknowledged

    def _prepare(self, world: World, message: Message) -> Iterator[Step]:
        number, id_, task = message.participant, message.id, message.task
        participant = world.participants[number]
        if not self._admits(participant, id_):
            found = self._refused(world, id_)
            if found != world:
                yield Step(f"{_who(number)} refuses a prepare of {_name(id_)}", found)
            return
        if (id_, task, PREPARED) in participant.branches:
            found = self._voted(world, number, id_, task)
            if found != world:
                yield Step(f"{_who(number)} is asked again, and votes commit", found)
            return
        if any((of, by) == (id_, task) for of, by, _ in participant.branches):
            return
        yield from self._kept(world, number, id_, task, participant, "has the rows")
        if left := _less(world, "refusals"):
            refused = participant.branches | {(id_, task, ABORTED)}
            found = _stored(left, number, participant._replace(branches=refused))
            story = f"{_who(number)} cannot take a row of {_name(id_)}, and votes abort"
            yield Step(story, self._refused(found, id_), is_fault=True)
        if number == 0 and task < ROUND and (left := _less(world, "bad_rows")):
            refused = participant.branches | {(id_, task, ABORTED)}
            found = _stored(left, number, participant._replace(branches=refused))
            again = [Message(PREPARE, p, id_, task + ROUND) for p in self._everybody]
            keeper = _who(len(world.participants) - 1)
            story = (
                f"{_who(number)} names a row of {_task(task)} of {_name(id_)} that it "
                f"refuses: the task sends the others, and that row to {keeper}"
            )
            yield Step(story, _sent(found, *again), is_fault=True)
        if (left := _less(world, "slow_uploads")) and not participant.uploads:
            under_way = participant._replace(uploads=frozenset({(id_, task)}))
            rows = f"rows of {_task(task)} of {_name(id_)}"
            story = f"{rows} begin to arrive at {_who(number)}"
            yield Step(story, _stored(left, number, under_way), is_fault=True)

    def _refused(self, world: World, id_: Id) -> World:
        """Tell the driver that waits for a vote that it is abort."""
        for place, driver in enumerate(world.drivers):
            if driver.step == "write" and (driver.batch, driver.attempt) == id_:
                world = _moved(world, place, driver._replace(is_refused=True))
        return world

    def _kept(
        self, world: World, number: int, id_: Id, task: int,
        participant: Participant, how: str,
    ) -> Iterator[Step]:  # fmt: skip
        """Make a branch durable; the vote may be lost on its way."""
        branches = participant.branches | {(id_, task, PREPARED)}
        kept = _stored(world, number, participant._replace(branches=branches))
        story = f"{_who(number)} {how} of {_task(task)} of {_name(id_)}"
        yield Step(f"{story}, and votes commit", self._voted(kept, number, id_, task))
        if left := _less(kept, "lost_answers"):
            yield Step(f"{story}; its vote is lost", left, is_fault=True)

    def _admits(self, participant: Participant, id_: Id) -> bool:
        if self._keeps("19") and id_[0] <= participant.forgotten_through:
            return False
        if any(of == id_ for of, _ in participant.seals):
            return False
        others = (of for of, state in participant.seals if state == COMMITTED)
        return not (self._keeps("18 attempt") and any(of[0] == id_[0] for of in others))

    def _voted(self, world: World, number: int, id_: Id, task: int) -> World:
        """Give a vote to the driver that waits for it."""
        for place, driver in enumerate(world.drivers):
            if driver.step == "write" and (driver.batch, driver.attempt) == id_:
                votes = driver.votes | {(number, task)}
                world = _moved(world, place, driver._replace(votes=votes))
        return world

    def _order(self, world: World, message: Message) -> Iterator[Step]:
        """Carry a commit or an abort out, in one local transaction."""
        number = message.participant
        before = world.participants[number]
        outcome = self._carried_out(before, message)
        if outcome is None:
            return  # refused: unknown, or it contradicts what is sealed
        found = _stored(world, number, outcome)
        story = f"{_who(number)} is told {message.word} of {_name(message.id)}"
        told = self._acknowledged(found, message)
        if told != world:
            yield Step(f"{story}, and acknowledges", told)
        if found != world and (left := _less(found, "lost_answers")):
            yield Step(f"{story}; its acknowledgement is lost", left, is_fault=True)

    def _carried_out(
        self, participant: Participant, message: Message
    ) -> Participant | None:
        id_, word = message.id, message.word
        state = COMMITTED if word == COMMIT else ABORTED
        sealed = dict(participant.seals).get(id_)
        if sealed is None and id_[0] > participant.forgotten_through:
            mine = {(task, was) for of, task, was in participant.branches if of == id_}
            if word == COMMIT and (message.task, PREPARED) not in mine:
                return participant if not self._keeps("5") else None
            participant = self._sealed(participant, id_, message.task, state)
        elif sealed is not None and sealed != state:
            return None
        elif word == ABORT:  # forgotten: what came late is ended
            participant = self._sealed(participant, id_, -1, ABORTED)
        through = max(participant.forgotten_through, message.forgotten_through)
        keep = through if self._keeps("16") else self.bounds.batches
        return participant._replace(
            forgotten_through=through,
            seals=frozenset(seal for seal in participant.seals if seal[0][0] > keep),
            branches=frozenset(
                branch
                for branch in participant.branches
                if branch[0][0] > keep or branch[2] == PREPARED
            ),
        )

    def _sealed(
        self, participant: Participant, id_: Id, task: int, state: str
    ) -> Participant:
        """End all branches of a transaction, and seal it."""
        rows, branches = list(participant.rows), set()
        for of, by, was in participant.branches:
            if of == id_ and was == PREPARED:
                is_chosen = by == task or not self._keeps("4")
                was = state if is_chosen else ABORTED
                if was == COMMITTED:
                    rows.append((of, by))
            branches.add((of, by, was))
        return participant._replace(
            rows=tuple(sorted(rows)),
            branches=frozenset(branches),
            seals=participant.seals | {(id_, state)},
        )

    # --- what a participant, or the log, does alone ----------------------------------

    def _alone(self, world: World) -> Iterator[Step]:
        for number, participant in enumerate(world.participants):
            who = _who(number)
            for id_, task in participant.uploads:
                over = participant._replace(uploads=frozenset())
                is_taken = any(
                    (o, b) == (id_, task) for o, b, _ in participant.branches
                )
                admitted = not self._keeps("20") or self._admits(participant, id_)
                if admitted and not is_taken:
                    yield from self._kept(
                        world, number, id_, task, over, "has all rows"
                    )
                else:
                    yield Step(
                        f"{who} refuses a late upload", _stored(world, number, over)
                    )
            if left := _less(world, "take_overs"):
                yield from self._take_over(left, number, participant)
            lost = self._after_crash(participant)
            if lost != participant and (left := _less(world, "participant_crashes")):
                yield Step(
                    f"{who} is killed", _stored(left, number, lost), is_fault=True
                )
            if not self._keeps("12"):
                for branch in sorted(participant.branches):
                    if branch[2] == PREPARED:
                        gone = participant.branches - {branch} | {
                            (*branch[:2], ABORTED)
                        }
                        ended = participant._replace(branches=gone)
                        story = f"{who} waits no longer, and aborts {_name(branch[0])}"
                        yield Step(story, _stored(world, number, ended))
        records = tuple(
            one
            if one.is_durable
            else one._replace(state=ACTIVE, task=-1, is_durable=True)
            for one in world.log.records
        )
        if records != world.log.records and (left := _less(world, "log_crashes")):
            log = world.log._replace(records=records)
            story = "the log is killed, and what was not flushed is gone"
            yield Step(story, left._replace(log=log), is_fault=True)

    def _take_over(
        self, world: World, number: int, participant: Participant
    ) -> Iterator[Step]:
        """A replica takes over that lacks the last transaction."""
        for branch in sorted(participant.branches):
            if branch[2] == PREPARED:
                behind = participant._replace(branches=participant.branches - {branch})
                story = (
                    f"a replica of {_who(number)} takes over, without what it voted for"
                )
                yield Step(story, _stored(world, number, behind), is_fault=True)

    def _after_crash(self, participant: Participant) -> Participant:
        branches = participant.branches
        if not self._keeps("13"):
            branches = frozenset(branch for branch in branches if branch[2] != PREPARED)
        return participant._replace(branches=branches, uploads=frozenset())


# --- the promises -------------------------------------------------------------------


def broken(world: World) -> str:
    """Say which promise does not hold in a world; empty if all do."""
    return _twice(world) or _apart(world) or _split(world) or _lost(world)


def _twice(world: World) -> str:
    for number, one in enumerate(world.participants):
        batches = [id_[0] for id_, _ in one.rows]
        for batch in batches:
            if batches.count(batch) > 1:
                return f"twice: {_who(number)} has the rows of batch {batch} two times"
    return ""


def _apart(world: World) -> str:
    """Return where rows of two rounds, or of two tasks, are: none fits the others."""
    tasks: dict[Id, set[int]] = {}
    for one in world.participants:
        for id_, task in one.rows:
            tasks.setdefault(id_, set()).add(task)
    for id_, several in tasks.items():
        if len(several) > 1:
            branches = " and of ".join(_task(task) for task in sorted(several))
            return f"apart: rows of {_name(id_)} are of {branches}"
    return ""


def _split(world: World) -> str:
    decided = {
        r.id: r.task for r in world.log.records if r.state in (COMMITTING, COMMITTED)
    }
    decided |= {id_: task for one in world.participants for id_, task in one.rows}
    batches = Counter(id_[0] for id_ in decided)
    for id_, task in decided.items():
        for number, one in enumerate(world.participants):
            if (id_, task, ABORTED) in one.branches or (id_, ABORTED) in one.seals:
                return (
                    f"split: {_name(id_)} is committed, and aborted at {_who(number)}"
                )
        if batches[id_[0]] > 1:
            return f"mixed: two attempts of batch {id_[0]} are committed"
    return ""


def _lost(world: World) -> str:
    done = {*range(world.applied)}
    done |= {r.id[0] for r in world.log.records if r.state == COMMITTED}
    for batch in sorted(done):
        for number, one in enumerate(world.participants):
            if not any(id_[0] == batch for id_, _ in one.rows):
                return f"lost: batch {batch} is over, and {_who(number)} lacks its rows"
    return ""


def unfinished(world: World, batches: int) -> str:
    """Say what is not ended in a world in which nothing can happen any more."""
    if world.applied < batches:
        return f"stuck: batch {world.applied} cannot be applied any more"
    for record in world.log.records:
        if record.state not in (COMMITTED, ABORTED):
            return f"stuck: {_name(record.id)} is {record.state} for ever"
    for number, one in enumerate(world.participants):
        for id_, _, state in one.branches:
            if state == PREPARED:
                where = f"in doubt for ever at {_who(number)}"
                return f"stuck: a branch of {_name(id_)} is {where}"
    return ""


# --- small things -------------------------------------------------------------------


def _less(world: World, fault: str) -> World | None:
    """Return a world in which this has happened once more, if it may."""
    left = getattr(world.left, fault)
    return (
        world._replace(left=world.left._replace(**{fault: left - 1})) if left else None
    )


def _moved(world: World, number: int, driver: Driver) -> World:
    drivers = [*world.drivers]
    drivers[number] = driver
    return world._replace(drivers=tuple(drivers))


def _stored(world: World, number: int, participant: Participant) -> World:
    participants = [*world.participants]
    participants[number] = participant
    return world._replace(participants=tuple(participants))


def _sent(world: World, *messages: Message) -> World:
    return world._replace(network=tuple(sorted({*world.network, *messages})))


def _put(world: World, record: Record) -> World:
    records = tuple(record if one.id == record.id else one for one in world.log.records)
    return world._replace(log=world.log._replace(records=records))


def _record(world: World, id_: Id) -> Record | None:
    return next((record for record in world.log.records if record.id == id_), None)


def _unsent(world: World) -> list[Message]:
    """Return the orders of unfinished transactions that were never sent."""
    found = []
    for record in world.log.records:
        word = {COMMITTING: COMMIT, ABORTING: ABORT}.get(record.state)
        for number in range(len(world.participants)):
            if word and number not in record.acknowledged:
                task = record.task if word == COMMIT else -1
                through = world.log.forgotten_through
                found.append(Message(word, number, record.id, task, through))
    return [message for message in found if message not in world.network]


def _name(id_: Id) -> str:
    return f"batch {id_[0]}, attempt {id_[1]}"


def _task(task: int) -> str:
    who = ("the task", "its twin")[task % ROUND]
    return who if task < ROUND else f"{who} in its second round"


def _who(number: int) -> str:
    return ("ledger", "notifier", "search")[number]
