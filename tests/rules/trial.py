"""Tests of a copy, run in a process of their own against that copy's package.

The process is forked from one that has imported what is slow to import, and nothing
of ours: a mutant costs its test and little more.
"""

from __future__ import annotations

import contextlib
import dataclasses
import io
import json
import multiprocessing
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from support import fork_server
from support.waiting import AT_LAST

from rules.copies import ROOT

PRELOADED: Final = [
    *("pytest", "sqlalchemy", "sqlalchemy.dialects.postgresql", "psycopg", "flask"),
    *("flask.testing", "werkzeug.serving", "pyarrow", "pyarrow.csv", "urllib3"),
    *("pyarrow.compute", "opentelemetry.sdk.trace", "requests", "ctypes.util"),
]
"""Third parties only, and no plugin of pytest: it wants to load those itself."""

OUR_FAULT: Final = frozenset(
    {
        *("NameError", "UnboundLocalError", "AttributeError", "TypeError"),
        *("ImportError", "ModuleNotFoundError", "SyntaxError", "IndentationError"),
    }
)
"""A test that ends like this says that the mutation is no program, and no more."""


@dataclasses.dataclass(frozen=True, slots=True)
class Verdict:
    """How a test ended: `passed`, `failed`, `broken`, `hung` or `missing`; and why."""

    outcome: str
    why: str = ""
    seconds: float = 0.0


def run(copy: Path, tests: Sequence[str], at_last: float = AT_LAST) -> list[Verdict]:
    """Run tests of a copy; return how each of them ended.

    Args:
        copy: its folder.
        tests: their ids.
        at_last: how long one waits for what it asserts, at most.
    """
    context = multiprocessing.get_context("forkserver")
    fork_server.preload(PRELOADED)
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "verdicts"
        # Not daemonic: tests start processes of their own.
        process = context.Process(
            target=_run_here, args=(copy, list(tests), file, at_last), daemon=False
        )
        process.start()
        process.join(2 * at_last * (len(tests) + 1))
        if process.is_alive():
            _stop(process)
        told = file.read_text() if file.exists() else "{}"
    ended: dict[str, dict[str, Any]] = json.loads(told)
    return [Verdict(**ended.get(test, _silent(process.exitcode))) for test in tests]


def _silent(code: int | None) -> dict[str, Any]:
    return {"outcome": "missing", "why": f"pytest said nothing of it (exit {code})"}


def _stop(process: Any) -> None:
    """Interrupt it, so that it stops what it has started; then end it."""
    os.kill(process.pid, signal.SIGINT)
    process.join(AT_LAST)
    if process.is_alive():
        process.kill()
        process.join()


def _run_here(copy: Path, tests: list[str], file: Path, at_last: float) -> None:
    signal.signal(signal.SIGINT, signal.default_int_handler)
    _import_from(copy)
    import pytest
    from support import waiting

    waiting.AT_LAST = at_last  # type: ignore[misc]

    watch = _Watch(copy, file)
    options = ["-q", "-p", "no:cacheprovider", "--rootdir", str(copy), "--tb=no"]
    options += ["-c", str(copy / "pyproject.toml"), f"--timeout={2 * at_last:g}"]
    said = io.StringIO()
    with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
        try:
            pytest.main([*options, *tests], plugins=[watch])
        except Exception:  # noqa: BLE001 - what is left open at the end is an error too
            traceback.print_exc()
    if not watch.ended:
        watch.tell(tests[0], "broken", " ".join(said.getvalue()[-500:].split()))


def _import_from(copy: Path) -> None:
    """Let this process and those it starts import from the copy, and nowhere else."""
    assert not [name for name in sys.modules if name.startswith("tracing_2pc")]
    ours = {str(ROOT), "", *(str(f) for f in (ROOT / "tests").glob("**/"))}
    paths = [str(copy), str(copy / "tests")]
    sys.path[:] = [*paths, *(path for path in sys.path if path not in ours)]
    os.environ["PYTHONPATH"] = os.pathsep.join(paths)
    os.chdir(copy)


class _Watch:
    """Writes down how each test ends; a plugin of pytest."""

    def __init__(self, copy: Path, file: Path) -> None:
        self._copy = copy
        self._file = file
        self.ended: dict[str, Mapping[str, Any]] = {}

    def tell(self, test: str, outcome: str, why: str, seconds: float = 0.0) -> None:
        self.ended[test] = {"outcome": outcome, "why": why, "seconds": seconds}
        self._file.write_text(json.dumps(self.ended))

    def pytest_sessionstart(self) -> None:
        import tracing_2pc

        where = Path(tracing_2pc.__file__)
        if not where.is_relative_to(self._copy):
            raise RuntimeError(f"not the copy is under test, but {where}")

    def pytest_runtest_makereport(self, item: Any, call: Any) -> None:
        error = call.excinfo
        before = self.ended.get(item.nodeid, {}).get("outcome", "passed")
        if error is None:
            if call.when == "call":
                self.tell(item.nodeid, "passed", "", call.duration)
            return
        if before == "passed":
            outcome = _outcome(error.typename, str(error.value), call.when)
            self.tell(item.nodeid, outcome, _line(error), call.duration)


def _outcome(kind: str, text: str, when: str) -> str:
    if kind == "Failed" and text.startswith("Timeout"):
        return "hung"
    if when != "call" or kind in OUR_FAULT or kind == "Skipped":
        return "broken"
    return "failed"


def _line(error: Any) -> str:
    text = " ".join(str(error.value).split()) or "no more words"
    return f"{error.typename}: {text}"[:160]
