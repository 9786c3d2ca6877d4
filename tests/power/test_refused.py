"""A flush fails, or the disk is full, at such a call: no success leaves.

The writers of `make power` run with a library preloaded that refuses one call.
What they have answered until then is judged as after a loss of power, without one.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from support.waiting import PATIENT

from power.recording import DISK, environment, read_promises
from power.worlds import WORLDS

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(shutil.which("gcc") is None, reason="no gcc to build the shim"),
]
HERE = Path(__file__).parent
CALLS = {"flush": (2, 9, 20), "full": (3, 15, 60)}
"""Which of the calls is refused; a writer makes fewer, or more."""
IN_CI = ("decision log", "FileSink")


@pytest.fixture(scope="session")
def shim(tmp_path_factory) -> Path:
    """Return the library, built here."""
    built = tmp_path_factory.mktemp("shim") / "refuse.so"
    command = ["gcc", "-shared", "-fPIC", "-o", str(built), str(HERE / "refuse.c")]
    subprocess.run([*command, "-ldl"], check=True, timeout=PATIENT)
    return built


@pytest.mark.parametrize("what", CALLS)
@pytest.mark.parametrize(
    "world",
    [
        pytest.param(world, marks=() if world in IN_CI else pytest.mark.nightly)
        for world in WORLDS
    ],
)
def test_what_a_disk_refuses_is_no_success(world, what, shim, tmp_path):
    """Each answer that left is true, and it starts again."""
    said = tmp_path / "refused"
    for nth in CALLS[what]:
        folder = tmp_path / f"{nth}"
        disk = folder / DISK
        disk.mkdir(parents=True)
        WORLDS[world].prepare(disk)
        command = ["-W", "ignore", "-m", "power.worlds", world, str(folder), ""]
        preloaded = {"LD_PRELOAD": str(shim), "REFUSE": f"{nth} {what}"}
        places = {"REFUSE_BELOW": str(disk), "REFUSED": str(said)}
        ran = subprocess.run(
            [sys.executable, *command],
            env={**environment(), **preloaded, **places},
            capture_output=True,
            text=True,
            timeout=PATIENT,
            check=False,
        )
        faults = list(WORLDS[world].judge(disk, read_promises(folder)))
        assert faults == [], (nth, ran.stderr[-2000:])
    assert said.exists(), "no call was refused"


AT_EACH_WRITE = ("inbox", "journal of Outbox", "journal of TaggedRows")
MANY, EVERY = 1000, 32
"""More writes than any of them makes; and of which a test tries each which."""

FULL = ("database or disk is full", "nobody knows whether it was stored: send it again")
"""What is raised: the second where the commit itself has failed."""


@pytest.mark.parametrize(
    "first",
    [1, *(pytest.param(n, marks=pytest.mark.nightly) for n in range(2, EVERY + 1))],
)
@pytest.mark.parametrize("world", AT_EACH_WRITE)
def test_a_disk_that_is_full_for_a_while(world, first, shim, tmp_path):
    """At each write: each answer is true, what is raised says so, and it goes on.

    A participant is asked until there is room; who stores into an inbox begins anew.
    """
    moments = [str(nth) for nth in range(first, MANY, EVERY)]
    command = ["-W", "ignore", "-m", "power.worlds", world, str(tmp_path), "", *moments]
    subprocess.run(
        [sys.executable, *command],
        env={**environment(), "LD_PRELOAD": str(shim)},
        capture_output=True,
        timeout=PATIENT,
        check=True,
    )
    full = [moment for moment in moments if (tmp_path / moment / "refused").exists()]
    assert full
    for moment in full:
        folder = tmp_path / moment
        faults = [*WORLDS[world].judge(folder / DISK, read_promises(folder))]
        assert faults == [], moment
        error = (folder / "error").read_text()
        assert not error or any(text in error for text in FULL), (moment, error)
