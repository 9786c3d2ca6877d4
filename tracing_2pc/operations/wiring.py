"""Opens the objects in the settings: decision log, participants, recovery."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import TypeVar

from tracing_2pc.core.addresses import name_of
from tracing_2pc.core.errors import ConfigurationError, ParticipantUnavailableError
from tracing_2pc.core.log_reader import OperatorLog
from tracing_2pc.core.ports import SystemClock
from tracing_2pc.core.remote_participant import RemoteParticipant
from tracing_2pc.core.settings import Settings
from tracing_2pc.core.states import OF_CALLER
from tracing_2pc.inspection.findings import export_of_token
from tracing_2pc.inspection.participants import LOG
from tracing_2pc.launch.launching import recovering_sinks
from tracing_2pc.protocol.delivery import Delivery
from tracing_2pc.protocol.recovery import Recovery
from tracing_2pc.protocol.retry import RetryPolicy
from tracing_2pc.sinks.participant_sink import ParticipantSink, TracedParticipant
from tracing_2pc.store import open_log
from tracing_2pc.tracing import instruments
from tracing_2pc.tracing.sdk import lifecycle
from tracing_2pc.tracing.transaction import OpenTelemetryTracing

T = TypeVar("T")


@contextlib.contextmanager
def open_configured_log(
    settings: Settings, *, may_be_down: bool = False
) -> Iterator[OperatorLog]:
    """Open the log that the settings name, and close it; never make one.

    With `may_be_down` also where it cannot be reached now.

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


def open_participants(settings: Settings) -> Mapping[str, RemoteParticipant]:
    """Return the participants that the settings have an address of, by name.

    Raises:
        ConfigurationError: one is called as the log is, or cannot be asked safely.
    """
    if LOG in map(name_of, settings.participants):
        raise ConfigurationError(
            f"participant {LOG!r}: the watcher calls the decision log so. Give it "
            "another name in `participants` before it takes part in anything"
        )
    return {name: p.inner for name, p in _traced_participants(settings).items()}


def participant_named(name: str, participants: Mapping[str, T]) -> T:
    """Return the entry of the participant that a person means.

    Raises:
        ConfigurationError: the settings have no such participant.
    """
    if name not in participants:
        raise ConfigurationError(
            f"no participant {name!r} in the settings; they have: "
            f"{', '.join(participants) or 'none'}"
        )
    return participants[name]


@contextlib.contextmanager
def naming_whose_token(settings: Settings) -> Iterator[None]:
    """Add the token used to a refusal of the caller."""
    try:
        yield
    except ParticipantUnavailableError as error:
        if error.refusal not in OF_CALLER:
            raise
        text = f"{error}{export_of_token(settings)}"
        raise ParticipantUnavailableError(text) from None


def open_recovery(log: OperatorLog, settings: Settings) -> Recovery:
    """Return the recovery by these settings and the system's clock."""
    participants = {**recovering_sinks(log), **_traced_participants(settings)}
    retry, tracing = RetryPolicy(SystemClock()), OpenTelemetryTracing()
    delivery = Delivery(log, participants, tracing=tracing, retry=retry)
    return Recovery(log, delivery, tracing)


def _traced_participants(settings: Settings) -> Mapping[str, TracedParticipant]:
    participants: dict[str, TracedParticipant] = {}
    for key in settings.participants:
        application = key.rpartition("/")[0]
        sink = ParticipantSink(
            settings.addresses_of(application),
            token=settings.token,
            timeout=settings.request_timeout,
        )
        participants[key] = sink.participants[name_of(key)]
    return participants


def start_telemetry(service: str = "tracing-2pc") -> None:
    """Trace and count work done here, where the environment asks for it."""
    lifecycle.start(service)
    instruments.start(service)
