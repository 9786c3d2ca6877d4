"""A relay whose database fails, or goes back: it starts over from what is on record."""

from __future__ import annotations

import contextlib
import itertools
import signal
from collections.abc import Iterator
from typing import Any

import pytest
import sqlalchemy as sa
from support.databases import url
from support.participant import World, database_of, end, failed, outgoing_of, refusing
from support.postgres import named, running
from support.protocol import raising
from support.relay import (
    Topic,
    TopicRelay,
    all_turns,
    batches,
    fail_over,
    listed,
    publisher,
    relay_world,
    saved,
    stored,
)
from support.texts import texts
from support.waiting import AT_LAST, PATIENT, until

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.outbox.publisher import POLL
from tracing_2pc.outbox.turns import FIRST_PAUSE, LONGEST_PAUSE

__all__ = ["url"]

LEASE = 3 * PATIENT
FEW = 8
"""Turns in which a relay publishes three transactions, with an error in one of them."""
TEXTS = texts("relay")


@pytest.fixture
def topic() -> Topic:
    return Topic()


@pytest.fixture
def world(url: str, topic: Topic) -> Any:
    world = relay_world(url, topic, lease=LEASE)
    yield world
    end(world.resource)


@pytest.fixture(autouse=True)
def longest(monkeypatch) -> None:
    monkeypatch.setattr("random.uniform", lambda _, most: most)


@contextlib.contextmanager
def failing(world: World, which: str, number: int) -> Iterator[list[str]]:
    """Let one statement or commit fail; of a commit, maybe only its answer."""
    engine, done = database_of(world.resource).engine, list[str]()
    counter = itertools.count(1)

    def fail(what: str) -> None:
        if next(counter) == number:
            done.append(what)
            raise failed(what)

    def execute(_: Any, __: Any, statement: str, *___: Any) -> None:
        fail(statement)

    commit = engine.dialect.do_commit

    def do_commit(connection: Any) -> None:
        if which == "commit":
            fail("COMMIT")
        commit(connection)
        if which == "answer":
            fail("COMMIT, without an answer")

    if which == "statement":
        sa.event.listen(engine, "before_cursor_execute", execute)
    engine.dialect.do_commit = do_commit  # type: ignore[method-assign]
    try:
        yield done
    finally:
        del engine.dialect.do_commit
        if which == "statement":
            sa.event.remove(engine, "before_cursor_execute", execute)


@pytest.mark.parametrize(
    "which", [pytest.param("statement", marks=pytest.mark.ci), "commit", "answer"]
)
def test_an_error_of_the_database_costs_a_pause(
    world: World, topic: Topic, which: str
) -> None:
    """At whichever step of a turn it comes: each transaction is published once."""
    batch = 0
    for number in itertools.count(1):
        batches(world, batch + 1, batch + 2)
        batch += 2
        relay = publisher(world, TopicRelay(topic), LEASE)
        with failing(world, which, number) as errors:
            pauses = [relay.turn()]
            while pauses[-1] != POLL and len(pauses) < FEW:
                pauses.append(relay.turn())
        assert [len(messages) for messages in topic.seen] == [3] * batch, errors
        assert topic.transactions() == [f"orders.{n + 1}.1" for n in range(batch)]
        assert (world.visible(), listed(world)) == (0, []), errors
        if not errors:
            break
        assert FIRST_PAUSE in pauses, errors
    assert batch > FEW


@pytest.mark.parametrize(
    "part", ["SET published", "SELECT DISTINCT", "FROM outbox_tpc_sender"]
)
def test_errors_that_come_again_and_again_are_on_record(
    world: World, topic: Topic, part: str
) -> None:
    """The pauses grow until another process may take over; it is listed why."""
    batches(world, 1)
    relay = publisher(world, TopicRelay(topic), LEASE)
    with refusing(world, part):
        pauses = [relay.turn() for _ in range(FEW)]
    assert pauses == [min(FIRST_PAUSE * 2**n, LONGEST_PAUSE) for n in range(FEW)]
    if "sender" not in part:  # then it cannot write, and the next one says so
        ((transaction, why),) = listed(world)
        assert (transaction, TEXTS["restarted"] in why) == ("orders.1.1", True)
        assert world.resource.gauges()["tpc.relay.unreadable_age"] > 0
    all_turns(relay)
    assert topic.transactions() == ["orders.1.1"]
    assert (world.visible(), listed(world)) == (0, [])


def test_nothing_that_is_raised_ends_the_thread(world: World, topic: Topic) -> None:
    """A server without fsync raises another error, and no request starts it again."""
    batches(world, 1)
    relay = publisher(world, TopicRelay(topic), LEASE)

    def refuse(*_: object) -> None:
        raise ConfigurationError("PostgreSQL runs with fsync = off")

    with pytest.MonkeyPatch.context() as patch:
        outgoing = outgoing_of(world)
        patch.setattr(outgoing, "note", refuse)
        for name in ("hold", "let_go"):
            patch.setattr(outgoing.queue, name, refuse)
        assert [relay.turn() for _ in range(FEW)][-1] == LONGEST_PAUSE
    all_turns(relay)
    assert topic.transactions() == ["orders.1.1"]


def test_another_process_may_try_after_a_few_failures(
    world: World, topic: Topic
) -> None:
    """However long the lease is: what fails here may succeed there."""
    batches(world, 1)
    first = publisher(world, TopicRelay(topic), LEASE)
    second = publisher(world, TopicRelay(topic), LEASE)
    with pytest.MonkeyPatch.context() as patch:
        fault = raising(RuntimeError("a fault"))
        patch.setattr(outgoing_of(world), "positions", fault)
        pauses = [first.turn() for _ in range(FEW)]
    assert pauses[0] == FIRST_PAUSE
    all_turns(second)
    assert topic.transactions() == ["orders.1.1"]


def test_a_commit_does_not_end_the_pause_after_an_error(world: World) -> None:
    """Else a relay that fails would be as busy as the service."""
    relay = publisher(world, TopicRelay(Topic()), LEASE)
    waits: list[float] = []

    def wait(seconds: float) -> None:
        waits.append(seconds)
        relay.wake()
        if len(waits) == FEW:
            relay._stopping.set()

    with refusing(world, "BEGIN"), pytest.MonkeyPatch.context() as patch:
        patch.setattr(relay._stopping, "wait", wait)
        patch.setattr(relay._wake, "wait", lambda _: pytest.fail("it may be woken"))
        relay._run()
    assert waits[-1] == LONGEST_PAUSE


@pytest.mark.parametrize("moment", ["committed", "published", "confirmed"])
def test_a_replica_that_is_behind_publishes_nothing_again(
    world: World, topic: Topic, moment: str
) -> None:
    """It takes over under a relay that lives: that sees so, and stops for a person.

    Unless the replica knows that the publication was begun: then it is in.
    """
    copies: list[Any] = []

    def copy(step: str, about: Any) -> None:
        if "orders.2.1" in str(about):
            if step == ("committed" if moment == "published" else "begun"):
                copies.append(saved(world))
            if step == "produced" and moment == "committed":
                fail_over(world, copies[0])

    batches(world, 1)
    relay = publisher(world, TopicRelay(topic, copy), LEASE)
    all_turns(relay)
    copies += [saved(world)] * (moment == "committed")
    batches(world, 2)
    copies += [saved(world)] * (moment == "confirmed")
    all_turns(relay)
    if moment != "committed":
        fail_over(world, copies[0])
    batches(world, 3)
    all_turns(relay)
    if moment == "published":
        assert topic.transactions() == ["orders.1.1", "orders.2.1", "orders.3.1"]
        assert (world.visible(), listed(world)) == (0, [])
        return
    assert topic.transactions() == ["orders.1.1", "orders.2.1"]
    assert world.resource.gauges()["tpc.outbox.stopped"] == 1
    assert TEXTS["put back"] in listed(world)[0][1]


def end_sessions(url: str) -> None:
    """End all of this database, as a restart of its server does."""
    import psycopg

    ended = f"SELECT pg_terminate_backend(pid, {AT_LAST:.0f} * 1000) "
    others = "pid <> pg_backend_pid() AND datname = current_database()"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"{ended} FROM pg_stat_activity WHERE {others}")


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_the_position_is_read_again_after_a_session_was_lost(
    world: World, topic: Topic, url: str
) -> None:
    """What answers the next one may be a replica that is behind."""
    relay = publisher(world, TopicRelay(topic), LEASE)
    all_turns(relay)
    before = topic.epoch
    with database_of(world.resource).read() as connection:
        connection.invalidate()  # as that of an upload that was cut
    all_turns(relay)
    assert topic.epoch == before
    end_sessions(url)
    for _ in range(2):  # the first sees that they have ended
        all_turns(relay)
    assert topic.epoch == before + 1


@pytest.mark.parametrize("url", ["postgresql"], indirect=True)
def test_rows_that_somebody_locks_are_deleted_later(world: World, topic: Topic) -> None:
    """A relay does not try again and again meanwhile."""
    batches(world, 1)
    lock = sa.text("SELECT * FROM outbox_tpc FOR UPDATE")
    relay = publisher(world, TopicRelay(topic), LEASE)
    with database_of(world.resource).relaxed() as connection:
        connection.execute(lock)
        all_turns(relay)
    assert (topic.transactions(), stored(world, "outbox_tpc")) == (["orders.1.1"], 1)
    all_turns(relay)
    assert stored(world, "outbox_tpc") == 0


@pytest.mark.parametrize("said", ["refused", "unreadable"])
def test_whatever_a_broker_says_can_be_put_on_record(
    world: World, topic: Topic, said: str
) -> None:
    """A character that no database stores does not stop the relay."""

    def refuse(step: str, about: Any) -> None:
        if step == ("fenced" if said == "unreadable" else "produced") and refuses:
            raise LookupError("no \0 topic")

    refuses = True
    batches(world, 1)
    relay = publisher(world, TopicRelay(topic, refuse), LEASE)
    relay.turn()
    relay.turn()
    ((transaction, why),) = listed(world)
    assert (transaction, "x00 topic" in why) == ("orders.1.1", True)


def restart(server: Any) -> None:
    process = server.get_postmaster_info().process
    process.send_signal(signal.SIGQUIT)
    process.wait(AT_LAST)
    until(lambda: not server.get_postmaster_info().is_running())
    server.start()


@pytest.mark.ci
def test_a_server_that_is_restarted_again_and_again(topic: Topic) -> None:
    """SIGQUIT, while a relay publishes: it goes on by itself, each time."""
    with running() as server:
        url = named(server.get_uri(), "postgres")
        world = relay_world(url, topic, lease=LEASE)
        relay = publisher(world, TopicRelay(topic), LEASE)
        relay.start()
        for number in (1, 2, 3):
            batches(world, number)
            restart(server)
            until(lambda: len(topic.seen) >= number)  # noqa: B023
        until(lambda: world.visible() == 0)
        relay.stop()
        end(world.resource)
    assert topic.transactions() == ["orders.1.1", "orders.2.1", "orders.3.1"]


def test_what_does_not_fit_is_on_record_whatever_it_says(
    world: World, topic: Topic
) -> None:
    """A character that no database stores does not stop the relay."""
    batches(world, 1)
    topic.unfit = [("topic totals: \0 \udcff", "mend it")]
    all_turns(publisher(world, TopicRelay(topic), LEASE))
    assert topic.transactions() == ["orders.1.1"]
    ((what, cure, *_),) = world.resource.unfit()
    assert (what[:12], cure) == ("topic totals", "mend it")


def test_a_broker_that_is_not_on_record_is_not_known(
    world: World, topic: Topic
) -> None:
    """Its name is kept before anything is published: also after a commit failed."""
    topic.name = "kafka:here"
    outgoing = outgoing_of(world)
    world.resource.open()
    with failing(world, "commit", 1), pytest.raises(sa.exc.OperationalError):
        outgoing.check_broker(topic.name)
    outgoing.check_broker(topic.name)
    assert stored(world, "outbox_tpc_broker") == 1
