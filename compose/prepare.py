"""What the containers need before they start: passwords, configuration, data, tokens.

    python prepare.py services    before the database starts
    python prepare.py roles       when the database answers
    python prepare.py tokens      when `tracing-2pc init` has written the tokens

Each may be repeated: passwords are made once and kept, all else follows from them,
from `dashboards/` and from the tokens. Volumes of an older release get what they lack.
Nothing secret is printed. A volume holds no more than whoever mounts it needs.
"""

from __future__ import annotations

import json
import os
import secrets
import shutil
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Final

ROOT: Final = Path(os.environ.get("PREPARE_ROOT", "/srv"))
DASHBOARDS: Final = Path(os.environ.get("PREPARE_DASHBOARDS", "/dashboards"))

OURS: Final = (
    *("decisions", "ledger", "notifier"),
    *("inbox", "events", "sender", "pipeline"),
)
"""Databases of our own containers; each has a role of its name."""
OTHERS: Final = ("skywalking",)

BOARD: Final = "two-phase-commits.json"

PROMETHEUS: Final = {
    "127.0.0.1:9093": "alertmanager:9093",
    "127.0.0.1:9095": "watcher:9095",
    "127.0.0.1:8081": "ledger:8081",
    "127.0.0.1:8082": "notifier:8082",
    "127.0.0.1:8889": "jaeger:8889",
    "_interval: 15s": "_interval: 5s",
    "for: 30s\n": "for: 5s\n",
}
ALERTMANAGER: Final = {
    "http://127.0.0.1:8099": "http://webhook:8099",
    "group_wait: 30s": "group_wait: 2s",
    "group_wait: 10s": "group_wait: 2s",
    "group_interval: 5m": "group_interval: 5s",
}
SKYWALKING: Final = {"http://127.0.0.1:8099": "http://webhook:8099"}
GRAFANA: Final = {
    "http://127.0.0.1:9090": "http://prometheus:9090",
    "http://127.0.0.1:16686": "http://jaeger:16686",
    "timeInterval: 15s": "timeInterval: 5s",
    "path: /etc/grafana/dashboards ": "path: /etc/grafana/provisioning/boards ",
}
"""What stands in the files of `dashboards/`, and what the containers get: names of
services, and times that fit thresholds short enough to be watched."""


def main(step: str) -> None:
    """Do one of the steps."""
    {"services": services, "roles": roles, "tokens": tokens}[step]()


def services() -> None:
    """Write what the other containers start with."""
    held = passwords(ROOT / "ours" / "passwords.json")
    write(ROOT / "postgres" / "superuser.password", held["postgres"])
    write(ROOT / "postgres" / "databases.sql", databases(held))
    write(ROOT / "ours" / "pgpass", pgpass(held), mode=0o600)
    write(ROOT / "skywalking" / "database.password", held["skywalking"])
    write(ROOT / "grafana" / "admin.password", held["grafana"])
    copied(DASHBOARDS / "prometheus", ROOT / "monitoring" / "prometheus", PROMETHEUS)
    alertmanager = ROOT / "monitoring" / "alertmanager"
    copied(DASHBOARDS / "alertmanager", alertmanager, ALERTMANAGER)
    copied(DASHBOARDS / "skywalking", ROOT / "skywalking" / "config", SKYWALKING)
    copied(DASHBOARDS / "grafana" / "provisioning", ROOT / "grafana", GRAFANA)
    board(DASHBOARDS / "grafana" / BOARD, ROOT / "grafana" / "boards" / BOARD)


def roles() -> None:
    """Make at the server what its volume lacks: it was set up by an older release."""
    import psycopg

    held = passwords(ROOT / "ours" / "passwords.json")
    about = os.environ.get("PREPARE_SERVER", "host=postgres dbname=postgres")
    with psycopg.connect(
        about, user="postgres", password=held["postgres"], autocommit=True
    ) as server:
        kinds = {
            "ROLE": "rolname FROM pg_roles",
            "DATABASE": "datname FROM pg_database",
        }
        there = {
            (kind, name)
            for kind, column in kinds.items()
            for (name,) in server.execute(f"SELECT {column}")
        }
        for statement in databases(held).splitlines():
            verb, kind, name, *_ = statement.split()
            if verb != "CREATE" or (kind, name) not in there:
                server.execute(statement)


def tokens() -> None:
    """Give each its token: the job, the operator's programs, a producer, Prometheus."""
    path = ROOT / "ours" / "tokens"
    text = path.read_text(encoding="utf-8")
    if "producer " not in text:
        text += f"producer {secrets.token_urlsafe(32)} shop\n"
        write(path, text, mode=0o600)
    lines = [line for line in text.splitlines() if not line.startswith("#")]
    held = dict(line.split()[:2] for line in lines)
    for role in ("job", "operator", "producer"):
        write(ROOT / "ours" / f"{role}.token", held[role], mode=0o600)
    write(ROOT / "monitoring" / "prometheus" / "viewer.token", held["viewer"])


def passwords(path: Path) -> dict[str, str]:
    """Return the passwords by name, each made at the first call that asks for it.

    What is written is written whole or not at all, and none is ever another one.
    """
    held: dict[str, str] = {}
    if path.exists():
        held = json.loads(path.read_text(encoding="utf-8"))
    names = ("postgres", "grafana", *OURS, *OTHERS)
    if lacking := [name for name in names if name not in held]:
        held |= {name: secrets.token_urlsafe(24) for name in lacking}
        write(path, json.dumps(held), mode=0o600)
    return held


def databases(held: Mapping[str, str]) -> str:
    """Return SQL for an empty server: a role and a database for each who asks it."""
    return "".join(
        f"CREATE ROLE {name} LOGIN PASSWORD '{held[name]}';\n"
        f"CREATE DATABASE {name} OWNER {name};\n"
        f"REVOKE CONNECT ON DATABASE {name} FROM PUBLIC;\n"
        for name in (*OURS, *OTHERS)
    )


def pgpass(held: Mapping[str, str]) -> str:
    """Return the file that PostgreSQL's clients read passwords from."""
    return "".join(f"postgres:5432:{name}:{name}:{held[name]}\n" for name in OURS)


def copied(source: Path, target: Path, wanted: Mapping[str, str]) -> None:
    """Copy a folder, with other addresses and times; each must be found.

    Raises:
        ValueError: one was not: `dashboards/` has changed, and this file has not.
    """
    shutil.copytree(source, target, dirs_exist_ok=True)
    files = [path for path in target.rglob("*.y*ml") if "test" not in path.name]
    for before, after in wanted.items():
        found = [path for path in files if before in path.read_text(encoding="utf-8")]
        if not found:
            raise ValueError(f"{before!r} is in no file of {source}: change prepare.py")
        for path in found:
            write(path, path.read_text(encoding="utf-8").replace(before, after))


def board(source: Path, target: Path) -> None:
    """Copy Grafana's dashboard, with the console of this stack behind its links."""
    text = source.read_text(encoding="utf-8")
    console = f"http://127.0.0.1:{os.environ.get('CONSOLE_PORT', '8091')}"
    write(target, text.replace("http://127.0.0.1:8090", console))


def write(path: Path, text: str, mode: int = 0o644) -> None:
    """Replace a file, whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    hidden = path.with_name(f".{path.name}.new")
    hidden.unlink(missing_ok=True)
    with os.fdopen(os.open(hidden, os.O_CREAT | os.O_WRONLY, mode), "w") as file:
        file.write(text)
    hidden.replace(path)


if __name__ == "__main__":
    main(sys.argv[1])
