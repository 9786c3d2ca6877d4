"""The console in a real browser, as a person uses it: `make browser` gets one.

What the pages looked like is kept in build/console/*.png.
"""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from support.console import (
    DONE,
    MAILED,
    OPERATOR,
    QUARANTINED,
    STUCK,
    VIEWER,
    mailer_of,
    signed_by_hand,
    state_of,
)
from support.spark import serving
from support.waiting import AT_LAST, until
from support.watch import fresh

from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState

CHROMIUM = shutil.which("chromium")
SHOTS = Path(__file__).parents[2] / "build" / "console"
EVIL = "<script>document.title='x'</script><img src=x onerror=alert(1)>\"'"
LONGEST = f"{'a' * 40}.3.1"
NARROW, BROAD = {"width": 390, "height": 800}, {"width": 1200, "height": 900}

pytestmark = [
    pytest.mark.browser,
    pytest.mark.ci,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: make browser"),
]

Open = Callable[..., Any]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    """Not for longer: it keeps an event loop of its own running."""
    sync_api = pytest.importorskip("playwright.sync_api")
    with sync_api.sync_playwright() as playwright:
        browser = playwright.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox"]
        )
        yield browser
        browser.close()


@pytest.fixture
def url(app) -> Iterator[str]:
    with serving(app) as served:
        yield served


@pytest.fixture
def opened(chromium, url) -> Iterator[Open]:
    """Open a page in a context of its own; nothing on it may go wrong unheard."""
    contexts, wrong = [], []

    def open_page(token: str | None = OPERATOR, **options: Any) -> Any:
        context = chromium.new_context(**{"viewport": BROAD, **options})
        context.set_default_timeout(AT_LAST * 1_000)
        contexts.append(context)
        page = context.new_page()
        page.on("pageerror", lambda error: wrong.append(str(error)))
        page.on("dialog", lambda dialog: wrong.append(dialog.message))
        page.on("console", lambda said: _note(said, wrong))
        page.goto(url)
        if token:
            log_in(page, token, "Ada")
            page.locator("#headline").wait_for()
        return page

    yield open_page
    for context in contexts:
        context.close()
    assert wrong == []


def log_in(page: Any, token: str, name: str = "") -> None:
    page.fill("#token", token)
    page.fill("#name", name)
    page.get_by_role("button", name="Log in").click()


def _note(said: Any, wrong: list[str]) -> None:
    refused = re.search(r"the server responded with a status of (4|503)", said.text)
    if said.type in {"error", "warning"} and not refused:
        wrong.append(said.text)


def shoot(page: Any, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    page.screenshot(path=SHOTS / f"{name}.png", full_page=True)


def reason_of(page: Any, button: str) -> Any:
    """Return where the reason is typed for what a button does."""
    way_out = page.locator("article", has=page.get_by_role("button", name=button))
    return way_out.get_by_label("Reason")


def sees(page: Any, text: str) -> None:
    page.get_by_text(text).first.wait_for()


def assert_there(found: Any, times: int = 1) -> None:
    """It is there so many times, perhaps a little later: pages still come in."""
    until(found.count, lambda count: count == times)


def test_a_stuck_transaction_is_found_understood_and_resolved(opened, at):
    """From the list to *all is well*, without a command line."""
    page = opened()
    sees(page, "2 transactions need you")
    sees(page, "for 7 min not acknowledged by notifier")
    page.get_by_role("link", name=STUCK).click()
    sees(page, "It is safe to deliver the decision again.")
    drawing = page.locator("svg.waterfall")
    assert_there(drawing.locator("rect.seg.waiting"))
    assert_there(drawing.locator("rect.seg.still"), 2)
    assert_there(drawing.locator(".mark.now"))
    at.up("notifier")
    reason_of(page, "Deliver commit again").fill("the notifier is back")
    page.get_by_role("button", name="Deliver commit again").click()
    sees(page, "Deliver commit again: orders.8.1?")
    sees(page, "tells notifier to commit again")
    assert state_of(at, STUCK) is TransactionState.COMMITTING
    page.get_by_role("button", name="Deliver commit again").click()
    sees(page, "is committed; every participant has acknowledged.")
    sees(page, "every participant has acknowledged. It wrote 3 rows")
    assert state_of(at, STUCK) is TransactionState.COMMITTED
    page.get_by_text("Transactions", exact=True).click()
    sees(page, "1 transaction needs you")


def test_a_form_says_that_it_works_and_is_sent_once(opened, at, url):
    """However long participants take; a forced one is told by its colour before."""
    page = opened()
    page.goto(f"{url}/transactions/{STUCK}")
    safe, forced = (page.locator(f".option.{kind} button") for kind in KINDS)
    colours = [one.evaluate(COLOUR) for one in (safe.first, forced.first)]
    assert colours[0] != colours[1]
    page.evaluate(HOLD)  # nothing is read of a page that is being left
    reason_of(page, "Deliver commit again …").fill("it is up again")
    button = page.get_by_role("button", name=re.compile("Deliver commit again"))
    for _ in range(2):
        button.click()
        sees(page, "Deliver commit again: working")
    assert page.evaluate("window.sent") == [True, False]


HOLD = """() => {
  window.sent = [];
  document.addEventListener("submit", (event) => {
    window.sent.push(!event.defaultPrevented);
    event.preventDefault();
  });
}"""
KINDS = ("safe", "forced")
COLOUR = "(button) => getComputedStyle(button).backgroundColor"


def test_a_forced_way_out_asks_for_the_number(opened, at):
    """Its cost is repeated; without the number the browser does not even send it."""
    page = opened()
    page.goto(page.url + f"transactions/{QUARANTINED}")
    form = page.locator("article", has_text="mixed: some have")
    form.get_by_label("Reason").fill("ledger was cleared by hand")
    form.get_by_role("button").click()
    sees(page, "This is not safe, and cannot be taken back.")
    sees(page, "3 rows of the batch are not committed at ledger")
    shoot(page, "confirm")
    page.get_by_role("button", name="Close it as mixed").click()
    assert page.url.endswith("/confirm")
    page.get_by_label("Type the batch number").fill("3")
    page.get_by_role("button", name="Close it as mixed").click()
    sees(page, "is concluded")
    assert state_of(at, QUARANTINED) is TransactionState.CONCLUDED


def test_a_refused_request_is_found_and_dropped(opened, at):
    """From the first page to the record of it; its body runs nothing."""
    with mailer_of(at, EVIL, "x" * 3_000) as mailer:
        page = opened()
        page.get_by_role("link", name="2 refused requests").click()
        sees(page, "notifier gave no list: nothing listens")
        check(page, BROAD, "refused")
        page.get_by_role("link", name=MAILED).click()
        sees(page, "alert(1)")
        check(page, BROAD, "refused-request")
        page.set_viewport_size(NARROW)
        check(page, NARROW, "refused-request-narrow")
        page.set_viewport_size(BROAD)
        reason_of(page, "Drop …").fill("the partner has it by phone")
        page.get_by_role("button", name="Drop …").click()
        sees(page, "cannot be taken back.")
        check(page, BROAD, "refused-confirm")
        page.get_by_role("button", name="Drop").click()
        assert page.url.endswith("/confirm")
        page.get_by_label("Type the row's number").fill("0")
        page.get_by_role("button", name="Drop").click()
        sees(page, f"request {MAILED} at mailer is dropped")
        assert_there(page.get_by_role("link", name=MAILED), 0)
        page.set_viewport_size(NARROW)
        check(page, NARROW, "refused-narrow")
        why = ("Ada at the console", "the partner has it by phone")
        assert signed_by_hand(mailer) == [(MAILED, "drop", *why)]


def test_a_form_on_another_page_is_refused(opened, url, at):
    """The cookie stays at home, and the browser says where the form is from."""
    page = opened()
    page.goto("about:blank")
    page.set_content(
        f'<form method="post" action="{url}/actions/resolve/do"><input name="commit" '
        f'value="yes"><input name="transaction" value="{STUCK}">'
        "<button>Win a prize</button></form>"
    )
    page.get_by_role("button").click()
    sees(page, "did not come from a page of this console")
    assert state_of(at, STUCK) is TransactionState.COMMITTING


def test_what_persons_type_is_text(opened, at):
    """A script in the name, the reason, an error: read, and not run."""
    at.log.postpone(TransactionId.parse(STUCK), "notifier", EVIL, at.time.now())
    page = opened(token=None)
    log_in(page, OPERATOR, EVIL)
    sees(page, f"{EVIL}, operator")
    page.get_by_role("link", name=STUCK).click()
    sees(page, EVIL)
    reason_of(page, "Deliver commit again").fill(EVIL)
    page.get_by_role("button", name="Deliver commit again").click()
    assert_there(page.locator("dd", has_text=EVIL), 3)
    page.get_by_role("button", name="Deliver commit again").click()
    page.locator("#audit").wait_for()
    assert_there(page.locator("#audit td", has_text=EVIL))
    assert page.title().startswith(STUCK)


def test_the_keyboard_is_enough(opened, at):
    """Log in, skip to the content, go to what is stuck, resolve it; focus is seen."""
    page = opened(token=None)
    keys = page.keyboard
    page.locator("#token:focus").wait_for()
    keys.type(OPERATOR)
    keys.press("Enter")
    page.locator("#headline").wait_for()
    page.wait_for_load_state()  # without its style it has no place, and no focus
    keys.press("Tab")
    assert page.locator(".skip:focus").bounding_box()["y"] >= 0
    keys.press("Enter")
    assert_there(page.locator("#content:focus"))
    seen = tab_to(page, f'a[href="/transactions/{STUCK}"]')
    assert all(outline != "none" for outline in seen)
    keys.press("Enter")
    sees(page, "stuck:")
    tab_to(page, 'input[name="reason"]')
    keys.type("by keyboard")
    keys.press("Enter")
    sees(page, "Deliver commit again: orders.8.1?")
    tab_to(page, "main button")
    keys.press("Enter")
    sees(page, "is committing; not acknowledged: notifier")


def tab_to(page: Any, selector: str) -> list[str]:
    """Press Tab until something has the focus; return how each stop was outlined."""
    outlines = []
    for _ in range(60):
        page.keyboard.press("Tab")
        outlines.append(
            page.evaluate("getComputedStyle(document.activeElement).outlineStyle")
        )
        if page.locator(f"{selector}:focus").count():
            return outlines
    raise AssertionError(f"{selector} was never reached")


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [BROAD, NARROW], ids=["broad", "narrow"])
def test_every_page_is_readable(opened, at, scheme, size, url):
    """Contrast of all text is 4.5 or more, and nothing is wider than the window.

    In a table neither, even closed ones, of an application with the longest name.
    """
    many = at.begin(9).id
    for number in range(20):
        at.worlds["ledger"].prepare(str(many), fresh(2, f"{number}.{number}"))
    at.prepare("bookings.3.1", "ledger")
    at.prepare(LONGEST, "ledger")
    at.time.advance(400)
    page = opened(token=None, color_scheme=scheme, viewport=size)
    name = f"{scheme}-{size['width']}"
    check(page, size, f"login-{name}")
    log_in(page, OPERATOR)
    sees(page, "Participants were asked")
    check(page, size, f"list-{name}")
    lists = ("search?since=x", "search?participant=ledger")
    for path in (*lists, "applications/orders", "participants/ledger"):
        page.goto(f"{url}/{path}")
        check(page, size, f"{path.replace('/', '-')}-{name}")
    unknown = ("bookings.3.1", LONGEST, "nobody.1.1")
    for id_ in (STUCK, QUARANTINED, DONE, many, *unknown):
        page.goto(f"{url}/transactions/{id_}")
        check(page, size, f"{id_}-{name}")


def check(page: Any, size: dict[str, int], name: str) -> None:
    page.wait_for_load_state()
    shoot(page, name)
    assert page.evaluate("document.documentElement.scrollWidth") <= size["width"]
    assert page.evaluate(HIDDEN) == []
    assert page.evaluate(FAINT) == []
    assert page.evaluate(CUT) == []
    assert page.evaluate(ROWS) == 1


ROWS = """() => new Set([...document.querySelectorAll('nav > *')].map(item => {
  const {top, bottom} = item.getBoundingClientRect();
  return Math.round((top + bottom) / 20);
})).size"""
"""How many rows the links at the head of a page take, in a telephone, too."""

HIDDEN = """() => {
  const closed = [...document.querySelectorAll("details:not([open])")];
  closed.forEach((e) => { e.open = true; });
  const tables = [...document.querySelectorAll(".wide")]
    .filter((e) => e.scrollWidth > e.clientWidth);
  const names = tables.map((e) => e.querySelector("caption").textContent);
  closed.forEach((e) => { e.open = false; });
  return names;
}"""
"""Tables of which a part is seen only by scrolling sideways."""

CUT = """() => [...document.querySelectorAll("svg text")].filter((text) => {
  const [t, s] = [text, text.ownerSVGElement].map((e) => e.getBoundingClientRect());
  return t.left < s.left - 1 || t.right > s.right + 1;
}).map((text) => text.textContent)"""
"""Labels that go beyond their drawing."""

FAINT = """() => {
  const parse = (c) => (c.match(/[\\d.]+/g) || []).map(Number);
  const light = ([r, g, b]) => {
    const [x, y, z] = [r, g, b].map((v) => {
      v /= 255;
      return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * x + 0.7152 * y + 0.0722 * z;
  };
  const ground = (e) => {
    for (; e; e = e.parentElement) {
      const c = parse(getComputedStyle(e).backgroundColor);
      if (c.length === 3 || c[3] > 0) return c;
    }
    return [255, 255, 255];
  };
  const found = [];
  for (const e of document.querySelectorAll("body *")) {
    const own = [...e.childNodes].some((n) => n.nodeType === 3 && n.data.trim());
    if (!own || e.localName === "title") continue;
    const style = getComputedStyle(e);
    const ink = parse(e instanceof SVGElement ? style.fill : style.color);
    const [a, b] = [light(ink), light(ground(e))].sort((x, y) => y - x);
    if ((a + 0.05) / (b + 0.05) < 4.5) found.push(e.outerHTML.slice(0, 200));
  }
  return found;
}"""


def test_a_refresh_leaves_alone_what_is_typed_and_where_one_is(opened, at, url):
    """What has changed is shown; text, focus, scroll and opened parts stay."""
    page = opened()
    page.clock.install()
    page.goto(f"{url}/transactions/{QUARANTINED}")
    page.locator("#order-of summary").click()
    reason = page.locator("article", has_text="Mixed: some").get_by_label("Reason")
    reason.fill("half a reas")
    place = page.evaluate("scrollY")
    at.up("notifier")  # which changes what closing it costs
    page.clock.fast_forward(6_000)
    page.locator("#participants", has_text="prepared").wait_for()
    assert reason.input_value() == "half a reas"
    assert_there(page.locator('input[name="reason"]:focus'))
    assert_there(page.locator("#order-of[open]"))
    assert page.evaluate("scrollY") == place


def test_a_refresh_keeps_the_focus_of_a_link(opened, at):
    """The list has changed around it."""
    page = opened()
    page.clock.install()
    page.reload()
    sees(page, "Participants were asked")
    page.get_by_role("link", name=DONE).focus()
    page.clock.fast_forward(6_000)
    at.begin(9)
    page.clock.fast_forward(6_000)
    page.get_by_role("link", name="orders.9.1").wait_for()
    assert_there(page.locator(f'a[href="/transactions/{DONE}"]:focus'))


def test_nobody_is_asked_while_nobody_looks(opened):
    """A page that is hidden asks for nothing, until it is seen again."""
    page, asked = opened(), []
    page.clock.install()
    page.add_init_script(
        "window.away = true;"
        "Object.defineProperty(document, 'hidden', {get: () => window.away})"
    )
    page.reload()
    page.on("request", lambda request: asked.append(request.resource_type))
    page.clock.fast_forward(60_000)
    page.evaluate("document.body.offsetHeight")
    assert "fetch" not in asked
    page.evaluate(
        "window.away = false; document.dispatchEvent(new Event('visibilitychange'))"
    )
    until(lambda: page.evaluate("1") and "fetch" in asked)


def test_a_page_that_is_not_refreshed_says_why_where_it_is_seen(opened, at):
    """Without its log the console answers, and what it says is not "no answer"."""
    page = opened()
    page.clock.install()
    page.goto(f"{page.url}transactions/{STUCK}")
    sees(page, "Refreshed every 5 s while you look.")
    log = Path(str(at.base.url.database))
    log.rename(log.with_suffix(".away"))
    page.clock.fast_forward(6_000)
    sees(page, "Not refreshed: the decision log cannot be read")
    said = page.locator("#fresh").bounding_box()
    assert said["y"] + said["height"] <= BROAD["height"] + 1
    log.with_suffix(".away").rename(log)
    page.clock.fast_forward(6_000)
    sees(page, "Refreshed every 5 s while you look.")
    assert_there(page.locator("#fresh.old"), 0)


def test_an_end_of_the_session_is_seen(opened, url):
    """A refresh then leads to where one logs in, and not to a page without news."""
    page = opened()
    page.clock.install()
    page.goto(f"{url}/transactions/{STUCK}")
    page.context.clear_cookies()
    page.clock.fast_forward(6_000)
    page.locator("#token").wait_for()
    assert page.url == f"{url}/login?next=/transactions/{STUCK}"
    log_in(page, VIEWER)
    sees(page, "Log in as operator to do this.")
    assert page.url == f"{url}/transactions/{STUCK}"


def test_without_a_script_there_is_a_link(opened, at):
    """Everything but the refreshing by itself."""
    page = opened(java_script_enabled=False)
    at.begin(9)
    news = page.get_by_role("link", name="orders.9.1")
    assert news.count() == 0
    page.get_by_role("link", name="Refresh").click()
    news.wait_for()
    assert news.count() == 1
