"""The stand-in for an outside company's API keeps its word, and fails on demand."""

import ast
import http.client
import json
import threading
import time
from pathlib import Path

import pytest
from support.served import served
from support.waiting import AT_ONCE, PATIENT
from werkzeug.serving import make_server

from participants import partner


@pytest.fixture
def client(tmp_path):
    """A client of a partner with an empty database."""
    return partner.create_app(str(tmp_path / "partner.db")).test_client()


def notify(client, key="k1", body=None, **headers):
    """Send one notification."""
    headers = {"Idempotency-Key": key, **headers}
    return client.post("/notifications", json=body or {"n": 1}, headers=headers)


def received(client):
    """Return key, body and number of requests of what is stored, and all requests."""
    page = client.get("/notifications").json
    stored = [(n["key"], n["body"], n["requests"]) for n in page["notifications"]]
    return stored, page["requests"]


def test_a_repeated_key_is_stored_once_and_counted_twice(client):
    """An oracle can tell requests from deliveries."""
    assert notify(client).status_code == 201
    assert notify(client).status_code == 200
    assert received(client) == ([("k1", {"n": 1}, 2)], 2)


def test_a_key_stands_for_one_notification(client):
    """Another body under the same key is refused, and the first one stays."""
    notify(client)
    assert notify(client, body={"n": 2}).status_code == 422
    assert received(client)[0] == [("k1", {"n": 1}, 2)]


def test_what_was_stored_survives_a_restart(client, tmp_path):
    """The file holds it, not the process."""
    notify(client)
    again = partner.create_app(str(tmp_path / "partner.db")).test_client()
    assert received(again) == ([("k1", {"n": 1}, 1)], 1)
    assert notify(again).status_code == 200


def test_twins_at_once_are_stored_once(tmp_path):
    """Ten threads with one key: one is new, nine are told so."""
    app = partner.create_app(str(tmp_path / "partner.db"))
    codes = []
    threads = [
        threading.Thread(
            target=lambda: codes.append(notify(app.test_client()).status_code)
        )
        for _ in range(10)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(codes) == [200] * 9 + [201]
    assert received(app.test_client()) == ([("k1", {"n": 1}, 10)], 10)


@pytest.mark.parametrize(("fault", "status"), [("error", 500), ("refuse", 422)])
def test_a_fault_lasts_as_many_requests_as_asked(client, fault, status):
    """A failing answer stores nothing; the next request is served again."""
    client.post("/faults", json={"fault": fault, "times": 2})
    assert [notify(client).status_code for _ in range(3)] == [status, status, 201]
    assert received(client) == ([("k1", {"n": 1}, 3)], 3)
    assert client.get("/faults").json["times"] == 0


def test_a_fault_without_a_count_lasts_until_it_is_switched_off(client):
    """An empty object heals the partner."""
    client.post("/faults", json={"fault": "error"})
    assert {notify(client).status_code for _ in range(4)} == {500}
    client.post("/faults", json={})
    assert notify(client).status_code == 201


def test_a_delay_is_a_delay(client):
    """The answer comes late, and is right."""
    client.post("/faults", json={"delay": AT_ONCE, "times": 1})
    started = time.monotonic()
    assert notify(client).status_code == 201
    assert time.monotonic() - started >= AT_ONCE


def test_a_dropped_answer_was_applied(tmp_path):
    """The connection closes without an answer; asking again says it was stored."""
    app = partner.create_app(str(tmp_path / "partner.db"))
    with served(make_server("127.0.0.1", 0, app, threaded=True)) as server:
        app.test_client().post("/faults", json={"fault": "drop", "times": 1})
        with pytest.raises(http.client.RemoteDisconnected):
            _post(server.port)
        assert received(app.test_client())[0] == [("k1", {"n": 1}, 1)]
        assert _post(server.port) == 200


def _post(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENT)
    try:
        body = json.dumps({"n": 1})
        headers = {"Idempotency-Key": "k1"}
        connection.request("POST", "/notifications", body, headers)
        return connection.getresponse().status
    finally:
        connection.close()


def test_pages_join_to_everything(client):
    """`next` leads through all of it and is null at the end."""
    for number in range(5):
        notify(client, f"k{number}")
    found, after = [], 0
    while after is not None:
        page = client.get(f"/notifications?after={after}&limit=2").json
        found += [item["key"] for item in page["notifications"]]
        after = page["next"]
    assert found == ["k0", "k1", "k2", "k3", "k4"]


@pytest.mark.parametrize("body", ["", "x", "[1]", '{"n": NaN}', "[" * 50_000])
def test_a_body_that_is_no_object_is_refused(client, body):
    """400 with a problem document; nothing is stored."""
    answer = client.post("/notifications", data=body, headers={"Idempotency-Key": "k"})
    assert (answer.status_code, answer.json["status"]) == (400, 400)
    assert answer.content_type == "application/problem+json"
    assert received(client) == ([], 0)


@pytest.mark.parametrize(
    ("key", "size", "status"),
    [("", 1, 400), ("x" * 256, 1, 400), ("ü", 1, 400), ("k", 70_000, 413)],
)
def test_a_bad_key_and_a_huge_body_are_refused(client, key, size, status):
    """Without a usable key it could be stored twice: 400; above 64 KiB is 413."""
    assert notify(client, key, {"n": "x" * size}).status_code == status
    assert received(client) == ([], 0)


BAD_PLANS = [
    *({"fault": value} for value in ("fire", ["drop"])),
    *({"delay": value} for value in (-1, "1", True, 1e9)),
    *({"times": value} for value in (0, True)),
    {"speed": 1},
    [],
]


@pytest.mark.parametrize("plan", BAD_PLANS)
def test_a_bad_plan_is_refused_and_changes_nothing(client, plan):
    """400, and no fault is on."""
    answer = client.post("/faults", json=plan)
    assert answer.status_code == 400
    assert answer.content_type == "application/problem+json"
    assert client.get("/faults").json == {"fault": None, "delay": 0.0, "times": None}


@pytest.mark.parametrize("query", ["after=x", "limit=-1", "after=" + "9" * 30])
def test_a_bad_page_is_refused(client, query):
    """400, never 500."""
    assert client.get(f"/notifications?{query}").status_code == 400


def test_it_says_that_it_is_well(client):
    """Health routes answer 200; an unknown route answers a problem document."""
    assert client.get("/health/live").status_code == 200
    assert client.get("/health/ready").status_code == 200
    assert client.get("/nothing").content_type == "application/problem+json"


def test_it_knows_nothing_of_us():
    """An outside company's service imports none of our code, but to be started."""
    tree = ast.parse(Path(partner.__file__).read_text(encoding="utf-8"))
    modules = [n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)]
    names = [
        a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names
    ]
    assert not [m for m in [*modules, *names] if m and "tracing_2pc" in m]
