"""A segment as SkyWalking's collector reads it: its trace protocol 3, in JSON."""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final
from urllib.parse import urlsplit

from opentelemetry.sdk.trace import Event, ReadableSpan
from opentelemetry.trace import SpanKind, StatusCode, format_span_id, format_trace_id

from .in_use import endpoints
from .segments import ENTRIES, Piece, Placed, Reference, context_of

MAX_NAME: Final = 150
MAX_TAG: Final = 255
MAX_LINKS: Final = MAX_TAG // 33
"""Trace ids that fit into a tag, each with a comma."""

_EXITS: Final = (SpanKind.CLIENT, SpanKind.PRODUCER)
_LAYERS: Final = {"db": "Database", "rpc": "RPCFramework", "http": "Http"}
_COMPONENTS: Final = {
    "opentelemetry.instrumentation.flask": 7001,
    "opentelemetry.instrumentation.requests": 7002,
    "opentelemetry.instrumentation.urllib3": 7006,
    "opentelemetry.instrumentation.psycopg": 7010,
}
_OURS: Final = {SpanKind.SERVER: 7001, SpanKind.CLIENT: 7006}  # Flask and urllib3
_PSYCOPG: Final = 7010
_TAGS: Final = {
    "http.request.method": "http.method",
    "http.response.status_code": "http.status_code",
    "url.full": "url",
    "db.system.name": "db.type",
    "db.system": "db.type",
    "db.query.text": "db.statement",
}
"""Names of the semantic conventions, and what SkyWalking's pages look for."""
_LOGIC_SPAN: Final = ("x-le", '{"logic-span":true}')


def segment(piece: Piece, service: str, instance: str) -> dict[str, Any]:
    """Return a segment, its spans in the order of their index.

    A field that has the protocol's default (nothing, no, unknown) is left out. Such
    fields would be half of the bytes.
    """
    calling = {p.parent for p in piece.spans if p.span.kind in _EXITS}
    return {
        "traceId": piece.trace,
        "traceSegmentId": piece.segment,
        "service": service,
        "serviceInstance": instance,
        "spans": [
            _span(placed, service, instance, calls_on=placed.position in calling)
            for placed in sorted(piece.spans, key=operator.attrgetter("position"))
        ],
    }


def _span(
    placed: Placed, service: str, instance: str, *, calls_on: bool
) -> dict[str, Any]:
    span = placed.span
    attributes = dict(span.attributes or ())
    kind = _type(placed, calls_on=calls_on)
    unless_default = {
        "spanLayer": _layer(attributes),
        "componentId": _component(span, attributes),
        "peer": peer(attributes) if kind == "Exit" else "",
        "isError": span.status.status_code is StatusCode.ERROR,
        "logs": [_log(event) for event in span.events],
        "refs": [_reference(r, service, instance) for r in placed.references],
    }
    return {
        "spanId": placed.position,
        "parentSpanId": placed.parent,
        "startTime": (span.start_time or 0) // 1_000_000,
        "endTime": (span.end_time or time.time_ns()) // 1_000_000,
        "operationName": span.name[:MAX_NAME],
        "spanType": kind,
        "tags": _tags(placed, attributes, kind),
        **{name: value for name, value in unless_default.items() if value},
    }


def _type(placed: Placed, *, calls_on: bool) -> str:
    """Return a call's end that a span is. A call around a call is none: one counts."""
    if placed.span.kind in ENTRIES and placed.parent == -1:
        return "Entry"
    if placed.span.kind in _EXITS and not calls_on:
        return "Exit"
    return "Local"


def peer(attributes: Mapping[str, Any]) -> str:
    """Return the address that a call goes to; empty if its span has none."""
    host = attributes.get("server.address") or attributes.get("net.peer.name")
    port = attributes.get("server.port") or attributes.get("net.peer.port")
    if host:
        return f"{host}:{port}" if port else str(host)
    url = attributes.get("url.full") or attributes.get("http.url") or ""
    address = urlsplit(str(url)).netloc.rpartition("@")[2]
    return address or str(attributes.get("db.namespace") or "")  # SQLite has none


def _layer(attributes: Mapping[str, Any]) -> str | None:
    # The layer MQ makes the collector take the broker's address for the caller.
    if attributes.get("messaging.system") and attributes.get("server.address"):
        return "MQ"
    kinds = {name.partition(".")[0] for name in attributes}
    return next((layer for kind, layer in _LAYERS.items() if kind in kinds), None)


def _component(span: ReadableSpan, attributes: Mapping[str, Any]) -> int:
    scope = span.instrumentation_scope.name if span.instrumentation_scope else ""
    if attributes.get("db.system.name") == "postgresql":
        return _PSYCOPG
    if "db.system.name" in attributes or span.kind not in (*ENTRIES, *_EXITS):
        return 0
    return _COMPONENTS.get(scope) or _OURS.get(span.kind, 0)


def _tags(
    placed: Placed, attributes: Mapping[str, Any], kind: str
) -> list[dict[str, str]]:
    """Return attributes; and of a segment's first span, OpenTelemetry's ids."""
    tags = [(_TAGS.get(name, name), _text(value)) for name, value in attributes.items()]
    if kind == "Local" and not endpoints.isdisjoint(attributes):
        tags.append(_LOGIC_SPAN)
    if placed.parent == -1:
        context = context_of(placed.span)
        tags.append(("otel.trace_id", format_trace_id(context.trace_id)))
        tags.append(("otel.span_id", format_span_id(context.span_id)))
    if placed.span.links and (linked := _linked(placed.span)):
        tags.append(("otel.link", ",".join(linked)))
    if placed.incomplete:
        tags.append(("otel.incomplete", "true"))
    return _pairs(tags)


def _pairs(pairs: Iterable[tuple[str, str]]) -> list[dict[str, str]]:
    return [{"key": key, "value": value} for key, value in pairs]


def _text(value: object) -> str:
    text = str(value)[:MAX_TAG]
    return text.lower() if isinstance(value, bool) else text


def _linked(span: ReadableSpan) -> list[str]:
    """Return the ids of the other traces that a span links to: the first of them."""
    own = context_of(span).trace_id
    others = {link.context.trace_id: None for link in span.links}
    return [format_trace_id(i) for i in others if i != own][:MAX_LINKS]


def _log(event: Event) -> dict[str, Any]:
    attributes = {str(k): str(v) for k, v in (event.attributes or {}).items()}
    named = {"event": event.name}
    if event.name == "exception":
        named = {
            "event": "error",
            "error.kind": attributes.pop("exception.type", ""),
            "message": attributes.pop("exception.message", ""),
            "stack": attributes.pop("exception.stacktrace", ""),
        }
    data = _pairs({**named, **attributes}.items())
    return {"time": event.timestamp // 1_000_000, "data": data}


def _reference(reference: Reference, service: str, instance: str) -> dict[str, Any]:
    place = reference.place
    return {
        "refType": reference.kind,
        "traceId": place.trace,
        "parentTraceSegmentId": place.segment,
        "parentSpanId": place.position,
        "parentService": reference.service or service,
        "parentServiceInstance": reference.instance or instance,
        "parentEndpoint": place.endpoint[:MAX_NAME],
        "networkAddressUsedAtPeer": reference.peer,
    }
