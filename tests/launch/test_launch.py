"""A job is built, deployed and started together with what changes beside it, or not."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import shutil
import signal
import sys

import pytest
from support import registry as registries
from support.served import served
from support.waiting import AT_ONCE, PATIENT, SOON, until

from tracing_2pc.core.errors import (
    CommitPendingError,
    ConfigurationError,
    TwoPhaseError,
)
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.states import TransactionState
from tracing_2pc.launch import BuiltImage, LaunchFile, SuspendedJob, launching
from tracing_2pc.launch.own_cluster import own_cluster
from tracing_2pc.launch.registry import Manifest, Repository
from tracing_2pc.tracing.transaction import OpenTelemetryTracing


class CrashError(Exception):
    """The process of a launch ends here."""


def test_image_job_and_service_change_together(world):
    """One decision: the tag, the job pinned to its digest, the service's row."""
    done = world.launch()
    assert not done.replay
    image = f"{world.repository.name}@{world.live}"
    (job,) = world.jobs()
    assert world.jobs()[job]
    assert world.kubelet.started == [(job, image)]
    assert world.rows() == [("totals", 1)]
    assert world.repository.get("live").transaction == str(done.transaction)
    with world.log() as log:
        record = log.read(done.transaction)
    assert re.fullmatch("[0-9a-f]{32}", record.run)
    assert record.launch_digest == LaunchFile.read(world.write()).digest
    assert record.launch_namespace == "default"
    built = record.launch_repository, record.launch_builder
    assert built == (world.repository.name, "command")


def test_the_same_file_is_launched_once(world, monkeypatch):
    """Comments and order do not count; nothing is built, and nobody is asked."""
    first = world.launch()
    monkeypatch.setenv("KUBECONFIG", str(world.folder / "nowhere"))
    again = world.launch()
    assert (again.transaction, again.replay) == (first.transaction, True)


@pytest.mark.ci
def test_the_next_launch_stops_the_one_before(world):
    """It sees the old pods gone before it starts; the old object is deleted after."""
    world.launch()
    (old,) = world.jobs()
    world.pushes("second")
    world.item["record"]["version"] = 2
    world.launch()
    (new,) = world.jobs()
    assert new != old
    assert [name for name, _ in world.kubelet.started] == [old, new]
    assert world.rows() == [("totals", 1), ("totals", 2)]
    assert list(world.kubelet.named("Pod")) == [f"{new}-pod"]


@pytest.mark.ci
def test_a_pod_that_does_not_end_holds_the_start_up(world):
    """Decided, and not started: it goes on when the pod is gone."""
    world.launch()
    (old,) = world.jobs()
    world.pushes("second")
    world.kubelet.lingering.set()
    world.gives_up()
    with pytest.raises(CommitPendingError):  # perhaps before its stop was seen
        world.launch()
    assert not any(world.jobs().values())
    with pytest.raises(CommitPendingError, match=f"waits for the end of {old}-pod"):
        world.launch()
    assert not any(world.jobs().values())
    world.kubelet.let_go()
    world.limits.clear()
    assert world.launch().replay
    assert [name for name, runs in world.jobs().items() if runs] == [
        name for name, _ in world.kubelet.started[1:]
    ]


def make_deployment(world):
    job = world.item["job"]
    job |= {"apiVersion": "apps/v1", "kind": "Deployment"}
    del job["spec"]["template"]["spec"]["restartPolicy"]
    return job


@pytest.mark.ci
@pytest.mark.parametrize("kind", ["Job", "Deployment"])
def test_a_controller_that_is_late_holds_the_start_up(world, kind):
    """Of the old one is no pod, and it may make one: it must have seen the stop."""
    if kind == "Deployment":
        make_deployment(world)
    world.launch()
    world.kubelet.settle()
    world.kubelet.be_late()
    world.kubelet.cluster.delete("Pod", "default", "totals-0-1-pod")
    world.pushes("second")
    world.gives_up()
    with pytest.raises(
        CommitPendingError, match=r"waits for the end of totals-0-1(?!-)"
    ):
        world.launch()
    world.kubelet.late.clear()
    world.limits.clear()
    assert world.launch().replay
    assert [name for name, _ in world.kubelet.started] == ["totals-0-1", "totals-1-1"]


@pytest.mark.ci
def test_a_job_that_was_not_seen_started_is_not_stopped(world):
    """Its controller could start it from what it has read before."""
    world.kubelet.be_late()
    world.launch()
    world.pushes("second")
    world.gives_up()
    with pytest.raises(CommitPendingError, match="waits for the end of totals-0-1"):
        world.launch()
    assert world.jobs() == {"totals-0-1": True, "totals-1-1": False}
    world.kubelet.late.clear()
    world.limits.clear()
    assert world.launch().replay
    assert [name for name, _ in world.kubelet.started] == ["totals-0-1", "totals-1-1"]


FAILING = [sys.executable, "-c", "raise SystemExit('pip cannot resolve numpy')"]


@pytest.mark.parametrize(
    ("broken", "reason"),
    [
        ("build", "the build failed (1): pip cannot resolve numpy"),
        ("push", "the build ended well and pushed no "),
        ("check", "the check of the job failed: pip cannot resolve numpy (exit 1)"),
        pytest.param("service", "votes abort", marks=pytest.mark.ci),
        pytest.param("cluster", "not allowed to do this", marks=pytest.mark.ci),
    ],
)
def test_what_fails_leaves_nothing(world, broken, reason):
    """No tag, no job, no row; the reason in one line. Again only by --again."""
    if broken == "build":
        world.item["build"]["command"] = FAILING
    elif broken == "push":
        world.item["build"]["command"] = [sys.executable, "-c", ""]
    elif broken == "check":
        world.item["check"] = FAILING
    elif broken == "service":
        world.item["record"]["version"] = {"no": "column"}
    else:
        world.fails(
            lambda method, path: (
                "refuse" if method == "POST" and path.endswith("/jobs") else None
            )
        )
    with pytest.raises(TwoPhaseError) as raised:
        world.launch()
    assert reason in str(raised.value)
    assert world.live is None
    assert not world.staged(f"{world.application}.0.1")
    assert world.jobs() == {}
    assert world.rows() == []
    with pytest.raises(ConfigurationError, match="was rolled back") as refused:
        world.launch()
    assert reason in str(refused.value)
    world.pushes("mended")
    world.item.pop("check", None)
    world.item["record"]["version"] = 1
    if broken == "cluster":
        world.fails(lambda _method, _path: None)
    assert str(world.launch().transaction).endswith(".0.2")
    assert world.rows() == [("totals", 1)]


@pytest.mark.parametrize("said_by", ["build", "check", "task"])
def test_no_secret_is_quoted(world, monkeypatch, said_by):
    """Neither in the record, nor where the reason is shown: of what fails, anywhere.

    A build's command does not have it, either.
    """
    secret = "a-token-of-the-launcher"
    monkeypatch.setenv("TPC_TOKEN", secret)
    says = f"os.environ.get('TPC_TOKEN', 'none') + ' {secret}'"
    fails = [sys.executable, "-c", f"import os; raise SystemExit({says})"]
    if said_by == "check":
        world.item["check"] = fails
    elif said_by == "build":
        world.item["build"]["command"] = fails
    else:
        step = {"name": "push", "command": fails}
        del world.item["build"]["command"], world.item["build"]["environment"]
        world.item["build"]["taskRun"] = {"taskSpec": {"steps": [step]}}
    with pytest.raises(ConfigurationError) as raised:
        world.launch()
    (only,) = world.launches()
    with world.log() as log:
        on_record = log.read(only.transaction)
    for text in (str(raised.value), str(on_record.detail)):
        assert secret not in text
        assert ("none ***" if said_by == "build" else "*** ***") in text


def test_a_build_gets_what_its_file_names(world, monkeypatch):
    """And what a program needs to run; a name that is not set is an error."""
    seen = world.folder / "seen"
    monkeypatch.setenv("A_SETTING", "1")
    monkeypatch.setenv("ANOTHER", "1")
    tells = f'env > {seen}; exec "$@"'
    command = world.item["build"]["command"]
    world.item["build"]["command"] = ["sh", "-c", tells, "sh", *command]
    world.item["build"]["environment"] += ["A_SETTING"]
    world.launch()
    names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
    assert {"A_SETTING", "PATH", "HOME", "IMAGE", "TRANSACTION_ID"} <= names
    assert not {"ANOTHER", "TPC_TOKEN", "KUBECONFIG"} & names
    world.item["build"]["environment"] += ["NOWHERE"]
    with pytest.raises(ConfigurationError, match="NOWHERE is not set here"):
        world.launch()


@pytest.mark.ci
def test_again_tries_what_was_rolled_back(world):
    """The same file, by a word; its number is the next attempt's."""
    flag = world.folder / "ready"
    world.item["build"]["command"] = [
        "sh", "-c", f"test -e {flag} && exec \"$@\"", "sh",
        *world.item["build"]["command"],
    ]  # fmt: skip
    with pytest.raises(ConfigurationError, match="the build failed"):
        world.launch()
    flag.touch()
    assert str(world.launch(again=True).transaction).endswith(".0.2")


def test_a_launch_that_fails_under_way_counts_for_another(world, monkeypatch):
    """The other has read that nothing is on record: it does not try once more."""
    world.item["build"]["command"] = FAILING
    check = launching._check_known

    def fails_first(*of):
        check(*of)
        monkeypatch.setattr(launching, "_check_known", check)
        with pytest.raises(ConfigurationError, match="the build failed"):
            world.launch()

    monkeypatch.setattr(launching, "_check_known", fails_first)
    with pytest.raises(ConfigurationError, match="was rolled back"):
        world.launch()
    (only,) = world.launches()
    assert only.transaction.attempt == 1


@pytest.mark.ci
def test_a_launch_that_runs_out_of_time_is_rolled_back(world):
    """The build is ended, and nothing is left."""
    world.item["build"]["command"] = [
        sys.executable,
        "-c",
        "import signal; signal.pause()",
    ]
    world.item["timeout"] = f"{SOON:g}s"
    world.limits["request_timeout"] = SOON / 2  # a limit must be above it
    with pytest.raises(TwoPhaseError, match="was not over within the launch's"):
        world.launch()
    assert world.jobs() == {}
    assert world.rows() == []


@pytest.mark.ci
def test_a_good_check_runs_before_the_vote(world):
    """In the image that was built, told the transaction; its Job is gone after."""
    seen = world.folder / "seen"
    world.item["check"] = [
        sys.executable,
        "-c",
        f"import os; open({str(seen)!r}, 'w').write(os.environ['TRANSACTION_ID'])",
    ]
    done = world.launch()
    assert seen.read_text() == str(done.transaction)
    assert len(world.jobs()) == 1
    checked, started = world.kubelet.started
    assert checked[0] == f"{started[0]}-check"
    assert checked[1] == started[1]


@pytest.mark.ci
def test_a_task_run_builds(world, exported):
    """Named by the transaction, told where to push to, and the parent of its spans."""
    command = world.item["build"].pop("command")
    del world.item["build"]["environment"]
    step = {"name": "push", "command": ["env", "IMAGE=$(params.image)", *command]}
    world.item["build"]["taskRun"] = {"taskSpec": {"steps": [step]}}
    done = world.launch()
    name = f"{str(done.transaction).replace('.', '-')}-build"
    told = world.kubelet.named("TaskRun")[name]["metadata"]["annotations"]
    at = json.loads(told["tekton.dev/taskrunSpanContext"])["traceparent"].split("-")
    (built,) = [s for s in exported() if s.name == "BuiltImage.pre_commit"]
    assert built.context.trace_id == int(at[1], 16)
    assert built.context.span_id == int(at[2], 16)
    assert world.repository.get("live").transaction == str(done.transaction)
    step["command"] = FAILING
    with pytest.raises(ConfigurationError, match=r"TaskRun .*pip cannot resolve"):
        world.launch()
    assert list(world.kubelet.named("TaskRun")) == [name]


@pytest.mark.ci
def test_a_launch_is_one_trace_and_its_job_links_to_it(world, exported, monkeypatch):
    """Build, job and service below one root; the job knows who started it."""
    seen = world.folder / "seen"
    tells = f'printf %s "$TRACEPARENT" > {seen}; exec "$@"'
    command = world.item["build"]["command"]
    world.item["build"]["command"] = ["sh", "-c", tells, "sh", *command]
    world.launch()
    spans = exported()
    (root,) = [span for span in spans if span.name == "tpc.transaction"]
    named = {s.name for s in spans if s.context.trace_id == root.context.trace_id}
    assert {
        "BuiltImage.pre_commit",
        "SuspendedJob.pre_commit",
        "POST /prepare",
    } <= named
    assert {"BuiltImage.commit", "SuspendedJob.commit", "POST /commit"} <= named
    assert not [name for name in named if name.endswith(".abort")]  # nothing was
    (job,) = world.kubelet.named("Job").values()
    (container,) = job["spec"]["template"]["spec"]["containers"]
    told = {one["name"]: one["value"] for one in container["env"]}
    for at in (told["TRACEPARENT"], seen.read_text()):
        assert int(at.split("-")[1], 16) == root.context.trace_id
    monkeypatch.setenv("TRACEPARENT", told["TRACEPARENT"])  # as in the job's process
    facts = OpenTelemetryTracing().reserve().facts
    assert facts["root_link"] == told["TRACEPARENT"]


@pytest.mark.ci
def test_a_deployment_has_no_replicas_before_its_commit(world):
    """And as many as the file says after it."""
    job = make_deployment(world)
    job["spec"] |= {"replicas": 2, "selector": {"matchLabels": {"app": "totals"}}}
    job["spec"]["template"]["metadata"] = {"labels": {"app": "totals"}}
    done = world.launch()
    ((name, made),) = world.kubelet.named("Deployment").items()
    assert made["spec"]["replicas"] == 2
    selected = made["spec"]["selector"]["matchLabels"]
    assert selected["tracing-2pc/transaction"] == str(done.transaction)
    assert world.kubelet.started == [(name, f"{world.repository.name}@{world.live}")]


@pytest.mark.ci
def test_images_that_are_equal_have_tags_of_their_own(world):
    """What a rolled-back launch deletes is nobody else's, though the image is equal."""
    world.launch()
    before = world.live
    world.item["check"] = FAILING
    with pytest.raises(ConfigurationError, match="the check of the job failed"):
        world.launch()
    assert world.live == before
    assert not world.staged(f"{world.application}.1.1")


@pytest.mark.ci
@pytest.mark.parametrize("lost", ["POST /jobs", "PATCH /jobs/", "POST /configmaps"])
def test_an_answer_of_the_api_server_is_lost(world, lost):
    """It was done, and nobody knows: asked again, and found to be done."""
    method, ending = lost.split()
    losses = [lost]

    def fault(asked: str, path: str) -> str | None:
        place = path.partition("?")[0]
        hit = place.endswith(ending) or (ending[-1] == "/" and ending in place)
        hit = hit and "dryRun" not in path
        return "lose" if asked == method and hit and losses and losses.pop() else None

    world.fails(fault)
    world.launch()
    ((name, runs),) = world.jobs().items()
    assert runs
    assert [n for n, _ in world.kubelet.started] == [name]
    assert not losses


@pytest.mark.ci
def test_an_api_server_that_hangs_rolls_back_when_time_is_out(world):
    """Until then it is asked again. What it does later still runs nothing."""
    world.fails(lambda method, path: "hang" if path.endswith("/jobs") else None)
    world.item["timeout"] = f"{SOON:g}s"
    world.limits["request_timeout"] = SOON / 2
    cluster = dataclasses.replace(own_cluster(), timeout=AT_ONCE)
    with pytest.raises(TwoPhaseError, match="no answer of http"):
        world.launch(cluster=cluster)
    world.server.thawed.set()
    until(world.jobs)  # the late creation, which nobody waits for
    assert world.rows() == []
    world.fails(lambda _method, _path: None)
    world.limits.clear()
    world.item["timeout"] = "10m"
    world.launch()
    assert [name for name, _ in world.kubelet.started] == list(world.jobs())


@pytest.mark.ci
def test_an_object_of_somebody_else_is_left_alone(world):
    """One of the same name is neither adopted nor deleted."""
    job = world.item["job"]
    container = {**job["spec"]["template"]["spec"]["containers"][0], "image": "other"}
    pod = {"restartPolicy": "Never", "containers": [container]}
    meta = {"name": "totals-0-1", "namespace": "default"}
    spec = {"suspend": True, "template": {"metadata": {"labels": {}}, "spec": pod}}
    world.kubelet.cluster.create({**job, "metadata": meta, "spec": spec})
    with pytest.raises(ConfigurationError, match="it is not this launch's"):
        world.launch()
    assert list(world.jobs()) == ["totals-0-1"]


@pytest.fixture
def front(world, registry):
    """Stands before the registry: what a launch pushes goes through it."""
    path = world.repository.name.partition("/")[2]
    with served(registries.Front(registry)) as made:
        world.item["build"]["image"] = f"{made.host}/{path}"
        yield made
        made.thawed.set()


STAGES = "PUT /manifests/tpc-"
TAGS = "PUT /manifests/live"


@pytest.mark.ci
@pytest.mark.parametrize(
    ("fault", "at"),
    [(fault, at) for at in (STAGES, TAGS) for fault in ("refuse", "hang", "lose")],
)
def test_a_registry_that_fails(world, front, monkeypatch, fault, at):
    """Before the vote it is rolled back; after the decision it is asked again."""
    method, part = at.split()
    hits = [fault]

    def fails(asked: str, path: str) -> str | None:
        # A build pushes by the same name; what stages it comes second.
        hit = asked == method and part in path and front.fails
        return hits.pop() if hit and hits else None

    front.fails = at == TAGS
    front.fault = fails
    if at == STAGES:  # the build's own push passes
        stage = BuiltImage._run_command

        def built(self, *args):
            stage(self, *args)
            front.fails = True

        monkeypatch.setattr(BuiltImage, "_run_command", built)
    monkeypatch.setattr(Repository, "__init__", _impatient(Repository.__init__))
    if at == TAGS:
        world.launch()
        assert world.repository.get("live") is not None
    else:
        with pytest.raises(TwoPhaseError, match=re.escape(front.host)):
            world.launch()
        assert world.jobs() == {}
        assert world.rows() == []
        assert world.launch(again=True)
    assert not hits
    assert len(world.jobs()) == 1


@pytest.mark.ci
def test_a_registry_whose_tags_cannot_be_moved_says_so(world, front):
    """The build's push is the first under its tag; what stages it is the second."""
    tagged: set[str] = set()

    def fault(method: str, path: str) -> str | None:
        is_moved = method == "PUT" and "/manifests/" in path and path in tagged
        tagged.update([path] * (method == "PUT"))
        return "refuse" if is_moved else None

    front.fault = fault
    with pytest.raises(TwoPhaseError, match="if its tags are immutable, exempt tpc-"):
        world.launch()


@pytest.mark.ci
def test_a_rollback_that_is_not_acknowledged_is_no_new_try(world, front):
    """It is told again at each call, and nothing is built; then it is over."""
    world.item["check"] = FAILING
    front.fault = lambda method, _path: "refuse" if method == "DELETE" else None
    with pytest.raises(ConfigurationError, match="the check of the job failed"):
        world.launch()
    with pytest.raises(ConfigurationError, match="was rolled back"):
        world.launch()
    assert world.staged(f"{world.application}.0.1")
    front.fault = lambda _method, _path: None
    with pytest.raises(ConfigurationError, match="was rolled back"):
        world.launch()
    assert not world.staged(f"{world.application}.0.1")
    (only,) = world.launches()
    assert only.state is TransactionState.ABORTED


def _impatient(init):
    def made(self, name, timeout=SOON):
        init(self, name, timeout)

    return made


@pytest.mark.ci
def test_a_registry_that_does_not_answer_rolls_back(world):
    """The build cannot push, and says so."""
    nowhere = "127.0.0.1:9/totals"
    world.item["build"] |= {"image": nowhere, "command": ["true"]}
    with pytest.raises(TwoPhaseError, match=f"no answer of {nowhere}"):
        world.launch()
    assert world.jobs() == {}


@pytest.mark.ci
def test_a_job_deleted_before_its_commit_is_made_again(world):
    """By hand, between vote and commit: the handle has it whole."""
    world.kubelet.lingering.set()
    world.gives_up()
    world.launch()
    world.pushes("second")
    with pytest.raises(CommitPendingError):
        world.launch()
    ((name, _),) = [one for one in world.jobs().items() if not one[1]][-1:]
    world.kubelet.cluster.delete("Job", "default", name)
    world.kubelet.let_go()
    world.limits.clear()
    assert world.launch().replay
    assert world.jobs() == {name: True}


@pytest.mark.ci
def test_another_log_is_refused_before_anything_is_asked(world):
    """It counts from the beginning again: a rollback would delete what runs."""
    world.launch()
    live, jobs = world.live, world.jobs()
    (world.folder / "log.db").rename(world.folder / "lost.db")
    world.item["build"]["command"] = FAILING
    with pytest.raises(ConfigurationError, match="name the log of the earlier"):
        world.launch()
    assert (world.live, world.jobs()) == (live, jobs)


@pytest.mark.ci
@pytest.mark.parametrize("text", ["first", "second"])
def test_another_cluster_is_refused_before_anything_is_asked(world, text):
    """Neither taken for launched there, nor built: the job before runs elsewhere."""
    done = world.launch()
    name = f"tpc-{world.application}"
    world.kubelet.cluster.delete("ConfigMap", "default", name)  # another one has none
    world.pushes(text)
    with pytest.raises(ConfigurationError, match="in another cluster than http") as no:
        world.launch()
    assert no.value.transaction_id == str(done.transaction)
    assert len(world.jobs()) == 1


@pytest.mark.ci
def test_a_commit_in_another_cluster_starts_nothing(world):
    """The handle knows the journal that it was prepared beside."""
    done = world.launch()
    (handle,) = world.handles(done.transaction, "launch-job")
    elsewhere = {**handle, "journal": "the uid of another one"}
    (name,) = world.jobs()
    world.kubelet.cluster.delete("Job", "default", name)
    with pytest.raises(TwoPhaseError, match="was prepared in another cluster"):
        SuspendedJob().commit(elsewhere)
    assert world.jobs() == {}


@pytest.mark.ci
def test_a_copy_of_an_old_job_is_started(world):
    """Its annotation is another transaction's; what is left empty does not matter."""
    world.item["job"]["metadata"]["annotations"] = {"tracing-2pc/started": "other.1.1"}
    pod = world.item["job"]["spec"]["template"]["spec"]
    pod["initContainers"] = pod["containers"][0]["env"] = None
    world.launch()
    assert list(world.jobs().values()) == [True]


@pytest.mark.ci
def test_a_child_that_a_build_leaves_holds_nothing_up(world):
    """It has the build's output open, and lives on."""
    command = world.item["build"]["command"]
    child = world.folder / "child"
    lives = f"echo $$ > {child}; exec sleep {PATIENT:g}"
    leaves = f"setsid sh -c '{lives}' & exec \"$@\""
    world.item["build"]["command"] = ["sh", "-c", leaves, "sh", *command]
    world.launch()
    pid = until(lambda: child.exists() and child.read_text())
    os.kill(int(pid), signal.SIGKILL)  # it lives, and is ours
    assert len(world.jobs()) == 1


@pytest.mark.ci
def test_a_late_commit_starts_nothing_twice(world):
    """Of a job that has ended and is gone: the journal in the cluster knows it."""
    done = world.launch()
    (handle,) = world.handles(done.transaction, "launch-job")
    (name,) = world.jobs()
    world.kubelet.cluster.delete("Job", "default", name)
    assert world.jobs() == {}
    SuspendedJob().commit(handle)
    assert world.jobs() == {}
    assert len(world.kubelet.started) == 1


@pytest.mark.ci
def test_of_two_who_make_a_deleted_job_again_one_starts_it(world, monkeypatch):
    """The other was slow: it lets go of what it has read, and of nothing newer."""
    world.kubelet.lingering.set()
    world.gives_up()
    world.launch()
    world.pushes("second")
    with pytest.raises(CommitPendingError) as pending:
        world.launch()
    id_ = TransactionId.parse(pending.value.transaction_id)
    (handle,) = world.handles(id_, "launch-job")
    name = handle["object"]["metadata"]["name"]
    world.kubelet.cluster.delete("Job", "default", name)
    world.kubelet.let_go()
    make_again = SuspendedJob._create_again

    def killed(*_):
        raise CrashError

    def make_again_late(*about):
        monkeypatch.setattr(SuspendedJob, "_create_again", make_again)
        with monkeypatch.context() as quick:
            quick.setattr(SuspendedJob, "_note", killed)
            with pytest.raises(CrashError):
                SuspendedJob().commit(handle)
        assert (name, True) in world.jobs().items()
        try:
            make_again(*about)
        finally:  # it has ended, and its time to live is over
            world.kubelet.cluster.delete("Job", "default", name)

    monkeypatch.setattr(SuspendedJob, "_create_again", make_again_late)
    SuspendedJob().commit(handle)
    assert [started for started, _ in world.kubelet.started].count(name) == 1


@pytest.mark.ci
@pytest.mark.parametrize("standing", ["nothing", "another's", "the newest"])
@pytest.mark.parametrize("late", [0, 1])
def test_a_late_commit_sets_no_tag_back(world, late, standing):
    """Also where a hand has changed it: only of the newest launch it may be needed."""
    handles = []
    for text in ("first", "second"):
        world.pushes(text)
        handles += world.handles(world.launch().transaction, "launch-image")
    live = world.live
    if standing != "the newest":
        name = world.repository.name.partition("/")[2]
        (tag,) = world.images.rglob(f"*/repositories/{name}/_manifests/tags/live")
        shutil.rmtree(tag)
    if standing == "another's":
        kind = "application/vnd.oci.image.index.v1+json"
        of_hand = {"schemaVersion": 2, "mediaType": kind, "manifests": []}
        world.repository.put("live", Manifest(kind, json.dumps(of_hand).encode()))
    before = world.live
    with world.log() as log:
        BuiltImage(place_of=launching._place_of(log)).commit(handles[late])
    assert world.live == (live if late == 1 else before)
