"""Run tests in a pytest of its own, and read what became of each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Collection
from pathlib import Path
from xml.etree import ElementTree

from support.waiting import AT_LAST


def messages(tests: Collection[str], scratch: Path) -> dict[tuple[str, str], str]:
    """Return the message of each, by class and test; empty if it passed."""
    report = scratch / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    folders = ["--rootdir", scratch, f"--basetemp={scratch}/base"]
    subprocess.run(
        [sys.executable, "-m", "pytest", *options, *folders, *tests],
        capture_output=True,
        timeout=AT_LAST,
        check=False,
        cwd=scratch,
    )
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        broken = [*case.iter("failure"), *case.iter("error")]
        name = case.attrib["classname"].rpartition(".")[2], case.attrib["name"]
        found[name] = broken[0].text or "failed" if broken else ""
    return found
