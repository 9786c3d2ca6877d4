"""`tracing-2pc check`: faults of the set-up, and their cures."""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

from tracing_2pc.core.errors import ConfigurationError, DecisionLogError, TwoPhaseError
from tracing_2pc.core.log_reader import LogCondition
from tracing_2pc.core.model import ParticipantDescription
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.settings import Settings, is_reference
from tracing_2pc.inspection.diagnosis import Finding
from tracing_2pc.inspection.evidence import Evidence
from tracing_2pc.inspection.findings import (
    CURE_OF_LOG,
    fault,
    find_all,
    find_in_brokers,
    find_in_condition,
    find_in_settings,
    find_others,
)
from tracing_2pc.inspection.jobs import Job
from tracing_2pc.inspection.participants import Source, SourceKind
from tracing_2pc.inspection.survey import describe_all, survey_all
from tracing_2pc.operations.wiring import open_configured_log, open_participants
from tracing_2pc.store.log.database import display_log
from tracing_2pc.tracing.sdk import lifecycle


class ShownSetting(NamedTuple):
    """A setting, as it may be shown, and where it came from."""

    name: str
    value: str
    origin: str


@dataclasses.dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check."""

    settings: tuple[ShownSetting, ...]
    log: LogCondition | None  # what its database is like; None where it cannot be read
    unfinished: Mapping[str, int]  # transactions by state, bounded
    jobs: tuple[Job, ...]  # of the applications whose drivers report, by name
    participants: tuple[ParticipantDescription, ...]  # in the settings' order
    findings: tuple[Finding, ...]  # all that is wrong


def check(settings: Settings) -> CheckResult:
    """Read the log, and ask all participants at once; changes nothing.

    Faults are in the result; nothing is raised for it. Takes some request timeouts at
    most, beside what the log's database takes to connect.
    """
    findings = [*find_in_settings(settings, lifecycle.problems())]
    condition, states, jobs = None, Counter[str](), tuple[Job, ...]()
    descriptions: Mapping[str, ParticipantDescription] = {}
    participants: Mapping[str, RemoteParticipant] = {}
    try:
        participants = open_participants(settings)
    except TwoPhaseError as error:
        source = Source(SourceKind.SETTINGS)
        findings.append(fault(source, str(error), "mend it in tpc.toml"))
    try:
        with open_configured_log(settings) as log:
            if not log.read_only_reason():
                condition = log.condition()
            evidence = survey_all(log, participants, settings, SystemClock(), bool)
        if evidence.log is not None:
            records = evidence.log.records.values()
            states = Counter(str(record.state) for record in records)
            jobs = tuple(evidence.log.jobs.values())
        descriptions = evidence.descriptions
        if condition is not None:
            findings += find_in_condition(condition)
        findings += find_all(evidence, settings)
    except TwoPhaseError as error:
        findings.append(fault(Source(SourceKind.LOG), str(error), _cure_of_log(error)))
        descriptions = describe_all(participants)
        alone = Evidence(time.time(), {}, None, {}, {}, descriptions=descriptions)
        findings += find_others(alone, settings)
    findings += find_in_brokers(descriptions)
    shown = tuple(
        ShownSetting(name, _text(name, getattr(settings, name)), settings.origin(name))
        for name in (field.name for field in dataclasses.fields(settings))
        if name != "origins"
    )
    described = tuple(descriptions.values())
    return CheckResult(shown, condition, states, jobs, described, tuple(findings))


def _text(name: str, value: Any) -> str:
    """Return a setting's value; never a secret that does not belong there."""
    if isinstance(value, Mapping):
        return ", ".join(f"{key}={item}" for key, item in value.items()) or "none"
    if value is None:
        return "none"
    if name == "log":
        try:
            return display_log(value)
        except TwoPhaseError:
            return "(refused, not shown)"
    if name == "token":
        return value if is_reference(value) else "(a secret, not shown)"
    return _duration(value) if isinstance(value, float) else str(value)


def _duration(seconds: float) -> str:
    """Return a duration as it may be written in the settings."""
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds and not seconds % length:
            return f"{seconds / length:g}{unit}"
    return f"{seconds:g}s"


def _cure_of_log(error: TwoPhaseError) -> str:
    if isinstance(error, ConfigurationError):
        return "mend `log` in the settings; for a new log only: run `tracing-2pc init`"
    if isinstance(error, DecisionLogError) and error.says_cure:
        return "do what it says"
    return CURE_OF_LOG
