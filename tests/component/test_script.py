"""A script without Spark: `tracing_2pc.write`."""

from __future__ import annotations

import contextlib
import dataclasses
import logging
from collections.abc import Callable
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from support.texts import texts
from support.waiting import AT_ONCE, until

from tracing_2pc import FileSink, Settings, write
from tracing_2pc.core.errors import (
    AbortedError,
    CommitPendingError,
    ConfigurationError,
    ContractError,
)
from tracing_2pc.core.model import BranchId, Receipt, TransactionId
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, TransactionState, Vote
from tracing_2pc.store import open_log

TEXTS = texts("sinks")
NOON = datetime.fromisoformat("2026-11-28T12:00:00")
MANY = 10_000
QUICK = Settings(inline_tries=1)
STREAM = Opening(run="r", query="q", participants=["Shelf"], carrier={}, stream=True)
UTC, EAST = timezone.utc, timezone(timedelta(hours=2))


@dataclasses.dataclass
class Shelf:
    """A sink that keeps what was committed: Arrow batches, with their types."""

    fails: Callable[[], object] = lambda: None
    away: bool = False
    given: list[pa.RecordBatch] = dataclasses.field(default_factory=list)
    committed: list[str] = dataclasses.field(default_factory=list)

    def begin(self, context: Any) -> dict[str, str]:
        return {"of": str(context.transaction_id)}

    def invoke_batch(self, handle: Any, batch: pa.RecordBatch) -> None:
        self.fails()
        self.given.append(batch)

    def pre_commit(self, handle: Any) -> None: ...

    def commit(self, handle: Any) -> None:
        if self.away:
            raise OSError("the shelf is away")
        self.committed.append(handle["of"])

    def abort(self, handle: Any) -> None:
        self.given.clear()

    def abort_transaction(self, transaction_id: str, keep: Any) -> None: ...


@dataclasses.dataclass
class Script:
    folder: Path
    sink: Shelf = dataclasses.field(default_factory=Shelf)

    @property
    def log(self) -> str:
        return f"sqlite:///{self.folder}/log.db"

    def write(self, rows: Any, batch: int = 0, **more: Any) -> bool:
        given = {"application": "daily", "log": self.log, "settings": Settings()}
        return write(self.sink, rows, batch=batch, **given | more)

    def state(self, transaction: str) -> TransactionState | None:
        with contextlib.closing(open_log(self.log)) as log:
            record = log.read(TransactionId.parse(transaction))
            return record and record.state


@pytest.fixture
def script(tmp_path: Path) -> Script:
    return Script(tmp_path)


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([1, None], pa.int64()),
        ([1, 1.5, float("inf")], pa.float64()),
        ([np.int64(1), 2, np.float32(0.5)], pa.float64()),
        ([Decimal("1.10"), 2], pa.decimal128(3, 2)),
        ([Decimal("1.10"), 20, 2**53 + 1, None], pa.decimal128(18, 2)),
        (
            [[{"a": Decimal("0.5")}, {"a": 10}], None],
            pa.list_(pa.struct([("a", pa.decimal128(3, 1))])),
        ),
        (["Zürich", ""], pa.string()),
        ([b"x", None], pa.binary()),
        ([True, False], pa.bool_()),
        ([date(2026, 11, 28)], pa.date32()),
        ([NOON, None], pa.timestamp("us")),
        (
            [NOON.replace(tzinfo=EAST), NOON.replace(tzinfo=UTC)],
            pa.timestamp("us", "UTC"),
        ),
        ([[1], [2.5, None], None], pa.list_(pa.float64())),
        (
            [{"a": 1}, {"b": "x"}],
            pa.struct([("a", pa.int64()), ("b", pa.string())]),
        ),
        ([None, None], pa.null()),
    ],
    ids=lambda given: str(given) if isinstance(given, pa.DataType) else "",
)
def test_a_column_has_the_one_type_of_its_values(script, values, kind):
    """Nothing is lost on the way: what is read is equal to what was given."""
    assert script.write([{"v": value} for value in values])
    (batch,) = script.sink.given
    assert batch.schema == pa.schema({"v": kind})
    read = batch["v"].to_pylist()
    if pa.types.is_struct(kind):
        values = [{"a": None, "b": None} | value for value in values]
    assert read == values


def test_what_a_row_leaves_out_is_null(script):
    """Columns are in the order in which they come first."""
    assert script.write([{"b": 1}, {"a": "x", "b": None}])
    (batch,) = script.sink.given
    assert batch.to_pylist() == [{"b": 1, "a": None}, {"b": None, "a": "x"}]


@pytest.mark.parametrize("make", [pa.Table.from_pylist, pa.RecordBatch.from_pylist])
def test_an_arrow_table_goes_as_it_is(script, make):
    """With its own types, whatever its values are."""
    schema = pa.schema({"id": pa.int32(), "amount": pa.decimal128(12, 2)})
    rows = make([{"id": 1, "amount": Decimal(2)}, {"id": 2}], schema=schema)
    assert script.write(rows)
    (batch,) = script.sink.given
    assert batch.schema == schema
    assert batch.num_rows == 2


def test_rows_may_come_from_a_generator(script):
    """And there may be none: that batch is committed, too."""
    assert script.write({"id": n} for n in range(25_000))
    assert [batch.num_rows for batch in script.sink.given] == [10_000, 10_000, 5_000]
    assert script.write([], 1)
    assert script.state("daily.1.1") is TransactionState.COMMITTED
    assert not script.write([{"id": 7}], 1)


@pytest.mark.parametrize(
    ("rows", "says"),
    [
        ([{"a": 7}, {"a": "x"}], "column 'a'.*(int, str)"),
        ([{"a": True}, {"a": 1.5}], "column 'a'.*(bool, float)"),
        ([{"a": "x"}, {"a": b"x"}], "column 'a'.*(bytes, str)"),
        ([{"a": NOON.date()}, {"a": NOON}], "column 'a'.*(date, datetime without"),
        (
            [{"a": NOON}, {"a": NOON.replace(tzinfo=UTC)}],
            "column 'a'.*(datetime with a zone, datetime without a zone)",
        ),
        ([{"a": [{"b": 1}]}, {"a": [{"b": True}]}], "column 'a[].b'.*(bool, int)"),
        ([{"a": 2**70}], "column 'a'.*(int)"),
        ([{"a": 2**53 + 1}, {"a": 0.5}], "column 'a'.*(float, int)"),
        ([{"a": "\udcff"}], "column 'a'.*(str)"),
        ([{"a": object()}], "column 'a'.*(object)"),
        ([{"a": NOON.time().replace(tzinfo=UTC)}], "column 'a'.*(time with a zone)"),
        ([{"a": pd.NaT}], "column 'a'.*(datetime without a zone)"),
        ([{}], "no columns"),
        ([{1: 2}], "column 1 "),
        (["x"], "not str"),
        ({"id": [1]}, "not str"),
        (7, "not int"),
    ],
)
def test_rows_that_have_no_one_type_are_refused(script, rows, says):
    """In one line, before anything begins: no log is made."""
    first, _, rest = says.partition(".*")
    with pytest.raises(ConfigurationError) as refused:
        script.write(rows)
    text = str(refused.value)
    assert first in text
    assert rest in text
    assert "\n" not in text
    assert [*script.folder.iterdir()] == []


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"batch": -1}, "batch: -1"),
        ({"batch": True}, "batch: True"),
        ({"batch": "7"}, "batch: '7'"),
        ({"batch": 7}, "tracing-2pc init --application daily --from-batch 7"),
        ({"application": "Daily!"}, "lower-case"),
        ({"log": None}, "no decision log"),
    ],
    ids=str,
)
def test_what_is_wrong_is_told_in_one_line(script, given, says):
    """Nothing is written then."""
    with pytest.raises(ConfigurationError, match=says) as refused:
        script.write([{"id": 1}], **given)
    assert "\n" not in str(refused.value)
    assert script.sink.given == []


def test_a_batch_that_was_written_is_a_replay(script, caplog):
    """Also one before the newest; whatever its rows are now."""
    caplog.set_level(logging.INFO, "tracing_2pc")
    assert script.write([{"id": 1}], 0)
    assert script.write([{"id": 2}], 3)
    assert [script.write([{"id": 9}], batch) for batch in (3, 0)] == [False, False]
    assert [batch.to_pylist() for batch in script.sink.given] == [
        [{"id": 1}],
        [{"id": 2}],
    ]
    told = [line for line in caplog.messages if "application=daily" in line]
    assert [line.partition(":")[0] for line in told] == [
        *("committed", "committed"),
        *("replay of a decided batch", "replay of a decided batch"),
    ]


def test_a_number_below_the_newest_that_is_not_on_record_is_refused(script):
    """Nobody could tell whether it was written: numbers rise."""
    script.write([{"id": 1}], 0)
    script.write([{"id": 2}], 3)
    with pytest.raises(ConfigurationError, match=TEXTS["numbers rise"]):
        script.write([{"id": 3}], 2)


def test_a_stream_does_not_go_on_where_a_script_has_been(script):
    """Nor the other way: each counts by itself."""
    script.write([{"id": 1}])
    with (
        contextlib.closing(open_log(script.log)) as log,
        pytest.raises(ConfigurationError, match=TEXTS["of another query"]),
    ):
        log.begin("daily", 1, STREAM)


def test_no_batch_of_a_stream_is_taken_for_a_replay(script):
    """Also one before the newest: the rows would be nowhere, and called written."""
    with contextlib.closing(open_log(script.log)) as log:
        for batch in (0, 1):
            record = log.begin("daily", batch, STREAM).record
            vote = Receipt(BranchId(0, 0), "Shelf", 1, "", Vote.COMMIT)
            log.decide(record.id, Decision.COMMIT, [vote])
            log.acknowledge(record.id, "Shelf")
            log.finish(record.id)
    for batch in (0, 1, 2):
        with pytest.raises(ConfigurationError):
            script.write([{"id": 1}], batch)


def test_what_a_sink_raises_is_an_abort(script):
    """One line: the transaction, the error, what to do. The next call writes it."""

    def full() -> None:
        raise OSError("disk full\n  at line 7")

    script.sink.fails = full
    with pytest.raises(AbortedError) as aborted:
        script.write([{"id": 1}])
    text = str(aborted.value)
    reason = "daily.0.1: OSError: disk full at line 7"
    assert text == TEXTS["call again"].format(reason=reason)
    assert aborted.value.transaction_id == "daily.0.1"
    script.sink.fails = lambda: None
    assert script.write([{"id": 1}])
    assert script.sink.committed == ["daily.0.2"]


def test_an_interrupt_aborts(script):
    """It is raised as it is, when the abort is on record."""

    def interrupted() -> None:
        raise KeyboardInterrupt

    script.sink.fails = interrupted
    with pytest.raises(KeyboardInterrupt):
        script.write([{"id": 1}])
    assert script.state("daily.0.1") is TransactionState.ABORTED


def test_a_commit_that_is_not_acknowledged_is_left_to_the_next_call(script):
    """With `fail`; the next call delivers it, whichever batch it has."""
    script.sink.away = True
    with pytest.raises(CommitPendingError):
        script.write([{"id": 1}], settings=QUICK, on_pending="fail")
    assert script.state("daily.0.1") is TransactionState.COMMITTING
    script.sink.away = False
    assert script.write([{"id": 2}], 1)
    assert script.sink.committed == ["daily.0.1", "daily.1.1"]


def test_a_replay_before_the_newest_batch_delivers_that_one(script):
    """A call begins by finishing what is unfinished, whichever batch it has."""
    assert script.write([{"id": 1}], 0)
    script.sink.away = True
    with pytest.raises(CommitPendingError):
        script.write([{"id": 2}], 1, settings=QUICK, on_pending="fail")
    with pytest.raises(CommitPendingError):
        script.write([{"id": 1}], 0, settings=QUICK, on_pending="fail")
    script.sink.away = False
    assert not script.write([{"id": 1}], 0)
    assert script.sink.committed == ["daily.0.1", "daily.1.1"]
    assert script.state("daily.1.1") is TransactionState.COMMITTED


def test_a_batch_out_of_time_is_aborted(script):
    """No more of it is written then."""
    limit = Settings(transaction_timeout=2 * AT_ONCE, request_timeout=AT_ONCE)
    active, calls = TransactionState.ACTIVE, list[None]()

    def wait_for_the_end() -> None:
        calls.append(None)
        until(lambda: script.state("daily.0.1") is not active)

    script.sink.fails = wait_for_the_end
    parts = [pa.table({"id": [n]}) for n in range(MANY)]
    with pytest.raises(AbortedError):
        script.write(pa.concat_tables(parts), settings=limit)
    assert 0 < len(calls) < MANY
    assert script.sink.committed == []


def test_what_is_no_sink_is_refused(script):
    """Before its log is made."""
    with pytest.raises(ContractError):
        write(object(), [{"id": 1}], application="daily", batch=0, log=script.log)  # type: ignore[arg-type]


def test_a_column_of_nothing_but_none_may_have_values_later(tmp_path):
    """In a folder, whose readers find null in the files without it."""
    sink, log = FileSink(tmp_path / "out"), f"sqlite:///{tmp_path}/log.db"
    for batch, note in enumerate([None, "x", None]):
        rows = [{"id": batch, "note": note}]
        assert write(sink, rows, application="daily", batch=batch, log=log)
    read = pq.ParquetDataset(
        tmp_path / "out", schema=pa.schema({"id": pa.int64(), "note": pa.string()})
    ).read()
    found = sorted(read.to_pylist(), key=lambda row: row["id"])
    assert [row["note"] for row in found] == [None, "x", None]


def test_an_empty_argument_is_none():
    """As from a variable that is not set: the setting stands."""
    given = Settings(log="sqlite:///log.db").with_arguments(log="", on_pending=None)
    assert (given.log, given.on_pending) == ("sqlite:///log.db", "wait")
