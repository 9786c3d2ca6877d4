"""Carry a decision to every participant on record, until each has acknowledged."""

from __future__ import annotations

import dataclasses
import logging
import time
from collections.abc import Collection, Mapping
from functools import partial

from tracing_2pc.core import names
from tracing_2pc.core.addresses import addresses_of, how_to_add
from tracing_2pc.core.errors import (
    CommitPendingError,
    ConfigurationError,
    ContractError,
    DecisionLogError,
    DecisionUnknownError,
    HeuristicError,
    ParticipantError,
    ParticipantGivenUpError,
    ParticipantNotToldError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    TwoPhaseError,
)
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.core.ports import DecisionLog, Participant, Tracing
from tracing_2pc.core.states import OF_DATA, Decision, Refusal, TransactionState
from tracing_2pc.protocol.fan_out import ask_at_once
from tracing_2pc.protocol.retry import RetryPolicy

logger = logging.getLogger(__name__)

Answer = ParticipantError | None
"""What a participant answered to a decision. None means acknowledged;
`ParticipantNotToldError` also ends the retries."""

_ENDS = ParticipantNotToldError | ParticipantGivenUpError

SLICE = 100  # finished batches that are forgotten at a time


class Delivery:
    """Sends what was decided; decides nothing itself.

    Any process may deliver a decided transaction, twice or at the same time: every
    request is idempotent, and the log keeps who has acknowledged. `participants` are
    those that can be reached from here, by `core.addresses.key_of`. Each delivery
    exports the transaction's root, because the process that decided may have been
    killed before it did.
    """

    def __init__(
        self,
        log: DecisionLog,
        participants: Mapping[str, Participant],
        *,
        tracing: Tracing,
        retry: RetryPolicy,
    ) -> None:
        self._log = log
        self._participants = participants
        self._tracing = tracing
        self._retry = retry

    def send_once(
        self, record: TransactionRecord, tries: int | None = None
    ) -> Mapping[str, str]:
        """Send the decision to all who have not acknowledged, at the same time, once.

        `tries` is the number of this try, if there is to be another.

        Returns:
            The answers without an acknowledgement, by participant. Empty means that the
            transaction is finished.

        Raises:
            HeuristicError: an answer contradicts the decision, or the data is lost
                there; the transaction is quarantined.
            ConfigurationError: a participant on record has no address here; the
                others were asked, and the transaction stays unfinished.
        """
        self._tracing.export_root(record, taken_over=True)
        with self._tracing.step(names.DELIVER, record.carrier, record) as step:
            step.set("tpc.pending", len(record.pending))
            step.end()
            answers, last = self._ask_all(record)
            due = self._retry.due_after(tries) if tries else None
            reasons: dict[str, str] = {}
            record = self._give_up(record, answers)
            # Refusals last: one may end this, and the other answers are on record then.
            for name in sorted(answers, key=lambda n: _is_refusal(answers[n])):
                if reason := self._postpone(record, name, answers[name], due):
                    reasons[name] = reason
            reached = addresses_of(self._participants, record.id.application)
            unknown = [n for n in record.pending if n not in reached]
            if unknown:
                raise _unreachable(record, unknown)
        # Rule 11: finished only after every acknowledgement; the log checks it.
        if not reasons:
            failpoint("delivery.before_finish")
            if last is None:
                self._log.finish(record.id)
            else:
                self._log.acknowledge_last(record, last)
            if record.finished is None:
                self._tracing.finished(record, _outcome_of(record))
        return reasons

    def abort(self, record: TransactionRecord) -> None:
        """Send an abort once, and don't wait for it.

        An abort that is not acknowledged stays `aborting`, and is sent again before the
        next batch, at start and by recovery.

        Raises:
            HeuristicError: a participant has committed; the transaction is quarantined.
        """
        try:
            self.send_once(record)
        except HeuristicError:
            raise
        except TwoPhaseError:
            text = "abort not delivered: transaction=%s"
            logger.exception(text, record.id, extra=record.log_fields)

    def commit(self, record: TransactionRecord, *, give_up: bool) -> None:
        """Send a commit again and again, with growing waits.

        `give_up`: raise after the inline tries instead of waiting on.

        Raises:
            CommitPendingError: stopped, or out of tries. Recovery goes on with it.
            HeuristicError, ConfigurationError: as `send_once`.
        """
        self._tracing.export_root(record, taken_over=True)
        current = record
        reasons: Mapping[str, str] = {}
        inline = self._retry.inline_tries
        # Rule 10: a commit that is not acknowledged is sent again.
        for tries in self._retry.tries():
            if tries > 1:
                # Rule 15: the log says what was decided, not this driver's memory.
                current = self._read(record)
            if current.finished is not None:
                return
            # The log may not answer, and then does not count them.
            known = max(current.tries, tries - 1)
            current = dataclasses.replace(
                current, tries=known, recovering=record.recovering
            )
            last = give_up and tries >= inline
            again = None if last else tries
            if not (reasons := self._send_unless_log_down(current, again)):
                return
            if tries == 1 or tries % inline == 0:
                logger.warning(
                    "not acknowledged: transaction=%s tries=%d reasons=%s",
                    record.id,
                    tries,
                    "; ".join(reasons.values()),
                    extra=record.log_fields,
                )
            if last:
                break
        raise CommitPendingError(
            f"{record.id} is decided {record.decision} and not acknowledged by "
            f"{', '.join(reasons)} yet. Nothing is lost: the next start of the query, "
            "or `tracing-2pc recover`, goes on with it. The last answers: "
            f"{'; '.join(reasons.values())}",
            transaction_id=str(record.id),
            participant=next(iter(reasons), None),
        )

    def confirm(
        self, record: TransactionRecord, replaced: Collection[str], *, give_up: bool
    ) -> None:
        """Ask whether a commit that the log calls finished is there; before a replay.

        The log of a copied checkpoint fits the query and not the participants. So those
        that have branches of it get the commit again; the others could take an empty
        one for a new transaction. *Forgotten* means that it was there. A transaction
        that a person has concluded is not asked for, nor one that was `replaced`.
        `give_up` is as for `commit`.

        Raises:
            ConfigurationError: a participant does not know it: nothing was changed.
            CommitPendingError: stopped, or out of tries, without every answer.
        """
        self._tracing.export_root(record, taken_over=True)
        if record.state is not TransactionState.COMMITTED:
            return
        reached = addresses_of(self._participants, record.id.application)
        having = {n for n in reached if record.chosen(n)}.difference(replaced)
        waiting = {n: reached[n] for n in having}
        answers: Mapping[str, Answer] = {}
        for tries in self._retry.tries():
            with self._tracing.step(names.DELIVER, record.carrier, record) as step:
                step.set("tpc.pending", len(waiting))
                step.end()
                answers = ask_at_once(lambda to: self._ask(to, record), waiting)
            waiting = {
                name: participant
                for name, participant in waiting.items()
                if not _confirms(record, name, answers[name])
            }
            if not waiting:
                return
            logger.warning(
                "replay not confirmed: transaction=%s: %s",
                record.id,
                answers[next(iter(waiting))],
                extra=record.log_fields,
            )
            if give_up and tries >= self._retry.inline_tries:
                break
        silent = "; ".join(f"{name} ({answers[name]})" for name in waiting)
        raise CommitPendingError(
            f"{record.id} is finished, and its replay is skipped once all that have "
            f"something of it confirm that; without an answer: {silent}. The next "
            "start of the query asks again",
            transaction_id=str(record.id),
            participant=next(iter(waiting)),
        )

    def forget(self, application: str, before: float) -> None:
        """Forget a slice of old finished transactions; if it fails, it can wait."""
        try:
            # Rule 17: the log keeps a record until Spark has begun a later batch.
            self._log.forget(application, finished_before=before, limit=SLICE)
        except DecisionLogError:
            logger.warning("could not forget: application=%s", application)

    def _send_unless_log_down(
        self, record: TransactionRecord, tries: int | None
    ) -> Mapping[str, str]:
        try:
            return self.send_once(record, tries)
        except DecisionLogError as error:
            text = "decision log unreachable: transaction=%s: %s"
            logger.warning(text, record.id, error, extra=record.log_fields)
            return dict.fromkeys(record.pending or record.participants, str(error))
        except ContractError as error:
            current = self._read(record)
            if current is record or not current.newly_decided:
                raise
            text = "decided again, in an older log: transaction=%s"
            logger.warning(text, record.id, extra=record.log_fields)
            return dict.fromkeys(current.pending, str(error))

    def _read(self, record: TransactionRecord) -> TransactionRecord:
        """Return the log's current record, or the given one if the log does not answer.

        A log that is behind its own answer, as a replica that took over, takes no
        decision back: the commit is decided again there. Without a record the commit is
        sent all the same; if it was only forgotten, the participants answer so.
        """
        try:
            current = self._log.read(record.id)
            if current is not None and current.decision is None:
                current = self._log.decide(record.id, Decision.COMMIT, record.receipts)
        except (DecisionLogError, DecisionUnknownError):
            return record
        if current is None:
            return record
        if current.decision is not Decision.COMMIT:
            raise _taken_back(record, current)
        if current.state is TransactionState.QUARANTINED:
            raise _quarantined(record, "another process found that; see the log")
        return current

    def _ask_all(
        self, record: TransactionRecord
    ) -> tuple[Mapping[str, Answer], Mapping[str, str | None] | None]:
        """Ask all that have not acknowledged, and record their answers.

        The last acknowledgements, if no other is missing then, are not recorded yet:
        they are stored when the transaction is finished. Returns the participants whose
        acknowledgement is still to be stored, and the parts that could not be told.
        """
        reached = addresses_of(self._participants, record.id.application)
        known = {n: (n, reached[n]) for n in record.pending if n in reached}
        missing = set(record.pending)
        last: Mapping[str, str | None] | None = None

        def acknowledge(answers: Mapping[str, Answer]) -> None:
            nonlocal last
            acknowledged = {
                n: _untold(a) for n, a in answers.items() if _acknowledges(a)
            }
            missing.difference_update(acknowledged)
            if acknowledged and not missing:
                last = acknowledged
                return
            for name, untold in acknowledged.items():
                self._log.acknowledge(record.id, name, untold)

        ask = partial(self._ask_measured, record)
        answers = ask_at_once(ask, known, each=acknowledge)
        return answers, last

    def _ask_measured(
        self, record: TransactionRecord, named: tuple[str, Participant]
    ) -> Answer:
        since, (name, participant) = time.monotonic(), named
        answer = self._ask(participant, record)
        if isinstance(answer, ParticipantNotToldError):
            logger.warning("not told: transaction=%s: %s", record.id, answer)
        if _acknowledges(answer) and record.decision is Decision.COMMIT:
            failpoint("delivery.between_commits")
        self._tracing.record_answer(
            name,
            record.decision or Decision.ABORT,
            _result(answer),
            time.monotonic() - since,
        )
        return answer

    @staticmethod
    def _ask(participant: Participant, record: TransactionRecord) -> Answer:
        try:
            if record.decision is Decision.COMMIT:
                failpoint("delivery.before_commit")
                participant.commit(record)
            else:
                send_abort(participant, record)
        except ParticipantError as error:
            return error
        except ConfigurationError:
            raise  # ours to mend: a token that is not there
        except Exception as error:
            logger.exception("a fault of ours: transaction=%s", record.id)
            return ParticipantUnavailableError(f"{type(error).__name__} on our side")
        return None

    def _give_up(
        self, record: TransactionRecord, answers: Mapping[str, Answer]
    ) -> TransactionRecord:
        """Put on record what may be lost at a sink; return the record without it."""
        lost = {
            name: answer
            for name, answer in answers.items()
            if isinstance(answer, ParticipantGivenUpError)
        }
        for name, error in lost.items():
            try:
                self._log.give_up(record.id, name, who=f"sink {name}", why=str(error))
            except ContractError:  # another process has had an answer meanwhile
                continue
            text = "given up, data may be lost: transaction=%s participant=%s: %s"
            logger.error(text, record.id, name, error, extra=record.log_fields)
        return dataclasses.replace(record, given_up=record.given_up | lost.keys())

    def _postpone(
        self, record: TransactionRecord, name: str, answer: Answer, due: float | None
    ) -> str | None:
        """Put on record what is no acknowledgement; return why there was none."""
        if answer is None or isinstance(answer, _ENDS):
            return None
        if not isinstance(answer, ParticipantRefusedError):
            logger.info("not acknowledged: transaction=%s: %s", record.id, answer)
        elif not _is_of_data(answer):  # a fault of ours, or of the settings
            logger.error("refused: transaction=%s: %s", record.id, answer)
        # Rule 9: the log is read before *forgotten* is taken for done.
        elif answer.refusal is Refusal.FORGOTTEN and self._is_closed(record):
            return None  # another process delivered it, and it was forgotten since
        else:
            reason = f"{name} answered {answer.refusal}, {answer.state} there"
            if answer.refusal is None:  # a sink of the job's own
                reason = str(answer)
            # Rule 5: unknown there, or a contradiction, is no acknowledgement.
            self._log.quarantine(record.id, reason)
            self._tracing.quarantined(record)
            raise _quarantined(record, str(answer)) from answer
        reason = str(answer)[:300]
        self._log.postpone(record.id, name, reason, due)
        return reason

    def _is_closed(self, record: TransactionRecord) -> bool:
        current = self._log.read(record.id)
        return current is None or current.finished is not None


def send_abort(participant: Participant, record: TransactionRecord) -> None:
    """Send an abort, if it is decided; else `ContractError`. Nothing else here does."""
    # After the decision nobody aborts. Rule 8: before it, the log is asked first.
    if record.decision is not Decision.ABORT:
        raise ContractError(
            f"{record.id} is not decided abort, but {record.state}: no abort is sent",
            transaction_id=str(record.id),
            participant=participant.name,
        )
    participant.abort(record)


def _outcome_of(record: TransactionRecord) -> str:
    """Return what a transaction becomes when every participant has acknowledged."""
    if record.abandoned:
        return str(TransactionState.CONCLUDED)
    is_commit = record.decision is Decision.COMMIT
    return str(TransactionState.COMMITTED if is_commit else TransactionState.ABORTED)


def _acknowledges(answer: Answer) -> bool:
    return answer is None or isinstance(answer, ParticipantNotToldError)


def _untold(answer: Answer) -> str | None:
    """Return the part that an own sink could not be told, as it is recorded."""
    return None if answer is None else str(answer)[:300]


def _is_refusal(answer: Answer) -> bool:
    return isinstance(answer, ParticipantRefusedError)


def _is_of_data(answer: ParticipantRefusedError) -> bool:
    # A sink of the job's own refuses for good, and says no more.
    return answer.refusal is None or answer.refusal in OF_DATA


def _confirms(record: TransactionRecord, name: str, answer: Answer) -> bool:
    """Return True if it has or had a finished commit, False for silence; raise a no."""
    if answer is None or isinstance(answer, ParticipantGivenUpError):
        return True  # it was acknowledged; what became of it since nobody can ask
    is_elsewhere = answer.refusal is Refusal.MISDIRECTED
    refused = isinstance(answer, ParticipantRefusedError) and _is_of_data(answer)
    if not is_elsewhere and not refused:
        return False
    if answer.refusal is Refusal.FORGOTTEN:
        return True
    there = f", {answer.state} there" if answer.state else ""
    raise ConfigurationError(
        f"{record.id} is finished in this log, but {name} answered {answer.refusal}"
        f"{there}: either this is not the log of this checkpoint (a "
        f"copy's has the same names), or not the {name} that had committed it, or it "
        "lost its data. Nothing was written and nothing skipped. Point `log` and the "
        f"address of {name} at the right ones, or restore {name}; `tracing-2pc explain "
        f"{record.id}` asks all",
        transaction_id=str(record.id),
        participant=name,
    ) from answer


def _result(answer: Answer) -> str:
    """Return an answer as metrics have it: see `Tracing.record_answer`."""
    if _acknowledges(answer):
        return "ok"
    return "refused" if _is_refusal(answer) else "unavailable"


def _unreachable(record: TransactionRecord, missing: list[str]) -> ConfigurationError:
    """Return the error for a participant without an address here, with the cure."""
    name = next((n for n in missing if n not in record.job_only), missing[0])
    problem = (
        "is a sink of the job's own, which nobody else can tell. Start the job: it "
        "finishes this first"
        if name in record.job_only
        else "is on record, but has no address here: "
        f"{how_to_add(name, record.address_of(name))} until this is finished"
    )
    return ConfigurationError(
        f"{record.id} is decided {record.decision}, and participant {name!r} {problem}",
        transaction_id=str(record.id),
        participant=name,
    )


def _quarantined(record: TransactionRecord, contradiction: str) -> HeuristicError:
    return HeuristicError(
        f"{record.id} is decided {record.decision} and quarantined: {contradiction}. "
        "Compare what the participants hold, then `tracing-2pc resolve "
        f"{record.id}`; the application stays closed until then",
        transaction_id=str(record.id),
    )


def _taken_back(
    record: TransactionRecord, current: TransactionRecord
) -> HeuristicError:
    return HeuristicError(
        f"{record.id} was decided commit, and the log now says {current.state}: it is "
        "an older copy of what this driver wrote to, and others went by it. Put the "
        "newer log back, if there is one; else compare what the participants hold. "
        "The next start goes by the log",
        transaction_id=str(record.id),
    )
