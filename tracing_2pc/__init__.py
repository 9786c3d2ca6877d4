"""Write each PySpark micro-batch to several services together or not at all, traced.

Start with `tracing_2pc.spark.two_phase_commit` and `ParticipantSink` in a job, with
`write` in a script that has no Spark, with
`tracing_2pc.participant` in a service, or with `@traced_sink` above a sink of your
own. Importing this package loads no backend: not Spark, not a database driver, not
the OpenTelemetry SDK.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tracing_2pc.core import errors
    from tracing_2pc.core.settings import Settings
    from tracing_2pc.embedded.sinks import TableSink, TopicSink
    from tracing_2pc.sinks.delta import DeltaSink
    from tracing_2pc.sinks.files import FileSink
    from tracing_2pc.sinks.iceberg import IcebergSink
    from tracing_2pc.sinks.participant_sink import ParticipantSink
    from tracing_2pc.sinks.script import write
    from tracing_2pc.tracing.decorator.traced_sink import trace_headers, traced_sink

__all__ = [
    "DeltaSink",
    "FileSink",
    "IcebergSink",
    "ParticipantSink",
    "Settings",
    "TableSink",
    "TopicSink",
    "errors",
    "trace_headers",
    "traced_sink",
    "write",
]

_HOMES = {
    "DeltaSink": "tracing_2pc.sinks.delta",
    "FileSink": "tracing_2pc.sinks.files",
    "IcebergSink": "tracing_2pc.sinks.iceberg",
    "ParticipantSink": "tracing_2pc.sinks.participant_sink",
    "Settings": "tracing_2pc.core.settings",
    "TableSink": "tracing_2pc.embedded.sinks",
    "TopicSink": "tracing_2pc.embedded.sinks",
    "trace_headers": "tracing_2pc.tracing.decorator.traced_sink",
    "traced_sink": "tracing_2pc.tracing.decorator.traced_sink",
    "write": "tracing_2pc.sinks.script",
}


def __getattr__(name: str) -> Any:
    import importlib

    if name == "errors":
        return importlib.import_module("tracing_2pc.core.errors")
    if name in _HOMES:
        return getattr(importlib.import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'tracing_2pc' has no attribute {name!r}")
