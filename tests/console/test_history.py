"""What is on record, found again: by a search, by pages, with its trace."""

from __future__ import annotations

import re

import pytest
from support.console import (
    BOUND,
    DONE,
    QUARANTINED,
    STUCK,
    console_of,
    text_of,
    visitor,
)
from support.texts import texts

from tracing_2pc.console import history

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
    assert answer.location == f"http://jaeger.example/trace/{traced.trace_id}"
