"""What `show`, `explain` and `resolve` have in common: one look at one transaction."""

from __future__ import annotations

import argparse

from tracing_2pc.cli.arguments import DONE, LEFT, USAGE
from tracing_2pc.cli.terminal import asking
from tracing_2pc.model import TransactionId
from tracing_2pc.operations.observation import reachable
from tracing_2pc.operations.recover import configured_log
from tracing_2pc.operations.view import View, look
from tracing_2pc.settings import Settings
from tracing_2pc.states import ParticipantState, TransactionState


def looked(options: argparse.Namespace) -> tuple[View, Settings]:
    """Ask log and participants about the transaction that was typed."""
    transaction = TransactionId.parse(options.transaction)
    settings = Settings.load(options.config, log=options.log)
    with configured_log(settings) as log, asking(settings.participants):
        return look(log, reachable(settings), transaction, settings), settings


def code_of(view: View) -> int:
    """Return 2 for what nobody knows, 1 if something is wrong or cannot be read."""
    if nobody_knows(view):
        return USAGE
    quarantined = view.state is TransactionState.QUARANTINED
    unread = any(one.error for one in view.participants)
    left = quarantined or view.diagnoses or unread or view.untold or view.held_back
    return LEFT if left else DONE


def nobody_knows(view: View) -> bool:
    """Whether there never was such a transaction, as far as everybody says."""
    said = {one.state for one in view.participants}
    return (
        view.state is None and not view.forgotten and said <= {ParticipantState.UNKNOWN}
    )
