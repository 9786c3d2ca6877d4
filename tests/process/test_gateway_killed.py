"""A gateway whose processes die: what was answered 202 is kept once, and nothing twice.

The oracle reads the inbox's tables by SQL, and shares no code with it.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from crash.deaths import variables
from support.producer import post_until_taken
from support.waiting import AT_LAST, until

from participants.processes import Service, free_ports
from tracing_2pc.core.names import FAILPOINTS

TOKEN = "shop-token-0123456789"
CLIENTS, EACH, KILLS = 32, 12, 4


@pytest.fixture
def url(request: Any, tmp_path: Path) -> str:
    """An empty database, SQLite unless a test asks for the other."""
    if getattr(request, "param", "sqlite") == "postgresql":
        return str(request.getfixturevalue("postgres_database"))
    return f"sqlite:///{tmp_path}/inbox.db"


@pytest.fixture
def gateway(url: str, tmp_path: Path) -> Iterator[Service]:
    """A gateway of two workers."""
    tokens = tmp_path / "tokens"
    tokens.write_text(f"producer {TOKEN} shop\n")
    environment = {
        "INBOX_DATABASE": url,
        "TPC_TOKENS_FILE": str(tokens),
        "WEB_CONCURRENCY": "2",
    }
    log = tmp_path / "gateway.log"
    service = Service("gateway", free_ports(1)[0], log, environment)
    yield service
    service.kill()


def post(gateway: Service, *names: str) -> list[int]:
    """Send events until they are taken; return their positions."""
    lines = "\n".join(json.dumps({"id": n, "payload": {"of": n}}) for n in names)
    return post_until_taken(gateway.url, TOKEN, lines)


def kept(url: str) -> list[tuple[int, str]]:
    """What a reader will find: positions and ids."""
    engine = sa.create_engine(url.replace("postgresql://", "postgresql+psycopg://"))
    with engine.connect() as connection:
        rows = connection.exec_driver_sql(
            "SELECT position, id FROM events_tpc_event ORDER BY position"
        ).all()
    engine.dispose()
    return [(position, name) for position, name in rows]


@pytest.mark.ci
@pytest.mark.parametrize("point", [p for p in FAILPOINTS if p.startswith("inbox.")])
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_a_gateway_is_killed(gateway: Service, url: str, tmp_path: Path, point: str):
    """Before its answer: who repeats has the event once."""
    gateway.start(**variables(point, tmp_path / "fired"))
    told: list[int] = []
    sending = threading.Thread(target=lambda: told.extend(post(gateway, "a", "b")))
    sending.start()
    gateway.wait(AT_LAST)
    gateway.start()
    sending.join(AT_LAST)
    assert told == [1, 2]
    assert post(gateway, "b", "c") == [2, 3]
    assert kept(url) == [(1, "a"), (2, "b"), (3, "c")]


@pytest.mark.ci
@pytest.mark.parametrize("url", ["sqlite", "postgresql"], indirect=True)
def test_many_clients_while_everything_is_killed(gateway: Service, url: str):
    """Thirty-two post while workers, the gateway and sessions of the database die at
    random moments: each event that was taken is there once, at the place it was told,
    and no place is empty."""
    seed = random.randrange(2**32)
    sys.stdout.write(f"seed {seed}\n")
    chance = random.Random(seed)
    told: dict[str, int] = {}
    gateway.start()

    def client(number: int) -> None:
        for turn in range(EACH):
            names = [f"{number}.{turn}.{n}" for n in range(1 + turn % 3)]
            told.update(zip(names, post(gateway, *names), strict=True))

    clients = [threading.Thread(target=client, args=(n,)) for n in range(CLIENTS)]
    for thread in clients:
        thread.start()
    total = CLIENTS * sum(1 + turn % 3 for turn in range(EACH))
    for number in range(KILLS):
        # Some have been taken since the last one, and some are left.
        until(lambda: len(told), lambda n, least=total * number // KILLS: n > least)
        chance.choice((kill_a_worker, restart, end_sessions))(gateway, chance, url)
    for thread in clients:
        thread.join(AT_LAST)
    found = kept(url)
    assert {name: position for position, name in found} == told
    assert [position for position, _ in found] == list(range(1, total + 1))


def kill_a_worker(gateway: Service, chance: random.Random, _: str) -> None:
    file = Path(f"/proc/{gateway.pid}/task/{gateway.pid}/children")
    if children := file.read_text().split():
        with contextlib.suppress(ProcessLookupError):
            os.kill(int(chance.choice(children)), signal.SIGKILL)


def restart(gateway: Service, *_: object) -> None:
    gateway.kill()
    gateway.start()


def end_sessions(gateway: Service, chance: random.Random, url: str) -> None:
    """End all sessions of a PostgreSQL; of a file there are none."""
    if not url.startswith("sqlite"):
        import psycopg

        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity "
                "WHERE datname = current_database() AND pid <> pg_backend_pid()"
            )
