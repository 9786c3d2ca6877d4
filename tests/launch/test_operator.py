"""Resources are launched by an operator, which may be killed, doubled and overtaken."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from importlib.resources import files
from typing import Any
from urllib.parse import urlsplit

import pytest
import urllib3
import yaml
from support.programs import ran
from support.waiting import PAUSE, until

from tracing_2pc.core.errors import TwoPhaseError
from tracing_2pc.core.states import TransactionState
from tracing_2pc.launch.operator import _ENDED, KIND, Operator
from tracing_2pc.launch.own_cluster import own_cluster
from tracing_2pc.protocol import coordinator
from tracing_2pc.store import open_log

SERVES = {"name": "ledger", "type": "ExternalService"}


@pytest.fixture
def resource(world) -> dict[str, Any]:
    """What a user applies; the Task pushes what its source says."""
    world.kubelet.tasks["push"] = [
        "env", "IMAGE=$(params.image)", *world.item["build"]["command"][:-1],
        "$(params.source)",
    ]  # fmt: skip
    made = world.item["job"]["spec"]["template"]["spec"]["containers"][0]["command"]
    ledger = {**SERVES, "endpoint": world.item["participants"]["ledger"]}
    build = {"name": "image", "type": "TektonBuild", "endpoint": "push"}
    return {
        "apiVersion": "stream.example.com/v1alpha1",
        "kind": KIND,
        "metadata": {"name": "totals", "namespace": "default"},
        "spec": {
            "transactionId": "release-1",
            "job": {
                "image": f"{world.repository.name}:live",
                "source": "first",
                "entrypoint": made,
            },
            "participants": [build, {"name": "app", "type": "SparkApp"}, ledger],
        },
    }


@contextlib.contextmanager
def operator(world) -> Iterator[None]:
    """Run one in this process, as `operator run` does."""
    with world.log() as log:
        looking = Operator(own_cluster(), "default", log, world.settings)
        stopping = threading.Event()
        thread = threading.Thread(target=looking.run, args=(stopping, PAUSE))
        thread.start()
        try:
            yield
        finally:
            stopping.set()
            thread.join()
            for under_way in looking._under_way.values():
                under_way.thread.join()


def launch_late(world, read: dict[str, Any]) -> Any:
    """Let an operator launch what it has read before; return how that ended."""
    with world.log() as log:
        late = Operator(own_cluster(), "default", log, world.settings)
        with contextlib.suppress(TwoPhaseError):  # no status of what is gone
            late._look_at(read)
        (begun,) = late._under_way.values()
        begun.thread.join()
    return begun


@contextlib.contextmanager
def own_process(world, **told: str) -> Iterator[subprocess.Popen[bytes]]:
    """Run one in a process of its own, and kill it at the end."""
    open_log(world.settings.log).close()
    told = {**os.environ, "TPC_LOG": world.settings.log, **told}
    command = [sys.executable, "-m", "tracing_2pc", "operator", "run"]
    with subprocess.Popen(command, env=told, start_new_session=True) as running:
        try:
            yield running
        finally:
            running.kill()


def status(world, name: str = "totals") -> dict[str, Any]:
    found = world.kubelet.cluster.get(KIND, "default", name)
    return {} if found is None else found.get("status") or {}


def reaches(world, phase: str, name: str = "totals") -> dict[str, Any]:
    return until(lambda: status(world, name), lambda now: now.get("phase") == phase)


def change(world, name: str = "totals", **spec: Any) -> None:
    assert world.kubelet.cluster.patch(KIND, "default", name, {"spec": spec})


def delete(world) -> None:
    world.kubelet.cluster.delete(KIND, "default", "totals")


def is_gone(world) -> None:
    until(lambda: world.kubelet.cluster.get(KIND, "default", "totals") is None)


def test_a_resource_is_launched(world, resource):
    """Image, job and service; and so is each change of its spec."""
    world.kubelet.cluster.create(resource)
    with operator(world):
        first = reaches(world, "Committed")
        assert first["observedGeneration"] == 1
        assert [c["status"] for c in first["conditions"]] == ["True"]
        change(world, job={"source": "second"})
        until(lambda: status(world).get("observedGeneration") == 2)
        second = reaches(world, "Committed")
    assert second["transaction"] != first["transaction"]
    with operator(world):  # another one says the same
        world.kubelet.settle()
        assert status(world) == second
    assert world.repository.get("live").transaction == second["transaction"]
    for kind in ("TaskRun", "Job", "Pod"):
        assert {
            made["metadata"]["labels"]["tracing-2pc/transactionId"]
            for made in world.kubelet.named(kind).values()
        } == {"release-1"}
    (job,) = world.jobs()
    assert world.kubelet.started[-1] == (job, f"{world.repository.name}@{world.live}")
    assert world.generations() == [1, 2]


@pytest.mark.ci
def test_a_failing_build_is_rolled_back_and_said(world, resource):
    """With its reason; again by an annotation."""
    world.kubelet.tasks["push"], good = ["sh", "-c", "echo no such branch; exit 1"], (
        world.kubelet.tasks["push"]
    )  # fmt: skip
    world.kubelet.cluster.create(resource)
    with operator(world):
        told = reaches(world, "RolledBack")
        assert "no such branch" in told["message"]
        assert world.jobs() == {}
        assert world.generations() == []
        world.kubelet.tasks["push"] = good
        again = {"metadata": {"annotations": {"tracing-2pc/again": "1"}}}
        world.kubelet.cluster.patch(KIND, "default", "totals", again)
        reaches(world, "Committed")
    assert world.generations() == [1]


@pytest.mark.ci
def test_the_operators_role_is_what_it_does(world, resource):
    """Each right of it is used, and nothing is asked without one."""
    asked: set[tuple[str, str]] = set()
    verbs = {"POST": "create", "PATCH": "patch", "DELETE": "delete"}

    def note(method: str, path: str) -> None:
        _, _, place = urlsplit(path).path.partition("/namespaces/default/")
        plural, *name = place.split("/")
        what = "/".join((plural, *name[1:]))
        asked.add((what, verbs.get(method, "get" if name else "list")))

    world.fails(note)
    world.kubelet.cluster.create(resource)
    with operator(world):
        reaches(world, "Committed")
        change(world, job={"source": "second"})
        until(lambda: status(world).get("observedGeneration") == 2)
        reaches(world, "Committed")
        world.kubelet.tasks["push"] = ["false"]
        change(world, job={"source": "third"})
        reaches(world, "RolledBack")
        delete(world)
        is_gone(world)
    text = files("tracing_2pc.launch").joinpath("operator.yaml").read_text()
    made = [one for one in yaml.safe_load_all(text) if one]
    role = next(one for one in made if one["kind"] == "Role")
    assert asked == {
        (resource, verb)
        for rule in role["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


@pytest.mark.ci
def test_a_resource_that_is_wrong_says_so(world, resource):
    """In its status, and nothing is asked."""
    resource["spec"]["participants"] = []  # so the image must be one that is there
    world.kubelet.cluster.create(resource)
    with operator(world):
        told = reaches(world, "Failed")
        assert "name it by its digest" in told["message"]
        delete(world)
        is_gone(world)


@pytest.mark.ci
def test_a_deletion_after_the_decision_waits_for_its_end(world, resource):
    """What is committed is started first, although it is deleted then."""
    world.kubelet.cluster.create(resource)
    with operator(world):
        reaches(world, "Committed")
        world.kubelet.lingering.set()
        change(world, job={"source": "second"})
        reaches(world, "Committing")
        delete(world)
        assert world.generations() == [1, 2]
        world.kubelet.let_go()
        is_gone(world)
    assert world.jobs() == {}
    states = [s.state for s in world.launches()]
    assert states == [TransactionState.COMMITTED] * 2


@pytest.mark.ci
def test_a_resource_that_was_spoilt_takes_its_job_along(world, resource):
    """Made unreadable, and then deleted: nothing runs on."""
    world.kubelet.cluster.create(resource)
    with operator(world):
        reaches(world, "Committed")
        change(world, participants=[])  # then the image needs a digest
        reaches(world, "Failed")
        delete(world)
        is_gone(world)
    assert world.jobs() == {}


@pytest.mark.ci
def test_a_deletion_that_waits_holds_up_nobody(world, resource):
    """And the resource is there until no pod of it is."""
    world.kubelet.cluster.create(resource)
    with operator(world):
        reaches(world, "Committed")
        world.kubelet.lingering.set()
        delete(world)
        resource["metadata"]["name"] = "other"
        world.kubelet.cluster.create(resource)
        reaches(world, "Committed", "other")
        assert world.kubelet.cluster.get(KIND, "default", "totals") is not None
        world.kubelet.let_go()
        is_gone(world)


@pytest.mark.parametrize(
    "point",
    [
        pytest.param("driver.before_begin", marks=pytest.mark.nightly),
        pytest.param("driver.after_begin", marks=pytest.mark.nightly),
        pytest.param("launch.after_push", marks=pytest.mark.ci),
        pytest.param("launch.after_create", marks=pytest.mark.nightly),
        pytest.param("driver.after_decide", marks=pytest.mark.ci),
        pytest.param("launch.after_start", marks=pytest.mark.nightly),
    ],
)
def test_an_operator_that_is_killed_has_lost_nothing(world, resource, point):
    """The next one makes it whole; the job was started once."""
    world.kubelet.cluster.create(resource)
    told = {"TPC_FAILPOINT": point, "TPC_FAILPOINT_FILE": f"{world.folder}/killed"}
    with own_process(world, **told) as running:
        assert running.wait() == -signal.SIGKILL
    with operator(world):
        reaches(world, "Committed")
    (job,) = world.jobs()
    assert [name for name, _ in world.kubelet.started] == [job]
    assert world.generations() == [1]


def hold(world, phase: str) -> None:
    """Have a resource come to a phase, and stay there until `world.fails` ends it."""
    if phase == "Failed":

        def fault(method: str, path: str) -> None:
            if method == "POST" and path.endswith("/jobs") and not taken:
                taken.append(path)
                world.forget_images(layers=True)  # after its vote

        taken: list[str] = []
        world.fails(fault)
        return
    if phase in {"Preparing", "RolledBack"}:
        never = ["sleep", "infinity"]
        world.kubelet.tasks["push"] = never if phase == "Preparing" else ["false"]
        return
    if phase == "RollingBack":
        pushes = world.kubelet.tasks["push"]
        world.kubelet.tasks["push"] = ["sh", "-c", '"$@"; exit 1', "sh", *pushes]
    refused = {"Pending": ("GET", "/configmaps/"), "RollingBack": ("DELETE", "/task")}
    asked, part = refused[phase]
    world.fails(lambda method, path: "refuse" * (asked == method and part in path))


@pytest.mark.parametrize(
    ("phase", "then"),
    [
        pytest.param("Pending", "Committed", marks=pytest.mark.nightly),
        pytest.param("RollingBack", "RolledBack", marks=pytest.mark.ci),
        pytest.param("Failed", "Failed", marks=pytest.mark.nightly),
    ],
)
def test_an_operator_that_is_killed_in_a_phase(world, resource, phase, then):
    """The next one goes on from the log; what waits for a person waits on."""
    hold(world, phase)
    world.kubelet.cluster.create(resource)
    with own_process(world):
        reaches(world, phase)
    world.fails(lambda _method, _path: None)
    forgotten = {"status": {"phase": "Preparing"}}  # nobody reads it
    world.kubelet.cluster.patch(KIND, "default", "totals", forgotten, "status")
    with operator(world):
        told = reaches(world, then)
    (only,) = world.launches()
    assert told["transaction"] == str(only.transaction)
    if then == "RolledBack":
        assert not world.staged(only.transaction)
        assert world.kubelet.named("TaskRun") == world.jobs() == {}
    assert (world.live is not None) == (then == "Committed")


def test_a_name_tells_no_phase(world, resource):
    """A job that is called so is *Prepared* when all have voted, and not before."""
    resource["metadata"]["name"] = "prepared"
    hold(world, "Preparing")
    world.kubelet.cluster.create(resource)
    with world.log() as log:
        looking = Operator(own_cluster(), "default", log, world.settings)
        until(lambda: (looking.look(), world.kubelet.named("TaskRun"))[1])
        looking.look()
        assert status(world, "prepared")["phase"] == "Preparing"
        (begun,) = looking._under_way.values()
        begun.stopping.set()
        begun.thread.join()


@pytest.mark.parametrize(
    "phase",
    [
        pytest.param("Pending", marks=pytest.mark.nightly),
        pytest.param("Preparing", marks=pytest.mark.ci),
        pytest.param("Prepared", marks=pytest.mark.ci),
        pytest.param("Committed", marks=pytest.mark.ci),
        pytest.param("RollingBack", marks=pytest.mark.nightly),
        pytest.param("RolledBack", marks=pytest.mark.ci),
        pytest.param("Failed", marks=pytest.mark.ci),
    ],
)
def test_a_deletion_in_each_phase(world, resource, phase, monkeypatch, caplog):
    """It waits until the launch has ended, by a person if need be; nothing is left."""
    go_on = threading.Event()
    if phase == "Prepared":
        points = {"driver.after_votes": go_on.wait}
        wait = lambda point: points.get(point, bool)()  # noqa: E731
        monkeypatch.setattr(coordinator, "failpoint", wait)
    elif phase != "Committed":
        hold(world, phase)
    world.kubelet.cluster.create(resource)
    with operator(world):
        reaches(world, phase)
        if phase == "Preparing":
            until(lambda: world.kubelet.named("TaskRun"))
        delete(world)
        if phase in {"RollingBack", "Failed"}:
            until(lambda: ".0.1 is not finished" in caplog.text)
        if phase in {"Prepared", "RollingBack", "Failed"}:
            assert world.kubelet.cluster.get(KIND, "default", "totals") is not None
        go_on.set()
        world.fails(lambda _method, _path: None)
        if phase == "Failed":
            (only,) = world.launches()
            about = ["--conclude", "mixed", "--yes", "--reason", "the layers are gone"]
            resolve = ["resolve", str(only.transaction), *about]
            told = {**os.environ, "TPC_LOG": world.settings.log}
            line = [sys.executable, "-m", "tracing_2pc", *resolve]
            done = ran(line, env=told)
            assert done.returncode == 0, done.stdout + done.stderr
        is_gone(world)
    assert world.jobs() == {}
    assert world.kubelet.named("Pod") == {}
    for launched in world.launches():
        assert launched.state in _ENDED
        committed = launched.state is TransactionState.COMMITTED
        assert phase == "Failed" or world.generations() == [1] * committed
        assert committed or phase == "Failed" or not world.kubelet.named("TaskRun")


@pytest.mark.ci
def test_two_operators_launch_once(world, resource):
    """Whoever comes second takes over what it finds, and the first leaves it alone."""
    world.kubelet.cluster.create(resource)
    with operator(world), operator(world):
        reaches(world, "Committed")
    (job,) = world.jobs()
    assert [name for name, _ in world.kubelet.started] == [job]
    assert world.generations() == [1]


@pytest.mark.ci
def test_what_another_operator_wrote_late_does_not_stay(world, resource):
    """It had read the log before the end, slept, and was killed when it had written."""
    world.kubelet.cluster.create(resource)
    with operator(world):
        reached = reaches(world, "Committed")
        late = {"status": {"phase": "Committing", "message": "waits for ledger"}}
        assert world.kubelet.cluster.patch(KIND, "default", "totals", late, "status")
        assert reaches(world, "Committed") == reached


@pytest.mark.ci
@pytest.mark.parametrize("meanwhile", ["changed", "deleted"])
def test_what_an_operator_read_long_ago_is_not_launched(world, resource, meanwhile):
    """Another operator has launched what came after it, or taken all away."""
    world.kubelet.cluster.create(resource)
    with operator(world):
        reaches(world, "Committed")
        old = world.kubelet.cluster.get(KIND, "default", "totals")
        if meanwhile == "changed":
            change(world, job={"source": "second"})
            until(lambda: status(world).get("observedGeneration") == 2)
            reaches(world, "Committed")
        else:
            old["spec"]["job"]["source"] = "second"  # the first has not seen it
            delete(world)
            is_gone(world)
    before = world.jobs(), world.generations(), len(world.launches())
    launch_late(world, old)
    assert (world.jobs(), world.generations(), len(world.launches())) == before


@pytest.mark.ci
def test_a_resource_that_another_operator_has_withdrawn_is_not_launched(
    world, resource, monkeypatch
):
    """Between this one's last look and its begin: nothing would ever stop the job."""
    world.kubelet.cluster.create(resource)
    with operator(world):
        reaches(world, "Committed")
    change(world, job={"source": "second"})
    read = world.kubelet.cluster.get(KIND, "default", "totals")
    begin = coordinator.Coordinator.apply

    def deleted_before(self: Any, *args: Any, **how: Any) -> Any:
        monkeypatch.setattr(coordinator.Coordinator, "apply", begin)
        delete(world)
        with operator(world):
            is_gone(world)
        return begin(self, *args, **how)

    monkeypatch.setattr(coordinator.Coordinator, "apply", deleted_before)
    assert "was deleted" in launch_late(world, read).error
    assert world.jobs() == {}
    assert next(iter(world.launches())).state is TransactionState.ABORTED


@pytest.mark.ci
def test_a_spec_that_changes_under_way_is_launched_next(world, resource):
    """What has begun is ended first; of each number there is one launch."""
    gate = world.folder / "gate"
    wait = f'until test -e {gate}; do sleep 0.05; done; exec "$@"'
    world.kubelet.tasks["push"] = ["sh", "-c", wait, "sh", *world.kubelet.tasks["push"]]
    world.kubelet.cluster.create(resource)
    with operator(world):
        reaches(world, "Preparing")
        change(world, job={"source": "second"})
        gate.touch()
        until(lambda: world.generations() == [1, 2])
        until(lambda: status(world).get("phase") == "Committed")
    (job,) = world.jobs()
    assert world.kubelet.started[-1][0] == job


@pytest.mark.nightly
def test_kubectl_shows_phase_and_reason(world, resource):
    """In the columns of `kubectl get tsj`, which the API server writes itself."""
    if world.server is not None:
        pytest.skip("only a real API server writes tables")
    world.kubelet.tasks["push"] = ["sh", "-c", "echo no such branch; exit 1"]
    world.kubelet.cluster.create(resource)
    with operator(world):
        reaches(world, "RolledBack")
    admin = world.kubelet.cluster
    with urllib3.PoolManager(ca_certs=admin.ca_file) as pool:
        answer = pool.request(
            "GET",
            f"{admin.url}/apis/stream.example.com/v1alpha1/namespaces/default/"
            "transactionalsparkjobs",
            headers={
                "Authorization": f"Bearer {admin.token}",
                "Accept": "application/json;as=Table;v=v1;g=meta.k8s.io",
            },
        )
    table = answer.json()
    names = [column["name"] for column in table["columnDefinitions"]]
    shown = ["Name", "Phase", "Since", "Transaction", "Because", "TransactionId"]
    assert names == shown
    ((name, phase, _, transaction, because, of_user),) = [
        row["cells"] for row in table["rows"]
    ]
    assert (name, phase, of_user) == ("totals", "RolledBack", "release-1")
    assert transaction == status(world)["transaction"]
    assert "no such branch" in because


@pytest.mark.nightly
def test_twenty_at_once(world, resource):
    """Each its own image, job and row."""
    names = [f"totals-{number}" for number in range(20)]
    for name in names:
        resource["metadata"]["name"] = name
        resource["spec"]["job"]["image"] = f"{world.repository.name}:{name}"
        world.kubelet.cluster.create(resource)
    with operator(world):
        for name in names:
            reaches(world, "Committed", name)
    assert len(world.jobs()) == 20
    assert world.generations() == [1] * 20


@pytest.mark.ci
def test_a_launchs_trace_says_what_the_operator_did(world, resource):
    """Its process has a name of its own there: of the root, and of what it did."""
    folder = {"TPC_SPANS": str(world.folder / "spans")}
    told = {**os.environ, **folder, "TPC_LOG": world.settings.log}
    world.kubelet.cluster.create(resource)
    with own_process(world, **folder):
        launched = reaches(world, "Committed")["transaction"]
        asks = [sys.executable, "-m", "tracing_2pc", "trace", launched]

        def seen() -> set[tuple[str, ...]]:
            lines = ran(asks, env=told).stdout.splitlines()
            return {tuple(line.split()[4:6]) for line in lines}

        done = ("tpc.transaction", "BuiltImage.pre_commit", "SuspendedJob.commit")
        until(seen, {("tpc-operator", name) for name in done}.issubset)
