"""`tracing-2pc adopt`: takes over an application whose decision log is lost.

The log's content is in two places: Spark's checkpoint names the batch that runs next,
and the participants hold its outcome. A participant commits only after the decision, so
one commit proves it. Where no participant has committed, the decision is lost and not
needed: the batch is written again.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from operator import methodcaller
from typing import Final, NamedTuple

from tracing_2pc.core.errors import ConfigurationError, ParticipantUnavailableError
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.model import (
    Identity,
    JournalAt,
    Listing,
    Receipt,
    Shown,
    TransactionId,
)
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.states import BranchState, ParticipantState, Vote
from tracing_2pc.inspection.checkpoint import Checkpoint
from tracing_2pc.inspection.evidence import sum_prepared
from tracing_2pc.inspection.participants import PreparedSummary
from tracing_2pc.operations.resolve import check_reason
from tracing_2pc.protocol.fan_out import ask_at_once

Participants = Mapping[str, RemoteParticipant]
Attempts = Mapping[TransactionId, Mapping[str, Shown]]
"""Each participant's branches of each attempt at a batch."""

_GAP: Final = 20
"""After so many unknown attempts in a row there are no more."""


class Orphan(NamedTuple):
    """A transaction prepared at a participant, and the command to end it, if known."""

    transaction: TransactionId
    participant: str
    rows: int
    command: str | None


@dataclasses.dataclass(frozen=True, slots=True)
class Adoption:
    """The facts read about an application, and the conclusions for the log."""

    application: str
    checkpoint: Checkpoint
    # The attempt at the next batch that somebody has committed; else the newest that
    # somebody knows, with attempt 0 where nobody knows one.
    transaction: TransactionId
    participants: tuple[str, ...]  # that have anything of the application
    committed: tuple[str, ...]  # those of them that have committed the transaction
    journals: Mapping[str, JournalAt]  # of those that have committed it
    answers: Attempts  # what each participant holds of each attempt at the next batch
    orphans: tuple[Orphan, ...]
    doubts: tuple[str, ...]  # what a person must look into first

    @property
    def is_split(self) -> bool:
        """Whether some have committed the batch, and others not."""
        return self.committed not in ((), self.participants)

    @property
    def undecidable(self) -> bool:
        """Whether nothing may be written: a batch could be skipped, or come twice."""
        return self.is_split or bool(self.doubts)


def examine(
    log: OperatorLog,
    participants: Participants,
    application: str,
    checkpoint: Checkpoint,
) -> Adoption:
    """Ask log and participants about a checkpoint's query; change nothing.

    Raises:
        ConfigurationError: the log knows the application or the query, no participant
            knows the application, or they are ahead of the checkpoint.
        ParticipantUnavailableError: one cannot be asked, or not about all of it.
    """
    _raise_if_known(log, application, checkpoint.query)
    lists = ask_at_once(lambda p: _list(p, application), participants)
    prepared, batch = sum_prepared(lists), checkpoint.next

    def attempts_at(number: int) -> Attempts:
        least = max((t.attempt for t in prepared if t.batch == number), default=0)
        return _ask_attempts(participants, TransactionId(application, number, least))

    answers = attempts_at(batch)
    later = attempts_at(checkpoint.last + 1)
    if later or _is_older(checkpoint, prepared, answers):
        raise ConfigurationError(
            f"participants know of batches of {application!r} that this checkpoint, "
            f"which ends with {checkpoint.last}, has not begun: it is an older copy. "
            "Take the newer one, or choose a new application name and a new checkpoint"
        )
    identities = ask_at_once(lambda p: p.identity(), participants)
    knowing = _knowing(identities, application, answers)
    if not knowing:
        raise ConfigurationError(
            f"no participant here holds anything of application {application!r}: mend "
            "its name, or `participants` in the settings. If the query ran without "
            f"tracing_2pc so far: `tracing-2pc init --application {application} "
            f"--from-batch {batch}`"
        )
    transaction = max(answers, default=TransactionId(application, batch, 0))
    transaction = next(iter(_committed(answers)), transaction)  # rule 18: one at most
    shown = answers.get(transaction, {})
    committed = tuple(n for n in knowing if shown and _has_committed(shown[n]))
    passed = {t.batch for t in prepared if t.batch < batch} | ({batch - 1} - {-1})
    by_batch = {number: attempts_at(number) for number in passed} | {batch: answers}
    orphans = _orphans_of(prepared, by_batch, batch)
    doubts = _doubts_of_passed(application, batch, by_batch, knowing, orphans)
    if committed and all(shown[name].resolved_by_hand for name in committed):
        doubts.append(
            f"{transaction} was committed by hand wherever it is committed: that is no "
            "proof that it was decided, nor that all of its rows are there"
        )
    return Adoption(
        application,
        checkpoint,
        transaction,
        knowing,
        committed,
        {n: JournalAt(identities[n].journal, participants[n].url) for n in committed},
        answers,
        tuple(orphans),
        tuple(doubts),
    )


def _is_older(
    checkpoint: Checkpoint, prepared: Iterable[TransactionId], answers: Attempts
) -> bool:
    """Whether participants know a batch that this checkpoint has not begun."""
    states = {shown.state for by_name in answers.values() for shown in by_name.values()}
    ahead = any(t.batch > checkpoint.last for t in prepared)
    return ahead or ParticipantState.FORGOTTEN in states


def _knowing(
    identities: Mapping[str, Identity], application: str, answers: Attempts
) -> tuple[str, ...]:
    """Name the participants that have anything of the application."""
    return tuple(
        name
        for name, identity in identities.items()
        if application in identity.participants
        or any(_knows(by_name[name]) for by_name in answers.values())
    )


def _committed(answers: Attempts) -> list[TransactionId]:
    """Return the attempts that a participant has committed."""
    return [
        attempt
        for attempt, by_name in answers.items()
        if any(map(_has_committed, by_name.values()))
    ]


def _has_committed(shown: Shown) -> bool:
    return shown.state is ParticipantState.COMMITTED


def _orphans_of(
    prepared: Mapping[TransactionId, Mapping[str, PreparedSummary]],
    by_batch: Mapping[int, Attempts],
    batch: int,
) -> list[Orphan]:
    orphans = []
    for attempt, holders in sorted(prepared.items()):
        word = _word_for(
            attempt, by_batch[attempt.batch], is_next=attempt.batch == batch
        )
        for name, summary in holders.items():
            command = f"tracing-2pc resolve {attempt} --at {name} --{word} --reason …"
            ends = command if word else None
            orphans.append(Orphan(attempt, name, summary.rows, ends))
    return orphans


def _word_for(
    attempt: TransactionId, answers: Attempts, *, is_next: bool
) -> str | None:
    """Return the decision about a prepared attempt; None if it is unknown.

    An attempt that a participant has committed was decided commit, and no other attempt
    at its batch. An attempt at the next batch that no participant has committed is
    written again. Of a batch that Spark has passed, commit was decided, but it is
    unknown of which attempt.
    """
    committed = _committed(answers)
    if attempt in committed:
        return "commit"
    return "abort" if committed or is_next else None


def _doubts_of_passed(
    application: str,
    batch: int,
    by_batch: Mapping[int, Attempts],
    knowing: Sequence[str],
    orphans: Sequence[Orphan],
) -> list[str]:
    """Return doubts about the batches that Spark has passed."""
    doubts = [
        f"{orphan.transaction} is prepared at {orphan.participant}, and Spark has "
        "passed its batch: end it there first"
        for orphan in orphans
        if orphan.transaction.batch < batch
    ]
    there = (ParticipantState.COMMITTED, ParticipantState.FORGOTTEN)
    for name in knowing if batch else ():
        before = by_batch[batch - 1].values()
        if not any(by_name[name].state in there for by_name in before):
            doubts.append(
                f"{name} has not committed batch {batch - 1} of {application}, which "
                "Spark has passed: it was put back to an earlier state, or this is "
                "another query's checkpoint. If it takes part since later, and all is "
                f"there: `tracing-2pc init --application {application} "
                f"--from-batch {batch}`"
            )
    return doubts


def adopt(
    log: OperatorLog,
    adoption: Adoption,
    reason: str,
    who: str,
    rejects: str | None = None,
) -> None:
    """Write the facts read into the log, signed by a person.

    `rejects` is the participant that keeps rejected rows, if that is known.

    Raises:
        ConfigurationError: no reason, or the log knows the application by now.
    """
    answers = adoption.answers.get(adoption.transaction, {})
    receipts = (
        Receipt(branch.branch, name, branch.rows, branch.digest, Vote.COMMIT)
        for name in adoption.committed
        for branch in answers[name].branches
        if branch.state is BranchState.COMMITTED
    )
    log.adopt(
        adoption.transaction,
        adoption.checkpoint.query,
        adoption.committed,
        tuple(receipts),
        journals=adoption.journals,
        who=who,
        why=check_reason(reason),
        rejects=rejects,
    )


def _raise_if_known(log: OperatorLog, application: str, query: str) -> None:
    if application in log.applications():
        raise ConfigurationError(
            f"this log knows application {application!r}: nothing is to be adopted. "
            "Start the query; where it is, shows `tracing-2pc ls --application "
            f"{application}`"
        )
    if (owner := log.application_of(query)) is not None:
        raise ConfigurationError(
            f"this log knows the query of this checkpoint, {query}, as application "
            f"{owner!r}, and an application is not renamed: go on with "
            f"application={owner!r}"
        )


def _list(participant: RemoteParticipant, application: str) -> Listing:
    listing = participant.prepared(application)
    missing = listing.missing
    if listing.is_blind_to(application):
        missing = f"has {listing.only} only, to which the token is bound"
    if missing is not None:
        name = participant.name
        raise ParticipantUnavailableError(
            f"participant {name!r}: its list {missing}", participant=name
        )
    return listing


def _ask_attempts(participants: Participants, newest: TransactionId) -> Attempts:
    """Ask about each attempt at a batch, from the first to the last that is known.

    They are numbered one after another (rule 3). An attempt that prepared nothing may
    be unknown everywhere, where its abort arrived nowhere: so behind the `newest` that
    is listed, several numbers are tried. One that is committed is named at any of them.
    """
    answers: dict[TransactionId, Mapping[str, Shown]] = {}
    unknown: dict[TransactionId, Mapping[str, Shown]] = {}
    for attempt in itertools.count(1):
        transaction = dataclasses.replace(newest, attempt=attempt)
        ask: Callable[[RemoteParticipant], Shown] = methodcaller("show", transaction)
        unknown[transaction] = shown = ask_at_once(ask, participants)
        named = (answer.committed for answer in shown.values() if answer.committed)
        newest = max([newest, *(t for t in named if t.batch == newest.batch)])
        if any(map(_knows, shown.values())) or transaction <= newest:
            answers |= unknown
            unknown.clear()
        if ParticipantState.FORGOTTEN in {answer.state for answer in shown.values()}:
            break  # so are all others
        if len(unknown) == _GAP:
            break
    return answers


def _knows(shown: Shown) -> bool:
    return shown.state is not ParticipantState.UNKNOWN
