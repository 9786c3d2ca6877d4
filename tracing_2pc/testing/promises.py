"""Reports of the contract kits that a promise is broken: one line for the author."""

from __future__ import annotations

import json
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Final, NoReturn

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
    """Compare the visible rows with these, each of them once."""
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


_OF_REFUSED: Final = (
    "test_a_row_that_is_refused_is_named",
    "test_a_row_that_nobody_sees_rejects_none",
    "test_a_fault_of_the_schema_rejects_no_row",
)


class Contract:
    """The part that the kits share: the place of the tested object, and its rows."""

    def visible(self, where: Any) -> Iterable[Mapping[str, Any]]:
        """Return the rows that a reader sees now, in any order, as `record` made them.

        It reads where readers read, and asks neither sink nor resource.
        """
        raise NotImplementedError(f"{type(self).__name__}: define visible(where)")

    def record(self, n: int) -> Mapping[str, Any]:
        """Return the n-th row, different from all others. Override it for columns."""
        return {"id": n, "amount": 1.5 * n}

    names_rows = True
    """Whether rows that are refused are named; False: they are a vote to abort."""

    _left_out: ClassVar[Mapping[str, Any]] = {}

    def __init_subclass__(cls) -> None:
        """Leave out the tests of refused rows where `refused` is not defined."""
        super().__init_subclass__()
        tests = {n: getattr(cls, n) for n in _OF_REFUSED if n not in vars(cls)}
        if cls.refused is not Contract.refused:
            tests = {n: cls._left_out.get(n, test) for n, test in tests.items()}
        elif any(tests.values()):
            cls._left_out, tests = tests, dict.fromkeys(tests)
        for name, test in tests.items():
            setattr(cls, name, test)

    def refused(self, where: Any) -> Mapping[str, Any]:
        """Let the place refuse a row by its values, and return it: one like `record`'s.

        Called before anything else is made there. Give the store a unique key, too, if
        it can have one: then rows that no reader sees exclude others. If it is not
        defined, the tests of refused rows are left out.
        """
        raise NotImplementedError(f"{type(self).__name__}: define refused(where)")

    @pytest.fixture
    def refused_row(self, where: Any) -> Mapping[str, Any]:
        """Return the row that the place refuses."""
        return self.refused(where)

    def expect_named(self, named: Sequence[int] | None, wanted: Sequence[int]) -> None:
        """Compare the rows that a refusal has named; None: it was a vote to commit."""
        wanted = wanted if self.names_rows else ()
        if named is None:
            broken(
                "A branch with a row that is refused was voted commit: a row that the "
                "store cannot keep is a vote to abort"
            )
        if list(named) != list(wanted):
            broken(
                f"A branch of which row {wanted} is refused named rows {list(named)}. "
                "Name each row without which the others would be taken, by its number "
                "in the branch, and no other; or say `names_rows = False`, name none"
            )

    def expect_good(self, named: Sequence[int] | None, bad: Sequence[int]) -> None:
        """Fail if a row is named that the store would take."""
        if wrong := sorted(set(named or ()) - {*bad}):
            broken(
                f"Rows {wrong} were named, and are not to blame: what is in their way "
                "is a row that no reader sees, which may go away, or the table's "
                "columns. Refuse the branch without naming a row, or say not now"
            )

    @pytest.fixture
    def where(self, tmp_path: Path) -> Any:
        """Return where rows are kept: an empty folder."""
        (folder := tmp_path / "where").mkdir()
        return folder

    def _module(self) -> tuple[str, str]:
        module = type(self).__module__
        return module, str(sys.modules[module].__file__)
