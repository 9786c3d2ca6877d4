"""Refusals: what comes back, what it gives away, and how it travels over a socket."""

from __future__ import annotations

import io
import json
import logging
import os
import socket
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.branches import ONE, Branch
from support.kinds import sqlite_url, tagged_rows
from support.participant import World
from support.served import by_gunicorn
from support.texts import texts
from support.waiting import AT_LAST
from werkzeug.test import TestResponse

from tracing_2pc.core import content
from tracing_2pc.participant import TaggedRows
from tracing_2pc.wire import contract

TEXTS = texts("contract")
T = "orders.7.1"
VERSION = {"Tpc-Version": "1"}
SECRET = "SELECT card FROM /srv/private/rows.db"

OTHER_SPELLINGS = {
    "arabic digits": "orders.\u0667.1",
    "full-width digits": "orders.\uff17.1",
    "superscript": "orders.\u00b2.1",
    "leading zero": "orders.07.1",
    "attempt 0": "orders.7.0",
    "attempt with a sign": "orders.7.+1",
    "nineteen digits": "orders." + "9" * 19 + ".1",
    "five thousand digits": "orders." + "9" * 5000 + ".1",
    "upper case": "Orders.7.1",
    "a space": "orders.7.1 ",
    "a line end": "orders.7.1\n",
    "a slash": "a/b.7.1",
    "underscore": "a_b.7.1",
    "no attempt": "orders.7",
}


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    made = tagged_rows(sqlite_url(tmp_path))
    yield made
    made.resource.close()


def send(world: World, route: str, text: bytes | str) -> TestResponse:
    data = text.encode() if isinstance(text, str) else text
    about = {"headers": VERSION, "content_type": contract.JSON}
    return world.client.post(route, data=data, **about)


def is_problem(answer: TestResponse, status: int) -> dict[str, Any]:
    """Hold an answer against RFC 9457, and return it."""
    assert answer.status_code == status
    assert answer.content_type == "application/problem+json"
    body: dict[str, Any] = answer.get_json()
    assert body["type"] == "about:blank"
    assert body["status"] == status
    assert body["title"]
    assert body["detail"]
    assert not any(word in answer.text for word in ("SELECT", "/srv", "Traceback"))
    return body


@pytest.mark.parametrize("text", OTHER_SPELLINGS.values(), ids=OTHER_SPELLINGS.keys())
def test_ids_have_one_spelling(world, text):
    """Another spelling of an id is 400 in a header, a body and a path; names none."""
    fields = {"transaction_id": text}
    answers = [
        send(world, route, json.dumps(fields)) for route in ("/abort", "/resolve")
    ]
    answers.append(send(world, "/commit", json.dumps({**fields, "branches": []})))
    if text.isascii() and text.isprintable() and text == text.strip():
        answers.append(world.prepare(text))
    for answer in answers:
        assert "transaction_id" not in is_problem(answer, 400)
    if "/" not in text and len(text) < 100:
        is_problem(world.show(text.replace("\n", "%0A")), 400)
    assert world.listed() == []


@pytest.mark.parametrize("branch", ["1", "01.1", "1.-1", "1.1.1", "9" * 19 + ".1", ""])
def test_branches_have_one_spelling(world, branch):
    """So has a branch's; by then the transaction is named."""
    named = {"branch": branch, "rows": 3, "digest": ONE.digest}
    fields = {"transaction_id": T, "branches": [named]}
    for answer in (
        world.prepare(T, headers={"Tpc-Branch": branch}),
        send(world, "/commit", json.dumps(fields)),
        world.abort(T, branch=branch),
    ):
        assert is_problem(answer, 400)["transaction_id"] == T


COMMIT = '{"transaction_id": "orders.7.1", "branches": []'

NOT_STRICT = {
    "trailing bytes": COMMIT + "} x",
    "two documents": COMMIT + "}" + COMMIT + "}",
    "a byte order mark": "\ufeff" + COMMIT + "}",
    "a key twice": COMMIT + ', "branches": []}',
    "a key twice, nested": COMMIT.replace(
        "[]", '[{"branch": "0.1", "branch": "0.1", "rows": 1, "digest": "x"}]'
    )
    + "}",
    "NaN": COMMIT + ', "forgotten_through": NaN}',
    "Infinity": COMMIT + ', "forgotten_through": -Infinity}',
    "a huge float": COMMIT + ', "forgotten_through": 1e999}',
    "a huge integer": COMMIT + ', "forgotten_through": ' + "9" * 5000 + "}",
    "a big integer": COMMIT + ', "forgotten_through": ' + "9" * 30 + "}",
    "nested too deeply": COMMIT + ', "forgotten_through": ' + "[" * 50_000 + "}",
    "a field that is required": COMMIT + ', "requires": ["why"], "why": {}}',
    "an unknown huge integer": COMMIT + ', "why": ' + "9" * 5000 + "}",
    "a control character": COMMIT + ', "forgotten_through": "\x01"}',
    "not UTF-8": COMMIT.encode() + b', "forgotten_through": "\xff"}',
    "UTF-16": (COMMIT + "}").encode("utf-16"),
}


@pytest.mark.parametrize("text", NOT_STRICT.values(), ids=NOT_STRICT.keys())
def test_json_is_strict(world, text):
    """What two readers might read differently is 400, and changes nothing."""
    world.prepare(T)
    is_problem(send(world, "/commit", text), 400)
    assert (world.in_doubt(), world.visible()) == (1, 0)


@pytest.mark.parametrize("route", ["/commit", "/abort"])
def test_forgotten_through_is_below_the_batch(world, route):
    """Null and nothing mean none; the batch itself and beyond are 400."""
    fields: dict[str, Any] = {"branches": []} if route == "/commit" else {}

    def status(transaction: str, **more: Any) -> int:
        about = {"transaction_id": transaction, **more, **fields}
        return send(world, route, json.dumps(about)).status_code

    for wrong in (7, 8, -1, 6.0, "6", True):
        assert (wrong, status(T, forgotten_through=wrong)) == (wrong, 400)
    assert status("orders.0.1", forgotten_through=0) == 400
    assert status("orders.0.1", forgotten_through=None) == 200
    assert status(T, forgotten_through=6) == 200
    assert status(T, forgotten_through=None) == status(T) == 200
    assert world.prepare("orders.6.1").status_code == 410


@pytest.mark.parametrize(
    ("route", "limit", "hint"),
    [
        ("/prepare", 1000, "more partitions"),
        ("/commit", 4 << 20, "fewer partitions"),
        ("/abort", 4 << 20, "fewer fields"),
        ("/resolve", 4 << 20, "fewer fields"),
    ],
)
def test_too_large_is_refused_unread(tmp_path, route, limit, hint):
    """One byte more than allowed is 413 before a byte is read, and says what to do."""
    resource = TaggedRows(sqlite_url(tmp_path), "orders")
    world = World(resource, lambda: 0, insecure=True, max_prepare_bytes=1000)
    headers = {
        **VERSION,
        "Tpc-Transaction-Id": T,
        "Content-Type": content.ARROW if route == "/prepare" else contract.JSON,
    }
    for length, status in ((limit, 400), (limit + 1, 413), ("9" * 25, 413)):
        body = io.BytesIO(bytes(limit))
        environ = {"wsgi.input": body, "CONTENT_LENGTH": str(length)}
        answer = world.client.post(route, headers=headers, environ_overrides=environ)
        problem = is_problem(answer, status)
        if status == 413:
            assert body.tell() == 0
            larger = TEXTS["larger than the limit"].format(limit=limit)
            assert larger in problem["detail"]
            assert TEXTS[hint] in problem["detail"]
    resource.close()


def test_a_commit_of_too_many_branches_says_what_to_do(world):
    """More branches than a commit may name: write with fewer partitions."""
    fields = {"transaction_id": T, "branches": [0] * 50_001}
    answer = send(world, "/commit", json.dumps(fields))
    assert TEXTS["fewer partitions"] in is_problem(answer, 400)["detail"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError(SECRET),
        KeyError(SECRET),
        sa.exc.ProgrammingError(SECRET, {"card": SECRET}, Exception(SECRET)),
        sa.exc.OperationalError(SECRET, {}, Exception(SECRET)),
        sa.exc.InterfaceError(SECRET, {}, Exception(SECRET), False, True),
        sa.exc.TimeoutError(SECRET),
        OSError(28, SECRET, "/srv/private"),
    ],
    ids=lambda error: type(error).__name__,
)
def test_a_fault_gives_nothing_away(world, monkeypatch, caplog, error):
    """A bug is 500, a database that is away 503: neither a vote nor an outcome.

    The text of a bug is in the log only.
    """

    def fault(*_: Any, **__: Any) -> None:
        raise error

    for method in ("prepare", "commit", "abort", "resolve", "show", "list_open"):
        monkeypatch.setattr(TaggedRows, method, fault)
    monkeypatch.setattr(TaggedRows, "gauges", fault)
    bug = isinstance(error, RuntimeError | KeyError | sa.exc.ProgrammingError)
    for answer in (
        world.prepare(T, once=True),
        world.commit(T, ONE, once=True),
        world.abort(T, once=True),
        world.resolve(T, "commit", once=True),
        world.show(T),
    ):
        body = is_problem(answer, 500 if bug else 503)
        assert body["transaction_id"] == T
        assert {"state", "vote"} & body.keys() == set()
        assert ("Retry-After" in answer.headers) is not bug
    for route in ("/transactions", "/metrics"):
        is_problem(world.client.get(route), 500 if bug else 503)
    assert not bug or SECRET in caplog.text


def test_a_database_that_is_away(tmp_path, caplog):
    """Until it is there all but `live` is 503; then it is served without a restart."""
    folder = tmp_path / "not" / "yet"
    world = tagged_rows(sqlite_url(folder))
    why = TEXTS["the database is away"]
    assert why in caplog.text
    for answer in (
        world.prepare(T, once=True),
        world.commit(T, once=True),
        world.abort(T, once=True),
        world.show(T),
    ):
        body = is_problem(answer, 503)
        assert answer.headers["Retry-After"] == "1"
        assert "vote" not in body
    for route, status in (
        ("/health/live", 200),
        ("/health/ready", 503),
        ("/metrics", 503),
        ("/transactions", 503),
    ):
        assert world.client.get(route).status_code == status
    # At the start, of six requests, and of the look whether it is ready.
    assert caplog.text.count(why) == 8
    folder.mkdir(parents=True)
    assert world.client.get("/health/ready").status_code == 200
    assert world.prepare(T).status_code == 200
    world.resource.close()


def test_a_file_that_can_only_be_read_is_not_ready(caplog):
    """It answers what it holds, and takes no branch: no balancer sends one there."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        world = tagged_rows(f"sqlite:///{folder}/orders.db")
        assert world.prepare(T).status_code == 200
        assert world.client.get("/health/ready").status_code == 200
        Path(folder).chmod(0o555)
        before = os.geteuid()
        os.seteuid(before or 65534)  # root may write all the same
        try:
            body = is_problem(world.client.get("/health/ready"), 503)
        finally:
            os.seteuid(before)
            Path(folder).chmod(0o755)
        assert TEXTS["read-only file"] in caplog.text
        assert "orders" not in body["detail"]
        assert world.client.get("/health/ready").status_code == 200
        world.resource.close()


def test_nothing_of_a_record_is_logged(world, caplog):
    """A body that cannot be read is refused without a word of it, in the log too."""
    caplog.set_level(logging.DEBUG)
    body = Branch(b'{"card": "of-somebody', 1, content_type=content.NDJSON)
    answer = world.prepare(T, body)
    assert is_problem(answer, 400)["vote"] == "abort"
    assert "of-somebody" not in answer.text + caplog.text


APP = """
from flask import Flask
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows
app = Flask("ledger")
app.register_blueprint(participant_blueprint(
    TaggedRows("env:DATABASE", "orders"), insecure=True, max_prepare_bytes=1 << 20
))
"""


@pytest.fixture(scope="module")
def port(tmp_path_factory) -> Iterator[int]:
    """A participant behind a real server."""
    folder = tmp_path_factory.mktemp("served")
    (folder / "served.py").write_text(APP)
    about = ("served:app", folder, "--threads", "2", "--log-level", "warning")
    with by_gunicorn(*about, DATABASE=sqlite_url(folder)) as url:
        yield int(url.rpartition(":")[2])


def _ask(port: int, text: bytes) -> bytes:
    """Send everything, then read everything."""
    with socket.create_connection(("127.0.0.1", port), timeout=AT_LAST) as connection:
        connection.sendall(text)
        answer = b""
        while piece := connection.recv(65536):
            answer += piece
        return answer


def _request(route: str, *lines: str, body: bytes = b"") -> bytes:
    """Write a request as it goes over the wire."""
    common = (f"POST {route} HTTP/1.1", "Host: localhost", "Connection: close")
    return "\r\n".join([*common, *lines, "", ""]).encode() + body


def _prepare(*lines: str, body: bytes = ONE.body) -> bytes:
    common = (
        "Tpc-Version: 1",
        "Tpc-Participant: ledger",
        f"Tpc-Transaction-Id: {T}",
        "Tpc-Rows: 3",
        f"Content-Digest: {ONE.digest}",
        f"Content-Type: {content.ARROW}",
    )
    return _request("/prepare", *common, *lines, body=body)


LENGTH = f"Content-Length: {len(ONE.body)}"
CHUNKED = b"%x\r\n%s\r\n0\r\n\r\n" % (len(ONE.body), ONE.body)


@pytest.mark.parametrize(
    ("request_", "status", "detail"),
    [
        (_prepare("Tpc-Branch: 0.1", LENGTH), 200, ""),
        (_prepare("Tpc-Branch: 0.1", "Tpc-Branch: 0.1", LENGTH), 400, "once"),
        (_prepare("Tpc-Branch: 0.1", "TPC-ROWS: 3", LENGTH), 400, "once"),
        (_prepare("Tpc-Branch: \u0660.\u0661", LENGTH), 400, "Tpc-Branch"),
        (_prepare("Tpc-Branch: 0.1", body=b""), 411, "Content-Length"),
        (
            _prepare("Tpc-Branch: 0.1", "Transfer-Encoding: chunked", body=CHUNKED),
            411,
            "chunked",
        ),
        (_request("/abort", "Content-Type: text/plain", "Content-Length: 0"), 400, ""),
    ],
    ids=["right", "twice", "case", "unicode", "no length", "chunked", "no version"],
)
def test_over_the_wire(port, request_, status, detail):
    """A real server's way to hand headers over changes nothing."""
    head, _, body = _ask(port, request_).partition(b"\r\n\r\n")
    assert int(head.split()[1]) == status, head
    assert detail in json.loads(body).get("detail", "")


@pytest.mark.parametrize("route", ["/commit", "/prepare"])
def test_the_answer_to_a_large_body_arrives(port, route):
    """Who sends megabytes before reading still gets the 413, not a reset."""
    kind = content.ARROW if route == "/prepare" else contract.JSON
    about = ("Tpc-Version: 1", f"Content-Type: {kind}", f"Content-Length: {20 << 20}")
    text = _request(route, *about, body=bytes(20 << 20))
    for _ in range(3):
        head, _, body = _ask(port, text).partition(b"\r\n\r\n")
        assert b" 413 " in head
        assert json.loads(body)["detail"]


def test_a_refused_body_does_not_spoil_the_connection(port):
    """What was not read of one request is not taken for the next one."""
    refused = _prepare("Tpc-Branch: zero", LENGTH).replace(
        b"Connection: close", b"X: y"
    )
    answers = _ask(port, refused + _prepare("Tpc-Branch: 0.1", LENGTH))
    assert answers.count(b"HTTP/1.1 400") == 1
    assert answers.count(b"HTTP/1.1 200") == 1


class Unreadable(io.RawIOBase):
    """A body that fails the test when somebody reads it."""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        raise AssertionError("the body was read")


NO_IDS = ["", "-orders.7.1", "x" * 41 + ".7.1", "x" * 10_000, "orders.7.1,orders.7.1"]


@pytest.mark.parametrize(
    "headers",
    [
        {"Tpc-Version": None},
        {"Tpc-Version": "2"},
        {"Tpc-Transaction-Id": None},
        *({"Tpc-Transaction-Id": text} for text in NO_IDS),
        {"Tpc-Branch": None},
        *({"Tpc-Rows": text} for text in (None, "-1", "3.0", "03", "9" * 30)),
        {"Content-Digest": None},
        {"Content-Digest": "sha-256=:abc=:"},
        {"Content-Digest": "md5=:1B2M2Y8AsgTpgAmY7PhCfg==:"},
    ],
    ids=lambda h: "-".join(f"{k}={v if v is None else v[:12]}" for k, v in h.items()),
)
def test_headers_of_a_prepare(world, headers):
    """A missing or malformed header is 400, a vote to abort, and leaves nothing."""
    answer = world.prepare(T, headers=headers)
    body = answer.get_json()
    assert (answer.status_code, body["vote"]) == (400, "abort")
    id_was_read = "Tpc-Transaction-Id" not in headers and "Tpc-Version" not in headers
    assert body.get("transaction_id") == (T if id_was_read else None)
    assert "state" not in body
    assert world.listed() == []


@pytest.mark.parametrize(
    ("headers", "length", "status"),
    [
        ({"Content-Type": "text/csv"}, "10", 415),
        ({"Content-Type": None}, "10", 415),
        ({"Content-Encoding": "gzip"}, "10", 415),
        ({}, "", 411),
        ({"Transfer-Encoding": "chunked"}, "", 411),
    ],
)
def test_refused_before_the_first_byte(world, headers, length, status):
    """Wrong type, no length: nobody reads what would be refused anyway."""
    overrides = {"wsgi.input": Unreadable(), "CONTENT_LENGTH": length}
    if status == 415:
        overrides["wsgi.input"] = io.BytesIO(b"0123456789")
    answer = world.prepare(T, data=None, headers=headers, environ_overrides=overrides)
    assert answer.status_code == status
    assert answer.get_json()["vote"] == "abort"


@pytest.mark.parametrize("route", ["/commit", "/abort", "/resolve"])
def test_the_type_of_a_control_body(world, route):
    """A control body of another type is 415; a chunked one 411, unread."""
    overrides = {"wsgi.input": Unreadable(), "CONTENT_LENGTH": ""}
    about = {"headers": VERSION, "content_type": "application/json"}
    answer = world.client.post(route, environ_overrides=overrides, **about)
    assert answer.status_code == 411
    answer = world.client.post(route, data=b"x=1", headers=VERSION)
    assert answer.status_code == 415
    packed = {**VERSION, "Content-Encoding": "gzip"}
    answer = world.client.post(route, json={"transaction_id": T}, headers=packed)
    assert answer.status_code == 415
    assert "Content-Encoding" in answer.get_json()["detail"]


NAMED = ONE.named

NO_NAMES: list[Any] = [
    *([NAMED, NAMED], ["0.1"], None),
    *([{**NAMED, "rows": rows}] for rows in (True, -1, 1.0)),
    *(
        [{**NAMED, **wrong}]
        for wrong in ({"digest": "x"}, {"branch": "1"}, {"digest": None})
    ),
]

NO_LINES = ("", " ", "\n", "a\nb", "a\x00b", "\ud800", 7, None)
"""A reason goes into a database and a log: it is one printable line."""

REFUSED: dict[str, list[Any]] = {
    "/commit": [
        *(b" ", b"{", b"[]", b'{"branches": [], "transaction_id": 7}'),
        *(b'{"branches": []}', {}),
        *({"branches": names} for names in NO_NAMES),
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
        {"outcome": "commit", "reason": "x" * 1001},
        {"outcome": "committed", "reason": "x"},
        *({"outcome": "abort", "reason": text} for text in NO_LINES),
    ],
}


@pytest.mark.parametrize(
    ("route", "body"), [(route, b) for route, bodies in REFUSED.items() for b in bodies]
)
def test_control_bodies(world, route, body):
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


def test_a_commit_of_a_newer_release(world):
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
def test_queries(world, query):
    """A query that is not in its form is 400, not an empty page."""
    assert world.client.get(f"/transactions{query}").status_code == 400


def test_a_query_of_other_bytes_is_refused(world, caplog):
    """What is no UTF-8 is the caller's fault, and no traceback."""
    raw = {"QUERY_STRING": "after=\xfc"}
    answer = world.client.get("/transactions", environ_overrides=raw)
    assert answer.status_code == 400
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


def test_a_get_may_leave_the_version_out(world):
    """The version is required on POST; on GET only another one is refused."""
    assert world.client.get("/transactions").status_code == 200
    wrong = {"Tpc-Version": "2"}
    assert world.client.get("/transactions", headers=wrong).status_code == 400
    body = {"transaction_id": T}
    assert world.client.post("/abort", json=body).status_code == 400
