"""A token is rotated as the manual says, while a job writes: each row is there once."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from pathlib import Path

import pytest
from support.waiting import AT_LAST, until

from participants.processes import Ledger, free_ports, stopping
from tracing_2pc import ParticipantSink
from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.store import open_log
from tracing_2pc.testing import run_one_batch

OLD, NEW = "the-old-token-0123456789", "the-new-token-0123456789"
EACH = 3
"""Batches that are committed between two steps, at least."""


class Job:
    """Writes a row a batch, and each batch again until it is committed."""

    def __init__(self, folder: Path, url: str) -> None:
        self.token = folder / "token"
        self.committed = 0
        self._end = threading.Event()
        self._sink = ParticipantSink({"ledger": url}, token=f"file:{self.token}")
        self._log = f"sqlite:///{folder}/log.db"
        self._thread = threading.Thread(target=self._run)

    def _run(self) -> None:
        with closing(open_log(self._log)) as log:
            while not self._end.is_set():
                row = {"id": self.committed}
                try:
                    run_one_batch(self._sink, [row], log=log, batch=self.committed)
                    self.committed += 1
                except TwoPhaseError:
                    pass  # the service is being restarted: the query starts again

    def start(self) -> None:
        self._thread.start()

    def goes_on(self) -> None:
        """Wait until it has committed some more."""
        least = self.committed + EACH
        until(lambda: self.committed, lambda n: n >= least)

    def stop(self) -> None:
        self._end.set()
        self._thread.join(AT_LAST)


@pytest.mark.ci
def test_a_token_is_rotated_while_a_job_writes(tmp_path: Path) -> None:
    """Its successor beside it and a restart, the job moved, the old one gone."""
    tokens = tmp_path / "tokens"
    environment = {"TPC_TOKENS_FILE": str(tokens)}
    (port,) = free_ports(1)
    database, log = f"sqlite:///{tmp_path}/ledger.db", tmp_path / "ledger.log"
    service = Ledger(database, port, log, environment)
    job = Job(tmp_path, service.url)

    def restarted(*known: str) -> None:
        tokens.write_text("".join(f"job {token}\n" for token in known))
        service.stop()
        service.start()
        job.goes_on()

    tokens.write_text(f"job {OLD}\n")
    job.token.write_text(OLD)
    with stopping(service):
        service.start()
        job.start()
        try:
            job.goes_on()
            restarted(OLD, NEW)
            job.token.write_text(NEW)
            job.goes_on()
            restarted(NEW)
        finally:
            job.stop()
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as ledger:
        seen = ledger.execute("SELECT id FROM flights_daily ORDER BY id").fetchall()
    assert seen == [(n,) for n in range(job.committed)]
