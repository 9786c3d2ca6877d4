"""What becomes of Spark's values at each sink, and what readers read of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import duckdb
import pandas as pd
import pytest

from tracing_2pc import FileSink
from tracing_2pc.core.model import BranchContext, BranchId, TransactionId
from tracing_2pc.sinks.base import participants_of, write_branch

pytestmark = pytest.mark.spark

PAGE = (Path(__file__).parents[2] / "docs" / "sink.md").read_text(encoding="utf-8")
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


def test_csv_is_read_back_as_the_manual_says(spark: Any, tmp_path: Path) -> None:
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
