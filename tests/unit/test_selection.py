"""Nothing rots in `nightly`: `make ci` tries something of each thing."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from pathlib import Path

import pytest
from crash.points import OUTSIDE
from support.seconds import literals
from support.selection import TARGETS, everything, group_of

from tracing_2pc.core.names import FAILPOINTS

WAYS_INTO_SPARK = {
    "foreachBatch, by executors": "test_each_batch_lands_in_both[executors]",
    "foreachBatch, by the driver": "test_each_batch_lands_in_both[driver]",
    "a stream by the data source": "test_each_batch_of_a_stream_lands_in_both",
    "a DataFrame by the data source": "test_data_source.py::test_a_dataframe_is_one",
    "Connect, by the data source": "stop_loses_nothing[data source]",
    "Connect, by a callback": "stop_loses_nothing[callback]",
    "the driver is killed": "test_the_driver_is_killed[driver]",
    "executors are killed": "test_the_driver_is_killed[executors]",
    "the data source is killed": "test_the_driver_is_killed[data source]",
    "an executor of a cluster": "test_an_executor_is_killed_before_its_task",
}


@pytest.fixture
def in_ci(request) -> list[str]:
    """The ids of all tests that `make ci` runs."""
    items = everything(request.config)
    return [i.nodeid for i in items if not i.get_closest_marker("nightly")]


def test_each_file_is_tried(request, in_ci):
    """But for those that ask a program which has a target of its own."""
    files = defaultdict(set)
    for item in everything(request.config):
        marks = {mark.name for mark in item.iter_markers()}
        files[item.nodeid.partition("::")[0]] |= marks & TARGETS or {"none"}
    expected = {file for file, targets in files.items() if "none" in targets}
    assert expected - {node.partition("::")[0] for node in in_ci} == set()


@pytest.mark.parametrize("point", [*FAILPOINTS, *OUTSIDE])
def test_each_failpoint_is_tried(in_ci, point):
    """A process is killed there, with one kind of participant at least."""
    room = point.partition(".")[0]
    elsewhere = {"relay": "test_relays.py", "inbox": "test_gateway_killed.py"}
    elsewhere["iceberg"] = "test_iceberg_sink.py"
    elsewhere["delta"] = "test_delta_s3.py"
    elsewhere["launch"] = "test_launch_killed.py"
    elsewhere["rejects"] = "test_script_killed.py"
    file = elsewhere.get(room, "test_crash.py")
    assert [n for n in in_ci if file in n and re.search(rf"[\[-]{point}\]$", n)]


@pytest.mark.parametrize(
    "kind",
    [
        *("TaggedRows", "TaggedRowsOnPostgresql", "PreparedTransactions"),
        *("Outbox", "OutboxOnPostgresql", "Relay", "Files"),
    ],
)
def test_each_kind_of_participant_is_tried(in_ci, kind):
    """By the kit of its contract, on each database that it can be on."""
    kit = f"test_resource_contract.py::Test{kind}::"
    assert [n for n in in_ci if kit in n and "_a_process_is_killed[" in n]


@pytest.mark.parametrize("way", WAYS_INTO_SPARK)
def test_each_way_into_spark_is_tried(in_ci, way):
    assert [node for node in in_ci if WAYS_INTO_SPARK[way] in node]


def test_tests_with_one_session_are_one_group(request):
    """A second group would start a second Spark; a kill must not share one."""
    for item in everything(request.config):
        shared = "spark" in getattr(item, "fixturenames", ())
        assert shared <= (group_of(item.nodeid) == "spark"), item.nodeid


@pytest.mark.parametrize(
    ("line", "is_found"),
    [
        ("thread.join(60)", True),
        ("time.sleep(1.5)", True),
        ("run(command, timeout=60)", True),
        ("Settings(request_timeout=2 * 0.1)", True),
        ("assert time.monotonic() - started < 5", True),
        ("SECONDS = 3", True),
        ("thread.join(AT_LAST)", False),
        ("', '.join(words)", False),
        ("Settings(transaction_timeout=0)", False),
        ("range(60)", False),
    ],
)
def test_a_number_of_seconds_is_found(line, is_found):
    """Where something waits for it, or may."""
    assert list(literals(ast.parse(line))) == ([1] if is_found else [])


def test_each_sentence_is_looked_for():
    """An entry of `texts.toml` that no test names is of no use."""
    from support.texts import ALL

    files = Path(__file__).parents[1].rglob("*.py")
    written = "\n".join(file.read_text(encoding="utf-8") for file in files)
    named = {(s, name) for s, sentences in ALL.items() for name in sentences}
    assert {pair for pair in named if f'"{pair[1]}"' not in written} == set()
