"""Carry a decision to every participant on record, until each has acknowledged."""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping

from tracing_2pc import failpoints, names
from tracing_2pc.errors import (
    CommitPendingError,
    ConfigurationError,
    ContractError,
    DecisionLogError,
    DecisionUnknownError,
    HeuristicError,
    ParticipantNotToldError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    TwoPhaseError,
)
from tracing_2pc.interfaces import DecisionLog, Participant, Tracing
from tracing_2pc.model import TransactionRecord
from tracing_2pc.protocol.fan_out import ask_at_once
from tracing_2pc.protocol.patience import Patience
from tracing_2pc.states import Decision, TransactionState

logger = logging.getLogger("tracing_2pc.delivery")

Answer = (
    ParticipantUnavailableError
    | ParticipantRefusedError
    | ParticipantNotToldError
    | None
)
"""What one participant said: None is an acknowledgement. So is that a part of it cannot
be told, as far as repeating goes."""

_ONE_BY_ONE = ("delivery.between_commits", "delivery.before_commit")
"""Failpoints at which one must have committed and another must not have."""

SLICE = 100
"""Finished batches that are forgotten at a time."""


class Delivery:
    """Sends what was decided; decides nothing itself.

    Anybody may deliver a decided transaction, twice or at the same time: every
    request is idempotent, and the log keeps who has acknowledged.

    Args:
        log: the decision log.
        participants: those that can be reached, by configured name.
        tracing: where the steps are shown, and each answer measured. Whoever delivers
            exports the root too: it may be that nobody else has lived to do so.
        patience: when to try again.
    """

    def __init__(
        self,
        log: DecisionLog,
        participants: Mapping[str, Participant],
        *,
        tracing: Tracing,
        patience: Patience,
    ) -> None:
        self._log = log
        self._participants = participants
        self._tracing = tracing
        self._patience = patience

    def once(
        self, record: TransactionRecord, tries: int | None = None
    ) -> Mapping[str, str]:
        """Ask everybody who has not acknowledged, all at once, once.

        Args:
            record: a decided transaction.
            tries: the how manyth try this is, if there is to be another.

        Returns:
            Those without a trusted answer, and what came instead. Empty means that it
            is finished.

        Raises:
            HeuristicError: somebody's answer contradicts the decision, or the data is
                lost there; the transaction is quarantined.
            ConfigurationError: a participant on record has no address here; the
                others were asked, and the transaction stays unfinished.
        """
        self._tracing.decided(record, reconstructed=True)
        with self._tracing.step(names.DELIVER, record.carrier, record) as step:
            step.set("tpc.pending", len(record.pending))
            step.end()
            answers = self._ask_all(record)
            # Refusals last: they may end this, and what the others said is noted then.
            # Who acknowledged is noted already: nobody waits for the slowest.
            order = sorted(record.pending, key=lambda n: _is_refusal(answers.get(n)))
            due = self._patience.due_after(tries) if tries else None
            noted = {n: self._note(record, n, answers, due) for n in order}
            silent = {n: why for n, why in noted.items() if why}
            if missing := [n for n in silent if n not in self._participants]:
                raise _unreachable(record, missing)
            if not silent:
                failpoints.failpoint("delivery.before_finish")
                with self._tracing.step(names.FINISH, record.carrier, record):
                    self._log.finish(record.id)
        return silent

    def abort(self, record: TransactionRecord) -> None:
        """Send an abort once, and don't wait for it.

        What is not acknowledged stays `aborting`, and is sent again before the next
        batch, at start and by recovery.

        Raises:
            HeuristicError: somebody has committed; the transaction is quarantined.
        """
        try:
            self.once(record)
        except HeuristicError:
            raise
        except TwoPhaseError:
            logger.exception("abort not delivered: transaction=%s", record.id)

    def commit(self, record: TransactionRecord, *, give_up: bool) -> None:
        """Send a commit again and again, with growing waits; it is never given up.

        Args:
            record: a transaction decided commit.
            give_up: raise after the inline tries instead of waiting on.

        Raises:
            CommitPendingError: stopped, or out of tries. It stays in the log, and
                recovery goes on with it.
            HeuristicError, ConfigurationError: as `once`.
        """
        self._tracing.decided(record, reconstructed=True)
        current = record
        silent: Mapping[str, str] = {}
        inline = self._patience.inline_tries
        for tries in self._patience.tries():
            if tries > 1:
                current = self._read(record)
            if current.finished is not None:
                return
            last = give_up and tries >= inline
            again = None if last else tries
            if not (silent := self._once_unless_log_down(current, again)):
                return
            if tries == 1 or tries % inline == 0:
                logger.warning(
                    "not acknowledged: transaction=%s tries=%d reasons=%s",
                    record.id,
                    tries,
                    "; ".join(silent.values()),
                )
            if last:
                break
        raise CommitPendingError(
            f"{record.id} is decided {record.decision} and not acknowledged by "
            f"{', '.join(silent)} yet. Nothing is lost: the next start of the query, "
            "or `tracing-2pc recover`, goes on with it. The last answers: "
            f"{'; '.join(silent.values())}",
            transaction_id=str(record.id),
            participant=next(iter(silent), None),
        )

    def confirm(self, record: TransactionRecord, *, give_up: bool) -> None:
        """Ask whether a commit that the log calls finished is there; before a replay.

        The log of a copied checkpoint fits the query and not the participants. Asked is
        who has branches of it, by the commit again: to be told an empty one could be
        news. Who has forgotten it had it. What a person has concluded is not asked for.

        Args:
            record: a transaction decided commit, and finished.
            give_up: raise after the inline tries instead of waiting on.

        Raises:
            ConfigurationError: somebody does not know it: nothing was changed.
            CommitPendingError: stopped, or out of tries, and somebody was silent.
        """
        self._tracing.decided(record, reconstructed=True)
        if record.state is not TransactionState.COMMITTED:
            return
        asked = [n for n in self._participants if record.chosen(n)]
        answers: Mapping[str, Answer] = {}
        for tries in self._patience.tries():
            waiting = {n: self._participants[n] for n in asked}
            with self._tracing.step(names.DELIVER, record.carrier, record) as step:
                step.set("tpc.pending", len(asked))
                step.end()
                answers = ask_at_once(lambda one: self._ask(one, record), waiting)
            asked = [n for n in asked if not _has_it(record, n, answers[n])]
            if not asked:
                return
            logger.warning(
                "replay not confirmed: transaction=%s: %s", record.id, answers[asked[0]]
            )
            if give_up and tries >= self._patience.inline_tries:
                break
        silent = "; ".join(f"{name} ({answers[name]})" for name in asked)
        raise CommitPendingError(
            f"{record.id} is finished, and its replay is skipped once all that have "
            f"something of it confirm that; without an answer: {silent}. The next "
            "start of the query asks again",
            transaction_id=str(record.id),
            participant=asked[0],
        )

    def forget(self, application: str, before: float) -> None:
        """Forget a slice of what finished before; if it fails, it can wait."""
        try:
            self._log.forget(application, finished_before=before, limit=SLICE)
        except DecisionLogError:
            logger.warning("could not forget: application=%s", application)

    def _once_unless_log_down(
        self, record: TransactionRecord, tries: int | None
    ) -> Mapping[str, str]:
        try:
            return self.once(record, tries)
        except DecisionLogError as error:
            logger.warning("decision log unreachable: transaction=%s", record.id)
            return dict.fromkeys(record.pending or record.participants, str(error))
        except ContractError as error:
            current = self._read(record)
            if current is record or not current.made_here:
                raise
            logger.warning("decided again, in an older log: %s", record.id)
            return dict.fromkeys(current.pending, str(error))

    def _read(self, record: TransactionRecord) -> TransactionRecord:
        """Return it as the log has it now.

        A log that is behind what it once returned, as a copy is that took over, takes
        no decision back: what it lacks it is told again, and what it has no record of
        is sent all the same. If it was only forgotten, everybody says so.
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
            raise _quarantined(record, "found so by somebody else; see the log")
        return current

    def _ask_all(self, record: TransactionRecord) -> Mapping[str, Answer]:
        known = {n: n for n in record.pending if n in self._participants}
        return ask_at_once(
            lambda name: self._ask_measured(name, record),
            known,
            each=lambda name, answer: self._note_if_heard(record, name, answer),
            one_by_one=any(map(failpoints.is_armed, _ONE_BY_ONE)),
        )

    def _ask_measured(self, name: str, record: TransactionRecord) -> Answer:
        since = time.monotonic()
        answer = self._ask(self._participants[name], record)
        self._tracing.answered(
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
                failpoints.failpoint("delivery.before_commit")
                participant.commit(record)
                failpoints.failpoint("delivery.between_commits")
            else:
                participant.abort(record)
        except (
            ParticipantUnavailableError,
            ParticipantRefusedError,
            ParticipantNotToldError,
        ) as error:
            return error
        except ConfigurationError:
            raise  # ours to mend: a token that is not there
        except Exception as error:
            logger.exception("a fault of ours: transaction=%s", record.id)
            return ParticipantUnavailableError(f"{type(error).__name__} on our side")
        return None

    def _note_if_heard(
        self, record: TransactionRecord, name: str, answer: Answer
    ) -> None:
        if answer is None:
            self._log.acknowledge(record.id, name)
        elif isinstance(answer, ParticipantNotToldError):
            logger.warning("not told: transaction=%s: %s", record.id, answer)
            self._log.acknowledge(record.id, name, str(answer)[:300])

    def _note(
        self,
        record: TransactionRecord,
        name: str,
        answers: Mapping[str, Answer],
        due: float | None,
    ) -> str | None:
        """Write down what is no acknowledgement; return why there was none."""
        if name not in answers:
            return "no address"
        answer = answers[name]
        if answer is None or isinstance(answer, ParticipantNotToldError):
            return None
        if isinstance(answer, ParticipantRefusedError):
            self._refused(record, name, answer)
            if answer.status == 410:
                return None
        else:
            logger.info("not acknowledged: transaction=%s: %s", record.id, answer)
        reason = str(answer)[:300]
        self._log.postpone(record.id, name, reason, due)
        return reason

    def _refused(
        self, record: TransactionRecord, name: str, answer: ParticipantRefusedError
    ) -> None:
        """Quarantine a contradiction; return if it says nothing of the data."""
        if answer.status == 400:  # a fault of ours
            logger.error("refused: transaction=%s: %s", record.id, answer)
            return
        if answer.status == 410 and self._is_closed(record):
            return  # somebody else delivered it, and it was forgotten since
        reason = f"{name} answered {answer.status} {answer.state}"
        if answer.status is None:  # a sink of the job's own
            reason = str(answer)
        self._log.quarantine(record.id, reason)
        raise _quarantined(record, str(answer)) from answer

    def _is_closed(self, record: TransactionRecord) -> bool:
        current = self._log.read(record.id)
        return current is None or current.finished is not None


def _is_refusal(answer: Answer) -> bool:
    return isinstance(answer, ParticipantRefusedError)


def _has_it(record: TransactionRecord, name: str, answer: Answer) -> bool:
    """Say whether a participant has a finished commit, or had it; False is silence.

    Raises:
        ConfigurationError: it has not.
    """
    if not isinstance(answer, ParticipantRefusedError) or answer.status == 400:
        return answer is None
    if answer.status == 410:
        return True
    raise ConfigurationError(
        f"{record.id} is finished in this log, but {name} answered {answer.status} "
        f"{answer.state}: either this is not the log of this checkpoint (a copy's has "
        f"the same names), or not the {name} that had committed it, or it lost its "
        "data. Nothing was written and nothing skipped. Point `log` and the address of "
        f"{name} at the right ones, or restore {name}; `tracing-2pc explain "
        f"{record.id}` asks all",
        transaction_id=str(record.id),
        participant=name,
    ) from answer


def _result(answer: Answer) -> str:
    """Return an answer as metrics have it: see `Tracing.answered`."""
    if isinstance(answer, ParticipantUnavailableError):
        return "unavailable"
    return "refused" if _is_refusal(answer) else "ok"


def _unreachable(record: TransactionRecord, missing: list[str]) -> ConfigurationError:
    """Say who cannot be told from here, and what mends it."""
    name = next((n for n in missing if n not in record.own_sinks), missing[0])
    what = (
        "is a sink of the job's own, which nobody else can tell. Start the job: it "
        "finishes this first"
        if name in record.own_sinks
        else "is on record, but has no address here: add it to `participants` in "
        "tpc.toml until this is finished"
    )
    return ConfigurationError(
        f"{record.id} is decided {record.decision}, and participant {name!r} {what}",
        transaction_id=str(record.id),
        participant=name,
    )


def _quarantined(record: TransactionRecord, why: str) -> HeuristicError:
    return HeuristicError(
        f"{record.id} is decided {record.decision} and quarantined: {why}. Compare "
        "what the participants hold, then `tracing-2pc resolve "
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
