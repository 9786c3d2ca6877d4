"""What the API server keeps is what was sent; else no vote, and no start."""

from __future__ import annotations

import copy
import sys
from collections.abc import Callable
from typing import Any

import pytest
from support.texts import texts

from tracing_2pc.core.errors import CommitPendingError, ConfigurationError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.launch.plan import Plan
from tracing_2pc.launch.suspended_job import SuspendedJob
from tracing_2pc.launch.waiting import difference

Object = dict[str, Any]

SAYS_SO = texts("launch")

SAYS = [sys.executable, "-c", "raise SystemExit('no such table')"]


def pod_of(item: Object) -> Object:
    pod: Object = item["spec"]["template"]["spec"]
    return pod


def webhook(world, change: Callable[[Object], None], *, skipped: int = 0) -> None:
    """Have it change each Job or Deployment of a launch, after so many of them."""
    if world.server is None:
        pytest.skip("only the stand-in has webhooks")
    left = [None] * skipped

    def changes(item: Object) -> None:
        labels = item["metadata"].get("labels") or {}
        is_pod = item["kind"] == "Pod"
        if labels.get("tracing-2pc/role") == "job" and not is_pod:
            left.pop() if left else change(item)

    world.server.webhook = changes


def starts(item: Object) -> None:
    item["spec"] |= {"suspend": False} if item["kind"] == "Job" else {"replicas": 1}


def mirrors(item: Object) -> None:
    pod_of(item)["containers"][0]["image"] = "mirror.example/totals:latest"


def mirrors_first(item: Object) -> None:
    pod_of(item)["initContainers"][0]["image"] = "mirror.example/totals:latest"


def replaces(item: Object) -> None:
    pod_of(item)["containers"][0]["command"] = ["true"]


def renames(item: Object) -> None:
    item["metadata"]["labels"]["tracing-2pc/transaction"] = "other.0.1"


def forgets(item: Object) -> None:
    del item["metadata"]["finalizers"]


def redirects(item: Object) -> None:
    env = pod_of(item)["containers"][0]["env"]
    next(e for e in env if e["name"] == "TPC_PARTICIPANTS")["value"] = "x=http://evil"


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (starts, "suspend"),
        (mirrors, "image of container totals"),
        pytest.param(mirrors_first, "image of container first", marks=pytest.mark.ci),
        pytest.param(replaces, "command of container totals", marks=pytest.mark.ci),
        pytest.param(renames, "label tracing-2pc/transaction", marks=pytest.mark.ci),
        pytest.param(forgets, "finalizer tracing-2pc/launch", marks=pytest.mark.ci),
        pytest.param(
            redirects, "TPC_PARTICIPANTS of container totals", marks=pytest.mark.ci
        ),
    ],
)
def test_a_job_that_a_webhook_changes_is_not_voted_for(world, change, part):
    """Nothing of it ever runs; without the webhook, it is launched again."""
    pod = world.item["job"]["spec"]["template"]["spec"]
    pod["initContainers"] = [{"name": "first", "image": "built", "command": ["true"]}]
    webhook(world, change)
    with pytest.raises(ConfigurationError, match=f"would keep another {part} than"):
        world.launch()
    assert world.jobs() == {}
    assert world.kubelet.started == []
    assert world.rows() == []
    world.server.webhook = lambda _: None
    world.launch(again=True)
    assert list(world.jobs().values()) == [True]


@pytest.mark.ci
def test_a_deployment_that_a_webhook_scales_is_not_voted_for(world):
    """It would run before the decision."""
    job = world.item["job"] | {"apiVersion": "apps/v1", "kind": "Deployment"}
    del job["spec"]["template"]["spec"]["restartPolicy"]
    world.item["job"] = job
    webhook(world, starts)
    with pytest.raises(ConfigurationError, match="would keep another replicas than"):
        world.launch()
    assert world.kubelet.named("Deployment") == {}
    assert world.kubelet.started == []


def queues(item: Object) -> None:
    notes = item["metadata"].setdefault("annotations", {})
    item["metadata"]["labels"] |= {"kueue.x-k8s.io/queue-name": "default"}
    notes["kueue.x-k8s.io/priority"] = "high"


def test_a_job_that_kueue_would_queue_is_not_voted_for(world):
    """Of a default LocalQueue, it would start the job before the decision."""
    webhook(world, queues)
    with pytest.raises(ConfigurationError, match=SAYS_SO["queued by Kueue"]):
        world.launch()
    assert world.jobs() == {}
    assert world.kubelet.started == []


@pytest.mark.ci
def test_a_job_that_kueue_would_queue_is_not_made_again(world):
    """A job that was deleted before its start: said, and waited for."""
    name = undelivered(world, "Job")
    webhook(world, queues)
    world.kubelet.cluster.delete("Job", "default", name)
    with pytest.raises(CommitPendingError, match=SAYS_SO["queued by Kueue"]):
        world.launch()
    world.kubelet.let_go()
    assert [started for started, _ in world.kubelet.started] == ["totals-0-1"]


def with_env(*env: Object) -> Object:
    pod = {"containers": [{"name": "totals", "image": "t@x", "env": [*env]}]}
    return {"metadata": {}, "spec": {"template": {"spec": pod}}}


ONE, TWO = {"name": "A", "value": "1"}, {"name": "A", "value": "2"}
SECRET = {"secretKeyRef": {"name": "s", "key": "k"}}
FROM = {"name": "A", "valueFrom": SECRET}


@pytest.mark.parametrize(
    ("sent", "kept", "is_kept"),
    [
        ([ONE, TWO], [ONE, TWO], True),
        ([ONE, TWO], [TWO], True),
        ([ONE, TWO], [TWO, ONE], False),
        ([ONE], [ONE, FROM], False),
        ([ONE], [FROM, ONE], True),
        ([FROM], [ONE], False),
        ([FROM], [{**FROM, "valueFrom": {"secretKeyRef": {"name": "t"}}}], True),
    ],
)
def test_of_a_variable_that_comes_twice_the_last_one_counts(sent, kept, is_kept):
    """As in Kubernetes, whether it has a value or is told from where to take it."""
    said = None if is_kept else "A of container totals"
    assert difference(with_env(*sent), with_env(*kept)) == said


def with_param(value: object) -> Object:
    params = [{"name": "n", "value": value}]
    return {"kind": "TaskRun", "metadata": {}, "spec": {"params": params}}


@pytest.mark.parametrize(
    ("sent", "kept"),
    [(5, "5"), (0, "0"), (True, "true"), (1.5, "1.5"), (1.0, "1"), (["a"], ["a"])],
)
def test_a_param_is_text_to_tekton(sent, kept):
    """A number and a boolean are kept as text; another value is seen."""
    assert difference(with_param(sent), with_param(kept)) is None
    assert difference(with_param(sent), with_param("other")) == "param n"


@pytest.mark.ci
def test_a_webhook_that_does_so_only_at_last_is_seen(world):
    """What it would do was asked before; what was kept is looked at all the same."""
    webhook(world, mirrors, skipped=1)
    with pytest.raises(ConfigurationError, match="would keep another image of"):
        world.launch()
    assert world.jobs() == {}
    assert world.kubelet.started == []


@pytest.mark.ci
def test_what_a_cluster_adds_is_left_alone(world):
    """Another container, a label, a place to run: they change nothing of ours."""

    def adds(item: Object) -> None:
        pod = pod_of(item)
        pod["containers"].append({"name": "proxy", "image": "proxy:1"})
        pod["containers"][0]["env"].insert(0, {"name": "PROXY", "value": "here"})
        pod["nodeSelector"] = {"pool": "batch"}
        item["metadata"]["labels"]["team"] = "streams"

    webhook(world, adds)
    world.launch()
    assert list(world.jobs().values()) == [True]


@pytest.mark.parametrize(
    "made",
    [
        "job",
        pytest.param("check", marks=pytest.mark.ci),
        pytest.param("task", marks=pytest.mark.ci),
    ],
)
def test_what_a_stranger_has_made_before_is_not_adopted(world, made):
    """Its name and its labels can be guessed: it is refused, and never started."""
    transaction = f"{world.application}.0.1"
    labels = {"tracing-2pc/transaction": transaction}
    labels |= {"tracing-2pc/application": world.application, "tracing-2pc/role": "job"}
    meta = {"namespace": "default", "labels": labels}
    if made == "task":
        command = world.item["build"].pop("command")
        del world.item["build"]["environment"]
        step = {"name": "push", "command": ["env", "IMAGE=$(params.image)", *command]}
        task = {"taskSpec": {"steps": [step]}}
        world.item["build"]["taskRun"] = task
        name = f"{transaction.replace('.', '-')}-build"
        kind = {"apiVersion": "tekton.dev/v1", "kind": "TaskRun"}
        theirs = {
            **kind,
            "metadata": {**meta, "name": name},
            "spec": copy.deepcopy(task),
        }
        image = {"name": "image", "value": f"{world.repository.name}:tpc-{transaction}"}
        theirs["spec"]["params"] = [image]
    else:
        world.item["check"] = [sys.executable, "-c", ""]
        name = "totals-0-1" if made == "job" else "totals-0-1-check"
        theirs = copy.deepcopy(world.item["job"])
        theirs["metadata"] = {**meta, "name": name}
        theirs["spec"] |= {"suspend": True}
        pod_of(theirs)["containers"][0]["image"] = "stranger.example/totals:1"
    world.kubelet.cluster.create(theirs)
    with pytest.raises(ConfigurationError, match="it is not this launch's"):
        world.launch()
    assert "stranger.example/totals:1" not in dict(world.kubelet.started).values()
    assert world.rows() == []


@pytest.mark.ci
def test_a_task_run_of_somebody_else_is_left_alone(world):
    """One of the same name is neither adopted nor deleted."""
    name = f"{world.application}-0-1-build"
    del world.item["build"]["command"], world.item["build"]["environment"]
    step = {"name": "push", "command": ["true"]}
    spec = {"taskSpec": {"steps": [step]}, "params": []}
    world.item["build"]["taskRun"] = spec
    meta = {"name": name, "namespace": "default"}
    kind = {"apiVersion": "tekton.dev/v1", "kind": "TaskRun"}
    world.kubelet.cluster.create({**kind, "metadata": meta, "spec": spec})
    with pytest.raises(ConfigurationError, match="it is not this launch's"):
        world.launch()
    assert list(world.kubelet.named("TaskRun")) == [name]


def undelivered(world, kind: str) -> str:
    """Have one launch decided that waits to be started; return its object's name."""
    if kind == "Deployment":
        world.item["job"] |= {"apiVersion": "apps/v1", "kind": kind}
        del world.item["job"]["spec"]["template"]["spec"]["restartPolicy"]
    world.launch()
    world.kubelet.lingering.set()
    world.pushes("second")
    world.gives_up()
    with pytest.raises(CommitPendingError):
        world.launch()
    return "totals-1-1"


def replaced(world, name: str) -> None:
    cluster = world.kubelet.cluster
    theirs = cluster.get("Job", "default", name)
    cluster.patch("Job", "default", name, {"metadata": {"finalizers": None}})
    cluster.delete("Job", "default", name)
    meta = {n: theirs["metadata"][n] for n in ("name", "namespace", "labels")}
    template = world.item["job"]["spec"]["template"]
    pod = copy.deepcopy(template["spec"])
    pod["containers"][0]["image"] = "stranger.example/totals:1"
    spec = {"suspend": True, "template": {"spec": pod}}
    made = {"apiVersion": "batch/v1", "kind": "Job", "metadata": meta, "spec": spec}
    cluster.create(made)


def unsuspended(world, name: str) -> None:
    world.kubelet.cluster.patch("Job", "default", name, {"spec": {"suspend": False}})


def of_another_image(world, name: str) -> None:
    cluster = world.kubelet.cluster
    pod = pod_of(cluster.get("Deployment", "default", name))
    pod["containers"][0]["image"] = "stranger.example/totals:1"
    change = {"spec": {"template": {"spec": {"containers": pod["containers"]}}}}
    cluster.patch("Deployment", "default", name, change)


@pytest.mark.parametrize(
    ("change", "kind", "said"),
    [
        pytest.param(replaced, "Job", SAYS_SO["another object"], marks=pytest.mark.ci),
        pytest.param(
            unsuspended, "Job", "has another suspend than was", marks=pytest.mark.ci
        ),
        pytest.param(
            of_another_image,
            "Deployment",
            "has another image of container totals than was",
            marks=pytest.mark.ci,
        ),
    ],
)
def test_what_is_changed_after_the_vote_is_not_started(world, change, kind, said):
    """It is said, and waited for; deleted, it is made anew as it was prepared."""
    name = undelivered(world, kind)
    change(world, name)
    world.kubelet.let_go()
    with pytest.raises(CommitPendingError, match=said):
        world.launch()
    found = world.kubelet.named(kind)[name]
    assert "tracing-2pc/started" not in (found["metadata"].get("annotations") or {})
    world.kubelet.cluster.delete(kind, "default", name)
    world.limits.clear()
    assert world.launch().replay
    (image,) = {
        pod_of(item)["containers"][0]["image"]
        for item in world.kubelet.named(kind).values()
    }
    assert world.kubelet.started[-1] == (name, image)
    assert image == f"{world.repository.name}@{world.live}"


@pytest.mark.parametrize("command", [[sys.executable, "-c", ""], SAYS])
@pytest.mark.ci
def test_a_check_beside_an_injected_container_ends(world, command):
    """When the check itself has ended: the other one in its pod never does."""
    world.item["check"] = command
    world.kubelet.sidecar.set()
    if command is SAYS:
        with pytest.raises(
            ConfigurationError, match=r"failed: no such table \(exit 1\)"
        ):
            world.launch()
        assert world.jobs() == {}
        return
    world.launch()
    assert list(world.jobs()) == ["totals-0-1"]


class OnePod:
    """A cluster with one pod, of this status."""

    def __init__(self, status: Object) -> None:
        self.status = status

    def list(self, *_: object) -> list[Object]:
        return [{"metadata": {"name": "pod"}, "status": self.status}]


def ended(name: str, code: int) -> Object:
    state = {"terminated": {"exitCode": code, "message": name}}
    return {"name": name, "state": state}


RUNS = {"name": "totals", "state": {"running": {}}}
WAITS = {"name": "totals", "state": {"waiting": {"reason": "PodInitializing"}}}


@pytest.mark.parametrize(
    ("phase", "first", "own", "found"),
    [
        ("Succeeded", 143, ended("totals", 0), [(0, "totals")]),
        ("Failed", 143, ended("totals", 3), [(3, "totals")]),
        ("Running", 1, RUNS, []),
        ("Pending", 1, WAITS, []),
        ("Failed", 1, WAITS, [(1, "first")]),
    ],
)
def test_a_check_ends_as_its_own_container_does(phase, first, own, found):
    """However a sidecar ends, or begins; an init container counts if it was the end."""
    statuses = {"initContainerStatuses": [ended("first", first)]}
    status = {"phase": phase, **statuses, "containerStatuses": [own]}
    template = {"spec": {"containers": [{"name": "totals", "image": "t@x"}]}}
    meta = {"name": "totals", "namespace": "default"}
    manifest = {"kind": "Job", "metadata": meta, "spec": {"template": template}}
    check = Plan(manifest, ("true",)).check_job(TransactionId("totals", 0, 1), None)
    assert SuspendedJob(OnePod(status))._ended(check) == found


@pytest.mark.ci
def test_the_jobs_own_variables_can_name_ours(world):
    """As Kubernetes fills them in: from what stands before them."""
    seen = world.folder / "seen"
    (container,) = pod_of(world.item["job"])["containers"]
    container["env"] = [{"name": "ID", "value": "of $(TRANSACTION_ID)"}]
    container["command"] = ["sh", "-c", f'printf %s "$ID" > {seen}']
    done = world.launch()
    world.kubelet.settle()
    assert seen.read_text() == f"of {done.transaction}"


@pytest.mark.ci
def test_what_a_webhook_would_change_is_not_made_again(world):
    """A job that was deleted before its start: said, and waited for."""
    name = undelivered(world, "Job")
    webhook(world, starts)
    world.kubelet.cluster.delete("Job", "default", name)
    with pytest.raises(CommitPendingError, match="would keep another suspend than"):
        world.launch()
    world.kubelet.let_go()
    assert [started for started, _ in world.kubelet.started] == ["totals-0-1"]
    world.server.webhook = lambda _: None
    world.limits.clear()
    assert world.launch().replay
    assert world.jobs() == {name: True}
