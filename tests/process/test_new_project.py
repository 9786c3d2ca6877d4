"""`tracing-2pc new` writes a project whose own tests pass, and which runs at once."""

from __future__ import annotations

import dataclasses
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from support.programs import ran
from support.texts import texts

from tracing_2pc.cli import main
from tracing_2pc.core.settings import Settings
from tracing_2pc.operations.new_project import FILES

TEXTS = texts("process")
ROOT = Path(__file__).parents[2]
SETTINGS = {field.name for field in dataclasses.fields(Settings)}


@pytest.fixture
def project(tmp_path, monkeypatch):
    """A project that was made in an empty folder, which is the current one."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-pipeline"]) == 0
    folder = tmp_path / "my-pipeline"
    monkeypatch.chdir(folder)
    return folder


def run_tests(project: Path, *chosen: str) -> subprocess.CompletedProcess[str]:
    """Run its tests as its README says."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    told = {**os.environ, "PYTHONPATH": str(ROOT), "TPC_SPANS": "off"}
    return ran(command, cwd=project, env=told)


def test_a_project_is_whole(project, capsys):
    """Every file is there, for this application; `init` adds what is secret."""
    written = {str(f.relative_to(project)) for f in project.rglob("*") if f.is_file()}
    assert written == set(FILES)
    for file in FILES:
        text = (project / file).read_text(encoding="utf-8")
        assert "{name}" not in text, file
        assert "{version}" not in text, file
    assert 'APPLICATION = "my-pipeline"' in (project / "job.py").read_text()
    assert main(["init"]) == 0
    assert "kept tpc.toml" in capsys.readouterr().out
    assert set(Settings.load(environ={}).participants) == {"ledger", "notifier"}
    ignored = (project / ".gitignore").read_text().splitlines()
    assert {"/tokens", "/state/"} <= set(ignored)


def test_its_tests_pass_without_spark(project):
    """A batch with lost answers, to services in the test's process."""
    done = run_tests(project, "tests/test_job.py", "-k", "an_answer_that_is_lost")
    assert "1 passed" in done.stdout


@pytest.mark.ci
@pytest.mark.spark
def test_its_tests_pass(project):
    """The job on a real Spark, and the promises of its sink."""
    done = run_tests(project)
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


def test_its_containers_read_the_tokens(project):
    """`init` lets their owner alone read the file; a container's user is another."""
    assert main(["init"]) == 0
    assert (project / "tokens").stat().st_mode & 0o077 == 0
    stack = yaml.safe_load((project / "compose.yaml").read_text())
    assert stack["secrets"] == {"tokens": {"environment": "TOKENS"}}
    for service in (s for s in stack["services"].values() if "build" in s):
        assert service["secrets"] == [{"source": "tokens", "mode": 0o444}]
    assert (
        'TOKENS="$(cat tokens)" docker compose' in (project / "README.md").read_text()
    )


def test_its_containers_are_told_what_they_read(project):
    """Each variable is one of the settings, or of the program that is started."""
    stack = yaml.safe_load((project / "compose.yaml").read_text())
    for name, service in stack["services"].items():
        if "build" not in service:
            continue
        assert re.search(
            rf"(gunicorn {name}:app|python {name}\.py)", service["command"]
        )
        program = (project / f"{name}.py").read_text()
        for variable in service.get("environment", {}):
            setting = variable.removeprefix("TPC_").lower()
            assert variable in program or setting in SETTINGS, variable


@pytest.mark.parametrize("name", ["My Pipeline", "there"])
def test_nothing_is_written_over(tmp_path, monkeypatch, capsys, name):
    """A folder with something in it, and a name that no application can have."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "job.py").write_text("mine")
    assert main(["new", name]) == 2
    said = capsys.readouterr().err
    assert TEXTS["not empty" if name == "there" else "no name"] in said
    assert [f.name for f in tmp_path.rglob("*")] == ["there", "job.py"]
    assert (tmp_path / "there" / "job.py").read_text() == "mine"
