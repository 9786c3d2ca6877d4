"""All that is known of one transaction, from a real log and real participants."""

from __future__ import annotations

import json
import time

import pytest
from support.texts import texts
from support.waiting import PATIENT
from support.watch import NAMES, SETTINGS, Site, names_of

from tracing_2pc.cli import explain, show
from tracing_2pc.core.errors import DecisionLogError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import ParticipantState, TransactionState
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.inspection.view import TransactionView, view_transaction

TEXTS = texts("component")

T = TransactionId("orders", 7, 1)


def view(at: Site, id_: TransactionId = T) -> TransactionView:
    return view_transaction(at.log, at.observed, id_, SETTINGS, at.time)


def commands(found: TransactionView) -> list[tuple[str, bool]]:
    return [(action.command, action.safe) for action in found.actions]


def test_a_transaction_under_way(at):
    """What the log and each participant hold, in order; nothing is wrong with it."""
    at.begin()
    at.time.time += 2
    at.prepare(T)
    found = view(at)
    assert (found.state, found.decision) == (TransactionState.ACTIVE, None)
    assert found.trace == "a" * 32
    assert found.findings == ()
    assert found.left_alone[0] == "its attempt is active: its driver decides"
    assert [(one.participant, one.state, one.rows) for one in found.participants] == [
        ("ledger", ParticipantState.PREPARED, 3),
        ("notifier", ParticipantState.PREPARED, 3),
    ]
    start = at.time.time - 2
    assert [(event.at - start, event.who, event.what) for event in found.timeline] == [
        (0, "log", "begun, for ledger, notifier; run run"),
        (2, "ledger", "prepared 1 branch, 3 rows"),
        (2, "notifier", "prepared 1 branch, 3 rows"),
    ]
    assert (f"tracing-2pc resolve {T} --abort --reason …", True) in commands(found)
    assert "6 rows" in found.actions[0].cost[0]
    assert [one.at for one in found.next] == [None, start + 900, None]


def test_decided_and_one_participant_down(at):
    """Who has acknowledged, who has not and why, when it goes on, and that it may."""
    at.committing()
    at.log.acknowledge(T, "ledger")
    at.log.postpone(T, "notifier", "nothing listens", at.time.now() + 5)
    at.down("notifier")
    at.time.time += 400
    found = view(at)
    assert names_of(list(found.wrong)) == [(str(T), "stuck")]
    ledger, notifier = found.deliveries
    assert ledger.acknowledged == at.time.now() - 400
    assert (notifier.retries, notifier.error) == (1, "nothing listens")
    assert "nothing listens" in str(found.participants[1].error)
    assert [one.at for one in found.next] == [at.time.now() - 395]
    assert commands(found) == [
        ("tracing-2pc recover --application orders", True),
        (f"tracing-2pc resolve {T} --give-up notifier --reason …", False),
    ]
    assert found.actions[1].cost == (
        "3 rows of the batch may never be committed at notifier",
        "what notifier has prepared stays there until it is resolved there",
    )


def test_before_the_decision_it_is_said_where_it_is_prepared_and_where_not(at):
    """And of one that cannot be read neither, but what the job does about that."""
    at.begin()
    at.prepare(T, "ledger")
    at.time.time += 12
    where = "prepared at ledger; nothing prepared yet at notifier"
    assert explain.summarize(view(at)).endswith(f"not decided; {where}.")
    at.down("notifier")
    found = view(at)
    assert "prepared at ledger; not known of notifier." in explain.summarize(found)
    gives_up = "a task that has not got notifier's vote for 60 s gives up"
    assert any(step.what.startswith(gives_up) for step in found.next)
    assert found.awaited == "notifier's vote"
    waits = "it waits for notifier's vote, for 12 s at most (nothing listens at"
    assert found.left_alone[0].startswith(waits)
    assert found.left_alone[0].endswith("its job gives up in 48 s at the earliest")
    at.time.time += 60
    assert view(at).left_alone[0].endswith("gives up after 60 s without an answer")
    at.log.report_presence("orders", "run", host="h", process=7)
    at.log.report_end("orders", "run", "the disk is full")
    assert view(at).awaited is None, "nobody asks any more"


@pytest.mark.parametrize("tries", [0, 2])
def test_a_commit_that_hangs_says_who_holds_the_application_back(at, tries):
    """Long before it is called stuck, and although nobody notes a try any more."""
    at.committing()
    at.log.acknowledge(T, "ledger")
    decided = at.time.now()
    assert view(at).wrong == (), "it may be under way"
    for _ in range(tries):
        why = "participant 'notifier': no answer within 5 s"
        at.log.postpone(T, "notifier", why, None)
    at.time.time += 5 if tries else 15
    clock = time.strftime("%H:%M:%S", time.gmtime(decided))
    said = f"orders is held back by notifier since {clock} UTC"
    if tries:
        said += " (2 tries; the last answer: no answer within 5 s)"
    found = view(at)
    assert [(str(f.kind), f.why) for f in found.findings] == [("held_back", said)]
    assert said in "\n".join(explain.lines(found, {})).replace("\n  ", " ")
    assert said in "\n".join(show.lines(found, {})).replace("\n  ", " ")
    assert explain.code_of(found) == 1


def test_an_aborted_batch_waits_for_its_query(at):
    """Until another attempt is on record, that is what comes next, on each face."""
    made = at.aborted()
    found = view(at)
    batch, attempt = made.batch, made.attempt + 1
    again, forgotten = (step.what for step in found.next)
    assert again.endswith(f"writes batch {batch} again, as attempt {attempt}")
    shown = "\n".join(explain.lines(found, {}))
    assert f"Batch {batch} waits for its" in shown
    at.begin(batch)
    found = view(at)
    assert [step.what for step in found.next] == [forgotten]
    assert f"Batch {batch} waits for its" not in "\n".join(explain.lines(found, {}))


def test_quarantined_says_what_each_way_out_costs(at):
    """The safe way first; closing it as it is keeps and loses something."""
    at.committing()
    at.worlds["ledger"].resolve(str(T), "abort")
    at.log.quarantine(T, "ledger answered 409 aborted")
    at.time.time += 60
    found = view(at)
    assert found.reason == "ledger answered 409 aborted"
    assert names_of(list(found.wrong)) == [(str(T), "diverged")]
    safe, forced = found.actions
    assert safe.command.startswith(f"tracing-2pc resolve {T} --commit")
    assert (safe.safe, forced.safe) == (True, False)
    assert forced.cost == (
        "notifier keeps 3 rows until it is resolved there",
        "3 rows of the batch are not committed at ledger",
        "3 rows of the batch are not committed at notifier",
    )
    assert found.participants[0].resolved_by_hand


def test_what_a_silent_participant_lacks_is_not_known(at):
    """It may have committed: closing it as it is may cost its rows, or nothing."""
    at.committing()
    at.log.quarantine(T, "ledger answered 409 aborted")
    at.down("ledger")
    _, forced = view(at).actions
    assert forced.cost[1:] == (
        "ledger cannot be read: 3 rows may not be committed there",
        "3 rows of the batch are not committed at notifier",
    )


def test_what_a_person_has_closed_is_wrong_no_more(at):
    """It was looked at, and signed for: the audit has it."""
    at.committing()
    at.worlds["ledger"].resolve(str(T), "abort")
    at.worlds["notifier"].resolve(str(T), "abort")
    at.log.quarantine(T, "ledger answered 409 aborted")
    at.log.conclude(T, "mixed", who="ada", why="both were rolled back")
    at.time.time += 60
    found = view(at)
    assert found.findings == ()
    assert TEXTS["closed as it is"] in found.left_alone


def test_what_persons_did_is_in_the_timeline(at):
    """With their reason, as the audit has it."""
    at.begin()
    at.log.abort(T, who="ada", why="wrong input")
    found = view(at)
    assert ("ada", f"abort {T}: wrong input") in [
        (e.who, e.what) for e in found.timeline
    ]
    assert found.audit[0].who == "ada"


def test_an_orphan_has_no_record_and_no_safe_way(at):
    """What is prepared for another log, or forgotten: only a person can tell."""
    at.prepare("bookings.3.1", "ledger")
    at.time.time += 400
    found = view(at, TransactionId("bookings", 3, 1))
    assert (found.state, found.known) == (None, False)
    assert names_of(list(found.wrong)) == [("bookings.3.1", "orphaned")]
    assert commands(found) == [
        ("tracing-2pc resolve bookings.3.1 --at ledger --abort --reason …", False),
        ("tracing-2pc resolve bookings.3.1 --at ledger --commit --reason …", False),
    ]
    assert found.next[0].what.startswith("nothing")


def test_a_commit_that_arrives_while_we_look_is_no_orphan(at):
    """Who holds what the log has closed is asked again."""
    at.committing()
    at.time.time += 400
    first = at.log.read

    def finish_first(id_: TransactionId) -> object:
        for name in NAMES:
            at.worlds[name].resolve(str(T), "commit")
        at.finish(T)
        at.log.read = first  # type: ignore[method-assign]
        return first(id_)

    at.log.read = finish_first  # type: ignore[method-assign, assignment]
    found = view(at)
    assert found.state is TransactionState.COMMITTED
    assert found.findings == ()
    assert {one.state for one in found.participants} == {ParticipantState.COMMITTED}


def test_times_of_a_participant_are_corrected(at):
    """Its clock is an hour ahead: its events stand where they belong."""
    at.begin()
    at.clocks["ledger"].read = lambda: at.time.now() + 3600
    at.prepare(T)
    found = view(at)
    ledger, notifier = found.participants
    assert ledger.skew == 3600
    assert ledger.branches[0].prepared_at == notifier.branches[0].prepared_at
    assert ledger.oldest == 0


def test_a_view_is_plain_json(at):
    """Ids and words as text: what the command line prints, and a page asks for."""
    at.committing()
    at.time.time += 400
    said = json.loads(json.dumps(view(at).to_json()))
    assert (said["transaction"], said["state"]) == (str(T), "committing")
    assert said["findings"][0]["kind"] == "decided_not_applied"
    assert said["receipts"][0]["branch"] == "0.1"
    assert [r["participant"] for r in said["receipts"]] == ["ledger", "notifier"]
    assert {r["vote"] for r in said["receipts"]} == {"commit"}
    assert said["participants"][0]["holds"]["rows"] == 3
    assert said["timeline"][0]["who"] == "log"
    assert "shown" not in said["participants"][0]


def test_a_log_that_cannot_be_read_is_said(at, tmp_path):
    """Nothing is guessed from participants alone."""
    at.log.close()
    (tmp_path / "log" / "decisions.db").write_bytes(b"no database" * 1000)
    with pytest.raises(DecisionLogError):
        view(at)


def test_an_aborted_transaction_that_is_still_prepared_may_be_aborted(at):
    """The log says so; the participant has been restored from a copy."""
    at.prepare(at.aborted(), "ledger")
    at.time.time += 400
    found = view(at)
    assert names_of(list(found.wrong)) == [(str(T), "orphaned")]
    resolve = f"tracing-2pc resolve {T} --at ledger --abort --reason …"
    assert commands(found) == [(resolve, True)]


def test_what_the_log_has_lost_waits_for_its_query(at):
    """A record of this id can still be written: nobody resolves it by hand."""
    later = TransactionId("orders", 8, 1)
    at.prepare(later, "ledger")
    at.time.time += 400
    found = view(at, later)
    assert commands(found) == []
    assert TEXTS["when it begins"].format(batch=8) in found.next[0].what


def test_a_young_orphan_says_from_when_on_it_may_be_resolved(at):
    """Before that both ways are refused."""
    at.prepare("bookings.3.1", "ledger")
    at.time.time += 60
    found = view(at, TransactionId("bookings", 3, 1))
    assert all(
        action.effect.endswith("refused for another 4 min (orphan_after)")
        for action in found.actions
    )
    assert len(found.actions) == 2


def test_a_token_that_is_missing_is_said_and_the_log_is_shown(at, monkeypatch):
    """As for any participant that cannot be read."""
    at.begin()
    monkeypatch.delenv("TPC_TOKEN", raising=False)
    guarded = HttpParticipant("ledger", "http://127.0.0.1:9", "env:TPC_TOKEN", PATIENT)
    at.observed["ledger"] = guarded
    found = view(at)
    assert found.state is TransactionState.ACTIVE
    assert "TPC_TOKEN is empty; set it" in str(found.participants[0].error)
