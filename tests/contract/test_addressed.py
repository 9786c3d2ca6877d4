"""A request says which participant it is meant for, and reaches no other."""

from __future__ import annotations

import contextlib
import io
from collections.abc import Callable, Iterator
from typing import Any

import pytest
from support.branches import ONE
from support.kinds import sqlite_url, started, tagged_rows, variant
from support.participant import World, keep
from support.spark import serving
from support.texts import texts
from support.waiting import PATIENT

from tracing_2pc import ParticipantSink
from tracing_2pc.core.content import digest_of
from tracing_2pc.core.errors import (
    ConfigurationError,
    ParticipantRefusedError,
    ParticipantUnavailableError,
)
from tracing_2pc.core.model import BranchId, TransactionId, TransactionRecord
from tracing_2pc.core.states import Decision, Refusal, TransactionState
from tracing_2pc.http.client import HttpParticipant

TEXTS = texts("contract")
T = "orders.7.1"


@pytest.fixture(params=[variant("TaggedRows", d) for d in ("sqlite", "postgresql")])
def made(request, tmp_path) -> Iterator[tuple[World, str, str]]:
    """One kind on each database: the journal keeps the names, whatever the kind."""
    yield from started(request, tmp_path)


REQUESTS: dict[str, Callable[[World], Any]] = {
    "prepare": lambda world: world.prepare(T, ONE),
    "prepare later": lambda world: world.prepare("orders.8.1", ONE),
    "commit": lambda world: world.commit(T, ONE),
    "commit empty": lambda world: world.commit(T),
    "commit later": lambda world: world.commit("orders.8.1", forgotten_through=7),
    "abort": lambda world: world.abort(T),
    "abort branch": lambda world: world.abort(T, branch=ONE.branch),
    "abort later": lambda world: world.abort("orders.8.1", forgotten_through=7),
    "resolve": lambda world: world.resolve(T, "abort"),
    "look up": lambda world: world.show(T),
}


@pytest.mark.parametrize("asked", REQUESTS)
def test_a_request_for_another_participant_is_refused(world, asked):
    """An address that leads to the wrong service changes nothing there.

    It is 421, which is no answer of the transaction's: a decision is sent again, until
    the address is mended.
    """
    assert world.prepare(T).status_code == 200
    answer = REQUESTS[asked](world.called("ledger"))
    body = answer.get_json()
    assert answer.status_code == 421
    assert body["transaction_id"] in {T, "orders.8.1"}
    assert "state" not in body
    assert TEXTS["of another application"] in body["detail"]
    assert "'ledger'" in body["detail"]
    assert world.listed() == [(T, "0.1", "prepared")]
    assert world.show("orders.8.1").status_code == 404
    assert world.commit(T, ONE).status_code == 200
    assert world.visible() == 3
    assert REQUESTS[asked](world.called("ledger")).status_code == 421
    assert world.show(T).get_json()["state"] == "committed"


@pytest.mark.parametrize("asked", REQUESTS)
def test_a_request_for_another_journal_is_refused(world, asked):
    """Two databases have one name: only the id of a journal tells them apart.

    Also where the application has nothing here. A request for this one is obeyed.
    """
    here = world.client.get("/whoami").get_json()["journal"]
    answer = REQUESTS[asked](world.meant("another"))
    body = answer.get_json()
    assert (answer.status_code, "state" in body) == (421, False)
    assert body["transaction_id"] in {T, "orders.8.1"}
    assert TEXTS["of another journal"].format(journal=here) in body["detail"]
    assert (world.listed(), world.show(T).status_code) == ([], 404)
    assert world.meant(here).prepare(T).status_code == 200
    assert REQUESTS[asked](world.meant("another")).status_code == 421
    assert world.listed() == [(T, "0.1", "prepared")]
    assert world.meant(here).commit(T, ONE).status_code == 200
    assert world.visible() == 3


@pytest.mark.parametrize("journal", ["", "a b", "x" * 65, "a,b"])
def test_a_journal_that_is_no_id_is_malformed(world, journal):
    """It could be taken for any."""
    assert world.meant(journal).prepare(T).status_code == 400
    assert world.listed() == []


def test_an_application_that_holds_nothing_may_be_named_anew(world):
    """Addresses that were swapped in the first try are mended in the second."""
    first, second = world.called("ledger"), world.called("notifier")
    assert first.prepare("orders.0.1").status_code == 200
    assert first.abort("orders.0.1").status_code == 200
    assert second.prepare("orders.0.2").status_code == 200
    assert first.prepare("orders.0.2").status_code == 421
    assert second.commit("orders.0.2", ONE).status_code == 200
    assert first.commit("orders.1.1").status_code == 421
    assert second.commit("orders.1.1", forgotten_through=0).status_code == 200
    assert first.abort("orders.2.1").status_code == 421


def test_the_name_outlives_what_is_forgotten(world):
    """Below forgotten_through nothing is kept but who it was."""
    assert world.commit("orders.0.1").status_code == 200
    assert world.commit("orders.9.1", forgotten_through=8).status_code == 200
    assert world.called("ledger").commit("orders.10.1").status_code == 421


@pytest.mark.parametrize("name", [None, "", "a b", "1st", "x" * 41, "a,b"])
def test_a_request_without_a_name_is_malformed(world, name):
    """It could be meant for anybody."""
    nobody = world.called(name)
    answers = (nobody.prepare(T), nobody.commit(T), nobody.abort(T))
    for answer in (*answers, nobody.resolve(T, "abort")):
        assert answer.status_code == 400
        assert "Tpc-Participant" in answer.get_json()["detail"]
    assert world.listed() == []


@pytest.fixture
def urls(tmp_path) -> Iterator[dict[str, str]]:
    """Two services, by the name that application orders has for each."""
    with contextlib.ExitStack() as stack:
        found = {}
        for name in ("ledger", "notifier"):
            (tmp_path / name).mkdir()
            made = tagged_rows(sqlite_url(tmp_path / name))
            stack.callback(made.resource.close)
            assert made.called(name).commit("orders.0.1").status_code == 200
            found[name] = stack.enter_context(serving(made.app))
        yield found


def test_a_job_is_told_at_its_start(urls):
    """Before its first batch, if an address leads to another participant."""
    right, swapped = dict(urls), dict(zip(urls, reversed(urls.values()), strict=True))
    alias = urls["ledger"].replace("127.0.0.1", "localhost")
    ParticipantSink(right, token=None).check("orders")
    ParticipantSink(swapped, token=None).check("sales")
    with pytest.raises(ConfigurationError) as raised:
        ParticipantSink(swapped, token=None).check("orders")
    assert TEXTS["an address belongs to another"] in str(raised)
    with pytest.raises(ConfigurationError, match=TEXTS["one service twice"]):
        ParticipantSink({"a": urls["ledger"], "b": alias}, token=None).check("sales")


def test_a_job_starts_while_a_service_is_down(urls):
    """Who does not answer yet is not waited for."""
    down = {"ledger": urls["ledger"], "notifier": "http://127.0.0.1:9"}
    ParticipantSink(down, token=None).check("orders")


def test_a_decision_for_another_participant_is_kept(urls):
    """Neither obeyed nor contradicted: it is sent again when the address is mended."""
    swapped = HttpParticipant("ledger", urls["notifier"], None, PATIENT)
    decided = TransactionRecord(
        TransactionId("orders", 0, 1),
        "run",
        TransactionState.COMMITTING,
        Decision.COMMIT,
        ("ledger",),
        frozenset(),
        {},
        0.0,
    )
    with pytest.raises(ParticipantUnavailableError) as raised:
        swapped.commit(decided)
    assert raised.value.refusal is Refusal.MISDIRECTED
    assert TEXTS["the address is wrong"] in str(raised.value)
    with pytest.raises(ParticipantUnavailableError, match=TEXTS["not this one"]):
        swapped.show(decided.id)
    digest = digest_of(ONE.body)
    with pytest.raises(ParticipantRefusedError, match=TEXTS["nobody voted"]):
        swapped.prepare(
            TransactionId("orders", 1, 1),
            BranchId(0, 1),
            lambda: io.BytesIO(ONE.body),
            rows=3,
            length=len(ONE.body),
            digest=digest,
        )
    HttpParticipant("ledger", urls["ledger"], None, PATIENT).commit(decided)


def test_who_it_is(world):
    """`GET /whoami` tells two services apart, and how each application calls them."""
    before = world.client.get("/whoami").get_json()
    assert before["participants"] == {}
    assert world.prepare(T).status_code == 200
    other = world.called("ledger")
    keep(other, "sales.7.1", ONE)
    after = world.client.get("/whoami").get_json()
    assert after["journal"] == before["journal"]
    assert len(after["journal"]) == 32
    assert after["participants"] == {"orders": "participant", "sales": "ledger"}
    assert all(type(value) in (int, float) for value in after["gauges"].values())
    assert after["gauges"].keys() == world.resource.gauges().keys()


def test_no_column_is_looked_for_that_this_release_does_not_add(world, monkeypatch):
    """`GET /whoami` of a watcher opens no read for it, each time."""
    opened: list[object] = []
    monkeypatch.setattr(world.resource, "_reading", lambda: opened.append(0))
    assert list(world.resource.unfit()) == opened == []


def test_another_journal_is_another(tmp_path):
    """Two resources in one database are two participants."""
    from tracing_2pc.participant import TaggedRows

    names = set()
    for table in ("orders", "sales"):
        made = World(TaggedRows(sqlite_url(tmp_path), table), lambda: 0)
        names.add(made.client.get("/whoami").get_json()["journal"])
        made.resource.close()
    assert len(names) == 2
