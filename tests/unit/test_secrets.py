"""What other programs say is quoted without a secret that this process knows."""

from __future__ import annotations

import pytest

from tracing_2pc.core import settings
from tracing_2pc.core.settings import (
    read_secret,
    remember_secret,
    without_secrets,
)
from tracing_2pc.protocol.decisions import in_a_line
from tracing_2pc.store.engines.database import describe_error

SECRET = "3f0c8f6f0b5a4a0f"


@pytest.fixture(autouse=True)
def _forget(monkeypatch):
    monkeypatch.setattr(settings, "_remembered", {})


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("TPC_TOKEN", SECRET, SECRET),
        ("NPM_TOKEN", SECRET, f"//registry/:_authToken={SECRET}"),
        ("DB_PASSWORD", "a b/ö", "postgresql://tpc:a%20b%2F%C3%B6@db/x"),
        ("TPC_LOG", f"postgresql://tpc:{SECRET}@db/x", f"wrong password {SECRET}"),
        ("TPC_LOG", "postgresql://tpc:p%40ss%2Fword@db", "wrong password p@ss/word"),
        ("TPC_LOG", f"postgresql://db/x?password={SECRET}", SECRET),
        ("DEPLOY_PRIVATE_KEY", f"-----BEGIN KEY-----\n{SECRET}\n--", SECRET),
        ("OTEL_EXPORTER_OTLP_HEADERS", f"api-key={SECRET}", SECRET),
        ("NATS_SERVERS", f"nats://one:4222,nats://tpc:{SECRET}@two:4222", SECRET),
    ],
)
def test_a_secret_of_the_environment_is_cut(monkeypatch, name, value, said):
    """However it is written there."""
    monkeypatch.setenv(name, value)
    shown = without_secrets(f"it said: {said}.")
    assert shown.startswith("it said: ")
    assert not any(part in shown for part in (SECRET, "ss/word", "%C3", "a b/ö"))


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("TPC_TOKENS_FILE", "/etc/tpc/tokens"),
        ("GOOGLE_APPLICATION_CREDENTIALS", __file__),
        ("TPC_NATS_CREDENTIALS", "env:THERE"),
        ("TPC_LOG", "sqlite:////var/tpc/log.db"),
        ("X_TOKEN", "1"),
        ("HOME", "/home/somebody"),
        ("MAX_TOKENS", "100000"),
        ("IMAGE", "oci://registry:5000/team/app@sha256"),
    ],
)
def test_what_is_no_secret_is_shown(monkeypatch, name, value):
    """A path, a reference, an address without a password: a message names them."""
    monkeypatch.setenv(name, value)
    assert without_secrets(f"no {value} here") == f"no {value} here"


def test_a_secret_that_was_read_is_cut(tmp_path):
    """From a file, too; and of a URL only its password."""
    (tmp_path / "token").write_text(f"{SECRET}\n")
    (tmp_path / "log").write_text("postgresql://tpc:hunter22@db/x")
    read_secret(f"file:{tmp_path}/token", "token")
    read_secret(f"file:{tmp_path}/log", "log")
    assert without_secrets(f"{SECRET} hunter22 db/x") == "*** *** db/x"


def test_a_short_secret_is_no_part_of_a_word(monkeypatch):
    """A message that has the word goes on being read."""
    monkeypatch.setenv("TPC_LOG", "postgresql://tpc:postgres@db/x")
    assert without_secrets("postgresql: postgres wrong") == "postgresql: *** wrong"


def test_what_is_lent_for_minutes_makes_nothing_forgotten(monkeypatch):
    """A registry gives another token each time; what was read once stays known."""
    monkeypatch.setattr(settings, "_lent", {})
    remember_secret(SECRET)
    tokens = [f"token-{number}" for number in range(1_000)]
    for token in tokens:
        remember_secret(token, is_lent=True)
    assert without_secrets(f"{SECRET} {tokens[-1]}") == "*** ***"


class OperationalError(Exception):
    """As drivers call it."""


@pytest.mark.parametrize(
    "quote", [in_a_line, lambda said: describe_error(OperationalError(said))]
)
def test_a_secret_is_cut_before_the_text_is(monkeypatch, quote):
    """Where the text would end in the middle of it, nothing of it is left."""
    monkeypatch.setenv("TPC_TOKEN", SECRET)
    for length in range(250, 520):
        assert SECRET[:5] not in quote("x" * length + SECRET + "y" * 100)
