"""What is done from outside needs a right that not everybody has."""

from __future__ import annotations

import pytest
from support.programs import left_out, why_not_traced

from crash.points import SCENARIOS

_TRACED = {"a_flush", "a_cut"}
"""Stories in which strace looks at a process that it did not start."""


@pytest.fixture(autouse=True)
def reachable(request) -> None:
    """Leave out, by its name, a point that nobody can reach here."""
    call = getattr(request.node, "callspec", None)
    point = call.params.get("point") if call else None
    traced = any(s.point == point and s.story in _TRACED for s in SCENARIOS)
    if traced and (why := why_not_traced()):
        left_out(why)
