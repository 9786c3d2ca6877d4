"""`python -m support.durations JUNIT…`: write down how long each group of tests took.

`selection.py` begins with the longest. Written anew when groups have come or changed;
a group that is missing is only begun later than it should be.
"""

from __future__ import annotations

import json
import sys
import xml.etree.ElementTree as ET
from collections import defaultdict
from collections.abc import Iterable, Iterator

from support.selection import DURATIONS, group_of

WORTH_MENTIONING = 1.0


def by_group(files: Iterable[str]) -> dict[str, int]:
    """Return whole seconds of the groups that take longer than one."""
    sums: dict[str, float] = defaultdict(float)
    for group, seconds in _cases(files):
        sums[group] += seconds
    long = {group: s for group, s in sums.items() if s > WORTH_MENTIONING}
    return {group: round(long[group]) for group in sorted(long)}


def _cases(files: Iterable[str]) -> Iterator[tuple[str, float]]:
    for file in files:
        for case in ET.parse(file).iter("testcase"):
            folder, _, module = case.get("classname", "").rpartition(".test_")
            path = f"{folder.replace('.', '/')}/test_{module.partition('.')[0]}.py"
            yield group_of(f"{path}::{case.get('name')}"), float(case.get("time", 0))


if __name__ == "__main__":
    DURATIONS.write_text(json.dumps(by_group(sys.argv[1:]), indent=1) + "\n")
