"""Requests that a partner or broker did not take: sent again, dropped or skipped.

A request is named by its key, a whole transaction at a relay by its id. It is done at
the first of the participants that knows it, and signed there.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any, Final

from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    TwoPhaseError,
)
from tracing_2pc.core.log_reader import MOST
from tracing_2pc.core.model import QuarantinedRequest, RequestKey, TransactionId
from tracing_2pc.core.remote_participant import RemoteOutbox, RemoteParticipant
from tracing_2pc.core.states import Refusal, RelayTrouble, RequestState
from tracing_2pc.inspection.actions import Advice
from tracing_2pc.inspection.wording import (
    format_count,
    format_time,
    join_names,
    quote_answer,
)
from tracing_2pc.operations.actions.action import (
    Action,
    Argument,
    Done,
    Given,
    Offer,
    PreparedAction,
    Preview,
    Reach,
    Reason,
    of_application,
)

_STATES: Final = {
    RequestState.WAITING: "waits in its queue, and will be sent again",
    RequestState.SENT: "was sent again, and the partner has taken it",
    RequestState.DROPPED: "is dropped: it stays on record, and is not sent",
}
"""The state of a request after a person's decision about it."""

_OF_REQUEST: Final = {
    "again": "goes back into its queue with the same idempotency key, before what is "
    "not sent yet; what was sent meanwhile has overtaken it",
    "drop": "will never be sent; it stays on record at the participant, with your name "
    "and reason",
}
"""The effect of each word of `tracing-2pc outbox` on one request."""

_OF_STOPPED: Final = {
    "send": "is published next, then what is after it; what is before it is in the "
    "topic. What is in there already, readers would see twice",
    "sent": "counts as published, as does all that is before it: what is not in the "
    "topic, readers never see",
}
"""The effect of each word on a whole transaction, where a relay has stopped."""

_OF_REFUSED: Final = {
    "again": "is tried again now, and its application goes on once it is published",
    "drop": "is never published: readers never see it, and its records are deleted. "
    "Its application goes on. Your name and reason stay on record at the participant",
}
"""The effect of each word on a whole transaction that a broker refuses."""

EFFECTS: Final[Mapping[RelayTrouble | None, Mapping[str, str]]] = {
    None: _OF_REQUEST,
    RelayTrouble.STOPPED: _OF_STOPPED,
    RelayTrouble.REFUSED: _OF_REFUSED,
}
_OF_WHOLE: Final = {
    "again": "is tried again now",
    "drop": "is dropped: it is never published",
    "send": "is published next",
    "sent": "counts as published",
}
"""The state of a whole transaction after a person's decision about it."""

_TITLES: Final = {
    "again": "Send again",
    "drop": "Drop",
    "send": "Publish from here on",
    "sent": "Publish what is after it",
}
_MOST_WAITING: Final = 100_000
"""Transactions of an application that may wait behind a relay that has stopped."""


def offers(name: str, request: QuarantinedRequest) -> Iterator[Offer]:
    """Yield the actions about it there: none where it goes on by itself."""
    for word in _effects(request):
        given = {"key": str(request.key), "participant": name}
        advice = _advise(word, name, request.key, request)
        yield Offer(_ACTIONS[word], given, _TITLES[word], advice)


def _advise(
    word: str, name: str, key: RequestKey, request: QuarantinedRequest | None
) -> Advice:
    """Return the effect of a word on a request, if it is for it.

    Raises:
        ConfigurationError: it is not.
    """
    about, effects = _describe(key, request), _effects(request)
    if word not in effects:
        can = (
            " or ".join(f"`{effect}`" for effect in effects)
            or "nothing; it goes on itself"
        )
        raise ConfigurationError(f"{about}: `{word}` is not for it, but {can}")
    id_ = str(key.transaction if _is_whole(request) else key)
    command = _ACTIONS[word].command({"key": id_, "participant": name})
    return Advice(command, safe=word == "again", effect=effects[word])


def _effects(request: QuarantinedRequest | None) -> Mapping[str, str]:
    return EFFECTS.get(request.trouble if request else None, {})


def _is_whole(request: QuarantinedRequest | None) -> bool:
    return request is not None and request.trouble is not None


def _describe(key: RequestKey, request: QuarantinedRequest | None) -> str:
    return f"transaction {key.transaction}" if _is_whole(request) else f"request {key}"


def prepare(word: str, reach: Reach, given: Given) -> PreparedAction:
    """Look where the request is; of one that is nowhere, its outbox answers."""
    from tracing_2pc.operations.wiring import participant_named

    participants = reach.participants
    if name := given.get("participant"):
        participants = {name: participant_named(name, participants)}
    with reach.asking(participants):
        if given["key"].count(".") == 2:  # of a relay
            transaction = TransactionId.parse(given["key"])
            key = _find_waiting(participants, transaction, word)
        else:
            key = RequestKey.parse(given["key"])
        names, request = _find_outboxes(participants, key, word)
    preview = Preview(
        _advise(word, names[0], key, request),
        facts=tuple(facts_of(names[0], request)) if request else (),
        seen=(names[0], *dataclasses.astuple(request)) if request else (),
        gone="" if request else describe_gone(names[0], key),
    )
    asked = {name: participants[name] for name in names}
    is_whole = _is_whole(request)
    return PreparedAction(
        given,
        _TITLES[word],
        str(key.batch if is_whole else key.row),
        "the batch number" if is_whole else "the row's number",
        lambda: preview,
        lambda who, reason: [_carry_out(word, key, asked, request, reach, who, reason)],
        first="`tracing-2pc outbox ls` shows the request",
    )


def _carry_out(
    word: str,
    key: RequestKey,
    participants: Mapping[str, RemoteParticipant],
    request: QuarantinedRequest | None,
    reach: Reach,
    who: str,
    reason: str,
) -> Done:
    """Do it at the first participant that knows the request."""
    from tracing_2pc.operations.wiring import naming_whose_token
    from tracing_2pc.tracing.transaction import count_operator_action

    *_, last = participants
    with naming_whose_token(reach.settings):
        for name, participant in participants.items():
            outbox = _outbox_of(participant)
            sends = word in ("again", "send")
            carry_out = outbox.send_again if sends else outbox.drop_request
            try:
                state = carry_out(key, who=who, reason=reason)
                break
            except ParticipantRefusedError as error:
                if error.refusal is not Refusal.UNKNOWN or name == last:
                    raise
    count_operator_action(word)
    item = {"key": str(key), "participant": name, "state": str(state)}
    became = _OF_WHOLE[word] if _is_whole(request) else _STATES[state]
    return Done(f"{_describe(key, request)} at {name} {became}", item)


def _find_waiting(
    participants: Mapping[str, RemoteParticipant], transaction: TransactionId, word: str
) -> RequestKey:
    """Return the key by which a relay lists a transaction about which a word is for.

    Raises:
        ConfigurationError: no relay lists it.
    """
    from tracing_2pc.inspection.participants import list_refused

    refused = list_refused(participants, transaction.application, limit=_MOST_WAITING)
    for listing in refused.listings.values():
        for request in listing.requests:
            is_this = request.key.transaction == transaction and request.trouble
            if is_this and word in _effects(request):
                return request.key
    unread = "".join(f"; {cause}" for cause in refused.unreadable.values())
    raise ConfigurationError(
        f"no relay waits at transaction {transaction} for `{word}`: `tracing-2pc "
        f"outbox ls` shows where{unread}"
    )


def _outbox_of(participant: RemoteParticipant) -> RemoteOutbox:
    """Return a participant whose outbox can be asked about."""
    if not isinstance(participant, RemoteOutbox):
        raise ConfigurationError(
            f"participant {participant.name!r}: its transport reaches no outbox"
        )
    return participant


def _find_outboxes(
    participants: Mapping[str, RemoteParticipant], key: RequestKey, word: str
) -> tuple[list[str], QuarantinedRequest | None]:
    """Return the outbox that has a refused request, and the request.

    If none has it, all outboxes: one of them may have it no more. Two outboxes of one
    application have the same keys: the outbox is never guessed, so that an order which
    is repeated does not act at the other one. Only for `again`, which loses nothing
    there either, a participant that does not answer counts as none.

    Raises:
        ConfigurationError: another outbox has it, too, has dropped it, or cannot be
            asked; or no participant has an outbox.
    """
    from tracing_2pc.inspection.participants import list_refused

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
        if len(participants) == 1:
            return [name], request
        dropped = list_refused(participants, state=RequestState.DROPPED, key=key)
        others = {n for n, li in dropped.listings.items() if li.requests} - {name}
        silent = {*refused.unreadable, *dropped.unreadable}
        if others or (silent and word != "again"):
            clause = "was dropped at" if others else "may be known, too, at"
            raise ConfigurationError(
                f"request {key} was refused at {name}, and {clause} "
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


def describe_gone(name: str, key: RequestKey) -> str:
    """Return that a participant has no such refused request, or not any more."""
    gone = "it was sent again or dropped, or never was there"
    return f"no refused request {key} is at {name}: {gone}"


def facts_of(name: str, request: QuarantinedRequest) -> Iterator[tuple[str, str]]:
    """Yield the facts about a refused request: a term and a text each."""
    yield "Participant", name
    yield "Application", request.key.transaction.application
    yield "Batch", str(request.key.batch)
    yield "Refused", format_time(request.since)
    if request.trouble is not None:
        yield "The relay", str(request.trouble)
    else:
        answer = f"answered {request.status}" if request.status else "no answer"
        yield "The partner", answer
        if answer := quote_answer(request):
            yield "It said", answer
    yield "Sent again by hand", format_count(request.again, "time")
    length = format_count(request.length, "character")
    cut = f"the beginning of {length}: " if request.length > len(request.body) else ""
    yield "Body", cut + request.body


def prepare_all(reach: Reach, given: Given) -> PreparedAction:
    """List the requests that are refused there now, the oldest `MOST` of them."""
    from tracing_2pc.inspection.participants import list_refused
    from tracing_2pc.operations.wiring import participant_named

    name, id_ = given["participant"], given.get("transaction")
    transaction = TransactionId.parse(id_) if id_ else None
    asked = {name: participant_named(name, reach.participants)}
    with reach.asking(asked):
        refused = list_refused(asked, _application(given), limit=MOST)
    if reason := refused.unreadable.get(name):
        raise ParticipantUnavailableError(reason, participant=name)
    listing = refused.listings.get(name)
    requests = [
        request
        for request in (listing.requests if listing else ())
        if not _is_whole(request) and transaction in (None, request.key.transaction)
    ]
    count = format_count(len(requests), "request")
    about = f"{count} of {transaction}" if transaction else count

    def run(who: str, reason: str) -> list[Done]:
        done: list[dict[str, Any] | None] = []
        for request in requests:
            try:
                part = _carry_out(
                    "again", request.key, asked, request, reach, who, reason
                )
            except TwoPhaseError as error:
                text = f"of {about} at {name}, {len(done)} wait to be sent again"
                return [Done(f"{text}: {error}", {"requests": done}, well=False)]
            done.append(part.item)
        text = f"{about} at {name} wait to be sent again"
        return [Done(text, {"requests": done})]

    effect = (
        "puts each back into its queue with the same idempotency key, one by one and "
        "signed; what was sent meanwhile has overtaken it. It stops at the first that "
        "fails"
    )
    scope = f" of {transaction}" if transaction else ""
    none = f"nothing{scope} that can be sent again is refused at {name}"
    preview = Preview(
        Advice(AGAIN_ALL.command(given), safe=True, effect=effect),
        facts=(("Participant", name), ("Refused there", about)),
        # Of an application, more may be refused at any time.
        seen=tuple(map(dataclasses.astuple, requests)) if transaction else (),
        gone="" if requests else none,
    )
    return PreparedAction(
        given, "Send all again", name, "its name", lambda: preview, run
    )


def _application(given: Given) -> str | None:
    """Return the application of a request or a transaction, or the one given."""
    text = given.get("key") or given.get("transaction") or ""
    try:
        if text.count(".") == 2:
            return TransactionId.parse(text).application
        return RequestKey.parse(text).transaction.application
    except ValueError:
        return given.get("application")


def _action(
    word: str, about: str, key: Argument, reason: Reason, *examples: str
) -> Action:
    participant = Argument("participant", "only at this one", metavar="NAME")
    return Action(
        f"outbox {word}",
        about,
        (key, participant),
        functools.partial(prepare, word),
        reason=reason,
        application=_application,
        examples=examples,
    )


_KEY: Final = Argument(
    "key",
    "<transaction>.<branch>.<row>, as ls shows it; of a relay: <transaction>",
    positional=True,
    required=True,
)
_ID: Final = dataclasses.replace(
    _KEY, about="<application>.<batch>.<attempt>", metavar="transaction"
)
AGAIN: Final = _action(
    "again",
    "put one back into its queue",
    _KEY,
    Reason.POSSIBLE,
    "outbox again orders.7.1.0.1.0",
)
DROP: Final = _action(
    "drop",
    "never send it; it stays on record",
    _KEY,
    Reason.NEEDED,
    'outbox drop orders.7.1.0.1.0 --reason "the partner has it by phone"',
)
SEND: Final = _action(
    "send",
    "of a relay that has stopped: send it, and the rest",
    _ID,
    Reason.POSSIBLE,
)
SENT: Final = _action(
    "sent", "it and all before it are in the topic: go on", _ID, Reason.NEEDED
)
_ACTIONS: Final = {"again": AGAIN, "drop": DROP, "send": SEND, "sent": SENT}

AGAIN_ALL: Final = Action(
    "outbox again-all",
    "put all that a participant's partner refused back into its queue",
    (
        Argument("participant", "whose outbox", required=True, metavar="NAME"),
        of_application("only of this one", required=False),
        Argument("transaction", "only of this one", metavar="ID"),
    ),
    prepare_all,
    title="Send all again that its partner refused",
    place="participant",
    reason=Reason.POSSIBLE,
    application=_application,
    examples=("outbox again-all --participant mailer",),
)
