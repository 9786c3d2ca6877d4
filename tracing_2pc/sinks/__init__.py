"""What a job writes to."""

from tracing_2pc.sinks.base import participants_of, write_branch
from tracing_2pc.sinks.participants import ParticipantSink

__all__ = ["ParticipantSink", "participants_of", "write_branch"]
