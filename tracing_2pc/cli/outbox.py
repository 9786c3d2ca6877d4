"""`tracing-2pc outbox ls`: the requests that partners did not take."""

from __future__ import annotations

import argparse
import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

from tracing_2pc.cli.arguments import DONE, LEFT
from tracing_2pc.cli.terminal import asking, paint, prose, safe, table
from tracing_2pc.core.model import (
    QuarantinedRequest,
    check_application,
)
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import RequestState
from tracing_2pc.inspection.diagnosis import Finding
from tracing_2pc.inspection.findings import find_at_outboxes, find_not_taken
from tracing_2pc.inspection.participants import (
    RefusedRequests,
    Source,
    SourceKind,
    list_refused,
)
from tracing_2pc.inspection.survey import survey_outboxes
from tracing_2pc.inspection.wording import (
    format_count,
    format_duration,
    quote_answer,
    without_participant,
)
from tracing_2pc.operations.wiring import open_participants, participant_named

_HEAD: Final = ("REQUEST", "PARTICIPANT", "STATUS", "AGE", "AGAIN", "ANSWER", "BODY")
_ANSWER: Final = 60
_HEAD_DROPPED: Final = ("REQUEST", "PARTICIPANT", "STATUS", "AGE", "WHO", "REASON")


def run(options: argparse.Namespace, settings: Settings) -> int:
    """List them; asks participants, and never the log."""
    participants = open_participants(settings)
    if options.participant is not None:
        participant = participant_named(options.participant, participants)
        participants = {options.participant: participant}
    if options.application is not None:
        check_application(options.application)
    state = RequestState.DROPPED if options.dropped else RequestState.QUARANTINED
    with asking(participants):
        refused = list_refused(
            participants, options.application, state=state, limit=options.limit
        )
        findings, notes = list[Finding](), list[str]()
        if not options.dropped:
            findings, notes = _find_waiting(refused, participants, settings)
    if options.json:
        for item in items(refused, findings):
            print(json.dumps(item))
    else:
        print("\n".join(lines(refused, state, findings, notes)))
    left = state is RequestState.QUARANTINED and any(
        listing.requests for listing in refused.listings.values()
    )
    return LEFT if left or refused.unreadable or findings else DONE


def _find_waiting(
    refused: RefusedRequests,
    participants: Mapping[str, RemoteParticipant],
    settings: Settings,
) -> tuple[list[Finding], list[str]]:
    """Return the outboxes that send nothing, or too slowly: no list shows that.

    And, where that is no finding yet, the answer of a partner that takes nothing now.
    """
    listed = refused._replace(unreadable={})  # said already, and not asked again
    outboxes = survey_outboxes(participants, listed, SystemClock())
    everything = find_at_outboxes(outboxes, settings)
    # Of one application only is what has rows of its own.
    whole = {Source(SourceKind.OUTBOX, name) for name in participants}
    findings = [finding for finding in everything if finding.about in whole]
    named = {name for finding in findings for name in finding.participants}
    notes = [
        f"{name}: {text}"
        for name, description in outboxes.descriptions.items()
        for text in find_not_taken(description)
        if name not in named
    ]
    return findings, notes


def lines(
    refused: RefusedRequests,
    state: RequestState,
    findings: Iterable[Finding],
    notes: Iterable[str],
) -> Iterator[str]:
    """Return the table, further faults and unread outboxes, and a line of counts."""
    dropped = state is RequestState.DROPPED
    rows = [
        (
            str(request.key),
            name,
            str(request.trouble or request.status or "none"),
            format_duration(max(0.0, listing.now - request.since)),
            str(request.who if dropped else request.again),
            *([] if dropped else [quote_answer(request, _ANSWER) or "-"]),
            str(request.reason) if dropped else _beginning(request),
        )
        for name, listing in refused.listings.items()
        for request in listing.requests
    ]
    if rows:
        head, *shown = table([_HEAD_DROPPED if dropped else _HEAD, *rows])
        yield paint(head, "bold")
        yield from shown
    for finding in findings:
        yield paint(safe(f"{finding.about}: {finding.text}", 2000), "yellow")
        yield from prose(f"cure: {finding.cure}", "      ", "    ")
    for note in notes:
        yield safe(note, 2000)
    for name, cause in refused.unreadable.items():
        yield paint(f"{name}: {safe(without_participant(name, cause))}", "yellow")
    if not refused.listings and not refused.unreadable:
        yield "no participant has an outbox"
        return
    waiting = sum(
        request.trouble is not None
        for listing in refused.listings.values()
        for request in listing.requests
    )
    verb = "dropped" if dropped else "refused"
    more = any(listing.more for listing in refused.listings.values())
    rest = "; there are more: --limit shows them" if more else ""
    counts = [format_count(len(rows) - waiting, f"{verb} request")]
    if waiting:
        counts.append(f"{format_count(waiting, 'transaction')} at a relay")
    yield f"{'; '.join(counts)}{rest}"


def _beginning(request: QuarantinedRequest) -> str:
    cut = "…" if request.length > len(request.body) else ""
    return request.body + cut


def items(
    refused: RefusedRequests, findings: Iterable[Finding]
) -> Iterator[dict[str, Any]]:
    """Return the same as JSON, an object for each line; fields depend on the kind."""
    for name, listing in refused.listings.items():
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
    for finding in findings:
        yield {**finding.to_json(), "kind": "finding", "finding": str(finding.kind)}
    for name, cause in refused.unreadable.items():
        yield {"kind": "unreadable", "participant": name, "why": cause}
    yield {
        "kind": "counts",
        "requests": sum(len(li.requests) for li in refused.listings.values()),
        "more": any(listing.more for listing in refused.listings.values()),
    }
