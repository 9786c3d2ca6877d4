"""Programs and rights that a test needs, and what becomes of it without them."""

from __future__ import annotations

import functools
import os
import shutil
import subprocess
import sys
from collections.abc import Sequence
from typing import Any, NoReturn

import pytest

from support.waiting import AT_LAST


def ran(command: Sequence[object], **how: Any) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, however that is; return it with what it said."""
    words = [str(word) for word in command]
    return subprocess.run(words, capture_output=True, text=True, check=False, **how)


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
