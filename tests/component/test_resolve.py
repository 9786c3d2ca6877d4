"""A person decides: through the log, or at a participant what no log can finish."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
from support.branches import ONE
from support.texts import texts
from support.waiting import PATIENT
from support.watch import Site

from tracing_2pc.core.errors import (
    ConfigurationError,
    ContractError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
    TwoPhaseError,
)
from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.states import Decision, Refusal, TransactionState
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.operations.resolve import GiveUp, resolve, resolve_orphan

TEXTS = texts("component")

T = TransactionId("orders", 7, 1)
FOREIGN = TransactionId("bookings", 3, 1)


def orphan(
    at: Site,
    transaction: TransactionId,
    outcome: Decision = Decision.ABORT,
    participant: Any = None,
) -> None:
    resolve_orphan(
        at.log,
        participant or at.observed["ledger"],
        transaction,
        outcome=outcome,
        reason="no log knows it",
        who="ada@here",
        orphan_after=300.0,
    )


def leave_orphan(at: Site) -> None:
    at.prepare(FOREIGN, "ledger")
    at.time.time += 301


def audit(at: Site, transaction: TransactionId) -> list[tuple[str, str | None, str]]:
    found = at.log.audit(transaction)
    return [(one.who, one.before, str(one.after)) for one in found]


def test_the_decided_word_is_delivered_again_and_signed_for(at):
    """The state stays; who asked for it and why is in the audit."""
    at.committing()
    record = resolve(
        at.log, T, wanted=Decision.COMMIT, reason="it is up again", who="ada@here"
    )
    assert record.state is TransactionState.COMMITTING
    assert audit(at, T) == [("ada@here", "committing", "committing")]
    assert at.log.audit(T)[0].why == "it is up again"


@pytest.mark.parametrize("wanted", [Decision.ABORT, "mixed", "hazard"])
def test_another_word_than_the_decided_one_is_refused(at, wanted):
    """It would split the transaction; nothing is signed, nothing changes."""
    at.committing()
    with pytest.raises(ContractError, match=TEXTS["delivers again"]):
        resolve(at.log, T, wanted=wanted, reason="x", who="ada")
    assert audit(at, T) == []
    assert at.log.read(T).state is TransactionState.COMMITTING


@pytest.mark.parametrize("wanted", [Decision.COMMIT, "mixed"])
def test_what_is_undecided_can_only_be_aborted(at, wanted):
    """Nobody knows every vote."""
    at.begin()
    with pytest.raises(ContractError, match="only --abort"):
        resolve(at.log, T, wanted=wanted, reason="x")


@pytest.mark.parametrize("reason", ["", " ", "a\nb", "\x1b[31mred", "x" * 1001])
def test_a_reason_is_one_printable_line(at, reason):
    """It is shown to others, later."""
    at.begin()
    with pytest.raises(ConfigurationError, match="--reason"):
        resolve(at.log, T, wanted=Decision.ABORT, reason=reason)


def test_what_is_finished_needs_nobody(at):
    """And the message says where an orphan of it is resolved."""
    at.aborted()
    with pytest.raises(ContractError, match="--at PARTICIPANT"):
        resolve(at.log, T, wanted=Decision.ABORT, reason="x")


# --- give up -------------------------------------------------------------------------


def gone(at: Site, name: str = "ledger") -> TransactionRecord:
    reason = "its disk is gone"
    return resolve(at.log, T, wanted=GiveUp(name), reason=reason, who="ada@here")


@pytest.mark.parametrize("decision", list(Decision))
def test_a_participant_that_is_gone_for_good_is_given_up(at, decision, measured):
    """Signed for and counted; the others are still to be told."""
    record = at.begin()
    at.prepare(record.id)
    at.decide(record.id, decision)
    after = gone(at)
    assert (after.decision, after.pending) == (decision, ("notifier",))
    state = str(after.state)
    assert audit(at, T) == [("ada@here", state, f"{state} without ledger")]
    assert at.log.audit(T)[0].why == "its disk is gone"
    assert measured()['tpc_operator_actions_total{action="give up"}'] == 1


def test_only_what_is_decided_and_not_acknowledged_is_given_up(at):
    """The message says what is to be done instead; nothing is signed."""
    at.begin()
    with pytest.raises(ContractError, match=TEXTS["undecided"]):
        gone(at)
    at.prepare(T)
    at.decide(T)
    waited_for = TEXTS["waited for"].format(names="ledger and notifier")
    with pytest.raises(ContractError, match=waited_for):
        gone(at, "legder")
    at.log.quarantine(T, "ledger answered 409 aborted")
    with pytest.raises(ContractError, match=TEXTS["conclude instead"]):
        gone(at)
    assert audit(at, T) == []


# --- orphans -------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("outcome", "rows"), [(Decision.ABORT, 0), (Decision.COMMIT, 3)]
)
def test_an_orphan_is_resolved_where_it_is(at, outcome, rows):
    """Done there and nowhere else; signed before it is asked, and after."""
    at.prepare(FOREIGN)
    at.time.time += 301
    orphan(at, FOREIGN, outcome)
    assert [at.worlds[n].in_doubt() for n in ("ledger", "notifier")] == [0, 1]
    assert at.worlds["ledger"].visible() == rows
    done = "aborted" if outcome is Decision.ABORT else "committed"
    assert audit(at, FOREIGN) == [
        ("ada@here", "prepared at ledger", f"ledger is told to {outcome}"),
        ("ada@here", "prepared at ledger", f"{done} at ledger"),
    ]


def test_a_young_one_is_no_orphan_yet(at):
    """By the participant's clock; the message says how long still."""
    at.prepare(FOREIGN, "ledger")
    at.time.time += 60
    with pytest.raises(ContractError, match=TEXTS["too young"]):
        orphan(at, FOREIGN)
    assert at.worlds["ledger"].in_doubt() == 1
    assert audit(at, FOREIGN) == []


@pytest.mark.parametrize("decided", [False, True])
def test_what_the_log_can_finish_is_no_orphan(at, decided):
    """The message says how the log finishes it."""
    at.committing() if decided else at.prepare(at.begin().id)
    at.time.time += 10_000
    word = "commit" if decided else "abort"
    with pytest.raises(ContractError, match=f"resolve {T} --{word}`, without --at"):
        orphan(at, T, Decision.ABORT)
    assert at.worlds["ledger"].in_doubt() == 1


def test_what_may_still_be_begun_is_no_orphan(at):
    """The log has lost it and can write a record of the same id: its query does."""
    later = TransactionId("orders", 8, 1)
    at.prepare(later, "ledger")
    at.time.time += 301
    with pytest.raises(ContractError, match=TEXTS["start its query"]):
        orphan(at, later)
    at.begin(8)
    newer = at.begin(9, run="next").id
    assert newer.batch == 9
    at.prepare("orders.8.7", "notifier")
    at.time.time += 301
    orphan(at, TransactionId("orders", 8, 7), participant=at.observed["notifier"])


def test_below_forgotten_through_only_abort_is_left(at):
    """Its record is gone, and with it whether another attempt was committed."""
    old = TransactionId("orders", 5, 1)
    at.prepare(old, "ledger")
    at.prepare("orders.7.9", "ledger")
    at.worlds["ledger"].commit("orders.7.9", ONE, forgotten_through=6)
    at.time.time += 301
    with pytest.raises(ContractError, match=TEXTS["only abort"]):
        orphan(at, old, Decision.COMMIT)
    orphan(at, old, Decision.ABORT)
    assert [after for _, _, after in audit(at, old)] == [
        "ledger is told to abort",
        "aborted at ledger",
    ]


def test_what_the_participant_refuses_is_on_record(at):
    """It knows more: another attempt at this batch is committed there."""
    at.prepare(FOREIGN, "ledger")
    at.prepare("bookings.3.2", "ledger")
    at.worlds["ledger"].commit("bookings.3.2", ONE)
    at.time.time += 301
    with pytest.raises(ParticipantRefusedError, match="only abort is safe"):
        orphan(at, FOREIGN, Decision.COMMIT)
    assert [after for _, _, after in audit(at, FOREIGN)] == [
        "ledger is told to commit",
        "ledger refused",
    ]


def test_what_the_log_has_aborted_is_not_committed_by_hand(at):
    """Its record is finished; the participant was restored from a copy."""
    at.prepare(at.aborted(), "ledger")
    at.time.time += 301
    with pytest.raises(ContractError, match="only --abort"):
        orphan(at, T, Decision.COMMIT)
    orphan(at, T, Decision.ABORT)


def test_nothing_there_is_said(at):
    """An id that the participant does not hold is a wrong call."""
    with pytest.raises(ConfigurationError, match=TEXTS["not held there"]):
        orphan(at, FOREIGN)


def test_without_an_answer_the_audit_says_so(at):
    """It may have happened; the deed is on record, and what was answered instead."""
    refusal: Refusal | None = None

    class Silent(HttpParticipant):
        def resolve(self, *_: Any) -> None:
            raise ParticipantUnavailableError("not done", refusal=refusal)

    leave_orphan(at)
    url = at.observed["ledger"].url
    for refusal, after in (  # noqa: B007 - read by the participant
        (None, "no trusted answer from ledger"),
        (Refusal.NOT_ALLOWED, "ledger answered not allowed"),
    ):
        with pytest.raises(ParticipantUnavailableError):
            orphan(at, FOREIGN, participant=Silent("ledger", url, None, PATIENT))
        assert audit(at, FOREIGN)[-1][2] == after


def test_without_a_log_nothing_is_resolved(at, tmp_path):
    """What it would have said is not known (rule 9)."""
    leave_orphan(at)
    at.log.close()
    (tmp_path / "log" / "decisions.db").write_bytes(b"no database" * 1000)
    with pytest.raises(TwoPhaseError):
        orphan(at, FOREIGN)
    assert at.worlds["ledger"].in_doubt() == 1


# --- telemetry -----------------------------------------------------------------------


def test_a_deed_is_a_span_that_is_linked_to_the_transaction(at, exported):
    """A trace of its own; the participant's part is below it."""
    leave_orphan(at)
    orphan(at, FOREIGN)
    spans = {span.name: span for span in exported()}
    deed = spans["tpc.operator"]
    assert deed.parent is None
    assert [f"{link.context.trace_id:032x}" for link in deed.links] == ["a" * 32]
    assert deed.attributes["tpc.action"] == "abort"
    assert deed.attributes["tpc.participant"] == "ledger"
    assert spans["POST /resolve"].parent.span_id == deed.context.span_id


def test_deeds_are_counted_when_they_are_done(at, measured):
    """A refused one is none."""
    at.begin()
    with contextlib.suppress(ContractError):
        resolve(at.log, T, wanted=Decision.COMMIT, reason="x")
    resolve(at.log, T, wanted=Decision.ABORT, reason="x")
    assert measured()['tpc_operator_actions_total{action="abort"}'] == 1
    assert 'tpc_operator_actions_total{action="commit"}' not in measured()


def test_a_driver_that_begins_it_meanwhile_is_seen(at):
    """By hand nothing is committed that a driver has just put on record."""
    at.prepare(T, "ledger")  # by another log, or before this one was restored
    at.time.time += 1000

    read = at.log.read

    def begun_meanwhile(transaction: TransactionId) -> TransactionRecord | None:
        found = read(transaction)
        if found is None:
            at.begin()
        return found

    at.log.read = begun_meanwhile  # type: ignore[method-assign]
    with pytest.raises(ContractError, match=r"orders\.7\.1"):
        orphan(at, T, Decision.COMMIT)
    assert at.worlds["ledger"].show(str(T)).get_json()["state"] == "prepared"
