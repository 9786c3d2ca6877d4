"""`python -m bench deco` and `backends`: what they print, not how fast a machine is."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest
from support.programs import ran

from bench import backends, deco, pair
from bench.__main__ import show_goals
from bench.pair import Ratio


@pytest.mark.ci
@pytest.mark.parametrize(
    ("command", "limits"), [("deco", deco.LIMITS), ("backends", backends.LIMITS)]
)
def test_every_goal_has_a_line(
    command: str, limits: dict[str, float], tmp_path: Path
) -> None:
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
def test_the_interval_decides(
    ratio: float, lo: float, hi: float, min_min: float, verdict: str
) -> None:
    """A goal is met if all of the interval is; what says too little says nothing."""
    assert Ratio(ratio, lo, hi, min_min, 101).verdict(0.9) == verdict


def test_only_a_missed_goal_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    passed, missed = {"verdict": "inconclusive"}, {"verdict": "fail"}
    assert (show_goals([passed], None), show_goals([passed, missed], None)) == (0, 1)
    assert len(capsys.readouterr().out.splitlines()) == 3


@pytest.mark.parametrize(("rounds", "rank"), [(5, 0), (9, 1), (41, 13), (101, 40)])
def test_the_interval_is_of_order_statistics(rounds: int, rank: int) -> None:
    """As tables of the sign test have it, at 95 %."""
    base = [1.0] * rounds
    found = pair.compare([float(n + 1) for n in range(rounds)], base)
    assert (found.lo, found.hi) == (rank + 1, rounds - rank)
    assert (found.ratio, found.min_min) == ((rounds + 1) / 2, 1)


def test_arms_take_turns() -> None:
    """Nobody is always first, and each runs once in each round."""
    ran: list[str] = []

    def arm(name: str) -> pair.Block:
        return lambda: ran.append(name) or 1.0  # type: ignore[func-returns-value]

    took = pair.measure({"a": arm("a"), "b": arm("b"), "c": arm("c")}, 12)
    rounds = ["".join(ran[n : n + 3]) for n in range(3, len(ran), 3)]
    assert {len(times) for times in took.values()} == {12}
    assert {"".join(sorted(r)) for r in rounds} == {"abc"}
    assert {first[0] for first in rounds} == {"a", "b", "c"}
