"""Times, causes and a whole transaction in plain words."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timezone
from typing import Final

from tracing_2pc.links import Place
from tracing_2pc.operations.view import View
from tracing_2pc.protocol.diagnosis import Diagnosis, lasting
from tracing_2pc.states import (
    Decision,
    DiagnosisKind,
    TransactionState,
    Verdict,
)

K: Final = DiagnosisKind
WRONG: Final[Mapping[DiagnosisKind, str]] = {
    K.DIVERGED: "somebody went against the decision",
    K.LOST: "lost at a participant",
    K.DECIDED_NOT_APPLIED: "decided, and not applied",
    K.ORPHANED: "prepared, and no record can finish it",
    K.STUCK: "stuck",
}

SAFE: Final[Mapping[Verdict, str]] = {
    Verdict.LEAVE: "Leave it: whoever owns it will finish it.",
    Verdict.FINISH: "It is safe to deliver the decision again.",
    Verdict.ABORT: "It is safe to abort it.",
    Verdict.ESCALATE: "Nothing here is safe without a person who knows the rows.",
}

UNDER_WAY: Final[Mapping[TransactionState, str]] = {
    TransactionState.ACTIVE: "under way: not decided yet",
    TransactionState.COMMITTING: "in doubt: commit is being delivered",
    TransactionState.ABORTING: "in doubt: abort is being delivered",
    TransactionState.QUARANTINED: "quarantined: a person must decide",
}

ELSEWHERE: Final[Mapping[str, str]] = {
    "jaeger": "the spans of a transaction; Two-phase commits in its menu has what is "
    "stuck now",
    "skywalking": "the same trace in its topology, by the tag tpc.transaction.id; the "
    "dashboard Two-phase commits",
    "grafana": "the dashboard Two-phase commits: rates, ages, who is in doubt",
    "prometheus": "which alerts wait, and which fire",
    "alertmanager": "who was called, and what is silenced",
    "spark": "the jobs of each batch, described by its transaction and its trace",
    "partner": "what has arrived at the other end of the outbox",
}
"""What to look at in a tool that a link has the name of."""


def elsewhere(place: Place) -> str:
    """Say what to look at there; of a name that we don't know, how it is linked."""
    if place.name in ELSEWHERE:
        return ELSEWHERE[place.name]
    if place.finds:
        return f"one {place.finds} at a time: each transaction's page has the link"
    return "as you named it in the setting links"


def exact(at: float) -> str:
    """Write a time in full, in UTC; text of its own where no calendar has it."""
    try:
        moment = datetime.fromtimestamp(at, timezone.utc)
    except (OverflowError, OSError, ValueError):
        return "at no known time"
    return moment.strftime("%Y-%m-%d %H:%M:%S UTC")


def distance(at: float, now: float) -> str:
    """Say how far away a time is: *3 min ago*, *in 5 s*, *now*."""
    away = at - now
    if abs(away) < 1:
        return "just now"
    return f"in {lasting(away)}" if away > 0 else f"{lasting(-away)} ago"


def short(seconds: float) -> str:
    """Say how long something took, with milliseconds where they matter."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    return f"{seconds:.1f} s" if seconds < 20 else lasting(seconds)


def counted(count: int, one: str, many: str | None = None) -> str:
    """Write a number with its noun."""
    return f"{count:,} {one if count == 1 else many or one + 's'}".replace(
        ",", "\u202f"
    )


def sentence(view: View) -> str:
    """Say in one sentence what is wrong, or that all is well."""
    if view.state is TransactionState.CONCLUDED:
        return "Closed by a person, as it was: the audit says by whom and why."
    if view.untold and not view.diagnoses:
        return f"Not told all of it: {view.untold[0].untold}."
    if view.diagnoses:
        worst = view.diagnoses[0]
        return f"{_large(WRONG[worst.diagnosis])}: {worst.why}."
    if view.state is None:
        return _without_record(view)
    if view.state is TransactionState.QUARANTINED:
        why = view.reason or "its reason is not on record"
        return f"Quarantined, and a person must decide: {why}."
    if view.finished is not None:
        return _finished(view)
    if view.held_back:
        return f"{view.held_back}."
    since = lasting(view.at - (view.decided or view.started or view.at))
    well = "Nothing wrong is known" if is_unsure(view) else "All is well so far"
    if view.state is TransactionState.ACTIVE:
        return f"{well}: begun {since} ago, not decided yet."
    waits = " and ".join(d.participant for d in view.deliveries if d.pending)
    told = f"waiting for {waits}" if waits else "all have acknowledged"
    return f"{well}: decided {view.decision} {since} ago, {told}."


def is_unsure(view: View) -> bool:
    """Whether somebody who may hold something of it could not be read."""
    proven = view.state is TransactionState.COMMITTED or view.forgotten
    return not proven and any(
        one.error or (one.own_sink and view.finished is None)
        for one in view.participants
    )


def also(view: View) -> tuple[Diagnosis, ...]:
    """Return what is wrong and not said in that sentence."""
    concluded = view.state is TransactionState.CONCLUDED
    return view.diagnoses if concluded else view.diagnoses[1:]


def _without_record(view: View) -> str:
    if view.forgotten:
        return "Finished and forgotten: its batch is at or below the watermark."
    if any(one.oldest is not None for one in view.participants):
        return "No record of it in this log yet, and a participant holds some of it."
    if any(one.error is not None for one in view.participants):
        return "No record of it in this log, and not everybody could be asked."
    return "Unknown: neither this log nor a participant has heard of this transaction."


def _finished(view: View) -> str:
    took = lasting((view.finished or 0) - (view.started or 0))
    if view.decision is Decision.ABORT and is_unsure(view):
        return f"Nothing wrong is known: aborted, as all have said. It took {took}."
    if view.decision is Decision.ABORT:
        return f"All is well: aborted, and nothing of it is kept. It took {took}."
    rows = counted(view.rows, "row")
    return f"All is well: {rows} committed everywhere. It took {took}."


def _large(text: str) -> str:
    return text[:1].upper() + text[1:]
