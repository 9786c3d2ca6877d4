"""The watcher over a real log and real participants: what it says, and leaves alone."""

from __future__ import annotations

import itertools
import logging
import re
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from opentelemetry.trace import StatusCode
from support.branches import ONE, TRACE
from support.log_tables import fill
from support.participant import World
from support.spark import serving
from support.texts import texts
from support.tracing import span_tree
from support.waiting import AT_LAST, AT_ONCE, PATIENT
from support.watch import NAMES, OVERDUE, SETTINGS, Site, names_of, site

from tracing_2pc.cli.watch import LINES, items, line
from tracing_2pc.core.errors import DecisionLogError, ParticipantUnavailableError
from tracing_2pc.core.model import BranchId, InDoubt, Listing, TransactionId
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, TransactionState, Verdict
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.diagnosis import Finding
from tracing_2pc.inspection.participants import Source, SourceKind, participant_source
from tracing_2pc.operations.watch import observe_sweeps
from tracing_2pc.operations.watcher import HOUR, Sweep, Watcher, next_after
from tracing_2pc.participant.engine import Query
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.recovery import Recovery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.sinks.participant_sink import TracedParticipant
from tracing_2pc.tracing import instruments, transaction
from tracing_2pc.tracing.transaction import OpenTelemetryTracing
from tracing_2pc.wire import reading

TEXTS = texts("log")
T = TransactionId("orders", 7, 1)
LEDGER, NOTIFIER = map(participant_source, ("ledger", "notifier"))
LOG_OF_ORDERS = Source(SourceKind.RECORDS, application="orders")
FILLED = 5_000
BEYOND_ORDERS = Source(SourceKind.SCOPE, "ledger", "orders")


@pytest.fixture(autouse=True)
def _no_longer_observed(monkeypatch) -> None:
    """What a test has measured or exported is not known in the next one."""
    monkeypatch.setattr(instruments, "_observed", dict(instruments._observed))
    monkeypatch.setattr(transaction, "_exported", {})


@pytest.fixture
def at(tmp_path) -> Iterator[Site]:
    with site(tmp_path) as made:
        made.log.initialise("orders", 7)
        yield made


def watching(
    at: Site,
    *,
    recover: bool = False,
    holder: str = "one",
    steady: Callable[[], float] = time.monotonic,
    observe: Sequence[str] = (),
) -> Watcher:
    recovery = None
    if recover:
        told = {n: TracedParticipant(p) for n, p in at.observed.items()}  # type: ignore[arg-type]
        tracing = OpenTelemetryTracing()
        delivery = Delivery(at.log, told, tracing=tracing, retry=RetryPolicy(at.time))
        recovery = Recovery(at.log, delivery, tracing).sweep
    made = Watcher(
        at.log, at.observed, SETTINGS, clock=at.time, pause=at.time.pause,
        recover=recovery, holder=holder, steady=steady,
    )  # fmt: skip
    if observe:
        observe_sweeps(made, observe, at.time)
    return made


def lose(at: Site) -> None:
    """Let the ledger know nothing any more."""
    journal = ("orders_tpc_branch", "orders_tpc_transaction")
    at.write("ledger", *(f"DELETE FROM {table}" for table in journal))


def bind(at: Site, application: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the ledger be asked with a token that is for one application."""
    monkeypatch.setenv("BOUND", "viewer-0123456789abcdef")
    tokens = at.folder / "tokens"
    tokens.write_text(f"viewer viewer-0123456789abcdef {application}\n")
    world = at.worlds["ledger"]
    guarded = World(world.resource, world.visible, tokens=tokens, name="guarded")
    url = at.stack.enter_context(serving(guarded.app))
    at.observed["ledger"] = HttpParticipant("ledger", url, "env:BOUND", PATIENT)


def unread(*findings: Finding) -> dict[TransactionId | Source, str]:
    """Return what could not be read, and why."""
    return {f.about: f.why for f in findings if f.kind is kinds.UNREADABLE}


def changed(sweep: Sweep) -> list[list[tuple[str, str]]]:
    """Return which diagnoses are new, and which are gone."""
    both = (sweep.added, sweep.removed)
    return [names_of([f for f in part if f.verdict is not None]) for part in both]


def said(at: Site) -> list[tuple[str, str]]:
    return names_of(list(watching(at).sweep().diagnoses))


# --- every diagnosis, for real -------------------------------------------------------


def test_all_is_well(at):
    """Nothing to say of an empty log, and none of a young attempt of a driver's."""
    assert watching(at).sweep().clean
    at.begin()
    at.prepare(T)
    at.time.advance(600)
    assert watching(at).sweep().clean, "its driver has its own timeout"


def test_a_participant_that_is_down_is_stuck_and_then_decided_not_applied(at):
    """What the log knows is said while it is down; what it holds once it is back."""
    at.committing()
    at.down("notifier")
    at.log.acknowledge(T, "ledger")
    at.worlds["ledger"].commit(str(T), ONE)
    at.time.advance(400)
    watcher = watching(at)
    sweep = watcher.sweep()
    assert names_of(list(sweep.diagnoses)) == [(str(T), "stuck")]
    assert sweep.diagnoses[0].participants == ("notifier",)
    assert TEXTS["down"] in unread(*sweep.findings)[NOTIFIER]
    at.up("notifier")
    sweep = watcher.sweep()
    assert changed(sweep) == [[(str(T), "decided_not_applied")], [(str(T), "stuck")]]
    assert list(unread(*sweep.removed)) == [NOTIFIER]
    assert sweep.diagnoses[0].verdict is Verdict.FINISH


@pytest.mark.parametrize("looks", [1, 2], ids=["before the pause", "in the pause"])
def test_a_participant_that_ends_is_to_be_started_not_its_database(at, looks):
    """Cause and cure are of one look, whichever look it ended before."""
    if looks == 1:
        at.down("notifier")
    else:
        at.time.at_pause.append(lambda: at.down("notifier"))
    (finding,) = watching(at).sweep().findings
    assert TEXTS["down"] in finding.why
    assert TEXTS["start it"] in finding.cure


def test_another_cause_is_printed_again_and_the_same_is_not(at, monkeypatch):
    """A cure that no longer helps does not stand as the last line of an outage."""
    at.down("notifier")
    watcher = watching(at)
    (first,) = watcher.sweep().added
    again = watcher.sweep()
    assert (again.added, again.changed, list(items(again))) == ((), (), [])
    at.up("notifier")
    resource = at.worlds["notifier"].resource

    def broken(_: Query) -> Any:
        raise RuntimeError("a bug")

    monkeypatch.setattr(resource, "list_open", broken)
    sweep = watcher.sweep()
    (changed,) = sweep.changed
    assert (sweep.added, sweep.removed) == ((), ())
    assert changed.about == first.about
    assert (changed.why, changed.cure) != (first.why, first.cure)
    assert [item["event"] for item in items(sweep)] == ["unreadable"]


def test_a_journal_that_is_removed_behind_our_back_is_lost(at):
    """Before anybody delivers, and before it counts as stuck."""
    at.committing()
    lose(at)
    at.time.advance(30)
    (found,) = watching(at).sweep().diagnoses
    assert (str(found.kind), found.participants) == ("lost", ("ledger",))
    assert str(found.severity) == "critical"
    assert TEXTS["says unknown"].format(name="ledger") in found.why


def test_what_the_log_forgets_while_we_look_is_not_lost(at):
    """410 means something only while the log has not finished it."""
    at.committing()
    at.time.advance(30)

    def finish() -> None:
        for name in NAMES:
            assert at.worlds[name].commit(str(T), ONE).status_code == 200
            at.log.acknowledge(T, name)
            assert (
                at.worlds[name].commit("orders.9.1", forgotten_through=8).status_code
                == 200
            )
        at.log.finish(T)

    at.time.at_pause.append(finish)
    assert said(at) == []


@pytest.mark.parametrize(
    ("transaction", "verdict", "why"),
    [
        ("bookings.3.1", Verdict.LEAVE, "of another log"),
        ("orders.3.1", Verdict.ESCALATE, "forgotten"),
    ],
)
def test_prepared_without_a_record_is_orphaned(at, transaction, verdict, why):
    """Said, with a remark: another log's, or nobody knows any more what was decided."""
    at.prepare(transaction, "ledger")
    at.time.advance(200)
    assert said(at) == []
    at.time.advance(200)
    (found,) = watching(at).sweep().diagnoses
    assert (str(found.kind), found.participants) == ("orphaned", ("ledger",))
    assert found.verdict is verdict
    assert TEXTS[why].format(batch=6) in found.why


def test_one_committed_by_hand_and_another_aborted_is_diverged(at):
    """Against each other, and so against the decision: always critical."""
    at.committing()
    assert at.worlds["ledger"].resolve(str(T), "commit").status_code == 200
    assert at.worlds["notifier"].resolve(str(T), "abort").status_code == 200
    at.time.advance(30)
    (found,) = watching(at).sweep().diagnoses
    assert (str(found.kind), found.participants) == ("diverged", ("notifier",))
    assert found.why == TEXTS["contradicted"].format(name="notifier")


# --- what is left alone --------------------------------------------------------------


def test_a_prepare_that_lands_after_the_first_look_is_not_spoken_of(at):
    """Even if its clock says that it is old: it was not in both lists."""

    def land() -> None:
        with at.time.earlier(4000):
            at.prepare("bookings.3.1", "ledger")

    at.time.at_pause.append(land)
    watcher = watching(at)
    assert watcher.sweep().diagnoses == ()
    at.time.at_pause.clear()
    assert names_of(list(watcher.sweep().diagnoses)) == [("bookings.3.1", "orphaned")]


def test_what_begins_after_the_log_was_read_is_no_orphan(at, monkeypatch):
    """The lists come first: what is in them and not in the log is never too new."""
    real = at.log.unfinished_applications

    def then_begin() -> list[str]:
        found = real()
        at.begin()
        with at.time.earlier(4000):
            at.prepare(T, "ledger")
        return found

    monkeypatch.setattr(at.log, "unfinished_applications", then_begin)
    assert said(at) == []


def test_a_list_that_fails_on_page_2_says_nothing(at, monkeypatch):
    """Half a list is no evidence, of what is in it neither; the others still count."""
    monkeypatch.setattr(reading, "PAGE", 1)
    for name in NAMES:
        at.prepare("bookings.3.1", name)
        at.prepare("bookings.4.1", name)
    at.time.advance(400)
    ledger = at.worlds["ledger"].resource
    real = ledger.list_open

    def fails_later(query: Query) -> Any:
        if query.after:
            raise RuntimeError("a bug")
        return real(query)

    monkeypatch.setattr(ledger, "list_open", fails_later)
    sweep = watching(at).sweep()
    assert "answered 500" in unread(*sweep.findings)[LEDGER]
    assert {one.participants for one in sweep.diagnoses} == {("notifier",)}


def test_a_commit_that_hangs_is_named_before_it_is_stuck(at: Site) -> None:
    """Once, with who it waits for since when; nothing else is wrong yet."""
    watcher = watching(at)
    id_ = at.committing()
    at.log.acknowledge(id_, "ledger")
    assert watcher.sweep().clean
    at.log.postpone(id_, "notifier", "answered 503", None)
    sweep = watcher.sweep()
    assert (sweep.clean, sweep.diagnoses) == (False, ())
    (told,) = items(sweep)
    assert (told["event"], told["where"]) == ("waiting", str(id_))
    assert told["why"].startswith(TEXTS["held back"].format(name="notifier"))
    assert line(told).endswith(TEXTS["last answer"].format(answer="answered 503"))
    assert list(items(watcher.sweep())) == [], "it is said once"


def test_a_participant_that_hangs_holds_up_no_other(at):
    """It takes connections and never answers: a sweep ends without it."""
    at.prepare("bookings.3.1", "notifier")
    at.time.advance(400)
    with socket.create_server(("127.0.0.1", 0)) as hanging:
        url = f"http://127.0.0.1:{hanging.getsockname()[1]}"
        at.observed["ledger"] = HttpParticipant("ledger", url, None, AT_ONCE)
        sweep = watching(at).sweep()
    said = unread(*sweep.findings)[LEDGER]
    assert re.search(TEXTS["no answer"].format(seconds=AT_ONCE), said)
    assert names_of(list(sweep.diagnoses)) == [("bookings.3.1", "orphaned")]


def test_a_participant_that_is_down_keeps_what_was_said_of_it(at):
    """An orphan has not gone because nobody can look at it now."""
    at.prepare("bookings.3.1", "ledger")
    at.time.advance(400)
    watcher = watching(at)
    assert len(watcher.sweep().added) == 1
    at.down("ledger")
    sweep = watcher.sweep()
    assert changed(sweep) == [[], []]
    assert names_of(list(sweep.diagnoses)) == [("bookings.3.1", "orphaned")]
    at.up("ledger")
    at.worlds["ledger"].resolve("bookings.3.1", "abort")
    assert changed(watcher.sweep())[1] == [("bookings.3.1", "orphaned")]


def test_who_is_waited_for_without_an_address_is_named_at_once(at):
    """Long before it is stuck: nobody here can ask it, whatever it holds."""
    at.committing()
    del at.observed["notifier"]
    watcher = watching(at)
    assert watcher.sweep().clean, "its driver may be at it"
    at.time.advance(SETTINGS.safety_interval)
    sweep = watcher.sweep()
    assert list(unread(*sweep.added)) == [NOTIFIER]
    assert TEXTS["no address"] in unread(*sweep.findings)[NOTIFIER]
    assert not sweep.diagnoses
    at.committing(8)
    at.time.advance(SETTINGS.safety_interval)
    assert TEXTS["no address for two"] in unread(*watcher.sweep().findings)[NOTIFIER]


def test_a_token_that_is_bound_to_an_application_sees_that_one_and_says_so(
    at, monkeypatch
):
    """Of that one everything is told; that there may be more is told, too."""
    at.log.initialise("sales", 3)
    sold = at.begin(3, application="sales").id
    at.prepare(sold)
    at.decide(sold)
    at.time.advance(1)
    at.committing()
    lose(at)
    at.prepare("foreign.1.1", "ledger")
    at.time.advance(400)
    bind(at, "orders", monkeypatch)
    watcher = watching(at)
    sweep = watcher.sweep()
    assert list(unread(*sweep.findings)) == [BEYOND_ORDERS]
    assert TEXTS["bound"] in unread(*sweep.findings)[BEYOND_ORDERS]
    assert not sweep.clean
    assert "ledger" in watcher.succeeded
    assert (str(T), "lost") in names_of(list(sweep.diagnoses))
    assert "foreign.1.1" not in str(sweep.diagnoses)


def test_a_clock_that_is_set_back_is_said_and_what_was_watched_stays_stuck(at):
    """What was watched is no younger for it; a young attempt is left alone."""
    steady = [0.0]
    at.committing()
    for name in NAMES:
        at.down(name)
    watcher = watching(at, steady=lambda: steady[0])

    def found() -> list[tuple[str, str]]:
        return names_of(list(watcher.sweep().diagnoses))

    assert found() == []
    steady[0] += 400
    at.time.advance(400)
    assert found() == [(str(T), "stuck")]
    at.time.time -= 7200
    assert found() == [(str(T), "stuck")]
    said = unread(*watcher.last.findings)[Source(SourceKind.CLOCK)]
    assert TEXTS["clock set back"] in said
    assert not watching(at).sweep().diagnoses, "who has watched nothing knows nothing"
    at.begin(8)
    steady[0] += 60
    assert found() == [(str(T), "stuck")]


def test_what_gets_on_after_the_clock_was_set_back_is_not_stuck(at):
    """A decision, an acknowledgement: by the clock it was before the step before it."""
    steady = [0.0]
    id_ = at.begin().id
    at.prepare(id_)
    watcher = watching(at, steady=lambda: steady[0])
    assert watcher.sweep().clean
    steady[0] += 400
    at.time.advance(400)
    assert watcher.sweep().clean, "its driver has its own timeout"
    at.time.time -= 7200
    at.decide(id_)
    assert watcher.sweep().diagnoses == ()
    steady[0] += 400
    assert names_of(list(watcher.sweep().diagnoses)) == [(str(id_), "stuck")]
    at.worlds["ledger"].commit(str(id_), ONE)
    at.log.acknowledge(id_, "ledger")
    assert watcher.sweep().diagnoses == ()


def test_a_token_that_is_bound_meanwhile_makes_nothing_well(at, monkeypatch):
    """What was said of other applications stays: nobody has looked at it again."""
    at.committing()
    lose(at)
    at.prepare("foreign.1.1", "ledger")
    at.prepare("sales.1.1", "ledger")
    at.time.advance(400)
    watcher = watching(at)
    before = set(names_of(list(watcher.sweep().diagnoses)))
    assert before >= {
        (str(T), "lost"), ("foreign.1.1", "orphaned"), ("sales.1.1", "orphaned")
    }  # fmt: skip
    bind(at, "sales", monkeypatch)
    assert not watcher.sweep().removed
    at.worlds["ledger"].abort("sales.1.1")
    assert names_of(list(watcher.sweep().removed)) == [("sales.1.1", "orphaned")]


def test_without_the_log_nothing_is_said(at, measured):
    """No record that can be read: leave alone; its heartbeat stands still."""
    at.prepare("bookings.3.1", "ledger")
    at.time.advance(400)
    watcher = watching(at, observe=NAMES)
    watcher.sweep()
    before = at.time.time
    heart = 'tpc_watcher_last_success_timestamp_seconds{participant="%s"}'
    assert measured()[heart % "log"] == before
    at.prepare("bookings.4.1", "ledger")
    at.time.advance(400)
    file = Path(str(at.base.url.database))
    at.base.close()
    for left in file.parent.iterdir():
        left.unlink()
    file.write_bytes(b"no database" * 1000)
    sweep = watcher.sweep()
    assert changed(sweep) == [[], []]
    assert "decision log" in unread(*sweep.findings)[Source(SourceKind.LOG)]
    assert measured()[heart % "log"] == before
    assert measured()[heart % "ledger"] == at.time.time


def test_a_participant_whose_address_leads_to_another_counts_as_unread(
    at: Site,
) -> None:
    """Nothing is known of the one that was meant: the alert on one not read fires."""
    watcher = watching(at)
    watcher.sweep()
    before = at.time.time
    at.observed["notifier"] = at.observed["ledger"]
    at.time.advance(60)
    findings = watcher.sweep().findings
    assert [(f.about, f.kind) for f in findings] == [(NOTIFIER, kinds.MISDIRECTED)]
    assert watcher.succeeded["notifier"] == before
    assert watcher.succeeded["ledger"] == at.time.time


@pytest.mark.parametrize(
    "edit", ["tpc_transaction SET run = 'x'", "tpc_delivery SET acknowledged = 0"]
)
def test_a_record_that_cannot_be_trusted_is_told(at, edit):
    """Its application is blocked: silence about it is no good news, nor forgets any.

    Nothing is guessed of it; of another application everything is said.
    """
    at.committing()
    at.prepare("bookings.3.1", "ledger")
    at.time.advance(1000)
    watcher = watching(at)
    before = [d for d in watcher.sweep().diagnoses if d.transaction == T]
    with at.base.write() as connection:
        connection.execute(sa.text(f"UPDATE {edit}"))
    sweep = watcher.sweep()
    assert list(unread(*sweep.added)) == [LOG_OF_ORDERS]
    assert str(T) in unread(*sweep.findings)[LOG_OF_ORDERS]
    assert [d for d in sweep.diagnoses if d.transaction == T] == before != []
    assert sweep.removed == ()
    assert watcher.succeeded["log"] == at.time.time
    fresh = watching(at).sweep()
    assert names_of(list(fresh.diagnoses)) == [("bookings.3.1", "orphaned")]
    assert not fresh.clean


def test_quarantined_is_counted_and_has_no_verdict(at: Site, measured: Any) -> None:
    """A person must decide; what else is wrong with it is still looked at."""
    at.committing()
    at.log.quarantine(T, "for a test")
    at.time.advance(1000)
    watcher = watching(at, observe=NAMES)
    sweep = watcher.sweep()
    assert names_of(list(sweep.findings)) == [(str(T), "quarantined")]
    assert sweep.diagnoses == ()
    assert measured()['tpc_quarantined_transactions{application="orders"}'] == 1
    at.worlds["ledger"].resolve(str(T), "abort")
    assert names_of(list(watcher.sweep().added)) == [(str(T), "diverged")]


# --- recovery ------------------------------------------------------------------------


def test_recover_finishes_what_is_decided_and_aborts_what_ran_out_of_time(at):
    """Through the log, as `tracing-2pc recover` does; a young attempt is left alone."""
    at.committing()
    old = at.begin(0, application="bookings").id
    at.prepare(old)
    at.time.advance(1000)
    young = at.begin(8, run="next").id
    watcher = watching(at, recover=True)
    watcher.sweep()
    states = {str(r.id): r.state for r in at.log.unfinished()}
    assert states == {str(young): TransactionState.ACTIVE}
    for name in NAMES:
        shown = at.observed[name].show
        assert [str(shown(t).state) for t in (T, old)] == ["committed", "aborted"]
    assert watcher.sweep().diagnoses == ()


def test_two_watchers_at_once_recover_everything_once(at):
    """The holder of an application's lease recovers it; nobody gets an error."""
    ids = []
    for application in ("bookings", "orders", "returns"):
        for batch in range(3):
            first = batch if application != "orders" else batch + 7
            record = at.begin(first, application=application)
            at.prepare(record.id)
            at.decide(record.id)
            ids.append(record.id)
    at.time.advance(30)
    watchers = [watching(at, recover=True, holder=holder) for holder in ("one", "two")]
    sweeps: list[Sweep] = []
    threads = [
        threading.Thread(target=lambda w=w: sweeps.append(w.sweep())) for w in watchers
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(AT_LAST)
    assert len(sweeps) == 2
    handled = [str(r.record.id) for sweep in sweeps for r in sweep.recovered]
    assert sorted(handled) == sorted(map(str, ids)), "each by one of them"
    assert all(item.done for sweep in sweeps for item in sweep.recovered)
    assert at.log.unfinished() == []


def test_who_dies_with_a_lease_is_replaced(at):
    """It ends by itself; and at once where a watcher stops."""
    at.committing()
    at.time.advance(30)
    assert at.log.take_lease("orders", "dead", 120)
    other = watching(at, recover=True, holder="other")
    assert other.sweep().recovered == ()
    at.time.advance(120)
    assert [item.done for item in other.sweep().recovered] == [True]
    other.stop()
    assert at.log.take_lease("orders", "next", 120)


# --- what is told --------------------------------------------------------------------


def test_a_diagnosis_is_told_when_it_appears_and_when_it_goes(at, caplog):
    """Once each, as a line, as an object, and in the log with its ids."""
    at.prepare("bookings.3.1", "ledger")
    at.time.advance(400)
    watcher = watching(at)
    with caplog.at_level(logging.INFO, "tracing_2pc.operations.watcher"):
        (found,) = items(watcher.sweep())
        assert list(items(watcher.sweep())) == []
    (logged,) = [
        r for r in caplog.records if r.name == "tracing_2pc.operations.watcher"
    ]
    assert logged.getMessage() == (
        "found: transaction=bookings.3.1 diagnosis=orphaned verdict=leave"
    )
    assert logged.__dict__["tpc_transaction_id"] == "bookings.3.1"
    assert (found["event"], found["kind"]) == ("found", "orphaned")
    assert found["verdict"] == "leave"
    assert TEXTS["found"] in line(found)
    at.worlds["ledger"].resolve("bookings.3.1", "abort")
    (gone,) = items(watcher.sweep())
    assert line(gone).endswith(TEXTS["gone"])


def labels(application: str, diagnosis: str, participant: str) -> str:
    return (
        f'{{application="{application}",diagnosis="{diagnosis}",'
        f'participant="{participant}"}}'
    )


class Many:
    """A participant with ten thousand orphans."""

    name = "ledger"

    def prepared(self, application: str | None = None) -> Listing:
        return Listing(
            tuple(
                InDoubt(
                    TransactionId("bookings", n, 1), BranchId(0, 1), 400.0, 1, TRACE
                )
                for n in range(10_000)
            )
        )

    def show(self, transaction: TransactionId, journal: str | None = None) -> Any:
        raise ParticipantUnavailableError("not asked")


def test_ten_thousand_orphans(at, measured, exported, caplog):
    """Counted; lines, spans and labels are bounded."""
    at.observed = {"ledger": Many()}
    watcher = watching(at, observe=["ledger"])
    caplog.set_level(logging.INFO)
    sweep = watcher.sweep()
    assert len(sweep.diagnoses) == 10_000
    told = list(items(sweep))
    assert len(told) == LINES + 1
    assert told[-1]["more"] == 10_000 - LINES
    assert line(told[-1]).endswith(TEXTS["more"].format(count=10_000 - LINES))
    assert len([r for r in caplog.records if r.msg.startswith("found")]) == 100
    assert len([s for s in exported() if s.name == "tpc.in_doubt.snapshot"]) == 100
    diagnoses = {k: v for k, v in measured().items() if k.startswith("tpc_diagnoses")}
    assert len(diagnoses) == 5 * 2
    orphaned = f"tpc_diagnoses{labels('bookings', 'orphaned', 'ledger')}"
    assert diagnoses.pop(orphaned) == 10_000
    assert set(diagnoses.values()) == {0.0}


def test_measurements_are_there_from_the_start_and_cost_no_statement(at, measured):
    """Every combination, so that an alert resolves; ages grow between two sweeps."""
    watcher = watching(at, observe=NAMES)
    assert measured()[f"tpc_diagnoses{labels('', 'lost', 'notifier')}"] == 0
    assert measured()['tpc_quarantined_transactions{application=""}'] == 0
    age = 'tpc_oldest_unfinished_age_seconds{state="committing"}'
    assert measured()[age] == 0
    at.committing()
    at.time.advance(100)
    watcher.sweep()
    at.time.advance(11)
    asked: list[object] = []

    def note(*statement: object) -> None:
        asked.append(statement)

    sa.event.listen(at.base.engine, "before_cursor_execute", note)
    now = measured()
    assert not asked
    assert now['tpc_unfinished_transactions{state="committing"}'] == 1
    assert now['tpc_unfinished_transactions{state="active"}'] == 0
    assert now[age] == 100 + SETTINGS.pause + 11


def test_a_participant_without_an_address_is_counted_as_other(at, measured):
    """Labels are configured names, and nothing else that a record may say."""
    at.committing()
    at.time.advance(400)
    del at.observed["notifier"]
    watcher = watching(at, observe=["ledger"])
    watcher.sweep()
    found = {k for k, v in measured().items() if v and k.startswith("tpc_diagnoses")}
    assert found == {
        f"tpc_diagnoses{labels('orders', 'decided_not_applied', 'ledger')}"
    }


def test_an_age_is_the_transactions_own_whatever_its_diagnosis_is_called(at, measured):
    """It goes on from *stuck* to *decided not applied*; a batch of hours adds none."""
    before = "tpc_oldest_diagnosed_age_seconds"
    record = at.begin()
    at.prepare(record.id)
    at.time.advance(1800)
    at.decide(record.id)
    at.down("notifier")
    at.log.acknowledge(record.id, "ledger")
    at.worlds["ledger"].commit(str(record.id), ONE)
    watcher = watching(at, observe=NAMES)
    watcher.sweep()
    assert not [k for k in measured() if k.startswith(before)], "nothing is wrong yet"
    at.time.advance(400)
    watcher.sweep()
    at.time.advance(30)
    since = 1 + 400 + 1 + 30
    assert measured()[before + labels("orders", "stuck", "notifier")] == since
    at.up("notifier")
    at.time.advance(20)
    watcher.sweep()
    ages = {k: v for k, v in measured().items() if k.startswith(before)}
    now = labels("orders", "decided_not_applied", "notifier")
    assert ages == {before + now: since + 20 + 1}


def test_a_commit_that_is_not_acknowledged_has_an_age_as_it_was_read(at, measured):
    """From 10 s on, and no older until the log is read again; then it is gone."""
    pending = 'tpc_oldest_pending_age_seconds{application="orders",participant="%s"}'
    at.committing()
    watcher = watching(at, observe=NAMES)
    watcher.sweep()
    assert not [k for k in measured() if "pending" in k], "it may be under way"
    at.time.advance(20)
    watcher.sweep()
    at.time.advance(30)
    assert measured()[pending % "ledger"] == measured()[pending % "notifier"] == 21
    at.log.acknowledge(T, "ledger")
    watcher.sweep()
    assert [k for k in measured() if "pending" in k] == [pending % "notifier"]
    assert measured()[pending % "notifier"] == 52


def test_a_job_that_is_down_has_an_age(at, measured):
    """It grows between two sweeps, and is 0 for what runs or was stopped."""
    down = 'tpc_job_down_age_seconds{application="%s"}'
    watcher = watching(at, observe=NAMES)
    for name in ("orders", "totals", "sales"):
        at.log.report_presence(name, "r", host="h", process=7)
    at.log.report_end("totals", "r")
    at.log.report_end("sales", "r", "the disk is full")
    at.time.advance(60)
    added = {(str(f.about), str(f.kind)) for f in watcher.sweep().added}
    assert added == {("orders", "job_gone"), ("sales", "job_failed")}
    at.time.advance(10)
    ages = measured()
    assert [ages[down % n] for n in ("orders", "totals", "sales")] == [70, 0, 70]
    at.log.report_presence("orders", "r2", host="h", process=8)
    gone = watcher.sweep().removed
    assert [str(finding.about) for finding in gone] == ["orders"]
    assert measured()[down % "orders"] == 0


def test_what_was_said_of_a_job_stays_while_the_log_cannot_be_read(at, monkeypatch):
    """No answer is no evidence, neither for it nor against."""
    watcher = watching(at)
    at.log.report_presence("orders", "r", host="h", process=7)
    at.time.advance(60)
    assert [str(f.kind) for f in watcher.sweep().findings] == ["job_gone"]

    def refuse(_: object) -> None:
        raise DecisionLogError("no answer")

    down = watcher.last.down
    monkeypatch.setattr(at.log, "presences", refuse)
    sweep = watcher.sweep()
    assert {str(f.kind) for f in sweep.findings} == {"job_gone", "unreadable"}
    assert (sweep.removed, sweep.down) == ((), down)


def test_applications_are_named_in_metrics_up_to_a_number(at, measured):
    """The rest counts as other: no name from outside makes series without end."""
    for number in range(25):
        at.prepare(f"foreign{number}.1.1", "ledger")
    at.time.advance(400)
    watcher = watching(at, observe=NAMES)
    watcher.sweep()
    found = {k: v for k, v in measured().items() if v and k.startswith("tpc_diagnoses")}
    other = f"tpc_diagnoses{labels('other', 'orphaned', 'ledger')}"
    assert found.pop(other) == 5
    assert set(found.values()) == {1.0}
    assert len(found) == 20


# --- snapshots -----------------------------------------------------------------------


def test_what_is_stuck_is_seen_in_its_own_trace(at, exported):
    """At 1, 2, 4 … times the threshold; a moment, an id each, below the root."""
    at.begin()
    at.decide(T, Decision.ABORT)
    for name in NAMES:
        at.down(name)
    watcher = watching(at)
    begun = at.time.time
    while at.time.time < begun + 1300:
        watcher.sweep()
        at.time.advance(49)
    spans = [s for s in exported() if s.name == "tpc.in_doubt.snapshot"]
    ages = [int(s.attributes["tpc.age"]) for s in spans]
    assert [age // 300 for age in ages] == [1, 2, 4]
    assert len({s.context.span_id for s in spans}) == 3
    for span in spans:
        assert 0 < span.end_time - span.start_time <= 1_000  # nanoseconds
        assert f"{span.context.trace_id:032x}" == "a" * 32
        assert f"{span.parent.span_id:016x}" == "b" * 16
        assert span.attributes["tpc.diagnosis"] == "stuck"
        assert span.attributes["tpc.waits_for"] == "ledger, notifier"
        assert span.status.status_code is StatusCode.ERROR


@pytest.mark.parametrize("decision", [Decision.ABORT, None])
def test_what_is_stuck_has_its_root(at, exported, monkeypatch, decision):
    """Its driver is dead, and with it the root: the watcher has the record.

    There is one, also where another process decides and finishes it later.
    """
    at.begin()
    if decision is not None:
        at.decide(T, decision)
    for name in NAMES:
        at.down(name)
    at.time.advance(2000)
    watching(at).sweep()
    assert span_tree(s for s in exported() if s.name != "tpc.recovery") == [
        "tpc.transaction",
        "  tpc.in_doubt.snapshot",
    ]
    monkeypatch.setattr(transaction, "_exported", {})
    for name in NAMES:
        at.up(name)
    watching(at, recover=True).sweep()
    first, second = (s for s in exported() if s.name == "tpc.transaction")
    assert first.to_json() == second.to_json()
    finish = next(s for s in exported() if s.name == "tpc.finish")
    assert finish.attributes["tpc.outcome"] == "aborted"
    assert finish.attributes["tpc.recovered"] is True


@pytest.mark.parametrize(("flags", "days"), [("00", 0), ("01", 2), (None, 0)])
def test_a_snapshot_may_be_a_trace_of_its_own(at, exported, flags, days):
    """Of a transaction that is not sampled, which is stuck all the same, and after a
    day, so that no trace grows for ever. Always sampled, and linked; but what is not
    traced gets none: a span without a root would be a trace that nobody can place.
    """
    carrier = {"traceparent": f"00-{'a' * 32}-{'b' * 16}-{flags}"} if flags else {}
    named = {"run": "r", "query": None, "participants": NAMES, "carrier": carrier}
    at.log.begin("bookings", 0, Opening(timeout=OVERDUE, **named))
    at.time.advance(2000 + days * 24 * HOUR)
    assert said(at) == [("bookings.0.1", "stuck")]
    spans = [s for s in exported() if s.name == "tpc.in_doubt.snapshot"]
    assert len(spans) == (flags is not None)
    for span in spans:
        assert span.parent is None
        assert span.context.trace_flags.sampled
        assert f"{span.context.trace_id:032x}" != "a" * 32
        assert [f"{link.context.trace_id:032x}" for link in span.links] == ["a" * 32]
        assert span.attributes["tpc.transaction.id"] == "bookings.0.1"
        assert span.attributes["tpc.waits_for"] == "ledger, notifier"


def test_snapshots_are_an_hour_apart_at_most():
    """Doubling would end in silence, and a span a minute in noise."""
    ages = [300.0]
    while ages[-1] < 10 * HOUR:
        ages.append(next_after(ages[-1], 300.0))
    assert ages[:5] == [300, 600, 1200, 2400, 4800]
    assert {b - a for a, b in itertools.pairwise(ages[4:])} == {HOUR}
    assert next_after(30.0, 300.0) == 300.0
    assert next_after(1e9, 300.0) == 1e9 + HOUR


# --- cost ----------------------------------------------------------------------------


def test_a_sweep_does_not_read_what_is_finished(at):
    """As many statements, and as many rows, whatever else the log holds."""
    at.committing(FILLED + 1)
    at.time.advance(100)

    def cost() -> int:
        seen: list[str] = []

        def note(_: Any, __: Any, statement: str, *___: Any) -> None:
            seen.append(statement)

        engine = at.base.read_engine
        sa.event.listen(engine, "before_cursor_execute", note)
        watching(at).sweep()
        sa.event.remove(engine, "before_cursor_execute", note)
        return len(seen)

    before = cost()
    fill(at.base, FILLED, "aborted")
    assert cost() == before
    assert before < 12


def test_a_try_that_fails_as_before_is_told_once(at):
    """A participant that is down all night is one line, not one a minute."""
    at.committing()
    at.down("notifier")
    at.begin(8, run="next")
    watcher = watching(at, recover=True)
    at.time.advance(30)
    told = [[item["event"] for item in items(watcher.sweep())] for _ in range(3)]
    assert told == [["unreadable", "waiting", "tried"], [], []]


def test_a_log_that_takes_no_writes_counts_as_failing(at, monkeypatch):
    """It is read, and decides nothing: the alert of a log that cannot be read fires."""
    watcher = watching(at)
    watcher.sweep()
    read = watcher.succeeded["log"]
    monkeypatch.setattr(at.log, "read_only_reason", lambda: "read-only")
    at.time.advance(SETTINGS.sweep)
    (finding,) = watcher.sweep().findings
    assert finding.kind is kinds.LOG_READ_ONLY
    assert watcher.succeeded["log"] == read
