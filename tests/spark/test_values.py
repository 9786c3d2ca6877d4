"""What becomes of Spark's values at each sink, and what readers read of them."""

from __future__ import annotations

import contextlib
import json
import re
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pyarrow as pa
import pytest
from pyarrow import csv, parquet
from pyiceberg.catalog import load_catalog
from pyspark.errors import PySparkException
from pyspark.sql import functions
from support.branches import Branch, arrow
from support.kinds import outbox, sqlite_url, tagged_rows
from support.participant import rows_table, select
from support.spark import write_numbers
from support.stream_world import failing_query, session_setting

from tracing_2pc import DeltaSink, FileSink, IcebergSink
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import BranchContext, BranchId, TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.sinks.base import participants_of, write_branch
from tracing_2pc.sinks.values import check_values, new_layout, with_nulls_inside

DeltaTable = pytest.importorskip("deltalake").DeltaTable
pytestmark = pytest.mark.spark

DOCS = Path(__file__).parents[2] / "docs"
PAGE = (DOCS / "sink.md").read_text(encoding="utf-8")
_, *HEADS = [
    "type",
    "PostgreSQL",
    "SQLite",
    "outbox",
    "Parquet",
    "JSON",
    "CSV",
    "Delta",
    "Iceberg",
]
TABLE = {
    cells[0]: dict(zip(HEADS, cells[1:], strict=True))
    for line in (DOCS / "job.md").read_text(encoding="utf-8").splitlines()
    if len(cells := [cell.strip() for cell in line.strip("|").split("|")]) == 9
    and cells[0].startswith("`")
}
"""What the manual says of each type and sink."""

VALUES = {
    "`BOOLEAN`": "true",
    "`BYTE` to `LONG`": "9223372036854775807L",
    "`FLOAT`, `DOUBLE`": "0.1D",
    "`NaN`": "CAST('NaN' AS DOUBLE)",
    "`DECIMAL`": "CAST('0.0000000' AS DECIMAL(10, 7))",
    "`STRING`": "'€ 日本\\n\\\"'",
    "`BINARY`": "X'00FF2C'",
    "`DATE`": "DATE'2024-02-29'",
    "`TIMESTAMP`": "TIMESTAMP'2024-02-29 01:02:03.000004Z'",
    "`TIMESTAMP_NTZ`": "TIMESTAMP_NTZ'2024-02-29 01:02:03.000004'",
    "`TIME`": "TIME'01:02:03.000004'",
    "`INTERVAL DAY TO SECOND`": "INTERVAL '1 02:03:04.5' DAY TO SECOND",
    "`INTERVAL YEAR TO MONTH`": "INTERVAL '1-2' YEAR TO MONTH",
    "`ARRAY`, `STRUCT`": "array(struct(1 AS n, 'x' AS t), NULL)",
    "`MAP`": "map('k', array(map(true, 1)))",
    "`MAP` of other keys": "map(1.5D, 1)",
    "`VARIANT`": "parse_json('[1]')",
    "`VOID`": "NULL",
}
OTHER_FORMS = {
    "`BOOLEAN`": {"0 and 1": 1, "text": "true"},
    "`BYTE` to `LONG`": {"text": "9223372036854775807"},
    "`FLOAT`, `DOUBLE`": {"text": "0.1"},
    "`NaN`": {"text": ("NaN", "nan")},
    "`DECIMAL`": {"text": ("0.0000000", "0E-7")},
    "`BINARY`": {"base64": "AP8s"},
    "`DATE`": {"ISO 8601": "2024-02-29"},
    "`TIMESTAMP`": {
        "ISO 8601": (
            "2024-02-29T01:02:03.000004+00:00",
            "2024-02-29 01:02:03.000004Z",
        )
    },
    "`TIMESTAMP_NTZ`": {
        "ISO 8601": ("2024-02-29T01:02:03.000004", "2024-02-29 01:02:03.000004")
    },
    "`TIME`": {"ISO 8601": ("01:02:03.000004", "01:02:03.000004000")},
    "`MAP`": {"an object": {"k": [{"true": 1}]}},
    "`VOID`": {"text": None, "no column": None, "no member": None},
}
TEXT = pa.schema([("v", pa.string()), ("n", pa.int32())])
CAST = re.compile(r"(CAST\(v AS \w+\)|(?:to_json|map_entries)\(v\) AS v)")
NASTY = ["C:\\dir\\", '5" pipe, long', "two\nlines\r\n", '"', "", " a ", "€", "\\N"]


def write(df: Any, sink: Any) -> None:
    """Write and commit a DataFrame as one branch, as the driver path does."""
    transaction = TransactionId("orders", 0, 1)
    context = BranchContext(
        transaction, BranchId(0, 0), tuple(participants_of(sink)), {}
    )
    (receipt,) = write_branch(sink, context, df.coalesce(1)._collect_as_arrow())
    handle = sink.handle_type(**receipt.handle)
    sink.commit_transaction(str(transaction), [handle])


def test_csv_is_read_back_as_the_manual_says(spark, tmp_path):
    """Each text as it was, beside another, by Spark, pandas and DuckDB."""
    texts = [*NASTY, None]
    rows = [(n, text, "end") for n, text in enumerate(texts)]
    df = spark.createDataFrame(rows, "id int, text string, last string")
    write(df, FileSink(tmp_path, "csv"))
    (code,) = re.findall(r"```python\n(orders = \(\n    spark.read.*?)```", PAGE, re.S)
    scope = {"spark": spark}
    exec(code.replace("/mnt/lake/orders", str(tmp_path)), scope)
    read = {row.id: row for row in scope["orders"].collect()}
    assert [(read[str(n)].text, read[str(n)].last) for n in range(len(rows))] == [
        (text or None, "end") for text in texts
    ]
    (file,) = tmp_path.glob("*.csv")
    with duckdb.connect() as connection:
        found = connection.execute(f"SELECT * FROM '{file}'").fetchall()
    by_pandas = pd.read_csv(file, keep_default_na=False)
    null_is_empty = ["" if text is None else text for text in texts]
    assert [row[1] or "" for row in found] == null_is_empty == [*by_pandas["text"]]


class Sinks:
    """Each writes a row with a column `v`; returns what a reader finds in it."""

    def __init__(self, folder: Path, database: str, kind: str) -> None:
        self._folder = folder
        refused = TABLE[kind]["Delta"] == "refused"  # the types that a table can have
        self._fits = TEXT if refused else None
        self._database = database

    def file(self, df: Any, kind: str) -> Path:
        write(df, FileSink(self._folder, kind))
        (file,) = self._folder.glob(f"*.{kind}")
        return file

    def parquet(self, df: Any) -> Any:
        file = self.file(df, "parquet")
        if "v:time" not in df.schema.simpleString():  # Spark reads it by a switch only
            (read,) = df.sparkSession.read.parquet(str(self._folder)).collect()
            assert same(read.asDict().get("v"), df.first().v)
        with duckdb.connect() as connection:
            assert len(connection.execute(f"SELECT * FROM '{file}'").fetchall()) == 1
        assert len(pd.read_parquet(self._folder)) == 1
        (row,) = parquet.read_table(file).to_pylist()
        return row.get("v")

    def json(self, df: Any) -> Any:
        return json.loads(self.file(df, "json").read_text("utf-8")).get("v")

    def csv(self, df: Any) -> Any:
        file, lines = self.file(df, "csv"), csv.ParseOptions(newlines_in_values=True)
        text = csv.ConvertOptions(
            null_values=[""],
            column_types={"v": pa.string()},
            strings_can_be_null=True,
            quoted_strings_can_be_null=False,
        )
        read = csv.read_csv(file, parse_options=lines, convert_options=text)
        return read["v"][0].as_py()

    def delta(self, df: Any) -> Any:
        if not DeltaTable.is_deltatable(str(self._folder)):
            DeltaTable.create(self._folder, self._fits or may_be_null(sent(df)))
        write(df, DeltaSink(self._folder))
        (row,) = DeltaTable(self._folder).to_pyarrow_table().to_pylist()
        return row["v"]

    def iceberg(self, df: Any) -> Any:
        about = {"uri": f"sqlite:///{self._folder}.db"}
        about["warehouse"] = f"file://{self._folder}"
        catalog = load_catalog("sql", **about)
        if not catalog.namespace_exists("shop"):
            catalog.create_namespace("shop")
            made = self._fits or may_be_null(sent(df))
            catalog.create_table("shop.values", made)
        write(df, IcebergSink("sql", "shop.values", properties=about))
        (row,) = catalog.load_table("shop.values").scan().to_arrow().to_pylist()
        return row["v"]

    def service(self, world: Any, df: Any, sql: str) -> Any:
        with contextlib.closing(world.resource):
            world.resource.start = lambda: None
            answer = world.prepare("orders.0.1", branch := Branch(arrow(sent(df)), 1))
            if answer.status_code == 400:
                raise ConfigurationError(answer.get_json()["detail"])
            assert world.commit("orders.0.1", branch).status_code == 200
            ((value,),) = select(world.resource, sql)
        return value

    def table(self, df: Any) -> Any:
        world = tagged_rows(self._database)
        return self.service(world, df, "SELECT v FROM orders")

    def outbox(self, df: Any) -> Any:
        world = outbox(self._database)
        sql = f"SELECT body FROM {rows_table(world)}"
        return json.loads(self.service(world, df, sql))["v"]

    postgresql = sqlite = table


def sent(df: Any) -> pa.Table:
    batches = df.coalesce(1)._collect_as_arrow()
    return pa.Table.from_batches(check_values(batches))


def may_be_null(table: pa.Table) -> pa.Schema:
    """Return what SQL makes of its types: what is inside of a value may be null."""
    return pa.schema(map(with_nulls_inside, table.schema))


def same(one: Any, other: Any) -> bool:
    """Tell if two values are the same; NaN is."""
    return bool(one == other) or repr(one) == repr(other)


def test_the_manual_has_each_type():
    assert list(TABLE) == list(VALUES)


@pytest.mark.parametrize("head", HEADS[1:])
@pytest.mark.parametrize("kind", VALUES)
def test_values_at_a_sink(spark, tmp_path, kind, head):
    """As the manual's table has it; what is refused is taken with the cast it names."""
    as_the_manual_says(
        spark, Sinks(tmp_path / "1", sqlite_url(tmp_path), kind), kind, head
    )


@pytest.mark.ci
@pytest.mark.parametrize("head", ["PostgreSQL", "outbox"])
@pytest.mark.parametrize("kind", VALUES)
def test_values_on_postgresql(spark, tmp_path, kind, head, postgres_database):
    """Likewise."""
    sinks = Sinks(tmp_path / "1", postgres_database, kind)
    as_the_manual_says(spark, sinks, kind, head)


def as_the_manual_says(spark: Any, sinks: Sinks, kind: str, head: str) -> None:
    word, _, form = TABLE[kind][head].partition(" ")
    sink = getattr(sinks, head.lower())
    with session_setting(spark, "spark.sql.session.timeZone", "GMT+2"):
        try:
            df = spark.sql(f"SELECT {VALUES[kind]} AS v, 1 AS n")
            _ = df.schema
        except PySparkException as error:
            pytest.skip(f"Spark has no such type: {error!s:.80}")
        if word != "refused":
            expected = sent(df)["v"][0].as_py() if word == "kept" else None
            read = sink(df)
            forms = OTHER_FORMS[kind][form] if word == "as" else expected
            forms = forms if isinstance(forms, tuple) else (forms,)
            assert any(same(read, form) for form in forms), read
            return
        with pytest.raises(ConfigurationError, match=CAST) as caught:
            sink(df)
        assert "column" in str(caught.value), caught.value
        cast = CAST.search(str(caught.value))
        assert cast is not None
        sink(df.selectExpr(cast[1], "n"))


def test_a_member_of_a_struct_is_cast_as_it_is_said(spark):
    """By the line as it stands: SQL's CAST would make a column beside it."""
    first = spark.sql("SELECT named_struct('y', named_struct('x', 1L), 'z', 'a') AS s")
    then = spark.sql("SELECT named_struct('y', named_struct('x', 1), 'z', 'a') AS s")
    known = new_layout(sent(first).schema, "parquet", [], {})
    with pytest.raises(ConfigurationError) as caught:
        new_layout(sent(then).schema, "parquet", [], known)
    said = re.search(r"files: (\.withColumn\(.*?\));", str(caught.value))
    assert said is not None, caught.value
    mended = eval(f"then{said[1]}", {"then": then, "col": functions.col})
    assert new_layout(sent(mended).schema, "parquet", [], known) == {}


def test_services_refuse_a_type_that_pyarrow_cannot_read(spark, tmp_path):
    """Once and for all, whoever sends it."""
    df = spark.sql("SELECT INTERVAL '1' YEAR AS v")
    body = arrow(pa.Table.from_batches(df._collect_as_arrow()))
    for made in (tagged_rows, outbox):
        world = made(sqlite_url(tmp_path))
        with contextlib.closing(world.resource):
            answer = world.prepare("orders.0.1", Branch(body, 1))
        assert answer.status_code == 400
        assert "send CAST(v AS STRING)" in answer.get_json()["detail"]


@pytest.mark.parametrize(
    ("value", "says"),
    [
        ("CAST(X'61FF62' AS STRING)", "'v' has text that is no UTF-8.*AS BINARY"),
        ("INTERVAL '1' YEAR", "'v' is INTERVAL YEAR TO MONTH.*AS STRING"),
    ],
)
def test_executors_name_the_column(world, value, says):
    """They refuse what they cannot read, too, and nothing is committed."""
    write_numbers(world.folder, range(1))
    with failing_query(says):
        world.run(world.callback(), world.source().selectExpr("value", f"{value} AS v"))
    assert world.state("test.0.1") is TransactionState.ABORTED
