"""Tools for the tests of your own jobs, sinks and services.

Participants in the test's process and a batch without Spark, the promises of a sink,
and of a participant's resource, as tests, a temporary decision log, a proxy that loses
and repeats requests as planned, a collector that keeps spans, and traces as indented
text.
"""

from typing import TYPE_CHECKING, Any

from tracing_2pc.testing.collector import Collector
from tracing_2pc.testing.fault_proxy import Fault, FaultProxy, SeenRequest
from tracing_2pc.testing.one_batch import run_one_batch, served
from tracing_2pc.testing.temporary_log import temporary_log
from tracing_2pc.testing.traces import read_trace_file, span_tree

if TYPE_CHECKING:
    from tracing_2pc.testing.resource_contract import ResourceContract
    from tracing_2pc.testing.sink_contract import SinkContract

__all__ = [
    "Collector",
    "Fault",
    "FaultProxy",
    "ResourceContract",
    "SeenRequest",
    "SinkContract",
    "read_trace_file",
    "run_one_batch",
    "served",
    "span_tree",
    "temporary_log",
]


def __getattr__(name: str) -> Any:
    # The contracts need pytest when they are imported.
    if name == "ResourceContract":
        from tracing_2pc.testing.resource_contract import ResourceContract

        return ResourceContract
    if name == "SinkContract":
        from tracing_2pc.testing.sink_contract import SinkContract

        return SinkContract
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
