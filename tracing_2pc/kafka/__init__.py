"""Transactions that leave for Kafka after the commit: the relay of an `Outbox`."""

from __future__ import annotations

from tracing_2pc.kafka.relay import KafkaRelay

__all__ = ["KafkaRelay"]
