"""A log and two real participants, with a clock of their own, for who looks at them."""

from __future__ import annotations

import contextlib
import dataclasses
import time as machine
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from support.branches import ONE, Branch, orders
from support.kinds import sqlite_url, tagged_rows
from support.participant import World
from support.spark import serving
from support.waiting import PATIENT
from tracing_2pc.core.model import (
    BranchId,
    TransactionId,
    TransactionRecord,
    branch_receipts,
)
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision, Vote
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.inspection.participants import ReadableParticipant
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.store.engines.database import Database
from tracing_2pc.store.engines.urls import database_url
from tracing_2pc.store.log import database

NAMES = ("ledger", "notifier")
OVERDUE = 900.0
"""Seconds by the clock of a test: who has not decided until then is not at it."""


class OnTwoClocks(Settings):
    """Participants are waited for by the machine's clock, all else by a test's.

    So none of these times must be longer than another.
    """

    def __post_init__(self) -> None:
        """Compare nothing."""


SETTINGS = OnTwoClocks(
    request_timeout=PATIENT,
    safety_interval=20.0,
    orphan_after=300.0,
    stuck_after=300.0,
    stuck_critical=900.0,
    transaction_timeout=OVERDUE,
    pause=1.0,
    sweep=60.0,
    inline_tries=3,
)


class Time:
    """One clock for all, that only a test moves."""

    def __init__(self) -> None:
        self.time = 1_700_000_000.0
        self.at_pause: list[Callable[[], object]] = []

    def now(self) -> float:
        return self.time

    def __call__(self) -> float:
        return self.time

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        """Let so much time pass."""
        self.time += seconds

    @contextlib.contextmanager
    def earlier(self, seconds: float) -> Iterator[None]:
        """Let something be done as if it were so long ago."""
        self.time -= seconds
        yield
        self.time += seconds

    def pause(self, seconds: float) -> None:
        """Let a round pause: the time for what a test does between two looks."""
        self.time += seconds
        for happen in self.at_pause:
            happen()


class Running(Time):
    """Runs with the machine's clock, shifted by what a test sets it to."""

    _shift = 0.0

    @property  # type: ignore[override]
    def time(self) -> float:
        return machine.time() + self._shift

    @time.setter
    def time(self, value: float) -> None:
        self._shift = value - machine.time()


class OwnClock:
    """A participant's clock: the site's, unless a test gives it another."""

    def __init__(self, read: Callable[[], float]) -> None:
        self.read = read

    def __call__(self) -> float:
        return self.read()


@dataclasses.dataclass
class Site:
    """A decision log, and participants that serve from threads of the test."""

    folder: Path
    time: Time
    base: Database
    log: SqlDecisionLog
    urls: dict[str, str]
    worlds: dict[str, World]
    observed: dict[str, ReadableParticipant]
    stack: contextlib.ExitStack
    clocks: dict[str, OwnClock]

    def begin(
        self, batch: int = 7, *, application: str = "orders", run: str = "run"
    ) -> TransactionRecord:
        return self.log.begin(
            application,
            batch,
            Opening(
                run=run,
                query=None,
                participants=NAMES,
                carrier={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
                timeout=SETTINGS.transaction_timeout,
            ),
        ).record

    def rejecting(self, batch: int = 7) -> TransactionId:
        """Commit one whose second participant keeps what the first one refused."""
        opening = Opening(
            run="run", query=None, participants=NAMES, carrier={}, rejects=NAMES[1]
        )
        id_ = self.log.begin("orders", batch, opening).record.id
        self.prepare(id_)
        self.decide(id_)
        for name in NAMES:
            self.commit(id_, name)
        self.log.finish(id_)
        return id_

    def prepare(self, id_: TransactionId | str, *names: str) -> None:
        for name in names or NAMES:
            answer = self.worlds[name].prepare(str(id_), ONE)
            assert answer.status_code == 200, answer.get_json()

    def decide(self, id_: TransactionId, wanted: Decision = Decision.COMMIT) -> None:
        receipts = branch_receipts(
            BranchId(0, 1), ONE.rows, ONE.digest, dict.fromkeys(NAMES, Vote.COMMIT)
        )
        kept = receipts if wanted is Decision.COMMIT else ()
        decided = self.log.decide(id_, wanted, kept)
        assert decided is not None
        assert decided.decision is wanted

    def committing(self, batch: int = 7) -> TransactionId:
        """Begin, prepare everywhere, decide commit; nobody is told."""
        record = self.begin(batch)
        self.prepare(record.id)
        self.decide(record.id)
        return record.id

    def commit(self, id_: TransactionId, name: str) -> None:
        """Let a participant commit it, and have that on record."""
        assert self.worlds[name].commit(str(id_), ONE).status_code == 200
        self.log.acknowledge(id_, name)

    def committed(self, batch: int, name: str) -> TransactionId:
        """Have on record that one participant has committed it, and that was all."""
        record = self.log.begin(
            "orders",
            batch,
            Opening(run="run", query=None, participants=(name,), carrier={}),
        ).record
        vote = {name: Vote.COMMIT}
        receipts = branch_receipts(BranchId(0, 1), ONE.rows, ONE.digest, vote)
        self.log.decide(record.id, Decision.COMMIT, receipts)
        self.log.acknowledge(record.id, name)
        self.log.finish(record.id)
        return record.id

    def finish(self, id_: TransactionId) -> None:
        """Have on record that all have acknowledged it: the log is done with it."""
        for name in NAMES:
            self.log.acknowledge(id_, name)
        self.log.finish(id_)

    def aborted(self, batch: int = 7) -> TransactionId:
        """Begin, decide abort, and finish it."""
        record = self.begin(batch)
        self.log.decide(record.id, Decision.ABORT)
        self.finish(record.id)
        return record.id

    def down(self, name: str) -> None:
        """Let nothing listen where a participant was."""
        self.observed[name] = _at(name, "http://127.0.0.1:9")

    def up(self, name: str) -> None:
        """Serve it again, from what it has on disk."""
        url = self.stack.enter_context(serving(self.worlds[name].app))
        self.observed[name] = _at(name, url)

    def write(self, name: str, *statements: str) -> None:
        """Change a participant's database behind its back."""
        engine = sa.create_engine(database_url(self.urls[name], name))
        with engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))
        engine.dispose()


def _at(name: str, url: str) -> HttpParticipant:
    return HttpParticipant(name, url, None, PATIENT)


@contextlib.contextmanager
def site(
    folder: Path,
    *,
    log: str | None = None,
    make: Callable[..., World] = tagged_rows,
    urls: Callable[[str], str] | None = None,
    time: Time | None = None,
) -> Iterator[Site]:
    """Serve the participants, each with a database of its own."""
    time = time or Time()
    with contextlib.ExitStack() as stack:
        base = database.connect(log or f"sqlite:///{folder}/log/decisions.db")
        stack.callback(base.close)
        opened = SqlDecisionLog(base, now=time.now)
        opened.create()
        made = Site(folder, time, base, opened, {}, {}, {}, stack, {})
        for name in NAMES:
            (folder / name).mkdir(parents=True, exist_ok=True)
            url = urls(name) if urls else sqlite_url(folder / name)
            made.urls[name] = url
            made.clocks[name] = OwnClock(time)
            world = make(url, clock=made.clocks[name])
            world.name = name
            stack.callback(world.resource.close)
            made.worlds[name] = world
            made.up(name)
        yield made


def fresh(rows: int, branch: str) -> Branch:
    """Return a branch of its own content."""
    return Branch(orders(*range(rows)), rows, branch)


def names_of(found: list[Any]) -> list[tuple[str, str]]:
    """Return what was diagnosed of which transaction."""
    return [(str(one.about), str(one.kind)) for one in found]
