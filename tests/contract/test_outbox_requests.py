"""An outbox whose requests the user makes: one for a record, or for many at once."""

from __future__ import annotations

import email.message
import http.server
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import quote

import pytest
from support.branches import records
from support.databases import url
from support.participant import World
from support.texts import texts
from support.waiting import PATIENT, until
from test_outbox import (
    Partner,
    T,
    all_sent,
    any_database,
    commit,
    make,
    pauses,
    queue,
    quick,
)

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import RequestKey
from tracing_2pc.outbox import PartnerRequest

__all__ = ["make", "pauses", "queue", "quick", "url"]

TEXTS = texts("outbox")
Plan = Callable[[str, list[Any]], tuple[int, Any]]


class Store(Partner):
    """A partner that keeps what it got; `plan` says what it answers."""

    path = "/base"

    def __init__(self) -> None:
        self.got: list[tuple[str, str, str, str]] = []
        self.headers: list[email.message.Message] = []
        super().__init__()
        self.plan: Plan = lambda path, lines: (200, {})

    def _answer(self, request: http.server.BaseHTTPRequestHandler) -> None:
        headers = request.headers
        body = request.rfile.read(int(headers["Content-Length"])).decode()
        self.headers.append(headers)
        about = (request.command, request.path, body, headers["Idempotency-Key"])
        self.got.append(about)
        lines = [json.loads(line) for line in body.splitlines()]
        status, content = self.plan(request.path, lines)
        sent = json.dumps(content).encode()
        request.send_response(status)
        request.send_header("Content-Length", str(len(sent)))
        request.end_headers()
        request.wfile.write(sent)

    def ids(self) -> list[list[Any]]:
        """Return the ids of each request's records."""
        bodies = [body.splitlines() for _, _, body, _ in self.got]
        return [[json.loads(line)["id"] for line in lines] for lines in bodies]


@pytest.fixture
def partner() -> Iterator[Store]:
    made = Store()
    yield made
    made.close()


def put(record: Mapping[str, Any], key: RequestKey) -> PartnerRequest:
    path = f"/{quote(record['id'], safe='')}?version={key.batch}"
    return PartnerRequest("PUT", path, json.dumps(record), {"X-Row": str(key.row)})


def line(record: Mapping[str, Any], key: RequestKey) -> PartnerRequest:
    return PartnerRequest("POST", "/_bulk", json.dumps(record) + "\n")


def per_item(status: int, body: bytes) -> Sequence[int] | None:
    """A conflict means that it has the record, or a newer one."""
    if status != 200:
        return None
    return [200 if item == 409 else item for item in json.loads(body)["items"]]


def items(**planned: int) -> Plan:
    """Answer each record by its id, and 200 to those that are not planned."""
    return lambda _, lines: (
        200,
        {"items": [planned.get(f"_{record['id']}", 200) for record in lines]},
    )


def ids(*found: int, branch: str = "0.1") -> Any:
    return records(branch, id=list(found))


BULK = {"request": line, "bulk": 100, "statuses": per_item}


def quarantined(world: World) -> list[tuple[str, int]]:
    return [(k["key"], k["status"]) for k in world.resource.quarantined()]


def test_a_request_of_ones_own(make, partner):
    """Method, path, headers and body as they were made, below the partner's URL; a
    status that means "it has it" counts as taken.
    """
    partner.plan = lambda path, _: (409 if "2" in path.partition("?")[0] else 201, {})
    world = make(request=put, statuses=lambda s, _: [200 if s == 409 else s])
    commit(world, T, records(id=["a/ü", "2"]))
    all_sent(world)
    assert [(method, path, key) for method, path, _, key in partner.got] == [
        ("PUT", "/base/a%2F%C3%BC?version=7", f"{T}.0.1.0"),
        ("PUT", "/base/2?version=7", f"{T}.0.1.1"),
    ]
    assert json.loads(partner.got[0][2]) == {"id": "a/ü"}
    assert quarantined(world) == []


@any_database
@pytest.mark.parametrize(
    "request_",
    [
        lambda record, key: PartnerRequest("PUT", record["none"]),
        lambda record, key: PartnerRequest("PUT", "/a b"),
        lambda record, key: PartnerRequest("PUT", "/", "", {"X": "a\r\nY: b"}),
        lambda record, key: PartnerRequest("PUT", "/", {"a": 1}),
        lambda record, key: PartnerRequest("PUT", "/a", "\ud800"),
        lambda record, key: PartnerRequest("PUT", "/a", "", {"X": 1}),
        lambda record, key: PartnerRequest("DELETE", "/.."),
        lambda record, key: None,
    ],
    ids=[
        *("raises", "path", "header", "body"),
        *("surrogate", "number", "parent", "nothing"),
    ],
)
def test_what_no_request_can_be_made_of_votes_abort(make, request_, caplog):
    """At prepare, where it harms nobody: nothing is stored, and no record is told."""
    world = make(request=request_)
    answer = world.prepare(T, records(id=["card-1"]))
    assert (answer.status_code, answer.get_json()["vote"]) == (409, "abort")
    assert TEXTS["no request"] in answer.get_json()["detail"]
    assert "card" not in answer.text + caplog.text
    assert world.in_doubt() == 0


@pytest.mark.parametrize(
    "path",
    [
        *("/..", "/.", "/a/../b", "/%2e%2E", "/.%2e/a", "/%2E?version=1", "/..?a"),
        *("/a#b", "/a?b#c", "#", "/", "/?version=1", "//", "/a//b", "//host/a"),
        *("/%", "/%zz", "/%2", "/a\\b", "/a|b", '/"a', "/ü", "a"),
    ],
)
def test_a_path_that_names_something_else_is_refused(path):
    """What a client or a server on the way rewrites, or what an empty id leaves."""
    with pytest.raises(ValueError, match="path"):
        PartnerRequest("PUT", path)


def test_a_deletion_without_an_id_is_refused():
    """Else it deletes what is above; a trailing slash is one where nothing is lost."""
    with pytest.raises(ValueError, match="path"):
        PartnerRequest("DELETE", "/products/?version=1")
    assert PartnerRequest("PUT", "/products/").path == "/products/"


@any_database
def test_a_path_is_sent_as_it_was_made(make, partner):
    """Nothing on this side reads a path that was made of data."""
    paths = ["", "/a/...?b=/../c//", "/..a", "/:@!$&'()*+,;=~", "?a=b/?", "/a%2F..%2Fb"]
    world = make(request=lambda record, _: PartnerRequest("PUT", record["path"], "{}"))
    commit(world, T, records(path=paths))
    all_sent(world)
    assert [path for _, path, _, _ in partner.got] == [f"/base{path}" for path in paths]


@pytest.mark.parametrize(
    "name",
    [
        *("Idempotency-Key", "content-length", "TRANSFER-ENCODING", "host"),
        *("connection", "Authorization", "traceparent", "Tracestate"),
    ],
)
def test_a_header_that_is_the_outboxs_is_refused(name):
    """Whatever the case of its letters."""
    with pytest.raises(ValueError, match="headers"):
        PartnerRequest("PUT", "/a", "{}", {name: "1"})


@any_database
def test_headers_are_merged_whatever_their_case(make, partner, monkeypatch):
    """A record's before the outbox's before the defaults, each sent once."""
    monkeypatch.setenv("PARTNER_TOKEN", "secret")
    world = make(
        headers={"CONTENT-TYPE": "text/a", "X-Of": "outbox", "authorization": "none"},
        token="env:PARTNER_TOKEN",
        request=lambda record, key: PartnerRequest(
            "PUT", "/a", "{}", {"content-type": "text/b", "x-oF": "record"}
        ),
    )
    commit(world, T, ids(1))
    all_sent(world)
    (headers,) = partner.headers
    assert headers.get_all("Content-Type") == ["text/b"]
    assert headers.get_all("X-Of") == ["record"]
    assert headers.get_all("Authorization") == ["Bearer secret"]
    assert headers.get_all("Idempotency-Key") == [f"{T}.0.1.0"]


@any_database
def test_a_row_that_cannot_be_sent_stops_no_other(make, partner, queue):
    """As an older release may have stored it: it is quarantined, not sent."""
    world = make(sends=False, **BULK)
    partner.plan = items()
    commit(world, T, ids(1, 2))
    commit(world, "bills.1.1", ids(3))
    bad = queue.queue.row
    with queue.queue.deciding() as connection:
        body = json.dumps(["PUT", "/..", {}, "\ud800"])
        connection.execute(bad.update().where(bad.c.tpc_row == 1).values(body=body))
    make(**BULK).resource.start()
    all_sent(world)
    assert sorted(partner.ids()) == [[1], [3]]
    assert quarantined(world) == [(f"{T}.0.1.1", 0)]


def test_many_records_in_a_request(make, partner):
    """Up to the bound, in order, of one branch, with one key for just these."""
    partner.plan = items()
    world = make(sends=False, **BULK)
    commit(world, T, ids(*range(150)), ids(*range(150, 155), branch="1.1"))
    commit(world, "orders.8.1", ids(200))
    make(**BULK).resource.start()
    all_sent(world)
    sent = partner.ids()
    assert [record for bulk in sent for record in bulk] == [*range(155), 200]
    assert sent[0] == [*range(100)]
    assert sent[1:] == [[*range(100, 150)], [*range(150, 155)], [200]]
    assert {path for _, path, _, _ in partner.got} == {"/base/_bulk"}
    keys = [key for *_, key in partner.got]
    assert len(set(keys)) == len(keys)
    assert keys[0].startswith(f"{T}.0.1.0-")
    assert keys[-1] == "orders.8.1.0.1.0"


def test_each_record_has_its_own_outcome(make, partner):
    """One that the partner has is done, one that it refuses is quarantined alone, and
    one that it takes later is sent again before what is behind the bulk.
    """
    answers = iter([items(_1=409, _2=400, _3=429)])
    partner.plan = lambda path, lines: next(answers, items())(path, lines)
    world = make(**BULK)
    commit(world, T, ids(*range(6)))
    commit(world, "orders.8.1", ids(9))
    all_sent(world)
    assert partner.ids()[:2] == [[0, 1, 2, 3, 4, 5], [3]]
    assert partner.ids()[-1] == [9]
    assert quarantined(world) == [(f"{T}.0.1.2", 400)]
    about = {"key": f"{T}.0.1.2", "who": "anna", "reason": "mended"}
    assert world.post("/outbox/again", **about).status_code == 200
    all_sent(world)
    assert partner.ids()[-1] == [2]


def bad_one(status: int) -> Plan:
    """Answer so to each request with record 3 in it."""

    def plan(_: str, lines: list[Any]) -> tuple[int, Any]:
        bad = any(record["id"] == 3 for record in lines)
        return (status, {}) if bad else (200, {"items": [200] * len(lines)})

    return plan


def test_a_bulk_that_is_refused_as_a_whole(make, partner):
    """Each record is sent alone: only the one that it is about is quarantined."""
    partner.plan = bad_one(400)
    world = make(**BULK)
    commit(world, T, ids(*range(6)))
    commit(world, "orders.8.1", ids(10, 11))
    all_sent(world)
    assert quarantined(world) == [(f"{T}.0.1.3", 400)]
    assert partner.ids() == [[*range(6)], [0], [1], [2], [3], [4], [5], [10, 11]]


def test_one_of_a_bulk_that_fails_alone(make, partner):
    """What the partner cannot digest, with all that is in its bulk, is found."""
    partner.plan = bad_one(500)
    world = make(**BULK)
    commit(world, T, ids(*range(6)))
    all_sent(world)
    assert quarantined(world) == [(f"{T}.0.1.3", 500)]
    taken = [i for bulk in partner.ids() if 3 not in bulk for i in bulk]
    assert sorted(set(taken)) == [0, 1, 2, 4, 5]


@any_database
@pytest.mark.parametrize("answer", [{}, {"items": []}, {"items": ["ok"] * 3}], ids=str)
def test_an_answer_that_is_not_understood_is_none(make, partner, answer):
    """Success that does not tell what became of each: all is kept, and sent again."""
    answers = iter([answer] * 2)

    def plan(path: str, lines: list[Any]) -> tuple[int, Any]:
        planned = next(answers, None)
        return (200, planned) if planned is not None else items()(path, lines)

    partner.plan = plan
    world = make(**BULK)
    commit(world, T, ids(1, 2, 3))
    all_sent(world)
    assert partner.ids()[:2] == [[1, 2, 3], [1]]
    assert {i for bulk in partner.ids()[2:] for i in bulk} == {1, 2, 3}
    assert quarantined(world) == []


@any_database
def test_what_was_stored_is_sent_as_it_was(make, partner):
    """Whatever the outbox is told later: each row says by itself what it is."""
    first = make(sends=False)
    commit(first, T, ids(1))
    commit(make(sends=False, **BULK), "orders.8.1", ids(2))
    make().resource.start()
    all_sent(first)
    assert [path for _, path, _, _ in partner.got] == ["/base", "/base/_bulk"]


def test_a_bulk_needs_requests_that_can_be_joined(make):
    """And an answer for each record: 200 may say that some of them failed."""
    for wrong in (
        {"bulk": 5, "statuses": per_item},
        {"bulk": 0, "request": line},
        {"bulk": 5, "request": line},
    ):
        with pytest.raises(ConfigurationError, match="bulk"):
            make(**wrong)


@any_database
@pytest.mark.parametrize("status", [429, 500])
def test_a_bulk_that_is_too_much_is_halved(make, partner, status):
    """Until it is taken; then it grows again. The rest does not go one by one."""

    def plan(path: str, lines: list[Any]) -> tuple[int, Any]:
        return (status, {}) if len(lines) > 20 else items()(path, lines)

    partner.plan = plan
    world = make(**BULK)
    commit(world, T, ids(*range(100)))
    all_sent(world)
    sizes = [len(bulk) for bulk in partner.ids()]
    assert sizes[:5] == [100, 50, 25, 12, 24]
    assert sizes.count(100) == 1
    assert 1 not in sizes[:-1]
    taken = [i for bulk in partner.ids() if len(bulk) <= 20 for i in bulk]
    assert taken == [*range(100)]


@any_database
def test_pauses_grow_until_a_bulk_of_that_size_is_taken(
    make, partner, pauses, monkeypatch
):
    """A partner that is overloaded gets less, and later."""
    monkeypatch.setattr("tracing_2pc.outbox.turns.LONGEST_PAUSE", PATIENT)
    answers = iter([(503, {})] * 4)
    partner.plan = lambda path, lines: next(answers, None) or items()(path, lines)
    world = make(**BULK)
    commit(world, T, ids(*range(100)))
    all_sent(world)
    assert pauses == [0.02, 0.04, 0.08, 0.16]
    assert [len(bulk) for bulk in partner.ids()][:5] == [100, 50, 25, 12, 6]


@any_database
def test_many_refused_in_a_bulk_are_one_stop(make, partner, caplog):
    """It is logged once for all of them."""
    partner.plan = lambda _, lines: (200, {"items": [400] * len(lines)})
    world = make(**BULK)
    commit(world, T, ids(*range(30)))
    until(lambda: len(partner.got) > 2)
    assert caplog.text.count("stopped") == 1
    assert len(quarantined(world)) == 10
