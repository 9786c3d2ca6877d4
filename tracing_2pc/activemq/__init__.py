"""Queues of ActiveMQ Classic: the relay of an `Outbox`, and a way into an inbox."""

from __future__ import annotations

from tracing_2pc.activemq.intake import ActiveMQIntake
from tracing_2pc.activemq.relay import ActiveMQRelay

__all__ = ["ActiveMQIntake", "ActiveMQRelay"]
