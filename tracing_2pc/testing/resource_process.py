"""A resource under test in one process: the requests to it, and its answers."""

from __future__ import annotations

import dataclasses
import functools
import io
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final

import pyarrow as pa
import sqlalchemy as sa

from tracing_2pc.core import content
from tracing_2pc.core.errors import RefusalError
from tracing_2pc.core.model import BranchId, Carrier, TransactionId
from tracing_2pc.core.states import ASK_AGAIN, Decision, Refusal
from tracing_2pc.participant.answers import Answer, BranchRef
from tracing_2pc.participant.body import Body
from tracing_2pc.participant.engine import Order, ParticipantEngine, Query
from tracing_2pc.testing.promises import Records, broken

_NAME: Final = "participant"
_MOST_NAMED: Final = 9
_LONGEST: Final = 120.0
"""Seconds for which "not now" is asked again; only a hang takes so long."""


@dataclasses.dataclass(frozen=True)
class Branch:
    """One branch, and its content."""

    name: str
    records: Records

    @functools.cached_property
    def body(self) -> bytes:
        """Its records as a sink sends them."""
        sink = io.BytesIO()
        table = pa.Table.from_pylist([dict(record) for record in self.records])
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table)
        return sink.getvalue()

    @property
    def ref(self) -> BranchRef:
        """As a request names it."""
        digest = content.digest_of(self.body)
        return BranchRef(BranchId.parse(self.name), len(self.records), digest)


@dataclasses.dataclass(frozen=True)
class Case:
    """An unused application: a transaction, and branches for it."""

    application: str
    one: Branch
    other: Branch
    """Of the same name, with other content."""
    twin: Branch

    def id(self, batch: int = 7, attempt: int = 1) -> str:
        """Return the id of the transaction, or of another one."""
        return f"{self.application}.{batch}.{attempt}"


class ResourceClient:
    """A resource as one process has it; "not now" is asked again, as a job does."""

    def __init__(self, engine: ParticipantEngine) -> None:
        self.engine = engine

    def prepare(self, id_: str, branch: Branch) -> Answer:
        """Send a branch."""
        return self._answered(lambda: self.prepare_once(id_, branch))

    def prepare_once(
        self, id_: str, branch: Branch, stream: Any = None, ref: BranchRef | None = None
    ) -> Answer:
        """Send a branch, with another body if need be; it may answer "not now"."""
        ref = ref or branch.ref
        length = len(branch.body)
        stream = stream or io.BytesIO(branch.body)
        body = Body(stream, length, content.ARROW, ref.digest)
        transaction = TransactionId.parse(id_)
        arguments = (transaction, _NAME, ref, body, Carrier())
        asked = functools.partial(self.engine.prepare, *arguments)
        return self._once(f"prepare of {id_}", asked)

    def rejected(self, id_: str, branch: Branch) -> list[int] | None:
        """Send a branch, asked to name rows; return them, None for a vote to commit."""
        stream, length = io.BytesIO(branch.body), len(branch.body)
        body = Body(stream, length, content.ARROW, branch.ref.digest)
        transaction, named = TransactionId.parse(id_), list[int]()

        def ask() -> Answer:
            try:
                return self.engine.prepare(
                    *(transaction, _NAME, branch.ref, body, Carrier()),
                    name_rows=_MOST_NAMED,
                )
            except RefusalError as error:
                named.extend(rejected.row for rejected in error.rows)
                raise

        answer = self._once(f"prepare of {id_}", ask)
        return None if answer.refusal is None else named

    def commit(
        self, id_: str, *branches: Branch, forgotten_through: int | None = None
    ) -> Answer:
        """Commit these branches."""
        order = Order(
            TransactionId.parse(id_),
            _NAME,
            forgotten_through,
            tuple(branch.ref for branch in branches),
        )
        return self._ask("commit", order)

    def abort(self, id_: str, **fields: Any) -> Answer:
        """Abort all of it, or a branch."""
        return self._ask("abort", Order(TransactionId.parse(id_), _NAME, **fields))

    def resolve(self, id_: str, outcome: Decision) -> Answer:
        """Decide as a person does."""
        order = Order(TransactionId.parse(id_), _NAME, reason="no log knows it")
        return self._ask("resolve", order, outcome)

    def show(self, id_: str) -> Answer:
        """Look it up."""
        return self._ask("show", TransactionId.parse(id_), _NAME)

    def listed(self, application: str) -> list[tuple[str, str, str]]:
        """Return id, branch and state of unsealed branches, in pages of two."""
        rows: list[tuple[str, str, str]] = []
        after: int | None = 0
        while after is not None:
            page = self.engine.list_open(Query(application, after, 2))
            rows += [
                (str(id_), str(row.ref.branch), str(row.state))
                for id_, row, _ in page.branches
            ]
            after = page.next
        return sorted(rows)

    def _ask(self, verb: str, *arguments: Any) -> Answer:
        subject = arguments[0]
        if isinstance(subject, Order):
            subject = subject.transaction
        request = f"{verb} of {subject}"
        asked = functools.partial(getattr(self.engine, verb), *arguments)
        return self._answered(lambda: self._once(request, asked))

    def _answered(self, ask: Callable[[], Answer]) -> Answer:
        deadline = time.monotonic() + _LONGEST
        while (answer := ask()).refusal in ASK_AGAIN and time.monotonic() < deadline:
            time.sleep(0.01)
        return answer

    def _once(self, request: str, ask: Callable[[], Answer]) -> Answer:
        try:
            return ask()
        except RefusalError as error:
            return Answer(error.state or "unknown", error.refusal, str(error))
        except sa.exc.DBAPIError as error:
            return Answer("unknown", Refusal.NOT_NOW, type(error).__name__)
        except Exception as error:  # noqa: BLE001 - whatever a resource raises
            broken(
                f"{request} raised {type(error).__name__}: {error}. A request raises "
                "RefusalError, or the database's own error for not now"
            )


class Interrupted(io.BytesIO):
    """A body that calls a function in its middle, once."""

    def __init__(self, body: bytes, interrupt: Callable[[], object]) -> None:
        super().__init__(body)
        self._half = len(body) // 2
        self._interrupt: Callable[[], object] | None = interrupt

    def read(self, size: int | None = -1, /) -> bytes:
        """Return half of it, and the rest after the call."""
        if self.tell() < self._half:
            return super().read(min(size or 0, self._half - self.tell()))
        if (interrupt := self._interrupt) is not None:
            self._interrupt = None
            interrupt()
        return super().read(size)


def at_once(*asks: Callable[[], Answer]) -> Sequence[Answer]:
    """Ask all of it at the same moment, each in a thread of its own."""
    start = threading.Barrier(len(asks))

    def ask(request: Callable[[], Answer]) -> Answer:
        start.wait(_LONGEST)
        return request()

    with ThreadPoolExecutor(len(asks)) as pool:
        return list(pool.map(ask, asks))
