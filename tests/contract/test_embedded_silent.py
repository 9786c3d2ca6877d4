"""A database that says nothing: whoever asks an embedded participant hears of it."""

from __future__ import annotations

import contextlib
import signal
import threading
from collections.abc import Iterator
from concurrent import futures
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.branches import commit_of, prepare_at
from support.cable import Cable, Link
from support.postgres import named, running
from support.waiting import AT_LAST, AT_ONCE, PATIENT, SOON, until

from tracing_2pc.core.errors import ParticipantUnavailableError
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.remote_participant import RemoteParticipant, open_participant
from tracing_2pc.core.states import ParticipantState, Refusal, Vote
from tracing_2pc.store.engines import sessions

ID = TransactionId("test", 0, 1)


def opened(url: str, timeout: float = PATIENT, option: str = "table") -> Any:
    mark = "&" if "?" in url else "?"
    return open_participant("orders", f"{url}{mark}{option}=orders", None, timeout)


@pytest.fixture
def server() -> Iterator[Any]:
    with running() as server:
        yield server


@contextlib.contextmanager
def frozen(server: Any) -> Iterator[None]:
    """Stop all of its processes: the kernel goes on to accept connections."""
    postmaster = server.get_postmaster_info().process
    stopped = [postmaster, *postmaster.children(recursive=True)]
    for process in stopped:
        process.send_signal(signal.SIGSTOP)
    try:
        yield
    finally:
        for process in stopped:
            with contextlib.suppress(Exception):
                process.send_signal(signal.SIGCONT)


def ask(participant: RemoteParticipant, request: str) -> object:
    if request == "prepare":
        return prepare_at(participant, transaction=ID)
    if request == "commit":
        return participant.commit(commit_of(ID, "orders"))
    if request == "prepared":
        return participant.prepared()
    return participant.show(ID)


@pytest.mark.parametrize(
    ("request_", "has_session"),
    [
        ("commit", True),
        *(
            pytest.param(request, has_session, marks=pytest.mark.ci)
            for request, has_session in [
                *(("prepare", True), ("prepared", True), ("show", True)),
                *(("prepare", False), ("commit", False), ("prepared", False)),
            ]
        ),
    ],
)
def test_a_frozen_server_is_unavailable(server, request_, has_session):
    """Not waited for, and no refusal; when it goes on, it is asked once more."""
    url = named(server.get_uri(), "postgres")
    patient, hasty = opened(url), opened(url, AT_ONCE)
    patient.set_up()
    if request_ != "prepare":
        prepare_at(patient, transaction=ID)
    if not has_session:
        hasty._resource()._database.engine.dispose()
    with frozen(server):
        with pytest.raises(ParticipantUnavailableError) as silent:
            ask(hasty, request_)
        assert silent.value.refusal is Refusal.NOT_NOW
        assert "'orders': its database did not answer" in str(silent.value)
    until(lambda: answers(hasty, request_))
    state = {"commit": ParticipantState.COMMITTED}
    assert patient.show(ID).state is state.get(request_, ParticipantState.PREPARED)


def answers(participant: RemoteParticipant, request: str) -> bool:
    with contextlib.suppress(ParticipantUnavailableError):
        ask(participant, request)
        return True
    return False


@pytest.fixture
def cable(postgres_database) -> Iterator[Cable]:
    """Before a real PostgreSQL."""
    host = sa.make_url(postgres_database).query["host"]
    with Cable(f"{host}/.s.PGSQL.5432").laid() as laid:
        yield laid


def through(cable: Cable, url: str) -> str:
    """Return the URL of a database that is reached by a cable."""
    host, port = cable.place.split(":")
    there = sa.make_url(url).difference_update_query(["host"])
    return there.set(host=host, port=int(port)).render_as_string()


@pytest.mark.ci
@pytest.mark.parametrize("arrives", [True, False], ids=["answer lost", "request lost"])
@pytest.mark.parametrize("option", ["table", "into"])
@pytest.mark.parametrize(
    ("request_", "sign"),
    [("commit", b"COMMIT"), ("prepare", b"COPY"), ("show", b"pg_is_in_recovery")],
)
def test_what_is_lost_on_the_way_is_asked_again(
    cable, postgres_database, request_, sign, option, arrives
):
    """The connection stays, and no byte comes: the server is asked whether it waits."""
    near = opened(postgres_database, option=option)
    near.set_up()
    if request_ != "prepare":
        prepare_at(near, transaction=ID)
    far = opened(through(cable, postgres_database), SOON, option)
    if request_ != "show":  # else what it asks a new session is lost
        far.prepared()
    cable.fail(sign, Link.lose_answers if arrives else Link.be_silent)
    with pytest.raises(ParticipantUnavailableError, match="did not answer"):
        ask(far, request_)
    assert cable.failed.is_set()
    until(lambda: answers(far, request_))
    state = "committed" if request_ == "commit" else "prepared"
    assert near.show(ID).state == state


_AT_WORK = """
CREATE FUNCTION wait_for_a_word() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
  WHILE EXISTS (SELECT FROM pg_locks WHERE locktype = 'advisory' AND objid = 77) LOOP
    PERFORM pg_sleep(0.05);
  END LOOP;
  RETURN NEW;
END $$
"""


def test_a_statement_at_work_is_waited_for(postgres_database, monkeypatch):
    """However long it takes: a server that is asked what it does answers."""
    participant, asked = opened(postgres_database, SOON, "into"), threading.Semaphore(0)
    is_awaited = sessions.Session._is_awaited

    def ask_and_count(self: Any, limit: float) -> bool:
        awaited = is_awaited(self, limit)
        asked.release()
        return awaited

    participant.set_up()
    monkeypatch.setattr(sessions.Session, "_is_awaited", ask_and_count)
    with psycopg.connect(postgres_database, autocommit=True) as person:
        person.execute("CREATE TABLE orders (id bigint, amount float8)")
        person.execute(_AT_WORK)
        person.execute(
            "CREATE TRIGGER waits BEFORE INSERT ON orders "
            "FOR EACH ROW EXECUTE FUNCTION wait_for_a_word()"
        )
        person.execute("SELECT pg_advisory_lock(77)")
        with futures.ThreadPoolExecutor() as pool:
            vote = pool.submit(prepare_at, participant, transaction=ID)
            for _ in range(2):
                assert asked.acquire(timeout=AT_LAST)
            assert not vote.done()
            person.execute("SELECT pg_advisory_unlock(77)")
            assert vote.result() is Vote.COMMIT
