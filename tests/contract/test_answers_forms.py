"""The exact forms of requests: what is refused, how, and that nothing happens then."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.branches import ONE
from support.kinds import sqlite_url, tagged_rows
from support.participant import World

from tracing_2pc.core import content
from tracing_2pc.participant import TaggedRows

T = "orders.7.1"
VERSION = {"Tpc-Version": "1"}


class Unreadable(io.RawIOBase):
    """A body that fails the test when somebody reads it."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise AssertionError("the body was read")


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    made = tagged_rows(sqlite_url(tmp_path))
    yield made
    made.resource.close()


NO_IDS = [
    *("", "orders", "orders.7", "orders.07.1", "orders.7.0", "orders.7.1 ;"),
    *("Orders.7.1", "orders.7.1.1", "orders.7.-1", "or/ders.7.1", "orders.\u0667.1"),
    *("-orders.7.1", "x" * 41 + ".7.1", "x" * 10_000, "orders.7.1,orders.7.1"),
]


@pytest.mark.parametrize(
    "headers",
    [
        {"Tpc-Version": None},
        {"Tpc-Version": "2"},
        {"Tpc-Transaction-Id": None},
        *({"Tpc-Transaction-Id": text} for text in NO_IDS),
        *({"Tpc-Branch": text} for text in (None, "1", "01.1")),
        *({"Tpc-Rows": text} for text in (None, "-1", "3.0", "03", "9" * 30)),
        {"Content-Digest": None},
        {"Content-Digest": "sha-256=:abc=:"},
        {"Content-Digest": "md5=:1B2M2Y8AsgTpgAmY7PhCfg==:"},
    ],
    ids=lambda h: "-".join(f"{k}={v if v is None else v[:12]}" for k, v in h.items()),
)
def test_headers_of_a_prepare(world: World, headers: dict[str, str | None]) -> None:
    """A missing or malformed header is 400, a vote to abort, and leaves nothing."""
    answer = world.prepare(T, headers=headers)
    body = answer.get_json()
    assert (answer.status_code, body["vote"]) == (400, "abort")
    id_was_read = "Tpc-Transaction-Id" not in headers and "Tpc-Version" not in headers
    assert body.get("transaction_id") == (T if id_was_read else None)
    assert "state" not in body
    assert world.listed() == []


def test_a_header_given_twice(world: World) -> None:
    """Repeated Tpc-* headers are 400, also when both say the same."""
    headers = [
        ("Tpc-Version", "1"),
        ("Tpc-Transaction-Id", T),
        ("Tpc-Branch", "0.1"),
        ("Tpc-Branch", "0.1"),
        ("Tpc-Rows", "3"),
        ("Content-Digest", ONE.digest),
        ("Content-Type", content.ARROW),
    ]
    answer = world.client.post("/prepare", data=ONE.body, headers=headers)
    assert answer.status_code == 400
    assert "Tpc-Branch" in answer.get_json()["detail"]


@pytest.mark.parametrize(
    ("headers", "length", "status"),
    [
        ({"Content-Type": "text/csv"}, "10", 415),
        ({"Content-Type": None}, "10", 415),
        ({"Content-Encoding": "gzip"}, "10", 415),
        ({}, "", 411),
        ({"Transfer-Encoding": "chunked"}, "", 411),
        ({}, str((1 << 30) + 1), 413),
    ],
)
def test_refused_before_the_first_byte(
    world: World, headers: dict[str, str], length: str, status: int
) -> None:
    """Wrong type, no length, too long: nobody reads what would be refused anyway."""
    overrides = {"wsgi.input": Unreadable(), "CONTENT_LENGTH": length}
    if status == 415:
        overrides["wsgi.input"] = io.BytesIO(b"0123456789")
    answer = world.prepare(T, data=None, headers=headers, environ_overrides=overrides)
    assert answer.status_code == status
    assert answer.get_json()["vote"] == "abort"


@pytest.mark.parametrize("route", ["/commit", "/abort", "/resolve"])
def test_control_bodies_are_bounded(world: World, route: str) -> None:
    """A control body above 4 MiB is 413, unread; another type 415; chunked 411."""
    overrides = {"wsgi.input": Unreadable(), "CONTENT_LENGTH": str((4 << 20) + 1)}
    about = {"headers": VERSION, "content_type": "application/json"}
    answer = world.client.post(route, environ_overrides=overrides, **about)
    assert answer.status_code == 413
    overrides["CONTENT_LENGTH"] = ""
    answer = world.client.post(route, environ_overrides=overrides, **about)
    assert answer.status_code == 411
    answer = world.client.post(route, data=b"x=1", headers=VERSION)
    assert answer.status_code == 415
    packed = {**VERSION, "Content-Encoding": "gzip"}
    answer = world.client.post(route, json={"transaction_id": T}, headers=packed)
    assert answer.status_code == 415
    assert "Content-Encoding" in answer.get_json()["detail"]


NAMED = ONE.named


TWICE = b'{"transaction_id": "orders.7.1", "transaction_id": "orders.8.1", '
NO_NAMES: list[Any] = [
    *([NAMED, NAMED], ["0.1"], None),
    *([{**NAMED, "rows": rows}] for rows in (True, -1, 1.0)),
    *(
        [{**NAMED, **wrong}]
        for wrong in ({"digest": "x"}, {"branch": "1"}, {"digest": None})
    ),
]
REFUSED: dict[str, list[Any]] = {
    "/commit": [
        *(b" ", b"{", b"[]", b"\xff\xfe", b"[" * 100_000),
        b'{"transaction_id": "orders.7.1", "branches": NaN}',
        b'{"branches": [], "transaction_id": 7}',
        b'{"branches": []}',
        TWICE + b'"branches": []}',
        {},
        *({"branches": names} for names in NO_NAMES),
        *({"branches": [], "forgotten_through": n} for n in (7, -1, True, "6")),
        *({"branches": [], "requires": names} for names in (["more"], [1], "more")),
    ],
    "/abort": [
        *({"branch": 1}, {"brnch": "0.1"}, {"branch": None}),
        *({"forgotten_through": 8}, {"digest": NAMED["digest"]}),
        *({"branch": "0.1", "forgotten_through": n} for n in (6, None)),
        *({"branch": "0.1", "digest": digest} for digest in ("x", None)),
    ],
    "/resolve": [
        {"outcome": "commit"},
        *({"outcome": "commit", "reason": reason} for reason in (" ", "x" * 1001)),
        {"outcome": "committed", "reason": "x"},
    ],
}


@pytest.mark.parametrize(
    ("route", "body"), [(route, b) for route, bodies in REFUSED.items() for b in bodies]
)
def test_control_bodies(world: World, route: str, body: Any) -> None:
    """A body that is not exactly in its form is 400 and changes nothing."""
    assert world.prepare(T).status_code == 200
    named = isinstance(body, dict)
    text = json.dumps({"transaction_id": T, **body}).encode() if named else body
    answer = world.client.post(
        route, data=text, headers=VERSION, content_type="application/json"
    )
    assert answer.status_code == 400
    assert answer.content_type == "application/problem+json"
    assert answer.get_json().get("transaction_id") == (T if named else None)
    assert (world.in_doubt(), world.visible()) == (1, 0)


def test_a_commit_of_a_newer_release(world: World) -> None:
    """What it adds is ignored; what it says changes the commit is refused, by name."""
    assert world.prepare(T).status_code == 200
    newer = {"branches": [{**NAMED, "zone": 1}], "zone": {"a": [None]}}
    required = {**newer, "requires": ["branches", "zone"]}
    refused = world.post("/commit", transaction_id=T, **required)
    assert refused.status_code == 400
    assert refused.get_json()["detail"] == (
        "no field 'zone' here: mend it, or upgrade this service"
    )
    assert (world.in_doubt(), world.visible()) == (1, 0)
    answer = world.post("/commit", transaction_id=T, requires=["branches"], **newer)
    assert answer.status_code == 200
    assert (world.in_doubt(), world.visible()) == (0, ONE.rows)


@pytest.mark.parametrize(
    "query",
    [
        *("?state=committed", "?application=Orders", "?application=", "?before=1"),
        *("?limit=0", "?limit=1001", "?limit=01", "?limit=1&limit=2"),
        *("?after=1", "?after=%00", "?after=" + "A" * 5000),
    ],
)
def test_queries(world: World, query: str) -> None:
    """A query that is not in its form is 400, not an empty page."""
    assert world.client.get(f"/transactions{query}").status_code == 400


def test_a_get_may_leave_the_version_out(world: World) -> None:
    """The version is required on POST; on GET only another one is refused."""
    assert world.client.get("/transactions").status_code == 200
    wrong = {"Tpc-Version": "2"}
    assert world.client.get("/transactions", headers=wrong).status_code == 400
    body = {"transaction_id": T}
    assert world.client.post("/abort", json=body).status_code == 400


def test_a_malformed_id_in_the_path(world: World) -> None:
    """It is 400, with nothing of it taken for an id."""
    for id_ in ("orders.7", "orders.07.1", "orders.7.1%00", "..", "%27%20OR%201=1"):
        answer = world.client.get(f"/transactions/{id_}")
        assert answer.status_code in {400, 404}
        assert "transaction_id" not in (answer.get_json(silent=True) or {})


def test_a_fault_gives_nothing_away(
    world: World, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A fault of our own is a problem document without its text; the log has it."""

    def fault(*_: Any) -> None:
        raise RuntimeError("SELECT secret FROM /etc/passwd")

    monkeypatch.setattr(TaggedRows, "show", fault)
    answer = world.show(T)
    assert answer.status_code == 500
    assert answer.get_json()["transaction_id"] == T
    assert "secret" not in answer.text
    assert "SELECT secret" in caplog.text
