"""`python -m bench`: that it works with tiny sizes, not how fast anything is."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
from support.programs import ran
from support.texts import texts

from bench import backends, deco, kafka, pair, report, results
from bench.__main__ import show_goals
from bench.beside import PEERS
from bench.goals import GOALS
from bench.micro_batches import FLOOR
from bench.pair import Ratio
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
    is_ready = kafka.is_ready()
    left_out = {n for n, g in GOALS.items() if g.family == "kafka" and not is_ready}
    return GOALS.keys() - of_more_rows - left_out


def expected_peers() -> list[str]:
    """Without the environment of other tracing, which `make tools` makes, the rest."""
    missing = () if tracing.is_ready() else tracing.NAMES
    floors = {name for name in PEERS if name.startswith(FLOOR)} - {
        f"{FLOOR} {TINY_ROWS}"
    }
    return [name for name in PEERS if name not in floors.union(missing)]


@pytest.mark.nightly
@pytest.mark.spark
def test_all_is_measured_and_the_page_is_written(tmp_path):
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
def test_one_that_breaks_costs_its_own_results_only(tmp_path):
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


@pytest.mark.ci
def test_a_part_is_measured_again(tmp_path):
    """The rest stays; what is new counts, under a line of its own about its run."""
    file, page = tmp_path / "results.jsonl", tmp_path / "performance.md"
    run = results.about_this_run(trial=False)
    old = [run, {"failed": "deco", "exit": 3}]
    old += [pair.line(name, Ratio(9, 9, 9, 9, 41), 1, {}) for name in ("A1", "K1")]
    file.write_text("".join(json.dumps(line) + "\n" for line in old))
    command = [sys.executable, "-m", "bench", "all", "deco", "--rounds", "6"]
    done = ran([*command, "--results", file, "--page", page], cwd=ROOT)
    assert done.returncode in (0, 1), done.stderr
    measured = results.read(file)
    by_name = {goal["goal"]: goal for goal in measured.goals}
    assert (by_name["K1"]["rounds"], by_name["A1"]["rounds"]) == (41, 6)
    assert len(measured.goals) == len(by_name) == 1 + len(deco.LIMITS)
    ((again, names),) = measured.later
    assert (again["families"], names) == (["deco"], [*deco.LIMITS])
    assert measured.failed == []
    assert f"{', '.join(names)}." in page.read_text()


def test_a_filled_log_is_as_the_library_writes_it(tmp_path):
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


@pytest.mark.ci
@pytest.mark.parametrize(
    ("command", "limits"), [("deco", deco.LIMITS), ("backends", backends.LIMITS)]
)
def test_every_goal_has_a_line(command, limits, tmp_path):
    """One JSON object each, in order, with all that a history needs.

    In a process of its own: `requests` is instrumented once, for the first provider.
    """
    file = tmp_path / "lines"
    bench = [sys.executable, "-m", "bench", command, "--rounds", "9", "--json", file]
    done = ran(bench, cwd=Path(__file__).parents[2])
    assert done.stderr == ""
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert [line["goal"] for line in lines] == list(limits)
    for line in lines:
        assert " ".join(sorted(line)) == (
            "goal hi limit lo min_min ratio rounds settings verdict"
        )
        assert 0 < line["lo"] <= line["ratio"] <= line["hi"]
        assert line["verdict"] in {"pass", "fail", "inconclusive"}
        assert (line["rounds"], line["limit"]) == (9, limits[line["goal"]])
    assert done.returncode == any(line["verdict"] == "fail" for line in lines)
    assert file.read_text() == done.stdout


@pytest.mark.parametrize(
    ("ratio", "lo", "hi", "min_min", "verdict"),
    [
        (0.8, 0.78, 0.89, 0.8, "pass"),
        (0.95, 0.93, 0.97, 0.95, "fail"),
        (0.88, 0.86, 0.91, 0.88, "inconclusive"),  # the limit is inside
        (0.7, 0.55, 0.72, 0.7, "inconclusive"),  # too wide
        (0.7, 0.69, 0.71, 0.9, "inconclusive"),  # the second opinion is another
    ],
)
def test_the_interval_decides(ratio, lo, hi, min_min, verdict):
    """A goal is met if all of the interval is; what says too little says nothing."""
    assert Ratio(ratio, lo, hi, min_min, 101).verdict(0.9) == verdict


def test_only_a_missed_goal_is_an_error(capsys):
    passed, missed = {"verdict": "inconclusive"}, {"verdict": "fail"}
    assert (show_goals([passed], None), show_goals([passed, missed], None)) == (0, 1)
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(("rounds", "rank"), [(5, 0), (9, 1), (41, 13), (101, 40)])
def test_the_interval_is_of_order_statistics(rounds, rank):
    """As tables of the sign test have it, at 95 %."""
    base = [1.0] * rounds
    found = pair.compare([float(n + 1) for n in range(rounds)], base)
    assert (found.lo, found.hi) == (rank + 1, rounds - rank)
    assert (found.ratio, found.min_min) == ((rounds + 1) / 2, 1)


def test_arms_take_turns():
    """Nobody is always first, and each runs once in each round."""
    ran: list[str] = []

    def arm(name: str) -> pair.Block:
        return lambda: ran.append(name) or 1.0  # type: ignore[func-returns-value]

    took = pair.measure({"a": arm("a"), "b": arm("b"), "c": arm("c")}, 12)
    rounds = ["".join(ran[n : n + 3]) for n in range(3, len(ran), 3)]
    assert {len(times) for times in took.values()} == {12}
    assert {"".join(sorted(r)) for r in rounds} == {"abc"}
    assert {first[0] for first in rounds} == {"a", "b", "c"}
