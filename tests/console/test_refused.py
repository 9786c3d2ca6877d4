"""Requests that partners refused: who sees them, what a form does, what is shown."""

from __future__ import annotations

import html
import re

import pytest
from flask import Flask
from support.branches import records
from support.console import (
    BOUND,
    EVIL,
    MAILED,
    OPERATOR,
    VIEWER,
    Visitor,
    console_of,
    hidden_in,
    signed_by_hand,
    text_of,
    visitor,
)
from support.kinds import refusing_outbox, sqlite_url
from support.participant import World, end, outgoing_of
from support.spark import serving
from support.texts import texts
from support.waiting import PATIENT, until

from tracing_2pc.console import state
from tracing_2pc.core.model import RequestKey
from tracing_2pc.core.states import RequestState
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.inspection import survey
from tracing_2pc.operations.resolve import LONGEST_REASON

TEXTS = texts("console")
PAGE = f"/refused/mailer/{MAILED}"
ONE = {"key": MAILED, "participant": "mailer"}
SECOND = "orders.7.1.0.1.1"


@pytest.fixture
def app(mailer, app) -> Flask:
    return app


def begin(person: Visitor, word: str, reason: str = "because") -> dict[str, str]:
    """Take the first step about a request; return the fields of the second."""
    return person.begin(f"outbox-{word}", **ONE, reason=reason)


# --- who may do what -----------------------------------------------------------------


def test_a_viewer_sees_what_was_refused_and_has_no_form(viewer):
    """Neither in the list nor on its page."""
    page = viewer.get("/refused")
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert f"{MAILED} orders 7" in text
    assert "answered 422" in text
    assert "no such card" in text
    assert SECOND in text
    assert "/confirm" not in page
    page = viewer.get(PAGE)
    assert "{&#34;error&#34;: &#34;no such card&#34;}" in page
    assert TEXTS["for operators"] in page
    assert "/confirm" not in page


def test_a_token_of_one_application_sees_those_of_that_one(app):
    """Others are neither listed, nor counted, nor shown."""
    bound = visitor(app, BOUND)
    page = bound.get("/refused")
    assert TEXTS["nothing refused"] in page
    assert "orders" not in page
    assert bound.client.get(PAGE).status_code == 403
    until(lambda: TEXTS["being asked"] not in bound.get("/"))
    assert TEXTS["refused"] not in bound.get("/")


# --- what a form does ----------------------------------------------------------------


def test_a_request_is_sent_again_and_signed(operator, mailer):
    """It needs no reason; the form may be sent twice, and the list is new."""
    assert TEXTS["goes back"] in operator.get(PAGE)
    fields = begin(operator, "again", reason="")
    assert signed_by_hand(mailer) == []
    for _ in range(2):
        answer = operator.post("/actions/outbox-again/do", **fields)
        assert (answer.status_code, answer.location) == (303, "/refused")
        page = operator.get("/refused")
        assert TEXTS["waits"].format(key=MAILED) in page
        assert f'href="{PAGE}"' not in page
        assert SECOND in page
    assert TEXTS["waits"].format(key=MAILED) not in operator.get("/refused")
    assert mailer.visible() == 1
    assert signed_by_hand(mailer) == [(MAILED, "again", "Ada at the console", "")]


def test_all_of_a_batch_are_sent_again_at_once(operator, mailer, monkeypatch):
    """Each on record by itself; nothing is done if the list is another one by then."""
    page = operator.get("/refused")
    (link,) = re.findall(r'href="(/actions/outbox-again-all[^"]+)"', page)
    form = operator.get(html.unescape(link))
    fields = {"participant": "mailer", "transaction": "orders.7.1"}
    for name, value in fields.items():
        assert re.search(f'name="{name}" .* value="{value}"', form)
    first = operator.post("/actions/outbox-again-all/confirm", **fields)
    assert "2 requests of orders.7.1" in text_of(first)
    one = begin(operator, "again")
    operator.post("/actions/outbox-again/do", **one)
    path = "/actions/outbox-again-all/do"
    answer = operator.post(path, **hidden_in(text_of(first)))
    assert TEXTS["changed since"] in text_of(answer, 409)
    assert len(signed_by_hand(mailer)) == 1
    answer = operator.post(path, **hidden_in(text_of(answer, 409)))
    assert answer.location == "/refused"
    assert TEXTS["all wait"] in operator.get("/refused")
    assert [key for key, *_ in signed_by_hand(mailer)] == [MAILED, SECOND]
    again = operator.post("/actions/outbox-again-all/confirm", **fields)
    assert TEXTS["nothing refused of it"] in text_of(again, 409)


def test_a_request_is_dropped_with_a_reason_and_the_number(operator, mailer):
    """Kept with name and reason; sent twice it says the same, and again is refused."""
    page = operator.post("/actions/outbox-drop/confirm", **ONE, reason="by phone")
    text = page.get_data(as_text=True)
    for said in (MAILED, TEXTS["never sent"], "by phone", "Ada at the console"):
        assert said in text
    fields, path = hidden_in(text), "/actions/outbox-drop/do"
    for row in ("", "1", MAILED):
        assert TEXTS["type the number"] in text_of(
            operator.post(path, **fields, number=row), 400
        )
    assert signed_by_hand(mailer) == []
    for reason in ("by phone", "another one"):
        fields["reason"] = reason
        answer = operator.post(path, **fields, number="0")
        assert answer.status_code == 303
        assert TEXTS["dropped"].format(key=MAILED) in operator.get("/refused")
    signed = (MAILED, "drop", "Ada at the console", "by phone")
    assert signed_by_hand(mailer) == [signed]
    text = text_of(operator.post("/actions/outbox-again/do", **fields), 409)
    assert TEXTS["dropped by hand"] in text
    assert 'href="/refused"' in text


def test_a_drop_needs_a_reason_that_can_be_kept(operator, mailer):
    """In both steps; and a reason for *again* is bounded as well."""
    fields = begin(operator, "drop")
    for reason in ("", "   ", "two\nlines", "x" * (LONGEST_REASON + 1)):
        fields |= {"reason": reason, "number": "0"}
        for step in ("confirm", "do"):
            path = f"/actions/outbox-drop/{step}"
            assert TEXTS["say why"] in text_of(operator.post(path, **fields), 400)
    again = operator.post("/actions/outbox-again/confirm", **ONE, reason="two\nlines")
    assert again.status_code == 400
    for word in ("send", "sent"):
        path = f"/actions/outbox-{word}/confirm"
        assert operator.post(path, **ONE, reason="r").status_code == 409
    assert signed_by_hand(mailer) == []


def test_a_request_that_was_refused_once_more_is_shown_again(operator, mailer):
    """What a person has confirmed was about another answer of the partner."""
    fields = begin(operator, "drop") | {"number": "0"}
    key, queue = RequestKey.parse(MAILED), outgoing_of(mailer)
    at = HttpParticipant("mailer", operator_url(mailer), None, PATIENT)
    assert at.send_again(key, who="bob", reason="") is RequestState.WAITING
    assert queue.move_to_quarantine(queue.next("orders")[0], 400)
    path = "/actions/outbox-drop/do"
    text = text_of(operator.post(path, **fields), 409)
    assert TEXTS["changed since"] in text
    assert "answered 400" in text
    assert [one[1] for one in signed_by_hand(mailer)] == ["again"]
    fields |= hidden_in(text)
    assert operator.post(path, **fields).status_code == 303


def operator_url(world: World) -> str:
    """Return where a world is served, as its test has noted it."""
    return str(world.app.config["SERVED"])


def test_what_is_not_there_is_said(operator, mailer):
    """An unknown key, no key, nobody of that name, one without an outbox."""
    unknown = "orders.9.1.0.1.0"
    for path, said in (
        (f"/refused/mailer/{unknown}", TEXTS["not in quarantine"].format(key=unknown)),
        ("/refused/mailer/orders.9.1", TEXTS["form of a key"]),
        (f"/refused/nobody/{MAILED}", TEXTS["no participant"]),
        (f"/refused/ledger/{MAILED}", TEXTS["no outbox"]),
    ):
        assert said in text_of(operator.client.get(path), 404)
    fields = ONE | {"key": unknown, "fingerprint": "x"}
    answer = operator.post("/actions/outbox-again/confirm", **fields)
    assert answer.status_code == 409
    answer = operator.post("/actions/outbox-again/do", **fields)
    assert answer.status_code == 409
    said = TEXTS["no request"].format(key=unknown)
    assert said in answer.get_data(as_text=True)
    assert signed_by_hand(mailer) == []


def test_an_outbox_that_is_down_is_a_line_and_its_forms_do_nothing(
    operator, at, mailer, tmp_path
):
    """The site's notifier, too: who does not answer hides no other."""
    other = refusing_outbox(sqlite_url(tmp_path, "texter"), records(text=["a"]))
    other.name = "texter"
    with serving(other.app) as url:
        at.observed["texter"] = HttpParticipant("texter", url, None, PATIENT)
        fields = begin(operator, "again")
        at.down("mailer")
        page = operator.get("/refused")
        for name in ("mailer", "notifier"):
            assert TEXTS["no list"].format(name=name) in page
        assert f'href="/refused/texter/{MAILED}"' in page
        assert "/refused/mailer/" not in page
        assert operator.client.get(PAGE).status_code == 502
        for step in ("confirm", "do"):
            path = f"/actions/outbox-again/{step}"
            assert TEXTS["down"] in text_of(operator.post(path, **fields), 502)
    end(other.resource)
    assert signed_by_hand(mailer) == []


def test_pages_that_wait_for_participants_keep_their_number(at, mailer, monkeypatch):
    """Without a place a page says that nobody was asked; a form: nothing was done."""
    monkeypatch.setattr(state, "ASKING", 0)
    monkeypatch.setattr(state, "RESOLVING", 0)
    person = visitor(console_of(at), OPERATOR)
    assert TEXTS["no outbox asked"] in person.get("/refused")
    assert person.client.get(PAGE).status_code == 503
    assert TEXTS["nothing was done"] in text_of(
        person.post("/actions/outbox-again/confirm", **ONE), 503
    )


# --- what is shown -------------------------------------------------------------------


def test_a_body_is_text_and_bounded(operator):
    """No markup, nothing that turns the writing; a long one is its beginning."""
    page = operator.post("/actions/outbox-drop/confirm", **ONE, reason=EVIL)
    long_one = operator.get(f"/refused/mailer/{SECOND}")
    pages = [operator.get("/refused"), operator.get(PAGE), page.get_data(as_text=True)]
    for shown in [*pages, long_one]:
        assert "<img" not in shown
        assert "<script>" not in shown
        assert "\x1b" not in shown
        assert "\u202e" not in shown
        assert len(shown) < 15_000
    assert all("&lt;script&gt;alert(" in shown for shown in pages)
    assert TEXTS["the beginning"] in long_one


def test_what_cannot_be_sent_as_utf_8_is_shown_all_the_same(
    viewer, mailer, monkeypatch
):
    """A participant may answer half a surrogate pair; the page has a mark for it."""
    listed = HttpParticipant.quarantined

    def with_half_a_pair(*args: object, **named: object) -> object:
        found = listed(*args, **named)  # type: ignore[arg-type]
        for request in found.requests:
            object.__setattr__(request, "body", "\ud800 half")
        return found

    monkeypatch.setattr(HttpParticipant, "quarantined", with_half_a_pair)
    assert "� half" in viewer.get("/refused")
    assert "� half" in viewer.get(PAGE)


def test_the_first_page_counts_them_and_leads_there(viewer):
    """Beside the transactions, and without waiting for an outbox."""
    link = f'<a href="/refused">{TEXTS["two refused"]} of orders'
    until(lambda: link in viewer.get("/"))


def test_a_page_shows_the_oldest_and_says_that_there_are_more(at, mailer, monkeypatch):
    """However many there are; the first page says *or more*."""
    for module in (state, survey):
        monkeypatch.setattr(module, "REFUSED", 1)
    person = visitor(console_of(at), VIEWER)
    page = person.get("/refused")
    assert MAILED in page
    assert SECOND not in page
    assert TEXTS["there are more"] in page
    until(lambda: TEXTS["one or more refused"] in person.get("/"))


def test_many_who_look_ask_an_outbox_once(at, mailer, monkeypatch):
    """As long as the list is good, it is shown to everybody; first page included."""
    for name in ("SURVEY_EVERY", "VIEW_EVERY"):
        monkeypatch.setattr(state, name, 3600.0)
    asked: list[str] = []
    listed = HttpParticipant.quarantined

    def counting(by: HttpParticipant, *args: object, **named: object) -> object:
        asked.append(by.name)
        return listed(by, *args, **named)  # type: ignore[arg-type]

    monkeypatch.setattr(HttpParticipant, "quarantined", counting)
    person = visitor(console_of(at), VIEWER)
    until(lambda: TEXTS["two refused"] in person.get("/"))
    for _ in range(20):
        person.get("/")
        person.get("/refused")
    assert asked.count("mailer") == 2, "for the first page, and for the list"


def test_a_site_without_outboxes_says_so(viewer, at):
    """And every participant that answers is asked."""
    at.up("notifier")
    at.observed["mailer"] = at.observed["notifier"]  # a thread reads: none is removed
    assert TEXTS["nobody has an outbox"] in viewer.get("/refused")
