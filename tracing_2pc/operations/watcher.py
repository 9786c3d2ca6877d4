"""The watcher: looks around, says what is wrong, and recovers if it is told to."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Final, Protocol

from tracing_2pc.errors import DecisionLogError, TwoPhaseError
from tracing_2pc.interfaces import Clock, SystemClock
from tracing_2pc.model import Carrier, TransactionId
from tracing_2pc.operations.observation import LOG, Observation, Observed, observe
from tracing_2pc.operations.sweep import Key, Sweep, Unfinished, gravest, key
from tracing_2pc.protocol.diagnosis import (
    GRAVE,
    Diagnosis,
    Thresholds,
    diagnose,
    held_back,
)
from tracing_2pc.protocol.evidence import Evidence, Logged, Standing
from tracing_2pc.protocol.recovery import Recovered
from tracing_2pc.settings import Settings
from tracing_2pc.states import UNFINISHED, DiagnosisKind, TransactionState
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.telemetry.snapshots import snapshot

SNAPSHOTS: Final = 100
"""Spans of what is stuck that one sweep makes, the gravest first."""

HOUR: Final = 3600.0

logger = logging.getLogger("tracing_2pc.watcher")


class Recovers(Protocol):
    """Finishes what the log has decided; see `protocol.recovery.Recovery`."""

    def sweep(self, application: str | None = None) -> Iterator[Recovered]:
        """Yield one item per unfinished transaction, as it is handled."""


class Watcher:
    """Sweeps over log and participants. It needs no Spark, and stores no opinion.

    A diagnosis that depends on somebody who cannot be read now stays as it was: no
    news is no good news. What it remembers is only what it has said; a restarted
    watcher says it again.

    Args:
        log: the decision log.
        participants: those that can be reached, by name.
        settings: thresholds, `sweep` and `pause`.
        clock: for the log's times.
        pause: waits so many seconds between the two looks.
        recovery: how to recover; None only looks.
        holder: name under which it takes the leases of applications.
        steady: seconds that only grow, whatever is done to the clock.
    """

    def __init__(
        self,
        log: SqlDecisionLog,
        participants: Mapping[str, Observed],
        settings: Settings,
        *,
        clock: Clock | None = None,
        pause: Callable[[float], object] | None = None,
        recovery: Recovers | None = None,
        holder: str = "watcher",
        steady: Callable[[], float] = time.monotonic,
    ) -> None:
        self._log = log
        self._participants = participants
        self._settings = settings
        self._clock = clock or SystemClock()
        self._pause = pause or self._clock.sleep
        self._recovery = recovery
        self._holder = holder
        self._steady = steady
        self._standing = Standing(steady)
        self._log_read = float("-inf")
        self._due: dict[Key, float] = {}
        self._tried: dict[TransactionId, str] = {}
        self._next_application = ""
        self.last = Sweep(0.0)
        self.succeeded: dict[str, float] = {}

    @property
    def blind(self) -> float:
        """Seconds since the log was last read; infinite before the first time."""
        return self._steady() - self._log_read

    def stop(self) -> None:
        """Let others recover at once what we have taken on; else they wait a little."""
        with contextlib.suppress(DecisionLogError):
            self._log.overview.give_leases_back(self._holder)

    def run(self, stop: threading.Event, tell: Callable[[Sweep], object]) -> None:
        """Sweep until `stop` is set; nothing that a sweep raises ends it.

        What `tell` raises does: nobody hears us any more.
        """
        while not stop.is_set():
            began = time.monotonic()
            try:
                sweep = self.sweep()
            except Exception:
                logger.exception("a sweep failed")
            else:
                tell(sweep)
            stop.wait(max(0.0, self._settings.sweep - (time.monotonic() - began)))

    def sweep(self) -> Sweep:
        """Look once around, and recover if that is wanted. Raises nothing of ours."""
        seen = observe(
            self._log, self._participants, self._settings, self._clock, self._pause
        )
        watched = self._standing.watched(seen.evidence)
        seen = dataclasses.replace(seen, evidence=watched)
        diagnoses = self._diagnoses(seen)
        self._note_success(seen)
        self._snapshot(diagnoses, seen.evidence)
        self.last = self._compared(seen, diagnoses)
        self._log_found(self.last)
        if self._recovery is not None and LOG not in seen.unreadable:
            recovered = tuple(self._recover(self._recovery))
            news = tuple(one for one in recovered if self._is_news(one))
            self._tried = {r.record.id: r.remark for r in recovered if not r.done}
            self.last = dataclasses.replace(self.last, recovered=news)
        return self.last

    def _is_news(self, one: Recovered) -> bool:
        """Whether it was done, or failed as it did not fail in the sweep before."""
        return one.done or self._tried.get(one.record.id) != one.remark

    def _diagnoses(self, seen: Observation) -> tuple[Diagnosis, ...]:
        """Return the new opinions, with the old ones that cannot be looked at now."""
        if seen.evidence.logged is None:
            return self.last.diagnoses
        said = diagnose(seen.evidence, Thresholds.of(self._settings))
        known = {key(one) for one in said}
        kept = [
            one
            for one in self.last.diagnoses
            if key(one) not in known and _is_hidden(one, seen, seen.evidence.logged)
        ]
        return tuple(gravest([*said, *kept]))

    def _compared(self, seen: Observation, diagnoses: tuple[Diagnosis, ...]) -> Sweep:
        before, now = self.last, {key(one): one for one in diagnoses}
        known = {key(one) for one in before.diagnoses}
        logged = seen.evidence.logged
        diagnosed = {one.transaction for one in diagnoses}
        held = before.held_back
        if logged is not None:
            held = _held_back(logged, diagnosed, self._clock.now())
        return Sweep(
            self._clock.now(),
            diagnoses,
            found=tuple(one for k, one in now.items() if k not in known),
            gone=tuple(one for one in before.diagnoses if key(one) not in now),
            unreadable=seen.unreadable,
            newly_unreadable=tuple(
                name for name in seen.unreadable if name not in before.unreadable
            ),
            readable=tuple(n for n in before.unreadable if n not in seen.unreadable),
            unfinished=before.unfinished if logged is None else unfinished_of(logged),
            held_back=held,
            newly_held_back=tuple(id_ for id_ in held if id_ not in before.held_back),
        )

    def _note_success(self, seen: Observation) -> None:
        now = self._clock.now()
        asked = [LOG, *self._participants]
        readable = {name: now for name in asked if name not in seen.unreadable}
        self.succeeded = {**self.succeeded, **readable}
        if LOG in readable:
            self._log_read = self._steady()

    def _log_found(self, sweep: Sweep) -> None:
        for one in gravest(sweep.found)[:SNAPSHOTS]:
            about = {
                "transaction_id": str(one.transaction),
                "diagnosis": str(one.diagnosis),
                "verdict": str(one.verdict),
            }
            logger.info("found: %s", one.diagnosis, extra=about)

    # --- snapshots ---

    def _snapshot(self, diagnoses: tuple[Diagnosis, ...], evidence: Evidence) -> None:
        """Make spans of what has been wrong for 1, 2, 4 … times its threshold."""
        due = [one for one in diagnoses if one.age >= self._due.get(key(one), 0.0)]
        carriers = carriers_of(evidence, {one.transaction for one in due})
        traced = [one for one in due if one.transaction in carriers][:SNAPSHOTS]
        for one in traced:
            snapshot(
                one.transaction,
                carriers[one.transaction],
                diagnosis=str(one.diagnosis),
                age=one.age,
                pending=len(one.participants),
                now=evidence.now,
            )
        first = self._settings.stuck_after
        said = {key(one): next_after(one.age, first) for one in traced}
        current = {key(one) for one in diagnoses}
        self._due = {k: at for k, at in (self._due | said).items() if k in current}

    # --- recovery ---

    def _recover(self, recovery: Recovers) -> Iterator[Recovered]:
        """Recover the applications whose lease we get, for `sweep` seconds at most."""
        until = time.monotonic() + self._settings.sweep
        try:
            for application in self._in_turn(self._log.unfinished_applications()):
                if time.monotonic() > until:
                    self._next_application = application
                    return
                yield from self._recover_one(recovery, application, until)
        except DecisionLogError as error:
            logger.warning("not recovered: %s", error)

    def _in_turn(self, applications: list[str]) -> list[str]:
        """Begin where the last sweep ran out of time: a slow one starves no other."""
        first = self._next_application
        return sorted(applications, key=lambda name: (name < first, name))

    def _recover_one(
        self, recovery: Recovers, application: str, until: float
    ) -> Iterator[Recovered]:
        # Twice as long as a sweep may take: whoever dies is replaced soon.
        seconds = 2 * self._settings.sweep + self._settings.pause
        if not self._log.overview.take_lease(application, self._holder, seconds):
            return
        try:
            for item in recovery.sweep(application):
                if item.done or item.record.state in UNFINISHED:
                    yield item  # what is left to its driver, or a person, is no news
                if time.monotonic() > until:
                    return
        except TwoPhaseError as error:
            logger.warning("not recovered: application=%s: %s", application, error)


def _held_back(
    logged: Logged, diagnosed: set[TransactionId], now: float
) -> dict[TransactionId, str]:
    """Say what waits for whom, of what nothing worse is said."""
    found: dict[TransactionId, str] = {}
    for id_, record in logged.records.items():
        if record.state is TransactionState.COMMITTING and id_ not in diagnosed:
            told = logged.deliveries.get(id_, {}).values()
            if why := held_back(id_.application, record.decided, told, now):
                found[id_] = why
    return found


def _is_hidden(one: Diagnosis, seen: Observation, logged: Logged) -> bool:
    """Whether somebody it was about cannot be read, so that it may still be so."""
    if one.transaction.application in logged.refused:
        return True
    if not any(_is_unread(name, one, seen) for name in one.participants):
        return False
    if one.diagnosis is DiagnosisKind.ORPHANED:
        return one.transaction not in logged.records
    grave = one.diagnosis in GRAVE
    return grave and one.transaction in logged.records


def _is_unread(name: str, one: Diagnosis, seen: Observation) -> bool:
    """Whether it cannot be read, or our token is now bound to another application."""
    listing = seen.evidence.second.get(name)
    blind = listing is not None and listing.is_blind_to(one.transaction.application)
    return name in seen.unreadable or blind


def unfinished_of(logged: Logged) -> Unfinished:
    """Count what the log has not closed."""
    counts: dict[TransactionState, int] = {}
    oldest: dict[TransactionState, float] = {}
    for record in logged.records.values():
        counts[record.state] = counts.get(record.state, 0) + 1
        first = oldest.get(record.state, record.started)
        oldest[record.state] = min(first, record.started)
    return Unfinished(counts, oldest)


def carriers_of(
    evidence: Evidence, transactions: set[TransactionId]
) -> dict[TransactionId, Carrier]:
    """Return where the spans of those that are traced belong: as logged, or listed."""
    found: dict[TransactionId, Carrier] = {}
    for listing in evidence.second.values():
        for one in listing.branches if listing else ():
            if one.transaction in transactions:
                found[one.transaction] = one.carrier
    known = evidence.logged.records if evidence.logged else {}
    found |= {t: known[t].carrier for t in transactions if t in known}
    return {t: carrier for t, carrier in found.items() if "traceparent" in carrier}


def next_after(age: float, first: float) -> float:
    """Return the age at which a snapshot is due next: doubling, an hour at most."""
    at = first
    while at <= age:
        at += min(at, HOUR)
        if at > HOUR * 24:
            return age + HOUR
    return at
