"""The library's own tracing, turned off in a process that others trace.

A process with a tracer provider is traced by the library, whoever has set it. There is
no setting against that, so its tracer is replaced by one that does nothing.
"""

from __future__ import annotations

import os
from typing import Final

from opentelemetry import trace

from tracing_2pc.tracing import spans

VARIABLE: Final = "BENCH_OWN_TRACING"


def obey() -> None:
    """Turn it off if the environment says so; call it before anything is traced."""
    if os.environ.get(VARIABLE) == "off":
        spans._tracer_of = lambda _: trace.NoOpTracer()
