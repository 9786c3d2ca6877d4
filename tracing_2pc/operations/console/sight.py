"""What the console reads: log and participants, shared by all browsers that look."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, NoReturn

from tracing_2pc.errors import ParticipantUnavailableError
from tracing_2pc.interfaces import Clock
from tracing_2pc.model import TransactionId, TransactionRecord
from tracing_2pc.operations import observation
from tracing_2pc.operations.console.board import Board, Logged, Observed, board
from tracing_2pc.operations.console.cached import Behind, CachedByKey
from tracing_2pc.operations.console.charts import Hour, hour
from tracing_2pc.operations.orphans import Resolving
from tracing_2pc.operations.view import View, look
from tracing_2pc.protocol.diagnosis import Thresholds, diagnose
from tracing_2pc.protocol.recovery import Recovered
from tracing_2pc.settings import Settings
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.store.overview import MOST, Filters

LOOK_EVERY: Final = 5.0
"""Seconds from one look at all participants to the next, while somebody watches."""

STALE: Final = 60.0
"""Seconds beside the pause after which what participants said is not shown."""

LOG_EVERY: Final = 2.0
HOURS_EVERY: Final = 10.0
VIEW_EVERY: Final = 2.0

ASKING: Final = 4
"""Pages that may wait for participants at one time; others show the log."""

DEEDS: Final = 2
"""Forms that may do so beside them: many who look keep nobody from resolving."""

NEWEST: Final = 200
"""Transactions among which the recently finished ones are looked for."""

APPLICATIONS: Final = 12
"""Applications whose last hour is drawn: those that began something last."""


@dataclasses.dataclass(frozen=True)
class Sources:
    """Where everything comes from.

    Args:
        log: the decision log.
        participants: those that can be reached.
        settings: thresholds, links.
        clock: for the log's times.
        deliver: sends one decision once to whoever has not acknowledged it.
        pause: waits so many seconds between two looks.
    """

    log: SqlDecisionLog
    participants: Mapping[str, Resolving]
    settings: Settings
    clock: Clock
    deliver: Callable[[TransactionRecord], Recovered]
    pause: Callable[[float], object] = time.sleep


class Sight:
    """Reads at most every few seconds, however many browsers look."""

    def __init__(self, sources: Sources) -> None:
        self.sources = sources
        self._stale = STALE + sources.settings.pause
        self._around = Behind(self._observe, LOOK_EVERY)
        self._logged = CachedByKey(self._read, LOG_EVERY)
        self._boards = CachedByKey(self._put_together, LOG_EVERY)
        self._hours = CachedByKey(self._last_hour, HOURS_EVERY)
        self._views = CachedByKey(self._look, VIEW_EVERY)
        self._views_of_log = CachedByKey(self._look_at_log, VIEW_EVERY)
        self._pages = threading.BoundedSemaphore(ASKING)
        self._deeds = threading.BoundedSemaphore(DEEDS)

    def asking(self) -> contextlib.AbstractContextManager[bool]:
        """Say whether a page may ask participants now, and hold its place meanwhile.

        Nobody waits here. A participant that hangs keeps `ASKING` and `DEEDS` threads
        at most, so that others always show the list.
        """
        return _place(self._pages)

    def acting(self) -> contextlib.AbstractContextManager[bool]:
        """Do the same for a form."""
        return _place(self._deeds)

    def board(self, application: str | None) -> Board:
        """Say what is unfinished. Waits for the log, and never for a participant.

        Raises:
            DecisionLogError: the log cannot be read.
        """
        return self._boards.get(application)

    def hours(self, application: str | None) -> tuple[list[Hour], int]:
        """Draw the last hour of the applications; return how many were left out.

        Raises:
            DecisionLogError: the log cannot be read.
        """
        return self._hours.get(application)

    def view(self, transaction: TransactionId) -> View:
        """Ask everybody about one transaction; only while `asking` or `acting`.

        Raises:
            DecisionLogError: the log cannot be read, or the record not be trusted.
        """
        return self._views.get(transaction)

    def view_of_log(self, transaction: TransactionId) -> View:
        """Say what the log knows of one transaction, and ask nobody.

        Raises:
            DecisionLogError: the log cannot be read, or the record not be trusted.
        """
        return self._views_of_log.get(transaction)

    def changed(self, transaction: TransactionId) -> None:
        """Read it anew, and the list: somebody has done something about it."""
        self._views.drop(transaction)
        self._views_of_log.drop(transaction)
        self._logged.drop_all()
        self._boards.drop_all()

    def _put_together(self, application: str | None) -> Board:
        logged, observed = self._logged.get(application), self._around.latest()
        if observed and logged.at - (observed.at or 0.0) > self._stale:
            observed = None  # nobody has looked for a while
        return board(logged, observed or self._observe_log(), application)

    def _observe(self) -> Observed:
        by = self.sources
        found = observation.observe(
            by.log, by.participants, by.settings, by.clock, by.pause
        )
        return _judged(found, by.settings, by.clock.now())

    def _observe_log(self) -> Observed:
        by = self.sources
        found = observation.observe_log(by.log, by.participants, by.settings, by.clock)
        return _judged(found, by.settings, None)

    def _read(self, application: str | None) -> Logged:
        overview = self.sources.log.overview
        return Logged(
            self.sources.clock.now(),
            overview.transactions(
                Filters(application=application, unfinished=True, limit=MOST)
            ),
            overview.deliveries_of_unfinished(),
            overview.transactions(Filters(application=application, limit=NEWEST)),
        )

    def _last_hour(self, application: str | None) -> tuple[list[Hour], int]:
        log, now = self.sources.log, self.sources.clock.now()
        known = log.applications() if application is None else [application]
        newest = self._logged.get(application).newest
        lately = dict.fromkeys(one.transaction.application for one in newest)
        shown = sorted([*lately][:APPLICATIONS])
        hours = [
            hour(name, log.overview.transactions(_all_of(name)), now) for name in shown
        ]
        return hours, len(set(known) - set(shown))

    def _look(self, transaction: TransactionId) -> View:
        by = self.sources
        return look(by.log, by.participants, transaction, by.settings, by.clock)

    def _look_at_log(self, transaction: TransactionId) -> View:
        by = self.sources
        nobody = {name: _NotAsked(name) for name in by.participants}
        return look(by.log, nobody, transaction, by.settings, by.clock)


@contextlib.contextmanager
def _place(places: threading.Semaphore) -> Iterator[bool]:
    free = places.acquire(blocking=False)
    try:
        yield free
    finally:
        if free:
            places.release()


@dataclasses.dataclass(frozen=True)
class _NotAsked:
    """Stands for a participant that a page does not wait for."""

    name: str

    def prepared(self, application: str | None = None) -> NoReturn:
        """Say that it was not asked."""
        raise ParticipantUnavailableError("not asked now", participant=self.name)

    def show(self, transaction: TransactionId) -> NoReturn:
        """Say that it was not asked."""
        raise ParticipantUnavailableError("not asked now", participant=self.name)


def _judged(
    found: observation.Observation, settings: Settings, at: float | None
) -> Observed:
    logged = found.evidence.logged
    return Observed(
        at,
        diagnose(found.evidence, Thresholds.of(settings)),
        frozenset(logged.records) if logged else frozenset(),
        found.unreadable,
    )


def _all_of(application: str) -> Filters:
    return Filters(application=application, limit=MOST)
