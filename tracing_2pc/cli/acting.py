"""How a person acts at the terminal: what it does is shown, asked, signed, done."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import (
    confirmed,
    paint,
    print_item,
    prose,
    raise_if_no_terminal,
    safe,
)
from tracing_2pc.inspection.actions import Action
from tracing_2pc.operations.acts import Act
from tracing_2pc.operations.resolve import check_reason, signature


def perform(
    options: argparse.Namespace,
    act: Act,
    otherwise: str,
    show: Callable[[], Iterable[str]] | None = None,
) -> int:
    """Check it, show it, ask, sign, do it; 1 if it is not done, or not all of it.

    With `--yes` nobody is asked; without a terminal that is needed, and `otherwise` is
    what to know before. `show` writes what a person reads who is asked.
    """
    reason = getattr(options, "reason", "")
    if reason or act.needs_reason:
        reason = check_reason(reason)
    act.check()
    if not (options.yes or act.gone):
        raise_if_no_terminal(otherwise)
        print("\n".join(show() if show else describe_act(act)), file=sys.stderr)
        question = f"Do it? Type {act.numbered}, {act.number}, or yes:"
        words = [act.number, "yes"]
        if act.action.safe:  # it costs nothing, so no number shows that it was read
            question, words = "Do it? Type y, or yes:", ["y", "yes", act.number]
        if not confirmed(question, words):
            return LEFT
    done = act.run(signature(), reason)
    print_item(options, done.item, done.text)
    return DONE if done.well else LEFT


def describe_act(act: Act) -> Iterator[str]:
    """Write what it is done to, and what it does and costs."""
    for term, text in act.facts:
        yield from prose(f"{term}: {text}", "  ")
    yield from describe_action(act.action)


def describe_action(action: Action) -> Iterator[str]:
    """Return a command, what it does, and what it costs."""
    word, colour = ("safe", "green") if action.safe else ("FORCED", "red")
    yield paint(f"  {word}: {safe(action.command)}", colour)
    yield from prose(f"{action.effect}.", "    ")
    for cost in action.cost:
        yield from prose(f"costs: {cost}.", "      ", "    - ")
