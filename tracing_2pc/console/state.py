"""The console's content: read from log and participants once for all browsers."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Final, NoReturn

from tracing_2pc.console.board import (
    Board,
    LogSnapshot,
    SurveySnapshot,
    board,
)
from tracing_2pc.console.cached import CachedByKey, MadeInBackground
from tracing_2pc.console.charts import Chart, Hour, answers, hour
from tracing_2pc.console.reports import answers_of, report_of
from tracing_2pc.core.errors import ParticipantUnavailableError
from tracing_2pc.core.log_reader import MOST, OperatorLog, TransactionFilter
from tracing_2pc.core.model import RequestKey, TransactionId, TransactionRecord
from tracing_2pc.core.ports import Clock
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.settings import Settings
from tracing_2pc.inspection.diagnosis import find_all_awaited
from tracing_2pc.inspection.evidence import Evidence
from tracing_2pc.inspection.findings import find_all
from tracing_2pc.inspection.participants import (
    ReadableParticipant,
    RefusedRequests,
    list_refused,
)
from tracing_2pc.inspection.survey import survey_all, survey_log
from tracing_2pc.inspection.trace import TraceView
from tracing_2pc.inspection.trace_sources import find_trace
from tracing_2pc.inspection.view import TransactionView, view_transaction
from tracing_2pc.protocol.recovery import RecoveryResult

SURVEY_EVERY: Final = 5.0
"""Seconds from one survey of all participants to the next, while a browser asks."""

LOOKS: Final = 5
"""Times `request_timeout` that a survey may take beside its pause, where one hangs."""

LOG_EVERY: Final = 2.0
HOURS_EVERY: Final = 10.0
VIEW_EVERY: Final = 2.0
TRACE_EVERY: Final = 10.0
KEPT: Final = 600.0
"""Seconds for which a trace is kept that nobody asks for."""

ASKING: Final = 4
"""Pages that may wait for participants at one time; others show the log."""

RESOLVING: Final = 2
"""Forms that may do so beside them: many who look keep nobody from resolving."""

NEWEST: Final = 200
"""Transactions among which the recently finished ones are looked for."""

REFUSED: Final = 50
"""Refused requests that are read of each outbox: the oldest."""

APPLICATIONS: Final = 12
"""Applications whose last hour is drawn: those that began something last."""


@dataclasses.dataclass(frozen=True)
class ConsoleSources:
    """The sources of all pages, and the resources of actions.

    `deliver` sends one decision once, to all that have not acknowledged it; `pause`
    waits so many seconds between two lists.
    """

    log: OperatorLog
    participants: Mapping[str, RemoteParticipant]
    settings: Settings
    deliver: Callable[[TransactionRecord], RecoveryResult]
    clock: Clock
    pause: Callable[[float], object] = time.sleep

    def asking(self, names: Iterable[str]) -> contextlib.AbstractContextManager[object]:
        """Show nothing: the button shows that it works."""
        return contextlib.nullcontext()

    def progress(self, text: str) -> None:
        """Show nothing, likewise."""


class ConsoleState:
    """Reads at most every few seconds, however many browsers ask.

    Each `get` raises `DecisionLogError` if the log cannot be read, or a record of it
    cannot be trusted.

    Attributes:
        boards: by application, None for all: unfinished transactions, and faults. Waits
            for the log, and never for a participant.
        hours: by application: the last hour of each, and how many were left out.
        reports: by application: how long its commits take, and what holds them back.
        answers: by participant and application: how soon it acknowledges.
        views: by transaction, and whether to ask participants: all about it.
        traces: by transaction: its spans, looked for in the background.
        refused: by application: the oldest requests that partners refused. Waits for
            participants, and never for the log.
        request: by participant and key: the same of one request.
        asking: yields whether a page may ask participants now, and holds its slot
            meanwhile. Nothing waits here. A participant that hangs keeps `ASKING` and
            `RESOLVING` threads at most, so that others always show the list.
        resolving: does the same for a form.
    """

    def __init__(self, sources: ConsoleSources) -> None:
        self.sources = sources
        settings = sources.settings
        # Older than any is while a browser asks: nobody has looked meanwhile.
        self._stale = SURVEY_EVERY + settings.pause + LOOKS * settings.request_timeout
        self._survey = MadeInBackground(self._survey_all, SURVEY_EVERY)
        self._logs = CachedByKey(self._read_log, LOG_EVERY)
        self.boards = CachedByKey(self._board, LOG_EVERY)
        self.hours = CachedByKey(self._last_hour, HOURS_EVERY)
        self.reports = CachedByKey(partial(report_of, sources.log), HOURS_EVERY)
        self.answers = CachedByKey(self._answers, HOURS_EVERY)
        self.views = CachedByKey(self._view, VIEW_EVERY)
        self.traces = CachedByKey(self._in_background, KEPT)
        self.refused = CachedByKey(self._list_refused, VIEW_EVERY)
        self.request = CachedByKey(self._find_refused, VIEW_EVERY)
        self.asking = partial(_slot, threading.BoundedSemaphore(ASKING))
        self.resolving = partial(_slot, threading.BoundedSemaphore(RESOLVING))

    def drop_all(self) -> None:
        """Have everything read again that a person may have changed."""
        self.views.drop_all()
        self._logs.drop_all()
        self.hours.drop_all()
        self.reports.drop_all()
        self.refused.drop_all()
        self.request.drop_all()
        self.boards.drop_all()

    def _board(self, application: str | None) -> Board:
        log, survey = self._logs.get(application), self.survey()
        if survey is None:
            sources = self.sources
            alone = survey_log(sources.log, sources.participants, sources.clock)
            survey = self._judged(alone, None)
        return board(log, survey, application)

    def survey(self) -> SurveySnapshot | None:
        """Return what participants answered last; None if no browser asked since."""
        survey, now = self._survey.latest(), self.sources.clock.now()
        if survey and now - (survey.at or 0.0) > self._stale:
            return None
        return survey

    def _answers(self, key: tuple[str, str | None]) -> Chart:
        participant, application = key
        log, now = self.sources.log, self.sources.clock.now()
        newest = log.transactions(TransactionFilter(application, limit=MOST))
        return answers(answers_of(log, participant, newest), now)

    def _list_refused(self, application: str | None) -> RefusedRequests:
        return list_refused(self.sources.participants, application, limit=REFUSED)

    def _find_refused(self, key: tuple[str, RequestKey]) -> RefusedRequests:
        name, request = key
        asked = {name: self.sources.participants[name]}
        return list_refused(asked, request.transaction.application, key=request)

    def _survey_all(self) -> SurveySnapshot:
        sources = self.sources
        survey = survey_all(
            sources.log,
            sources.participants,
            sources.settings,
            sources.clock,
            sources.pause,
        )
        return self._judged(survey, sources.clock.now())

    def _judged(self, evidence: Evidence, moment: float | None) -> SurveySnapshot:
        judged = frozenset(evidence.log.records if evidence.log else ())
        findings = find_all(evidence, self.sources.settings)
        awaited = find_all_awaited(evidence, self.sources.settings)
        return SurveySnapshot(moment, findings, judged, evidence, awaited)

    def _read_log(self, application: str | None) -> LogSnapshot:
        log, now = self.sources.log, self.sources.clock.now()
        unfinished = TransactionFilter(application, unfinished=True, limit=MOST)
        newest = TransactionFilter(application, limit=NEWEST)
        return LogSnapshot(
            now,
            log.transactions(unfinished),
            log.deliveries_of_unfinished(),
            log.transactions(newest),
        )

    def _last_hour(self, application: str | None) -> tuple[list[Hour], int]:
        log, now = self.sources.log, self.sources.clock.now()
        known = log.applications() if application is None else [application]
        newest = self._logs.get(application).newest
        lately = dict.fromkeys(row.transaction.application for row in newest)
        shown = sorted([*lately][:APPLICATIONS])
        hours = [
            hour(name, log.transactions(TransactionFilter(name, limit=MOST)), now)
            for name in shown
        ]
        return hours, len(set(known) - set(shown))

    def _in_background(self, transaction: TransactionId) -> MadeInBackground[TraceView]:
        sources = self.sources
        find = partial(find_trace, sources.log, transaction, sources.settings)
        return MadeInBackground(find, TRACE_EVERY)

    def _view(self, key: tuple[TransactionId, bool]) -> TransactionView:
        transaction, ask = key
        sources = self.sources
        asked: Mapping[str, ReadableParticipant] = sources.participants
        if not ask:
            asked = {name: _NotAsked(name) for name in sources.participants}
        return view_transaction(
            sources.log, asked, transaction, sources.settings, sources.clock
        )


@contextlib.contextmanager
def _slot(slots: threading.Semaphore) -> Iterator[bool]:
    free = slots.acquire(blocking=False)
    try:
        yield free
    finally:
        if free:
            slots.release()


@dataclasses.dataclass(frozen=True)
class _NotAsked:
    """Stands for a participant that a page does not wait for."""

    name: str

    def prepared(self, *_: object, **__: object) -> NoReturn:
        raise ParticipantUnavailableError("not asked now", participant=self.name)

    show = prepared
