"""`tracing-2pc check`: each thing that can be wrong is found, with its cure."""

from __future__ import annotations

import json
import re
import time
from typing import Any

import grpc
import pytest
from support.branches import ONE
from support.cli import Operator
from support.kinds import prepared_transactions
from support.participant import World
from support.spark import serving
from support.texts import texts
from support.transports import OTHERS, TRANSPORTS
from support.waiting import PATIENT

from tracing_2pc.cli.check import lines
from tracing_2pc.core.settings import Settings
from tracing_2pc.grpc import GrpcServer
from tracing_2pc.http.client import HttpParticipant
from tracing_2pc.operations.check import check
from tracing_2pc.wire import reading

TEXTS = texts("component")

TOKENS = {role: f"{role}-token-0123456789" for role in ("job", "operator", "viewer")}
TOKENS["executor"] = "executor-token-0123456789"
BOUND = "bound-token-0123456789"


def checked(operator: Operator) -> tuple[int, dict[str, Any]]:
    code, (found,) = operator.json("check")
    return code, found


def problems(operator: Operator) -> list[str]:
    code, found = checked(operator)
    assert code == (1 if found["findings"] else 0)
    assert all(problem["cure"] for problem in found["findings"])
    return [f"{one['where']}: {one['why']}" for one in found["findings"]]


@pytest.fixture
def now(operator) -> Operator:
    """All clocks tell the same."""
    for clock in operator.at.clocks.values():
        clock.read = time.time
    return operator


def test_all_is_well(now):
    """Settings with their origin, the log, each participant; 0."""
    now.at.prepare("orders.5.1")
    out = now.out(0, "check")
    assert "request_timeout      default           5s" in out
    assert "participants         TPC_PARTICIPANTS  ledger=http://127.0.0.1:" in out
    assert "log                  TPC_LOG           env:TPC_LOG" in out
    assert "journal_mode  wal" in out
    assert "synchronous   full" in out
    assert out.endswith("All is well\n")
    _, found = checked(now)
    assert found["log"]["version"] == 1
    ledger = found["participants"][0]
    assert (ledger["role"], ledger["in_doubt"]) == ("anybody", 1)
    assert abs(ledger["skew"]) < 1


def test_a_participant_that_is_down(now):
    """Its address is in the cure."""
    now.reach(ledger="http://127.0.0.1:9")
    assert problems(now) == ["ledger: nothing listens at http://127.0.0.1:9"]
    said = " ".join(now.says("check")[1].split())
    assert TEXTS["mend the address"].format(url="http://127.0.0.1:9") in said


def test_variables_of_opentelemetry_that_have_no_effect(now, monkeypatch):
    """Each by its name: one that is not read, and values that nothing is there for."""
    monkeypatch.setenv("OTEL_CONFIG_FILE", "otel.yaml")
    monkeypatch.setenv("OTEL_TRACES_EXPORTER", "zipkin")
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_LOGS_EXPORTER", "otlp")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/json")
    known = "'http/json' is not one of http/protobuf, grpc"
    assert problems(now) == [
        "environment: OTEL_CONFIG_FILE has no effect",
        "environment: OTEL_TRACES_EXPORTER: 'zipkin' is not installed",
        f"environment: OTEL_EXPORTER_OTLP_PROTOCOL: {known}",
    ]


def test_two_addresses_of_one_service(now):
    """A second name for it is told, before its first batch as well as after it."""
    url = now.at.observed["ledger"].url
    now.reach(ledger=url, notifier=url.replace("127.0.0.1", "localhost"))
    assert problems(now) == [
        "notifier: the addresses of 'ledger' and 'notifier' lead to one service"
    ]
    assert TEXTS["mend the addresses"] in now.says("check")[1]


def test_an_address_of_another_participant(now):
    """What it is called by an application of this log is compared, and no other's."""
    ledger = now.at.worlds["ledger"].called("ledger")
    ledger.commit("orders.0.1")
    ledger.called("booking").commit("foreign.0.1")
    now.at.begin()
    assert problems(now) == []
    ledger_url, notifier_url = (one.url for one in now.at.observed.values())
    now.reach(ledger=notifier_url, notifier=ledger_url)
    assert problems(now) == [
        "notifier: the address of 'notifier' leads to 'ledger' of application orders"
    ]


def test_a_shifted_clock(now):
    """Which way, by how much, and why it matters."""
    now.at.clocks["ledger"].read = lambda: time.time() - 90
    (found,) = problems(now)
    assert found.startswith("ledger: its clock is 90 s behind this machine's: ages of")


def test_a_clock_that_was_set_back(now):
    """What is on record is ahead of it: nothing looks old enough to be spoken of."""
    now.at.time.time = time.time() + 7260
    now.at.begin()
    (found,) = problems(now)
    assert found.startswith("the clock: the last step of orders.7.1 is 2 h ahead of")


def test_no_log(now, monkeypatch):
    """Participants are asked all the same."""
    monkeypatch.setenv("TPC_LOG", "sqlite:///nowhere/x.db")
    (found,) = problems(now)
    assert found.startswith("log: there is no decision log at nowhere/x.db")
    assert TEXTS["for a new log only"] in now.says("check")[1]
    assert checked(now)[1]["participants"][0]["role"] == "anybody"


def test_no_participants(now, monkeypatch):
    """Nobody could be told a decision from here."""
    monkeypatch.setenv("TPC_PARTICIPANTS", "")
    assert problems(now) == [
        "settings: no participants: nobody can be told a decision from here"
    ]


def test_who_is_waited_for_and_has_no_address(now, monkeypatch):
    """Only when it lasts: a sink of the job's own has none either, and is soon told."""
    now.at.time.time = time.time()
    now.at.committing()
    only = str(getattr(now.at.observed["ledger"], "url", ""))
    monkeypatch.setenv("TPC_PARTICIPANTS", f"ledger={only}")
    assert problems(now) == []
    now.at.time.time -= 60
    now.at.committing(8)
    held_back, unread = problems(now)
    assert held_back.startswith("orders.8.1: orders is held back by ledger and notifi")
    assert unread == "notifier: it has no address here, and orders.8.1 waits for it"


def test_a_quarantine(now):
    """Its application waits for a person."""
    now.at.committing()
    now.at.log.quarantine(now.at.log.unfinished()[0].id, "for a test")
    assert problems(now) == [TEXTS["quarantined"]]


def test_secrets_are_not_shown(operator, monkeypatch):
    """Neither a password in the log's URL nor a token where a reference belongs."""
    (operator.at.folder / "tpc.toml").write_text(
        'log = "postgresql://me:s3cret@127.0.0.1:9/log"\ntoken = "s3cret"\n'
    )
    monkeypatch.delenv("TPC_LOG")
    code, out, err = operator.says("check")
    assert code == 1
    assert "s3cret" not in out + err
    assert "s3cret" not in str(checked(operator))


@pytest.fixture(
    params=["http", *(pytest.param(name, marks=pytest.mark.ci) for name in OTHERS)]
)
def guarded(request, now, tmp_path) -> Operator:
    """A ledger that wants tokens, reached by each transport."""
    file = tmp_path / "tokens"
    bound = f"viewer {BOUND} orders\n"
    of_roles = (f"{role} {token}\n" for role, token in TOKENS.items())
    file.write_text(bound + "".join(of_roles))
    ledger = now.at.worlds["ledger"]
    world = World(ledger.resource, ledger.visible, tokens=file, name="guarded")
    serve = TRANSPORTS[request.param].serve
    now.reach(ledger=now.at.stack.enter_context(serve(world.app)))
    return now


@pytest.mark.parametrize("role", ["job", "operator", "viewer"])
def test_the_role_of_a_token(guarded, monkeypatch, role):
    """Found without changing anything."""
    monkeypatch.setenv("TPC_TOKEN", TOKENS[role])
    _, found = checked(guarded)
    assert found["participants"][0]["role"] == role
    assert found["findings"] == []


def test_what_it_holds_is_shown_and_explained(guarded, monkeypatch):
    """A transaction that nobody knows is looked up at its participant."""
    monkeypatch.setenv("TPC_TOKEN", TOKENS["viewer"])
    guarded.at.prepare("orders.3.1", "ledger")
    for command in ("show", "explain"):
        _, out, err = guarded.says(command, "orders.3.1")
        assert "prepared" in out + err


def test_who_takes_part_only_is_not_called_down(now, monkeypatch):
    """Of a participant without Ask: what is not known, and that nothing mends it."""

    def ask(_: GrpcServer, call: Any) -> None:
        call.context.abort(grpc.StatusCode.UNIMPLEMENTED, "")

    monkeypatch.setattr(GrpcServer, "_ask", ask)
    world = now.at.worlds["ledger"]
    now.reach(ledger=now.at.stack.enter_context(TRANSPORTS["grpc"].serve(world.app)))
    code, found = checked(now)
    (finding,) = found["findings"]
    assert code == 1
    assert TEXTS["no Ask"] in problems(now)[0]
    assert finding["cure"].startswith("ask it by its own means")


def test_a_viewer_who_resolves_is_told_whose_token_it_takes(guarded, monkeypatch):
    """It may look, so nothing was wrong until then."""
    ledger = guarded.at.worlds["ledger"]
    guarded.at.clocks["ledger"].read = lambda: time.time() - 400
    guarded.at.prepare("bookings.3.1", "ledger")
    guarded.at.clocks["ledger"].read = time.time
    monkeypatch.setenv("TPC_TOKEN", TOKENS["viewer"])
    deed = ("--at", "ledger", "--abort", "--reason", "not ours", "--yes")
    err = guarded.err(1, "resolve", "bookings.3.1", *deed)
    assert "answered 403 to POST /resolve of bookings.3.1 at " in err
    assert TEXTS["needs an operator"].format(role="viewer", needed="operator") in err
    assert TEXTS["operator's token"] in err
    assert ledger.in_doubt() == 1


@pytest.mark.parametrize(
    ("token", "why"),
    [
        (
            "a-token-that-is-not-known",
            "answered 401 to GET /transactions at {}: this token is not known here",
        ),
        (TOKENS["executor"], "answered 403 to GET /transactions at {}: role executor"),
        ("", "the variable TPC_TOKEN is empty"),
    ],
)
def test_a_token_that_is_not_taken(guarded, monkeypatch, token, why):
    """The cure says whose token to use."""
    monkeypatch.setenv("TPC_TOKEN", token)
    found = problems(guarded)
    url = checked(guarded)[1]["participants"][0]["url"]
    assert why.format(url) in found[0]
    assert found[0].startswith("ledger: ")
    assert "set it" not in found[0]  # the cure says how
    cure = checked(guarded)[1]["findings"][0]["cure"]
    assert cure.endswith(TEXTS["operator's token"])
    column = "refused" if token else "none was sent"
    assert re.search(f"ledger +ready +{column} ", guarded.says("check")[1])


def test_a_token_that_is_bound_to_an_application(guarded, monkeypatch):
    """What others have prepared is not seen by it, and that is a problem."""
    monkeypatch.setenv("TPC_TOKEN", BOUND)
    (found,) = problems(guarded)
    assert found.startswith("ledger beyond orders: the token is bound to orders")
    out = guarded.out(1, "ls")
    assert (
        TEXTS["bound token"].format(participant="ledger", application="orders") in out
    )
    assert "beyond" not in guarded.says("ls", "--application", "orders")[1]


def test_what_is_no_participant(operator, tmp_path):
    """A page that answers everything with 200 is not taken for one."""
    from flask import Flask

    app = Flask(__name__)
    app.add_url_rule("/", defaults={"path": ""}, view_func=lambda path: "hello")
    app.add_url_rule("/<path:path>", "rest", lambda path: "hello")
    with serving(app) as url:
        found = HttpParticipant("ledger", url, None, PATIENT).describe()
    assert TEXTS["no list"] in str(found.unready)


def test_slots_for_prepared_transactions(new_database):
    """How many are in use, where the server has so many."""
    world = prepared_transactions(new_database())
    world.prepare("orders.7.1", ONE)
    with serving(world.app) as url:
        found = HttpParticipant("ledger", url, None, PATIENT).describe()
    world.resource.close()
    assert found.gauges["tpc.prepared_slots.used"] >= 1
    assert found.gauges["tpc.prepared_slots.max"] > 1


@pytest.mark.parametrize("value", ["1e999", "NaN", '"1.2"', "null", "Infinity"])
def test_a_measurement_that_is_no_number_is_not_there(value):
    """No answer of a participant ends the check, nor makes its JSON none."""
    gauges = f'{{"tpc.prepared_slots.used": {value}, "tpc.prepared_slots.max": 10}}'
    body = (
        f'{{"journal": "j", "participants": {{}}, "role": "job", "gauges": {gauges}}}'
    )
    answer = reading.read_whoami(json.loads(body))
    assert answer.gauges == {"tpc.prepared_slots.max": 10}


def test_a_log_in_postgresql(postgres_database, monkeypatch, tmp_path):
    """What keeps its commits through a crash is read from the server."""
    from tracing_2pc.store import open_log

    monkeypatch.chdir(tmp_path)
    open_log(postgres_database).close()
    found = check(Settings.load(environ={"TPC_LOG": ""}, log=postgres_database))
    assert found.log is not None
    assert found.log.durability["synchronous_commit"] == "on"
    assert found.log.durability["full_page_writes"] == "on"
    assert [str(one.about) for one in found.findings] == ["settings"]
    assert list(lines(found))[-1].startswith("1 problem: ")
