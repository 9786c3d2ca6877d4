"""A build does not fail for examples that an unrelated edit has changed."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.drawn import leave_out_local_constants

leave_out_local_constants()


def test_examples_do_not_depend_on_other_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same numbers are drawn before and after a module with others is loaded."""
    drawn: list[int] = []

    @settings(max_examples=300)
    @given(st.integers())
    def draw(number: int) -> None:
        drawn.append(number)

    draw()
    before = list(drawn)
    drawn.clear()
    path = tmp_path / "many_constants.py"
    path.write_text("".join(f"C{n} = {n * 7919}\n" for n in range(100, 200)))
    monkeypatch.syspath_prepend(tmp_path)
    importlib.import_module(path.stem)
    draw()
    assert drawn == before
