"""The readers of `make chaos`: each sees a lost number, and a doubled one."""

from __future__ import annotations

import json
import random
import sqlite3
from collections import Counter
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from deltalake import write_deltalake

from chaos import readers
from chaos.mixed import WAYS, Plan
from chaos.world import files_read


def _json(folder: Path, name: str, values: list[int], *, own: bool) -> None:
    text = json.dumps(values) if own else "\n".join(f'{{"value": {v}}}' for v in values)
    (folder / f"{name}.json").write_text(text)


def _write(kind: str, folder: Path, name: str, values: list[int]) -> None:
    """Let a folder hold these numbers, too."""
    folder.mkdir(exist_ok=True)
    if kind == "delta":
        rows = pa.table({"value": values, "part": [v % 3 for v in values]})
        write_deltalake(folder, rows, mode="append", partition_by=["part"])
    elif kind == "parquet":
        (folder / "part=0").mkdir(exist_ok=True)
        pq.write_table(pa.table({"value": values}), folder / f"part=0/{name}.parquet")
    else:
        _json(folder, name, values, own=kind == "own")


@pytest.mark.parametrize("kind", ["parquet", "lines", "delta", "own"])
def test_a_reader_of_a_folder_sees_what_is_lost_and_doubled(kind, tmp_path):
    """Planted: a row that is missing, and one that is there twice."""
    folder = tmp_path / kind
    _write(kind, folder, "first", [0, 1, 1])
    found = list(
        readers.differences(kind, readers.read(kind, folder), Counter(range(3)))
    )
    assert found == [f"{kind}: lost: 2", f"{kind}: doubled or foreign: 1"]


@pytest.mark.parametrize("kind", ["parquet", "lines", "delta", "own"])
def test_what_is_prepared_is_not_seen(kind, tmp_path):
    """Planted: files that are aside, or that the table's log does not list."""
    folder = tmp_path / kind
    _write(kind, folder, "first", [0, 1])
    _write("parquet" if kind == "delta" else kind, folder / ".tpc", "aside", [2])
    if kind == "delta":
        _write("parquet", folder, "unlisted", [3])
    assert readers.read(kind, folder) == Counter([0, 1])


def test_what_a_table_has_removed_is_not_seen(tmp_path):
    _write("delta", tmp_path, "first", [0, 1])
    rows = pa.table({"value": [2], "part": [2]})
    write_deltalake(tmp_path, rows, mode="overwrite")
    assert readers.delta(tmp_path) == Counter([2])


def test_a_reader_of_a_service_sees_what_is_lost_and_doubled():
    """By SQL."""
    connection: Any = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE numbers (value)")
    connection.executemany("INSERT INTO numbers VALUES (?)", [(0,), (1,), (1,)])
    found = list(readers.differences("a", readers.table(connection), Counter(range(3))))
    connection.close()
    assert found == ["a: lost: 2", "a: doubled or foreign: 1"]


def test_a_reader_of_rejected_rows_sees_what_is_lost_and_doubled():
    """By who rejected each."""
    connection: Any = sqlite3.connect(":memory:")
    connection.execute("CREATE TABLE rejected (participant, record)")
    rows = [("a", '{"value": 1}'), ("b", '{"value": 1}'), ("b", '{"value": 2}')]
    connection.executemany("INSERT INTO rejected VALUES (?, ?)", rows)
    wanted = Counter([("a", 1), ("b", 2), ("b", 3)])
    found = [*readers.differences("rejected", readers.rejected(connection), wanted)]
    connection.close()
    assert found == [
        "rejected: lost: ('b', 3)",
        "rejected: doubled or foreign: ('b', 1)",
    ]


def test_a_reader_of_a_topic_sees_what_is_lost_and_doubled():
    records = [b'{"value": 0}', b'{"value": 1}', b'{"value": 1}']
    found = list(readers.differences("t", readers.topic(records), Counter(range(3))))
    assert found == ["t: lost: 2", "t: doubled or foreign: 1"]


def test_a_seed_draws_the_same_members_again_and_each_of_them_in_time():
    """Each way in four rounds; each other member in some of a hundred."""
    drawn = [Plan.drawn(random.Random(f"7.{n}"), n) for n in range(100)]
    assert drawn == [Plan.drawn(random.Random(f"7.{n}"), n) for n in range(100)]
    assert {plan.way for plan in drawn[:4]} == set(WAYS)
    members = {member for plan in drawn for member in plan.members()}
    expected = {*WAYS, "parquet", "lines", "delta", "own", "RocksDB", "rejects"}
    expected |= {f"b by {transport}" for transport in ("http", "grpc", "nats")}
    assert expected <= members


def test_a_batch_of_two_files_ends_a_round(tmp_path):
    """Spark was killed when its source had noted the second, and the batch had not."""
    assert files_read(tmp_path) == 0
    for folder in ("commits", "offsets"):
        (tmp_path / folder).mkdir()
    assert files_read(tmp_path) == 0
    for batch, offset in enumerate([0, 2, 3]):
        text = f'v1\n{{"batchWatermarkMs":0}}\n{{"logOffset":{offset}}}'
        (tmp_path / "offsets" / f"{batch}").write_text(text)
    for name in ("0", "1", ".1.crc"):
        (tmp_path / "commits" / name).touch()
    assert files_read(tmp_path) == 3
