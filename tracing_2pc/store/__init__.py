"""The coordinator's durable memory. All of its SQL is in this package."""

from tracing_2pc.store.log.sql_log import SqlDecisionLog, open_log

__all__ = ["SqlDecisionLog", "open_log"]
