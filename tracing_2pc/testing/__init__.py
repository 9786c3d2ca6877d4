"""What you test your own jobs and services with.

A decision log in memory, a proxy that loses and repeats requests as planned, and
traces as indented text.
"""

from tracing_2pc.testing.in_memory_log import InMemoryDecisionLog
from tracing_2pc.testing.traces import read_trace_file, span_tree

__all__ = [
    "InMemoryDecisionLog",
    "read_trace_file",
    "span_tree",
]
