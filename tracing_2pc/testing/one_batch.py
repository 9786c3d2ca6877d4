"""A job's test without Spark: participants in this process, and one batch for them."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from tracing_2pc.sinks.base import before_tasks
from tracing_2pc.sinks.composite import as_single_sink
from tracing_2pc.sinks.script import to_table
from tracing_2pc.store import SqlDecisionLog
from tracing_2pc.testing.sink_job import SinkJob, Tasks
from tracing_2pc.testing.temporary_log import temporary_log

if TYPE_CHECKING:
    from tracing_2pc.core.model import Receipt
    from tracing_2pc.participant.engine import ParticipantEngine
    from tracing_2pc.sinks.base import Sink


@contextlib.contextmanager
def served(resource: ParticipantEngine, name: str = "participant") -> Iterator[str]:
    """Serve a participant's resource from threads of this process; yield its URL.

    It listens on 127.0.0.1, and asks for no token. At the end begun requests are
    answered, no thread is left, and the resource is closed.

    Args:
        resource: as `TaggedRows(...)`, or one of your own.
        name: in its spans.
    """
    from flask import Flask
    from werkzeug.serving import make_server

    from tracing_2pc.http.server import participant_blueprint

    app = Flask(name)
    app.register_blueprint(participant_blueprint(resource, insecure=True, name=name))
    server: Any = make_server("127.0.0.1", 0, app, threaded=True)
    server.daemon_threads = False  # its end waits for them
    thread = threading.Thread(target=server.serve_forever, args=(0.05,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        resource.close()


def run_one_batch(
    sink: Sink | Sequence[Sink],
    *partitions: Sequence[Mapping[str, Any]],
    application: str = "test",
    batch: int = 0,
    log: SqlDecisionLog | None = None,
) -> bool:
    """Write a batch as a job does, with the real coordinator and without Spark.

    Args:
        sink: the job's sink, or several.
        partitions: records by column; each partition is a task. All have the columns
            that any has, as the rows of one DataFrame: missing values are null.
        application: the application of the batch.
        batch: its number. A batch that this log has committed is a replay, as after a
            driver's restart: False is returned, and nothing is written.
        log: the decision log; by default an empty one, which is gone afterwards.

    Raises:
        ConfigurationError: the values of a column have no type in common.
        TwoPhaseError: as in a job: it was aborted, and nothing of it is to be seen; or
            `CommitPendingError`, it is committed, and a participant has not
            acknowledged it.
    """
    single_sink = as_single_sink(sink)
    job = SinkJob(single_sink, log or temporary_log(), application)
    table = to_table(itertools.chain(*partitions))
    rows = iter(table.to_batches(max_chunksize=1))
    branches = {
        f"{n}.0": [next(rows) for _ in part] for n, part in enumerate(partitions)
    }

    def write(tasks: Tasks) -> list[Receipt]:
        before_tasks(single_sink, lambda: table.schema)
        return [r for b in branches for r in tasks.write_arrow(b, branches[b])]

    return job.apply(batch, write)
