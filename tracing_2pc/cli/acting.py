"""A person's actions at the terminal: shown, asked, signed, done."""

from __future__ import annotations

import argparse
import contextlib
import functools
import sys
from collections.abc import Iterable, Iterator, Mapping

from tracing_2pc.cli import terminal
from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import (
    confirmed,
    paint,
    print_item,
    prose,
    raise_if_no_terminal,
    safe,
)
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.core.ports import Clock, SystemClock
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.actions import Advice
from tracing_2pc.operations.actions.action import (
    Action,
    Consent,
    Done,
    PreparedAction,
    Preview,
    Reason,
)
from tracing_2pc.operations.recover import deliver
from tracing_2pc.operations.resolve import check_reason, signature
from tracing_2pc.operations.wiring import (
    open_configured_log,
    open_participants,
    start_telemetry,
)
from tracing_2pc.protocol.recovery import RecoveryResult


class _Terminal:
    """Opens what an action asks for, when it asks."""

    def __init__(self, options: argparse.Namespace, stack: contextlib.ExitStack):
        self._options = options
        self._stack = stack
        self.clock: Clock = SystemClock()

    @functools.cached_property
    def settings(self) -> Settings:
        return Settings.load(self._options.config, log=self._options.log)

    @functools.cached_property
    def log(self) -> OperatorLog:
        return self._stack.enter_context(open_configured_log(self.settings))

    @functools.cached_property
    def participants(self) -> Mapping[str, RemoteParticipant]:
        return open_participants(self.settings)

    def deliver(self, record: TransactionRecord) -> RecoveryResult:
        return deliver(self.log, self.settings, record)

    def asking(self, names: Iterable[str]) -> contextlib.AbstractContextManager[object]:
        return terminal.asking(names)

    def progress(self, text: str) -> None:
        terminal.progress(text)


def run(options: argparse.Namespace, action: Action) -> int:
    """Do what a person has typed, once that is agreed to; 1 if not all of it is done.

    The arguments are checked, shown, asked about, signed and done, in this order.
    """
    by_key = {argument.name: argument.key for argument in action.arguments}
    typed = {name: getattr(options, key) for name, key in by_key.items()}
    given = {name: str(text) for name, text in typed.items() if text}
    is_told = action.consent is not Consent.ASKED
    reason = "" if action.reason is Reason.NOT_KEPT else options.reason
    if reason or (action.reason is Reason.NEEDED and (options.yes or not is_told)):
        reason = check_reason(reason)
    start_telemetry()
    with contextlib.ExitStack() as stack:
        act = action.prepare(_Terminal(options, stack), given)
        if getattr(options, "dry_run", False) or (
            action.consent is Consent.ONLY_BY_YES and not options.yes
        ):
            report = act.preview().report
            return _print_all(options, [report] if report else [])
        if not (is_told or options.yes or _is_agreed(act)):
            return LEFT
        return _print_all(options, act.run(signature(), reason))


def _is_agreed(act: PreparedAction) -> bool:
    """Ask, unless nothing is left to do; without a terminal `--yes` is needed."""
    preview = act.preview()
    if preview.gone:
        return True
    raise_if_no_terminal(act.first or preview.advice.effect)
    print("\n".join(_describe(preview)), file=sys.stderr)
    if preview.advice.safe and not preview.advice.cost:  # nothing was to be read
        return confirmed("Do it? Type y, or yes:", ["y", "yes", act.number])
    question = f"Do it? Type {act.numbered}, {act.number}, or yes:"
    return confirmed(question, [act.number, "yes"])


def _describe(preview: Preview) -> Iterator[str]:
    for term, text in preview.facts:
        yield from prose(f"{term}: {text}", "  ")
    yield from describe_action(preview.advice)


def _print_all(options: argparse.Namespace, parts: Iterable[Done]) -> int:
    """Print what came of it, part by part, for persons or for programs."""
    code = DONE
    for done in parts:
        if not options.json:
            print("\n".join(safe(line, 2000) for line in (done.text, *done.more)))
        elif done.item is not None:
            print_item(options, done.item, "")
        sys.stdout.flush()
        code = code if done.well else LEFT
    return code


def describe_action(action: Advice) -> Iterator[str]:
    """Return a command, its effect, and its cost."""
    word, colour = ("safe", "green") if action.safe else ("FORCED", "red")
    yield paint(f"  {word}: {safe(action.command)}", colour)
    yield from prose(f"{action.effect}.", "    ")
    for cost in action.cost:
        yield from prose(f"costs: {cost}.", "      ", "    - ")
