"""The coordinator's durable memory."""

from tracing_2pc.store.log.database import open_log
from tracing_2pc.store.log.decision_log import SqlDecisionLog

__all__ = ["SqlDecisionLog", "open_log"]
