"""`python -m bench all`, with tiny sizes: that it works, not how fast anything is."""

from __future__ import annotations

import dataclasses
import re
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest
from support.programs import ran
from support.texts import texts

from bench import growth, report, results
from bench.beside import PEERS
from bench.goals import GOALS
from bench.growth import batches
from bench.micro_batches import FLOOR
from bench.peers import tracing
from bench.series import SERIES

ROOT = Path(__file__).parents[2]
TINY_ROWS = "10"
"""Of the goals that are named by rows, those of the smallest batch are tried."""


def expected_goals() -> set[str]:
    of_more_rows = {
        name
        for name, goal in GOALS.items()
        if goal.family == "micro-batches" and name.split()[1] != TINY_ROWS
    }
    return GOALS.keys() - of_more_rows


def expected_peers() -> list[str]:
    """Without the environment of other tracing, which `make tools` makes, the rest."""
    missing = () if tracing.is_ready() else tracing.NAMES
    floors = {name for name in PEERS if name.startswith(FLOOR)} - {
        f"{FLOOR} {TINY_ROWS}"
    }
    return [name for name in PEERS if name not in floors.union(missing)]


@pytest.mark.nightly
@pytest.mark.spark
def test_all_is_measured_and_the_page_is_written(tmp_path: Path) -> None:
    """Each goal and peer has a line, each series a point, and all are on the page.

    What is measured in a trial says nothing: a goal may be missed.
    """
    if ran([ROOT / "tools" / "jdbc"]).returncode:
        pytest.skip("left out: PostgreSQL's JDBC driver could not be loaded")
    file, page = tmp_path / "results.jsonl", tmp_path / "docs" / "performance.md"
    command = [sys.executable, "-m", "bench", "all", "--tiny", "--rounds", "2"]
    done = ran([*command, "--results", file, "--page", page], cwd=ROOT)
    assert done.returncode in (0, 1), done.stderr
    assert file.read_text() == done.stdout
    measured = results.read(file)
    assert measured.run is not None
    assert measured.is_trial
    assert measured.run["machine"]["cores"] > 0
    assert all(measured.run["versions"].values())
    assert {goal["goal"] for goal in measured.goals} == expected_goals()
    assert len(measured.goals) == len(expected_goals())
    assert [peer["peer"] for peer in measured.peers] == expected_peers()
    for line in [*measured.goals, *measured.points, *measured.peers]:
        assert 0 < line["lo"] <= line["ratio"] <= line["hi"], line
    tried = SERIES.keys() - {"rows"}  # which has the arms of micro-batches
    assert {point["series"] for point in measured.points} == tried
    text = page.read_text()
    assert text == report.text(measured)
    pictures = re.findall(r"!\[.*\]\((.*)\)", text)
    assert len(pictures) == len(tried)
    assert all((page.parent / picture).exists() for picture in pictures)


@pytest.mark.ci
def test_one_that_breaks_costs_its_own_results_only(tmp_path: Path) -> None:
    """Others are measured, it is on the page, and the exit code is 2."""
    file, page = tmp_path / "results.jsonl", tmp_path / "performance.md"
    program = """
import sys
from bench import __main__ as bench
bench.MEASURED = ("no-such-family", "deco")
sys.exit(bench.main(sys.argv[1:]))
"""
    arguments = ["--rounds", "2", "--results", file, "--page", page]
    done = ran([sys.executable, "-c", program, "all", *arguments], cwd=ROOT)
    assert done.returncode == 2, done.stderr
    measured = results.read(file)
    assert [line["failed"] for line in measured.failed] == ["no-such-family"]
    assert [line["goal"][0] for line in measured.goals] == ["A"] * 7
    said = texts("unit")["a family did not come to its end"]
    assert said.format(family="no-such-family") in page.read_text()


def test_a_filled_log_is_as_the_library_writes_it(tmp_path: Path) -> None:
    """The library goes on after the last of the transactions, and forgets them."""
    from bench.driver import APPLICATION, apply, coordinator
    from bench.empty import obedient, write_nothing
    from bench.growth.finished import filled_log

    log, batch = filled_log(f"sqlite:///{tmp_path / 'log.db'}", 30)
    try:
        driver = coordinator(log, obedient())
        apply(driver, batch, write_nothing)
        assert log.unfinished(APPLICATION) == []
        assert log.forget(APPLICATION, finished_before=float("inf"), limit=99) == 30
    finally:
        log.close()


def test_rows_and_partitions_are_beside_jdbc_at_each_size(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The ratio is that of batches that took turns; the plot begins at 1."""

    def time_arms(
        folder: Path,
        rows: int,
        rounds: int,
        names: Sequence[str],
        *,
        partitions: int,
        settings: Mapping[str, str],
    ) -> dict[str, list[float]]:
        assert rows % partitions == 0
        cost = rows + 100 * partitions
        return {name: [cost * (1 + (name == "jdbc"))] * rounds for name in names}

    monkeypatch.setattr(batches, "time_arms", time_arms)
    sizes = dataclasses.replace(
        growth.sizes(7, rows=100), partitions=(1, 7), partition_rows=100
    )
    for measure, xs, ours, heights in (
        (batches.measure_rows, [10, 100], "library", [1, 300 / 210]),
        (batches.measure_partitions, [1, 7] * 2, "executors", [1, 798 / 200] * 2),
    ):
        points = list(measure(tmp_path, sizes))
        assert [point["x"] for point in points] == xs
        for arm, times in ((ours, 1), ("jdbc", 2)):
            expected = [times * height for height in heights]
            assert [p["arms"][arm] for p in points] == pytest.approx(expected, abs=1e-4)
        assert {(p["ratio"], p["rounds"]) for p in points} == {(0.5, 7)}


def test_sizes_are_limited() -> None:
    """By rounds everywhere; by rows beside JDBC, where there may be more, too."""
    sizes = growth.sizes(5, rows=5_000_000)
    assert (sizes.rounds, sizes.row_rounds, sizes.memory_rounds) == (5, 5, 5)
    assert sizes.rows[-2:] == (1_000_000, 5_000_000)
    assert growth.sizes(5, rows=1_000).rows == (10, 100, 1_000)
    assert growth.sizes(101).rounds == 41
