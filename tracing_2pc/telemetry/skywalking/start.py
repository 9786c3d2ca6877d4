"""Turning it on: by the environment, or by one call."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Final

from opentelemetry import trace
from opentelemetry.sdk.resources import (
    SERVICE_INSTANCE_ID,
    SERVICE_NAME,
    OTELResourceDetector,
)
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult

from tracing_2pc.errors import ConfigurationError
from tracing_2pc.settings import reveal
from tracing_2pc.telemetry.skywalking import active
from tracing_2pc.telemetry.skywalking.processor import SkyWalkingProcessor
from tracing_2pc.telemetry.skywalking.sender import Collector

ENDPOINT: Final = "TPC_SKYWALKING_ENDPOINT"
TOKEN: Final = "TPC_SKYWALKING_TOKEN"  # noqa: S105 - the name of a variable
CERTIFICATES: Final = "TPC_SKYWALKING_CERTIFICATE"
DEFAULT: Final = "http://127.0.0.1:12800"


def start(
    endpoint: str | None = None,
    *,
    token: str | None = None,
    certificates: str | None = None,
    provider: TracerProvider | None = None,
) -> SkyWalkingProcessor:
    """Send the spans of this process to SkyWalking too, from now on.

    Once per process, after a fork if there is one. `sw8` is written and read if
    `OTEL_PROPAGATORS` names `skywalking`.

    Args:
        endpoint: base URL of the collector's HTTP port; by default the variable
            `TPC_SKYWALKING_ENDPOINT`, or `http://127.0.0.1:12800`.
        token: reference to what the collector wants as authentication, `env:NAME` or
            `file:PATH`; by default the variable `TPC_SKYWALKING_TOKEN` itself.
        certificates: file of those to trust; by default the system's.
        provider: by default the process's own.

    Raises:
        ConfigurationError: there is no provider of the OpenTelemetry SDK.
    """
    found = provider or trace.get_tracer_provider()
    if not isinstance(found, TracerProvider):
        raise ConfigurationError(
            "SkyWalking needs a tracer provider of the OpenTelemetry SDK: set one, or "
            "set OTEL_TRACES_EXPORTER=skywalking and let tracing_2pc make it"
        )
    # Of the environment only: what the SDK makes up is the same after a fork.
    named = OTELResourceDetector().detect().attributes.get(SERVICE_INSTANCE_ID)
    processor = SkyWalkingProcessor(
        Collector(
            endpoint or os.environ.get(ENDPOINT) or DEFAULT,
            str(found.resource.attributes[SERVICE_NAME])[:50],
            instance=str(named) if named else None,
            token=reveal(token, "SkyWalking") if token else os.environ.get(TOKEN),
            ca=certificates or os.environ.get(CERTIFICATES),
        )
    )
    found.add_span_processor(processor)
    active.use(processor)
    return processor


class SkyWalkingExporter(SpanExporter):
    """The door for `OTEL_TRACES_EXPORTER=skywalking`: it exports nothing itself.

    A segment must be known when its first span starts, and an exporter hears of spans
    when they have ended. So, when OpenTelemetry makes it, it adds our processor to the
    provider that is being set up.
    """

    def __init__(self) -> None:
        start()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Leave it to the processor."""
        return SpanExportResult.SUCCESS
