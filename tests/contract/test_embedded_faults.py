"""What becomes of a participant without a service when its database has a fault.

It is as for one behind a service: unavailable, never a refusal, and whoever asks again
has each row there once.
"""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Callable, Iterator
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.branches import ONE, commit_of, prepare_at
from support.participant import count
from support.pooler import pgbouncer
from support.postgres import drop, named, running, standby
from support.texts import texts
from support.waiting import AT_LAST, PATIENT, until

from tracing_2pc import ParticipantSink
from tracing_2pc.core.errors import ConfigurationError, ParticipantUnavailableError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.remote_participant import open_participant
from tracing_2pc.core.states import ParticipantState, Refusal
from tracing_2pc.sinks import participant_sink
from tracing_2pc.testing import run_one_batch

ID = TransactionId("test", 0, 1)
READ_ONLY = texts("contract")["read-only"]
OPTIONS = ("table", pytest.param("into", marks=pytest.mark.ci))
REQUESTS = ("commit", pytest.param("prepare", marks=pytest.mark.ci))


def address(url: str, option: str = "table") -> str:
    return f"{url}{'&' if '?' in url else '?'}{option}=orders"


def opened(url: str) -> Any:
    """It, as a driver has it that has started the job."""
    participant: Any = open_participant("orders", url, None, PATIENT)
    participant.set_up()
    return participant


def ask(participant: Any, request: str) -> object:
    if request == "prepare":
        return prepare_at(participant, transaction=ID)
    return participant.commit(commit_of(ID, "orders"))


def struck(participant: Any, request: str, strike: Callable[[], object]) -> str:
    """Let it happen when a request's rows are written and nothing is committed.

    Returns what who asked is told.
    """
    if request == "commit":
        prepare_at(participant, transaction=ID)
    journal = participant._resource()._journal
    name = {"prepare": "add_prepared", "commit": "seal"}[request]
    write = getattr(journal, name)

    def write_and_strike(*about: Any, **more: Any) -> Any:
        setattr(journal, name, write)
        done = write(*about, **more)
        strike()
        return done

    setattr(journal, name, write_and_strike)
    with pytest.raises(ParticipantUnavailableError) as told:
        ask(participant, request)
    assert told.value.refusal is Refusal.NOT_NOW
    assert "participant 'orders'" in str(told.value)
    return str(told.value)


def lands_once(participant: Any, request: str) -> None:
    """Whoever asks again is answered, and each row is there once."""

    def answered() -> bool:
        with contextlib.suppress(ParticipantUnavailableError):
            ask(participant, request)
            return True
        return False

    until(answered)
    if request == "prepare":
        assert participant.show(ID).state is ParticipantState.PREPARED
        participant.commit(commit_of(ID, "orders"))
    assert participant.show(ID).state is ParticipantState.COMMITTED
    assert count(participant._resource(), "orders") == ONE.rows
    assert participant.prepared().branches == ()


@pytest.fixture(scope="module")
def server() -> Iterator[Any]:
    with running() as made:
        yield made


@pytest.fixture
def database(server, request) -> str:
    """A database of a server that may be stopped."""
    name = f"d{abs(hash(request.node.name))}"
    with psycopg.connect(
        named(server.get_uri(), "postgres"), autocommit=True
    ) as connection:
        connection.execute(f"CREATE DATABASE {name}")
    return named(server.get_uri(), name)


def end_sessions(url: str) -> None:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(
            "SELECT pg_terminate_backend(pid, 60000) FROM pg_stat_activity "
            "WHERE datname = current_database() AND pid <> pg_backend_pid()"
        )


def forbid_writes(url: str) -> None:
    """Also to the sessions that there are: they are ended."""
    _set(url, "SET default_transaction_read_only = on")
    end_sessions(url)


def allow_writes(url: str) -> None:
    _set(url, "RESET default_transaction_read_only")


def _set(url: str, what: str) -> None:
    with psycopg.connect(named(url, "postgres"), autocommit=True) as dba:
        dba.execute(f"ALTER DATABASE {sa.make_url(url).database} {what}")


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_session_is_ended(postgres_database, request_, option):
    """As by a person, or by a server that runs out of memory."""
    participant = opened(address(postgres_database, option))
    struck(participant, request_, lambda: end_sessions(postgres_database))
    lands_once(participant, request_)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGQUIT], ids=["fast", "now"])
@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("request_", REQUESTS)
def test_a_server_is_restarted(server, database, request_, option, how):
    """Fast: sessions are ended. Immediate: it recovers from its log of writes."""
    participant = opened(address(database, option))

    def stop() -> None:
        postmaster = server.get_postmaster_info().process
        postmaster.send_signal(how)
        postmaster.wait(AT_LAST)

    struck(participant, request_, stop)
    with pytest.raises(ParticipantUnavailableError, match="did not answer"):
        ask(participant, request_)
    server.start()
    lands_once(participant, request_)


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("request_", REQUESTS)
def test_it_may_not_be_written_to_for_a_while(postgres_database, request_, option):
    """It is said why, and new sessions are opened when that ends."""
    participant = opened(address(postgres_database, option))
    struck(participant, request_, lambda: forbid_writes(postgres_database))
    with pytest.raises(ParticipantUnavailableError, match=READ_ONLY):
        ask(participant, request_)
    allow_writes(postgres_database)
    lands_once(participant, request_)


_FULL = """
CREATE FUNCTION is_full() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  RAISE 'could not extend file: No space left on device' USING ERRCODE = 'disk_full';
END $$
"""


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("request_", REQUESTS)
def test_its_disk_is_full(postgres_database, request_, option):
    """By its own error, as of the journal's table: nothing is kept of the request."""
    participant = opened(address(postgres_database, option))
    if request_ == "commit":
        ask(participant, "prepare")
    with psycopg.connect(postgres_database, autocommit=True) as dba:
        dba.execute(_FULL)
        dba.execute(
            "CREATE TRIGGER full_disk BEFORE INSERT OR UPDATE ON orders_tpc_branch "
            "FOR EACH ROW EXECUTE FUNCTION is_full()"
        )
        with pytest.raises(ParticipantUnavailableError, match="no room left") as told:
            ask(participant, request_)
        assert told.value.refusal is Refusal.NOT_NOW
        dba.execute("DROP TRIGGER full_disk ON orders_tpc_branch")
    lands_once(participant, request_)


@pytest.mark.ci
@pytest.mark.parametrize("option", ["table", "into"])
@pytest.mark.parametrize("request_", ["prepare", "commit"])
def test_a_standby_takes_over(new_database, tmp_path, request_, option):
    """Until it is promoted it is not believed; then work goes on, without a restart."""
    url, now = new_database(), tmp_path / "now"
    where = url.partition("?host=")[2]
    now.symlink_to(where)
    participant = opened(address(url.replace(where, str(now)), option))
    with standby(url) as copy:

        def move() -> None:
            now.unlink()
            now.symlink_to(copy.folder)
            end_sessions(url)

        struck(participant, request_, move)
        for look in (participant.prepared, lambda: participant.show(ID)):
            with pytest.raises(ParticipantUnavailableError, match=READ_ONLY):
                look()
        with pytest.raises(ParticipantUnavailableError, match=READ_ONLY):
            ask(participant, request_)
        copy.promote()
        lands_once(participant, request_)
        participant._resource().close()
    drop(url)


@pytest.mark.ci
@pytest.mark.parametrize(
    ("option", "mode"),
    [("table", "transaction"), ("table", "session"), ("into", "session")],
)
@pytest.mark.parametrize("request_", ["prepare", "commit"])
def test_behind_a_pooler(postgres_database, request_, option, mode):
    """It is as good as the server itself, also where the pooler loses its sessions."""
    with pgbouncer(postgres_database, mode) as pooled:
        participant = opened(address(pooled, option))
        struck(participant, request_, lambda: end_sessions(postgres_database))
        lands_once(participant, request_)
        participant._resource().close()


@pytest.mark.ci
def test_prepared_transactions_need_sessions_of_their_own(postgres_database):
    """A pooler of transactions is refused at the start, in one line."""
    with (
        pgbouncer(postgres_database, "transaction") as pooled,
        pytest.raises(ConfigurationError, match=texts("kits")["pool mode"]) as refused,
    ):
        opened(address(pooled, "into"))
    assert "participant 'orders'" in str(refused.value)
    assert "\n" not in str(refused.value)


def test_the_batch_aborts_by_the_participants_name(
    postgres_database, monkeypatch, caplog
):
    """Once it was asked for long enough; who waits is told before. Nothing is left."""
    monkeypatch.setattr(participant_sink, "PREPARE_SECONDS", -1.0)
    sink = ParticipantSink({"orders": address(postgres_database)})
    sink.check("test")
    forbid_writes(postgres_database)
    with pytest.raises(ParticipantUnavailableError, match=f"'orders'.*{READ_ONLY}"):
        run_one_batch(sink, [{"id": 1}])
    allow_writes(postgres_database)
    assert opened(address(postgres_database)).prepared().branches == ()
    monkeypatch.undo()
    assert run_one_batch(sink, [{"id": 1}], application="later")


@pytest.mark.parametrize(
    ("request_", "pragma", "says"),
    [
        ("prepare", "query_only = ON", "read-only"),
        ("commit", "query_only = ON", "read-only"),
        ("prepare", "max_page_count = 1", "no room left"),
    ],
)
def test_a_file_takes_no_more_for_a_while(tmp_path, request_, pragma, says):
    """Not now, and why; then it goes on."""
    participant = opened(f"sqlite:///{tmp_path}/shop.db?table=orders")
    if request_ == "commit":
        ask(participant, "prepare")
    with participant._resource()._database.look() as connection:
        connection.exec_driver_sql(f"PRAGMA {pragma}")
    with pytest.raises(ParticipantUnavailableError, match=says) as told:
        ask(participant, request_)
    assert told.value.refusal is Refusal.NOT_NOW
    participant._resource()._database.engine.dispose()
    lands_once(participant, request_)


@pytest.mark.parametrize("request_", ["prepare", "commit"])
def test_a_file_that_is_damaged_is_not_believed(tmp_path, request_):
    """It is put back, and the same process goes on."""
    file = tmp_path / "shop.db"
    participant = opened(f"sqlite:///{file}?table=orders")
    if request_ == "commit":
        ask(participant, "prepare")
    participant._resource()._database.engine.dispose()
    whole = file.read_bytes()
    file.write_bytes(b"no database at all" + whole[18:])
    for asked in (lambda: ask(participant, request_), participant.prepared):
        with pytest.raises(ParticipantUnavailableError, match="restore it"):
            asked()
    file.write_bytes(whole)
    participant._resource()._database.engine.dispose()
    lands_once(participant, request_)
