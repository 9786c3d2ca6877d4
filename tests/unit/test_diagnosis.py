"""Finding is an opinion from evidence: what is said, and what must be left alone."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from support.texts import texts

from tracing_2pc.core.model import (
    BranchId,
    DeliveryRecord,
    HeldBranch,
    InDoubt,
    Listing,
    Shown,
    TransactionId,
    TransactionRecord,
    branch_receipts,
)
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import (
    BranchState,
    Decision,
    ParticipantState,
    Severity,
    TransactionState,
    Verdict,
    Vote,
)
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.diagnosis import (
    Finding,
    diagnose,
    diagnose_transaction,
)
from tracing_2pc.inspection.evidence import Evidence, LogEvidence, TransactionEvidence

TEXTS = texts("unit")

NOW = 1_000_000.0
SETTINGS = Settings()
T = TransactionId("orders", 7, 1)
BRANCH = BranchId(0, 1)
NAMES = ("ledger", "notifier")
S, D, K = TransactionState, Decision, kinds


def record(state: S, decided: float | None = None, **changes: Any) -> TransactionRecord:
    """A record; `decided` and `started` are ages in seconds."""
    decision = {S.ACTIVE: None, S.ABORTING: D.ABORT}.get(state, D.COMMIT)
    receipts = branch_receipts(BRANCH, 3, "d", dict.fromkeys(NAMES, Vote.COMMIT))
    started = changes.pop("started", (decided or 0) + 5)
    return dataclasses.replace(
        TransactionRecord(
            T, "run", state, decision, NAMES, frozenset(), {}, NOW - started,
            decided=None if decided is None else NOW - decided,
            receipts=receipts if decision is D.COMMIT else (),
            timeout=900.0, deadline=NOW - started + 900.0,
        ),
        **changes,
    )  # fmt: skip


def logged(*records: TransactionRecord, **changes: Any) -> LogEvidence:
    known = {one.id: one for one in records}
    told = {id_: {n: DeliveryRecord(n) for n in NAMES} for id_ in known}
    found = LogEvidence(known, told, {}, {"orders": None}, NOW)
    return dataclasses.replace(found, **changes)


def listing(age: float, missing: str | None = None) -> Listing:
    return Listing((InDoubt(T, BRANCH, age, 3, {}),), missing)


def said(
    read: LogEvidence | None, age: float | None = None, **changes: Any
) -> list[Finding]:
    """Diagnose: the ledger has listed T at this age, twice, the notifier nothing."""
    found = Listing(()) if age is None else listing(age)
    lists = {"ledger": found, "notifier": Listing(())}
    evidence = Evidence(NOW, lists, read, lists, {})
    found = diagnose(dataclasses.replace(evidence, **changes), SETTINGS)
    return [one for one in found if one.kind is not kinds.HELD_BACK]


def one(found: list[Finding]) -> Finding:
    (only,) = found
    return only


PREPARED = HeldBranch(BRANCH, BranchState.PREPARED, 3, "d")
SHOWN = Shown(ParticipantState.PREPARED, (PREPARED,))
COMMITTED = Shown(ParticipantState.COMMITTED)
ABORTED = Shown(ParticipantState.ABORTED)


def test_all_is_well():
    """In doubt is normal and short, decided is normal and short."""
    assert said(logged()) == []
    assert said(logged(record(S.ACTIVE, started=100)), 100) == []
    assert said(logged(record(S.COMMITTING, 100)), 100) == []


def test_a_living_drivers_attempt_is_left_alone_up_to_its_timeout():
    """A slow batch is not stuck: until the transaction timeout its driver decides."""
    assert said(logged(record(S.ACTIVE, started=899)), 600) == []
    found = one(said(logged(record(S.ACTIVE, started=901)), 600))
    assert (found.kind, found.verdict) == (K.STUCK, Verdict.ABORT)
    assert found.participants == ("ledger",)


def test_without_a_timeout_an_attempt_is_stuck_when_it_is_critical():
    """A driver may be at it for ever; a person should look all the same."""
    never = {"timeout": 0.0, "deadline": None}
    assert said(logged(record(S.ACTIVE, started=899, **never))) == []
    found = one(said(logged(record(S.ACTIVE, started=901, **never))))
    assert found.why.endswith(TEXTS["a driver may be at it"])


def test_a_short_timeout_is_not_said_to_be_stuck_before_others_would_be():
    """Its driver, or who recovers, ends it; a person need not look at once."""
    short = {"timeout": 100.0, "deadline": NOW - 100}
    assert said(logged(record(S.ACTIVE, started=299, **short))) == []
    assert one(said(logged(record(S.ACTIVE, started=301, **short))))


def test_whether_its_time_is_over_is_a_matter_of_the_logs_clock():
    """A watcher whose clock is ahead does not call a living driver's attempt stuck."""
    ahead = record(S.ACTIVE, started=5000, deadline=NOW + 500)
    assert said(logged(ahead)) == []
    assert one(said(logged(ahead, clock=NOW + 501))).kind is K.STUCK


@pytest.mark.parametrize("state", [S.COMMITTING, S.ABORTING])
def test_unfinished_for_too_long_is_stuck(state):
    """A warning, then critical; who has not acknowledged is named."""
    assert said(logged(record(state, 299))) == []
    found = one(said(logged(record(state, 301))))
    assert (found.kind, found.verdict) == (K.STUCK, Verdict.FINISH)
    assert found.severity is Severity.WARNING
    assert found.participants == NAMES
    assert (found.since, found.age) == (NOW - 301, 301)
    assert one(said(logged(record(state, 901)))).severity is Severity.CRITICAL


def test_what_moves_is_not_stuck():
    """One acknowledgement after another: it gets on, however long it takes."""
    told = {T: {"ledger": DeliveryRecord("ledger", acknowledged=NOW - 10)}}
    assert said(logged(record(S.COMMITTING, 5000), deliveries=told)) == []


def test_quarantined_is_found_without_a_verdict() -> None:
    """A person has to look, and no verdict can say more; a metric of its own counts."""
    found = one(said(logged(record(S.QUARANTINED, 5000))))
    assert (found.kind, found.verdict) == (kinds.QUARANTINED, None)
    assert found.severity is Severity.CRITICAL


def test_decided_not_applied():
    """It can be reached, it has been told, and it still holds the branch prepared."""
    told = {"ledger": DeliveryRecord("ledger", retries=10, error="503")}
    log = logged(record(S.COMMITTING, 60), deliveries={T: told})
    found = one(said(log, 100))
    assert (found.kind, found.verdict) == (K.DECIDED_NOT_APPLIED, Verdict.FINISH)
    assert found.participants == ("ledger",)
    assert TEXTS["tries and the last answer"].format(tries=10, answer=503) in found.why


def test_decided_not_applied_waits_for_the_drivers_own_tries():
    """Before they are over it is left alone; without any, until it would be stuck."""
    log = logged(record(S.COMMITTING, 60))
    assert said(log, 100) == []
    late = one(said(logged(record(S.COMMITTING, 400)), 500))
    assert late.kind is K.DECIDED_NOT_APPLIED, "and it is not called stuck, too"


def test_lost():
    """Decided commit, and the participant knows nothing of it: always critical."""
    for state in (ParticipantState.UNKNOWN, ParticipantState.FORGOTTEN):
        shown = {T: {"ledger": Shown(state), "notifier": SHOWN}}
        found = one(said(logged(record(S.COMMITTING, 30)), answers=shown))
        assert (found.kind, found.severity) == (K.LOST, Severity.CRITICAL)
        assert found.participants == ("ledger",)
        assert found.verdict is Verdict.ESCALATE


def test_a_branch_that_is_gone_is_lost_whatever_else_is_there():
    """Each chosen branch counts."""
    other = HeldBranch(BranchId(1, 1), BranchState.PREPARED, 3, "d")
    shown = {T: {"ledger": Shown(ParticipantState.PREPARED, (other,))}}
    found = said(logged(record(S.COMMITTING, 30)), answers=shown)
    assert one(found).kind is K.LOST


def _of(record: TransactionRecord, answers: Any) -> list[Finding]:
    evidence = TransactionEvidence(T, NOW, record, answers=answers, clock=NOW)
    return list(diagnose_transaction(evidence, SETTINGS)[0])


def test_what_is_lost_after_it_was_finished_is_lost():
    """Also when its receipts are no longer on record, because a later batch is."""
    old = record(S.COMMITTED, 30, finished=NOW - 20, receipts=(), rows=3)
    shown = {"ledger": Shown(ParticipantState.UNKNOWN), "notifier": COMMITTED}
    lost = one(_of(old, shown))
    assert (lost.kind, lost.participants) == (K.LOST, ("ledger",))
    shown["ledger"] = Shown(ParticipantState.FORGOTTEN)
    assert not _of(old, shown)


def test_who_had_no_branch_has_lost_none():
    """A participant without rows hears of the transaction with its commit."""
    read_only = branch_receipts(
        BRANCH, 3, "d", {"ledger": Vote.COMMIT, "notifier": Vote.READ_ONLY}
    )
    log = logged(record(S.COMMITTING, 30, receipts=read_only))
    shown = {T: {"ledger": SHOWN, "notifier": Shown(ParticipantState.UNKNOWN)}}
    assert said(log, answers=shown) == []


def test_an_abort_loses_nothing():
    """Unknown is what an abort makes of it."""
    shown = {T: {"ledger": Shown(ParticipantState.UNKNOWN)}}
    assert said(logged(record(S.ABORTING, 30)), answers=shown) == []


BY_HAND = Shown(
    ParticipantState.PREPARED, (HeldBranch(BRANCH, BranchState.COMMITTED, 3, "d"),)
)


@pytest.mark.parametrize(
    ("state", "ledger", "notifier", "whom"),
    [
        (S.COMMITTING, ABORTED, SHOWN, ("ledger",)),
        (S.QUARANTINED, ABORTED, COMMITTED, ("ledger",)),
        (S.ABORTING, SHOWN, COMMITTED, ("notifier",)),
        (S.ABORTING, BY_HAND, SHOWN, ("ledger",)),
    ],
)
def test_diverged(state, ledger, notifier, whom):
    """Somebody went against the decision: always critical, a person must look."""
    shown = {T: {"ledger": ledger, "notifier": notifier}}
    found = one(said(logged(record(state, 30)), answers=shown))
    assert (found.kind, found.severity) == (K.DIVERGED, Severity.CRITICAL)
    assert (found.participants, found.verdict) == (whom, Verdict.ESCALATE)


def test_agreement_is_not_divergence():
    """Some have heard the decision and some have not: that is a delivery."""
    for state, outcome in ((S.COMMITTING, COMMITTED), (S.ABORTING, ABORTED)):
        shown = {T: {"ledger": outcome, "notifier": SHOWN}}
        assert said(logged(record(state, 30)), answers=shown) == []


@pytest.mark.parametrize(
    ("change", "verdict", "word"),
    [
        ({"forgotten_by_application": {}}, Verdict.LEAVE, TEXTS["another log's"]),
        (
            {"forgotten_by_application": {"orders": 7}},
            Verdict.ESCALATE,
            TEXTS["a record is forgotten"],
        ),
        ({}, Verdict.ESCALATE, "old copy"),
        ({"closed": {T: S.ABORTED}}, Verdict.ABORT, TEXTS["finished as aborted"]),
        ({"closed": {T: S.COMMITTED}}, Verdict.ESCALATE, TEXTS["closed as committed"]),
    ],
)
def test_orphaned(change, verdict, word):
    """Prepared, and no record can finish it; never *abort* for what is not known."""
    found = one(said(logged(**change), 301))
    assert (found.kind, found.verdict) == (K.ORPHANED, verdict)
    assert word in found.why
    assert "3 rows" in found.why
    assert found.age == 301, "by the participant's clock"


def test_an_orphan_is_one_only_after_a_while():
    """By the participant's clock."""
    assert said(logged(), 299) == []


def test_what_a_person_has_concluded_is_no_orphan():
    """It is ours, and a person has signed for how it is."""
    assert said(logged(closed={T: S.CONCLUDED}), 301) == []


EMPTY = {"ledger": Listing(()), "notifier": Listing(())}
UNREAD = Listing((), "could not be read")


HALF = {**EMPTY, "ledger": listing(900, "failed on page 2")}
LEAVE_ALONE = {
    "landed after the first look": {"first": EMPTY},
    "gone at the second look": {"second": EMPTY},
    "no first list": {"first": {**EMPTY, "ledger": UNREAD}},
    "no second list": {"second": {**EMPTY, "ledger": UNREAD}},
    "half a first list": {"first": HALF},
    "half a second list": {"second": HALF},
    "no log": {"log": None},
    "a record that cannot be trusted": {"log": logged(refused=frozenset({"orders"}))},
}


@pytest.mark.parametrize("change", LEAVE_ALONE.values(), ids=LEAVE_ALONE.keys())
def test_any_leave_alone_wins(change):
    """Seen twice in whole lists, and the log read between: else nothing is said."""
    assert said(logged(), 900, **change) == []


def test_a_participant_that_is_down_hides_no_other():
    """Its own column is unreadable; what the log says, and the others, still counts."""
    lists = {"ledger": listing(900), "notifier": UNREAD}
    stuck = dataclasses.replace(
        record(S.COMMITTING, 400), id=TransactionId("orders", 8, 1)
    )
    found = said(logged(stuck), first=lists, second=lists)
    assert [(str(f.transaction), f.kind) for f in found] == [
        ("orders.8.1", K.STUCK),
        ("orders.7.1", K.ORPHANED),
    ]
