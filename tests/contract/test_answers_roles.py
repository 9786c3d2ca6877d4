"""Who may ask what: every route by every role, and every way to get it wrong."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from participant_support import ONE, World, count, sqlite_url
from werkzeug.test import TestResponse

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.participant import TaggedRows, participant_blueprint
from tracing_2pc.participant.auth import TokenGate

T = "orders.7.1"
TOKENS = {
    "job": "job-token-0123456789",
    "executor": "executor-token-0123456789",
    "operator": "operator-token-0123456789",
    "viewer": "viewer-token-0123456789",
    "bound": "bound-token-0123456789",
}
LINES = [
    "# role token application",
    "",
    *(f"{role} {token}" for role, token in TOKENS.items() if role != "bound"),
    f"job {TOKENS['bound']} orders",
    "job the-next-job-token-0123456789",
]


@pytest.fixture
def tokens(tmp_path: Path) -> Path:
    path = tmp_path / "tokens"
    path.write_text("\n".join(LINES) + "\n")
    return path


@pytest.fixture
def world(tmp_path: Path, tokens: Path) -> Iterator[World]:
    resource = TaggedRows(sqlite_url(tmp_path), "orders")
    yield World(resource, lambda: count(resource, "orders"), tokens=tokens)
    resource.close()


def ask(
    world: World, action: str, who: str | None, transaction: str = T
) -> TestResponse:
    auth: dict[str, Any] = {"Authorization": f"Bearer {TOKENS[who]}"} if who else {}
    post = {"Tpc-Version": "1", **auth}
    body: dict[str, Any] = {"transaction_id": transaction}
    match action:
        case "prepare":
            return world.prepare(transaction, headers=auth)
        case "commit":
            fields = {**body, "branches": [ONE.named]}
            return world.client.post("/commit", json=fields, headers=post)
        case "abort":
            return world.client.post("/abort", json=body, headers=post)
        case "abort branch":
            fields = {**body, "branch": "0.1"}
            return world.client.post("/abort", json=fields, headers=post)
        case "resolve":
            fields = {**body, "outcome": "abort", "reason": "a test"}
            return world.client.post("/resolve", json=fields, headers=post)
        case "list":
            return world.client.get("/transactions", headers=auth)
        case "show":
            return world.client.get(f"/transactions/{transaction}", headers=auth)
        case "metrics":
            return world.client.get("/metrics", headers=auth)
    raise AssertionError(action)


MAY = {
    "prepare": {"job", "executor", "bound"},
    "commit": {"job", "operator", "bound"},
    "abort": {"job", "operator", "bound"},
    "abort branch": {"job", "operator", "executor", "bound"},
    "resolve": {"operator"},
    "list": {"job", "operator", "viewer", "bound"},
    "show": {"job", "operator", "viewer", "bound"},
    "metrics": {"operator", "viewer"},
}


@pytest.mark.parametrize("who", TOKENS)
@pytest.mark.parametrize("action", MAY)
def test_every_route_by_every_role(world: World, action: str, who: str) -> None:
    """A role does what it is for; anything else is 403 and changes nothing."""
    if action != "prepare":
        assert ask(world, "prepare", "job").status_code == 200
    answer = ask(world, action, who)
    assert answer.status_code == (200 if who in MAY[action] else 403)
    if answer.status_code == 403:
        assert answer.content_type == "application/problem+json"
        shown = ask(world, "show", "viewer")
        expected = 404 if action == "prepare" else 200
        assert shown.status_code == expected
        assert action == "prepare" or shown.get_json()["state"] == "prepared"


@pytest.mark.parametrize(
    "authorization",
    [None, "", "Bearer", "Bearer ", "Bearer nobody-knows-this-token", "Basic am9iOng="],
)
@pytest.mark.parametrize("action", MAY)
def test_without_a_valid_token(
    world: World, action: str, authorization: str | None
) -> None:
    """It is 401, says how to ask, and is answered before anything else is looked at."""
    headers = {} if authorization is None else {"Authorization": authorization}
    route = {"list": "/transactions", "show": "/transactions/x", "metrics": "/metrics"}
    if action in route:
        answer = world.client.get(route[action], headers=headers)
    else:
        path = "/" + action.partition(" ")[0]
        answer = world.client.post(path, data=b"rubbish", headers=headers)
    assert answer.status_code == 401
    assert answer.headers["WWW-Authenticate"].startswith("Bearer")
    assert "transaction_id" not in answer.get_json()


def test_health_needs_no_token(world: World) -> None:
    """Probes ask without credentials."""
    assert world.client.get("/health/live").status_code == 200
    assert world.client.get("/health/ready").status_code == 200


def test_a_token_bound_to_an_application(world: World) -> None:
    """It touches, and sees, that application only."""
    assert ask(world, "prepare", "job").status_code == 200
    assert ask(world, "prepare", "job", "other.7.1").status_code == 200
    for action in ("prepare", "commit", "abort", "abort branch", "show"):
        answer = ask(world, action, "bound", "other.7.1")
        assert answer.status_code == 403
        assert answer.get_json()["transaction_id"] == "other.7.1"
    page = ask(world, "list", "bound").get_json()["transactions"]
    assert [item["transaction_id"] for item in page] == [T]
    auth = {"Authorization": f"Bearer {TOKENS['bound']}"}
    other = world.client.get("/transactions?application=other", headers=auth)
    assert other.status_code == 403


def test_two_tokens_of_a_role_are_alive_for_rotation(world: World) -> None:
    """A second line of the same role is accepted beside the first."""
    auth = {"Authorization": "Bearer the-next-job-token-0123456789"}
    assert world.prepare(T, headers=auth).status_code == 200
    assert ask(world, "commit", "job").status_code == 200


def test_tokens_are_nowhere_to_be_seen(
    tokens: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither repr, nor what the object holds, nor an error shows a token."""
    gate = TokenGate.read(tokens)
    everything = f"{gate!r} {vars(gate)!r} {caplog.text}"
    assert not any(token in everything for token in TOKENS.values())
    tokens.write_text("boss a-secret-token-0123456789\n")
    with pytest.raises(ConfigurationError) as refused:
        TokenGate.read(tokens)
    assert "a-secret-token" not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "tracing-2pc init"),
        ("job short", "16"),
        ("job", "role token"),
        ("job a-long-enough-token orders more", "role token"),
        ("root a-long-enough-token", "role must be"),
        ("job a-long-enough-token Orders", "application"),
    ],
)
def test_a_tokens_file_that_is_wrong(tokens: Path, text: str, says: str) -> None:
    """It is refused at start, saying which line and what to write."""
    tokens.write_text(text)
    with pytest.raises(ConfigurationError, match=says):
        TokenGate.read(tokens)


def test_a_participant_without_tokens(
    tmp_path: Path, tokens: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It does not start, and says what to run; the environment may name the file."""
    resource = TaggedRows(sqlite_url(tmp_path), "orders")
    monkeypatch.delenv("TPC_TOKENS_FILE", raising=False)
    with pytest.raises(ConfigurationError, match="tracing-2pc init"):
        participant_blueprint(resource)
    monkeypatch.setenv("TPC_TOKENS_FILE", str(tmp_path / "nothing"))
    with pytest.raises(ConfigurationError, match="tracing-2pc init"):
        participant_blueprint(resource)
    monkeypatch.setenv("TPC_TOKENS_FILE", str(tokens))
    participant_blueprint(resource)
    with pytest.raises(ConfigurationError, match="not both"):
        participant_blueprint(resource, tokens=tokens, insecure=True)
    resource.close()


@pytest.mark.parametrize(
    ("peer", "status"),
    [("127.0.0.1", 200), ("::1", 200), ("10.0.0.7", 403), ("", 403), ("x", 403)],
)
def test_an_insecure_participant_answers_its_own_machine(
    tmp_path: Path, peer: str, status: int, caplog: pytest.LogCaptureFixture
) -> None:
    """Without tokens, by choice, only loopback peers are answered; the log warns."""
    resource = TaggedRows(sqlite_url(tmp_path), "orders")
    world = World(resource, lambda: 0, insecure=True)
    answer = world.prepare(T, environ_overrides={"REMOTE_ADDR": peer})
    assert answer.status_code == status
    assert "insecure" in caplog.text
    resource.close()
