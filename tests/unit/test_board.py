"""The list of what is unfinished, its charts, and one look for all who ask."""

from __future__ import annotations

import dataclasses
import threading
from collections.abc import Mapping
from typing import Any

import pytest
from support.texts import texts
from support.waiting import AT_LAST, PATIENT, until

from tracing_2pc.console.board import (
    ROWS,
    BoardStatus,
    LogSnapshot,
    SurveySnapshot,
    board,
)
from tracing_2pc.console.cached import CachedByKey, MadeInBackground
from tracing_2pc.console.charts import HEIGHT, MINUTES, hour
from tracing_2pc.core.errors import DecisionLogError
from tracing_2pc.core.log_reader import MOST, TransactionSummary
from tracing_2pc.core.model import DeliveryRecord, TransactionId
from tracing_2pc.core.states import (
    Decision,
    Severity,
    TransactionState,
    Verdict,
)
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.diagnosis import Finding
from tracing_2pc.inspection.kind import Kind
from tracing_2pc.inspection.participants import Source, SourceKind, participant_source

TEXTS = texts("unit")

NOW = 1_700_000_000.0
LEDGER = participant_source("ledger")


def summary(
    batch: int,
    state: TransactionState = TransactionState.COMMITTED,
    *,
    ago: float = 60,
    took: float = 2,
    decision: Decision | None = Decision.COMMIT,
    **more: Any,
) -> TransactionSummary:
    decided = None if decision is None else NOW - ago
    open_ = state not in {TransactionState.COMMITTED, TransactionState.ABORTED}
    return TransactionSummary(
        *(TransactionId("orders", batch, 1), state, decision, NOW - ago - took),
        *(decided, None if open_ else NOW - ago, 10, more.get("reason"), {}),
        more.get("pending", ()),
    )


def wrong(
    batch: int, kind: Kind, severity: Severity, application: str = "orders"
) -> Finding:
    return Finding(
        *(TransactionId(application, batch, 1), kind, severity, ("ledger",)),
        *(NOW - 400, 400, Verdict.LEAVE, "why"),
    )


def logged(*open_: TransactionSummary, **more: Any) -> LogSnapshot:
    return LogSnapshot(NOW, open_, more.get("deliveries", {}), more.get("newest", ()))


def observed(
    *found: Finding,
    judged: tuple[int, ...] = (),
    unread: Mapping[Source, str] | None = None,
) -> SurveySnapshot:
    ids = frozenset(TransactionId("orders", batch, 1) for batch in judged)
    unreadable = (
        source_wrong(source, kinds.UNREADABLE, why)
        for source, why in (unread or {}).items()
    )
    return SurveySnapshot(NOW, [*found, *unreadable], ids)


def source_wrong(source: Source, kind: Kind, why: str = "why") -> Finding:
    return Finding(source, kind, Severity.WARNING, (), 0.0, 0.0, None, why)


def of_log(*found: Finding, judged: tuple[int, ...] = ()) -> SurveySnapshot:
    return observed(*found, judged=judged)._replace(at=None)


def test_the_oldest_of_very_many_is_not_taken_for_finished():
    """The log's list holds the newest only; what is worst is as a rule the oldest."""
    active = TransactionState.ACTIVE
    newest = [summary(n, active, decision=None) for n in range(10, 10 + MOST)]
    stuck = wrong(7, kinds.STUCK, Severity.CRITICAL)
    found = board(logged(*newest), observed(stuck, judged=(7,)))
    assert found.rows[0].transaction == stuck.transaction
    assert found.status is not BoardStatus.WELL


def test_what_cannot_be_read_of_another_application_is_not_shown():
    """Who may see one application hears nothing of the others' records."""
    of = [Source(SourceKind.RECORDS, application=a) for a in ("orders", "sales")]
    looked = observed(unread={**dict.fromkeys(of, "why"), LEDGER: "x"})
    assert len(board(logged(), looked).doubts) == 3
    seen = board(logged(), looked, "sales").doubts
    assert [d.partition(" could")[0] for d in seen] == ["log of sales", "ledger"]


def test_the_worst_stands_first():
    """By severity, then by what it is, then by age; what is normal stands last."""
    committing, quarantined = TransactionState.COMMITTING, TransactionState.QUARANTINED
    found = board(
        logged(
            summary(1, committing, pending=("ledger",)),
            summary(2, committing),
            summary(3, quarantined, reason="ledger answered 409"),
            summary(4, committing),
        ),
        observed(
            wrong(2, kinds.STUCK, Severity.WARNING),
            wrong(4, kinds.STUCK, Severity.CRITICAL),
            wrong(9, kinds.LOST, Severity.CRITICAL),
            wrong(3, kinds.QUARANTINED, Severity.CRITICAL),
        ),
    )
    assert [one.transaction.batch for one in found.rows] == [9, 4, 3, 2, 1]
    assert found.headline == TEXTS["some need you"].format(n=4)
    assert found.rows[2].reason == "ledger answered 409"
    assert found.rows[-1].participants == ("ledger",)
    assert found.status is not BoardStatus.WELL


def test_all_is_well_is_said_only_when_all_were_asked():
    """Before the first look, which is no alarm, and with one that cannot be read."""
    assert board(logged(), observed()).headline == TEXTS["all is well"]
    assert board(logged(), observed()).status is BoardStatus.WELL
    unread = observed(unread={LEDGER: "nothing listens"})
    for seen, said in (
        (of_log(), TEXTS["participants are asked"]),
        (unread, TEXTS["ledger could not be read"]),
    ):
        found = board(logged(), seen)
        assert found.headline == said
        grey = said == TEXTS["participants are asked"]
        assert found.status is (BoardStatus.ASKING if grey else BoardStatus.DOUBT)
        assert found.doubts


def test_before_the_first_look_nothing_is_called_normal():
    """What is stuck since yesterday is in the log's list like what was just decided."""
    open_ = summary(1, TransactionState.COMMITTING, ago=1, pending=("ledger",))
    found = board(logged(open_), of_log())
    assert (found.headline, found.surveyed) == (TEXTS["one unfinished"], None)
    assert "normal" not in found.rows[0].words
    assert found.status is not BoardStatus.WELL


def test_a_commit_that_hangs_is_in_the_headline():
    """From the first try in vain on, with who it is and since when; others stand."""
    one = summary(1, TransactionState.COMMITTING, ago=12, pending=("ledger",))
    why = "orders is held back by ledger since 22:13:08 UTC (3 tries; the last answer)"
    waits = wrong(1, kinds.HELD_BACK, Severity.WARNING)
    waits = dataclasses.replace(waits, why=why)
    for look in (observed(waits, judged=(1,)), of_log(waits)):
        found = board(logged(one), look)
        assert found.headline.startswith(TEXTS["held back"])
        assert found.status is BoardStatus.DOUBT
        assert (found.rows[0].rank, found.rows[0].reason) == ("warning", why)
    stuck = wrong(2, kinds.STUCK, Severity.WARNING)
    both = board(logged(one), observed(stuck, waits))
    assert both.headline == TEXTS["one needs you, one is under way"]


def test_what_the_log_proves_is_said_before_the_first_look():
    """It is as bad as it says, and of the others nothing is known yet."""
    open_ = [summary(n, TransactionState.COMMITTING) for n in (1, 2)]
    seen = of_log(wrong(1, kinds.STUCK, Severity.WARNING), judged=(1, 2))
    found = board(logged(*open_), seen)
    assert found.headline == TEXTS["one needs you, one is unfinished"]
    assert found.rows[0].words == "stuck"
    assert found.doubts == (TEXTS["participants are being asked"],)


def test_what_was_finished_since_the_look_is_left_out():
    """The log is newer; what no record has is judged by the look alone."""
    seen = observed(
        wrong(5, kinds.STUCK, Severity.WARNING),
        wrong(6, kinds.ORPHANED, Severity.WARNING),
        judged=(5,),
    )
    assert [one.transaction.batch for one in board(logged(), seen).rows] == [6]


def test_ten_thousand_orphans_are_a_hundred_lines():
    """The rest are counted, by what is wrong with them."""
    kind = kinds.ORPHANED
    seen = observed(*(wrong(n, kind, Severity.WARNING) for n in range(10_000)))
    found = board(logged(), seen)
    assert len(found.rows) == ROWS
    assert found.more == ((TEXTS["no record can finish it"], 10_000 - ROWS),)
    assert found.headline.startswith(TEXTS["many need you"])


def test_next_try_is_the_soonest_of_those_who_have_not_acknowledged():
    """Whoever has acknowledged is not asked again."""
    told = {
        "ledger": DeliveryRecord("ledger", NOW, 1, NOW + 1),
        "notifier": DeliveryRecord("notifier", None, 2, NOW + 9),
        "mailer": DeliveryRecord("mailer", None, 2, NOW + 5),
    }
    one = summary(1, TransactionState.COMMITTING)
    found = board(logged(one, deliveries={"orders.1.1": told}), observed())
    assert found.rows[0].next_try == NOW + 5


def test_requests_that_partners_refused_need_somebody() -> None:
    """Behind transactions that do, and before doubts; those of one's own application.

    So does what is wrong with a participant.
    """
    of = Source(SourceKind.OUTBOX, "mailer", "orders")
    some = source_wrong(of, kinds.REFUSED_REQUESTS)
    some = dataclasses.replace(some, since=NOW - 400)
    fault = source_wrong(LEDGER, kinds.BACKLOG)
    found = board(logged(), observed(some, fault))
    assert found.headline == "2 problems: backlog at ledger"
    alone = board(logged(), observed(some)).headline
    assert alone == TEXTS["refused requests need you"]
    assert (found.status, found.faults) == (BoardStatus.NEED, (some, fault))
    stuck = wrong(1, kinds.LOST, Severity.CRITICAL)
    assert board(logged(), observed(stuck, some)).headline == TEXTS["one needs you"]
    assert board(logged(), observed(some), "sales").status is BoardStatus.WELL
    assert board(logged(), observed(fault)).headline == "1 problem: backlog at ledger"


def test_a_bound_token_reads_of_no_other_application():
    """Neither lines nor counts tell of it, nor an id in a text; an address is none."""
    seen = observed(wrong(1, kinds.LOST, Severity.CRITICAL, "sales"))
    assert board(logged(), seen, "orders").headline == TEXTS["all is well"]
    why = "orders.7.1, sales.3.1: nothing listens at http://127.0.0.1:9 for sales.3.1."
    (found,) = board(logged(), observed(unread={LEDGER: why}), "orders").doubts
    assert found.endswith(
        "orders.7.1, a transaction: nothing listens at http://127.0.0.1:9 for "
        "a transaction."
    )
    assert why in board(logged(), observed(unread={LEDGER: why})).doubts[0]


def test_an_hour_is_bars_by_the_minute():
    """Place and height, the slowest behind the middle; now is on the right."""
    found = hour(
        "orders",
        [
            summary(1, ago=0, took=2),
            summary(2, ago=NOW % 60, took=4),
            summary(3, ago=59 * 60, took=1),
            summary(4, ago=3600, took=1),
            summary(5, TransactionState.ABORTED, decision=Decision.ABORT),
            summary(6, TransactionState.ACTIVE, decision=None),
        ],
        NOW,
    )
    bars = found.commits.front
    assert [round(bar.x * MINUTES / 100) for bar in bars] == [0, MINUTES - 1]
    assert [bar.height for bar in bars] == [HEIGHT / 2, HEIGHT]
    assert [bar.y + bar.height for bar in bars] == [HEIGHT, HEIGHT]
    assert found.commits.top == "2 a minute"
    assert found.ages.summary == "median 2.0 s, slowest 4.0 s"
    assert [bar.height for bar in found.ages.back] == [12.8, 51.2]
    assert [bar.height for bar in found.ages.front] == [12.8, 38.4]
    assert found.summary == "3 commits decided, 30 rows; 1 aborted"
    assert found.since is None


def test_a_bar_stands_still_while_its_minute_passes():
    """Minutes are the clock's: a commit does not move on with every second."""
    start = NOW - NOW % 60
    one = summary(1, ago=NOW - start - 1)
    places = {hour("orders", [one], start + n).commits.front[0].x for n in (2, 30, 59)}
    assert len(places) == 1
    (later,) = hour("orders", [one], start + 60).commits.front
    assert later.x < places.pop()
    assert later.title.startswith("22:13 UTC")


def test_a_chart_counts_a_delivery_that_took_long():
    """From begin until all have acknowledged, or until now: not to the decision."""
    incident = dataclasses.replace(summary(1, ago=60, took=53), finished=NOW)
    assert hour("orders", [incident], NOW).ages.summary.startswith("median 113 s")
    open_ = summary(2, TransactionState.COMMITTING, ago=780, took=53)
    assert "slowest 14 min" in hour("orders", [open_], NOW).ages.summary


def test_an_hour_with_nothing_and_with_too_much():
    """No commit has no bar; what could not be read whole says so."""
    found = hour("orders", [], NOW)
    assert (found.commits.front, found.ages.front, found.ages.back) == ((), (), ())
    found = hour("orders", [summary(n, ago=60) for n in range(MOST)], NOW)
    assert found.since == NOW - 62


def test_a_fast_clock_and_a_slow_one_do_no_harm():
    """Decided in our future, and before it began."""
    found = hour("orders", [summary(1, ago=-50, took=-3)], NOW)
    assert [bar.height for bar in found.commits.front] == [HEIGHT]
    assert found.ages.front == ()


def test_one_makes_it_for_all_who_ask_at_once():
    """A hundred who look cost what one costs, also when it fails."""
    made, let_go = [], threading.Event()

    def make() -> int:
        let_go.wait(AT_LAST)
        made.append(1)
        raise DecisionLogError("not there")

    shared, failed = CachedByKey(lambda _: make(), PATIENT), []

    def ask() -> None:
        with pytest.raises(DecisionLogError):
            shared.get("key")
        failed.append(1)

    threads = [threading.Thread(target=ask) for _ in range(100)]
    for one in threads:
        one.start()
    let_go.set()
    for one in threads:
        one.join(AT_LAST)
    assert (len(made), len(failed)) == (1, 100)


def test_it_is_made_again_when_it_is_too_old_or_was_changed():
    """By key; keys that nobody asks for make room."""
    time, made = [0.0], []
    shared = CachedByKey(lambda key: made.append(key), 2, 2, clock=lambda: time[0])
    for key, at in (("a", 0), ("a", 1), ("a", 2), ("b", 2), ("c", 2), ("a", 2)):
        time[0] = at
        shared.get(key)
    shared.drop("a")
    shared.get("a")
    assert made == ["a", "a", "b", "c", "a", "a"]


def test_nobody_waits_for_what_takes_long():
    """One thread is at it, however many ask; the last value is there until then."""
    let_go, made = threading.Event(), []

    def make() -> int:
        made.append(1)
        assert let_go.wait(AT_LAST)
        return len(made)

    behind = MadeInBackground(make, 3600)
    assert [behind.latest() for _ in range(50)] == [None] * 50
    let_go.set()
    until(lambda: behind.latest() == 1)
    assert made == [1]
