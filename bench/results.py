"""The results of runs: one JSON line about each run, then one for each result.

What a later run has measured counts instead of the same in an earlier one. A line has
one of these keys, by which it is known: `run` (when and where), `goal` (what
`pair.line` returns), `series` (what `pair.point` returns), `peer` (what `pair.peer`
returns), `failed` (a command that did not come to its end).
"""

from __future__ import annotations

import dataclasses
import datetime
import json
import os
import platform
import re
import subprocess
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from bench.postgresql import programs

ROOT: Final = Path(__file__).parents[1]
FILE: Final = ROOT / "bench" / "results.jsonl"

KINDS: Final = ("goal", "series", "peer", "failed")

Line = dict[str, Any]


@dataclasses.dataclass(frozen=True, slots=True)
class Results:
    """What was measured, in the order in which it was.

    Args:
        run: the first one, which measured all that `later` does not name.
        later: those that measured some of it again, and which.
    """

    run: Line | None = None
    goals: Sequence[Line] = ()
    points: Sequence[Line] = ()
    peers: Sequence[Line] = ()
    failed: Sequence[Line] = ()
    later: Sequence[tuple[Line, Sequence[str]]] = ()

    @property
    def is_trial(self) -> bool:
        """Whether sizes were tiny: then no goal is judged."""
        runs = [self.run, *(run for run, _ in self.later)]
        return any(run["trial"] for run in runs if run)


def read(file: Path) -> Results:
    """Read a file of results; no file is a run that measured nothing."""
    if not file.exists():
        return Results()
    lines = [json.loads(text) for text in file.read_text().splitlines()]
    runs: list[Line] = []
    measured: dict[str, tuple[int, list[Line]]] = {}  # by which run, the last
    for line in lines:
        if "run" in line:
            runs.append(line["run"])
            for family in line["run"].get("families", ()):
                measured.pop(family, None)  # it had not come to its end
        else:
            run, name = len(runs) - 1, _name(line)
            if measured.get(name, (-1,))[0] != run:
                measured[name] = run, []
            measured[name][1].append(line)
    kept = [line for _, some in measured.values() for line in some]
    named = [
        [name for name, (run, _) in measured.items() if run == later]
        for later in range(len(runs))
    ]
    return Results(
        runs[0] if runs else None,
        [line for line in kept if "goal" in line],
        [line for line in kept if "series" in line],
        [line for line in kept if "peer" in line],
        [line for line in kept if "failed" in line],
        [*zip(runs, named, strict=True)][1:],
    )


def _name(line: Line) -> str:
    """Return the name of what was measured, or of the family that was not."""
    return next((line[key] for key in KINDS if key in line), "")


def about_this_run(families: Sequence[str] = (), *, trial: bool) -> Line:
    """Describe the machine and the versions, as the first line of a run.

    Args:
        families: that it measures; none are all of them.
        trial: with tiny sizes.
    """
    now = datetime.datetime.now(datetime.timezone.utc)
    machine = {
        "cores": len(os.sched_getaffinity(0)),
        "cpu": _field("/proc/cpuinfo", "model name") or platform.machine(),
        "memory": _gibibytes(_field("/proc/meminfo", "MemTotal")),
        "load": round(os.getloadavg()[0], 1),
        "system": f"{platform.system()} {platform.release()}",
    }
    versions = {
        "tracing_2pc": _commit(),
        "Python": platform.python_version(),
        "PySpark": version("pyspark"),
        "Java": _java(),
        "PostgreSQL": _postgresql(),
    }
    about = {"date": f"{now:%Y-%m-%d %H:%M} UTC", "trial": trial}
    measures = {"families": list(families)} if families else {}
    return {"run": {**about, **measures, "machine": machine, "versions": versions}}


def _field(file: str, name: str) -> str:
    """Return the first value of this name in a file of the kernel's."""
    try:
        text = Path(file).read_text()
    except OSError:
        return ""
    match = re.search(rf"^{name}\s*:\s*(.+)$", text, re.M)
    return match[1] if match else ""


def _gibibytes(kibibytes: str) -> str:
    number = kibibytes.partition(" ")[0]
    return f"{int(number) / 2**20:.0f} GiB" if number.isdecimal() else "unknown"


def _commit() -> str:
    commit = _said("git", "-C", str(ROOT), "rev-parse", "--short=12", "HEAD")
    changed = _said("git", "-C", str(ROOT), "status", "--porcelain", "-uno")
    return f"{commit} with changes" if changed else commit


def _java() -> str:
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else "java"
    match = re.search(r'version "([^"]+)"', _said(program, "-version"))
    return match[1] if match else "none"


def _postgresql() -> str:
    return _said(str(programs() / "postgres"), "--version").rpartition(" ")[2]


def _said(*command: str) -> str:
    """Return what a program prints; nothing where it is not there."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError:
        return ""
    return (done.stdout + done.stderr).strip()
