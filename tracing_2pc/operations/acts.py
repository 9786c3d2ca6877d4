"""What a person can do: checked, shown, asked, signed, done. Faces only render it.

Nothing is done without who does it, and it is on record before it is done. What comes
of it is a sentence for a person, and an object for a program.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from tracing_2pc.core.addresses import addresses_of
from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    TwoPhaseError,
)
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.model import (
    QuarantinedRequest,
    RequestKey,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.remote_participant import RemoteOutbox, RemoteParticipant
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import (
    OF_CALLER,
    UNFINISHED,
    Decision,
    Refusal,
    RelayTrouble,
    RequestState,
)
from tracing_2pc.inspection.actions import CONCLUDE, GIVE_UP, Advice
from tracing_2pc.inspection.findings import export_of_token
from tracing_2pc.inspection.participants import list_refused
from tracing_2pc.inspection.summary import summarize
from tracing_2pc.inspection.view import TransactionView, summarize_record
from tracing_2pc.inspection.wording import (
    format_count,
    format_time,
    join_names,
    quote_answer,
)
from tracing_2pc.operations.resolve import (
    GiveUp,
    Outcome,
    Resolution,
    check_orphan,
    check_resolution,
    outcome_word,
    resolve,
    resolve_orphan,
)
from tracing_2pc.operations.wiring import participant_named
from tracing_2pc.protocol.recovery import RecoveryResult
from tracing_2pc.tracing.transaction import count_operator_action


class Done(NamedTuple):
    """What came of an act; `well`: all of it is done."""

    text: str
    item: dict[str, Any]
    well: bool = True


Run: TypeAlias = Callable[[str, str], Done]
"""Does it, for who signs and why; raises what `check` does, and `TwoPhaseError`."""

Check: TypeAlias = Callable[[], object]
"""Raises what forbids it: `ConfigurationError` or `ContractError`; changes nothing."""


@dataclasses.dataclass(frozen=True, slots=True)
class Act:
    """Something that a person may do now."""

    name: str  # its word in a form: `abort`, `mixed`, `commit@ledger`, `again`
    title: str  # on its button
    action: Advice  # its command, effect and cost
    number: str  # what a person types to agree, and `numbered` what that is
    numbered: str
    run: Run
    check: Check = lambda: None
    # What it is done to: a term and a text each.
    facts: tuple[tuple[str, str], ...] = ()
    needs_reason: bool = True  # it is not done without one
    seen: tuple[object, ...] = ()  # what must still be so when it is done
    # Why nothing is left to do; it then only tells what has become of it.
    gone: str = ""

    @property
    def fingerprint(self) -> str:
        """A digest of what a person has agreed to: to see that it has changed."""
        action = (self.action.effect, self.action.safe, *self.action.cost)
        shown = repr((self.name, action, self.seen))
        return hashlib.sha256(shown.encode("utf-8", "replace")).hexdigest()[:32]


@dataclasses.dataclass(frozen=True)
class Reach:
    """What acts work with; `deliver` sends one decision once, to all who wait."""

    log: OperatorLog
    participants: Mapping[str, RemoteParticipant]
    settings: Settings
    deliver: Callable[[TransactionRecord], RecoveryResult]


@contextlib.contextmanager
def _naming_whose_token(settings: Settings) -> Iterator[None]:
    try:
        yield
    except ParticipantUnavailableError as error:
        if error.refusal not in OF_CALLER:
            raise
        why = f"{error}{export_of_token(settings)}"
        raise ParticipantUnavailableError(why) from None


# --- about a transaction -------------------------------------------------------------

_GOES_ON: Final = "`tracing-2pc recover` goes on with it"
_MEANING: Final[dict[Outcome, str]] = {
    "mixed": "mixed: some have committed it, and others have not",
    "hazard": "hazard: nobody knows what became of it",
}


def acts_about(reach: Reach, view: TransactionView) -> Iterator[Act]:
    """Yield what can be done about a transaction from here, safe things first."""
    facts = [("How it stands", summarize(view))]
    facts += (("What is wrong", f"{finding.text}.") for finding in view.wrong)
    for action in view.actions:
        for wanted, one in _resolutions(action):
            at = action.at if isinstance(wanted, Decision) else None
            act = resolving(reach, view.transaction, wanted, at)
            title = _title(wanted, action, view)
            yield dataclasses.replace(act, action=one, title=title, facts=tuple(facts))


def _resolutions(action: Advice) -> Iterator[tuple[Resolution, Advice]]:
    """Yield what `resolve` is asked for; nothing for another command."""
    if action.wanted == CONCLUDE:
        for word, meaning in _MEANING.items():
            effect = f"{action.effect}; {meaning}"
            yield word, dataclasses.replace(action, effect=effect)
    elif action.wanted == GIVE_UP and action.at:
        yield GiveUp(action.at), action
    elif action.wanted:
        yield Decision(action.wanted), action


def _title(wanted: Resolution, action: Advice, view: TransactionView) -> str:
    if isinstance(wanted, GiveUp):
        return f"Give up {wanted.participant}"
    if not isinstance(wanted, Decision):
        return f"Close it as {wanted}"
    if action.at:
        return f"{wanted.capitalize()} at {action.at}"
    if view.finished is not None:
        return "Leave it aborted"
    return f"Deliver {wanted} again" if view.decision else "Abort it"


def resolving(
    reach: Reach, transaction: TransactionId, wanted: Resolution, at: str | None
) -> Act:
    """Return what a person wants to be resolved, whatever speaks for or against it.

    Raises:
        ConfigurationError: the participant has no address, or none belongs there.
    """
    if at is None:
        name = str(wanted)
        if isinstance(wanted, GiveUp):
            name = f"give-up@{wanted.participant}"
        run, check = _in_log(reach, transaction, wanted)
    elif isinstance(wanted, Decision):
        name = f"{wanted}@{at}"
        run, check = _at_one(reach, transaction, wanted, at)
    else:
        raise ConfigurationError("--at goes with --commit or --abort")
    command = Advice(f"tracing-2pc resolve {transaction}", safe=False, effect=name)
    number = str(transaction.batch)
    return Act(name, name, command, number, "the batch number", run, check)


def _in_log(
    reach: Reach, transaction: TransactionId, wanted: Resolution
) -> tuple[Run, Check]:
    def run(who: str, reason: str) -> Done:
        record = resolve(reach.log, transaction, wanted=wanted, reason=reason, who=who)
        done, remark = True, ""
        if record.state in UNFINISHED:
            record, done, remark = _deliver(reach, record)
        elif names := ", ".join(record.pending):
            left = "what they prepared for it may still be there"
            remark = f"not acknowledged by {names}: {left}"
        about = {**summarize_record(record), "done": done, "remark": remark}
        line = f"{record.id} is {record.state}"
        return Done(f"{line}; {remark}" if remark else line, about, done)

    return run, lambda: check_resolution(reach.log, transaction, wanted)


def _deliver(
    reach: Reach, record: TransactionRecord
) -> tuple[TransactionRecord, bool, str]:
    """Deliver once, now; whatever comes of that, what was decided stands."""
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
        remark += f". {_GOES_ON}"
    return record, done, remark


def _at_one(
    reach: Reach, transaction: TransactionId, outcome: Decision, at: str
) -> tuple[Run, Check]:
    its = addresses_of(reach.participants, transaction.application)
    participant = participant_named(at, its)
    orphan = (reach.log, participant, transaction, outcome)
    wait = reach.settings.orphan_after

    def run(who: str, reason: str) -> Done:
        with _naming_whose_token(reach.settings):
            resolve_orphan(*orphan, reason=reason, who=who, orphan_after=wait)
        state = outcome_word(outcome)
        item = {"transaction_id": str(transaction), "participant": at, "state": state}
        text = f"{transaction} is {state} at {at}, by hand"
        return Done(text, {**item, "done": True})

    return run, lambda: check_orphan(*orphan, wait)


# --- about a refused request ---------------------------------------------------------

STATE_WORDS: Final = {
    RequestState.WAITING: "waits in its queue, and will be sent again",
    RequestState.SENT: "was sent again, and the partner has taken it",
    RequestState.DROPPED: "is dropped: it stays on record, and is not sent",
}
"""What has become of a request that a person has decided about."""

REQUEST_ACTS: Final = {
    "again": "goes back into its queue with the same idempotency key, before what is "
    "not sent yet; what was sent meanwhile has overtaken it",
    "drop": "will never be sent; it stays on record at the participant, with your name "
    "and reason",
}
"""What each word of `tracing-2pc outbox` does to one request."""

OF_RELAY: Final = {
    "send": "is published next, then what is after it; what is before it is in the "
    "topic. What is in there already, readers would see twice",
    "sent": "counts as published, as does all that is before it: what is not in the "
    "topic, readers never see",
}
"""What each word does to a whole transaction, where a relay has stopped."""

_OF_REFUSED: Final = {
    "again": "is tried again now, and its application goes on once it is published",
    "drop": "is never published: readers never see it, and its records are deleted. "
    "Its application goes on. Your name and reason stay on record at the participant",
}
"""What each word does to a whole transaction that a broker refuses."""

_WORDS: Final[Mapping[RelayTrouble | None, Mapping[str, str]]] = {
    None: REQUEST_ACTS,
    RelayTrouble.STOPPED: OF_RELAY,
    RelayTrouble.REFUSED: _OF_REFUSED,
}
_OF_WHOLE: Final = {
    "again": "is tried again now",
    "drop": "is dropped: it is never published",
    "send": "is published next",
    "sent": "counts as published",
}
"""What has become of a whole transaction that a person has decided about."""

_TITLES: Final = {
    "again": "Send again",
    "drop": "Drop",
    "send": "Publish from here on",
    "sent": "Publish what is after it",
}
_MOST_WAITING: Final = 100_000
"""Transactions of an application that may wait behind a relay that has stopped."""


def words_about(found: QuarantinedRequest | None) -> Mapping[str, str]:
    """Return what can be done about it: each word, and what that does."""
    return _WORDS.get(found.trouble if found else None, {})


def act_about_request(
    word: str,
    key: RequestKey,
    participants: Mapping[str, RemoteParticipant],
    found: QuarantinedRequest | None,
    settings: Settings,
) -> Act:
    """Return what can be done about a request that an outbox's partner refused.

    Or about a whole transaction that waits at a relay. It is done at the first of the
    participants that knows the request. `found` is None where it is not among those
    that were refused.
    """
    names = list(participants)
    is_whole = found is not None and found.trouble is not None
    sends, needs_reason = word in ("again", "send"), word in ("drop", "sent")
    about = f"transaction {key.transaction}" if is_whole else f"request {key}"
    effects = words_about(found)
    if word not in effects:
        can = " or ".join(f"`{one}`" for one in effects) or "nothing; it goes on itself"
        raise ConfigurationError(f"{about}: `{word}` is not for it, but {can}")

    def run(who: str, reason: str) -> Done:
        with _naming_whose_token(settings):
            for name in names:
                outbox = _outbox_of(participants[name])
                carry_out = outbox.send_again if sends else outbox.drop_request
                try:
                    state = carry_out(key, who=who, reason=reason)
                    break
                except ParticipantRefusedError as error:
                    if error.refusal is not Refusal.UNKNOWN or name == names[-1]:
                        raise
        count_operator_action(word)
        item = {"key": str(key), "participant": name, "state": str(state)}
        became = _OF_WHOLE[word] if is_whole else STATE_WORDS[state]
        return Done(f"{about} at {name} {became}", item)

    command = f"tracing-2pc outbox {word} {key.transaction if is_whole else key}"
    command += f" --participant {names[0]}{' --reason …' if needs_reason else ''}"
    gone = "it was sent again or dropped, or never was there"
    return Act(
        word,
        _TITLES[word],
        Advice(command, safe=word == "again", effect=effects[word]),
        str(key.batch if is_whole else key.row),
        "the batch number" if is_whole else "the row's number",
        run,
        facts=tuple(facts_of(names[0], found)) if found else (),
        needs_reason=needs_reason,
        seen=(names[0], *dataclasses.astuple(found)) if found else (),
        gone="" if found else f"no refused request {key} is at {names[0]}: {gone}",
    )


def act_about_batch(
    transaction: TransactionId,
    participants: Mapping[str, RemoteParticipant],
    refused: Sequence[QuarantinedRequest],
    settings: Settings,
) -> Act:
    """Return how all that a partner refused of a transaction is sent again: safe.

    One by one, each on record before it is sent; what fails stops those after it.
    """
    acts = [
        act_about_request("again", found.key, participants, found, settings)
        for found in refused
    ]
    (name,) = participants
    count = format_count(len(acts), "request")

    def run(who: str, reason: str) -> Done:
        done = list[dict[str, Any]]()
        what = f"of {count} of {transaction} at {name}, {{}} wait to be sent again"
        for act in acts:
            try:
                done.append(act.run(who, reason).item)
            except TwoPhaseError as error:
                text = f"{what.format(len(done))}: {error}"
                return Done(text, {"requests": done}, well=False)
        return Done(what.format("all"), {"requests": done})

    return Act(
        "again",
        "Send all again",
        Advice(
            f"tracing-2pc outbox again KEY --participant {name}",
            safe=True,
            effect=f"has {count} sent again: each {REQUEST_ACTS['again']}",
        ),
        str(transaction.batch),
        "the batch number",
        run,
        facts=(("Participant", name), ("Requests", count)),
        needs_reason=False,
        seen=tuple(item for act in acts for item in act.seen),
        gone="" if acts else f"nothing of {transaction} is refused at {name}",
    )


def find_waiting(
    participants: Mapping[str, RemoteParticipant], transaction: TransactionId, word: str
) -> RequestKey:
    """Return the key by which a relay lists a transaction about which a word is for.

    Raises:
        ConfigurationError: no relay lists it.
    """
    refused = list_refused(participants, transaction.application, limit=_MOST_WAITING)
    for listing in refused.listings.values():
        for request in listing.requests:
            is_this = request.key.transaction == transaction and request.trouble
            if is_this and word in words_about(request):
                return request.key
    unread = "".join(f"; {why}" for why in refused.unreadable.values())
    raise ConfigurationError(
        f"no relay waits at transaction {transaction} for `{word}`: `tracing-2pc "
        f"outbox ls` shows where{unread}"
    )


def _outbox_of(participant: RemoteParticipant) -> RemoteOutbox:
    """Return a participant as what can be asked about its outbox."""
    if not isinstance(participant, RemoteOutbox):
        raise ConfigurationError(
            f"participant {participant.name!r}: its transport reaches no outbox"
        )
    return participant


def find_outboxes(
    participants: Mapping[str, RemoteParticipant], key: RequestKey, word: str
) -> tuple[list[str], QuarantinedRequest | None]:
    """Return the outbox that has a refused request, and the request.

    If none has it, all outboxes: one of them may have it no more. Two outboxes of one
    application have the same keys: what is meant is never guessed, so that an order
    which is repeated does not act at the other one. Only for `again`, which loses
    nothing there either, a participant that does not answer counts as none.

    Raises:
        ConfigurationError: another outbox has it, too, has dropped it, or cannot be
            asked; or nobody has an outbox.
    """
    refused = list_refused(participants, key=key)
    listings = refused.listings
    holders = {name: li.requests[0] for name, li in listings.items() if li.requests}
    if len(holders) > 1:
        raise ConfigurationError(
            f"request {key} was refused at {join_names(holders)}: name one of "
            "them by --participant"
        )
    if holders:
        ((name, request),) = holders.items()
        dropped = list_refused(participants, state=RequestState.DROPPED, key=key)
        others = {n for n, li in dropped.listings.items() if li.requests} - {name}
        silent = {*refused.unreadable, *dropped.unreadable}
        if others or (silent and word != "again"):
            why = "was dropped at" if others else "may be known, too, at"
            raise ConfigurationError(
                f"request {key} was refused at {name}, and {why} "
                f"{join_names(sorted(others or silent))}: say which is meant by "
                "--participant"
            )
        return [name], request
    if refused.unreadable:
        raise ParticipantUnavailableError(next(iter(refused.unreadable.values())))
    if not listings:
        names = join_names(participants) if participants else "nobody in the settings"
        raise ConfigurationError(f"{names} has no outbox")
    return list(listings), None


def facts_of(name: str, found: QuarantinedRequest) -> Iterator[tuple[str, str]]:
    """Yield what is known of a refused request: a term and a text each."""
    yield "Participant", name
    yield "Application", found.key.transaction.application
    yield "Batch", str(found.key.batch)
    yield "Refused", format_time(found.since)
    if found.trouble is not None:
        yield "The relay", str(found.trouble)
    else:
        answer = f"answered {found.status}" if found.status else "no answer"
        yield "The partner", answer
        if answer := quote_answer(found):
            yield "It said", answer
    yield "Sent again by hand", format_count(found.again, "time")
    length = format_count(found.length, "character")
    cut = f"the beginning of {length}: " if found.length > len(found.body) else ""
    yield "Body", cut + found.body
