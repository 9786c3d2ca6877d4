"""The page of results: what it says of each goal and series; that it is up to date."""

from __future__ import annotations

import re
from typing import Any
from xml.etree import ElementTree

import pytest
from support.texts import texts

from bench import report, results
from bench.beside import PEERS
from bench.goals import GOALS
from bench.pair import Ratio, line, peer, point
from bench.results import Results
from bench.series import SERIES

TEXTS = texts("unit")

RUN = {
    "date": "2026-01-01 12:00 UTC",
    "trial": False,
    "machine": {"cores": 2, "cpu": "a processor", "memory": "8 GiB"}
    | {"load": 0.1, "system": "Linux 6"},
    "versions": {"Python": "3.11.0"},
}


def goal(name: str, ratio: Ratio) -> dict[str, Any]:
    made: dict[str, Any] = line(name, ratio, GOALS[name].limit, {})
    return made


def rows(page: str) -> dict[str, list[str]]:
    """The cells of each goal's row, by its name."""
    cells = [
        row.strip("| ").split(" | ") for row in page.splitlines() if row[:1] == "|"
    ]
    return {row[0]: row for row in cells if row[0] in GOALS}


@pytest.mark.parametrize(
    ("ratio", "said"),
    [
        (Ratio(0.80, 0.79, 0.81, 0.80, 41), "met"),
        (Ratio(0.95, 0.94, 0.96, 0.95, 41), "**missed**"),
        (Ratio(0.90, 0.89, 0.91, 0.90, 41), TEXTS["the limit is inside"]),
        (Ratio(0.70, 0.50, 0.71, 0.70, 41), TEXTS["a wide interval"]),
        (Ratio(0.70, 0.69, 0.71, 0.99, 41), TEXTS["the best blocks say otherwise"]),
        (Ratio(0.70, 0.69, 0.71, 0.70, 5), TEXTS["too few rounds"]),
    ],
)
def test_a_verdict_is_in_plain_words(ratio, said):
    """What is inconclusive is shown as that, with its reason, and never as met."""
    page = report.text(Results(RUN, [goal("A1", ratio)]))
    row = rows(page)["A1"]
    assert row[-1] == said
    assert row[3:7] == [
        f"{ratio.ratio:.2f}",
        f"{ratio.lo:.2f} to {ratio.hi:.2f}",
        "0.90",
        str(ratio.rounds),
    ]


def test_the_second_limit_of_a_goal_is_named():
    """A5 is held against two limits; its own interval may be on the right side."""
    made = goal("A5", Ratio(1.1, 1.09, 1.11, 1.1, 41)) | {"verdict": "inconclusive"}
    page = report.text(Results(RUN, [made]))
    assert rows(page)["A5"][-1] == TEXTS["the second limit"]


def test_every_goal_has_a_row():
    """One that has no result says so: it is not left out."""
    page = report.text(Results())
    assert rows(page).keys() == GOALS.keys()
    assert {row[-1] for row in rows(page).values()} == {"not measured"}
    assert TEXTS["nothing was measured"] in page


def test_a_trial_judges_nothing():
    """Tiny sizes meet no goal, whatever they say."""
    made = goal("A1", Ratio(0.5, 0.5, 0.5, 0.5, 41))
    page = report.text(Results({**RUN, "trial": True}, [made]))
    assert rows(page)["A1"][-1] == "not judged"
    assert TEXTS["no goal is judged"] in page


def test_another_is_shown_without_a_verdict():
    """A fact has no limit; what was not measured says so, and what is not run."""
    name, other = next(iter(PEERS.items()))
    made = peer(name, Ratio(2.0, 1.9, 2.1, 2.0, 9), {})
    page = report.text(Results(RUN, peers=[made]))
    section = page.partition("## Beside others")[2].partition("\n## ")[0]
    shown = f"| {other.measured} | {other.beside} | {other.of} |"
    assert f"{shown} 2.00 | 1.90 to 2.10 | 9 |\n" in section
    assert section.count("not measured") == len(PEERS) - 1
    assert "Not run: " in section


def test_a_series_has_a_table_and_a_plot(tmp_path):
    """In order of what grows; the plot is a picture beside the page."""
    half = Ratio(0.5, 0.4, 0.6, 0.5, 9)
    points = [
        point("rows", x, half, {"library": y, "jdbc": 2 * y}, {})
        for x, y in ((1_000, 3.0), (10, 1.0))
    ]
    report.write(Results(RUN, points=points), tmp_path / "page.md")
    page = (tmp_path / "page.md").read_text()
    table = page.partition("### Rows of a batch")[2].partition("###")[0]
    assert "| rows of a batch | library / jdbc |" in table
    line = r"^\| (10|1 k) \| 0.50 \| 0.40 to 0.60 \| 9 \|$"
    assert re.findall(line, table, re.M) == ["10", "1 k"]
    (picture,) = re.findall(r"!\[.*\]\((.*)\)", page)
    drawn = ElementTree.parse(tmp_path / picture).getroot()
    texts = [text.text for text in drawn.iter("{http://www.w3.org/2000/svg}text")]
    assert {"library", "jdbc", "10", "1 k"} <= set(texts)
    assert list(drawn.iter("{http://www.w3.org/2000/svg}script")) == []


def test_every_series_with_a_goal_shows_its_limit():
    """The goal that a plot shows is one of the goals of growth."""
    for series in SERIES.values():
        assert series.goal is None or GOALS[series.goal].family == "growth"


def test_the_page_is_that_of_the_results():
    """`docs/performance.md` and its plots say what `bench/results.jsonl` says.

    If not, run `python -m bench report`.
    """
    measured = results.read(results.FILE)
    assert report.PAGE.read_text(encoding="utf-8") == report.text(measured)
    folder = report.PAGE.parent / report.PICTURES
    kept = {f.name: f.read_text() for f in folder.glob("performance-*.svg")}
    assert kept == report.plots(measured)
