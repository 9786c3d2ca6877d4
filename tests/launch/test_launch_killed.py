"""A launch that is killed anywhere is whole, or nothing of it is left."""

from __future__ import annotations

import contextlib
import dataclasses
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import sqlalchemy as sa
from support.programs import ran
from support.versions import make_versions
from support.waiting import AT_LAST, until

from participants import flights
from participants.demo import Demo
from participants.oracle import judge
from participants.processes import start_together, stopping
from tracing_2pc.core.log_reader import TransactionFilter
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.ports import Opening
from tracing_2pc.core.states import Decision, TransactionState
from tracing_2pc.store import open_log
from tracing_2pc.store.log.records import checksum_of
from tracing_2pc.store.log.schema import transaction

DAYS = range(1, 4)
CI, NIGHTLY = pytest.mark.ci, pytest.mark.nightly
UNDECIDED = [
    pytest.param("driver.after_begin", marks=NIGHTLY),
    pytest.param("executor.before_pre_commit", marks=NIGHTLY),
    pytest.param("launch.after_push", marks=CI),
    pytest.param("launch.after_create", marks=CI),
    pytest.param("executor.after_pre_commit", marks=NIGHTLY),
    pytest.param("driver.after_votes", marks=CI),
    pytest.param("driver.before_decide", marks=NIGHTLY),
]
DECIDED = [
    pytest.param("driver.after_decide", marks=NIGHTLY),
    pytest.param("delivery.before_commit", marks=NIGHTLY),
    pytest.param("delivery.between_commits", marks=CI),
    pytest.param("launch.before_start", marks=CI),
    pytest.param("launch.after_start", marks=CI),
    pytest.param("delivery.before_finish", marks=NIGHTLY),
    pytest.param("driver.after_finish", marks=NIGHTLY),
]


def command(world, *words: object, **told: str) -> subprocess.CompletedProcess[str]:
    """Run `tracing-2pc` as a user does, in a session of its own."""
    ledger = world.item["participants"]["ledger"]
    told = {
        **os.environ,
        "TPC_LOG": world.settings.log,
        "TPC_PARTICIPANTS": f"ledger={ledger}",
        "TPC_ON_PENDING": "fail",
        **told,
    }
    line = [sys.executable, "-m", "tracing_2pc", *words]
    how = {"env": told, "cwd": world.folder, "timeout": AT_LAST}
    return ran(line, start_new_session=True, **how)


@pytest.fixture
def launched(world):
    """Version 1 runs; version 2 is what is killed."""
    command(world, "init")
    done = command(world, "launch", world.write())
    assert done.returncode == 0, done.stderr
    world.pushes("second")
    world.item["record"]["version"] = 2
    world.write()
    return world


def kill(world, point: str, **told: str) -> None:
    flag = world.folder / "killed"
    told |= {"TPC_FAILPOINT": point, "TPC_FAILPOINT_FILE": str(flag)}
    done = command(world, "launch", world.folder / "job.yaml", **told)
    assert done.returncode == -signal.SIGKILL, done.stdout + done.stderr
    assert flag.read_text().startswith(point)


def recovers(world, *words: object, **told: str) -> None:
    """Each call asks once, and a pod that is stopped takes its time."""
    until(
        lambda: command(world, *(words or ("recover",)), **told),
        lambda done: done.returncode == 0,
        tell=lambda done: done.stdout + done.stderr,
    )


def run_out(world, id_: str) -> None:
    """Let its time be over: the log has a deadline that has passed."""
    with world.log() as log:
        record = log.read(TransactionId.parse(id_))
    over = dataclasses.replace(record, deadline=record.started)
    told = {"deadline": over.deadline, "checksum": checksum_of(over)}
    engine = sa.create_engine(world.settings.log)
    with engine.begin() as connection:
        row = sa.update(transaction).where(transaction.c.id == id_)
        connection.execute(row.values(told))
    engine.dispose()


def is_whole(world) -> None:
    """Version 2 stands everywhere, once, and nothing else is left."""
    assert world.rows() == [("totals", 1), ("totals", 2)]
    (name,) = world.jobs()
    assert world.jobs()[name]
    assert world.kubelet.started[-1] == (name, f"{world.repository.name}@{world.live}")
    assert [n for n, _ in world.kubelet.started].count(name) == 1
    assert list(world.kubelet.named("Pod")) == [f"{name}-pod"]
    assert world.kubelet.named("Job")[name]["metadata"].get("finalizers", []) == []


@pytest.mark.parametrize("point", UNDECIDED)
def test_what_was_not_decided_is_launched_anew(launched, point):
    """Version 1 runs on meanwhile; the next launch drops what was left."""
    before = launched.live
    kill(launched, point)
    assert launched.live == before
    assert launched.rows() == [("totals", 1)]
    assert [runs for runs in launched.jobs().values() if runs] == [True]
    done = command(launched, "launch", launched.folder / "job.yaml")
    assert done.returncode == 0, done.stderr
    is_whole(launched)
    assert not launched.staged(f"{_application(done)}.1.1")


@pytest.fixture(scope="module")
def versions(tmp_path_factory) -> dict[str, Path]:
    return make_versions(tmp_path_factory.mktemp("versions"))


@pytest.mark.parametrize(
    ("ours", "theirs", "point"),
    [
        pytest.param("0.1.0", "0.2.0", "launch.after_create", marks=CI),
        pytest.param("0.2.0", "0.1.0", "launch.after_create", marks=NIGHTLY),
        pytest.param("0.1.0", "0.2.0", "delivery.between_commits", marks=NIGHTLY),
        pytest.param("0.2.0", "0.1.0", "delivery.between_commits", marks=CI),
    ],
)
def test_a_launch_in_flight_is_ended_by_another_release(
    launched, versions, ours, theirs, point
):
    """Undecided it is dropped and launched anew; decided it is finished.

    What one release puts on record besides, the other one leaves as it is.
    """

    def of(version: str) -> dict[str, str]:
        here = str(versions[version])
        return {"PYTHONPATH": os.pathsep.join((here, os.environ["PYTHONPATH"]))}

    command(launched, "init", **of("0.2.0"))  # adds the column
    kill(launched, point, **of(ours))
    is_decided = point.startswith("delivery")
    words = ["recover"] if is_decided else ["launch", launched.folder / "job.yaml"]
    recovers(launched, *words, **of(theirs))
    is_whole(launched)
    engine = sa.create_engine(launched.settings.log)
    with engine.connect() as connection:
        asked = sa.text("SELECT batch, attempt, region FROM tpc_transaction")
        regions = {(batch, n): region for batch, n, region in connection.execute(asked)}
    engine.dispose()
    known = {"0.1.0": None, "0.2.0": "north"}
    second = {} if is_decided else {(1, 2): known[theirs]}
    assert regions == {(0, 1): None, (1, 1): known[ours], **second}
    for _, attempt in second:
        assert not launched.staged(f"{launched.application}.1.{attempt - 1}")


@pytest.mark.parametrize(
    ("point", "by"),
    [
        pytest.param("driver.after_begin", "timeout", marks=NIGHTLY),
        pytest.param("launch.after_push", "a person", marks=NIGHTLY),
        pytest.param("launch.after_push", "timeout", marks=NIGHTLY),
        pytest.param("launch.after_create", "a person", marks=CI),
        pytest.param("launch.after_create", "timeout", marks=CI),
        pytest.param("driver.after_votes", "timeout", marks=NIGHTLY),
    ],
)
def test_what_was_not_decided_is_ended_by_anybody(launched, point, by):
    """Decided abort from elsewhere, without the file: nothing is left of it.

    By a person, or by `recover` when `timeout` is out. Version 1 runs on.
    """
    before, jobs = launched.live, launched.jobs()
    kill(launched, point)
    (launched.folder / "job.yaml").rename(launched.folder / "elsewhere.yaml")
    id_ = _only(launched)
    recovers(launched)
    assert f"{id_} active" in _listed(launched)  # its time is not over
    if by == "timeout":
        run_out(launched, id_)
    else:
        about = ["--abort", "--yes", "--reason", "killed"]
        done = command(launched, "resolve", id_, *about)
        assert done.returncode == 0, done.stdout + done.stderr
    recovers(launched)
    assert f"{id_} aborted" in _listed(launched)
    assert not launched.staged(id_)
    assert (launched.live, launched.jobs()) == (before, jobs)
    assert launched.rows() == [("totals", 1)]


@pytest.mark.ci
def test_a_file_that_names_another_repository_leaves_nothing_in_the_first(launched):
    """Where a launch has staged its image stands on record, not in the file."""
    kill(launched, "launch.after_create")
    launched.item["build"]["image"] += "-moved"
    done = command(launched, "launch", launched.write())
    assert done.returncode == 0, done.stderr
    assert not launched.staged(f"{_application(done)}.1.1")
    assert list(launched.jobs().values()) == [True]


@pytest.mark.parametrize("point", DECIDED)
def test_what_was_decided_is_finished_by_anybody(launched, point):
    """By `recover`, which has neither the file nor Spark."""
    kill(launched, point)
    if point == "delivery.between_commits":
        id_ = _only(launched)
        told = command(launched, "explain", id_).stdout
        assert "or by `tracing-2pc recover`" in " ".join(told.split())
        assert "no other process" not in " ".join(told.split())
    (launched.folder / "job.yaml").rename(launched.folder / "elsewhere.yaml")
    recovers(launched)
    is_whole(launched)


def test_who_waits_for_a_launch_hears_how_it_ended(world):
    """0 if it is committed, 1 if it is not, or if nobody knows it."""
    command(world, "init")
    world.item["build"]["command"] = ["false"]
    assert command(world, "launch", world.write()).returncode == 2
    id_ = _only(world)
    told = " ".join(command(world, "explain", id_).stdout.split())
    assert "launch`, by --again or of a changed file, tries batch 0 again" in told
    assert "next start of the query" not in told
    aborted = command(world, "await-launch", id_)
    assert (aborted.returncode, aborted.stdout.strip()) == (1, "decided abort")
    unknown = command(world, "await-launch", "totals.9.1")
    assert (unknown.returncode, unknown.stdout.strip()) == (1, "not on record")


@pytest.mark.ci
def test_who_waits_for_a_launch_asks_a_silent_log_on(postgres_database):
    """It is hung up on until the log has the decision; then it hears that."""
    url = sa.make_url(postgres_database)
    with (
        contextlib.closing(open_log(postgres_database)) as log,
        tempfile.TemporaryDirectory() as folder,  # a socket's path is short
        socket.socket(socket.AF_UNIX) as silent,
    ):
        about = {"query": None, "participants": ["ledger"], "carrier": {}}
        id_ = log.begin("totals", 0, Opening(run="r", **about)).record.id
        place = Path(folder, ".s.PGSQL.5432")
        silent.bind(str(place))
        silent.listen()
        silent.settimeout(AT_LAST)
        through = url.update_query_dict({"host": folder})
        told = {**os.environ, "TPC_LOG": through.render_as_string(False)}
        line = [sys.executable, "-m", "tracing_2pc", "await-launch", str(id_)]
        with subprocess.Popen(line, env=told, stdout=subprocess.PIPE) as waiting:
            try:
                for _ in range(3):
                    silent.accept()[0].close()
                log.decide(id_, Decision.ABORT)
                place.unlink()
                place.symlink_to(Path(str(url.query["host"]), place.name))
                said, _ = waiting.communicate(timeout=AT_LAST)
            finally:
                waiting.kill()
    assert (waiting.returncode, said.strip()) == (1, b"decided abort")


def test_a_launch_killed_after_its_decision_is_a_replay(launched):
    """The same file finishes it, and launches nothing more."""
    kill(launched, "driver.after_decide")
    done = command(launched, "launch", launched.folder / "job.yaml")
    assert done.returncode == 0, done.stderr
    assert "was launched before" in done.stdout
    is_whole(launched)
    again = command(launched, "await-launch", _transaction(done))
    assert (again.returncode, again.stdout.strip()) == (0, "decided commit")


@pytest.mark.ci
def test_retention_that_takes_the_staging_tag_changes_nothing(launched):
    """The record has the manifest: a commit puts it anew."""
    kill(launched, "driver.after_decide")
    launched.forget_images(layers=False)
    recovers(launched, "watch", "--once", "--recover")
    is_whole(launched)


@pytest.mark.ci
def test_layers_that_are_gone_are_never_acknowledged(launched):
    """Decided, and impossible: a person reads the cure."""
    kill(launched, "driver.after_decide")
    launched.forget_images(layers=True)
    done = command(launched, "recover")
    assert done.returncode == 1
    assert "conclude this launch, and launch --again" in done.stdout + done.stderr
    assert "quarantined" in command(launched, "ls", "--log-only").stdout


@pytest.mark.spark
@pytest.mark.nightly
def test_the_demos_job_is_launched_and_streams(world, monkeypatch):
    """Killed after the decision, and finished by `recover`.

    Nothing of the source is lost, twice or split, and the job's transactions link to
    its launch.
    """
    monkeypatch.setenv("TPC_SPANS", str(world.folder / "spans"))
    folder = world.folder / "demo"
    databases = [f"sqlite:///{folder}/{name}.db" for name in ("ledger", "notifier")]
    laid = Demo.prepare(folder, *databases)
    flights.feed(folder / "in", DAYS)
    (container,) = world.item["job"]["spec"]["template"]["spec"]["containers"]
    container["command"] = laid.job._command
    told = {name: value for name, value in laid.job._environment.items() if value}
    told["PYTHONPATH"] = os.pathsep.join((told["PYTHONPATH"], *filter(None, sys.path)))
    container["env"] = [{"name": name, "value": told[name]} for name in told]
    with (
        stopping(*laid.services),
        contextlib.closing(laid.log),
    ):
        start_together(laid.notifier, laid.partner)
        command(world, "init")
        world.write()
        kill(world, "driver.after_decide")
        assert laid.log.transactions(TransactionFilter()) == []
        recovers(world)
        (name,) = world.jobs()

        def has_ended() -> bool:
            job = world.kubelet.named("Job")[name]
            conditions = (job.get("status") or {}).get("conditions") or ()
            ended = {c["type"] for c in conditions if c["status"] == "True"}
            pod = world.kubelet.named("Pod")[f"{name}-pod"]
            assert "Failed" not in ended, pod["status"]
            return "Complete" in ended

        until(has_ended)
        verdict = judge(laid.ledger_database, laid.partner.url, DAYS)
        assert verdict.good, "\n".join(verdict.lines())
        done = laid.log.transactions(TransactionFilter())
        assert [s.state for s in done] == [TransactionState.COMMITTED] * len(DAYS)
        records = [laid.log.read(s.transaction) for s in done]
        launched = _told_of(world, name)
        assert launched is not None
        assert {r.root_link for r in records} == {launched}


def _told_of(world, name: str) -> str | None:
    """Return what the job was told of its launch."""
    spec = world.kubelet.named("Job")[name]["spec"]["template"]["spec"]
    told = {one["name"]: one.get("value") for one in spec["containers"][0]["env"]}
    return told.get("TRACEPARENT")


def _only(world) -> str:
    """Return the id of the launch that is listed."""
    return command(world, "ls", "--log-only").stdout.split("\n")[1].split()[0]


def _listed(world) -> str:
    return " ".join(command(world, "ls", "--log-only").stdout.split())


def _transaction(done: subprocess.CompletedProcess[str]) -> str:
    return done.stdout.strip().splitlines()[-1].partition(":")[0]


def _application(done: subprocess.CompletedProcess[str]) -> str:
    return _transaction(done).partition(".")[0]
