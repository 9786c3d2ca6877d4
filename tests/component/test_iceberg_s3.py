"""`IcebergSink` on an object store, the S3 of moto's server: nothing is shared."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from support.file_job import FileJob, ids_of, prepared, rows_of
from support.lake import Lake
from support.s3 import BUCKET, REGION, S3, SECRET, s3

from tracing_2pc.core.model import TransactionId
from tracing_2pc.testing import SinkContract

T = TransactionId("orders", 0, 1)


@pytest.fixture(scope="module")
def store() -> Iterator[S3]:
    with s3() as served:
        yield served


@pytest.fixture
def denied(store: S3) -> Iterator[S3]:
    """Deny to delete, as a policy without s3:DeleteObject, until it is healed."""
    store.fail("^DELETE ", "denied", times=1_000_000)
    yield store
    store.heal()


def on_s3(folder: Path, store: S3) -> Lake:
    about = {
        "warehouse": f"s3://{BUCKET}{folder}",
        "s3.endpoint": store.url,
        "s3.region": REGION,
        "s3.access-key-id": SECRET,
        "s3.secret-access-key": "env:LAKE_SECRET",
    }
    return Lake(folder, about)


@pytest.fixture(autouse=True)
def _secret(monkeypatch) -> None:
    monkeypatch.setenv("LAKE_SECRET", SECRET)


@pytest.mark.ci
class TestIcebergSinkOnS3(SinkContract):
    """The promises of any sink."""

    @pytest.fixture
    def where(self, tmp_path: Path, store: S3) -> Lake:
        lake = on_s3(tmp_path / "lake", store)
        lake.folder.mkdir()
        lake.make(pa.schema([("id", pa.int64()), ("amount", pa.float64())]))
        return lake

    def make_sink(self, where: Lake) -> Any:
        return where.sink()

    def visible(self, where: Lake) -> Iterable[Mapping[str, Any]]:
        return where.rows()

    def leftovers(self, where: Lake) -> Iterable[Any]:
        return where.left()


def test_a_job_writes_objects(tmp_path, store, log):
    """No folder is made, and nothing but the objects of its batches stays."""
    lake = on_s3(tmp_path, store)
    lake.make()
    sink = lake.sink(evolve="add")
    sink.check_job("orders")
    for batch in range(2):
        FileJob(sink, log).apply(batch)
    assert [row["id"] for row in lake.rows()] == ids_of(0, 1)
    assert (lake.left(), [*tmp_path.glob("lake*")]) == ([], [])


def test_what_was_removed_is_named(tmp_path, store):
    """Nothing is listed of a transaction of which an object is gone."""
    lake = on_s3(tmp_path, store)
    lake.make()
    sink = lake.sink()
    handle = prepared(sink)
    sink._folder._delete([sink._folder.location(handle.paths[0])])
    with pytest.raises(Exception, match="is gone, and the table does not have it"):
        sink.commit_transaction(str(T), [handle])
    sink.abort_transaction(str(T), [])
    assert (lake.rows(), lake.left()) == ([], [])
    of = TransactionId("orders", 1, 1)
    sink.commit_transaction(str(of), [prepared(sink, rows_of(1)[0], of=of)])
    assert [row["id"] for row in lake.rows()] == ids_of(1)[:2]


def test_a_store_that_denies_to_delete_holds_nothing_back(
    tmp_path, denied, log, caplog
):
    """An abort and a commit are acknowledged, with a line of what stays where."""
    lake = on_s3(tmp_path, denied)
    lake.make()
    orders = FileJob(lake.sink(), log)
    with pytest.raises(RuntimeError, match="a user's function"):
        orders.apply(0, fails=True)
    orders.apply(0)
    orders.apply(1)
    assert log.unfinished("orders") == []
    assert [row["id"] for row in lake.rows()] == ids_of(0, 1)
    lines = [r.getMessage() for r in caplog.records if "files left" in r.message]
    place = f"{lake.table().location()}/data/[._]tpc/"
    assert [line.partition(" participant=")[0][12:] for line in lines] == [
        f"table=lake.shop.orders transaction=orders.{n}" for n in ("0.1", "0.2", "1.1")
    ]
    for line in lines:
        assert f"participant=iceberg place={place}" in line
        assert "this may not be removed" in line
        assert "\n" not in line
    assert len(lake.left()) == 2 * 3 * 2 - 4
    denied.heal()
    orders.apply(2)
    assert [row["id"] for row in lake.rows()] == ids_of(0, 1, 2)
    assert lake.left() == []
