"""Requests: one prepare per branch and participant, one commit per participant."""

from __future__ import annotations

import collections
import contextlib
import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from bench.counts.count import Count, Expected
from bench.driver import apply, coordinator, tasks
from bench.records import numbers
from bench.served import application, serving
from tracing_2pc import ParticipantSink
from tracing_2pc.core.model import Receipt, TransactionRecord
from tracing_2pc.core.states import Vote
from tracing_2pc.participant import TaggedRows
from tracing_2pc.protocol.coordinator import Coordinator
from tracing_2pc.store import open_log

NAMES: Final = ("a", "b")

BATCHES: Final = ((5,), (5,) * 8, (5, 0, 5, 0, 0, 5, 0, 0), (0, 0, 0))
"""Rows in each partition, for each batch."""

COMMITS: Final = Expected(
    1, "a participant hears of all its branches at once: they commit together"
)
PREPARES: Final = Expected(
    1, "a branch is sent whole, to each participant; the answer is the vote"
)
READ_ONLY: Final = Expected(
    1, "a partition without rows makes nothing durable: nobody is asked about it"
)
OTHERS: Final = Expected(0, "a transaction that commits is prepares and commits")


class Counting:
    """A WSGI application that counts what is asked of the one inside, by route."""

    def __init__(self, inner: Any) -> None:
        self._inner = inner
        self.asked: collections.Counter[str] = collections.Counter()

    def __call__(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        self.asked[environ["PATH_INFO"]] += 1
        answer: Iterable[bytes] = self._inner(environ, start)
        return answer


@dataclasses.dataclass(frozen=True, slots=True)
class _World:
    driver: Coordinator
    sink: ParticipantSink
    services: Sequence[Counting]

    def apply(self, batch: int, rows: Sequence[int]) -> Iterator[Count]:
        receipts: list[Receipt] = []
        write = tasks(self.sink, [numbers(n) for n in rows])

        def kept(record: TransactionRecord) -> Sequence[Receipt]:
            receipts.extend(write(record))
            return receipts

        before = self._asked()
        apply(self.driver, batch, kept)
        yield from _judge(rows, self._asked() - before, receipts)

    def _asked(self) -> collections.Counter[str]:
        return sum((s.asked for s in self.services), collections.Counter())


def counts(folder: Path) -> Iterator[Count]:
    """Count what two participants are asked in transactions of several shapes."""
    with _world(folder) as world:
        for batch, rows in enumerate(BATCHES):
            yield from world.apply(batch, rows)


@contextlib.contextmanager
def _world(folder: Path) -> Iterator[_World]:
    with contextlib.ExitStack() as stack:
        services, urls = [], {}
        for name in NAMES:
            rows = TaggedRows(f"sqlite:///{folder / name}.db", "numbers")
            stack.callback(rows.close)
            services.append(Counting(application(rows)))
            urls[name] = stack.enter_context(serving(services[-1]))
        sink = ParticipantSink(urls, token=None)
        log = open_log(f"sqlite:///{folder / 'log.db'}")
        stack.callback(log.close)
        yield _World(coordinator(log, sink.participants), sink, services)


def _judge(
    rows: Sequence[int], asked: collections.Counter[str], receipts: Sequence[Receipt]
) -> Iterator[Count]:
    full = sum(n > 0 for n in rows)
    empty = len(rows) - full
    votes = [receipt.vote for receipt in receipts]
    what = f"{full} of {len(rows)} partitions with rows:"
    everybody = len(NAMES)
    commits, prepares = asked.pop("/commit", 0), asked.pop("/prepare", 0)
    yield COMMITS.count(f"{what} commit requests", commits, everybody)
    yield PREPARES.count(f"{what} prepare requests", prepares, full * everybody)
    read_only = votes.count(Vote.READ_ONLY)
    yield READ_ONLY.count(f"{what} votes read_only", read_only, empty * everybody)
    yield OTHERS.count(f"{what} other requests", asked.total())
