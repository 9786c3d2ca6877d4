"""A plugin: what `make test` leaves to `make test-all`, and what begins first.

Left out are variants: `make test` runs another one of the same promise, on each real
thing once. A test that has no such variant and takes long is marked `more` itself.
"""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pytest
from xdist.scheduler import LoadScopeScheduling

DURATIONS = Path(__file__).with_name("durations.json")
"""Seconds that each group of tests takes, by `python -m support.durations`."""

COLLECTED = pytest.StashKey[list[pytest.Item]]()
"""Every test that was collected, whatever is left out."""

SPARK_SMOKES = (
    "test_foreach_batch.py::test_each_batch_lands_in_both[executors]",
    "test_foreach_batch.py::test_a_task_that_fails_after_prepare_leaves_no_twin",
    "test_foreach_batch.py::test_a_replayed_batch_is_recognised[driver]",
    "test_data_source.py::test_each_batch_of_a_stream_lands_in_both",
    "test_driver_path.py::test_the_size_of_the_batch_before_decides",
    "test_foreach_batch.py::test_a_sink_of_ones_own",
)
"""What `make test` tries on a real Spark."""

STAND_ALONE = (
    "crash/test_crash.py",
    "spark/test_adopt.py",
    "spark/test_connect.py",
    "spark/test_crash.py",
    "spark/test_demo.py",
    "spark/test_fencing.py",
    "spark/test_several_sinks.py",
    "spark/test_spark_writers.py",
    "spark/test_stateful_queries.py",
)
"""Files whose tests start processes of their own, which take long: a group each."""

SHARE_SPARK = ("spark/",)
"""Where the others have the one session of `spark/conftest.py`."""

CLUSTER_SMOKES = (
    "test_lost_executors.py::test_an_executor_is_killed_before_its_task_reports",
    "test_lost_executors.py::test_an_executor_dies_between_the_routes",
)
"""What `make test-more` tries on a cluster; `make test-cluster` tries all."""

CLUSTER = "TPC_CLUSTER"
"""The variable that asks for all of it."""

CRASHES = (
    "driver.after_decide",
    "executor.after_first_prepare",
    "delivery.between_commits",
    "recovery.after_expire",
    "participant.after_prepare",
    "outbox.after_call",
    "files.between_renames",
    "log.in_commit",
    "postgresql.in_prepare",
)
"""Points at which `make test` kills a process; `make test-all` does at each."""

A_KILL = "crash/test_crash.py::test_a_kill_at_a_point_costs_nothing["

MORE = (
    ("contract/", "Files-"),
    ("contract/", "Outbox-postgresql"),
    ("contract/", "Outbox-sqlite"),
    ("contract/", "TaggedRows-postgresql"),
    ("contract/", "ClaimedRows-postgresql"),
    ("contract/test_answers_concurrent.py", "postgresql]"),
    ("contract/test_answers_killed.py", "Outbox"),
    ("contract/test_answers_killed.py", "PreparedTransactions"),
    ("contract/test_decision_log.py", "[postgresql"),
    ("contract/test_decision_log_sql.py", "processes_agree[sqlite]"),
    ("contract/test_existing_tables.py", "[postgresql"),
    ("contract/test_external_branches.py", "cut_short"),
    ("contract/test_external_branches.py", "the_rest_of"),
    ("contract/test_faults.py", "::"),
    ("contract/test_outbox.py", "[postgresql]"),
    ("contract/test_prepared_transactions.py", "half_done_commit_that_is_rolled_back"),
    ("contract/test_prepared_transactions.py", "half_done_decision_outlives"),
    ("contract/test_prepared_transactions.py", "lost_at_any_statement[abort]"),
    ("contract/test_prepared_transactions.py", "lost_at_any_statement[prepare]"),
    ("contract/test_prepared_transactions_server.py", "::"),
    ("contract/test_resource_contract.py", "killed["),
    ("contract/test_sink_contract.py", "InOneCall::"),
    ("contract/test_sink_contract.py", "killed["),
    ("contract/test_stateful_participant.py", "Outbox"),
    ("contract/test_stateful_participant.py", "PreparedTransactions"),
    ("contract/test_tagged_rows_values.py", "[postgresql"),
    ("contract/test_time_limits.py", "::"),
    ("contract/test_watcher.py", "[postgresql"),
    ("component/test_cli_resolve.py", "terminal_it_asks[-"),
    ("component/test_cli_resolve.py", "terminal_it_asks[7-"),
    ("component/test_cli_resolve.py", "terminal_it_asks[y-"),
    ("component/test_outbox_trace.py", "another_process_sends_it"),
    ("component/test_skywalking_segments.py", "threads_lose_nothing"),
    ("fencing/test_late_tasks.py", "Outbox"),
    ("fencing/test_late_tasks.py", "PreparedTransactions"),
    ("fencing/test_late_tasks.py", "TaggedRows-postgresql"),
    ("fencing/test_lost_log.py", "[postgresql"),
    ("fencing/test_two_drivers.py", "all_was_forgotten"),
    ("fencing/test_two_drivers.py", "do_not_abort_each_other"),
    ("fencing/test_two_drivers.py", "is_fenced[sqlite-driver"),
    ("fencing/test_two_drivers.py", "is_fenced[sqlite-executor"),
    ("fencing/test_two_drivers.py", "postgresql"),
    ("fencing/test_two_drivers.py", "slept_before_its_first"),
    ("fencing/test_wrong_log.py", "::"),
    ("docs/test_sink_pages.py", "killed["),
    ("fuzz/", "::"),
    ("backends/test_backends.py", "abort_is_found_by_its_cause"),
    ("backends/test_backends.py", "is_found_by_its_id"),
    ("backends/test_backends.py", "killed_after_its_decision"),
    ("backends/test_backends.py", "killed_while_it_waits"),
    ("backends/test_backends.py", "trace_across_hosts"),
    ("bundled/test_prometheus.py", "taken_out"),
    ("console/test_browser.py", "::"),
    ("process/test_counts.py", "the_counts_hold[branches]"),
    ("process/test_counts.py", "the_counts_hold[connections]"),
    ("process/test_counts.py", "the_counts_hold[participant-flushes]"),
    ("process/test_counts.py", "the_counts_hold[per-record]"),
    ("process/test_counts.py", "the_counts_hold[requests]"),
    ("process/test_dead_collectors.py", "::"),
    ("process/test_environment_variables.py", "::"),
    ("process/test_log_records.py", "::"),
    ("process/test_metrics_otlp.py", "::"),
    ("process/test_services_participants.py", "fails_is_told_again"),
    ("process/test_services_participants.py", "killed_before_commit"),
    ("process/test_services_participants.py", "two_days_arrive"),
    ("process/test_services_participants.py", "works_in_postgresql_too"),
    ("process/test_services_telemetry.py", "::"),
    ("process/test_telemetry_lifecycle.py", "::"),
    ("process/test_telemetry_settings.py", "::"),
    ("rules/", "every_named_test"),
    ("rules/", "mutation_is_judged["),
    ("rules/", "turns_its_test_red["),
    ("process/test_bench_all.py", "that_breaks_costs"),
    ("test_bench_ratios.py", "every_goal_has_a_line"),
)
"""Files or folders, and a word in the names of variants that are left out."""


def is_left_out(item: pytest.Item) -> bool:
    """Whether a test belongs to `make test-all` only."""
    node = item.nodeid
    if item.get_closest_marker("spark"):
        return not node.endswith(SPARK_SMOKES)
    if A_KILL in node:
        return not any(f"[{point}]" in node for point in CRASHES)
    return any(place in node and word in node for place, word in MORE)


def is_for_cluster(item: pytest.Item) -> bool:
    """Whether a test belongs to `make test-cluster` only."""
    on_cluster = item.get_closest_marker("cluster") is not None
    return on_cluster and not item.nodeid.endswith(CLUSTER_SMOKES)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Mark what is left out, group what shares something, put first what takes long.

    Raises:
        pytest.UsageError: two tests have one id, of which xdist would run one.
    """
    for item in items:
        if is_left_out(item):
            item.add_marker("ci")
        if is_for_cluster(item) and not os.environ.get(CLUSTER):
            item.add_marker(pytest.mark.skip(reason="for `make test-cluster`"))
    if twice := [i for i, n in Counter(i.nodeid for i in items).items() if n > 1]:
        raise pytest.UsageError(f"ids that two tests share: {', '.join(twice)}")
    config.stash[COLLECTED] = list(items)
    seconds = seconds_of_groups(item.nodeid for item in items)
    items.sort(key=lambda item: _place(seconds, group_of(item.nodeid)))


class Groups(LoadScopeScheduling):
    """Hands each process of xdist a group after the other, as they were collected."""

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> Groups:
    """Let xdist hand out groups in their order, the longest first."""
    config.option.loadscopereorder = False
    return Groups(config, log)


def group_of(node: str) -> str:
    """Return the group of a test, of which one process runs all.

    Those of a file share its fixtures; those of `SHARE_SPARK` a session of Spark; and
    of `STAND_ALONE` each shares nothing with others.
    """
    file = node.partition("::")[0].removeprefix("tests/")
    if file.startswith(STAND_ALONE):
        return node
    return "spark" if file.startswith(SHARE_SPARK) else file


def seconds_of_groups(nodes: Iterable[str]) -> dict[str, float]:
    """Return how long each group takes: as measured, or a guess by its tests."""
    guesses = Counter(map(group_of, nodes))
    known = json.loads(DURATIONS.read_text()) if DURATIONS.exists() else {}
    return {group: known.get(group, 0.1 * n) for group, n in guesses.items()}


def _place(seconds: Mapping[str, float], group: str) -> tuple[float, str]:
    return -seconds[group], group
