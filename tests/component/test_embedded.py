"""A participant without a service: its address, and who makes what."""

from __future__ import annotations

import contextlib
import pickle
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa
from support.branches import commit_of, prepare_at
from support.served import unserved
from support.waiting import AT_ONCE, PATIENT, UNDELAYED, until

from tracing_2pc import ParticipantSink, TableSink, write
from tracing_2pc.cli import main
from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import TransactionId
from tracing_2pc.core.remote_participant import RemoteParticipant, open_participant
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import Decision, ParticipantState, Refusal, Vote
from tracing_2pc.embedded import idle
from tracing_2pc.inspection.view import view_transaction
from tracing_2pc.operations.check import check
from tracing_2pc.operations.init import init
from tracing_2pc.operations.watch import watch
from tracing_2pc.operations.wiring import open_participants
from tracing_2pc.sinks.sending import send_waiting
from tracing_2pc.spark import context
from tracing_2pc.store import open_log
from tracing_2pc.testing import run_one_batch, temporary_log

ID = TransactionId("test", 0, 1)
ROWS = [{"id": 1, "city": "Zürich"}, {"id": 2, "city": "Bern"}]


@pytest.fixture(autouse=True)
def _no_token(monkeypatch) -> None:
    monkeypatch.delenv("TPC_TOKEN", raising=False)


def opened(url: str, name: str = "orders") -> RemoteParticipant:
    """It, as it comes out of a closure that Spark has pickled."""
    made = open_participant(name, url, "env:TPC_TOKEN", PATIENT)
    copy: RemoteParticipant = pickle.loads(pickle.dumps(made))
    assert copy == made
    return copy


def address(url: str, **options: str) -> str:
    """Of a database of a test, which is reached by its socket: with options of it."""
    mark = "&" if "?" in url else "?"
    return url + mark + "&".join(f"{n}={v}" for n, v in options.items())


@pytest.fixture(params=["sqlite", "postgresql", "into"])
def url(request, tmp_path) -> Iterator[str]:
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/shop.db?table=orders"
        return
    database = request.getfixturevalue("postgres_database")
    option = "into" if request.param == "into" else "table"
    yield address(database, **{option: "orders"})


def read(url: str) -> list[Any]:
    """Return the ids that a reader of the table sees."""
    with connected(url) as connection:
        return list(connection.exec_driver_sql("SELECT id FROM orders").scalars())


@contextlib.contextmanager
def connected(url: str) -> Iterator[sa.Connection]:
    """Connect to the database of an address, each statement by itself."""
    database = sa.make_url(url).difference_update_query(
        ["table", "into", "key", "evolve"]
    )
    if database.drivername == "postgresql":
        database = database.set(drivername="postgresql+psycopg")
    engine = sa.create_engine(database, isolation_level="AUTOCOMMIT")
    try:
        with engine.connect() as connection:
            yield connection
    finally:
        engine.dispose()


def test_a_batch_lands_and_is_looked_up(url):
    """Made at the start, written by tasks, committed, shown; no token anywhere."""
    sink = ParticipantSink({"orders": url})
    sink.check("test")
    assert run_one_batch(sink, ROWS, ROWS)
    assert sorted(read(url)) == [1, 1, 2, 2]
    assert opened(url).show(ID).state is ParticipantState.COMMITTED
    described = opened(url).describe()
    assert (described.unreachable, described.unready, described.in_doubt) == (
        *(None, None),
        0,
    )


def test_a_batch_that_is_not_decided_is_hidden(url):
    """Prepared and shown as in doubt; an abort leaves nothing to be read."""
    ParticipantSink({"orders": url}).check("test")
    participant = opened(url)
    assert prepare_at(participant, transaction=ID) is Vote.COMMIT
    assert [branch.transaction for branch in participant.prepared().branches] == [ID]
    participant.resolve(ID, "abort", "a try")  # type: ignore[arg-type]
    assert (read(url), participant.prepared().branches) == ([], ())
    with pytest.raises(ParticipantRefusedError) as refused:
        participant.commit(commit_of(ID, "orders"))
    assert refused.value.state == "aborted"


@pytest.mark.parametrize("option", ["table", "into"])
def test_connections_that_are_idle_are_closed(postgres_database, option, monkeypatch):
    """Not before the last one who asks is answered; later ones get new ones."""
    monkeypatch.setattr(idle, "IDLE", AT_ONCE)
    participant = opened(address(postgres_database, **{option: "orders"}))
    participant.set_up()
    engine: Any = participant._resource()  # type: ignore[attr-defined]
    add, close = engine._journal.add_prepared, engine._store.close
    closed = threading.Event()
    monkeypatch.setattr(engine._store, "close", lambda: (close(), closed.set()))

    def add_late(*about: Any, **more: Any) -> Any:
        added = add(*about, **more)
        assert not closed.wait(10 * idle.IDLE)
        return added

    with connected(postgres_database) as connection:
        ours = "SELECT count(*) FROM pg_stat_activity WHERE pid <> pg_backend_pid() "
        ours += "AND datname = current_database()"
        until(lambda: connection.exec_driver_sql(ours).scalar() == 0)
        closed.clear()
        monkeypatch.setattr(engine._journal, "add_prepared", add_late)
        assert prepare_at(participant, transaction=ID) is Vote.COMMIT
        until(lambda: connection.exec_driver_sql(ours).scalar() == 0)
        assert closed.is_set()
    participant.commit(commit_of(ID, "orders"))
    assert participant.show(ID).state is ParticipantState.COMMITTED


@pytest.mark.parametrize("wrong", [-7200, 7200], ids=["behind", "ahead"])
def test_times_are_by_the_clock_of_the_database(url, wrong, monkeypatch):
    """Tasks on several machines write them: one whose clock is wrong misleads none."""
    ParticipantSink({"orders": url}).check("test")
    participant, right = opened(url), time.time
    with monkeypatch.context() as machine:
        machine.setattr("time.time", lambda: right() + wrong)
        prepare_at(participant, transaction=ID)
        listing = participant.prepared()
        assert abs(listing.branches[0].age) < UNDELAYED
        assert participant.prepared("another").now == pytest.approx(
            right(), abs=UNDELAYED
        )
    assert abs(participant.prepared().branches[0].age) < UNDELAYED
    with monkeypatch.context() as machine:
        machine.setattr("time.time", lambda: right() + wrong)
        participant.commit(commit_of(ID, "orders"))
    shown = participant.show(ID)
    (branch,) = shown.branches
    times = [branch.prepared_at, branch.sealed_at, shown.now]
    assert times == pytest.approx([right()] * 3, abs=UNDELAYED)
    assert times == sorted(times)


def made_in(url: str) -> set[str]:
    """Return everything that is there: files, or tables and views."""
    if url.startswith("sqlite"):
        folder = Path(url.removeprefix("sqlite:///").partition("?")[0]).parent
        return {path.name for path in folder.iterdir()}
    with connected(url) as connection:
        inspector = sa.inspect(connection)
        return {*inspector.get_table_names(), *inspector.get_view_names()}


def test_who_looks_makes_nothing(url):
    """Nor does a task: what is missing is said, as *not now*."""
    before, participant = made_in(url), opened(url)
    missing = "there is no .*shop.db" if url.startswith("sqlite") else "orders_tpc_"
    with pytest.raises(ParticipantUnavailableError, match=missing) as looked:
        participant.identity()
    assert looked.value.refusal is Refusal.NOT_NOW
    for ask in (
        participant.prepared,
        lambda: participant.show(ID),
        lambda: prepare_at(participant, transaction=ID),
        lambda: participant.commit(commit_of(ID, "orders")),
    ):
        with pytest.raises(ParticipantUnavailableError):
            ask()
    described = participant.describe()
    assert described.unreachable
    assert described.identity is None
    assert made_in(url) == before


def test_to_select_is_enough_to_look(postgres_database):
    """A role that may write nothing lists, shows and identifies."""
    url = address(postgres_database, table="orders")
    sink = ParticipantSink({"orders": url})
    sink.check("test")
    run_one_batch(sink, ROWS)
    looks = sa.make_url(postgres_database).set(username="looks")
    participant = opened(address(looks.render_as_string(), table="orders"))
    with connected(postgres_database) as connection, contextlib.ExitStack() as stack:
        run = connection.exec_driver_sql
        run("CREATE ROLE looks LOGIN")
        stack.callback(run, "DROP ROLE looks")
        run("GRANT SELECT ON ALL TABLES IN SCHEMA public TO looks")
        stack.callback(run, "DROP OWNED BY looks")
        assert participant.show(ID).state is ParticipantState.COMMITTED
        assert participant.prepared().branches == ()
        assert participant.identity().participants == {"test": "orders"}
        with pytest.raises(ParticipantRefusedError, match="GRANT"):
            prepare_at(participant, transaction=TransactionId("test", 1, 1))


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ("sqlite:///a.db", "add ?table="),
        ("sqlite:///a.db?table=a&into=b", "one of them"),
        ("sqlite:///a.db?into=a", "needs PostgreSQL"),
        ("sqlite:///a.db?tabel=a", "is table meant?"),
        ("sqlite:///a.db?table=a&sslmode=require", "unknown option 'sslmode'"),
        ("sqlite:///a.db?table=a&table=b", "twice"),
        ("sqlite:///a.db?table=A-b", "lower-case"),
        ("sqlite:///:memory:?table=a", "in memory"),
        ("postgresql://db/shop?table=a&keys=id", "is key meant?"),
        ("postgresql://db/shop?into=a&key=id", "goes with table="),
        ("sqlite:///a.db?table=a&evolve=drop", "option evolve: add is the only"),
        ("postgresql://db/shop?into=a&deleted=b", "option deleted goes with table="),
        ("sqlite:///a.db?table=a&deleted=gone", "add key="),
        ("sqlite:///a.db?table=a&key=id&deleted=id", "give key="),
        ("postgresql://app:secret@db/shop?table=a", "must not hold a password"),
        ("postgresql://db/shop?table=a&password=secret", "must not hold a password"),
        ("postgresql://db/shop?table=a&url_file=/x", "url_file names all"),
        ("postgresql://db:port/shop?table=a", "expected postgresql://"),
        ("kafka://broker/totals", "add ?outbox="),
        ("kafka://broker?outbox=sqlite:///a.db", "expected kafka://host:port/NAME"),
        ("kafka://me@broker/t?outbox=sqlite:///a.db", "use sasl.username="),
        ("kafka://broker/t?outbox=sqlite:///a.db&topic=t", "unknown option 'topic'"),
        ("kafka://broker/t?outbox=sqlite:///a.db&keys=id", "is key meant?"),
        ("kafka://broker/t?outbox=sqlite:///a.db&acks=1", "unknown option 'acks'"),
        (
            "kafka://broker/t?outbox=sqlite:///a.db&sasl.password=x",
            "sasl.password: give a reference",
        ),
        (
            "kafka://broker/t?outbox=postgresql://a:b@db/shop",
            "must not hold a password",
        ),
        ("kafka://broker:0/t?outbox=sqlite:///a.db", "expected a host"),
        ("kafka://broker/t?outbox=sqlite:///a.db&tombstone=gone", "add key="),
        (
            "kafka://broker/t?outbox=sqlite:///a.db&key=id&allow_uncompacted=yes",
            "write true",
        ),
        (
            "activemq://broker/q?outbox=sqlite:///a.db&key=id&tombstone=gone",
            "unknown option 'tombstone'",
        ),
        ("kafka://broker/t?outbox=sqlite:///a.db&prefix=A", "option prefix: 'A'"),
        (f"kafka://broker/{'t' * 60}?outbox=sqlite:///a.db", "option prefix: "),
        ("kafka://broker/t?outbox=mysql://db/shop", "option outbox: expected"),
        ("activemq://broker/q?outbox=sqlite:///a.db&password=x", "hold a password"),
        ("activemq://broker/q?outbox=sqlite:///a.db&acks=1", "unknown option 'acks'"),
        (
            "activemq://broker/q?outbox=sqlite:///a.db&oauth_cb=cloud:token",
            "unknown option 'oauth_cb'",
        ),
    ],
)
def test_a_wrong_address_is_one_line(wrong, says, tmp_path, monkeypatch):
    """It is said where the sink is made; nothing is made, and no password repeated."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigurationError) as error:
        ParticipantSink({"orders": wrong})
    text = str(error.value)
    assert says in text
    assert "\n" not in text
    assert "secret" not in text
    assert not list(tmp_path.iterdir())


def test_a_package_that_is_missing_is_named(monkeypatch):
    """With the extra that has it."""
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(ConfigurationError, match=r"tracing-2pc\[postgres\]"):
        ParticipantSink({"orders": "postgresql://db/shop?table=a"})


def test_a_relative_file_is_that_of_the_start(tmp_path, monkeypatch):
    """A task has another working directory."""
    monkeypatch.chdir(tmp_path)
    participant = opened("sqlite:///shop.db?table=orders")
    monkeypatch.chdir("/")
    assert participant.url == f"sqlite:///{tmp_path}/shop.db?table=orders"


def test_a_file_may_hold_the_url(tmp_path, postgres_database):
    """With its password; only the file's path is pickled and shown."""
    file = tmp_path / "url"
    file.write_text(postgres_database)
    url = f"postgresql:///?url_file={file}&table=orders"
    sink = ParticipantSink({"orders": url})
    sink.check("test")
    assert run_one_batch(sink, ROWS)
    assert postgres_database not in repr(sink)
    assert sorted(read(postgres_database)) == [1, 2]


def test_two_addresses_of_one_table_are_refused(tmp_path):
    """Whichever way they are written, and in whichever sinks."""
    database = f"sqlite:///{tmp_path}/shop.db"
    urls = {"a": f"{database}?table=orders", "b": f"{database}?table=orders&key=id"}
    with pytest.raises(ConfigurationError, match="'a' and 'b' lead to one"):
        ParticipantSink(urls).check("test")


def test_another_table_is_refused_at_the_start(tmp_path):
    """With the SQL that makes a participant's table of it."""
    database = f"sqlite:///{tmp_path}/shop.db"
    with connected(database) as connection:
        connection.exec_driver_sql("CREATE TABLE orders (id INTEGER)")
    with pytest.raises(ConfigurationError, match=r"'orders': .* RENAME TO orders_tpc"):
        TableSink(database, "orders").check("test")


def test_a_database_that_does_not_answer_is_unavailable():
    """Never a refusal; the start of a job does not wait for it."""
    with unserved() as held:
        url = f"postgresql://app@127.0.0.1:{held.rpartition(':')[2]}/shop?table=orders"
        sink = ParticipantSink({"orders": url})
        sink.check("test")
        with pytest.raises(ParticipantUnavailableError, match="'orders'") as silent:
            prepare_at(opened(url), transaction=ID)
    assert silent.value.refusal is Refusal.NOT_NOW


def test_a_row_that_is_refused_is_a_vote_to_abort(url):
    """With the column and the cause."""
    sink = ParticipantSink({"orders": url})
    sink.check("test")
    run_one_batch(sink, ROWS)
    with pytest.raises(ParticipantRefusedError, match="city"):
        run_one_batch(sink, [{"id": 3, "city": 4}], application="later")


def test_a_table_in_code(tmp_path):
    """It is named as its table; its key shows the latest row."""
    sink = TableSink(
        f"sqlite:///{tmp_path}/shop.db", "orders", key=["id", "city"], evolve="add"
    )
    sink.check("test")
    assert list(sink.participants) == ["orders"]
    assert run_one_batch(sink, ROWS)
    url = sink.participants["orders"].inner.url
    assert url.endswith("shop.db?evolve=add&key=id%2Ccity&table=orders")
    assert sorted(read(url)) == [1, 2]


def test_a_column_comes_to_a_table_without_a_service(url):
    """A task adds it; rows of before have NULL there."""
    sink = ParticipantSink({"orders": address(url, evolve="add")})
    sink.check("test")
    log = temporary_log()
    assert run_one_batch(sink, ROWS, log=log)
    new = [{"id": 3, "city": "Basel", "note": "x"}]
    assert run_one_batch(sink, new, ROWS[:0], log=log, batch=1)
    with connected(url) as connection:
        rows = connection.exec_driver_sql("SELECT id, note FROM orders ORDER BY id")
        assert [tuple(row) for row in rows] == [(1, None), (2, None), (3, "x")]


def test_text_and_table_of_settings_name_it(tmp_path):
    """As an environment and as TOML have it; a comma in text is percent-encoded."""
    url = f"sqlite:///{tmp_path}/shop.db?table=orders&key="
    for given in (f"orders={url}id%2Ccity", {"orders": f"{url}id,city"}):
        participants = open_participants(Settings.load(participants=given))
        assert participants["orders"].url.endswith("?key=id%2Ccity&table=orders")
    with pytest.raises(ConfigurationError, match="%2C"):
        Settings.load(participants=f"orders={url}id,city")


def test_a_job_measures_its_participants(tmp_path, measured, monkeypatch):
    """By their names; one whose database is away is left out, and the others are not.

    Two that have one name count once, with what is greater.
    """
    monkeypatch.setattr("tracing_2pc.embedded.participant._makers", {})
    urls = [f"sqlite:///{tmp_path}/{n}.db?table={n}" for n in ("orders", "totals")]
    away = address("postgresql://u@127.0.0.1:1/shop", table="away")
    ParticipantSink({"orders": urls[0], "totals": urls[1]}).check("test")
    ParticipantSink({"away": away}).check("test")
    assert prepare_at(opened(urls[0]), transaction=ID) is Vote.COMMIT
    in_doubt = 'tpc_in_doubt_branches{participant="%s"}'
    assert in_doubts(measured()) == {in_doubt % "orders": 1, in_doubt % "totals": 0}
    opened(urls[1], "orders").set_up()  # type: ignore[attr-defined]
    assert in_doubts(measured())[in_doubt % "orders"] == 1


def in_doubts(measured: dict[str, float]) -> dict[str, float]:
    return {n: v for n, v in measured.items() if n.startswith("tpc_in_doubt_branches")}


def test_a_watcher_measures_them(tmp_path, measured):
    """By their names, as of its last sweep: a scrape asks no participant."""
    url = f"sqlite:///{tmp_path}/shop.db?table=orders"
    ParticipantSink({"orders": url}).check("test")
    assert prepare_at(opened(url), transaction=ID) is Vote.COMMIT
    settings = Settings(
        log=f"sqlite:///{tmp_path}/log.db", participants={"orders": url}
    )
    with contextlib.closing(open_log(settings.log or "")) as log:
        watch(log, settings, lambda _: None, once=True)
    opened(url).resolve(ID, Decision.ABORT, "a try")
    assert in_doubts(measured()) == {'tpc_in_doubt_branches{participant="orders"}': 1}


def test_a_check_asks_for_no_token(tmp_path):
    """Where no service takes part nothing is wrong without one."""
    url, log = f"sqlite:///{tmp_path}/shop.db?table=orders", f"sqlite:///{tmp_path}/log"
    open_log(log).close()
    ParticipantSink({"orders": url}).check("test")
    result = check(Settings.load(log=log, participants={"orders": url}))
    assert [
        finding.text for finding in result.findings if "token" in str(finding)
    ] == []
    assert [p.refused for p in result.participants] == [None]


def test_a_table_has_nothing_to_send(tmp_path):
    """Nobody waits for one whose database is away, nor says that records are left."""
    table = opened(f"sqlite:///{tmp_path}/gone.db?table=orders")
    assert send_waiting({"orders": table}, UNDELAYED) == {}


def test_what_the_settings_lack_is_said_as_a_line_to_add(tmp_path):
    """A job names it in code; the record has its address. It is not opened for that."""
    url, log = f"sqlite:///{tmp_path}/shop.db", f"sqlite:///{tmp_path}/log.db"
    write(
        [TableSink(url, "orders"), TableSink(url, "totals")],
        ROWS,
        application="test",
        batch=0,
        log=log,
    )
    opened_log = open_log(log)
    settings = Settings.load(
        log=log, participants={"totals": f"{url}?table=totals"}, environ={}
    )
    view = view_transaction(opened_log, open_participants(settings), ID, settings)
    opened_log.close()
    said = {report.participant: report.error for report in view.participants}
    line = f'add orders = "{url}?table=orders" to `participants`'
    assert line in str(said["orders"])
    assert said["totals"] is None


def test_init_writes_no_tokens_without_a_service(tmp_path, monkeypatch):
    """Neither the file nor the lines about it."""
    settings = Settings.load(
        log=f"sqlite:///{tmp_path}/log.db",
        participants={"orders": "sqlite:///shop.db?table=orders"},
    )
    monkeypatch.chdir(tmp_path)
    lines = list(init(tmp_path / "tpc.toml", settings))
    assert not (tmp_path / "tokens").exists()
    assert "token" not in (tmp_path / "tpc.toml").read_text().replace(str(tmp_path), "")
    assert [line.split()[0] for line in lines] == ["wrote", "schema"]


@pytest.mark.parametrize(
    ("named", "expected"),
    [
        ("nowhere", None),
        ("by an option", "mine"),
        ("by a variable", "mine"),
        ("in the file", "mine"),
        ("nowhere, beside a service", "tokens"),
        ("nowhere, and no participant", "tokens"),
    ],
)
def test_init_writes_the_tokens_that_are_named(tmp_path, monkeypatch, named, expected):
    """Or those of a service; `tracing-2pc serve` has an address, and accepts tokens."""
    monkeypatch.chdir(tmp_path)
    participants = "ledger=sqlite:///shop.db?table=orders"
    if named.endswith("service"):
        participants += ",notifier=http://127.0.0.1:8082"
    options = ["--participants", participants] if "no part" not in named else []
    if named == "by an option":
        options += ["--tokens-file", "mine"]
    if named == "by a variable":
        monkeypatch.setenv("TPC_TOKENS_FILE", "mine")
    if named == "in the file":
        Path("tpc.toml").write_text('tokens_file = "mine"\n')
    assert main(["init", "--log", "sqlite:///log.db", *options]) == 0
    written = {"mine", "tokens"} & {file.name for file in tmp_path.iterdir()}
    assert written == ({expected} if expected else set())
    if expected:
        assert Settings.load("tpc.toml").tokens_file == expected
        assert "operator " in Path(expected).read_text()


@pytest.mark.parametrize("way", ["sqlite", "url_file", "python"])
def test_a_file_is_refused_on_a_cluster(tmp_path, monkeypatch, way):
    """By the session's master where it is known; else by the task's machine."""
    database = f"sqlite:///{tmp_path}/shop.db"
    (tmp_path / "url").write_text(database)
    module_with(
        tmp_path,
        monkeypatch,
        "from tracing_2pc.participant import TaggedRows\n"
        f"of_a_cluster = TaggedRows({database!r}, 'orders')\n",
    )
    urls = {
        "sqlite": f"{database}?table=orders",
        "url_file": f"sqlite:///?url_file={tmp_path}/url&table=orders",
        "python": "python:shop_resources:of_a_cluster",
    }
    sink = ParticipantSink({"orders": urls[way]})
    session = types.SimpleNamespace(master="local[2]")
    monkeypatch.setattr("pyspark.SparkContext._active_spark_context", session)
    context.refuse_local_files(sink)
    session.master = "spark://there:7077"
    with pytest.raises(ConfigurationError, match=r"orders: .*spark://there:7077"):
        context.refuse_local_files(sink)
    sink.check("test")
    monkeypatch.setattr("socket.gethostname", lambda: "elsewhere")
    with pytest.raises(ConfigurationError, match="elsewhere"):
        prepare_at(sink.participants["orders"].inner, transaction=ID)


def module_with(folder: Path, monkeypatch: Any, text: str) -> None:
    monkeypatch.syspath_prepend(folder)
    monkeypatch.delitem(sys.modules, "shop_resources", raising=False)
    (folder / "shop_resources.py").write_text(text)


def test_an_object_of_a_module_is_a_participant(tmp_path, monkeypatch):
    """A resource that no text can say; a task imports it by its name."""
    module_with(
        tmp_path,
        monkeypatch,
        "from tracing_2pc.participant import TaggedRows\n"
        f"orders = TaggedRows('sqlite:///{tmp_path}/shop.db', 'orders')\n",
    )
    sink = ParticipantSink({"orders": "python:shop_resources:orders"})
    sink.check("test")
    assert run_one_batch(sink, ROWS)
    assert sorted(read(f"sqlite:///{tmp_path}/shop.db")) == [1, 2]
    assert b"shop.db" not in pickle.dumps(sink)


def test_a_module_may_make_other_participants(tmp_path, monkeypatch):
    """Where it is imported for one of its own: nobody waits for a lock."""
    module_with(
        tmp_path,
        monkeypatch,
        "from tracing_2pc import TableSink\n"
        "from tracing_2pc.participant import TaggedRows\n"
        f"orders = TaggedRows('sqlite:///{tmp_path}/shop.db', 'orders')\n"
        f"audit = TableSink('sqlite:///{tmp_path}/audit.db', 'audit')\n",
    )
    names = {"orders": "python:shop_resources:orders"}
    made = threading.Thread(target=ParticipantSink, args=[names], daemon=True)
    made.start()
    made.join(PATIENT)
    assert not made.is_alive()


@pytest.mark.parametrize(
    ("attribute", "says"),
    [
        ("nothing", "cannot be imported (AttributeError)"),
        ("number", "is a int, not a resource"),
    ],
)
def test_an_object_that_is_no_participant_is_one_line(
    tmp_path, monkeypatch, attribute, says
):
    module_with(tmp_path, monkeypatch, "number = 1\n")
    with pytest.raises(ConfigurationError) as error:
        ParticipantSink({"orders": f"python:shop_resources:{attribute}"})
    assert says in str(error.value)
    assert "\n" not in str(error.value)
