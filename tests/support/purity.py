"""A plugin: what stands in `unit/` opens no socket, process or database file.

A test that needs one of them fails there: it belongs to `component/` or `process/`.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from typing import Any, Final

import pytest

_FORBIDDEN: Final = {
    "socket.bind": "a server",
    "socket.connect": "a connection",
    "subprocess.Popen": "a process",
    "os.fork": "a process",
    "os.posix_spawn": "a process",
    "sqlite3.connect": "a database file",
}
"""Events that Python audits, and what each of them opens."""

_running: list[str] = []
"""The unit test that is running, then what it has opened."""


def opened_by(event: str, arguments: tuple[Any, ...]) -> str | None:
    """Return what an audited event opens that no unit test may; None if it may."""
    # Python 3.10 passes bytes.
    if event == "sqlite3.connect" and os.fsdecode(arguments[0]) in ("", ":memory:"):
        return None
    return _FORBIDDEN.get(event)


def _audit(event: str, arguments: tuple[Any, ...]) -> None:
    if _running and (what := opened_by(event, arguments)):
        _running.append(what)
        raise RuntimeError(f"a unit test opens {what}: move it out of tests/unit")


def pytest_configure() -> None:
    """Listen from the start; a hook of this kind stays for ever."""
    sys.addaudithook(_audit)


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> Iterator[None]:
    """Watch a unit test from its first fixture on."""
    _running[:] = [item.nodeid] if item.nodeid.startswith("tests/unit/") else []
    yield


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_call() -> Iterator[None]:
    """Fail a test that opened something, even where the code under test hid that."""
    yield
    if opened := _running[1:]:
        pytest.fail(f"a unit test opened {', '.join(sorted(set(opened)))}")


@pytest.hookimpl(wrapper=True, trylast=True)
def pytest_runtest_teardown() -> Iterator[None]:
    """Watch no more once its fixtures have ended."""
    yield
    _running.clear()
