"""Participants by gRPC: `grpc://` and `grpcs://` URLs, and a server for a service.

`participant.proto` is what travels. `serve_grpc` serves a Flask application that has
`participant_blueprint`; a job needs nothing but the URL.
"""

from typing import Any

__all__ = ["GrpcServer", "serve_grpc"]


def __getattr__(name: str) -> Any:
    # A job's tasks need the client only, and not what a server loads.
    if name in __all__:
        from tracing_2pc.grpc import server

        return getattr(server, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
