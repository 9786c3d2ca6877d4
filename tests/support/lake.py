"""A catalog of Iceberg tables on SQLite, with its files in a folder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from pyarrow.fs import FileSelector
from pyiceberg.catalog import load_catalog
from pyiceberg.io.pyarrow import PyArrowFileIO

from support.waiting import PATIENT
from tracing_2pc import IcebergSink

NAME = "shop.orders"
SCHEMA = pa.schema([("id", pa.int64()), ("region", pa.string())])


def properties(folder: Path) -> dict[str, str]:
    uri = f"sqlite:///{folder}/catalog.db?timeout={PATIENT:.0f}"
    return {"type": "sql", "uri": uri, "warehouse": f"file://{folder}/lake"}


@dataclasses.dataclass(frozen=True)
class Lake:
    """A catalog on SQLite, and its tables in a folder, or where properties say."""

    folder: Path
    properties: Mapping[str, str] = dataclasses.field(default_factory=dict)

    @property
    def catalog(self) -> Any:
        own = properties(self.folder) | self.properties
        read = {n: os.environ.get(v.removeprefix("env:"), v) for n, v in own.items()}
        return load_catalog("lake", **read)

    def make(self, schema: Any = SCHEMA, name: str = NAME, **about: Any) -> Any:
        catalog = self.catalog
        catalog.create_namespace_if_not_exists("shop")
        return catalog.create_table(name, schema, **about)

    def table(self, name: str = NAME) -> Any:
        return self.catalog.load_table(name)

    def sink(self, kind: type[IcebergSink] = IcebergSink, *name: str, **about: Any):
        about["properties"] = properties(self.folder) | self.properties
        return kind("lake", NAME, *name, **about)

    def rows(self) -> list[dict[str, Any]]:
        return self.table().scan().to_arrow().sort_by("id").to_pylist()

    def visible(self) -> list[int]:
        """Return the ids that are read by metadata, and from its files by DuckDB."""
        files = [file.file.file_path for file in self.table().scan().plan_files()]
        seen = [row["id"] for row in self.rows()]
        query = "SELECT id FROM read_parquet(?) ORDER BY id"
        with duckdb.connect() as db:
            found = db.execute(query, [files]).fetchall() if files else []
        assert [n for (n,) in found] == seen
        return seen

    def left(self) -> list[str]:
        """Return the files that are prepared or left over, below where data is."""
        table = self.table()
        listed = {
            entry.data_file.file_path
            for snapshot in table.snapshots()
            for manifest in snapshot.manifests(table.io)
            for entry in manifest.fetch_manifest_entry(table.io, discard_deleted=False)
        }
        at = table.location() + "/data"
        scheme, netloc, path = PyArrowFileIO.parse_location(at)
        every = FileSelector(path, allow_not_found=True, recursive=True)
        files = table.io.fs_by_scheme(scheme, netloc).get_file_info(every)
        return sorted(
            file.base_name
            for file in files
            if file.extension in ("parquet", "avro")
            and at + file.path.removeprefix(path) not in listed
        )

    def append(self, *ids: int) -> None:
        """Append as another writer does."""
        region = pa.array(["other"] * len(ids), pa.string())
        self.table().append(pa.table({"id": [*ids], "region": region}))

    def roll_back(self, *, by: int = 1) -> None:
        """Take `main` back by so many snapshots."""
        table = self.table()
        snapshot = table.current_snapshot()
        for _ in range(by):
            snapshot = table.snapshot_by_id(snapshot.parent_snapshot_id)
        table.manage_snapshots().set_current_snapshot(snapshot.snapshot_id).commit()
