"""Real Spark, real services, SIGKILL inside a transaction: each batch lands once."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator

import pytest
from support.killed import Crash
from support.spark import write_numbers
from support.stream_world import NEEDS_ARROW_WRITERS
from support.tracing import read_trace_file, span_tree
from support.waiting import AT_LAST

from participants.processes import answers, stopping
from tracing_2pc.core.states import TransactionState
from tracing_2pc.testing import Fault

BATCHES = 6
pytestmark = pytest.mark.spark


@pytest.fixture
def crash(tmp_path) -> Iterator[Crash]:
    with contextlib.ExitStack() as stack:
        crash = Crash(tmp_path, stack, "spark/job.py")
        write_numbers(tmp_path, range(BATCHES))
        stack.enter_context(stopping(crash.a, crash.b, crash.job))
        yield crash


STATES = TransactionState
BETWEEN = "delivery.between_commits:3"
"""The third acknowledgement is that of a, for a commit that never reaches b."""

EXECUTORS = [
    # failpoint, what was under way then and its state, rows that readers of a and b see
    ("executor.after_first_prepare:2", "crash.1.1", STATES.ACTIVE, (10, 10)),
    ("driver.after_decide:2", "crash.2.1", STATES.COMMITTING, (20, 20)),
    (BETWEEN, "crash.3.1", STATES.COMMITTING, (40, 30)),
    ("driver.after_finish:1", "crash.4.1", STATES.COMMITTED, (50, 50)),
]
IN_DRIVER = [  # a branch's failpoints are in the process that writes it
    *(
        (f"executor.{point}:1", f"crash.0.{attempt}", STATES.ACTIVE, (0, 0))
        for attempt, point in enumerate(
            ("before_begin", "before_pre_commit", "after_first_prepare"), 1
        )
    ),
    ("executor.after_pre_commit:2", "crash.1.1", STATES.ACTIVE, (10, 10)),
    ("driver.after_decide:2", "crash.2.1", STATES.COMMITTING, (20, 20)),
    (BETWEEN, "crash.3.1", STATES.COMMITTING, (40, 30)),
]

IN_RECOVERY = "delivery.between_commits:1"
"""The first acknowledgement of a life: by a, in a task that recovers, then opens."""
DATA_SOURCE = [  # its steps are in tasks, and in a process of Spark's that commits
    ("driver.after_begin", "crash.0.1", STATES.ACTIVE, (0, 0)),
    ("executor.after_first_prepare", "crash.0.2", STATES.ACTIVE, (0, 0)),
    ("driver.before_decide:2", "crash.1.1", STATES.ACTIVE, (10, 10)),
    ("driver.after_decide:1", "crash.1.2", STATES.COMMITTING, (10, 10)),
    (IN_RECOVERY, "crash.1.2", STATES.COMMITTING, (20, 10)),
    ("driver.after_finish:1", "crash.2.1", STATES.COMMITTED, (30, 30)),
]
PREPARED_AT_ONE = ("executor.after_first_prepare:2", "crash.1.1", STATES.ACTIVE)
TWICE = [  # where one participant has prepared, and where one has committed
    (*PREPARED_AT_ONE, (10, 10)),
    ("delivery.between_commits:1", "crash.1.2", STATES.COMMITTING, (20, 10)),
]
COMMIT_PROCESS = [
    ("driver.before_decide:2", "crash.1.1", STATES.ABORTED, (10, 10)),
    ("driver.after_decide:1", "crash.1.2", STATES.COMMITTING, (10, 10)),
    ("driver.after_finish:1", "crash.2.1", STATES.COMMITTED, (30, 30)),
]
PATHS = {"executors": {}, "driver": {"IN_DRIVER": "1"}, "source": {"DATA_SOURCE": "1"}}
COMMITTED = STATES.COMMITTED


@pytest.mark.parametrize(
    ("path", "lives", "attempts"),
    [
        pytest.param("executors", TWICE, {"crash.1.2": COMMITTED}, id="executors"),
        pytest.param("driver", TWICE, {"crash.1.2": COMMITTED}, id="driver"),
        pytest.param(
            "source",
            TWICE,
            {"crash.1.2": COMMITTED},
            id="data source",
            marks=NEEDS_ARROW_WRITERS,
        ),
        pytest.param(
            "executors",
            EXECUTORS,
            {"crash.1.2": COMMITTED, "crash.2.2": None},
            id="executors, every step",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "driver",
            IN_DRIVER,
            {"crash.0.4": COMMITTED, "crash.1.2": COMMITTED},
            id="driver, every step",
            marks=pytest.mark.nightly,
        ),
        pytest.param(
            "source",
            DATA_SOURCE,
            {"crash.0.3": COMMITTED, "crash.1.3": None, "crash.2.2": None},
            id="data source, every step",
            marks=[NEEDS_ARROW_WRITERS, pytest.mark.nightly],
        ),
    ],
)
def test_the_driver_is_killed(crash, path, lives, attempts):
    """Whatever step a driver dies at, the next one makes its batch whole, once."""
    crash.a.start()
    crash.b.start()
    for failpoint, transaction, state, rows in lives:
        if failpoint == BETWEEN:
            crash.to_b.plan("commit", Fault.DELAY, after=0.0)  # the first of this life
        if failpoint.startswith("delivery.between_commits"):
            # It tries again until it dies, and of the data source both tasks do.
            crash.to_b.plan("commit", Fault.DROP, times=10_000)
        way = crash.arm(failpoint) | PATHS[path]
        assert crash.run(**way) == -9, crash.job.tail()
        crash.to_b.clear()
        assert crash.fired(failpoint)
        assert crash.state(transaction) is state
        assert crash.totals() == rows
    assert crash.run(**PATHS[path]) == 0, crash.job.tail()
    crash.assert_exactly_once(BATCHES)
    for transaction, state in attempts.items():
        assert crash.state(transaction) is state


@pytest.mark.parametrize(
    "path",
    [
        pytest.param("executors", marks=pytest.mark.ci),
        pytest.param("driver", marks=pytest.mark.nightly),
        pytest.param("source", marks=[NEEDS_ARROW_WRITERS, pytest.mark.nightly]),
    ],
)
def test_a_job_without_services_is_killed(crash, path):
    """In a task, the driver or a delivery: the next life makes each batch whole."""
    crash.leave_services_out()
    for failpoint in (
        "participant.after_prepare:3",
        "driver.after_decide:2",
        "participant.before_commit:2",
        "participant.after_commit:3",
    ):
        way = crash.arm(failpoint) | PATHS[path]
        assert crash.run(**way) == -9, crash.job.tail()
        assert crash.fired(failpoint)
    assert crash.run(**PATHS[path]) == 0, crash.job.tail()
    crash.assert_exactly_once(BATCHES)


def test_a_participant_is_killed_after_prepare(crash):
    """Prepared and killed: it comes back with its branch, and obeys the decision."""
    crash.a.start()
    crash.b.start(**crash.arm("participant.before_commit:2"))
    crash.job.start()
    assert crash.b.wait(AT_LAST) == -9
    assert crash.fired("participant.before_commit")
    assert not answers(f"{crash.b.url}/health/ready")
    assert crash.state("crash.1.1") is STATES.COMMITTING
    assert crash.totals()[1] == 10
    crash.b.start()
    assert crash.job.wait(AT_LAST) == 0, crash.job.tail()
    crash.assert_exactly_once(BATCHES)


@NEEDS_ARROW_WRITERS
@pytest.mark.parametrize(
    "lives",
    [
        pytest.param(COMMIT_PROCESS[:1], id="before its decision"),
        pytest.param(COMMIT_PROCESS, id="every step", marks=pytest.mark.nightly),
    ],
)
def test_the_process_that_commits_is_killed(crash, lives):
    """A data source's own: Spark asks another one to abort, and that asks the log."""
    crash.a.start()
    crash.b.start()
    path = {"DATA_SOURCE": "1", "ALONE": "1"}
    for failpoint, transaction, state, rows in lives:
        assert crash.run(**crash.arm(failpoint), **path) == 1, crash.job.tail()
        assert crash.fired(failpoint)
        assert crash.state(transaction) is state
        assert crash.totals() == rows
    assert crash.run(**path) == 0, crash.job.tail()
    crash.assert_exactly_once(BATCHES)


@NEEDS_ARROW_WRITERS
def test_a_batch_by_the_data_source_is_one_trace(crash):
    """Its steps are in many processes, which may begin it at once: one root."""
    crash.a.start()
    crash.b.start()
    file = crash.folder / "trace"
    assert crash.run(DATA_SOURCE="1", TPC_TRACE_FILE=str(file)) == 0, crash.job.tail()
    lines = read_trace_file(file)
    known = {line["span_id"] for line in lines} | {None}
    assert [line["name"] for line in lines if line["parent_id"] not in known] == []
    for batch in range(BATCHES):
        id_ = f"crash.{batch}.1"
        mine = [s for s in lines if s["attributes"].get("tpc.transaction.id") == id_]
        trace = [s for s in lines if s["trace_id"] == mine[0]["trace_id"]]
        tree = span_tree(trace)
        assert [line for line in tree if not line.startswith(" ")] == [tree[0]]
        steps = Counter(
            line[2:] for line in tree if line[:3].strip(" ") and line[0] == " "
        )
        assert steps.pop("tpc.begin") >= 1  # tasks that came together
        assert steps == {
            "tpc.branch": 2,
            "tpc.decide": 1,
            "tpc.deliver": 1,
            "tpc.finish": 1,
        }
