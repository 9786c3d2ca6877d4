"""What a machine does not permit is left out by its name; in CI it is a failure."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from support.programs import left_out, why_not_traced

REFUSED = "strace: attach: ptrace(PTRACE_SEIZE, 7): Operation not permitted"


@pytest.fixture
def path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The only folder in which programs are looked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    why_not_traced.cache_clear()
    yield tmp_path
    why_not_traced.cache_clear()


@pytest.mark.parametrize(
    ("ci", "ends"), [("", pytest.skip.Exception), ("true", pytest.fail.Exception)]
)
def test_a_developer_is_told_what_is_left_out_and_ci_leaves_nothing_out(
    monkeypatch: pytest.MonkeyPatch, ci: str, ends: type[BaseException]
) -> None:
    monkeypatch.setenv("CI", ci)
    with pytest.raises(ends, match="there is no pgbouncer"):
        left_out("there is no pgbouncer")


def test_a_machine_without_strace_says_so(path: Path) -> None:
    assert "tools/strace" in why_not_traced()


def test_a_kernel_that_refuses_is_told_from_one_that_does_not(path: Path) -> None:
    """By what strace says when it looks at a process that it did not start."""
    strace = path / "strace"
    strace.write_text(f"#!/bin/sh\necho '{REFUSED}' >&2\nexit 1\n")
    strace.chmod(0o755)
    assert why_not_traced().startswith(REFUSED)
    assert "ptrace_scope" in why_not_traced()
    why_not_traced.cache_clear()
    strace.write_text("#!/bin/sh\necho 'strace: Process 7 attached' >&2\n")
    assert not why_not_traced()
