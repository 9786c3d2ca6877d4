"""What is on record, found again: by a search, by pages, with its trace."""

from __future__ import annotations

import re
from functools import partial

import pytest
from support.console import (
    BOUND,
    DONE,
    MAILED,
    QUARANTINED,
    STUCK,
    Visitor,
    console_of,
    text_of,
    visitor,
)
from support.texts import texts
from support.waiting import until

from tracing_2pc.console import history
from tracing_2pc.core.states import Decision

TEXTS = texts("console")
TRACED = "/transactions/([a-z0-9.-]+)/in/jaeger"


def found_in(page: str) -> list[str]:
    """The transactions of a page's rows, as their links to traces name them."""
    return re.findall(TRACED, page)


@pytest.mark.parametrize(
    ("asked", "found"),
    [
        ("", [STUCK, DONE, QUARANTINED]),
        ("application=orders&batch=8", [STUCK]),
        ("state=committed", [DONE]),
        ("state=unfinished&participant=ledger", [STUCK, QUARANTINED]),
        ("participant=nobody", []),
        ("since=1s", []),
        ("since=1000-01-01&until=2999-12-31T10:00Z", [STUCK, DONE, QUARANTINED]),
        ("batch=7&beyond=orders.7.1", []),
    ],
)
def test_history_is_searched(viewer, asked, found):
    """By any of its fields, or several; each row leads to its trace."""
    page = viewer.get(f"/search?{asked}")
    assert sorted(found_in(page)) == sorted(found)
    assert (TEXTS["nothing else"] in page) == (not found)


def test_history_is_searched_by_pages(viewer, monkeypatch):
    """Each transaction is on one of them, and the last one leads nowhere."""
    monkeypatch.setattr(history, "ROWS", 1)
    path, found = "/search?state=", list[str]()
    while path:
        page = viewer.get(path)
        found += found_in(page)
        more = re.search(r'class="button" href="([^"]+)"', page)
        path = "/search" + more[1].replace("&amp;", "&") if more else ""
    assert sorted(found) == sorted([STUCK, DONE, QUARANTINED])


def test_an_id_leads_to_its_page(viewer):
    answer = viewer.client.get(f"/search?id=+{STUCK}&state=committed")
    assert (answer.status_code, answer.location) == (303, f"/transactions/{STUCK}")


@pytest.mark.parametrize(
    "asked",
    ["id=orders", "batch=-1", "state=x", "since=x", "participant=%00", "beyond=x"],
)
def test_a_field_that_cannot_be_read_is_said(viewer, asked):
    """Beside the fields as they were, and nothing is listed."""
    page = text_of(viewer.client.get(f"/search?application=orders&{asked}"), 400)
    assert 'role="alert"' in page
    assert "<option selected>orders" in page
    assert not found_in(page)


def test_a_token_of_one_application_finds_that_only(at):
    bound = visitor(console_of(at), BOUND)
    page = bound.get("/search?application=orders")
    assert found_in(page) == [QUARANTINED]
    assert "orders" not in page.replace("orders.7.1", "")
    assert bound.client.get(f"/transactions/{STUCK}/in/jaeger").status_code == 403


def test_a_row_leads_to_its_trace(viewer, at):
    """Where something was traced, and a link is set; nowhere else."""
    traced = at.begin(9)
    for id_, status in ((traced.id, 303), (DONE, 303), ("orders.99.1", 404)):
        answer = viewer.client.get(f"/transactions/{id_}/in/jaeger")
        assert answer.status_code == status
    assert viewer.client.get(f"/transactions/{DONE}/in/nobody").status_code == 404
    answer = viewer.client.get(f"/transactions/{traced.id}/in/jaeger")
    assert answer.location == f"http://127.0.0.1:9/trace/{traced.trace_id}"


def facts_in(page: str) -> dict[str, str]:
    """The terms of a page, and what stands beside each, without its markup."""
    pairs = re.findall(r"<dt>(.*?)</dt><dd>(.*?)</dd>", page)
    return {term: re.sub("<[^>]*>", "", text) for term, text in pairs}


def test_an_application_has_a_page(viewer, at):
    """What the first page says, of it alone; how long it takes, and why."""
    for seconds in (1, 30):
        at.time.advance(seconds)
        id_ = at.committing(9 + seconds)
        at.time.advance(seconds)
        at.log.postpone(id_, "ledger", "nothing listens", at.time.now())
        for name in ("notifier", "ledger"):
            at.time.advance(seconds)
            at.log.acknowledge(id_, name)
        at.log.finish(id_)
    aborted = at.begin(40).id
    at.log.decide(aborted, Decision.ABORT, cause="participant", detail="ledger said no")
    for name in ("notifier", "ledger"):
        at.log.acknowledge(aborted, name)
    at.log.finish(aborted)
    page = viewer.get("/applications/orders")
    assert STUCK in page
    assert QUARANTINED not in page
    text = re.sub(r"\s+", " ", re.sub("<[^>]*>", " ", page))
    assert TEXTS["how long"] in text
    assert TEXTS["held back"] in text
    assert page.index("orders.39.1") < page.index("orders.10.1")
    assert "ledger said no" in text
    assert 'href="/applications/sales"' in viewer.get("/")
    assert 'href="/applications/orders"' in viewer.get(f"/transactions/{STUCK}")
    assert viewer.client.get("/applications/nobody").status_code == 404


def test_a_participant_has_a_page(viewer, at, mailer):
    """How it is, what it holds, how soon it answers, what was refused there."""
    at.prepare("bookings.3.1", "ledger")
    at.time.advance(60)
    page = until(lambda: surveyed(viewer, "ledger", "bookings.3.1"))
    shown = facts_in(page)
    assert (shown["Answers"], shown["Role of our token"]) == ("yes", "anybody")
    assert shown["Version"]
    assert shown["In doubt"] == "1 branch"
    assert found_in(page) == ["bookings.3.1"]
    assert TEXTS["its answers"] in page
    assert TEXTS["down"] in facts_in(viewer.get("/participants/notifier"))["Answers"]
    shown = facts_in(viewer.get("/participants/mailer"))
    assert shown["Its partner has refused"] == "2 requests"
    assert shown["Waits in its outbox"] == "0"
    for path in ("/", f"/transactions/{STUCK}"):
        assert 'href="/participants/notifier"' in viewer.get(path)
    assert viewer.client.get("/participants/nobody").status_code == 404


def surveyed(viewer: Visitor, name: str, has: str) -> str:
    """A participant's page, once it has something that participants were asked for."""
    page = viewer.get(f"/participants/{name}")
    return page if has in page else ""


def test_pages_of_a_bound_token_have_nothing_of_others(at, mailer):
    """Neither another application, nor what is at a participant, nor how much."""
    at.prepare("bookings.3.1", "ledger")
    at.time.advance(60)
    bound = visitor(console_of(at), BOUND)
    assert bound.client.get("/applications/orders").status_code == 403
    assert QUARANTINED in bound.get("/applications/sales")
    for name in ("ledger", "mailer"):
        page = until(partial(surveyed, bound, name, "<dt>Answers</dt>"))
        for others in ("bookings", "orders", MAILED, "In doubt</dt>", "outbox</dt>"):
            assert others not in page


def test_incidents_that_are_over_are_listed(operator, at, monkeypatch):
    """What it was, how it ended, by whom and why; by pages, and of one application."""
    operator.resolve(QUARANTINED, "mixed", number="3", reason="looked at the rows")
    at.time.advance(60)
    operator.resolve(STUCK, "give-up@notifier", number="8", reason="it is gone")
    page = operator.get("/incidents")
    assert found_in(page) == [STUCK, QUARANTINED]
    for said in ("looked at the rows", "it is gone", "Ada at the console"):
        assert said in page
    assert TEXTS["ended mixed"] in page
    assert "ledger answered 409 aborted" in page
    bound = visitor(console_of(at), BOUND).get("/incidents")
    assert found_in(bound) == [QUARANTINED]
    monkeypatch.setattr(history, "ROWS", 1)
    page, found = operator.get("/incidents"), list[str]()
    while more := re.search(r'href="(\?before=[^"]+)"', page):
        found += found_in(page)
        page = operator.get(f"/incidents{more[1]}")
    assert found == [STUCK, QUARANTINED]
    at.time.advance(60)
    at.log.retire("sales", who="Eve", why="it has moved")
    assert "it has moved" in operator.get("/incidents")
    assert operator.client.get("/incidents?before=x").status_code == 400
