"""A branch costs the same whether its transaction has a few of them or 20,000.

For each question that a participant is asked about a transaction, and for what the
decision log does with one: Python instructions and, where SQLite holds it, the steps of
SQLite's own machine. Both are counted for transactions of several sizes. What a branch
costs is the difference of two of these divided by the difference of the sizes; the
count is what a branch costs more among many than among a few, as a whole number. A
search through all of the others for each branch costs thousands more; what changes by
chance is far below one.

A comparison that C makes is no Python instruction: a search in a list of plain numbers
is not seen here.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, NamedTuple

import sqlalchemy as sa
from flask.testing import FlaskClient

from bench.counts.count import Count, Expected
from bench.counts.per_record import instructions_of
from bench.driver import APPLICATION
from bench.postgresql import postgresql
from bench.served import application
from tracing_2pc.core import content
from tracing_2pc.core.model import (
    MAX_BRANCHES,
    BranchId,
    Receipt,
    TransactionId,
    TransactionRecord,
)
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import BranchState, Decision, Vote
from tracing_2pc.participant import PreparedTransactions, TaggedRows
from tracing_2pc.participant.answers import BranchRef
from tracing_2pc.participant.engine import ParticipantEngine
from tracing_2pc.participant.journal.journal import checksum_of
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.wire import contract

SIZES: Final = (1_000, 2_000, 4_000, MAX_BRANCHES)
"""The first two say what a branch costs; each of the others must agree."""

SAME: Final = Expected(
    0, "a branch is looked up by its name: nothing is searched for each of them"
)
DIGEST: Final = content.digest_of(b"")

Work = Callable[[], object]


class Steps(NamedTuple):
    """What was executed: Python instructions, and steps of SQLite's machine."""

    python: int
    sqlite: int


def counts(folder: Path) -> Iterator[Count]:
    """Count what a branch more costs a participant, and the decision log."""
    rows = TaggedRows(f"sqlite:///{folder / 'numbers.db'}", "numbers")
    yield from Asked("TaggedRows, SQLite", rows).counts(FIRST | SEALED)
    with postgresql() as new_database:
        rows = TaggedRows(new_database(), "numbers")
        yield from Asked("TaggedRows, PostgreSQL", rows).counts(FIRST)
        prepared = PreparedTransactions(new_database(), "numbers")
        yield from Asked("PreparedTransactions", prepared).counts(SEALED)
    yield from _logged(folder)


class Asked:
    """A participant whose transactions were put into its journal as a whole."""

    def __init__(self, name: str, resource: ParticipantEngine) -> None:
        self.name = name
        self._resource = resource
        resource.open()
        self.steps = bytearray()
        _watch(resource._database.engine, self.steps)
        self._batches = itertools.count()
        self.client: FlaskClient = application(resource).test_client()

    def counts(self, questions: dict[str, Question]) -> Iterator[Count]:
        """Ask each question about transactions of all sizes."""
        for what, question in questions.items():
            name = f"{self.name}: {what}"
            yield from judged(name, self.steps, lambda n, q=question: self._ask(q, n))
        self._resource.close()

    def _ask(self, question: Question, size: int) -> Work:
        """Put a transaction on record; return what asks, and checks the answer."""
        transaction = self._recorded(question.state, size)
        path, body = question.request(transaction, size)
        name = {contract.PARTICIPANT_HEADER: "counted"}
        headers = {contract.VERSION_HEADER: contract.VERSION, **name}

        def ask() -> None:
            if body is None:
                answer = self.client.get(path, headers=headers)
            else:
                answer = self.client.post(
                    path, data=body, headers=headers, content_type=contract.JSON
                )
            if answer.status_code != question.status:
                raise RuntimeError(f"{path}: {answer.status} {answer.text[:300]}")

        return ask

    def _recorded(self, state: BranchState, size: int) -> TransactionId:
        batch = next(self._batches)
        transaction = TransactionId(APPLICATION, batch, 1)
        own = dataclasses.asdict(transaction)
        tables = self._resource._journal.tables
        seal = None if state is BranchState.PREPARED else str(state)
        tags = range(batch * MAX_BRANCHES, batch * MAX_BRANCHES + size)
        branches = [
            {
                **own,
                "tag": tag,
                "partition": n,
                "task_attempt": n,
                "state": str(state),
                "rows": 1,
                "digest": DIGEST,
                "checksum": checksum_of(
                    transaction, BranchRef(BranchId(n, n), 1, DIGEST), tag
                ),
                "since": 0.0,
                "sealed": seal and 0.0,
            }
            for n, tag in enumerate(tags)
        ]
        with self._resource._database.relaxed(lock=APPLICATION) as connection:
            whole = {**own, "seal": seal, "carrier": "{}"}
            connection.execute(tables.transaction.insert().values(whole))
            connection.execute(tables.branch.insert(), branches)
            noted = {
                BranchState.PREPARED: f"{tables.name}_tpc_hidden",
                BranchState.COMMITTED: f"{tables.name}_tpc_outcome",
            }.get(state)
            if noted in tables.metadata.tables:
                table = tables.metadata.tables[noted]
                connection.execute(table.insert(), [{"tag": tag} for tag in tags])
        return transaction


class Question(NamedTuple):
    """What is asked about a transaction in some state, and what is answered."""

    state: BranchState
    status: int
    route: str
    named: float | None = None
    """Of its branches, where branches are named: this part."""
    fields: Mapping[str, Any] = MappingProxyType({})

    def request(
        self, transaction: TransactionId, size: int
    ) -> tuple[str, bytes | None]:
        """Return path and body."""
        if self.route.startswith("GET "):
            return self.route[4:].format(transaction), None
        order = {"transaction_id": str(transaction), **self.fields}
        if self.named is not None:
            order["branches"] = [
                {"branch": f"{n}.{n}", "rows": 1, "digest": DIGEST}
                for n in range(int(size * self.named))
            ]
        return self.route, json.dumps(order).encode()


PREPARED, COMMITTED = BranchState.PREPARED, BranchState.COMMITTED
ABORTED = BranchState.ABORTED
BY_HAND: Final = {"outcome": "abort", "reason": "to count it"}

FIRST: Final = {
    "commit": Question(PREPARED, 200, "/commit", named=1),
    "commit of one half": Question(PREPARED, 200, "/commit", named=0.5),
    "abort": Question(PREPARED, 200, "/abort"),
    "resolve": Question(PREPARED, 200, "/resolve", fields=BY_HAND),
    "show in doubt": Question(PREPARED, 200, "GET /transactions/{}"),
}
"""Asked of a transaction that is prepared."""

SEALED: Final = {
    "commit again": Question(COMMITTED, 200, "/commit", named=1),
    "commit too late": Question(ABORTED, 409, "/commit", named=1),
    "abort again": Question(ABORTED, 200, "/abort"),
    "abort too late": Question(COMMITTED, 409, "/abort"),
    "abort of a branch too late": Question(
        COMMITTED, 409, "/abort", fields={"branch": "7.7"}
    ),
    "resolve too late": Question(COMMITTED, 409, "/resolve", fields=BY_HAND),
    "show": Question(COMMITTED, 200, "GET /transactions/{}"),
}
"""Asked of a transaction that is sealed."""


def _logged(folder: Path) -> Iterator[Count]:
    log, steps = open_log(f"sqlite:///{folder / 'log.db'}"), bytearray()
    for engine in (log._database.engine, log._database.relaxed_engine):
        _watch(engine, steps)
    batches = itertools.count()

    def decide(size: int) -> Work:
        record, receipts = _begun(log, batches, size)
        return lambda: log.decide(record.id, Decision.COMMIT, receipts)

    def deliver(size: int) -> Work:
        record, receipts = _begun(log, batches, size)
        log.decide(record.id, Decision.COMMIT, receipts)

        def work() -> None:
            (unfinished,) = log.unfinished(APPLICATION)
            if len(unfinished.chosen("a")) != size:
                raise RuntimeError("the log has other branches")
            _finish(log, record.id)

        return work

    yield from judged("decision log, SQLite: decide", steps, decide)
    yield from judged("decision log, SQLite: deliver", steps, deliver)
    log.close()


def _begun(
    log: SqlDecisionLog, batches: Iterator[int], size: int
) -> tuple[TransactionRecord, list[Receipt]]:
    """Begin a batch behind a small one: a finish drops receipts of those before it."""
    for record in log.unfinished(APPLICATION):
        _finish(log, record.id)
    small, receipts = _next(log, batches, 1)
    log.decide(small.id, Decision.COMMIT, receipts)
    _finish(log, small.id)
    return _next(log, batches, size)


def _next(
    log: SqlDecisionLog, batches: Iterator[int], size: int
) -> tuple[TransactionRecord, list[Receipt]]:
    batch = next(batches)
    begun = log.begin(
        APPLICATION,
        batch,
        Opening(run="run", query=None, participants=["a"], carrier={}),
    )
    receipts = [
        Receipt(BranchId(n, n), "a", 1, DIGEST, Vote.COMMIT) for n in range(size)
    ]
    return begun.record, receipts


def _finish(log: SqlDecisionLog, transaction: TransactionId) -> None:
    log.acknowledge(transaction, "a")
    log.finish(transaction)


def judged(
    name: str, steps: bytearray, prepared: Callable[[int], Work]
) -> Iterator[Count]:
    """Count a piece of work for all sizes, or up to the first that is dearer.

    Args:
        name: of the count.
        steps: grows by one with each step of SQLite's machine; empty for no count.
        prepared: makes everything ready for a size, and returns the work.
    """
    for _ in range(2):  # imports, connections, caches
        prepared(SIZES[0])()
    costs = [(size, _steps_of(prepared(size), steps)) for size in SIZES[:2]]
    usual = _per_branch(*costs)
    more = Steps(0, 0)
    for size in SIZES[2:]:
        costs.append((size, _steps_of(prepared(size), steps)))
        cost = _per_branch(*costs[-2:])
        more = Steps(*(round(a - b) for a, b in zip(cost, usual, strict=True)))
        if any(more):
            break
    label = f"{name}, {costs[-1][0]} branches"
    yield SAME.count(f"{label}: instructions more", more.python)
    if steps:
        yield SAME.count(f"{label}: steps more", more.sqlite)


def _per_branch(few: tuple[int, Steps], many: tuple[int, Steps]) -> tuple[float, ...]:
    more = many[0] - few[0]
    return tuple((a - b) / more for a, b in zip(many[1], few[1], strict=True))


def _steps_of(work: Work, steps: bytearray) -> Steps:
    steps.clear()
    return Steps(instructions_of(work), len(steps))


def _watch(engine: sa.Engine, steps: bytearray) -> None:
    """Have SQLite add a byte for each step that it makes; nothing of it is Python."""
    if engine.dialect.name != "sqlite":
        return
    engine.dispose()

    @sa.event.listens_for(engine, "connect")
    def listen(connection: Any, _: object) -> None:
        connection.set_progress_handler(functools.partial(steps.append, 0), 1)
