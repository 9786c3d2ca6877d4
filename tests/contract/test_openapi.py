"""`openapi.yaml` says what the blueprint does, neither more nor less."""

from __future__ import annotations

import importlib.resources
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from flask import Response, request
from openapi_schema_validator import OAS31Validator
from openapi_spec_validator import validate
from support.branches import ONE, OTHER, Branch, orders
from support.branches import records as json_records
from support.kinds import outbox_to, refusing_outbox, sqlite_url, tagged_rows
from support.participant import World, outgoing_of

from tracing_2pc.core import content
from tracing_2pc.core.access import MAY
from tracing_2pc.http import forms
from tracing_2pc.participant import TaggedRows, arrow_stream, json_lines
from tracing_2pc.wire import contract
from tracing_2pc.wire.error_responses import PROBLEM

T = "orders.7.1"
WRONG_VERSION = {"headers": {"Tpc-Version": "2"}}
FAR = {"environ_overrides": {"REMOTE_ADDR": "192.0.2.1"}}
STATELESS = {"/health/live", "/health/ready"}

SPEC: dict[str, Any] = yaml.safe_load(
    (importlib.resources.files("tracing_2pc.http") / "openapi.yaml").read_text()
)

Seen = set[tuple[str, str, int]]
WRONG: list[Any] = []
"""Answers that are not as documented; what a hook raises would only be a 500."""


def operations() -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, item in SPEC["paths"].items():
        for method, operation in item.items():
            yield method.upper(), path, operation


def _follow(item: dict[str, Any]) -> dict[str, Any]:
    if "$ref" not in item:
        return item
    found: Any = SPEC
    for step in item["$ref"].removeprefix("#/").split("/"):
        found = found[step]
    return dict(found)


DOCUMENTED: Seen = {
    (method, path, int(status))
    for method, path, operation in operations()
    for status, answer in operation["responses"].items()
    if set(_follow(answer)["content"]) != {"text/html"}
}
"""But for what the server in front answers alone."""


def test_it_is_valid():
    """The document is OpenAPI 3.1, so that other people's tools can read it."""
    assert SPEC["openapi"].startswith("3.1.")
    validate(SPEC)


def test_routes_and_methods(tmp_path):
    """Every route of the blueprint is documented, and no other."""
    world = tagged_rows(f"sqlite:///{tmp_path}/p.db")
    served = {
        (method, _path(rule.rule))
        for rule in world.app.url_map.iter_rules()
        if rule.endpoint != "static"
        for method in rule.methods or ()
        if method != "HEAD"
    }
    assert served == {(method, path) for method, path, _ in operations()}


def test_roles():
    """The roles that a description names are those that are let in."""
    for _, path, operation in operations():
        if path in STATELESS:
            assert operation["security"] == []
            continue
        text = re.split(r"[.;]", operation["description"], maxsplit=1)[0]
        may = {word.strip() for word in text.partition(":")[2].split(",")}
        assert may == set(map(str, MAY[operation["operationId"]])), path


def test_limits():
    """Documented limits are those in force."""
    commit = _request("/commit")["properties"]["branches"]
    assert commit["maxItems"] == forms.MAX_BRANCHES
    assert _request("/resolve")["properties"]["reason"]["maxLength"] == forms.MAX_REASON
    (limit,) = (
        p["schema"]
        for p in SPEC["paths"]["/transactions"]["get"]["parameters"]
        if p.get("name") == "limit"
    )
    assert limit["maximum"] == forms.MAX_PAGE
    assert "4 MiB" in SPEC["info"]["description"]
    assert contract.MAX_CONTROL_BYTES == 4 << 20
    records = SPEC["paths"]["/prepare"]["post"]["requestBody"]["content"]
    columns = f"{arrow_stream.MAX_COLUMNS} columns"
    assert columns in records[content.ARROW]["schema"]["description"]
    assert "4 MiB" in records[content.NDJSON]["schema"]["description"]
    assert json_lines.MAX_LINE == 4 << 20


def test_next_of_the_outbox_is_what_after_takes(tmp_path):
    """A client that checks what it sends by this document gets every page."""
    world = refusing_outbox(sqlite_url(tmp_path), json_records(id=[1, 2]))
    following = world.client.get("/outbox?limit=1").get_json()["next"]
    (after,) = (
        p["schema"]
        for p in SPEC["paths"]["/outbox"]["get"]["parameters"]
        if p.get("name") == "after"
    )
    OAS31Validator(after).validate(following)
    assert after["pattern"][:-1].endswith(
        SPEC["components"]["schemas"]["RequestKey"]["pattern"][1:-1]
    )


AFTER = f"1700000000.5~{T}.0.1.0"


@pytest.mark.parametrize(
    "after",
    [
        AFTER.replace("1700000000.5", at)
        for at in ("17e8", "1700000000", "+1.5", "-1.5", "1_7.5", "%201.5", ".5", "1.")
    ]
    + [f"{AFTER}%0A", AFTER.replace("0.1.0", "0.1.00"), f"{'1' * 300}.5~{T}.0.1.0"],
)
def test_what_after_does_not_take_is_refused(tmp_path, after):
    """A place in the quarantine has one spelling, as an id has."""
    world = refusing_outbox(sqlite_url(tmp_path), ONE)
    assert world.client.get(f"/outbox?after={AFTER}").status_code == 200
    answer = world.client.get(f"/outbox?after={after}")
    assert (answer.status_code, answer.mimetype) == (400, PROBLEM)
    world.resource.close()


def test_answers_of_requests(tmp_path, monkeypatch):
    """Each answer has a documented status, type and body, and each status is given."""
    world = tagged_rows(f"sqlite:///{tmp_path}/p.db")
    seen = watch(world)
    answered(world)
    malformed(world)
    tokens = tmp_path / "tokens"
    tokens.write_text("job 0123456789abcdef\n")
    closed = World(world.resource, world.visible, tokens=tokens, name="closed")
    down = tagged_rows(f"sqlite:///{tmp_path}/missing/p.db")
    for other, options in ((closed, {}), (world, FAR), (down, {})):
        other_seen = seen if other is world else watch(other)
        each_route(other, **options)
        seen |= other_seen
    seen |= of_an_outbox(tmp_path)
    for method in (
        "prepare",
        "commit",
        "abort",
        "resolve",
        "show",
        "list_open",
        "identity",
    ):
        monkeypatch.setattr(TaggedRows, method, fault)
    for method in ("list_requests", "send_again", "drop_request"):  # as of an outbox
        monkeypatch.setattr(TaggedRows, method, fault, raising=False)
    for name in ("gauges", "ready"):
        monkeypatch.setattr(TaggedRows, name, fault)
    each_route(world)
    assert WRONG == []
    assert seen - DOCUMENTED == set(), "given and not documented"
    assert DOCUMENTED - seen == set(), "documented and never given"
    world.resource.close()


def answered(world: World) -> None:
    """Ask whatever the answer table knows."""
    with world.writing(T) as upload:
        world.prepare(T)
        upload.finish()
    world.client.get("/transactions?limit=1")
    for _ in range(2):
        world.prepare(T)
    world.prepare(T, OTHER)
    world.commit(T, ONE, Branch(ONE.body, 3, "8.8"))
    world.commit(T, OTHER)
    world.commit(T, ONE)
    world.show(T)
    world.prepare("orders.7.2")
    world.prepare("orders.8.1", Branch(orders(), 0))
    world.abort(T)
    world.abort(T, branch="0.1")
    world.abort("orders.8.1", branch="0.1")
    world.abort("orders.8.1")
    world.show("orders.8.1")
    world.resolve(T, "abort")
    world.resolve("orders.9.1", "abort")
    world.show("orders.9.1")
    world.prepare("orders.9.1")
    world.resolve("orders.9.1", "commit")
    world.show("orders.9.1")
    world.commit("orders.20.1", forgotten_through=9)
    for ask in (world.prepare, world.commit, world.abort, world.show):
        ask(T)
    world.resolve(T, "abort")
    each_route(world)
    each_route(world.called("another"))


def malformed(world: World) -> None:
    """Send what is not in its form."""
    control = {"content_type": contract.JSON, "headers": {"Tpc-Version": "1"}}
    world.prepare(T, headers={"Content-Type": "text/csv"})
    world.prepare(T, data=None, environ_overrides={"CONTENT_LENGTH": ""})
    world.prepare(T, data=None, environ_overrides={"CONTENT_LENGTH": str(1 << 31)})
    for route in ("/commit", "/abort", "/resolve", "/outbox/again", "/outbox/drop"):
        world.client.post(route, data=b"{", headers={"Tpc-Version": "1"})
        for length in ("", str(5 << 20)):
            about = {"environ_overrides": {"CONTENT_LENGTH": length}, **control}
            world.client.post(route, **about)
    each_route(world, **WRONG_VERSION)


def each_route(world: World, **options: Any) -> None:
    """Ask each route once."""
    options = {"headers": {"Tpc-Version": "1"}, **options}
    world.prepare("orders.30.1", once=True, **options)
    about = {"transaction_id": "orders.30.1"}
    world.client.post("/commit", json={**about, "branches": []}, **options)
    world.client.post("/abort", json=about, **options)
    why = {"outcome": "abort", "reason": "no log knows it"}
    world.client.post("/resolve", json={**about, **why}, **options)
    for route in ("/outbox/again", "/outbox/drop"):
        order = {"key": "orders.30.1.0.1.0", "who": "anna", "reason": "it was mended"}
        world.client.post(route, json=order, **options)
    one = "/transactions/orders.30.1"
    reads = ("/transactions", one, "/outbox", "/whoami", "/metrics")
    for route in (*reads, *STATELESS):
        world.client.get(route, **options)


def of_an_outbox(folder: Path) -> Seen:
    """Ask about requests that were refused, and say what shall become of them."""
    refused = refusing_outbox(sqlite_url(folder, "outbox"), ONE)
    world = World(refused.resource, refused.visible)
    seen = watch(world)
    for number, routes in enumerate((("again", "drop"), ("drop", "again"))):
        about = {"key": f"{T}.0.1.{number}", "who": "anna", "reason": "it was mended"}
        for route in routes:
            world.post(f"/outbox/{route}", **about)
            world.called("another").post(f"/outbox/{route}", **about)
            if not number:  # what the partner has taken cannot be dropped
                queue = outgoing_of(world)
                for sent in queue.next("orders")[:1]:
                    queue.confirmed(sent)
    for query in ("", "?state=dropped", "?limit=1", "?application=bills"):
        world.client.get(f"/outbox{query}")
    world.resource.close()
    resource = outbox_to("http://127.0.0.1:9", f"sqlite:///{folder}/missing/o.db")
    resource.start = lambda: None  # type: ignore[method-assign]
    down = World(resource, lambda: 0)
    seen_down = watch(down)
    each_route(down)
    return seen | seen_down


def watch(world: World) -> Seen:
    """Put each answer of a participant on record, and hold it against its schema."""
    seen: Seen = set()

    def check(response: Response) -> Response:
        assert request.url_rule is not None
        path = _path(request.url_rule.rule)
        seen.add((request.method, path, response.status_code))
        operation = SPEC["paths"][path][request.method.lower()]
        documented = operation["responses"].get(str(response.status_code))
        if documented is not None:
            WRONG.extend(_differences(response, _follow(documented)))
        return response

    world.app.after_request(check)
    return seen


def _differences(response: Response, documented: dict[str, Any]) -> list[Any]:
    about = (request.path, response.status_code, response.mimetype)
    # A page is never ours: the server in front writes it.
    if [response.mimetype] != [t for t in documented["content"] if t != "text/html"]:
        return [about]
    missing = set(documented.get("headers", {})) - set(response.headers.keys())
    if response.mimetype == "text/plain":
        return [(*about, name) for name in missing]
    schema = documented["content"][response.mimetype]["schema"]
    whole = {**schema, "components": SPEC["components"]}
    found = OAS31Validator(whole).iter_errors(response.json)
    return [(*about, wrong) for wrong in [*missing, *(e.message for e in found)]]


def fault(*_: Any, **__: Any) -> None:
    raise RuntimeError("a bug")


def _request(path: str) -> dict[str, Any]:
    body = SPEC["paths"][path]["post"]["requestBody"]["content"]
    found: dict[str, Any] = body[contract.JSON]["schema"]
    return found


def _path(rule: str) -> str:
    return re.sub(r"<(\w+)>", r"{\1}", rule)
