"""Participants at a NATS server: the transport of `nats://`, client and server."""

from __future__ import annotations

from tracing_2pc.nats.server import NatsServer, serve_nats

__all__ = ["NatsServer", "serve_nats"]
