"""`FileSink` on a real Spark: what it writes, and what Spark reads of it."""

from __future__ import annotations

import contextlib
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.spark import ROWS, held, numbers_of, write_numbers
from support.stream_world import BOTH_PATHS, session_setting

from tracing_2pc import DeltaSink, FileSink, IcebergSink, ParticipantSink, TableSink
from tracing_2pc.core.model import BranchContext, BranchId, TransactionId
from tracing_2pc.core.states import TransactionState

pytestmark = pytest.mark.spark


@pytest.mark.parametrize(
    ("world", "kind"),
    [
        ("executors", "parquet"),
        ("driver", "parquet"),
        ("driver", "json"),
        ("driver", "csv"),
    ],
    indirect=["world"],
)
def test_a_service_and_a_folder_are_one_transaction(world, kind):
    """Three batches; Spark reads each row once, with what a task has left beside it."""
    write_numbers(world.folder, range(3))
    out = world.folder / "out"
    service = ParticipantSink({"a": world.a}, token=None)
    sinks = [service, FileSink(out, kind, partition_by="part")]
    source = world.source().repartition(2).selectExpr("value", "value % 3 AS part")
    world.run(world.callback(sink=sinks), source)
    assert world.state("test.2.1") is TransactionState.COMMITTED
    late = FileSink(out, kind, partition_by="part")
    handle = begin(late, TransactionId("test", 3, 1))
    for batch in world.spark.sql("SELECT 4711L value, 7L part")._collect_as_arrow():
        late.invoke_batch(handle, batch)
    late.pre_commit(handle)
    options = {"header": True, "inferSchema": True}
    rows = world.spark.read.options(**options).format(kind).load(str(out)).collect()
    assert Counter(row.value for row in rows) == numbers_of(3)
    assert held(world.folder / "a.db") == numbers_of(3)
    assert all(row.part == row.value % 3 for row in rows)


@BOTH_PATHS
def test_a_column_comes_to_tables(world):
    """Whoever writes: the driver adds it to a Delta table, a task to a database."""
    deltalake = pytest.importorskip("deltalake")
    write_numbers(world.folder, range(1))
    lake, shop = world.folder / "lake", f"sqlite:///{world.folder}/shop.db"
    deltalake.DeltaTable.create(lake, pa.schema([("value", pa.int64())]))
    sinks = [DeltaSink(lake, evolve="add"), TableSink(shop, "numbers", evolve="add")]
    world.run(world.callback(sink=sinks))
    write_numbers(world.folder, range(1, 2))
    more = "value", "value % 3 AS part", "CAST(value AS TIMESTAMP) AS at", "NULL AS no"
    world.run(world.callback(sink=sinks), world.source().selectExpr(*more))
    assert world.state("test.1.1") is TransactionState.COMMITTED
    table = deltalake.DeltaTable(lake).to_pyarrow_table()
    assert table.column_names == ["value", "part", "at"]
    with contextlib.closing(sqlite3.connect(world.folder / "shop.db")) as database:
        rows = database.execute("SELECT value, part FROM numbers").fetchall()
        (at,) = database.execute("SELECT max(at) FROM numbers").fetchone()
    parts = {n: n % 3 if n >= ROWS else None for n in numbers_of(2)}
    in_lake = {row["value"]: row["part"] for row in table.to_pylist()}
    assert dict(rows) == in_lake == parts
    assert at.startswith("1970-01-01")


@BOTH_PATHS
def test_a_lake_a_delta_table_and_a_database_are_one_transaction(world):
    """Three batches, of which the tables get a column; the catalog is configured."""
    deltalake = pytest.importorskip("deltalake")
    catalog = pytest.importorskip("pyiceberg.catalog")
    about = {"uri": f"sqlite:///{world.folder}/catalog.db?timeout=60"}
    about["warehouse"] = f"file://{world.folder}/warehouse"
    delta, shop = world.folder / "delta", f"sqlite:///{world.folder}/shop.db"
    deltalake.DeltaTable.create(delta, pa.schema([("value", pa.int64())]))
    sinks = [
        IcebergSink("sql", "shop.n", evolve="add", create=True, properties=about),
        DeltaSink(delta, evolve="add"),
        TableSink(shop, "numbers", evolve="add"),
    ]
    write_numbers(world.folder, range(2))
    world.run(world.callback(sink=sinks))
    write_numbers(world.folder, range(2, 3))
    world.run(world.callback(sink=sinks), world.source().selectExpr("*", *PARTS))
    assert world.state("test.2.1") is TransactionState.COMMITTED
    lake = catalog.load_catalog("sql", **about).load_table("shop.n")
    rows = lake.scan().to_arrow().to_pylist()
    parts = {n: n % 3 if n >= 2 * ROWS else None for n in numbers_of(3)}
    assert Counter(row["value"] for row in rows) == numbers_of(3)
    in_delta = deltalake.DeltaTable(delta).to_pyarrow_table().to_pylist()
    assert {row["value"]: row["part"] for row in rows} == parts
    assert {row["value"]: row["part"] for row in in_delta} == parts
    with contextlib.closing(sqlite3.connect(world.folder / "shop.db")) as database:
        kept = database.execute("SELECT value, part FROM numbers").fetchall()
    assert dict(kept) == parts
    assert len(kept) == numbers_of(3).total()
    noted = [s.summary["tpc.transaction"] for s in lake.snapshots()]
    assert noted == ["test.0.1", "test.1.1", "test.2.1"]


PARTS = ("CAST(value % 3 AS BYTE) AS part", "CAST(value AS TIMESTAMP) AS at")


def begin(sink: FileSink, transaction: TransactionId) -> Any:
    return sink.begin(BranchContext(transaction, BranchId(0, 0), (sink.name,), {}))


def test_folders_have_the_names_that_spark_gives(spark, tmp_path):
    """For each character that a name can have, and each type; null and empty too."""
    texts = [*map(chr, [*range(1, 128), 160, 8364]), "", "a b", ".a", "Łódź", None]
    columns = {
        "`te{x}t`": "string",
        "whole": "int",
        "day": "date",
        "yes": "boolean",
        "sum": "decimal(20, 3)",
    }
    values: list[list[str | None]] = [
        ["x", "-7", "2024-03-31", "true", "1.5"],
        ["none", None, None, None, None],
        ["x", "0", "0999-12-31", "false", "-1e3"],
    ]
    rows = [*values, *([text, *[None] * 4] for text in texts)]
    with session_setting(spark, "spark.sql.session.timeZone", "Europe/Warsaw"):
        plain = spark.createDataFrame(rows, ", ".join(f"c{n} string" for n in range(5)))
        casts = [
            f"CAST(c{n} AS {kind}) AS {name}"
            for n, (name, kind) in enumerate(columns.items())
        ]
        df = plain.selectExpr(*casts, "1 AS n").coalesce(1)
        names = [name.strip("`") for name in columns]
        df.write.partitionBy(*names).parquet(str(tmp_path / "spark"))
        sink = FileSink(tmp_path / "ours", partition_by=names)
        handle = begin(sink, TransactionId("test", 0, 1))
        for batch in df._collect_as_arrow():
            sink.invoke_batch(handle, batch)
        sink.pre_commit(handle)
        sink.commit_transaction("test.0.1", [handle])
        ours, theirs = folders(tmp_path / "ours"), folders(tmp_path / "spark")
        assert ours == theirs
        assert len(ours) == len(rows) - 1  # null and the empty text are one
        read = spark.read.parquet(str(tmp_path / "ours"))
        assert read.count() == len(rows)


def folders(folder: Path) -> set[str]:
    return {str(p.parent.relative_to(folder)) for p in folder.rglob("*.parquet")}
