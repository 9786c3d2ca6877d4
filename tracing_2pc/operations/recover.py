"""`tracing-2pc recover`: one sweep, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Mapping

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.interfaces import SystemClock
from tracing_2pc.model import TransactionRecord
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.patience import Patience
from tracing_2pc.protocol.recovery import Recovered, Recovery
from tracing_2pc.settings import Settings
from tracing_2pc.sinks.participants import ParticipantSink, PhasedParticipant
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.telemetry import lifecycle, metrics
from tracing_2pc.telemetry.transaction import OpenTelemetryTracing
from tracing_2pc.transports.http import HttpParticipant


@contextlib.contextmanager
def configured_log(
    settings: Settings, *, may_be_down: bool = False
) -> Iterator[SqlDecisionLog]:
    """Open the log that the settings name, and close it; never make one.

    Args:
        settings: in force.
        may_be_down: open it also where it cannot be reached now.

    Raises:
        ConfigurationError: none is named, or there is none.
        DecisionLogError: it cannot be reached.
    """
    if not settings.log:
        raise ConfigurationError(
            "no decision log: give --log, set TPC_LOG, or run `tracing-2pc init`"
        )
    log = open_log(settings.log, must_exist=True, may_be_down=may_be_down)
    with contextlib.closing(log):
        yield log


def recover(
    log: SqlDecisionLog, settings: Settings, application: str | None
) -> Iterator[Recovered]:
    """Finish what is decided, abort what ran out of time; yield one item each.

    Participants without an address in the settings keep their transactions
    unfinished; so do hand-written sinks, which only their own job can call.

    Raises:
        ConfigurationError: the log knows no such application.
    """
    if application is not None:
        check_known(log, application)
    start_telemetry()
    return recovery_of(log, settings).sweep(application)


def deliver(
    log: SqlDecisionLog, settings: Settings, record: TransactionRecord
) -> Recovered:
    """Send one decision once, now, to whoever has not acknowledged it."""
    start_telemetry()
    return recovery_of(log, settings).settle(record)


def recovery_of(log: SqlDecisionLog, settings: Settings) -> Recovery:
    """Return what recovers by these settings, from the system's clock."""
    participants = participants_of(settings)
    patience, tracing = Patience(SystemClock()), OpenTelemetryTracing()
    delivery = Delivery(log, participants, tracing=tracing, patience=patience)
    return Recovery(log, delivery, tracing)


def participants_of(settings: Settings) -> Mapping[str, PhasedParticipant]:
    """Return those that the settings have an address of, by name."""
    if not settings.participants:
        return {}
    return ParticipantSink(
        settings.participants, token=settings.token, timeout=settings.request_timeout
    ).participants


def services_of(settings: Settings) -> Mapping[str, HttpParticipant]:
    """Return the same as what is asked over HTTP, without their part in a sink."""
    return {name: one.inner for name, one in participants_of(settings).items()}


def check_known(log: SqlDecisionLog, application: str) -> None:
    """Refuse an application that the log does not know, with those that it knows."""
    if application not in (known := log.applications()):
        raise ConfigurationError(unknown_application(application, known))


def unknown_application(application: str, known: Iterable[str]) -> str:
    """Say that the log knows no such application, and which it knows."""
    return (
        f"the log knows no application {application!r}; it knows: "
        f"{', '.join(known) or 'none'}"
    )


def start_telemetry() -> None:
    """Trace and count what is done here, where somebody has asked for it."""
    lifecycle.start("tracing-2pc")
    metrics.start("tracing-2pc")
