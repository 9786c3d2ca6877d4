"""What the containers are prepared with: secrets once, configuration that fits."""

from __future__ import annotations

import importlib.util
import json
import re
import secrets
from pathlib import Path
from types import ModuleType
from urllib.parse import urlsplit

import psycopg
import pytest
from bundled.files import checked
from support.texts import texts

from containers.files import ROOT, filled, mounts, services
from tracing_2pc.core.settings import Settings


@pytest.fixture
def prepare(tmp_path, monkeypatch) -> ModuleType:
    """The program, over an empty folder."""
    monkeypatch.setenv("PREPARE_ROOT", str(tmp_path))
    monkeypatch.setenv("PREPARE_DASHBOARDS", str(ROOT / "dashboards"))
    path = ROOT / "compose" / "prepare.py"
    spec = importlib.util.spec_from_file_location("prepare", path)
    assert spec is not None
    assert spec.loader is not None
    made = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(made)
    return made


def everything(folder: Path) -> dict[str, str]:
    """Return all files by name."""
    return {str(p): p.read_text() for p in folder.rglob("*") if p.is_file()}


def test_a_second_start_changes_nothing(prepare, tmp_path):
    """Passwords stay those that the database was made with."""
    prepare.main("services")
    first = everything(tmp_path)
    prepare.main("services")
    assert everything(tmp_path) == first


OWNER = """SELECT pg_get_userbyid(datdba) FROM pg_database WHERE datname = %s"""


def test_volumes_of_an_older_release_get_what_they_lack(
    prepare, tmp_path, monkeypatch, postgres_database
):
    """A password, a role and a database for each new name; what is there stays."""
    monkeypatch.setenv("PREPARE_SERVER", postgres_database)
    old, new = (f"{age}_{secrets.token_hex(4)}" for age in ("old", "new"))
    passwords = tmp_path / "ours" / "passwords.json"
    held = []
    with psycopg.connect(postgres_database, autocommit=True) as server:
        try:
            for known in ((old,), (old, new), (old, new)):
                monkeypatch.setattr(prepare, "OURS", known)
                prepare.main("services")
                prepare.main("roles")
                held.append(json.loads(passwords.read_text()))
            owners = [server.execute(OWNER, [name]).fetchone() for name in (old, new)]
        finally:
            for name in (old, new, *prepare.OTHERS):
                server.execute(f"DROP DATABASE IF EXISTS {name}")
                server.execute(f"DROP ROLE IF EXISTS {name}")
    assert owners == [(old,), (new,)]
    assert held[0] == {n: p for n, p in held[1].items() if n != new}
    assert held[1] == held[2]


def test_each_password_is_its_own_and_fits(prepare, tmp_path):
    """A role has in the database what its client reads; ours, nobody else reads."""
    prepare.main("services")
    held = json.loads((tmp_path / "ours" / "passwords.json").read_text())
    assert len(set(held.values())) == len(held) == 10
    assert min(map(len, held.values())) >= 32
    sql = (tmp_path / "postgres" / "databases.sql").read_text()
    given = dict(re.findall(r"CREATE ROLE (\w+) LOGIN PASSWORD '([^']+)'", sql))
    read = (tmp_path / "ours" / "pgpass").read_text().splitlines()
    asked = {line.split(":")[3]: line.split(":")[4] for line in read}
    asked["skywalking"] = (tmp_path / "skywalking" / "database.password").read_text()
    assert asked == given
    for secret in ("pgpass", "passwords.json"):
        assert (tmp_path / "ours" / secret).stat().st_mode & 0o777 == 0o600


def test_only_names_of_this_network_are_left(prepare, tmp_path):
    """No address of another container is loopback; each name is a service.

    The runbook's stays: it is for the reader's browser, as published ports are.
    """
    prepare.main("services")
    said = [
        text
        for path, text in everything(tmp_path).items()
        if path.endswith((".yml", ".yaml")) and "test" not in Path(path).name
    ]
    assert len(said) == 9
    runbook = "http://127.0.0.1:8000/runbook.html"
    assert sum(text.count(runbook) for text in said) == 1
    assert not any("127.0.0.1" in text.replace(runbook, "") for text in said)
    named = set(re.findall(r"\b([a-z]+):\d{4,5}\b", "\n".join(said)))
    assert named <= services().keys()
    assert {"ledger", "notifier", "watcher", "jaeger", "webhook"} <= named


def test_prometheus_and_alertmanager_take_theirs(prepare, tmp_path):
    """With Prometheus's token where its configuration has it, and no other there.

    A producer gets a line of its own, once.
    """
    tokens = "# a comment\njob j-token\noperator o-token\nviewer v-token\n"
    (tmp_path / "ours").mkdir()
    (tmp_path / "ours" / "tokens").write_text(tokens)
    prepare.main("services")
    prepare.main("tokens")
    monitoring = tmp_path / "monitoring"
    checked("promtool", "check", "config", monitoring / "prometheus" / "prometheus.yml")
    alertmanager = monitoring / "alertmanager" / "alertmanager.yml"
    checked("amtool", "check-config", alertmanager)
    token = monitoring / "prometheus" / "viewer.token"
    assert token.read_text() == "v-token"
    assert (tmp_path / "ours" / "job.token").read_text() == "j-token"
    prepare.main("tokens")
    accepted = (tmp_path / "ours" / "tokens").read_text().removeprefix(tokens)
    producer = (tmp_path / "ours" / "producer.token").read_text()
    assert accepted == f"producer {producer} shop\n"
    others = "\n".join(everything(monitoring).values())
    assert "j-token" not in others
    assert "o-token" not in others


def test_an_address_that_is_not_there_any_more_is_said(prepare, tmp_path):
    """A change of `dashboards/` leaves no container with an address of loopback."""
    source = ROOT / "dashboards" / "alertmanager"
    with pytest.raises(ValueError, match=texts("containers")["in no file"]):
        prepare.copied(source, tmp_path / "there", {"nowhere": "else"})


@pytest.mark.parametrize("name", ["tpc.toml", "job.toml"])
def test_the_settings_are_read(name):
    """Each file is one that the library takes, with the environment of its service."""
    user = {"tpc.toml": "watcher", "job.toml": "job"}[name]
    told = services()[user]["environment"]
    environment = {name: filled(value) for name, value in told.items()}
    assert environment["TPC_CONFIG"] == f"/compose/{name}"
    loaded = Settings.load(ROOT / "compose" / name, environ=environment)
    secrets = [
        target for source, target, _ in mounts(services()[user]) if source == "ours"
    ]
    assert loaded.token.startswith(f"file:{secrets[0]}/")
    assert loaded.log == "env:TPC_LOG"
    # What a container asks is a service, and the link of the same name is published.
    assert {urlsplit(url).hostname for url in loaded.trace_apis.values()} <= (
        services().keys()
    )
    assert loaded.trace_apis.keys() <= loaded.links.keys()
    assert bool(loaded.trace_apis) is (name == "tpc.toml")


def test_grafana_links_to_the_stacks_own_console(prepare, tmp_path, monkeypatch):
    """Not to one that somebody runs beside it; by the port that is set in `.env`."""
    monkeypatch.setenv("CONSOLE_PORT", "8123")
    prepare.main("services")
    (board,) = (tmp_path / "grafana" / "boards").iterdir()
    text = board.read_text()
    assert "http://127.0.0.1:8123" in text
    assert "http://127.0.0.1:8090" not in text
    provider = tmp_path / "grafana" / "dashboards" / "tracing-2pc.yaml"
    assert "path: /etc/grafana/provisioning/boards " in provider.read_text()
    assert json.loads(text)["title"]
