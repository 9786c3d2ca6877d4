"""A gateway: what it answers to producers, and that 202 means kept."""

from __future__ import annotations

import contextlib
import gzip
import importlib.resources
import io
import json
import re
import resource
import socket
import threading
import tracemalloc
import urllib.parse
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
import urllib3
import uvicorn
import yaml
from a2wsgi import WSGIMiddleware
from fastapi import FastAPI
from flask import Flask, Response, request
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from support.branches import TRACE
from support.databases import url
from support.metrics import measured
from support.waiting import AT_LAST, PATIENT, until
from werkzeug.test import TestResponse

from tracing_2pc.core.access import MAY, Role
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.http.events import events_blueprint
from tracing_2pc.inbox import Inbox, Offset

__all__ = ["measured", "url"]

JSON, NDJSON = "application/json", "application/x-ndjson"
SHOP, OTHER, JOB = (
    "shop-token-0123456789",
    "other-token-123456789",
    "job-token-123456789",
)
ROLES = {role: f"{role}-token-0123456789" for role in map(str, Role)}
TOKENS = f"producer {SHOP} shop\nproducer {OTHER} other\njob {JOB}\n" + "".join(
    f"{role} {token} mine\n" for role, token in ROLES.items()
)
LONG = "x" * 2_000


SPEC: dict[str, Any] = yaml.safe_load(
    (importlib.resources.files("tracing_2pc.http") / "gateway.yaml").read_text()
)
PATHS = {
    (method.upper(), path): operation
    for path, item in SPEC["paths"].items()
    for method, operation in item.items()
}


def as_documented(answer: Response) -> Response:
    """Hold an answer against the document; what it does not say is a 500."""
    at = request.method, request.path
    documented = PATHS[at]["responses"][str(answer.status_code)]
    if "$ref" in documented:
        documented = SPEC["components"]["responses"][documented["$ref"].split("/")[-1]]
    schema = documented["content"][answer.mimetype]["schema"]
    if answer.is_json:
        schema = {**schema, "components": SPEC["components"]}
        OAS31Validator(schema).validate(answer.get_json())
    return answer


def test_the_document_is_of_the_routes(gateway):
    """It is OpenAPI 3.1, and has every route and role."""
    validate(SPEC)
    served = {
        (method, rule.rule)
        for rule in gateway.app.url_map.iter_rules()
        for method in (rule.methods or set()) - {"HEAD", "OPTIONS"}
        if rule.endpoint != "static"
    }
    assert served == PATHS.keys()
    for operation in PATHS.values():
        if operation.get("security") != []:
            roles = operation["description"].removeprefix("Roles: ").partition(".")[0]
            may = set(map(str, MAY[operation["operationId"]]))
            assert set(roles.split(", ")) == may


class Gateway:
    """A gateway, as its producers see it."""

    def __init__(self, inbox: Inbox, folder: Path, **options: Any) -> None:
        self.inbox = inbox
        tokens = folder / "tokens"
        tokens.write_text(TOKENS)
        app = Flask(__name__)
        app.register_blueprint(events_blueprint(inbox, tokens=tokens, **options))
        app.after_request(as_documented)
        self.app, self.client = app, app.test_client()

    def post(
        self,
        body: Any,
        kind: str = "application/json",
        token: str = SHOP,
        **headers: str,
    ) -> TestResponse:
        text = body if isinstance(body, (str, bytes)) else json.dumps(body)
        given = {"Authorization": f"Bearer {token}", **headers}
        return self.client.post("/events", data=text, content_type=kind, headers=given)

    def kept(self) -> list[tuple[str, str, str]]:
        events = self.inbox.read(Offset(), self.inbox.end())
        return [(one.producer, one.id, one.body) for one in events]


@pytest.fixture
def inbox(url: str) -> Iterator[Inbox]:
    inbox = Inbox(url)
    yield inbox
    inbox.close()


@pytest.fixture
def gateway(inbox: Inbox, tmp_path: Path) -> Gateway:
    return Gateway(inbox, tmp_path, max_body_bytes=1_000, max_events=3)


def event(name: str, payload: Any = 1) -> dict[str, Any]:
    return {"id": name, "payload": payload}


def test_one_event(gateway):
    """202 with its position when it is kept; again 202, and it is stored once."""
    first, again = gateway.post(event("a")), gateway.post(event("a"))
    assert (first.status_code, first.json) == (
        202,
        {"id": "a", "position": 1, "new": True},
    )
    assert (again.status_code, again.json) == (
        202,
        {"id": "a", "position": 1, "new": False},
    )
    assert gateway.kept() == [("shop", "a", "1")]


@pytest.mark.parametrize("kind", ["application/json", NDJSON])
def test_several_events(gateway, kind):
    """As a list, or one a line; in their order."""
    texts = [
        '{"payload": {"b": 1.10, "a": [] }, "id":"x"}',
        '{"id": "y","payload":null}',
    ]
    body = f"[{' , '.join(texts)}]" if kind != NDJSON else "\r\n".join([*texts, "", ""])
    answer = gateway.post(body, kind)
    assert answer.status_code == 202
    assert [e["position"] for e in answer.json["events"]] == [1, 2]
    assert gateway.kept() == [
        ("shop", "x", '{"b": 1.10, "a": [] }'),
        ("shop", "y", "null"),
    ]


def test_an_id_by_a_header(gateway):
    """Where the body has none."""
    answer = gateway.post({"payload": 1}, **{"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json["id"]) == (202, "k")


@pytest.mark.parametrize(
    ("sent", "id_"),
    [("k-1", "k-1"), ('"k-1"', "k-1"), (r'"a\"b\\"', 'a"b\\'), ('k"1', 'k"1')],
)
def test_an_id_in_quotes_is_the_same(gateway, sent, id_):
    """As the draft of the IETF writes a header `Idempotency-Key`."""
    answer = gateway.post({"payload": 1}, **{"Idempotency-Key": sent})
    assert (answer.status_code, answer.json["id"]) == (202, id_)
    answer = gateway.post(event(id_), **{"Idempotency-Key": sent})
    assert (answer.status_code, answer.json["new"]) == (202, False)


@pytest.mark.parametrize(
    ("header", "body", "said"),
    [
        ('"k', {"payload": 1}, "Idempotency-Key: expected a text in quotes"),
        (r'"\k"', {"payload": 1}, "Idempotency-Key: expected a text in quotes"),
        ('"a", "b"', {"payload": 1}, "Idempotency-Key: expected a text in quotes"),
        ("k", event("other"), "id and Idempotency-Key differ"),
    ],
)
def test_an_id_that_is_not_clear_is_refused(gateway, header, body, said):
    """A header in no form, or one beside another id; nothing is stored."""
    answer = gateway.post(body, **{"Idempotency-Key": header})
    assert (answer.status_code, gateway.kept()) == (400, [])
    assert said in answer.json["detail"]


def test_a_body_that_is_compressed_is_refused(gateway):
    """It says so, and not that it is no JSON."""
    body = gzip.compress(json.dumps(event("a")).encode())
    answer = gateway.post(body, **{"Content-Encoding": "gzip"})
    assert (answer.status_code, gateway.kept()) == (415, [])
    assert "send the body as it is, not compressed" in answer.json["detail"]
    answer = gateway.post(event("a"), **{"Content-Encoding": "identity"})
    assert answer.status_code == 202


@pytest.mark.parametrize(
    ("kind", "form"), [(JSON, ("[", ",", ", {")), (NDJSON, ("", "\n", "\n{"))]
)
def test_no_event_beyond_the_limit_is_read(gateway, kind, form):
    """However many follow, and whatever they are."""
    start, between, rest = form
    some = between.join(json.dumps(event(str(n))) for n in range(4))
    answer = gateway.post(f"{start}{some}{rest}", kind)
    assert answer.status_code == 413
    assert "more than 3 events: send fewer" in answer.json["detail"]


@pytest.mark.parametrize("blank", ["\n", " ", "\r\n"])
def test_blank_lines_take_no_memory(inbox, tmp_path, blank):
    """A million of them is read in as much as the body itself takes, and the
    line of an event is still known."""
    gateway = Gateway(inbox, tmp_path)
    body = f"{blank * (1 << 20)}\n{{".encode()
    tracemalloc.start()
    answer = gateway.post(body, NDJSON)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    number = body.count(b"\n") + 1
    assert answer.json["detail"] == f"line {number}: it is not JSON"
    assert peak < 4 * len(body)


@pytest.mark.parametrize(
    "body",
    ["[,]", "[{}", "[{}{}]", "[{},]", "[{}] 1", "[1", "[" * 9_999, "["],
)
def test_a_list_is_json(inbox, tmp_path, body):
    """Or nothing of it is stored."""
    gateway = Gateway(inbox, tmp_path)
    answer = gateway.post(body.replace("{}", '{"id": "a", "payload": 1}'))
    assert (answer.status_code, gateway.kept()) == (400, [])
    assert answer.json["detail"]


@pytest.mark.parametrize(
    "headers", [{"Host": "evil.example"}, {"Origin": "https://evil.example"}]
)
def test_without_tokens_it_takes_nothing_from_a_page(inbox, headers):
    """A browser of this machine may be led here by a stranger's name."""
    app = Flask(__name__)
    app.register_blueprint(events_blueprint(inbox, insecure=True))
    post = partial(app.test_client().post, "/events")
    assert post(json=event("a"), headers=headers).status_code == 403
    assert post(json=event("b")).json["position"] == 1


def test_other_content_under_an_id_is_a_conflict(gateway):
    """409; order of keys and white space are no other content."""
    gateway.post('{"id": "a", "payload": {"x": 1, "y": 2}}')
    assert gateway.post('{"payload":{"y":2,"x":1},"id":"a"}').status_code == 202
    answer = gateway.post([event("b"), event("a", {"x": 1})])
    assert answer.status_code == 409
    assert "'a' of shop is stored with other content" in answer.json["detail"]
    assert len(gateway.kept()) == 1


@pytest.mark.parametrize(
    ("body", "kind", "status", "said"),
    [
        ("{", JSON, 400, "it is not JSON"),
        ("[]", JSON, 400, "there is no event"),
        ("[1]", JSON, 400, "event 1: expected an object"),
        ([event("a"), {"id": "b"}], JSON, 400, "event 2: payload"),
        ({"payload": 1}, JSON, 400, "id: expected a text"),
        ({"id": 7, "payload": 1}, JSON, 400, "id: expected a text"),
        (event("a\n"), JSON, 400, "id: expected 1 to 200 printable"),
        ({**event("a"), "time": 1}, JSON, 400, "'time' is no member"),
        ('{"id": "a", "id": "b", "payload": 1}', JSON, 400, "twice"),
        ('{"id": "a", "payload": NaN}', JSON, 400, "NaN"),
        (f'{{"id": "a", "payload": 1e-{"9" * 20}}}', JSON, 400, "exponent"),
        ('{"id": "a", "payload": 1}\n{', NDJSON, 400, "line 2: it is not JSON"),
        (b'{"id": "\xff", "payload": 1}', JSON, 400, "it is not JSON"),
        (event("a"), "text/plain", 415, "Content-Type: send application/json"),
        (event("a", LONG), JSON, 413, "1000 are taken"),
        ([event(str(n)) for n in range(4)], JSON, 413, "more than 3 events"),
    ],
)
def test_what_is_wrong_is_said(gateway, body, kind, status, said):
    """With the field and the line; nothing of that request is stored."""
    answer = gateway.post(body, kind)
    assert (answer.status_code, answer.mimetype) == (status, "application/problem+json")
    assert said in answer.json["detail"]
    assert gateway.kept() == []


SCHEMA = {
    "type": "object",
    "properties": {
        "items": {"type": "array", "items": {"$ref": "#/$defs/item"}},
        "amount": {"type": "number", "multipleOf": 0.01},
    },
    "additionalProperties": False,
    "$defs": {"item": {"anyOf": [{"const": "bolt"}, {"$ref": "#"}]}},
}


@pytest.mark.parametrize(
    ("payload", "said"),
    [
        ({"items": ["bolt", {"amount": 19.99}], "amount": 1e300}, None),
        (7, "payload: 7 is not of type 'object'"),
        ({"amount": 0.001}, "payload.amount: 0.001 is not a multiple of 0.01"),
        ({"items": ["bolt", {"items": 1}]}, "payload.items[1].items: 1 is not of"),
        ({"a\n" * 1_000: 1}, "payload: Additional"),
        ({"items": ["\ud800" + LONG]}, "payload.items[0]: '\\ud800xxx"),
    ],
)
def test_a_payload_fits_the_schema(inbox, tmp_path, payload, said):
    """Or it is 400 in one short line: which event, where in it and why. Nothing of its
    request is stored; other requests are not touched."""
    gateway = Gateway(inbox, tmp_path, schema=SCHEMA)
    lines = [json.dumps(event(name, of)) for name, of in [("a", {}), ("b", payload)]]
    answer = gateway.post("\n".join(lines), NDJSON)
    assert gateway.post(event("c", {"items": []})).status_code == 202
    kept = [name for _, name, _ in gateway.kept()]
    if said is None:
        assert (answer.status_code, kept) == (202, ["a", "b", "c"])
        return
    assert (answer.status_code, kept) == (400, ["c"])
    detail = answer.json["detail"]
    assert detail.startswith(f"line 2: {said}")
    assert detail.isprintable()
    assert len(detail) < 400


ODD, LARGE = "1.00000000000000000001", "9007199254740993.0"


@pytest.mark.parametrize(
    ("schema", "number", "said"),
    [
        ({"maximum": 1}, ODD, f"payload: {ODD} is greater than the maximum of 1"),
        ({"type": "integer"}, ODD, f"payload: {ODD} is not of type 'integer'"),
        ({"const": 0.1}, "0.10000000000000000555", "payload: 0.1 was expected"),
        ({"minimum": 9007199254740993}, LARGE, None),
        ({"type": "integer", "multipleOf": 3}, LARGE, None),
        ({"exclusiveMaximum": 0.3}, "0.29999999999999999999", None),
        ({"enum": [0.1, 0.25]}, "2.5e-1", None),
        ({"minLength": 1.0, "multipleOf": 0.5}, "1e300", None),
        ({"multipleOf": 0.01}, "0.0", None),
        ({"multipleOf": 0.01}, "1e-99999999", "payload: 1E-99999999 is not a multiple"),
        ({"multipleOf": 1}, f"0.{'9' * 5000}", "payload: a number is too long"),
    ],
    ids=range(11),
)
def test_a_schema_sees_the_digits_that_readers_get(
    inbox, tmp_path, schema, number, said
):
    """Numbers are compared as they were written, not as doubles."""
    gateway = Gateway(inbox, tmp_path, schema=schema)
    answer = gateway.post(f'{{"id": "a", "payload": {number}}}')
    assert answer.status_code == (400 if said else 202), answer.json
    assert answer.json.get("detail", "").startswith(said or "")


@pytest.mark.parametrize(
    ("schema", "said"),
    [
        ({"type": "text"}, "type: 'text' is not valid"),
        ({"properties": {"a": {"pattern": "("}}}, "properties.a.pattern: '(' is not a"),
        ({"$schema": "http://other"}, "'http://other' is not known"),
        ({"items": {"$ref": "#/$defs/gone"}}, "'#/$defs/gone' is not in it"),
        ({"$ref": "https://example.com/x"}, "'https://example.com/x' is not in it"),
        ({"a": {"items": {"$ref": "#b"}}, "$ref": "#/a"}, "'#b' is not in it"),
        ({"$ref": "#"}, "refers to itself without end"),
        ({"const": {1}}, "set is not JSON"),
        ([], "expected a dict"),
    ],
)
def test_a_schema_that_is_wrong_ends_the_start(tmp_path, schema, said):
    """In one line, before anything is served; nothing is loaded for it."""
    with pytest.raises(ConfigurationError, match=re.escape(said)) as raised:
        Gateway(Inbox(f"sqlite:///{tmp_path}/inbox.db"), tmp_path, schema=schema)
    assert str(raised.value).isprintable()


def test_events_are_counted_by_their_answers(gateway, inbox, measured):
    """Those of admitted producers: of a request, each one."""
    two = [event("a"), event("b")]
    for body in (event("a"), two, [event("a", 2), event("c")], two * 2, "{"):
        gateway.post(body)
    gateway.post(event("d"), token=JOB)
    inbox._flush._most = 0
    gateway.post(two)
    counts = {k: v for k, v in measured().items() if k.startswith("tpc_inbox_events")}
    answers = {"stored": 2, "known": 1, "conflict": 2, "malformed": 2, "later": 2}
    assert counts == {
        f'tpc_inbox_events_total{{answer="{answer}"}}': count
        for answer, count in answers.items()
    }


@pytest.mark.parametrize("role", [*ROLES, "none"])
def test_every_route_for_every_role(gateway, role):
    """A producer sends, a viewer and an operator measure, and nobody does both."""
    token = ROLES.get(role)
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    may = {"/events": {"producer"}, "/metrics": {"operator", "viewer"}}
    for rule in gateway.app.url_map.iter_rules():
        if rule.endpoint == "static":
            continue
        (method,) = (rule.methods or set()) - {"HEAD", "OPTIONS"}
        answer = gateway.client.open(
            rule.rule, method=method, json=event(role), headers=headers
        )
        if role in may.get(rule.rule, {role}):
            assert answer.status_code in {200, 202}, rule
        else:
            assert answer.status_code == (403 if token else 401), rule
    kept = [("mine", role, "1")] if role == "producer" else []
    assert gateway.kept() == kept


def test_it_says_whether_it_is_up(gateway, inbox, monkeypatch):
    """And 503, to be asked again, while its database does not answer."""
    assert gateway.client.get("/health").json == {"status": "UP"}
    assert gateway.client.get("/health/live").status_code == 200

    def down(*_: object) -> None:
        raise sa.exc.OperationalError("", {}, OSError("no route"))

    sa.event.listen(inbox._database.engine, "begin", down)
    answers = [gateway.client.get("/health"), gateway.post(event("a"))]
    assert [answer.status_code for answer in answers] == [503, 503]
    assert [answer.headers["Retry-After"] for answer in answers] == ["1", "1"]
    assert gateway.client.get("/health/live").status_code == 200


@contextlib.contextmanager
def full_disk(inbox: Inbox) -> Iterator[None]:
    """Let an inbox's disk be full: a file cannot grow, a server says so."""
    if inbox.address.startswith("sqlite"):
        path = Path(str(inbox._database.url.database))
        soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
        full = path.with_name(path.name + "-wal").stat().st_size
        resource.setrlimit(resource.RLIMIT_FSIZE, (full, hard))
        yield
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        return
    trigger = "no_room BEFORE INSERT ON events_tpc_event"
    with inbox._database.write() as connection:
        connection.exec_driver_sql(
            "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS "
            "$$ BEGIN RAISE disk_full USING MESSAGE = 'disk'; END $$"
        )
        call = f"CREATE TRIGGER {trigger} EXECUTE FUNCTION full_disk()"
        connection.exec_driver_sql(call)
    yield
    with inbox._database.write() as connection:
        connection.exec_driver_sql("DROP FUNCTION full_disk CASCADE")


def test_a_full_disk(gateway, inbox, caplog):
    """503, and to be sent again: nothing of it is kept. Who does when there is room has
    it once. The log says why; the answer tells no address."""
    gateway.post(event("before"))
    two = [event("a", LONG[:300]), event("b", LONG[:300])]
    with full_disk(inbox):
        answers = [gateway.post(two), gateway.post(two)]
    for answer in answers:
        assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")
        assert "sql" not in answer.text
    assert "disk" in caplog.text.lower()
    assert [name for _, name, _ in gateway.kept()] == ["before"]
    positions = [one["position"] for one in gateway.post(two).json["events"]]
    assert positions == [2, 3]


def test_too_many_waiting_are_refused(url, tmp_path):
    """429: later. Nothing was done for them."""
    inbox = Inbox(url, most_waiting=0)
    gateway = Gateway(inbox, tmp_path)
    answer = gateway.post(event("a"))
    assert (answer.status_code, answer.headers["Retry-After"]) == (429, "1")
    assert gateway.kept() == []
    inbox.close()


def test_the_trace_of_an_event_is_kept(gateway, inbox):
    """It goes on with the producer's."""
    gateway.post(event("a"), **TRACE)
    (kept,) = inbox.read(Offset(), inbox.end())
    assert kept.carrier["traceparent"].split("-")[1] == "a" * 32


def test_a_body_without_its_length_is_refused(gateway):
    """It is not known when it ends."""
    kind, headers = "application/json", {"Authorization": f"Bearer {SHOP}"}
    chunked = {"wsgi.input": io.BytesIO(b"{}"), "HTTP_TRANSFER_ENCODING": "chunked"}
    answer = gateway.client.post(
        "/events", content_type=kind, headers=headers, environ_overrides=chunked
    )
    assert answer.status_code == 411


class Uvicorn:
    """A FastAPI application in a thread: the gateway, and a route of its own."""

    def __init__(self, gateway: Gateway) -> None:
        api = FastAPI()
        api.get("/")(lambda: "here")
        api.mount("/inbox", WSGIMiddleware(gateway.app, workers=32))
        self.server = uvicorn.Server(uvicorn.Config(api, port=0, log_level="error"))
        self.thread = threading.Thread(target=self.server.run)

    def __enter__(self) -> str:
        self.thread.start()
        until(lambda: self.server.started)
        host, port = self.server.servers[0].sockets[0].getsockname()
        return f"http://{host}:{port}"

    def __exit__(self, *_: object) -> None:
        self.server.should_exit = True
        self.thread.join()


@pytest.mark.parametrize("url", ["sqlite"], indirect=True)
def test_inside_of_a_fastapi_application(inbox, tmp_path, monkeypatch):
    """Thirty-two clients share a flush there; while they wait other routes answer. A
    body that is too large is refused, and of one that is cut short nothing is kept."""
    gateway = Gateway(inbox, tmp_path, max_body_bytes=1_000)
    waiting, may_store, store = (
        threading.Event(),
        threading.Event(),
        inbox._flush._store,
    )

    def later(requests: Any) -> Any:
        waiting.set()
        assert may_store.wait(AT_LAST)
        return store(requests)

    monkeypatch.setattr(inbox._flush, "_store", later)
    headers = {"Authorization": f"Bearer {SHOP}", "Content-Type": "application/json"}
    with (
        urllib3.PoolManager(maxsize=32, headers=headers, timeout=PATIENT) as http,
        ThreadPoolExecutor(32) as clients,
        Uvicorn(gateway) as address,
    ):

        def post(name: str, payload: Any = 1) -> int:
            body = json.dumps(event(name, payload))
            return http.request("POST", f"{address}/inbox/events", body=body).status

        sent = [clients.submit(post, str(n % 16)) for n in range(32)]
        assert waiting.wait(AT_LAST)
        assert http.request("GET", address).json() == "here"
        may_store.set()
        assert {answer.result() for answer in sent} == {202}
        assert post("long", LONG) == 413
        split = urllib.parse.urlsplit(address)
        with socket.create_connection((split.hostname, split.port)) as cut:
            lines = [f"{name}: {value}" for name, value in headers.items()]
            head = ["POST /inbox/events HTTP/1.1", "Host: x", *lines]
            text = "\r\n".join(
                [*head, "Content-Length: 99", "", json.dumps(event("cut"))]
            )
            cut.sendall(text.encode())
        assert post("last") == 202
    assert sorted(name for _, name, _ in gateway.kept()) == sorted(
        [*map(str, range(16)), "last"]
    )
