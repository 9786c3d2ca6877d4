"""`tracing-2pc resolve`: checks, shows, asks, does; in this order."""

from __future__ import annotations

import argparse
import sys

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.explain import describe_action
from tracing_2pc.cli.terminal import (
    confirmed,
    print_item,
    prose,
    raise_if_no_terminal,
)
from tracing_2pc.core.errors import ConfigurationError, ParticipantUnavailableError
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import OF_CALLER, UNFINISHED, Decision
from tracing_2pc.inspection.summary import summarize
from tracing_2pc.inspection.view import summarize_record, view_transaction
from tracing_2pc.inspection.wording import join_names
from tracing_2pc.operations.check import export_of_token
from tracing_2pc.operations.recover import deliver
from tracing_2pc.operations.resolve import (
    GiveUp,
    Outcome,
    Resolution,
    action_of,
    check_orphan,
    check_reason,
    outcome_word,
    raise_if_not_allowed,
    resolve,
    resolve_orphan,
    signature,
)
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
        carry_out = _in_the_log if options.at is None else _at_one
        return carry_out(options, settings, log, transaction)


def _wanted(options: argparse.Namespace) -> Resolution:
    if options.give_up is not None:
        return GiveUp(options.give_up)
    if options.wanted in set(map(str, Decision)):
        return Decision(options.wanted)
    outcome: Outcome = options.wanted
    return outcome


def _in_the_log(
    options: argparse.Namespace,
    settings: Settings,
    log: OperatorLog,
    transaction: TransactionId,
) -> int:
    wanted = _wanted(options)
    if (record := log.read(transaction)) is not None:
        raise_if_not_allowed(record, wanted)
        if not _is_agreed(options, settings, log, transaction):
            return LEFT
    record = resolve(log, transaction, wanted=wanted, reason=options.reason)
    done, remark = True, _left_behind(record)
    if record.state in UNFINISHED:
        delivered = deliver(log, settings, record)
        record = log.read(transaction) or record
        done, remark = delivered.done, delivered.remark
        if done:
            but = f" but {join_names(record.abandoned)}" if record.abandoned else ""
            remark = f"every participant{but} has acknowledged"
        if record.state in UNFINISHED:
            remark += ". `tracing-2pc recover` goes on with it"
    about = {**summarize_record(record), "done": done, "remark": remark}
    line = f"{record.id} is {record.state}"
    print_item(options, about, f"{line}; {remark}" if remark else line)
    return DONE if done else LEFT


def _left_behind(record: TransactionRecord) -> str:
    if not record.pending:
        return ""
    names = ", ".join(record.pending)
    return f"not acknowledged by {names}: what they prepared for it may still be there"


def _at_one(
    options: argparse.Namespace,
    settings: Settings,
    log: OperatorLog,
    transaction: TransactionId,
) -> int:
    outcome = _wanted(options)
    if not isinstance(outcome, Decision):
        raise ConfigurationError("--at goes with --commit or --abort")
    participants = open_participants(settings)
    if options.at not in participants:
        raise ConfigurationError(
            f"no participant {options.at!r} in the settings; they have: "
            f"{', '.join(participants) or 'none'}"
        )
    orphan = (log, participants[options.at], transaction)
    check_orphan(*orphan, outcome, settings.orphan_after)
    if not _is_agreed(options, settings, log, transaction):
        return LEFT
    try:
        resolve_orphan(
            *orphan,
            outcome=outcome,
            reason=options.reason,
            who=signature(),
            orphan_after=settings.orphan_after,
        )
    except ParticipantUnavailableError as error:
        if error.refusal not in OF_CALLER:
            raise
        why = f"{error}{export_of_token(settings)}"
        raise ParticipantUnavailableError(why) from None
    state = outcome_word(outcome)
    item = {
        "transaction_id": str(transaction),
        "participant": options.at,
        "state": state,
        "done": True,
    }
    print_item(options, item, f"{transaction} is {state} at {options.at}, by hand")
    return DONE


def _is_agreed(
    options: argparse.Namespace,
    settings: Settings,
    log: OperatorLog,
    transaction: TransactionId,
) -> bool:
    """Whether the person has seen effect and cost, and agrees."""
    if options.yes:
        return True
    raise_if_no_terminal(
        f"`tracing-2pc explain {transaction}` shows what it would cost"
    )
    participants = open_participants(settings)
    view = view_transaction(log, participants, transaction, settings)
    word, at = action_of(_wanted(options))
    lines = prose(summarize(view))
    for action in view.actions:
        if (action.wanted, action.at) == (word, at or options.at):
            lines += describe_action(action)
    print("\n".join(lines), file=sys.stderr)
    batch = str(transaction.batch)
    question = f"Do it? Type the batch number, {batch}, or yes:"
    return confirmed(question, (batch, "yes"))
