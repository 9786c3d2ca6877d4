"""A plugin: what `make test` leaves to `make test-all`, and what begins first.

Left out are variants: `make test` runs another one of the same promise, on each real
thing once. A test that has no such variant and takes long is marked `more` itself.
"""

from __future__ import annotations

import pytest

SPARK_SMOKES = (
    "test_foreach_batch.py::test_each_batch_lands_in_both[executors]",
    "test_foreach_batch.py::test_each_batch_lands_in_both[driver]",
    "test_foreach_batch.py::test_a_task_that_fails_after_prepare_leaves_no_twin",
    "test_foreach_batch.py::test_a_replayed_batch_is_recognised[driver]",
    "test_driver_path.py::test_the_size_of_the_batch_before_decides",
    "test_foreach_batch.py::test_a_sink_of_ones_own",
    "test_crash.py::test_the_driver_is_killed[once]",
)
"""What `make test` tries on a real Spark."""

CRASHES = (
    "driver.after_begin",
    "driver.after_decide",
    "executor.after_first_prepare",
    "delivery.between_commits",
    "recovery.after_expire",
    "participant.after_prepare",
    "participant.before_commit",
    "outbox.after_call",
    "sqlite.in_commit",
    "log.in_commit",
    "postgresql.in_decide",
    "postgresql.in_prepare",
)
"""Points at which `make test` kills a process; `make test-all` does at each."""

MORE = (
    ("contract/", "TaggedRows-postgresql"),
    ("contract/", "Outbox-postgresql"),
    ("contract/", "Files-"),
    ("contract/test_answers_killed.py", "Outbox"),
    ("contract/test_answers_concurrent.py", "postgresql]"),
    ("contract/test_decision_log_sql.py", "processes_agree[sqlite]"),
    ("contract/test_external_branches.py", "the_rest_of"),
    ("contract/test_external_branches.py", "cut_short"),
    ("contract/test_outbox.py", "at_a_time_however_many_processes[postgresql]"),
    ("contract/test_outbox.py", "killed_sender_is_followed_by_another[postgresql]"),
    ("contract/test_prepared_transactions.py", "lost_at_any_statement[prepare]"),
    ("contract/test_prepared_transactions.py", "lost_at_any_statement[abort]"),
    ("contract/test_tagged_rows_values.py", "for_pandas[postgresql]"),
    ("contract/test_answers.py", "every_cell[Outbox-sqlite"),
    ("contract/test_faults.py", "Outbox"),
    ("contract/test_stateful_participant.py", "Outbox"),
    ("fencing/test_late_tasks.py", "Outbox"),
    ("fencing/test_late_tasks.py", "TaggedRows-postgresql"),
    ("fencing/test_two_drivers.py", "postgresql"),
    ("fencing/test_two_drivers.py", "all_was_forgotten"),
    ("fencing/test_two_drivers.py", "is_fenced[sqlite-driver"),
    ("fencing/test_two_drivers.py", "is_fenced[sqlite-executor"),
    ("fuzz/", "-postgresql"),
    ("fuzz/", "Outbox"),
    ("backends/test_backends.py", "killed_while_it_waits"),
    ("component/test_skywalking_segments.py", "threads_lose_nothing"),
    ("bundled/test_prometheus.py", "taken_out"),
    ("console/test_browser.py", "readable[narrow-light]"),
    ("console/test_browser.py", "readable[broad-dark]"),
    ("rules/", "turns_its_test_red[10]"),
    ("rules/", "turns_its_test_red[15]"),
    ("test_bench_ratios.py", "every_goal_has_a_line"),
    ("test_counts.py", "the_counts_hold[branches]"),
    ("test_counts.py", "the_counts_hold[per-record]"),
    ("test_dead_collectors.py", "not there"),
    ("test_dead_collectors.py", "refusing"),
)
"""Files or folders, and a word in the names of variants that are left out."""

LONG = ("crash/", "spark/", "fencing/", "console/", "contract/", "rules/", "docs/")
"""Folders whose files begin first: at the end all workers are to have something."""


def is_left_out(item: pytest.Item) -> bool:
    """Whether a test belongs to `make test-all` only."""
    node = item.nodeid
    if item.get_closest_marker("spark"):
        return not node.endswith(SPARK_SMOKES)
    if "crash/test_crash.py::test_a_kill_at_a_point[" in node:
        return not any(f"[{point}]" in node for point in CRASHES)
    return any(place in node and word in node for place, word in MORE)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what is left out; put first what takes long."""
    for item in items:
        if is_left_out(item):
            item.add_marker("more")
    items.sort(key=_place)


def _place(item: pytest.Item) -> int:
    places = [n for n, folder in enumerate(LONG) if f"tests/{folder}" in item.nodeid]
    return min(places, default=len(LONG))
