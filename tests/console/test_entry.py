"""Who gets into the console, and which forms it takes."""

from __future__ import annotations

import pytest
from flask import url_for
from support.console import (
    BOUND,
    JOB,
    MAILED,
    OPERATOR,
    OURS,
    QUARANTINED,
    STUCK,
    VIEWER,
    Visitor,
    console_of,
    csrf_in,
    signed_by_hand,
    state_of,
    text_of,
    visitor,
)
from support.texts import texts
from support.waiting import until

from tracing_2pc.console.sessions import LIFE, Sessions, Throttle
from tracing_2pc.core.access import Caller, Role, TokenGate
from tracing_2pc.core.states import TransactionState
from tracing_2pc.operations.actions import ACTIONS
from tracing_2pc.wire.error_responses import Problem

TEXTS = texts("console")
REFUSED = f"/refused/mailer/{MAILED}"
OPEN = [f"/transactions/{STUCK}", "/transactions/nobody.1.1", "/refused", REFUSED]
ACTING = [
    f"/actions/{action.slug}/{step}" for action in ACTIONS for step in ("confirm", "do")
]


@pytest.mark.parametrize("path", ["/", *OPEN])
def test_nothing_is_shown_to_nobody(app, path):
    """Without a session every page leads to where one logs in, and says nothing."""
    answer = app.test_client().get(path)
    back = "" if path == "/" else f"?next={path}"
    assert (answer.status_code, answer.location) == (303, f"/login{back}")
    assert STUCK not in answer.get_data(as_text=True).split("next=")[0]


def test_only_what_needs_no_session_is_open(app):
    """Health, the style and the script; every other route asks who it is."""
    client = app.test_client()
    for path in ("/health/live", "/static/console.css", "/static/console.js"):
        assert client.get(path, buffered=True).status_code == 200
    routes = {rule.rule for rule in app.url_map.iter_rules()}
    assert routes == {
        "/",
        "/actions",
        "/actions/<slug>",
        "/actions/<slug>/confirm",
        "/actions/<slug>/do",
        "/applications/<name>",
        "/health/live",
        "/incidents",
        "/login",
        "/logout",
        "/participants/<participant:name>",
        "/refused",
        "/refused/<participant:participant>/<key>",
        "/search",
        "/static/<path:filename>",
        "/transactions/<id_>",
        "/transactions/<id_>/in/<name>",
    }


@pytest.mark.parametrize("who", ["nobody", "viewer", "another's operator", "operator"])
def test_every_route_for_everybody(at, mailer, who):
    """Pages need a session, what changes anything an operator's: no route is left."""
    lines = {"viewer": VIEWER, "operator": OPERATOR, "another's operator": BOUND}
    gate = TokenGate(
        [f"viewer {VIEWER}", f"operator {OPERATOR}", f"operator {BOUND} bills"], "here"
    )
    app = console_of(at, gate=gate)
    person = visitor(app, lines[who]) if who in lines else Visitor(app.test_client())
    if who == "nobody":
        person.csrf = csrf_in(text_of(person.client.get("/login")))
    values = {"id_": STUCK, "key": MAILED, "participant": "mailer", "name": "ledger"}
    acting = {"key": MAILED, "transaction": STUCK, "commit": "yes", "reason": "r"}
    paths = []
    with app.test_request_context():
        for rule in app.url_map.iter_rules():
            if not rule.endpoint.startswith(("login", "static")):
                methods = (rule.methods or set()) & {"GET", "POST"}
                for values["slug"] in (action.slug for action in ACTIONS):
                    named = {name: values[name] for name in rule.arguments}
                    path = url_for(rule.endpoint, **named)
                    paths += [(method, path) for method in methods]
    for method, path in paths:
        if path == "/health/live":
            assert person.client.get(path).status_code == 200
        elif method == "POST":
            status = person.post(path, **acting).status_code
            assert (status == 403) is (who != "operator"), path
        elif who == "nobody":
            assert person.client.get(path).location.startswith("/login"), path
        elif who != "another's operator":
            assert person.client.get(path).status_code in {200, 303, 404}, path
    assert {path for method, path in paths if method == "POST"} >= {*ACTING}
    assert signed_by_hand(mailer) == []
    assert state_of(at, STUCK) is TransactionState.COMMITTING


def test_each_page_says_which_installation_it_is(at):
    """Its name where one logs in, too; where its log is, only to who has."""
    app = console_of(at, environment="staging <2>")
    named, where = "staging &lt;2&gt;", str(at.folder)
    page = text_of(app.test_client().get("/login"))
    assert named in page
    assert where not in page
    viewer = visitor(app, VIEWER)
    for path in ("/", "/search", "/incidents", "/refused", f"/transactions/{STUCK}"):
        page = viewer.get(path)
        assert named in page
        assert where in page


def test_a_viewer_sees_all_and_resolves_nothing(viewer):
    """No form is on the page."""
    page = viewer.get(f"/transactions/{QUARANTINED}")
    assert TEXTS["for operators"] in page
    assert "/confirm" not in page


@pytest.mark.parametrize("token", [JOB, "wrong-token-0123456789", "", "ü" * 20])
def test_other_tokens_do_not_log_in(app, token):
    """A job's token is for a job; what is not known is not told from it by time."""
    visitor = Visitor(app.test_client())
    assert visitor.log_in(token).status_code == 403
    assert visitor.client.get("/").status_code == 303


def test_a_token_of_one_application_shows_that_one(app, at):
    """Another application's transactions are neither listed nor shown."""
    bound = visitor(app, BOUND)
    page = bound.get("/")
    assert QUARANTINED in page
    assert "orders" not in page
    assert bound.client.get(f"/transactions/{STUCK}").status_code == 403
    assert bound.client.get(f"/transactions/{QUARANTINED}").status_code == 200


def test_a_token_of_one_application_reads_of_no_other_in_what_is_doubted(app, at):
    """Who has no address, and whose clock is behind: said, without another's id."""
    del at.observed["notifier"]  # before anybody asks: a thread reads it from then on
    viewer, bound = Visitor(app.test_client()), Visitor(app.test_client())
    viewer.log_in(VIEWER)
    bound.log_in(BOUND)
    for said in (TEXTS["no address"], TEXTS["a clock behind"]):
        until(lambda: said in bound.get("/"))  # noqa: B023 - at once
        assert STUCK in viewer.get("/")
        assert "orders" not in bound.get("/")
        at.time.time -= 7200


def test_logging_in_leads_to_where_one_wanted_to_go(app):
    """To a transaction of ours, and to no other place."""
    for wanted, led in (
        (f"/transactions/{STUCK}", f"/transactions/{STUCK}"),
        ("/refused", "/refused"),
        ("/refused/mailer/orders.7.1.0.1.0", "/refused/mailer/orders.7.1.0.1.0"),
        ("/actions/forget", "/actions/forget"),
        ("/actions/forget/do", "/"),
        ("/refused//evil.example", "/"),
        ("/refused/../x", "/"),
        ("//evil.example/", "/"),
        ("https://evil.example/transactions/orders.1.1", "/"),
        ("/transactions/../../x", "/"),
    ):
        visitor = Visitor(app.test_client())
        page = visitor.client.get("/login", query_string={"next": wanted})
        visitor.csrf = csrf_in(page.get_data(as_text=True))
        answer = visitor.client.post(
            "/login",
            query_string={"next": wanted},
            data={"csrf": visitor.csrf, "token": VIEWER},
            headers=OURS,
        )
        assert answer.location == led


def test_a_link_from_elsewhere_does_not_end_the_session(viewer):
    """The cookie stays at home then, and no new one takes its place."""
    without = viewer.client.application.test_client()
    stuck = f"/transactions/{STUCK}"
    for path, led in ((stuck, stuck), ("/login", "/"), ("//evil.example/x", "/")):
        here = {"Sec-Fetch-Site": "cross-site", "Host": "localhost"}
        answer = without.get(path, headers=here)
        assert answer.status_code == 200
        assert "Set-Cookie" not in answer.headers
        assert f'href="{led}">Go on' in answer.get_data(as_text=True)
        assert "evil" not in answer.get_data(as_text=True)


def test_logging_out_ends_the_session_everywhere(viewer):
    """Also for a cookie that somebody has kept."""
    cookie = viewer.client.get_cookie("tpc_console")
    assert cookie is not None
    assert viewer.post("/logout").status_code == 303
    viewer.client.set_cookie("tpc_console", cookie.value)
    assert viewer.client.get("/").status_code == 303


def test_the_cookie_is_for_the_browser_alone(app):
    """No script reads it, no other site sends it, and it has an end."""
    visitor = Visitor(app.test_client())
    cookie = visitor.log_in(VIEWER).headers["Set-Cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Expires=", "Path=/"):
        assert part in cookie
    assert "Secure" not in cookie
    page = app.test_client().get("/login", base_url="https://localhost")
    assert "Secure" in page.headers["Set-Cookie"]


def test_a_session_ends_by_itself():
    """Whether it is used or not; and there is no end of new ones."""
    time = [0.0]
    logins = Sessions(lambda: time[0])
    first = logins.open(Caller(Role.VIEWER), "")
    time[0] = LIFE - 1
    assert logins.find(first) is not None
    time[0] = LIFE
    assert logins.find(first) is None
    oldest = logins.open(Caller(Role.VIEWER), "")
    for _ in range(1_000):
        newest = logins.open(Caller(Role.VIEWER), "")
    assert logins.find(oldest) is None
    assert logins.find(newest) is not None
    assert logins.find(None) is None


def test_wrong_tokens_slow_down_and_a_right_one_is_not_looked_at(app):
    """By address: another one may still log in."""
    visitor = Visitor(app.test_client())
    statuses = [visitor.log_in("wrong-token-0123456789").status_code for _ in range(3)]
    assert statuses == [403, 403, 403]
    answer = visitor.log_in(OPERATOR)
    assert answer.status_code == 429
    assert int(answer.headers["Retry-After"]) >= 1
    elsewhere = Visitor(app.test_client())
    elsewhere.client.environ_base["REMOTE_ADDR"] = "127.0.0.2"
    assert elsewhere.log_in(OPERATOR).status_code == 303


def test_wrong_tokens_slow_down_their_sender_and_not_all_behind_a_proxy(app):
    """By the address that a proxy of this machine wrote last, not by the proxy's own,
    nor by what its client pretends; a peer elsewhere is no proxy of ours.
    """

    def behind(address: str, proxy: str = "127.0.0.1") -> Visitor:
        visitor = Visitor(app.test_client())
        visitor.client.environ_base["REMOTE_ADDR"] = proxy
        visitor.client.environ_base["HTTP_X_FORWARDED_FOR"] = address
        return visitor

    for number in range(3):
        stranger = behind(f"198.51.100.{number}, 203.0.113.7")
        assert stranger.log_in("wrong-token-0123456789").status_code == 403
    assert behind("203.0.113.7").log_in(OPERATOR).status_code == 429
    assert behind("203.0.113.8").log_in(OPERATOR).status_code == 303
    assert Visitor(app.test_client()).log_in(OPERATOR).status_code == 303
    for number in range(3):
        stranger = behind(f"203.0.113.{number}", proxy="192.0.2.1")
        assert stranger.log_in("wrong-token-0123456789").status_code == 403
    assert behind("203.0.113.9", "192.0.2.1").log_in(OPERATOR).status_code == 429


def test_waits_double_up_to_a_minute_and_are_forgotten():
    """After the third try; a right one ends them."""
    time, waits = [0.0], []
    throttle = Throttle(lambda: time[0])
    for _ in range(12):
        throttle.raise_if_too_soon("a")
        throttle.count_wrong("a")
        before = time[0]
        while True:
            try:
                throttle.raise_if_too_soon("a")
                break
            except Problem:
                time[0] += 1
        waits.append(time[0] - before)
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    throttle.reset("a")
    throttle.count_wrong("a")
    throttle.raise_if_too_soon("a")


# --- forms ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Sec-Fetch-Site": "cross-site"},
        {"Sec-Fetch-Site": "same-site"},
        {"Sec-Fetch-Site": "none"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": "http://["},
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_a_form_that_comes_from_elsewhere_changes_nothing(
    mailer, operator, at, headers
):
    """Whatever it knows of ours: the browser says where it is from."""
    given = {"transaction": STUCK, "commit": "yes", "key": MAILED, "reason": "r"}
    for path in (*ACTING, "/logout", "/login"):
        data = {"csrf": operator.csrf, "token": OPERATOR, **given}
        answer = operator.client.post(path, data=data, headers=headers)
        assert answer.status_code == 403
    assert signed_by_hand(mailer) == []
    assert operator.client.get("/").status_code == 200
    assert state_of(at, STUCK) is TransactionState.COMMITTING


def test_a_query_of_other_bytes_is_refused(app, caplog):
    """What is no UTF-8 is the caller's fault, and no traceback."""
    raw = {"QUERY_STRING": "next=\xfc"}
    answer = app.test_client().get("/login", environ_overrides=raw)
    assert answer.status_code == 400
    assert [r for r in caplog.records if r.levelname == "ERROR"] == []


@pytest.mark.parametrize("name", ["evil.example:8090", "127.0.0.1.evil.example", "[::"])
def test_a_strangers_name_leads_to_no_page(app, name):
    """On this machine the console is known by names of this machine. A proxy here has
    names of its own."""
    visitor, headers = app.test_client(), {"Host": name}
    same = {**headers, "Origin": f"http://{name}", "Sec-Fetch-Site": "same-origin"}
    for answer in (
        visitor.get("/login", headers=headers),
        visitor.get("/", headers=headers),
        visitor.post("/login", data={"token": OPERATOR}, headers=same),
    ):
        assert answer.status_code == 403
        assert "open it at 127.0.0.1" in answer.text
        assert "evil" not in answer.text
    assert visitor.get("/health/live", headers=headers).status_code == 200
    for good in (
        {"Host": "localhost:8090"},
        {"Host": "[::1]:8090"},
        {"Host": "console.example", "X-Forwarded-For": "192.0.2.7"},
    ):
        assert visitor.get("/login", headers=good).status_code == 200
    far = {"REMOTE_ADDR": "192.0.2.7"}
    answer = visitor.get("/login", headers={"Host": "console"}, environ_overrides=far)
    assert answer.status_code == 200


@pytest.mark.parametrize("csrf", ["", "x" * 43])
def test_a_form_without_its_token_changes_nothing(mailer, operator, at, csrf):
    """An older browser that says its origin only is believed with it."""
    good, operator.csrf = operator.csrf, csrf
    fields = {"transaction": STUCK, "commit": "yes", "key": MAILED, "token": OPERATOR}
    for path in (*ACTING, "/logout", "/login"):
        assert operator.post(path, **fields).status_code == 403
    assert signed_by_hand(mailer) == []
    assert state_of(at, STUCK) is TransactionState.COMMITTING
    origin = {"Origin": "http://localhost"}
    answer = operator.client.post("/logout", data={"csrf": good}, headers=origin)
    assert answer.status_code == 303


def test_a_get_changes_nothing(operator, at):
    """The ways to resolve are forms; no address does it."""
    for path in (*ACTING, "/logout"):
        asked = f"{path}?transaction={STUCK}&commit=yes"
        assert operator.client.get(asked).status_code == 405
    assert operator.client.get("/").status_code == 200
