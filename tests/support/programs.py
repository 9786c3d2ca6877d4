"""Programs and rights that a test needs, and what becomes of it without them."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn
from xml.etree import ElementTree

import pytest

from support.waiting import AT_LAST, until


def ran(command: Sequence[object], **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, however that is; return it with what it said."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, **how)


def freeze(pid: int) -> None:
    """Stop a process, and wait for it: until its turn comes, a thread works on."""

    def has_stopped() -> bool:
        states = set()
        for thread in Path(f"/proc/{pid}/task").iterdir():
            with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # ended
                told = (thread / "stat").read_text()
                states.add(told.rpartition(")")[2].split()[0])
        return states == {"T"}

    os.kill(pid, signal.SIGSTOP)
    until(has_stopped)


def in_child(ask: Callable[[], int]) -> int:
    """Return a small number that a forked child finds."""
    if (child := os.fork()) == 0:
        os._exit(ask())
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])


_LOOK = ("-e", "trace=none", "-o", os.devnull)


def left_out(reason: str) -> NoReturn:
    """Skip a test for want of something; in CI, where all is there, fail it."""
    if os.environ.get("CI"):
        pytest.fail(f"CI leaves nothing out: {reason}", pytrace=False)
    pytest.skip(reason)


@functools.cache
def why_not_traced() -> str:
    """Say why strace may not look at a process that it did not start; or nothing."""
    if (strace := shutil.which("strace")) is None:
        return "there is no strace: `tools/strace` gets one"
    # It ends when its input is closed, as soon as we have seen.
    seen = [sys.executable, "-S", "-c", "input()"]
    with subprocess.Popen(
        seen,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    ) as process:
        tracer = subprocess.Popen(
            [strace, *_LOOK, "-p", str(process.pid)],
            stderr=subprocess.PIPE,
            text=True,
        )
        assert tracer.stderr is not None
        said = tracer.stderr.readline()
        process.communicate()
        tracer.communicate(timeout=AT_LAST)
    if "attached" in said:
        return ""
    return f"{said.strip()} (sudo sysctl kernel.yama.ptrace_scope=0)"


def descendants(pid: int) -> dict[int, str]:
    """Return all that is below a process, parents first; dead ones have no command."""
    return dict(_below(pid))


def _below(pid: int) -> Iterator[tuple[int, str]]:
    for child in _children(pid):
        with contextlib.suppress(OSError):  # it has ended
            command = Path(f"/proc/{child}/cmdline").read_bytes()
            yield child, command.replace(b"\0", b" ").decode(errors="replace")
            yield from _below(child)


def _children(pid: int) -> list[int]:
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        texts = [(thread / "children").read_text() for thread in threads]
    except OSError:
        return []
    return [int(child) for text in texts for child in text.split()]


def messages(tests: Collection[str], scratch: Path) -> dict[tuple[str, str], str]:
    """Return the message of each, by class and test; empty if it passed."""
    report = scratch / "report.xml"
    options = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}"]
    folders = ["--rootdir", scratch, f"--basetemp={scratch}/base"]
    command = [sys.executable, "-m", "pytest", *options, *folders, *tests]
    ran(command, timeout=AT_LAST, cwd=scratch)
    found = {}
    for case in ElementTree.parse(report).iter("testcase"):
        broken = [*case.iter("failure"), *case.iter("error")]
        name = case.attrib["classname"].rpartition(".")[2], case.attrib["name"]
        found[name] = broken[0].text or "failed" if broken else ""
    return found


ROOT = Path(__file__).parents[2]


def assert_counts_hold(family: str, folder: Path) -> None:
    """Assert that the command exits 0, and that every count of the family held."""
    file = folder / "counts.json"
    command = [sys.executable, "-m", "bench", "counts", family, "--json", str(file)]
    told = {**os.environ, "COUNTS_TRANSACTIONS": "100"}
    done = ran(command, cwd=ROOT, env=told)
    assert done.returncode == 0, done.stdout + done.stderr
    counted = json.loads(file.read_text())
    assert counted["ok"]
    assert counted["counts"]
    assert all(count["actual"] == count["expected"] for count in counted["counts"])
