"""`tracing-2pc serve`: what stands in its way is said in one line, before it serves."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest

from tracing_2pc.cli import main

TABLE = "sqlite:///ledger.db?table=orders"


@pytest.fixture(autouse=True)
def _settings(tmp_path, monkeypatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])  # it looks for modules here
    Path("tokens").write_text("job 0123456789abcdef\n")
    monkeypatch.setenv("TPC_PARTICIPANTS", f"ledger={TABLE},search=http://search:8080")
    monkeypatch.setenv("TPC_TOKENS_FILE", "tokens")


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    """Run it; return the one line that it ends with."""
    assert main(["serve", *words]) == 2
    out, err = capsys.readouterr()
    assert (out, err.count("\n")) == ("", 1)
    return err


@pytest.mark.parametrize(
    ("words", "line"),
    [
        (("index",), "no participant 'index' in the settings; they have: ledger, sea"),
        (("search",), "'search': http://search:8080 is the URL of a service"),
        (("ledger", "--listen", "8081"), "--listen 8081: expected address:port"),
        (("ledger", "--nats", "nats://a/ledger", "--listen", "[::1]:1"), "--nats"),
        (("ledger", "--nats", "http://a/ledger"), "expected nats://"),
        (("ledger", "--tls", "no.pem", "no.key"), "no.key: No such file"),
        (("ledger", "--grpc", "--tls", "no.pem", "no.key"), "no.key: No such file"),
    ],
)
def test_a_wrong_call_is_one_line(capsys, words, line):
    """With what to do."""
    assert line in said(capsys, *words)


@pytest.mark.parametrize(
    ("address", "line"),
    [
        ("sqlite:///ledger.db?tabel=orders", "'ledger': unknown option 'tabel'"),
        ("python:nowhere:rows", "'ledger': python:nowhere:rows cannot be imported"),
        ("kafka://broker/totals", "'ledger': add ?outbox="),
    ],
)
def test_a_wrong_address_is_one_line(capsys, monkeypatch, address, line):
    """With the participant's name."""
    monkeypatch.setenv("TPC_PARTICIPANTS", f"ledger={address}")
    assert line in said(capsys, "ledger", "--grpc")


def test_tokens_are_needed(capsys, monkeypatch):
    """None are named, or their file is not there."""
    Path("tokens").unlink()
    assert "tokens: No such file or directory" in said(capsys, "ledger")
    monkeypatch.delenv("TPC_TOKENS_FILE")
    assert "tokens_file (TPC_TOKENS_FILE)" in said(capsys, "ledger")


@pytest.mark.parametrize("words", [(), ("--grpc",)])
def test_a_port_in_use_is_one_line(capsys, words):
    """At once, by HTTP and by gRPC."""
    with socket.create_server(("127.0.0.1", 0)) as held:
        place = f"127.0.0.1:{held.getsockname()[1]}"
        assert f"--listen {place}: " in said(
            capsys, "ledger", "--listen", place, *words
        )


def test_an_extra_that_is_missing_is_named(capsys, monkeypatch):
    """gunicorn's; those of other transports have a test of all commands."""
    monkeypatch.delitem(sys.modules, "tracing_2pc.http.gunicorn_app", raising=False)
    monkeypatch.setitem(sys.modules, "gunicorn.app.base", None)
    line = said(capsys, "ledger")
    assert "`tracing-2pc serve` needs gunicorn" in line
    assert "pip install 'tracing-2pc[participant]'" in line
