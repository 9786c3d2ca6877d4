"""`python -m support.seconds`: each number of seconds in a test, but for `waiting.py`.

A literal in a call that waits, in a limit of the product, or beside an elapsed time. A
busy machine breaks such a test. `make lint` runs it. In `unit/` nothing waits, so
limits there are data; what a person runs by hand stands in `BY_HAND`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parents[1]
WAITS = {"wait", "join", "sleep", "settimeout", "poll", "pause"}
"""Calls whose first argument is a time."""

LIMITS = re.compile(r"(.*_)?(timeout|seconds|patience|lease|stall|within)")
"""Names of arguments that are a time, and of constants that hold one."""

DATA = (0, -1)
"""What stands for none, or for ever."""

BY_HAND = {"bundled/times_to_alert.py", "support/waiting.py"}


def literals(tree: ast.AST, *, limits: bool = True) -> Iterator[int]:
    """Yield the line of each literal number of seconds.

    Args:
        tree: of a module.
        limits: whether a limit is handed to something that may wait.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = getattr(node.func, "attr", getattr(node.func, "id", ""))
            if isinstance(getattr(node.func, "value", None), ast.Constant):
                continue  # `",".join(…)` waits for nobody
            if name in WAITS and any(map(_is_seconds, node.args[:1])):
                yield node.lineno
            elif limits or name in WAITS:
                named = [k for k in node.keywords if LIMITS.fullmatch(k.arg or "")]
                yield from (k.value.lineno for k in named if _is_seconds(k.value))
        elif isinstance(node, ast.Compare) and _is_elapsed(node.left):
            if any(map(_is_seconds, node.comparators)):
                yield node.lineno
        elif isinstance(node, ast.Assign) and limits and _is_seconds(node.value):
            targets = [t.id for t in node.targets if isinstance(t, ast.Name)]
            if any(LIMITS.fullmatch(target.lower()) for target in targets):
                yield node.lineno


def _is_seconds(node: ast.expr) -> bool:
    if isinstance(node, ast.BinOp):
        sides = _is_seconds(node.left), _is_seconds(node.right)
        # A multiple of a name is what the name is.
        return all(sides) if isinstance(node.op, ast.Mult | ast.Div) else any(sides)
    if not isinstance(node, ast.Constant) or isinstance(node.value, bool):
        return False
    return isinstance(node.value, int | float) and node.value not in DATA


def _is_elapsed(node: ast.expr) -> bool:
    return isinstance(node, ast.BinOp) and "monotonic()" in ast.unparse(node)


def main() -> int:
    """Print each place; return 1 if there is one."""
    places = [
        f"tests/{name}:{line}"
        for path in sorted(TESTS.rglob("*.py"))
        if (name := path.relative_to(TESTS).as_posix()) not in BY_HAND
        for line in sorted(
            literals(ast.parse(path.read_text()), limits=not name.startswith("unit/"))
        )
    ]
    for place in places:
        print(f"{place}: a number of seconds; take one of support/waiting.py")  # noqa: T201
    return 1 if places else 0


if __name__ == "__main__":
    sys.exit(main())
