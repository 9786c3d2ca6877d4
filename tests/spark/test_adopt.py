"""Real Spark, and the decision log is deleted: the way out of the manual, as written.

*After a lost log* in `docs/operating.md` says what is done here, in this order.
"""

from __future__ import annotations

import contextlib
import json
import shlex
import sqlite3
from pathlib import Path
from typing import Any

import pytest
from support.spark import held, numbers_of
from support.telemetry import PATH
from support.waiting import AT_LAST

from participants.processes import Process, stopping
from tracing_2pc.cli import main
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.store import open_log

BATCHES = 3
pytestmark = pytest.mark.spark

EVERYWHERE, NOWHERE = "driver.after_finish:2", "driver.after_decide:2"
"""Where the job is killed: Spark has not committed batch 1, the participants have it
both; or have it prepared, and the commit that was decided was told to nobody."""


@pytest.mark.parametrize(
    ("killed", "held_then", "written_as"),
    [
        pytest.param(
            EVERYWHERE,
            2,
            "crash.1.1",
            id="committed everywhere",
            marks=pytest.mark.nightly,
        ),
        pytest.param(NOWHERE, 1, "crash.1.2", id="committed nowhere"),
    ],
)
def test_a_job_goes_on_after_its_log_was_deleted(
    tmp_path, command, monkeypatch, capsys, killed, held_then, written_as
):
    """Refused without its log; adopted, it writes every row once, at both."""
    job = Process("job", command, tmp_path / "job.log", {"PYTHONPATH": PATH})
    url = f"sqlite:///{tmp_path / 'log.db'}"
    a, b = command[-2:]
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TPC_LOG", url)
    monkeypatch.setenv("TPC_TOKEN", "a-token-of-an-operator")
    monkeypatch.setenv("TPC_PARTICIPANTS", f"a={a},b={b}")
    known = ("--application", "crash", "--checkpoint", str(tmp_path / "checkpoint"))
    adopt = ("adopt", *known, "--json")

    def says(*words: str) -> tuple[int, dict[str, Any]]:
        capsys.readouterr()
        code = main(words)
        return code, json.loads(capsys.readouterr().out)

    def rows() -> tuple[Any, Any]:
        return held(tmp_path / "a.db"), held(tmp_path / "b.db")

    with stopping(job):
        file = str(tmp_path / "killed")
        job.start(TPC_FAILPOINT=killed, TPC_FAILPOINT_FILE=file)
        assert job.wait(AT_LAST) == -9, job.tail()
        assert rows() == (numbers_of(held_then), numbers_of(held_then))

        for part in tmp_path.glob("log.db*"):
            part.unlink()
        job.start()
        assert job.wait(AT_LAST) == 1, job.tail()
        assert "tracing-2pc adopt --application crash --checkpoint" in job.tail()

        code, plan = says(*adopt)
        assert (code, plan["in_flight"], plan["written"]) == (0, True, False)
        reason = ("--reason", "the log's disk is gone")
        code, done = says(*adopt, "--yes", *reason)
        assert (code, done) == (0, {**plan, "written": True})
        assert len(done["orphans"]) == (0 if killed == EVERYWHERE else 2)
        for orphan in done["orphans"]:
            age(tmp_path / f"{orphan['participant']}.db")
            words = shlex.split(orphan["command"])[1:]
            code, resolved = says(*words, "--yes", "--json")
            assert (code, resolved["state"]) == (0, "aborted")

        job.start()
        assert job.wait(AT_LAST) == 0, job.tail()
        assert rows() == (numbers_of(BATCHES), numbers_of(BATCHES))

    with contextlib.closing(open_log(url)) as log:
        assert log.unfinished() == []
        record = log.read(TransactionId.parse(written_as))
        assert record is not None
        assert record.state is TransactionState.COMMITTED


def age(journal: Path) -> None:
    """Let what is prepared be an hour old: younger ones are not resolved by hand."""
    with contextlib.closing(sqlite3.connect(journal)) as connection:
        connection.execute("UPDATE numbers_tpc_branch SET since = since - 3600")
        connection.commit()
