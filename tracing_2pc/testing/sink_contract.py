"""A sink's promises as tests: subclass `SinkContract` in a test module.

A failure is a line for the author of the sink: the steps, the visible rows, and the
change to make.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import json
import logging
import threading
import traceback
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import pytest

from tracing_2pc.core.errors import (
    CommitPendingError,
    ContractError,
    HeuristicError,
    ParticipantNotToldError,
    TwoPhaseError,
)
from tracing_2pc.core.model import Receipt, TransactionRecord
from tracing_2pc.core.states import Decision
from tracing_2pc.sinks.base import Sink, check_job, check_leftovers, participants_of
from tracing_2pc.sinks.members import find_method
from tracing_2pc.spark.pickling import check_pickles
from tracing_2pc.store import open_log
from tracing_2pc.testing.promises import Contract, Records, broken, expect_rows
from tracing_2pc.testing.sink_job import (
    AT_ONCE,
    KILLS,
    JobAtOnce,
    SinkJob,
    SinkProcess,
    TaskFailedError,
    Tasks,
    after_decide,
    as_arrow,
    name_of,
    own_sinks,
)
from tracing_2pc.testing.traces import read_trace_file, span_tree

logger = logging.getLogger(__name__)

FIND_THEM = (
    "abort_transaction(transaction_id, keep) must find all that the transaction has "
    "prepared by its id, and drop what is not in keep"
)
BESIDE = "7.9"  # the branch that is prepared while its transaction is aborted

IDEMPOTENT = (
    "Whoever commits repeats it until it is acknowledged: commit must return without a "
    "change if the branch is visible already"
)


@dataclasses.dataclass
class World:
    """A sink under test, where it keeps its rows, and a job that writes to it."""

    contract: SinkContract
    where: Any
    job: SinkJob
    begun: list[TransactionRecord] = dataclasses.field(default_factory=list)

    @property
    def sink(self) -> Sink:
        """The sink of this process."""
        return self.job.sink

    def branches(self, batch: int, *names: str) -> dict[str, Records]:
        """Return the rows of a batch by branch, two for each partition."""
        return {name: self._rows(batch, int(name.partition(".")[0])) for name in names}

    def _rows(self, batch: int, partition: int) -> Records:
        first = 100 * batch + 2 * partition
        return [self.contract.record(first), self.contract.record(first + 1)]

    def apply(self, batch: int, write: Callable[[Tasks], Sequence[Receipt]]) -> bool:
        """Apply a batch; another test refuses an object that is no sink at all."""

        def noted(tasks: Tasks) -> Sequence[Receipt]:
            self.begun.append(tasks.record)
            return write(tasks)

        try:
            return self.job.apply(batch, noted)
        except ContractError as error:
            pytest.skip(f"first mend what another test says: {error}")

    def write(self, batch: int, *names: str) -> dict[str, Records]:
        """Apply a batch in these branches, and return its rows."""
        branches = self.branches(batch, *names)
        try:
            self.apply(batch, lambda tasks: tasks.write_all(branches))
        except Exception as error:
            logger.exception("a batch without any fault could not be committed")
            broken(
                f"Batch {batch} could not be committed, although nobody made it fail: "
                f"{type(error).__name__}: {error}"
            )
        return branches

    def fail(self, batch: int, write: Callable[[Tasks], object]) -> TransactionRecord:
        """Apply a batch of which a task fails; return the transaction, aborted."""

        def failing(tasks: Tasks) -> NoReturn:
            write(tasks)
            raise TaskFailedError("a task failed")

        with contextlib.suppress(TaskFailedError):
            self.apply(batch, failing)
        return self.record()

    def record(self) -> TransactionRecord:
        """Return the transaction that began last, as the log has it."""
        record = self.job.log.read(self.begun[-1].id)
        assert record is not None  # noqa: S101 - nothing is forgotten here
        return record

    def tell(self, record: TransactionRecord, verb: str, promise: str) -> None:
        """Tell every participant a decision; it must be acknowledged."""
        for name, participant in participants_of(self.sink).items():
            try:
                getattr(participant, verb)(record)
            except ParticipantNotToldError:
                pass  # it has no abort_transaction: one test is about that
            except Exception as error:  # noqa: BLE001 - whatever a sink raises
                broken(f"{name}: {verb} of {record.id} raised {error}. {promise}")

    def expect(self, *batches: Mapping[str, Records], when: str, promise: str) -> None:
        """Compare the visible rows with these, each of them once."""
        written = [row for batch in batches for rows in batch.values() for row in rows]
        expect_rows(written, self.contract.visible(self.where), when, promise)

    def expect_nothing_left(self, when: str, promise: str) -> None:
        """Fail if something is left that is prepared and will never be committed."""
        sinks = own_sinks(self.sink)
        if any(find_method(s, "abort_transaction") is None for s in sinks):
            return  # one test is about that
        if left := list(self.contract.leftovers(self.where) or ()):
            broken(f"{when}, {len(left)} leftovers stay: {left[0]!r}. {promise}")


class SinkContract(Contract):
    """The promises of a sink as tests of pytest.

    Subclass it, in a test module, with a name that begins with `Test`, and implement
    how your sink is made and its visible rows are read. A sink that keeps these
    promises loses and repeats nothing under `two_phase_commit`. The tests run the real
    coordinator on a SQLite log, without Spark; some of them kill a process, and go on
    in this one from the log.

    `where` is the argument that a test passes on: an empty folder, unless you override
    this fixture, for example by the address of a server that it starts. A promise that
    your store cannot keep is left out by `test_… = None` in your class.
    """

    def make_sink(self, where: Any) -> Sink:
        """Return your sink, as a job makes it. Called often, of the same place too."""
        raise NotImplementedError(f"{type(self).__name__}: define make_sink(where)")

    def leftovers(self, where: Any) -> Iterable[Any] | None:
        """Return rows that are written or prepared there and not visible.

        None: you cannot know. The tests then see less.
        """
        return None

    @pytest.fixture
    def world(self, where: Any, tmp_path: Path) -> Iterator[World]:
        """Return the sink at that place, under a job with an empty log."""
        with contextlib.closing(open_log(f"sqlite:///{tmp_path}/log.db")) as log:
            # A name of its own: what a process remembers of another test is no help.
            application = f"contract-{uuid.uuid4().hex[:6]}"
            sink = self.make_sink(where)
            with contextlib.suppress(ContractError):  # one test is about that
                check_job(sink, application)
            yield World(self, where, SinkJob(sink, log, application))

    # Rows that it refuses

    def test_a_row_that_is_refused_is_named(
        self, refused_row: Mapping[str, Any], world: World
    ) -> None:
        """It and no other, by its number in the branch; the others land."""
        branches = world.branches(0, "0.2", "1.2")
        good = [row for rows in branches.values() for row in rows]

        def write(tasks: Tasks) -> Sequence[Receipt]:
            asked = [*good[:2], refused_row, *good[2:]]
            self.expect_named(tasks.rejected("0.1", asked), [2])
            return tasks.write_all(branches)

        world.apply(0, write)
        promise = "A branch without the rows that were named is another one: take it"
        world.expect(branches, when="After a commit of the others", promise=promise)

    def test_a_row_that_nobody_sees_rejects_none(
        self, refused_row: Mapping[str, Any], world: World
    ) -> None:
        """Rows that an earlier try of the task has prepared get no row rejected."""
        branches = world.branches(0, "0.1")

        def write(tasks: Tasks) -> None:
            tasks.write_all(branches)
            named = tasks.rejected("0.7", [*branches["0.1"], refused_row])
            self.expect_good(named, [2])

        world.fail(0, write)

    def test_a_fault_of_the_schema_rejects_no_row(
        self, refused_row: Mapping[str, Any], world: World
    ) -> None:
        """A column that is not there, or is one too many, is the fault of no row."""
        world.write(0, "0.1")
        (rows,) = world.branches(1, "0.1").values()
        first, *_ = refused_row
        more = [{**row, "unheard_of": 1} for row in rows]
        less = [{n: v for n, v in row.items() if n != first} for row in rows]

        def write(tasks: Tasks) -> None:
            for branch, records in (("0.1", more), ("0.2", less)):
                self.expect_good(tasks.rejected(branch, records), [])

        world.fail(1, write)

    # What it is

    def test_it_has_every_phase(self, world: World) -> None:
        """The coordinator knows it as a sink, and it finds a task's leftovers."""
        try:
            participants_of(world.sink)
            check_leftovers(world.sink)
        except ContractError as error:
            broken(str(error))
        for own in own_sinks(world.sink):
            if find_method(own, "abort_transaction") is None:
                broken(
                    f"{type(own).__name__} has no abort_transaction(transaction_id, "
                    "keep): what a task prepares that is killed or retried stays "
                    f"prepared for ever. {FIND_THEM}"
                )

    def test_it_pickles(self, world: World) -> None:
        """Executors get it pickled."""
        try:
            check_pickles(world.sink)
        except ContractError as error:
            broken(str(error))

    def test_its_handle_is_plain_and_small(self, world: World) -> None:
        """The decision log keeps the handle as JSON, for a branch of any size."""
        sizes: dict[int, int] = {}

        def write(tasks: Tasks) -> Sequence[Receipt]:
            for number, rows in enumerate((1, 200)):
                records = [self.record(n) for n in range(rows)]
                receipts = tasks.write(f"{number}.{number}", records)
                sizes[rows] = max(len(json.dumps(r.handle)) for r in receipts)
            raise TaskFailedError

        try:
            with contextlib.suppress(TaskFailedError):
                world.job.apply(0, write)
        except ContractError as error:
            broken(str(error))
        if sizes[200] > sizes[1] + 400:
            broken(
                f"The handle has {sizes[1]} characters after one row and {sizes[200]} "
                "after 200: the decision log keeps it. Take the rows out in "
                "pre_commit, when they are durable at your store"
            )

    def test_commit_needs_nothing_but_the_handle(self, world: World) -> None:
        """Another copy of the sink commits: a task's memory ends with it."""
        there = self.make_sink(world.where)
        check_job(there, world.job.application)
        branches = world.branches(0, "0.1")
        promise = (
            "The task that wrote is gone then: keep in the handle, as plain values, "
            "what commit needs to find the branch"
        )
        try:
            world.apply(0, lambda tasks: Tasks(there, tasks.record).write_all(branches))
        except (CommitPendingError, HeuristicError) as error:
            broken(
                f"A copy of the sink could not commit the branch: {error}. {promise}"
            )
        world.expect(branches, when="After a commit by a copy", promise=promise)

    # What readers see

    def test_nothing_is_visible_before_commit(self, world: World) -> None:
        """Neither while a task writes, nor when all have prepared."""
        branches = world.branches(0, "0.1", "1.2")
        promise = (
            "pre_commit makes rows durable where no reader looks, commit shows them"
        )

        def write(tasks: Tasks) -> Sequence[Receipt]:
            receipts: list[Receipt] = []
            for branch, records in branches.items():

                def seen(records: Records = records) -> Iterator[Mapping[str, Any]]:
                    for record in records:
                        yield record
                        world.expect(when="After invoke", promise=promise)

                receipts += tasks.write(branch, seen())
                world.expect(when="After pre_commit", promise=promise)
            return receipts

        with contextlib.suppress(CommitPendingError):
            world.apply(0, write)

    def test_commit_makes_every_row_visible_once(self, world: World) -> None:
        """Of all partitions, batch after batch."""
        first = world.write(0, "0.1", "1.2", "2.3")
        promise = "commit makes all rows of its branch visible, and of no other"
        world.expect(first, when="After a batch in three partitions", promise=promise)
        second = world.write(1, "0.4", "1.5")
        world.expect(first, second, when="After the next batch", promise=promise)

    def test_a_batch_may_have_no_rows(self, world: World) -> None:
        """Then the sink has no branch, and the decision names no handle."""
        first = world.write(0, "0.1")
        promise = "Take an empty list of handles, and change nothing"
        try:
            world.apply(1, lambda tasks: tasks.write_all({"0.2": [], "1.3": []}))
            some = world.branches(2, "0.4")
            world.apply(2, lambda tasks: tasks.write_all({**some, "1.5": []}))
        except (CommitPendingError, HeuristicError) as error:
            broken(
                f"A batch with an empty partition was not committed: {error}. {promise}"
            )
        world.expect(first, some, when="After batches without rows", promise=promise)

    # What comes twice, late or never

    def test_commit_may_come_again(self, world: World) -> None:
        """An acknowledgement that is lost is asked for again."""
        first = world.write(0, "0.1", "1.2")
        record = world.record()
        world.tell(record, "commit", IDEMPOTENT)
        world.expect(first, when="After a second commit", promise=IDEMPOTENT)
        second = world.write(1, "0.3")
        world.tell(record, "commit", IDEMPOTENT)
        world.expect(first, second, when="After a late commit", promise=IDEMPOTENT)

    def test_abort_may_come_again(self, world: World) -> None:
        """And it may be about a transaction that the sink has never seen."""
        record = world.fail(0, lambda tasks: tasks.write_all(world.branches(0, "0.1")))
        promise = "An abort must return if there is nothing to drop"
        world.tell(record, "abort", promise)
        world.tell(record, "abort", promise)
        world.expect(when="After three aborts", promise="An abort shows no rows")

    def test_a_transaction_that_it_never_saw_can_be_aborted(self, world: World) -> None:
        """A task may fail before it has asked the sink for anything."""
        record = world.fail(0, lambda tasks: None)
        world.tell(record, "abort", "An abort must return if it knows nothing")

    @pytest.mark.parametrize("phase", ["begin", "invoke", "pre_commit"])
    def test_a_task_can_drop_its_branch_after(self, world: World, phase: str) -> None:
        """The task calls abort(handle) when it fails, wherever it has got to."""
        promise = f"abort(handle) must drop a branch after {phase}, and may come again"

        def write(tasks: Tasks) -> None:
            branch = tasks.begin("0.1")
            if phase != "begin":
                for record in world.branches(0, "0.1")["0.1"]:
                    branch.write(as_arrow(record))
            if phase == "pre_commit":
                branch.prepare()
            for _ in range(2):
                try:
                    getattr(world.sink, name_of(world.sink, "abort"))(branch._handle)
                except Exception as error:  # noqa: BLE001 - whatever a sink raises
                    broken(f"abort(handle) after {phase} raised {error!r}. {promise}")
            world.expect_nothing_left(f"After {phase} and abort(handle)", promise)

        world.fail(0, write)
        world.expect(when=f"After {phase} and abort(handle)", promise=promise)

    @pytest.mark.parametrize("phase", ["begin", "invoke", "pre_commit"])
    def test_a_task_may_fail_after(self, world: World, phase: str) -> None:
        """The attempt is aborted; the next attempt of the batch commits."""
        branches = world.branches(0, "0.1", "1.2")

        def write(tasks: Tasks) -> None:
            tasks.write("0.1", branches["0.1"])
            with raising_after(world.sink, phase):
                tasks.write("1.2", branches["1.2"])

        world.fail(0, write)
        when, promise = (
            f"After an attempt of which {phase} raised",
            ("What was prepared is dropped by abort(handle) and abort_transaction"),
        )
        world.expect(when=when, promise=promise)
        world.expect_nothing_left(when, promise)
        again = world.write(0, "0.3", "1.4")
        when = "After the second attempt"
        promise = "Another attempt has another transaction id: keep them apart"
        world.expect(again, when=when, promise=promise)
        world.expect_nothing_left(when, promise)

    def test_a_replayed_batch_is_there_once(self, world: World) -> None:
        """Spark may ask again for a batch that is committed."""
        branches = world.write(0, "0.1", "1.2")
        world.write(0, "0.3", "1.4")
        world.expect(branches, when="After a replay", promise=IDEMPOTENT)

    def test_a_commit_of_what_is_gone_raises(self, world: World) -> None:
        """Returning from `commit` means that the rows are visible."""
        receipts: list[Receipt] = []

        def write(tasks: Tasks) -> None:
            branch = tasks.begin("0.1")
            for record in world.branches(0, "0.1")["0.1"]:
                branch.write(as_arrow(record))
            receipts.extend(branch.prepare())
            branch.abort()

        record = dataclasses.replace(
            world.fail(0, write), receipts=tuple(receipts), decision=Decision.COMMIT
        )
        for name, participant in participants_of(world.sink).items():
            with contextlib.suppress(TwoPhaseError):
                participant.commit(record)
                broken(
                    f"{name}: commit returned for a branch that had been aborted, and "
                    "its rows are not visible. Raise if the branch is neither prepared "
                    "nor committed: a commit that returns counts as done for ever"
                )

    # Branches that no receipt names

    def test_of_two_twins_one_is_visible(self, world: World) -> None:
        """Two task attempts have written one partition; the decision names one."""
        batches = []
        for batch, twins in enumerate((("0.1", "0.2"), ("0.4", "0.3"))):
            branches = world.branches(batch, *twins, "1.9")

            def write(tasks: Tasks, chosen: str, branches: Any) -> list[Receipt]:
                receipts = tasks.write_all(branches)
                return [r for r in receipts if str(r.branch) in (chosen, "1.9")]

            chosen = twins[0]
            world.apply(batch, partial(write, chosen=chosen, branches=branches))
            batches.append({name: branches[name] for name in (chosen, "1.9")})
            when = "After a commit that named one of two task attempts of a partition"
            promise = "commit shows the branches that are named, and no other"
            world.expect(*batches, when=when, promise=promise)
            world.expect_nothing_left(when, FIND_THEM)

    def test_an_abort_drops_what_no_receipt_names(self, world: World) -> None:
        """A task has prepared and was killed before it could vote."""
        promise = FIND_THEM
        branches = world.branches(0, "0.1", "1.2")
        world.fail(0, lambda tasks: tasks.write_all(branches))
        when = "After an abort of two branches of which no receipt came"
        world.expect(when=when, promise=promise)
        world.expect_nothing_left(when, promise)

    def test_an_abort_drops_nothing_else(self, world: World) -> None:
        """Neither a transaction whose id begins alike, nor a committed branch."""
        promise = "abort_transaction drops what has exactly this transaction id"
        first = world.write(0, "0.1")
        records = [world.fail(1, lambda tasks: None) for _ in range(9)]
        second = world.branches(1, "0.1", "1.2")

        def write(tasks: Tasks) -> Sequence[Receipt]:
            receipts = tasks.write_all(second)
            for record in records:
                for participant in participants_of(world.sink).values():
                    with contextlib.suppress(TwoPhaseError):
                        participant.abort(record)
            return receipts

        try:
            world.apply(1, write)
        except (CommitPendingError, HeuristicError) as error:
            broken(
                f"{records[0].id} to {records[-1].id} were aborted while the next "
                f"attempt was prepared: it could not be committed: {error}. {promise}"
            )
        when = f"After aborts of {records[0].id} to {records[-1].id}"
        world.expect(first, second, when=when, promise=promise)

    @pytest.mark.parametrize("decision", ["commit", "abort"])
    def test_a_task_that_comes_after_the(self, world: World, decision: str) -> None:
        """Spark has given it up, and it prepares all the same."""
        branches = world.branches(0, "0.1")
        if decision == "commit":
            world.write(0, "0.1")
        else:
            world.fail(0, lambda tasks: tasks.write_all(branches))
        with contextlib.suppress(Exception):  # to be refused is what should happen
            Tasks(world.sink, world.record()).write("0.9", branches["0.1"])
        batch = 1 if decision == "commit" else 0
        committed = [branches] if batch else []
        when = f"After a task that prepared when the {decision} was done"
        promise = (
            "Nobody will end that branch: note in abort_transaction (or "
            "commit_transaction) that the transaction is over, and raise in pre_commit"
        )
        world.expect(*committed, when=when, promise=promise)
        committed.append(world.write(batch, "0.10"))
        when += ", and the commit of the next batch"
        world.expect(*committed, when=when, promise=promise)
        world.expect_nothing_left(when, promise)

    # At once

    @pytest.mark.parametrize("by", ["threads", "processes"])
    def test_batches_are_committed_at_once(
        self, world: World, tmp_path: Path, by: str
    ) -> None:
        """Jobs share a store; the queries of one driver may share the sink, too."""
        pickled = self._pickled(world)
        jobs: list[JobAtOnce] = []
        batches: list[dict[str, Records]] = []
        for number in range(AT_ONCE):
            mine = [world.branches(10 * number + n, "0.1", "1.2") for n in range(3)]
            name = f"{world.job.application}-at-once-{number}"
            arrow = [
                {branch: [*map(as_arrow, rows)] for branch, rows in batch.items()}
                for batch in mine
            ]
            about = (self._module(), tmp_path, pickled, name, number, arrow)
            jobs.append(JobAtOnce(*about))
            batches += mine

        def run(job: JobAtOnce) -> str:
            if by == "processes":
                return job.run()
            try:
                job.write_to(world.sink)
            except ContractError:
                raise
            except Exception:  # noqa: BLE001 - whatever a sink raises
                return traceback.format_exc()
            return "ended"

        try:
            with ThreadPoolExecutor(AT_ONCE) as pool:
                outcomes = set(pool.map(run, jobs)) - {"ended"}
        except ContractError as error:
            pytest.skip(f"first mend what another test says: {error}")
        when = f"After {AT_ONCE} jobs have committed at once, from {by}"
        promise = (
            "Other tasks, commits and aborts change the store meanwhile: do it in one "
            "local transaction, or in files of the branch's own"
        )
        for outcome in outcomes:
            logger.error("%s", outcome)
            broken(f"{when}, one raised {outcome.splitlines()[-1]}. {promise}")
        world.expect(*batches, when=when, promise=promise)
        world.expect_nothing_left(when, FIND_THEM)

    def test_an_abort_comes_while_a_task_prepares(self, world: World) -> None:
        """The driver has given up, and a task of it does not know that yet."""
        branches = world.branches(0, "0.1", BESIDE)

        def write(tasks: Tasks, pool: Executor, decided: threading.Event) -> None:
            tasks.write("0.1", branches["0.1"])
            branch = tasks.begin(BESIDE)
            for record in branches[BESIDE]:
                branch.write(as_arrow(record))
            pool.submit(lambda: decided.wait() and branch.prepare())

        for _ in range(AT_ONCE):
            decided = threading.Event()
            with ThreadPoolExecutor(1) as pool:
                try:
                    with after_decide(world.job.log, decided.set):
                        world.fail(0, partial(write, pool=pool, decided=decided))
                finally:
                    decided.set()  # it is waited for
        again = world.write(0, "0.3")
        when = "After aborts beside a task that prepared, and the commit of the batch"
        promise = (
            "In one local transaction pre_commit must look whether the transaction is "
            "over, and prepare; in one abort_transaction must note that, and drop"
        )
        world.expect(again, when=when, promise=promise)
        world.expect_nothing_left(when, promise)

    # Other processes

    @pytest.mark.parametrize("moment", KILLS)
    def test_a_process_is_killed(
        self, world: World, tmp_path: Path, moment: str
    ) -> None:
        """Driver and task are gone; this process goes on from the log alone."""
        first = world.branches(0, "0.1", "1.2")
        if moment == "between_two_commits":
            sinks = own_sinks(world.sink)
            if not sinks or any(hasattr(s, "commit_transaction") for s in sinks):
                pytest.skip("it is told a decision about all branches in one call")
        outcome = self._run_elsewhere(world, first, tmp_path, moment)
        when = f"After a kill {moment.replace('_', ' ')}"
        if outcome != "killed":
            broken(f"{when}: the process was to be killed, and instead {outcome}")
        promise = (
            "All that commit and abort need is in the handle or in the store, and both "
            "may come again"
        )
        try:
            world.apply(0, lambda tasks: tasks.write_all(first))
            second = world.write(1, "0.3")
        except Exception as error:
            logger.exception("could not go on")
            broken(f"{when}, the next start could not go on: {error}. {promise}")
        world.expect(first, second, when=when, promise=promise)
        world.expect_nothing_left(when, FIND_THEM)

    def test_its_phases_are_in_the_trace(self, world: World, tmp_path: Path) -> None:
        """One trace of a batch: each phase of each branch, and no span beside it."""
        pytest.importorskip("opentelemetry.sdk", reason="it makes the spans")
        branches = world.branches(0, "0.1", "1.2")
        outcome = self._run_elsewhere(world, branches, tmp_path)
        if outcome != "ended":
            broken(f"A batch in another process should have ended, and {outcome}")
        tree = span_tree(read_trace_file(tmp_path / "spans"))
        names = [line.strip() for line in tree]
        for name in {type(own).__name__ for own in own_sinks(world.sink)}:
            if f"{name}.begin" not in names:
                broken(
                    f"No phase of {name} is a span: put @traced_sink above the class"
                )
            for phase in ("begin", "pre_commit"):
                if (count := names.count(f"{name}.{phase}")) != len(branches):
                    broken(
                        f"{name}.{phase} is {count} spans in {len(branches)} branches: "
                        "see below\n" + "\n".join(tree)
                    )
        if [line for line in tree if not line.startswith(" ")] != [names[0]]:
            broken(
                "Spans stand outside of the transaction's trace: pass trace_headers() "
                "on where you start a thread or call a client other than requests\n"
                + "\n".join(tree)
            )

    def _run_elsewhere(
        self,
        world: World,
        branches: Mapping[str, Records],
        scratch: Path,
        moment: str | None = None,
    ) -> str:
        arrow = {name: [*map(as_arrow, rows)] for name, rows in branches.items()}
        pickled, url = self._pickled(world), f"sqlite:///{scratch}/log.db"
        about = (self._module(), scratch, pickled, url, world.job.application, arrow)
        try:
            return SinkProcess(*about).run(moment)
        except ContractError as error:
            pytest.skip(f"first mend what another test says: {error}")

    def _pickled(self, world: World) -> bytes:
        from pyspark import cloudpickle

        try:
            check_pickles(world.sink)
        except ContractError as error:
            pytest.skip(f"first mend what another test says: {error}")
        pickled: bytes = cloudpickle.dumps(world.sink)
        return pickled


@contextlib.contextmanager
def raising_after(sink: Sink, phase: str) -> Iterator[None]:
    """Let a phase do its work and then raise, in each sink that has it."""
    changed: list[tuple[Any, str]] = []
    for own in own_sinks(sink) or [sink]:
        batch = phase == "invoke" and hasattr(own, "invoke_batch")
        name = "invoke_batch" if batch else name_of(own, phase)
        object.__setattr__(own, name, _raising(getattr(own, name)))
        changed.append((own, name))
    try:
        yield
    finally:
        for own, name in changed:
            object.__delattr__(own, name)


def _raising(method: Callable[..., object]) -> Callable[..., NoReturn]:
    @functools.wraps(method)
    def raising(*arguments: Any) -> NoReturn:
        method(*arguments)
        raise TaskFailedError("the phase has done its work, and raised")

    return raising
