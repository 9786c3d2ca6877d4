"""The sinks of a job."""

from tracing_2pc.sinks.base import participants_of, write_branch
from tracing_2pc.sinks.composite import CompositeSink
from tracing_2pc.sinks.delta import DeltaSink
from tracing_2pc.sinks.files import FileSink
from tracing_2pc.sinks.iceberg import IcebergSink
from tracing_2pc.sinks.participant_sink import ParticipantSink

__all__ = [
    "CompositeSink",
    "DeltaSink",
    "FileSink",
    "IcebergSink",
    "ParticipantSink",
    "participants_of",
    "write_branch",
]
