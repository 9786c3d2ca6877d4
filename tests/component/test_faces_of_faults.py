"""Each fault is told by all faces at once: what it is, whose, and what is safe."""

from __future__ import annotations

import contextlib
import dataclasses
import html
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from typing import Any

import psycopg
import pytest
from flask import Flask
from support.branches import prepare_at, records
from support.cli import Operator
from support.console import VIEWER, console_of, visitor
from support.kinds import outbox_to, sqlite_url, tagged_rows
from support.participant import World, database_of, end, keep, outgoing_of, turns_of
from support.relay import Topic, TopicRelay, publisher, relay_world
from support.spark import serving
from support.texts import texts
from support.waiting import AT_LAST, AT_ONCE, PATIENT, until
from support.watch import Running, Site, site

from tracing_2pc.core.errors import ParticipantUnavailableError
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.inspection.diagnosis import LATE
from tracing_2pc.inspection.jobs import MISSED, UNSEEN
from tracing_2pc.inspection.kinds import KINDS
from tracing_2pc.operations.recover import deliver

READ_ONLY = texts("contract")["read-only"]
T = "orders.7.1"
"""The transaction that a fault strikes, where it strikes one."""

DRIVER = "its driver, process 7 on host-3, was last seen"
NO_ROOM = "has no room left on its disk: make room there"


@dataclasses.dataclass(frozen=True)
class Fault:
    """What makes it, and what each face has to say of it."""

    make: Callable[[Operator, Any], AbstractContextManager[object]]
    says: tuple[str, ...]  # what it is, and whose
    safe: str  # what to do
    alert: str
    # The same of the transaction that it strikes; empty where it strikes none.
    of_transaction: tuple[str, ...] = ()
    never: tuple[str, ...] = ()  # who is not to blame, and what is not to be done
    logs: str = ""  # by the service that it strikes; a job's line is of real Spark


def report(at: Site, run: str = "run", seen: float = 0.0) -> None:
    """Let the driver of orders report so many seconds ago."""
    with at.time.earlier(seen):
        at.log.report_presence("orders", run, host="host-3", process=7)


@contextlib.contextmanager
def killed(operator: Operator, _: Any) -> Iterator[None]:
    report(operator.at, seen=2 * MISSED)
    yield


@contextlib.contextmanager
def killed_in_a_batch(operator: Operator, _: Any) -> Iterator[None]:
    with operator.at.time.earlier(2 * MISSED):
        operator.at.prepare(operator.at.begin(7).id, "ledger")
        report(operator.at)
    yield


@contextlib.contextmanager
def killed_after_the_decision(operator: Operator, _: Any) -> Iterator[None]:
    with operator.at.time.earlier(2 * MISSED):
        operator.at.committing(7)
        report(operator.at)
    yield


def failed(reason: str) -> Callable[..., AbstractContextManager[object]]:
    @contextlib.contextmanager
    def make(operator: Operator, _: Any) -> Iterator[None]:
        report(operator.at)
        operator.at.aborted(7)
        operator.at.log.report_end("orders", "run", reason)
        yield

    return make


def add(operator: Operator, world: World, name: str, url: str) -> None:
    """Let a participant be there under this name, for each face."""
    world.name = name
    operator.at.worlds[name] = world
    operator.at.observed[name] = HttpParticipant(name, url, None, PATIENT)
    operator.reach()


@contextlib.contextmanager
def on_postgresql(operator: Operator, request: Any) -> Iterator[str]:
    """Have ledger's rows in PostgreSQL; yield the URL of its database."""
    url = request.getfixturevalue("postgres_database")
    world = tagged_rows(url)
    with serving(world.app) as served:
        add(operator, world, "ledger", served)
        yield url
    world.resource.close()


@contextlib.contextmanager
def read_only(operator: Operator, request: Any) -> Iterator[None]:
    with on_postgresql(operator, request) as url:
        record = operator.at.begin(7)
        operator.at.prepare(record.id, "notifier")
        report(operator.at)
        with writes_forbidden(url):
            database_of(operator.at.worlds["ledger"]).engine.dispose()
            yield


@contextlib.contextmanager
def writes_forbidden(url: str) -> Iterator[None]:
    with psycopg.connect(url, autocommit=True) as dba:
        alter = f"ALTER DATABASE {dba.info.dbname}"
        dba.execute(f"{alter} SET default_transaction_read_only = on")
        yield
        dba.execute(f"{alter} RESET default_transaction_read_only")


FULL = """
CREATE FUNCTION is_full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
END $$;
CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON orders_tpc_branch
  FOR EACH ROW EXECUTE FUNCTION is_full()
"""
"""Stands for a full disk: each write of the journal fails by PostgreSQL's own error."""


@contextlib.contextmanager
def full_at_prepare(operator: Operator, request: Any) -> Iterator[None]:
    """The job is told, asks for a minute, and ends by what it was told."""
    with on_postgresql(operator, request) as url:
        at, ledger = operator.at, operator.at.observed["ledger"]
        at.worlds["ledger"].prepare("orders.6.1")  # makes the tables
        at.worlds["ledger"].abort("orders.6.1")
        record = at.begin(7)
        with psycopg.connect(url, autocommit=True) as dba:
            dba.execute(FULL)
        with pytest.raises(ParticipantUnavailableError) as told:
            prepare_at(ledger, transaction=record.id)
        report(at)
        at.log.decide(record.id, Decision.ABORT)
        at.finish(record.id)
        at.log.report_end("orders", "run", f"batch 7: {told.value}")
        yield


@contextlib.contextmanager
def full_at_commit(operator: Operator, request: Any) -> Iterator[None]:
    with on_postgresql(operator, request) as url:
        at = operator.at
        with at.time.earlier(2 * LATE):
            id_ = at.committing(7)
        report(at)
        with psycopg.connect(url, autocommit=True) as dba:
            dba.execute(FULL)
        record = at.log.read(id_)
        assert record is not None
        deliver(at.log, Settings.load(), record)
        yield


@contextlib.contextmanager
def log_read_only(operator: Operator, request: Any) -> Iterator[None]:
    """No driver can report: it is not known whether it is gone."""
    url = request.getfixturevalue("postgres_database")
    folder = request.getfixturevalue("tmp_path") / "other"
    with site(folder, log=url, time=Running()) as at:
        operator.at = at
        request.getfixturevalue("monkeypatch").setenv("TPC_LOG", url)
        operator.reach()
        at.log.initialise("orders", 5)
        with at.time.earlier(2 * UNSEEN):
            at.prepare(at.begin(7).id, "ledger")
            report(at)
        with writes_forbidden(url):
            at.base.engine.dispose()
            yield


@contextlib.contextmanager
def broker_down(operator: Operator, request: Any) -> Iterator[None]:
    """Nothing waits to be published, and a batch is being written."""
    request.getfixturevalue("monkeypatch").setattr(
        "tracing_2pc.outbox.publisher.IDLE_LOOK", 0.0
    )
    topic = Topic()
    totals = relay_world(sqlite_url(operator.at.folder, "totals"), topic)
    relay = TopicRelay(topic)
    relay.address = "kafka-1:9092"  # type: ignore[attr-defined]
    sender = publisher(totals, relay, PATIENT)
    topic.is_readable = False
    sender.turn()
    sender.turn()  # one look may fail
    with serving(totals.app) as served:
        add(operator, totals, "totals", served)
        names = ("ledger", "totals")
        about = {"run": "run", "query": None, "carrier": {}, "timeout": 900.0}
        operator.at.log.begin("orders", 7, Opening(participants=names, **about))
        operator.at.prepare(T, "ledger")
        yield
    end(totals.resource)


def partner_fails(answer: Callable[[], Any]) -> Callable[..., Any]:
    """Its partner takes nothing of what was committed ten minutes ago."""

    @contextlib.contextmanager
    def make(operator: Operator, _: Any) -> Iterator[None]:
        over, partner, at = threading.Event(), Flask("partner"), operator.at
        partner.post("/orders")(lambda: answer() or (over.wait(AT_LAST) and ("", 200)))
        with serving(partner) as at_partner, contextlib.ExitStack() as stack:
            stack.callback(over.set)
            timeout = PATIENT if answer() else AT_ONCE
            url = sqlite_url(at.folder, "mailer")
            resource = outbox_to(f"{at_partner}/orders", url, timeout=timeout)
            resource.start = lambda: None  # type: ignore[method-assign]
            mailer = World(resource, int)
            mailer.name = "mailer"
            keep(mailer, T, records(text=["a", "b"]))
            with at.time.earlier(500):
                at.committed(7, "mailer")
            turns_of(mailer).turn()
            with database_of(resource).setup() as connection:
                branch = outgoing_of(mailer).queue.branch
                old = branch.update().values(committed=time.time() - 600)
                connection.execute(old)
            served = stack.enter_context(serving(mailer.app))
            add(operator, mailer, "mailer", served)
            yield
        end(resource)

    return make


@contextlib.contextmanager
def swapped(operator: Operator, _: Any) -> Iterator[None]:
    at = operator.at
    at.committing(7)
    urls = {name: str(getattr(p, "url", "")) for name, p in at.observed.items()}
    for name, other in (("ledger", "notifier"), ("notifier", "ledger")):
        at.observed[name] = HttpParticipant(name, urls[other], None, PATIENT)
    report(at)
    operator.reach()
    yield


FAULTS = {
    "a job is killed while it waits for input": Fault(
        killed, (f"orders: {DRIVER}",), "start the job", "TpcJobDown"
    ),
    "a job is killed in a batch": Fault(
        killed_in_a_batch,
        (f"orders: {DRIVER}",),
        "start the job",
        "TpcJobDown",
        (DRIVER, "no driver is at it"),
        ("its driver decides",),
    ),
    "a job is killed after the decision": Fault(
        killed_after_the_decision,
        (f"orders: {DRIVER}",),
        "start the job",
        "TpcJobDown",
        (f"nobody delivers it: {DRIVER}",),
        ("--give-up", "commit again"),
    ),
    "a table was altered": Fault(
        failed("batch 7: ledger votes abort: the table has no column region"),
        ("orders: its job failed at", "ledger votes abort: the table has no column"),
        "do what that says, then start the job",
        "TpcJobDown",
        ("its job failed at", "ledger votes abort: the table has no column"),
    ),
    "a job fails by its own code": Fault(
        failed("batch 7: KeyError: 'amount'"),
        ("orders: its job failed at", "KeyError: 'amount'"),
        "do what that says, then start the job",
        "TpcJobDown",
        ("its job failed at", "KeyError: 'amount'"),
        ("start its database",),
    ),
    "a broker does not answer, and nothing waits": Fault(
        broker_down,
        ("nothing is published: the broker at kafka-1:9092", "no answer"),
        "start it, or correct its address",
        "TpcPositionUnreadable",
        ("totals: position unreadable: nothing is published", "kafka-1:9092"),
        logs="the broker at kafka-1:9092 does not say what is published",
    ),
    "a partner answers 500": Fault(
        partner_fails(lambda: ("", 500)),
        ("orders waits for its partner", "answered 500"),
        "start the partner, or mend its address or token",
        "TpcOutboxOld",
        ("orders waits for its partner", "answered 500"),
        logs="not confirmed, sent until it is",
    ),
    "a partner is slow": Fault(
        partner_fails(lambda: None),
        ("orders waits for its partner", "no whole answer from http://127.0.0.1"),
        "start the partner, or mend its address or token",
        "TpcOutboxOld",
        ("orders waits for its partner", "no whole answer from http://127.0.0.1"),
        logs="not confirmed, sent until it is",
    ),
    "ledger's database is read-only": Fault(
        read_only,
        ("ledger", READ_ONLY),
        "Promote it, or name the primary",
        "TpcParticipantUnreadable",
        ("it waits for ledger's vote", READ_ONLY),
        ("start its database", "set token"),
        "not ready: NotNowError: read-only",
    ),
    "ledger's disk is full while a batch is written": Fault(
        full_at_prepare,
        ("orders: its job failed at", "'ledger'", NO_ROOM),
        "make room there",
        "TpcJobDown",
        ("its job failed at", NO_ROOM),
        ("start its database",),
        "DiskFull: could not extend file",
    ),
    "ledger's disk is full after a decision": Fault(
        full_at_commit,
        ("orders.7.1", "ledger", NO_ROOM),
        "make room there",
        "TpcDecisionPending",
        ("orders is held back by ledger", NO_ROOM, "ledger to commit again"),
        ("start the job", "start its database"),
        "DiskFull: could not extend file",
    ),
    "the log is read-only": Fault(
        log_read_only,
        (f"log: its database is {READ_ONLY}",),
        "Promote it, or name the primary",
        "TpcDecisionLogFailing",
        (READ_ONLY,),
        (DRIVER, "no driver is at it"),
    ),
    "two services are swapped": Fault(
        swapped,
        ("the address of 'ledger' leads to",),
        "mend",
        "TpcParticipantUnreadable",
        ("is participant 'notifier' of application orders, not 'ledger'",),
        ("start its database",),
    ),
}
"""What may happen at night, and what each face then has to say."""


def ask(operator: Operator, transaction: str) -> dict[str, tuple[int, str]]:
    """Return what each face says: its exit code, and its text in one line."""
    commands = {"check": ("check",), "ls": ("ls",), "watch": ("watch", "--once")}
    if transaction:
        commands["explain"] = ("explain", transaction)
    said = {name: operator.says(*command)[:2] for name, command in commands.items()}
    person = visitor(console_of(operator.at), VIEWER)
    page = until(lambda: "were asked" in (text := person.get("/")) and text)
    said["console"] = (1, page)
    if transaction:
        said["its page"] = (1, person.get(f"/transactions/{transaction}"))
    return {name: (code, plain(text)) for name, (code, text) in said.items()}


def plain(text: str) -> str:
    """Return a page, or what a command prints, without what only sets it."""
    unmarked = html.unescape(re.sub(r"<[^>]*>", "", text))
    return " ".join(unmarked.replace("`", "").split())


@pytest.mark.parametrize("name", FAULTS)
def test_all_faces_tell_a_fault(
    operator: Operator,
    request: pytest.FixtureRequest,
    caplog: pytest.LogCaptureFixture,
    name: str,
) -> None:
    """What it is and whose, what is safe, and by which alert it is told at night."""
    fault = FAULTS[name]
    request.getfixturevalue("monkeypatch").setenv("TPC_PAUSE", "100ms")
    operator.at.time.time = time.time()
    with fault.make(operator, request):
        said = ask(operator, T if fault.of_transaction else "")
        _, (checked,) = operator.json("check")
    of_one = ("explain", "its page")
    for face, (code, text) in said.items():
        lacks = [t for t in fault.never if t in text]
        says = fault.of_transaction if face in of_one else fault.says
        assert (face, code) == (face, 1)
        assert (face, [t for t in says if t not in text]) == (face, [])
        assert (face, lacks) == (face, [])
        assert "all is well" not in text.lower(), face
        assert fault.safe in text, face
    alerts = {str(kind): [alert.name for alert in kind.alerts] for kind in KINDS}
    raised = {alert for f in checked["findings"] for alert in alerts[f["kind"]]}
    assert fault.alert in raised
    assert fault.logs in caplog.text
