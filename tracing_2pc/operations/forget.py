"""Drop old finished transactions by hand, a slice at a time."""

from __future__ import annotations

from collections.abc import Iterator

from tracing_2pc.operations.recover import check_known
from tracing_2pc.protocol.delivery import SLICE
from tracing_2pc.store import SqlDecisionLog


def forget(
    log: SqlDecisionLog, application: str, finished_before: float
) -> Iterator[int]:
    """Do at once what the driver does in slices; yield how many are gone so far.

    Each slice is durable when it is yielded, and others may work between two. What is
    unfinished stays, with all that is above it, and so does the newest batch (rule 17).

    Args:
        log: the decision log.
        application: whose records.
        finished_before: Unix seconds; newer ones stay.

    Raises:
        ConfigurationError: the log does not know the application.
    """
    check_known(log, application)
    gone = 0
    while dropped := log.forget(
        application, finished_before=finished_before, limit=SLICE
    ):
        gone += dropped
        yield gone
