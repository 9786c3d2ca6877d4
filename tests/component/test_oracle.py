"""The oracle sees what is lost, duplicated, wrong or split, and only that."""

import ast
import json
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import pytest
from support.served import served
from support.waiting import AT_ONCE, PATIENT
from werkzeug.serving import make_server

from participants import oracle, partner
from participants.oracle import actual, expected
from participants.oracle.__main__ import days_of, main

DAYS = (1, 2)


class World:
    """A ledger made by hand and a partner that was told by hand: two good days."""

    def __init__(self, folder, port, store):
        self.ledger = f"sqlite:///{folder / 'ledger.db'}"
        self.partner = f"http://127.0.0.1:{port}"
        self._file = folder / "ledger.db"
        self._store = store
        flights = [f for d in DAYS for f in expected.read_day(f"2013-01-{d:02}")]
        self.sql(
            "CREATE TABLE flights_daily (day, origin, carrier, flights, cancelled, "
            "dep_delay_sum, arr_delay_sum)"
        )
        for key, values in expected.expected_sums(flights).items():
            self.sql("INSERT INTO flights_daily VALUES (?,?,?,?,?,?,?)", *key, *values)
        self.notices = expected.expected_notices(flights)
        for number, key in enumerate(self.notices):
            self.tell(f"k{number}", key)

    def sql(self, statement, *values):
        with closing(sqlite3.connect(self._file)) as connection, connection:
            connection.execute(statement, values)

    def tell(self, key, flight, **changes):
        """Tell the partner of one flight under some key."""
        names = ("origin", "dest", "sched_dep_time", "reason", "arr_delay")
        body = dict(zip(names, self.notices[flight], strict=True))
        body |= {"day": flight[0], "carrier": flight[1], "flight": int(flight[2])}
        self._store.count(key)
        self._store.add(key, json.dumps(body | changes))

    def forget(self, where):
        """Take notifications away from the partner."""
        with closing(self._store._connect()) as connection:
            connection.execute(f"DELETE FROM notification WHERE {where}")

    def reject(self, where):
        """Move rows of the ledger to those that it has refused."""
        names = "day, origin, carrier, flights, cancelled, dep_delay_sum, arr_delay_sum"
        fields = ", ".join(f"'{name}', {name}" for name in names.split(", "))
        self.sql("CREATE TABLE IF NOT EXISTS rejected (participant, record)")
        self.sql(
            f"INSERT INTO rejected SELECT 'ledger', json_object({fields}) "
            f"FROM flights_daily WHERE {where}"
        )
        self.sql(f"DELETE FROM flights_daily WHERE {where}")

    def faults(self, days=DAYS, stall=AT_ONCE, **more):
        """Return lost, duplicated, wrong, split."""
        verdict = oracle.judge(
            self.ledger, self.partner, days, timeout=PATIENT, stall=stall, **more
        )
        counts = (verdict.lost, verdict.duplicated, verdict.wrong, verdict.split)
        assert verdict.good == (counts == (0, 0, 0, 0))
        return counts


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    """A partner that runs; its database is emptied between tests."""
    path = tmp_path_factory.mktemp("partner") / "partner.db"
    app = partner.create_app(str(path))
    with served(make_server("127.0.0.1", 0, app, threaded=True)) as running:
        yield running.port, app.extensions["store"]


@pytest.fixture
def world(server, tmp_path, monkeypatch):
    """Everything is there, once, right and together."""
    monkeypatch.setattr(actual, "SETTLE", AT_ONCE)
    port, store = server
    with closing(store._connect()) as connection:
        connection.executescript("DELETE FROM notification; DELETE FROM request")
    return World(tmp_path, port, store)


ONE = "rowid = (SELECT min(rowid) FROM flights_daily)"


def test_a_good_world_is_good(world):
    """Counts are the source's; nothing is noted."""
    verdict = oracle.judge(world.ledger, world.partner, DAYS, timeout=PATIENT)
    assert verdict.good
    assert (verdict.batches, verdict.records) == (2, 842 + 943)
    assert verdict.deliveries == verdict.requests == len(world.notices)
    assert verdict.notes == ()


COPY = "INSERT INTO flights_daily SELECT * FROM flights_daily"
GROUPS = len(expected.expected_sums(expected.read_day("2013-01-01")))


@pytest.mark.parametrize(
    ("statement", "faults"),
    [
        (f"DELETE FROM flights_daily WHERE {ONE}", (1, 0, 0, 0)),
        (f"{COPY} WHERE {ONE}", (0, 1, 0, 0)),
        (f"{COPY} WHERE day LIKE '%01'", (0, GROUPS, 0, 0)),
        *(
            (f"UPDATE flights_daily SET {n} = {n} + 1 WHERE {ONE}", (0, 0, 1, 0))
            for n in ("flights", "cancelled", "arr_delay_sum")
        ),
    ],
    ids=["lost", "twice", "all twice", "flights", "cancelled", "arr_delay_sum"],
)
def test_a_fault_of_the_ledger_is_seen(world, statement, faults):
    """A group less is lost, one more a duplicate; another sum is wrong, not lost."""
    world.sql(statement)
    assert world.faults() == faults


REFUSED = "dep_delay_sum < 0"


@pytest.mark.parametrize(
    ("statement", "faults"),
    [
        ("DELETE FROM flights_daily WHERE 0", (0, 0, 0, 0)),
        (f"DELETE FROM flights_daily WHERE {ONE}", (1, 0, 0, 0)),
        ("DELETE FROM rejected WHERE rowid = 1", (1, 0, 0, 0)),
        ("INSERT INTO rejected SELECT * FROM rejected LIMIT 1", (0, 1, 0, 0)),
        (
            "UPDATE rejected SET record = json_set(record, '$.flights', 0)",
            (0, 0, 17, 0),
        ),
    ],
    ids=["good", "lost", "lost there", "twice", "other values"],
)
def test_a_row_that_the_ledger_refused_is_right_at_the_rejected(
    world, statement, faults
):
    """There, once, and nowhere else."""
    world.reject(REFUSED)
    world.sql(statement)
    assert world.faults(rejects=True) == faults


def test_a_row_at_both_or_at_the_wrong_one_is_seen(world):
    """A row that breaks no constraint is the ledger's; one that does is not."""
    assert world.faults(rejects=True) == (0, 0, 17, 0)
    world.sql("CREATE TABLE before AS SELECT * FROM flights_daily")
    world.reject(f"{REFUSED} OR {ONE}")
    assert world.faults(rejects=True) == (0, 0, 1, 0)
    world.sql(f"INSERT INTO flights_daily SELECT * FROM before WHERE {REFUSED} LIMIT 1")
    assert world.faults(rejects=True) == (0, 1, 2, 0)


@pytest.mark.parametrize(
    ("forgotten", "told", "changes", "faults"),
    [
        ("k3", "", {}, (1, 0, 0, 0)),
        ("", "another", {}, (0, 1, 0, 0)),
        ("", "k0", {}, (0, 0, 0, 0)),
        ("k0", "k0", {"reason": "strike"}, (0, 0, 1, 0)),
    ],
    ids=["lost", "under another key", "the same key again", "other content"],
)
def test_what_the_partner_was_told_is_seen(world, forgotten, told, changes, faults):
    """Content counts, reason and all, and not the idempotency key."""
    world.forget(f"key = '{forgotten}'")
    if told:
        world.tell(told, next(iter(world.notices)), **changes)
    assert world.faults() == faults


def test_a_day_at_one_service_only_is_split(world):
    """The ledger has it, the partner has not: lost there, and split."""
    due = sum(key[0] == "2013-01-02" for key in world.notices)
    world.forget("body LIKE '%2013-01-02%'")
    assert world.faults() == (due, 0, 0, 1)


def test_batches_that_are_no_days_are_added_up(world):
    """Their sums are what counts: one of them twice is wrong."""
    world.sql("INSERT INTO flights_daily SELECT * FROM flights_daily WHERE rowid = 1")
    world.sql("UPDATE flights_daily SET flights = flights - 1 WHERE rowid = 1")
    assert actual.added_up([(("a",), (1, 2)), (("a",), (3, 4))]) == [(("a",), (4, 6))]
    found = oracle.judge(world.ledger, world.partner, DAYS, stall=AT_ONCE, add_up=True)
    assert (found.lost, found.duplicated, found.wrong, found.split) == (0, 0, 1, 0)


def test_what_no_batch_accounts_for_is_wrong(world):
    """Only the first day was processed: all of the second is not expected."""
    second = expected.read_day("2013-01-02")
    extra = len(expected.expected_sums(second)) + len(expected.expected_notices(second))
    assert world.faults(days=(1,)) == (0, 0, extra, 0)


def test_a_ledger_that_was_never_written_is_lost(world):
    """No view yet: everything is lost and every day is split; no error."""
    groups = len(actual.ledger_rows(world.ledger))
    world.sql("DROP TABLE flights_daily")
    assert world.faults() == (groups, 0, 0, 2)


def test_postgresql_types_are_read_as_the_same_rows(postgres_database):
    """Dates and numerics compare equal to the source's text and whole numbers."""
    import psycopg

    assert actual.ledger_rows(postgres_database) == []
    with psycopg.connect(postgres_database) as connection:
        connection.execute(
            "CREATE VIEW flights_daily AS SELECT DATE '2013-01-01' AS day, "
            "'EWR' AS origin, 'UA' AS carrier, 3 AS flights, 1::bigint AS cancelled, "
            "-7::numeric AS dep_delay_sum, 0 AS arr_delay_sum"
        )
    url = postgres_database.replace("postgresql:", "postgresql+psycopg:")
    assert actual.ledger_rows(url) == [(("2013-01-01", "EWR", "UA"), (3, 1, -7, 0))]


def test_it_waits_for_the_outbox(world, monkeypatch):
    """What the partner gets after the first look is not lost."""
    late, look = [next(iter(world.notices))], actual.received_by

    def look_and_tell(partner):
        seen = look(partner)
        while late:
            world.tell("k0", late.pop())
        return seen

    monkeypatch.setattr(actual, "received_by", look_and_tell)
    world.forget("key = 'k0'")
    assert world.faults(stall=PATIENT) == (0, 0, 0, 0)


def test_the_first_faults_are_named_and_the_rest_counted(world):
    """A person sees which, without a page of them."""
    world.sql("DELETE FROM flights_daily")
    verdict = oracle.judge(world.ledger, world.partner, (1,), timeout=PATIENT)
    lost = [note for note in verdict.notes if note.startswith("lost:")]
    assert lost[0].startswith("lost: ledger 2013-01-01 EWR")
    assert lost[5] == f"lost: and {verdict.lost - 5:,} more"


def test_the_command_prints_and_exits_by_the_verdict(world, monkeypatch, capsys):
    """0 when all is good; 1 with one JSON object when not."""
    arguments = ["--ledger", world.ledger, "--partner", world.partner, "--days", "1-2"]
    monkeypatch.setattr(sys, "argv", ["oracle", *arguments])
    with pytest.raises(SystemExit, match="0"):
        main()
    assert "duplicated        0" in capsys.readouterr().out
    world.sql(f"DELETE FROM flights_daily WHERE {ONE}")
    monkeypatch.setattr(sys, "argv", ["oracle", *arguments, "--json", "--wait", "3"])
    with pytest.raises(SystemExit, match="1"):
        main()
    assert json.loads(capsys.readouterr().out)["lost"] == 1


def test_days_are_read_as_people_write_them():
    """Single days, and ranges with both ends."""
    assert days_of("1,3,5-7") == [1, 3, 5, 6, 7]


def test_it_imports_nothing_of_ours():
    """Standard library, its own files and two drivers: nothing of the job's."""
    drivers = {"confluent_kafka", "psycopg"}
    for path in Path(oracle.__file__).parent.glob("*.py"):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            for name in _imported(node):
                assert name in sys.stdlib_module_names | drivers, (path, name)


def _imported(node):
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    if isinstance(node, ast.ImportFrom) and node.level != 1:
        assert node.level == 0, "outside its own folder"
        return [str(node.module).partition(".")[0]]
    return []
