"""`tracing-2pc recover`: one sweep, without Spark."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.interfaces import Participant, SystemClock
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.patience import Patience
from tracing_2pc.protocol.recovery import Recovered, Recovery
from tracing_2pc.settings import Settings
from tracing_2pc.sinks.participants import ParticipantSink
from tracing_2pc.store import SqlDecisionLog, open_log
from tracing_2pc.telemetry import lifecycle, metrics
from tracing_2pc.telemetry.transaction import OpenTelemetryTracing


@contextlib.contextmanager
def configured_log(settings: Settings) -> Iterator[SqlDecisionLog]:
    """Open the log that the settings name, and close it; never make one.

    Raises:
        ConfigurationError: none is named, or there is none.
    """
    if not settings.log:
        raise ConfigurationError(
            "no decision log: give --log, set TPC_LOG, or run `tracing-2pc init`"
        )
    with contextlib.closing(open_log(settings.log, must_exist=True)) as log:
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
    if application is not None and application not in (known := log.applications()):
        raise ConfigurationError(
            f"the log knows no application {application!r}; it knows: "
            f"{', '.join(known) or 'none'}"
        )
    lifecycle.start("tracing-2pc")
    metrics.start("tracing-2pc")
    return recovery_of(log, settings).sweep(application)


def recovery_of(log: SqlDecisionLog, settings: Settings) -> Recovery:
    """Return what recovers by these settings, from the system's clock."""
    participants: Mapping[str, Participant] = {}
    if settings.participants:
        participants = ParticipantSink(
            settings.participants,
            token=settings.token,
            timeout=settings.request_timeout,
        ).participants
    clock, tracing = SystemClock(), OpenTelemetryTracing()
    delivery = Delivery(log, participants, tracing=tracing, patience=Patience(clock))
    timeout = settings.transaction_timeout
    return Recovery(log, delivery, tracing, clock, timeout)
