"""A site with something done, something stuck and something quarantined."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from flask import Flask
from support.console import EVIL, OPERATOR, VIEWER, Visitor, console_of, mailer_of
from support.participant import World
from support.watch import NAMES, Site, site

from tracing_2pc.console import state


@pytest.fixture
def at(tmp_path, monkeypatch) -> Iterator[Site]:
    """One committed, one decided whose notifier is down, one that was contradicted."""
    monkeypatch.setenv("TPC_TOKEN", "the-token-of-the-job")
    with site(tmp_path) as made:
        made.log.initialise("orders", 7)
        made.log.initialise("sales", 3)
        done = made.committing(7)
        made.time.advance(2)
        for name in NAMES:
            made.commit(done, name)
        made.log.finish(done)
        stuck = made.committing(8)
        made.commit(stuck, "ledger")
        made.log.postpone(stuck, "notifier", "nothing listens", made.time.now() + 5)
        sold = made.begin(3, application="sales").id
        made.prepare(sold)
        made.decide(sold)
        made.worlds["ledger"].resolve(str(sold), "abort")
        made.log.quarantine(sold, "ledger answered 409 aborted")
        made.time.advance(400)
        made.down("notifier")
        yield made


@pytest.fixture
def mailer(at) -> Iterator[World]:
    """An outbox beside the site's participants, with two refused requests."""
    with mailer_of(at, EVIL + "\x1b\u202e", "b" * 3_000) as world:
        yield world


@pytest.fixture
def app(at, monkeypatch) -> Flask:
    """A console that reads the log for each request."""
    for name in ("LOG_EVERY", "HOURS_EVERY", "VIEW_EVERY"):
        monkeypatch.setattr(state, name, 0.0)
    return console_of(at)


@pytest.fixture
def operator(app) -> Visitor:
    made = Visitor(app.test_client())
    assert made.log_in(OPERATOR, "Ada").status_code == 303
    return made


@pytest.fixture
def viewer(app) -> Visitor:
    made = Visitor(app.test_client())
    assert made.log_in(VIEWER).status_code == 303
    return made
