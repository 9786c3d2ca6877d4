"""A log and two real participants, with a clock of their own, for who looks at them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import sqlalchemy as sa

from support.participant import ONE, Branch, World, orders, sqlite_url, tagged_rows
from support.spark import serving
from tracing_2pc.core.model import (
    BranchId,
    TransactionId,
    TransactionRecord,
    branch_receipts,
)
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision, Vote
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.inspection.participants import ReadableParticipant
from tracing_2pc.store import SqlDecisionLog, open_log

NAMES = ("ledger", "notifier")
SETTINGS = Settings(
    request_timeout=10.0,
    safety_interval=20.0,
    orphan_after=300.0,
    stuck_after=300.0,
    stuck_critical=900.0,
    transaction_timeout=900.0,
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
        self.time += seconds

    def pause(self, seconds: float) -> None:
        """Let a round pause: the time for what a test does between two looks."""
        self.time += seconds
        for happen in self.at_pause:
            happen()


@dataclasses.dataclass
class Site:
    """A decision log, and participants that serve from threads of the test."""

    folder: Path
    time: Time
    log: SqlDecisionLog
    worlds: dict[str, World]
    observed: dict[str, ReadableParticipant]
    stack: contextlib.ExitStack

    def begin(
        self, batch: int = 7, *, application: str = "orders", run: str = "run"
    ) -> TransactionRecord:
        return self.log.begin(
            application,
            batch,
            run=run,
            query=None,
            participants=NAMES,
            carrier={"traceparent": f"00-{'a' * 32}-{'b' * 16}-01"},
            timeout=SETTINGS.transaction_timeout,
        ).record

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

    def down(self, name: str) -> None:
        """Let nothing listen where a participant was."""
        self.observed[name] = HttpParticipant(name, "http://127.0.0.1:9", None, 2.0)

    def up(self, name: str) -> None:
        """Serve it again, from what it has on disk."""
        url = self.stack.enter_context(serving(self.worlds[name].app))
        self.observed[name] = HttpParticipant(name, url, None, SETTINGS.request_timeout)

    def write(self, name: str, *statements: str) -> None:
        """Change a participant's database behind its back."""
        with self.worlds[name].resource._database.engine.begin() as connection:
            for statement in statements:
                connection.execute(sa.text(statement))


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
        opened = open_log(log or f"sqlite:///{folder}/log/decisions.db", now=time.now)
        stack.callback(opened.close)
        made = Site(folder, time, opened, {}, {}, stack)
        for name in NAMES:
            (folder / name).mkdir(parents=True, exist_ok=True)
            url = urls(name) if urls else sqlite_url(folder / name)
            world = make(url, clock=time)
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
    return [(str(one.transaction), str(one.diagnosis)) for one in found]
