"""What a launch's file must say, and what is refused in one line."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
import yaml

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.model import TransactionId, check_application
from tracing_2pc.launch import LaunchFile
from tracing_2pc.launch.kubeconfig import read_yaml
from tracing_2pc.launch.launch_file import application_of
from tracing_2pc.launch.operator import launch_file_of
from tracing_2pc.launch.plan import object_name

DIGEST = "registry:5000/totals@sha256:" + "a" * 64


def item(**changed: Any) -> dict[str, Any]:
    container = {"name": "totals", "image": "built"}
    job = {
        "kind": "Job",
        "metadata": {"name": "totals"},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    build = {"image": "registry:5000/totals", "tag": "live", "command": "make push"}
    return {"job": job, "build": build, **changed}


def with_image(image: str) -> dict[str, Any]:
    made = item()
    made["job"]["spec"]["template"]["spec"]["containers"][0]["image"] = image
    return made


def with_job(*, pod: Any = None, spec: Any = None, meta: Any = None) -> dict[str, Any]:
    made = item()
    made["job"]["metadata"] |= meta or {}
    made["job"]["spec"] |= spec or {}
    made["job"]["spec"]["template"]["spec"] |= pod or {}
    return made


TAG = "registry:5000/tool:1"


REFUSED = {
    "no field 'buidl' here": item(buidl={}),
    "job: expected a Job or a Deployment": item(job={"kind": "Pod"}),
    "job.metadata.name: small letters": item(
        job={**item()["job"], "metadata": {"name": "Totals"}}
    ),
    "has Kueue start it by itself": item(
        job={
            **item()["job"],
            "metadata": {"name": "a", "labels": {"kueue.x-k8s.io/queue-name": "q"}},
        }
    ),
    "a tag may be another image tomorrow": with_image("registry:5000/totals:live"),
    "with `build`, and only then": with_image(DIGEST),
    f"image {TAG!r}: name it by its digest": with_job(
        pod={"initContainers": [{"name": "first", "image": TAG}]}
    ),
    f"image {TAG!r}: name it by": with_job(
        pod={"volumes": [{"name": "model", "image": {"reference": TAG}}]}
    ),
    f"image {TAG!r}: name it": with_job(
        pod={"ephemeralContainers": [{"name": "debug", "image": TAG}]}
    ),
    "image 'None': name it by its digest": with_job(pod={"volumes": [{"image": {}}]}),
    "job.spec.paused: a Deployment that is paused": with_job(spec={"paused": True}),
    "job.metadata.annotations: kueue.x-k8s.io/… has Kueue": with_job(
        meta={"annotations": {"kueue.x-k8s.io/queue-name": "q"}}
    ),
    "job.metadata.namespace: small letters": with_job(meta={"namespace": "a.b"}),
    "job.metadata.name: small": with_job(meta={"name": "a..b"}),
    "job.metadata.name: small letters, digits": with_job(meta={"name": "a-.b"}),
    "build: give command or taskRun": item(build={"image": "r/t"}),
    "build: 'totals': expected host": item(build={"image": "totals", "command": "x"}),
    "build: no field 'args' here": item(build={"args": []}),
    "build.environment: expected a list": item(
        build={"image": "r:1/t", "command": "x", "environment": ["A=1"]}
    ),
    "build.environment: a taskRun has none": item(
        build={"image": "r:1/t", "taskRun": {}, "environment": ["A"]}
    ),
    "record: say which row": item(participants={"ledger": "http://ledger:8080"}),
    "no transport for pigeon://": item(participants={"ledger": "pigeon://there"}),
    "expected a duration": item(timeout="soon"),
    "check: expected a list of words": item(check=[1]),
}


@pytest.mark.parametrize("reason", REFUSED)
def test_what_is_wrong_is_named(reason):
    """The field, and how it is written."""
    with pytest.raises(ValueError, match=r".") as refused:
        LaunchFile.of(REFUSED[reason])
    assert reason in str(refused.value)


@pytest.mark.parametrize("text", ["a b", "-a", "a" * 64, 7, ["a"]])
def test_a_transaction_id_that_is_no_label_is_named(text):
    """In one line; what is kept as a label is found by it."""
    spec = {"transactionId": text, "job": {"image": DIGEST, "entrypoint": "run"}}
    meta = {"name": "totals", "namespace": "default", "uid": "u", "generation": 1}
    with pytest.raises(ValueError, match=r"^spec.transactionId: at most 63 letters"):
        launch_file_of({"metadata": meta, "spec": spec})


@pytest.mark.parametrize(
    ("known", "refused"),
    [({}, False), ({"b": "http://b:1/"}, False), ({"b": "http://c:1"}, True)],
)
def test_a_token_goes_to_known_addresses(known, refused):
    """Where the operator's own settings name any, whoever writes the resource."""
    service = {"name": "a", "type": "ExternalService", "endpoint": "http://b:1"}
    job = {"image": DIGEST, "entrypoint": "run"}
    meta = {"name": "totals", "namespace": "default", "uid": "u", "generation": 1}
    item = {"metadata": meta, "spec": {"job": job, "participants": [service]}}
    if not refused:
        assert launch_file_of(item, known).participants == {"a": "http://b:1"}
        return
    with pytest.raises(ValueError, match=r"^participants: a at http://b:1 is none of"):
        launch_file_of(item, known)


TWICE = "timeout: 5m\nrecord: {}\ntimeout: 9m\n"


@pytest.mark.parametrize("text", ["a: [", "- no object", TWICE, None])
def test_a_file_that_is_none_is_one_line(tmp_path, text):
    """With its path."""
    path = tmp_path / "job.yaml"
    if text is not None:
        path.write_text(text)
    with pytest.raises(ConfigurationError) as refused:
        LaunchFile.read(path)
    assert str(refused.value).startswith(f"{path}: ")
    assert "\n" not in str(refused.value)


def test_what_the_job_is_told():
    """The participants, as its own settings are written; and their broker, if any."""
    file = LaunchFile.of(
        item(participants={"ledger": "http://ledger:8080"}, record={"job": "totals"})
    )
    assert file.plan.environment == {"TPC_PARTICIPANTS": "ledger=http://ledger:8080"}
    urls = {"ledger": "nats+tls://nats:4222/l"}
    by_broker = LaunchFile.of(item(participants=urls, record={"job": "totals"}))
    assert by_broker.plan.environment == {
        "TPC_PARTICIPANTS": "ledger=nats+tls://nats:4222/l",
        "NATS_URL": "nats+tls://nats:4222",
    }


def test_a_key_that_comes_twice_is_named(tmp_path):
    """One of its values would be left out, at any depth; a merge is no key."""
    path = tmp_path / "job.yaml"
    path.write_text("record:\n  version: 1\n  version: 2\n")
    with pytest.raises(ConfigurationError, match="'version' comes twice"):
        LaunchFile.read(path)
    assert read_yaml("a: &a {b: 1}\nc: {<<: *a, b: 2}") == {
        "a": {"b": 1},
        "c": {"b": 2},
    }


def test_a_merge_may_be_merged_again():
    """And overridden, as YAML has it; a key that does come twice is named still."""
    text = "a: &a {x: 1, y: 1}\ntop: {b: &b {<<: *a, x: 3}}\nc: {<<: *b}\n"
    assert read_yaml(text)["c"] == {"x": 3, "y": 1}
    with pytest.raises(yaml.YAMLError, match="'x' comes twice"):
        read_yaml("a: &a {x: 1}\nb: {<<: *a, x: 3, x: 4}\n")


def test_an_image_that_is_built_may_be_anywhere_in_the_pod():
    """In a container, one before it, or a volume: it is pinned to the same digest."""
    volume = {"name": "model", "image": {"reference": "built"}}
    first = {"name": "first", "image": "built"}
    made = with_job(pod={"initContainers": [first], "volumes": [volume]})
    made["job"]["spec"]["template"]["spec"]["containers"][0]["image"] = DIGEST
    of = TransactionId("totals", 0, 1)
    pod = LaunchFile.of(made).plan.object(of, "r/t@x")["spec"]["template"]["spec"]
    assert pod["initContainers"][0]["image"] == "r/t@x"
    assert pod["volumes"][0]["image"]["reference"] == "r/t@x"
    assert pod["containers"][0]["image"] == DIGEST


@pytest.mark.parametrize("end", [".", "-", ".-", "x"])
def test_a_name_that_is_cut_is_a_name(end):
    """Whatever stands where it is cut; the API server takes no other."""
    name = "a" * (36 - len(end)) + end + "b"
    made = object_name(name, TransactionId("totals", 12, 1))
    assert re.fullmatch(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]+)*", made)
    assert made.startswith("a" * (36 - len(end)))
    assert made.endswith("-12-1")


def test_ours_come_before_the_jobs_own_variables():
    """So that these may name them; a `$` of ours is one, whatever stands behind it."""
    made = item(participants={"a": "http://a/$(HOME)"}, record={"job": "totals"})
    (container,) = made["job"]["spec"]["template"]["spec"]["containers"]
    container["env"] = [
        {"name": "ID", "value": "$(TRANSACTION_ID)"},
        {"name": "TRANSACTION_ID", "value": "a copy's"},
    ]
    of = TransactionId("totals", 0, 1)
    template = LaunchFile.of(made).plan.object(of, "r/t@x")["spec"]["template"]
    *ours, own = template["spec"]["containers"][0]["env"]
    assert own == container["env"][0]
    assert {one["name"]: one["value"] for one in ours} == {
        "TPC_PARTICIPANTS": "a=http://a/$$(HOME)",
        "TRANSACTION_ID": str(of),
    }


def test_the_digest_is_of_what_the_file_means():
    """Another order is the same, another value is not."""
    first = LaunchFile.of(item())
    turned = LaunchFile.of(dict(reversed(item().items())))
    assert first.digest == turned.digest
    other = copy.deepcopy(item())
    other["build"]["tag"] = "next"
    assert LaunchFile.of(other).digest != first.digest


@pytest.mark.parametrize("name", ["t", "a-very-long-name-of-a-job.with-dots.and-more"])
def test_an_application_fits_and_is_its_own(name):
    """However long the resource's name is."""
    found = {application_of("default", name), application_of("other", name)}
    found.add(application_of("default", name, "a-uid"))
    assert len(found) == 3
    assert all(check_application(one) == one for one in found)
