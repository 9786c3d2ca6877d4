"""How the contract kits say that a promise is broken: one line for the author."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
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
