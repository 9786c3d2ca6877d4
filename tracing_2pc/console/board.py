"""The board: what is unfinished, the worst first, from log and survey. No I/O."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from tracing_2pc.core.links import Place
from tracing_2pc.core.log_reader import MOST, Deliveries, TransactionSummary
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import Severity, TransactionState, Word
from tracing_2pc.inspection.diagnosis import Diagnosis, held_back
from tracing_2pc.inspection.participants import Source, SourceKind
from tracing_2pc.inspection.wording import DIAGNOSIS_TEXT, STATE_TEXT, format_count

ROWS: Final = 100
"""Transactions that the list shows; the others are counted."""

FINISHED: Final = 20

_GRAVITY: Final = {text: place for place, text in enumerate(DIAGNOSIS_TEXT.values())}
_ID: Final = re.compile(r"(?<![\w.-])([a-z0-9][a-z0-9-]*)\.\d+\.\d+(?!\.?[\w-])")
_RANKS: Final = (str(Severity.CRITICAL), str(Severity.WARNING), "normal")


class LogSnapshot(NamedTuple):
    """What the log had at a time, each list bounded: `open` to the oldest."""

    at: float
    open: Sequence[TransactionSummary]
    deliveries: Mapping[str, Deliveries]
    newest: Sequence[TransactionSummary]


class SurveySnapshot(NamedTuple):
    """The result of a survey; `at` None: of the log alone, no participant answered yet.

    `judged` was unfinished in the log then; `unreadable` says why something could not
    be read, or not whole.
    """

    at: float | None
    diagnoses: Sequence[Diagnosis]
    judged: frozenset[TransactionId]
    unreadable: Mapping[Source, str]


class RefusedSnapshot(NamedTuple):
    """The requests that partners refused, as outboxes listed them at a time.

    `more`: an outbox has more than these. `unreadable` gave no list.
    """

    at: float
    requests: int
    more: bool = False
    unreadable: tuple[str, ...] = ()


class BoardRow(NamedTuple):
    """One transaction of the list."""

    transaction: TransactionId
    rank: str
    what: str
    why: str
    since: float
    participants: tuple[str, ...]
    next_try: float | None
    held_back: bool = False


class BoardStatus(Word):
    """How the board looks to a person, in a word."""

    WELL = "well"
    DOUBT = "doubt"
    NEED = "need"


class Board(NamedTuple):
    """The list, and what to think of it.

    `doubts` say why the list may not be all; it is `WELL` only without any. `more`
    counts the transactions that are not in `rows`, by what is wrong. `surveyed` is
    when participants were asked; None before the first time. `refused` is None
    before outboxes were.
    """

    headline: str
    mood: BoardStatus
    doubts: tuple[str, ...]
    rows: tuple[BoardRow, ...]
    more: tuple[tuple[str, int], ...]
    finished: tuple[TransactionSummary, ...]
    surveyed: float | None
    refused: RefusedSnapshot | None


NONE_REFUSED: Final = RefusedSnapshot(0.0, 0)


def board(
    log: LogSnapshot,
    survey: SurveySnapshot,
    application: str | None = None,
    refused: RefusedSnapshot | None = NONE_REFUSED,
) -> Board:
    """Put both together; of one application only, if one is given.

    The log is newer than the survey: what it has finished since is left out, if its
    list of what is unfinished is whole.
    """
    every = sorted(_rows(log, survey), key=_worst_first)
    rows = [r for r in every if application in (None, r.transaction.application)]
    doubts = tuple(_doubts(survey, application))
    if refused is None and survey.at is not None:
        doubts += ("Outboxes are being asked which requests their partners refused.",)
    headline, mood = _judge(rows, doubts, survey, refused.requests if refused else 0)
    closed = [row for row in log.newest if row.finished is not None]
    closed.sort(key=lambda row: row.finished or 0.0, reverse=True)
    return Board(
        headline,
        mood,
        doubts,
        tuple(rows[:ROWS]),
        tuple(Counter(row.what for row in rows[ROWS:]).most_common()),
        tuple(closed[:FINISHED]),
        survey.at,
        refused,
    )


def _judge(
    rows: Sequence[BoardRow],
    doubts: Sequence[str],
    survey: SurveySnapshot,
    refused: int,
) -> tuple[str, BoardStatus]:
    """Return the headline, and how the board looks."""
    waiting = [row for row in rows if row.held_back]
    need = sum(row.rank != "normal" for row in rows) - len(waiting)
    normal = len(rows) - need
    if waiting and not need:
        text = waiting[0].why.partition(" (")[0]
        more = f"; {normal - 1} more unfinished" if normal > 1 else ""
        return text + more, BoardStatus.DOUBT
    # Not *under way* where it is not known what participants hold.
    others = "more unfinished" if need else "unfinished"
    if survey.at is not None:
        others = "under way"
    text, mood = "All is well", BoardStatus.WELL
    if need:
        text = format_count(need, "transaction needs you", "transactions need you")
        mood = BoardStatus.NEED
    elif refused:
        text = "Requests that partners refused need you"
        mood = BoardStatus.NEED
    elif doubts:
        asked = survey.at is not None
        text = "Nothing wrong is known" if asked else "Not known yet"
        mood = BoardStatus.DOUBT
    return f"{text}; {normal} {others}" if normal else text, mood


def _doubts(survey: SurveySnapshot, application: str | None) -> Iterator[str]:
    def hide_others(match: re.Match[str]) -> str:
        return match[0] if match[1] == application else "a transaction"

    if survey.at is None:
        yield "Participants are being asked; until they answer, this is the log alone."
    for source, reason in survey.unreadable.items():
        why = reason if application is None else _ID.sub(hide_others, reason)
        if source.kind is SourceKind.LOG:
            yield "The decision log could not be read when participants were asked."
        elif source.kind is SourceKind.CLOCK:
            yield f"The clock: {why}."
        elif not _is_of_another(source, application):
            yield f"{source} could not be read, so nothing is known of it: {why}"


def _is_of_another(source: Source, application: str | None) -> bool:
    """Whether it is about applications only that are not asked for."""
    if application is None or source.kind is SourceKind.PARTICIPANT:
        return False
    # A token that is bound to what is asked for hides only what is not.
    bound = source.kind is SourceKind.SCOPE
    return bound == (source.application == application)


def _rows(log: LogSnapshot, survey: SurveySnapshot) -> Iterator[BoardRow]:
    worst: dict[TransactionId, Diagnosis] = {}
    for diagnosis in survey.diagnoses:
        worst.setdefault(diagnosis.transaction, diagnosis)  # the gravest comes first
    by_id = {row.transaction: row for row in log.open}
    whole = len(log.open) < MOST
    for id_, diagnosis in worst.items():
        # Judged unfinished, and no more in the log's whole list: finished since then.
        if id_ in by_id or id_ not in survey.judged or not whole:
            yield _diagnosed_row(diagnosis, log)
    for id_, row in by_id.items():
        if id_ not in worst:
            yield _log_row(row, log)


def _diagnosed_row(d: Diagnosis, log: LogSnapshot) -> BoardRow:
    id_, rank, what = d.transaction, str(d.severity), DIAGNOSIS_TEXT[d.diagnosis]
    due = _next_try(log, id_)
    return BoardRow(id_, rank, what, d.why, d.since, d.participants, due)


def _log_row(summary: TransactionSummary, log: LogSnapshot) -> BoardRow:
    id_, since = summary.transaction, summary.decided or summary.started
    what, due = STATE_TEXT[summary.state], _next_try(log, id_)
    row = BoardRow(id_, "normal", what, "", since, summary.pending, due)
    if summary.state is TransactionState.ACTIVE:
        return row._replace(participants=("its driver",))
    if summary.state is TransactionState.QUARANTINED:
        critical = str(Severity.CRITICAL)
        return row._replace(rank=critical, why=summary.reason or "", next_try=None)
    deliveries = log.deliveries.get(str(id_), {}).values()
    why = held_back(id_.application, summary.decided, deliveries, log.at)
    if summary.state is not TransactionState.COMMITTING or why is None:
        return row
    row = row._replace(what="holds its application back", why=why, held_back=True)
    return row._replace(rank=str(Severity.WARNING))


def _next_try(log: LogSnapshot, id_: TransactionId) -> float | None:
    deliveries = log.deliveries.get(str(id_), {}).values()
    due = (d.retry_at for d in deliveries if d.retry_at and d.pending)
    return min(due, default=None)


def _worst_first(row: BoardRow) -> tuple[int, int, float]:
    # Quarantined without a diagnosis stands behind what is known to be wrong.
    gravity = _GRAVITY.get(row.what, len(_GRAVITY))
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
