"""`write`: a batch of a script, without Spark; its rows as an Arrow table."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
import numbers
import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from datetime import date, datetime, time
from decimal import Decimal
from time import monotonic
from typing import TYPE_CHECKING, Any, Final, Literal

from tracing_2pc.core.errors import (
    EACH_TIME,
    AbortedError,
    ConfigurationError,
    ParticipantError,
    TwoPhaseError,
)
from tracing_2pc.core.log_reader import OperatorLog, TransactionFilter
from tracing_2pc.core.model import (
    BranchId,
    Receipt,
    TransactionRecord,
    count_rows,
)
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision
from tracing_2pc.protocol.decisions import describe_cause, in_a_line
from tracing_2pc.sinks.base import (
    Sink,
    before_tasks,
    participants_of,
    until_stopped,
    write_traced_branch,
)
from tracing_2pc.sinks.job import Job
from tracing_2pc.sinks.sending import send_waiting
from tracing_2pc.store import open_log
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.sdk import lifecycle
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

if TYPE_CHECKING:
    import pyarrow as pa

logger = logging.getLogger(__name__)

_ROWS: Final = 10_000
"""Rows that a sink gets at a time, as from Spark."""

_FLUSH_SECONDS: Final = 0.5

_PLAIN: Final = (bool, int, float, Decimal, str, bytes, date)
"""Python types; a column of a single one of them needs no further check."""

_ZONED: Final = "time with a zone"
"""Arrow would leave the zone out."""

_TOGETHER: Final = ({"int", "float"}, {"int", "Decimal"})
"""Types that have a common type in Arrow, which loses nothing."""


def write(
    sink: Sink | Sequence[Sink],
    rows: Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch,
    *,
    application: str,
    batch: int,
    log: str | None = None,
    on_pending: Literal["wait", "fail"] | None = None,
    settings: Settings | None = None,
    replaces: Collection[str] = (),
    rejects: str | None = None,
    rejects_at_most: int | None = None,
) -> bool:
    """Write rows everywhere or nowhere, without Spark; False if they were written.

    For a script that may be killed anywhere and is started again with the same batch,
    as by cron or Airflow: the rows then land exactly once in every sink. A transaction
    that an earlier run has decided is delivered first, and an undecided one is aborted.
    A batch whose commit was decided is a replay: it is delivered, and nothing is
    written again, even if `rows` differs now. When this returns, every participant has
    acknowledged the commit.

    One process at a time. A second one that writes takes over: the first one raises
    `AbortedError`, and its batch is nowhere, or was decided and is a replay.

    Args:
        sink: a `ParticipantSink`, `FileSink`, `DeltaSink` or a sink of your own; or
            several of any kind, in a list.
        rows: dicts by column, or an Arrow table. The dicts may lack columns: a missing
            value is None. A column is an integer of 64 bits, a double (also 1 beside
            1.5), a decimal, text, bytes, a boolean, a date, a time stamp, a list or a
            struct, as its values are; other mixtures are refused. A column that has
            nothing but None has no type: a table sets it to null, and files leave it
            out. Give an Arrow table to have the same types in each batch.
        application: the name of this series of batches, for ever: 1 to 40 lower-case
            letters, digits and dashes. No stream may have it.
        batch: the number of this batch. The next one has a higher number; the first one
            is 0, or that of `tracing-2pc init --from-batch`. The same number, or that
            of an earlier batch on record, is a replay.
        log: URL of the decision log, as for `two_phase_commit`.
        on_pending: the reaction to a participant that does not acknowledge a commit:
            `wait` for it, or `fail`, which leaves it to the next call or `tracing-2pc
            recover`. Default: the setting, which is `wait`.
        settings: default is `Settings.load()`.
        replaces: as for `two_phase_commit`.
        rejects: the participant that keeps the rows which others refuse, as for
            `two_phase_commit`.
        rejects_at_most: rows of a batch that may be rejected; more abort it.

    Raises:
        AbortedError: nothing was committed; call it again with the same batch.
        CommitPendingError: decided commit, and not acknowledged by all yet. With the
            same batch again it is delivered.
        ConfigurationError: with the change to make. Nothing was written.
        ContractError: with the error of a sink of your own.
        DecisionLogError: the log cannot be reached.
        HeuristicError: a participant went against the decision.
    """
    if isinstance(batch, bool) or not isinstance(batch, int) or batch < 0:
        raise ConfigurationError(f"batch: {batch!r} is not a whole number from 0")
    chosen = settings or Settings.load()
    chosen = chosen.with_arguments(
        log=log,
        on_pending=on_pending,
        rejects=rejects,
        rejects_at_most=rejects_at_most,
    )
    job = Job.of(sink, application, chosen, replaces)
    table = to_table(rows)
    job.check()
    lifecycle.start(application)
    instruments.start(application)
    try:
        with contextlib.closing(open_log(chosen.log or "")) as opened:
            return _Script(job, opened, table).apply(batch)
    finally:
        send_waiting(participants_of(job.sink))
        lifecycle.flush(_FLUSH_SECONDS)


@dataclasses.dataclass
class _Script:
    job: Job
    log: OperatorLog
    table: pa.Table
    rows: int = 0
    cancelled: bool = False
    error: Exception | None = None
    transaction: str = ""

    def apply(self, batch: int) -> bool:
        started = monotonic()
        application = self.job.application
        coordinator = self.job.coordinator(
            self.log, OpenTelemetryTracing(), lambda: False
        )
        try:
            if is_past := self._is_past(batch):
                coordinator.recover()
            wrote = not is_past and coordinator.apply(
                batch,
                run=uuid.uuid4().hex,
                query=self.job.writes,
                write=self._write,
                cancel=self._cancel,
            )
        except Exception as error:
            if error is not self.error or not _is_of_the_rows(error):
                raise
            raise self._aborted(error) from error
        if not wrote:
            text = "replay of a decided batch: application=%s batch=%d"
            logger.info(text, application, batch)
            return False
        text = "committed: application=%s batch=%d rows=%d seconds=%.1f"
        seconds = monotonic() - started
        logger.info(text, application, batch, self.rows, seconds)
        return True

    def _is_past(self, batch: int) -> bool:
        """Whether a batch before the newest one is on record as committed.

        The coordinator has then delivered it, before it began a later one. A stream's
        batches are none of ours: `begin` refuses its application.
        """
        if self.log.application_of(self.job.writes) != self.job.application:
            return False
        chosen = TransactionFilter(self.job.application, limit=1)
        if not any(
            row.transaction.batch > batch for row in self.log.transactions(chosen)
        ):
            return False
        chosen = dataclasses.replace(chosen, batch=batch)
        return any(
            row.decision is Decision.COMMIT for row in self.log.transactions(chosen)
        )

    def _write(self, record: TransactionRecord) -> Sequence[Receipt]:
        context = record.context_of(BranchId(0, 0), stopping=lambda: self.cancelled)
        batches = self.table.to_batches(max_chunksize=_ROWS)
        try:
            before_tasks(self.job.sink, lambda: self.table.schema)
            receipts = write_traced_branch(
                self.job.sink, context, until_stopped(batches, context)
            )
        except Exception as error:
            self.error, self.transaction = error, str(record.id)
            raise
        self.rows = count_rows(receipts, record.rejects)
        return receipts

    def _cancel(self, _: TransactionRecord) -> None:
        self.cancelled = True

    def _aborted(self, error: Exception) -> AbortedError:
        reason = in_a_line(describe_cause(error))
        about = "" if self.transaction in reason else f"{self.transaction}: "
        again = "" if EACH_TIME in reason else "; call it again with the same batch"
        return AbortedError(
            f"{about}{reason}. Nothing was committed{again}",
            transaction_id=self.transaction,
        )


def _is_of_the_rows(error: Exception) -> bool:
    """Whether a sink has raised it, or a participant has voted by it."""
    return not isinstance(error, TwoPhaseError) or isinstance(error, ParticipantError)


# --- rows -----------------------------------------------------------------------------


def to_table(rows: Iterable[Mapping[str, Any]] | pa.Table | pa.RecordBatch) -> pa.Table:
    """Return rows as one Arrow table, each column in the one type of its values.

    Raises:
        ConfigurationError: names the column, and the types of its values.
    """
    try:
        import pyarrow as pa
    except ImportError:
        raise ConfigurationError(
            "rows are written as Arrow: pip install 'tracing-2pc[script]'"
        ) from None
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if isinstance(rows, pa.Table):
        return rows
    records = [*rows] if isinstance(rows, Iterable) else [rows]
    for record in records:
        if not isinstance(record, Mapping):
            raise ConfigurationError(
                "rows: expected dicts by column, or a pyarrow.Table, not "
                f"{type(record).__name__}"
            )
    names = dict.fromkeys(name for record in records for name in record)
    if records and not names:
        raise ConfigurationError("rows: they have no columns")
    if odd := [name for name in names if not isinstance(name, str)]:
        raise ConfigurationError(f"rows: the column {odd[0]!r} has no name in text")
    return pa.table({n: _to_array(n, [r.get(n) for r in records]) for n in names})


def _to_array(name: str, values: list[Any]) -> Any:
    import pyarrow as pa

    kinds_by_path: dict[str, set[str]] = {}
    types = {*map(type, values)} - {type(None)}
    if len(types) > 1 or not types <= {*_PLAIN}:
        _note_kinds(name, values, kinds_by_path)
    for path, kinds in kinds_by_path.items():
        if kinds == {_ZONED} or (len(kinds) > 1 and kinds not in _TOGETHER):
            raise _refused(path, kinds)
    if mixed := {
        path for path, kinds in kinds_by_path.items() if kinds == {"int", "Decimal"}
    }:
        values = [_as_decimal(name, value, mixed) for value in values]
    try:
        return pa.array(values)
    except (pa.ArrowException, OverflowError, ValueError, TypeError):
        raise _refused(name, {_kind(v) for v in values if v is not None}) from None


def _note_kinds(
    path: str, values: Iterable[Any], kinds_by_path: dict[str, set[str]]
) -> None:
    """Note the kinds of a column's values, and of those inside them, at any depth.

    Arrow would take the first value's type, and make a day of a later time stamp.
    """
    for value in values:
        if value is None:
            continue
        kinds_by_path.setdefault(path, set()).add(_kind(value))
        if isinstance(value, dict):
            for name, inner in value.items():
                _note_kinds(f"{path}.{name}", [inner], kinds_by_path)
        elif isinstance(value, list | tuple):
            _note_kinds(f"{path}[]", value, kinds_by_path)


def _as_decimal(path: str, value: Any, mixed: Collection[str]) -> Any:
    """Return it with decimals for integers that are beside some.

    Of an integer Arrow would take no more digits than these have before their point.
    """
    if isinstance(value, dict):
        return {n: _as_decimal(f"{path}.{n}", v, mixed) for n, v in value.items()}
    if isinstance(value, list | tuple):
        return [_as_decimal(f"{path}[]", inner, mixed) for inner in value]
    is_whole = path in mixed and isinstance(value, numbers.Integral)
    return Decimal(int(value)) if is_whole else value


def _kind(value: Any) -> str:
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, numbers.Integral):
        return "int"
    if isinstance(value, numbers.Real):
        return "float"
    if isinstance(value, time) and value.tzinfo is not None:
        return _ZONED
    if isinstance(value, datetime):
        return f"datetime {'without' if value.tzinfo is None else 'with'} a zone"
    return type(value).__name__


def _refused(path: str, kinds: Collection[str]) -> ConfigurationError:
    return ConfigurationError(
        f"column {path!r} has values that Arrow has no type for, or no single one "
        f"({', '.join(sorted(kinds))}): give each row one of the same type, or None"
    )
