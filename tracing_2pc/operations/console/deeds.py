"""What an operator can do from a page: through the log, signed, with its cost."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Iterator
from typing import Final

from tracing_2pc.errors import ConfigurationError, TwoPhaseError
from tracing_2pc.model import TransactionRecord
from tracing_2pc.operations.actions import GIVE_UP, Action
from tracing_2pc.operations.console.auth import Notice
from tracing_2pc.operations.console.sight import Sources
from tracing_2pc.operations.resolve import (
    GiveUp,
    Outcome,
    Wanted,
    resolve,
    resolve_orphan,
)
from tracing_2pc.operations.view import View
from tracing_2pc.states import UNFINISHED, Decision, TransactionState

_MEANING: Final[dict[Outcome, str]] = {
    "mixed": "Mixed: some have committed it, and others have not.",
    "hazard": "Hazard: nobody knows what became of it.",
}


@dataclasses.dataclass(frozen=True, slots=True)
class Deed:
    """Something that the log allows now.

    Args:
        key: its word in a form: `abort`, `mixed`, `commit@ledger`, `give-up@ledger`.
        title: on its button.
        action: what it does and costs, and how to do it without the console.
        meaning: when this is the word for it.
    """

    key: str
    title: str
    action: Action
    meaning: str = ""

    @property
    def seal(self) -> str:
        """A digest of what a person is shown of it: to see that it has changed."""
        shown = (self.key, self.action.effect, self.action.safe, *self.action.cost)
        return hashlib.sha256(repr(shown).encode()).hexdigest()[:32]


def deeds(view: View) -> Iterator[Deed]:
    """Say what can be done about a transaction here, safe things first."""
    for action in view.actions:
        if action.wanted == "conclude":
            for word, meaning in _MEANING.items():
                yield Deed(word, f"Close it as {word}", action, meaning)
        elif action.wanted is not None:
            yield _decision(view, action, action.wanted)


def _decision(view: View, action: Action, wanted: str) -> Deed:
    if wanted == GIVE_UP:
        return Deed(f"give-up@{action.at}", f"Give up {action.at}", action)
    if action.at is not None:
        title = f"{wanted.capitalize()} at {action.at}"
        return Deed(f"{wanted}@{action.at}", title, action)
    if view.state is TransactionState.ACTIVE:
        return Deed(wanted, "Abort it", action)
    return Deed(wanted, f"Deliver {wanted} again", action)


def carry_out(
    deed: Deed, view: View, sources: Sources, who: str, reason: str
) -> Notice:
    """Do it, and say what has become of it. It is in the audit before it is done.

    What is decided is delivered once; whom that does not reach, recovery does.

    Raises:
        ConfigurationError: nothing of it is left, or a participant has no address.
        ContractError: the log does not allow it any more; nothing was changed.
        ParticipantError: a participant said no, or nothing that can be trusted.
        DecisionLogError: the log cannot be reached: it may have happened, look again.
    """
    wanted: Wanted
    if deed.action.wanted == GIVE_UP:
        wanted = GiveUp(str(deed.action.at))
    elif deed.action.at is not None:
        return _at_one(deed, deed.action.at, view, sources, who, reason)
    else:
        wanted = deed.key if deed.key in _MEANING else Decision(deed.key)
    log, id_ = sources.log, view.transaction
    record = resolve(log, id_, wanted=wanted, reason=reason, who=who)
    if record.state in UNFINISHED:
        return _delivered(record, sources)
    return Notice(f"It is {record.state}.", well=True)


def _at_one(
    deed: Deed, name: str, view: View, sources: Sources, who: str, reason: str
) -> Notice:
    if (participant := sources.participants.get(name)) is None:
        raise ConfigurationError(
            f"{name} has no address here: add it to `participants` in tpc.toml"
        )
    outcome = Decision(str(deed.action.wanted))
    resolve_orphan(
        sources.log,
        participant,
        view.transaction,
        outcome=outcome,
        reason=reason,
        who=who,
        orphan_after=sources.settings.orphan_after,
    )
    done = "Committed" if outcome is Decision.COMMIT else "Aborted"
    return Notice(f"{done} at {name}.", well=True)


def _delivered(record: TransactionRecord, sources: Sources) -> Notice:
    """Say what came of telling everybody now; what was decided stands anyhow."""
    try:
        delivered = sources.deliver(record)
    except TwoPhaseError as error:
        done, remark = False, str(error)
    else:
        done, remark = delivered.done, delivered.remark
    how = "and delivered" if done else "but not delivered to all"
    return Notice(f"Decided {record.decision}, {how}: {remark}.", well=done)
