"""`tracing-2pc new` writes a project whose own tests pass, and which runs at once."""

from __future__ import annotations

import dataclasses
import json
import os
import re
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml
from support.following import Reader, kill_and_look
from support.programs import ran
from support.texts import texts

from tracing_2pc.cli import main
from tracing_2pc.core.settings import Settings
from tracing_2pc.operations.new_project import FILES, Kind

TEXTS = texts("process")
ROOT = Path(__file__).parents[2]
SETTINGS = {field.name for field in dataclasses.fields(Settings)}


def made(tmp_path, monkeypatch, *options: str) -> Path:
    """Make a project in an empty folder, which is then the current one."""
    monkeypatch.chdir(tmp_path)
    assert main(["new", "my-pipeline", *options]) == 0
    folder = tmp_path / "my-pipeline"
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture(params=Kind, ids=lambda kind: kind.value)
def either(request, tmp_path, monkeypatch):
    """A project of each kind."""
    options = ["--services"] if request.param is Kind.SERVICES else []
    return made(tmp_path, monkeypatch, *options), request.param


@pytest.fixture
def project(tmp_path, monkeypatch):
    """One with services."""
    return made(tmp_path, monkeypatch, "--services")


@pytest.fixture
def one_file(tmp_path, monkeypatch):
    """One without."""
    return made(tmp_path, monkeypatch)


def ours(project: Path) -> dict[str, dict[str, Any]]:
    """Return those services of its compose file whose image it builds, by name."""
    stack = yaml.safe_load((project / "compose.yaml").read_text())
    mine = {n: s for n, s in stack["services"].items() if n != "postgres"}
    assert set(mine) == {"partner", "ledger", "notifier", "job"}
    return mine


def run_tests(project: Path, *chosen: str) -> subprocess.CompletedProcess[str]:
    """Run its tests as its README says."""
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *chosen]
    return ran(command, cwd=project, env=told())


def told() -> dict[str, str]:
    """Return the environment of its programs."""
    return {**os.environ, "PYTHONPATH": str(ROOT), "TPC_SPANS": "off"}


def test_a_project_is_whole(either):
    """Every file is there, for this application, and nothing stands for something."""
    project, kind = either
    written = {str(f.relative_to(project)) for f in project.rglob("*") if f.is_file()}
    assert written == set(FILES[kind])
    for file in FILES[kind]:
        text = (project / file).read_text(encoding="utf-8")
        assert not re.search(r"\{(name|version|requirement)\}", text), file
    assert 'APPLICATION = "my-pipeline"' in (project / "job.py").read_text()
    ignored = (project / ".gitignore").read_text().splitlines()
    assert {"/tokens", "/state/"} <= set(ignored)


def test_init_adds_what_is_secret(project, capsys):
    """Tokens for its services, and the decision log."""
    assert main(["init"]) == 0
    assert "kept tpc.toml" in capsys.readouterr().out
    assert set(Settings.load(environ={}).participants) == {"ledger", "notifier"}
    assert (project / "tokens").exists()


def test_one_file_needs_no_token(one_file):
    """Its participant is an address that is opened here."""
    assert main(["init"]) == 0
    assert set(Settings.load(environ={}).participants) == {"orders"}
    assert not (one_file / "tokens").exists()


@pytest.mark.parametrize(
    ("origin", "requirement"),
    [
        (None, "tracing-2pc[spark]~=9.8.7"),
        (
            {
                "url": "https://host.example/owner/name",
                "vcs_info": {"vcs": "git", "commit_id": "abc"},
            },
            "tracing-2pc[spark] @ git+https://host.example/owner/name@abc",
        ),
        (
            {"url": "file:///there/x.whl", "archive_info": {}},
            "tracing-2pc[spark] @ file:///there/x.whl",
        ),
        (
            {"url": "file:///clone", "dir_info": {"editable": True}},
            "tracing-2pc[spark] @ file:///clone",
        ),
    ],
)
def test_it_is_installed_from_where_this_is(tmp_path, monkeypatch, origin, requirement):
    """An index, a repository's commit, a wheel, a clone."""
    about = tmp_path / "tracing_2pc-9.8.7.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Name: tracing-2pc\nVersion: 9.8.7\n")
    if origin:
        (about / "direct_url.json").write_text(json.dumps(origin))
    monkeypatch.syspath_prepend(tmp_path)
    project = made(tmp_path, monkeypatch)
    assert (project / "requirements.txt").read_text().splitlines()[0] == requirement


@pytest.mark.nightly
def test_its_requirements_are_installed(one_file):
    """In a fresh environment, where its tests pass."""
    venv.create(one_file / ".venv", with_pip=True)
    python = one_file / ".venv" / "bin" / "python"
    about = ("-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    done = ran([python, *about, "-r", "requirements.txt"], env=told())
    assert done.returncode == 0, done.stderr
    clean = {n: v for n, v in os.environ.items() if n != "PYTHONPATH"}
    done = ran([python, "-m", "pytest", "-q", "-p", "no:cacheprovider"], env=clean)
    assert done.returncode == 0, done.stdout + done.stderr


def test_its_tests_pass_without_spark(either):
    """A batch, with lost answers or none, and its replay."""
    project, kind = either
    name = "a_replay" if kind is Kind.ONE_FILE else "an_answer_that_is_lost"
    assert "1 passed" in run_tests(project, "tests/test_job.py", "-k", name).stdout


@pytest.mark.ci
@pytest.mark.spark
def test_its_tests_pass(either):
    """The job on a real Spark, and the promises of its sink."""
    done = run_tests(either[0])
    assert " passed" in done.stdout
    assert "failed" not in done.stdout


@pytest.mark.ci
@pytest.mark.spark
def test_its_readme_is_followed(one_file):
    """Its commands, as they stand: a kill, and the start that finishes."""
    reader = Reader(one_file, (one_file / "README.md").read_text("utf-8"))
    try:
        kill_and_look(reader, "my-pipeline")
        said = reader.follows("tracing-2pc ls")
    finally:
        reader.stop()
    assert "All is well" in said, said
    assert "my-pipeline.1.2 is committed" in said


def test_its_containers_read_the_tokens(project):
    """`init` lets their owner alone read the file; a container's user is another."""
    assert main(["init"]) == 0
    assert (project / "tokens").stat().st_mode & 0o077 == 0
    stack = yaml.safe_load((project / "compose.yaml").read_text())
    assert stack["secrets"] == {"tokens": {"environment": "TOKENS"}}
    for service in ours(project).values():
        assert service["secrets"] == [{"source": "tokens", "mode": 0o444}]
    assert (
        'TOKENS="$(cat tokens)" docker compose' in (project / "README.md").read_text()
    )


def test_its_containers_are_told_what_they_read(project):
    """Each variable is one of the settings, or of the program that is started."""
    for name, service in ours(project).items():
        command = service["command"]
        if name == "ledger":
            assert command.startswith("tracing-2pc serve ledger")
            program = ""
        else:
            assert re.search(rf"(gunicorn {name}:app|python {name}\.py)", command)
            program = (project / f"{name}.py").read_text()
        for variable in service.get("environment", {}):
            setting = variable.removeprefix("TPC_").lower()
            assert variable in program or setting in SETTINGS, variable


def test_its_containers_share_an_image(project):
    """It is built once, and a wheel that no index has is found beside it."""
    services = ours(project)
    assert {service["image"] for service in services.values()} == {"my-pipeline-app"}
    assert [n for n, service in services.items() if "build" in service] == ["job"]
    built = (project / "Dockerfile").read_text()
    assert "COPY requirements.txt wheels/* /build/\n" in built
    assert re.search(r"pip install .*--find-links /build -r /build/requ", built)
    assert "--wheel-dir wheels" in (project / "README.md").read_text()


def test_its_containers_say_how_they_are(project):
    """A service by a page that it has; the job by its process: it has no page."""
    assert main(["init"]) == 0
    services = ours(project)
    assert "healthcheck" not in services.pop(
        "job"
    )  # `up --wait` fails at a disabled one
    for name, service in services.items():
        *_, code = service["healthcheck"]["test"]
        (page,) = re.findall(r"http://127\.0\.0\.1:8080(/[a-z/]+)'", code)
        if name == "ledger":  # answers as any that is served
            assert page == "/health/ready"
            continue
        ask = f"import {name} as m; print(m.app.test_client().get('{page}').status)"
        done = ran([sys.executable, "-c", ask], cwd=project, env=told())
        assert re.match("20[04] ", done.stdout), (name, done.stdout, done.stderr)


def test_its_containers_keep_spans_in_one_place(project):
    """What `tracing-2pc trace` shows in one container is of all."""
    (folder,) = re.findall(r"TPC_SPANS=(\S+)", (project / "Dockerfile").read_text())
    for name, service in ours(project).items():
        assert f"spans:{folder}" in service["volumes"], name


def test_its_readme_names_containers_that_exist(project):
    """Each command of docker compose is about a service of the file."""
    said = (project / "README.md").read_text()
    verbs = r"exec(?: -e TPC_TOKEN)?|kill|start|logs --follow"
    named = re.findall(rf"docker compose (?:{verbs}) (\w+)", said)
    assert set(named) == {"job", "ledger", "postgres"}
    assert set(named) <= {*ours(project), "postgres"}


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
