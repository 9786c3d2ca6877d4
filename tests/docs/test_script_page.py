"""The programs of the page on scripts do what it says of them."""

from __future__ import annotations

import os
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from manual import block, blocks, page, words
from support.programs import ran

from tracing_2pc.cli import main
from tracing_2pc.participant import TaggedRows
from tracing_2pc.testing import served

PAGE = page("script")


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, str]]:
    """The environment of a script: a ledger, and a token."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "state").mkdir()
    with served(TaggedRows(f"sqlite:///{tmp_path}/ledger.db", table="orders")) as url:
        for name, value in {
            "TPC_PARTICIPANTS": f"ledger={url}",
            "TPC_TOKEN": "not-looked-at",
            "TPC_LOG": "sqlite:///state/decisions.db",
        }.items():
            monkeypatch.setenv(name, value)
        yield dict(os.environ)


def test_the_script_is_run_twice(tmp_path, told):
    """By the page's commands; each says what stands beside it."""
    (tmp_path / "daily.py").write_text(block(PAGE, "python", "# daily.py"))
    (commands,) = blocks(PAGE, "sh")
    for line in commands.splitlines():
        command, _, says = line.partition("  # ")
        done = ran([sys.executable, *command.split()[1:]], env=told)
        assert (done.stdout, done.stderr, done.returncode) == (f"{says}\n", "", 0)


def test_its_error_is_one_line(tmp_path, told):
    """Without a traceback, and the exit code says so."""
    (tmp_path / "daily.py").write_text(block(PAGE, "python", "# daily.py"))
    done = ran([sys.executable, "daily.py", "2026-11-07"], env=told)
    assert done.returncode == 1
    assert done.stderr.count("\n") == 1
    assert "tracing-2pc init --application daily --from-batch 6" in done.stderr


def test_the_task_of_airflow(tmp_path, told, monkeypatch):
    """Its function, after the command of the page: written, then a replay."""
    tasks: dict[str, Any] = {}

    def task(**_: object) -> Any:
        def decorate(function: Any) -> Any:
            tasks[function.__name__] = function
            return lambda: None

        return decorate

    stand_in = types.ModuleType("airflow.sdk")
    vars(stand_in).update(task=task, dag=lambda **_: lambda function: function)
    monkeypatch.setitem(sys.modules, "airflow", types.ModuleType("airflow"))
    monkeypatch.setitem(sys.modules, "airflow.sdk", stand_in)
    code = block(PAGE, "python", "airflow.sdk").replace("/srv/orders", str(tmp_path))
    exec(code, {})
    assert main(["init"]) == 0
    (command,) = [word for word in words(PAGE) if "--application orders" in word]
    assert main(command.split()[1:]) == 0
    assert [tasks["load"](ds_nodash=day) for day in ("20261101",) * 2] == [True, False]


def test_a_table_has_the_types_that_are_given():
    """The example's own."""
    names: dict[str, Any] = {}
    exec(block(PAGE, "python", "SCHEMA"), names)
    assert names["table"].schema == names["SCHEMA"]
