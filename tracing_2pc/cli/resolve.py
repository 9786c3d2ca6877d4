"""`tracing-2pc resolve`."""

from __future__ import annotations

import argparse
from collections.abc import Iterator

from tracing_2pc.cli.acting import describe_act, perform
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision
from tracing_2pc.inspection.view import view_transaction
from tracing_2pc.operations.acts import Reach, acts_about, resolving
from tracing_2pc.operations.recover import deliver
from tracing_2pc.operations.resolve import GiveUp, Resolution, check_reason
from tracing_2pc.operations.wiring import (
    open_configured_log,
    open_participants,
    start_telemetry,
)


def run(options: argparse.Namespace, settings: Settings) -> int:
    """Decide by hand, in the log or at one participant."""
    transaction = TransactionId.parse(options.transaction)
    check_reason(options.reason)
    with open_configured_log(settings) as log:
        start_telemetry()
        participants = open_participants(settings)
        reach = Reach(log, participants, settings, lambda r: deliver(log, settings, r))
        act = resolving(reach, transaction, _wanted(options), options.at)

        def show() -> Iterator[str]:
            view = view_transaction(log, participants, transaction, settings)
            for one in acts_about(reach, view):
                if one.name == act.name:
                    yield from describe_act(one)

        first = f"`tracing-2pc explain {transaction}` shows what it would cost"
        return perform(options, act, first, show)


def _wanted(options: argparse.Namespace) -> Resolution:
    if options.give_up is not None:
        return GiveUp(options.give_up)
    word: Resolution = options.wanted
    return Decision(word) if word in set(map(str, Decision)) else word
