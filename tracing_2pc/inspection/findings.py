"""All findings: one list, for each command, the console, metrics and exit codes.

`diagnosis.py` judges transactions. Here are the others: unreadable sources, reports of
participants about themselves and their outboxes; and the order of all.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final

from tracing_2pc.core.addresses import how_to_add, key_of
from tracing_2pc.core.log_reader import LogCondition
from tracing_2pc.core.model import (
    ParticipantDescription,
    QuarantinedRequest,
    QuarantineListing,
    TransactionId,
    TransactionRecord,
    find_misdirected,
)
from tracing_2pc.core.names import METRICS
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import RelayTrouble, Severity, UnfitKind
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.diagnosis import Finding, diagnose, gravest_first
from tracing_2pc.inspection.evidence import Evidence, LogEvidence
from tracing_2pc.inspection.jobs import MISSED, Job, JobState, describe_driver
from tracing_2pc.inspection.kind import Kind, Subject
from tracing_2pc.inspection.participants import (
    Source,
    SourceKind,
    participant_source,
)
from tracing_2pc.inspection.wording import (
    NO_ADDRESS,
    OWN_SINK,
    format_count,
    format_duration,
    format_time_of_day,
    join_names,
    without_participant,
)

SKEW: Final = 1.0
"""Seconds by which two clocks may differ: ages of branches are by the participant's."""

LATELY: Final = 3600.0
"""Seconds for which rejected rows are a finding: as long as they are an alert."""

CURE_OF_LOG: Final = "start its database, or mend `log` in the settings"
"""The cure where the log cannot be reached."""

_DURABLE: Final[Mapping[str, frozenset[str]]] = {
    "journal_mode": frozenset({"wal"}),
    "synchronous": frozenset({"full", "extra"}),
    "fsync": frozenset({"on"}),
    "full_page_writes": frozenset({"on"}),
    "synchronous_commit": frozenset({"on", "local", "remote_write", "remote_apply"}),
}
"""Values that keep a decision through a crash, by the name of a database's setting."""


def find_all(evidence: Evidence, settings: Settings) -> list[Finding]:
    """Return all findings, unreadable sources among them; the gravest first."""
    findings = [*diagnose(evidence, settings), *find_others(evidence, settings)]
    return gravest_first(findings)


def find_others(evidence: Evidence, settings: Settings) -> Iterator[Finding]:
    """Yield findings beside those of transactions: sources, participants, outboxes."""
    if (log := evidence.log) is not None:
        yield from find_read_only(log.read_only)
        for job in log.jobs.values():
            yield from find_in_job(job, evidence.now)
        yield from _rejected(log, evidence.now)
        yield from _not_reached(log, evidence, settings)
        yield from _clock_set_back(log, evidence.now, settings)
        yield from _misdirected(evidence, log)
    for source, error in evidence.unreadable.items():
        yield _unreadable(source, error, evidence, settings)
    for name, skew in evidence.skews.items():
        if abs(skew) > SKEW:
            source = participant_source(name)
            ahead = "ahead of" if skew > 0 else "behind"
            difference = (
                f"its clock is {format_duration(abs(skew))} {ahead} this machine's: "
                "ages of what is in doubt are by its clock, ages on record by the "
                "log's, and diagnoses compare them"
            )
            yield fault(source, difference, kind=kinds.CLOCK_DIFFERS)
    for name, description in evidence.descriptions.items():
        source = participant_source(name)
        problem = description.unreachable or description.refused or description.unready
        if problem and source not in evidence.unreadable:
            yield _unreadable(source, problem, evidence, settings)
        yield from _of_gauges(source, description.gauges, evidence.now)
        refused = evidence.refused.get(name, QuarantineListing((), evidence.now))
        yield from _of_queue(name, description, refused, evidence.now, settings)
        waits = any(r.trouble is RelayTrouble.UNREADABLE for r in refused.requests)
        if not waits:  # else the requests say it
            yield from find_in_broker(name, description, evidence.now)
    for name, listing in evidence.refused.items():
        yield from _of_outbox(name, listing, evidence.now)


def find_at_outboxes(evidence: Evidence, settings: Settings) -> list[Finding]:
    """Return findings about outboxes only, and about those that gave no list."""
    findings = find_others(evidence, settings)
    return gravest_first(
        finding
        for finding in findings
        if isinstance(finding.about, Source) and finding.about.kind is SourceKind.OUTBOX
    )


_WAITING: Final[Mapping[RelayTrouble | None, Kind]] = {
    None: kinds.REFUSED_REQUESTS,
    RelayTrouble.STOPPED: kinds.RELAY_STOPPED,
    RelayTrouble.HIDDEN: kinds.READERS_HELD_BACK,
    RelayTrouble.UNREADABLE: kinds.POSITION_UNREADABLE,
    RelayTrouble.REFUSED: kinds.NOT_PUBLISHED,
}
"""The kind of a request that waits at an outbox, by a relay's trouble."""


def _of_outbox(name: str, listing: QuarantineListing, now: float) -> Iterator[Finding]:
    """Yield a finding for each application that waits there, and each cause."""
    groups: dict[tuple[str, RelayTrouble | None], list[QuarantinedRequest]] = {}
    for request in listing.requests:
        application = request.key.transaction.application
        groups.setdefault((application, request.trouble), []).append(request)
    for (application, trouble), requests in groups.items():
        kind, unit = _WAITING[trouble], "refused request"
        first = min(requests, key=lambda request: request.since)
        since = now - (listing.now - first.since)
        cause = kind.words
        if trouble is not None:
            unit = "transaction"
            cause = f"{cause} at {first.key.transaction}: {first.body}"
        more = " or more" if listing.more else ""
        yield Finding(
            Source(SourceKind.OUTBOX, name, application),
            kind,
            kind.severity,
            (name,),
            since,
            now - since,
            None,
            f"{format_count(len(requests), unit)}{more} of {application}, since "
            f"{format_time_of_day(since, now)}: {cause}",
            kind.cure,
        )


def fault(
    source: Source, problem: str, cure: str = "", kind: Kind = kinds.FAULT
) -> Finding:
    """Return a finding about a source; its cure is by default its kind's."""
    names = tuple(filter(None, [source.participant]))
    cure = cure or kind.cure
    return Finding(source, kind, kind.severity, names, 0.0, 0.0, None, problem, cure)


def is_of_another(about: TransactionId | Source, application: str | None) -> bool:
    """Whether it is about other applications than the one given; None is all."""
    if application is None:
        return False
    if isinstance(about, TransactionId) or about.kind is not SourceKind.SCOPE:
        return about.application not in ("", application)
    # A token that is bound to what is asked for hides only what is not.
    return about.application == application


# --- what cannot be read -------------------------------------------------------------

_START: Final = "start it (restart it where it hangs: nothing is lost)"
_START_DATABASE: Final = "start its database; see its own log"

_SILENT: Final = "database did not answer"
"""In a participant's answer where it does not know the cause."""

_LOOK_THERE: Final = "ask it by its own means: no decision is missed, and none shown"


def not_read(name: str, error: str) -> Finding:
    """Return a finding: a participant did not answer about one transaction."""
    source, problem = participant_source(name), without_participant(name, error)
    cure = f"{_START}, or mend its address in the settings"
    return fault(source, problem, cure, kinds.UNREADABLE)


def _unreadable(
    source: Source, problem: str, evidence: Evidence, settings: Settings
) -> Finding:
    problem = without_participant(source.participant, problem)
    cure = CURE_OF_LOG
    if source.kind is SourceKind.SCOPE:
        cure = "a token without an application in its tokens file, if it is to be seen"
    elif source.kind in (SourceKind.RECORDS, SourceKind.JOBS):
        cure = "do what it says"
    elif (description := evidence.descriptions.get(source.participant)) is not None:
        cure = f"{_START}, or mend its address ({description.url}) in the settings"
        if description.refused is not None:
            problem = problem.removesuffix("; set it")  # the cure says how
            cure = "set `token` (TPC_TOKEN) to the operator's word in its tokens file"
            cure += export_of_token(settings)
        elif not description.answers:
            cure = _LOOK_THERE
        elif description.unreachable is None:
            cure = _START_DATABASE if _SILENT in problem else "do what it says"
    return fault(source, problem, cure, kinds.UNREADABLE)


def export_of_token(settings: Settings) -> str:
    """Return a colon and the command that sets it; empty where it is set elsewhere."""
    if settings.origin("token") != "default":
        return ""
    file = settings.tokens_file or "tokens"
    return f": export TPC_TOKEN=$(sed -n 's/^operator //p' {file})"


def _not_reached(
    log: LogEvidence, evidence: Evidence, settings: Settings
) -> Iterator[Finding]:
    """Yield participants that cannot be asked though the log waits for them.

    A sink of a job's own never has an address, and its driver may be at it: it is named
    once the decision is older than `safety_interval`, and where others have an address.
    """
    before, waiting = evidence.now - settings.safety_interval, dict[str, list[str]]()
    own_sinks = {name for record in log.records.values() for name in record.job_only}
    for id_, record in log.records.items():
        if record.decided is not None and record.decided <= before:
            reachable = record.own_sinks - record.job_only
            for name in record.pending:
                if name not in reachable:
                    key = key_of(evidence.participants, id_.application, name)
                    waiting.setdefault(key, []).append(str(id_))
    for name, ids in waiting.items():
        if name not in evidence.participants and evidence.participants:
            more = len(ids) - 1
            waits = f"{ids[0]} and {more} more wait" if more else f"{ids[0]} waits"
            obstacle, cure = OWN_SINK
            if name not in own_sinks:
                record = log.records[TransactionId.parse(ids[0])]
                obstacle, cure = NO_ADDRESS, how_to_add(name, record.address_of(name))
            problem = f"{obstacle}, and {waits} for it"
            yield fault(participant_source(name), problem, cure, kinds.UNREADABLE)


def _clock_set_back(
    log: LogEvidence, now: float, settings: Settings
) -> Iterator[Finding]:
    records = log.records.items()
    steps = {id_: max(r.started, r.decided or 0.0) for id_, r in records}
    newest = max(steps, key=steps.__getitem__, default=None)
    if newest is not None and steps[newest] > now + settings.safety_interval:
        yield fault(
            Source(SourceKind.CLOCK),
            f"the last step of {newest} is {format_duration(steps[newest] - now)} "
            "ahead of this machine's clock: it was set back, or a driver's is wrong; "
            "until it has caught up, what is younger than that is not diagnosed",
            kinds.CLOCK_DIFFERS.cure,
            kinds.UNREADABLE,
        )


# --- what drivers report -------------------------------------------------------------


def find_read_only(reason: str) -> Iterator[Finding]:
    """Yield a finding if there is a reason for which no process can write the log."""
    if reason:
        problem = (
            f"its database is {reason}. Until then nothing is begun or decided, and it "
            "is not known whether jobs run"
        )
        yield fault(Source(SourceKind.LOG), problem, kind=kinds.LOG_READ_ONLY)


def find_in_job(job: Job, now: float) -> Iterator[Finding]:
    """Yield findings about a job: it is down, or two drivers run it."""
    about = Source(SourceKind.JOB, application=job.application)
    if job.is_down:
        kind = kinds.JOB_FAILED if job.state is JobState.FAILED else kinds.JOB_GONE
        severity = Severity.CRITICAL if job.age >= MISSED else kind.severity
        yield dataclasses.replace(
            fault(about, job.describe(now), kind=kind),
            severity=severity,
            since=now - job.age,
            age=job.age,
        )
    for other in job.others:
        earlier, newest = describe_driver(other), describe_driver(job.newest)
        rivals = f"an earlier run is still seen, {earlier}, beside {newest}"
        yield fault(about, rivals, kind=kinds.TWO_DRIVERS)


def _rejected(log: LogEvidence, now: float) -> Iterator[Finding]:
    """Yield the newest commit of each application that has rejected rows lately."""
    newest: dict[str, TransactionRecord] = {}
    for id_ in sorted(log.commits):
        record = log.commits[id_]
        if record.rejected and record.decided and log.clock - record.decided < LATELY:
            newest[id_.application] = record
    for application, record in newest.items():
        since = now - (log.clock - (record.decided or 0.0))
        problem = (
            f"{format_count(record.rejected, 'row')} of {record.id} "
            f"{'was' if record.rejected == 1 else 'were'} refused at "
            f"{format_time_of_day(since, now)}, and kept at {record.rejects}"
        )
        about = Source(SourceKind.JOB, record.rejects or "", application)
        yield fault(about, problem, kind=kinds.ROWS_REJECTED)


# --- what a participant has to say of itself -----------------------------------------


def _misdirected(evidence: Evidence, log: LogEvidence) -> Iterator[Finding]:
    described = evidence.descriptions
    identities = {key: d.identity for key, d in described.items() if d.identity}
    wrong = dict(find_misdirected(identities, log.forgotten_by_application))
    for id_, record in log.records.items():
        for name, there in record.journals.items():
            key = key_of(described, id_.application, name)
            here = identities[key].journal if key in identities else there.id
            if here != there.id and key not in wrong:
                wrong[key] = (
                    f"the address of {name!r} leads to journal {here}, and {id_} is in "
                    f"journal {there.id}, which was at {there.url}: it is told nothing"
                )
    for name, problem in wrong.items():
        yield fault(participant_source(name), problem, kind=kinds.MISDIRECTED)


def _of_gauges(
    source: Source, gauges: Mapping[str, float], now: float
) -> Iterator[Finding]:
    """Yield a finding for each gauge above the bound of its alert."""
    for kind in kinds.KINDS:
        if kind.subject is not Subject.GAUGE:
            continue
        first = kind.alerts[0]
        value = gauges.get(first.metric, 0.0)
        total = gauges.get(first.of, math.inf) if first.of else 1.0
        if reached := [alert for alert in kind.alerts if value > alert.above * total]:
            age = value if METRICS[first.metric].unit == "s" else 0.0
            reading = kind.words.format(
                value=f"{value:.0f}", of=f"{total:.0f}", age=_since(age, now)
            )
            yield dataclasses.replace(
                fault(source, reading, kind=kind),
                severity=reached[-1].severity,
                since=now - age if age else 0.0,
                age=age,
            )


def _of_queue(
    name: str,
    description: ParticipantDescription,
    refused: QuarantineListing,
    now: float,
    settings: Settings,
) -> Iterator[Finding]:
    """Yield a finding if an outbox has stopped, or its oldest request is old."""
    gauges = description.gauges
    is_relay = "tpc.relay.position" in gauges
    unit, other = ("message", "broker") if is_relay else ("request", "partner")
    waiting = format_count(int(gauges.get("tpc.outbox.backlog", 0)), unit)
    stopped = int(gauges.get("tpc.outbox.stopped", 0))
    if stopped and not is_relay:
        # The last one that was set aside, if all are listed.
        times = [0.0, *(request.since for request in refused.requests)]
        age = 0.0 if refused.more or not max(times) else refused.now - max(times)
        names = {r.key.transaction.application for r in refused.requests}
        applications = format_count(stopped, "application")
        if len(names) == stopped:
            applications = join_names(sorted(names))
        problem = (
            f"nothing is sent of {applications}{_since(age, now)}: its partner refuses "
            f"all in a row; {waiting} wait"
        )
        yield Finding(
            Source(SourceKind.OUTBOX, name),
            kinds.OUTBOX_STOPPED,
            kinds.OUTBOX_STOPPED.severity,
            (name,),
            now - age if age else 0.0,
            age,
            None,
            problem,
            kinds.OUTBOX_STOPPED.cure,
        )
    age = gauges.get("tpc.outbox.oldest_age", 0.0)
    if age >= settings.stuck_after:
        late = age >= settings.stuck_critical
        not_known = f"its {other} does not take them, or is too slow"
        yield Finding(
            Source(SourceKind.OUTBOX, name),
            kinds.BACKLOG,
            Severity.CRITICAL if late else kinds.BACKLOG.severity,
            (name,),
            now - age,
            age,
            None,
            f"{waiting} wait, the oldest{_since(age, now)}: "
            + ("; ".join(find_not_taken(description)) or not_known),
            kinds.BACKLOG.cure.format(partner=other, participant=name),
        )


def find_not_taken(description: ParticipantDescription) -> list[str]:
    """Name applications that wait for an outbox's partner, with its last answer."""
    return [u.what for u in description.unfit if u.kind is UnfitKind.PARTNER]


def find_in_broker(
    name: str, description: ParticipantDescription, now: float
) -> Iterator[Finding]:
    """Yield a finding if a relay's broker does not answer, backlog or not."""
    age = description.gauges.get("tpc.relay.unreadable_age", 0.0)
    for problem in description.unfit:
        if problem.kind is UnfitKind.BROKER:
            source, kind = Source(SourceKind.OUTBOX, name), kinds.POSITION_UNREADABLE
            yield dataclasses.replace(
                fault(source, f"{problem.what}{_since(age, now)}", problem.cure, kind),
                since=now - age if age else 0.0,
                age=age,
            )


def _since(age: float, now: float) -> str:
    if not age:
        return ""
    return f" since {format_time_of_day(now - age, now)} ({format_duration(age)})"


# --- what is not as it must be before anything is read -------------------------------


def find_in_settings(settings: Settings, problems: Iterable[str]) -> Iterator[Finding]:
    """Yield problems of the settings, and of OpenTelemetry's variables."""
    if not settings.participants:
        problem = "no participants: nobody can be told a decision from here"
        cure = 'add participants = {name = "http://…"} to tpc.toml'
        yield fault(Source(SourceKind.SETTINGS), problem, cure)
    cure = "OpenTelemetry's variables are in the table of docs/settings.md"
    for problem in problems:
        yield fault(Source(SourceKind.ENVIRONMENT), problem, cure)


def find_in_brokers(
    descriptions: Mapping[str, ParticipantDescription],
) -> Iterator[Finding]:
    """Yield broker settings that may lose a relay's messages, or stop them."""
    for name, description in descriptions.items():
        for problem in description.unfit:
            if problem.kind is UnfitKind.SETTING:
                yield fault(participant_source(name), problem.what, problem.cure)


def find_in_condition(condition: LogCondition) -> Iterator[Finding]:
    """Yield settings that may lose a decision in a crash, and missing columns."""
    for sql in condition.lacking:
        risk = "its tables lack a column of this release, and it works without"
        yield fault(Source(SourceKind.LOG), risk, f"as their owner run: {sql}")
    for name, value in condition.durability.items():
        if value.lower() not in _DURABLE[name]:
            risk = f"{name} is {value}: a crash may lose decisions"
            cure = f"set {name} to {' or '.join(sorted(_DURABLE[name]))}"
            yield fault(Source(SourceKind.LOG), risk, cure)
