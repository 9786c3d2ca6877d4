"""`tracing-2pc outbox`: what partners did not take, and what a person does about it."""

from __future__ import annotations

import argparse
import dataclasses
import json
import sys
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import (
    asking,
    confirmed,
    paint,
    print_item,
    prose,
    raise_if_no_terminal,
    safe,
    table,
)
from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import QuarantinedRequest, RequestKey, check_application
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import OF_CALLER, Refusal, RequestState
from tracing_2pc.inspection.wording import (
    format_count,
    format_duration,
    without_participant,
)
from tracing_2pc.operations.check import export_of_token
from tracing_2pc.operations.outbox import (
    STATE_WORDS,
    Quarantines,
    drop_request,
    find_outboxes,
    list_quarantines,
    send_again,
)
from tracing_2pc.operations.resolve import check_reason, signature
from tracing_2pc.operations.wiring import open_participants, start_telemetry

_HEAD: Final = ("REQUEST", "PARTICIPANT", "STATUS", "AGE", "AGAIN", "BODY")
_HEAD_DROPPED: Final = ("REQUEST", "PARTICIPANT", "STATUS", "AGE", "WHO", "REASON")


def run(options: argparse.Namespace, settings: Settings) -> int:
    """List, or do what a person wants; asks participants, and never the log."""
    participants = open_participants(settings)
    if options.participant is not None:
        if options.participant not in participants:
            raise ConfigurationError(
                f"no participant {options.participant!r} in the settings; they have: "
                f"{', '.join(participants) or 'none'}"
            )
        participants = {options.participant: participants[options.participant]}
    if options.action == "ls":
        return _list(options, participants)
    start_telemetry()
    try:
        return _order(options, participants)
    except ParticipantUnavailableError as error:
        if error.refusal not in OF_CALLER:
            raise
        why = f"{error}{export_of_token(settings)}"
        raise ParticipantUnavailableError(why) from None


# --- ls ------------------------------------------------------------------------------


def _list(
    options: argparse.Namespace, participants: Mapping[str, RemoteParticipant]
) -> int:
    if options.application is not None:
        check_application(options.application)
    state = RequestState.DROPPED if options.dropped else RequestState.QUARANTINED
    with asking(participants):
        quarantines = list_quarantines(
            participants, options.application, state=state, limit=options.limit
        )
    if options.json:
        for item in items(quarantines):
            print(json.dumps(item))
    else:
        print("\n".join(lines(quarantines, state)))
    left = state is RequestState.QUARANTINED and any(
        listing.requests for listing in quarantines.listings.values()
    )
    return LEFT if left or quarantines.unreadable else DONE


def lines(quarantines: Quarantines, state: RequestState) -> Iterator[str]:
    """Return the table, what could not be read, and a line of counts."""
    dropped = state is RequestState.DROPPED
    rows = [
        (
            str(request.key),
            name,
            str(request.status or "none"),
            format_duration(max(0.0, listing.now - request.since)),
            str(request.who if dropped else request.again),
            str(request.reason) if dropped else _beginning(request),
        )
        for name, listing in quarantines.listings.items()
        for request in listing.requests
    ]
    if rows:
        head, *shown = table([_HEAD_DROPPED if dropped else _HEAD, *rows])
        yield paint(head, "bold")
        yield from shown
    for name, why in quarantines.unreadable.items():
        yield paint(f"{name}: {safe(without_participant(name, why))}", "yellow")
    if not quarantines.listings and not quarantines.unreadable:
        yield "no participant has an outbox"
        return
    of = "dropped" if dropped else "in quarantine"
    more = any(listing.more for listing in quarantines.listings.values())
    rest = "; there are more: --limit shows them" if more else ""
    yield f"{format_count(len(rows), 'request')} {of}{rest}"


def _beginning(request: QuarantinedRequest) -> str:
    cut = "…" if request.length > len(request.body) else ""
    return request.body + cut


def items(quarantines: Quarantines) -> Iterator[dict[str, Any]]:
    """Return the same as JSON, an object for each line; the kind says which fields."""
    for name, listing in quarantines.listings.items():
        for request in listing.requests:
            yield {
                "kind": "request",
                "participant": name,
                **dataclasses.asdict(request),
                "key": str(request.key),
                "transaction": str(request.key.transaction),
                "application": request.key.transaction.application,
                "age": max(0.0, listing.now - request.since),
            }
    for name, why in quarantines.unreadable.items():
        yield {"kind": "unreadable", "participant": name, "why": why}
    yield {
        "kind": "counts",
        "requests": sum(len(li.requests) for li in quarantines.listings.values()),
        "more": any(listing.more for listing in quarantines.listings.values()),
    }


# --- again, drop ---------------------------------------------------------------------


def _order(
    options: argparse.Namespace, participants: Mapping[str, RemoteParticipant]
) -> int:
    key = RequestKey.parse(options.key)
    reason = check_reason(options.reason) if options.reason else ""
    if options.action == "drop":
        check_reason(options.reason)
    names, request = find_outboxes(participants, key)
    if request is not None and not _is_agreed(options, names[0], request):
        return LEFT
    carry_out = send_again if options.action == "again" else drop_request
    name, state = _at_one_of(
        names,
        lambda name: carry_out(participants[name], key, who=signature(), reason=reason),
    )
    item = {"key": str(key), "participant": name, "state": str(state)}
    print_item(options, item, f"request {key} at {name} {STATE_WORDS[state]}")
    return DONE


def _at_one_of(
    names: list[str], carry_out: Callable[[str], RequestState]
) -> tuple[str, RequestState]:
    """Ask outboxes one after the other, until one knows the request."""
    for name in names[:-1]:
        try:
            return name, carry_out(name)
        except ParticipantRefusedError as error:
            if error.refusal is not Refusal.UNKNOWN:
                raise
    return names[-1], carry_out(names[-1])


def _is_agreed(
    options: argparse.Namespace, name: str, request: QuarantinedRequest
) -> bool:
    """Whether the person has seen what it is, and agrees."""
    if options.yes:
        return True
    raise_if_no_terminal("`tracing-2pc outbox ls` shows the request")
    effect = {
        "again": "It will be sent again, before what waits behind it.",
        "drop": "It will never be sent. It stays on record, with your reason.",
    }
    status = request.status or "no answer"
    shown = [
        *prose(f"request {request.key} at {name}; the partner answered: {status}"),
        *prose(_beginning(request), "  "),
        *prose(effect[options.action]),
    ]
    print("\n".join(shown), file=sys.stderr)
    row = str(request.key.row)
    return confirmed(f"Do it? Type the row's number, {row}, or yes:", (row, "yes"))
