"""The forms of actions that stand by themselves: filled in, confirmed, done."""

from __future__ import annotations

import json
import uuid

from support.console import (
    BOUND,
    DONE,
    OPERATOR,
    STUCK,
    VIEWER,
    Visitor,
    console_of,
    signed_by_hand,
    state_of,
    text_of,
    visitor,
)
from support.texts import texts
from support.watch import NAMES

from tracing_2pc.console import state
from tracing_2pc.core.access import TokenGate
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.inbox import Inbox, NewEvent
from tracing_2pc.operations.actions import ACTIONS
from tracing_2pc.testing import temporary_log

TEXTS = texts("console")
FORMS = [action for action in ACTIONS if action.title]


def test_each_action_has_a_form_with_the_fields_of_its_command(operator):
    """Listed on one page; of an application, its page leads there with its name."""
    listed = operator.get("/actions")
    for action in FORMS:
        path = f"/actions/{action.slug}"
        assert f'href="{path}"' in listed
        page = operator.get(f"{path}?application=orders")
        for argument in action.arguments:
            assert (f'name="{argument.name}"' in page) is not argument.terminal_only
    page = operator.get("/applications/orders")
    assert 'href="/actions/forget?application=orders"' in page
    assert 'href="/actions/recover?application=orders"' in page
    assert 'href="/actions/adopt?' not in page, "the log knows it"


def test_a_viewer_is_shown_no_form_and_does_nothing(viewer, at):
    """Neither step is taken without an operator's token."""
    for action in FORMS:
        path = f"/actions/{action.slug}"
        page = viewer.get(path)
        assert f'action="{path}/confirm"' not in page
        for step in ("confirm", "do"):
            answer = viewer.post(f"{path}/{step}", application="orders", before="0s")
            assert answer.status_code == 403


def test_what_is_old_is_forgotten_once_its_number_is_typed(operator, at):
    """The first step counts, and fixes the moment; the number is theirs."""
    at.up("notifier")
    operator.resolve(STUCK, "commit")
    at.time.advance(10)
    fields = operator.begin("forget", application="orders", before="1s")
    assert at.log.read(TransactionId.parse(DONE)) is not None
    answer = operator.post("/actions/forget/do", **fields)
    assert answer.status_code == 400, "nobody has typed the number"
    at.time.advance(60)
    answer = operator.post("/actions/forget/do", **fields, number="1")
    assert (answer.status_code, answer.location) == (303, "/applications/orders")
    assert "1 transaction of orders forgotten" in operator.get(answer.location)
    assert at.log.read(TransactionId.parse(DONE)) is None
    assert at.log.read(TransactionId.parse(STUCK)) is not None
    answer = operator.post("/actions/forget/do", **fields, number="0")
    assert answer.status_code == 303, "sent again, it forgets nothing"


def test_what_has_changed_since_is_shown_again(operator, at):
    """Another one was forgotten meanwhile: the number is another one."""
    at.up("notifier")
    operator.resolve(STUCK, "commit")
    third = at.committing(9)
    for name in ("ledger", "notifier"):
        at.commit(third, name)
    at.log.finish(third)
    at.time.advance(10)
    fields = operator.begin("forget", application="orders", before="1s")
    at.log.forget("orders", finished_before=at.time.now(), limit=1)
    answer = operator.post("/actions/forget/do", **fields, number="2")
    assert TEXTS["changed since"] in text_of(answer, 409)


def test_nothing_old_is_said_and_a_wrong_field_is_named(operator):
    """Before anything is asked, and with what it should be."""
    for fields, code, said in (
        ({"application": "orders", "before": "9d"}, 409, "nothing of orders finished"),
        ({"application": "orders", "before": "soon"}, 400, "expected how long ago"),
        ({"application": "orders"}, 400, "before: say"),
        ({"application": "nobody", "before": "1s"}, 409, "no application"),
        ({"application": "No!", "before": "1s"}, 400, "lower-case"),
    ):
        answer = operator.post("/actions/forget/confirm", **fields)
        assert said in text_of(answer, code)
    assert operator.post("/actions/no-such/confirm").status_code == 404


def test_a_log_that_cannot_be_read_is_named_and_nothing_else_of_it(operator, at):
    """503, as on any page: no SQL, no path; and nothing was done."""
    at.log.close()
    file = at.folder / "log" / "decisions.db"
    file.write_bytes(b"no database" * 1000)
    for beside in ("-wal", "-shm"):  # a page of the console may have kept them open
        file.with_name(file.name + beside).unlink(missing_ok=True)
    for slug, fields in (
        ("forget", {"application": "orders", "before": "1s"}),
        ("resolve", {"transaction": STUCK, "commit": "yes", "reason": "r"}),
    ):
        page = text_of(operator.post(f"/actions/{slug}/confirm", **fields), 503)
        assert TEXTS["no log"] in page
        for secret in ("SELECT", "sqlite", "decisions.db"):
            assert secret not in page


def test_what_is_decided_is_finished_from_the_browser(at, monkeypatch):
    """As `recover` does, by the settings; what is left is said, and is a warning."""
    for name in ("LOG_EVERY", "HOURS_EVERY", "VIEW_EVERY"):
        monkeypatch.setattr(state, name, 0.0)
    person = visitor(console_of(at), OPERATOR)
    fields = person.begin("recover", application="orders")
    answer = person.post("/actions/recover/do", **fields)
    assert answer.status_code == 303
    page = person.get(answer.location)
    assert 'class="notice warning"' in page
    assert "1 left" in page
    assert state_of(at, STUCK) is TransactionState.COMMITTING
    at.up("notifier")
    urls = {name: at.observed[name].url for name in NAMES}
    person = visitor(console_of(at, participants=urls), OPERATOR)
    fields = person.begin("recover", application="orders")
    page = person.get(person.post("/actions/recover/do", **fields).location)
    assert 'class="notice well"' in page
    assert state_of(at, STUCK) is TransactionState.COMMITTED


def test_a_reader_of_the_inbox_is_retired(at, operator, tmp_path, monkeypatch):
    """Of the inbox that the settings name, and of no address that a form has."""
    monkeypatch.setenv("INBOX_DATABASE", f"sqlite:///{tmp_path}/inbox.db")
    inbox = Inbox("env:INBOX_DATABASE")
    inbox.store("shop", [NewEvent(name, "1") for name in "ab"])
    for reader in ("totals", "audit"):
        inbox.join(reader, inbox.start())
    elsewhere = {"reader": "totals", "inbox": f"sqlite:///{tmp_path}/inbox.db"}
    answer = operator.post("/actions/inbox-retire/confirm", **elsewhere)
    assert "no inbox" in text_of(answer, 409)
    operator = visitor(console_of(at, inbox="env:INBOX_DATABASE"), OPERATOR)
    fields = operator.begin("inbox-retire", reader="totals")
    inbox.store("shop", [NewEvent("c", "1")])
    for name, code in (("", 400), ("audit", 400), ("totals", 303)):
        answer = operator.post("/actions/inbox-retire/do", **fields, number=name)
        assert answer.status_code == code
    assert [row.reader for row in inbox.readers()] == ["audit"]
    inbox.close()


def test_a_query_is_adopted_with_its_id_and_a_reason(at, tmp_path):
    """Only where all agree; what is read is shown before, and signed with a name."""
    at.up("notifier")
    folder, query = tmp_path / "checkpoint", str(uuid.uuid4())
    for name in ("offsets/8", "commits/7"):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_text("v1\n{}\n{}")
    (folder / "metadata").write_text(json.dumps({"id": query}))
    lost, at.log = at.log, temporary_log()
    person = Visitor(console_of(at).test_client())
    person.log_in(OPERATOR, "Ada")
    fields = {"application": "orders", "checkpoint": str(folder), "reason": "burnt"}
    answer = person.post("/actions/adopt/confirm", **fields)
    assert "is committed at ledger and not at the others" in text_of(answer, 409)
    at.commit(TransactionId.parse(STUCK), "notifier")
    assert (
        person.post("/actions/adopt/confirm", **fields | {"reason": ""}).status_code
        == 400
    )
    fields = person.begin("adopt", **fields)
    for number, code in (("", 400), ("8", 400), (query, 303)):
        answer = person.post("/actions/adopt/do", **fields, number=number)
        assert answer.status_code == code
    assert answer.location == "/applications/orders"
    assert "start the query" in person.get(answer.location)
    assert state_of(at, STUCK) is TransactionState.COMMITTED
    (audited,) = at.log.audit(TransactionId.parse(STUCK))
    assert (audited.who, audited.why) == ("Ada at the console", "burnt")
    at.log = lost


def test_all_that_a_partner_refused_is_sent_again(mailer, operator):
    """From the participant's page; each is signed."""
    page = operator.get("/participants/mailer")
    assert 'href="/actions/outbox-again-all?participant=mailer"' in page
    fields = operator.begin("outbox-again-all", participant="mailer")
    assert signed_by_hand(mailer) == []
    answer = operator.post("/actions/outbox-again-all/do", **fields)
    assert answer.location == "/participants/mailer"
    assert "2 requests at mailer wait" in operator.get(answer.location)
    who = [(action, who) for _, action, who, _ in signed_by_hand(mailer)]
    assert who == [("again", "Ada at the console")] * 2


def test_a_bound_token_acts_for_its_application_alone(at):
    """Another's, and that of all, is refused before anything is read."""
    gate = TokenGate([f"operator {BOUND} sales", f"viewer {VIEWER}"], "here")
    person = visitor(console_of(at, gate=gate), BOUND)
    for fields in ({}, {"application": "orders"}):
        for step in ("confirm", "do"):
            answer = person.post(f"/actions/recover/{step}", **fields)
            assert answer.status_code == 403
    fields = {"application": "sales", "checkpoint": "/x", "reason": "r"}
    assert person.post("/actions/adopt/confirm", **fields).status_code == 403
    answer = person.post("/actions/recover/confirm", application="sales")
    assert answer.status_code == 200
