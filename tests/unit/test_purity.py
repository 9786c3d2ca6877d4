"""What a unit test may open: nothing, but a database in memory."""

from __future__ import annotations

import socket
import sqlite3

import pytest
from support.purity import opened_by
from support.texts import texts

TEXTS = texts("unit")


@pytest.mark.parametrize(
    ("event", "arguments", "what"),
    [
        ("socket.bind", (None, ("127.0.0.1", 0)), "a server"),
        ("socket.connect", (None, ("127.0.0.1", 1)), "a connection"),
        ("subprocess.Popen", ("true", ["true"], None, None), "a process"),
        ("os.fork", (), "a process"),
        ("sqlite3.connect", ("log.db",), "a database file"),
        ("sqlite3.connect", (":memory:",), None),
        ("open", ("README.md", "r", 0), None),
    ],
)
def test_what_is_opened(event: str, arguments: tuple[object, ...], what: str) -> None:
    assert opened_by(event, arguments) == what


def test_the_guard_is_on(request: pytest.FixtureRequest) -> None:
    """This test would fail at its end, if it did not forget what it has tried."""
    sqlite3.connect(":memory:").close()
    with (
        socket.socket() as server,
        pytest.raises(RuntimeError, match=TEXTS["move it out"]),
    ):
        server.bind(("127.0.0.1", 0))
    running = request.config.pluginmanager.get_plugin("support.purity")._running
    assert running == [request.node.nodeid, "a server"]
    running.pop()
