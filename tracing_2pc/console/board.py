"""The board: unfinished transactions, the worst first, from log and survey. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tracing_2pc.core.links import Place
from tracing_2pc.core.log_reader import MOST, Deliveries, TransactionSummary
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import Severity, TransactionState, Word
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.diagnosis import DRIVER, Awaited, Finding
from tracing_2pc.inspection.evidence import Evidence
from tracing_2pc.inspection.findings import is_of_another
from tracing_2pc.inspection.participants import Source, SourceKind
from tracing_2pc.inspection.summary import headline
from tracing_2pc.inspection.wording import STATE_TEXT

ROWS: Final = 100
"""Transactions that the list shows; the others are counted."""

FINISHED: Final = 20

_GRAVITY: Final = {kind.words: place for place, kind in enumerate(kinds.KINDS)}
_ID: Final = re.compile(r"(?<![\w.-])([a-z0-9][a-z0-9-]*)\.\d+\.\d+(?!\.?[\w-])")
_RANKS: Final = (str(Severity.CRITICAL), str(Severity.WARNING), "normal")


class LogSnapshot(NamedTuple):
    """The log's content at a time, each list bounded: `open` to the oldest."""

    at: float
    open: Sequence[TransactionSummary]
    deliveries: Mapping[str, Deliveries]
    newest: Sequence[TransactionSummary]


class SurveySnapshot(NamedTuple):
    """The result of a survey."""

    at: float | None  # None: of the log alone, no participant answered yet
    findings: Sequence[Finding]
    judged: frozenset[TransactionId]  # unfinished in the log then
    evidence: Evidence | None = None  # all that was read
    # Who transactions wait for, where it is not who has not acknowledged.
    awaited: Mapping[TransactionId, Awaited] = {}


class BoardRow(NamedTuple):
    """One transaction of the list."""

    transaction: TransactionId
    rank: str
    words: str
    reason: str
    since: float
    participants: tuple[str, ...]
    next_try: float | None


class BoardStatus(Word):
    """How the board looks to a person, in a word."""

    WELL = "well"
    ASKING = "asking"
    DOUBT = "doubt"
    NEED = "need"


class Board(NamedTuple):
    """The list, and its overall state."""

    headline: str
    status: BoardStatus
    doubts: tuple[str, ...]  # why it may not be all; `WELL` is only without any
    faults: tuple[Finding, ...]  # what is wrong beside transactions
    rows: tuple[BoardRow, ...]
    more: tuple[tuple[str, int], ...]  # those that are not in `rows`, by what is wrong
    finished: tuple[TransactionSummary, ...]
    surveyed: float | None  # when participants were asked; None before the first time


def board(
    log: LogSnapshot, survey: SurveySnapshot, application: str | None = None
) -> Board:
    """Put both together; of one application only, if one is given.

    The log is newer than the survey: transactions finished since are left out, if its
    list of unfinished ones is whole.
    """
    rows = sorted(
        (
            r
            for r in _rows(log, survey)
            if application in (None, r.transaction.application)
        ),
        key=_worst_first,
    )
    others = [f for f in survey.findings if isinstance(f.about, Source)]
    others = [f for f in others if not is_of_another(f.about, application)]
    faults = [f for f in others if f.kind is not kinds.UNREADABLE]
    unread = [f for f in others if f.kind is kinds.UNREADABLE]
    doubts = tuple(_doubts(survey, unread, application))
    text, status = _judge(rows, others, survey, log.at)
    closed = [row for row in log.newest if row.finished is not None]
    closed.sort(key=lambda row: row.finished or 0.0, reverse=True)
    return Board(
        text,
        status,
        doubts,
        tuple(faults),
        tuple(rows[:ROWS]),
        tuple(Counter(row.words for row in rows[ROWS:]).most_common()),
        tuple(closed[:FINISHED]),
        survey.at,
    )


def _judge(
    rows: Sequence[BoardRow],
    beside: Sequence[Finding],
    survey: SurveySnapshot,
    now: float,
) -> tuple[str, BoardStatus]:
    """Return the headline, which names what is worst, and how the board looks."""
    wrong = {row.transaction: row for row in rows if row.rank != "normal"}
    findings = [f for f in survey.findings if f.about in wrong]
    waiting = [r for r in wrong.values() if r.words == kinds.HELD_BACK.words]
    need = len(wrong) - len(waiting)
    normal = len(rows) - (need or len(waiting[:1]))
    # Not *under way* where it is not known what participants hold.
    others = "more unfinished" if wrong else "unfinished"
    if survey.at is not None and not (waiting and not need):
        others = "under way"
    text, status = headline([*findings, *beside], now), BoardStatus.WELL
    if need:
        status = BoardStatus.NEED
    elif waiting:
        status = BoardStatus.DOUBT
    elif any(finding.kind is not kinds.UNREADABLE for finding in beside):
        status = BoardStatus.NEED
    elif beside:
        status = BoardStatus.DOUBT
    elif survey.at is None:
        text, status = "Asking participants …", BoardStatus.ASKING
    return f"{text}; {normal} {others}" if normal else text, status


def _doubts(
    survey: SurveySnapshot, unread: Sequence[Finding], application: str | None
) -> Iterator[str]:
    def hide_others(match: re.Match[str]) -> str:
        return match[0] if match[1] == application else "a transaction"

    if survey.at is None:
        yield "Participants are being asked; until they answer, this is the log alone."
    for finding in unread:
        reason = (
            finding.why if application is None else _ID.sub(hide_others, finding.why)
        )
        if finding.about == Source(SourceKind.LOG):
            yield "The decision log could not be read when participants were asked."
        elif finding.about == Source(SourceKind.CLOCK):
            yield f"The clock: {reason}."
        else:
            about = f"{finding.about} could not be read, so nothing is known of it"
            yield (
                f"{about}: {reason}; {finding.cure}"
                if finding.cure
                else f"{about}: {reason}"
            )


def _rows(log: LogSnapshot, survey: SurveySnapshot) -> Iterator[BoardRow]:
    worst: dict[TransactionId, Finding] = {}
    for finding in survey.findings:
        if isinstance(finding.about, TransactionId):
            worst.setdefault(finding.about, finding)  # the gravest comes first
    by_id = {row.transaction: row for row in log.open}
    whole = len(log.open) < MOST
    for id_, finding in worst.items():
        # Judged unfinished, and no more in the log's whole list: finished since then.
        if id_ in by_id or id_ not in survey.judged or not whole:
            entry = _found_row(id_, finding, log, by_id.get(id_))
            if id_ in survey.awaited:
                entry = entry._replace(participants=_names(survey.awaited[id_]))
            yield entry
    for id_, row in by_id.items():
        if id_ not in worst:
            yield _log_row(row, log, survey.awaited.get(id_))


def _found_row(
    id_: TransactionId,
    finding: Finding,
    log: LogSnapshot,
    row: TransactionSummary | None,
) -> BoardRow:
    reason, due = finding.why, _next_try(log, id_)
    if finding.kind is kinds.QUARANTINED:
        reason, due = (row and row.reason) or reason, None
    words, rank = finding.kind.words, str(finding.severity)
    return BoardRow(id_, rank, words, reason, finding.since, finding.participants, due)


def _log_row(
    row: TransactionSummary, log: LogSnapshot, awaited: Awaited | None
) -> BoardRow:
    id_, since = row.transaction, row.decided or row.started
    names, reason = row.pending, ""
    if row.state is TransactionState.ACTIVE:
        names = (DRIVER,)
        if awaited is not None:
            names, reason = _names(awaited), awaited.why
    due = _next_try(log, id_)
    return BoardRow(id_, "normal", STATE_TEXT[row.state], reason, since, names, due)


def _names(awaited: Awaited) -> tuple[str, ...]:
    return awaited.participants or (awaited.names,)


def _next_try(log: LogSnapshot, id_: TransactionId) -> float | None:
    deliveries = log.deliveries.get(str(id_), {}).values()
    due = (d.retry_at for d in deliveries if d.retry_at and d.pending)
    return min(due, default=None)


def _worst_first(row: BoardRow) -> tuple[int, int, float]:
    gravity = _GRAVITY.get(row.words, len(_GRAVITY))
    return _RANKS.index(row.rank), gravity, row.since


_ELSEWHERE: Final[Mapping[str, str]] = {
    "jaeger": "the spans of a transaction; Two-phase commits in its menu has what was "
    "stuck within the last hour",
    "skywalking": "the same trace in its topology, by the tag tpc.transaction.id; the "
    "dashboard Two-phase commits",
    "grafana": "the dashboard Two-phase commits: rates, ages, which participant is in "
    "doubt",
    "prometheus": "which alerts wait, and which fire",
    "alertmanager": "who was called, and what is silenced",
    "spark": "the jobs of each batch, described by its transaction and its trace",
    "partner": "what has arrived at the other end of the outbox",
}


def describe_place(place: Place) -> str:
    """Return what to look at in another tool; of an unknown one, how it is linked."""
    if place.name in _ELSEWHERE:
        return _ELSEWHERE[place.name]
    if place.finds:
        return f"one {place.finds} at a time: each transaction's page has the link"
    return "as you named it in the setting links"
