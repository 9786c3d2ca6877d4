"""`tracing-2pc outbox`: what it lists, asks, does and says."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from support.branches import ONE, records
from support.cli import Operator, on_a_terminal
from support.kinds import SAID, refusing_outbox, sqlite_url
from support.metrics import assert_of_the_registry
from support.participant import World, end, keep, outgoing_of, select
from support.relay import Topic, TopicRelay, publisher, relay_world
from support.spark import serving
from support.texts import texts
from support.waiting import PATIENT

from tracing_2pc.core import names
from tracing_2pc.operations.actions.outbox import EFFECTS
from tracing_2pc.outbox.relay import Position

TEXTS = texts("component")

KEY = "orders.7.1.0.1.0"
WHY = ("--reason", "the card was valid", "--yes")


def refused(folder: Path, name: str, *texts: str) -> World:
    """Make an outbox that never sends, with what its partner refused."""
    return refusing_outbox(sqlite_url(folder, name), records(text=list(texts)), name)


@pytest.fixture
def mailer(operator, tmp_path) -> Iterator[World]:
    """An outbox beside the site's participants, with two refused requests."""
    world = refused(tmp_path, "mailer", "\x1b[31mred", "b" * 3_000)
    with serving(world.app) as url:
        operator.reach(mailer=url)
        yield world
    end(world.resource)


def listed(operator: Operator, *words: str) -> list[dict[str, Any]]:
    _, found = operator.json("outbox", "ls", *words)
    return [item for item in found if item["kind"] == "request"]


def test_it_lists_what_waits_for_a_person(operator, mailer):
    """Of each outbox, and of no other participant; 1 while there is something."""
    code, out, _ = operator.says("outbox", "ls")
    head, first, second, counts = out.splitlines()
    columns = "REQUEST PARTICIPANT STATUS AGE AGAIN ANSWER BODY"
    assert head.split() == columns.split()
    assert first.split()[:3] == [KEY, "mailer", "422"]
    assert '{"error": "no such card"}  {"text"' in first
    assert "\x1b" not in out
    assert second.endswith("…")
    assert (code, counts) == (1, "2 refused requests")
    (item, *_) = listed(operator, "--limit", "1")
    assert (item["key"], item["participant"], item["application"], item["again"]) == (
        *(KEY, "mailer", "orders"),
        0,
    )
    assert item["answer"] == SAID
    assert operator.json("outbox", "ls", "--limit", "1")[1][-1]["more"] is True
    assert listed(operator, "--application", "bills") == []
    assert operator.says("outbox", "ls", "--application", "bills")[0] == 0
    out = operator.out(0, "outbox", "ls", "--participant", "ledger")
    assert out == "no participant has an outbox\n"


def test_again(operator, mailer, monkeypatch):
    """Back in its queue, and repeated it says the same; the log is not needed."""
    monkeypatch.setenv("TPC_LOG", "")
    for _ in range(2):
        code, out, _ = operator.says("outbox", "again", KEY, "--yes")
        line = f"request {KEY} at mailer waits in its queue, and will be sent again\n"
        assert (code, out) == (0, line)
    assert mailer.visible() == 1
    sql = "SELECT key, action, reason FROM outbox_tpc_by_hand"
    assert select(mailer.resource, sql) == [(KEY, "again", "")]
    (who,) = select(mailer.resource, "SELECT who FROM outbox_tpc_by_hand")
    assert "@" in who[0]
    queue = outgoing_of(mailer)
    queue.confirmed(queue.next("orders")[0])
    err = operator.err(1, "outbox", "drop", KEY, *WHY)
    assert TEXTS["sent again by a person"] in err
    _, (item,) = operator.json("outbox", "again", KEY, "--yes")
    assert item == {"key": KEY, "participant": "mailer", "state": "sent"}


def test_again_all(operator, mailer):
    """All that one partner refused, in one order; repeated, nothing is left of it."""
    words = ("outbox", "again-all", "--participant", "mailer", "--yes")
    _, (item,) = operator.json(*words, "--application", "bills")
    assert item["requests"] == []
    _, (item,) = operator.json(*words, "--transaction", "orders.9.1")
    assert item["requests"] == []
    code, out, _ = operator.says(*words)
    assert (code, out) == (0, "2 requests at mailer wait to be sent again\n")
    assert mailer.visible() == 2
    assert listed(operator) == []
    rows = select(mailer.resource, "SELECT action FROM outbox_tpc_by_hand")
    assert [row[0] for row in rows] == ["again", "again"]
    code, out, _ = operator.says(*words)
    assert (code, out) == (0, "0 requests at mailer wait to be sent again\n")
    assert "no participant 'x'" in operator.err(2, *words[:3], "x", "--yes")


def test_what_a_person_does_by_a_command_is_traced(mailer, tmp_path):
    """Where the environment asks for spans."""
    with serving(mailer.app) as url:
        code, shown = on_a_terminal(
            *("outbox", "again-all", "--participant", "mailer", "--yes"),
            typed="",
            TPC_PARTICIPANTS=f"mailer={url}",
            TPC_TOKEN="a-token-of-anna",
            TPC_TRACE_FILE=str(tmp_path / "spans"),
        )
    assert code == 0, shown
    assert "POST /outbox/again" in (tmp_path / "spans").read_text()


def test_drop(operator, mailer):
    """It leaves the list, is listed as dropped, and is not sent again."""
    for _ in range(2):
        code, out, _ = operator.says("outbox", "drop", KEY, *WHY)
        line = "is dropped: it stays on record, and is not sent"
        assert (code, out) == (0, f"request {KEY} at mailer {line}\n")
    assert [item["key"] for item in listed(operator)] == ["orders.7.1.0.1.1"]
    (item,) = listed(operator, "--dropped")
    assert (item["key"], item["reason"]) == (KEY, "the card was valid")
    code, out, _ = operator.says("outbox", "ls", "--dropped")
    assert (code, out.splitlines()[-1]) == (0, "1 dropped request")
    assert out.splitlines()[1].endswith("the card was valid")
    assert operator.says("outbox", "again", KEY, "--yes")[0] == 1


def test_what_cannot_be_done_is_one_line(operator, mailer):
    """An unknown key, a wrong one, no reason, no such participant, nobody to ask; and
    settings that are not there, named on either side of the action.
    """
    unknown = "orders.9.1.0.1.0"
    for words, code, says in (
        (("again", unknown, "--yes"), 1, f"no request {unknown} is in quarantine here"),
        (("again", "orders.9", "--yes"), 2, "expected <application>.<batch>"),
        (("again", "orders.9.1", "--yes"), 2, "no relay waits at transaction orders.9"),
        (("drop", KEY, "--reason", " ", "--yes"), 2, "say why"),
        (("again", KEY, "--participant", "x", "--yes"), 2, "no participant 'x'"),
        (("again", KEY, "--participant", "ledger", "--yes"), 2, "ledger has no outbox"),
        (("again", KEY), 2, "there is no terminal to ask on"),
        (("ls", "--config", "no.toml"), 2, "no.toml: No such file"),
        (("--config", "no.toml", "ls"), 2, "no.toml: No such file"),
    ):
        got, out, err = operator.says("outbox", *words)
        assert (got, out, err.count("\n")) == (code, "", 1)
        assert says in err
    assert len(listed(operator)) == 2
    with pytest.raises(SystemExit):
        operator.says("outbox", "drop", KEY)


def test_two_outboxes_of_one_application(operator, mailer, tmp_path):
    """Their keys are the same: a person says which is meant."""
    other = refused(tmp_path, "texter", "a")
    with serving(other.app) as url, serving(mailer.app) as first:
        operator.reach(mailer=first, texter=url)
        err = operator.err(2, "outbox", "again", KEY, "--yes")
        assert TEXTS["two outboxes"].format(names="mailer and texter") in err
        words = ("again", KEY, "--participant", "texter", "--yes")
        assert operator.says("outbox", *words)[0] == 0
        assert (mailer.visible(), other.visible()) == (0, 1)
    end(other.resource)


def test_an_order_that_is_repeated_does_not_act_elsewhere(operator, mailer, tmp_path):
    """Neither where the same request waits at another outbox, nor while one is down;
    only sending again, which loses nothing, asks for no name of who may have none.
    """
    other = refused(tmp_path, "texter", "a")
    with serving(other.app) as url, serving(mailer.app) as first:
        operator.reach(mailer=first, texter="http://127.0.0.1:9")
        code, _, err = operator.says("outbox", "drop", KEY, *WHY)
        assert (code, mailer.visible()) == (2, 0)
        assert TEXTS["may be elsewhere"].format(one="mailer", other="texter") in err
        second = KEY.removesuffix("0") + "1"
        assert operator.says("outbox", "again", second, "--yes")[::2] == (0, "")
        operator.reach(mailer=first, texter=url)
        words = ("outbox", "drop", KEY, *WHY, "--participant", "mailer")
        assert operator.says(*words)[::2] == (0, "")
        err = operator.err(2, "outbox", "drop", KEY, *WHY)
        assert TEXTS["dropped elsewhere"].format(one="texter", other="mailer") in err
    end(other.resource)


def test_one_that_is_down_hides_no_other(operator, mailer):
    """The rest is listed, and it is said who did not answer; 1."""
    operator.reach(ledger="http://127.0.0.1:9")
    out = operator.out(1, "outbox", "ls", "--application", "bills")
    assert "ledger: nothing listens at" in out


def test_a_person_is_shown_it_and_asked(operator, mailer):
    """Nothing is done unless the row's number is typed, or yes; y, where it is safe."""
    with serving(mailer.app) as url:
        where = {"TPC_PARTICIPANTS": f"mailer={url}", "TPC_TOKEN": "a-token-of-anna"}
        words = ("outbox", "drop", KEY, "--reason", "no")
        code, shown = on_a_terminal(*words, typed="1", **where)
        assert code == 1
        assert TEXTS["not done"] in shown
        assert '"text"' in shown
        assert TEXTS["never sent"] in shown
        assert on_a_terminal(*words, typed="y", **where)[0] == 1
        assert on_a_terminal(*words, typed="0", **where)[0] == 0
        other = KEY.removesuffix("0") + "1"
        assert on_a_terminal("outbox", "again", other, typed="y", **where)[0] == 0
    rows = select(mailer.resource, "SELECT action FROM outbox_tpc_by_hand")
    assert [row[0] for row in rows] == ["drop", "again"]


def test_a_relay_that_has_stopped_goes_on_from_a_transaction(
    operator: Operator, tmp_path: Path
) -> None:
    """A person names whole transactions: which of them are in the topic."""
    topic = Topic()
    world = relay_world(sqlite_url(tmp_path, "topic"), topic)
    world.name = "topic"
    for number in (1, 2, 3):
        keep(world, f"orders.{number}.1", ONE)
    topic.position = Position(9, "orders.1.1", "of another store")
    topic.unfit = [("its topic has one replica", "give it 3 replicas")]
    relay = publisher(world, TopicRelay(topic), PATIENT)
    relay.turn()
    with serving(world.app) as url:
        operator.reach(topic=url)
        out = operator.out(1, "outbox", "ls", "--participant", "topic")
        assert out.count(" stopped ") == 3
        out = operator.out(1, "check")
        for said in topic.unfit[0]:
            assert said in out
        for word, which in (("send", "orders.9.1"), ("again", "orders.1.1")):
            assert which in operator.err(2, "outbox", word, which, "--yes")
        out = operator.out(0, "outbox", "sent", "orders.2.1", *WHY)
        assert out == "transaction orders.2.1 at topic counts as published\n"
        assert operator.says("outbox", "ls", "--participant", "topic")[0] == 0
    assert_of_the_registry(world.client.get("/metrics").text)
    words = {word for effects in EFFECTS.values() for word in effects}
    assert words <= {*names.LABELS["action"]}
    while relay.turn() == 0.0:
        pass
    assert topic.transactions() == ["orders.3.1"]
    end(world.resource)
