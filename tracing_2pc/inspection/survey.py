"""One round of reading: lists, the log, a pause, the lists again.

It judges nothing: that is in `findings.py`.
"""

from __future__ import annotations

import contextvars
import dataclasses
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Final

from tracing_2pc.core.access import Role
from tracing_2pc.core.addresses import key_of, name_of
from tracing_2pc.core.errors import DecisionLogError, TwoPhaseError
from tracing_2pc.core.log_reader import LogReader
from tracing_2pc.core.model import (
    ParticipantDescription,
    Shown,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.ports import Clock
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import FINAL, ParticipantState, Refusal
from tracing_2pc.inspection.evidence import Evidence, LogEvidence
from tracing_2pc.inspection.jobs import Job, JobState, jobs_of
from tracing_2pc.inspection.participants import (
    NOT_READ,
    Lists,
    ReadableParticipant,
    RefusedRequests,
    Source,
    SourceKind,
    list_prepared,
    list_refused,
    participant_source,
)
from tracing_2pc.protocol.fan_out import ask_at_once

REFUSED: Final = 200
"""Refused requests that a survey reads of each outbox: the oldest."""

ASKED: Final = 100
"""Transactions that participants are asked about in one round, the oldest first."""

_LATELY: Final = 86_400.0
"""Seconds for which the newest commits of an application are asked about, too."""


def survey_all(
    log: LogReader,
    participants: Mapping[str, ReadableParticipant],
    settings: Settings,
    clock: Clock,
    pause: Callable[[float], object],
) -> Evidence:
    """Read log and participants once. One that cannot be read stops no other.

    Takes little more than the request timeout for all participants: one that gave no
    list is not waited for again, and one that gave only the first is waited for once.
    Reads all unfinished and prepared transactions, and the newest commits of each
    application: a participant that lacks one was restored from an older copy. `pause`
    waits so many seconds, or less when it is being stopped.
    """
    unreadable: dict[Source, str] = {}
    skews: dict[str, float] = {}
    with ThreadPoolExecutor(1) as beside:
        here = contextvars.copy_context()
        described = beside.submit(here.run, describe_all, participants)
        # Rule 9: the log is read after the lists, and before anything is concluded.
        first = list_prepared(participants, unreadable)
    try:
        read = _read_log(log, first, unreadable, clock.now() - _LATELY)
    except DecisionLogError as error:
        unreadable[Source(SourceKind.LOG)] = str(error)
        read = None
    pause(settings.pause)
    # One list alone is no evidence.
    again = {n: p for n, p in participants.items() if first[n].missing != NOT_READ}
    second = {**first, **list_prepared(again, unreadable, clock, skews)}
    answers: dict[TransactionId, dict[str, Shown]] = {}
    if read is not None:
        now = clock.now()
        asked = _worth_asking(read, now - settings.safety_interval, now)
        answers = _answers(log, again, asked, settings, unreadable, second)
    answering = {
        name: participant
        for name, participant in participants.items()
        if participant_source(name) not in unreadable
    }
    descriptions = described.result()
    # What a participant is like is of the look in which it failed, not of one before.
    failed = {name: p for name, p in again.items() if name not in answering}
    descriptions |= describe_all(failed)
    refused = list_refused(answering, limit=REFUSED)
    unreadable |= _outboxes_unread(refused, descriptions)
    return Evidence(
        clock.now(),
        first,
        read,
        second,
        answers,
        unreadable,
        participants=tuple(participants),
        skews=skews,
        descriptions=descriptions,
        refused=refused.listings,
    )


def describe_all(
    participants: Mapping[str, ReadableParticipant],
) -> dict[str, ParticipantDescription]:
    """Ask all at once for their state, and the rights of our token there."""
    whole = {n: p for n, p in participants.items() if isinstance(p, RemoteParticipant)}
    descriptions = ask_at_once(lambda participant: participant.describe(), whole)
    return {
        key: dataclasses.replace(description, participant=key)
        for key, description in descriptions.items()
    }


def _outboxes_unread(
    refused: RefusedRequests, descriptions: Mapping[str, ParticipantDescription]
) -> dict[Source, str]:
    """Return outboxes that gave no list, with errors; a job's token may list none."""
    return {
        Source(SourceKind.OUTBOX, name): error
        for name, error in refused.unreadable.items()
        if name in descriptions and descriptions[name].role != Role.JOB
    }


def survey_outboxes(
    participants: Mapping[str, ReadableParticipant],
    refused: RefusedRequests,
    clock: Clock,
) -> Evidence:
    """Ask for the state of outboxes that gave a list, or should have; never the log."""
    listed = {**refused.listings, **refused.unreadable}
    descriptions = describe_all({name: participants[name] for name in listed})
    unreadable = _outboxes_unread(refused, descriptions)
    return Evidence(
        clock.now(),
        {},
        None,
        {},
        {},
        unreadable,
        descriptions=descriptions,
        refused=refused.listings,
    )


def survey_log(log: LogReader, participants: Iterable[str], clock: Clock) -> Evidence:
    """Read the log alone: its evidence holds with any answer of the participants.

    Raises:
        DecisionLogError: the log cannot be read.
    """
    unreadable: dict[Source, str] = {}
    read = _read_log(log, {}, unreadable)
    now, asked = clock.now(), tuple(participants)
    return Evidence(now, {}, read, {}, {}, unreadable, participants=asked)


def _read_log(
    log: LogReader,
    lists: Lists,
    unreadable: dict[Source, str],
    since: float | None = None,
) -> LogEvidence:
    """Read unfinished transactions, and the states of those that participants listed.

    With `since` the newest commits, too, that were begun after it. An application with
    a record that cannot be trusted is noted as unreadable.
    """
    records: dict[TransactionId, TransactionRecord] = {}
    refused: set[str] = set()
    reading = partial(_read_trusted, refused, unreadable)
    for application in log.unfinished_applications():
        records |= reading(partial(log.unfinished, application), application)
    passed = reading(log.passed)
    commits = {} if since is None else reading(partial(log.newest_commits, since))
    branches = (branch for listing in lists.values() for branch in listing.branches)
    listed = {branch.transaction for branch in branches}
    deliveries = log.deliveries_of_unfinished()
    states = log.states_of(sorted(listed - records.keys()))
    # On record, unfinished, and not read above: another process has just begun it.
    refused |= {t.application for t, state in states.items() if state not in FINAL}
    jobs, read_only = read_jobs(log, unreadable)
    return LogEvidence(
        records,
        {id_: deliveries.get(str(id_), {}) for id_ in records},
        {t: state for t, state in states.items() if state in FINAL},
        log.forgotten_by_application(),
        log.clock(),
        frozenset(refused),
        passed,
        commits,
        jobs,
        read_only,
    )


def read_jobs(
    log: LogReader,
    unreadable: dict[Source, str],
    application: str | None = None,
) -> tuple[dict[str, Job], str]:
    """Return known jobs by application, and the reason if the log cannot be written.

    Then no driver can report: one that is not seen is not known to be gone.
    """
    read_only = log.read_only_reason()
    try:
        presences = log.presences(application)
    except DecisionLogError as error:
        # A role may lack a right on this table alone, made by a later release.
        unreadable[Source(SourceKind.JOBS)] = str(error)
        presences = []
    jobs = jobs_of(presences, log.clock())
    if read_only:
        jobs = {n: j for n, j in jobs.items() if j.state is not JobState.GONE}
    return jobs, read_only


def _read_trusted(
    refused: set[str],
    unreadable: dict[Source, str],
    read: Callable[[], list[TransactionRecord]],
    application: str | None = None,
) -> dict[TransactionId, TransactionRecord]:
    """Read records; nothing where one cannot be trusted, whose application is noted."""
    try:
        return {record.id: record for record in read()}
    except DecisionLogError as error:
        if error.transaction_id is None:
            raise
        name = application or error.transaction_id.rsplit(".", 2)[0]  # or damaged
        refused.add(name)
        unreadable[Source(SourceKind.RECORDS, application=name)] = str(error)
        return {}


def _worth_asking(
    log: LogEvidence, before: float, now: float
) -> list[TransactionRecord]:
    """Return decided transactions that are old enough, unfinished first; bounded.

    One decided in the future may be old: the clock was set back.
    """
    decided = [
        record
        for record in (*log.records.values(), *log.commits.values())
        if record.decided is not None and not before < record.decided <= now
    ]
    return sorted(decided, key=lambda r: (r.finished is not None, r.started))[:ASKED]


def _answers(
    log: LogReader,
    participants: Mapping[str, ReadableParticipant],
    records: Iterable[TransactionRecord],
    settings: Settings,
    unreadable: dict[Source, str],
    lists: Lists,
) -> dict[TransactionId, dict[str, Shown]]:
    """Ask each participant about the transactions that it takes part in.

    Transactions that our token may not see are left out. A participant that does not
    answer, or takes longer than the request timeout for all, is not asked further in
    this round, and counts as unreadable.
    """
    until = time.monotonic() + settings.request_timeout

    def ask(key: str) -> dict[TransactionId, Shown]:
        answers: dict[TransactionId, Shown] = {}
        name, participant, listing = name_of(key), participants[key], lists[key]
        for record in records:
            application = record.id.application
            is_its = key_of(participants, application, name) == key
            blind = listing.is_blind_to(application)
            if blind or name not in record.participants or not is_its:
                continue
            try:
                journal = record.journal_of(name)
                answers[record.id] = participant.show(record.id, journal)
            except TwoPhaseError as error:
                if getattr(error, "refusal", None) is Refusal.MISDIRECTED:
                    continue  # a finding of its own; others may be right here
                unreadable.setdefault(participant_source(key), str(error))
                break
            if time.monotonic() > until:
                if record.finished is None:
                    problem = "it answers too slowly"
                    unreadable.setdefault(participant_source(key), problem)
                break
        return answers

    by_id: dict[TransactionId, dict[str, Shown]] = {}
    for key, answers in ask_at_once(ask, {key: key for key in participants}).items():
        for transaction, answer in answers.items():
            by_id.setdefault(transaction, {})[name_of(key)] = answer
    return {t: answers for t, answers in by_id.items() if not _dropped(log, t, answers)}


def _dropped(
    log: LogReader, transaction: TransactionId, answers: Mapping[str, Shown]
) -> bool:
    """Whether a participant has forgotten it because the log has, since it was read."""
    states = {answer.state for answer in answers.values()}
    if ParticipantState.FORGOTTEN not in states:
        return False
    try:
        record = log.read(transaction)
    except DecisionLogError:
        return True
    return record is None or record.finished is not None
