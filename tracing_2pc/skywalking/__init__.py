"""SkyWalking, natively: the spans of OpenTelemetry as segments, and `sw8` in and out.

Turned on by the environment, the usual way::

    OTEL_PROPAGATORS=tracecontext,baggage,skywalking
    OTEL_TRACES_EXPORTER=otlp,skywalking
    TPC_SKYWALKING_ENDPOINT=http://127.0.0.1:12800

or in a program that sets up OpenTelemetry itself, by `start(...)`. Nothing of
SkyWalking's own agent is needed; participants that run it join the same trace.

What belongs here knows OpenTelemetry and SkyWalking, and nothing of two-phase commit:
no module here imports anything of this package from outside of this folder.
"""

from tracing_2pc.skywalking.headers import (
    Sw8,
    parse_correlation,
    parse_sw8,
)

__all__ = ["Sw8", "parse_correlation", "parse_sw8"]
