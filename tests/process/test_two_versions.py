"""This version and the next one side by side, as `docs/upgrading.md` allows it."""

from __future__ import annotations

import json
import os
import signal
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Final

import pytest
import sqlalchemy as sa
import urllib3
from support.versions import make_versions

from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.store import open_log

SERVICE: Final = """
import sys
from tracing_2pc.participant import TaggedRows
from tracing_2pc.testing import served
with served(TaggedRows("sqlite:///ledger.db", table="orders"), "ledger") as url:
    print(url, flush=True)
    sys.stdin.read()
"""
DRIVER: Final = """
import sys
from importlib.metadata import version
from tracing_2pc import ParticipantSink
from tracing_2pc.store import open_log
from tracing_2pc.testing import run_one_batch
url, batch, log = sys.argv[1], int(sys.argv[2]), sys.argv[3]
print(version("tracing-2pc"), flush=True)
sink = ParticipantSink({"ledger": url}, token=None)
log = open_log(log)
run_one_batch(sink, [{"id": batch}], application="orders", batch=batch, log=log)
"""
LAST: Final = "orders.3.1"
STATES: Final = {
    "orders.0.1": TransactionState.COMMITTED,
    "orders.1.1": TransactionState.ABORTED,
    "orders.1.2": TransactionState.COMMITTED,
    "orders.2.1": TransactionState.COMMITTED,
    LAST: TransactionState.COMMITTED,
}


@pytest.fixture(scope="module")
def versions(tmp_path_factory) -> dict[str, Path]:
    return make_versions(tmp_path_factory.mktemp("versions"))


class Versions:
    """Programs of one version or the other, in a folder of their own."""

    def __init__(self, versions: dict[str, Path], folder: Path, log: str) -> None:
        self._versions, self._folder, self._log = versions, folder, log

    def start(self, version: str, *command: str, **more: str) -> subprocess.Popen[str]:
        """Start Python in a group of its own, which a failpoint kills."""
        environment = {**os.environ, "PYTHONPATH": str(self._versions[version]), **more}
        return subprocess.Popen(
            [sys.executable, *command],
            cwd=self._folder,
            env=environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )

    def run(self, version: str, *command: str, **more: str) -> tuple[int, str]:
        """Run a program to its end; return how it ended, and what it said."""
        with self.start(version, *command, **more) as process:
            said, _ = process.communicate()
        return process.returncode, said

    def write(self, version: str, url: str, batch: int, failpoint: str = "") -> int:
        """Write a batch by a driver of a version; return how it ended."""
        more = {}
        if failpoint:
            file = str(self._folder / failpoint)
            more = {"TPC_FAILPOINT": failpoint, "TPC_FAILPOINT_FILE": file}
        about = (url, str(batch), self._log)
        ended, said = self.run(version, "-c", DRIVER, *about, **more)
        assert said == f"{version}\n"
        return ended

    @contextmanager
    def service(self, version: str) -> Iterator[str]:
        """Run a participant of a version; yield its URL."""
        with self.start(version, "-c", SERVICE) as process:
            assert process.stdout is not None
            url = process.stdout.readline().strip()
            assert urllib3.request("GET", f"{url}/whoami").json()["version"] == version
            yield url
            process.communicate()


@pytest.fixture(
    params=[
        pytest.param(("0.1.0", "0.2.0", "sqlite"), marks=pytest.mark.ci),
        pytest.param(("0.2.0", "0.1.0", "postgresql"), marks=pytest.mark.ci),
        pytest.param(("0.1.0", "0.2.0", "postgresql"), marks=pytest.mark.nightly),
        pytest.param(("0.2.0", "0.1.0", "sqlite"), marks=pytest.mark.nightly),
    ],
    ids=lambda param: "-".join(param),
)
def order(request, tmp_path) -> tuple[str, str, str]:
    """The version that begins, the other one, and the URL of their decision log."""
    ours, theirs, kind = request.param
    if kind == "postgresql":
        return ours, theirs, request.getfixturevalue("postgres_database")
    return ours, theirs, f"sqlite:///{tmp_path}/log.db"


def test_two_versions(versions, tmp_path, order):
    """A driver of one version commits at a participant of the other. What it leaves
    undecided, a driver of the other version writes again; what it leaves decided, a
    recovery of the other delivers; and the participant may change its version then.

    One more fact is stored by the version that knows it, and kept by the other.
    """
    ours, theirs, log_url = order
    both = Versions(versions, tmp_path, log_url)
    with both.service(theirs) as url:
        assert both.write(ours, url, 0) == 0
        answer = urllib3.request("GET", f"{url}/transactions/orders.0.1").json()
        assert ("next" in answer) is (theirs == "0.2.0")
        assert both.write(ours, url, 1, "driver.before_decide") == -signal.SIGKILL
        assert both.write(theirs, url, 1) == 0
        assert both.write(ours, url, 2, "driver.after_decide") == -signal.SIGKILL
    with both.service(ours) as url:
        here = {
            "TPC_TOKEN": "not-looked-at",
            "TPC_LOG": log_url,
            "TPC_PARTICIPANTS": f"ledger={url}",
        }
        recovered, said = both.run(theirs, "-m", "tracing_2pc", "recover", **here)
        assert recovered == 0, said
        assert both.write(theirs, url, 3) == 0
        shown, said = both.run(
            "0.2.0", "-m", "tracing_2pc", "show", LAST, "--json", **here
        )
        known = "north" if theirs == "0.2.0" else None
        assert (shown, json.loads(said)["record"]["region"]) == (0, known)
    with closing(open_log(log_url)) as log:
        for name, state in STATES.items():
            record = log.read(TransactionId.parse(name))
            assert record is not None
            assert record.state is state, name
        asked = sa.text("SELECT id, region FROM tpc_transaction ORDER BY id")
        regions = dict(map(tuple, log._ask(asked)))
    assert regions == {
        name: "north" if version == "0.2.0" else None
        for name, version in zip(
            STATES, (ours, ours, theirs, ours, theirs), strict=True
        )
    }
    with closing(sqlite3.connect(tmp_path / "ledger.db")) as database:
        rows = database.execute("SELECT id FROM orders ORDER BY id").fetchall()
        names = database.execute(
            "SELECT name FROM pragma_table_info('orders_tpc_branch')"
        )
        assert rows == [(0,), (1,), (2,), (3,)]
        assert ("next",) in names.fetchall()
