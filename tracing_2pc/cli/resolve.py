"""`tracing-2pc resolve`: a person decides; what is asked, shown, done and said."""

from __future__ import annotations

import argparse
import sys
from typing import Any

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.explain import described, summary
from tracing_2pc.cli.terminal import check_on_terminal, confirmed, prose, tell
from tracing_2pc.errors import ConfigurationError, ParticipantUnavailableError
from tracing_2pc.model import TransactionId, TransactionRecord
from tracing_2pc.operations.check import export_of_token
from tracing_2pc.operations.observation import reachable
from tracing_2pc.operations.orphans import check_orphan
from tracing_2pc.operations.recover import (
    configured_log,
    deliver,
    services_of,
    start_telemetry,
)
from tracing_2pc.operations.resolve import (
    GiveUp,
    Outcome,
    Wanted,
    check_word,
    resolve,
    resolve_orphan,
    word_of,
)
from tracing_2pc.operations.signing import check_reason, signature
from tracing_2pc.operations.view import brief, look
from tracing_2pc.settings import Settings
from tracing_2pc.states import UNFINISHED, Decision
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.transports.wire import NOT_ADMITTED


def run(options: argparse.Namespace) -> int:
    """Check, show, ask, do; in this order."""
    transaction = TransactionId.parse(options.transaction)
    check_reason(options.reason)
    settings = Settings.load(options.config, log=options.log)
    with configured_log(settings) as log:
        start_telemetry()
        if options.at is None:
            return _in_the_log(options, log, settings, transaction)
        return _at_a_participant(options, log, settings, transaction)


def _in_the_log(
    options: argparse.Namespace,
    log: SqlDecisionLog,
    settings: Settings,
    transaction: TransactionId,
) -> int:
    wanted = _wanted(options)
    if (record := log.read(transaction)) is not None:
        check_word(record, wanted)
        if not _agreed(options, log, settings, transaction):
            return LEFT
    record = resolve(log, transaction, wanted=wanted, reason=options.reason)
    done, remark = True, _pending(record)
    if record.state in UNFINISHED:
        delivered = deliver(log, settings, record)
        done = delivered.done
        record = log.read(transaction) or record
        but = f" but {' and '.join(record.abandoned)}" if record.abandoned else ""
        all_have = f"every participant{but} has acknowledged"
        remark = f"; {all_have if done else delivered.remark}"
        if record.state in UNFINISHED:
            remark += ". `tracing-2pc recover` goes on with it"
    about = {**brief(record), "done": done, "remark": remark.removeprefix("; ")}
    tell(options, about, f"{record.id} is {record.state}{remark}")
    return DONE if done else LEFT


def _wanted(options: argparse.Namespace) -> Wanted:
    if options.give_up is not None:
        return GiveUp(options.give_up)
    if options.wanted in set(map(str, Decision)):
        return Decision(options.wanted)
    outcome: Outcome = options.wanted
    return outcome


def _pending(record: TransactionRecord) -> str:
    if not record.pending:
        return ""
    return (
        f"; not acknowledged by {', '.join(record.pending)}: what they prepared "
        "for it may still be there"
    )


def _at_a_participant(
    options: argparse.Namespace,
    log: SqlDecisionLog,
    settings: Settings,
    transaction: TransactionId,
) -> int:
    if options.wanted not in set(map(str, Decision)):
        raise ConfigurationError("--at goes with --commit or --abort")
    known = services_of(settings)
    if options.at not in known:
        raise ConfigurationError(
            f"no participant {options.at!r} in the settings; they have: "
            f"{', '.join(known) or 'none'}"
        )
    participant, outcome = known[options.at], Decision(options.wanted)
    orphan_after = settings.orphan_after
    check_orphan(log, participant, transaction, outcome, orphan_after)
    if not _agreed(options, log, settings, transaction):
        return LEFT
    try:
        resolve_orphan(
            log,
            participant,
            transaction,
            outcome=outcome,
            reason=options.reason,
            who=signature(),
            orphan_after=orphan_after,
        )
    except ParticipantUnavailableError as error:
        if error.status not in NOT_ADMITTED:
            raise
        raise ParticipantUnavailableError(
            f"{error}{export_of_token(settings)}"
        ) from None
    state = "committed" if outcome is Decision.COMMIT else "aborted"
    item: dict[str, Any] = {
        "transaction_id": str(transaction),
        "participant": options.at,
        "state": state,
        "done": True,
    }
    tell(options, item, f"{transaction} is {state} at {options.at}, by hand")
    return DONE


def _agreed(
    options: argparse.Namespace,
    log: SqlDecisionLog,
    settings: Settings,
    transaction: TransactionId,
) -> bool:
    """Whether the person has seen effect and cost, and says so."""
    if options.yes:
        return True
    check_on_terminal(f"`tracing-2pc explain {transaction}` says what it would cost")
    view = look(log, reachable(settings), transaction, settings)
    word, at = word_of(_wanted(options))
    lines = prose(summary(view))
    for action in view.actions:
        if (action.wanted, action.at) == (word, at or options.at):
            lines += described(action)
    print("\n".join(lines), file=sys.stderr)
    batch = str(transaction.batch)
    question = f"Do it? Type the batch number, {batch}, or yes:"
    return confirmed(question, (batch, "yes"))
