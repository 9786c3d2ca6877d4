"""Decide by hand about one transaction, in the log or at one participant."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from tracing_2pc.core.addresses import addresses_of
from tracing_2pc.core.errors import ConfigurationError, TwoPhaseError
from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.states import UNFINISHED, Decision
from tracing_2pc.inspection.actions import CONCLUDE, GIVE_UP, Advice
from tracing_2pc.inspection.wording import join_names
from tracing_2pc.operations.actions.action import (
    FLAG,
    Action,
    Argument,
    Done,
    Given,
    Offer,
    PreparedAction,
    Preview,
    Reach,
)

if TYPE_CHECKING:
    from tracing_2pc.core.remote_participant import RemoteParticipant
    from tracing_2pc.inspection.view import TransactionView
    from tracing_2pc.operations.resolve import Resolution

_MEANING: Final = {
    "mixed": "mixed: some have committed it, and others have not",
    "hazard": "hazard: nobody knows what became of it",
}


def offers(view: TransactionView) -> Iterator[Offer]:
    """Yield possible actions about a transaction from here, safe ones first."""
    for advised in view.actions:
        for words, advice in _advised(advised):
            given = {"transaction": str(view.transaction), **words}
            title = _title(given, view)
            if view.undelivered:
                title = title.removesuffix(" again")
            yield Offer(RESOLVE, given, title, advice)


def _advised(advice: Advice) -> Iterator[tuple[dict[str, str], Advice]]:
    """Yield the arguments of `resolve` for it; none for another command."""
    if advice.wanted == CONCLUDE:
        for word, meaning in _MEANING.items():
            effect = f"{advice.effect}; {meaning}"
            yield {"conclude": word}, dataclasses.replace(advice, effect=effect)
    elif advice.wanted == GIVE_UP and advice.at:
        yield {"give-up": advice.at}, advice
    elif advice.wanted:
        place = {"at": advice.at} if advice.at else {}
        yield {**place, advice.wanted: "yes"}, advice


def _title(given: Given, known: TransactionView | TransactionRecord | None) -> str:
    if name := given.get("give-up"):
        return f"Give up {name}"
    if outcome := given.get("conclude"):
        return f"Close it as {outcome}"
    word = "commit" if "commit" in given else "abort"
    if name := given.get("at"):
        return f"{word.capitalize()} at {name}"
    if known is not None and known.finished is not None:
        return "Leave it aborted"
    return f"Deliver {word} again" if known and known.decision else "Abort it"


def prepare(reach: Reach, given: Given) -> PreparedAction:
    """Check that the log allows it, and the participant that it is about."""
    # These open stores.
    from tracing_2pc.inspection.summary import summarize
    from tracing_2pc.inspection.view import view_transaction
    from tracing_2pc.operations.resolve import check_orphan, check_resolution
    from tracing_2pc.operations.wiring import participant_named

    transaction, wanted = TransactionId.parse(given["transaction"]), _wanted(given)
    record, name = None, given.get("at")
    run: Callable[[str, str], list[Done]]
    if name is None:
        record = check_resolution(reach.log, transaction, wanted)
        run = functools.partial(_resolve_in_log, reach, transaction, wanted)
    elif isinstance(wanted, Decision):
        its = addresses_of(reach.participants, transaction.application)
        participant, wait = participant_named(name, its), reach.settings.orphan_after
        with reach.asking([name]):
            check_orphan(reach.log, participant, transaction, wanted, wait)
        run = functools.partial(_resolve_at, reach, participant, transaction, wanted)
    else:
        raise ConfigurationError("--at goes with --commit or --abort")

    def preview() -> Preview:
        participants, settings = reach.participants, reach.settings
        with reach.asking(participants):
            view = view_transaction(
                reach.log, participants, transaction, settings, reach.clock
            )
        facts = [("How it stands", summarize(view))]
        facts += (("What is wrong", f"{finding.text}.") for finding in view.wrong)
        effect = "does what the log allows, and `tracing-2pc explain` does not advise"
        cost = ("`tracing-2pc explain` does not advise that now",)
        other = Advice(RESOLVE.command(given), safe=False, effect=effect, cost=cost)
        advised = (offer.advice for offer in offers(view) if offer.given == given)
        return Preview(next(advised, other), tuple(facts))

    return PreparedAction(
        given,
        _title(given, record),
        str(transaction.batch),
        "the batch number",
        preview,
        run,
        first=f"`tracing-2pc explain {transaction}` shows what it would cost",
    )


def _wanted(given: Given) -> Resolution:
    from tracing_2pc.operations.resolve import GiveUp

    if name := given.get("give-up"):
        return GiveUp(name)
    if outcome := given.get("conclude"):
        return "mixed" if outcome == "mixed" else "hazard"
    return Decision.COMMIT if "commit" in given else Decision.ABORT


def _resolve_in_log(
    reach: Reach, transaction: TransactionId, wanted: Resolution, who: str, reason: str
) -> list[Done]:
    from tracing_2pc.inspection.view import summarize_record
    from tracing_2pc.operations.resolve import resolve

    record = resolve(reach.log, transaction, wanted=wanted, reason=reason, who=who)
    done, remark = True, ""
    if record.state in UNFINISHED:
        record, done, remark = _deliver(reach, record)
    elif names := ", ".join(record.pending):
        left = "what they prepared for it may still be there"
        remark = f"not acknowledged by {names}: {left}"
    item = {**summarize_record(record), "done": done, "remark": remark}
    line = f"{record.id} is {record.state}"
    return [Done(f"{line}; {remark}" if remark else line, item, done)]


def _deliver(
    reach: Reach, record: TransactionRecord
) -> tuple[TransactionRecord, bool, str]:
    """Deliver once, now; the decision stands even if that fails."""
    try:
        delivered = reach.deliver(record)
        done, remark = delivered.done, delivered.remark
    except TwoPhaseError as error:
        done, remark = False, str(error)
    record = reach.log.read(record.id) or record
    if done:
        but = f" but {join_names(record.abandoned)}" if record.abandoned else ""
        remark = f"every participant{but} has acknowledged"
    if record.state in UNFINISHED:
        remark += ". `tracing-2pc recover` goes on with it"
    return record, done, remark


def _resolve_at(
    reach: Reach,
    participant: RemoteParticipant,
    transaction: TransactionId,
    outcome: Decision,
    who: str,
    reason: str,
) -> list[Done]:
    from tracing_2pc.operations.resolve import outcome_word, resolve_orphan
    from tracing_2pc.operations.wiring import naming_whose_token

    signature, wait = {"reason": reason, "who": who}, reach.settings.orphan_after
    with naming_whose_token(reach.settings):
        resolve_orphan(
            reach.log, participant, transaction, outcome, **signature, orphan_after=wait
        )
    name, state = participant.name, outcome_word(outcome)
    item = {"transaction_id": str(transaction), "participant": name, "state": state}
    text = f"{transaction} is {state} at {name}, by hand"
    return [Done(text, {**item, "done": True})]


def _application(given: Given) -> str | None:
    try:
        return TransactionId.parse(given.get("transaction", "")).application
    except ValueError:
        return None


RESOLVE: Final = Action(
    "resolve",
    "decide by hand; signed, and kept in the audit",
    (
        Argument(
            "transaction",
            "<application>.<batch>.<attempt>",
            positional=True,
            required=True,
        ),
        Argument(
            "commit",
            "decided commit: deliver it again, now",
            choices=FLAG,
            exclusive=True,
        ),
        Argument(
            "abort",
            "undecided: decide abort. Decided abort: deliver it again, now",
            choices=FLAG,
            exclusive=True,
        ),
        Argument(
            "conclude",
            "quarantined, and it cannot be made whole: close it, with its outcome",
            choices=tuple(_MEANING),
            exclusive=True,
        ),
        Argument(
            "give-up",
            "decided, and this participant is gone for good: wait for it no more",
            exclusive=True,
            metavar="PARTICIPANT",
        ),
        Argument(
            "at",
            "an orphan: commit or abort at this participant what no record can finish",
            metavar="PARTICIPANT",
        ),
    ),
    prepare,
    application=_application,
    examples=(
        'resolve orders.7.1 --commit --reason "the ledger is up again"',
        'resolve orders.7.1 --conclude mixed --reason "restored from a backup"',
    ),
)
