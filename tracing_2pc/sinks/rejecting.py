"""A branch without rejected rows, and the participant that keeps those.

A task writes its partition. Where participants reject rows, the branch is aborted at
all of them and written again without these, as another branch, in which each is asked
alone; at last the rejected rows are prepared at their own participant, as a branch of
the same id. So a row is in the branches of all that it is for, or in that one, and the
transaction commits both or neither.
"""

from __future__ import annotations

import dataclasses
import datetime
import functools
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from tracing_2pc.core import content
from tracing_2pc.core.errors import (
    ConfigurationError,
    ContractError,
    ParticipantRefusedError,
    RejectedRowsError,
    describe_rejection,
    name_rows,
)
from tracing_2pc.core.failpoints import failpoint
from tracing_2pc.core.model import (
    BranchContext,
    BranchId,
    Receipt,
    RejectedRow,
    count_rows,
)
from tracing_2pc.sinks.base import Sink, participants_of, read_only, write_branch
from tracing_2pc.sinks.composite import CompositeSink, as_single_sink
from tracing_2pc.sinks.participant_sink import ParticipantSink
from tracing_2pc.sinks.spool import IN_MEMORY, Spool
from tracing_2pc.sinks.values import check_values

ROUNDS: Final = 5
"""Times that a task writes its rows, at most."""

STEP: Final = 10**15
"""Between the numbers of a task's branches: more than Spark ever counts tasks, and all
of them below 2**53, which each reader of JSON keeps exactly."""

_MIDNIGHT: Final = datetime.datetime(1970, 1, 1)  # noqa: DTZ001 - of any zone
_MICROSECONDS: Final = {"us": 1, "ms": 10**3, "s": 10**6, "day": 86_400 * 10**6}
_CYCLE: Final = 146_097 * _MICROSECONDS["day"]
"""Microseconds after which the calendar repeats: 400 years."""

_NO_NUMBERS: Final = {math.inf: "Infinity", -math.inf: "-Infinity"}

Rejected = Mapping[int, Sequence[RejectedRow]]
"""Rejected rows by their number in the partition, with participants and reasons."""


class RejectingSink(CompositeSink):
    """Write to `main`; a row that one of its participants rejects goes to `keeper`.

    Args:
        main: takes the batch.
        keeper: has one participant, and takes rows with the columns `participant`,
            `reason`, `column`, `transaction`, `partition` and `record`.
        at_most: rows of a batch that may be rejected; more are a vote to abort.
    """

    def __init__(self, main: Sink, keeper: Sink, at_most: int) -> None:
        self.main = main
        self.keeper = keeper
        self.at_most = at_most
        (self.rejects,) = participants_of(keeper)
        super().__init__([main, keeper])

    def route(self, name: str) -> RejectingSink:
        """Return the sink of one participant, and of the rows that it rejects."""
        main = CompositeSink([self.main]).route(name)
        return RejectingSink(main, self.keeper, self.at_most)

    def write_branch(
        self, context: BranchContext, batches: Iterable[Any]
    ) -> tuple[Receipt, ...]:
        """Write the partition's rows, again without the rejected ones, and keep those.

        Raises:
            ParticipantRefusedError: too many are rejected, or rows still are after
                `ROUNDS` rounds, or a participant refuses the branch as a whole.
        """
        with _Kept() as kept:
            return self._write(context, kept, batches)

    def _write(
        self, context: BranchContext, kept: _Kept, batches: Iterable[Any]
    ) -> tuple[Receipt, ...]:
        """Write rows until no participant rejects one; return the votes of all."""
        rejected: dict[int, list[RejectedRow]] = {}
        first = context.branch
        rows: Iterator[Any] = kept.noting(batches)
        for rewrite in range(ROUNDS):
            context = dataclasses.replace(
                context,
                branch=BranchId(first.partition, rewrite * STEP + first.task_attempt),
                participants=tuple(participants_of(self.main)),
                rejects_at_most=self.at_most,
                rewrite=rewrite,
            )
            keep = functools.partial(self._keep, context, kept, rejected)
            try:
                return write_branch(self.main, context, rows, keep)
            except RejectedRowsError as error:
                for _ in rows:  # the sink may not have been given all of them
                    pass
                failpoint("rejects.after_refusal")
                sent = [n for n in range(kept.count) if n not in rejected]
                for row in error.rows:
                    # Of two tasks with one key the first is to be the same everywhere.
                    if not row.is_peers or rewrite:
                        number = sent[row.row]
                        named = dataclasses.replace(row, row=number)
                        rejected.setdefault(number, []).append(named)
                if len(rejected) > self.at_most:
                    raise self._refuse(context, rejected) from None
                failpoint("rejects.before_rewrite")
                rows = kept.without(rejected)
        raise self._refuse(context, rejected, f" after {ROUNDS} rounds")

    def _keep(
        self,
        context: BranchContext,
        kept: _Kept,
        rejected: Rejected,
        receipts: tuple[Receipt, ...],
    ) -> tuple[Receipt, ...]:
        """Prepare the rejected rows, as a branch of the same id; or vote read_only.

        Its errors abort the branch of the others, too.
        """
        if count_rows(receipts) + len(rejected) != kept.count:
            raise ContractError(
                f"{context.transaction_id}: {kept.count} rows came to branch "
                f"{context.branch}, {count_rows(receipts)} are written and "
                f"{len(rejected)} rejected",
                transaction_id=str(context.transaction_id),
            )
        if not rejected:
            return receipts + read_only(context.branch, (self.rejects,))
        failpoint("rejects.before_keeping")
        own = dataclasses.replace(
            context, participants=(self.rejects,), rejects_at_most=None, rewrite=0
        )
        try:
            votes = write_branch(self.keeper, own, [_records(own, kept, rejected)])
        except RejectedRowsError as error:  # of its own, and not of the partition
            raise ParticipantRefusedError(
                f"{context.transaction_id}: {self.rejects}: {error}",
                transaction_id=str(context.transaction_id),
                participant=self.rejects,
            ) from error
        failpoint("rejects.after_keeping")
        names = f"partition {context.branch.partition}: {name_rows(_all(rejected))}"
        named = (dataclasses.replace(vote, reason=names) for vote in votes)
        return (*receipts, *named)

    def _refuse(
        self, context: BranchContext, rejected: Rejected, after: str = ""
    ) -> ParticipantRefusedError:
        rows = name_rows(_all(rejected))
        how_many = f"{len(rejected)} rows of partition {context.branch.partition}"
        limit = "" if after else f", and rejects_at_most is {self.at_most}"
        return ParticipantRefusedError(
            f"{context.transaction_id}: {how_many} are rejected{after}{limit}: {rows}",
            transaction_id=str(context.transaction_id),
            participant=_all(rejected)[0].participant if rejected else None,
        )


def rejecting(sink: Sink, rejects: str, at_most: int) -> RejectingSink:
    """Return a sink whose participant `rejects` keeps the rows that others reject.

    Raises:
        ConfigurationError: there is no such participant, or no other one.
    """
    known = participants_of(sink)
    if rejects not in known or len(known) == 1:
        raise ConfigurationError(
            f"rejects={rejects!r}: name one of the participants, {', '.join(known)}, "
            "and give at least one other"
        )
    keeper = CompositeSink([sink]).route(rejects)
    return RejectingSink(as_single_sink(_others(sink, rejects)), keeper, at_most)


def _others(sink: Sink, rejects: str) -> list[Sink]:
    """Return a sink without one of its participants."""
    if rejects not in (names := participants_of(sink)):
        return [sink]
    if isinstance(sink, CompositeSink):
        return [other for member in sink.members for other in _others(member, rejects)]
    if isinstance(sink, ParticipantSink) and len(names) > 1:
        return [sink.without(rejects)]
    return []  # it is the only one


def _all(rejected: Rejected) -> list[RejectedRow]:
    """Return one for each row: the first that was named."""
    return [rejected[number][0] for number in sorted(rejected)]


class _Kept:
    """The rows of a partition, to be read again: in memory, or in a file if many."""

    def __init__(self) -> None:
        self._batches: list[Any] = []
        self._bytes = 0
        self._spool = Spool(0)
        self._writer: Any = None
        self.count = 0

    def __enter__(self) -> _Kept:
        return self

    def __exit__(self, *exception: object) -> None:
        self._spool.close()

    def noting(self, batches: Iterable[Any]) -> Iterator[Any]:
        """Yield the batches, and keep them."""
        import pyarrow as pa

        for batch in batches:
            self._batches.append(batch)
            self._bytes += batch.nbytes
            self.count += batch.num_rows
            if self._bytes > IN_MEMORY:
                if self._writer is None:
                    self._writer = pa.ipc.new_stream(self._spool, batch.schema)
                for kept in self._batches:
                    self._writer.write_batch(kept)
                self._batches.clear()
            yield batch

    def _read(self) -> Iterator[tuple[int, Any]]:
        """Yield each batch with the number of its first row."""
        import pyarrow as pa

        batches: Iterable[Any] = self._batches
        if self._writer is not None:
            self._writer.close()
            batches = pa.ipc.open_stream(self._spool.open())
        first = 0
        for batch in batches:
            yield first, batch
            first += batch.num_rows

    def without(self, rejected: Collection[int]) -> Iterator[Any]:
        """Yield the batches without some rows."""
        import pyarrow as pa

        for first, batch in self._read():
            end = first + batch.num_rows
            gone = [number for number in range(first, end) if number in rejected]
            if not gone:
                yield batch
                continue
            # Slices, for not each type has a kernel that filters it.
            edges = zip([first - 1, *gone], [*gone, end], strict=True)
            some = [batch.slice(a + 1 - first, b - a - 1) for a, b in edges]
            yield from pa.Table.from_batches(some).combine_chunks().to_batches()

    def rows(self, numbers: Collection[int]) -> Iterator[tuple[int, Any]]:
        """Yield some rows, each a batch, with their numbers."""
        for first, batch in self._read():
            for number in range(first, first + batch.num_rows):
                if number in numbers:
                    yield number, batch.slice(number - first, 1)


def _records(context: BranchContext, kept: _Kept, rejected: Rejected) -> Any:
    """Return the rejected rows as their participant keeps them."""
    import pyarrow as pa

    text, rows = pa.string(), []
    for number, row in kept.rows(rejected):
        first, *more = rejected[number]
        reasons = [first.reason, *map(describe_rejection, more)]
        rows.append(
            {
                "participant": first.participant,
                "reason": "; ".join(reasons),
                "column": first.column,
                "transaction": str(context.transaction_id),
                "partition": context.branch.partition,
                "record": _json(row),
            }
        )
    names = ("participant", "reason", "column", "transaction", "partition", "record")
    columns = [(n, pa.int64() if n == "partition" else text) for n in names]
    return pa.RecordBatch.from_pylist(rows, pa.schema(columns))


def _json(row: Any) -> str:
    """Write a row as JSON that Spark's `from_json` reads back to the same values."""
    (row,) = check_values([row])  # a session's zone may be one that only Java knows
    record = {
        field.name: content.json_value(_value(column[0]), field.type, _plain)
        for field, column in zip(row.schema, row.columns, strict=True)
    }
    return json.dumps(record, ensure_ascii=False, allow_nan=False, default=str)


def _plain(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return _NO_NUMBERS.get(value, "NaN")
    if isinstance(value, datetime.timedelta):
        sign = "-" if value < datetime.timedelta() else ""
        rest = abs(value) - datetime.timedelta(abs(value).days)
        return f"{sign}{abs(value).days} {_MIDNIGHT + rest:%H:%M:%S.%f}"
    return content.plain_text(value)


def _value(scalar: Any) -> Any:
    """Return a value as Python has it; a time of another year than its own as text."""
    import pyarrow as pa

    try:
        return scalar.as_py()
    except (OverflowError, ValueError):
        kind = scalar.type
        if pa.types.is_struct(kind):
            return {name: _value(inner) for name, inner in scalar.items()}
        if pa.types.is_map(kind):
            keys, values = scalar.values.flatten()
            return [*zip(map(_value, keys), map(_value, values), strict=True)]
        if pa.types.is_nested(kind):
            return [_value(inner) for inner in scalar.values]
        return _far(scalar.value, kind)


def _far(value: int, kind: Any) -> str:
    """Write a date or a time of any year, as ISO 8601 has it."""
    import pyarrow as pa

    unit = {pa.date32(): "day", pa.date64(): "ms"}.get(kind) or kind.unit
    cycles, rest = divmod(value * _MICROSECONDS[unit], _CYCLE)
    moment = _MIDNIGHT + datetime.timedelta(microseconds=rest)
    text = f"{moment.year + 400 * cycles:+05d}{moment.isoformat()[4:]}"
    if pa.types.is_date(kind):
        return text.partition("T")[0]
    return text + "+00:00" * (kind.tz is not None)
