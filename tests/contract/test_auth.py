"""Who may ask what: every route for every role, and what a token never appears in."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from support.branches import ONE, OTHER
from support.kinds import sqlite_url
from support.participant import World, keep
from support.texts import texts
from support.transports import OTHERS, over
from werkzeug.test import TestResponse

from tracing_2pc.core.access import MAY, TokenGate
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.participant import TaggedRows

TEXTS = texts("contract")
T = "orders.7.1"
TOKENS = {
    "job": "job-token-0123456789",
    "executor": "executor-token-0123456789",
    "operator": "operator-token-0123456789",
    "viewer": "viewer-token-0123456789",
    "producer": "producer-token-0123456789",
}
SUCCESSOR = "job-successor-0123456789"
BOUND = "bound-token-0123456789"
BOUND_VIEWER = "bound-viewer-0123456789"
UNKNOWN = "a-token-that-nobody-gave"
EVERY_TOKEN = (*TOKENS.values(), SUCCESSOR, BOUND, BOUND_VIEWER, UNKNOWN)
LINES = [
    "# role   token   application",
    "",
    *(f"{role} {token}" for role, token in TOKENS.items() if role != "producer"),
    f"producer {TOKENS['producer']} shop",
    f"job {SUCCESSOR}",
    f"  job\t{BOUND}   orders  ",
    f"viewer {BOUND_VIEWER} orders",
]


class As(World):
    """A participant, asked with one token."""

    def __init__(self, world: World, token: str | None) -> None:
        self.resource, self.visible, self.app = world.resource, world.visible, world.app
        self.name, self.journal = world.name, world.journal
        self.header = None if token is None else f"Bearer {token}"

    @property
    def client(self) -> Any:
        client = super().client
        if self.header is not None:
            client.environ_base["HTTP_AUTHORIZATION"] = self.header
        return client


def resource(folder: Path) -> TaggedRows:
    return TaggedRows(sqlite_url(folder), "orders")


@pytest.fixture
def world(tmp_path) -> Iterator[World]:
    (tmp_path / "tokens").write_text("\n".join(LINES))
    made = World(resource(tmp_path), lambda: 0, tokens=tmp_path / "tokens")
    yield made
    made.resource.close()


Ask = Callable[[World], TestResponse]
DECIDES = {"job", "operator"}
WRITES = {"job", "executor"}
READS = {*DECIDES, "viewer"}
ASKS = DECIDES | WRITES
ANYBODY = {*TOKENS, "none"}
OF_ONE = {"branch": "0.1", "digest": ONE.digest}
OF_OTHER = {**OF_ONE, "digest": OTHER.digest}
BELOW: dict[str, Any] = {"forgotten_through": 8}


def get(path: str) -> Ask:
    return lambda world: world.client.get(path)


def commit(*named: Any, **fields: Any) -> Ask:
    return lambda world: world.commit(*named, **fields)


def abort(transaction: str = T, **fields: Any) -> Ask:
    return lambda world: world.abort(transaction, **fields)


def order(action: str) -> Ask:
    fields = {"key": f"{T}.0.1.0", "who": "Ada", "reason": "read"}
    return lambda world: world.post(f"/outbox/{action}", **fields)


ROUTES: dict[str, tuple[Ask, set[str]]] = {
    "prepare": (lambda world: world.prepare(T), WRITES),
    "commit": (commit("orders.8.1"), DECIDES),
    "abort": (abort("orders.9.1"), DECIDES),
    "abort branch by digest": (abort("orders.9.1", **OF_ONE), ASKS),
    "resolve": (lambda world: world.resolve(T, "commit"), {"operator"}),
    "list": (get("/transactions"), READS),
    "show": (lambda world: world.show(T), READS),
    "quarantined": (get("/outbox"), {"operator", "viewer"}),
    "again": (order("again"), {"operator"}),
    "drop": (order("drop"), {"operator"}),
    "whoami": (get("/whoami"), READS),
    "metrics": (get("/metrics"), {"operator", "viewer"}),
    "live": (get("/health/live"), ANYBODY),
    "ready": (get("/health/ready"), ANYBODY),
}


def test_every_route_and_action_is_in_the_table(world):
    """None is added without saying whose it is."""
    assert {*MAY} - {*ROUTES} == {"abort branch", "post events"}
    assert all(may == MAY[name] for name, (_, may) in ROUTES.items() if name in MAY)
    rules = {rule.rule for rule in world.app.url_map.iter_rules()}
    assert rules - {"/static/<path:filename>"} == {
        *("/prepare", "/commit", "/abort", "/resolve"),
        *("/transactions", "/transactions/<transaction_id>", "/whoami", "/metrics"),
        *("/outbox", "/outbox/again", "/outbox/drop"),
        *("/health/live", "/health/ready"),
    }


def status_of(route: str, role: str) -> int:
    """Return what a role is answered; this participant has no outbox."""
    if role not in ROUTES[route][1]:
        return 401 if role == "none" else 403
    return 404 if route in {"quarantined", "again", "drop"} else 200


@pytest.mark.parametrize("role", [*TOKENS, "none"])
@pytest.mark.parametrize("route", ROUTES)
def test_every_route_for_every_role(world, route, role):
    """Who may is answered; another role gets 403 and the right one's name; none 401."""
    assert As(world, TOKENS["job"]).prepare(T).status_code == 200
    ask, may = ROUTES[route]
    answer = ask(As(world, TOKENS.get(role)))
    assert answer.status_code == status_of(route, role)
    if role in may:
        return
    body = answer.get_json()
    assert answer.content_type == "application/problem+json"
    assert ("WWW-Authenticate" in answer.headers) is (role == "none")
    assert "transaction_id" not in body or route == "abort"
    if role != "none":
        assert all(name in body["detail"] for name in {role, *may})
    assert "state" not in body
    assert body.get("vote") == ("abort" if route == "prepare" else None)
    assert As(world, TOKENS["job"]).show(T).get_json()["state"] == "prepared"


@pytest.mark.ci
@pytest.mark.parametrize("transport", OTHERS)
def test_no_transport_widens_a_role(world, transport):
    """By gRPC and NATS each route answers each role as it does by HTTP."""
    assert As(world, TOKENS["job"]).prepare(T).status_code == 200
    everybody = [*TOKENS, "none"]
    with over(transport, world) as reached:
        for refused in (True, False):
            for route, (ask, may) in ROUTES.items():
                for role in everybody:
                    if (role in may) is not refused:
                        status = ask(As(reached, TOKENS.get(role))).status_code
                        expected = (route, role, status_of(route, role))
                        assert (route, role, status) == expected
            if refused:
                shown = As(world, TOKENS["job"]).show(T).get_json()
                assert shown["state"] == "prepared"


NO_BRANCH = "abort, branch null"
"""What messages with types cannot say."""

FIELDS: dict[str, tuple[Ask, set[str], int]] = {
    "commit, naming": (commit(T, ONE), DECIDES, 200),
    "commit, naming nothing": (commit(T), DECIDES, 200),
    "commit, forgotten_through": (commit("orders.9.1", **BELOW), DECIDES, 200),
    "abort": (abort(), DECIDES, 200),
    "abort, forgotten_through": (abort("orders.9.1", **BELOW), DECIDES, 200),
    "abort, branch": (abort(branch="0.1"), DECIDES, 200),
    "abort, branch and digest": (abort(**OF_ONE), ASKS, 200),
    "abort, another digest": (abort(**OF_OTHER), ASKS, 409),
    "abort, all": (abort("orders.9.1", **OF_ONE, **BELOW), ASKS, 400),
    "abort, digest without branch": (abort(digest=ONE.digest), ASKS, 400),
    NO_BRANCH: (abort(branch=None), ASKS, 400),
    "resolve, commit": (lambda world: world.resolve(T, "commit"), {"operator"}, 200),
    "resolve, abort": (lambda world: world.resolve(T, "abort"), {"operator"}, 200),
}


@pytest.mark.parametrize("role", TOKENS)
@pytest.mark.parametrize(
    ("transport", "fields"),
    [
        *(("flask", fields) for fields in FIELDS),
        *((name, f) for name in OTHERS for f in FIELDS if f != NO_BRANCH),
    ],
)
def test_every_field_for_every_role(world, transport, fields, role):
    """A role may send the fields that are its own; what is refused changes nothing.

    No token that must not commit decides: it raises no forgotten_through, and aborts no
    prepared branch whose content it does not know.
    """
    job = As(world, TOKENS["job"])
    assert job.prepare(T).status_code == 200
    ask, may, status = FIELDS[fields]
    with over(transport, world) as reached:
        answer = ask(As(reached, TOKENS[role]))
    assert answer.status_code == (status if role in may else 403)
    if answer.status_code != 200:
        assert job.show(T).get_json()["state"] == "prepared"
        assert job.show(T).get_json()["branches"][0]["state"] == "prepared"
        assert job.show("orders.9.1").status_code == 404
        assert job.prepare("orders.8.1").status_code == 200


def test_an_executor_aborts_what_its_task_is_still_writing(world):
    """By its digest, like what is prepared; the upload then votes abort."""
    executor = As(world, TOKENS["executor"])
    with executor.writing(T) as upload:
        assert executor.abort(T, branch="0.1", digest=ONE.digest).status_code == 200
        assert upload.finish().get_json()["vote"] == "abort"


def test_an_executor_names_nobody(world):
    """A wrong name of a task, before its first batch, does not close it to its job."""
    executor, job = (As(world, TOKENS[role]) for role in ("executor", "job"))
    misspelt = executor.called("misspelt")
    assert misspelt.prepare(T).status_code == 200
    assert misspelt.abort(T, branch="9.9", digest=ONE.digest).status_code == 200
    keep(job, "orders.8.1", ONE)
    assert misspelt.prepare("orders.9.1").status_code == 421


def test_a_name_that_came_to_nothing_is_in_nobodys_way(world):
    """A job that was renamed may commit what its tasks have prepared."""
    executor, job = (As(world, TOKENS[role]) for role in ("executor", "job"))
    assert job.called("old").abort("orders.6.1").status_code == 200
    assert executor.called("new").prepare(T).status_code == 200
    assert job.called("new").commit(T, ONE).status_code == 200
    assert job.called("old").abort("orders.8.1").status_code == 421


def test_a_name_that_comes_while_a_body_arrives(world):
    """Nothing is prepared under a name that its own job may not use."""
    job = As(world, TOKENS["job"])
    with job.called("new").writing(T) as upload:
        assert job.called("old").abort("orders.6.1").status_code == 200
        assert upload.finish().status_code == 503
    keep(job.called("new"), T, ONE)


@pytest.mark.parametrize(
    "header",
    [
        f"Bearer {UNKNOWN}",
        f"Bearer {TOKENS['job'][:-1]}",
        f"Bearer {TOKENS['job']}x",
        f"Bearer {TOKENS['job'].upper()}",
        f"Bearer {TOKENS['job']} {TOKENS['operator']}",
        "Bearer ",
        "Bearer",
        "Bearer \u00e9\u00ff\u0000 \x7f",
        f"Basic {TOKENS['job']}",
        TOKENS["job"],
        "",
        "Bearer " + "x" * 100_000,
        f"Bearer {TOKENS['job']}, Bearer {TOKENS['operator']}",
    ],
    ids=range(13),
)
def test_what_is_no_token(world, header):
    """Anything but a known bearer token is 401, with how to do it, on every route."""
    asked = As(world, None)
    asked.header = header
    for route, (ask, may) in ROUTES.items():
        answer = ask(asked)
        if "none" in may:
            assert answer.status_code == 200
            continue
        assert (route, answer.status_code) == (route, 401)
        assert answer.headers["WWW-Authenticate"].startswith('Bearer realm="')
        assert TOKENS["job"] not in answer.text + str(answer.headers)


def test_the_scheme_is_read_in_any_case(world):
    """`bearer`, as RFC 9110 has it."""
    asked = As(world, None)
    asked.header = f"bEARER  {TOKENS['job']}"
    assert asked.prepare(T).status_code == 200


def test_nothing_is_read_for_who_may_not(world):
    """Roles come before forms: a stranger learns nothing of either."""
    answer = As(world, UNKNOWN).prepare("Not An Id", headers={"Tpc-Version": "9"})
    assert answer.status_code == 401
    answer = As(world, TOKENS["viewer"]).prepare("Not An Id")
    assert answer.status_code == 403


def test_a_token_bound_to_an_application(world):
    """It neither changes, shows nor lists another application."""
    job, bound = As(world, TOKENS["job"]), As(world, BOUND)
    job.prepare("other.7.1")
    assert bound.prepare(T).status_code == 200
    for answer in (
        bound.prepare("other.8.1"),
        bound.commit("other.7.1", ONE),
        bound.commit("other.9.1"),
        bound.abort("other.7.1"),
        bound.abort("other.7.1", branch="0.1"),
        bound.show("other.7.1"),
        bound.show("other.99.1"),
    ):
        assert answer.status_code == 403
        assert answer.get_json()["transaction_id"].startswith("other.")
        assert "state" not in answer.get_json()
        assert "orders" in answer.get_json()["detail"]
    assert bound.client.get("/transactions?application=other").status_code == 403
    for query in ("", "?application=orders", "?limit=1"):
        assert bound.listed(query) == [(T, "0.1", "prepared")]
        assert As(world, BOUND_VIEWER).listed(query) == [(T, "0.1", "prepared")]
    assert len(job.listed()) == 2
    assert bound.commit(T, ONE).status_code == 200
    assert job.show("other.7.1").get_json()["state"] == "prepared"


def test_who_it_is_for_a_bound_token(world):
    """It learns by which name its own application calls the service, and no other."""
    As(world, TOKENS["job"]).prepare("other.7.1")
    assert As(world, BOUND).prepare(T).status_code == 200
    for token, known in ((BOUND, {"orders"}), (TOKENS["job"], {"orders", "other"})):
        answer = As(world, token).client.get("/whoami").get_json()
        assert set(answer["participants"]) == known


def test_pages_of_a_bound_token_stay_within_its_application(world):
    """A cursor that somebody else's page gave opens nothing."""
    job, bound = As(world, TOKENS["job"]), As(world, BOUND)
    for batch in range(3):
        job.prepare(f"orders.{batch}.1")
        job.prepare(f"other.{batch}.1")
    cursor = job.client.get("/transactions?limit=1").get_json()["next"]
    found = bound.listed(f"?after={cursor}")
    assert [id_ for id_, *_ in found] == ["orders.1.1", "orders.2.1"]


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("X-Forwarded-For", "203.0.113.7"),
        ("X-Forwarded-Host", "orders.example"),
        ("X-Forwarded-Proto", "https"),
        ("X-Real-IP", "203.0.113.7"),
        ("Forwarded", "for=203.0.113.7"),
        ("Via", "1.1 proxy"),
    ],
)
def test_insecure_answers_nobody_through_a_proxy(tmp_path, name, said):
    """A proxy on this machine is no reason to answer the world behind it."""
    headers = {name: said}
    world = World(resource(tmp_path), lambda: 0, insecure=True)
    for answer in (
        world.client.get("/transactions", headers=headers),
        world.prepare(T, headers=headers),
        world.client.get("/metrics", headers=headers),
    ):
        assert answer.status_code == 403
        assert "proxy" in answer.get_json()["detail"]
    assert world.client.get("/health/live", headers=headers).status_code == 200
    assert world.prepare(T).status_code == 200


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        *(
            ({"Host": host}, 200)
            for host in ("localhost:8081", "127.0.0.1", "[::1]:8081", "a.localhost")
        ),
        *(
            ({"Host": host}, 403)
            for host in (
                *("evil.example", "evil.example:8081", "127.0.0.1.evil.example"),
                *(
                    "localhost.evil.example",
                    "192.0.2.1",
                    "[::1",
                    "localhost@evil.example",
                ),
            )
        ),
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "http://localhost"}, 403),
        ({"Origin": "null"}, 403),
    ],
)
def test_insecure_answers_no_page_in_a_browser(tmp_path, headers, status):
    """A name of a stranger may lead a browser of this machine here, and any page may
    send a form: neither reads anything, or changes it."""
    world = World(resource(tmp_path), lambda: 0, insecure=True)
    for answer in (
        world.client.get("/transactions", headers=headers),
        world.prepare(T, headers=headers),
        world.client.get("/metrics", headers=headers),
    ):
        assert answer.status_code == status
        if status == 403:
            assert "insecure: " in answer.get_json()["detail"]
    assert len(world.listed()) == (1 if status == 200 else 0)
    assert world.client.get("/health/live", headers=headers).status_code == 200


def test_insecure_answers_this_machine_only(tmp_path, caplog):
    """Without tokens loopback peers do all, others nothing; and the log warns."""
    world = World(resource(tmp_path), lambda: 0, insecure=True)
    assert [r.levelname for r in caplog.records] == ["WARNING"]
    assert "insecure" in caplog.text
    near = ("127.0.0.1", "127.8.9.1", "::1")
    far = ("192.0.2.7", "10.0.0.1", "0.0.0.0", "::", "2001:db8::1", "localhost", "")
    for peer in (*near, *far, None):
        status = 200 if peer in near else 403
        environ = {"REMOTE_ADDR": peer}
        forged = {"Host": "localhost"}
        if status == 403:
            forged["X-Forwarded-For"] = "127.0.0.1"
        answer = world.prepare(T, headers=forged, environ_overrides=environ)
        assert (peer, answer.status_code) == (peer, status)
        for route in ("/transactions", f"/transactions/{T}", "/metrics"):
            answer = world.client.get(route, environ_overrides=environ)
            assert (peer, answer.status_code) == (peer, status)
        answer = world.client.get("/health/live", environ_overrides=environ)
        assert answer.status_code == 200
    world.resource.close()


def test_no_tokens_is_an_error(tmp_path, monkeypatch):
    """Nothing is opened by forgetting something; the error says what to run."""
    monkeypatch.delenv("TPC_TOKENS_FILE", raising=False)
    empty = tmp_path / "empty"
    empty.write_text("# nothing yet\n\n")
    for tokens in (None, tmp_path / "missing", empty, tmp_path):
        with pytest.raises(ConfigurationError, match=TEXTS["how to make tokens"]):
            participant_blueprint(resource(tmp_path), tokens=tokens)
    monkeypatch.setenv("TPC_TOKENS_FILE", "")
    with pytest.raises(ConfigurationError, match=TEXTS["how to make tokens"]):
        participant_blueprint(resource(tmp_path))
    with pytest.raises(ConfigurationError, match=TEXTS["tokens or insecure"]):
        participant_blueprint(resource(tmp_path), tokens=empty, insecure=True)


@pytest.mark.parametrize(
    ("line", "what"),
    [
        ("job", "the form of a line"),
        (f"job {UNKNOWN} orders more", "the form of a line"),
        (f"admin {UNKNOWN}", "no such role"),
        (UNKNOWN, "the form of a line"),
        (f"{UNKNOWN} job", "no such role"),
        ("job tooshort", "the length of a token"),
        ("job " + "x" * 513, "the length of a token"),
        ("job " + "\u00e9" * 20, "the letters of a token"),
        (f"job {UNKNOWN} Orders", "the form of an application"),
        (f"operator {TOKENS['viewer']}", "a token twice"),
        (f"producer {UNKNOWN}", "the name of a producer"),
        (f"producer {UNKNOWN} A_b", "the form of an application"),
    ],
)
def test_a_line_that_is_no_token(line, what):
    """The error says which line, and never what stands in it."""
    lines = [f"viewer {TOKENS['viewer']}", line]
    with pytest.raises(ConfigurationError, match=TEXTS[what]) as raised:
        TokenGate(lines, "tokens")
    assert "line 2" in str(raised.value)
    assert not any(token in str(raised.value) for token in EVERY_TOKEN)


def test_no_token_anywhere(world, caplog, exported, monkeypatch):
    """No token is in an answer, a log record, a span or a repr, whatever happens."""
    caplog.set_level(logging.DEBUG)

    def fault(*_: Any, **__: Any) -> None:
        raise RuntimeError("a bug")

    texts = []
    for broken in (False, True):
        if broken:
            monkeypatch.setattr(TaggedRows, "show", fault)
        for token in EVERY_TOKEN:
            for ask, _ in ROUTES.values():
                answer = ask(As(world, token))
                texts.append(f"{answer.text} {answer.headers}")
    texts += [str(vars(record)) for record in caplog.records]
    texts += [caplog.text, *(span.to_json() for span in exported())]
    gate = TokenGate(LINES, "tokens")
    texts += [repr(gate), str(vars(gate)), repr(world.app.blueprints)]
    assert len(exported()) > 50
    for token in EVERY_TOKEN:
        assert not [text for text in texts if token in text]


@pytest.mark.parametrize("place", ["the environment", "the settings"])
def test_a_tokens_file_that_is_named_elsewhere_is_read(tmp_path, monkeypatch, place):
    """By `TPC_TOKENS_FILE` or a tpc.toml beside it, where the code says nothing."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("TPC_TOKENS_FILE", raising=False)
    (tmp_path / "mine").write_text("job 0123456789abcdef\n")
    if place == "the environment":
        monkeypatch.setenv("TPC_TOKENS_FILE", str(tmp_path / "mine"))
    else:
        (tmp_path / "tpc.toml").write_text('tokens_file = "mine"\n')
    rows = resource(tmp_path)
    app = Flask(__name__)
    app.register_blueprint(participant_blueprint(rows))
    client = app.test_client()
    token = {"Authorization": "Bearer 0123456789abcdef"}
    assert client.get("/transactions", headers=token).status_code == 200
    assert client.get("/transactions").status_code == 401
    rows.close()
