"""PreparedTransactions: what only it promises. The rest is in the other suites."""

from __future__ import annotations

import contextlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy as sa
from support.branches import ONE, OTHER, TWIN, Branch, orders, records
from support.elsewhere import elsewhere
from support.kinds import prepared_transactions, sqlite_url, tagged_rows
from support.participant import World, count, database_of, keep
from support.postgres import flushes, rows_read
from support.texts import texts
from support.waiting import AT_ONCE, until

from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.participant import PreparedTransactions
from tracing_2pc.participant.engine import Query
from tracing_2pc.participant.journal import postgresql
from tracing_2pc.participant.journal.postgresql import PostgreSQL

T = "orders.7.1"
TEXTS = texts("kits")
NEIGHBOUR = Branch(orders(7, 8), 2, "1.1")
SLOTS = 512


@pytest.fixture
def world(postgres_database) -> Iterator[World]:
    made = prepared_transactions(postgres_database)
    yield made
    made.resource.close()


def sql(url: str, statement: str) -> list[tuple[Any, ...]]:
    """Do what a person at the database would do."""
    with psycopg.connect(url, autocommit=True) as connection:
        cursor = connection.execute(statement)
        return cursor.fetchall() if cursor.description else []


def gids(url: str) -> list[str]:
    """Name what is prepared in this database, whoever did it."""
    found = "SELECT gid FROM pg_prepared_xacts WHERE database = current_database()"
    return [gid for (gid,) in sql(url, f"{found} ORDER BY prepared")]


def test_needs_postgresql(tmp_path):
    """On another database it says so, and what to use instead."""
    with pytest.raises(ConfigurationError, match=TEXTS["needs a server"]):
        PreparedTransactions(sqlite_url(tmp_path), "orders")


def test_a_database_that_does_not_flush_is_refused(postgres_database):
    """With synchronous_commit off an answer could be forgotten: it is named."""
    name = sql(postgres_database, "SELECT current_database()")[0][0]
    sql(postgres_database, f"ALTER DATABASE {name} SET synchronous_commit = off")
    world = PreparedTransactions(postgres_database, "orders")
    with pytest.raises(ConfigurationError, match=TEXTS["synchronous commit"]):
        world.open()
    world.close()


@pytest.mark.parametrize(
    ("made", "reason"),
    [
        ("CREATE VIEW orders AS SELECT 1 AS id", TEXTS["a view"]),
        ("CREATE MATERIALIZED VIEW orders AS SELECT 1 AS id", TEXTS["no table"]),
        ("CREATE UNLOGGED TABLE orders (id bigint)", "SET LOGGED"),
        (
            "CREATE TABLE orders (id bigint) PARTITION BY RANGE (id); "
            "CREATE UNLOGGED TABLE part PARTITION OF orders DEFAULT",
            "SET LOGGED",
        ),
    ],
)
def test_what_would_not_keep_rows_is_refused(postgres_database, made, reason):
    """Only a table that survives a crash of the server takes part."""
    sql(postgres_database, made)
    with pytest.raises(ConfigurationError, match=reason):
        PreparedTransactions(postgres_database, "orders").open()


def test_two_kinds_of_resource_do_not_share_a_journal(new_database):
    """One would take the other's votes for nothing: the second is refused."""
    kinds = (tagged_rows, prepared_transactions)
    for first, second in (kinds, reversed(kinds)):
        url = new_database()
        first(url).resource.close()
        with pytest.raises(ConfigurationError, match=TEXTS["another kind"]):
            second(url)


def test_a_constraint_that_is_looked_at_last_is_a_vote_to_abort(
    postgres_database, start
):
    """PREPARE TRANSACTION itself may refuse: nothing is left, another one can come."""
    sql(
        postgres_database,
        "CREATE TABLE orders (id bigint UNIQUE DEFERRABLE INITIALLY DEFERRED, "
        "amount double precision)",
    )
    world = start(prepared_transactions, postgres_database)
    assert world.prepare(T, records(id=[1, 1], amount=[1.0, 2.0])).status_code == 409
    assert (gids(postgres_database), world.in_doubt()) == ([], 0)
    keep(world, T, TWIN)


def test_others_are_never_touched(world, postgres_database):
    """Prepared transactions of others, whatever they are called, stay as they are."""
    assert world.prepare(T).status_code == 200
    ours = gids(postgres_database)[0]
    other = prepared_transactions(postgres_database)
    others = ["tpc", "batch-7", f"x{ours}", f"tpc.orders.0.0.1.{T}.0.1"]
    for gid in others:
        sql(
            postgres_database,
            f"BEGIN; CREATE TABLE \"{gid}\" (); PREPARE TRANSACTION '{gid}'",
        )
    try:
        assert world.in_doubt() == 1
        assert world.commit(T, ONE).status_code == 200
        assert world.abort("orders.8.1").status_code == 200
        assert world.commit("orders.9.1", forgotten_through=8).status_code == 200
        assert other.listed() == []
        assert gids(postgres_database) == others
    finally:
        for gid in others:
            sql(postgres_database, f"ROLLBACK PREPARED '{gid}'")
        other.resource.close()


def test_one_server_many_services(new_database, start):
    """Two databases, and two tables in one, hold the same branch without knowing."""
    first, second = new_database(), new_database()
    worlds = [start(prepared_transactions, url) for url in (first, second)]
    invoices = PreparedTransactions(first, "invoices")
    worlds.append(World(invoices, lambda: count(invoices, "invoices")))
    for world in worlds:
        assert world.prepare(T).status_code == 200
    assert worlds[1].abort(T).status_code == 200
    assert [w.in_doubt() for w in worlds] == [1, 0, 1]
    assert worlds[2].commit(T, ONE).status_code == 200
    assert [w.visible() for w in worlds] == [0, 0, 3]
    assert worlds[0].commit(T, ONE).status_code == 200
    invoices.close()


def test_the_longest_names_fit(postgres_database):
    """A branch's name in PostgreSQL has at most 199 bytes, its limit."""
    resource = PreparedTransactions(postgres_database, "t" * 40)
    world = World(resource, lambda: count(resource, "t" * 40))
    longest = f"{'a' * 40}.{10**18 - 1}.{10**9 - 1}"
    branch = Branch(ONE.body, 3, f"{10**18 - 1}.{10**18 - 1}")
    assert world.prepare(longest, branch).status_code == 200
    assert len(gids(postgres_database)[0]) <= 199 - len(str(10**18))
    assert world.commit(longest, branch).status_code == 200
    assert world.visible() == 3
    resource.close()


def test_a_branch_in_doubt_is_in_nobodys_way(world, postgres_database, start):
    """It locks its table and its outcome; commit, abort, list and start go on."""
    assert world.prepare("orders.6.1", OTHER).status_code == 200
    assert world.prepare(T).status_code == 200
    locked = sql(
        postgres_database,
        "SELECT DISTINCT coalesce(relation::regclass::text, locktype) FROM pg_locks "
        "WHERE pid IS NULL AND database = "
        "(SELECT oid FROM pg_database WHERE datname = current_database())",
    )
    assert {name for (name,) in locked} == {"orders", "orders_tpc_outcome"}
    sql(postgres_database, "SET lock_timeout = '1s'; LOCK TABLE orders_tpc_branch")
    started = start(prepared_transactions, postgres_database)
    assert started.abort("orders.6.1").status_code == 200
    keep(started, "orders.6.2", NEIGHBOUR)
    assert started.listed() == [(T, ONE.branch, "prepared")]


def test_metrics_count_the_slots(world):
    """An operator sees how many of the server's prepared transactions are taken."""
    world.resource.open()
    before = world.resource.gauges()["tpc.prepared_slots.used"]
    assert world.prepare(T).status_code == 200
    measured = world.resource.gauges()
    assert measured["tpc.prepared_slots.used"] == before + 1
    assert measured["tpc.prepared_slots.max"] == SLOTS
    assert measured["tpc.in_doubt.branches"] == 1


@pytest.mark.parametrize("request_", ["show", "list"])
def test_a_commit_during_a_look_hides_nothing(world, request_):
    """A branch is seen prepared or committed, never as one that is not there.

    The server says what is prepared now. What is read after that is as new.
    """
    assert world.prepare(T).status_code == 200
    engine = database_of(world).engine
    committed: list[int] = []

    @sa.event.listens_for(engine, "before_cursor_execute")
    def commit_now(_: Any, __: Any, statement: str, *___: Any) -> None:
        if "pg_prepared_xacts" in statement and not committed:
            committed.append(0)
            committed[0] = world.commit(T, ONE).status_code

    if request_ == "show":
        answer = world.show(T)
        assert answer.status_code == 200, answer.get_json()
        states = [branch["state"] for branch in answer.get_json()["branches"]]
    else:
        page = world.resource.list_open(Query(None, after=0, limit=9))
        states = [str(row.state) for _, row, _ in page.branches]
    assert committed == [200]
    assert states == ["committed"]


def test_what_is_rolled_back_by_hand_is_lost(world, postgres_database):
    """A prepared row removed behind our back is unknown (404), never a success."""
    assert world.prepare(T).status_code == 200
    sql(postgres_database, f"ROLLBACK PREPARED '{gids(postgres_database)[0]}'")
    assert (world.in_doubt(), world.show(T).status_code) == (0, 404)
    for _ in range(2):
        answer = world.commit(T, ONE)
        assert (answer.status_code, answer.get_json()["state"]) == (404, "unknown")
    assert world.resource.gauges()["tpc.in_doubt.branches"] == 0
    assert world.abort(T).status_code == 200


def test_what_is_committed_by_hand_is_said_so(world, postgres_database):
    """Committed behind our back: an abort is refused, and so is a commit without it."""
    assert world.prepare(T).status_code == 200
    assert world.prepare(T, TWIN).status_code == 200
    sql(postgres_database, f"COMMIT PREPARED '{gids(postgres_database)[0]}'")
    for answer in (
        world.abort(T),
        world.commit(T, TWIN),
        world.commit(T),
        world.resolve(T, "abort"),
        world.prepare(T),
    ):
        assert (answer.status_code, answer.get_json()["state"]) == (409, "committed")
    assert world.commit(T, ONE).status_code == 200
    assert (world.visible(), gids(postgres_database)) == (3, [])


def test_a_commit_of_many_branches_that_is_killed_half_way(
    world, postgres_database, tmp_path
):
    """Decided is decided: whoever asks next, even for an abort, has the rest done."""
    killed(postgres_database, tmp_path, "participant.between_branches")
    assert world.visible() == ONE.rows
    assert len(gids(postgres_database)) == 2
    assert world.show(T).get_json()["state"] == "committed"
    assert world.abort(T).status_code == 409
    assert (world.visible(), gids(postgres_database)) == (5, [])
    assert world.commit(T, ONE, NEIGHBOUR).status_code == 200


def test_the_rest_of_a_half_done_commit_that_is_rolled_back_by_hand(
    world, postgres_database, tmp_path
):
    """It is not whole and never will be: 404 for as long as it is asked for."""
    killed(postgres_database, tmp_path, "participant.between_branches")
    for gid in gids(postgres_database):
        sql(postgres_database, f"ROLLBACK PREPARED '{gid}'")
    for _ in range(2):
        answer = world.commit(T, ONE, NEIGHBOUR)
        assert (answer.status_code, answer.get_json()["state"]) == (404, "unknown")


def killed(url: str, folder: Path, point: str, verb: str = "commit") -> None:
    """Prepare three branches, commit two or abort all, in a process that dies there."""
    about = (prepare_and_end, url, verb)
    assert elsewhere(folder, *about, killed_at=point) == "killed"


def prepare_and_end(url: str, verb: str) -> None:
    """The main program of that process."""
    world = prepared_transactions(url)
    for branch in (ONE, TWIN, NEIGHBOUR):
        assert world.prepare(T, branch).status_code == 200
    if verb == "commit":
        world.commit(T, ONE, NEIGHBOUR)
    world.abort(T)


def test_a_half_done_decision_outlives_forgotten_through(
    world, postgres_database, tmp_path
):
    """What is decided and still prepared is counted, and finished by whoever asks."""
    killed(postgres_database, tmp_path, "participant.between_branches")
    assert world.resource.gauges()["tpc.in_doubt.branches"] == 2
    assert world.commit("orders.9.1", forgotten_through=8).status_code == 200
    assert (gids(postgres_database), world.visible()) == ([], 5)
    assert world.show(T).status_code == 200
    assert world.commit("orders.9.1", forgotten_through=8).status_code == 200
    assert (world.show(T).status_code, world.visible()) == (410, 5)


def test_a_branch_of_another_application_is_left_alone(world, postgres_database):
    """An id that looks like a part of another's name does not reach it."""
    assert world.prepare("orders.42.1", Branch(ONE.body, 3, "1.8")).status_code == 200
    oids = gids(postgres_database)[0].split(".")[2:4]
    for look_alike in ("42.1.1", f"orders.{'.'.join(oids)}", "1.8.1"):
        assert world.abort(look_alike).status_code == 200
        assert world.commit(f"{look_alike}7").status_code == 200
    assert world.in_doubt() == 1


def test_an_abort_that_somebody_contradicts_is_said_so(
    world, postgres_database, tmp_path
):
    """Decided abort, committed by hand: 409, for as long as it is asked."""
    killed(postgres_database, tmp_path, "participant.between_branches", "abort")
    sql(postgres_database, f"COMMIT PREPARED '{gids(postgres_database)[0]}'")
    for _ in range(2):
        answer = world.abort(T)
        assert (answer.status_code, answer.get_json()["state"]) == (409, "committed")


def test_another_role_is_not_a_fault_of_the_request(world, postgres_database):
    """A role that may not commit what another has prepared: ask again, not 500."""
    assert world.prepare(T).status_code == 200
    sql(
        postgres_database,
        "DROP ROLE IF EXISTS other; CREATE ROLE other LOGIN; "
        "GRANT ALL ON ALL TABLES IN SCHEMA public TO other",
    )
    other = prepared_transactions(postgres_database.replace("postgres@", "other@"))
    try:
        assert other.commit(T, ONE, once=True).status_code == 503
        assert world.commit(T, ONE).status_code == 200
        assert other.commit(T, ONE).status_code == 200
        assert world.visible() == 3
    finally:
        other.resource.close()
        sql(postgres_database, "DROP OWNED BY other; DROP ROLE other")


def test_as_many_prepares_as_sessions(postgres_database, monkeypatch, start):
    """All of a service's sessions may be writing: noting it needs none of them."""
    most = 8
    monkeypatch.setattr(PostgreSQL.__init__, "__defaults__", (most,))
    world = start(prepared_transactions, postgres_database)
    keep(world, "orders.6.1", OTHER)
    branches = [Branch(ONE.body, 3, f"{n}.0") for n in range(most)]
    with contextlib.ExitStack() as stack:
        uploads = [stack.enter_context(world.writing(T, b)) for b in branches]
        for upload in uploads:
            upload.let_go()
        assert [upload.finish().status_code for upload in uploads] == [200] * most
    assert world.abort(T).status_code == 200


TRIGGERS = {
    "raises": "RAISE EXCEPTION 'no'; RETURN NEW;",
    "notifies": "NOTIFY somebody; RETURN NEW;",
}


@pytest.mark.parametrize("deferred", [False, True])
@pytest.mark.parametrize("does", TRIGGERS)
def test_what_a_trigger_refuses_is_a_vote_to_abort(
    postgres_database, does, deferred, start
):
    """It refuses these records for good, so the batch must not wait for it."""
    when = "DEFERRABLE INITIALLY DEFERRED" if deferred else ""
    sql(
        postgres_database,
        "CREATE TABLE orders (id bigint, amount double precision); "
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS "
        f"$$BEGIN {TRIGGERS[does]} END$$; CREATE CONSTRAINT TRIGGER t "
        f"AFTER INSERT ON orders {when} FOR EACH ROW EXECUTE FUNCTION refuse()",
    )
    world = start(prepared_transactions, postgres_database)
    answer = world.prepare(T)
    assert (answer.status_code, answer.get_json()["vote"]) == (409, "abort")
    assert (gids(postgres_database), world.in_doubt()) == ([], 0)


def test_forgotten_through_drops_outcomes_and_what_never_happened(
    world, postgres_database
):
    """Below it nothing is kept but what is prepared in fact."""
    resource = world.resource
    keep(world, "orders.5.1", ONE)
    assert world.prepare("orders.6.1", OTHER).status_code == 200
    sql(postgres_database, f"ROLLBACK PREPARED '{gids(postgres_database)[0]}'")
    assert world.prepare(T).status_code == 200
    assert count(resource, "orders_tpc_branch") == 3
    assert world.commit("orders.9.1", forgotten_through=8).status_code == 200
    assert count(resource, "orders_tpc_branch") == 1
    assert count(resource, "orders_tpc_outcome") == 0
    assert world.listed() == [(T, ONE.branch, "prepared")]


def test_a_commit_reads_only_what_is_held_prepared(world, postgres_database):
    """However many transactions are sealed here, the next is decided as fast."""
    many = 5_000
    sql(
        postgres_database,
        "INSERT INTO orders_tpc_transaction "
        "SELECT 'orders', n, 1, 'committed', NULL, '{}' "
        f"FROM generate_series(100, {many + 99}) n; "
        "INSERT INTO orders_tpc_branch "
        "SELECT n, 'orders', n, 1, 0, 1, 'committed', 1, 'digest', 0, 0, 0 "
        f"FROM generate_series(100, {many + 99}) n; "
        "INSERT INTO orders_tpc_outcome SELECT tag FROM orders_tpc_branch; "
        "ANALYZE",
    )
    for batch in (1, 2):
        assert world.prepare(f"orders.{batch}.1").status_code == 200
    world.resource.close()
    before = rows_read(postgres_database)
    assert world.commit("orders.1.1", ONE).status_code == 200
    assert world.commit("orders.1.1", ONE).status_code == 200
    assert world.abort("orders.2.1").status_code == 200
    world.resource.close()
    assert rows_read(postgres_database) - before < many / 10


def test_no_slot_left_is_not_a_vote(world, postgres_database, new_database):
    """With all slots taken a prepare says ask again, and is taken when one is free."""
    other = new_database()
    taken: list[str] = []
    try:
        with (
            psycopg.connect(other, autocommit=True) as person,
            contextlib.suppress(psycopg.errors.OutOfMemory),
        ):
            for n in range(SLOTS):
                person.execute("BEGIN")
                person.execute("SELECT pg_current_xact_id()")
                person.execute(f"PREPARE TRANSACTION 'full-{n}'")
                taken.append(f"full-{n}")
        answer = world.prepare(T, once=True)
        assert answer.status_code == 503
        assert "max_prepared_transactions" in answer.get_json()["detail"]
        assert (world.in_doubt(), world.commit(T, ONE).status_code) == (0, 404)
    finally:
        for gid in taken:
            sql(other, f"ROLLBACK PREPARED '{gid}'")
    until(lambda: world.prepare(T).status_code == 200)
    assert world.commit(T, ONE).status_code == 200


def test_a_lock_that_is_held_too_long_is_not_a_vote(
    world, postgres_database, monkeypatch, start
):
    """Somebody locks the table: 503 when the lock's time is up, nothing in doubt."""
    keep(world, "orders.6.1", OTHER)
    with monkeypatch.context() as patch:
        patch.setattr(postgresql, "LOCK_WAIT", AT_ONCE)
        hurried = start(prepared_transactions, postgres_database)
    with psycopg.connect(postgres_database) as person:
        person.execute("LOCK TABLE orders")
        assert hurried.prepare(T, once=True).status_code == 503
        assert world.in_doubt() == 0
    keep(world, T, ONE)


VERBS: dict[str, Callable[[World, str], int]] = {
    "prepare": lambda world, id_: world.prepare(id_, NEIGHBOUR, once=True).status_code,
    "commit": lambda world, id_: (
        world.commit(id_, ONE, NEIGHBOUR, once=True).status_code
    ),
    "abort": lambda world, id_: world.abort(id_, once=True).status_code,
}


@contextlib.contextmanager
def cut_off(world: World, url: str, *, before: int) -> Iterator[list[str]]:
    """End a session before one of its statements, counted from here, and name it."""
    cut: list[str] = []
    numbers = itertools.count(1)

    def end(connection: Any, _: object, statement: str, *__: object) -> None:
        if next(numbers) == before:
            cut.append(statement)
            driver = connection.connection.driver_connection
            ended = f"SELECT pg_terminate_backend({driver.info.backend_pid}, 5000)"
            assert sql(url, ended) == [(True,)]

    engine = database_of(world).engine
    sa.event.listen(engine, "before_cursor_execute", end)
    yield cut
    sa.event.remove(engine, "before_cursor_execute", end)


@pytest.mark.parametrize(
    ("verb", "word"),
    [
        pytest.param("prepare", "PREPARE TR", marks=pytest.mark.ci),
        ("commit", "COMMIT PREP"),
        pytest.param("abort", "ROLLBACK P", marks=pytest.mark.ci),
    ],
)
def test_a_connection_lost_at_any_statement(world, postgres_database, verb, word):
    """Each statement of each verb: what comes of it is right when it is asked again."""
    statements: list[str] = []
    for number in itertools.count(1):
        id_ = f"orders.{number}.1"
        assert world.prepare(id_).status_code == 200
        if verb != "prepare":
            assert world.prepare(id_, NEIGHBOUR).status_code == 200
        with cut_off(world, postgres_database, before=number) as cut:
            answer = VERBS[verb](world, id_)
        assert answer == (503 if cut else 200), cut
        until(lambda: VERBS[verb](world, id_) == 200)  # noqa: B023
        if verb == "prepare":
            assert world.commit(id_, ONE, NEIGHBOUR).status_code == 200, cut
        visible = 0 if verb == "abort" else 5 * number
        assert (world.visible(), world.in_doubt()) == (visible, 0), cut
        assert gids(postgres_database) == [], cut
        if not cut:
            break
        statements += cut
    assert any(statement.startswith(word) for statement in statements)


@pytest.mark.parametrize("branches", [0, 1, 3])
def test_flushes(world, postgres_database, branches):
    """Two for each branch, prepare and commit; one, the seal, where there is none."""
    assert world.prepare("orders.0.1").status_code == 200
    assert world.abort("orders.0.1").status_code == 200
    world.resource.close()
    before = flushes(postgres_database)
    names = [Branch(ONE.body, 3, f"{n}.0") for n in range(branches)]
    for branch in names:
        assert world.prepare(T, branch).status_code == 200
    assert world.commit(T, *names).status_code == 200
    world.show(T)
    world.listed()
    world.resource.close()
    assert flushes(postgres_database) - before == (2 * branches or 1)


def test_an_abort_ends_a_prepare_between_two_of_its_statements(
    world, postgres_database
):
    """Rule 20: what was sealed while the rows came is looked at before they stay."""
    with world.writing(T) as upload:
        assert world.abort(T).status_code == 200
        assert upload.finish().status_code == 409
    assert (gids(postgres_database), world.visible()) == ([], 0)
