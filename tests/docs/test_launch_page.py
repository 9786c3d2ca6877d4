"""The launch that the manual shows is one, and its table names tests that are there."""

from __future__ import annotations

import re

import kubernetes_validate
import yaml
from manual import ROOT, block, page

from tracing_2pc.cli import main
from tracing_2pc.launch import LaunchFile
from tracing_2pc.launch.operator import launch_file_of

LAUNCH = page("launch")


def test_the_pages_file_is_read():
    """As it stands there."""
    file = LaunchFile.of(yaml.safe_load(block(LAUNCH, "yaml", "build:")))
    assert (file.name, file.plan.namespace) == ("totals", "streams")
    assert file.application.startswith("totals-")
    assert file.build is not None


def test_the_pages_resource_is_read():
    """As it stands there, when the API server has kept it."""
    item = yaml.safe_load(block(LAUNCH, "yaml", "TransactionalSparkJob"))
    item["metadata"] |= {"uid": "a-uid", "generation": 1}
    file = launch_file_of(item)
    assert file.participants == {"ledger": "http://ledger.streams:8080"}
    assert file.build is not None
    assert file.build.tag == "live"


def test_the_task_of_the_examples_is_the_one_that_the_page_names():
    """It has the params that a launch gives it, and uses each."""
    text = (ROOT / "examples" / "launch" / "task.yaml").read_text()
    task = yaml.safe_load(text)
    item = yaml.safe_load(block(LAUNCH, "yaml", "TransactionalSparkJob"))
    item["metadata"] |= {"uid": "a-uid", "generation": 1}
    build = launch_file_of(item).build
    assert build is not None
    assert build.task_run is not None
    assert build.task_run["taskRef"]["name"] == task["metadata"]["name"]
    given = {p["name"] for p in build.task_run["params"]} | {"image"}
    assert given == {p["name"] for p in task["spec"]["params"]}
    assert all(f"$(params.{name})" in text for name in given)


def test_the_manifests_fit_kubernetes_and_the_page(capsys):
    """Its schemas know all of them, and the fields of our own kind are the page's."""
    command = ["operator", "manifests", "--namespace", "streams", "--image", "tpc:1"]
    assert main(command) == 0
    crd, *others = yaml.safe_load_all(capsys.readouterr().out)
    for item in (crd, *others):
        kubernetes_validate.validate(item, "1.33", strict=True)
    assert {i["metadata"]["namespace"] for i in others} == {"streams"}
    (version,) = crd["spec"]["versions"]
    schema = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    item = yaml.safe_load(block(LAUNCH, "yaml", "TransactionalSparkJob"))
    assert item["spec"].keys() <= schema.keys()
    assert item["spec"]["job"].keys() <= schema["job"]["properties"].keys()


def test_each_answer_has_a_test():
    """Of the file that it names."""
    named = re.findall(r"`(test_\w+)\.py::(\w+)`", LAUNCH)
    assert named
    for file, test in named:
        text = (ROOT / "tests" / "launch" / f"{file}.py").read_text()
        assert f"def {test}(" in text, test
