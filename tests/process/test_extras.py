"""Every command, in an environment that has one extra and no other."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import metadata
from pathlib import Path
from typing import Final

import pytest
from support.programs import ran

ROOT: Final = Path(__file__).parents[2]
EXTRAS: Final = metadata("tracing-2pc").get_all("Provides-Extra")
MARKS: Final = {"postgres": (), "launch": pytest.mark.ci, "all": pytest.mark.ci}

ALONE: Final = r"""
import contextlib, importlib.metadata as installed, io, re, sys, traceback
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

def needed(extra):
    '''Name what `pip install tracing-2pc[extra]` installs.'''
    found, todo = set(), [("tracing-2pc", (extra,))]
    while todo:
        name, extras = todo.pop()
        if (name, extras) in found:
            continue
        found.add((name, extras))
        for text in installed.requires(name) or ():
            wanted = Requirement(text)
            asked = [{"extra": one} for one in ("", *extras)]
            if wanted.marker is None or any(map(wanted.marker.evaluate, asked)):
                with contextlib.suppress(installed.PackageNotFoundError):
                    canonical = canonicalize_name(wanted.name)
                    installed.distribution(canonical)
                    todo.append((canonical, tuple(wanted.extras)))
    return {name for name, _ in found}

class Refusing:
    '''Finds nothing of what another extra would have installed.'''
    def __init__(self, allowed):
        self.allowed = allowed
        self.owners = installed.packages_distributions()
    def find_spec(self, name, path=None, target=None):
        owners = self.owners.get(name.partition(".")[0], ())
        if owners and not self.allowed & set(map(canonicalize_name, owners)):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)

sys.meta_path.insert(0, Refusing(needed(sys.argv[1])))
for loaded in [n for n in sys.modules if n.partition(".")[0] == "packaging"]:
    del sys.modules[loaded]
"""
"""The extra that is named first is installed, and no other."""

PROGRAM: Final = r"""
from tracing_2pc.cli import main
from tracing_2pc.core.ports import Opening
from tracing_2pc.store import open_log

with contextlib.closing(open_log("sqlite:///log.db")) as log:
    opening = Opening(run="r", query="q", participants=["ledger"], carrier={})
    log.begin("orders", 0, opening)
for line in sys.argv[2].splitlines():
    said = io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(said):
        try:
            ended = main(line.split())
        except SystemExit as error:
            ended = error.code
        except BaseException:
            ended = traceback.format_exc()
    print(line, ended, said.getvalue().strip().replace("\n", " | "), sep=" -> ")
"""

COMMANDS: Final = """\
ls
show orders.0.1
explain orders.0.1
trace orders.0.1
advise --application orders
check
check --deep
check --deep --journal ledger=sqlite:///ledger.db
watch --once
watch --once --listen nowhere
console --listen nowhere
recover
resolve orders.0.1 --abort --reason because --yes
outbox ls
inbox ls --inbox sqlite:///inbox.db
forget --application orders --before 1d --dry-run
adopt --application other --checkpoint checkpoint
new project
init --log sqlite:///log.db
launch job.yaml --dry-run
await-launch orders.0.1
operator run --namespace nowhere
operator manifests --image registry:5000/tpc@sha256:0
serve ledger
serve ledger --grpc
serve ledger --nats nats://127.0.0.1:9/ledger
demo --batches none"""


NEEDING: Final = {
    "postgres": {"check", "console", "launch", "operator", "serve"},
    "launch": {"console", "serve"},
    "participant": {"launch", "operator", "serve"},
    "all": set[str](),
}
"""Which commands lack something with an extra alone."""


@pytest.mark.parametrize(
    "extra",
    [pytest.param(e, marks=MARKS.get(e, pytest.mark.nightly)) for e in EXTRAS],
)
def test_every_command_says_which_extra_it_needs(extra, tmp_path, monkeypatch):
    """It works, or ends in one line that names the extra to install."""
    monkeypatch.chdir(tmp_path)
    Path("job.yaml").write_text("name: totals\n")
    for name, value in {
        "TPC_LOG": "sqlite:///log.db",
        "TPC_TOKEN": "not-looked-at",
        "TPC_PARTICIPANTS": "ledger=http://127.0.0.1:9",
        "PYTHONPATH": str(ROOT),
        "KUBECONFIG": "nowhere",
    }.items():
        monkeypatch.setenv(name, value)
    command = [sys.executable, "-c", ALONE + PROGRAM, extra, COMMANDS]
    told = subprocess.run(command, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    lines = [line.split(" -> ", 2) for line in told.stdout.splitlines()]
    assert [line[0] for line in lines] == COMMANDS.splitlines(), told.stdout
    for command_line, ended, said in lines:
        assert ended in {"0", "1", "2"}, (command_line, ended)
        assert "Traceback" not in said, (command_line, said)
        assert "No module" not in said, (command_line, said)
        if " needs " in said and "pip install" in said:
            assert said.count(" | ") == 0, said
    needing = {line[0] for line in lines if "pip install" in line[2]}
    first = {line.partition(" ")[0] for line in needing}
    assert first == NEEDING.get(extra, first), needing


@pytest.mark.parametrize("extra", ["spark", "script"])
def test_a_table_of_sqlite_and_a_folder_need_no_other_extra(extra, tmp_path):
    """A row is in both, where no driver of another database is installed."""
    program = """
from tracing_2pc import FileSink, TableSink, write
sinks = [TableSink("sqlite:///shop.db", "orders"), FileSink("out")]
assert write(sinks, [{"id": 1}], application="orders", batch=0, log="sqlite:///log.db")
"""
    told = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = ran([sys.executable, "-c", ALONE + program, extra], cwd=tmp_path, env=told)
    assert (done.returncode, done.stderr) == (0, "")
    assert len(list(tmp_path.glob("out/*.parquet"))) == 1
