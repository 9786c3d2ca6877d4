"""How the contract kits say that a promise is broken: one line for the author."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import pytest

Records = Sequence[Mapping[str, Any]]


def broken(promise: str) -> NoReturn:
    """Fail with one line for the author, without our own frames."""
    raise pytest.fail.Exception(promise, pytrace=False) from None


def expect_rows(
    written: Iterable[Mapping[str, Any]],
    visible: Iterable[Mapping[str, Any]],
    when: str,
    promise: str,
) -> None:
    """Compare what readers see with these rows, each of them once."""
    want, seen = (
        Counter(json.dumps(dict(row), sort_keys=True, default=str) for row in rows)
        for rows in (written, visible)
    )
    if missing := want - seen:
        broken(
            f"{when}, {missing.total()} of {want.total()} rows are not visible, "
            f"among them {next(iter(missing))}. {promise}"
        )
    if more := seen - want:
        broken(
            f"{when}, {more.total()} rows are visible that must not be, or twice, "
            f"among them {next(iter(more))}. {promise}"
        )


class Contract:
    """What the kits share: where what is tested keeps its rows, and which they are."""

    def visible(self, where: Any) -> Iterable[Mapping[str, Any]]:
        """Return the rows that a reader sees now, in any order, as `record` made them.

        It reads where readers read, and asks neither sink nor resource.
        """
        raise NotImplementedError(f"{type(self).__name__}: define visible(where)")

    def record(self, n: int) -> Mapping[str, Any]:
        """Return the n-th row, different from all others. Override it for columns."""
        return {"id": n, "amount": 1.5 * n}

    @pytest.fixture
    def where(self, tmp_path: Path) -> Any:
        """Return where rows are kept: an empty folder."""
        (folder := tmp_path / "where").mkdir()
        return folder

    def _module(self) -> tuple[str, str]:
        module = type(self).__module__
        return module, str(sys.modules[module].__file__)
