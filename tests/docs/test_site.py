"""The site of the manual: built strictly, without a network."""

import os
import re
import sys

import pytest
from manual import ROOT
from support.programs import ran
from support.waiting import AT_LAST

BUILD = """
import socket
def refuse(*_):
    raise OSError("the site must be built without a network")
socket.socket.connect = socket.getaddrinfo = refuse
from mkdocs.__main__ import cli
cli()
"""


@pytest.mark.ci
@pytest.mark.skipif(
    sys.version_info < (3, 11),
    reason="the last mkdocstrings for Python 3.10 does not fit the last pymdown there",
)
def test_the_site_is_built(tmp_path):
    """No dead link or anchor, no name without a docstring; no page loads a stranger."""
    site = tmp_path / "site"
    command = [sys.executable, "-c", BUILD, "build", "--strict", "--site-dir", site]
    told = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = ran(command, cwd=ROOT, env=told, timeout=AT_LAST)
    assert done.returncode == 0, done.stderr
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    assert [*site.rglob("__pycache__")] == []
    for page in pages:
        loaded = re.findall(
            r'<(?:script|img|link|iframe)[^>]+(?:src|href)="(https?:[^"]+)',
            page.read_text(),
        )
        assert loaded == [], page
    reference = (site / "api.html").read_text(encoding="utf-8")
    for name in ("two_phase_commit", "TaggedRows", "FaultProxy", "AbortedError"):
        assert f"{name}</" in reference, name
