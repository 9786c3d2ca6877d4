"""The console's pages: what a form does, what is shown, what never is."""

from __future__ import annotations

import json
import re
import threading
from html.parser import HTMLParser

import pytest
from markupsafe import escape
from support.branches import ONE
from support.console import (
    DONE,
    EVIL,
    OPERATOR,
    QUARANTINED,
    STUCK,
    VIEWER,
    Visitor,
    console_of,
    hidden_in,
    resolution,
    state_of,
    text_of,
    visitor,
)
from support.protocol import raising
from support.texts import texts
from support.waiting import AT_LAST, until
from support.watch import NAMES, fresh

from tracing_2pc.console import state
from tracing_2pc.console.state import ConsoleSources, ConsoleState
from tracing_2pc.core.errors import DecisionLogError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.names import SPANS
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.inspection.participants import BRANCHES
from tracing_2pc.inspection.trace import NO_PROOF
from tracing_2pc.operations.recover import deliver
from tracing_2pc.operations.resolve import LONGEST_REASON
from tracing_2pc.tracing import ring

TEXTS = texts("console")
PAGES = ["/", f"/transactions/{STUCK}", "/transactions/nobody.1.1"]


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


# --- what a form does ---------------------------------------------------------------


def test_delivering_again_reaches_who_is_back(operator, at):
    """It says what came of it, once, and the transaction is finished."""
    at.up("notifier")
    answer = operator.resolve(STUCK, "commit")
    assert answer.location == f"/transactions/{STUCK}"
    assert state_of(at, STUCK) is TransactionState.COMMITTED
    page = operator.get(answer.location)
    assert TEXTS["delivered"] in page
    assert 'class="notice well"' in page
    page = operator.get(answer.location)
    assert TEXTS["delivered"] not in page
    assert TEXTS["see to it first"] not in page
    assert TEXTS["acknowledged by all"].format(id=STUCK) in page


def test_delivering_in_vain_says_why(operator, at):
    """The participant is still down; nothing is lost, and nothing is called well."""
    before = operator.get(f"/transactions/{STUCK}")
    assert TEXTS["told again"] in before
    answer = operator.resolve(STUCK, "commit")
    page = operator.get(answer.location)
    assert TEXTS["not delivered to all"] in page
    assert 'class="notice warning"' in page
    assert TEXTS["see to it first"] in page
    assert state_of(at, STUCK) is TransactionState.COMMITTING


def test_a_long_error_is_said_once(viewer, at):
    """In what is wrong; where decisions were delivered it is not said again."""
    long = "POST /commit http://127.0.0.1:9: the name of its host has no address"
    named = f"participant 'notifier': {long}"
    at.log.postpone(TransactionId.parse(STUCK), "notifier", named, at.time.now())
    page = viewer.get(f"/transactions/{STUCK}")
    assert page.count(long) == 1
    assert page.index(long) < page.index(TEXTS["by itself"])


def test_a_forced_way_out_needs_the_number_and_is_signed(operator, at):
    """The page repeats id, effect and cost; the audit has who and why."""
    page = operator.confirm(QUARANTINED, "mixed", "ledger was cleared by hand")
    text = page.get_data(as_text=True)
    assert QUARANTINED in text
    for said in ("closes it as it is", "not committed"):
        assert TEXTS[said] in text
    for batch in ("", "4", "3.1", QUARANTINED):
        answer = operator.resolve(QUARANTINED, "mixed", number=batch)
        assert answer.status_code == 400
        assert state_of(at, QUARANTINED) is TransactionState.QUARANTINED
    answer = operator.resolve(QUARANTINED, "mixed", number="3", reason="looked")
    assert answer.status_code == 303
    assert state_of(at, QUARANTINED) is TransactionState.CONCLUDED
    (audited,) = at.log.audit(TransactionId.parse(QUARANTINED))
    assert (audited.who, audited.why) == ("Ada at the console", "looked")
    page = operator.get(f"/transactions/{QUARANTINED}")
    assert TEXTS["closed by a person"] in page


def test_a_participant_is_given_up_with_the_number(operator, at):
    """It costs what it has not committed, and is signed."""
    page = operator.get(f"/transactions/{STUCK}")
    assert "Give up notifier" in page
    page = operator.confirm(STUCK, "give-up@notifier").get_data(as_text=True)
    assert TEXTS["may never be committed"] in page
    answer = operator.resolve(STUCK, "give-up@notifier", number="8", reason="gone")
    assert answer.status_code == 303
    assert state_of(at, STUCK) is TransactionState.CONCLUDED
    page = operator.get(answer.location)
    assert TEXTS["closed by a person"] in page
    assert 'class="notice well"' in page
    (audited,) = at.log.audit(TransactionId.parse(STUCK))
    assert (audited.who, audited.why) == ("Ada at the console", "gone")


def test_an_attempt_without_decision_can_be_aborted(operator, at):
    """Its driver is gone: decided through the log, then delivered, from the browser."""
    at.up("notifier")
    id_ = str(at.begin(9).id)
    at.prepare(id_)
    assert operator.resolve(id_, "abort").status_code == 303
    assert state_of(at, id_) is TransactionState.ABORTED


def test_what_has_changed_since_it_was_shown_is_not_done(operator, at):
    """A cost that is another one by now is shown again; what is over is refused."""
    page = operator.confirm(QUARANTINED, "mixed").get_data(as_text=True)
    at.up("notifier")
    path = "/actions/resolve/do"
    fields = {**hidden_in(page), "number": "3"}
    assert TEXTS["keeps rows"] in text_of(operator.post(path, **fields), 409)
    assert state_of(at, QUARANTINED) is TransactionState.QUARANTINED
    at.log.conclude(TransactionId.parse(QUARANTINED), "hazard", who="bob", why="w")
    assert "is concluded" in text_of(operator.post(path, **fields), 409)


@pytest.mark.parametrize("option", ["", "commit", "hazard", "no-such", "abort@ledger"])
def test_only_what_the_log_allows_is_offered_and_done(operator, at, option):
    """A finished transaction has no way out, whatever a form asks for."""
    if option in {"", "no-such"}:
        assert operator.confirm(DONE, option).status_code == 400
    else:
        page = text_of(operator.confirm(DONE, option), 409)
        assert f'href="/transactions/{DONE}"' in page
    assert TEXTS["needs nobody"] in operator.get(f"/transactions/{DONE}")


def test_a_reason_is_there_and_bounded(operator):
    """Empty, or longer than the audit takes from here, it is refused."""
    for reason in ("", "   ", "two\nlines", "x" * (LONGEST_REASON + 1), "x" * 10_000):
        answer = operator.confirm(QUARANTINED, "mixed", reason)
        assert answer.status_code == 400
        assert len(answer.get_data()) < 5_000
    assert operator.confirm(QUARANTINED, "mixed", "x" * 100_000).status_code == 413


def test_while_others_wait_for_participants_a_page_shows_the_log_and_does_nothing(
    at, monkeypatch
):
    """Neither waits: it says what it leaves out. What is done has places of its own."""
    at.up("notifier")
    monkeypatch.setattr(state, "ASKING", 0)
    monkeypatch.setattr(state, "RESOLVING", 0)
    person = visitor(console_of(at), OPERATOR)
    page = person.get(f"/transactions/{STUCK}")
    assert TEXTS["the log alone"] in page
    assert TEXTS["stuck"] in page
    assert TEXTS["see to it first"] not in page
    for answer in (
        person.confirm(STUCK, "commit"),
        person.post("/actions/resolve/do", **resolution(STUCK, "commit"), reason="r"),
    ):
        assert answer.status_code == 503
        assert TEXTS["nothing was done"] in answer.get_data(as_text=True)
    assert state_of(at, STUCK) is TransactionState.COMMITTING
    monkeypatch.setattr(state, "RESOLVING", 1)
    person = visitor(console_of(at), OPERATOR)
    assert TEXTS["the log alone"] in person.get(f"/transactions/{STUCK}")
    assert person.resolve(STUCK, "commit").status_code == 303
    assert state_of(at, STUCK) is TransactionState.COMMITTED


def test_the_log_alone_calls_nothing_well(at, monkeypatch):
    """It is closed as aborted, and a participant that is not asked holds it still."""
    id_ = at.begin(9).id
    at.prepare(id_)
    at.decide(id_, Decision.ABORT)
    for name in NAMES:
        at.log.acknowledge(id_, name)
    at.log.finish(id_)
    at.time.advance(400)
    person = visitor(console_of(at), OPERATOR)
    assert TEXTS["finished as aborted"] in person.get(f"/transactions/{id_}")
    monkeypatch.setattr(state, "ASKING", 0)
    person = visitor(console_of(at), OPERATOR)
    page = person.get(f"/transactions/{id_}")
    assert TEXTS["the log alone"] in page
    assert TEXTS["all is well"] not in page
    assert 'class="sentence well"' not in page
    assert TEXTS["not every participant"] in page.lower()


# --- what is shown -------------------------------------------------------------------


def test_the_spans_of_a_transaction_are_told_in_words(viewer, tmp_path, monkeypatch):
    """Never as markup; the page does not wait for who has them."""
    monkeypatch.setattr(ring, "folders", lambda: [tmp_path])
    monkeypatch.setattr(state, "TRACE_EVERY", 0.0)
    span = {
        "trace_id": "a" * 32,
        "span_id": "1",
        "parent_id": None,
        "name": "tpc.begin",
        "kind": "INTERNAL",
        "start": 10**18,
        "end": 10**18,
        "service": EVIL,
        "host": "here",
        "status": "ERROR",
        "links": [],
        "attributes": {"tpc.transaction.id": STUCK, "tpc.participant": EVIL},
    }
    ring.append(tmp_path, json.dumps(span).encode() + b"\n")
    page = until(
        lambda: viewer.get(f"/transactions/{STUCK}"),
        lambda page: SPANS["tpc.begin"].meaning in page,
    )
    assert "ERROR" in page
    assert "<script>alert" not in page
    assert escape(NO_PROOF) in page
    assert "jaeger at 127.0.0.1:9 was asked in vain: nothing listens" in page


def test_the_list_says_what_is_stuck_since_when_and_because_of_whom(viewer):
    """Worst first, each in words; and what is not known is said to be so."""
    page = until(lambda: TEXTS["asked"] in (text := viewer.get("/")) and text)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", page))
    assert TEXTS["two need you"] in text
    assert text.index(QUARANTINED) < text.index(STUCK) < text.index(DONE)
    assert TEXTS["not acknowledged"] in text
    assert TEXTS["aborted at"] in text
    assert TEXTS["not read"] in text
    assert TEXTS["hours"] in text


def test_what_the_log_proves_is_said_before_participants_have_answered(at):
    """The first page does not wait for them, and names what is stuck."""
    answered, asking = threading.Event(), threading.Event()

    def pause(seconds: float) -> None:
        asking.set()
        answered.wait(AT_LAST)

    app = console_of(at, pause)
    person = visitor(app, OPERATOR)
    assert asking.wait(AT_LAST)
    text = re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", person.get("/")))
    assert TEXTS["two need you"] in text
    assert TEXTS["not acknowledged"] in text
    assert TEXTS["until they answer"] in text
    assert TEXTS["asked"] not in text
    answered.set()


def test_answers_from_before_a_pause_are_not_shown(at):
    """Who comes back a minute later sees the log alone until all were asked anew."""
    settings = Settings()
    seen = ConsoleState(
        ConsoleSources(
            at.log, at.observed, settings,
            deliver=lambda record: deliver(at.log, settings, record),
            clock=at.time, pause=at.time.pause,
        )
    )  # fmt: skip
    assert until(seen.survey).at is not None
    at.time.time += 64
    assert seen.survey() is None


def test_a_transaction_is_told_whole(viewer):
    """What is wrong, what comes next, what participants say, where to look further.

    What a person can do stands above the record, and that above the chart.
    """
    page = viewer.get(f"/transactions/{STUCK}")
    places = [page.index(f'id="{part}"') for part in ("ways", "record", "where")]
    assert places == sorted(places)
    assert "What is wrong" not in viewer.get("/"), "there are healthy ones, too"
    for said in (
        TEXTS["stuck"],
        TEXTS["safe to deliver"],
        TEXTS["not acknowledged for"],
        "overdue",
        TEXTS["cannot be read"],
        f"http://127.0.0.1:9/trace/{'a' * 32}",
        TEXTS["where the time went"],
    ):
        assert said in page


def test_what_can_be_typed_is_shown_as_code(operator, at):
    """A page has no backticks of ours; somebody else's single one stays as it is."""
    at.begin(9)
    paths = ["/", f"/transactions/{STUCK}", f"/transactions/{QUARANTINED}"]
    pages = [operator.get(path) for path in [*paths, "/transactions/orders.9.1"]]
    assert "<code>tracing-2pc recover</code>" in pages[1]
    assert not [page for page in pages if "`" in page]
    at.log.postpone(TransactionId.parse(STUCK), "notifier", "`<b> ` `", at.time.now())
    assert "<code>&lt;b&gt; </code> `" in operator.get(f"/transactions/{STUCK}")


def test_nothing_of_others_is_ever_markup(operator, at):
    """Names, reasons, errors of participants and of the log: text, and bounded."""
    id_ = TransactionId.parse(STUCK)
    at.log.postpone(id_, "notifier", EVIL, at.time.now())
    sold = TransactionId.parse(QUARANTINED)
    at.log.resume(sold, at.log.read(sold).decision, who=EVIL, why=EVIL * 200)  # type: ignore[union-attr, arg-type]
    at.log.quarantine(sold, EVIL * 200)
    until(lambda: TEXTS["asked"] in operator.get("/"))
    at.time.advance(400)
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


def test_a_transaction_of_many_branches_has_a_page_of_some(viewer, at):
    """Bounded, whatever a participant holds; how many there are is said."""
    id_ = str(at.begin(9).id)
    for number in range(BRANCHES + 1):
        assert at.worlds["ledger"].prepare(id_, fresh(1, f"{number}.{number}"))
    page = viewer.get(f"/transactions/{id_}")
    assert TEXTS["so many branches"].format(count=BRANCHES + 1) in page
    assert TEXTS["more branches"] in page
    assert len(page) < 60_000


def test_every_answer_has_its_headers(operator, app):
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


def test_a_log_that_cannot_be_read_gives_nothing_away(viewer, at, tmp_path, caplog):
    """503 and what to do; no SQL, no path, no stack trace. It is in our log."""
    until(lambda: TEXTS["asked"] in viewer.get("/"))  # and nobody reads it any more
    at.log.close()
    (tmp_path / "log" / "decisions.db").write_bytes(b"no database" * 1000)
    for path in ("/", f"/transactions/{STUCK}"):
        page = text_of(viewer.client.get(path), 503)
        assert TEXTS["no log"] in page
        for secret in ("SELECT", "sqlite", "Traceback", str(tmp_path), "decisions.db"):
            assert secret not in page
    assert "not a database" in caplog.text


def test_a_fault_of_ours_gives_nothing_away(viewer, at, monkeypatch):
    """500, and the rest is in the console's log."""
    fail = raising(RuntimeError("SELECT secret FROM /etc/passwd"))
    monkeypatch.setattr(type(at.log), "audit", fail)
    assert "secret" not in text_of(viewer.client.get(f"/transactions/{STUCK}"), 500)


@pytest.mark.parametrize("id_", ["orders", "orders.07.1", "x" * 10_000, "%00", "a.1.0"])
def test_what_is_no_id_is_not_asked_for(viewer, id_):
    """404 with the form of an id; neither the log nor anybody else hears of it."""
    answer = viewer.client.get(f"/transactions/{id_}")
    assert answer.status_code == 404
    assert len(answer.get_data()) < 5_000


def test_many_who_look_cost_what_one_does(at, monkeypatch):
    """As long as it is good, what participants have said is shown to everybody."""
    for name in ("SURVEY_EVERY", "VIEW_EVERY"):
        monkeypatch.setattr(state, name, 3600.0)
    asked: list[str] = []
    first = at.observed["ledger"]

    class Counting:
        name = first.name

        def prepared(self, application: str | None = None) -> object:
            asked.append("list")
            return first.prepared(application)

        def show(
            self, transaction: TransactionId, journal: str | None = None
        ) -> object:
            asked.append(f"show {transaction}")
            return first.show(transaction)

    at.observed["ledger"] = Counting()  # type: ignore[assignment]
    person = visitor(console_of(at), VIEWER)
    until(lambda: "were asked" in person.get("/"))
    asked.clear()
    for _ in range(100):
        person.get("/")
        person.get(f"/transactions/{DONE}")
    assert asked == [f"show {DONE}"]


def test_an_orphan_is_resolved_where_it_is(operator, at):
    """Forced, with its cost, at that participant alone; signed before and after.

    It is shown with whom it is; one that is too young is refused there, and said to be.
    """
    at.worlds["ledger"].prepare("bookings.3.1", ONE)
    answer = operator.confirm("bookings.3.1", "abort@ledger")
    assert "orphan_after" in text_of(answer, 409)
    assert at.worlds["ledger"].in_doubt() == 1
    at.time.advance(400)
    page = operator.get("/transactions/bookings.3.1")
    assert TEXTS["orphaned"] in page
    assert TEXTS["of another log"] in page
    page = operator.confirm("bookings.3.1", "abort@ledger").get_data(as_text=True)
    assert TEXTS["rows are lost"] in page
    assert operator.resolve("bookings.3.1", "abort@ledger").status_code == 400
    assert at.worlds["ledger"].in_doubt() == 1
    answer = operator.resolve("bookings.3.1", "abort@ledger", number="3")
    assert "is aborted at ledger, by hand." in operator.get(answer.location)
    assert at.worlds["ledger"].in_doubt() == 0
    audit = at.log.audit(TransactionId("bookings", 3, 1))[-2:]
    assert [one.who for one in audit] == ["Ada at the console"] * 2


def test_what_nobody_knows_is_not_there(viewer, at):
    """404, and the page says so; not before everybody has been asked."""
    page = viewer.get("/transactions/orders.99.1")
    assert TEXTS["not every participant"] in page
    at.up("notifier")
    page = text_of(viewer.client.get("/transactions/orders.99.1"), 404)
    assert f'<p class="sentence warning">{TEXTS["nobody knows"]}' in page
    assert TEXTS["needs nobody"] not in page
    assert TEXTS["by itself"] not in page


def test_a_record_that_cannot_be_trusted_is_named(viewer, at, monkeypatch):
    """The log refuses it, and the page says which one."""
    why = f"record {STUCK}: does not match its checksum"
    refuse = raising(DecisionLogError(why, transaction_id=STUCK))
    monkeypatch.setattr(type(at.log), "read", refuse)
    assert why in text_of(viewer.client.get(f"/transactions/{STUCK}"), 503)


def test_every_configured_link_has_an_address_to_begin_at(viewer):
    """With what to look at there; a transaction's own link begins at its host."""
    page = viewer.get("/")
    assert 'href="http://127.0.0.1:9/"' in page
    assert TEXTS["spans"] in page


def test_an_address_of_one_application_has_a_page(at, mailer):
    """Its key has a slash; so do the pages of what its outbox was refused."""
    at.observed["sales/mailer"] = at.observed.pop("mailer")
    visitor = Visitor(console_of(at).test_client())
    visitor.log_in(OPERATOR, "Ada")
    assert "sales/mailer" in visitor.get("/participants/sales/mailer")
    page = visitor.get("/refused")
    links = set(re.findall(r'href="(/refused/sales/mailer/[^"]+)"', page))
    assert len(links) == 2
    links |= set(re.findall(r'href="(/actions/outbox-again-all[^"]+)"', page))
    assert len(links) == 3
    for link in links:
        assert "sales/mailer" in visitor.get(link)


def test_an_abort_is_neither_well_nor_a_fault(viewer, at):
    """Its page is in no colour, and what can be typed stands there as code."""
    at.up("notifier")
    record = at.begin(9)
    at.log.abort(record.id, who="ada", why="run `job.py` again")
    at.worlds["notifier"].abort(str(record.id))
    at.finish(record.id)
    page = viewer.get(f"/transactions/{record.id}")
    assert '<p class="sentence ">' in page
    assert "sentence well" not in page


def test_without_links_no_table_has_a_column_of_traces(at, monkeypatch):
    """Nothing could be in it."""
    pages = ("/", "/participants/ledger", "/incidents")
    with_links = visitor(console_of(at), VIEWER)
    assert '<th scope="col">Trace</th>' in with_links.get("/")
    monkeypatch.setattr("support.console.LINKS", {})
    without = visitor(console_of(at), VIEWER)
    for page in pages:
        assert "Trace</th>" not in without.get(page)
        assert 'data-head="Trace"' not in without.get(page)
