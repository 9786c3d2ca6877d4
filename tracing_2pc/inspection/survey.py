"""One round of reading: lists, the log, a pause, the lists again.

It judges nothing. `diagnosis.py` tells what is stuck, orphaned or lost; `listing.py`
finds orphans for `ls`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Final

from tracing_2pc.core.errors import DecisionLogError, TwoPhaseError
from tracing_2pc.core.log_reader import LogReader, TransactionSummary
from tracing_2pc.core.model import Shown, TransactionId, TransactionRecord
from tracing_2pc.core.ports import Clock
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import FINAL, ParticipantState
from tracing_2pc.inspection.evidence import Evidence, LogEvidence
from tracing_2pc.inspection.participants import (
    Lists,
    ReadableParticipant,
    Source,
    SourceKind,
    list_prepared,
    participant_source,
)
from tracing_2pc.inspection.wording import (
    NO_ADDRESS,
    OWN_SINK,
    SYNCHRONISE,
    format_duration,
)
from tracing_2pc.protocol.fan_out import ask_at_once

ASKED: Final = 100
"""Transactions that participants are asked about in one round, the oldest first."""


def survey_all(
    log: LogReader,
    participants: Mapping[str, ReadableParticipant],
    settings: Settings,
    clock: Clock,
    pause: Callable[[float], object],
) -> Evidence:
    """Read log and participants once. One that cannot be read stops no other.

    Takes little more than the request timeout for all participants. Reads what is
    unfinished or prepared, never the rest of the log. `pause` waits so many seconds, or
    less when it is being stopped.
    """
    unreadable: dict[Source, str] = {}
    # Rule 9: the log is read after the lists, and before anything is concluded.
    first = list_prepared(participants, unreadable)
    try:
        read = _read_log(log, first, unreadable)
    except DecisionLogError as error:
        unreadable[Source(SourceKind.LOG)] = str(error)
        read = None
    pause(settings.pause)
    second = list_prepared(participants, unreadable)
    answers: dict[TransactionId, dict[str, Shown]] = {}
    if read is not None:
        now = clock.now()
        unreadable |= _problems(read, participants, settings, now)
        asked = _worth_asking(read, now - settings.safety_interval, now)
        answers = _answers(log, participants, asked, settings, unreadable, second)
    return Evidence(clock.now(), first, read, second, answers, unreadable)


def survey_log(
    log: LogReader, participants: Collection[str], settings: Settings, clock: Clock
) -> Evidence:
    """Read the log alone: what it proves holds, whatever participants will answer.

    Raises:
        DecisionLogError: the log cannot be read.
    """
    unreadable: dict[Source, str] = {}
    read = _read_log(log, {}, unreadable)
    unreadable |= _problems(read, participants, settings, clock.now())
    return Evidence(clock.now(), {}, read, {}, {}, unreadable)


def _read_log(
    log: LogReader, lists: Lists, unreadable: dict[Source, str]
) -> LogEvidence:
    """Read what is unfinished, and the state of what participants have listed.

    An application with a record that cannot be trusted is noted as unreadable.
    """
    records: dict[TransactionId, TransactionRecord] = {}
    refused: set[str] = set()
    for application in log.unfinished_applications():
        try:
            records |= {record.id: record for record in log.unfinished(application)}
        except DecisionLogError as error:
            if error.transaction_id is None:
                raise
            refused.add(application)
            source = Source(SourceKind.RECORDS, application=application)
            unreadable[source] = str(error)
    passed = _read_passed(log, refused, unreadable)
    branches = (branch for listing in lists.values() for branch in listing.branches)
    listed = {branch.transaction for branch in branches}
    deliveries = log.deliveries_of_unfinished()
    states = log.states_of(sorted(listed - records.keys()))
    # On record, unfinished, and not read above: another process has just begun it.
    refused |= {t.application for t, state in states.items() if state not in FINAL}
    return LogEvidence(
        records,
        {id_: deliveries.get(str(id_), {}) for id_ in records},
        {t: state for t, state in states.items() if state in FINAL},
        log.forgotten_by_application(),
        log.clock(),
        frozenset(refused),
        passed,
    )


def _read_passed(
    log: LogReader, refused: set[str], unreadable: dict[Source, str]
) -> dict[TransactionId, TransactionRecord]:
    try:
        return {record.id: record for record in log.passed()}
    except DecisionLogError as error:
        if error.transaction_id is None:
            raise
        application = TransactionId.parse(error.transaction_id).application
        refused.add(application)
        unreadable[Source(SourceKind.RECORDS, application=application)] = str(error)
        return {}


def source_problems(
    unfinished: Mapping[TransactionId, TransactionRecord | TransactionSummary],
    participants: Collection[str],
    settings: Settings,
    now: float,
) -> dict[Source, tuple[str, str]]:
    """Return participants that cannot be asked though the log waits, and a wrong clock.

    Each with why nothing can be known of it, and what mends that. A sink of a job's own
    never has an address, and its driver may be at it: it is named once the decision is
    older than `safety_interval`, and where others have an address. `participants` are
    those with an address here.
    """
    problems: dict[Source, tuple[str, str]] = {}
    before, without = now - settings.safety_interval, dict[str, list[TransactionId]]()
    own_sinks = {name for row in unfinished.values() for name in row.own_sinks}
    for id_, row in unfinished.items():
        if participants and row.decided is not None and row.decided <= before:
            for name in row.pending:
                if name not in participants:
                    without.setdefault(name, []).append(id_)
    for name, ids in without.items():
        more = len(ids) - 1
        waits = f"{ids[0]} and {more} more wait" if more else f"{ids[0]} waits"
        why, cure = OWN_SINK if name in own_sinks else NO_ADDRESS
        problems[participant_source(name)] = (f"{why}, and {waits} for it", cure)
    steps = {id_: max(r.started, r.decided or 0.0) for id_, r in unfinished.items()}
    newest = max(steps, key=steps.__getitem__, default=None)
    if newest is not None and steps[newest] > now + settings.safety_interval:
        problems[Source(SourceKind.CLOCK)] = (
            f"the last step of {newest} is {format_duration(steps[newest] - now)} "
            "ahead of this machine's clock: it was set back, or a driver's is wrong; "
            "until it has caught up, what is younger than that is not diagnosed",
            SYNCHRONISE,
        )
    return problems


def _problems(
    read: LogEvidence, participants: Collection[str], settings: Settings, now: float
) -> dict[Source, str]:
    problems = source_problems(read.records, participants, settings, now)
    return {source: ": ".join(problem) for source, problem in problems.items()}


def _worth_asking(
    log: LogEvidence, before: float, now: float
) -> list[TransactionRecord]:
    """Return what is decided, unfinished and not too young; oldest first, bounded.

    What was decided in the future may be old: the clock was set back.
    """
    decided = [
        record
        for record in log.records.values()
        if record.decided is not None and not before < record.decided <= now
    ]
    return sorted(decided, key=lambda record: record.started)[:ASKED]


def _answers(
    log: LogReader,
    participants: Mapping[str, ReadableParticipant],
    records: Iterable[TransactionRecord],
    settings: Settings,
    unreadable: dict[Source, str],
    lists: Lists,
) -> dict[TransactionId, dict[str, Shown]]:
    """Ask each participant about what it takes part in; keep what is answered.

    What our token is not for is not asked about. One that does not answer, or takes
    longer than the request timeout for all, is not asked further in this round, and
    counts as unreadable.
    """
    until = time.monotonic() + settings.request_timeout

    def ask(participant: ReadableParticipant) -> dict[TransactionId, Shown]:
        answers: dict[TransactionId, Shown] = {}
        name, listing = participant.name, lists[participant.name]
        for record in records:
            blind = listing.is_blind_to(record.id.application)
            if blind or name not in record.participants:
                continue
            try:
                answers[record.id] = participant.show(record.id)
                why = "it answers too slowly" if time.monotonic() > until else None
            except TwoPhaseError as error:
                why = str(error)
            if why is not None:
                unreadable.setdefault(participant_source(name), why)
                break
        return answers

    by_id: dict[TransactionId, dict[str, Shown]] = {}
    for name, answers in ask_at_once(ask, participants).items():
        for transaction, answer in answers.items():
            by_id.setdefault(transaction, {})[name] = answer
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
