"""One count, and how it is shown."""

from __future__ import annotations

import dataclasses
from typing import Any, Final

_ROW: Final = "{:<62} {:>8} {:>7}  {}"

HEAD: Final = _ROW.format("count", "expected", "actual", "ok")


@dataclasses.dataclass(frozen=True, slots=True)
class Count:
    """What was counted, what it must be and why, and what it is."""

    name: str
    expected: int
    actual: int
    why: str

    @property
    def ok(self) -> bool:
        """Whether it is exactly as expected."""
        return self.actual == self.expected

    def as_row(self) -> str:
        """Return its line of the table; where it does not hold, why it should."""
        ok = "yes" if self.ok else f"NO: {self.why}"
        return _ROW.format(self.name, self.expected, self.actual, ok)

    def as_json(self) -> dict[str, Any]:
        """Return it as one JSON object."""
        return {
            "count": self.name,
            "expected": self.expected,
            "actual": self.actual,
            "ok": self.ok,
            "why": self.why,
        }


@dataclasses.dataclass(frozen=True, slots=True)
class Expected:
    """What one of something costs, and why it is neither more nor less."""

    each: int
    why: str

    def count(self, name: str, actual: int, times: int = 1) -> Count:
        """Compare the actual count of so many of them."""
        return Count(name, self.each * times, actual, self.why)
