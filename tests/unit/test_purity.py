"""What a unit test may open: nothing, but a database in memory."""

import socket
import sqlite3

import pytest
from support.texts import texts

TEXTS = texts("unit")


def test_the_guard_is_on(request):
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
