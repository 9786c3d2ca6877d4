"""An inbox: what was stored is read once, in order, whatever crashes or is put back."""

from __future__ import annotations

import contextlib
import json
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import sqlalchemy as sa
from support.databases import url
from support.texts import texts
from support.waiting import AT_LAST, until

from tracing_2pc.core.errors import ConfigurationError, MalformedError, RefusalError
from tracing_2pc.core.model import Carrier
from tracing_2pc.core.states import Refusal
from tracing_2pc.inbox import Inbox, NewEvent, Offset, Stored, shared_flush, tables
from tracing_2pc.inbox import inbox as inboxes
from tracing_2pc.inbox.changed import InboxChangedError
from tracing_2pc.inbox.tables import MANY, InboxTables
from tracing_2pc.participant import TaggedRows
from tracing_2pc.store.kit import added

__all__ = ["url"]

TEXTS = texts("kit")

DAY = 86_400.0
START = Offset()


class Clock:
    """A clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 1_000_000.0

    def __call__(self) -> float:
        return self.now


def live(clock: Clock, days: float, inbox: Inbox, **readers: Offset) -> int:
    """Let readers confirm once a day, up to a place each, by default all; return where
    the inbox begins then."""
    while days > 0:
        clock.now += min(days, 1) * DAY
        days -= 1
        for reader, offset in (readers or {"reader": inbox.end()}).items():
            inbox.confirm(reader, offset)
    return inbox.start().position


def event(name: str, content: object = None) -> NewEvent:
    return NewEvent(name, json.dumps([name, content]))


def ids(inbox: Inbox, after: Offset = START) -> list[str]:
    return [one.id for one in inbox.read(after, inbox.end())]


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def inbox(url: str, clock: Clock) -> Iterator[Inbox]:
    inbox = Inbox(url, clock=clock)
    yield inbox
    inbox.close()


def test_an_event_is_kept_as_it_came(inbox, clock):
    """With its producer, body, time and trace; its position is the next one."""
    trace = Carrier(traceparent=f"00-{'1' * 32}-{'2' * 16}-01")
    sent = NewEvent("a", '{"n": 1.10}', trace)
    assert inbox.store("shop", [sent]) == [Stored("a", 1, True)]
    (kept,) = inbox.read(Offset(), inbox.end())
    assert (kept.position, kept.id, kept.producer) == (1, "a", "shop")
    assert (kept.body, kept.at, kept.carrier) == ('{"n": 1.10}', clock.now, trace)


ODD = ["\\", "\\n", "\\.", "ü", "'\"", "%", "\\N", "\\x41", "x" * 70_000]


def test_many_are_kept_as_they_came(inbox):
    """However they are written to the database at once, and once."""
    many = [
        NewEvent(
            f"{number} {odd[:9]}",
            f"\t[\n\r {json.dumps(odd)} ]",
            Carrier(tracestate=odd[:9]),
        )
        for number, odd in enumerate(ODD * 20)
    ]
    for is_new in (True, False):
        assert {one.is_new for one in inbox.store("shop", many)} == {is_new}
    kept = inbox.read(START, inbox.end())
    assert [(one.id, one.body, one.carrier) for one in kept] == [
        (one.id, one.body, one.carrier) for one in many
    ]
    assert {(one.producer, one.at) for one in kept} == {("shop", 1_000_000.0)}


@pytest.mark.ci
@pytest.mark.parametrize("count", [1, 200])
def test_what_a_database_lacks_is_refused(new_database, count):
    """However many come with it; and the next ones are stored."""
    inbox = Inbox(new_database("TEMPLATE template0 ENCODING 'LATIN1' LOCALE 'C'"))
    bad = [NewEvent(str(n), '"\u2192"') for n in range(count)]
    for also in (None, lambda *_: None):
        with pytest.raises(RefusalError) as refused:
            inbox.store("shop", bad, also)
        assert refused.value.refusal is Refusal.MALFORMED
    assert inbox.store("shop", [event("1")]) == [Stored("1", 1, True)]
    inbox.close()


def test_an_id_is_stored_once(inbox):
    """Again, in one request, or of another producer: each has its own ids."""
    inbox.store("shop", [event("a")])
    assert inbox.store("shop", [event("b"), event("a"), event("b")]) == [
        Stored("b", 2, True),
        Stored("a", 1, False),
        Stored("b", 2, False),
    ]
    assert inbox.store("other", [event("a")]) == [Stored("a", 3, True)]
    assert ids(inbox) == ["a", "b", "a"]


@pytest.mark.parametrize("first", [[], [event("c")]], ids=["stored", "in one request"])
def test_an_id_with_other_content_is_a_conflict(inbox, first):
    """Nothing of that request is stored."""
    changed = event("a", "changed")
    if first:
        request = [*first, event("a"), changed]
    else:
        inbox.store("shop", [event("a")])
        request = [event("b"), changed]
    before = ids(inbox)
    with pytest.raises(RefusalError, match="'a' of shop") as refused:
        inbox.store("shop", request)
    assert refused.value.refusal is Refusal.CONFLICT
    assert ids(inbox) == before
    assert inbox.store("shop", [event("d")])[0].position == len(before) + 1


@pytest.mark.parametrize(
    ("bodies", "contents"),
    [
        (['{"a": 1, "b": [2]}', ' {"b":[2],"a":1}'], 1),
        (["1", '"1"', "[1]", '{"1": 1}', "true", "null"], 6),
        (["1", "1.0", "10e-1", "0.1e1"], 1),
        (["0.1", "0.10", "1e-1"], 1),
        (["100000000000000000.01", "100000000000000000.02"], 2),
        (["0", "-0.0", "0e999999999"], 1),
        (["1e999", "1e1000", "-1e999"], 3),
        (["0.1", r'{"\u0000number": "0 1 -1"}', '[null, "0 1 -1"]'], 3),
    ],
)
def test_equal_json_is_equal(bodies, contents):
    """Order of keys, white space and how a number is written do not count; its value
    does, each digit of it, and a value of another type."""
    assert len({NewEvent("a", body).digest for body in bodies}) == contents


@pytest.mark.parametrize(
    "body", ["", "{", '"\ud800', "[" * 100_000, '[NaN, "0 1 -1"]', "-Infinity"]
)
def test_a_body_is_json(body):
    """Else it is said whose it is."""
    with pytest.raises(MalformedError, match="event 'a': the body is no JSON"):
        NewEvent("a", body)


@pytest.mark.parametrize("name", ["", "x" * 201, "a\0", "a\nb", "\ud800"])
def test_an_id_is_short_and_printable(name):
    """So it can be stored, shown, and stand in a header."""
    with pytest.raises(MalformedError, match=r"^id: "):
        event(name)


def test_who_waits_at_one_moment_shares_a_flush(inbox):
    """A thousand events by thirty threads need fewer flushes than requests, and what
    one of them does wrong is told to that one."""
    inbox.store("shop", [event("0.0", "other")])
    flushes: list[object] = []
    engine = inbox._database.engine
    sa.event.listen(engine, "commit", flushes.append)
    answers: list[object] = []

    def post(number: int) -> None:
        try:
            answers.append(
                inbox.store("shop", [event(f"{number}.{n}") for n in range(33)])
            )
        except RefusalError as error:
            answers.append(error)

    threads = [threading.Thread(target=post, args=(n,)) for n in range(30)]
    with inbox._database.write() as connection:  # all of them wait for this
        inbox._tables.lock_head(connection)
        for thread in threads:
            thread.start()
        until(lambda: len(inbox._flush._waiting) >= 29)
    for thread in threads:
        thread.join(AT_LAST)
    assert len(answers) == 30
    assert sum(isinstance(answer, RefusalError) for answer in answers) == 1
    assert len(ids(inbox)) == 1 + 29 * 33
    assert len(flushes) < 10


@pytest.mark.ci
@pytest.mark.parametrize("count", [1, 200])
def test_a_session_that_ends_in_a_flush_leaves_it_open(new_database, count):
    """Nobody knows whether it was stored: who sends it again has it once."""
    inbox, events = Inbox(new_database()), [event(str(n)) for n in range(count)]
    inbox.open()
    said: list[RefusalError] = []

    def store() -> None:
        with pytest.raises((RefusalError, sa.exc.OperationalError)) as raised:
            inbox.store("shop", events)
        said.append(raised.value)

    storing = threading.Thread(target=store)
    others = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE pid <> "
    others += "pg_backend_pid() AND wait_event_type = 'Lock'"
    with inbox._database.write() as connection:
        inbox._tables.lock_head(connection)
        storing.start()
        with inbox._database.look() as other:
            until(lambda: other.execute(sa.text(others)).all())
    storing.join(AT_LAST)
    if count == 1:
        assert said[0].refusal is Refusal.NOT_NOW
        assert "nobody knows" in str(said[0])
    assert [one.is_new for one in inbox.store("shop", events)] == [True] * count
    inbox.close()


def test_a_reader_never_passes_an_event_that_is_not_committed(inbox, url):
    """Who comes later in another process waits, and has the later position."""
    other = Inbox(url)
    inbox.open()
    later = threading.Thread(target=lambda: other.store("shop", [event("later")]))
    with inbox._writing() as connection:
        connection.exec_driver_sql("SELECT 1")  # begins, and has the lock
        later.start()
        assert ids(inbox) == []
        inbox._add(connection, [[("shop", event("first"))]])
        assert ids(inbox) == []
    later.join(AT_LAST)
    assert ids(inbox) == ["first", "later"]
    other.close()


def test_a_callers_own_work_is_done_with_its_events(inbox):
    """In one transaction, once: not for what is there already, nor if it raises."""
    done: list[str] = []
    note = sa.table("note", sa.column("id"))
    with inbox._database.write() as connection:
        connection.execute(sa.text("CREATE TABLE note (id VARCHAR(9))"))

    def also(connection: sa.Connection, producer: str, events: list[NewEvent]) -> None:
        connection.execute(note.insert(), [{"id": one.id} for one in events])
        if events[0].id == "bad":
            raise RefusalError(Refusal.CONFLICT, "not this one")

    for some in (["a"], ["a"], ["a", "b", "a"], ["b", "a"], ["bad"]):
        try:
            inbox.store("shop", [event(name) for name in some], also)
        except RefusalError:
            done.append("refused")
    with inbox._database.read() as connection:
        noted = connection.execute(sa.select(note.c.id)).scalars().all()
    assert (noted, ids(inbox), done) == (["a", "b"], ["a", "b"], ["refused"])


def test_a_range_is_the_same_whenever_it_is_read(inbox):
    """In order, by places that a reader has noted."""
    inbox.store("shop", [event(str(n)) for n in range(10)])
    first = inbox.offset_at(Offset(), 4)
    second = inbox.offset_at(first, 4)
    inbox.store("shop", [event("later")])
    assert (first[:2], second[:2]) == ((4, "3"), (8, "7"))
    few = inbox.read(first, second, size=1)
    assert [one.id for one in few] == ["4"]
    assert [one.id for one in inbox.read(first, second)] == ["4", "5", "6", "7"]
    assert [one.id for one in inbox.read(Offset(), second, 2)] == ["0", "1"]


def test_an_inbox_that_was_put_back_is_seen(tmp_path: Path):
    """It ends before what was read; or has another event there."""
    file, copy = tmp_path / "inbox.db", tmp_path / "copy.db"
    inbox = Inbox(f"sqlite:///{file}")
    inbox.store("shop", [event("a"), event("b")])
    inbox.close()
    shutil.copy(file, copy)
    inbox.store("shop", [event("c")])
    read = inbox.end()
    inbox.close()
    copy.replace(file)
    with pytest.raises(InboxChangedError, match="ends at 2"):
        inbox.check(read)
    inbox.store("shop", [event("another")])
    for place in (read, read._replace(digest="")):
        with pytest.raises(InboxChangedError, match="is another event 'another'"):
            inbox.read(Offset(), place)
    inbox.close()
    new = Inbox(f"sqlite:///{tmp_path}/new.db")
    new.store("shop", [event(name) for name in "abcd"])
    with pytest.raises(InboxChangedError, match="was read in another inbox"):
        new.check(read)
    new.close()


@pytest.mark.parametrize(
    ("lost", "later"),
    [
        ([("shop", "c")], [("other", "c")]),
        ([("shop", "c"), ("shop", "d")], [("other", "x"), ("shop", "d")]),
    ],
    ids=["another producer", "sent again, after another"],
)
def test_another_event_of_the_same_id_is_seen(tmp_path: Path, clock, lost, later):
    """At the reader's position, in an inbox that was put back: another producer's, or
    the same one that was stored again, behind an event that the reader never got."""
    file, copy = tmp_path / "inbox.db", tmp_path / "copy.db"
    inbox = Inbox(f"sqlite:///{file}", clock=clock)
    inbox.store("shop", [event("a"), event("b")])
    inbox.close()
    shutil.copy(file, copy)
    for producer, name in lost:
        inbox.store(producer, [event(name)])
    read = inbox.end()
    inbox.check(read)
    inbox.close()
    copy.replace(file)
    clock.now += 1
    for producer, name in later:
        inbox.store(producer, [event(name)])
    for goes_on in (inbox.check, lambda at: inbox.join("reader", at)):
        with pytest.raises(InboxChangedError, match=f"another event {read.id!r}"):
            goes_on(read)
    inbox.close()


def test_events_are_kept_until_every_reader_has_committed_them(inbox, clock):
    """And for `keep` after that; ids for longer: a repeat is known after the trim."""
    inbox.store("shop", [event("a"), event("b"), event("c")])
    for reader in ("fast", "slow"):
        inbox.join(reader, Offset())
    one, all_of_them = inbox.offset_at(Offset(), 1), inbox.end()

    def pass_days(days: float) -> int:
        return live(clock, days, inbox, fast=all_of_them)

    assert pass_days(100) == 0
    inbox.confirm("slow", one)
    assert (pass_days(1), pass_days(6), pass_days(2)) == (0, 0, 1)
    with pytest.raises(InboxChangedError, match="up to 1 are deleted"):
        inbox.read(Offset(), all_of_them)
    assert ids(inbox, inbox.start()) == ["b", "c"]
    assert [r.reader for r in inbox.readers()] == ["slow", "fast"]
    assert inbox.retire("slow")
    assert (pass_days(1), pass_days(8)) == (1, 3)
    inbox.store("shop", [event("d")])
    assert inbox.gauges()["tpc.inbox.backlog"] == 1.0
    with pytest.raises(InboxChangedError, match="slow was retired"):
        inbox.confirm("slow", all_of_them)


def test_a_clock_that_was_set_back_keeps_nothing_for_ever(inbox, clock):
    """What a reader passed while it was wrong, it has passed when it is right again."""
    inbox.begin("reader")
    inbox.store("shop", [event("a"), event("b")])
    clock.now += 365 * DAY
    inbox.confirm("reader", inbox.offset_at(Offset(), 1))
    clock.now -= 365 * DAY
    inbox.confirm("reader", inbox.end())
    for days, start in ((6, 0), (2, 2)):
        assert live(clock, days, inbox) == start


def test_an_id_is_known_after_its_event_is_gone(inbox, clock):
    """Until `ids` is over; that of the last event for longer."""
    inbox.join("reader", inbox.start())
    inbox.store("shop", [event("a"), event("b")])

    def pass_days(days: int) -> bool:
        live(clock, days, inbox)
        return inbox.store("shop", [event("a")])[0].is_new

    assert (pass_days(1), pass_days(8), pass_days(80), pass_days(3)) == (
        False,
        False,
        False,
        True,
    )


@pytest.mark.parametrize("ahead", [91, 10_000])
def test_a_clock_that_is_ahead_for_a_while_forgets_nothing(inbox, clock, ahead):
    """However often a reader confirms meanwhile: no event and no id is deleted before
    its time by the right clock, and then both are."""
    inbox.begin("reader")
    inbox.store("shop", [event("a"), event("b")])
    inbox.confirm("reader", inbox.end())
    clock.now += ahead * DAY
    for _ in range(3):
        clock.now += 60
        inbox.confirm("reader", inbox.end())
    clock.now -= ahead * DAY
    assert live(clock, 6, inbox) == 0
    assert live(clock, 2, inbox) == 2
    assert not inbox.store("shop", [event("a")])[0].is_new
    live(clock, 90, inbox)
    assert inbox.store("shop", [event("a")])[0].is_new


@pytest.mark.parametrize("days", [1, 365])
def test_a_clock_that_is_behind_for_a_moment_forgets_nothing(inbox, clock, days):
    """No event and no id is deleted before its time by the right clock; then both are.
    The notes that the clock made doubtful begin anew."""
    inbox.begin("reader")
    for name in "abcde":
        inbox.store("shop", [event(name)])
        live(clock, 1, inbox)
    clock.now -= days * DAY
    inbox.confirm("reader", inbox.end())
    clock.now += days * DAY
    for _ in range(7):  # until `a` is 7 days old
        clock.now += DAY / 4
        inbox.confirm("reader", inbox.end())
        assert inbox.start().position == 0
    assert live(clock, 8, inbox) == 5
    assert not inbox.store("shop", [event("a")])[0].is_new
    live(clock, 90, inbox)
    assert inbox.store("shop", [event("a")])[0].is_new


@pytest.mark.ci
@pytest.mark.parametrize("times", [1, 2])
@pytest.mark.parametrize("days", [0.1, 1, -1, 365, -365])
def test_readers_whose_clocks_differ_delete_nothing_early(
    inbox, url, clock, days, times
):
    """However often each confirms before the other does: an event that both passed is
    kept for `keep`. When the clocks agree again, it is deleted."""
    wrong = Clock()
    other = Inbox(url, clock=wrong)
    inbox.begin("reader")
    other.begin("other")
    inbox.confirm("reader", inbox.end())
    inbox.store("shop", [event("a"), event("b")])
    since = clock.now
    while clock.now - since < 6.5 * DAY:
        for at in (inbox, other):
            for _ in range(times):
                clock.now += DAY / 5
                wrong.now = clock.now + days * DAY
                at.confirm("reader" if at is inbox else "other", at.end())
                if clock.now - since < 7 * DAY:
                    assert inbox.start().position == 0
    assert live(clock, 11, inbox) == 2
    other.close()


@pytest.mark.ci
def test_a_reader_ahead_of_its_database_deletes_nothing(postgres_database):
    """The database's clock says how late it is, for as long as a reader's is ahead."""
    ahead = Clock()
    ahead.now = time.time() + 91 * DAY
    inbox = Inbox(postgres_database, clock=ahead)
    inbox.begin("reader")
    inbox.store("shop", [event("a"), event("b")])
    inbox.confirm("reader", inbox.end())
    assert live(ahead, 100, inbox) == 0
    assert not inbox.store("shop", [event("a")])[0].is_new
    inbox.close()


def test_a_reader_whose_clock_is_behind_deletes_nothing_early(inbox, url, clock):
    """Nor does a right one beside it, by what the other has noted."""
    behind = Clock()
    behind.now = clock.now - 8 * DAY
    other = Inbox(url, clock=behind)
    inbox.begin("reader")
    other.begin("other")
    inbox.store("shop", [event("a"), event("b")])
    for _ in range(14):
        other.confirm("other", other.end())
        inbox.confirm("reader", inbox.end())
        assert inbox.start().position == 0
        clock.now += DAY / 2
        behind.now += DAY / 2
    assert live(clock, 8, inbox) == 2
    other.close()


def test_an_id_outlives_a_clock_that_was_behind(inbox, url, clock):
    """A gateway whose clock is a year behind takes an event: its id is known for `ids`
    by the clock of the readers, as that of any other event."""
    behind = Clock()
    behind.now = clock.now - 365 * DAY
    gateway = Inbox(url, clock=behind)
    gateway.store("shop", [event("a"), event("b")])
    inbox.begin("reader")
    inbox.confirm("reader", inbox.end())
    for days, is_new in ((8, False), (80, False), (4, True)):
        assert live(clock, days, inbox) == 2
        assert gateway.store("shop", [event("a")])[0].is_new == is_new
    gateway.close()


def test_a_reader_that_confirms_once_a_week_deletes_what_is_over(inbox, clock):
    """A week later than one that confirms each day."""
    inbox.begin("reader")
    starts = []
    for week in range(4):
        inbox.store("shop", [event(str(week))])
        inbox.confirm("reader", inbox.end())
        starts.append(inbox.start().position)
        clock.now += 7 * DAY
    assert starts == [0, 0, 1, 2]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"ids": "1d"}, "ids= not below it"),
        ({"keep": "0s"}, "keep= is above 0"),
        ({"keep": "7"}, "expected a duration"),
        ({"name": "a b"}, "inbox name 'a b'"),
    ],
)
def test_bad_settings_are_said(tmp_path, change, said):
    """In one line."""
    with pytest.raises(ConfigurationError, match=said):
        Inbox(f"sqlite:///{tmp_path}/inbox.db", **change)


def test_what_is_kept_is_on_record(url, clock):
    """For a reader that knows nothing of it, and trims."""
    gateway = Inbox(url, keep="30d", ids="60d", clock=clock)
    gateway.store("shop", [event("a")])
    reader = Inbox(url, must_exist=True, clock=clock)
    reader.begin("totals")
    reader.confirm("totals", reader.end())
    for days, start in ((29, 0), (2, 1)):
        assert live(clock, days, reader, totals=reader.end()) == start
    gateway.close()
    reader.close()


@pytest.mark.parametrize(
    ("times", "is_said"), [({}, False), ({"ids": "20d"}, True), ({"keep": 7.0}, True)]
)
def test_nobody_shortens_what_is_kept_by_opening(url, clock, caplog, times, is_said):
    """The longest times that a process asked for hold, for all: a repeat that comes
    within them is known. A process that asks for shorter ones says so in its log."""
    gateway = Inbox(url, keep="8d", ids="400d", clock=clock)
    gateway.store("shop", [event("a"), event("b")])
    intake = Inbox(url, clock=clock, **times)
    intake.begin("reader")
    intake.confirm("reader", intake.end())
    assert live(clock, 7.5, intake) == 0
    live(clock, 110, intake)
    assert not intake.store("shop", [event("a")])[0].is_new
    said = f"keeps events for 691200 s and ids for {400 * 86400} s"
    assert (said in caplog.text) == is_said
    longer = Inbox(url, keep="30d", clock=clock)
    longer.open()
    assert intake.times() == (30 * DAY, 400 * DAY)
    gateway.open()
    assert intake.times() == (30 * DAY, 400 * DAY)
    intake.set_times(DAY, 2 * DAY)
    assert gateway.times() == (DAY, 2 * DAY)
    for inbox in (gateway, intake, longer):
        inbox.close()


def test_who_only_reads_makes_nothing(url):
    """It says that there is no such inbox."""
    reader = Inbox(url, "evnets", must_exist=True)
    with pytest.raises(ConfigurationError, match="there is no inbox evnets at"):
        reader.end()
    reader.close()


def test_a_reader_that_begins_anew_is_waited_for(inbox, clock):
    """Also with a name that is known: then nothing is deleted before it comes there,
    and for `keep` after that."""
    inbox.store("shop", [event(name) for name in "abc"])
    assert inbox.begin("old", newest=True)[:2] == (3, "c")
    inbox.confirm("old", inbox.end())
    clock.now += 6 * DAY
    inbox.join("new", inbox.start())
    inbox.store("shop", [event("d")])
    assert inbox.begin("old", newest=True)[:2] == (3, "c")
    assert live(clock, 2, inbox, old=inbox.end(), new=inbox.end()) == 0
    assert inbox.begin("old").position == 0
    assert [r.reader for r in inbox.readers()] == ["old", "new"]


def test_all_that_is_kept_no_longer_is_deleted_at_once(inbox, clock, monkeypatch):
    """However much a batch has brought."""
    monkeypatch.setattr(tables, "PORTION", 2)
    monkeypatch.setattr(inboxes, "PORTION", 2)
    inbox.begin("reader")
    inbox.store("shop", [event(str(n)) for n in range(11)])
    inbox.confirm("reader", inbox.end())
    assert live(clock, 8, inbox) == 11
    live(clock, 90, inbox)
    with inbox._database.read() as connection:
        ids_left = sa.select(sa.func.count()).select_from(inbox._tables.key)
        assert connection.scalar(ids_left) == 1  # the last one's


def test_a_thread_that_is_ended_leads_nobody_to_wait(inbox):
    """While it waits for another's flush: who comes after it is stored."""
    flush = inbox._flush

    class EndedEvent(threading.Event):
        def wait(self, _: float | None = None) -> bool:
            raise SystemExit

    ending = SimpleNamespace(Event=EndedEvent, Lock=threading.Lock)
    inbox.open()
    with inbox._database.write() as connection:
        inbox._tables.lock_head(connection)
        first = threading.Thread(target=lambda: inbox.store("shop", [event("a")]))
        first.start()
        until(lambda: flush._has_leader and not flush._waiting)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(shared_flush, "threading", ending)
            with pytest.raises(SystemExit):
                inbox.store("shop", [event("b")])
    first.join(AT_LAST)
    inbox.store("shop", [event("c")])
    assert ids(inbox) == ["a", "c"]


BEFORE = "CREATE TABLE events_tpc_head (version INTEGER, inbox VARCHAR(32))"


@pytest.mark.parametrize("must_exist", [False, True])
@pytest.mark.parametrize(
    ("made", "refused"),
    [
        (BEFORE, "unreleased inbox"),
        ("UPDATE events_tpc_schema SET version = 2", "newer inbox"),
        ("UPDATE events_tpc_schema SET kind = 'TaggedRows'", "another kind of inbox"),
    ],
    ids=["before the first release", "newer", "another kind"],
)
def test_an_inbox_that_is_not_ours_is_refused(url, made, refused, must_exist):
    """In one line, before anything is read or written: also by who only reads."""
    if made != BEFORE:
        with contextlib.closing(Inbox(url)) as inbox:
            inbox.open()
    with contextlib.closing(Inbox(url, must_exist=must_exist)) as inbox:
        with inbox._database.write() as connection:
            connection.exec_driver_sql(made)
        with pytest.raises(ConfigurationError, match=TEXTS[refused]) as error:
            inbox.end()
    assert "\n" not in str(error.value)


def test_a_participant_has_not_the_name_of_an_inbox(url):
    """Their tables would be the same: the second one is refused."""
    with contextlib.closing(Inbox(url)) as inbox:
        stored = inbox.store("shop", [event("a")])
        with pytest.raises(ConfigurationError, match="of another kind, inbox"):
            TaggedRows(url, table="events").identity(None)
        assert inbox.store("shop", [event("a")]) == [stored[0]._replace(is_new=False)]


def test_a_later_release_adds_columns_beside_this_one(url, monkeypatch):
    """Both store, read and confirm on; to each it is the same inbox."""

    def with_a_note(tables: InboxTables, name: str) -> None:
        make_tables(tables, name)
        for table in (tables.head, tables.event, tables.key, tables.reader):
            table.append_column(added("0.2.0", "note", sa.Text()))

    with contextlib.closing(Inbox(url)) as first:
        first.begin("reader")
        first.store("shop", [event("a")])
        make_tables = InboxTables.__init__
        monkeypatch.setattr(InboxTables, "__init__", with_a_note)
        with contextlib.closing(Inbox(url)) as second:
            for inbox, name in ((second, "b"), (first, "c")):
                many = [event(f"{name}{n}") for n in range(MANY)]
                assert inbox.store("shop", [event(name)])[0].is_new
                assert all(one.is_new for one in inbox.store("shop", many))
            assert ids(first) == ids(second)
            assert len(ids(first)) == 1 + 2 * (MANY + 1)
            assert first.end() == second.end()
            second.confirm("reader", first.end())
            assert first.begin("reader", newest=True) == second.end()
            with second._database.read() as connection:
                inspector = sa.inspect(connection)
                for table in ("inbox", "event", "key", "reader"):
                    columns = inspector.get_columns(f"events_tpc_{table}")
                    assert columns[-1]["name"] == "note"
