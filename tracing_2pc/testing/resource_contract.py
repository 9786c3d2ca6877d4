"""A resource's promises as tests: subclass `ResourceContract` in a test module.

A failure is a line for the author of the resource: the request, the answer or the
visible rows, and the change to make.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import io
import itertools
import operator
import pickle
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import pytest

from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import Refusal
from tracing_2pc.participant.answers import ANSWERS, Answer
from tracing_2pc.participant.engine import ParticipantEngine
from tracing_2pc.testing.answer_table import (
    ABORTED,
    COMMITTED,
    FORGOTTEN,
    GIVEN,
    IS_ABORTED,
    IS_COMMITTED,
    IS_PREPARED,
    PREPARED,
    REQUESTS,
    TABLE,
    UNKNOWN,
    abort,
    commit,
    commit_another,
    expect_answer,
    prepare,
)
from tracing_2pc.testing.other_process import OtherProcess, kill
from tracing_2pc.testing.promises import Contract, broken, expect_rows
from tracing_2pc.testing.resource_process import (
    Branch,
    Case,
    Interrupted,
    ResourceClient,
    at_once,
)

KILLS: Final = {
    "while_a_body_arrives": "body",
    "after_prepare": "participant.after_prepare",
    "in_commit": "deciding",
    "in_commit_between_two_branches": "participant.between_branches",
    "after_commit": "participant.after_commit",
    "in_abort": "deciding",
    "in_abort_between_two_branches": "participant.between_branches",
    "after_abort": "participant.after_abort",
}
"""Moments at which a process is killed: a failpoint, or a substitute for it."""

DURABLE = (
    "prepare makes rows and journal durable before it votes; nothing of it may be in "
    "the process's memory only"
)
ONE_STEP = (
    "A decision is noted and carried out so that the next request, of any process, "
    "finishes what a killed one began"
)
SEALED = (
    "commit and abort seal the transaction, also one that was never seen, and a "
    "prepare looks at the seal before it votes"
)
INVISIBLE = "prepare makes rows durable where no reader looks, commit shows them"
ONCE = "A repeated request changes nothing: answer from the journal"


@dataclasses.dataclass
class World:
    """A resource under test, where it keeps its rows, and its processes."""

    contract: ResourceContract
    where: Any
    numbers: Iterator[int] = dataclasses.field(default_factory=itertools.count)
    processes: list[ResourceClient] = dataclasses.field(default_factory=list)

    def start(self) -> ResourceClient:
        """Start a further process on the same place."""
        self.processes.append(ResourceClient(self.contract.make_resource(self.where)))
        return self.processes[-1]

    def restart(self) -> ResourceClient:
        """Close all processes, and start one."""
        self.close()
        return self.start()

    def close(self) -> None:
        """Close all processes."""
        while self.processes:
            self.processes.pop().engine.close()

    def case(self) -> Case:
        """Return an application of its own, with records that are not written yet."""
        name = f"contract-{uuid.uuid4().hex[:8]}"
        return Case(name, self.branch(), self.branch(), self.branch("0.2"))

    def branch(self, name: str = "0.1") -> Branch:
        """Return a branch of two new records."""
        rows = [self.contract.record(n) for n in itertools.islice(self.numbers, 2)]
        return Branch(name, rows)

    def expect(self, *branches: Branch, when: str, promise: str) -> None:
        """Compare the visible rows with those of these branches."""
        written = [row for branch in branches for row in branch.records]
        expect_rows(written, self.contract.visible(self.where), when, promise)


def expect_list(
    process: ResourceClient, case: Case, *open_: tuple[str, str], when: str
) -> None:
    """Compare the list with these prepared branches, by id and name."""
    seen = process.listed(case.application)
    want = sorted((id_, branch, "prepared") for id_, branch in open_)
    if seen != want:
        broken(
            f"{when}, the list of branches that are not sealed is {seen}, and has to "
            f"be {want}. Recovery and the watcher find nothing else: list each "
            "branch from its prepare to its seal"
        )


class ResourceContract(Contract):
    """The promises of a participant's resource as tests of pytest.

    Subclass it, in a test module, with a name that begins with `Test`, and implement
    how your resource is made and its visible rows are read. The tests ask the engine
    itself, without HTTP: twice, late, from several threads, in any state, and after a
    process that was killed. They need pyarrow and no Spark.

    `where` is the argument that a test passes on: an empty folder, unless you override
    this fixture, for example by the URL of an empty database. It has to pickle, and
    your class has to stand in its module: another process makes the resource, too.
    """

    def make_resource(self, where: Any) -> ParticipantEngine:
        """Return your resource, as a service makes it when it starts.

        Called again for the same place: the memory of earlier processes is gone.
        """
        raise NotImplementedError(f"{type(self).__name__}: define make_resource(where)")

    @pytest.fixture
    def world(self, where: Any) -> Iterator[World]:
        """Return the place, in which no process has made anything yet."""
        with contextlib.closing(World(self, where)) as world:
            yield world

    # Rows that it refuses

    def test_a_row_that_is_refused_is_named(
        self, refused_row: Mapping[str, Any], world: World
    ) -> None:
        """It and no other; nothing is prepared by the search, and the others land."""
        process, case = world.start(), world.case()
        good = [*case.one.records, *world.branch().records]
        asked = Branch("0.1", [*good[:2], refused_row, *good[2:]])
        self.expect_named(process.rejected(case.id(), asked), [2])
        expect_list(process, case, when="After a branch was refused")
        others = Branch("0.2", good)
        if self.names_rows and process.rejected(case.id(), others) is not None:
            broken("Without the rows that it has named a branch was refused again")
        answer = process.prepare(case.id(), others)
        expect_answer(answer, PREPARED, "A prepare of the others", TABLE)
        process.commit(case.id(), others)
        world.expect(others, when="After a commit of the others", promise=ONCE)

    @pytest.mark.parametrize("whose", ["an earlier try", "another transaction"])
    def test_a_row_that_nobody_sees_rejects_none(
        self, refused_row: Mapping[str, Any], world: World, whose: str
    ) -> None:
        """Prepared rows, equal to those of a branch, get no row of it rejected."""
        process, case = world.start(), world.case()
        attempt = 1 if whose == "an earlier try" else 2
        process.prepare(case.id(), case.one)
        asked = Branch("0.7", [*case.one.records, refused_row])
        self.expect_good(process.rejected(case.id(7, attempt), asked), [2])

    def test_a_fault_of_the_schema_rejects_no_row(
        self, refused_row: Mapping[str, Any], world: World
    ) -> None:
        """A column that is not there, or is one too many, is the fault of no row."""
        process, case = world.start(), world.case()
        commit(process, case)
        more = [{**row, "unheard_of": 1} for row in world.branch().records]
        first, *_ = refused_row
        less = [{n: v for n, v in row.items() if n != first} for row in more]
        for records in (more, less):
            named = process.rejected(case.id(8), Branch("0.1", records))
            self.expect_good(named, [])

    # What each request promises

    def test_a_vote_is_kept(self, world: World) -> None:
        """A prepared branch is still prepared in the next process, and can commit."""
        case = world.case()
        prepare(world.start(), case)
        after = world.restart()
        expect_list(after, case, (case.id(), "0.1"), when="After a restart")
        answer = after.commit(case.id(), case.one)
        expect_answer(answer, COMMITTED, "A commit after a restart", DURABLE)
        world.expect(case.one, when="After that commit", promise=DURABLE)

    def test_prepared_rows_are_invisible(self, world: World) -> None:
        """Until the commit, also after a restart."""
        case = world.case()
        prepare(world.start(), case)
        world.expect(when="After a prepare", promise=INVISIBLE)
        world.restart().show(case.id())
        world.expect(when="After a prepare and a restart", promise=INVISIBLE)

    def test_a_commit_shows_what_it_names(self, world: World) -> None:
        """Of two task attempts one; the other is aborted and cannot come back."""
        case, process = world.case(), world.start()
        prepare(process, case)
        process.prepare(case.id(), case.twin)
        process.commit(case.id(), case.twin)
        promise = "commit shows the branches that it names, and aborts all others"
        when = "After a commit that named one of two branches"
        world.expect(case.twin, when=when, promise=promise)
        expect_list(process, case, when=when)
        late = process.prepare(case.id(), case.one)
        expect_answer(late, IS_ABORTED, "A prepare of the other branch", promise)

    @pytest.mark.parametrize("wrong", ["unknown", "other content", "other rows"])
    def test_a_commit_is_all_or_nothing(self, world: World, wrong: str) -> None:
        """If one of its branches cannot be committed, none is."""
        case, process = world.case(), world.start()
        prepare(process, case)
        if wrong != "unknown":
            process.prepare(case.id(), case.twin)
        named = Branch("0.2", case.other.records)
        if wrong == "other rows":
            named = Branch("0.2", case.twin.records[:1])
        answer = process.commit(case.id(), case.one, named)
        expected = UNKNOWN if wrong == "unknown" else IS_PREPARED
        promise = "commit compares every branch with its name, rows and digest first"
        request = f"A commit of which one branch is {wrong}"
        expect_answer(answer, expected, request, promise)
        world.expect(when=f"After {request.lower()}", promise=promise)

    def test_a_commit_of_something_unknown_is_refused(self, world: World) -> None:
        """Rows that are not here are not acknowledged, for they are lost."""
        case, process = world.case(), world.start()
        promise = "An acknowledgement counts for ever: never give one for lost rows"
        answer = process.commit(case.id(), case.one)
        expect_answer(answer, UNKNOWN, "A commit of something unknown", promise)

    def test_an_abort_of_something_unknown_is_remembered(self, world: World) -> None:
        """A prepare that comes after its abort is refused, also after a restart."""
        case, process = world.case(), world.start()
        answer = process.abort(case.id())
        expect_answer(answer, ABORTED, "An abort of something unknown", SEALED)
        late = process.prepare(case.id(), case.one)
        expect_answer(late, IS_ABORTED, "A prepare after the abort", SEALED)
        late = world.restart().prepare(case.id(), case.one)
        expect_answer(late, IS_ABORTED, "A prepare after abort and restart", SEALED)

    def test_an_abort_drops_all_branches(self, world: World) -> None:
        """Nothing is visible, and nothing is listed."""
        case, process = world.case(), world.start()
        process.prepare(case.id(), case.twin)
        abort(process, case)
        expect_list(process, case, when="After an abort")
        expect_list(world.restart(), case, when="After an abort and a restart")
        world.expect(when="After an abort", promise="An abort shows no rows")

    @pytest.mark.parametrize("given", ANSWERS)
    def test_it_answers_by_the_table(self, world: World, given: str) -> None:
        """Each request, of a transaction in each state."""
        process = world.start()
        for asked, expected in ANSWERS[given].items():
            case = world.case()
            GIVEN[given](process, case)
            answer = REQUESTS[asked](process, case)
            request = f"With a transaction that is {given}, {asked!r}"
            expect_answer(answer, expected, request, TABLE)

    def test_a_batch_is_committed_once(self, world: World) -> None:
        """An attempt that was prepared before cannot commit after another one."""
        case, process = world.case(), world.start()
        commit_another(process, case)
        promise = "A batch commits once: refuse what is of another attempt"
        late = process.prepare(case.id(), case.twin)
        expect_answer(late, IS_COMMITTED, "A prepare of another attempt", promise)
        case = dataclasses.replace(world.case(), one=world.branch())
        prepare(process, case)
        process.prepare(case.id(attempt=2), case.twin)
        process.commit(case.id(attempt=2), case.twin)
        late = world.restart().commit(case.id(), case.one)
        expect_answer(late, UNKNOWN, "A commit of another attempt", promise)

    # What comes twice, late, or at the same time

    @pytest.mark.parametrize("asked", ["prepare same", "commit", "abort"])
    def test_a_request_may_come_twice(self, world: World, asked: str) -> None:
        """It has the same answer and no further effect, also after a restart."""
        case, process = world.case(), world.start()
        prepare(process, case)
        expected = ANSWERS["prepared"][asked]
        rows = [case.one] if asked == "commit" else []
        for when in ("", " again", " after a restart"):
            process = world.restart() if "restart" in when else process
            answer = REQUESTS[asked](process, case)
            expect_answer(answer, expected, f"{asked}{when}", ONCE)
            world.expect(*rows, when=f"After {asked}{when}", promise=ONCE)

    @pytest.mark.parametrize("asked", ["prepare same", "commit", "abort"])
    def test_two_threads_ask_at_once(self, world: World, asked: str) -> None:
        """In two processes' worth of the resource: both are answered, one effect."""
        first, second = world.start(), world.start()
        rows = []
        for _ in range(3):
            case = world.case()
            if asked != "prepare same":
                prepare(first, case)
            ask = [functools.partial(REQUESTS[asked], p, case) for p in (first, second)]
            for answer in at_once(*ask, *ask):
                expected = ANSWERS["prepared"][asked]
                expect_answer(answer, expected, f"One of four times {asked!r}", ONCE)
            if asked == "prepare same":
                first.commit(case.id(), case.one)
            rows += [] if asked == "abort" else [case.one]
            world.expect(*rows, when=f"After four times {asked!r}", promise=ONCE)

    def test_of_commit_and_abort_one_holds(self, world: World) -> None:
        """Asked for at once, one is obeyed, and the other is refused."""
        first, second = world.start(), world.start()
        rows = []
        promise = "A decision reads the journal and writes it under one exclusive lock"
        for _ in range(5):
            case = world.case()
            prepare(first, case)
            committed, aborted = at_once(
                functools.partial(first.commit, case.id(), case.one),
                functools.partial(second.abort, case.id()),
            )
            won = committed.refusal is None
            expected = (COMMITTED, IS_COMMITTED) if won else (IS_ABORTED, ABORTED)
            expect_answer(committed, expected[0], "commit beside an abort", promise)
            expect_answer(aborted, expected[1], "abort beside a commit", promise)
            rows += [case.one] if won else []
            world.expect(*rows, when="After commit and abort at once", promise=promise)

    def test_an_abort_comes_while_a_body_arrives(self, world: World) -> None:
        """It does not wait, and the prepare finds out when its body has ended."""
        case, process, second = world.case(), world.start(), world.start()
        aborted: list[Answer] = []

        def abort_now() -> None:
            # Not in the thread that prepares: it may hold what its own thread gets.
            aborted.extend(at_once(lambda: second.abort(case.id())))

        stream = Interrupted(case.one.body, abort_now)
        vote = process.prepare_once(case.id(), case.one, stream)
        promise = (
            "Under the application's lock, prepare asks add, and keeps nothing if it "
            "refuses"
        )
        expect_answer(aborted[0], ABORTED, "An abort during a prepare", promise)
        expect_answer(vote, IS_ABORTED, "A prepare that ended after it", promise)
        expect_list(process, case, when="After a prepare that ended after its abort")
        world.expect(when="After a prepare that ended too late", promise=promise)

    @pytest.mark.parametrize("fault", ["cut", "digest", "rows"])
    def test_a_body_that_is_not_whole_is_refused(
        self, world: World, fault: str
    ) -> None:
        """And leaves nothing: the whole body can be sent after it."""
        case, process = world.case(), world.start()
        ref, body = case.one.ref, case.one.body
        if fault == "cut":
            body = body[:-9]
        if fault == "digest":
            ref = dataclasses.replace(ref, digest=case.other.ref.digest)
        if fault == "rows":
            ref = dataclasses.replace(ref, rows=3)
        answer = process.prepare_once(case.id(), case.one, io.BytesIO(body), ref)
        promise = "Before it votes, prepare calls upload.verify with the rows it wrote"
        malformed = (Refusal.MALFORMED, answer.state)
        request = f"A prepare with a wrong {fault}" if fault != "cut" else "A cut body"
        expect_answer(answer, malformed, request, promise)
        expect_list(process, case, when=f"After {request.lower()}")
        commit(process, case)
        when = f"After {request.lower()}, and the whole one committed"
        world.expect(case.one, when=when, promise="Drop what a refused body has left")

    # What is remembered

    def test_the_list_is_complete(self, world: World) -> None:
        """Every prepared branch of every transaction, before and after a restart."""
        case, process = world.case(), world.start()
        open_ = [(case.id(batch), b) for batch in (7, 8) for b in ("0.1", "0.2", "1.3")]
        for id_, name in open_:
            process.prepare(id_, world.branch(name))
        process.prepare(case.id(9), case.one)
        process.commit(case.id(9), case.one)
        process.prepare(case.id(10), case.twin)
        process.abort(case.id(10))
        expect_list(process, case, *open_, when="With six branches prepared")
        expect_list(world.restart(), case, *open_, when="After a restart")

    def test_forgotten_through_never_falls(self, world: World) -> None:
        """At or below it all is refused, also after a lower one and a restart."""
        case, process = world.case(), world.start()
        commit(process, case)
        promise = "Keep forgotten_through, and only ever raise it"
        process.commit(case.id(20), forgotten_through=15)
        for when in ("", ", and a lower one", ", and a restart"):
            if "lower" in when:
                process.commit(case.id(20), forgotten_through=3)
            if "restart" in when:
                process = world.restart()
            request = f"After forgotten_through 15{when}, a prepare of batch 15"
            late = process.prepare(case.id(15), case.twin)
            expect_answer(late, FORGOTTEN, request, promise)
        world.expect(case.one, when="After all that", promise="Forget no rows")

    def test_what_is_sealed_is_remembered(self, world: World) -> None:
        """Above forgotten_through, commits and aborts."""
        case, process = world.case(), world.start()
        commit(process, case)
        process.abort(case.id(8))
        process.commit(case.id(9), forgotten_through=6)
        process = world.restart()
        promise = "Keep each seal until forgotten_through has passed its batch"
        late = process.prepare(case.id(7), case.one)
        expect_answer(late, IS_COMMITTED, "A prepare of a committed batch", promise)
        late = process.prepare(case.id(8), case.twin)
        expect_answer(late, IS_ABORTED, "A prepare of an aborted one", promise)

    # Processes that are killed

    @pytest.mark.parametrize("moment", KILLS)
    def test_a_process_is_killed(
        self, world: World, tmp_path: Path, moment: str
    ) -> None:
        """The next process, asked again as a job does, ends it as was decided."""
        case = world.case()
        outcome = self._run_elsewhere(world, case, tmp_path, moment)
        if outcome == "ended" and moment.endswith("between_two_branches"):
            pytest.skip("it ends all branches of a transaction in one step")
        when = f"After a kill {moment.replace('_', ' ')}"
        if outcome != "killed":
            broken(f"{when}: the process was to be killed, and instead {outcome}")
        process = world.start()
        if "abort" in moment:
            self._expect_aborted(world, process, case, when)
            return
        branches = [case.one, case.twin] if "commit" in moment else [case.one]
        if "commit" not in moment:
            if moment == "after_prepare":
                expect_list(process, case, (case.id(), "0.1"), when=when)
            world.expect(when=when, promise=INVISIBLE)
            again = process.prepare(case.id(), case.one)
            expect_answer(again, PREPARED, f"{when}, the same prepare", DURABLE)
        answer = process.commit(case.id(), *branches)
        expect_answer(answer, COMMITTED, f"{when}, the commit", ONE_STEP)
        world.expect(*branches, when=f"{when} and the commit", promise=ONE_STEP)
        expect_list(process, case, when=f"{when} and the commit")

    def _expect_aborted(
        self, world: World, process: ResourceClient, case: Case, when: str
    ) -> None:
        answer = process.abort(case.id())
        expect_answer(answer, ABORTED, f"{when}, the abort", ONE_STEP)
        late = process.prepare(case.id(), case.one)
        expect_answer(late, IS_ABORTED, f"{when}, a late prepare", SEALED)
        expect_list(process, case, when=f"{when} and the abort")
        world.expect(when=f"{when} and the abort", promise=ONE_STEP)

    def _run_elsewhere(
        self, world: World, case: Case, scratch: Path, moment: str
    ) -> str:
        name = type(self).__qualname__
        other = ResourceProcess(self._module(), scratch, name, world.where, case)
        try:
            pickle.dumps(other)
        except Exception as error:  # noqa: BLE001 - whatever its parts raise
            broken(f"`where` does not pickle, and another process needs it: {error}")
        return other.run(moment)


@dataclasses.dataclass(frozen=True)
class ResourceProcess(OtherProcess):
    """A process that prepares and ends a transaction until it is killed."""

    contract: str  # name of the author's class in its module
    where: Any  # the place of the resource
    case: Case  # the transaction

    def apply(self, moment: str | None) -> None:
        """Send the requests that are to be cut short, here."""
        contract = operator.attrgetter(self.contract)(self.import_module())()
        process = ResourceClient(contract.make_resource(self.where))
        id_, branch, twin = self.case.id(), self.case.one, self.case.twin
        point = KILLS[str(moment)]
        if point == "body":
            process.prepare_once(id_, branch, Interrupted(branch.body, kill))
        if moment == "after_prepare":
            self.arm(point)
        process.prepare(id_, branch)
        process.prepare(id_, twin)
        if point == "deciding":
            kill_before_the_end(process.engine)
        else:
            self.arm(point)
        if "commit" in str(moment):
            process.commit(id_, branch, twin)
        process.abort(id_)


def kill_before_the_end(engine: ParticipantEngine) -> None:
    """Kill the process when a decision is written, and not durable yet."""
    store: Any = engine._store
    deciding = store.deciding

    @contextlib.contextmanager
    def killing(transaction: TransactionId) -> Iterator[Any]:
        with deciding(transaction) as read:
            yield read
            kill()

    store.deciding = killing
