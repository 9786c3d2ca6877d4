"""The standard services of a gRPC server: health and reflection."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import Any, Final

import grpc
from grpc_health.v1 import health_pb2
from grpc_reflection.v1alpha import reflection, reflection_pb2, reflection_pb2_grpc

from tracing_2pc.grpc.messages import DESCRIPTOR, POOL

HEALTH: Final = "grpc.health.v1.Health"

_LONGEST: Final = 10.0  # seconds in which a caller must have asked for all services

_AT_ONCE: Final = 4  # callers, none of whom needs a token

_FILES: Final = (DESCRIPTOR, health_pb2.DESCRIPTOR, reflection_pb2.DESCRIPTOR)


CHECK: Final = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse

SERVING: Final = health_pb2.HealthCheckResponse(status="SERVING")
NOT_SERVING: Final = health_pb2.HealthCheckResponse(status="NOT_SERVING")


def add_reflection(server: grpc.Server) -> None:
    """Let a server name its services and their messages, as command lines ask."""
    for file in _FILES[1:]:
        POOL.AddSerializedFile(file.serialized_pb)
    names = [s.full_name for file in _FILES for s in file.services_by_name.values()]
    servicer = _Reflection(names, POOL)
    reflection_pb2_grpc.add_ServerReflectionServicer_to_server(servicer, server)


class _Reflection(reflection.ReflectionServicer):  # type: ignore[misc]
    """Ends a call that goes on asking, and answers few: each holds a thread."""

    def __init__(self, names: list[str], pool: Any) -> None:
        super().__init__(names, pool)
        self._places = threading.BoundedSemaphore(_AT_ONCE)

    def ServerReflectionInfo(  # noqa: N802 - of the service
        self, request_iterator: Iterator[Any], context: Any
    ) -> Iterator[Any]:
        if not self._places.acquire(blocking=False):
            details = "others ask for names now: ask again"
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, details)
        end = threading.Timer(_LONGEST, context.cancel)
        end.start()
        try:
            yield from super().ServerReflectionInfo(request_iterator, context)
        finally:
            end.cancel()
            self._places.release()
