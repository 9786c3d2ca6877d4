"""Settings of clients that cannot be used: found when a process starts, not later."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from flask import Flask
from support.kinds import sqlite_url

from tracing_2pc.activemq import ActiveMQIntake, ActiveMQRelay
from tracing_2pc.activemq.connection import BrokerError
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.grpc import server
from tracing_2pc.http.server import participant_blueprint
from tracing_2pc.kafka import KafkaRelay
from tracing_2pc.kafka.schemas import Avro
from tracing_2pc.nats.server import NatsServer
from tracing_2pc.outbox import Outbox

SCHEMA = '{"type": "record", "name": "Order", "fields": []}'
REGISTRY = "http://127.0.0.1:1"


def kafka(**settings: str) -> KafkaRelay:
    settings = {name.replace("_", "."): value for name, value in settings.items()}
    return KafkaRelay("127.0.0.1:1", topic="totals", settings=settings)


def registry(options: Any = None, **settings: str | bool) -> KafkaRelay:
    named = {name.replace("_", "."): value for name, value in settings.items()}
    value = Avro(SCHEMA, REGISTRY, settings=named, options=options)
    return KafkaRelay("127.0.0.1:1", topic="totals", value=value)


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: kafka(securty_protocol="ssl"), "securty.protocol"),
        (lambda: kafka(security_protocol="SSSL"), "security.protocol"),
        (lambda: kafka(ssl_ca_location="/missing.pem"), "/missing.pem"),
        (lambda: kafka(ssl_key_pem="env:SECRET", security_protocol="ssl"), "ssl.key"),
        (lambda: kafka(sasl_password="env:MISSING"), "MISSING"),
        (lambda: registry(basic_auth_usr="ada"), "basic.auth.usr"),
        (lambda: registry(basic_auth_user_info="env:MISSING"), "MISSING"),
        (lambda: registry(ssl_ca_location="/missing.pem"), "/missing.pem"),
        (lambda: registry({"auto.register": False}), "auto.register"),
        (lambda: registry({"use.latest.version": True}), "use.latest.version"),
        (lambda: ActiveMQRelay("a:1", queue="q", ca="/missing.pem"), "/missing.pem"),
        (lambda: ActiveMQRelay("a:1", queue="q", ca=__file__), __file__),
        (lambda: ActiveMQRelay("a:1", queue="q", password="env:MISSING"), "MISSING"),
    ],
)
def test_a_relay_whose_settings_cannot_be_used_does_not_start(
    tmp_path, monkeypatch, make, named
):
    """One error in one line names the setting, before anything is prepared."""
    monkeypatch.setenv("SECRET", "hush")
    outbox = Outbox(sqlite_url(tmp_path), make())
    with pytest.raises(ConfigurationError) as raised:
        Flask("totals").register_blueprint(participant_blueprint(outbox, insecure=True))
    assert named in str(raised.value)
    assert "\n" not in str(raised.value)
    assert "hush" not in str(raised.value)


def test_a_partner_that_is_none_is_refused(tmp_path):
    """It says what a relay of one's own lacks."""

    class Mine:
        publish = KafkaRelay.publish

    with pytest.raises(ConfigurationError, match=r"Mine is neither .*take_over"):
        Outbox(sqlite_url(tmp_path), Mine())  # type: ignore[arg-type]


def test_a_token_that_another_process_had_meanwhile_is_waited_for_again(monkeypatch):
    """ActiveMQ hides a token for moments: what was missed long ago says nothing now."""
    now = 0.0
    monkeypatch.setattr("time.monotonic", lambda: now)
    relay = ActiveMQRelay("a:1", queue="q")
    with pytest.raises(BrokerError):
        relay._miss()
    relay.let_go()
    now = 3_600.0
    with pytest.raises(BrokerError):
        relay._miss()
    now = 7_200.0
    relay._miss()


def test_settings_that_can_be_used_need_no_broker(tmp_path, monkeypatch):
    """A broker that is down holds up no start."""
    monkeypatch.setenv("SECRET", "ada:hush")
    made = registry(basic_auth_user_info="env:SECRET")
    Outbox(sqlite_url(tmp_path), made).open()


@pytest.mark.parametrize("verifies", [True, False])
def test_a_registrys_certificate_may_be_verified_without_a_file(tmp_path, verifies):
    """The registry's client takes a bool there, too."""
    made = registry(ssl_ca_location=verifies)
    Outbox(sqlite_url(tmp_path), made).open()


def test_how_soon_a_topic_is_looked_at_again_is_a_setting(tmp_path):
    """Whether a producer makes topics is none."""
    made = kafka(topic_metadata_refresh_interval_ms="60000")
    Outbox(sqlite_url(tmp_path), made).open()
    with pytest.raises(ConfigurationError, match=r"allow\.auto\.create\.topics"):
        kafka(allow_auto_create_topics="true")


def test_an_intake_whose_certificates_are_missing_does_not_start():
    """It would connect again and again, and say each time that no broker answers."""
    intake = ActiveMQIntake(Any, "127.0.0.1:1", "orders", ca="/missing.pem")
    with pytest.raises(ConfigurationError, match=r"/missing\.pem"):
        intake.run()


def test_a_server_whose_credentials_are_missing_does_not_start(tmp_path, monkeypatch):
    """It would connect again and again."""
    monkeypatch.setenv("TPC_NATS_CREDENTIALS", "env:MISSING")
    tokens = tmp_path / "tokens"
    tokens.write_text(f"job {'a' * 64}\n")
    app = Flask("totals")
    outbox = Outbox(sqlite_url(tmp_path), kafka())
    app.register_blueprint(participant_blueprint(outbox, tokens=str(tokens)))
    with pytest.raises(ConfigurationError, match="MISSING"):
        NatsServer(app, "nats://127.0.0.1:1/totals")


@pytest.mark.parametrize("text", ["", "no certificate"])
def test_a_certificate_that_is_none_is_refused(tmp_path: Path, text: str) -> None:
    """It says that, and not that the server cannot listen there."""
    file = tmp_path / "certificate.pem"
    if text:
        file.write_text(text)
    make: Callable[..., Any] = server.GrpcServer
    with pytest.raises(ConfigurationError, match="certificate"):
        make(Flask("totals"), "127.0.0.1:0", certificate=str(file), key=str(file))
