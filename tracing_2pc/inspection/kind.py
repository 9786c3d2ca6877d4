"""The classes for a kind of finding, and for an alert on it."""

from __future__ import annotations

import dataclasses
import enum
from typing import Any, Final

from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Severity

DEFAULTS: Final = Settings()
"""Bounds and times of alerts follow the library's defaults."""

SWEEP: Final = DEFAULTS.sweep
WATCHED: Final = ("job", "application", "participant")
"""Labels of the watcher's metrics, of several watchers and applications."""


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Alert:
    """An alert: a metric is above a bound, or another query has a result.

    `summary` may have the fields participant, application, diagnosis, job and instance;
    n (their number; with s, are and have), age and share (of the value), which are
    written as a number where a system shows it, and as the bound where it does not.
    """

    name: str  # everywhere, and of its section of the runbook
    summary: str  # a sentence
    description: str  # what it means, with the same fields
    metric: str = ""  # by OpenTelemetry's name; empty where there is no bound to one
    above: float = 0.0
    of: str = ""  # the metric of which it is a share
    where: str = ""  # diagnoses that count, with | between them
    older: float = 0.0  # seconds without a step, of a diagnosis
    by: tuple[str, ...] = ("participant",)
    severity: Severity = Severity.WARNING
    lasts: float = SWEEP  # seconds for which it must be so
    # SkyWalking's metric without `meter_tpc_`; empty where it has no such alarm. For so
    # many minutes, where not for two.
    meter: str = ""
    minutes: int = 0
    # Instead of what follows from the above; None where there is no monitor.
    promql: str = ""
    datadog: str | None = ""
    note: str = ""  # why a query is as it is

    def critical(self, **changes: Any) -> Alert:
        """Return the critical one beside it, the same but for `changes`."""
        return dataclasses.replace(self, severity=Severity.CRITICAL, **changes)


class Subject(enum.Enum):
    """The subject of a finding of a kind."""

    DIAGNOSIS = "a transaction, and a verdict says what is safe"
    TRANSACTION = "a transaction, by its record alone"
    JOB = "the job of an application"
    SOURCE = "a participant, the log, a clock or the settings"
    QUEUE = "all that an outbox has to send, of whichever application"
    REQUESTS = "requests or transactions of one application at an outbox"
    GAUGE = "a participant, one of whose gauges is above the bound of its alert"
    METRICS = "what only metrics tell: an alert, and never a finding"


@dataclasses.dataclass(frozen=True, slots=True, eq=False)
class Kind:
    """One kind of finding, in the words of every face."""

    name: str  # as JSON, metrics and the manual call it
    subject: Subject
    seen: str  # what was seen, for the manual's table
    severity: Severity = Severity.WARNING  # at first: age may make it critical
    # Of a transaction: why it is in a list; of `REQUESTS`: why they wait; of a `GAUGE`:
    # what it shows, with the fields value, of and age.
    words: str = ""
    # What mends it, with fields that are filled in; empty where a finding has its own.
    cure: str = ""
    is_bare: bool = False  # its cause says all: the name adds nothing for a person
    # What `tracing-2pc watch` begins a line with, found and gone; empty for no line.
    events: tuple[str, str] = ("found", "gone")
    alerts: tuple[Alert, ...] = ()  # a warning first

    def __str__(self) -> str:
        return self.name

    @property
    def is_at_outbox(self) -> bool:
        """Whether it is committed, and has not gone out: the log waits for nothing."""
        return self.subject in (Subject.QUEUE, Subject.REQUESTS)

    @property
    def is_grave(self) -> bool:
        """Whether no waiting mends it: the decision and the rows differ."""
        is_diagnosis = self.subject is Subject.DIAGNOSIS
        return is_diagnosis and self.severity is Severity.CRITICAL
