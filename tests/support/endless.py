"""Answers that never end, for clients that must give them up."""

from __future__ import annotations

import contextlib

from support.served import StandIn
from support.waiting import PAUSE

HEAD = b"HTTP/1.1 200 OK\r\nX-Long: "
BODY = b"HTTP/1.1 200 OK\r\nContent-Length: 999999999\r\n\r\n"
"""How an answer begins; what follows has no end."""


def drip(handler: StandIn, beginning: bytes) -> bool:
    """Go on by a byte now and then, until nobody reads on."""
    with contextlib.suppress(ConnectionError):
        handler.wfile.write(beginning)
        handler.connection.settimeout(PAUSE)
        while True:
            handler.wfile.write(b" ")
            with contextlib.suppress(TimeoutError):
                if not handler.connection.recv(1):
                    break
    return True


def flood(handler: StandIn, beginning: bytes) -> bool:
    """Go on as fast as can be, until nobody reads on."""
    with contextlib.suppress(ConnectionError):
        handler.wfile.write(beginning)
        while True:
            handler.wfile.write(b" " * (1 << 16))
    return True
