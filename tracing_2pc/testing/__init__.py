"""What you test your own jobs and services with.

A decision log in memory, a proxy that loses and repeats requests as planned, a
collector that keeps spans, and traces as indented text.
"""

from tracing_2pc.testing.collector import Collector
from tracing_2pc.testing.fault_proxy import FaultProxy
from tracing_2pc.testing.faults import Fault, SeenRequest
from tracing_2pc.testing.in_memory_log import InMemoryDecisionLog
from tracing_2pc.testing.traces import read_trace_file, span_tree

__all__ = [
    "Collector",
    "Fault",
    "FaultProxy",
    "InMemoryDecisionLog",
    "SeenRequest",
    "read_trace_file",
    "span_tree",
]
