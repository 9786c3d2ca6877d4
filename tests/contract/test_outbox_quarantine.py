"""What a partner did not take, in a person's hands: sent again, or dropped."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from support.branches import records
from support.databases import url
from support.kinds import tagged_rows
from support.participant import World, select
from support.relay import fail_over, saved
from support.texts import texts
from support.waiting import until
from test_outbox import (
    LEASE,
    TAKEN,
    Answers,
    Make,
    Partner,
    T,
    all_sent,
    any_database,
    backlog,
    cards,
    commit,
    ids,
    keys_of,
    listening,
    make,
    measured,
    partner,
    queue,
    quick,
)
from werkzeug.test import TestResponse

from tracing_2pc.outbox.partner import PartnerAnswer
from tracing_2pc.outbox.requests import Request, Requests
from tracing_2pc.outbox.sender import Sender

__all__ = ["make", "partner", "queue", "quick", "url"]

TEXTS = texts("outbox")
FIRST = f"{T}.0.1.0"


def order(world: World, action: str, key: str = FIRST, **fields: Any) -> TestResponse:
    """Ask for one request; by default with all that an order needs."""
    about = {"key": key, "who": "anna@desk", "reason": "the card was valid", **fields}
    return world.post(f"/outbox/{action}", **about)


def listed(world: World, query: str = "") -> list[dict[str, Any]]:
    answer = world.client.get(f"/outbox{query}")
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.get_json()["requests"]
    return found


def pages(world: World, limit: int) -> Iterator[TestResponse]:
    """Yield each page of the list."""
    after: str | None = ""
    while after is not None:
        answer = world.client.get(f"/outbox?limit={limit}{after}")
        yield answer
        following = answer.get_json()["next"]
        after = following and f"&after={following}"


def by_hand(world: World) -> list[tuple[Any, ...]]:
    columns, table = "key, action, who, reason, body", "outbox_tpc_by_hand"
    return select(world.resource, f"SELECT {columns} FROM {table} ORDER BY number")


def refused(make: Make, partner: Partner, *plan: int | str, rows: int = 1) -> World:
    """Commit a batch whose requests are answered so; all are settled."""
    partner.plan = list(plan)
    world = make()
    commit(world, T, cards(rows))
    all_sent(world)
    return world


def test_what_is_in_quarantine_is_listed(make, partner):
    """By application, in pages, oldest first; of a long body only its beginning."""
    world = refused(make, partner, 422, 200, 413, 400, rows=4)
    partner.plan = [422]
    commit(world, "bills.1.1", records(text=["ü" * 5_000]))
    all_sent(world)
    found = [answer.get_json()["requests"] for answer in pages(world, 2)]
    shown = [[(item["key"], item["status"]) for item in page] for page in found]
    first, _, third, fourth = keys_of(T, 4)
    bill = "bills.1.1.0.1.0"
    assert shown == [[(first, 422), (third, 413)], [(fourth, 400), (bill, 422)]]
    (long,) = listed(world, "?application=bills")
    assert (len(long["body"]), long["length"]) == (2_000, 5_000 * 6 + 12)
    assert [item["key"] for item in listed(world, f"?key={third}")] == [third]
    assert json.loads(listed(world)[0]["body"]) == {"id": "card-0"}
    assert listed(world, "?state=dropped") == []


TOKEN = "a-word-of-the-partner"

SAID: dict[str, tuple[bytes, str | None]] = {
    "text": (
        b' {"error": "no such card",\r\n "n": 1}\n',
        '{"error": "no such card",\r\n "n": 1}',
    ),
    "long": ("ü".encode() * 70_000, "ü" * 2_000),
    "cut": (b"a" + "ü".encode() * 70_000, "a" + "ü" * 1_999),
    "none": (b"", None),
    "no text": (bytes(range(256)), "(256 bytes that are no text)"),
    "of another encoding": (
        b"no card for M\xfcller & S\xf6hne, said our host",
        "no card for M\ufffdller & S\ufffdhne, said our host",
    ),
    "NUL": (b"no card \0 for this customer", "no card \\x00 for this customer"),
    "secrets": (
        f"POST /orders by {TOKEN}: no".encode(),
        "POST *** by ***: no",
    ),
}
"""What a partner says with its refusal, and what is kept of it."""


@pytest.mark.parametrize("said", SAID)
def test_what_the_partner_said_is_kept(make, partner, caplog, monkeypatch, said):
    """Its beginning, as text without our secrets: for a person, and in no log."""
    monkeypatch.setenv("PARTNER_TOKEN", TOKEN)
    partner.says, kept = SAID[said]
    partner.plan = [422]
    world = make(token="env:PARTNER_TOKEN")
    commit(world, T, cards(1))
    all_sent(world)
    (item,) = listed(world)
    assert (item["status"], item["answer"]) == (422, kept)
    assert kept is None or kept[:6] not in caplog.text


def test_each_answer_takes_the_place_of_the_one_before(make, partner):
    """Refused again it is back, and counted; when it is dropped the last one stays."""
    partner.says = b"no such card"
    world = refused(make, partner, 422)
    partner.says, partner.plan = b"the card has expired", [413]
    assert order(world, "again", reason="").status_code == 200
    until(lambda: len(partner.keys) == 2)
    all_sent(world)
    (item,) = listed(world)
    assert (item["key"], item["status"], item["again"]) == (FIRST, 413, 1)
    assert item["answer"] == "the card has expired"
    assert order(world, "drop").status_code == 200
    (item,) = listed(world, "?state=dropped")
    assert (item["status"], item["answer"]) == (413, "the card has expired")
    answers = "SELECT action, answer FROM outbox_tpc_by_hand ORDER BY number"
    first, last = select(world.resource, answers)
    assert first == ("again", "no such card")
    assert last == ("drop", "the card has expired")


def test_why_nothing_came_is_kept(make, partner):
    """Of one that fails alone; the address is without its path, which may be secret."""
    first, *_ = keys_of(T, 2)
    partner.always = {first: "drop"}
    world = refused(make, partner, rows=2)
    (item,) = listed(world)
    origin = partner.url.removesuffix("/orders")
    assert item["status"] == 0
    assert f"no whole answer from {origin}" in item["answer"]
    assert "/orders" not in item["answer"]


def test_a_page_is_bounded_in_bytes(make, queue, partner):
    """However many long bodies there are, a client reads each page whole."""
    world = make(sends=False)
    commit(world, T, records(text=["ü" * 2_000] * 300))
    for request in iter(lambda: queue.next("orders")[:1], []):
        assert queue.move_to_quarantine(request[0], 422)
    found: list[str] = []
    for answer in pages(world, 1000):
        assert len(answer.data) < 1 << 20
        found += [item["key"] for item in answer.get_json()["requests"]]
    assert sorted(found) == sorted(keys_of(T, 300))


def test_again_it_is_sent_with_its_key(make, partner):
    """In the same trace, and it leaves the quarantine; who and why are on record."""
    world = refused(make, partner, 422)
    answer = order(world, "again")
    assert (answer.status_code, answer.get_json()["state"]) == (200, "waiting")
    all_sent(world)
    assert partner.keys == [FIRST, FIRST]
    assert partner.bodies[0] == partner.bodies[1]
    assert len({trace.split("-")[1] for trace in partner.traces}) == 1
    assert listed(world) == []
    assert by_hand(world) == [(FIRST, "again", "anna@desk", "the card was valid", None)]
    for _ in range(2):  # an answer that was lost is asked for again
        assert order(world, "again").get_json()["state"] == "sent"
    assert partner.keys == [FIRST, FIRST]
    assert len(by_hand(world)) == 1
    assert order(world, "drop").status_code == 409


def test_again_it_has_its_old_place(make, queue, partner):
    """Nothing that was behind it and is not sent yet overtakes it; not a later batch,
    nor a later row of its own branch.
    """
    world = make(sends=False)
    commit(world, T, ids(1, 2, 3))
    commit(world, "orders.8.1", ids(4, branch="0.2"))
    commit(world, "orders.10.1", ids(5))
    for _ in range(2):
        assert queue.move_to_quarantine(queue.next("orders")[0], 422)
    first, second, third = keys_of(T, 3)
    assert order(world, "again", second).status_code == 200
    for key in (second, third):
        request, *_ = queue.next("orders")
        assert request.key == key
        queue.confirmed(request)
    assert queue.next("orders")[0].key == "orders.8.1.0.2.0"  # the branch is done with
    assert queue.move_to_quarantine(queue.next("orders")[0], 422)
    for key in (first, "orders.8.1.0.2.0"):
        assert order(world, "again", key).get_json()["state"] == "waiting"
        assert order(world, "again", key).get_json()["state"] == "waiting"
    make().resource.start()
    all_sent(world)
    assert partner.keys == [first, "orders.8.1.0.2.0", "orders.10.1.0.1.0"]


@pytest.mark.parametrize("waits", [False, True], ids=["at once", "sent again"])
def test_what_is_dropped_stays_on_record(make, queue, waits):
    """Never sent, not counted any more, with its body and the first reason; also if
    it waits to be sent again.
    """
    world = make(sends=False)
    commit(world, T, cards(2))
    first, second = keys_of(T, 2)
    for request in queue.next("orders")[: 1 if waits else 2]:
        assert queue.move_to_quarantine(request, 422)
    if waits:
        assert order(world, "again").status_code == 200
    for reason in ("the card was stolen", "another"):
        answer = order(world, "drop", reason=reason)
        assert (answer.status_code, answer.get_json()["state"]) == (200, "dropped")
    assert [item["key"] for item in listed(world)] == ([] if waits else [second])
    assert [r.key for r in queue.next("orders")] == ([second] if waits else [])
    assert measured(world)["tpc_outbox_quarantined"] == (0 if waits else 1)
    (item,) = listed(world, "?state=dropped")
    about = (item["key"], item["state"], item["who"], item["reason"], item["status"])
    assert about == (first, "dropped", "anna@desk", "the card was stolen", 422)
    assert json.loads(item["body"]) == {"id": "card-0"}
    assert order(world, "again").status_code == 409
    assert [row[1] for row in by_hand(world)] == ["again"] * waits + ["drop"]


@any_database
def test_what_is_refused_changes_nothing(make, partner, tmp_path):
    """Another key, another participant, another application's token, another form."""
    world = refused(make, partner, 422)
    other = f"{T}.0.1.1"
    for action in ("again", "drop"):
        unknown = order(world, action, other)
        assert unknown.status_code == 404
        assert unknown.get_json()["detail"] == (
            TEXTS["unknown request"].format(key=other)
        )
        assert order(world.called("another"), action).status_code == 421
        for wrong in ("orders.7.1", "orders.7.1.0.1.00", "", 7, None):
            assert order(world, action, wrong).status_code == 400  # type: ignore[arg-type]
        assert order(world, action, who="").status_code == 400
        assert order(world, action, reason="two\nlines").status_code == 400
        assert order(world, action, more=1).status_code == 400
    assert order(world, "drop", reason=" ").status_code == 400
    (tmp_path / "tokens").write_text(f"operator {'b' * 16} bills\n")
    bound = World(world.resource, world.visible, tokens=tmp_path / "tokens")
    for action in ("again", "drop"):  # each role is in test_auth.py
        about, fields = {"Authorization": f"Bearer {'b' * 16}"}, {"key": FIRST}
        refused_ = bound.post(f"/outbox/{action}", about, who="x", reason="x", **fields)
        assert refused_.status_code == 403
    assert [item["key"] for item in listed(world)] == [FIRST]
    assert by_hand(world) == []


def test_who_has_no_outbox_says_so(tmp_path):
    """404, with the reason; so that an operator's tools can pass it by."""
    world = tagged_rows(f"sqlite:///{tmp_path}/p.db")
    for answer in (world.client.get("/outbox"), order(world, "again")):
        assert answer.status_code == 404
        assert TEXTS["no outbox"] in answer.get_json()["detail"]
    world.resource.close()


@pytest.mark.parametrize("action", ["again", "drop"])
def test_it_happens_whole_or_not_at_all(make, partner, action):
    """Cut off after its last statement, the request is in quarantine as before."""
    world = refused(make, partner, 422)
    signed: list[str] = []

    def note(_: Any, __: Any, statement: str, *___: Any) -> None:
        signed.extend([statement] * ("INTO outbox_tpc_by_hand" in statement))

    def fail(_: Any) -> None:
        if signed:
            raise sa.exc.OperationalError("COMMIT", {}, Exception("gone"))

    with listening("after_cursor_execute", note), listening("commit", fail):
        assert order(world, action).status_code == 503
    assert len(signed) == 1
    assert [item["key"] for item in listed(world)] == [FIRST]
    assert (by_hand(world), backlog(world.resource)) == ([], 0)
    assert order(world, action).status_code == 200
    all_sent(world)
    assert len(partner.keys) == {"again": 2, "drop": 1}[action]


def test_a_store_that_goes_back_loses_nothing_that_was_refused(make, queue):
    """A replica that is behind takes over, before a sender that knows better: what was
    in quarantine waits there again, and the cursor passes nothing that waits.
    """
    world = make(sends=False)
    commit(world, T, ids(1, 2, 3, 4))
    first, refused, taken, last = queue.next("orders")
    queue.confirmed(first)
    copy = saved(world)
    assert queue.move_to_quarantine(refused, 422)
    fail_over(world, copy)
    queue.confirmed(taken)
    assert queue.next("orders") == [refused, last]
    assert backlog(world.resource) == 2


def test_a_branch_is_taken_off_the_queue_only_if_nothing_of_it_waits(make, queue):
    """A sender saw nothing left of it, and then the store went back."""
    world = make(sends=False)
    commit(world, T, ids(1, 2))
    both, copy = queue.next("orders"), saved(world)
    for request in both:
        assert queue.move_to_quarantine(request, 422)
    end = queue._end

    def late(tag: int) -> None:
        queue._end = end
        fail_over(world, copy)
        end(tag)

    queue._end = late
    assert queue.next("orders") == both


@any_database
def test_of_a_forgotten_transaction(make, partner):
    """It can be sent again, in a trace of its own."""
    world = refused(make, partner, 422)
    assert world.commit("orders.20.1", forgotten_through=19).status_code == 200
    commit(world, "orders.21.1", ids(1))
    all_sent(world)
    assert world.show(T).status_code == 410
    assert order(world, "again").status_code == 200
    all_sent(world)
    assert partner.keys[-1] == FIRST


SECOND = "bills.3.1.0.1.0"


def put_back_twice(world: World, queue: Requests) -> Any:
    """Return what a sender read of a request that another one has sent meanwhile.

    A request of another application was put back afterwards.
    """
    commit(world, T, ids(1))
    commit(world, "bills.3.1", ids(2))
    for application in ("orders", "bills"):
        assert queue.move_to_quarantine(queue.next(application)[0], 422)
        assert queue.next(application) == []  # the branch is done with
    assert order(world, "again", FIRST).status_code == 200
    (slept,) = queue.next("orders")
    queue.confirmed(slept)
    assert queue.next("orders") == []
    assert order(world, "again", SECOND).status_code == 200
    return slept


@pytest.mark.parametrize("late", ["taken", "refused"])
def test_a_late_answer_is_about_its_own_request_only(make, queue, late):
    """A request that is put back is never taken for one that was put back before."""
    world = make(sends=False)
    slept = put_back_twice(world, queue)
    if late == "taken":
        queue.confirmed(slept)
    else:
        assert queue.move_to_quarantine(slept, 422) is False
    assert [request.key for request in queue.next("bills")] == [SECOND]
    assert listed(world) == []


def test_no_tag_comes_twice(make, queue):
    """Nor after rows about what a person decided were deleted."""
    world = make(sends=False)
    slept = put_back_twice(world, queue)
    (again,) = queue.next("bills")
    assert queue.move_to_quarantine(again, 422)
    assert queue.next("bills") == []
    with queue.queue.deciding() as connection:
        connection.execute(queue.quarantine.by_hand.delete())
    assert order(world, "again", SECOND).status_code == 200
    (newest,) = queue.next("bills")
    assert len({slept.tag, again.tag, newest.tag}) == 3


@any_database
def test_a_refusal_of_what_was_sent_again_stops_nobody(make, partner):
    """After ten refusals in a row, too: it is known, and returns to quarantine."""
    world = refused(make, partner, *[422] * 10, rows=10)
    partner.always = {FIRST: 422}
    assert order(world, "again").status_code == 200
    until(lambda: len(listed(world)) == 10)
    commit(world, "orders.8.1", ids(99))
    all_sent(world)
    assert partner.keys[-2:] == [FIRST, "orders.8.1.0.1.0"]
    assert measured(world)["tpc_outbox_stopped"] == 0


@any_database
def test_what_is_put_back_has_failures_of_its_own(make, queue, monkeypatch):
    """Not those of the request that was first until then: it, too, has ten tries."""
    world = make(sends=False)
    commit(world, T, cards(1))
    assert queue.move_to_quarantine(queue.next("orders")[0], 422)
    commit(world, "orders.8.1", ids(2, 3))
    now = [0.0]
    clock = time.monotonic
    monkeypatch.setattr("time.monotonic", lambda: clock() + now[0])
    ill: list[str] = ["orders"]

    def answer(request: Request) -> PartnerAnswer:
        return PartnerAnswer(503) if request.key.startswith(ill[0]) else TAKEN

    partner = Answers(answer)
    sending = Sender(queue, partner, LEASE)

    def turn() -> None:
        now[0] += 100.0  # no pause is left
        sending.turn()

    for _ in range(9):
        turn()
    assert order(world, "again").status_code == 200
    ill[0] = FIRST
    turn()
    assert (listed(world), partner.keys[-1]) == ([], FIRST)
    for _ in range(9):
        turn()
    assert [item["key"] for item in listed(world)] == [FIRST]


@any_database
@pytest.mark.parametrize("how", ["refused again", "dropped while it waited"])
def test_only_what_was_taken_is_called_sent(make, queue, how):
    """Not what was dropped, when the row about that is deleted, as it may be."""
    world = make(sends=False)
    commit(world, T, cards(2))
    assert queue.move_to_quarantine(queue.next("orders")[0], 422)
    assert order(world, "again").status_code == 200
    if how == "refused again":
        assert queue.move_to_quarantine(queue.next("orders")[0], 422)
    assert order(world, "drop").status_code == 200
    table = queue.quarantine.by_hand
    with queue.queue.deciding() as connection:
        connection.execute(table.delete().where(table.c.action == "drop"))
    for action in ("again", "drop"):
        assert order(world, action).status_code == 404
