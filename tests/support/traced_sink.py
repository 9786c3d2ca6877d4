"""What the tests of `@traced_sink` share. Every sink goes the way that Spark's go."""

from __future__ import annotations

import json
from typing import Any

import cloudpickle
import pytest
from opentelemetry import trace

from tracing_2pc.core.model import BranchContext, BranchId, TransactionId


def shipped(sink: Any) -> Any:
    """Return what an executor gets: a class of a test is pickled by value."""
    return cloudpickle.loads(cloudpickle.dumps(sink))


def branch_of(carrier: dict[str, str], partition: int = 0) -> BranchContext:
    return BranchContext(
        TransactionId("orders", 7, 1), BranchId(partition, 4), ("p",), carrier
    )


def through_the_log(handle: Any) -> Any:
    return json.loads(json.dumps(handle))


class Foreign(trace.NonRecordingSpan):
    """A span of somebody else's that answers nothing it is asked."""

    def __init__(self) -> None:
        super().__init__(trace.INVALID_SPAN_CONTEXT)

    def get_span_context(self) -> Any:
        raise RuntimeError("a foreign span")

    is_recording = set_attribute = set_status = end = get_span_context


class Plain:
    """A sink of five methods that does nothing; begin takes no context."""

    def begin(self):
        return {}

    def invoke(self, handle, record):
        pass

    def pre_commit(self, handle):
        pass

    def commit(self, handle):
        pass

    def abort(self, handle):
        pass


class Refusing(Plain):
    """It takes no bad record, and says whose it was."""

    def invoke(self, handle, record):
        if record == "bad":
            raise ValueError("a customer's name")


def one_good_one_bad(sink: Any) -> None:
    """Write two records; the second one fails, and the batch is aborted."""
    handle = sink.begin()
    sink.invoke(handle, "good")
    with pytest.raises(ValueError, match="customer"):
        sink.invoke(handle, "bad")
    sink.abort(handle)
