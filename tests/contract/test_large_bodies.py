"""Branches of several megabytes: on PostgreSQL they are written as they arrive."""

from __future__ import annotations

import contextlib
import hashlib
import os
import resource
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import psycopg
import pyarrow as pa
import pytest
from support.branches import Branch
from support.elsewhere import Holding, hold
from support.kinds import KINDS, sqlite_url, tagged_rows, variant
from support.participant import Upload, World, keep, rows_table
from support.programs import freeze
from support.telemetry import PATH
from support.waiting import AT_LAST, until

from tracing_2pc.core.content import ARROW, write_digest
from tracing_2pc.core.model import BranchId, TransactionId
from tracing_2pc.participant.answers import BranchRef
from tracing_2pc.participant.body import Body

T = "orders.7.1"
SCHEMA = pa.schema({"id": pa.int64(), "note": pa.string()})
ROWS = 5_000
"""Of a kilobyte each, in batches of a thousand."""


def large(branch: str = "0.1", note: str = "x", rows: int = ROWS) -> Branch:
    """Make a branch that arrives in pieces."""
    table = pa.table([range(rows), [note * 1_000] * rows], schema=SCHEMA)
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, SCHEMA) as writer:
        writer.write_table(table, max_chunksize=1_000)
    return Branch(sink.getvalue().to_pybytes(), rows, branch)


ONE, SAME_NAME = large(), large(note="y")
FIRST = len(ONE.body) // 2
"""Bytes after which a client makes a pause: COPY has begun."""


@contextlib.contextmanager
def in_copy(world: World) -> Iterator[Upload]:
    """Hold a prepare in the middle of its COPY."""
    upload = Upload(world, T, ONE, {}, large=False, first=FIRST)
    try:
        yield upload
    finally:
        upload.finish()


@pytest.fixture(
    params=[
        variant(kind, "postgresql")
        for kind in ("TaggedRows", "PreparedTransactions", "Outbox")
    ]
)
def made(request, postgres_database) -> Iterator[tuple[World, str, str]]:
    """A participant that has a table for such rows, and its database."""
    kind, _ = request.param
    world = KINDS[kind](postgres_database)
    keep(world, "orders.1.1", large(rows=1))
    yield world, kind, postgres_database
    world.resource.close()


COPIES = """
SELECT pid FROM pg_stat_activity WHERE datname = current_database()
AND query LIKE 'COPY%' AND state = 'active'
"""
OPEN = """
SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()
AND pid <> pg_backend_pid() AND xact_start IS NOT NULL
"""


def rows_there(world: World, url: str) -> int:
    """Count all rows of the table, hidden ones too."""
    with psycopg.connect(url) as person:
        found = person.execute(f"SELECT count(*) FROM {rows_table(world)}").fetchone()
    assert found is not None
    return int(found[0])


def test_it_is_written_while_it_arrives(made):
    """Nobody waits for it: not an abort, not the batch's next attempt, nor others."""
    world, _, url = made
    with in_copy(world) as upload:
        with psycopg.connect(url) as person:
            assert len(person.execute(COPIES).fetchall()) == 1
        for branch in (ONE, SAME_NAME):
            assert world.prepare(T, branch).status_code == 425
        assert world.prepare(T, large("0.2")).status_code == 200
        assert world.abort(T).status_code == 200
        keep(world, "orders.7.2", ONE)
        keep(world, "orders.8.1", ONE)
        assert upload.is_open
        assert upload.finish().status_code == 409
    assert (world.in_doubt(), world.visible()) == (0, 1 + 2 * ROWS)


@pytest.mark.parametrize("how", ["hangs up", "its session ends"])
def test_what_breaks_off_leaves_nothing(made, how):
    """Its transaction ends with it, and the same branch can be sent again."""
    world, _, url = made
    before = rows_there(world, url)
    with in_copy(world) as upload, psycopg.connect(url, autocommit=True) as person:
        if how == "hangs up":
            upload.break_off()
        else:
            ended = "SELECT pg_terminate_backend(pid) FROM ({}) copies"
            person.execute(ended.format(COPIES))  # type: ignore[arg-type]
        assert upload.finish().status_code == (400 if how == "hangs up" else 503)
        until(lambda: person.execute(OPEN).fetchone() == (0,))
    assert rows_there(world, url) == before
    assert world.listed() == []
    keep(world, T, ONE)
    assert world.visible() == 1 + ROWS


def test_a_worker_that_is_stopped_in_copy(made):
    """Others go on beside it; when it is killed its rows are gone."""
    world, kind, url = made
    before = rows_there(world, url)
    with Holding(__file__, kind, url, "half") as child:
        freeze(child.pid)
        assert world.prepare(T, ONE).status_code == 425
        keep(world, "orders.8.1", large(rows=1))
        assert world.abort(T).status_code == 200
        child.kill()
        child.wait(AT_LAST)
    with psycopg.connect(url, autocommit=True) as person:
        until(lambda: person.execute(OPEN).fetchone() == (0,))
    assert rows_there(world, url) == before + 1
    assert world.prepare(T, ONE).status_code == 409
    assert (world.in_doubt(), world.visible()) == (0, 2)


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["TaggedRows", "PreparedTransactions"])
def test_twenty_at_once(kind, postgres_database, start):
    """Each has its own transaction, and all of them commit together."""
    world = start(KINDS[kind], postgres_database)
    branches = [large(f"{n}.1") for n in range(20)]
    with ThreadPoolExecutor(len(branches)) as pool:
        answers = list(pool.map(lambda b: world.prepare(T, b), branches))
    assert {answer.status_code for answer in answers} == {200}
    assert world.commit(T, *branches).status_code == 200
    assert (world.in_doubt(), world.visible()) == (0, 20 * ROWS)


@pytest.mark.nightly
@pytest.mark.parametrize("kind", ["TaggedRows", "PreparedTransactions", "spooled"])
def test_memory_does_not_grow_with_a_body(kind, postgres_database, tmp_path):
    """200 MB in one partition take as much as 20 MB."""
    url = sqlite_url(tmp_path) if kind == "spooled" else postgres_database
    peaks = [int(run(kind, url, str(rows))) for rows in (20_000, 200_000)]
    assert peaks[1] < peaks[0] + (50 << 10)


def run(*arguments: str) -> str:
    """Run the main program below to its end; return what it says."""
    command = [sys.executable, __file__, *arguments]
    environment = {**os.environ, "PYTHONPATH": PATH}
    done = subprocess.run(command, env=environment, capture_output=True, check=True)
    return done.stdout.decode()


def main(kind: str, url: str, rows: str) -> None:
    """Hold an upload till this process is killed; or take so many, and tell memory."""
    world = KINDS.get(kind, tagged_rows)(url)
    if rows == "half":
        with in_copy(world):
            hold()
        return
    with tempfile.TemporaryFile() as file:
        with pa.ipc.new_stream(file, SCHEMA) as writer:
            for first in range(0, int(rows), 1_000):
                ids = range(first, first + 1_000)
                notes = ["x" * 1_000] * len(ids)
                writer.write_batch(pa.record_batch([ids, notes], SCHEMA))
        file.seek(0)
        sha256 = hashlib.sha256()
        for piece in iter(lambda: file.read(1 << 20), b""):
            sha256.update(piece)
        length, digest = file.tell(), write_digest(sha256.digest())
        file.seek(0)
        ref = BranchRef(BranchId(0, 1), int(rows), digest)
        body = Body(file, length, ARROW, digest)
        asked = (TransactionId("orders", int(rows), 1), "participant", ref, body)
        assert world.resource.prepare(*asked, {}).fields["vote"] == "commit"
    world.resource.close()
    sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


if __name__ == "__main__":
    main(*sys.argv[1:])
