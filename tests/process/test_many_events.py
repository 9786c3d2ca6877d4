"""Many events through one inbox: the memory for them has a limit."""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

import pytest
from support.kinds import sqlite_url
from support.programs import ran

ROOT = Path(__file__).parents[2]
LINES, BATCH = 1_000, 50_000


@pytest.mark.parametrize(
    "most",
    [
        pytest.param(20_000, marks=pytest.mark.ci),
        pytest.param(1_000_000, marks=pytest.mark.nightly),
    ],
)
def test_many_events(tmp_path, most):
    """Sent as lines, and read by Spark's source in ranges: each once, in order, and in
    as much memory as a tenth of them needs."""
    peaks = []
    for count in (most // 10, most):
        folder = tmp_path / str(count)
        folder.mkdir()
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        command = [sys.executable, __file__, sqlite_url(folder), str(count)]
        done = ran(command, cwd=ROOT, env=environment)
        assert done.returncode == 0, done.stderr
        peaks.append(int(done.stdout))
    assert peaks[1] < peaks[0] + (50 << 10)


def main(url: str, count: int) -> None:
    """Send so many and read them; tell the most memory that it took, in KiB."""
    from flask import Flask
    from pyspark.sql.streaming.datasource import ReadMaxRows

    from tracing_2pc.http.events import events_blueprint
    from tracing_2pc.inbox import Inbox
    from tracing_2pc.spark.inbox_source import InboxSource

    inbox, app = Inbox(url), Flask(__name__)
    app.register_blueprint(events_blueprint(inbox, insecure=True))
    client = app.test_client()
    for first in range(1, count, LINES):
        lines = (
            json.dumps({"id": f"e{n}", "payload": {"of": n, "text": "x" * 100}})
            for n in range(first, first + LINES)
        )
        kind = "application/x-ndjson"
        answer = client.post("/events", data="\n".join(lines), content_type=kind)
        assert answer.status_code == 202, answer.json
    source = InboxSource({"url": url, "reader": "all"})
    reader, read = source.streamReader(source.schema()), 0
    start = reader.initialOffset()
    while (end := reader.latestOffset(start, ReadMaxRows(BATCH))) != start:
        for part in reader.partitions(start, end):
            for rows in reader.read(part):
                wanted = range(read + 1, read + 1 + rows.num_rows)
                assert rows.column("position").to_pylist() == [*wanted]
                assert rows.column("id").to_pylist() == [f"e{n}" for n in wanted]
                read += rows.num_rows
        reader.commit(end)
        start = end
    assert read == count
    reader.stop()
    inbox.close()
    sys.stdout.write(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
