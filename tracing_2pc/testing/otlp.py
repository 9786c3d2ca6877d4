"""OTLP as it travels: the body of a request as spans, and that of a refusal.

The messages come with the extra `otlp`; importing this module does not need it.
"""

from __future__ import annotations

import http.client
import zlib
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from tracing_2pc.core.errors import ConfigurationError

if TYPE_CHECKING:
    from opentelemetry.proto.common.v1.common_pb2 import AnyValue, KeyValue
    from opentelemetry.proto.trace.v1 import trace_pb2

PATH: Final = "/v1/traces"
PROTOBUF: Final = "application/x-protobuf"
ENCODINGS: Final = frozenset({"identity", "gzip", "deflate"})
Span = dict[str, Any]  # one span, in the form of `read_trace_file`

_EITHER_HEADER: Final = 32 + zlib.MAX_WBITS
"""For zlib: gzip or deflate, detected from the data."""


def messages() -> Any:
    """Import the messages; `ConfigurationError`: the extra `otlp` is not installed."""
    try:
        from opentelemetry.proto.collector.trace.v1 import trace_service_pb2
    except ImportError:
        raise ConfigurationError(
            "reading OTLP needs an extra: pip install 'tracing-2pc[otlp]'"
        ) from None
    return trace_service_pb2


def read(body: bytes, encoding: str) -> list[Span]:
    """Return the spans of a request's body; raises ValueError."""
    from google.protobuf.message import DecodeError

    try:
        if encoding != "identity":
            body = zlib.decompress(body, _EITHER_HEADER)
        request = messages().ExportTraceServiceRequest.FromString(body)
    except (DecodeError, zlib.error):
        raise ValueError(f"no request of OTLP, or not {encoding}") from None
    return [
        _span(span, _attributes(of_resource.resource.attributes))
        for of_resource in request.resource_spans
        for of_scope in of_resource.scope_spans
        for span in of_scope.spans
    ]


def refusal(status: int) -> bytes:
    """Return the body of a refusal: a `google.rpc.Status` with a message."""
    message = http.client.responses[status].encode()
    return bytes([0x12, len(message)]) + message


def _span(span: trace_pb2.Span, process: Mapping[str, object]) -> Span:
    kind, status = type(span).SpanKind.Name(span.kind), span.status
    code = type(status).StatusCode.Name(status.code)
    return {
        "name": span.name,
        "trace_id": span.trace_id.hex(),
        "span_id": span.span_id.hex(),
        "parent_id": span.parent_span_id.hex() or None,
        "kind": kind.removeprefix("SPAN_KIND_"),
        "start": span.start_time_unix_nano,
        "end": span.end_time_unix_nano,
        "service": process.get("service.name"),
        "instance": process.get("service.instance.id"),
        "attributes": _attributes(span.attributes),
        "links": [
            {"trace_id": link.trace_id.hex(), "span_id": link.span_id.hex()}
            for link in span.links
        ],
        "status": code.removeprefix("STATUS_CODE_"),
    }


def _attributes(pairs: Iterable[KeyValue]) -> dict[str, Any]:
    return {pair.key: _value(pair.value) for pair in pairs}


def _value(value: AnyValue) -> Any:
    chosen = value.WhichOneof("value")
    if chosen == "array_value":
        return [_value(item) for item in value.array_value.values]
    if chosen == "kvlist_value":
        return _attributes(value.kvlist_value.values)
    return None if chosen is None else getattr(value, chosen)
