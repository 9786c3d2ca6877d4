"""The page of results: `docs/performance.md` and its plots, from lines of results.

The page says nothing that the lines don't say: it can be written again at any time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from bench import beside
from bench.goals import GOALS, Goal
from bench.obstacles import DROPPED, OBSTACLES
from bench.pair import APART, FEWEST, WIDE
from bench.plot import At, Chart, count
from bench.results import ROOT, Line, Results
from bench.series import SERIES, Series

PAGE: Final = ROOT / "docs" / "performance.md"
PICTURES: Final = "pictures"
"""A folder beside the page."""

_TITLES: Final = {
    "deco": "The decorator",
    "backends": "SkyWalking beside OTLP",
    "micro-batches": "Micro-batches of real Spark",
    "rejects": "Rows that cannot be kept",
    "kafka": "Kafka",
    "ingest": "Events by HTTP",
    "growth": "Growth",
}
_HEAD: Final = """\
# Performance

What the library costs, as ratios of two things that were measured in turn, in the same
minutes, on one machine. A ratio of 0.5 means half of what the other costs. Results are
ratios, because a time says little about another machine. The only limit that is a time
is two seconds of CPU time, for three goals of growth. What can be counted exactly has
exact numbers instead: `make counts`.

`make bench` measures everything again and writes this page, and
`python -m bench all FAMILY` a part of it; `python -m bench report` writes the page
again from the last results. How each part is measured:
[bench](../bench/README.md).
"""
_HOW: Final = """\
## How to read it

- **Arm**: one of the things that are compared. In each round every arm runs once, one
  right after the other. **Ratio** is the median over all rounds.
- **95 % interval** is that of the median; nothing is assumed about how the noise is
  distributed.
- **Limit** is the largest ratio that is accepted; it was chosen before the first
  measurement.
- **Met**: the whole interval is at or below the limit. **Missed**: the whole interval
  is above it.
- **Inconclusive**: this run does not say; the goal is not met by it. The limit lies
  inside the interval, or the interval reaches further than 15 % to one side, or the
  ratio of the two best blocks differs from the median by more than 20 %, or there were
  fewer than six rounds.
"""
_PATHS: Final = """\
The driver writes batches of up to 100,000 rows here, executors write a million. With a
sink of your own that has no `driver_path = True`, executors write every batch: see
[Partitions of a batch](#partitions-of-a-batch).
"""
_MEMORY: Final = """\
I11 compares peak memory (`VmHWM` of Linux) of processes that are started anew for each
batch. A large part of it is Python and its modules, which both have.
"""
_LOOKING: Final = """\
`ls`, `explain` and the sweep of I12 have no other arm: their limit is two seconds of
CPU time, on whatever machine this was. That is the command's with Python's start and
all imports, or that of the first sweep of a watcher that runs already, and what the
log's PostgreSQL uses meanwhile; not what participants use to answer. The unfinished
transactions are of a hundred applications, one of which has all finished ones, too;
they are prepared at two ledgers, and stuck for an hour: there is most to say of them.
The rows of the finished ones are copies that PostgreSQL has made of one; of the newest
hundred the checksums are right.

The view of I12 is of a ledger that has forgotten what the log has: its journal keeps
seven days of transactions, one in ten seconds.
"""
_NOTES: Final = {"micro-batches": [_PATHS], "growth": [_MEMORY, _LOOKING]}
"""What is said below a family's table of goals."""


def write(results: Results, page: Path = PAGE) -> None:
    """Write the page and a plot for each series."""
    page.parent.mkdir(parents=True, exist_ok=True)
    page.write_text(text(results), encoding="utf-8")
    folder = page.parent / PICTURES
    folder.mkdir(exist_ok=True)
    for name, svg in plots(results).items():
        (folder / name).write_text(svg, encoding="utf-8")


def plots(results: Results) -> Mapping[str, str]:
    """Return the plot of each series that has points, by the name of its file."""
    return {
        picture(name): _chart(name, series, points).svg()
        for name, series in SERIES.items()
        if (points := _points(results, name))
    }


def picture(series: str) -> str:
    """Return the name of a series' plot."""
    return f"performance-{series}.svg"


def text(results: Results) -> str:
    """Return the page."""
    parts = [_HEAD, *_about(results), _HOW, "## Goals\n"]
    by_name = {line["goal"]: line for line in results.goals}
    for family, title in _TITLES.items():
        rows = _goal_rows(family, by_name, trial=results.is_trial)
        parts += [f"### {title}\n", _table(_GOAL_HEAD, rows)]
        parts += _NOTES.get(family, [])
        parts += [] if results.is_trial else _obstacles(family, by_name)
    parts.append(DROPPED)
    parts += ["## Beside others\n", _table(_PEER_HEAD, _peer_rows(results.peers))]
    parts += [beside.TEXT, *beside.SECTIONS]
    parts.append("## What grows\n")
    for name, series in SERIES.items():
        parts += _section(name, series, _points(results, name))
    return "\n".join(parts)


# --- the run ------------------------------------------------------------------------


def _about(results: Results) -> Iterator[str]:
    run = results.run
    if run is None:
        yield "**Nothing has been measured yet.**\n"
        return
    if results.is_trial:
        yield (
            "**This was a trial of the programs, with tiny sizes and a few rounds: "
            "no goal is judged.**\n"
        )
    machine, versions = run["machine"], run["versions"]
    yield (
        f"Measured {run['date']} on {machine['cores']} cores ({machine['cpu']}), "
        f"{machine['memory']} of memory, {machine['system']}; load average at the "
        f"start {machine['load']:g}.\n"
    )
    yield _table(
        ("software", "version"), [(name, said) for name, said in versions.items()]
    )
    for again, names in results.later:
        commit, load = again["versions"]["tracing_2pc"], again["machine"]["load"]
        yield (
            f"Measured {again['date']}, tracing_2pc {commit}, load "
            f"average at the start {load:g}: {', '.join(names)}.\n"
        )
    for line in results.failed:
        yield f"**`python -m bench {line['failed']}` did not come to its end.**\n"


# --- goals --------------------------------------------------------------------------

_GOAL_HEAD: Final = (
    *("goal", "library", "base", "ratio", "95 % interval", "limit", "rounds"),
    "verdict",
)


def _goal_rows(
    family: str, lines: Mapping[str, Line], *, trial: bool
) -> Iterator[Sequence[str]]:
    for name, goal in GOALS.items():
        if goal.family == family:
            yield _goal_row(name, goal, lines.get(name), trial=trial)


def _goal_row(
    name: str, goal: Goal, line: Line | None, *, trial: bool
) -> Sequence[str]:
    arms = (name, goal.library, goal.base)
    if line is None:
        return (*arms, "", "", f"{goal.limit:.2f}", "", "not measured")
    return (
        *arms,
        f"{line['ratio']:.2f}",
        _interval(line),
        f"{line['limit']:.2f}",
        str(line["rounds"]),
        "not judged" if trial else verdict(line),
    )


def _obstacles(family: str, lines: Mapping[str, Line]) -> Iterator[str]:
    """Say what is in the way of the goals of a family that were missed."""
    missed = {name for name, line in lines.items() if line["verdict"] != "pass"}
    for names, words in OBSTACLES.items():
        if GOALS[names[0]].family == family and missed.intersection(names):
            yield f"{words}\n"


def verdict(line: Line) -> str:
    """Return the verdict of a goal in plain words."""
    if line["verdict"] == "pass":
        return "met"
    if line["verdict"] == "fail":
        return "**missed**"
    return f"inconclusive: {_why(line)}"


def _why(line: Line) -> str:
    ratio, lo, hi = line["ratio"], line["lo"], line["hi"]
    if line["rounds"] < FEWEST:
        return "too few rounds"
    if max(hi - ratio, ratio - lo) > WIDE * ratio:
        return "the interval is wide"
    if abs(line["min_min"] / ratio - 1) > APART:
        return f"the best blocks say {line['min_min']:.2f}"
    if lo <= line["limit"] <= hi:
        return "the limit lies inside the interval"
    return "the second limit is not decided"


# --- others -------------------------------------------------------------------------

_PEER_HEAD: Final = (
    "measured",
    "compared with",
    "what is compared",
    "ratio",
    "95 % interval",
    "rounds",
)


def _peer_rows(lines: Sequence[Line]) -> Iterator[Sequence[str]]:
    by_name = {line["peer"]: line for line in lines}
    for name, peer in beside.PEERS.items():
        arms = (peer.measured, peer.beside, peer.of)
        if (line := by_name.get(name)) is None:
            yield (*arms, "not measured", "", "")
        else:
            ratio = f"{line['ratio']:.2f}"
            yield (*arms, ratio, _interval(line), str(line["rounds"]))


# --- series -------------------------------------------------------------------------


def _section(name: str, series: Series, points: Sequence[Line]) -> Iterator[str]:
    yield f"### {series.title}\n"
    yield f"{series.text}\n"
    if not points:
        yield "Not measured.\n"
        return
    arms = list(points[0]["arms"])
    head = (series.x, "ratio", "95 % interval", "rounds")
    if len(arms) > 1:
        ours, base = arms
        head = (series.x, f"{ours} / {base}", *head[2:])
    yield _table(
        head,
        (
            (count(p["x"]), f"{p['ratio']:.2f}", _interval(p), str(p["rounds"]))
            for p in points
        ),
    )
    yield f"![{series.title}]({PICTURES}/{picture(name)})\n"


def _chart(name: str, series: Series, points: Sequence[Line]) -> Chart:
    alone = len(points[0]["arms"]) == 1
    lines: dict[str, list[At]] = {arm: [] for arm in points[0]["arms"]}
    for point in points:
        interval = (point["lo"], point["hi"]) if alone else (None, None)
        for arm, y in point["arms"].items():
            lines[arm].append(At(point["x"], y, *interval))
    return Chart(series.title, series.x, series.y, lines, series.limit, series.log)


def _points(results: Results, name: str) -> list[Line]:
    chosen = [point for point in results.points if point["series"] == name]
    return sorted(chosen, key=lambda point: float(point["x"]))


# --- tables -------------------------------------------------------------------------


def _interval(line: Mapping[str, Any]) -> str:
    return f"{line['lo']:.2f} to {line['hi']:.2f}"


def _table(head: Sequence[str], rows: Any) -> str:
    lines = [head, ["---"] * len(head), *rows]
    return "".join(f"| {' | '.join(cells)} |\n" for cells in lines)
