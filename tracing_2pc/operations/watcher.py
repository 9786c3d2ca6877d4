"""The watcher: surveys log and participants, diagnoses, and recovers if told to."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import re
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from tracing_2pc.core.addresses import key_of, name_of
from tracing_2pc.core.errors import DecisionLogError, TwoPhaseError
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.model import Carrier, TransactionId, log_fields
from tracing_2pc.core.ports import Clock
from tracing_2pc.core.remote_participant import Embedded
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import (
    UNFINISHED,
    TransactionState,
)
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.diagnosis import (
    LATE,
    Finding,
    gravest_first,
)
from tracing_2pc.inspection.evidence import Evidence, LogEvidence
from tracing_2pc.inspection.findings import find_all
from tracing_2pc.inspection.kind import Kind, Subject
from tracing_2pc.inspection.participants import (
    LOG,
    ReadableParticipant,
    Source,
    SourceKind,
    participant_source,
)
from tracing_2pc.inspection.survey import survey_all
from tracing_2pc.protocol.recovery import RecoveryResult
from tracing_2pc.tracing.transaction import OpenTelemetryTracing, snapshot

SNAPSHOTS: Final = 100
"""Spans of stuck transactions that one sweep makes, the gravest first."""

HOUR: Final = 3600.0

_NUMBER: Final = re.compile(r"\d+")

_KEPT: Final = (Subject.DIAGNOSIS, Subject.TRANSACTION, Subject.JOB)
"""Subjects of findings that stay while their source cannot be read."""

RecoverApplication: TypeAlias = Callable[[str], Iterator[RecoveryResult]]
"""Finishes an application's decided transactions; see `Recovery.sweep`."""

_Key: TypeAlias = tuple[TransactionId | Source, Kind]
_Steps: TypeAlias = tuple[float | None, frozenset[str]]
"""The time of its decision, and the participants that have acknowledged it."""

logger = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class Sweep:
    """One round of the watcher."""

    at: float  # when it ended; Unix seconds
    # All that is wrong now, with what cannot be read again meanwhile; the gravest
    # first.
    findings: tuple[Finding, ...] = ()
    # New since the last round; `changed`: known then, with another cause or cure;
    # `removed`: gone since then.
    added: tuple[Finding, ...] = ()
    changed: tuple[Finding, ...] = ()
    removed: tuple[Finding, ...] = ()
    # When each unfinished transaction was begun, by application and state, as the log
    # was last read; Unix seconds.
    started: Mapping[tuple[str, str], Sequence[float]] = dataclasses.field(
        default_factory=dict
    )
    # Seconds since the oldest commit was decided, then, by application and participant
    # that has not acknowledged it; from `LATE` on.
    pending: Mapping[tuple[str, str], float] = dataclasses.field(default_factory=dict)
    # By application: since when its job is down, in Unix seconds; None while it is not.
    down: Mapping[str, float | None] = dataclasses.field(default_factory=dict)
    # What participants without a service measure, by name; those that could be read.
    gauges: Mapping[str, Mapping[str, float]] = dataclasses.field(default_factory=dict)
    # Where that was asked for, what was done, and what could not be, unless the sweep
    # before had that, too.
    recovered: tuple[RecoveryResult, ...] = ()

    @property
    def clean(self) -> bool:
        """Whether everything could be read, and nothing is wrong."""
        return not self.findings

    @property
    def diagnoses(self) -> tuple[Finding, ...]:
        """The faults of transactions, as far as there is a verdict."""
        return tuple(f for f in self.findings if f.verdict is not None)


@dataclasses.dataclass
class Watcher:
    """Sweeps over log and participants. It needs no Spark, and stores no opinion.

    A diagnosis about a participant that cannot be read now stays as it was: no answer
    is no evidence. It remembers only its reports; a restarted watcher reports it again.
    """

    log: OperatorLog
    participants: Mapping[str, ReadableParticipant]  # those that can be reached
    settings: Settings
    _: dataclasses.KW_ONLY
    clock: Clock  # for the log's times
    pause: Callable[[float], object]  # waits so many seconds between the two lists
    # How to recover an application; None only diagnoses.
    recover: RecoverApplication | None
    holder: str  # name under which it takes the leases of applications
    # Seconds that only grow, whatever is done to the clock.
    steady: Callable[[], float] = time.monotonic
    last: Sweep = dataclasses.field(default_factory=lambda: Sweep(0.0), init=False)
    # When each participant, and the log, was last read; Unix seconds.
    succeeded: dict[str, float] = dataclasses.field(default_factory=dict, init=False)

    def __post_init__(self) -> None:
        self._steps: dict[TransactionId, tuple[_Steps, float]] = {}
        self._log_read = float("-inf")
        self._due: dict[_Key, float] = {}
        self._tried: dict[TransactionId, str] = {}
        self._tracing = OpenTelemetryTracing()
        self._next_application = ""

    @property
    def blind(self) -> float:
        """Seconds since the log was last read; infinite before the first time."""
        return self.steady() - self._log_read

    def stop(self) -> None:
        """Give back our leases, so that others recover at once."""
        with contextlib.suppress(DecisionLogError):
            self.log.give_leases_back(self.holder)

    def run(self, stop: threading.Event, report: Callable[[Sweep], object]) -> None:
        """Sweep until `stop` is set; an exception in a sweep does not end it.

        An exception in `report` does: the reports are no longer read.
        """
        while not stop.is_set():
            began = time.monotonic()
            try:
                sweep = self.sweep()
            except Exception:
                logger.exception("a sweep failed")
            else:
                report(sweep)
            stop.wait(max(0.0, self.settings.sweep - (time.monotonic() - began)))

    def sweep(self) -> Sweep:
        """Survey once, and recover if that is wanted. Raises nothing of ours."""
        evidence = survey_all(
            self.log, self.participants, self.settings, self.clock, self.pause
        )
        evidence = self._with_standstill(evidence)
        self.last = self._compare(evidence)
        self._note_success(evidence)
        self._snapshot(evidence)
        carriers = _carriers_of(evidence)
        news = [f for f in self.last.added if f.verdict is not None]
        for finding in news[:SNAPSHOTS]:
            if isinstance(id_ := finding.about, TransactionId):
                logger.info(
                    "found: transaction=%s diagnosis=%s verdict=%s",
                    id_,
                    finding.kind,
                    finding.verdict,
                    extra=log_fields(id_, carriers.get(id_, Carrier())),
                )
        if self.recover is not None and evidence.log is not None:
            recovered = list(self._recover_all(self.recover))
            before = self._tried
            self._tried = {r.record.id: r.remark for r in recovered if not r.done}
            # A try that failed as in the sweep before is no news.
            reported = (
                r for r in recovered if r.done or before.get(r.record.id) != r.remark
            )
            self.last = dataclasses.replace(self.last, recovered=tuple(reported))
        return self.last

    def _with_standstill(self, evidence: Evidence) -> Evidence:
        """Add the time that each unfinished transaction was watched without a step.

        By a monotonic clock: one that is set back makes all ages too small, but a
        transaction is no younger than the time it was watched for.
        """
        if (log := evidence.log) is None:
            return evidence
        now, before = self.steady(), self._steps
        self._steps = {}
        for id_, record in log.records.items():
            # Not `last_step`: after a clock is set back, the newest is not the last.
            deliveries = log.deliveries.get(id_, {}).items()
            names = frozenset(name for name, d in deliveries if d.acknowledged)
            steps = (record.decided, names)
            last, since = before.get(id_, (steps, now))
            self._steps[id_] = (steps, since if last == steps else now)
        standstill = {id_: now - since for id_, (_, since) in self._steps.items()}
        return dataclasses.replace(evidence, standstill=standstill)

    def _find(self, evidence: Evidence) -> list[Finding]:
        """Return the findings, with the old ones that cannot be read again now."""
        findings = find_all(evidence, self.settings)
        last = self.last.findings
        before = (f for f in last if f.kind.subject in _KEPT)
        missing = _without(before, findings)
        findings += [f for f in missing if _is_hidden(f, evidence)]
        return gravest_first(findings)

    def _compare(self, evidence: Evidence) -> Sweep:
        before, findings = self.last, tuple(self._find(evidence))
        started, pending, down = before.started, before.pending, before.down
        if (log := evidence.log) is not None:
            started, pending = _started(log), _pending(log)
            now_down = {
                name: evidence.now - job.age if job.is_down else None
                for name, job in log.jobs.items()
            }
            down = {**(down if _hides_jobs(evidence) else {}), **now_down}
        return Sweep(
            self.clock.now(),
            findings,
            added=_without(findings, before.findings),
            changed=_changed(findings, before.findings),
            removed=_without(before.findings, findings),
            started=started,
            pending=pending,
            down=down,
            gauges={
                name: description.gauges
                for name, description in evidence.descriptions.items()
                if isinstance(self.participants[name], Embedded)
            },
        )

    def _note_success(self, evidence: Evidence) -> None:
        now = self.clock.now()
        findings = self.last.findings
        misdirected = {f.about for f in findings if f.kind is kinds.MISDIRECTED}
        for name in self.participants:
            source = participant_source(name)
            if source not in evidence.unreadable and source not in misdirected:
                self.succeeded[name] = now
        if evidence.log is not None:
            self._log_read = self.steady()
            if not evidence.log.read_only:  # else it decides nothing: that alerts
                self.succeeded[LOG] = now

    def _snapshot(self, evidence: Evidence) -> None:
        """Make spans of faults that have lasted 1, 2, 4 … times their threshold."""
        diagnoses, carriers = self.last.diagnoses, _carriers_of(evidence)
        due = [d for d in diagnoses if d.age >= self._due.get(_key_of(d), 0.0)]
        traced = [d for d in due if "traceparent" in carriers.get(d.transaction, {})]
        traced = traced[:SNAPSHOTS]
        records = evidence.log.records if evidence.log else {}
        for finding in traced:
            id_ = finding.transaction
            if (record := records.get(id_)) is not None:
                self._tracing.export_root(record, taken_over=True)
            snapshot(
                id_,
                carriers[id_],
                diagnosis=str(finding.kind),
                age=finding.age,
                participants=finding.participants,
                now=evidence.now,
            )
        first = self.settings.stuck_after
        next_due = {_key_of(d): next_after(d.age, first) for d in traced}
        current = set(map(_key_of, diagnoses))
        self._due = {
            k: age for k, age in (self._due | next_due).items() if k in current
        }

    def _recover_all(self, recover: RecoverApplication) -> Iterator[RecoveryResult]:
        """Recover the applications whose lease we get, for `sweep` seconds at most.

        Begins where the last sweep ran out of time: a slow one starves no other.
        """
        until, first = time.monotonic() + self.settings.sweep, self._next_application
        try:
            applications = self.log.unfinished_applications()
            for application in sorted(applications, key=lambda a: (a < first, a)):
                if time.monotonic() > until:
                    self._next_application = application
                    return
                yield from self._recover_one(recover, application, until)
        except DecisionLogError as error:
            logger.warning("not recovered: %s", error)

    def _recover_one(
        self, recover: RecoverApplication, application: str, until: float
    ) -> Iterator[RecoveryResult]:
        # Twice as long as a sweep may take: a watcher that was killed is replaced soon.
        seconds = 2 * self.settings.sweep + self.settings.pause
        if not self.log.take_lease(application, self.holder, seconds):
            return
        try:
            for item in recover(application):
                if item.done or item.record.state in UNFINISHED:
                    yield item  # what is left to its driver, or a person, is no news
                if time.monotonic() > until:
                    return
        except TwoPhaseError as error:
            logger.warning("not recovered: application=%s: %s", application, error)


def _key_of(finding: Finding) -> _Key:
    """Return the key by which two findings are the same one."""
    return finding.about, finding.kind


def _without(
    these: Iterable[Finding], others: Iterable[Finding]
) -> tuple[Finding, ...]:
    known = set(map(_key_of, others))
    return tuple(finding for finding in these if _key_of(finding) not in known)


def _changed(
    these: Iterable[Finding], others: Iterable[Finding]
) -> tuple[Finding, ...]:
    """Return those that others are the same as, but for severity, cause or cure."""
    before = {_key_of(finding): _essence(finding) for finding in others}
    return tuple(
        finding
        for finding in these
        if before.get(_key_of(finding), _essence(finding)) != _essence(finding)
    )


def _essence(finding: Finding) -> tuple[str | None, ...]:
    """Return the facts that a person acts on, without numbers that grow each round."""
    words = [str(finding.severity), finding.verdict and str(finding.verdict)]
    cause = finding.why if finding.kind is kinds.UNREADABLE else ""
    texts = (_NUMBER.sub("", text) for text in (cause, finding.cure))
    return (*words, *texts)


def _started(log: LogEvidence) -> Mapping[tuple[str, str], Sequence[float]]:
    times: dict[tuple[str, str], list[float]] = {}
    for id_, record in log.records.items():
        times.setdefault((id_.application, record.state), []).append(record.started)
    return times


def _pending(log: LogEvidence) -> dict[tuple[str, str], float]:
    """Return ages by the log's clock: they do not grow between two readings.

    An age that grew would raise an alarm for a transaction acknowledged meanwhile.
    """
    ages: dict[tuple[str, str], float] = {}
    for id_, record in log.records.items():
        if record.state is TransactionState.COMMITTING and record.decided is not None:
            age = log.clock - record.decided
            for name in record.pending if age >= LATE else ():
                key = id_.application, name
                ages[key] = max(age, ages.get(key, 0.0))
    return ages


def _hides_jobs(evidence: Evidence) -> bool:
    """Whether a job that is not listed may be as it was."""
    is_read_only = evidence.log is not None and bool(evidence.log.read_only)
    return is_read_only or Source(SourceKind.JOBS) in evidence.unreadable


def _is_hidden(finding: Finding, evidence: Evidence) -> bool:
    """Whether its source cannot be read, so that it may still be so."""
    if (log := evidence.log) is None:
        return True
    if not isinstance(id_ := finding.about, TransactionId):
        return finding.kind.subject is Subject.JOB and _hides_jobs(evidence)
    if id_.application in log.refused:
        return True
    # Or our token is now bound to another application.
    lists = evidence.second.items()
    blind = (key for key, listing in lists if listing.is_blind_to(id_.application))
    unread = set(map(name_of, blind))
    names = finding.participants
    keys = {n: key_of(evidence.participants, id_.application, n) for n in names}
    unread |= {n for n in names if participant_source(keys[n]) in evidence.unreadable}
    if unread.isdisjoint(names):
        return False
    on_record = id_ in log.records
    if finding.kind is kinds.ORPHANED:
        return not on_record
    return finding.grave and (on_record or id_ in log.commits)


def _carriers_of(evidence: Evidence) -> dict[TransactionId, Carrier]:
    """Return where spans of the transactions belong: as logged, or as listed."""
    carriers = {
        branch.transaction: branch.carrier
        for listing in evidence.second.values()
        for branch in listing.branches
    }
    if (log := evidence.log) is None:
        return carriers
    records = [*log.records.values(), *log.finished.values()]
    return carriers | {record.id: record.carrier for record in records}


def next_after(age: float, first: float) -> float:
    """Return the age at which a snapshot is due next: doubling, an hour at most."""
    due_age = first
    while due_age <= age:
        due_age += min(due_age, HOUR)
        if due_age > HOUR * 24:
            return age + HOUR
    return due_age
