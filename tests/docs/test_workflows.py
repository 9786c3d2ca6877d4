"""What GitHub runs: its targets are the Makefile's, its actions are pinned."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest
import yaml
from manual import ROOT, make_targets

from tools import release_tree
from tools.audit import report
from tools.release_check import faults

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

GITHUB: Final = ROOT / ".github"
WORKFLOWS: Final = sorted((GITHUB / "workflows").glob("*.yml"))
ACTIONS: Final = sorted((GITHUB / "actions").glob("*/action.yml"))
_PINNED: Final = re.compile(r"[\w-]+/[\w-]+@[0-9a-f]{40}  # v\d+\.\d+\.\d+")

each_workflow = pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)


def jobs(path: Path) -> dict[str, Any]:
    found: dict[str, Any] = yaml.safe_load(path.read_text(encoding="utf-8"))["jobs"]
    return found


def legs(job: dict[str, Any]) -> list[dict[str, str]]:
    """Return the values of a matrix, without what `include` adds to another value."""
    matrix = dict(job.get("strategy", {}).get("matrix", {}))
    included = matrix.pop("include", [])
    if not matrix:
        return included or [{}]
    ((name, values),) = matrix.items()
    return [{name: value} for value in values]


def commands(path: Path) -> Iterator[str]:
    """Yield what a workflow runs, for each value of its matrices."""
    for job in jobs(path).values():
        for leg in legs(job):
            for step in job["steps"]:
                yield re.sub(
                    r"\$\{\{ matrix\.(\w+) \}\}",
                    lambda name, leg=leg: str(leg[name[1]]),
                    step.get("run", ""),
                )


@each_workflow
def test_each_target_is_there(path):
    """`make …` in a workflow is a target of the Makefile."""
    start = re.compile(r"^make ([a-z0-9-]+)", re.M)
    named = {target for run in commands(path) for target in start.findall(run)}
    assert named
    assert named <= make_targets()


def test_each_part_of_the_night_is_run():
    """A part that `make nightly` has, and GitHub has not, would rot there."""
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8").replace("\\\n", " ")
    (parts,) = re.findall(r"^NIGHTLY\s*:?=\s*(.*)$", makefile, re.M)
    (path,) = [path for path in WORKFLOWS if path.stem == "nightly"]
    run = [
        t for c in commands(path) for t in re.findall(r'make ([a-z0-9-]+) SEED="\$', c)
    ]
    assert sorted(run) == sorted(parts.split())


@pytest.mark.parametrize(
    "path", [*WORKFLOWS, *ACTIONS], ids=lambda path: str(path.relative_to(GITHUB))
)
def test_each_action_is_pinned(path):
    """A stranger's by the commit, with its version beside it; our own is there."""
    named = re.findall(r"uses: (.*)$", path.read_text(encoding="utf-8"), re.M)
    assert named
    for action in named:
        if action.startswith("./"):
            assert (ROOT / action / "action.yml") in ACTIONS, action
        else:
            assert _PINNED.fullmatch(action), action


@each_workflow
def test_nothing_is_allowed_but_to_read(path):
    """What a pull request runs cannot write to the repository."""
    text = path.read_text(encoding="utf-8")
    workflow = yaml.safe_load(text)
    assert workflow["permissions"] == {"contents": "read"}
    assert "pull_request_target" not in text
    if path.stem != "release":  # by YAML `on` is true
        assert not any("permissions" in job for job in jobs(path).values())
    else:
        assert workflow[True] == {"push": {"tags": ["v*.*.*"]}}
        assert not any("contents: write" in line for line in text.splitlines())
        assert "secrets." not in text


_CLEAN: Final = {"name": "a", "version": "1", "vulns": []}
_BAD: Final = {**_CLEAN, "vulns": [{"id": "CVE-1", "fix_versions": ["2"]}]}
_SKIPPED: Final = {"name": "b", "skip_reason": "not found"}


@pytest.mark.parametrize(
    ("text", "many", "missing"),
    [
        (json.dumps({"dependencies": [_CLEAN]}), 0, False),
        (json.dumps({"dependencies": [_BAD, _SKIPPED]}), 1, True),
        (json.dumps({"dependencies": [_SKIPPED]}), 0, True),
        (json.dumps({"dependencies": []}), 0, True),
        ("", 0, True),
    ],
)
def test_an_audit_without_advisories_is_not_called_clean(text, many, missing):
    """Where a package's advisories could not be had, it is said."""
    found, not_audited = report(text)
    assert (len(found), bool(not_audited)) == (many, missing)


CHANGES: Final = (
    "# Changelog\n\n## {heading}\n\nThe first release\n\n## 0.0.9 (2026-01-01)\n"
)


@pytest.mark.parametrize(
    ("tag", "heading", "cited", "many"),
    [
        ("v0.1.0", "0.1.0 (2026-12-01)", "0.1.0", 0),
        ("v0.1.0", "0.1.0 (unreleased)", "0.1.0", 1),
        ("v0.1.1", "0.1.0 (2026-12-01)", "0.1.1", 2),
        ("v0.1.0", "0.2.0 (2026-12-01)", "0.1.0", 1),
        ("v0.1.0", "0.1.0 (2026-12-01)", "0.0.9", 1),
    ],
)
def test_a_tag_is_the_version_and_the_changelog_s(tag, heading, cited, many):
    """Nothing is published under a version that is not what the files say."""
    project = '[project]\nname = "x"\nversion = "0.1.0"\n'
    texts = (CHANGES.format(heading=heading), f"title: x\nversion: {cited}\n")
    found = list(faults(tag, project, *texts))
    assert len(found) == many
    assert all(tag in line for line in found)


def test_a_published_readme_has_links_that_work_elsewhere():
    """Each is absolute, at the tag, and leads to a file; so does `project.urls`."""
    about = ("v0.1.0", "https://host.example/owner/name")
    texts = [(ROOT / n).read_text("utf-8") for n in ("README.md", "pyproject.toml")]
    readme = release_tree.with_absolute_links(texts[0], *about)
    project = tomllib.loads(release_tree.with_addresses(texts[1], *about))["project"]
    links = [*re.findall(r"\]\(([^)]*)\)", readme), *project["urls"].values()]
    files = [
        link.removeprefix("/".join((about[1], "blob", about[0]))) for link in links
    ]
    relative = [file for file in files if not file.startswith(("/", "https://"))]
    assert relative == []
    there = [
        f for f in files if f.startswith("/") and (ROOT / f[1:].split("#")[0]).exists()
    ]
    assert len(there) > len(project["urls"])
    assert [f for f in files if f.startswith("/") and f not in there] == []
    assert "](docs/" in texts[0]


def test_the_first_release_lacks_its_date_only():
    """`v0.1.0` may be set when the changelog has its date."""
    names = ("pyproject.toml", "CHANGELOG.md", "CITATION.cff")
    texts = [(ROOT / name).read_text(encoding="utf-8") for name in names]
    version = re.findall(r'^version = "(.+)"$', texts[0], re.M)[0]
    assert [line for line in faults(f"v{version}", *texts) if "date" not in line] == []


@pytest.mark.parametrize(
    "path",
    sorted((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")),
    ids=lambda path: path.stem,
)
def test_each_form_of_an_issue_is_one(path):
    """GitHub shows a form that has a name, a description, and fields with a label."""
    form = yaml.safe_load(path.read_text(encoding="utf-8"))
    if path.stem == "config":
        assert form.keys() == {"blank_issues_enabled"}
        return
    assert form["name"]
    assert form["description"]
    fields = [item for item in form["body"] if item["type"] != "markdown"]
    assert fields
    assert all(item["attributes"]["label"] for item in fields)


def test_the_citation_has_the_license():
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert cited["license"] == "Apache-2.0"
