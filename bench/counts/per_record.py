"""The write path handles batches: no Python instruction and no object for a record.

Both are counted for one batch of N records and for one of ten times as many. What each
record more has cost is the difference divided by their number, as a whole number: a
loop costs some instructions for each, a list of values one object for each. What grows
with bytes (a send for each 16 KiB) and what the network does by chance is far less.

Instructions are those of all Python code on the path, ours or not, in all its threads.
Objects are those alive at once, looked at after every instruction: a C function that
makes a list of values is seen by what it leaves, one that makes values and drops them
before it returns is not.

On SQLite the DB-API takes a tuple for each record: there is no such count for it.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, Final

import pyarrow as pa

from bench.counts.count import Count, Expected
from bench.driver import APPLICATION
from bench.ledgers import ledgers
from bench.postgresql import postgresql
from bench.records import numbers
from tracing_2pc import ParticipantSink
from tracing_2pc.core import content
from tracing_2pc.core.model import BranchContext, BranchId, TransactionId
from tracing_2pc.participant import TaggedRows
from tracing_2pc.participant.answers import BranchRef
from tracing_2pc.participant.body import Body
from tracing_2pc.sinks.spool import Spool

FEW: Final = 1_000
MANY: Final = 10 * FEW
INSTRUCTIONS: Final = Expected(0, "Python sees batches; Arrow's own code sees records")
OBJECTS: Final = Expected(
    0, "a record stays in Arrow's buffers, as it is written there"
)


@dataclasses.dataclass(frozen=True, slots=True)
class Cost:
    """Instructions executed, and objects alive at most beyond those before."""

    instructions: int
    objects: int


Write = Callable[[int, int], object]
"""Writes a branch of so many records in the transaction of this number."""


def counts(folder: Path) -> Iterator[Count]:
    """Count what a record costs in a task, and in a participant on PostgreSQL."""
    with ledgers(folder, ["counted"]) as sink:
        yield from _judge("Arrow to wire", lambda rows, n: _send(sink, rows, n))
    with postgresql() as new_database:
        rows = TaggedRows(new_database(), "numbers")
        yield from _judge("body to COPY", lambda many, n: _receive(rows, many, n))
        rows.close()


def _judge(what: str, write: Write) -> Iterator[Count]:
    for first in range(2):  # imports, connections, tables, caches
        write(FEW, first)
    few, many = cost_of(lambda: write(FEW, 2)), cost_of(lambda: write(MANY, 3))
    more = MANY - FEW
    actual = round((many.instructions - few.instructions) / more)
    yield INSTRUCTIONS.count(f"{what}: Python instructions per record", actual)
    actual = round((many.objects - few.objects) / more)
    yield OBJECTS.count(f"{what}: Python objects per record", actual)


def _send(sink: ParticipantSink, rows: int, batch: int) -> None:
    """Write a branch as a task does, to a participant in another process."""
    transaction = TransactionId(APPLICATION, batch, 1)
    context = BranchContext(transaction, BranchId(0, 0), ("counted",), {})
    handle = sink.begin(context)
    sink.invoke_batch(handle, numbers(rows))
    sink.pre_commit(handle)


def _receive(resource: TaggedRows, rows: int, batch: int) -> None:
    """Prepare a branch from its body."""
    spool = Spool()
    records = numbers(rows)
    with pa.ipc.new_stream(spool, records.schema) as writer:
        writer.write_batch(records)
    ref = BranchRef(BranchId(0, 0), rows, spool.digest)
    body = Body(spool.open(), spool.length, content.ARROW, spool.digest)
    transaction = TransactionId(APPLICATION, batch, 1)
    answer = resource.prepare(transaction, "counted", ref, body, {})
    if answer.refusal:
        raise RuntimeError(f"the participant votes abort: {answer}")


def cost_of(work: Callable[[], object]) -> Cost:
    """Run it, and watch every instruction of this thread and of those it starts.

    Raises:
        RuntimeError: none was seen, so that nothing can be said.
    """
    alive = [0]

    def look() -> None:
        alive[0] = max(alive[0], sys.getallocatedblocks())

    gc.collect()
    before = sys.getallocatedblocks()
    return Cost(instructions_of(work, look), alive[0] - before)


def instructions_of(
    work: Callable[[], object], at_each: Callable[[], object] | None = None
) -> int:
    """Run it; count the instructions of this thread and of those it starts.

    Args:
        work: what is run.
        at_each: called after each of them.

    Raises:
        RuntimeError: none was seen, so that nothing can be said.
    """
    executed = itertools.count()
    count = executed.__next__

    def watch(frame: FrameType, event: str, _: Any) -> Any:
        if event == "opcode":
            count()
            if at_each is not None:
                at_each()
        else:
            frame.f_trace_opcodes, frame.f_trace_lines = True, False
        return watch

    gc.disable()  # it would run more often where more is allocated
    threading.settrace(watch)
    sys.settrace(watch)
    try:
        work()
    finally:
        sys.settrace(None)
        threading.settrace(None)
        gc.enable()
    if not (instructions := next(executed)):
        raise RuntimeError("this Python shows no instructions to a trace function")
    return instructions
