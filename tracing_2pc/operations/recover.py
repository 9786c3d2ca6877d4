"""`tracing-2pc recover`: finishes decided transactions, without Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from tracing_2pc.core.addresses import addresses_of
from tracing_2pc.core.errors import ConfigurationError
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.model import TransactionRecord
from tracing_2pc.core.settings import Settings
from tracing_2pc.operations.wiring import (
    open_participants,
    open_recovery,
    start_telemetry,
)
from tracing_2pc.protocol.recovery import RecoveryResult
from tracing_2pc.sinks.sending import send_waiting

PATIENCE: Final = 60.0
"""Seconds without progress after which `recover` sends no more.

A process that was killed keeps the lease for half of them.
"""


def recover(
    log: OperatorLog, settings: Settings, application: str | None
) -> Iterator[RecoveryResult]:
    """Finish decided transactions, abort those out of time; yield one item each.

    Participants without an address in the settings keep their transactions
    unfinished; so do hand-written sinks, which only their own job can call.
    """
    if application is not None:
        raise_if_unknown(log, application)
    start_telemetry()
    return open_recovery(log, settings).sweep(application)


def send_outboxes(settings: Settings, application: str | None) -> dict[str, int | str]:
    """Send waiting requests of outboxes without a service from here.

    It ends when none waits, or none was sent for a minute. Return by participant the
    number of records left, or the error if it is not known.
    """
    participants = open_participants(settings)
    if application is not None:
        participants = addresses_of(participants, application)
    return send_waiting(participants, PATIENCE)


def deliver(
    log: OperatorLog, settings: Settings, record: TransactionRecord
) -> RecoveryResult:
    """Send one decision once, now, to all that have not acknowledged it."""
    start_telemetry()
    return open_recovery(log, settings).settle(record)


def raise_if_unknown(log: OperatorLog, application: str) -> None:
    """Refuse an application that the log does not know, with those that it knows."""
    if application not in (known := log.applications()):
        raise ConfigurationError(describe_unknown(application, known))


def describe_unknown(application: str, known: Iterable[str]) -> str:
    """Return the error for an application unknown to the log, with those it knows."""
    return (
        f"the log knows no application {application!r}; it knows: "
        f"{', '.join(known) or 'none'}"
    )
