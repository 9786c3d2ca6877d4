"""The console's pages: who sees what, what a form may do, what is never shown."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest
from console_support import (
    BOUND,
    DONE,
    JOB,
    OPERATOR,
    OURS,
    QUARANTINED,
    STUCK,
    VIEWER,
    Visitor,
    console_of,
    csrf_in,
    until,
)
from flask import Flask
from participant_support import ONE
from watch_support import Site, fresh

from tracing_2pc.errors import DecisionLogError
from tracing_2pc.model import TransactionId
from tracing_2pc.operations.console.auth import LIFE, Logins, Throttle
from tracing_2pc.operations.signing import LONGEST_REASON
from tracing_2pc.participant.auth import Caller, Role
from tracing_2pc.participant.problems import Problem
from tracing_2pc.states import TransactionState

PAGES = ["/", f"/transactions/{STUCK}", "/transactions/nobody.1.1"]
DEEDS = [f"/transactions/{STUCK}/confirm", f"/transactions/{STUCK}/resolve"]
EVIL = "<script>alert('x')</script>\"'>&<img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """What a browser takes for markup in a page."""

    def __init__(self, page: str) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: set[str] = set()
        self.scripts: list[str | None] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes |= {name for name, _ in attrs}
        if tag == "script":
            self.scripts.append(dict(attrs).get("src"))


def state(at: Site, id_: str) -> TransactionState:
    record = at.log.read(TransactionId.parse(id_))
    assert record is not None
    return record.state


# --- who may do what -----------------------------------------------------------------


@pytest.mark.parametrize("path", PAGES)
def test_nothing_is_shown_to_nobody(app: Flask, path: str) -> None:
    """Without a session every page leads to where one logs in, and says nothing."""
    answer = app.test_client().get(path)
    assert (answer.status_code, answer.location.split("?")[0]) == (303, "/login")
    assert STUCK not in answer.get_data(as_text=True).split("next=")[0]


@pytest.mark.parametrize("path", DEEDS)
def test_nothing_is_done_for_nobody(app: Flask, at: Site, path: str) -> None:
    """Neither without a session, nor when it has ended while the form was open."""
    visitor = Visitor(app.test_client())
    visitor.csrf = csrf_in(visitor.client.get("/login").get_data(as_text=True))
    assert visitor.post(path, deed="commit", reason="r").status_code == 403
    assert state(at, STUCK) is TransactionState.COMMITTING


def test_only_what_needs_no_session_is_open(app: Flask) -> None:
    """Health, the style and the script; every other route asks who it is."""
    client = app.test_client()
    for path in ("/health/live", "/static/console.css", "/static/console.js"):
        assert client.get(path, buffered=True).status_code == 200
    routes = {rule.rule for rule in app.url_map.iter_rules()}
    assert routes == {
        "/",
        "/health/live",
        "/login",
        "/logout",
        "/static/<path:filename>",
        "/transactions/<id_>",
        "/transactions/<id_>/confirm",
        "/transactions/<id_>/resolve",
    }


def test_a_viewer_sees_all_and_resolves_nothing(viewer: Visitor, at: Site) -> None:
    """No form on the page, and none that is made by hand is taken."""
    page = viewer.get(f"/transactions/{QUARANTINED}")
    assert "Log in as operator" in page
    assert "/confirm" not in page
    for path in ("confirm", "resolve"):
        answer = viewer.post(
            f"/transactions/{QUARANTINED}/{path}", deed="mixed", reason="r", batch="3"
        )
        assert answer.status_code == 403
    assert state(at, QUARANTINED) is TransactionState.QUARANTINED


@pytest.mark.parametrize("token", [JOB, "wrong-token-0123456789", "", "ü" * 20])
def test_other_tokens_do_not_log_in(app: Flask, token: str) -> None:
    """A job's token is for a job; what is not known is not told from it by time."""
    visitor = Visitor(app.test_client())
    assert visitor.log_in(token).status_code == 403
    assert visitor.client.get("/").status_code == 303


def test_a_token_of_one_application_shows_that_one(app: Flask, at: Site) -> None:
    """Another application's transactions are neither listed nor shown."""
    bound = Visitor(app.test_client())
    bound.log_in(BOUND)
    page = bound.get("/")
    assert QUARANTINED in page
    assert "orders" not in page
    assert bound.client.get(f"/transactions/{STUCK}").status_code == 403
    assert bound.client.get(f"/transactions/{QUARANTINED}").status_code == 200


def test_logging_in_leads_to_where_one_wanted_to_go(app: Flask) -> None:
    """To a transaction of ours, and to no other place."""
    for wanted, led in (
        (f"/transactions/{STUCK}", f"/transactions/{STUCK}"),
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


def test_a_link_from_elsewhere_does_not_end_the_session(viewer: Visitor) -> None:
    """The cookie stays at home then, and no new one takes its place."""
    without = viewer.client.application.test_client()
    for path in (f"/transactions/{STUCK}", "/login"):
        answer = without.get(path, headers={"Sec-Fetch-Site": "cross-site"})
        assert answer.status_code == 200
        assert "Set-Cookie" not in answer.headers
        assert f'href="{path}"' in answer.get_data(as_text=True)


def test_logging_out_ends_the_session_everywhere(viewer: Visitor) -> None:
    """Also for a cookie that somebody has kept."""
    cookie = viewer.client.get_cookie("tpc_console")
    assert cookie is not None
    assert viewer.post("/logout").status_code == 303
    viewer.client.set_cookie("tpc_console", cookie.value)
    assert viewer.client.get("/").status_code == 303


def test_the_cookie_is_for_the_browser_alone(app: Flask) -> None:
    """No script reads it, no other site sends it, and it has an end."""
    visitor = Visitor(app.test_client())
    cookie = visitor.log_in(VIEWER).headers["Set-Cookie"]
    for part in ("HttpOnly", "SameSite=Strict", "Expires=", "Path=/"):
        assert part in cookie
    assert "Secure" not in cookie
    page = app.test_client().get("/login", base_url="https://localhost")
    assert "Secure" in page.headers["Set-Cookie"]


def test_a_session_ends_by_itself() -> None:
    """Whether it is used or not; and there is no end of new ones."""
    time = [0.0]
    logins = Logins(lambda: time[0])
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


def test_wrong_tokens_slow_down_and_a_right_one_is_not_looked_at(app: Flask) -> None:
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


def test_waits_double_up_to_a_minute_and_are_forgotten() -> None:
    """After the third try; a right one ends them."""
    time, waits = [0.0], []
    throttle = Throttle(lambda: time[0])
    for _ in range(12):
        throttle.check("a")
        throttle.wrong("a")
        before = time[0]
        while True:
            try:
                throttle.check("a")
                break
            except Problem:
                time[0] += 1
        waits.append(time[0] - before)
    assert waits == [0, 0, 1, 2, 4, 8, 16, 32, 60, 60, 60, 60]
    throttle.right("a")
    throttle.wrong("a")
    throttle.check("a")


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
        {"Origin": "http://evil.example", "Sec-Fetch-Site": "same-origin"},
    ],
)
def test_a_form_that_comes_from_elsewhere_changes_nothing(
    operator: Visitor, at: Site, headers: dict[str, str]
) -> None:
    """Whatever it knows of ours: the browser says where it is from."""
    for path in (*DEEDS, "/logout", "/login"):
        data = {"csrf": operator.csrf, "deed": "commit", "token": OPERATOR}
        answer = operator.client.post(path, data=data, headers=headers)
        assert answer.status_code == 403
    assert operator.client.get("/").status_code == 200
    assert state(at, STUCK) is TransactionState.COMMITTING


@pytest.mark.parametrize("csrf", ["", "x" * 43])
def test_a_form_without_its_token_changes_nothing(
    operator: Visitor, at: Site, csrf: str
) -> None:
    """An older browser that says its origin only is believed with it."""
    good, operator.csrf = operator.csrf, csrf
    for path in (*DEEDS, "/logout", "/login"):
        assert operator.post(path, deed="commit", token=OPERATOR).status_code == 403
    assert state(at, STUCK) is TransactionState.COMMITTING
    origin = {"Origin": "http://localhost"}
    answer = operator.client.post("/logout", data={"csrf": good}, headers=origin)
    assert answer.status_code == 303


def test_a_get_changes_nothing(operator: Visitor, at: Site) -> None:
    """The ways to resolve are forms; no address does it."""
    for path in (*DEEDS, "/logout"):
        assert operator.client.get(f"{path}?deed=commit").status_code == 405
    assert operator.client.get("/").status_code == 200


def test_delivering_again_reaches_who_is_back(operator: Visitor, at: Site) -> None:
    """It says what came of it, once, and the transaction is finished."""
    at.up("notifier")
    answer = operator.resolve(STUCK, "commit")
    assert answer.location == f"/transactions/{STUCK}"
    assert state(at, STUCK) is TransactionState.COMMITTED
    assert "delivered: committed." in operator.get(answer.location)
    page = operator.get(answer.location)
    assert "delivered: " not in page
    assert "All is well: 3 rows committed everywhere." in page


def test_delivering_in_vain_says_why(operator: Visitor, at: Site) -> None:
    """The participant is still down; nothing is lost."""
    answer = operator.resolve(STUCK, "commit")
    assert "no answer: notifier" in operator.get(answer.location)
    assert state(at, STUCK) is TransactionState.COMMITTING


def test_a_forced_way_out_needs_the_number_and_is_signed(
    operator: Visitor, at: Site
) -> None:
    """The page repeats id, effect and cost; the audit has who and why."""
    page = operator.confirm(QUARANTINED, "mixed", "ledger was cleared by hand")
    text = page.get_data(as_text=True)
    for said in (QUARANTINED, "closes it as it is", "not committed at ledger"):
        assert said in text
    for batch in ("", "4", "3.1", QUARANTINED):
        answer = operator.resolve(QUARANTINED, "mixed", batch=batch)
        assert answer.status_code == 400
        assert state(at, QUARANTINED) is TransactionState.QUARANTINED
    answer = operator.resolve(QUARANTINED, "mixed", batch="3", reason="looked")
    assert answer.status_code == 303
    assert state(at, QUARANTINED) is TransactionState.CONCLUDED
    (audited,) = at.log.overview.audit(TransactionId.parse(QUARANTINED))
    assert (audited.who, audited.why) == ("Ada at the console", "looked")
    assert "Closed by a person" in operator.get(f"/transactions/{QUARANTINED}")


def test_an_attempt_without_decision_can_be_aborted(
    operator: Visitor, at: Site
) -> None:
    """Its driver is gone: decided through the log, then delivered, from the browser."""
    at.up("notifier")
    id_ = str(at.begin(9).id)
    at.prepare(id_)
    assert operator.resolve(id_, "abort").status_code == 303
    assert state(at, id_) is TransactionState.ABORTED


def test_what_has_changed_since_it_was_shown_is_not_done(
    operator: Visitor, at: Site
) -> None:
    """A cost that is another one by now is shown again; what is over is refused."""
    page = operator.confirm(QUARANTINED, "mixed").get_data(as_text=True)
    (seal,) = re.findall(r'name="seal" value="(\w+)"', page)
    at.up("notifier")
    path = f"/transactions/{QUARANTINED}/resolve"
    fields = {"deed": "mixed", "reason": "r", "batch": "3", "seal": seal}
    answer = operator.post(path, **fields)
    assert answer.status_code == 409
    assert "notifier keeps 3 rows" in answer.get_data(as_text=True)
    assert state(at, QUARANTINED) is TransactionState.QUARANTINED
    at.log.conclude(TransactionId.parse(QUARANTINED), "hazard", who="bob", why="w")
    answer = operator.post(path, **fields)
    assert answer.status_code == 409
    assert "is concluded" in answer.get_data(as_text=True)


@pytest.mark.parametrize("deed", ["", "commit", "hazard", "no-such", "abort@ledger"])
def test_only_what_the_log_allows_is_offered_and_done(
    operator: Visitor, at: Site, deed: str
) -> None:
    """A finished transaction has no way out, whatever a form asks for."""
    assert operator.confirm(DONE, deed).status_code == 409
    assert "Nothing: it needs nobody." in operator.get(f"/transactions/{DONE}")


def test_a_reason_is_there_and_bounded(operator: Visitor) -> None:
    """Empty, or longer than the audit takes from here, it is refused."""
    for reason in ("", "   ", "two\nlines", "x" * (LONGEST_REASON + 1), "x" * 10_000):
        answer = operator.confirm(QUARANTINED, "mixed", reason)
        assert answer.status_code == 400
        assert len(answer.get_data()) < 5_000
    assert operator.confirm(QUARANTINED, "mixed", "x" * 100_000).status_code == 413


# --- what is shown -------------------------------------------------------------------


def test_the_list_says_what_is_stuck_since_when_and_because_of_whom(
    viewer: Visitor,
) -> None:
    """Worst first, each in words; and what is not known is said to be so."""
    page = until(lambda: "were asked" in (text := viewer.get("/")) and text)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert "2 transactions need you" in text
    assert text.index(QUARANTINED) < text.index(STUCK) < text.index(DONE)
    assert "for 7 min not acknowledged by notifier" in text
    assert "ledger has aborted it" in text
    assert "notifier could not be read" in text
    assert "orders 2 commits decided, 6 rows. Commits per minute 2 commits" in text


def test_a_transaction_is_told_whole(viewer: Visitor) -> None:
    """What is wrong, what comes next, what participants say, where to look further."""
    page = viewer.get(f"/transactions/{STUCK}")
    for said in (
        "Stuck: it is decided commit",
        "safe to deliver the decision again",
        "not acknowledged for 7 min",
        "overdue",
        "cannot be read",
        f"http://jaeger.example/trace/{'a' * 32}",
        "Where the time went",
    ):
        assert said in page


def test_nothing_of_others_is_ever_markup(operator: Visitor, at: Site) -> None:
    """Names, reasons, errors of participants and of the log: text, and bounded."""
    id_ = TransactionId.parse(STUCK)
    at.log.postpone(id_, "notifier", EVIL, at.time.now())
    sold = TransactionId.parse(QUARANTINED)
    at.log.resume(sold, at.log.read(sold).decision, who=EVIL, why=EVIL * 200)  # type: ignore[union-attr, arg-type]
    at.log.quarantine(sold, EVIL * 200)
    until(lambda: "were asked" in operator.get("/"))
    at.time.sleep(400)
    person = Visitor(operator.client.application.test_client())
    person.log_in(OPERATOR, EVIL[:79])
    pages = [
        person.get("/"),
        person.get(f"/transactions/{STUCK}"),
        person.get(f"/transactions/{QUARANTINED}"),
        person.confirm(QUARANTINED, "mixed", EVIL).get_data(as_text=True),
        person.confirm(EVIL, "mixed", EVIL).get_data(as_text=True),
        person.client.get(f"/transactions/{EVIL}").get_data(as_text=True),
        person.log_in("wrong-token-0123456789", EVIL[:60]).get_data(as_text=True),
    ]
    for page in pages:
        tags = Tags(page)
        assert not {"img", "style"} & tags.names
        assert not [a for a in tags.attributes if a.startswith("on") or a == "style"]
        assert tags.scripts == ["/static/console.js"]
        assert len(page) < 100_000
    assert "&lt;script&gt;" in pages[2]


def test_a_transaction_of_many_branches_has_a_page_of_some(
    viewer: Visitor, at: Site
) -> None:
    """Bounded, whatever a participant holds; how many there are is said."""
    id_ = str(at.begin(9).id)
    for number in range(300):
        assert at.worlds["ledger"].prepare(id_, fresh(1, f"{number}.{number}"))
    page = viewer.get(f"/transactions/{id_}")
    assert "300 branches at ledger" in page
    assert "more branches" in page
    assert len(page) < 60_000


def test_every_answer_has_its_headers(operator: Visitor, app: Flask) -> None:
    """Pages, errors, redirects and static files; nothing inline is needed."""
    policy = (
        "default-src 'none'; style-src 'self'; img-src 'self'; script-src 'self'; "
        "connect-src 'self'; form-action 'self'; frame-ancestors 'none'; "
        "base-uri 'none'"
    )
    client = operator.client
    answers = [
        *map(client.get, [*PAGES, "/no-such-page", "/login"]),
        client.get("/static/console.css", buffered=True),
        client.post("/login"),
        client.put("/"),
        app.test_client().get("/"),
        operator.confirm(QUARANTINED, "mixed"),
    ]
    for answer in answers:
        assert answer.headers["Content-Security-Policy"] == policy
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        assert answer.headers["Referrer-Policy"] == "no-referrer"
        assert answer.headers["Cache-Control"] == "no-store"


def test_a_log_that_cannot_be_read_gives_nothing_away(
    viewer: Visitor, at: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """503 and what to do; no SQL, no path, no stack trace. It is in our log."""
    at.log.close()
    (tmp_path / "log" / "decisions.db").write_bytes(b"no database" * 1000)
    for path in ("/", f"/transactions/{STUCK}"):
        answer = viewer.client.get(path)
        page = answer.get_data(as_text=True)
        assert answer.status_code == 503
        assert "the decision log cannot be read" in page
        for secret in ("SELECT", "sqlite", "Traceback", str(tmp_path), "decisions.db"):
            assert secret not in page
    assert "not a database" in caplog.text


def test_a_fault_of_ours_gives_nothing_away(
    viewer: Visitor, at: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """500, and the rest is in the console's log."""

    def fail(*_: object) -> None:
        raise RuntimeError("SELECT secret FROM /etc/passwd")

    monkeypatch.setattr(type(at.log.overview), "reason", fail)
    answer = viewer.client.get(f"/transactions/{STUCK}")
    assert answer.status_code == 500
    assert "secret" not in answer.get_data(as_text=True)


@pytest.mark.parametrize("id_", ["orders", "orders.07.1", "x" * 10_000, "%00", "a.1.0"])
def test_what_is_no_id_is_not_asked_for(viewer: Visitor, id_: str) -> None:
    """404 with the form of an id; neither the log nor anybody else hears of it."""
    answer = viewer.client.get(f"/transactions/{id_}")
    assert answer.status_code == 404
    assert len(answer.get_data()) < 5_000


def test_many_who_look_cost_what_one_does(at: Site) -> None:
    """Participants are asked once, and the log is read once, for a hundred pages."""
    asked: list[str] = []
    first = at.observed["ledger"]

    class Counting:
        name = first.name

        def prepared(self, application: str | None = None) -> object:
            asked.append("list")
            return first.prepared(application)

        def show(self, transaction: TransactionId) -> object:
            asked.append(f"show {transaction}")
            return first.show(transaction)

    at.observed["ledger"] = Counting()  # type: ignore[assignment]
    visitor = Visitor(console_of(at).test_client())
    visitor.log_in(VIEWER)
    until(lambda: "were asked" in visitor.get("/"))
    asked.clear()
    for _ in range(100):
        visitor.get(f"/transactions/{DONE}")
    assert asked == [f"show {DONE}"]


def test_an_orphan_is_shown_with_whom_it_is(viewer: Visitor, at: Site) -> None:
    """No record of this log: what holds it, since when, and who may know."""
    at.worlds["ledger"].prepare("bookings.3.1", ONE)
    at.time.sleep(400)
    page = viewer.get("/transactions/bookings.3.1")
    assert "Prepared, and no record can finish it: 3 rows have been prepared" in page
    assert "another log may own it" in page


def test_an_orphan_is_resolved_where_it_is(operator: Visitor, at: Site) -> None:
    """Forced, with its cost, at that participant alone; signed before and after."""
    at.worlds["ledger"].prepare("bookings.3.1", ONE)
    at.time.sleep(400)
    page = operator.confirm("bookings.3.1", "abort@ledger").get_data(as_text=True)
    assert "3 rows there are lost" in page
    assert operator.resolve("bookings.3.1", "abort@ledger").status_code == 400
    assert at.worlds["ledger"].in_doubt() == 1
    answer = operator.resolve("bookings.3.1", "abort@ledger", batch="3")
    assert "Aborted at ledger." in operator.get(answer.location)
    assert at.worlds["ledger"].in_doubt() == 0
    audit = at.log.overview.audit(TransactionId("bookings", 3, 1))
    assert [one.who for one in audit] == ["Ada at the console"] * 2


def test_what_a_participant_refuses_is_said(operator: Visitor, at: Site) -> None:
    """It is too young, or gone in between: nothing was done, and the page says why."""
    at.worlds["ledger"].prepare("bookings.3.1", ONE)
    answer = operator.resolve("bookings.3.1", "abort@ledger", batch="3")
    assert answer.status_code == 409
    assert "orphan_after" in answer.get_data(as_text=True)
    assert at.worlds["ledger"].in_doubt() == 1


def test_what_nobody_knows_is_not_there(viewer: Visitor, at: Site) -> None:
    """404, and the page says so; not before everybody has been asked."""
    page = viewer.get("/transactions/orders.99.1")
    assert "not everybody could be asked" in page
    at.up("notifier")
    answer = viewer.client.get("/transactions/orders.99.1")
    assert answer.status_code == 404
    assert "Nobody knows this transaction." in answer.get_data(as_text=True)


def test_a_record_that_cannot_be_trusted_is_named(
    viewer: Visitor, at: Site, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log refuses it, and the page says which one."""

    def refuse(*_: object) -> None:
        raise DecisionLogError(
            f"record {STUCK} does not match its checksum: refused",
            transaction_id=STUCK,
        )

    monkeypatch.setattr(type(at.log), "read", refuse)
    answer = viewer.client.get(f"/transactions/{STUCK}")
    assert answer.status_code == 503
    assert "does not match its checksum" in answer.get_data(as_text=True)
