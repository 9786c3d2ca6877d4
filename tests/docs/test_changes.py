"""What the pages about changes say is done, and readers notice nothing of it."""

from __future__ import annotations

import contextlib
import shlex
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pyarrow as pa
import pytest
import uvicorn
from manual import blocks, page
from support.waiting import AT_LAST, until

from tracing_2pc import ParticipantSink, Settings
from tracing_2pc.cli import main
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.states import TransactionState
from tracing_2pc.participant import TaggedRows
from tracing_2pc.sinks.job import Job
from tracing_2pc.store import open_log
from tracing_2pc.testing import run_one_batch, served, temporary_log
from tracing_2pc.testing.sink_job import Tasks
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


class Reader(threading.Thread):
    """Reads the view without a pause, as another role, until it is told to end."""

    def __init__(self, url: str) -> None:
        super().__init__()
        self.url, self.ended = url, threading.Event()
        self.seen: list[int] = []
        self.failed: list[Exception] = []

    def run(self) -> None:
        with psycopg.connect(self.url, autocommit=True) as connection:
            while not self.ended.is_set():
                try:
                    rows = connection.execute("SELECT id FROM orders").fetchall()
                    self.seen.append(len(rows))
                except psycopg.Error as error:
                    self.failed.append(error)

    def sees(self, rows: int) -> None:
        until(lambda: self.failed or self.seen[-1:] == [rows])
        assert self.failed == []


@pytest.fixture
def database(postgres_database) -> Iterator[psycopg.Connection[Any]]:
    with psycopg.connect(postgres_database, autocommit=True) as connection:
        yield connection


@pytest.mark.ci
@pytest.mark.parametrize("key", [None, ["id"]], ids=["", "with a key"])
def test_a_column_is_added_while_readers_read(postgres_database, database, key):
    """By the SQL of the page, the view's own where it has a key: no reader fails, what
    was granted stays, and a batch that comes too early is aborted and loses nothing."""
    url = postgres_database.replace("postgresql:", "postgresql+psycopg:")
    table, view, view_by_key = blocks(page("adding-a-column"), "sql")
    log = temporary_log()
    database.execute("CREATE ROLE reporting LOGIN")
    with served(TaggedRows(url, table="orders", key=key)) as address:
        sink = ParticipantSink({"ledger": address}, token=None)
        assert run_one_batch(sink, [{"id": 1}], log=log)
        database.execute("GRANT SELECT ON orders TO reporting")
        reader = Reader(postgres_database.replace("postgres@", "reporting@"))
        reader.start()
        try:
            reader.sees(1)
            new = [{"id": 2, "note": "x"}]
            with pytest.raises(TwoPhaseError, match="note"):
                run_one_batch(sink, new, log=log, batch=1)
            database.execute(table)
            assert run_one_batch(sink, new, log=log, batch=1)
            database.execute(view_by_key if key else view)
            with psycopg.connect(reader.url) as another:
                shown = another.execute("SELECT note FROM orders ORDER BY id")
                assert shown.fetchall() == [(None,), ("x",)]
            reader.sees(2)
            assert run_one_batch(sink, [{"id": 3, "note": "y"}], log=log, batch=2)
            reader.sees(3)
        finally:
            reader.ended.set()
            reader.join(AT_LAST)
        assert reader.failed == []
    with served(TaggedRows(url, table="orders", key=key)):  # it takes it at a restart
        rows = database.execute("SELECT id, note FROM orders ORDER BY id").fetchall()
    assert rows == [(1, None), (2, "x"), (3, "y")]
    database.execute("DROP OWNED BY reporting; DROP ROLE reporting")


def test_old_rows_are_deleted_beside_a_batch_that_is_prepared(
    postgres_database, database
):
    """By the SQL of the page: what is prepared is committed whole, and a replay of the
    batch whose rows are gone writes nothing."""
    url = postgres_database.replace("postgresql:", "postgresql+psycopg:")
    delete, _ = blocks(page("deleting-rows"), "sql")
    settings = Settings(log=temporary_log().address)
    old = pa.RecordBatch.from_pydict({"ordered_on": ["2024-12-31", "2025-03-01"]})
    with (
        served(TaggedRows(url, table="orders")) as address,
        contextlib.closing(open_log(settings.log or "")) as log,
    ):
        sink = ParticipantSink({"ledger": address}, token=None)
        job = Job.of(sink, "orders", settings)
        coordinator = job.coordinator(log, OpenTelemetryTracing(), lambda: False)

        def prepare(batch: int) -> Any:
            record = coordinator.open(batch, "run", None).record
            return record, Tasks(job.sink, record).write_arrow("0.0", [old])

        coordinator.close(*prepare(0))
        record, receipts = prepare(1)
        assert database.execute(delete).rowcount == 1
        coordinator.close(record, receipts)
        assert log.read(record.id).state is TransactionState.COMMITTED
        days = "SELECT ordered_on FROM orders ORDER BY 1"
        shown = ["2024-12-31", "2025-03-01", "2025-03-01"]
        assert [day for (day,) in database.execute(days)] == shown
        assert database.execute(delete).rowcount == 1
        assert coordinator.open(1, "later", None).replay
        assert [day for (day,) in database.execute(days)] == shown[1:]


def test_deletions_that_hide_nothing_are_deleted(postgres_database, database):
    """By the SQL of the page: one that hides an older row stays as long as that."""
    _, delete = blocks(page("deleting-rows"), "sql")
    mark = "&" if "?" in postgres_database else "?"
    address = f"{postgres_database}{mark}table=orders&key=id&deleted=gone"
    sink, log = ParticipantSink({"orders": address}), temporary_log()
    batches = [{"a": False, "b": False}, {"a": True, "c": True}, {"b": False}]
    sink.check("test")
    for number, keys in enumerate(batches):
        rows = [{"id": key, "gone": gone} for key, gone in keys.items()]
        assert run_one_batch(sink, rows, log=log, batch=number)
        assert database.execute(delete).rowcount == min(number, 1)
        shown = database.execute("SELECT id FROM orders ORDER BY id").fetchall()
        assert shown == [("a",), ("b",)][bool(number) :]


def test_an_application_is_retired(tmp_path, monkeypatch, capsys):
    """By the commands of the page; what is left refuses an old checkpoint."""
    monkeypatch.chdir(tmp_path)
    log = open_log("sqlite:///log.db")
    with contextlib.closing(log), served(TaggedRows("sqlite:///l.db", "orders")) as url:
        monkeypatch.setenv("TPC_LOG", "sqlite:///log.db")
        monkeypatch.setenv("TPC_TOKEN", "not-looked-at")
        monkeypatch.setenv("TPC_PARTICIPANTS", f"ledger={url}")
        sink = ParticipantSink({"ledger": url}, token=None)
        for batch in range(3):
            run_one_batch(
                sink, [{"id": batch}], application="orders", batch=batch, log=log
            )
        typed = "".join(blocks(page("retiring-an-application"), "sh")).splitlines()
        assert len(typed) == 5
        for line in typed:
            assert main(shlex.split(line)[1:]) == 0, line
        capsys.readouterr()
        with pytest.raises(TwoPhaseError):
            run_one_batch(sink, [{"id": 0}], application="orders", batch=0, log=log)


def test_a_participant_in_a_fastapi_application(tmp_path, monkeypatch):
    """The page's program under uvicorn: batches land, and its other route answers."""
    import urllib3

    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TPC_TOKENS_FILE", str(tmp_path / "tokens"))
    (tmp_path / "tokens").write_text("job a-token-of-a-job-0123456789\n")
    monkeypatch.setenv("TPC_TOKEN", "a-token-of-a-job-0123456789")
    (program,) = blocks(page("fastapi"), "python")
    names: dict[str, Any] = {"__name__": __name__}
    exec(program, names)
    config = uvicorn.Config(names["api"], port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started)
        host, port = server.servers[0].sockets[0].getsockname()
        base = f"http://{host}:{port}"
        log, sink = temporary_log(), ParticipantSink({"ledger": f"{base}/2pc"})
        assert run_one_batch(sink, [{"id": 1}], [{"id": 2}], log=log)
        assert not run_one_batch(sink, [{"id": 1}], [{"id": 2}], log=log)
        with urllib3.PoolManager() as http:
            assert http.request("GET", f"{base}/hello").status == 200
            refused = http.request("POST", f"{base}/2pc/commit", body=b"{}")
            assert refused.status == 401
    finally:
        server.should_exit = True
        thread.join(AT_LAST)
    import sqlite3

    with contextlib.closing(sqlite3.connect("ledger.db")) as database:
        assert database.execute("SELECT id FROM orders ORDER BY id").fetchall() == [
            (1,),
            (2,),
        ]
