"""SkyWalking, natively: the spans of OpenTelemetry as segments, and `sw8` in and out.

The environment turns it on (`OTEL_PROPAGATORS`, `OTEL_TRACES_EXPORTER`), or a program
that sets up OpenTelemetry itself does, by `start.start(...)`. SkyWalking's own agent is
not needed; participants that run it join the same trace.

Modules here know OpenTelemetry and SkyWalking, and nothing of two-phase commit: no
module here imports anything of this package from outside of this folder.
"""

from .headers import Sw8, parse_correlation, parse_sw8

__all__ = ["Sw8", "parse_correlation", "parse_sw8"]
