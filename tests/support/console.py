"""The console over a real log and two real participants, for a client or a browser."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import re
from collections.abc import Callable, Iterator

from flask import Flask
from flask.testing import FlaskClient
from werkzeug.test import TestResponse

from support.branches import records
from support.kinds import refusing_outbox, sqlite_url
from support.participant import World, end, select
from support.spark import serving
from support.waiting import PATIENT
from support.watch import SETTINGS, Site
from tracing_2pc.console.app import console
from tracing_2pc.console.state import ConsoleSources
from tracing_2pc.core.access import TokenGate
from tracing_2pc.core.model import TransactionId, TransactionRecord
from tracing_2pc.core.states import TransactionState
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.operations.recover import deliver
from tracing_2pc.protocol.recovery import RecoveryResult

VIEWER, OPERATOR, JOB, BOUND = (
    f"{role}-0123456789abcdef" for role in ("viewer", "operator", "job", "bound")
)
GATE = TokenGate(
    [f"viewer {VIEWER}", f"operator {OPERATOR}", f"job {JOB}", f"viewer {BOUND} sales"],
    "these tests",
)
LINKS = {"jaeger": "http://127.0.0.1:9/trace/{trace}"}
DONE, STUCK, QUARANTINED = "orders.7.1", "orders.8.1", "sales.3.1"
"""What the site of these tests has."""

MAILED = "orders.7.1.0.1.0"
"""The first request that `mailer_of`'s partner refused."""

EVIL = "<script>alert('x')</script>\"'>&<img src=x onerror=alert(1)>"

OURS = {"Sec-Fetch-Site": "same-origin"}
"""What a browser sends with a form of this console."""


def console_of(
    at: Site,
    pause: Callable[[float], object] = bool,
    environment: str | None = None,
    gate: TokenGate = GATE,
    inbox: str | None = None,
    participants: dict[str, str] | None = None,
) -> Flask:
    """Make a console that looks at a site, and delivers as `recover` does."""
    settings = dataclasses.replace(
        SETTINGS,
        links=LINKS,
        environment=environment,
        inbox=inbox,
        participants=participants or {},
    )

    def send(record: TransactionRecord) -> RecoveryResult:
        urls = {name: one.url for name, one in at.observed.items()}  # type: ignore[attr-defined]
        reached = dataclasses.replace(settings, participants=urls)
        return deliver(at.log, reached, record)

    sources = ConsoleSources(at.log, at.observed, settings, send, at.time, pause)
    return console(sources, gate)


@contextlib.contextmanager
def mailer_of(at: Site, *texts: str) -> Iterator[World]:
    """Serve an outbox beside a site's participants, with refused requests."""
    url = sqlite_url(at.folder, "mailer")
    world = refusing_outbox(url, records(text=list(texts)), "mailer")
    with serving(world.app) as served:
        world.app.config["SERVED"] = served
        at.observed["mailer"] = HttpParticipant("mailer", served, None, PATIENT)
        yield world
    end(world.resource)


def signed_by_hand(mailer: World) -> list[tuple[str, str, str, str]]:
    """Return what persons have done: key, action, who, why."""
    sql = "SELECT key, action, who, reason FROM outbox_tpc_by_hand ORDER BY number"
    return [(row[0], row[1], row[2], row[3]) for row in select(mailer.resource, sql)]


@dataclasses.dataclass
class Visitor:
    """A person with a client, and the session that its cookie names."""

    client: FlaskClient
    csrf: str = ""

    def get(self, path: str) -> str:
        return text_of(self.client.get(path))

    def post(self, path: str, **fields: str) -> TestResponse:
        fields = {"csrf": self.csrf, **fields}
        return self.client.post(path, data=fields, headers=OURS)

    def log_in(self, token: str, name: str = "") -> TestResponse:
        self.csrf = csrf_in(self.client.get("/login").get_data(as_text=True))
        answer = self.post("/login", token=token, name=name)
        if answer.status_code == 303:
            self.csrf = csrf_in(self.get("/"))
        return answer

    def begin(self, slug: str, **fields: str) -> dict[str, str]:
        """Take the first step of an action; return the fields of the second."""
        page = text_of(self.post(f"/actions/{slug}/confirm", **fields))
        return hidden_in(page.partition("<dl>")[2])

    def confirm(self, id_: str, option: str, reason: str = "because") -> TestResponse:
        """Take the first step to resolve a transaction."""
        fields = {**resolution(id_, option), "reason": reason}
        return self.post("/actions/resolve/confirm", **fields)

    def resolve(self, id_: str, option: str, **fields: str) -> TestResponse:
        """Take both steps, as a person does who reads nothing."""
        fields = {**resolution(id_, option), "reason": "because", **fields}
        fields |= self.begin("resolve", **fields)
        return self.post("/actions/resolve/do", **fields)


def hidden_in(page: str) -> dict[str, str]:
    """Return what the forms of a page send along, but their CSRF token."""
    named = re.findall(r'type="hidden" name="([\w-]+)" value="([^"]*)"', page)
    return {name: html.unescape(value) for name, value in named if name != "csrf"}


def resolution(id_: str, option: str) -> dict[str, str]:
    """Return the fields that resolve so: `commit`, `abort@ledger`, `mixed`."""
    word, _, name = option.partition("@")
    given = {"transaction": id_}
    if word == "give-up":
        return given | {word: name}
    if word in {"mixed", "hazard"}:
        return given | {"conclude": word}
    return given | {word: "yes"} | ({"at": name} if name else {})


def visitor(app: Flask, token: str) -> Visitor:
    """Return somebody who has logged in."""
    made = Visitor(app.test_client())
    made.log_in(token)
    return made


def text_of(answer: TestResponse, status: int = 200) -> str:
    """Return what an answer says that has a status."""
    text = answer.get_data(as_text=True)
    assert answer.status_code == status, text
    return text


def state_of(at: Site, id_: str) -> TransactionState:
    """Return the state that the log has on record."""
    record = at.log.read(TransactionId.parse(id_))
    assert record is not None
    return record.state


def csrf_in(page: str) -> str:
    """Return the CSRF token of a page's first form."""
    found = re.search(r'name="csrf" value="([^"]+)"', page)
    assert found, page
    return found[1]
