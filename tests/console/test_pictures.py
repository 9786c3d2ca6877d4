"""Pictures of the console for docs/console.md: what is seen of four states on call.

`make pictures` writes them there, by `TPC_PICTURES`; otherwise they are left in
build/console. What they show is made by real participants and the real console.
"""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from flask import Flask
from support.branches import records
from support.console import MAILED, console_of, mailer_of
from support.waiting import SOON
from support.watch import Site, site
from test_browser import NARROW, SHOTS, check, chromium, opened, sees, url

from tracing_2pc.console import state
from tracing_2pc.core.errors import ParticipantError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import Decision
from tracing_2pc.http.client import HttpParticipant

__all__ = ["chromium", "opened", "url"]

CHROMIUM = shutil.which("chromium")
FOLDER = Path(os.environ.get("TPC_PICTURES", SHOTS)).resolve()
SIZE = {"width": 1280, "height": 900}
LARGEST = 200_000

pytestmark = [
    pytest.mark.browser,
    pytest.mark.ci,
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium here: make browser"),
]


@pytest.fixture
def at(tmp_path, monkeypatch) -> Iterator[Site]:
    """A site whose log has a name that is no path of this machine."""
    monkeypatch.chdir(tmp_path)
    with site(tmp_path, log="sqlite:///decisions.db") as made:
        made.log.initialise("orders", 7)
        done = made.committing(7)
        made.time.advance(2)
        for name in ("ledger", "notifier"):
            made.commit(done, name)
        made.log.finish(done)
        made.time.advance(30)
        yield made


@pytest.fixture
def app(at, monkeypatch) -> Flask:
    """A console that reads the log for each request."""
    for name in ("LOG_EVERY", "HOURS_EVERY", "VIEW_EVERY"):
        monkeypatch.setattr(state, name, 0.0)
    return console_of(at, environment="production")


def stuck(at: Site, stack: ExitStack) -> tuple[str, str]:
    """The notifier's process is gone since the decision."""
    made = at.committing(8)
    at.time.advance(1)
    at.commit(made, "ledger")
    at.down("notifier")
    _try_to_commit(at, made)
    return f"transactions/{made}", "nothing listens"


def hanging(at: Site, stack: ExitStack) -> tuple[str, str]:
    """The notifier takes connections, and answers nothing."""
    made = at.committing(8)
    at.time.advance(1)
    at.commit(made, "ledger")
    silent = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
    address = f"http://127.0.0.1:{silent.getsockname()[1]}"
    at.observed["notifier"] = HttpParticipant("notifier", address, None, SOON)
    _try_to_commit(at, made)
    return f"transactions/{made}", "no answer to"


def _try_to_commit(at: Site, made: TransactionId) -> None:
    """Ask the notifier, as a driver does before it waits; and wait for long."""
    record = at.log.read(made)
    assert record is not None
    with pytest.raises(ParticipantError) as silence:
        at.observed["notifier"].commit(record)  # type: ignore[attr-defined]
    at.log.postpone(made, "notifier", str(silence.value), at.time.now() + 30)
    at.time.advance(400)


def refused(at: Site, stack: ExitStack) -> tuple[str, str]:
    """The partner of an outbox has refused one request."""
    stack.enter_context(mailer_of(at, "card 17 has been charged"))
    return f"refused/mailer/{MAILED}", "no such card"


def aborted(at: Site, stack: ExitStack) -> tuple[str, str]:
    """The notifier has refused a branch at prepare."""
    made = at.begin(8).id
    at.time.advance(1)
    at.prepare(made, "ledger")
    answer = at.worlds["notifier"].prepare(str(made), records(amount=["twelve"]))
    said = answer.get_json()["detail"]
    at.time.advance(1)
    why = f"at prepare: participant 'notifier': answered {answer.status_code}: {said}"
    at.log.decide(made, Decision.ABORT, (), "vote", why)
    for name in ("ledger", "notifier"):
        assert at.worlds[name].abort(str(made)).status_code == 200
        at.log.acknowledge(made, name)
        at.time.advance(0.5)
    at.log.finish(made)
    at.time.advance(60)
    return f"transactions/{made}", said


STATES: dict[str, Callable[[Site, ExitStack], tuple[str, str]]] = {
    made.__name__: made for made in (stuck, hanging, refused, aborted)
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", STATES)
def test_a_picture_of(opened, at, url, tmp_path, name, scheme):
    """Its page says what is wrong on the first screen, and no path of this machine."""
    with ExitStack() as stack:
        path, text = STATES[name](at, stack)
        page = opened(viewport=SIZE, color_scheme=scheme)
        page.goto(f"{url}/{path}")
        sees(page, text)
        assert str(tmp_path) not in page.content()
        if scheme == "light":
            FOLDER.mkdir(parents=True, exist_ok=True)
            picture = FOLDER / f"console-{name}.png"
            page.screenshot(path=picture)
            assert picture.stat().st_size < LARGEST
        check(page, SIZE, f"picture-{name}-{scheme}-1280")
        page.set_viewport_size(NARROW)
        check(page, NARROW, f"picture-{name}-{scheme}-390")
