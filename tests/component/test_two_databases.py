"""Two applications have a participant of one name, each in a database of its own."""

from __future__ import annotations

import contextlib
import dataclasses
import shutil
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.texts import texts

from tracing_2pc import ParticipantSink, Settings, write
from tracing_2pc.cli import main
from tracing_2pc.console.state import ConsoleSources
from tracing_2pc.core.errors import (
    AbortedError,
    ConfigurationError,
    ContractError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.log_reader import TransactionFilter
from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    JournalAt,
    Receipt,
    TransactionRecord,
)
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.core.states import Decision, Refusal, TransactionState
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.inspection import kinds
from tracing_2pc.inspection.listing import list_transactions
from tracing_2pc.inspection.survey import describe_all
from tracing_2pc.inspection.view import view_transaction
from tracing_2pc.operations.actions.resolve import RESOLVE
from tracing_2pc.operations.recover import recover
from tracing_2pc.operations.resolve import resolve_orphan
from tracing_2pc.operations.wiring import open_participants
from tracing_2pc.participant import TaggedRows
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.sinks import participant_sink
from tracing_2pc.sinks.base import write_branch
from tracing_2pc.sinks.job import Job
from tracing_2pc.store import open_log
from tracing_2pc.testing import served
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

TEXTS = texts("component")


class World:
    """A log, and databases `a` and `b`, each with a table `orders` behind a service."""

    def __init__(self, folder: Path, stack: contextlib.ExitStack) -> None:
        self.folder, self.stack = folder, stack
        self.urls = {name: self.serve(name) for name in "ab"}
        self.log = open_log(f"sqlite:///{folder}/log.db")
        stack.callback(self.log.close)

    def serve(self, name: str) -> str:
        """Serve a database at another address."""
        resource = TaggedRows(f"sqlite:///{self.folder}/{name}.db", table="orders")
        return self.stack.enter_context(served(resource, "orders"))

    def settings(self, participants: dict[str, str]) -> Settings:
        log = f"sqlite:///{self.folder}/log.db"
        return Settings.load(log=log, participants=participants, environ={})

    def coordinator(self, application: str, url: str, **other: Any) -> Coordinator:
        sink = ParticipantSink({"orders": url}, token=None)
        job = Job.of(sink, application, self.settings({}), **other)
        job.check()
        return job.coordinator(self.log, OpenTelemetryTracing(), lambda: False)

    def write(
        self, record: TransactionRecord, url: str, rows: int = 1
    ) -> tuple[Receipt, ...]:
        context = BranchContext(
            *(record.id, BranchId(0, 0), record.participants, record.carrier),
            journals=record.journals,
        )
        table = pa.RecordBatch.from_pydict({"id": [*range(rows)]})
        return write_branch(
            ParticipantSink({"orders": url}, token=None), context, [table]
        )

    def prepared(self, application: str, name: str) -> TransactionRecord:
        """Leave an attempt that its driver has prepared, and then was killed."""
        record = (
            self.coordinator(application, self.urls[name]).open(0, "r", None).record
        )
        self.write(record, self.urls[name])
        return record

    def states(self, name: str) -> list[tuple[str, str]]:
        """Return what a database holds."""
        text = "SELECT application, state FROM orders_tpc_branch ORDER BY tag"
        with contextlib.closing(sqlite3.connect(self.folder / f"{name}.db")) as base:
            return list(base.execute(text))


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    monkeypatch.setenv("TPC_TOKEN", "any")
    with contextlib.ExitStack() as stack:
        yield World(tmp_path, stack)


def test_an_abort_goes_to_the_database_on_record(world):
    """It is not acknowledged by the twin, which would leave the branch for ever."""
    world.prepared("first", "a")
    record = world.prepared("second", "b")
    world.log.abort(record.id, who="me", why="a test")
    one = world.settings({"orders": world.urls["a"]})
    (item,) = recover(world.log, one, "second")
    known = {"there": record.journals["orders"].id, "application": "second"}
    assert not item.done
    assert TEXTS["another journal is meant"].format(**known) in item.remark
    assert (world.states("a"), world.states("b")) == (
        [("first", "prepared")],
        [("second", "prepared")],
    )
    (item,) = recover(world.log, world.settings({"orders": world.urls["b"]}), "second")
    assert item.done
    assert world.states("b") == [("second", "aborted")]


def test_each_face_names_the_address_that_leads_to_the_twin(world):
    """Nothing is called lost or orphaned because another database does not know it."""
    world.prepared("first", "a")
    record = world.prepared("second", "b")
    world.log.abort(record.id, who="me", why="a test")
    settings = world.settings({"orders": world.urls["a"]})
    participants = open_participants(settings)
    listed = list_transactions(world.log, participants, TransactionFilter(), settings)
    assert [f.kind for f in listed.findings] == [kinds.MISDIRECTED]
    known = {"there": record.journals["orders"].id, "id": record.id}
    known["url"] = world.urls["b"]
    assert TEXTS["it is told nothing"].format(**known) in listed.findings[0].why
    assert (listed.orphans, listed.lost) == ((), ())
    view = view_transaction(world.log, participants, record.id, settings)
    (report,) = view.participants
    known["application"] = "second"
    assert TEXTS["another journal is meant"].format(**known) in report.error
    assert (report.state, view.unread, view.in_doubt) == (None, ("orders",), False)


def test_each_application_has_addresses_of_its_own(world):
    """Settings with both databases finish both, and every face shows each its own."""
    records = [world.prepared("first", "a"), world.prepared("second", "b")]
    names = {"orders": world.urls["a"], "second/orders": world.urls["b"]}
    settings = world.settings(names)
    participants = open_participants(settings)
    listed = list_transactions(world.log, participants, TransactionFilter(), settings)
    assert (listed.findings, listed.orphans) == ((), ())
    for record in records:
        view = view_transaction(world.log, participants, record.id, settings)
        (report,) = view.participants
        assert (report.participant, report.state) == ("orders", "prepared")
    described = describe_all(participants)
    assert [d.participant for d in described.values()] == list(names)
    reach = ConsoleSources(
        world.log, participants, settings, lambda _: None, SystemClock()
    )
    given = {"transaction": str(records[1].id), "abort": "yes", "at": "orders"}
    with pytest.raises(ContractError) as raised:
        RESOLVE.prepare(reach, given)
    assert TEXTS["the log can finish it"] in str(raised.value)
    for record in records:
        world.log.abort(record.id, who="me", why="a test")
    assert all(item.done for item in recover(world.log, settings, None))
    assert world.states("a") == [("first", "aborted")]
    assert world.states("b") == [("second", "aborted")]


def test_no_address_of_an_application_is_named_by_its_key(world):
    """The line says which entry is missing, or leads to the twin."""
    record = world.prepared("second", "b")
    world.log.abort(record.id, who="me", why="a test")
    names = {"orders": world.urls["b"], "second/orders": world.urls["a"]}
    settings = world.settings(names)
    listed = list_transactions(
        world.log, open_participants(settings), TransactionFilter(), settings
    )
    (finding,) = listed.findings
    assert finding.kind is kinds.MISDIRECTED
    assert str(finding.about) == "second/orders"


def test_a_person_resolves_at_the_database_on_record(world):
    """Also where the twin has a transaction of the same id, of another log."""
    record = world.prepared("second", "b")
    world.log.abort(record.id, who="me", why="a test")
    world.log.give_up(record.id, "orders", who="me", why="a test")
    world.log.finish(record.id)
    world.write(dataclasses.replace(record, journals={}), world.urls["a"])
    at = open_participants(world.settings({"orders": world.urls["a"]}))["orders"]
    asked = world.log, at, record.id, Decision.ABORT
    with pytest.raises(ParticipantUnavailableError) as raised:
        resolve_orphan(*asked, reason="a test", who="me", orphan_after=0.0)
    assert raised.value.refusal is Refusal.MISDIRECTED
    assert world.states("a") == [("second", "prepared")]


def test_a_commit_goes_to_the_database_on_record(world):
    """Neither acknowledged nor contradicted by the twin: it waits for the address."""
    record = world.prepared("second", "b")
    coordinator = world.coordinator("second", world.urls["b"])
    receipts = world.write(record, world.urls["b"])
    coordinator.decide(record, receipts)
    (item,) = recover(world.log, world.settings({"orders": world.urls["a"]}), "second")
    assert not item.done
    assert world.log.read(record.id).state is TransactionState.COMMITTING
    (item,) = recover(world.log, world.settings({"orders": world.urls["b"]}), "second")
    assert item.done
    assert world.states("b") == [("second", "committed")]


class Moved(ParticipantSink):
    """Its address leads to another database once the job was checked."""

    to: str

    def begin(self, context: BranchContext) -> Any:
        return self._moved().begin(context)

    def pre_commit(self, handle: Any) -> tuple[Receipt, ...]:
        return self._moved().pre_commit(handle)

    def _moved(self) -> ParticipantSink:
        return ParticipantSink({"orders": self.to}, token=None)


def test_a_script_writes_to_the_database_on_record(world):
    """Its rows are not prepared where no decision would be told."""
    sink = Moved({"orders": world.urls["a"]}, token=None)
    sink.to = world.urls["b"]
    settings = world.settings({})
    with pytest.raises(AbortedError):
        write(sink, [{"id": 1}], application="first", batch=0, settings=settings)
    assert world.states("b") == []


def test_a_task_writes_to_the_database_on_record(world):
    """An address that leads elsewhere on an executor is no vote."""
    record = world.coordinator("first", world.urls["a"]).open(0, "r", None).record
    with pytest.raises(ParticipantRefusedError):
        world.write(record, world.urls["b"])
    assert world.states("b") == []


def test_a_database_moves(world):
    """The same journal at another address is the same participant."""
    record = world.prepared("first", "a")
    moved = world.serve("a")
    coordinator = world.coordinator("first", moved)
    again = coordinator.open(0, "r2", None).record
    assert again.journals == {"orders": JournalAt(record.journals["orders"].id, moved)}
    coordinator.close(again, world.write(again, moved))
    assert world.states("a") == [("first", "aborted"), ("first", "committed")]


def test_another_database_is_refused_at_the_start(world):
    """Unless the person says so; then what is written from now on goes there."""
    coordinator = world.coordinator("first", world.urls["a"])
    record = coordinator.open(0, "r", None).record
    coordinator.close(record, world.write(record, world.urls["a"]))
    with pytest.raises(ConfigurationError) as raised:
        world.coordinator("first", world.urls["b"]).open(1, "r2", None)
    known = {"url": world.urls["b"], "before": world.urls["a"], "newest": record.id}
    for name in ("what is there is not here", "which journals"):
        assert TEXTS[name].format(**known) in str(raised.value)
    other = world.coordinator("first", world.urls["b"], replaces=("orders",))
    begun = other.open(1, "r2", None).record
    assert begun.journals["orders"].url == world.urls["b"]
    world.coordinator("first", world.urls["b"]).open(1, "r2", None)


def test_a_replay_asks_no_journal_that_was_replaced(world):
    """The commit is finished, in the other one; who did not replace it is refused."""
    coordinator = world.coordinator("first", world.urls["a"])
    record = coordinator.open(0, "r", None).record
    coordinator.close(record, world.write(record, world.urls["a"]))
    with pytest.raises(ConfigurationError) as raised:
        world.coordinator("first", world.urls["b"]).open(0, "r2", None)
    text = TEXTS["finished, and not there"].format(id=record.id)
    assert text in str(raised.value)
    other = world.coordinator("first", world.urls["b"], replaces=("orders",))
    assert other.open(0, "r3", None).replay
    assert (world.states("a"), world.states("b")) == ([("first", "committed")], [])


@pytest.mark.parametrize("replaces", [(), ("orders",)])
def test_a_start_waits_for_no_journal_that_it_cannot_reach(world, replaces):
    """A commit is under way in another one: it is finished there first."""
    coordinator = world.coordinator("first", world.urls["a"])
    record = coordinator.open(0, "r", None).record
    coordinator.decide(record, world.write(record, world.urls["a"]))
    other = world.coordinator("first", world.urls["b"], replaces=replaces)
    with pytest.raises(ConfigurationError) as raised:
        other.open(1, "r2", None)
    text = TEXTS["under way elsewhere"].format(id=record.id)
    assert text in str(raised.value)
    assert (world.states("a"), world.states("b")) == ([("first", "prepared")], [])
    assert world.coordinator("first", world.urls["a"]).open(0, "r3", None).replay
    assert world.states("a") == [("first", "committed")]


def silent(monkeypatch: pytest.MonkeyPatch) -> None:
    """Have no participant tell which journal it is, from now on."""

    def answer(self: HttpParticipant) -> Any:
        raise ParticipantUnavailableError("not now")

    monkeypatch.setattr(HttpParticipant, "identity", answer)


def test_one_that_does_not_answer_is_the_one_that_it_was(world, monkeypatch):
    """A start while it was silent neither writes to a twin nor lets one in later."""
    first = world.coordinator("first", world.urls["a"])
    record = first.open(0, "r", None).record
    first.close(record, world.write(record, world.urls["a"]))
    with monkeypatch.context() as patched:
        silent(patched)
        twin = world.coordinator("first", world.urls["b"])
        begun = twin.open(1, "r2", None).record
        assert begun.journals == record.journals
        with pytest.raises(ParticipantRefusedError):
            world.write(begun, world.urls["b"])
    assert world.states("b") == []
    world.write(begun, world.urls["a"])
    world.log.abort(begun.id, who="me", why="a test")
    at = world.settings({"orders": world.urls["b"]})
    assert not next(iter(recover(world.log, at, "first"))).done
    with pytest.raises(ConfigurationError):
        world.coordinator("first", world.urls["b"]).open(1, "r3", None)


def test_what_was_known_at_an_address_ends_with_a_silent_start(world, monkeypatch):
    """In one process, where another database has come there on purpose."""
    url = world.urls["a"]
    world.coordinator("first", url).open(0, "r", None)
    here = participant_sink._known[url]
    assert here is not None
    participant_sink._known[url] = here._replace(id="before")
    with monkeypatch.context() as patched:
        silent(patched)
        again = world.coordinator("first", url, replaces=("orders",))
    begun = again.open(0, "r2", None).record
    assert begun.journals["orders"] == here
    again.close(begun, world.write(begun, url))


def test_a_replay_is_confirmed_by_those_that_were_not_replaced(world):
    """What one has lost is no less lost because another was replaced."""
    kept = TaggedRows(f"sqlite:///{world.folder}/kept.db", table="ledger")
    ledger = world.stack.enter_context(served(kept, "ledger"))

    def opening(url: str, **other: Any) -> tuple[ParticipantSink, Coordinator]:
        sink = ParticipantSink({"orders": url, "ledger": ledger}, token=None)
        job = Job.of(sink, "first", world.settings({}), **other)
        tracing = OpenTelemetryTracing()
        return sink, job.coordinator(world.log, tracing, lambda: False)

    sink, coordinator = opening(world.urls["a"])
    record = coordinator.open(0, "r", None).record
    about = record.id, BranchId(0, 0), record.participants, record.carrier
    context = BranchContext(*about, journals=record.journals)
    rows = pa.RecordBatch.from_pydict({"id": [1]})
    coordinator.close(record, write_branch(sink, context, [rows]))
    _, other = opening(world.urls["b"], replaces=("orders", "ledger"))
    assert other.open(0, "r2", None).replay
    with contextlib.closing(sqlite3.connect(world.folder / "kept.db")) as base:
        for table in ("branch", "transaction"):
            base.execute(f"DELETE FROM ledger_tpc_{table}")
        base.commit()
    with pytest.raises(ConfigurationError, match="ledger answered unknown"):
        other.open(0, "r2", None)


def test_a_participant_that_starts_late_goes_on_record_before_the_decision(
    world, monkeypatch
):
    """It does not answer when the job starts, and then it votes."""
    asked: list[str] = []
    identity = HttpParticipant.identity

    def answer(self: HttpParticipant) -> Any:
        asked.append(self.name)
        if len(asked) < 3:
            raise ParticipantUnavailableError("not yet")
        return identity(self)

    monkeypatch.setattr(HttpParticipant, "identity", answer)
    coordinator = world.coordinator("first", world.urls["a"])
    record = coordinator.open(0, "r", None).record
    assert (record.journals, len(asked)) == ({}, 2)
    decided = coordinator.decide(record, world.write(record, world.urls["a"]))
    assert decided.journals["orders"].url == world.urls["a"]
    coordinator.deliver(decided)
    record = coordinator.open(1, "r", None).record
    coordinator.close(record, world.write(record, world.urls["a"]))
    assert len(asked) == 3


def test_one_that_cannot_be_asked_is_not_compared(world, monkeypatch):
    """It is asked at most once after it has voted, and nothing is put on record."""
    asked: list[str] = []

    def answer(self: HttpParticipant) -> Any:
        asked.append(self.name)
        raise ParticipantUnavailableError("it takes part only")

    monkeypatch.setattr(HttpParticipant, "identity", answer)
    coordinator = world.coordinator("first", world.urls["a"])
    for batch in range(3):
        record = coordinator.open(batch, "r", None).record
        coordinator.close(record, world.write(record, world.urls["a"]))
        assert world.log.read(record.id).journals == {}
    assert len(asked) == 3


def test_a_copy_has_the_same_journal(world):
    """No id tells a copy from its original: the address in the settings says which."""
    record = world.prepared("first", "a")
    shutil.copy(world.folder / "a.db", world.folder / "copy.db")
    copy = world.serve("copy")
    world.log.abort(record.id, who="me", why="a test")
    (item,) = recover(world.log, world.settings({"orders": copy}), "first")
    assert item.done
    assert world.states("a") == [("first", "prepared")]
    with pytest.raises(ConfigurationError):
        ParticipantSink({"a": world.urls["a"], "b": copy}, token=None).check("other")


@pytest.mark.parametrize("form", ["text", "table"])
def test_settings_name_an_application(tmp_path, form):
    """As `application/name`, in the text of a variable and in the table of a file."""
    names = {
        "orders": "http://a:1",
        "second/orders": "http://b:1",
        "s2/x": "http://c:1",
    }
    environ, file = {}, tmp_path / "tpc.toml"
    lines = [f'"{key}" = "{url}"' for key, url in names.items()]
    if form == "text":
        file.write_text("")
        environ["TPC_PARTICIPANTS"] = ",".join(f"{k}={u}" for k, u in names.items())
    else:
        file.write_text("[participants]\n" + "\n".join(lines))
    settings = Settings.load(file, environ=environ)
    assert settings.participants == names
    assert settings.addresses_of("first") == {"orders": "http://a:1"}
    assert settings.addresses_of("second") == {"orders": "http://b:1"}
    both = {"orders": "http://a:1", "x": "http://c:1"}
    assert settings.addresses_of("s2") == both


@pytest.mark.parametrize("key", ["/orders", "Second/orders", "a/b/orders", "a/1"])
def test_a_key_that_names_no_application_is_refused(key):
    """In one line, before anybody connects."""
    with pytest.raises(ConfigurationError):
        Settings.load(participants={key: "http://a:1"}, environ={})


def test_a_sink_is_of_one_application():
    """What all applications have is no sink's: the line says what to give."""
    with pytest.raises(ConfigurationError) as raised:
        ParticipantSink({"second/orders": "http://a:1"}, token=None)
    assert TEXTS["a job has one application"] in str(raised.value)


def test_init_writes_what_settings_read(tmp_path):
    """A key with an application is quoted: it would be no TOML."""
    names = {"orders": "http://a:1", "second/orders": "http://b:1"}
    text = ",".join(f"{key}={url}" for key, url in names.items())
    file = tmp_path / "tpc.toml"
    place = ["--config", str(file), "--log", f"sqlite:///{tmp_path}/log.db"]
    tokens = ["--tokens-file", str(tmp_path / "tokens")]
    assert main(["init", *place, "--participants", text, *tokens]) == 0
    assert Settings.load(file, environ={}).participants == names
