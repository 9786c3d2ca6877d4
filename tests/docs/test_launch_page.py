"""The launch that the manual shows is one, and its table names tests that are there."""

from __future__ import annotations

import re

import yaml
from manual import ROOT, block, page

from tracing_2pc.launch import LaunchFile

LAUNCH = page("launch")


def test_the_pages_file_is_read():
    """As it stands there."""
    file = LaunchFile.of(yaml.safe_load(block(LAUNCH, "yaml", "build:")))
    assert (file.name, file.plan.namespace) == ("totals", "streams")
    assert file.application.startswith("totals-")
    assert file.build is not None


def test_each_answer_has_a_test():
    """Of the file that it names."""
    named = re.findall(r"`(test_launch\w*)\.py::(\w+)`", LAUNCH)
    assert named
    for file, test in named:
        text = (ROOT / "tests" / "launch" / f"{file}.py").read_text()
        assert f"def {test}(" in text, test
