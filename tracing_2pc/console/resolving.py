"""What an operator can do from a page: through the log, signed, with its cost."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Final

from tracing_2pc.console.sessions import Notice
from tracing_2pc.console.state import ConsoleSources
from tracing_2pc.core.errors import ConfigurationError, TwoPhaseError
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.core.states import UNFINISHED, Decision, TransactionState
from tracing_2pc.inspection.actions import CONCLUDE, GIVE_UP, Action
from tracing_2pc.inspection.view import TransactionView
from tracing_2pc.inspection.wording import NO_ADDRESS
from tracing_2pc.operations.resolve import (
    GiveUp,
    Outcome,
    Resolution,
    outcome_word,
    resolve,
    resolve_orphan,
)

_MEANING: Final[dict[Outcome, str]] = {
    "mixed": "Mixed: some have committed it, and others have not.",
    "hazard": "Hazard: nobody knows what became of it.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class ResolveOption:
    """Something that the log allows now; `title` is on its button.

    `key` is its word in a form: `abort`, `mixed`, `commit@ledger`, `give-up@ledger`.
    """

    key: str
    title: str
    action: Action
    wanted: Resolution
    meaning: str = ""

    @property
    def fingerprint(self) -> str:
        """A digest of what a person is shown of it: to see that it has changed."""
        shown = (self.key, self.action.effect, self.action.safe, *self.action.cost)
        return hashlib.sha256(repr(shown).encode()).hexdigest()[:32]


def resolve_options(view: TransactionView) -> Iterator[ResolveOption]:
    """Yield what can be done about a transaction here, safe things first."""
    for action in view.actions:
        wanted, at = action.wanted, action.at
        if wanted == CONCLUDE:
            for word, meaning in _MEANING.items():
                yield ResolveOption(word, f"Close it as {word}", action, word, meaning)
        elif wanted == GIVE_UP and at:
            give_up = GiveUp(at)
            yield ResolveOption(f"give-up@{at}", f"Give up {at}", action, give_up)
        elif wanted:
            key, decision = f"{wanted}@{at}" if at else wanted, Decision(wanted)
            title = f"Deliver {wanted} again"
            if at:
                title = f"{wanted.capitalize()} at {at}"
            elif view.state is TransactionState.ACTIVE:
                title = "Abort it"
            elif view.finished is not None:
                title = "Leave it aborted"
            yield ResolveOption(key, title, action, decision)


def carry_out(
    option: ResolveOption,
    view: TransactionView,
    sources: ConsoleSources,
    who: str,
    reason: str,
) -> Notice:
    """Do it, and return what has become of it. It is in the audit before it is done.

    What is decided is delivered once; recovery goes on where that does not succeed.

    Raises:
        ConfigurationError: nothing of it is left, or a participant has no address.
        ContractError: the log does not allow it any more; nothing was changed.
        ParticipantError: a participant refused, or gave no answer to be trusted.
        DecisionLogError: the log cannot be reached: it may have happened, look again.
    """
    log, id_ = sources.log, view.transaction
    wanted, at = option.wanted, option.action.at
    if at is not None and isinstance(wanted, Decision):
        if (participant := sources.participants.get(at)) is None:
            raise ConfigurationError(f"{at}: {': '.join(NO_ADDRESS)}")
        resolve_orphan(
            log,
            participant,
            id_,
            outcome=wanted,
            reason=reason,
            who=who,
            orphan_after=sources.settings.orphan_after,
        )
        return Notice(f"{outcome_word(wanted).capitalize()} at {at}.", well=True)
    record = resolve(log, id_, wanted=wanted, reason=reason, who=who)
    if record.state in UNFINISHED:
        return _deliver(record, sources)
    return Notice(f"It is {record.state}.", well=True)


def _deliver(record: TransactionRecord, sources: ConsoleSources) -> Notice:
    """Deliver now, and return what came of it; what was decided stands anyhow."""
    try:
        delivered = sources.deliver(record)
        done, remark = delivered.done, delivered.remark
    except TwoPhaseError as error:
        done, remark = False, str(error)
    result = "and delivered" if done else "but not delivered to all"
    return Notice(f"Decided {record.decision}, {result}: {remark}.", well=done)
